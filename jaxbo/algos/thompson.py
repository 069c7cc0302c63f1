"""What FTS and its relatives share: an agent sends a sampled function, and maximizes its own or another.

ω_n ~ posterior of agent n           the message, weights on features that are common to all
own sample with probability p_t,     otherwise what came from the others
"""

import equinox as eqx
import jax.random as jr
from jaxtyping import PyTree

from jaxbo._check import is_a, whole
from jaxbo.algos.base import AbstractFederated
from jaxbo.kernels.features import FeatureMap, FourierFunction
from jaxbo.kernels.surrogate import AbstractSurrogate, Belief, Fixed
from jaxbo.schedules import AbstractSchedule
from jaxbo.types import Count, Features, Flag, Function, Key, Point, Scalar


class Shared(eqx.Module):
    """Features of the messages, and of the agents' own surrogate where it is another one."""

    message: FeatureMap
    own: PyTree


class Beliefs(eqx.Module):
    """What one agent believes under the features of `Shared`."""

    message: Belief
    own: PyTree


class Message(eqx.Module):
    """A sampled function on the shared features, FTS section 3.1: all that leaves an agent."""

    weights: Features


class AbstractThompson(AbstractFederated):
    """`features` models the objective for the messages; `own`, if given, for an agent's own samples."""

    features: eqx.AbstractVar[Fixed]
    own: eqx.AbstractVar[AbstractSurrogate | None]
    mixing: eqx.AbstractVar[AbstractSchedule]
    candidates: eqx.AbstractVar[int]

    def __check_init__(self):
        is_a("features", self.features, Fixed)
        if self.own is not None:
            is_a("own", self.own, AbstractSurrogate)
        is_a("mixing", self.mixing, AbstractSchedule)
        whole("candidates", self.candidates, least=1)

    @property
    def capacity(self) -> int | None:
        limits = [part.room for part in (self.features, self.own) if part is not None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def peer_capacity(self) -> int | None:
        return self.features.capacity

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

    def _draw(self, key: Key, shared: Shared, beliefs: Beliefs) -> Message:
        return Message(self.features.sample(key, shared.message, beliefs.message).weights)

    def _own_function(
        self, key: Key, shared: Shared, beliefs: Beliefs, message: Message
    ) -> Function:
        """An agent's own sample; without `own` that is the function of a fresh `message`."""
        if self.own is None:
            return FourierFunction(shared.message, message.weights)
        return self.own.sample(key, shared.own, beliefs.own)

    def _is_own(self, key: Key, round: Count) -> Flag:
        """r ≤ p_t in the round, the first being 0: settled for all rounds when the agent joins."""
        return jr.uniform(jr.fold_in(key, round)) <= self.mixing(round + 1)
