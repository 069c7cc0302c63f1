"""An exact Gaussian process on observations of fixed capacity.

    y = f(x) + e,   f ~ GP(0, kernel),   e ~ N(0, noise),   chol chol' = K + noise I,
    white = chol^-1 y,   w(x) = chol^-1 k(x)

    mean(x)      = w(x)'white
    variance(x)  = k(x, x) - w(x)'w(x)
    log evidence = -|white|^2 / 2 - sum(log diag chol) - count / 2 log(2 pi)

A further observation is a further row of `chol`: w(x), with the pivot sqrt(variance(x) + noise).
Rows that hold no observation are rows of the identity, with x and y zero: they change nothing, and
results are the same as for an exactly filled buffer.

Precision. The squared pivot is kept at `noise` or above and the variance at the least value that
`count` observations allow, which corrects nothing but rounding, so no result is NaN. Float32 errs
as follows (150 uniform points in two dimensions, squared exponential kernel of variance 1 and
length scale 0.2 / 0.5, against float64):

    noise   error of the mean,      relative error of the variance,
            largest                 median                                 largest
    1e-2    2e-5 / 5e-5             2e-5 / 6e-5                            2e-4 / 4e-4
    1e-4    3e-4 / 6e-4             1e-3 / 3e-3                            1e-2 / 3e-2
    1e-6    3e-2 / 0.3              0.1 / 1                                1 / 1

Values of variance 1 or less; the worst of ten draws. If `noise` is below 1e-4 of the kernel's
variance and the answer matters, use float64.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo import _check
from jaxbo.kernels import linalg
from jaxbo.kernels.processes.covariance import AbstractKernel, Covariance, gram
from jaxbo.types import Count, Point, Scalar, as_pytree, floating, named


class GP(eqx.Module):
    """Hyperparameters, observations, and the factors that follow from both; made by `empty` or `build`.

    `kernel` is any k(x, z); `noise` is the variance of the observation noise, in squared units of
    y. The prior mean is zero: subtract a mean from y, and scale y, before it comes here.
    """

    kernel: Covariance = eqx.field(converter=as_pytree)
    noise: Scalar = eqx.field(converter=named("noise"))
    x: Float[Array, "capacity dim"]
    y: Float[Array, " capacity"]
    chol: Float[Array, "capacity capacity"]
    white: Float[Array, " capacity"]
    count: Count

    def __check_init__(self):
        _check.positive("noise", self.noise)


def empty(kernel: Covariance, noise: Scalar | float, capacity: int, dim: int) -> GP:
    """A process without observations and with room for `capacity` of them, in the kernel's dtype.

    A function without a dtype has JAX's default.

    `ValueError` for a capacity or dimension below 1 or noise that is not positive.
    """
    if capacity < 1 or dim < 1:
        raise ValueError(f"capacity and dim must be at least 1, got {capacity} and {dim}.")
    dtype = kernel.length_scale.dtype if isinstance(kernel, AbstractKernel) else float
    x, y = jnp.zeros((capacity, dim), dtype), jnp.zeros((capacity,), dtype)
    return GP(kernel, noise, x, y, jnp.eye(capacity, dtype=dtype), y, jnp.zeros((), jnp.int32))


def build(
    kernel: Covariance,
    noise: Scalar | float,
    x: Float[Array, "capacity dim"],
    y: Float[Array, " capacity"],
) -> GP:
    """The process given all rows whose y is finite; NaN marks failures and room for more.

    The rows move to the front in their order, so `append` goes on after them.
    """
    finite = jnp.isfinite(y)
    order = jnp.argsort(~finite, stable=True)
    y = jnp.where(finite, y, 0)[order]
    x = jnp.where(finite[:, None], x, 0)[order]
    count = jnp.sum(finite, dtype=jnp.int32)
    return refactor(
        GP(kernel, noise, x, y, jnp.eye(len(y), dtype=y.dtype), y, count), kernel, noise
    )


def append(gp: GP, x: Point, y: Scalar) -> GP:
    """The process given a further observation; O(capacity^2).

    A y that is not finite (a failed evaluation) leaves every array bit for bit as it was. So does
    a full buffer: where that can happen, the caller compares `gp.count` with the capacity first.
    """
    _check_fits(gp, x)
    x, y = x.astype(gp.x.dtype), y.astype(gp.y.dtype)
    capacity = gp.y.shape[0]
    w, variance = _whitened(gp, x)
    pivot = jnp.sqrt(variance + gp.noise)
    row = jnp.where(_slots(gp) == gp.count, pivot, w)
    # A write past the end is dropped, which is how a failed evaluation leaves no mark.
    accepted = jnp.isfinite(y) & (gp.count < capacity)
    at = jnp.where(accepted, gp.count, capacity)
    return GP(
        gp.kernel,
        gp.noise,
        gp.x.at[at].set(x, mode="drop"),
        gp.y.at[at].set(y, mode="drop"),
        gp.chol.at[at].set(row, mode="drop"),
        gp.white.at[at].set((y - linalg.dot(w, gp.white)) / pivot, mode="drop"),
        gp.count + accepted.astype(gp.count.dtype),
    )


def refactor(gp: GP, kernel: Covariance, noise: Scalar | float) -> GP:
    """The same observations under other hyperparameters; O(capacity^3)."""
    noise = floating(noise).astype(gp.y.dtype)
    used = _slots(gp) < gp.count
    identity = jnp.eye(gp.y.shape[0], dtype=gp.y.dtype)
    K = gram(kernel, gp.x, gp.x) + noise * identity
    pairs = used[:, None] & used[None, :]
    chol = linalg.cholesky(jnp.where(pairs, K, identity), noise)
    # The floor may exceed 1; the rows of the identity stay what they are.
    chol = jnp.where(pairs, chol, identity)
    return GP(kernel, noise, gp.x, gp.y, chol, linalg.solve_lower(chol, gp.y), gp.count)


def predict(gp: GP, x: Point) -> tuple[Scalar, Scalar]:
    """Mean and variance of f(x), noise not included; differentiable in x. vmap for more points."""
    _check_fits(gp, x)
    w, variance = _whitened(gp, x.astype(gp.x.dtype))
    return linalg.dot(w, gp.white), variance


def log_evidence(gp: GP) -> Scalar:
    """log N(y; 0, K + noise I) in nats, of the observations made so far."""
    constant = gp.count.astype(gp.y.dtype) * (math.log(2 * math.pi) / 2)
    return -jnp.sum(gp.white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(gp.chol))) - constant


def least_variance(prior: Scalar, noise: Scalar, count: Count) -> Scalar:
    """The least variance of f(x) given `count` observations: as if all had been at x itself."""
    return prior * noise / (noise + count.astype(prior.dtype) * prior)


def _check_fits(gp: GP, x: Point) -> None:
    """`ValueError` for a point of another dimension."""
    expected = gp.x.shape[1:]
    _check.require(
        x.shape == expected,
        f"x must have shape {expected}, one point, got {x.shape}: use jax.vmap.",
    )


def _slots(gp: GP) -> Array:
    return jnp.arange(gp.y.shape[0], dtype=gp.count.dtype)


def _whitened(gp: GP, x: Point) -> tuple[Float[Array, " capacity"], Scalar]:
    """w(x), zero at the rows that hold no observation, and the variance at x."""
    k = jax.vmap(lambda z: gp.kernel(x, z))(gp.x)
    prior = gp.kernel(x, x)
    least = least_variance(prior, gp.noise, gp.count)
    w = linalg.whiten(gp.chol, jnp.where(_slots(gp) < gp.count, k, 0), prior - least)
    return w, jnp.maximum(prior - linalg.dot(w, w), least)
