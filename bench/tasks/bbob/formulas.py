"""BBOB's formulas, f(x) - f_opt at a point of [-5, 5]^dim, for NumPy's arrays and for JAX's.

    d = x - x_opt;    T_osz oscillates, T_asy is asymmetric, Λ(α) = diag(α^(i / 2(dim - 1)))

Nothing is subtracted that is nearly as large: 1 - cos(2πz) is 2 sin²(πz), and f_opt is never added. The
optimum is rounded in float32, by up to 2e-7. Values are then right to 1e-5 of themselves at most points,
to 1e-3 on the fast waves of Weierstrass, Katsuura and Griewank-Rosenbrock, and to 1e-6 near Schwefel's
optimum. Outside of the box nothing is penalized: nobody asks there.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bench.tasks.bbob.instances import LUNACEK, SCHWEFEL, Instance, stretch

Vector = Float[Array | np.ndarray, " dim"]
Value = Float[Array | np.ndarray, ""]
Formula = Callable[[Instance, Vector], Value]


def sphere(p: Instance, x: Vector) -> Value:
    return _sum_of_squares(x - p.optimum)


def ellipsoid(p: Instance, x: Vector) -> Value:
    return _ellipsoid(oscillated(x - p.optimum))


def rastrigin(p: Instance, x: Vector) -> Value:
    return _rastrigin(_powers(x, 10) * asymmetric(oscillated(x - p.optimum), 0.2))


def bueche_rastrigin(p: Instance, x: Vector) -> Value:
    z, xp = oscillated(x - p.optimum), _namespace(x)
    steeper = xp.where((z > 0) & (_places(x) % 2 == 0), 10.0, 1.0).astype(x.dtype)
    return _rastrigin(steeper * _powers(x, 10) * z)


def linear_slope(p: Instance, x: Vector) -> Value:
    xp = _namespace(x)
    return xp.sum(_powers(x, 100) * (5 - xp.minimum(xp.sign(p.optimum) * x, 5)))


def attractive_sector(p: Instance, x: Vector) -> Value:
    xp, z = _namespace(x), p.R @ (_powers(x, 10) * (p.Q @ (x - p.optimum)))
    steeper = xp.where(p.optimum * z > 0, 100.0, 1.0).astype(x.dtype)
    return oscillated(_sum_of_squares(steeper * z)) ** 0.9


def step_ellipsoid(p: Instance, x: Vector) -> Value:
    xp, z = _namespace(x), _powers(x, 10) * (p.Q @ (x - p.optimum))
    steps = xp.where(abs(z) > 0.5, _rounded(z), _rounded(10 * z) / 10)
    plain = xp.sum(_powers(x, 100**2) * (p.R @ steps) ** 2)
    return 0.1 * xp.maximum(abs(z[0]) / 1e4, plain)


def rosenbrock(p: Instance, x: Vector) -> Value:
    return _namespace(x).sum(_valley(stretch(x.size) * (x - p.optimum)))


def turned_rosenbrock(p: Instance, x: Vector) -> Value:
    return _namespace(x).sum(_valley(stretch(x.size) * (p.Q @ (x - p.optimum))))


def turned_ellipsoid(p: Instance, x: Vector) -> Value:
    return _ellipsoid(oscillated(p.R @ (x - p.optimum)))


def discus(p: Instance, x: Vector) -> Value:
    z = oscillated(p.R @ (x - p.optimum))
    return 1e6 * z[0] ** 2 + _sum_of_squares(z[1:])


def bent_cigar(p: Instance, x: Vector) -> Value:
    z = p.R @ asymmetric(p.R @ (x - p.optimum), 0.5)
    return z[0] ** 2 + 1e6 * _sum_of_squares(z[1:])


def sharp_ridge(p: Instance, x: Vector) -> Value:
    z = p.R @ (_powers(x, 10) * (p.Q @ (x - p.optimum)))
    return z[0] ** 2 + 100 * _namespace(x).sqrt(_sum_of_squares(z[1:]))


def different_powers(p: Instance, x: Vector) -> Value:
    xp = _namespace(x)
    return xp.sqrt(xp.sum(abs(p.R @ (x - p.optimum)) ** (2 + 4 * _steps(x))))


def turned_rastrigin(p: Instance, x: Vector) -> Value:
    z = asymmetric(oscillated(p.R @ (x - p.optimum)), 0.2)
    return _rastrigin(p.R @ (_powers(x, 10) * (p.Q @ z)))


def weierstrass(p: Instance, x: Vector) -> Value:
    """A cube of Σ_k 2^-k (1 + cos(2π 3^k (z + 1/2))), and 3^k is odd."""
    xp, z = _namespace(x), oscillated(p.R @ (x - p.optimum))
    z = p.R @ (_powers(x, 1 / 100) * (p.Q @ z))
    k = xp.arange(12, dtype=x.dtype)[:, None]
    waves = 0.5**k * 2 * xp.sin(math.pi * 3**k * z[None, :]) ** 2
    return 10 * xp.mean(xp.sum(waves, axis=0)) ** 3


def schaffers(p: Instance, x: Vector) -> Value:
    return _schaffers(p, x, 10)


def steep_schaffers(p: Instance, x: Vector) -> Value:
    return _schaffers(p, x, 1000)


def griewank_rosenbrock(p: Instance, x: Vector) -> Value:
    xp, s = _namespace(x), _valley(stretch(x.size) * (p.Q @ (x - p.optimum)))
    return 10 * xp.mean(s / 4000 + 2 * xp.sin(s / 2) ** 2)


def schwefel(p: Instance, x: Vector) -> Value:
    xp = _namespace(x)
    shift = 2 * xp.sign(p.optimum) * (x - p.optimum)
    shift = shift + 0.25 * xp.concatenate([xp.zeros(1, x.dtype), shift[:-1]])
    z = 100 * (_powers(x, 10) * shift + SCHWEFEL)
    outside = _sum_of_squares(xp.maximum(abs(z) - 500, 0))
    return 0.01 * (outside + xp.mean(418.9828872724339 - z * xp.sin(xp.sqrt(abs(z)))))


def gallagher(p: Instance, x: Vector) -> Value:
    """10 - the highest peak at x, whose own height is w exp(-s): (10 - w) - w (exp(-s) - 1)."""
    xp, (centers, scales, heights) = _namespace(x), p.peaks
    distances = xp.sum(scales * ((x[None, :] - centers) @ p.Q.T) ** 2, axis=1)
    depths = (10 - heights) - heights * xp.expm1(-distances / (2 * x.size))
    return oscillated(xp.min(depths)) ** 2


def katsuura(p: Instance, x: Vector) -> Value:
    xp, z = _namespace(x), p.R @ (_powers(x, 100) * (p.Q @ (x - p.optimum)))
    scale = 2 ** xp.arange(1, 33, dtype=x.dtype)[:, None]
    rough = xp.sum(abs(scale * z[None, :] - xp.round(scale * z[None, :])) / scale, axis=0)
    logarithm = xp.sum(xp.log1p((_places(x) + 1) * rough))
    return 10 / x.size**2 * xp.expm1(10 / x.size**1.2 * logarithm)


def lunacek(p: Instance, x: Vector) -> Value:
    """Two bowls, the second about `LUNACEK`, and the waves of Rastrigin's function."""
    xp, s = _namespace(x), 1 - 0.5 / (math.sqrt(x.size + 20) - 4.1)
    other, shift = -math.sqrt((LUNACEK**2 - 1) / s), 2 * xp.sign(p.optimum) * (x - p.optimum)
    bowl = xp.minimum(_sum_of_squares(shift), x.size + s * _sum_of_squares(shift + LUNACEK - other))
    z = p.R @ (_powers(x, 100) * (p.Q @ shift))
    return bowl + 20 * _sum_of_squares(xp.sin(math.pi * z))


# ---------------------------------------------------------------- parts of several


def oscillated(x: Any) -> Any:
    """T_osz: x with bumps, and the same sign."""
    xp = _namespace(x)
    logarithm = 10 * xp.log(abs(xp.where(x == 0, 1, x).astype(x.dtype)))
    fast, slow = xp.where(x > 0, 1.0, 0.55), xp.where(x > 0, 0.79, 0.31)
    fast, slow = fast.astype(x.dtype), slow.astype(x.dtype)
    bumps = 0.049 * (xp.sin(fast * logarithm) + xp.sin(slow * logarithm))
    return x * xp.exp(bumps)


def asymmetric(x: Vector, beta: float) -> Vector:
    """T_asy: positive coordinates raised to powers that grow with them and with their place."""
    xp = _namespace(x)
    positive = xp.maximum(x, 0)
    return xp.where(x > 0, positive ** (1 + beta * _steps(x) * xp.sqrt(positive)), x)


def _valley(z: Vector) -> Any:
    """Rosenbrock's terms, of the point minus (1, ..., 1)."""
    return 100 * (2 * z[:-1] + z[:-1] ** 2 - z[1:]) ** 2 + z[:-1] ** 2


def _schaffers(p: Instance, x: Vector, condition: float) -> Value:
    xp = _namespace(x)
    z = _powers(x, condition) * (p.Q @ asymmetric(p.R @ (x - p.optimum), 0.5))
    s = z[:-1] ** 2 + z[1:] ** 2
    return xp.mean(s**0.25 * (1 + xp.sin(50 * s**0.1) ** 2)) ** 2


def _ellipsoid(z: Vector) -> Value:
    return _namespace(z).sum(_powers(z, 1e12) * z**2)


def _rastrigin(z: Vector) -> Value:
    return 20 * _sum_of_squares(_namespace(z).sin(math.pi * z)) + _sum_of_squares(z)


def _sum_of_squares(z: Any) -> Value:
    return _namespace(z).sum(z**2)


def _rounded(z: Vector) -> Vector:
    return _namespace(z).floor(z + 0.5)


def _powers(x: Vector, condition: float) -> Vector:
    """The diagonal of Λ(condition): from 1 to the root of the condition."""
    return math.sqrt(condition) ** _steps(x)


def _steps(x: Vector) -> Vector:
    """0, 1 / (dim - 1), ..., 1."""
    return _places(x) / (x.size - 1)


def _places(x: Vector) -> Vector:
    return _namespace(x).arange(x.size, dtype=x.dtype)


def _namespace(x: Any) -> Any:
    """NumPy for its own arrays and numbers, else JAX's."""
    return np if isinstance(x, np.ndarray | np.generic) else jnp
