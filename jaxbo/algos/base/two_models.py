"""An agent's two models of its objective: one on features that all share, and one of its own.

The first is what messages are made of; the second, where there is one, is for the agent's own queries.
"""

import equinox as eqx
import jax.random as jr
from jaxtyping import PyTree

from jaxbo._check import is_a, whole
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Belief, Fixed
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.types import Count, Key, Point, Scalar


class Shared(eqx.Module):
    """Features of the messages, and of the agents' own surrogate where it is another one."""

    message: FeatureMap
    own: PyTree


class Beliefs(eqx.Module):
    """What one agent believes under the features of `Shared`."""

    message: Belief
    own: PyTree


class AbstractTwoModels(AbstractFederated):
    """`features` models the objective for the messages, `own`, if given, for the agent itself."""

    features: eqx.AbstractVar[Fixed]
    own: eqx.AbstractVar[AbstractSurrogate | None]
    candidates: eqx.AbstractVar[int]

    def __check_init__(self):
        is_a("features", self.features, Fixed)
        if self.own is not None:
            is_a("own", self.own, AbstractSurrogate)
        whole("candidates", self.candidates, least=1)

    @property
    def capacity(self) -> int | None:
        limits = [part.capacity for part in (self.features, self.own) if part is not None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def peer_capacity(self) -> int | None:
        return self.features.capacity

    @property
    def invariant(self) -> bool:
        return self.features.invariant and (self.own is None or self.own.invariant)

    def setup(self, key: Key) -> Shared:
        message_key, own_key = jr.split(key)
        dim = self.domain.dim
        own = None if self.own is None else self.own.setup(own_key, dim)
        return Shared(self.features.setup(message_key, dim), own)

    def _start(self, shared: Shared) -> Beliefs:
        own = None if self.own is None else self.own.start(shared.own)
        return Beliefs(self.features.start(shared.message), own)

    def _update(
        self, shared: Shared, round: Count, beliefs: Beliefs, x: Point, value: Scalar
    ) -> Beliefs:
        message = self.features.observe(shared.message, beliefs.message, x, value, round)
        own = beliefs.own
        if self.own is not None:
            own = self.own.observe(shared.own, own, x, value, round)
        return Beliefs(message, own)
