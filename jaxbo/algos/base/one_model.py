"""A black box, K workers, and a single model of all that they observe.

    ask(state) → K queries,    tell(state, queries, values)         in rounds
    ask_one(state, pending) → a query,    tell_one(state, x, value)    as soon as a worker is free

A method says how a query follows from a belief, in `query`; the rest is here.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo.algos.base._origin import Origin, after, no_origin
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm, Stage
from jaxbo.algos.base.keys import agent_key, agent_keys, query_keys
from jaxbo.algos.base.outcomes import all_or_none, copies, slacks_of, split, width
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import failures, history
from jaxbo.kernels.choosing.elsewhere import elsewhere
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.policy import Model, expected_feasible
from jaxbo.kernels.models.surrogate import AbstractSurrogate, refitted
from jaxbo.layout import Each
from jaxbo.types import Count, Flag, Key, Point, Points


class State(eqx.Module):
    """The state of a method whose workers share a model.

    `round` counts the rounds told, and `told` the evaluations, failed and initial evaluations
    included. `fitted` is the number of observations that the last fit was to. `past` has the
    evaluations (`choosing.history`). The belief is of values less `origin`, which `drive` and
    `Desk` subtract; None if the surrogate takes values as they are. `slacks` are beliefs of the
    slacks of outcomes, on an axis of their own, of the same points; empty without outcomes.
    """

    round: Int[Array, ""]
    told: Int[Array, ""]
    fitted: Int[Array, ""]
    shared: PyTree
    belief: PyTree
    past: History
    origin: Origin | None
    slacks: PyTree = ()


class AbstractOneModel(AbstractAlgorithm):
    """Workers evaluate a single black box, and a single model holds all that they observe.

    In every round `ask` has a query for each worker. Asynchronously, `tell_one` tells of a worker
    that has ended, in any order, and `ask_one` gives it the next query. If two queries from the
    same belief do not differ by themselves, the model takes busy workers to observe the expected
    value. No query repeats the query of another worker. If the objective has shown no noise, no
    query repeats a remembered point.

    Hyperparameters are fitted to the results that are known before the first round. They are fitted
    again after every `surrogate.period` evaluations, failed evaluations included. The capacity of
    the surrogate counts evaluations, and the capacity of the method counts rounds.

    Write `prepare`, `query` and `targets`, the number of workers. A subclass has the fields
    `domain` and `surrogate`, the model.

    Raises:
        ValueError: A part is of another class, or the capacity is too small for the workers.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Fitted(capacity=40)
        >>> method = jaxbo.EGP(jaxbo.Cube(2), model, jaxbo.Thompson(), workers=4)
        >>> isinstance(method, jaxbo.AbstractOneModel)
        True
        >>> method.targets, method.capacity, method.surrogate.period
        (4, 10, 5)
    """

    surrogate: eqx.AbstractVar[AbstractSurrogate]

    def __check_init__(self):
        is_a("domain", self.domain, AbstractDomain)
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        whole("workers", self.targets, least=1)
        require(
            self.capacity is None or self.capacity >= 1,
            f"a capacity of {self.surrogate.capacity} is too small for {self.targets} workers.",
        )
        if self.focus is not None:
            whole("focus", self.focus, least=1)
            require(
                type(self.surrogate).focused is not AbstractSurrogate.focused
                and self.surrogate.period is not None,
                f"focus is for Fitted, Ensemble and Marginal that are fitted again (refit_every), got "
                f"{self.surrogate!r:.60}.",
            )

    @abc.abstractmethod
    def prepare(self, key: Key) -> Points:
        """Draws the candidates that all queries of a round have in common.

        Args:
            key: Random key.

        Returns:
            The candidates.
        """

    @abc.abstractmethod
    def query(self, key: Key, state: State, candidates: Points) -> tuple[Point, PyTree]:
        """Chooses the next query.

        Args:
            key: Random key.
            state: The present state, or the state as it would be with more observations.
            candidates: The result of `prepare`.

        Returns:
            The query and its info.
        """

    @property
    def focus(self) -> int | None:
        """Returns the number of observations from which on every second fit sees the better half alone.

        If it is None, all fits see all values.
        """
        return None

    @property
    def capacity(self) -> int | None:
        most = self.surrogate.capacity
        if most is None:
            return None
        return (most - self._pending) // self.targets

    def room_for(self, observations: int | Count) -> int | Count:
        return observations * self.targets + self._pending

    @property
    def invariant(self) -> bool:
        return self.surrogate.invariant

    @property
    def _pending(self) -> int:
        """Rows that pending queries may take up while the next query is sought."""
        return 0 if self.random else self.targets - 1

    def predict(
        self, state: State, x: Float[Array, "points dim"]
    ) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
        """Predicts the objective at any points, without noise.

        After a fit to the better half of the values (`focus`), the mean is too large at points whose
        values are below the median.

        Args:
            state: The state of this method.
            x: The points.

        Returns:
            Means and variances, in units of the values, less the state's `origin` if it has any.
        """
        return jax.vmap(lambda x: self.surrogate.predict(state.shared, state.belief, x))(x)

    def feasible(self, state: State, x: Float[Array, "points dim"]) -> Bool[Array, " points"]:
        """Says whether all outcomes are expected to meet their bounds, at any points.

        Args:
            state: The state of this method.
            x: The points.

        Returns:
            A truth value for each point.
        """
        slacks = self.models(state)[1:]
        if not slacks:
            return jnp.ones(x.shape[:1], bool)
        return jax.vmap(lambda x: expected_feasible(slacks, x))(x)

    def models(self, state: State) -> tuple[Model, ...]:
        """Lists the model of the objective, and the model of each outcome's slack.

        Args:
            state: The state of this method.

        Returns:
            The models, with their beliefs.
        """
        beliefs = [state.belief]
        for i in range(len(self.outcomes)):
            beliefs.append(jax.tree.map(lambda leaf, i=i: leaf[i], state.slacks))
        return tuple(Model(self.surrogate, state.shared, belief) for belief in beliefs)

    def setup(self, key: Key) -> Any:
        """Draws the random part of the model, before the first observation.

        Args:
            key: Random key.

        Returns:
            The part.
        """
        return self.surrogate.setup(key, self.domain.dim)

    def init(self, key: Key, *, each: Each = jax.vmap) -> State:
        del each  # there is one model
        shared = self.setup(key)
        zero = jnp.zeros((), int)
        past = history.empty(self.domain.dim, self.surrogate.capacity, self.targets)
        origin, belief = no_origin() if self.invariant else None, self.surrogate.start(shared)
        slacks = copies(belief, len(self.outcomes)) if self.outcomes else ()
        return State(zero, zero, zero, shared, belief, past, origin, slacks)

    def round(self, state: State) -> Count:
        return state.round

    def told(self, state: State) -> Count:
        return -(-state.told // self.targets)  # a part of a round takes all of one

    def ask(
        self,
        key: Key,
        state: State,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        del each
        require(present is None, "present is for agents that send messages; workers send none.")
        keys = query_keys(key)
        candidates = self.prepare(keys.candidates)
        own_keys = agent_keys(keys.query, jnp.arange(self.targets))
        if self.random:
            queries, info = jax.vmap(lambda k: self.query(k, state, candidates))(own_keys)
            return self._apart(
                agent_key(keys.query, self.targets), state, queries, candidates
            ), info

        def next_query(state: State, key: Key) -> tuple[State, tuple[Point, PyTree]]:
            x, info = self.query(key, state, candidates)
            return self._waiting(state, x), (x, info)

        if self.targets == 1:  # whose query nobody else is to know
            x, info = self.query(own_keys[0], state, candidates)
            return x[None], jax.tree.map(lambda leaf: leaf[None], info)
        return jax.lax.scan(next_query, state, own_keys)[1]

    def _apart(
        self,
        key: Key,
        state: State,
        queries: Float[Array, "targets dim"],
        candidates: Points,
    ) -> Float[Array, "targets dim"]:
        """The queries of a round; a query that repeats another is moved elsewhere."""
        if self.targets == 1:
            return queries
        limits = failures.limits(state.past, candidates)

        def apart(past: History, item: tuple[Key, Point]) -> tuple[History, Point]:
            x = elsewhere(item[0], past, limits, candidates, item[1], not self.outcomes)
            return history.wait(past, x), x

        return jax.lax.scan(apart, state.past, (jr.split(key, self.targets), queries))[1]

    def ask_one(
        self, key: Key, state: State, pending: Points, busy: Bool[Array, " points"]
    ) -> Point:
        """Chooses the next query while other queries are being evaluated.

        Args:
            key: Random key.
            state: The state of this method.
            pending: The queries that may be out.
            busy: Whether each of them is being evaluated.

        Returns:
            The query.
        """
        keys = query_keys(key)
        candidates = self.prepare(keys.candidates)

        def wait(state: State, item: tuple[Point, Flag]) -> tuple[State, None]:
            return self._waiting(state, *item), None

        if len(pending):  # a lone worker has none
            state, _ = jax.lax.scan(wait, state, (pending, busy))
        return self.query(agent_key(keys.query, 0), state, candidates)[0]

    def _waiting(self, state: State, x: Point, busy: Flag | bool = True) -> State:
        """The state while `x` is evaluated: its value is taken as expected, unless queries are
        `random`.
        """
        past, known = history.wait(state.past, x, busy), (state.belief, state.slacks)
        if not self.random:

            def wait(belief: Any) -> Any:
                mean, _ = self.surrogate.predict(state.shared, belief, x)
                expected = jnp.where(busy, mean, jnp.nan)
                return self.surrogate.condition(state.shared, belief, x, expected)

            known = wait(state.belief), self._of_slacks(wait, state.slacks)
        belief, slacks = known
        return dataclasses.replace(state, belief=belief, slacks=slacks, past=past)

    def _of_slacks(self, function: Callable[..., Any], *each: Any) -> Any:
        """The function of every outcome's belief, and of the other arguments of each outcome."""
        return jax.vmap(function)(*each) if self.outcomes else ()

    def tell(
        self,
        state: State,
        queries: Float[Array, "targets dim"],
        values: Float[Array, "targets ..."],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> State:
        del info, each
        # Before the first round it does not matter whose evaluations these are.
        count = self.targets if stage.before is False else len(values)
        require(
            queries.shape == (count, self.domain.dim)
            and values.shape == (count, *width(self.outcomes)),
            f"expected queries of shape ({self.targets}, {self.domain.dim}) and as many values"
            f"{slacks_of(self.outcomes)}, got "
            f"{queries.shape} and {values.shape}.",
        )
        return self._tell(state, queries, values, stage)

    def tell_one(
        self, state: State, x: Point, value: Float[Array, "*numbers"], stage: Stage = IN_ROUND
    ) -> State:
        """Updates the state by an evaluation of any worker.

        Args:
            state: The state of this method.
            x: The point.
            value: The value there; with outcomes, the slacks follow it.
            stage: Whether the evaluation was made before the first round. Default: in a round.

        Returns:
            The new state.
        """
        x, value = jnp.asarray(x, float), jnp.asarray(value, float)
        return self._tell(state, x[None], value[None], stage)

    def _tell(
        self,
        state: State,
        queries: Float[Array, "n dim"],
        values: Float[Array, "n ..."],
        stage: Stage,
    ) -> State:
        told, period = state.told + values.shape[0], self.surrogate.period
        values = all_or_none(self.outcomes, values)
        belief, slacks, past = self._observe(state, queries, values)
        fitted = state.fitted
        if period is not None:
            # Due in all runs at the same time, whatever failed in some: under vmap it stays a branch.
            due = jnp.where(stage.before, stage.last, told // period > state.told // period)
            refit = functools.partial(self._refit, state.shared)
            known = fitted, belief, slacks
            fitted, belief, slacks = jax.lax.cond(due, refit, lambda *same: same, *known)
        round = jnp.where(stage.before, state.round, state.round + 1)
        origin = after(state.origin, split(self.outcomes, values)[0])
        return State(round, told, fitted, state.shared, belief, past, origin, slacks)

    def _refit(
        self, shared: Any, fitted: Count, belief: Any, slacks: Any
    ) -> tuple[Count, Any, Any]:
        """Hyperparameters fitted anew, if anything was observed since the last fit."""
        count, seen = self.surrogate.count(belief), belief
        if self.focus is not None:
            seen = self.surrogate.focused(belief, count >= self.focus)
        refit = functools.partial(refitted, self.surrogate, shared)
        new = count, *self._each(refit, seen, slacks)
        known = fitted, belief, slacks
        return jax.tree.map(lambda a, b: jnp.where(count > fitted, a, b), new, known)

    def _each(self, function: Callable[[Any], Any], belief: Any, slacks: Any) -> tuple[Any, Any]:
        """The function of all beliefs, which is compiled once."""
        if not self.outcomes:
            return function(belief), slacks
        both = jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), belief, slacks)
        both = jax.vmap(function)(both)
        return jax.tree.map(lambda leaf: leaf[0], both), jax.tree.map(lambda leaf: leaf[1:], both)

    def check_start(self, state: State, values: Float[Array, "points agents"]) -> None:
        most = self.surrogate.capacity
        told = state.told + values.shape[0] * values.shape[1]
        require(
            most is None or told <= most,
            f"{told} evaluations exceed the surrogate's capacity of {most}: {larger(self, told)}.",
        )

    def _observe(
        self, state: State, queries: Float[Array, "n dim"], values: Float[Array, "n ..."]
    ) -> tuple[Any, Any, History]:
        """The beliefs and the past with the evaluations."""

        def step(
            known: tuple[Any, Any, History], observation: tuple[Point, Float[Array, "*numbers"]]
        ) -> tuple[tuple[Any, Any, History], None]:
            belief, slacks, past = known
            x, numbers = observation
            value, rest = (numbers[0], numbers[1:]) if self.outcomes else (numbers, None)
            past = history.add(past, x, value)
            # Where there was no evaluation, any point will do.
            x = jnp.where(jnp.isfinite(x), x, 0)
            learn = lambda belief, y: self.surrogate.condition(state.shared, belief, x, y)  # noqa: E731
            return (learn(belief, value), self._of_slacks(learn, slacks, rest), past), None

        start = state.belief, state.slacks, state.past
        return jax.lax.scan(step, start, (queries, values))[0]
