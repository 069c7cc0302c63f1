"""The one loop: init, then ask → evaluate → tell, round after round, compiled with its objective.

`run` makes all rounds one program, laid out over agents as its `mesh` and `chunk` say.
`jaxbo.runs.driver` runs the same parts around a Python objective.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import require, whole
from jaxbo._direction import Direction, check_direction, upward
from jaxbo._keys import barrier
from jaxbo.algos.base import _origin
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.keys import agent_keys, row_keys, run_keys
from jaxbo.domains.base import AbstractDomain
from jaxbo.layout import Each, layout, whole_where_uneven
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs import _steps
from jaxbo.runs._objective import compiled
from jaxbo.runs._simulation import warn_of_simulation
from jaxbo.runs.trace import Round, Trace
from jaxbo.types import Count, Flag, Key, Scalar

#: A compiled objective: the value of agent `agent` at `x`; the key is for its noise. One that needs no
#: key, or no agent either, is `f(agent, x)` or `f(x)`.
Compiled: TypeAlias = Callable[..., Scalar]


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
) -> tuple[PyTree, Any]:
    """`rounds` rounds as one compiled program; returns the last state and the trace.

    `objective(key, agent, x)` is a JAX function or an `objectives.AbstractObjective`; one without
    noise may be `f(agent, x)` or `f(x)`. Before the first round every target evaluates `initial`
    points of the method's initial design: drawn uniformly from the domain and the same under the same
    key, unless the method explores in its own way. `present` says whose messages arrive each round.
    `state`, if given, is where to start instead of
    `algorithm.init`, for instance after `warm_start`.

    For a population: of every `every` rounds the last one is recorded, and `record` says what of it,
    such as `summary`; what it returns comes back with an axis of rounds, in the place of the trace.
    `mesh` lays the agents over all devices of a `jax.sharding.Mesh`, and `chunk` is how many of them a
    device computes at the same time (`jaxbo.layout`): the results are those of one device up to rounding,
    which may decide between two queries that are as good. They come back laid out in the same way if
    the devices divide the agents (rows: the targets too) evenly, else whole on each device. Where
    workers share one model every device computes it, and only evaluations are spread.

    Memory: the agents' state (a method's docstring says how much that is), and of each agent that is
    asked some 8 bytes for each candidate, for each feature of each start of the search and, where
    features are the agent's own, of each of 256 candidates (`choosing.maximize`), which `chunk` bounds.
    A `state` that is given is kept: donate it to the `jit` that `run` is called in, if it is not needed
    any more.

    Pure: `vmap` it over keys, or over algorithms that differ in numbers. It is compiled once for each
    structure: an `objective` or `record` that is a new lambda each time is compiled each time. A run that
    goes on from a `state` takes a new key: with the old one it would draw the same numbers again.

    `direction="minimize"`: small values are good. Values and best values are the objective's own; the
    method, and so `state`, is told their negative.

    Private releases are simulated: whoever knows the key knows their noise, and nothing is charged. A
    `SimulationWarning` says so once; `drive` with a ledger draws secret noise and charges for it.

    Values are in the objective's own precision. Models that standardize subtract the first one from all,
    but digits that the objective has rounded away do not come back: let it leave out constants beside
    which its values hardly differ, or use float64. Where `state` comes from `drive`, the method is told
    values less `state.origin`; the trace has the values themselves.

    A query outside of the domain, which only a method of one's own can ask, is a failed evaluation here;
    `drive` raises an error for it. Raises `ValueError` where sizes do not fit or the objective does not
    return one number.
    """
    check_direction(direction)
    check_sizes(algorithm, rounds, initial, present, state)
    objective = check_objective(algorithm, objective)
    whole("every", every, least=1)
    require(
        record is None or callable(record), f"record must be a function of a Round, got {record!r}."
    )
    warn_of_simulation(algorithm)
    # NumPy's integers would be traced.
    rounds, initial, every = int(rounds), int(initial), int(every)
    # Without rounds there is nobody to be present.
    present = present if rounds else None
    each = layout(mesh, chunk)
    return _run(
        algorithm, objective, rounds, key, initial, present, state, every, record, each, direction
    )


@eqx.filter_jit
def _run(
    algorithm: AbstractAlgorithm,
    objective: Compiled,
    rounds: int,
    key: Key,
    initial: int,
    present: Bool[Array, "rounds agents"] | None,
    state: PyTree | None,
    every: int,
    record: Callable[[Round], Any] | None,
    each: Each,
    direction: Direction,
) -> tuple[PyTree, Any]:
    keys = run_keys(key)
    # The barriers keep the parts from being fused across, and a hidden number of rounds keeps the loop's
    # body from being specialized: both stay what `drive` compiles, to the bit.
    state = barrier(_steps.init(algorithm, keys.init, each) if state is None else state)
    assert state is not None

    def one_row(row: Count, carry: tuple[PyTree, Array]) -> tuple[tuple[PyTree, Array], Round]:
        state, best = carry
        before, t = row < initial, row - initial
        ask_key, noise_key = row_keys(keys, before, jnp.where(before, row, t))
        here = None if present is None else present[t]
        queries, info = barrier(ask(before, ask_key, state, here))
        values = barrier(evaluate_all(algorithm.domain, objective, noise_key, queries, each))
        best = _better(best, values, direction)
        _, told = _origin.told(state, upward(direction, values))
        stage = _steps.stage(row, initial)
        state = barrier(_steps.tell(algorithm, state, queries, barrier(told), stage, each))
        return (state, best), Round(queries, values, info, best, direction)

    def ask(before: Flag, key: Key, state: PyTree, here: Array | None) -> tuple[Array, PyTree]:
        of_round = functools.partial(_steps.ask, algorithm, key, state, here, each)
        if not initial:
            return of_round()
        _, info = jax.eval_shape(of_round)

        def of_design() -> tuple[Array, PyTree]:
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
            return _steps.design(algorithm, key, each), nothing

        if not rounds:
            return of_design()
        return jax.lax.cond(before, of_design, of_round)

    best = jnp.full((algorithm.targets,), upward(direction, -jnp.inf))
    (state, _), (asked, rows) = _table(one_row, initial, rounds, (state, best), every, record)
    if record is None:
        queries, values = asked
        rows = Trace(queries, values, rows, initial, every=every, direction=direction)
    rows = whole_where_uneven(each, rows, algorithm.clients, algorithm.targets)
    state = whole_where_uneven(each, state, algorithm.clients)
    # Arrays of the targets alone may be uneven where those of all agents are not.
    return whole_where_uneven(each, state), rows


def _better(
    best: Float[Array, " targets"], values: Float[Array, " targets"], direction: Direction
) -> Array:
    better = values < best if direction == "minimize" else values > best
    return jnp.where(better, values, best)


def _table(
    step: Callable[[Count, PyTree], tuple[PyTree, Round]],
    initial: int,
    rounds: int,
    state: PyTree,
    every: int,
    record: Callable[[Round], PyTree] | None,
) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """The last state, and two tables: queries and values of all rows, and what is recorded of rounds.

    Both have a row of each `every`-th round, the first one those before the first round, too. Where there
    is a `record` the first one is empty.
    """
    step = _traced_once(step, jnp.zeros((), int), state)
    asked_of = _asked if record is None else lambda round: ()
    made = record or (lambda round: round.info)
    count = rounds // every

    def empty(rows: int, of: Callable[[Round], PyTree]) -> PyTree:
        shapes = jax.eval_shape(
            lambda row, state: of(step(row, state)[1]), jnp.zeros((), int), state
        )
        return jax.tree.map(lambda one: jnp.zeros((rows, *one.shape), one.dtype), shapes)

    tables = empty(initial + count, asked_of), empty(count, made)
    if not initial + rounds:
        return state, tables

    def body(row: Count, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        state, (asked, recorded) = carry
        state, round = step(row, state)
        before, t = row < initial, row - initial
        due = (t + 1) % every == 0
        both = before | due, due & ~before
        if every == 1 and (record is None or not initial):
            # What the first round writes over may be written before.
            both = True, True
        place = jnp.where(before, row, initial + t // every)
        asked = _written(asked, place, lambda: asked_of(round), both[0])
        place = jnp.maximum(t, 0) // every
        recorded = _written(recorded, place, lambda: made(round), both[1])
        return state, (asked, recorded)

    return _hidden_loop(initial + rounds, body, (state, tables))


def _asked(round: Round) -> tuple[Array, Array]:
    return round.queries, round.values


def _traced_once(step: Callable[..., Any], *examples: PyTree) -> Callable[..., Any]:
    """The same function without its Python: else an objective would be traced twice."""
    traced, constants = jax.closure_convert(step, *examples)
    return lambda *arguments: traced(*arguments, *constants)


def _written(rows: PyTree, place: Count, row: Callable[[], PyTree], due: Flag | bool) -> PyTree:
    """The rows with a new one in its place, if it is due: only then is it made."""

    def write(rows: PyTree) -> PyTree:
        # Unlike `.at`, without checks of bounds, which are compiled for each array.
        put = jax.lax.dynamic_update_index_in_dim
        return jax.tree.map(lambda rows, one: put(rows, one, place, 0), rows, row())

    if not any(leaf.shape[0] for leaf in jax.tree.leaves(rows)):
        return rows
    return write(rows) if due is True else jax.lax.cond(due, write, lambda rows: rows, rows)


def _hidden_loop(count: int, body: Callable[[Count, PyTree], PyTree], start: PyTree) -> PyTree:
    """`fori_loop`, of whose number of steps the compiler knows nothing, and so specializes nothing."""
    return jax.lax.fori_loop(0, barrier(count), body, start)


def evaluate_all(
    domain: AbstractDomain,
    objective: Compiled,
    key: Key,
    queries: Float[Array, "targets dim"],
    each: Each = jax.vmap,
) -> Float[Array, " targets"]:
    """A value of each target; NaN where it is not finite, or its query outside of the domain."""
    agents = jnp.arange(queries.shape[0])
    inside: Array = each(domain.contains)(queries)
    values: Array = each(objective)(agent_keys(key, agents), agents, queries)
    return jnp.where(jnp.isfinite(values) & inside, values, jnp.nan)


def check_sizes(
    algorithm: AbstractAlgorithm, rounds: int, initial: int, present: Any, state: PyTree
) -> None:
    """`ValueError` where these do not fit the algorithm or each other."""
    whole("rounds", rounds)
    whole("initial", initial)
    held = 0
    if state is not None:
        fresh = eqx.filter_eval_shape(algorithm.init, jax.random.key(0))
        require(
            _shapes(state) == _shapes(fresh),
            "state is of another algorithm or another number of agents: begin with what "
            "algorithm.init returns.",
        )
        held = algorithm.told(state)
        require(
            initial == 0 or algorithm.round(state) == 0,
            "initial points come before the first round, and this state has had one: initial=0.",
        )
    require(
        algorithm.capacity is None or held + rounds + initial <= algorithm.capacity,
        f"{initial} initial points and {rounds} rounds, after {held} observations, exceed the "
        f"algorithm's capacity of {algorithm.capacity} observations: give its surrogate a "
        "larger one.",
    )
    most = algorithm.initial_capacity
    require(
        most is None or initial <= most,
        f"{initial} initial points exceed the {most} for which the algorithm has room.",
    )
    shape, dtype = getattr(present, "shape", ()), getattr(present, "dtype", None)
    require(
        present is None or (len(shape) == 2 and shape[0] == rounds and dtype == np.bool_),
        f"present must be an array of bool with a row for each of the {rounds} rounds and a column for "
        f"each agent, got {type(present).__name__} of {dtype} and shape {shape}.",
    )


def _shapes(tree: PyTree) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


_contained = eqx.filter_jit(lambda domain, queries: jax.vmap(domain.contains)(queries))


def check_queries(algorithm: AbstractAlgorithm, queries: Float[Any, "targets dim"]) -> None:
    """`ValueError` for a query outside of the domain, before it is evaluated."""
    inside = np.asarray(_contained(algorithm.domain, jnp.asarray(queries)))
    if not inside.all():
        number = int(np.argmin(inside))
        raise ValueError(
            f"{type(algorithm).__name__} asks for {np.asarray(queries[number])}, which is outside of the "
            "domain: return what domain.project makes of it."
        )


def check_objective(algorithm: AbstractAlgorithm, objective: Compiled) -> Compiled:
    """The objective as `f(key, agent, x)`.

    `ValueError` unless it returns one number, for as many agents as are asked.
    """
    objective = compiled(objective)
    point = jax.ShapeDtypeStruct((algorithm.domain.dim,), jnp.zeros(()).dtype)
    value = jax.eval_shape(objective, jax.random.key(0), jnp.zeros((), int), point)
    require(
        getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating),
        f"the objective must return one floating number for one agent and point, got {value}.",
    )
    known = objective.agents if isinstance(objective, AbstractObjective) else None
    require(
        known is None or known >= algorithm.targets,
        f"the objective has functions for {known} agents, the algorithm asks {algorithm.targets}.",
    )
    return objective
