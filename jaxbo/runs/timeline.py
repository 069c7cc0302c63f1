"""Workers with random durations: each is asked anew as it ends, in a single compiled program.

EGP-TS, Algorithm 2. Query t comes from its own key, whatever order results arrive in: with a single
worker it asks the queries of `run`.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from jaxbo._check import require, whole
from jaxbo._shown import Shown
from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.base.keys import agent_key, design_keys, duration_key, round_keys, run_keys
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.runs import _steps
from jaxbo.runs._arguments import check_arguments, check_precision, check_room
from jaxbo.runs.compiled import Compiled, check_objective
from jaxbo.types import Count, Key, Point, Scalar

#: How long worker number `worker` takes for x: a positive number.
Duration: TypeAlias = Callable[[Key, Count, Point], Scalar]


class Timeline(Shown):
    """Evaluations in the order in which they ended. Times count from the first query.

    The initial design is not among them.

    Args:
        queries: The points.
        values: The values, NaN for failed evaluations.
        workers: The worker of each evaluation.
        tickets: The numbers of the evaluations in the order of asking.
        started: When each evaluation began.
        ended: When each evaluation ended.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> who, when = jnp.zeros(1, int), jnp.zeros(1)
        >>> line = jaxbo.Timeline(jnp.zeros((1, 2)), jnp.ones(1), who, who, when, when + 2.5)
        >>> float(line.ended[0] - line.started[0])
        2.5
    """

    queries: Float[Array, "evaluations dim"]
    values: Float[Array, " evaluations"]
    workers: Int[Array, " evaluations"]
    tickets: Int[Array, " evaluations"]
    started: Float[Array, " evaluations"]
    ended: Float[Array, " evaluations"]


class _Desks(NamedTuple):
    """The query of each worker."""

    x: Float[Array, "workers dim"]
    ticket: Int[Array, " workers"]
    started: Float[Array, " workers"]
    ends: Float[Array, " workers"]


def simulate(
    algorithm: AbstractOneModel,
    objective: Compiled,
    duration: Duration,
    evaluations: int,
    key: Key,
    *,
    initial: int = 0,
) -> tuple[State, Timeline]:
    """Simulates `algorithm.targets` workers who work side by side, as a single compiled program.

    Each worker is asked a new query as it ends. With one worker the queries are those of `run`. The
    function is pure: `vmap` it over keys.

    Args:
        algorithm: The method, without outcomes.
        objective: A function `f(key, agent, x)`, `f(agent, x)` or `f(x)` in JAX, or an
            `AbstractObjective`.
        duration: A function of a key, a worker and a point: the time that the evaluation takes. NaN is
            for ever, and less than 0 is no time at all.
        evaluations: Number of evaluations after the initial ones, at least 1.
        key: Random key.
        initial: Number of points of the initial design, evaluated before the clock starts.

    Returns:
        The last state and the timeline.

    Raises:
        ValueError: Sizes do not fit, or the method has outcomes.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4), candidates=5)
        >>> takes = lambda key, worker, x: 1.0 + x[0]
        >>> _, line = jaxbo.simulate(method, lambda x: -x[0], takes, 2, jax.random.key(0))
        >>> line.values.shape, bool(line.ended[0] <= line.ended[1])
        ((2,), True)
    """
    check_arguments(algorithm, key, objective, AbstractOneModel)
    check_precision(algorithm)
    _check_duration(algorithm, duration)
    whole("evaluations", evaluations, least=1)
    whole("initial", initial)
    require(
        not algorithm.outcomes,
        "simulate is for methods without outcomes: take run, or drive_async.",
    )
    check_room(algorithm, initial + evaluations)
    objective = check_objective(algorithm, objective)
    return _simulate(algorithm, objective, duration, evaluations, key, initial)


def _check_duration(algorithm: AbstractOneModel, duration: Duration) -> None:
    """`ValueError` unless it is a function of a key, a worker and a point that returns a number."""
    form = "duration must be a function f(key, worker, x) of one number"
    function = callable(duration) and not isinstance(duration, type)
    require(function, f"{form}, got {duration!r}.")
    point = jax.ShapeDtypeStruct((algorithm.domain.dim,), jnp.zeros(()).dtype)
    try:
        found = jax.eval_shape(duration, jr.key(0), jnp.zeros((), int), point)
    except TypeError as error:
        raise ValueError(f"{form}: {error}") from error
    dtype = getattr(found, "dtype", bool)
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    fine = getattr(found, "shape", None) == () and real
    require(fine, f"{form}, and it returns {found}.")


@eqx.filter_jit
def _simulate(
    algorithm: AbstractOneModel,
    objective: Compiled,
    duration: Duration,
    evaluations: int,
    key: Key,
    initial: int,
) -> tuple[State, Timeline]:
    keys, workers = run_keys(key), jnp.arange(algorithm.targets)
    state = _steps.init(algorithm, keys.init, jax.vmap)

    def evaluate(key: Key, x: Point) -> Scalar:
        value = objective(agent_key(key, 0), jnp.zeros((), int), x)
        fine = jnp.isfinite(value) & algorithm.domain.contains(x)
        return jnp.where(fine, value, jnp.nan)

    if initial:
        rows = jnp.arange(initial)
        points, noise = jax.vmap(lambda i: design_keys(keys, i))(rows)
        x = jax.vmap(lambda key: _steps.design(algorithm, key, jax.vmap)[0])(points)
        values = jax.vmap(evaluate)(noise, x)
        stages = jax.vmap(lambda row: _steps.stage(row, initial))(rows)

        def observe(state: State, row: tuple[Point, Scalar, Stage]) -> tuple[State, None]:
            return _steps.tell_one(algorithm, state, *row), None

        state, _ = jax.lax.scan(observe, state, (x, values, stages))

    def begin(
        state: State, desks: _Desks, worker: Count, ticket: Count, now: Scalar, busy: Array
    ) -> _Desks:
        ask_key, noise_key = round_keys(keys, ticket)
        others = slice(0 if algorithm.targets == 1 else None)  # a lone worker has none
        x = _steps.ask_one(algorithm, ask_key, state, desks.x[others], busy[others])
        takes = jnp.asarray(duration(duration_key(noise_key), worker, x), now.dtype)
        takes = jnp.where(jnp.isnan(takes), jnp.inf, jnp.maximum(takes, 0))
        row = _Desks(x, ticket, now, now + takes)
        return jax.tree.map(lambda table, one: table.at[worker].set(one), desks, row)

    def fill(desks: _Desks, worker: Count) -> tuple[_Desks, None]:
        zero = jnp.zeros((), desks.ends.dtype)
        return begin(state, desks, worker, worker, zero, workers < worker), None

    count = algorithm.targets
    zeros = jnp.zeros((count,), float)
    empty = _Desks(jnp.zeros((count, algorithm.domain.dim), float), workers, zeros, zeros)
    desks, _ = jax.lax.scan(fill, empty, workers)

    def step(carry: tuple[State, _Desks], i: Count) -> tuple[tuple[State, _Desks], tuple]:
        state, desks = carry
        worker = jnp.argmin(desks.ends)
        x, ticket, started, now = jax.tree.map(lambda table: table[worker], desks)
        value = evaluate(round_keys(keys, ticket).noise, x)
        state = _steps.tell_one(algorithm, state, x, value, _steps.stage(initial, initial))
        desks = begin(state, desks, worker, count + i, now, workers != worker)
        return (state, desks), (x, value, worker, ticket, started, now)

    (state, _), rows = jax.lax.scan(step, (state, desks), jnp.arange(evaluations))
    return state, Timeline(*rows)
