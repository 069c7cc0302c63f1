"""One black box, K workers, and one model of all that they observe.

    ask(state) → K queries,    tell(state, queries, values)         in rounds
    ask_one(state, pending) → a query,    tell_one(state, x, value)    as soon as a worker is free

A method says how a query follows from a belief, in `query`; the rest is here.
"""

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.domains import AbstractDomain
from jaxbo.kernels.surrogate import AbstractSurrogate
from jaxbo.types import Count, Flag, Key, Point, Points, Scalar


class State(eqx.Module):
    """`round` counts the rounds told, `told` the evaluations, failed ones and initial ones included;
    `fitted` how many observations the last fit was to.
    """

    round: Int[Array, ""]
    told: Int[Array, ""]
    fitted: Int[Array, ""]
    shared: PyTree
    belief: PyTree


class AbstractOneModel(AbstractAlgorithm):
    """Workers evaluate one black box; what they observe goes into one model.

    Every round `ask` has a query for each worker. Asynchronously a worker that has ended is told of
    with `tell_one`, in any order, and given the next query by `ask_one`. Where two queries from one
    belief do not differ by themselves, workers that are busy are taken to observe what is expected.

    Hyperparameters are fitted to what is known before the first round, and again whenever
    `surrogate.period` more evaluations were told, failed ones included. The capacity of the surrogate
    counts evaluations, that of the method counts rounds.
    """

    surrogate: eqx.AbstractVar[AbstractSurrogate]

    def __check_init__(self):
        is_a("domain", self.domain, AbstractDomain)
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        whole("workers", self.targets, least=1)
        require(
            self.capacity is None or self.capacity >= 1,
            f"a capacity of {self.surrogate.room} is too small for {self.targets} workers.",
        )

    @abc.abstractmethod
    def random(self) -> bool:
        """Whether two queries from one belief differ by themselves."""

    @abc.abstractmethod
    def prepare(self, key: Key) -> Any:
        """What all queries of a round have in common, such as candidates."""

    @abc.abstractmethod
    def query(self, key: Key, state: State, belief: Any, prepared: Any) -> tuple[Point, PyTree]:
        """The next query given a belief, that of `state` or one of more observations; and its info."""

    @property
    def capacity(self) -> int | None:
        most = self.surrogate.room
        if most is None:
            return None
        return (most - self._room) // self.targets

    @property
    def _room(self) -> int:
        """Rows that queries which are still out may take up while the next one is sought."""
        return 0 if self.random() else self.targets - 1

    def setup(self, key: Key) -> Any:
        """What the model draws before the first observation."""
        return self.surrogate.setup(key, self.domain.dim)

    def init(self, key: Key) -> State:
        shared = self.setup(key)
        zero = jnp.zeros((), int)
        return State(zero, zero, zero, shared, self.surrogate.start(shared))

    def told(self, state: State) -> Count:
        return state.told // self.targets

    def ask(
        self, key: Key, state: State, present: Bool[Array, " agents"] | None = None
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        require(present is None, "present is for agents that send messages; workers send none.")
        prepare_key, query_key = jr.split(key)
        prepared = self.prepare(prepare_key)
        keys = jax.vmap(lambda i: jr.fold_in(query_key, i))(jnp.arange(self.targets))
        if self.random():
            return jax.vmap(lambda k: self.query(k, state, state.belief, prepared))(keys)

        def next_query(belief: Any, key: Key) -> tuple[Any, tuple[Point, PyTree]]:
            x, info = self.query(key, state, belief, prepared)
            return self._believe(state, belief, x), (x, info)

        return jax.lax.scan(next_query, state.belief, keys)[1]

    def ask_one(
        self, key: Key, state: State, pending: Points, busy: Bool[Array, " points"]
    ) -> Point:
        """The next query while the `pending` ones that are `busy` are being evaluated."""
        prepare_key, query_key = jr.split(key)
        prepared = self.prepare(prepare_key)
        belief = state.belief
        if not self.random():

            def wait(belief: Any, item: tuple[Point, Flag]) -> tuple[Any, None]:
                return self._believe(state, belief, *item), None

            belief, _ = jax.lax.scan(wait, belief, (pending, busy))
        return self.query(jr.fold_in(query_key, 0), state, belief, prepared)[0]

    def _believe(self, state: State, belief: Any, x: Point, busy: Flag | bool = True) -> Any:
        """The belief if `x` were observed to be what is expected there."""
        mean, _ = self.surrogate.predict(state.shared, belief, x)
        return self.surrogate.condition(state.shared, belief, x, jnp.where(busy, mean, jnp.nan))

    def tell(
        self, state: State, queries: Float[Array, "targets dim"], values: Float[Array, " targets"]
    ) -> State:
        require(
            queries.shape == (self.targets, self.domain.dim) and values.shape == (self.targets,),
            f"expected queries of shape ({self.targets}, {self.domain.dim}) and as many values, got "
            f"{queries.shape} and {values.shape}.",
        )
        return self._tell(state, queries, values)

    def tell_one(self, state: State, x: Point, value: Scalar) -> State:
        """The state after one evaluation, of whichever worker."""
        return self._tell(state, jnp.asarray(x, float)[None], jnp.asarray(value, float)[None])

    def _tell(
        self, state: State, queries: Float[Array, "n dim"], values: Float[Array, " n"]
    ) -> State:
        told, every = state.told + values.shape[0], self.surrogate.period
        fitted, belief = state.fitted, self._observe(state, queries, values)
        if every is not None:
            # Due in all runs at the same time, whatever failed in some: under vmap it stays a branch.
            due = told // every > state.told // every
            refit = functools.partial(self._refit, state.shared)
            fitted, belief = jax.lax.cond(due, refit, lambda *same: same, fitted, belief)
        return State(state.round + 1, told, fitted, state.shared, belief)

    def _refit(self, shared: Any, fitted: Count, belief: Any) -> tuple[Count, Any]:
        """Hyperparameters fitted anew, if anything was observed since the last fit."""
        count = self.surrogate.count(belief)
        new = count, self.surrogate.refit(shared, belief)
        return jax.tree.map(lambda a, b: jnp.where(count > fitted, a, b), new, (fitted, belief))

    def warm_start(
        self,
        state: State,
        queries: Float[Array, "points agents dim"],
        values: Float[Array, "points agents"],
    ) -> State:
        require(
            values.ndim == 2 and queries.shape == (*values.shape, self.domain.dim),
            f"expected queries of shape (points, workers, {self.domain.dim}) and a value of each, got "
            f"{queries.shape} and {values.shape}.",
        )
        require(
            state.round == 0, "warm_start is for observations made before the first round is told."
        )
        most = self.surrogate.room
        told = state.told + values.size
        require(
            most is None or told <= most,
            f"{told} evaluations exceed the surrogate's capacity of {most}: give it a larger one.",
        )
        belief = self._observe(state, queries.reshape(-1, self.domain.dim), values.reshape(-1))
        fitted = state.fitted
        if self.surrogate.period is not None:
            fitted, belief = self._refit(state.shared, fitted, belief)
        return State(state.round, told, fitted, state.shared, belief)

    def _observe(
        self, state: State, queries: Float[Array, "n dim"], values: Float[Array, " n"]
    ) -> Any:
        def step(belief: Any, observation: tuple[Point, Scalar]) -> tuple[Any, None]:
            return self.surrogate.condition(state.shared, belief, *observation), None

        return jax.lax.scan(step, state.belief, (queries, values))[0]
