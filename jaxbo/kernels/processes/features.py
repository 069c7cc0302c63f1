"""Fourier feature maps: a stationary kernel as a dot product, k(x, z) ≈ φ(x)'φ(z).

    uᵢ = sᵢ'(x / length_scale) + bᵢ                             angles in turns
    cosine       φ(x) = √variance · c / |c|,  cᵢ = cos 2πuᵢ      (FTS, appendix A)
    sine_cosine  φ(x) = √(variance / D) · [sin 2πu, cos 2πu]    (EGP-TS, eq. 15; b = 0)

Frequencies s are drawn once for unit length scale and kept in turns (radians / 2π), so features are
differentiable in the length scale, refitting needs no new draw, and reducing an angle to a single
turn is exact in floating point.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from jaxbo._check import positive, require
from jaxbo.domains.base import GRID, SOBOL_DIM, Cube
from jaxbo.kernels.linalg import dot, inner
from jaxbo.kernels.processes.covariance import AbstractKernel, Kernel
from jaxbo.kernels.processes.nystrom import Nystrom, feature_map
from jaxbo.types import Count, Features, Function, Key, Point, Scalar, floating

#: Draws `count` standard normal vectors of `dim` coordinates, not necessarily independent.
Directions: TypeAlias = Callable[[Key, int, int], Float[Array, "count dim"]]

# ---------------------------------------------------------------- cosine and sine in turns

# sin 2πr = r · P(r²) on |r| ≤ 1/4. Five terms err by 3e-9, far below float32 rounding; float64 takes
# eleven. Interpolation at Chebyshev nodes is within a factor two of the best polynomial. Computed with
# fifty digits, lowest power first, since LAPACK's last ones differ from machine to machine.
_COEFFICIENTS = {
    "float32": (
        *(6.283185280154407, -41.34168061334652, 81.60247636892518, -76.58117264427872),
        39.7598270853191,
    ),
    "float64": (
        *(6.283185307179586, -41.34170224039976, 81.60524927607506, -76.70585975306139),
        *(42.05869394489747, -15.094642576809157, 3.819952584204029, -0.718122282506468),
        *(0.10422879172970216, -0.012027159975490727, 0.0011009794483810129),
    ),
}


def _quarter_sine(r: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sin 2πr for |r| ≤ 1/4."""
    coefficients = _COEFFICIENTS.get(r.dtype.name, _COEFFICIENTS["float32"])
    square = r * r
    total = jnp.full_like(r, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * square + c
    return r * total


@jax.custom_jvp
def cos_turns(u: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """cos 2πu. In float32 the error is below 2e-7 for any u, as a function of the u that is given."""
    q = u - jnp.round(u)  # exact: both are multiples of the last place of u
    return _quarter_sine(0.25 - jnp.abs(q))


@jax.custom_jvp
def sin_turns(u: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sin 2πu, as accurate as `cos_turns`."""
    q = u - jnp.round(u)
    return jnp.copysign(_quarter_sine(0.25 - jnp.abs(0.25 - jnp.abs(q))), q)


cos_turns.defjvps(lambda du, y, u: -2 * np.pi * sin_turns(u) * du)
sin_turns.defjvps(lambda du, y, u: 2 * np.pi * cos_turns(u) * du)

# ---------------------------------------------------------------- where frequencies point


def independent(key: Key, count: int, dim: int) -> Float[Array, "count dim"]:
    """Independent standard normal vectors: the plain random Fourier features."""
    return jr.normal(key, (count, dim))


def orthogonal(key: Key, count: int, dim: int) -> Float[Array, "count dim"]:
    """Standard normal vectors, orthogonal to each other in blocks of `dim` (Yu et al., 2016).

    Same kernel on average, less variance for the same number of features.
    """
    direction_key, norm_key = jr.split(key)
    blocks = -(-count // dim)
    normals = jr.normal(direction_key, (blocks, dim, dim))
    directions = jax.vmap(_orthonormal)(normals).reshape(blocks * dim, dim)[:count]
    norms = jnp.linalg.norm(jr.normal(norm_key, (count, dim)), axis=1, keepdims=True)
    return directions * norms


def quasi_random(key: Key, count: int, dim: int) -> Float[Array, "count dim"]:
    """Standard normal vectors that cover their law evenly: a randomly shifted low-discrepancy set."""
    points = Cube(dim).candidates(key, count)
    # Half a step of the lattice away from 0, where the normal quantile is infinite.
    return jax.scipy.special.ndtri(jnp.clip(points, GRID / 2, 1 - GRID / 2))


def spread(key: Key, count: int, dim: int) -> Float[Array, "count dim"]:
    """The better of the two for this dimension: quasi-random below 20, orthogonal from there on.

    Root mean square error of k, `sine_cosine`, 100 features, independent / orthogonal / quasi-random:
    0.080 / 0.069 / 0.014 in dimension 1, 0.094 / 0.089 / 0.033 in 2, 0.092 / 0.078 / 0.072 in 6 and
    0.095 / 0.075 / 0.084 in 20 (squared exponential, length scales 0.2, 0.2, 0.5 and 1).
    """
    return quasi_random(key, count, dim) if dim < SOBOL_DIM else orthogonal(key, count, dim)


def _orthonormal(rows: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Gram-Schmidt; every row is cleared of the earlier rows twice, which is enough for rounding.

    A library's QR would bring LAPACK into every compiled run, batched over whatever is mapped.
    """

    def add(i: Count, basis: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
        row = rows[i]
        for _ in range(2):
            row = row - dot(dot(basis, row), basis)
        return basis.at[i].set(row / jnp.linalg.norm(row))

    return jax.lax.fori_loop(0, rows.shape[0], add, jnp.zeros_like(rows))


# ---------------------------------------------------------------- feature maps

#: So few terms are added up one by one: as a batched product they take twice as long on CPU.
_FEW_TERMS = 3


class Cosine(eqx.Module):
    """φ(x) = √variance · c / |c| with cᵢ = cos(sᵢ'x + bᵢ): |φ(x)|² is the variance at every x."""

    frequencies: Float[Array, "features dim"]
    phases: Float[Array, " features"]
    length_scale: Float[Array, ""] | Float[Array, " dim"]
    variance: Scalar

    @property
    def size(self) -> int:
        """Number of features."""
        return self.frequencies.shape[0]

    @property
    def dim(self) -> int:
        """Coordinates of a point."""
        return self.frequencies.shape[1]

    def __call__(self, x: Point) -> Features:
        c = cos_turns(_angles(self, x) + self.phases)
        return c * (jnp.sqrt(self.variance) * jax.lax.rsqrt(inner(c, c)))


class SineCosine(eqx.Module):
    """φ(x) = √(variance / D) [sin(s₁'x) … sin(s_D'x), cos(s₁'x) … cos(s_D'x)], 2D features."""

    frequencies: Float[Array, "frequencies dim"]
    length_scale: Float[Array, ""] | Float[Array, " dim"]
    variance: Scalar

    @property
    def size(self) -> int:
        """Number of features, twice the number of frequencies."""
        return 2 * self.frequencies.shape[0]

    @property
    def dim(self) -> int:
        """Coordinates of a point."""
        return self.frequencies.shape[1]

    def __call__(self, x: Point) -> Features:
        return jnp.concatenate(self.parts(x))

    def parts(self, x: Point) -> tuple[Float[Array, " frequencies"], Float[Array, " frequencies"]]:
        """The sines and the cosines."""
        u = _angles(self, x)
        scale = jnp.sqrt(self.variance / self.frequencies.shape[0])
        return sin_turns(u) * scale, cos_turns(u) * scale


def _angles(features: Cosine | SineCosine, x: Point) -> Float[Array, " frequencies"]:
    """sᵢ'(x / length_scale) in turns, phases not included."""
    x, frequencies = x / features.length_scale, features.frequencies
    if x.size <= _FEW_TERMS:
        return jnp.sum(frequencies * x[None, :], axis=1)
    return dot(x, frequencies.T)


#: Any feature map here. `with_kernel` gives it other hyperparameters.
FeatureMap: TypeAlias = Cosine | SineCosine | Nystrom

#: `cosine`, `sine_cosine` or `nystrom.basis()`: draws a map for a kernel, a dimension and a number of
#: features.
Basis: TypeAlias = Callable[[Key, Any, int, int], FeatureMap]

#: Multiplies a direction by the Hessian of a function.
Curvature: TypeAlias = Callable[[Point], Point]

# Up to this dimension the Hessian is formed once, by one product with all sᵢsᵢ'; beyond it costs more
# than the few products with directions that a Newton step takes.
LARGEST_FORMED_HESSIAN = 8


class FourierFunction(eqx.Module):
    """f(x) = φ(x)'w: a sampled function, on Fourier features with its derivatives in closed form."""

    features: FeatureMap
    weights: Features

    def __call__(self, x: Point) -> Scalar:
        phi = self.features
        if isinstance(phi, SineCosine):
            # Side by side they would have to be written down, where features are the function's own.
            w_sin, w_cos = jnp.split(self.weights, 2)
            s, c = phi.parts(x)
            return dot(w_sin, s) + dot(w_cos, c)
        return dot(self.weights, phi(x))

    def expansion(self, x: Point) -> tuple[Scalar, Point, Curvature]:
        """Value, gradient and Hessian at `x` from a single evaluation of all cosines and sines."""
        phi = self.features
        if isinstance(phi, Nystrom):
            return expansion(self, x)
        scales = jnp.broadcast_to(phi.length_scale, x.shape)[None, :]
        slopes = 2 * np.pi * phi.frequencies / scales
        if isinstance(phi, SineCosine):
            w_sin, w_cos = jnp.split(self.weights, 2)
            s, c = phi.parts(x)
            f = w_sin * s + w_cos * c
            gradient = dot(w_sin * c - w_cos * s, slopes)
            return dot(f, jnp.ones_like(f)), gradient, _weighted_outer(-f, slopes)
        # f = √variance a / √b with a = w'c, b = c'c; S are the slopes, α = S'(ws) and β = S'(cs):
        #   ∇f  = -α + fβ/b
        #   ∇²f = S'diag(f(c² - s²)/b - wc)S + 3fββ'/b² - (αβ' + βα')/b,   w scaled by √(variance/b)
        u = _angles(phi, x) + phi.phases
        s, c = sin_turns(u), cos_turns(u)
        b = inner(c, c)
        w = self.weights * jnp.sqrt(phi.variance / b)
        f = inner(w, c)
        f_b = f / b
        alpha, beta = dot(w * s, slopes), dot(c * s, slopes)
        outer = _weighted_outer(f_b * (c * c - s * s) - w * c, slopes)

        def curvature(p: Point) -> Point:
            alpha_p, beta_p = jnp.sum(alpha * p), jnp.sum(beta * p) / b
            return outer(p) + (3 * f_b * beta - alpha) * beta_p - beta * alpha_p / b

        return f, f_b * beta - alpha, curvature


def expansion(function: Function, x: Point) -> tuple[Scalar, Point, Curvature]:
    """Value, gradient and Hessian of any smooth function at `x`."""
    (value, gradient), push = jax.linearize(jax.value_and_grad(function), x)
    if x.size > LARGEST_FORMED_HESSIAN:
        return value, gradient, lambda p: push(p)[1]
    # All products at once: one copy of the program, where each of a step's products would be another.
    matrix = jax.vmap(lambda p: push(p)[1])(jnp.eye(x.size, dtype=x.dtype))
    return value, gradient, lambda p: dot(matrix, p)


def _weighted_outer(
    weights: Float[Array, " frequencies"], slopes: Float[Array, "frequencies dim"]
) -> Curvature:
    """p ↦ S'diag(weights)S p."""
    dim = slopes.shape[1]
    if dim > LARGEST_FORMED_HESSIAN:
        return lambda p: dot(weights * dot(slopes, p), slopes)
    squares = (slopes[:, :, None] * slopes[:, None, :]).reshape(-1, dim * dim)
    matrix = dot(weights, squares).reshape(dim, dim)
    return lambda p: jnp.sum(matrix * p[None, :], axis=1)


def cosine(
    key: Key, kernel: Kernel, dim: int, size: int, directions: Directions = spread
) -> Cosine:
    """Draws cosine features of a kernel with random phases, normalized as in FTS, appendix A.

    Args:
        key: Random key.
        kernel: The kernel, with a spectral density.
        dim: Number of coordinates of a point, at least 1.
        size: Number of features, at least 1.
        directions: The function that draws the directions of the frequencies. Default: `spread`.

    Returns:
        The feature map.

    Raises:
        ValueError: The size or the dimension is below 1, or the kernel has no spectral density.
    """
    kernel = spectral(kernel)
    frequency_key, phase_key = jr.split(key)
    frequencies = _frequencies(frequency_key, kernel, dim, size, directions)
    phases = jr.uniform(phase_key, (size,), dtype=frequencies.dtype)
    return Cosine(frequencies, phases, kernel.length_scale, kernel.variance)


def sine_cosine(
    key: Key, kernel: Kernel, dim: int, size: int, directions: Directions = spread
) -> SineCosine:
    """Draws features of a kernel: a sine and a cosine a frequency, as in EGP-TS, eq. 15.

    Args:
        key: Random key.
        kernel: The kernel, with a spectral density.
        dim: Number of coordinates of a point, at least 1.
        size: Number of features, an even number of at least 2.
        directions: The function that draws the directions of the frequencies. Default: `spread`.

    Returns:
        The feature map.

    Raises:
        ValueError: The size is odd, the size or the dimension is too small, or the kernel has no
            spectral density.
    """
    kernel = spectral(kernel)
    require(size % 2 == 0, f"sine_cosine needs an even size, got {size}.")
    frequencies = _frequencies(key, kernel, dim, size // 2, directions)
    return SineCosine(frequencies, kernel.length_scale, kernel.variance)


def with_kernel(features: FeatureMap, kernel: Kernel) -> FeatureMap:
    """The same frequencies, or inducing points, under the hyperparameters of `kernel` (of the same
    form).
    """
    if isinstance(features, Nystrom):
        return feature_map(kernel, features.z, jnp.arange(features.size) < features.count)
    kernel = spectral(kernel)
    return eqx.tree_at(
        lambda m: (m.length_scale, m.variance), features, (kernel.length_scale, kernel.variance)
    )


def spectral(kernel: Kernel) -> AbstractKernel:
    """The kernel. `ValueError` if it has no spectral density."""
    if not isinstance(kernel, AbstractKernel):
        raise ValueError(
            "Fourier features are drawn from the spectral density of a kernel, and a function k(x, z) "
            "has none: give a kernel such as Matern52(0.2), basis=nystrom.basis(), or "
            "Fitted(..., inference=Exact())."
        )
    return kernel


def _frequencies(
    key: Key, kernel: AbstractKernel, dim: int, count: int, directions: Directions
) -> Float[Array, "count dim"]:
    require(count >= 1 and dim >= 1, f"features need size and dim >= 1, got {count} and {dim}.")
    positive("length_scale", kernel.length_scale)
    shape = jnp.shape(kernel.length_scale)
    require(
        shape in ((), (dim,)),
        f"length_scale must be one number or one for each of the {dim} coordinates of a point, got "
        f"shape {shape}.",
    )
    direction_key, mixing_key = jr.split(key)
    draws = directions(direction_key, count, dim) * kernel.mixing(mixing_key, count)[:, None]
    return floating(draws) / (2 * np.pi)
