"""A prior that agents learn together, from sums: hierarchical Bayesian linear regression.

    y = location + scale (ψ(x)'w_n + e),   ψ = (φ, 1),   w_n ~ N(m, S),   e ~ N(0, noise)

Each round makes a step of expectation-maximization. Each agent n has a posterior under the prior of
the round before, and sends two statistics of it:

    d_n = E[w_n] - m,    G_n'G_n = S - Cov(w_n)

The server needs their sums over the N agents alone. With ρ the old scale over the new scale, and c
by how much the constant moves:

    location, scale ← mean and deviation of all values
    m ← ρ (m - c + Δ)
    S ← (ν I + Σ (S - G_n'G_n) + Σ (d_n - d)(d_n - d)' + ρ² N a a') / (ν + N)

with d the mean of d_n, and N a the rest of Σ d_n if E[w_n] moves with m. The last line is the mode
of an inverse Wishart distribution; ν counts as so many agents of the process that φ stands for.

Δ takes m to its expectation given S, by `shared_mean`, which says how wrong m may be. An agent's
own search expects S and that error. The d_n are those of the mean before. Expectation-maximization
holds E[w_n] fixed, and takes Δ = (Σ d_n - κ (m - c)) / (N + κ). That is a small part of the way
while agents have few values. Forms of S that do not have Σ G_n'G_n take that step.

S is never inverted. Its root R, with S = R R', makes features R'ψ, whose weights have the prior N(0, I).
The square-root posterior of `processes.posterior` does the rest.

Before the first step nobody knows the location. Each agent's own mean stands for it, and the constant has
a large variance about that mean. Else features would have to explain how far all values are from 0. So
then c is 0.

`shared_covariance` says how S is held, and so how much an agent sends.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_covariance
from jaxbo.kernels.models.shared_covariance import AbstractCovariance, Statistics
from jaxbo.kernels.moments import bounded
from jaxbo.kernels.processes import posterior
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.kernels.processes.posterior import AbstractRoot
from jaxbo.types import Count, Features, Key, Point, Scalar

#: By so many roundings of the mean square a variance may be wrong.
_ROUNDING = 16
#: The constant's variance before the first step, beside 1 of the features.
_UNKNOWN = 100.0


class SharedPrior(eqx.Module):
    """All agents expect w ~ N(mean, covariance), for values in units of location and scale.

    `wide` is the covariance with the error of the mean: the expectation of an agent of whom nothing
    is known. It is None if that error is not known. `learned` says whether any values differed by
    then. `share` is that of the agents for whom this is the prior (`shared_groups`), and
    None if it is for all.
    """

    location: Scalar
    scale: Scalar
    mean: Features
    covariance: AbstractCovariance
    wide: AbstractCovariance | None
    learned: Bool[Array, ""]
    share: Scalar | None = None

    @property
    def doubted(self) -> "SharedPrior":
        """The prior of an agent that does not know the mean for certain."""
        expected = self.covariance if self.wide is None else self.wide
        known = self.location, self.scale, self.mean
        return SharedPrior(*known, expected, None, self.learned, self.share)


def uninformed(key: Key, size: int, rank: int, dtype: jnp.dtype) -> SharedPrior:
    """Before any value, for `size` features beside the constant."""
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    S = shared_covariance.covariance(key, size + 1, rank, dtype, _UNKNOWN)
    wide = S if S.tells_error else None
    return SharedPrior(zero, one, jnp.zeros((size + 1,), dtype), S, wide, jnp.zeros((), bool))


# ---------------------------------------------------------------- an agent


class AgentData(eqx.Module):
    """An agent's observations: the first `count` rows."""

    x: Float[Array, "capacity dim"]
    y: Float[Array, " capacity"]
    count: Count

    @property
    def used(self) -> Bool[Array, " capacity"]:
        """Which rows hold an observation."""
        return jnp.arange(self.y.size) < self.count


def nothing(capacity: int, dim: int, dtype: jnp.dtype) -> AgentData:
    """No observation."""
    return AgentData(
        jnp.zeros((capacity, dim), dtype), jnp.zeros((capacity,), dtype), jnp.zeros((), int)
    )


def observe(known: AgentData, x: Point, y: Scalar) -> AgentData:
    """The data with a further value; nothing changes if it is not finite or there is no room."""
    usable = jnp.isfinite(y) & (known.count < known.y.size)
    row = jnp.where(usable, known.count, known.y.size)
    return AgentData(
        known.x.at[row].set(x, mode="drop"),
        known.y.at[row].set(bounded(y), mode="drop"),
        known.count + usable.astype(int),
    )


class AgentBelief(eqx.Module):
    """An agent's posterior under a shared prior: w = m + offset + R (mean + root z), z ~ N(0, I).

    `gains` are the rows of G_n R⁻', and `log_evidence` is that of the values, in nats. Values are
    standardized by the prior's location and scale. `offset` is a constant; 0 once a prior is learned.
    """

    prior: SharedPrior
    known: AgentData
    root: AbstractRoot
    mean: Float[Array, " width"]
    gains: Float[Array, "capacity width"]
    offset: Scalar
    log_evidence: Scalar

    @property
    def shift(self) -> Features:
        """d_n = E[w_n] - m."""
        return self.prior.covariance.color(self.mean).at[-1].add(self.offset)

    @property
    def weights(self) -> Features:
        """E[w_n]."""
        return self.prior.mean + self.shift

    def sample(self, key: Key) -> Features:
        """Weights drawn from the belief."""
        z = self.root.times(jr.normal(key, self.mean.shape, self.mean.dtype))
        return self.weights + self.prior.covariance.color(z)


def with_constant(features: FeatureMap, x: Point) -> Features:
    """ψ(x)."""
    phi = features(x)
    return jnp.concatenate([phi, jnp.ones((1,), phi.dtype)])


def believed(
    features: FeatureMap, prior: SharedPrior, noise: Scalar, known: AgentData
) -> AgentBelief:
    """An agent's posterior; O(count² width). `noise` is a variance in units of the scale squared.

    Before a prior is learned nobody knows the location of values: the agent's own mean stands for it.
    Else the features would have to explain how far all values are from 0.
    """
    psis = jax.vmap(lambda x: with_constant(features, x))(known.x)
    psis = jnp.where(known.used[:, None], psis, 0)
    phis = jax.vmap(prior.covariance.whiten)(psis)
    residuals = (known.y - prior.location) / prior.scale - linalg.dot(psis, prior.mean)
    residuals = jnp.where(known.used, residuals, 0)
    own = jnp.sum(residuals) / jnp.maximum(known.count, 1).astype(residuals.dtype)
    offset = jnp.where(prior.learned, jnp.zeros_like(own), own)
    residuals = jnp.where(known.used, residuals - offset, 0)
    start = posterior.prior(prior.covariance.width, noise, capacity=known.y.size)

    def step(k: Count, state: tuple[AbstractRoot, Array, Array, Array]) -> Any:
        root, mean, gains, densities = state
        phi = jax.lax.dynamic_index_in_dim(phis, k, keepdims=False)
        residual = jax.lax.dynamic_index_in_dim(residuals, k, keepdims=False)
        told = root.told(phi, noise)
        residual = residual - linalg.dot(mean, phi)
        mean = mean + told.u * (residual / told.s)
        density = -0.5 * (residual**2 / told.s + jnp.log(2 * jnp.pi * told.s))
        gains = gains.at[k].set(told.u / jnp.sqrt(told.s))
        return told.root, mean, gains, densities.at[k].set(density)

    begun = start.root, start.mean, jnp.zeros_like(phis), jnp.zeros_like(residuals)
    # Rows that nobody uses are passed over; an agent that has fewer than others has rows of 0.
    rows = posterior.largest_of_batch(known.count)
    told: tuple[AbstractRoot, Array, Array, Array] = jax.lax.fori_loop(0, rows, step, begun)
    root, mean, gains, densities = told
    log_evidence = jnp.sum(jnp.where(known.used, densities, 0))
    return AgentBelief(prior, known, root, mean, gains, offset, log_evidence)


# ---------------------------------------------------------------- what is summed up


class Terms(eqx.Module):
    """The parts of an agent's statistics: `capacity` + 1 rows z, of which the vectors R z are spread.

    Statistics may have D (D + 1) numbers where terms have a few D. `squares` is |z|² + |R z|² of the
    mean. It is infinite if the products in statistics would be. It is in no sum.
    """

    agents: Scalar
    values: Float[Array, "3"]
    mean: Float[Array, " width"]
    gains: Float[Array, "capacity width"]
    squares: Scalar


def terms(belief: AgentBelief) -> Terms:
    """One agent's."""
    prior, known = belief.prior, belief.known
    y = jnp.where(known.used, (known.y - prior.location) / prior.scale, 0)
    values = jnp.stack([jnp.sum(known.used, dtype=y.dtype), jnp.sum(y), jnp.sum(y**2)])
    # Before a prior is learned, an agent without values says nothing of the location.
    counts = (prior.learned | (known.count > 0)).astype(y.dtype)
    # The mean is from an agent's own mean, while that stands for the location.
    mean, shift = belief.mean, prior.covariance.color(belief.mean)
    squares = linalg.inner(mean, mean) + linalg.inner(shift, shift)
    return Terms(counts, values, mean, belief.gains, squares)


def gathered(prior: SharedPrior, terms: Terms) -> Statistics:
    """The sum of several agents' statistics, from terms with an axis of agents.

    All rows are spread together. With any covariance this is a product, O(capacity D²) an agent.
    """
    S = prior.covariance
    gains = terms.gains.reshape(-1, terms.gains.shape[-1])
    shift = S.color(jnp.sum(terms.mean, axis=0))
    counts, values = (jnp.sum(part, axis=0) for part in (terms.agents, terms.values))
    return Statistics(counts, values, shift, S.colored(gains), S.colored(terms.mean))


def statistics(belief: AgentBelief) -> Statistics:
    """One agent's."""
    return gathered(belief.prior, jax.tree.map(lambda leaf: leaf[None], terms(belief)))


def updated(
    prior: SharedPrior, total: Statistics, shrink: Scalar | float, degrees: Scalar | float
) -> SharedPrior:
    """An M-step, from the sum over agents. While all values are equal only the location changes.

    So it does if their differences are lost beside their distance from 0: then the next step sees them.
    """
    S, N, shrink = prior.covariance, total.agents, jnp.asarray(shrink, prior.mean.dtype)
    count, first, second = total.values
    mean = first / jnp.maximum(count, 1)
    variance = second / jnp.maximum(count, 1) - mean**2
    # Values that differ by rounding only have no scale.
    told = variance > _ROUNDING * jnp.finfo(mean.dtype).eps * second / jnp.maximum(count, 1)
    deviation = jnp.sqrt(jax.lax.select(told, variance, jnp.ones_like(variance)))
    ratio = 1 / deviation
    moved = jnp.zeros_like(prior.mean).at[-1].set(mean)
    m = prior.mean - jnp.where(prior.learned, moved, 0)
    unit = jnp.where(prior.learned, 1, deviation**2)
    step, left, error = S.moved(total, m, shrink, unit, jnp.where(prior.learned, 0, N))
    new = ratio * (m + step)
    # Before anything is learned S is of standardized values, whatever their scale.
    units = jnp.where(prior.learned, ratio**2, 1)
    counted = jnp.maximum(N, 1)
    parts = (
        (jnp.asarray(degrees, m.dtype), S.identity()),
        (units * N, S.own()),
        (-units, total.gained),
        (ratio**2, total.away),
        (-(ratio**2) / counted, S.spread(total.shift[None])),
        (ratio**2 / counted, S.spread(left[None])),
    )
    spread = jax.tree.map(
        lambda *leaves: (
            sum(weight * leaf for (weight, _), leaf in zip(parts, leaves, strict=True))
            / (degrees + N)
        ),
        *(part for _, part in parts),
    )
    wide = None
    if error is not None:
        # At first values are centered, so the constant is not as uncertain as it was.
        certain = jnp.ones_like(m).at[-1].set(jnp.where(prior.learned, 1, _UNKNOWN**-0.5))
        wide = S.of(spread + ratio**2 * S.spread(certain[None]) * error)
    learned = SharedPrior(
        prior.location + prior.scale * mean,
        prior.scale * deviation,
        new,
        S.of(spread),
        wide,
        jnp.ones((), bool),
        prior.share,
    )
    moved = jnp.where(prior.learned, prior.location, learned.location)
    located = eqx.tree_at(lambda p: p.location, prior, moved)
    return jax.tree.map(lambda a, b: jnp.where(told, a, b), learned, located)
