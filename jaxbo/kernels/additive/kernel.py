"""A Gaussian process that is a sum of functions of a few variables each.

    f(x) = Σ_I f_I(x_I),    f_I ~ GP(0, k_I),    k(x, z) = Σ_I k_I(x_I, z_I)     (DEC-HBO, section 3.2)

Its kernel, and functions drawn from it. Beliefs about each f_I are in `factor_tables`.
"""

from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxbo._check import require
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.features import cos_turns
from jaxbo.types import Count, Key, Point, Scalar, floating

#: Up to so many variables all distances are one product of matrices; the rest of a sum's time is small.
DENSE = 128
#: How many factors there are of how many variables each, in their order.
Groups: TypeAlias = tuple[tuple[int, int], ...]


class Factor(NamedTuple):
    """A factor: its variables, -1 if it has fewer, and its hyperparameters."""

    scope: Int[Array, " arity"]
    scales: Float[Array, " arity"]
    variance: Scalar


class AdditiveKernel(AbstractKernel):
    """k(x, z) = Σ_I k_I(x_I, z_I): a kernel of the same form for every factor.

    `scopes` are the variables of each factor, padded by -1 to `arity`; they are data, so that a
    structure can be learned inside of a program. A length scale is a number, a number for each
    coordinate, or a number for each variable of each factor [factors, arity]. A variance is a
    number, split evenly among the factors that have variables, or a number for each factor. If the
    first `alone` factors are apart from the others, it is two numbers: these share the first evenly, and
    each of the others has the second over `alone`.

    If a variable has several coordinates, a scope lists them, `width` places a variable. If it is
    known that factors leave their last places empty, `groups` says so: by default all have as many
    variables as there are places.
    """

    scopes: Int[Array, "factors arity"] = eqx.field(default=None)
    form: AbstractKernel = eqx.field(default=None)
    width: int = eqx.field(static=True, default=1)
    groups: Groups = eqx.field(static=True, default=())
    alone: int = eqx.field(static=True, default=0)

    def __init__(
        self,
        scopes: Int[ArrayLike, "factors arity"],
        form: AbstractKernel,
        length_scale: Float[Array, "..."] | float | None = None,
        variance: Float[Array, "..."] | float | None = None,
        width: int = 1,
        groups: Groups | None = None,
        alone: int = 0,
    ):
        self.width, self.alone = width, alone
        self.scopes = jnp.asarray(scopes, jnp.int32)
        factors, arity = self.scopes.shape
        self.groups = ((factors, arity // width),) if groups is None else groups
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
            sum(count for count, _ in self.groups) == factors
            and all(count > 0 and 0 < size * self.width <= arity for count, size in self.groups),
            f"groups {self.groups} are none of {factors} factors in {arity} places.",
        )
        for (rows, places), (_, size) in zip(self.members, self.groups, strict=True):
            require(
                self.scopes[rows, places.stop :] < 0,
                f"a factor in a group of {size} variables has more: {self.scopes[rows]}.",
            )
        require(
            self.length_scale.ndim < 2 or self.length_scale.shape == (factors, arity),
            f"length_scale must be a number, a vector or of shape ({factors}, {arity}), one for each "
            f"variable of each factor, got shape {self.length_scale.shape}.",
        )
        shapes = ((2,),) if self.alone else ((), (factors,))
        require(
            self.variance.shape in shapes,
            f"variance must be a number or one for each of {factors} factors, or two if some factors are "
            f"apart, got shape {self.variance.shape}.",
        )

    @property
    def members(self) -> tuple[tuple[slice, slice], ...]:
        """The factors in each group, and which of their places it has."""
        ends = np.cumsum([0, *(count for count, _ in self.groups)]).tolist()
        return tuple(
            (slice(start, end), slice(size * self.width))
            for start, end, (_, size) in zip(ends[:-1], ends[1:], self.groups, strict=True)
        )

    @property
    def variances(self) -> Float[Array, " factors"]:
        """The variance of every factor; 0 for factors without variables."""
        return jnp.where(self._used, self._whole * self.share, 0)

    @property
    def share(self) -> Scalar:
        """A factor's share of a common variance; all of its own, if each has a variance."""
        if self.variance.ndim:
            return jnp.ones((), self.variance.dtype)
        return self.variance / jnp.maximum(jnp.sum(self._used), 1).astype(self.variance.dtype)

    @property
    def _used(self) -> Bool[Array, " factors"]:
        return jnp.any(self.scopes >= 0, axis=1)

    @property
    def _whole(self) -> Float[Array, " factors"]:
        """The variances before they are shared."""
        if self.alone:
            apart = jnp.arange(len(self.scopes)) >= self.alone
            return self.variance[apart.astype(int)] / self.alone
        return (
            self.variance if self.variance.ndim else jnp.ones(len(self.scopes), self.variance.dtype)
        )

    @property
    def length_scales(self) -> Float[Array, "factors arity"]:
        """The length scale of every variable of every factor."""
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
            total: Float[Array, "points points"], factor: Factor
        ) -> tuple[Float[Array, "points points"], None]:
            scope, scales, variance = factor
            return total + variance * self._correlations(scope, scales, squares), None

        factors = Factor(self.scopes, self.length_scales, self.variances)
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
        """A factor's part of `of_squares` if `scope` are its variables, but for its `share`."""
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

    Its gradient is products of matrices, in a fourth of the time of automatic differentiation.
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


class Sample(eqx.Module):
    """A function drawn from an additive process: f_I(x_I) = φ_I(x_I)'w_I + Σ_j v_j k_I(x_I, X_j).

    Random Fourier features of every factor, in turns, and the correction by the data.
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


def draw(
    key: Key,
    kernel: AdditiveKernel,
    noise: Scalar,
    X: Float[Array, "capacity dim"],
    y: Float[Array, " capacity"],
    inverse: Float[Array, "capacity capacity"],
    size: int,
) -> Sample:
    """A function given observations `y`, NaN where there is none; `inverse` as in `tables.tables`.

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
