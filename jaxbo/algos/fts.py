"""Federated Thompson sampling (Dai, Low and Jaillet, NeurIPS 2020, Algorithm 1).

    ω_n ~ N(ν_n, σ² Σ_n⁻¹)                          the message of agent n, a sampled function
    x_t = argmax f_t(x)         with probability p_t, f_t from the agent's own posterior
    x_t = argmax φ(x)'ω_n       otherwise, n ~ P_N over the other agents

Sharing the features φ makes the vector ω_n, instead of data, enough.
"""

from dataclasses import KW_ONLY
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxbo._check import require
from jaxbo._keys import Held, aside, held
from jaxbo._shown import Shown
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND
from jaxbo.algos.base.two_models import (
    AbstractTwoModels,
    Beliefs,
    SampledFunction,
    SharedFeatures,
    is_own,
)
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.choosing.ranking import STRANGERS, Ranked, check_weights
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.kernels.processes.covariance import AbstractKernel
from jaxbo.kernels.processes.features import FourierFunction
from jaxbo.schedules import AbstractSchedule, Power, as_schedule
from jaxbo.types import Count, Flag, Function, Key, Point, Scalar, about, floating


class FTSClient(eqx.Module):
    """An agent; `sent` is its only message, with `once`, and two keys settle its later choices."""

    index: Count
    choices: Held = eqx.field(converter=held)
    order: Held = eqx.field(converter=held)
    beliefs: Beliefs
    sent: SampledFunction | None


class FTSBroadcast(eqx.Module):
    """All messages as they came, whom they are from, and the round's common random key.

    `evidence` is the sum over the agents that are present and send finite values.
    """

    round: Count
    key: Key
    weights: Float[Array, "agents features"]
    present: Bool[Array, " agents"]
    evidence: Float[Array, " settings"] | None


class Agreed(Shown):
    """The hyperparameters of an agent's own model in a query."""

    kernel: AbstractKernel
    noise: Scalar


class FTSInfo(Shown):
    """`source` is the agent whose sampled function was maximized: the agent itself, or a peer.

    `agreed` is there if hyperparameters are `pooled`. A state holds the hyperparameters before they
    agreed.
    """

    source: Count
    agreed: Agreed | None = None


def _weights(peers: ArrayLike | Ranked | None) -> Array | Ranked | None:
    return peers if peers is None or isinstance(peers, Ranked) else floating(peers)


class FTS(AbstractTwoModels):
    """FTS: agents exchange functions sampled from their posteriors, M floats a message.

    M is the number of features of the messages. A new message goes out in every round, from agents
    that keep observing. With `once`, the paper's simple setting, each agent sends a single message.
    It is drawn after the observations of `warm_start`, and a used peer is not drawn again.

    Peers that are not `present` are never drawn. If nobody is left to draw, the agent's own sample
    is used. With `once`, `present` says whose message arrived before the start: keep it the same in
    every round.

    Differs from the paper in three defaults. Values are standardized by each agent's running mean
    and deviation. Features are `sine_cosine`; the paper's are `Fixed(basis=features.cosine)`. β_t
    is 1, as in the paper's experiments; `own=Widened(Fixed(), beta)` has another.

    Memory: M² + O(M) floats an agent, or O(capacity M) with a `capacity` up to M. With `once` a
    round takes some `targets` × `agents` numbers more, to put the peers in order. Measured in a run
    of 35 observations with the defaults: 108 kB an agent at most, 0.3 MB with a fitted `own`.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1.
        features: Model of the objective for the messages. All agents share its feature map.
            Default: `Fixed()`.
        own: The agents' private model for their own samples, such as `Fitted`. None: the model of
            the messages serves. An agent's own sample is then the very function that it sent, a
            fresh draw every round, with the same law.
        mixing: Probability p_t of an own sample in round t = 1, 2, …: a schedule or a number in [0,
            1]. Default: `Power(0.5, shift=1)`.
        peers: P_N up to scale: a weight for each agent, or a row of weights for each target. A
            target's own weight is ignored. None: the uniform distribution. `Ranked()` learns it:
            each agent listens to peers whose messages rank its own observations well, which
            `own=Fitted(...)` keeps. With `once`, peers come in an order that is fixed before, and a
            peer that ranks badly is passed over.
        pooled: `Pooled()` has agents agree on the hyperparameters of their own models, by the
            evidence of all who are present. It needs `own=Fitted(..., refit_every=None)`, whose fit
            it replaces, and sends `Pooled.settings` floats more. With `once` the evidence is that
            of observations before the start, and the asking agent's since. None: each agent for
            itself.
        once: Whether each agent sends a single message, before the start. Default: False.
        targets: Number of agents that query, the first of all. The others only send, and keep the
            belief that `warm_start` gave them. None: all agents.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.

    Raises:
        ValueError: Parts do not fit each other, or `peers` has another shape or negative weights.

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> features = jaxbo.Fixed(size=10)
        >>> method = jaxbo.FTS(jaxbo.Cube(1), agents=3, features=features, candidates=50)
        >>> state, trace = jaxbo.run(method, lambda x: -((x[0] - 0.3) ** 2), 8, jr.key(0), initial=4)
        >>> trace.queries.shape, trace.info.source.shape, bool(trace.values.max() > -0.01)
        ((12, 3, 1), (8, 3), True)
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    _: KW_ONLY
    features: Fixed = eqx.field(default_factory=Fixed)
    own: AbstractSurrogate | None = None
    mixing: AbstractSchedule = eqx.field(
        default_factory=lambda: Power(0.5, shift=1), converter=partial(as_schedule, name="mixing")
    )
    peers: Float[Array, " agents"] | Float[Array, "targets agents"] | Ranked | None = eqx.field(
        default=None, converter=about("peers", _weights)
    )
    pooled: Pooled | None = None
    once: bool = eqx.field(static=True, default=False)
    targets: int = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=None
    )
    candidates: int = eqx.field(static=True, default=1000)

    def __post_init__(self):
        if self.targets is None:
            self.targets = self.agents  # pyright: ignore[reportIncompatibleMethodOverride]

    def __check_init__(self):
        ranked = isinstance(self.peers, Ranked)
        require(
            not ranked or isinstance(self.own, Fitted),
            f"peers=Ranked() needs own=Fitted(...), which keeps observations to rank, got {self.own}.",
        )
        if self.pooled is not None:
            self.pooled.check(self.own)
        weights, shapes = self._given, ((self.agents,), (self.targets, self.agents))
        if weights is not None:
            require(
                weights.shape in shapes,
                f"peers must have shape {shapes[0]} or {shapes[1]}, got {weights.shape}.",
            )
            check_weights("peers", weights)

    @property
    def _given(self) -> Float[Array, " agents"] | Float[Array, "targets agents"] | None:
        """P_N up to scale, as far as it was given."""
        return self.peers.start if isinstance(self.peers, Ranked) else self.peers

    @property
    def peer_capacity(self) -> int | None:
        # Peers' own models are asked for their evidence.
        return super().peer_capacity if self.pooled is None else self.capacity

    def join(self, key: Key, shared: SharedFeatures, index: Count) -> FTSClient:
        choices_key, order_key, start_key = jr.split(key, 3)
        beliefs = self.start(shared)
        sent = None
        if self.once:
            sent = self._sent(start_key, shared, beliefs)
        return FTSClient(index, choices_key, order_key, beliefs, sent)

    def message(self, key: Key, shared: SharedFeatures, client: FTSClient) -> SampledFunction:
        if client.sent is not None:
            return client.sent
        return self._sent(key, shared, client.beliefs)

    def _sent(self, key: Key, shared: SharedFeatures, beliefs: Beliefs) -> SampledFunction:
        return SampledFunction(self.sampled(key, shared, beliefs), self._evidence(beliefs))

    def aggregate(
        self,
        key: Key,
        shared: SharedFeatures,
        round: Count,
        messages: SampledFunction,
        present: Bool[Array, " agents"],
    ) -> FTSBroadcast:
        del shared
        total = None
        if messages.evidence is not None:
            counted = jax.vmap(_counted)(messages.evidence, present)
            total = jnp.sum(counted, axis=0)
        # Behind a barrier, or the compiler spends its time on sums over a constant of all agents.
        (present,) = jax.lax.optimization_barrier((present,))
        return FTSBroadcast(round, key, messages.weights, present, total)

    def choose(
        self,
        key: Key,
        shared: SharedFeatures,
        client: FTSClient,
        past: History,
        message: SampledFunction,
        broadcast: FTSBroadcast,
    ) -> tuple[Point, FTSInfo]:
        own_key, peer_key = jr.split(key)
        client, agreed = self._agreed(shared, client, message, broadcast)
        peer, found = self._peer(peer_key, shared, client, broadcast)
        own_turn = is_own(self.mixing, client.choices.key, broadcast.round) | ~found
        theirs = FourierFunction(shared.message, broadcast.weights[peer])
        fresh = message.weights
        if self.once and self.own is None:
            # The one message is used up: a fresh draw from the same posterior.
            fresh = self.sampled(own_key, shared, client.beliefs)
        mine = self.own_function(own_key, shared, client.beliefs, fresh)
        candidates = self.domain.candidates(broadcast.key, self.candidates)
        function = _either(own_turn, mine, theirs)
        x = query(aside(key), function, self.domain, candidates, past, alone=own_turn)
        return x, FTSInfo(jnp.where(own_turn, client.index, peer), agreed)

    def learn(
        self, shared: SharedFeatures, round: Count, client: FTSClient, x: Point, value: Scalar
    ) -> FTSClient:
        beliefs, sent = self.observed(shared, round, client.beliefs, x, value), client.sent
        if sent is not None:
            old, count = sent.weights, beliefs.message.moments.count
            # Until the first round the one message keeps up with the observations.
            new = jax.lax.cond(
                round == BEFORE_FIRST_ROUND,
                lambda: self.sampled(jr.fold_in(client.order.key, 1 + count), shared, beliefs),
                lambda: old,
            )
            sent = SampledFunction(jax.lax.select(jnp.isfinite(value), new, old), sent.evidence)
        return FTSClient(client.index, client.choices, client.order, beliefs, sent)

    # ------------------------------------------------------------ hyperparameters in common

    @property
    def settles(self) -> bool:
        return self.once and self.pooled is not None

    def settle(self, shared: SharedFeatures, client: FTSClient) -> FTSClient:
        """Puts the evidence of all that came before the start into a client's only message.

        Args:
            shared: The result of `setup`.
            client: The agent's client.

        Returns:
            The new client.
        """
        del shared
        if not self.settles:
            return client
        return eqx.tree_at(lambda c: c.sent.evidence, client, self._evidence(client.beliefs))

    def _evidence(self, beliefs: Beliefs) -> Float[Array, " settings"] | None:
        if self.pooled is None:
            return None
        assert isinstance(self.own, Fitted)
        return self.pooled.evidence(self.own, beliefs.own)

    def _agreed(
        self,
        shared: SharedFeatures,
        client: FTSClient,
        message: SampledFunction,
        broadcast: FTSBroadcast,
    ) -> tuple[FTSClient, Agreed | None]:
        """The client with its own model under the hyperparameters that all agree on, and the
        hyperparameters.

        With `once` messages are old: an agent's later observations count for itself.
        """
        sent, heard = message.evidence, broadcast.evidence
        if self.pooled is None or sent is None or heard is None:
            return client, None
        assert isinstance(self.own, Fitted)
        own = client.beliefs.own
        others = heard - _counted(sent, broadcast.present[client.index])
        kernel, noise = self.pooled.agreed(
            self.own, own, others + self.pooled.evidence(self.own, own)
        )
        under = self.own.under(shared.own, own, kernel, noise)
        return eqx.tree_at(lambda c: c.beliefs.own, client, under), Agreed(kernel, noise)

    # ------------------------------------------------------------ whose function to maximize

    def _peer(
        self, key: Key, shared: SharedFeatures, client: FTSClient, broadcast: FTSBroadcast
    ) -> tuple[Count, Flag]:
        weights = broadcast.present.astype(broadcast.weights.dtype)
        given = self._given
        if given is not None:
            weights = weights * (given if given.ndim == 1 else given[client.index])
        if isinstance(self.peers, Ranked):
            return self._ranked_peer(key, self.peers, shared, client, broadcast, weights)
        if self.once:
            return self._next_peer(client, broadcast.round, weights)
        return _draw_other(key, weights, client.index)

    def _ranked_peer(
        self,
        key: Key,
        ranked: Ranked,
        shared: SharedFeatures,
        client: FTSClient,
        broadcast: FTSBroadcast,
        weights: Float[Array, " agents"],
    ) -> tuple[Count, Flag]:
        draw_key, listen_key, stranger_key = jr.split(key, 3)
        own = client.beliefs.own
        phis = jax.vmap(shared.message)(own.x)
        z = jr.normal(stranger_key, (STRANGERS, phis.shape[1]), phis.dtype)
        others = (weights > 0) & (jnp.arange(weights.size) != client.index)
        scores, strangers = dot(broadcast.weights, phis.T), dot(z, phis.T)
        likely = ranked.probabilities(scores, strangers, own.y, own.used, others)
        if self.once:
            peer, found = self._next_peer(client, broadcast.round, weights)
        else:
            peer, found = _draw_other(draw_key, weights * likely, client.index)
        return peer, found & (jr.uniform(listen_key, dtype=likely.dtype) < 2 * likely[peer])

    def _next_peer(
        self, client: FTSClient, round: Count, weights: Float[Array, " agents"]
    ) -> tuple[Count, Flag]:
        """The peer whose turn it is, if each is drawn once."""
        earlier = jax.lax.fori_loop(
            0,
            round,
            lambda t, used: used + (~is_own(self.mixing, client.choices.key, t)).astype(int),
            jnp.zeros((), int),
        )
        return _nth_other(jr.fold_in(client.order.key, 0), weights, client.index, earlier)


def _counted(evidence: Float[Array, " settings"], present: Flag) -> Float[Array, " settings"]:
    """An agent's part of the sum of evidences: 0 if it is absent, or if a number is not finite."""
    usable = present & jnp.all(jnp.isfinite(evidence))
    return jnp.where(usable, evidence, jnp.zeros_like(evidence))


def _draw_other(key: Key, weights: Float[Array, " agents"], index: Count) -> tuple[Count, Flag]:
    """An agent other than `index`, by weight; and whether there was any.

    Weights that are common to all agents are summed up once, so a draw is O(log agents).
    """
    ends = jnp.cumsum(weights)
    own = weights[index]
    start = ends[index] - own
    point = jr.uniform(key, dtype=weights.dtype) * (ends[-1] - own)
    point = jnp.where(point >= start, point + own, point)  # jump over the agent's own share
    other = jnp.minimum(jnp.searchsorted(ends, point, side="right"), weights.size - 1)
    other = other.astype(index.dtype)
    return other, (other != index) & (weights[other] > 0)


def _nth_other(
    key: Key, weights: Float[Array, " agents"], index: Count, n: Count
) -> tuple[Count, Flag]:
    """The n-th (from 0) of the draws by weight without replacement, and whether it exists.

    Agents in order of log weight plus Gumbel noise are such a sequence of draws (Gumbel top-k).
    """
    weights = weights.at[index].set(0)
    scores = jnp.log(weights) + jr.gumbel(key, weights.shape, weights.dtype)
    order = jnp.argsort(scores, descending=True)
    exists = n < jnp.sum(weights > 0)
    return order[jnp.minimum(n, weights.size - 1)], exists


def _either(is_first: Flag, first: Function, second: FourierFunction) -> Function:
    """The first function or the second; a single function if both share their features."""
    if isinstance(first, FourierFunction) and first.features is second.features:
        weights = jnp.where(is_first, first.weights, second.weights)
        return FourierFunction(first.features, weights)
    return lambda x: jnp.where(is_first, first(x), second(x))
