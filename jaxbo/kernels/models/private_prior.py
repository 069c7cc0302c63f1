"""A step of a shared prior from a sum with noise, the private release of its agents.

    u = Σ d_n,   d_n = E[w_n] - m           the sum over agents, as drawn and clipped (`shared_prior`)
    s = u + N(0, τ² I)                      the release; τ is public
    û = (1 - (D - 2) τ² / |s|²)₊ s          the estimate of u
    m ← (N m + û) / (N + κ)                 the M-step

The estimate is the positive part of James and Stein's. Its mean squared error is less than that of s,
whatever u is, from D = 3 on. So m hardly moves if a release is all noise. The estimate reads nothing but
the release, and costs no privacy.

S stays the covariance of the process: how far weights are from a mean of 0. A learned mean should bring
them nearer, so S has room for the error of m, noise included. Adding the noise's variance to it would
count that error twice. Agents doubt a mean that noise has spoiled, by their own evidence
(`shared_prior.doubting`).
"""

import jax.numpy as jnp

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_prior
from jaxbo.kernels.models.shared_prior import SharedPrior
from jaxbo.types import Features, Key, Scalar


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


def updated(
    prior: SharedPrior, released: Features, deviation: Scalar, agents: int, shrink: Scalar
) -> SharedPrior:
    """One M-step of the mean; `shrink` is κ. It counts as so many agents whose weights are 0."""
    mean = (agents * prior.mean + denoised(released, deviation)) / (agents + shrink)
    return SharedPrior(prior.location, prior.scale, mean, prior.covariance, prior.learned)
