"""What FTS and its relatives share: an agent sends a sampled function, and maximizes its own or another.

ω_n ~ posterior of agent n           the message, weights on features that are common to all
own sample with probability p_t,     otherwise what came from the others
"""

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._check import is_a
from jaxbo.algos.base.two_models import AbstractTwoModels, Beliefs, Shared
from jaxbo.kernels.processes.features import FourierFunction
from jaxbo.schedules import AbstractSchedule
from jaxbo.types import Count, Features, Flag, Function, Key


class Message(eqx.Module):
    """A sampled function on the shared features, FTS section 3.1: all that leaves an agent.

    Where agents agree on hyperparameters, also the log `evidence` of each setting (`kernels.pooled`).
    """

    weights: Features
    evidence: Float[Array, " settings"] | None = None


class AbstractThompson(AbstractTwoModels):
    """`features` models the objective for the messages; `own`, if given, for an agent's own samples."""

    mixing: eqx.AbstractVar[AbstractSchedule]

    def __check_init__(self):
        is_a("mixing", self.mixing, AbstractSchedule)

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
