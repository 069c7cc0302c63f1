"""A step of a shared prior from a sum with noise, the private release of its agents.

    d_n = E[w_n] - m                        how far an agent's weights are from the mean
    v_n = var(y_n) / scale² - 1             how much more its values vary than the scale says
    e_n = |R⁻¹ d_n|² / E|R⁻¹ d_n|² - 1      how much farther its weights are away than S = R R' says
    (s, a, b) = Σ clip(d_n, v_n / 2, e_n / 2) b_n / q + N(0, τ² I)      the release; q and τ are public

    A = R⁻¹ E[G_n'G_n] R⁻' = Q Λ Q'         how much agents know, under public designs and the first S
    û = E[R⁻¹ Σ d_n | s]                    the estimate of the sum
    v̂ = 2 a / (N + 1 / q + 4 τ² / N)        and of the means of v_n, and e_n likewise
    m ← m + c R Q (N B + κ)⁻¹ Q'(û - κ R⁻¹ m)       the M-step
    S ← (1 + ê) S
    scale ← √(1 + v̂) scale                  in whose units m and √S are

An agent knows little of most directions: E[d_n] = R A R⁻¹ (m* - m) where agents' mean is m*, and
G_n'G_n = S - Cov(w_n) as in `shared_prior`. There, a server that has Σ G_n'G_n solves for m*. Here,
it takes N times the mean of G_n'G_n over designs at random points (`information`). They follow from the
features and from a public key. So they are in no message and cost no privacy, and all sides know them.
While m is 0, agents have such points, and B = Λ. Later agents have looked where they expect the maximum,
all in one place. There G_n'G_n is larger than A, and a step that ignores it would go too far.
R⁻¹ G_n'G_n R⁻' has no eigenvalue above 1. So a step with B of at least 1/2 goes no farther beyond m* than
it began, in the norm of B, and B = max(Λ, 2/3). Expectation-maximization has B = 1.

If agents have own units (`shared_units`), values have no constant and no scale. Then v_n is 0, and the
scale stays 1. An agent knows less by its constant, in A and in what is expected of e_n:
G_n'G_n - g g' / g_last, where g is the last column of G_n'G_n. An agent without a unit sends zeros.
While m is 0, e_n is about 0 for all agents, since their units take what it would say. Later, units are
measured without m. So agents of few values are farther or less far away than e_n expects, and S may
become too small for them. They doubt m by their own evidence.

The designs also say how much clipping takes from Σ d_n, for agents whose functions are drawn from the
prior. While m is 0 the release and τ are divided by the share that is left.

If agents know more than A says, the first step would be too long too. The mean cannot explain more
than there is. So c shortens it to Δ'N Λ Δ = N (1 + ê) tr A at most, for a step of R Q Δ.

For û the entries of Q'R⁻¹ Σ d_n are independent. In the direction i their variance is N² B_i² p + N Λ_i:
p is the variance of what is left of m* - m, and N Λ_i that of the sum about its mean. p is one of
`VARIANCES`, which are weighed by the evidence of s. The release has the noise, and N Λ_i (1 - q) / q more
by the draw of agents (b_n is 1 with probability q). So m hardly moves if a release is all noise, and the
first step is short in directions of which agents know little.

The estimate v̂ is the mean of a Gaussian posterior. Before the release, the mean of v_n has mean 0 and
variance 1. Each v_n has variance 1 about it, as the variance of three independent values has. So scale
and S hardly move either. All of them read nothing but the release and public numbers, and cost no
privacy.

A wrong scale would cost more than wrong weights. If it is too large, messages are short beside the
noise. If it is too small, they are clipped. S is a single variance, and it has room for the error
of m, noise included, since weights are compared with the m that was broadcast. A release changes
scale and √S by a factor of two at most. Agents doubt a mean that noise has spoiled, by their own
evidence (`shared_groups.doubting`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_covariance, shared_prior, shared_units
from jaxbo.kernels.models.shared_prior import AgentBelief, AgentData, SharedPrior
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.types import Features, Flag, Key, Points, Scalar

#: The largest v_n and e_n, and their weight in a message beside weights of about 1.
_LARGEST, _WEIGHT = 3.0, 0.5
#: What a release may do to a variance at most, and its inverse.
_FACTOR = 4.0
#: The least B after the first step.
_LEAST = 2 / 3
#: Beyond so many deviations the evidence does not tell: float32 has the sum of such squares.
_FAR = 1e15
#: The least that a mean is said to explain.
_TINY = 1e-30
#: Elements that p may be.
VARIANCES = tuple(2.0**-i for i in range(11))


def process(key: Key, size: int, location: Scalar, scale: Scalar, dtype: jnp.dtype) -> SharedPrior:
    """The prior of the process that `size` features stand for, with values of that location and scale."""
    known = location.astype(dtype), scale.astype(dtype), jnp.zeros((size + 1,), dtype)
    S = shared_covariance.covariance(key, size + 1, 0, dtype)
    return SharedPrior(*known, S, None, jnp.ones((), bool))


# ---------------------------------------------------------------- an agent


class Departure(eqx.Module):
    """How far an agent is from the common prior: d_n, and v_n and e_n."""

    shift: Features
    excess: Float[Array, "2"]

    @property
    def vector(self) -> Float[Array, " released"]:
        """The vector that is clipped as a whole, and summed up."""
        return jnp.concatenate([self.shift, _WEIGHT * self.excess])


def departure(belief: AgentBelief) -> Departure:
    """That of an agent with this belief.

    An agent without two different values says nothing of variances. So on a plateau nobody learns a
    scale.
    """
    known = belief.known
    differ = jnp.any(known.used & (known.y != known.y[0]))
    count = known.count.astype(belief.mean.dtype)
    values = jnp.where(known.used, (known.y - belief.prior.location) / belief.prior.scale, 0)
    centered = jnp.where(known.used, values - jnp.sum(values / jnp.maximum(count, 1)), 0)
    variance = linalg.inner(centered, centered) / jnp.maximum(count - 1, 1)
    # Under the prior the mean of the weights has the covariance G'G.
    ratios = jnp.stack([variance, _away(belief, jnp.sum(belief.gains**2))])
    return Departure(belief.shift, jnp.where(differ, jnp.minimum(ratios - 1, _LARGEST), 0))


def own_departure(belief: AgentBelief, told: Flag) -> Departure:
    """That of an agent with this belief of values in its own unit; 0 if it knows no unit."""
    constant, length = _constant(belief.gains)
    expected = jnp.sum(belief.gains**2) - linalg.inner(constant, constant) / length
    excess = jnp.minimum(_away(belief, expected) - 1, _LARGEST)
    sent = Departure(belief.shift, jnp.stack([jnp.zeros_like(excess), excess]))
    return jax.tree.map(lambda leaf: jnp.where(told, leaf, 0), sent)


def _away(belief: AgentBelief, expected: Scalar) -> Scalar:
    """|R⁻¹ d_n|² over what is expected of it."""
    found = linalg.inner(belief.mean, belief.mean)
    return found / jnp.where(expected > 0, expected, 1)


def _constant(gains: Float[Array, "capacity width"]) -> tuple[Float[Array, " width"], Scalar]:
    """g and its last entry. Values whose constant is unknown have the gains G'G - g g' / g_last."""
    constant = linalg.dot(gains.T, gains[:, -1])
    return constant, jnp.where(constant[-1] > 0, constant[-1], 1)


def departed(
    own_units: bool, features: FeatureMap, prior: SharedPrior, noise: Scalar, known: AgentData
) -> tuple[AgentBelief, Departure]:
    """An agent's belief, of values in its own unit or as they are, and what it sends."""
    own = shared_units.in_unit(own_units, features, noise, known)
    belief = shared_prior.believed(features, prior, noise, own.known)
    return belief, own_departure(belief, own.told) if own_units else departure(belief)


# ---------------------------------------------------------------- the server


class Information(eqx.Module):
    """How much an agent knows of each direction on average: Λ, and Q by its columns.

    `unclipped` is the share of Σ d_n that clipping leaves.
    """

    known: Features
    turn: Float[Array, "features features"]
    unclipped: Scalar


def information(
    key: Key,
    features: FeatureMap,
    prior: SharedPrior,
    noise: Scalar,
    designs: Float[Array, "batches designs t dim"],
    bound: Scalar,
    own_units: bool = False,
) -> Information:
    """Means over agents whose functions are drawn from the prior, with values at these designs.

    Only one batch of designs is held.
    """
    dtype, (batches, many, count, _) = prior.mean.dtype, designs.shape

    def one(key: Key, points: Points) -> tuple[Array, Array, Scalar, Scalar]:
        weights = jr.normal(key, prior.mean.shape, dtype)
        psis = jax.vmap(lambda x: shared_prior.with_constant(features, x))(points)
        values = prior.location + prior.scale * linalg.dot(psis, weights)
        data = AgentData(points, values, jnp.asarray(count))
        belief, sent = departed(own_units, features, prior, noise, data)
        constant, length = _constant(belief.gains)
        square = linalg.inner(sent.shift, sent.shift)
        norm = jnp.sqrt(linalg.inner(sent.vector, sent.vector))
        factor = jnp.where(norm > bound, bound / jnp.where(norm > 0, norm, 1), 1)
        return belief.gains, constant / jnp.sqrt(length), square, factor * square

    def batch(sums: Any, given: tuple[Key, Array]) -> tuple[Any, None]:
        key, points = given
        gains, constants, squares, clipped = jax.vmap(one)(jr.split(key, many), points)
        rows = gains.reshape(-1, prior.mean.size)
        known = linalg.dot(rows.T, rows)
        if own_units:
            known = known - linalg.dot(constants.T, constants)
        more = known, jnp.sum(squares), jnp.sum(clipped)
        return jax.tree.map(jnp.add, sums, more), None

    size, zero = prior.mean.size, jnp.zeros((), dtype)
    start = jnp.zeros((size, size), dtype), zero, zero
    sums, _ = jax.lax.scan(batch, start, (jr.split(key, batches), designs))
    products, whole, clipped = sums
    known, turn = jnp.linalg.eigh(products / (batches * many))
    unclipped = jnp.asarray(jnp.where(whole > 0, clipped / jnp.where(whole > 0, whole, 1), 1))
    return Information(jnp.clip(known, 0, 1), turn, unclipped.astype(dtype))


def denoised(
    released: Features, deviation: Scalar, counted: Features, own: Features, q: Scalar | float = 1.0
) -> Features:
    """Q'û, from Q'R⁻¹ s, τ in units of R, N B and N Λ. An agent is drawn with probability q."""
    largest = jnp.maximum(jnp.max(jnp.abs(released)), deviation)
    # In units in which no square is infinite.
    unit = jnp.maximum(largest, 1)
    noise = (deviation / unit) ** 2 + (1 - q) / q * own / unit**2

    def under(p: Scalar) -> tuple[Scalar, Features]:
        expected = (counted / unit) ** 2 * p + own / unit**2
        variance = expected + noise
        variance = jnp.where(variance > 0, variance, 1)
        away = jnp.minimum(jnp.abs(released / unit) / jnp.sqrt(variance), _FAR)
        return -0.5 * jnp.sum(jnp.log(variance) + away**2), 1 - noise / variance

    logs, parts = jax.vmap(under)(jnp.asarray(VARIANCES, released.dtype))
    return linalg.dot(jax.nn.softmax(logs), parts) * released


def updated(
    prior: SharedPrior,
    released: Float[Array, " released"],
    deviation: Scalar,
    q: Scalar | float,
    agents: int,
    shrink: Scalar,
    information: Information,
    own_units: bool = False,
) -> SharedPrior:
    """An M-step of m, S and the scale. `shrink` is κ: it counts as so many agents of weights 0."""
    doubt = 1 / q + (deviation / _WEIGHT) ** 2 / agents
    excess = released[-2:] / _WEIGHT / (agents + doubt)
    of_values, of_weights = jnp.clip(1 + excess, 1 / _FACTOR, _FACTOR)
    if own_units:  # in which the scale is 1
        of_values = jnp.ones_like(of_values)
    step = moved(prior, released[:-2], deviation, q, agents, shrink, information, of_weights)
    mean, ratio = prior.mean + step, jnp.sqrt(of_values)
    S = prior.covariance
    S = S.of(S.own() * of_weights / of_values)
    return SharedPrior(prior.location, prior.scale * ratio, mean / ratio, S, None, prior.learned)


def moved(
    prior: SharedPrior,
    released: Features,
    deviation: Scalar,
    q: Scalar | float,
    agents: int,
    shrink: Scalar,
    information: Information,
    farther: Scalar,
) -> Features:
    """By how much the mean moves. `farther` is 1 + ê."""
    # R is a multiple of the unit matrix, as it is in `process`.
    root = prior.covariance.color(jnp.ones_like(prior.mean))
    root = jnp.where(root > 0, root, 1)
    own, turn = agents * information.known, information.turn
    whiten = lambda w: linalg.dot(turn.T, w / root)  # noqa: E731
    begins = jnp.all(prior.mean == 0)
    counted = jnp.where(begins, own, jnp.maximum(own, _LEAST * agents))
    unclipped = jnp.where(begins, information.unclipped, 1)
    given = whiten(released) / unclipped, deviation / root[0] / unclipped
    total = denoised(*given, counted, own, q)
    step = (total - shrink * whiten(prior.mean)) / (counted + shrink)
    most = farther * jnp.sum(own)
    explained = jnp.sqrt(own / jnp.maximum(most, _TINY)) * step
    # In units in which no square is infinite.
    unit = jnp.maximum(jnp.max(jnp.abs(explained)), 1)
    length = jnp.maximum(unit * jnp.asarray(jnp.linalg.norm(explained / unit)), 1)
    return root * linalg.dot(turn, step / length)
