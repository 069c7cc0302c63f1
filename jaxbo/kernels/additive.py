"""A Gaussian process that is a sum of functions of a few variables each.

    f(x) = Σ_I f_I(x_I),    f_I ~ GP(0, k_I),    k(x, z) = Σ_I k_I(x_I, z_I)     (DEC-HBO, section 3.2)

Observed is f alone, but each f_I has a posterior of its own, with K of all of k:

    mean_I(x_I)     = k_I' (K + noise I)⁻¹ y                                     (eq. 1)
    variance_I(x_I) = k_I(x_I, x_I) - k_I' (K + noise I)⁻¹ k_I

`tables` has both on a grid, and `extend` brings them up to one more observation. With L⁻¹ the inverse
root of K + noise I and r its row for the new point, what changes is w_I = Σ_j r_j k_I(x_I, x_j): on a
grid a squared exponential is a product over the axes, so w_I is a product of two matrices and a whole
table of two variables costs `grid² observations` multiplications, where making it anew costs
`grid² observations²`.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxbo._check import require
from jaxbo.kernels.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.features import cos_turns, sin_turns
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Key, Point, Scalar, floating

#: Up to so many variables all distances are one product of matrices; the rest of a sum's time is small.
DENSE = 128
#: Factors whose tables are brought up to an observation at the same time.
_FACTORS = 16
#: Cells of a table that are made at the same time: each takes as many numbers as there are observations.
_CELLS = 4096


class AdditiveKernel(AbstractKernel):
    """k(x, z) = Σ_I k_I(x_I, z_I): a kernel of the same form for every factor.

    `scopes` are the variables of each factor, padded by -1 to `arity`; they are data, so that a
    structure can be learned inside of a program. A length scale is one number, one for each
    coordinate, or one for each variable of each factor [factors, arity]. A variance is one number,
    split evenly among the factors that have variables, or one for each factor.

    Where a variable has several coordinates, a scope lists them, `width` places a variable.
    """

    scopes: Int[Array, "factors arity"] = eqx.field(default=None)
    form: AbstractKernel = eqx.field(default=None)
    width: int = eqx.field(static=True, default=1)

    def __init__(
        self,
        scopes: Int[ArrayLike, "factors arity"],
        form: AbstractKernel,
        length_scale: Float[Array, "..."] | float | None = None,
        variance: Float[Array, "..."] | float | None = None,
        width: int = 1,
    ):
        self.width = width
        self.scopes = jnp.asarray(scopes, jnp.int32)
        self.form = form
        self.length_scale = floating(form.length_scale if length_scale is None else length_scale)
        self.variance = floating(form.variance if variance is None else variance)

    def check_shapes(self) -> None:
        factors, arity = self.scopes.shape
        require(
            arity % self.width == 0,
            f"scopes of {arity} places do not hold whole variables of width {self.width}.",
        )
        require(
            self.length_scale.ndim < 2 or self.length_scale.shape == (factors, arity),
            f"length_scale must be a number, a vector or of shape ({factors}, {arity}), one for each "
            f"variable of each factor, got shape {self.length_scale.shape}.",
        )
        require(
            self.variance.shape in ((), (factors,)),
            f"variance must be a number or one for each of {factors} factors, got shape "
            f"{self.variance.shape}.",
        )

    @property
    def variances(self) -> Float[Array, " factors"]:
        """Of every factor; 0 of those without variables."""
        return jnp.where(self._used, self._whole * self.share, 0)

    @property
    def share(self) -> Scalar:
        """How much of one variance a factor has; all of its own, if each has one."""
        if self.variance.ndim:
            return jnp.ones((), self.variance.dtype)
        return self.variance / jnp.maximum(jnp.sum(self._used), 1).astype(self.variance.dtype)

    @property
    def _used(self) -> Bool[Array, " factors"]:
        return jnp.any(self.scopes >= 0, axis=1)

    @property
    def _whole(self) -> Float[Array, " factors"]:
        """The variances before they are shared."""
        return (
            self.variance if self.variance.ndim else jnp.ones(len(self.scopes), self.variance.dtype)
        )

    @property
    def length_scales(self) -> Float[Array, "factors arity"]:
        """Of every variable of every factor."""
        if self.length_scale.ndim == 1:
            return self.length_scale[jnp.maximum(self.scopes, 0)]
        return jnp.broadcast_to(self.length_scale, self.scopes.shape)

    def weights(self, dim: int) -> Float[Array, "factors dim"]:
        """1 / length_scale² where a factor has the variable, 0 elsewhere."""
        at = self.scopes[:, :, None] == jnp.arange(dim, dtype=self.scopes.dtype)[None, None, :]
        return jnp.sum(jnp.where(at, self.length_scales[:, :, None] ** -2, 0), axis=1)

    def __call__(self, x: Point, z: Point) -> Scalar:
        return jnp.sum(self.parts(x, z))

    def parts(self, x: Point, z: Point) -> Float[Array, " factors"]:
        """k_I(x, z) of every factor."""
        squares = (x - z) ** 2
        if x.size <= DENSE:
            s = dot(self.weights(x.size).astype(x.dtype), squares)
        else:
            near = jnp.where(self.scopes < 0, 0, squares[self.scopes])
            s = jnp.sum(near / self.length_scales.astype(x.dtype) ** 2, axis=1)
        return self.variances.astype(x.dtype) * jax.vmap(self.form.correlation)(s)

    def squares(self, X: Float[Array, "points dim"]) -> Float[Array, "scales points points"]:
        return (X.T[:, :, None] - X.T[:, None, :]) ** 2

    def of_squares(
        self, squares: Float[Array, "scales points points"]
    ) -> Float[Array, "points points"]:
        if isinstance(self.form, SquaredExponential) and len(squares) <= DENSE:
            flat = squares.reshape(len(squares), -1)
            K = _exponentials(self.weights(len(squares)), self.variances, flat)
            return K.reshape(squares[0].shape)

        # One factor after another, and again on the way back: of many, not all fit into memory.
        @jax.checkpoint
        def add(
            total: Float[Array, "points points"],
            factor: tuple[Int[Array, " arity"], Float[Array, " arity"], Scalar],
        ) -> tuple[Float[Array, "points points"], None]:
            scope, scales, variance = factor
            return total + variance * self._correlations(scope, scales, squares), None

        factors = self.scopes, self.length_scales, self.variances
        return jax.lax.scan(add, jnp.zeros_like(squares[0]), factors)[0]

    def _correlations(
        self,
        scope: Int[Array, " arity"],
        scales: Float[Array, " arity"],
        squares: Float[Array, "scales points points"],
    ) -> Float[Array, "points points"]:
        """Of one factor."""
        weights = jnp.where(scope < 0, 0, scales**-2)
        s = jnp.sum(weights[:, None, None] * squares[scope], axis=0)
        return jax.vmap(jax.vmap(self.form.correlation))(s)

    def part(
        self,
        number: Count,
        scope: Int[Array, " arity"],
        squares: Float[Array, "scales points points"],
    ) -> Float[Array, "points points"]:
        """What a factor adds to `of_squares` if `scope` are its variables, but for its `share`."""
        other = eqx.tree_at(lambda k: k.scopes, self, self.scopes.at[number].set(scope))
        variance = jnp.where(jnp.any(scope >= 0), self._whole[number], 0)
        return variance * self._correlations(scope, other.length_scales[number], squares)

    def correlation(self, s: Scalar) -> Scalar:
        raise ValueError("an additive kernel is no function of one distance.")

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        raise ValueError("an additive kernel has no Fourier features of its own: see `draw`.")


@jax.custom_vjp
def _exponentials(
    weights: Float[Array, "factors variables"],
    variances: Float[Array, " factors"],
    squares: Float[Array, "variables pairs"],
) -> Float[Array, " pairs"]:
    """Σ_I variance_I exp(-s_I / 2), s = weights squares. Not differentiable in `squares`.

    Its gradient is products of matrices, a fourth of the time of what differentiation makes of it.
    """
    return _exponentials_forward(weights, variances, squares)[0]


def _exponentials_forward(weights, variances, squares):
    each = jnp.exp(-0.5 * dot(weights, squares))
    return dot(variances, each), (each, variances, squares)


def _exponentials_back(residuals, cotangent):
    each, variances, squares = residuals
    share = each * cotangent[None, :]
    to_weights = -0.5 * variances[:, None] * dot(share, squares.T)
    return to_weights, dot(share, jnp.ones_like(cotangent)), jnp.zeros_like(squares)


_exponentials.defvjp(_exponentials_forward, _exponentials_back)


class GridTables(NamedTuple):
    """Of every factor on its grid: posterior means of several outputs, and the variance."""

    mean: Float[Array, "factors outputs ..."]
    variance: Float[Array, "factors ..."]


def tables(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    used: Bool[Array, " capacity"],
    inverse: Float[Array, "capacity capacity"],
    outputs: Float[Array, "outputs capacity"],
) -> GridTables:
    """Tables of all factors given observations, O(grid^arity capacity²) a factor.

    `points` are the grids of the coordinates, `used` the rows of `X` that hold an observation, `inverse`
    = L⁻¹ with L L' = K + noise I, and zero in the columns, save the diagonal, of the other rows, where
    `outputs` is zero.
    """
    alpha = dot(dot(outputs, inverse.T), inverse)  # K⁻¹y

    def one(factor: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        scope, scales, variance = factor
        first, *others = _axes(kernel, points, X, scope, scales)

        def slab(row: Float[Array, " capacity"]) -> tuple[Array, Array]:
            k = _joined(kernel, [row[None], *others])[0]
            grid = k.shape[:-1]
            k = jnp.where(used[None, :], variance * k.reshape(-1, k.shape[-1]), 0)
            w = dot(k, inverse.T)
            mean = dot(alpha, k.T).reshape(len(alpha), *grid)
            return mean, (variance - jnp.sum(w * w, axis=-1)).reshape(grid)

        cells = math.prod(len(axis) for axis in others)
        mean, left = jax.lax.map(slab, first, batch_size=min(len(first), max(1, _CELLS // cells)))
        return jnp.moveaxis(mean, 0, 1), left

    factors = kernel.scopes, kernel.length_scales, kernel.variances
    return GridTables(*jax.lax.map(one, factors))


def extend(
    told: GridTables,
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    row: Float[Array, " capacity"],
    outputs: Float[Array, "outputs capacity"],
) -> GridTables:
    """The same tables after one more observation, whose row of L⁻¹ is `row`: O(grid^arity capacity)."""
    white = dot(outputs, row)

    w = contract(kernel, points, X, row)
    weight = white.reshape(1, -1, *(1,) * (w.ndim - 1))
    return GridTables(told.mean + w[:, None] * weight, told.variance - w * w)


def contract(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    v: Float[Array, " capacity"],
) -> Float[Array, "factors ..."]:
    """Σ_j v_j k_I(x_I, X_j) of every factor on its grid."""

    def one(factor: tuple[Array, Array, Array]) -> Array:
        scope, scales, variance = factor
        axes = _axes(kernel, points, X, scope, scales)
        if isinstance(kernel.form, SquaredExponential):
            *others, last = (jnp.exp(-axis / 2) for axis in axes)
            grid = tuple(len(axis) for axis in axes)
            weighted = _product([v[None, :], *others]).reshape(-1, v.size)
            return variance * dot(weighted, last.T).reshape(grid)
        return variance * dot(_joined(kernel, axes), v)

    factors = kernel.scopes, kernel.length_scales, kernel.variances
    return jax.lax.map(one, factors, batch_size=min(_FACTORS, len(kernel.scopes)))


class Sample(eqx.Module):
    """A function drawn from an additive process: f_I(x_I) = φ_I(x_I)'w_I + Σ_j v_j k_I(x_I, X_j).

    Random Fourier features of every factor, in turns, and what the data say otherwise.
    """

    kernel: AdditiveKernel
    frequencies: Float[Array, "factors features arity"]
    phases: Float[Array, "factors features"]
    weights: Float[Array, "factors features"]
    X: Float[Array, "capacity dim"]
    v: Float[Array, " capacity"]

    def __call__(self, x: Point) -> Scalar:
        k = jax.vmap(lambda z: self.kernel(x, z))(self.X)
        return jnp.sum(self._prior(x)) + dot(k, self.v)

    def _prior(self, x: Point) -> Float[Array, " factors"]:
        scopes = self.kernel.scopes
        at = jnp.where(scopes < 0, 0, x[scopes])[:, None, :]
        u = jnp.sum(self.frequencies * at, axis=2) + self.phases
        return jnp.sum(self.weights * cos_turns(u), axis=1)

    def tables(self, points: Float[Array, "dim grid"]) -> Float[Array, "factors ..."]:
        """f_I of every factor on its grid."""

        def one(factor: tuple[Array, Array, Array, Array]) -> Array:
            scope, frequencies, phases, weights = factor
            angles = []
            for axis in range(0, scope.size, self.kernel.width):
                u = jnp.zeros((points.shape[1], len(phases)), points.dtype)
                for place in range(axis, axis + self.kernel.width):
                    x = jnp.where(scope[place] < 0, 0, points[scope[place]])
                    u += x[:, None] * frequencies[None, :, place]
                angles.append((cos_turns(u), sin_turns(u)))
            # cos and sin of a sum of angles, one axis of the grid after another; the last one by
            # products, so that no array has both all of the grid and the features.
            c, s = weights * cos_turns(phases), weights * sin_turns(phases)
            *others, (cosine, sine) = angles
            for a, b in others:
                a, b = _raised(a, c.ndim + 1), _raised(b, c.ndim + 1)
                c, s = c[..., None, :], s[..., None, :]
                c, s = c * a - s * b, s * a + c * b
            c, s = (f.reshape(-1, len(phases)) for f in (c, s))
            found = dot(c, cosine.T) - dot(s, sine.T)
            return found.reshape((points.shape[1],) * len(angles))

        factors = self.kernel.scopes, self.frequencies, self.phases, self.weights
        prior = jax.lax.map(one, factors)
        return prior + contract(self.kernel, points, self.X, self.v)


def draw(
    key: Key,
    kernel: AdditiveKernel,
    noise: Scalar,
    X: Float[Array, "capacity dim"],
    y: Float[Array, " capacity"],
    inverse: Float[Array, "capacity capacity"],
    size: int,
) -> Sample:
    """A function given observations `y`, NaN where there is none; `inverse` as in `tables`.

    A draw of the prior, with `size` features a factor, corrected through the data (Wilson et al., 2020).
    """
    direction_key, mixing_key, phase_key, weight_key, noise_key = jr.split(key, 5)
    factors, arity = kernel.scopes.shape
    z = jr.normal(direction_key, (factors, size, arity), X.dtype)
    mixing = jax.vmap(lambda k: kernel.form.mixing(k, size))(jr.split(mixing_key, factors))
    frequencies = z * mixing[:, :, None] / (2 * np.pi * kernel.length_scales[:, None, :])
    scale = jnp.sqrt(2 * kernel.variances / size)[:, None]
    weights = scale * jr.normal(weight_key, (factors, size), X.dtype)
    phases = jr.uniform(phase_key, (factors, size), X.dtype)
    prior = Sample(kernel, frequencies, phases, weights, X, jnp.zeros_like(y))
    e = jnp.sqrt(noise) * jr.normal(noise_key, y.shape, X.dtype)
    at_data = jax.vmap(lambda x: jnp.sum(prior._prior(x)))(X) + e
    used = jnp.isfinite(y)
    residual = jnp.where(used, y - at_data, 0)
    v = jnp.where(used, dot(dot(inverse, residual), inverse), 0)
    return eqx.tree_at(lambda f: f.v, prior, v)


def _axes(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    scope: Int[Array, " arity"],
    scales: Float[Array, " arity"],
) -> list[Float[Array, "grid capacity"]]:
    """Squared distances in length scales from the grid to the observations, of each variable."""
    places = []
    for place in range(scope.size):
        v = scope[place]
        s = ((points[v][:, None] - X[:, v][None, :]) / scales[place]) ** 2
        places.append(jnp.where(v < 0, 0, s))
    return [
        sum(places[i + 1 : i + kernel.width], places[i])
        for i in range(0, len(places), kernel.width)
    ]


def _joined(
    kernel: AdditiveKernel, axes: list[Float[Array, "_ capacity"]]
) -> Float[Array, "... capacity"]:
    """The correlation of every point of the grid with the observations."""
    if isinstance(kernel.form, SquaredExponential):
        return _product([jnp.exp(-axis / 2) for axis in axes])
    s = jnp.zeros_like(axes[0][0])
    for axis in axes:
        s = s[..., None, :] + _raised(axis, s.ndim + 1)
    return jax.vmap(kernel.form.correlation)(s.reshape(-1)).reshape(s.shape)


def _product(axes: list[Float[Array, "_ capacity"]]) -> Float[Array, "... capacity"]:
    """The products of an entry of each."""
    total = axes[0]
    for axis in axes[1:]:
        total = total[..., None, :] * _raised(axis, total.ndim + 1)
    return total


def _raised(axis: Float[Array, "grid capacity"], ndim: int) -> Float[Array, "... capacity"]:
    return axis.reshape((1,) * (ndim - 2) + axis.shape)
