"""An agent's two models of its objective: a model on features that all share, and a model of its own.

Messages are made from the first. The second, if there is any, is for the agent's own queries. FTS
and DP-FTS-DE send a function sampled from the first, RGPE and TAF its mean and covariance.
"""

from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float, PyTree

from jaxbo._check import is_a, whole
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Belief, Fixed
from jaxbo.kernels.processes.features import FeatureMap, FourierFunction
from jaxbo.schedules import AbstractSchedule
from jaxbo.types import Count, Features, Flag, Function, Key, Point, Scalar


class SharedFeatures(eqx.Module):
    """Features of the messages, and features of the agents' own surrogate if it is another."""

    message: FeatureMap
    own: PyTree


class Beliefs(eqx.Module):
    """The beliefs of an agent under `SharedFeatures`."""

    message: Belief
    own: PyTree


class SampledFunction(eqx.Module):
    """A sampled function on the shared features, FTS section 3.1: all that leaves an agent.

    If agents agree on hyperparameters, it has the log `evidence` of each setting too
    (`models.pooled`).
    """

    weights: Features
    evidence: Float[Array, " settings"] | None = None


class AbstractTwoModels(AbstractFederated):
    """`features` models the objective for the messages, `own`, if given, for the agent itself.

    A client has its `Beliefs` in a field `beliefs`. A method calls `start` in `join` and `observed`
    in `learn`. Between them it makes its messages and queries from the beliefs, for instance with
    `sampled` and `own_function`.
    """

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

    def setup(self, key: Key) -> SharedFeatures:
        message_key, own_key = jr.split(key)
        dim = self.domain.dim
        own = None if self.own is None else self.own.setup(own_key, dim)
        return SharedFeatures(self.features.setup(message_key, dim), own)

    def start(self, shared: SharedFeatures) -> Beliefs:
        """Makes an agent's beliefs before any observation.

        Args:
            shared: The result of `setup`.

        Returns:
            The beliefs.
        """
        own = None if self.own is None else self.own.start(shared.own)
        return Beliefs(self.features.start(shared.message), own)

    def observed(
        self, shared: SharedFeatures, round: Count, beliefs: Beliefs, x: Point, value: Scalar
    ) -> Beliefs:
        """Updates an agent's beliefs by an evaluation.

        Args:
            shared: The result of `setup`.
            round: The number of the round, from 0 on.
            beliefs: The agent's beliefs.
            x: The point.
            value: The value there.

        Returns:
            The new beliefs.
        """
        message = self.features.observe(shared.message, beliefs.message, x, value, round)
        own = beliefs.own
        if self.own is not None:
            own = self.own.observe(shared.own, own, x, value, round)
        return Beliefs(message, own)

    def sampled(self, key: Key, shared: SharedFeatures, beliefs: Beliefs) -> Features:
        """Draws a function from the posterior on the shared features.

        Args:
            key: Random key.
            shared: The result of `setup`.
            beliefs: The agent's beliefs.

        Returns:
            The weights ω of the function.
        """
        return self.features.sample(key, shared.message, beliefs.message).weights

    def expect(self, shared: SharedFeatures, client: Any, x: Point) -> tuple[Scalar, Scalar]:
        """Predicts by the agent's own model, or without such a model by the model of the messages.

        Args:
            shared: The result of `setup`.
            client: The agent's client.
            x: The point.

        Returns:
            Mean and variance at `x`, without noise.
        """
        beliefs: Beliefs = client.beliefs
        if self.own is None:
            return self.features.predict(shared.message, beliefs.message, x)
        return self.own.predict(shared.own, beliefs.own, x)

    def own_function(
        self, key: Key, shared: SharedFeatures, beliefs: Beliefs, fresh: Features
    ) -> Function:
        """Draws an agent's own sample.

        Args:
            key: Random key.
            shared: The result of `setup`.
            beliefs: The agent's beliefs.
            fresh: Weights of a function on the shared features.

        Returns:
            The function; without `own` it is the function of `fresh` weights.
        """
        if self.own is None:
            return FourierFunction(shared.message, fresh)
        return self.own.sample(key, shared.own, beliefs.own)


def is_own(mixing: AbstractSchedule, key: Key, round: Count) -> Flag:
    """r < p_t in the round, the first being 0: settled for all rounds by the key an agent joins with.

    The draw r is from [0, 1). So 0 is never, and 1 always.
    """
    return jr.uniform(jr.fold_in(key, round)) < mixing(round + 1)
