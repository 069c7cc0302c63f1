"""The loop: init, then ask → evaluate → tell, round after round, compiled with its objective.

`run` makes all rounds one program, laid out over agents as its `mesh` and `chunk` say.
`jaxbo.runs.driver` runs the same parts around a Python objective.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

from collections.abc import Callable
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import flag, require, whole
from jaxbo._direction import Direction, check_direction
from jaxbo._keys import barrier
from jaxbo._warning import warn
from jaxbo.algos.base._room import larger
from jaxbo.algos.base._state import check_state
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.keys import run_keys
from jaxbo.algos.base.outcomes import numbers_of, stacked
from jaxbo.domains.space import Space
from jaxbo.layout import layout
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs._arguments import check_arguments, check_precision
from jaxbo.runs._objective import compiled
from jaxbo.runs._plan import Compiled, Plan, evaluate_all
from jaxbo.runs._segments import run_in_segments
from jaxbo.runs._simulation import warn_of_simulation
from jaxbo.runs.trace import Round
from jaxbo.types import Count, Key

__all__ = ["Compiled", "check_objective", "check_queries", "check_sizes", "evaluate_all", "run"]

#: What JAX raises where Python needs the number that a traced array stands for.
_IN_PYTHON = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def run(
    algorithm: AbstractAlgorithm,
    objective: Compiled,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    present: Bool[Array, "rounds agents"] | None = None,
    state: PyTree | None = None,
    every: int = 1,
    record: Callable[[Round], PyTree] | None = None,
    mesh: Mesh | None = None,
    chunk: int | None = None,
    direction: Direction = "maximize",
    progress: bool = False,
    checkpoint: str | PathLike | None = None,
) -> tuple[PyTree, Any]:
    """Runs a method for some rounds, compiled with its objective into one program.

    The program is compiled once for each structure. A new lambda as `objective` or `record` compiles it
    again. `run` is pure: `vmap` it over keys, or over methods that differ in numbers. Derivatives are
    taken forward (`jax.jvp`, `jax.jacfwd`). Reverse mode (`jax.grad`) has no rule for this loop: scan
    `ask` and `tell` for it.

    Memory holds the agents' state, which a method's docstring describes. Each agent that is asked takes
    about 8 bytes for each candidate, and as much for each feature of each start of the search. An agent
    with features of its own also takes 8 bytes for each feature of 256 candidates. `chunk` bounds all
    of this.

    Values keep the precision of the objective. A model that standardizes subtracts the first value from
    all. Digits that the objective has rounded away do not come back. So leave out a large constant, or
    use float64.

    A query outside of the domain is a failed evaluation, for which `drive` raises an error. Only a
    method of your own can ask it. Private releases are simulated: they are not charged, and whoever
    knows the key knows their noise. A `SimulationWarning` says so once. `drive` with a ledger draws
    secret noise and charges for it.

    Args:
        algorithm: The method.
        objective: A function `f(key, agent, x)` in JAX, or an `objectives.AbstractObjective`. A
            function without noise may be `f(agent, x)` or `f(x)`. If the method has `outcomes`, it
            returns a dictionary such as {"value": y, "latency": t}.
        rounds: Number of rounds, at least 0.
        key: Random key. A run that goes on from a `state` takes a new key: the old one would draw the
            same numbers again.
        initial: Number of points that each target evaluates before the first round, at least 0. They
            are the method's initial design, as a rule uniform draws that depend on the key alone.
        present: Whether an agent's message arrives in a round. Default: all do.
        state: Where to start instead of `algorithm.init`, for instance after `warm_start`. It is kept.
            If you do not need it any more, donate it to the `jit` that `run` is called in. If it comes
            from `drive`, the method is told values less `state.origin`, and the trace has the values
            themselves.
        every: The last round of each `every` rounds is recorded.
        record: A function of a `Round`, such as `summary`, whose results are recorded. They are
            returned with an axis of rounds in place of the trace. Default: everything, as a `Trace`.
        mesh: Lays the agents over all devices of this mesh (`jaxbo.layout`). The results are equal to
            the results of one device up to rounding, which may decide between two queries that are as
            good. They stay laid out if the devices divide the agents (and the targets) evenly.
            Otherwise each device has the whole. If workers share one model, only evaluations are
            spread.
        chunk: How many agents a device computes at the same time. Default: all.
        direction: "minimize" if small values are good. Values and best values keep the user's sign, and
            the method and its `state` have their negative.
        progress: Whether a bar is shown, with the numbers that `record` gives of a round.
        checkpoint: A file from which the same call goes on where it stopped, bit for bit. The program
            then runs a few rows at a time. A first interrupt at the keyboard ends the run after the
            rows in hand, which are returned, and a second one is a `KeyboardInterrupt`. The file may go
            on with more rounds. If the trace has every round, it may also go on with a larger capacity.
            Not under `jit` or `vmap`, nor over several processes; so too for `progress`.

    Returns:
        The last state and the trace.

    Raises:
        ValueError: Sizes do not fit, or the objective does not return one number.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(1), 2)
        >>> objective = lambda agent, x: -((x[0] - 0.3) ** 2)
        >>> state, trace = jaxbo.run(method, objective, 3, jax.random.key(0))
        >>> trace.queries.shape, trace.values.shape
        ((3, 2, 1), (3, 2))
    """
    check_arguments(algorithm, key, objective)
    check_direction(direction)
    whole("every", every, least=1)
    grows = record is None and every == 1
    check_sizes(algorithm, rounds, initial, present, state, grows=grows)
    check_precision(algorithm)
    objective = check_objective(algorithm, objective)
    require(
        record is None or callable(record), f"record must be a function of a Round, got {record!r}."
    )
    flag("progress", progress)
    warn_of_rest(rounds, every)
    warn_of_simulation(algorithm)
    # NumPy's integers would be traced.
    rounds, initial, every = int(rounds), int(initial), int(every)
    # Without rounds there is nobody to be present.
    present = present if rounds else None
    each = layout(mesh, chunk)
    plan = Plan(algorithm, objective, present, record, each, rounds, initial, every, direction)
    if checkpoint is not None or progress:
        return run_in_segments(plan, key, state, checkpoint, progress)
    return _run(plan, key, state)


@eqx.filter_jit
def _run(plan: Plan, key: Key, state: PyTree | None) -> tuple[PyTree, Any]:
    keys, rows = run_keys(key), plan.initial + plan.rounds
    begun = plan.start(keys.init, state)
    tables, body = plan.loop(keys, begun)
    if not rows:
        return plan.end(rows, begun, tables)
    return plan.end(rows, *_hidden_loop(rows, body, (begun, tables)))


def warn_of_rest(rounds: int, every: int) -> None:
    """A warning that the last rounds are not recorded, if they are not."""
    if left := rounds % every:
        warn(
            f"the last {left} of {rounds} rounds {'is' if left == 1 else 'are'} not recorded: give a "
            f"multiple of every={every} as rounds.",
        )


def _hidden_loop(count: int, body: Callable[[Count, PyTree], PyTree], start: PyTree) -> PyTree:
    """`fori_loop`, of whose number of steps the compiler knows nothing, and so specializes nothing."""
    return jax.lax.fori_loop(0, barrier(count), body, start)


def check_sizes(
    algorithm: AbstractAlgorithm,
    rounds: int,
    initial: int,
    present: Any,
    state: PyTree,
    known: int = 0,
    *,
    grows: bool = True,
) -> None:
    """`ValueError` if the arguments do not fit the algorithm or each other; `known` are earlier results.

    `grows` says whether a checkpoint goes on with a larger capacity.
    """
    whole("rounds", rounds)
    whole("initial", initial)
    held = known
    if state is not None:
        check_state(algorithm, state)
        held = held + algorithm.told(state)
        require(
            initial + known == 0 or algorithm.round(state) == 0,
            "initial points, first points and known results come before the first round, and this state "
            "has had one: initial=0, without first and known.",
        )
    check_room(algorithm, held, initial, rounds, grows)
    most = algorithm.initial_capacity
    require(
        most is None or known + initial <= most,
        f"{known + initial} initial points exceed the {most} for which the algorithm has room.",
    )
    shape, dtype = getattr(present, "shape", ()), getattr(present, "dtype", None)
    require(
        present is None or (len(shape) == 2 and shape[0] == rounds and dtype == np.bool_),
        f"present must be an array of bool with a row for each of the {rounds} rounds and a column for "
        f"each agent, got {type(present).__name__} of {dtype} and shape {shape}.",
    )


def check_room(
    algorithm: AbstractAlgorithm, held: Any, initial: int, rounds: int, grows: bool
) -> None:
    """`ValueError` with the line to write if the method cannot hold so many observations."""
    most, rows = algorithm.capacity, held + initial + rounds
    unit = "observations"
    if algorithm.clients < algorithm.targets:  # workers share a model
        unit = f"rows of {algorithm.targets} evaluations"
    require(
        most is None or rows <= most,
        f"{initial} initial points and {rounds} rounds, after {held} {unit}, exceed the "
        f"algorithm's capacity of {most} {unit}: "
        f"{larger(algorithm, algorithm.room_for(rows))}."
        f"{' A checkpoint goes on with it.' if grows else ''}",
    )


_contained = eqx.filter_jit(lambda domain, queries: jax.vmap(domain.contains)(queries))


def contained(algorithm: AbstractAlgorithm, queries: Float[Any, "targets dim"]) -> np.ndarray:
    """Whether each query is in the domain."""
    return np.asarray(_contained(algorithm.domain, jnp.asarray(queries)))


def check_queries(algorithm: AbstractAlgorithm, queries: Float[Any, "targets dim"]) -> None:
    """`ValueError` for a query outside of the domain, before it is evaluated."""
    inside = contained(algorithm, queries)
    if not inside.all():
        number = int(np.argmin(inside))
        raise ValueError(
            f"{type(algorithm).__name__} asks for {np.asarray(queries[number])}, which is outside of the "
            "domain: return what domain.project makes of it."
        )


def check_objective(algorithm: AbstractAlgorithm, objective: Compiled) -> Compiled:
    """The objective as `f(key, agent, x)`, with outcomes as `Stacked`.

    `ValueError` unless it returns a single number, for as many agents as are asked.
    """
    objective = compiled(objective)
    point = jax.ShapeDtypeStruct((algorithm.domain.dim,), jnp.zeros(()).dtype)
    for value in numbers_of(algorithm.outcomes, _value_of(algorithm, objective, point)):
        require(
            getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating),
            f"the objective must return one floating number for one agent and point, got {value}.",
        )
    known = objective.agents if isinstance(objective, AbstractObjective) else None
    require(
        known is None or known >= algorithm.targets,
        f"the objective has functions for {known} agents, the algorithm asks {algorithm.targets}.",
    )
    return stacked(algorithm.outcomes, objective)


def _value_of(algorithm: AbstractAlgorithm, objective: Compiled, point: Any) -> Any:
    """The shape and type of the objective's result."""
    try:
        return jax.eval_shape(objective, jax.random.key(0), jnp.zeros((), int), point)
    except TypeError as error:
        if isinstance(algorithm.domain, Space) and "string indexing" in str(error):
            raise ValueError(
                "a compiled objective on a Space is given a point, not a dictionary: begin it with "
                "p = space.unpack(x)."
            ) from error
        if isinstance(error, _IN_PYTHON):
            raise ValueError(
                "objective is compiled here, and needs the numbers of a point, which are not there yet: "
                f"write it with jax.numpy, or give f(agent, x) to jaxbo.drive. {_first_line(error)}"
            ) from error
        raise


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
