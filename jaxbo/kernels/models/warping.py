"""A power warping that makes skewed values nearly normal (Yeo and Johnson, 2000).

    t = (y - offset) / scale,   u = ((1 + t)^λ - 1) / λ,                 t >= 0
                                u = -((1 - t)^(2 - λ) - 1) / (2 - λ),    t < 0

with 0 <= λ <= 2: strictly increasing, from all of R to all of R. λ = 1 is the identity; less pulls
in large values, more pulls in small ones; 0 and 2 are logarithms of a single side. A Gaussian
process fits u better than y where a few values are far above or far below all others.

Outside of that range the image of a side ends, at -1/λ or 1/(2 - λ). A Gaussian in warped units
then has mass where no value is, its image has no mean, and the best values crowd together under the
bound, where a search has to tell them apart. The price was measured by the log likelihood of values
left out of fits to 50, for fourteen test functions: nothing for eleven of them, and for the three
of longest tails 0.09 to 0.29 nats a value, of the 0.6 to 1.0 that the warping gains there.

The standardization is by the median and the mean absolute deviation from it, which a long tail moves
less than mean and standard deviation: more of the tail is then where the logarithm bends. In the same
measurement this gained up to 0.15 nats a value and lost 0.01 at most.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float

from jaxbo._check import positive, require
from jaxbo.types import Count, Scalar, named

#: With fewer distinct values λ stays 1. With so many, the fitted warping was measured to predict
#: further values better than none does, on the average and for most test functions.
_FEWEST = 5
#: Bisection of [0, 2] leaves 6e-8 of λ, half a rounding error of float32 and far less than the data
#: can tell.
_HALVINGS = 24
#: Below this the slope in λ is a series: the closed form loses 1 / x^2 of precision to cancellation.
_SERIES_BELOW = 0.5
#: The coefficients of that series, enough for float64.
_SERIES = [1 / (math.factorial(k) * (k + 2)) for k in range(14)]
#: Exponents end this much below the largest, which leaves room for the factors that derivatives put
#: before the exponential: half the square of an exponent, at most e^13.
_ROOM = 16.0
#: Gauss-Hermite nodes and weights for N(0, 1). The third derivative jumps at t = 0, so no number of
#: nodes is exact; so many leave 1e-4 of a deviation at most where the deviation is at most 1.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Warping(eqx.Module):
    """Standardization of the values and the power λ of their warping.

    `ValueError` for a scale that is not positive or a power outside of [0, 2].
    """

    offset: Scalar = eqx.field(converter=named("offset"))
    scale: Scalar = eqx.field(converter=named("scale"))
    power: Scalar = eqx.field(converter=named("power"))

    def __check_init__(self):
        positive("scale", self.scale)
        require(
            (self.power >= 0) & (self.power <= 2), f"power must be in [0, 2], got {self.power}."
        )

    def __call__(self, y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The values `y` in warped units, increasing in `y`.

        The result is finite if y is, even beyond the numbers that the precision can tell apart. A
        failed observation, which is not finite, is returned as it is.
        """
        finite = jnp.isfinite(y)
        distance = _finite(jnp.where(finite, y, self.offset) - self.offset)
        t = _quotient(distance, self.scale)
        return jnp.where(finite, _yeo_johnson(t, self.power), y)

    def inverse(self, u: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The values that warp to `u`; it saturates before they overflow."""
        finite = jnp.isfinite(u)
        t = _inverse(jnp.where(finite, u, 0), self.power)
        return jnp.where(finite, _finite(self.offset + self.scale * t), u)


def identity(dtype: DTypeLike) -> Warping:
    """The warping that changes nothing, not even a bit."""
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    return Warping(offset=zero, scale=one, power=one)


def fit(y: Float[Array, " capacity"]) -> Warping:
    """The warping of maximum likelihood: λ under which the values `y` are most nearly normal.

    Rows that are not finite are ignored: NaN marks failures and padding alike. The order of the rows
    does not matter, to the last bit. With fewer than five distinct values λ is 1; without a spread,
    too, scale is 1; without any value it is the identity.

    With y → a y + b, a > 0, the warped values stay; with y → -y they change sign and λ becomes 2 - λ.
    λ is a constant in differentiation, offset and scale are not.
    """
    # Sorted, what is not finite comes last and the sums do not depend on where it was.
    y = jnp.sort(jnp.where(jnp.isfinite(y), y, jnp.inf))
    used = jnp.isfinite(y)
    count = jnp.sum(used, dtype=int)
    low, high = y[jnp.maximum(count - 1, 0) // 2], y[count // 2]
    low, high = (jnp.where(used[0], middle, 0) for middle in (low, high))
    offset = low + 0.5 * _finite(high - low)
    info = jnp.finfo(y.dtype)
    far = 0.125 * float(info.max)  # the reciprocal of a longer distance may count as zero
    distance = jnp.clip(jnp.where(used, y, offset) - offset, -far, far)
    spread = _mean_absolute(distance, count)
    # Below a rounding error of the values themselves, differences are noise, not signal.
    spreads = spread > jnp.maximum(info.eps * jnp.abs(offset), float(info.tiny))
    scale = jnp.where(spreads, spread, 1)
    distinct = 1 + jnp.sum(used[1:] & (y[1:] > y[:-1]), dtype=int)
    power = _most_likely(jax.lax.stop_gradient(distance / scale), used)
    return Warping(offset, scale, jnp.where(spreads & (distinct >= _FEWEST), power, 1))


def moments(warping: Warping, mean: Scalar, variance: Scalar) -> tuple[Scalar, Scalar]:
    """Mean and variance of `warping.inverse(u)` for u ~ N(mean, variance), by quadrature.

    With the identity exactly `mean` and `variance`. They saturate where they would overflow: values
    have a variance in float32 up to a scale of 1e19. Differentiable in the law, down to a variance
    of zero.
    """
    info = jnp.finfo(mean.dtype)
    nodes, weights = (jnp.asarray(numbers, mean.dtype) for numbers in (_NODES, _WEIGHTS))
    variance = jnp.maximum(variance, 0)
    # Differences between nodes that are too near are rounding errors: below a spread of eps^(1/3)
    # the moments' changes are those at this spread, less in proportion.
    least = float(info.eps) ** (1 / 3) * (1 + jnp.abs(jax.lax.stop_gradient(mean)))
    spread = jnp.maximum(jnp.sqrt(jnp.maximum(variance, float(info.tiny))), least)
    centre = _inverse(mean, warping.power)
    images = (_inverse(mean + spread * nodes, warping.power) - centre) / spread
    bound = 0.25 * math.sqrt(info.max)  # beyond it their squares would overflow
    images = jnp.clip(images, -bound, bound)
    shift = jnp.sum(weights * images)
    # The sums are exact for the identity, but for their rounding.
    same = warping.power == 1
    centre = centre + jnp.where(same, 0, variance / spread * shift)
    ratio = jnp.where(same, 1, jnp.sum(weights * (images - shift) ** 2))
    return (
        _finite(warping.offset + warping.scale * centre),
        _finite(warping.scale * (warping.scale * (variance * ratio))),
    )


def _finite(value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`value`, the largest number in place of infinity."""
    largest = float(jnp.finfo(value.dtype).max)
    return jnp.clip(value, -largest, largest)


@jax.custom_jvp
def _quotient(value: Float[Array, "*shape"], scale: Scalar) -> Float[Array, "*shape"]:
    """value / scale; its slope in the scale is found without the square of that, which underflows."""
    return _finite(value / scale)


@_quotient.defjvp
def _(primals, tangents):
    quotient = _quotient(*primals)
    return quotient, (tangents[0] - quotient * tangents[1]) / primals[1]


def _mean_absolute(distance: Float[Array, " capacity"], count: Count) -> Scalar:
    """The sum of |distance| over `count`, without overflow or underflow on the way."""
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(distance)), initial=0)
    unit = jnp.where(largest > 0, largest, 1)
    return unit * (jnp.sum(jnp.abs(distance) / unit) / jnp.maximum(count, 1).astype(distance.dtype))


def _most_likely(t: Float[Array, " capacity"], used: Bool[Array, " capacity"]) -> Scalar:
    """λ in [0, 2] of greatest profile likelihood of N(mean, variance) for the warped values.

    The log likelihood is concave in λ (Marchand et al., SecureFedYJ, 2022), so bisection of its
    slope finds the only maximum, with the same work whatever the data.
    """

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        rising = _score(t, used, middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    ends = jnp.zeros((), t.dtype), jnp.full((), 2, t.dtype)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
    # An end that was never left is the best itself.
    return jnp.where(low == 0, low, jnp.where(high == 2, high, 0.5 * (low + high)))


def _score(t: Float[Array, " n"], used: Bool[Array, " n"], power: Scalar) -> Scalar:
    """The derivative in λ of -n/2 log var(u) + (λ - 1) Σ sign(t) log(1 + |t|), over n."""
    count = jnp.maximum(jnp.sum(used, dtype=t.dtype), 1)

    def mean(values: Float[Array, " n"]) -> Scalar:
        return jnp.sum(jnp.where(used, values, 0)) / count

    u, (_, slope) = _yeo_johnson(t, power), _slopes(t, power)
    centred = u - mean(u)
    variance = mean(centred**2)
    _, _, log = _side(t, power)
    jacobian = mean(jnp.where(t >= 0, log, -log))
    return jacobian - mean(centred * slope) / jnp.where(variance > 0, variance, 1)


# On either side of zero the warping is the Box-Cox transformation of 1 + |t| with a power p of its
# own, expm1(p log1p(|t|)) / p: no 0 / 0 where p is 0, but for a limit, and accurate near t = 0.
# Derivatives are in closed form: those of the selections below would be wrong where p is 0 or 1.


def _side(t: Float[Array, "*shape"], power: Scalar) -> tuple[Array, Array, Array]:
    """|t|, the power p of its side, and log(1 + |t|)."""
    size = jnp.abs(t)
    return size, jnp.where(t >= 0, power, 2 - power), jnp.log1p(size)


def _capped(exponent: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.minimum(exponent, math.log(jnp.finfo(exponent.dtype).max) - _ROOM)


def _vanishes(x: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether expm1(x) = x = log1p(x) to all digits, so that division by p is not needed."""
    return x < jnp.finfo(x.dtype).eps


@jax.custom_jvp
def _yeo_johnson(t: Float[Array, "*shape"], power: Scalar) -> Float[Array, "*shape"]:
    _, p, log = _side(t, power)
    small = _vanishes(p * log)
    size = jnp.where(small, log, jnp.expm1(_capped(p * log)) / jnp.where(small, 1, p))
    return jnp.where(power == 1, t, jnp.where(t >= 0, size, -size))


@jax.custom_jvp
def _inverse(u: Float[Array, "*shape"], power: Scalar) -> Float[Array, "*shape"]:
    size, p, _ = _side(u, power)
    small = _vanishes(p * size)
    log = jnp.where(small, size, jnp.log1p(p * size) / jnp.where(small, 1, p))
    size = jnp.expm1(_capped(log))
    return jnp.where(power == 1, u, jnp.where(u >= 0, size, -size))


@_yeo_johnson.defjvp
def _(primals, tangents):
    log_by_t, by_power = _slopes(*primals)
    slope = jnp.exp(_capped(log_by_t))
    return _yeo_johnson(*primals), slope * tangents[0] + by_power * tangents[1]


@_inverse.defjvp
def _(primals, tangents):
    t, power = _inverse(*primals), primals[1]
    log_by_t, by_power = _slopes(t, power)
    return t, jnp.exp(_capped(-log_by_t)) * (tangents[0] - by_power * tangents[1])


def _slopes(t: Float[Array, "*shape"], power: Scalar) -> tuple[Array, Array]:
    """The logarithm of du/dt = (1 + |t|)^(p - 1), and du/dλ = ∫ s exp(p s) ds to log(1 + |t|)."""
    _, p, log = _side(t, power)
    x = _capped(p * log)
    small = x < _SERIES_BELOW
    near, far = jnp.where(small, x, 0), jnp.where(small, 1, x)
    series = jnp.zeros_like(x)
    for coefficient in reversed(_SERIES):
        series = series * near + coefficient
    closed = (far * jnp.exp(far) - jnp.expm1(far)) / far**2
    return (p - 1) * log, log**2 * jnp.where(small, series, closed)
