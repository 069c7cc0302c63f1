"""The loop as a compiled program: init, then ask → evaluate → tell, row after row.

    Plan     the arguments of a run
    start    its state before the first row
    loop     empty tables for records, and the step from one row to the next
    end      its result

`compiled.run` runs all rows as a single program. `_segments` runs the same step some rows at a time.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._direction import Direction, upward
from jaxbo._keys import barrier
from jaxbo.algos.base import outcomes
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.keys import RunKeys, agent_keys, row_keys
from jaxbo.algos.base.outcomes import Observed, feasible, met, split
from jaxbo.domains.base import AbstractDomain
from jaxbo.layout import Each, whole_where_uneven
from jaxbo.runs import _steps
from jaxbo.runs.trace import Round, Trace
from jaxbo.types import Count, Flag, Key, Scalar

#: A compiled objective: the value of agent `agent` at `x`; the key is for its noise. One that needs no
#: key, or no agent either, is `f(agent, x)` or `f(x)`.
Compiled: TypeAlias = Callable[..., Scalar]
#: The state of a method, and the best value of each target so far.
State: TypeAlias = tuple[PyTree, Array]
#: Queries and values of all rows, and the records of rounds.
Tables: TypeAlias = tuple[PyTree, PyTree]


class Plan(eqx.Module):
    """The arguments of `run`."""

    algorithm: AbstractAlgorithm
    objective: Compiled
    present: Bool[Array, "rounds agents"] | None
    record: Callable[[Round], Any] | None
    each: Each
    rounds: int = eqx.field(static=True)
    initial: int = eqx.field(static=True)
    every: int = eqx.field(static=True)
    direction: Direction = eqx.field(static=True)

    def start(self, key: Key, state: PyTree | None) -> State:
        """Before the first row, from `state` if that is given."""
        # The barriers keep the parts from being fused across, and a hidden number of rounds keeps the
        # loop's body from being specialized: both stay what `drive` compiles, to the bit.
        begun = _steps.init(self.algorithm, key, self.each) if state is None else state
        best = jnp.full((self.algorithm.targets,), upward(self.direction, -jnp.inf))
        return barrier(begun), best

    def loop(
        self, keys: RunKeys, state: State
    ) -> tuple[Tables, Callable[[Count, tuple[State, Tables]], tuple[State, Tables]]]:
        """Two empty tables, and the step from a state and its tables to the next.

        Both tables have a row of each `every`-th round, and the first table has the rows before the
        first round, too. With a `record` the first table is empty.
        """
        initial, every, record = self.initial, self.every, self.record
        step = _traced_once(functools.partial(self._row, keys), jnp.zeros((), int), state)
        asked_of = _asked if record is None else lambda round: ()
        made = record or (lambda round: round.info)

        def empty(rows: int, of: Callable[[Round], PyTree]) -> PyTree:
            shapes = jax.eval_shape(
                lambda row, state: of(step(row, state)[1]), jnp.zeros((), int), state
            )
            return jax.tree.map(lambda one: jnp.zeros((rows, *one.shape), one.dtype), shapes)

        def body(row: Count, carry: tuple[State, Tables]) -> tuple[State, Tables]:
            state, (asked, recorded) = carry
            state, round = step(row, state)
            before, t = row < initial, row - initial
            due = (t + 1) % every == 0
            both = before | due, due & jnp.logical_not(before)
            if every == 1 and (record is None or not initial):
                # What the first round writes over may be written before.
                both = True, True
            place = jnp.where(before, row, initial + t // every)
            asked = _written(asked, place, lambda: asked_of(round), both[0])
            place = jnp.maximum(t, 0) // every
            recorded = _written(recorded, place, lambda: made(round), both[1])
            return state, (asked, recorded)

        asked, recorded = self.recorded(initial + self.rounds)
        return (empty(asked, asked_of), empty(recorded, made)), body

    def recorded(self, rows: int) -> tuple[int, int]:
        """How many rows the two tables have after the first `rows` rows of the run."""
        before = min(rows, self.initial)
        rounds = (rows - before) // self.every
        return before + rounds, rounds

    def retell(self, rows: Count, state: PyTree, tables: Tables) -> PyTree:
        """The method's state after so many rows of complete tables, from the state before them."""
        (queries, values, observed), infos = tables

        def body(row: Count, state: PyTree) -> PyTree:
            before, t = row < self.initial, jnp.maximum(row - self.initial, 0)
            of_round = lambda leaf: jnp.where(before, jnp.zeros_like(leaf[t]), leaf[t])  # noqa: E731
            info = jax.tree.map(of_round, infos) if self.rounds else None
            others = {name: column[row] for name, column in observed.items()}
            return self._tell(row, state, queries[row], values[row], others, info)

        return jax.lax.fori_loop(0, rows, body, state)

    def end(self, count: int, state: State, tables: Tables) -> tuple[PyTree, Any]:
        """The method's state after `count` rows, and the trace or the records of these rows."""
        asked, rows = tables
        if self.record is None:
            (queries, values, observed), initial = asked, min(count, self.initial)
            within = met(self.algorithm.outcomes, values, observed)
            rows = Trace(
                queries,
                values,
                rows,
                initial,
                every=self.every,
                direction=self.direction,
                shared=self.algorithm.one_objective,
                outcomes=observed,
                met=within,
            )
        algorithm, each = self.algorithm, self.each
        rows = whole_where_uneven(each, rows, algorithm.clients, algorithm.targets)
        last = whole_where_uneven(each, state[0], algorithm.clients)
        # Arrays of the targets alone may be uneven where those of all agents are not.
        return whole_where_uneven(each, last), rows

    def _row(self, keys: RunKeys, row: Count, carry: State) -> tuple[State, Round]:
        algorithm, each = self.algorithm, self.each
        state, best = carry
        before, t = row < self.initial, row - self.initial
        ask_key, noise_key = row_keys(keys, before, jnp.where(before, row, t))
        here = None if self.present is None else self.present[t]
        queries, info = barrier(self._ask(before, ask_key, state, here))
        numbers = barrier(evaluate_all(algorithm.domain, self.objective, noise_key, queries, each))
        values, observed = split(algorithm.outcomes, numbers)
        within = feasible(algorithm.outcomes, values, observed)
        best = _better(best, values, within, self.direction)
        state = self._tell(row, state, queries, values, observed, info)
        return (state, best), Round(queries, values, info, best, self.direction, observed)

    def _tell(
        self,
        row: Count,
        state: PyTree,
        queries: Array,
        values: Array,
        observed: Observed,
        info: PyTree,
    ) -> PyTree:
        algorithm = self.algorithm
        _, told = outcomes.told(algorithm.outcomes, state, upward(self.direction, values), observed)
        stage = _steps.stage(row, self.initial)
        known = info if algorithm.remembers else None
        told = barrier(told)
        return barrier(_steps.tell(algorithm, state, queries, told, stage, self.each, known))

    def _ask(
        self, before: Flag, key: Key, state: PyTree, here: Array | None
    ) -> tuple[Array, PyTree]:
        of_round = functools.partial(_steps.ask, self.algorithm, key, state, here, self.each)
        if not self.initial:
            return of_round()
        _, info = jax.eval_shape(of_round)

        def of_design() -> tuple[Array, PyTree]:
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
            return _steps.design(self.algorithm, key, self.each), nothing

        if not self.rounds:
            return of_design()
        return jax.lax.cond(before, of_design, of_round)


def _better(
    best: Float[Array, " targets"],
    values: Float[Array, " targets"],
    within: Bool[Array, " targets"],
    direction: Direction,
) -> Array:
    better = values < best if direction == "minimize" else values > best
    return jnp.where(better & within, values, best)


def _asked(round: Round) -> tuple[Array, Array, Observed]:
    return round.queries, round.values, round.outcomes


def _traced_once(step: Callable[..., Any], *examples: PyTree) -> Callable[..., Any]:
    """The same function without its Python: else an objective would be traced twice."""
    traced, constants = jax.closure_convert(step, *examples)
    return lambda *arguments: traced(*arguments, *constants)


def _written(rows: PyTree, place: Count, row: Callable[[], PyTree], due: Flag | bool) -> PyTree:
    """The rows with a new row in its place, if it is due: only then is it made."""

    def write(rows: PyTree) -> PyTree:
        # Unlike `.at`, without checks of bounds, which are compiled for each array.
        put = jax.lax.dynamic_update_index_in_dim
        return jax.tree.map(lambda rows, one: put(rows, one, place, 0), rows, row())

    if not any(leaf.shape[0] for leaf in jax.tree.leaves(rows)):
        return rows
    return write(rows) if due is True else jax.lax.cond(due, write, lambda rows: rows, rows)


def evaluate_all(
    domain: AbstractDomain,
    objective: Compiled,
    key: Key,
    queries: Float[Array, "targets dim"],
    each: Each = jax.vmap,
) -> Float[Array, "targets ..."]:
    """A value of each target, and its outcomes if the objective is `Stacked`.

    NaN where any of them is not finite, or the query outside of the domain.
    """
    agents = jnp.arange(queries.shape[0])
    inside: Array = each(domain.contains)(queries)
    values: Array = each(objective)(agent_keys(key, agents), agents, queries)
    fine = jnp.isfinite(values)
    if values.ndim == 2:
        fine, inside = jnp.all(fine, axis=1, keepdims=True), inside[:, None]
    return jnp.where(fine & inside, values, jnp.nan)
