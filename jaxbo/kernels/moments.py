"""Mean and deviation of values that come in turn (Welford, 1962)."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxbo.types import Scalar


class Moments(eqx.Module):
    """Running mean and sum of squared deviations of `value - first` (Welford)."""

    count: Int[Array, ""]
    first: Scalar
    mean: Scalar
    squares: Scalar

    @property
    def offset(self) -> Scalar:
        """The mean of the values."""
        return self.first + self.mean

    @property
    def deviation(self) -> Scalar:
        """Standard deviation; 1 where there is none: before two values, or if all are equal."""
        variance = self.squares / jnp.maximum(self.count, 1).astype(self.squares.dtype)
        # Below a rounding error of the values themselves, differences are noise, not signal.
        floor = (jnp.finfo(variance.dtype).eps * (jnp.abs(self.first) + jnp.abs(self.mean))) ** 2
        usable = variance > floor
        return jnp.where(usable, jnp.sqrt(jnp.where(usable, variance, 1)), 1)


def most(dtype: DTypeLike) -> float:
    """The largest number whose squares and their sums have room: 1.5e16 in float32, 3e129 in float64."""
    return float(jnp.finfo(dtype).max) ** 0.42


def least(dtype: DTypeLike) -> float:
    """The smallest number that has a square: 1.1e-19 in float32, 1.5e-154 in float64."""
    return float(jnp.finfo(dtype).tiny) ** 0.5


def bounded(y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`y` within ±`most`, so that all numbers stay finite.

    If a value is far from all others, the others look alike nevertheless: for a failed evaluation
    tell NaN, not a penalty.
    """
    limit = most(y.dtype)
    return jnp.where(jnp.isfinite(y), jnp.clip(y, -limit, limit), y)


def no_moments(dtype: jnp.dtype) -> Moments:
    """Of no values."""
    zero = jnp.zeros((), dtype)
    return Moments(jnp.zeros((), int), zero, zero, zero)


def updated(moments: Moments, y: Scalar) -> Moments:
    """The moments with a further value; the same if it is not finite."""
    observed = jnp.isfinite(y)
    count = moments.count + observed.astype(int)
    first = jnp.where(observed & (moments.count == 0), y, moments.first)
    delta = jnp.where(observed, y - first - moments.mean, 0)
    mean = moments.mean + delta / jnp.maximum(count, 1).astype(y.dtype)
    squares = moments.squares + delta * jnp.where(observed, y - first - mean, 0)
    return Moments(count, first, mean, squares)


def moments_of(y: Float[Array, " values"], rows: Bool[Array, " values"]) -> Moments:
    """The moments of the rows at once, as numbers near 0."""
    count, y = jnp.sum(rows, dtype=int), jnp.where(rows, bounded(y), 0)
    mean = jnp.sum(y) / jnp.maximum(count, 1).astype(y.dtype)
    squares = jnp.sum(jnp.where(rows, y - mean, 0) ** 2)
    return Moments(count, jnp.zeros_like(mean), mean, squares)
