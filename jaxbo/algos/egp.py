"""One black box and K workers: an ensemble of Gaussian processes that chooses its own kernel (EGP-TS).

    f ~ Σ_m w_m GP_m,    w_m ∝ evidence of kernel m                     kernels.ensemble, eq. 5 to 7
    x_k = argmax f_k(x),    f_k ~ GP of an expert drawn by weight        for every worker, eq. 8, 9

Lu, Polyzos, Li and Giannakis, Surrogate modeling for Bayesian optimization beyond a single Gaussian
process (2022), Algorithms 1 and 2.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.domains import AbstractDomain
from jaxbo.kernels.maximize import maximize
from jaxbo.kernels.policy import AbstractPolicy, Thompson
from jaxbo.kernels.surrogate import AbstractSurrogate
from jaxbo.types import Count, Flag, Key, Point, Points, Scalar


class State(eqx.Module):
    """`round` counts the rounds told, `told` the evaluations, failed ones and initial ones included."""

    round: Int[Array, ""]
    told: Int[Array, ""]
    shared: PyTree
    belief: PyTree


class EGP(AbstractAlgorithm):
    """Workers evaluate one black box; what they observe goes into one model.

    `surrogate` is the model and `policy` what is asked given it:

        EGP-TS                Ensemble(kernels, Fitted(capacity))       Thompson()
        EGP-EI                the same                                  Drawn(EI())
        EI of the mixture     the same                                  EI()
        GP-TS, GP-EI, GP-UCB  Fitted(capacity, kernel)                  Thompson(), EI(), UCB(beta)
        fully Bayesian GP-TS  Marginal(Fitted(capacity, kernel))        Thompson()
        BanditBO              Ensemble(kernels, Fitted(capacity))       Largest()

    Every round `ask` has a query for each of `workers` (Algorithm 1). Asynchronously a worker that has
    ended is told of with `tell_one`, in any order, and given the next query by `ask_one` (Algorithm 2).
    Hyperparameters are fitted to what is known before the first round, and again whenever
    `surrogate.period` more evaluations were told. The capacity of the surrogate counts evaluations,
    that of the method counts rounds.

    Differs from the paper in that features keep their base frequencies when hyperparameters are
    fitted anew, and that the floor of appendix E is for drawing only. Memory: that of `surrogate`.
    """

    domain: AbstractDomain
    surrogate: AbstractSurrogate
    policy: AbstractPolicy = eqx.field(default_factory=Thompson)
    workers: int = eqx.field(static=True, default=1)
    candidates: int = eqx.field(static=True, default=1000)

    def __check_init__(self):
        is_a("domain", self.domain, AbstractDomain)
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        is_a("policy", self.policy, AbstractPolicy)
        self.policy.check(self.surrogate)
        whole("workers", self.workers, least=1)
        whole("candidates", self.candidates, least=1)
        require(
            self.capacity is None or self.capacity >= 1,
            f"a capacity of {self.surrogate.room} is too small for {self.workers} workers.",
        )

    @property
    def targets(self) -> int:
        return self.workers

    @property
    def capacity(self) -> int | None:
        most = self.surrogate.room
        if most is None:
            return None
        return (most - self._room) // self.workers

    @property
    def _room(self) -> int:
        """Rows that queries which are still out may take up while the next one is sought."""
        return 0 if self.policy.random() else self.workers - 1

    def init(self, key: Key) -> State:
        shared = self.surrogate.setup(key, self.domain.dim)
        zero = jnp.zeros((), int)
        return State(zero, zero, shared, self.surrogate.start(shared))

    def told(self, state: State) -> Count:
        return state.told // self.workers

    def ask(
        self, key: Key, state: State, present: Bool[Array, " agents"] | None = None
    ) -> tuple[Float[Array, "targets dim"], tuple[()]]:
        require(present is None, "present is for agents that send messages; workers send none.")
        candidate_key, policy_key = jr.split(key)
        candidates = self.domain.candidates(candidate_key, self.candidates)
        keys = jax.vmap(lambda i: jr.fold_in(policy_key, i))(jnp.arange(self.workers))
        if self.policy.random():
            return jax.vmap(lambda k: self._query(k, state, state.belief, candidates))(keys), ()

        def next_query(belief: Any, key: Key) -> tuple[Any, Point]:
            x = self._query(key, state, belief, candidates)
            return self._believe(state, belief, x), x

        return jax.lax.scan(next_query, state.belief, keys)[1], ()

    def ask_one(
        self, key: Key, state: State, pending: Points, busy: Bool[Array, " points"]
    ) -> Point:
        """The next query while the `pending` ones that are `busy` are being evaluated."""
        candidate_key, policy_key = jr.split(key)
        candidates = self.domain.candidates(candidate_key, self.candidates)
        belief = state.belief
        if not self.policy.random():

            def wait(belief: Any, item: tuple[Point, Flag]) -> tuple[Any, None]:
                return self._believe(state, belief, *item), None

            belief, _ = jax.lax.scan(wait, belief, (pending, busy))
        return self._query(jr.fold_in(policy_key, 0), state, belief, candidates)

    def _query(self, key: Key, state: State, belief: Any, candidates: Points) -> Point:
        function = self.policy(key, self.surrogate, state.shared, belief)
        return maximize(function, self.domain, candidates)[0]

    def _believe(self, state: State, belief: Any, x: Point, busy: Flag | bool = True) -> Any:
        """The belief if `x` were observed to be what is expected there."""
        mean, _ = self.surrogate.predict(state.shared, belief, x)
        return self.surrogate.condition(state.shared, belief, x, jnp.where(busy, mean, jnp.nan))

    def tell(
        self, state: State, queries: Float[Array, "targets dim"], values: Float[Array, " targets"]
    ) -> State:
        require(
            queries.shape == (self.workers, self.domain.dim) and values.shape == (self.workers,),
            f"expected queries of shape ({self.workers}, {self.domain.dim}) and as many values, got "
            f"{queries.shape} and {values.shape}.",
        )
        return self._tell(state, queries, values)

    def tell_one(self, state: State, x: Point, value: Scalar) -> State:
        """The state after one evaluation, of whichever worker."""
        return self._tell(state, x[None], value[None])

    def _tell(
        self, state: State, queries: Float[Array, "n dim"], values: Float[Array, " n"]
    ) -> State:
        belief = self._observe(state, queries, values)
        told = state.told + values.shape[0]
        every = self.surrogate.period
        if every is not None:
            due = told // every > state.told // every
            refit = lambda belief: self._refit(state, belief)  # noqa: E731
            belief = jax.lax.cond(due, refit, lambda belief: belief, belief)
        return State(state.round + 1, told, state.shared, belief)

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
        if self.surrogate.period is not None:
            belief = self._refit(state, belief)
        return State(state.round, told, state.shared, belief)

    def _observe(
        self, state: State, queries: Float[Array, "n dim"], values: Float[Array, " n"]
    ) -> Any:
        def step(belief: Any, observation: tuple[Point, Scalar]) -> tuple[Any, None]:
            return self.surrogate.condition(state.shared, belief, *observation), None

        return jax.lax.scan(step, state.belief, (queries, values))[0]

    def _refit(self, state: State, belief: Any) -> Any:
        """Hyperparameters fitted anew, unless nothing was observed since `state`."""
        usable = self.surrogate.count(belief) > self.surrogate.count(state.belief)
        new = self.surrogate.refit(state.shared, belief)
        return jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, belief)
