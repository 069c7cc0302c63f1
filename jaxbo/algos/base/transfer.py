"""The common part of RGPE and TAF: an agent sends its posterior on the shared features, and hears
all others'.

    ν_n, U_n                      the message, U_n'U_n = Cov(weights): M + M² numbers
    μ_n(x) = φ(x)'ν_n,   σ_n²(x) = |U_n φ(x)|²

Both were made for learning from earlier tasks; FTS, section 3.2, adapts them to a federation.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxbo._check import is_a, require
from jaxbo._keys import aside
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND
from jaxbo.algos.base.two_models import AbstractTwoModels, Beliefs, SharedFeatures
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.models.fitted import Exact, Fitted, FittedBelief
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.types import Count, Features, Flag, Function, Key, Point, Scalar, about

#: While an agent looks for its best candidate, its function holds no more than so many numbers.
MOST_NUMBERS = 4096


class TransferMessage(eqx.Module):
    """Posterior mean and covariance of the weights for standardized values: cov = factor' factor.

    `factor` is triangular with a positive diagonal. The covariance fixes this factor, so it tells
    no more than the covariance does. `incumbent` is the largest standardized value, if a method
    asks for it.
    """

    mean: Features
    factor: Float[Array, "features features"]
    incumbent: Scalar | None


class TransferClient(eqx.Module):
    """An agent: `largest` is its best value, and `sent` its only message, with `once`."""

    index: Count
    beliefs: Beliefs
    largest: Scalar
    sent: TransferMessage | None


class TransferBroadcast(eqx.Module):
    """All messages that can be used, whom they are from, and the round's common random key."""

    key: Key
    messages: TransferMessage
    present: Bool[Array, " agents"]


class AbstractTransfer(AbstractTwoModels):
    """An agent's next query maximizes a function of its own exact process and of all messages.

    Subclasses give the function. `sends_incumbent` is whether the best value leaves an agent, too.
    """

    own: eqx.AbstractVar[Fitted]
    peers: eqx.AbstractVar[Bool[Array, " agents"] | Bool[Array, "targets agents"] | None]
    once: eqx.AbstractVar[bool]
    targets: eqx.AbstractVar[int]  # pyright: ignore[reportIncompatibleMethodOverride]
    sends_incumbent: ClassVar[bool] = False

    def __post_init__(self):
        if self.targets is None:
            self.targets = self.agents  # pyright: ignore[reportIncompatibleMethodOverride]

    def __check_init__(self):
        require(
            isinstance(self.own, Fitted) and isinstance(self.own.inference, Exact),
            f"own must be Fitted(..., inference=Exact()), which keeps the observations to rank, got "
            f"{self.own}.",
        )
        is_a("features", self.features, Fixed)
        require(
            self.features.standardize,
            "features must standardize values: the own model does, and the two are compared.",
        )
        if self.peers is not None:
            shapes = (self.agents,), (self.targets, self.agents)
            require(
                self.peers.shape in shapes,
                f"peers must have shape {shapes[0]} or {shapes[1]}, got {self.peers.shape}.",
            )

    @property
    def random(self) -> bool:
        return False  # but for ties

    @abc.abstractmethod
    def acquisition(
        self,
        key: Key,
        shared: SharedFeatures,
        own: FittedBelief,
        messages: TransferMessage,
        others: Bool[Array, " agents"],
    ) -> tuple[Function, Float[Array, " agents"]]:
        """Makes the function to maximize.

        Args:
            key: Random key.
            shared: The result of `setup`.
            own: The belief of the agent's own process.
            messages: The messages of all agents, all of them finite.
            others: Whether the agent listens to each agent.

        Returns:
            The function, and how much each agent's message counts in it.
        """

    @property
    @abc.abstractmethod
    def numbers_a_point(self) -> int:
        """Returns how many numbers the maximized function makes of a point on its way to a value."""

    def usable(self, message: TransferMessage) -> Flag:
        """Says whether a message is finite.

        The incumbent of an agent without observations is the least number that there is.

        Args:
            message: The message of an agent.

        Returns:
            A truth value.
        """
        fine = jnp.all(jnp.isfinite(message.mean)) & jnp.all(jnp.isfinite(message.factor))
        return fine if message.incumbent is None else fine & (message.incumbent < jnp.inf)

    def join(self, key: Key, shared: SharedFeatures, index: Count) -> TransferClient:
        del key
        beliefs = self.start(shared)
        none = beliefs.message.moments.mean  # not infinite, for which `jax_debug_infs` would stop
        largest = jnp.full_like(none, jnp.finfo(none.dtype).min)
        return self._with_message(TransferClient(index, beliefs, largest, None))

    def message(self, key: Key, shared: SharedFeatures, client: TransferClient) -> TransferMessage:
        del key, shared
        return self._posterior(client) if client.sent is None else client.sent

    def aggregate(
        self,
        key: Key,
        shared: SharedFeatures,
        round: Count,
        messages: TransferMessage,
        present: Bool[Array, " agents"],
    ) -> TransferBroadcast:
        del shared, round
        # What is not heard may hold anything, such as NaN, which no weight of 0 makes vanish.
        heard = present & jax.vmap(self.usable)(messages)
        hear = jax.vmap(lambda heard, m: jax.tree.map(lambda a: jnp.where(heard, a, 0), m))
        return TransferBroadcast(key, hear(heard, messages), heard)

    def choose(
        self,
        key: Key,
        shared: SharedFeatures,
        client: TransferClient,
        past: History,
        message: TransferMessage,
        broadcast: TransferBroadcast,
    ) -> tuple[Point, Float[Array, " agents"]]:
        del message
        others = broadcast.present & (jnp.arange(broadcast.present.size) != client.index)
        if self.peers is not None:
            others = others & (self.peers if self.peers.ndim == 1 else self.peers[client.index])
        own = client.beliefs.own
        function, weights = self.acquisition(key, shared, own, broadcast.messages, others)
        candidates = self.domain.candidates(broadcast.key, self.candidates)
        # A peer whose values are all equal sends a mean of 0.
        told = jnp.any(broadcast.messages.mean != 0, axis=1)
        alone = ~jnp.any(told & (weights > 0))
        block = max(1, MOST_NUMBERS // self.numbers_a_point)
        x = query(aside(key), function, self.domain, candidates, past, alone=alone, block=block)
        return x, weights

    def learn(
        self, shared: SharedFeatures, round: Count, client: TransferClient, x: Point, value: Scalar
    ) -> TransferClient:
        beliefs = self.observed(shared, round, client.beliefs, x, value)
        counted = beliefs.message.posterior.count > client.beliefs.message.posterior.count
        largest = jnp.where(counted, jnp.maximum(client.largest, value), client.largest)
        told = TransferClient(client.index, beliefs, largest, client.sent)
        # Until the first round the one message keeps up with the observations.
        return self._with_message(told, round == BEFORE_FIRST_ROUND)

    def _posterior(self, client: TransferClient) -> TransferMessage:
        belief = client.beliefs.message
        incumbent = None
        if self.sends_incumbent:
            moments = belief.moments
            incumbent = (client.largest - moments.offset) / moments.deviation
        mean = belief.mean_weights()
        transposed = jax.vmap(belief.posterior.root.times)(jnp.eye(mean.size, dtype=mean.dtype))
        triangle = jnp.linalg.qr(transposed, mode="r")
        factor = triangle * jnp.where(jnp.diagonal(triangle) < 0, -1, 1)[:, None]
        return TransferMessage(mean, factor, incumbent)

    def _with_message(self, client: TransferClient, anew: Flag | bool = True) -> TransferClient:
        """With `once`, the client and its message: its posterior `anew`, or the message it had."""
        if not self.once:
            return client
        message = self._posterior(client)
        if client.sent is not None:
            choose = lambda new, old: jnp.where(anew, new, old)  # noqa: E731
            message = jax.tree.map(choose, message, client.sent)
        return TransferClient(client.index, client.beliefs, client.largest, message)


def heard(peers: ArrayLike | None) -> Bool[Array, "*shape"] | None:
    """Whom to listen to, as an array. `ValueError` for numbers, since weights are not possible."""
    if peers is None:
        return None
    peers = about("peers", jnp.asarray)(peers)
    require(peers.dtype == bool, f"peers must say yes or no, got numbers of {peers.dtype}.")
    return peers
