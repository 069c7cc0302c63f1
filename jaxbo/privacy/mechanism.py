"""The private sum: sample agents, clip their messages, weigh them for each region, add Gaussian noise.

    clip(w)      = w min(1, S / (√regions |w|))
    broadcast_i  = Σ_{n in sample} φ_in clip(w_n) / q + N(0, (z Δ)² I),    Δ = φ_max S / q

for regions i and agents n, φ_max the largest of all φ_in: lines 5 to 11 of Algorithm 1 of DP-FTS-DE
(Dai, Low and Jaillet, 2021). The vectors of all regions together are one subsampled Gaussian mechanism.
`Mechanism` is that mechanism, and accountants read off it what to charge for.

Neighbors. How many agents there are, which region each explores, the weights, z, q and S are public; so
is S when it is a function of earlier private releases. The private data of an agent are all its
messages. Two runs are neighbors if they differ in one agent. Under `Relation.ZERO_OUT` the agent never
takes part in one of the two. Under `Relation.REPLACE` it sends other messages in one of them, or none.
Weights belong to the roster, and do not depend on who takes part. If they were normalized over the
agents who are present, the absence of an agent would change the share of every other, which Δ does not
cover. This is where adding or removing an agent, in the paper's words, is made precise.

Sensitivity. Agent n contributes the joint vector (φ_in clip(w_n) / q)_i, whose norm is

    |clip(w_n)| √(Σ_i φ_in²) / q  ≤  S / √regions · √(Σ_i φ_in²) / q  ≤  φ_max S / q = Δ.

The sum without the agent lies Δ away at most, the sum with another message in its place 2 Δ. The
last step is an equality only if an agent has weight φ_max in every region: an agent that counts in
its own region alone contributes Δ / √regions. With `exact` Δ is the middle term at its largest over
agents, and the same z asks for up to √regions times less noise. That is not in the paper.

Absence. An agent that is absent, or whose message is not finite, contributes 0, as its neighbor without
it does: absence is one of the two cases that the guarantee compares. Each agent's chance to be drawn
does not depend on who is present, and nobody is drawn in the place of an absent agent. The noise is the
server's and does not depend on the sample: an empty sample gives pure noise. So absence leaves the
guarantee of everybody as it is; only the sum is smaller. That holds under a condition: taking part must
not decide who else does, other than through the broadcast, nor whether and when there is a release. A
sum of nobody's messages is released, and charged, like any other.

Trust. The server sees every message, who is present and who was drawn. It is trusted to keep them to
itself, to draw the sample and the noise as written, to keep both secret, and to release nothing else.
Agents may pool all that they know. docs/explanations/privacy.md has a table of all parties. With secure
sums the server sees no message, under the conditions of `privacy.distributed.SecureSum`.

Not covered: a dishonest server; attacks on floating-point noise, whose values are not all reachable
and whose tails end near 5.4 deviations in float32, and sums that rounding takes past Δ; time,
memory, traffic and other side channels; the random generator, which is not meant for secrets, and a
key used twice; an agent's queries and values where others can see them. A round's noise and the
candidates that owners are told follow from the same 64 random bits.
"""

import abc
import enum
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import positive, require, shown, whole
from jaxbo._extensible import Extensible
from jaxbo._shown import Shown
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Features, Key, Scalar, about, floating, named

#: a of the paper's experiments: an agent counts e^15 times as much in the region it explores.
EMPHASIS = 15.0
#: Squares of smaller numbers, and of their inverses, are not numbers of float32.
_LEAST_S = 1e-18


class Relation(enum.Enum):
    """Which two runs must be hard to tell apart. `REPLACE` implies `ZERO_OUT`."""

    #: One agent takes part in one of them and never in the other.
    ZERO_OUT = "zero-out"
    #: One agent's messages are replaced by any others, or none.
    REPLACE = "replace"


class AbstractSampling(Extensible):
    """Which agents are drawn, whoever is present."""

    #: The relation under which the amplification by this sampling is known.
    relation: ClassVar[Relation]

    @property
    @abc.abstractmethod
    def q(self) -> Scalar:
        """The probability that an agent is drawn."""

    @abc.abstractmethod
    def draw(self, key: Key, agents: int) -> Bool[Array, " agents"]:
        """Draws agents, whoever is present.

        Args:
            key: Random key.
            agents: Number of agents on the roster.

        Returns:
            Whether each agent is drawn.
        """


class Poisson(AbstractSampling):
    """Draws every agent by itself with the same probability: the paper's sampling.

    The probability is rounded down to a multiple of 2^-32.

    Args:
        probability: q, in (0, 1].

    Raises:
        ValueError: q lies outside (0, 1].

    Example:
        >>> import jax, jaxbo
        >>> jaxbo.Poisson(1.0).draw(jax.random.key(0), agents=3).tolist()
        [True, True, True]
    """

    relation = Relation.ZERO_OUT
    probability: Scalar = eqx.field(converter=named("probability"))

    def __check_init__(self):
        require(
            (self.probability > 0) & (self.probability <= 1),
            f"q must lie in (0, 1], got {self.probability}: it is a probability of being drawn.",
        )

    @property
    def q(self) -> Scalar:
        return self.probability

    def draw(self, key: Key, agents: int) -> Bool[Array, " agents"]:
        # From an agent's number, so that no draw depends on how many agents there are.
        draws = jax.vmap(lambda i: jr.bits(jr.fold_in(key, i), dtype=jnp.uint32))
        # Whole numbers: a float32 uniform is a multiple of 2^-23, and below a small q too often.
        below = jnp.floor(self.probability * 2.0**32).astype(jnp.uint32)
        return (draws(jnp.arange(agents)) < below) | (self.probability >= 1)


class FixedSize(AbstractSampling):
    """Draws a fixed number of agents without replacement: the paper's variant for Rényi accounting.

    Agents are drawn from the whole roster, so fewer than `count` of them may be present. The known
    bound compares samples in which an agent stands for another. So it is for `Relation.REPLACE`, under
    which a release has twice the sensitivity.

    Args:
        count: Number of agents that are drawn, from 1 to `agents`.
        agents: Number of agents on the roster.

    Raises:
        ValueError: `count` is below 1 or above `agents`.

    Example:
        >>> import jax, jaxbo
        >>> drawn = jaxbo.FixedSize(2, agents=5).draw(jax.random.key(0), agents=5)
        >>> int(drawn.sum())
        2
    """

    relation = Relation.REPLACE
    count: Int[Array, ""] = eqx.field(converter=about("count", jnp.asarray))
    agents: int = eqx.field(static=True)

    def __check_init__(self):
        whole("agents", self.agents, least=1)
        require(
            self.count.ndim == 0 and jnp.issubdtype(self.count.dtype, jnp.integer),
            f"count must be a whole number of agents, got {self.count}.",
        )
        require(
            (self.count >= 1) & (self.count <= self.agents),
            f"count must be at least 1 and at most the {self.agents} agents, got {self.count}.",
        )

    @property
    def q(self) -> Scalar:
        return self.count.astype(float) / self.agents

    def draw(self, key: Key, agents: int) -> Bool[Array, " agents"]:
        """Draws agents, whoever is present.

        Args:
            key: Random key.
            agents: Number of agents on the roster, which is that of the sampling.

        Returns:
            Whether each agent is drawn.

        Raises:
            ValueError: The number is another.
        """
        require(
            agents == self.agents,
            f"expected the {self.agents} agents of the sampling, got messages of {agents}; "
            "messages of absent agents have a row too.",
        )
        order = jr.permutation(key, agents)
        return order < self.count


class Mechanism(Shown):
    """A private release: the sum of clipped and weighted messages of a random sample, with Gaussian
    noise.

    The docstring of `jaxbo.privacy.mechanism` says what it guarantees, and to whom. z, S and q are
    array leaves: a sweep over them is one vmapped program. Without noise nothing is private, and
    accountants refuse the mechanism.

    Args:
        z: Standard deviation of the noise over the sensitivity, at least 0.
        S: Bound on the norm of the vectors of all regions together, before weights. It may be infinite
            if z is 0, which is no clipping: DP-FTS-DE is then FTS-DE.
        sampling: The agents that are drawn, such as `Poisson(q)`.
        exact: Whether to take the sensitivity of the weights at hand in place of the paper's bound on
            it. The guarantee is that of the same z, with less noise.

    Raises:
        ValueError: z is negative, S is not positive, or S is infinite with noise.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.5))
        >>> mean = jnp.full((1, 10), 0.1)
        >>> round(float(mechanism.sensitivity(mean)), 3), round(float(mechanism.deviation(mean)), 3)
        (0.2, 0.4)
    """

    z: Scalar = eqx.field(converter=named("z"))
    S: Scalar = eqx.field(converter=named("S"))
    sampling: AbstractSampling
    exact: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        require(
            isinstance(self.sampling, AbstractSampling),
            f"sampling must be Poisson(q) or FixedSize(count, agents), got {shown(self.sampling)}.",
        )
        require(
            (self.z >= 0) & jnp.isfinite(self.z),
            f"z must be finite and not negative, got {self.z}: it multiplies the noise.",
        )
        require(self.S > 0, f"S must be positive, got {self.S}: it bounds a norm.")
        require(
            jnp.isinf(self.S) | ((self.S > _LEAST_S) & (self.S < 1 / _LEAST_S)),
            f"S must lie between {_LEAST_S:g} and {1 / _LEAST_S:g}, got {self.S}: float32 has no squares "
            "of such numbers.",
        )
        require(
            jnp.isfinite(self.S) | (self.z == 0),
            f"S must be finite where there is noise, got S {self.S} with z {self.z}.",
        )

    def included(
        self, key: Key, messages: Float[Array, "agents features"], present: Bool[Array, " agents"]
    ) -> Bool[Array, " agents"]:
        """Says whose message `release` adds up with the same key: drawn, present and finite. This is not
        private.

        Args:
            key: The key of the release.
            messages: The message of each agent.
            present: Whether each message arrived.

        Returns:
            Whether each message is in the sum.
        """
        sample_key, _ = jr.split(key)
        return self.sampling.draw(sample_key, messages.shape[0]) & present & _finite(messages)

    def clipped(
        self, messages: Float[Array, "agents features"], regions: int
    ) -> Bool[Array, " agents"]:
        """Says which messages are longer than `S` / √`regions`. This is not private.

        Args:
            messages: The message of each agent.
            regions: Number of regions.

        Returns:
            Whether each message is longer.
        """
        return _excess(messages, self._bound(regions, messages.dtype)) > 1

    def sensitivity(self, weights: Float[Array, "regions agents"]) -> Scalar:
        """Gives Δ, the longest joint vector by which the presence of one agent can move the sum.

        Args:
            weights: The weight of each agent in each region.

        Returns:
            Δ.
        """
        if self.exact:
            bound = self._bound(weights.shape[0], weights.dtype)
            return jnp.max(jnp.linalg.norm(weights, axis=0)) * bound / self._q(weights.dtype)
        largest = jnp.max(jnp.abs(weights))
        return largest * self.S.astype(weights.dtype) / self._q(weights.dtype)

    def deviation(self, weights: Float[Array, "regions agents"]) -> Scalar:
        """Gives the standard deviation of the noise in every entry of the broadcast. It is 0 for `z` = 0.

        Args:
            weights: The weight of each agent in each region.

        Returns:
            The standard deviation.
        """
        z = self.z.astype(weights.dtype)
        return z * jnp.where(z > 0, self.sensitivity(weights), 0)  # 0 also where S is infinite

    def part(
        self, message: Features, weights: Float[Array, " regions"]
    ) -> Float[Array, "regions features"]:
        """Computes what an agent adds to the sum if it is drawn: its clipped message in each region.

        Args:
            message: The agent's message.
            weights: The weight of the agent in each region.

        Returns:
            Its part of `release`, without noise: a joint vector no longer than `sensitivity`.
        """
        dtype = message.dtype
        clipped = clip(message, self._bound(weights.size, dtype))
        return weights.astype(dtype)[:, None] * clipped[None, :] / self._q(dtype)

    def release(
        self,
        key: Key,
        messages: Float[Array, "agents features"],
        weights: Float[Array, "regions agents"],
        present: Bool[Array, " agents"],
    ) -> Float[Array, "regions features"]:
        """Makes the broadcast of a round. Charge for it first, and never use a key for two releases.

        Args:
            key: Secret random key.
            messages: The message of each agent.
            weights: The weight of each agent in each region.
            present: Whether each message arrived.

        Returns:
            A noised sum for each region.

        Raises:
            ValueError: Shapes do not fit.
        """
        agents = messages.shape[0]
        require(
            weights.shape[1:] == (agents,) and present.shape == (agents,),
            f"weights of {agents} messages need shape (regions, {agents}) and present ({agents},), got "
            f"{weights.shape} and {present.shape}.",
        )
        sample_key, noise_key = jr.split(key)
        regions, dtype = weights.shape[0], messages.dtype
        finite = _finite(messages)
        included = self.sampling.draw(sample_key, agents) & present & finite
        factors = _shortening(_excess(messages, self._bound(regions, dtype)))
        # Clipping and leaving out are in the weights: the messages are read, not written (unless under
        # `vmap`, which takes both branches).
        weighted = weights.astype(dtype) * jnp.where(included, factors, 0)[None, :]
        total = jax.lax.cond(
            jnp.all(finite),
            lambda: dot(weighted, messages),
            lambda: dot(weighted, jnp.where(finite[:, None], messages, 0)),  # 0 times NaN is NaN
        )
        total = total / self._q(dtype)
        noise = jr.normal(noise_key, total.shape, dtype)
        return total + self.deviation(weights).astype(dtype) * noise

    def _bound(self, regions: int, dtype: jnp.dtype) -> Scalar:
        return self.S.astype(dtype) / regions**0.5

    def _q(self, dtype: jnp.dtype) -> Scalar:
        return self.sampling.q.astype(dtype)


def _finite(messages: Float[Array, "agents features"]) -> Bool[Array, " agents"]:
    return jnp.all(jnp.isfinite(messages), axis=1)


def clip(vector: Features, bound: Scalar) -> Features:
    """`vector`, shortened to the norm `bound` where it is longer; unchanged, to the bit, where not.

    Line 9 of Algorithm 1. The norm is exact to rounding: it may exceed `bound` by that much. A vector
    that is so much longer that the square of the ratio overflows becomes 0.
    """
    return vector * _shortening(_excess(vector, bound))


def _excess(vectors: Float[Array, "*agents features"], bound: Scalar) -> Float[Array, "*agents"]:
    """(norm / bound)²."""
    return jnp.sum((vectors / bound) ** 2, axis=-1)


def _shortening(excess: Float[Array, "*agents"]) -> Float[Array, "*agents"]:
    return jnp.where(excess <= 1, 1, 1 / jnp.sqrt(excess))


# ---------------------------------------------------------------- how agents count in each region


def region_weights(
    assigned: Int[Array, " agents"], regions: int, temperature: Scalar, emphasis: Scalar
) -> Float[Array, "regions agents"]:
    """φ_in = exp((a 1_in + 1) / T) / Σ_n exp((a 1_in + 1) / T), with 1_in = 1 if n explores i.

    The weights of each region add up to 1. `assigned` is the region that each agent of the roster
    explores at the start, `emphasis` is a. `temperature` 1 is the paper's start; infinity, where it
    ends, makes all agents count alike, as `emphasis` 0 does.
    """
    explores = (assigned[None, :] == jnp.arange(regions)[:, None]).astype(emphasis.dtype)
    # The 1 in the exponent is common to all agents and cancels.
    return jax.nn.softmax(explores * emphasis / temperature.astype(emphasis.dtype), axis=1)


class Weighting(Shown):
    """The weight of each agent in each region by round: the paper's adaptive softmax.

        T_t = a / (a_t - 1),   a_t = a + 1 for t ≤ hold, then linear in `decay` rounds to 1

    a_t is a + 1 in the first round of the decay and 1 in the last, so all agents count alike from round
    hold + decay on (appendix B). The defaults are the settings of the synthetic experiments. The real
    experiments have `hold` 10 and `decay` 30.

    Args:
        emphasis: a, finite and at least 0. With 0 all agents count alike from the start.
        hold: Number of rounds before the decay, at least 0. Infinite is the fixed weighting of appendix
            B.2.5, T_t = 1.
        decay: Number of rounds of the decay, at least 1.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> weighting, assigned = jaxbo.Weighting(), jnp.array([0, 1])
        >>> weighting(jnp.array(100), assigned, regions=2).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    emphasis: Scalar = eqx.field(converter=named("emphasis"), default=EMPHASIS)
    hold: Scalar = eqx.field(converter=named("hold"), default=5.0)
    decay: Scalar = eqx.field(converter=named("decay"), default=5.0)

    def __check_init__(self):
        require(
            (self.emphasis >= 0) & jnp.isfinite(self.emphasis),
            f"emphasis must be finite and not negative, got {self.emphasis}.",
        )
        require(self.hold >= 0, f"hold must be a number of rounds, got {self.hold}.")
        require(
            (self.decay >= 1) & jnp.isfinite(self.decay),
            f"decay must be at least 1 round and finite, got {self.decay}.",
        )

    def temperature(self, t: Count) -> Scalar:
        """Gives T_t.

        Args:
            t: The round, from 1.

        Returns:
            T_t.
        """
        return 1 / (1 - self._progress(t))

    def __call__(
        self, t: Count, assigned: Int[Array, " agents"], regions: int
    ) -> Float[Array, "regions agents"]:
        """Gives the weights in a round.

        Args:
            t: The round, from 1.
            assigned: The region that each agent explores.
            regions: Number of regions.

        Returns:
            The weight of each agent in each region.
        """
        return region_weights(assigned, regions, self.temperature(t), self.emphasis)

    def _progress(self, t: Count) -> Scalar:
        """1 - (a_t - 1) / a: 0 while holding, 1 when all agents count alike."""
        dtype = self.hold.dtype
        since = t.astype(dtype) - self.hold - 1
        return jnp.clip(since / jnp.maximum(self.decay.astype(dtype) - 1, 1), 0, 1)


# ------------------------------------------------------------------------- S from a private release


class AdaptiveClip(Shown):
    """S that follows a quantile of the messages' norms, which are looked at through a release only.

        S <- S exp(-rate (b - quantile)),   b = the noised share of norms of at most S / √regions

    (Andrew, Thakkar, McMahan and Ramaswamy, 2021). An agent's message to `mechanism` is ±1/2: whether
    its norm is within the bound. The release draws a sample and noise of its own: it is a second
    mechanism, to be charged like the first. Its sample must not be that of the sum, or the two would
    not compose as two subsampled mechanisms. Absent agents pull b towards 1/2.

    The paper has S fixed in advance. `ValueError` for a quantile outside (0, 1) or a rate that is not
    positive.
    """

    mechanism: Mechanism
    quantile: Scalar = eqx.field(converter=named("quantile"))
    rate: Scalar = eqx.field(converter=named("rate"))

    def __init__(
        self,
        z: Scalar | float,
        sampling: AbstractSampling,
        quantile: Scalar | float = 0.9,
        rate: Scalar | float = 0.2,
    ):
        self.mechanism = Mechanism(z, 0.5, sampling)
        self.quantile = floating(quantile)
        self.rate = floating(rate)

    def __check_init__(self):
        require(
            (self.quantile > 0) & (self.quantile < 1),
            f"quantile must lie in (0, 1), got {self.quantile}: it is a share of messages.",
        )
        positive("rate", self.rate)

    def release(
        self,
        key: Key,
        S: Scalar,
        messages: Float[Array, "agents features"],
        regions: int,
        present: Bool[Array, " agents"],
    ) -> Scalar:
        """The next S. The key is for this release alone, not that of the sum."""
        agents, dtype = messages.shape[0], messages.dtype
        within = _excess(messages, S.astype(dtype) / regions**0.5) <= 1
        votes = jnp.where(within, 0.5, -0.5).astype(dtype)[:, None]
        present = present & _finite(messages)
        weights = jnp.full((1, agents), 1 / agents, dtype)
        share = 0.5 + self.mechanism.release(key, votes, weights, present)[0, 0]
        step = self.rate.astype(dtype) * (share - self.quantile.astype(dtype))
        return S * jnp.exp(-step).astype(S.dtype)
