"""A step of a shared prior from a sum with noise, the private release of its agents.

    d_n = E[w_n] - m                        an agent's change of the mean (`shared_prior`)
    v_n = min(var(y_n) / scale² - 1, 3)     and of the variance of values, 0 if all are equal
    (s, r) = Σ (d_n, v_n / 2) + N(0, τ² I)  the release, each vector clipped as a whole; τ is public
    û = (1 - (D - 2) τ² / |s|²)₊ s          the estimate of Σ d_n, D numbers
    v̂ = 2 r / (N + 1 + 4 τ² / N)            and of the mean of v_n
    scale ← scale √(1 + v̂)                  at most twice or half of what it was
    m ← (N m + û) / (N + κ) old/new scale   the M-step

The first estimate is the positive part of James and Stein's. Its mean squared error is less than that
of s, whatever the sum is, from D = 3 on. So m hardly moves if a release is all noise. The second is the
mean of a Gaussian posterior: the mean of v_n is 0 before, with variance 1, and each v_n has variance 1
about it. That is so for three independent values. Both read nothing but the release, and cost no privacy.

A wrong scale costs more than wrong weights. Where it is too large, messages are short beside the noise.
Where it is too small, they are clipped. Each release takes at most a factor of two.

S stays the covariance of the process: how far weights are from a mean of 0. A learned mean should bring
them nearer, so S has room for the error of m, noise included. Adding the noise's variance to it would
count that error twice. Agents doubt a mean that noise has spoiled, by their own evidence
(`shared_prior.doubting`).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_prior
from jaxbo.kernels.models.shared_prior import AgentData, SharedPrior
from jaxbo.types import Features, Key, Scalar

#: The most that v_n may be, and its weight in a message beside weights of about 1.
_LARGEST, _WEIGHT = 3.0, 0.5


def process(key: Key, size: int, location: Scalar, scale: Scalar, dtype: jnp.dtype) -> SharedPrior:
    """The prior of the process that `size` features stand for, with values of that location and scale."""
    start = shared_prior.uninformed(key, size, 0, dtype)
    known = location.astype(dtype), scale.astype(dtype)
    return SharedPrior(*known, start.mean, start.covariance, jnp.ones((), bool))


def denoised(released: Features, deviation: Scalar) -> Features:
    """û, from s and τ."""
    noise = jnp.maximum(released.size - 2, 0) * deviation**2
    square = linalg.inner(released, released)
    # The square may be infinite, and then the noise is nothing beside it.
    kept = jnp.maximum(1 - noise / jnp.where(square > 0, square, 1), 0)
    return kept * released


def excess(prior: SharedPrior, known: AgentData) -> Scalar:
    """v_n: how much larger the variance of an agent's values is than the prior's, as a share of it.

    An agent without two different values says nothing. On a plateau nobody learns a scale.
    """
    values = (known.y - prior.location) / prior.scale
    used, count = known.used, known.count.astype(values.dtype)
    total = jnp.sum(jnp.where(used, values, 0))
    centered = jnp.where(used, values - total / jnp.maximum(count, 1), 0)
    variance = linalg.inner(centered, centered) / jnp.maximum(count - 1, 1)
    return jnp.where(variance > 0, jnp.minimum(variance - 1, _LARGEST), 0)


def joined(shift: Features, excess: Scalar) -> Float[Array, " released"]:
    """An agent's whole message as the vector that is clipped."""
    return jnp.append(shift, _WEIGHT * excess)


def updated(
    prior: SharedPrior,
    released: Float[Array, " released"],
    deviation: Scalar,
    agents: int,
    shrink: Scalar,
) -> SharedPrior:
    """One M-step of the mean and the scale; `shrink` is κ. It counts as so many agents of weights 0."""
    mean = (agents * prior.mean + denoised(released[:-1], deviation)) / (agents + shrink)
    doubt = 1 + (deviation / _WEIGHT) ** 2 / agents
    excess = released[-1] / _WEIGHT / (agents + doubt)
    ratio = jnp.sqrt(jnp.clip(1 + excess, 0.25, 4))
    return SharedPrior(
        prior.location, prior.scale * ratio, mean / ratio, prior.covariance, prior.learned
    )
