"""Thompson sampling: query the maximizer of a function drawn from the posterior.

f_t ~ GP(mean, covariance | own observations),    x_t = argmax f_t(x)
"""

import equinox as eqx
from jaxtyping import PyTree

from jaxbo._check import is_a, whole
from jaxbo._keys import aside
from jaxbo.algos.base.federated import AbstractIndependent
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.types import Count, Key, Point, Scalar


class TS(AbstractIndependent):
    """Every agent optimizes alone: no message.

    All agents draw on one set of features and, each round, one set of candidate points, so that a
    round of many agents is one matrix product. Memory: the belief of `surrogate`, an agent; measured in
    a run of 35 observations with the defaults, 108 kB at most.
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True, default=1)
    surrogate: AbstractSurrogate = eqx.field(default_factory=Fixed)
    candidates: int = eqx.field(static=True, default=1000)

    def __check_init__(self):
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        whole("candidates", self.candidates, least=1)

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
        return self.surrogate.start(shared)

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
        function = self.surrogate.sample(key, shared, client)
        candidates = self.domain.candidates(broadcast, self.candidates)
        return query(aside(key), function, self.domain, candidates, past), ()

    def expect(self, shared: PyTree, client: PyTree, x: Point) -> tuple[Scalar, Scalar]:
        return self.surrogate.predict(shared, client, x)

    def learn(
        self, shared: PyTree, round: Count, client: PyTree, x: Point, value: Scalar
    ) -> PyTree:
        return self.surrogate.observe(shared, client, x, value, round)
