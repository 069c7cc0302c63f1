"""Thompson sampling: query the maximizer of a function drawn from the posterior.

f_t ~ GP(mean, covariance | own observations),    x_t = argmax f_t(x)
"""

import operator

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import is_a, whole
from jaxbo._keys import aside
from jaxbo.algos.base.federated import AbstractIndependent, FederatedState
from jaxbo.algos.base.outcomes import Outcome, as_outcomes, check_names, copies
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.choosing.policy import Model, Thompson, expected_feasible
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.types import Count, Flag, Key, Point, Scalar


class TS(AbstractIndependent):
    """Thompson sampling: every agent maximizes a function drawn from its own posterior.

    Agents send no message. All agents draw on the same features and, in each round, on the same
    candidate points. So a round of many agents is a single matrix product.

    Memory: the belief of `surrogate` for each agent; measured in a run of 35 observations with the
    defaults, 108 kB at most. With `outcomes`, each agent has a model of each outcome, and as many
    more beliefs.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1. Default: 1.
        surrogate: The model of an agent's objective. Default: `Fixed()`.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.
        outcomes: Numbers with bounds that an evaluation returns beside its value, as in `EGP`.
            Default: none.

    Raises:
        ValueError: A number is below 1, a part is of another class, or an outcome has a taken name.

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> method = jaxbo.TS(jaxbo.Cube(1), 2, jaxbo.Fixed(size=10), candidates=50)
        >>> state, trace = jaxbo.run(method, lambda x: -((x[0] - 0.3) ** 2), 8, jr.key(0), initial=4)
        >>> trace.queries.shape, bool(trace.values.max() > -0.01)
        ((12, 2, 1), True)
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True, default=1)
    surrogate: AbstractSurrogate = eqx.field(default_factory=Fixed)
    candidates: int = eqx.field(static=True, default=1000)
    outcomes: tuple[Outcome, ...] = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        converter=as_outcomes, default=()
    )

    def __check_init__(self):
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        whole("candidates", self.candidates, least=1)
        check_names(self.outcomes, self.domain)
        if self.outcomes:
            Thompson().check_constrained(self.surrogate)

    @property
    def capacity(self) -> int | None:
        return self.surrogate.capacity

    @property
    def invariant(self) -> bool:
        return self.surrogate.invariant

    def setup(self, key: Key) -> PyTree:
        return self.surrogate.setup(key, self.domain.dim)

    def join(self, key: Key, shared: PyTree, index: Count) -> PyTree:
        del key, index
        belief = self.surrogate.start(shared)
        return copies(belief, 1 + len(self.outcomes)) if self.outcomes else belief

    def models(self, shared: PyTree, client: PyTree) -> list[Model]:
        """Lists the model of the objective, and the model of each outcome's slack.

        Args:
            shared: The result of `setup`.
            client: The agent's client.

        Returns:
            The models, with their beliefs.
        """
        if not self.outcomes:
            return [Model(self.surrogate, shared, client)]
        beliefs = [
            jax.tree.map(operator.itemgetter(i), client) for i in range(1 + len(self.outcomes))
        ]
        return [Model(self.surrogate, shared, belief) for belief in beliefs]

    def choose(
        self,
        key: Key,
        shared: PyTree,
        client: PyTree,
        past: History,
        message: tuple[()],
        broadcast: Key,
    ) -> tuple[Point, tuple[()]]:
        del message
        model, *slacks = self.models(shared, client)
        candidates = self.domain.candidates(broadcast, self.candidates)
        if not slacks:
            function = self.surrogate.sample(key, *model[1:])
            return query(aside(key), function, self.domain, candidates, past), ()
        function = Thompson().constrained(key, model, slacks)
        known = function, self.domain, candidates, past
        return query(aside(key), *known, alone=False, border=True), ()

    def expect(self, shared: PyTree, client: PyTree, x: Point) -> tuple[Scalar, Scalar]:
        return self.surrogate.predict(shared, self.models(shared, client)[0].belief, x)

    def feasible(
        self, state: FederatedState, x: Float[Array, "targets dim"]
    ) -> Bool[Array, " targets"]:
        if not self.outcomes:
            return super().feasible(state, x)

        def one(client: PyTree, x: Point) -> Flag:
            return expected_feasible(self.models(state.shared, client)[1:], x)

        return jax.vmap(one)(state.clients, x)

    def learn(
        self,
        shared: PyTree,
        round: Count,
        client: PyTree,
        x: Point,
        value: Float[Array, "*numbers"],
    ) -> PyTree:
        def observe(belief: PyTree, y: Scalar) -> PyTree:
            return self.surrogate.observe(shared, belief, x, y, round)

        return jax.vmap(observe)(client, value) if self.outcomes else observe(client, value)
