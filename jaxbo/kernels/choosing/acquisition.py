"""Acquisition functions of the belief at a point, to be maximized over points.

    z = (mean - best) / std

    expected improvement          E max(f - best, 0) = std h(z),    h(z) = pdf(z) + z cdf(z)
    probability of improvement    P(f > best) = cdf(z)
    upper confidence bound        mean + sqrt(beta) std

with f ~ N(mean, std²). Their logarithms keep a slope where the functions themselves underflow to a
plain of zeros (Ament et al., Unexpected improvements to expected improvement, 2023). Below a
switching point both need only a single number, which a continued fraction gives without
cancellation:

    slope(t) = h'(-t) / h(-t) = t + 2 / (t + 3 / (t + 4 / (t + ...)))
    h(-t)   = pdf(t) / (1 + t slope(t))
    cdf(-t) = pdf(t) / (t + 1 / slope(t))

It follows from Laplace's fraction for Mills' ratio, cdf(-t) / pdf(t) = 1 / (t + 1 / slope(t)).
Derivatives are given in closed form, because differentiating the formulas above cancels, and stay
finite at zero variance; by the variance too, where `deviation` takes its root.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from jaxbo.types import Flag, Scalar

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Levels of the continued fraction written out; its rest is closed by `_rest`. From the switching
# points on, that leaves a relative error of 1e-7 (float32) and 1e-14 (float64).
LEVELS = 12

# The variance is floored so that its inverse third power, which the Hessian of log EI contains,
# stays in range times differences of means up to about 100: floor = smallest normal ** (2 / 7).
# The standard deviation is then at least 4e-6 in float32 and 1e-44 in float64.
FLOOR_POWER = 2 / 7


def expected_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    """Expected improvement over `best`; zero once it underflows (z below -13 in float32).

    `best` is the value to beat and must be finite. A standard deviation of zero counts as 4e-6 in
    float32 (1e-44 in float64), so it gives max(mean - best, 0) but for less than 2e-6.
    """
    return _expected_improvement(mean, _floored(std), best)


def log_expected_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    """Logarithm of the expected improvement: finite, and in the tail still rising with the mean.

    In float32 the standard deviation counts as 4e-6 if it is less, so values should be of order 1,
    as after standardization.
    """
    return _log_expected_improvement(mean, _floored(std), best)


def probability_of_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    """Probability that the function exceeds `best`. Add a margin to `best` to explore more."""
    return _cdf((mean - best) / _floored(std))


def log_probability_of_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    """Logarithm of the probability of improvement, finite for every finite input."""
    return _log_cdf((mean - best) / _floored(std))


def upper_confidence_bound(mean: Scalar, std: Scalar, beta: Scalar) -> Scalar:
    """mean + sqrt(beta) std: `beta` >= 0 is the *squared* number of standard deviations.

    The convention of GP-UCB, DEC-HBO eq. (2) and EGP-TS. `beta` zero leaves the mean.
    """
    return mean + jnp.sqrt(beta) * std


def deviation(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Standard deviation, of `variance_floor` at least, which keeps the root differentiable."""
    return jnp.sqrt(jnp.maximum(variance, variance_floor(variance.dtype)))


def _floored(std: Scalar) -> Scalar:
    return jnp.maximum(std, math.sqrt(variance_floor(std.dtype)))


def variance_floor(dtype: DTypeLike) -> float:
    """The least variance that counts: see `FLOOR_POWER`."""
    return float(jnp.finfo(dtype).tiny) ** FLOOR_POWER


def _switch(dtype: DTypeLike) -> float:
    """The -z at which the continued fraction takes over: the direct formula loses a factor switch²
    of precision to cancellation, the fraction converges more slowly the smaller the switch.
    """
    return 1.5 if jnp.finfo(dtype).bits <= 32 else 6.0


def _rest(t: Scalar, level: int) -> Scalar:
    """level / (t + (level + 1) / (t + ...)), as the root of a slowly varying level."""
    t = t + 1 / jnp.sqrt(t * t + 4 * level)
    return 2 * level / (t + jnp.sqrt(t * t + 4 * level))


def _fraction(t: Scalar) -> Scalar:
    """slope(t) - t."""
    fraction = _rest(t, LEVELS + 1)
    for level in range(LEVELS, 1, -1):
        fraction = level / (t + fraction)
    return fraction


def _tail_slope(t: Scalar) -> Scalar:
    return t + _fraction(t)


def _split(z: Scalar) -> tuple[Flag, Scalar, Scalar]:
    """Whether z is in the tail, z for the direct formula, t = -z for the tail's.

    Each formula sees only numbers it is made for, so the gradient of the formula that is not
    selected is finite and vanishes.
    """
    switch = _switch(z.dtype)
    tail = z < -switch
    return tail, jnp.where(tail, -switch, z), jnp.where(tail, -z, switch)


def _pdf(z: Scalar) -> Scalar:
    return jnp.exp(-0.5 * z * z - LOG_SQRT_2PI)


def _cdf(z: Scalar) -> Scalar:
    return 0.5 * jax.scipy.special.erfc(-z * math.sqrt(0.5))


def _h(z: Scalar) -> Scalar:
    """pdf(z) + z cdf(z), to full relative precision."""
    tail, z, t = _split(z)
    return jnp.where(tail, _pdf(t) / (1 + t * _tail_slope(t)), _pdf(z) + z * _cdf(z))


class _LogH(NamedTuple):
    """log h(z), its slope r = cdf(z) / h(z), and the numbers from which further slopes follow.

    q = pdf(z) / h(z) = 1 - z r and δ = z + r, each without cancellation.
    """

    value: Scalar
    r: Scalar
    q: Scalar
    delta: Scalar


@jax.custom_jvp
def _log_h(z: Scalar) -> _LogH:
    tail, z, t = _split(z)
    delta = _fraction(t)
    slope = t + delta
    in_tail = -0.5 * t * t - LOG_SQRT_2PI - jnp.log1p(t * slope), slope, 1 + t * slope, delta
    pdf, cdf = _pdf(z), _cdf(z)
    h = pdf + z * cdf
    direct = jnp.log(h), cdf / h, pdf / h, z + cdf / h
    return _LogH(*(jnp.where(tail, *pair) for pair in zip(in_tail, direct, strict=True)))


@_log_h.defjvp
def _log_h_jvp(primals, tangents):
    """r' = q - r² = 1 - r δ and q' = -q δ: a single evaluation serves all derivatives.

    Two of them have all digits. From the third on digits cancel far in the tail.
    """
    (z,), (dz,) = primals, tangents
    found = _log_h(z)
    _, r, q, delta = found
    bend = jnp.where(z < -_switch(z.dtype), 1 - r * delta, q - r * r)
    return found, _LogH(r * dz, bend * dz, -q * delta * dz, (1 + bend) * dz)


@jax.custom_jvp
def _log_cdf(z: Scalar) -> Scalar:
    tail, z, t = _split(z)
    in_tail = -0.5 * t * t - LOG_SQRT_2PI - jnp.log(t + 1 / _tail_slope(t))
    # Near one the distance from one carries the precision.
    direct = jnp.where(z > 0, jnp.log1p(-_cdf(-jnp.abs(z))), jnp.log(_cdf(-jnp.abs(z))))
    return jnp.where(tail, in_tail, direct)


@_log_cdf.defjvp
def _log_cdf_jvp(primals, tangents):
    (z,), (dz,) = primals, tangents
    tail, direct, t = _split(z)
    slope = jnp.where(tail, t + 1 / _tail_slope(t), _pdf(direct) / _cdf(direct))
    return _log_cdf(z), slope * dz


@jax.custom_jvp
def _expected_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    return std * _h((mean - best) / std)


@_expected_improvement.defjvp
def _expected_improvement_jvp(primals, tangents):
    (mean, std, best), (dmean, dstd, dbest) = primals, tangents
    z = (mean - best) / std
    return _expected_improvement(*primals), _cdf(z) * (dmean - dbest) + _pdf(z) * dstd


@jax.custom_jvp
def _log_expected_improvement(mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
    return jnp.log(std) + _log_h((mean - best) / std).value


@_log_expected_improvement.defjvp
def _log_expected_improvement_jvp(primals, tangents):
    (mean, std, best), (dmean, dstd, dbest) = primals, tangents
    log_h = _log_h((mean - best) / std)
    slope = (log_h.r * (dmean - dbest) + log_h.q * dstd) / std
    return jnp.log(std) + log_h.value, slope
