"""A step of a shared prior from a sum with noise, the private release of its agents.

    d_n = E[w_n] - m                        how far an agent's weights are from the mean
    v_n = var(y_n) / scale² - 1             how much more its values vary than the scale says
    e_n = |R⁻¹ d_n|² / E|R⁻¹ d_n|² - 1      how much farther its weights are away than S = R R' says
    (s, a, b) = Σ clip(d_n, v_n / 2, e_n / 2) + N(0, τ² I)      the release; τ is public

    û = (1 - (D - 2) τ² / |s|²)₊ s          the estimate of Σ d_n, D numbers
    v̂ = 2 a / (N + 1 + 4 τ² / N)            and of the means of v_n, and e_n likewise
    m ← (N m + û) / (N + κ)                 the M-step
    S ← (1 + ê) S
    scale ← √(1 + v̂) scale                  in whose units m and √S are

The estimate û is the positive part of James and Stein's. Its mean squared error is less than that of s,
whatever the sum is, from D = 3 on. So m hardly moves if a release is all noise. The estimate v̂ is the
mean of a Gaussian posterior. Before the release, the mean of v_n has mean 0 and variance 1. Each v_n has
variance 1 about it, as the variance of three independent values has. So scale and S hardly move either.
All of them read nothing but the release, and cost no privacy.

A wrong scale would cost more than wrong weights. If it is too large, messages are short beside the
noise. If it is too small, they are clipped. S is a single variance, and it has room for the error
of m, noise included, since weights are compared with the m that was broadcast. A release changes
scale and √S by a factor of two at most. Agents doubt a mean that noise has spoiled, by their own
evidence (`shared_groups.doubting`).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_covariance
from jaxbo.kernels.models.shared_prior import AgentBelief, SharedPrior
from jaxbo.types import Features, Key, Scalar

#: The largest v_n and e_n, and their weight in a message beside weights of about 1.
_LARGEST, _WEIGHT = 3.0, 0.5
#: What a release may do to a variance at most, and its inverse.
_FACTOR = 4.0


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
    count = known.count.astype(belief.mean.dtype)
    values = jnp.where(known.used, (known.y - belief.prior.location) / belief.prior.scale, 0)
    centered = jnp.where(known.used, values - jnp.sum(values / jnp.maximum(count, 1)), 0)
    variance = linalg.inner(centered, centered) / jnp.maximum(count - 1, 1)
    found = linalg.inner(belief.mean, belief.mean)
    # Under the prior the mean of the weights has the covariance G'G.
    expected = jnp.sum(belief.gains**2)
    ratios = jnp.stack([variance, found / jnp.where(expected > 0, expected, 1)])
    differ = jnp.any(known.used & (known.y != known.y[0]))
    return Departure(belief.shift, jnp.where(differ, jnp.minimum(ratios - 1, _LARGEST), 0))


# ---------------------------------------------------------------- the server


def denoised(released: Features, deviation: Scalar) -> Features:
    """û, from s and τ."""
    # In units in which no square is infinite.
    largest = jnp.maximum(jnp.max(jnp.abs(released)), deviation)
    unit = jnp.where(largest > 0, largest, 1)
    noise = jnp.maximum(released.size - 2, 0) * (deviation / unit) ** 2
    square = linalg.inner(released / unit, released / unit)
    kept = jnp.maximum(1 - noise / jnp.where(square > 0, square, 1), 0)
    return kept * released


def updated(
    prior: SharedPrior,
    released: Float[Array, " released"],
    deviation: Scalar,
    agents: int,
    shrink: Scalar,
) -> SharedPrior:
    """An M-step of m, S and the scale. `shrink` is κ: it counts as so many agents of weights 0."""
    mean = (agents * prior.mean + denoised(released[:-2], deviation)) / (agents + shrink)
    doubt = 1 + (deviation / _WEIGHT) ** 2 / agents
    excess = released[-2:] / _WEIGHT / (agents + doubt)
    of_values, of_weights = jnp.clip(1 + excess, 1 / _FACTOR, _FACTOR)
    ratio = jnp.sqrt(of_values)
    S = prior.covariance
    S = S.of(S.own() * of_weights / of_values)
    return SharedPrior(prior.location, prior.scale * ratio, mean / ratio, S, None, prior.learned)
