"""Covariance functions of two points.

    s = |(x - z) / length_scale|^2

    SquaredExponential   k(x, z) = variance exp(-s / 2)
    Matern12             k(x, z) = variance exp(-a),                   a = sqrt(s)
    Matern32             k(x, z) = variance (1 + a) exp(-a),           a = sqrt(3 s)
    Matern52             k(x, z) = variance (1 + a + a^2/3) exp(-a),   a = sqrt(5 s)

Each is a scale mixture of squared exponentials: with z a vector of standard normals and
`tau` from `kernel.mixing`, the frequency `tau z / length_scale` (radians per unit of x) is a draw
from the spectral density of `k / variance`, so E[cos(frequency'(x - z))] = k(x, z) / variance.

Any other function k(x, z) of two points serves where no spectral density is needed: exact processes
and inducing points. A model holds it as a `KernelFunction`.
"""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from jaxbo import _check
from jaxbo._extensible import Extensible
from jaxbo.types import Count, Flag, Key, Point, Scalar, as_pytree, floating, named

#: The order of the squared exponential.
SMOOTH = -1

#: A covariance function of two points. Every `AbstractKernel` is one, and so is any sum of them.
Covariance: TypeAlias = Callable[[Point, Point], Scalar]


class AbstractKernel(Extensible):
    """A stationary covariance function: hyperparameters, and its value at two points.

    `length_scale` is in units of x: a number (isotropic) or a number for each coordinate (ARD,
    automatic relevance determination). `variance` is the signal variance, k(x, x), in squared units
    of y. Both must be positive and finite, else `ValueError`. It is differentiable in both and in
    the points, at zero distance too. The precision of the result is that of the points.

    Kernels of many agents are a kernel with batched fields: `eqx.filter_vmap(Matern52)(scales)`.
    """

    #: The degree of a Matérn's polynomial, `SMOOTH` for the squared exponential, None for other forms.
    order: ClassVar[int | None] = None

    length_scale: Float[Array, "*dim"] = eqx.field(converter=named("length_scale"))
    variance: Scalar = eqx.field(converter=named("variance"), default=1.0)

    def __check_init__(self):
        _check.positive("length_scale", self.length_scale)
        _check.positive("variance", self.variance)
        self.check_shapes()

    def check_shapes(self) -> None:
        """Raises a `ValueError` for hyperparameters of a shape that the kernel has no use for."""
        if self.length_scale.ndim > 1 or self.variance.ndim > 0:
            raise ValueError(
                f"length_scale must be a number or a vector and variance a number, got shapes "
                f"{self.length_scale.shape} and {self.variance.shape}; "
                f"build one kernel per agent with eqx.filter_vmap."
            )

    def __call__(self, x: Point, z: Point) -> Scalar:
        """Returns k(x, z). `ValueError` if x, z and an ARD length scale differ in dimension."""
        if x.shape != z.shape or self.length_scale.shape not in ((), x.shape):
            raise ValueError(
                f"points of shapes {x.shape} and {z.shape} do not fit a length scale of shape "
                f"{self.length_scale.shape}; give one length scale, or one for each coordinate."
            )
        # The difference first: |x|^2 - 2 x'z + |z|^2 cancels, which float32 cannot afford.
        scaled = (x - z) / self.length_scale.astype(x.dtype)
        return self.variance.astype(x.dtype) * self.correlation(jnp.sum(scaled**2))

    @property
    def hyperparameters(self) -> dict[str, Float[Array, "..."]]:
        """Returns the fitted numbers, by the names of `fit.Bounds` and `fit.Priors`."""
        return {"length_scale": self.length_scale, "variance": self.variance}

    def with_hyperparameters(
        self, length_scale: Float[Array, "*scales"], variance: Float[Array, "*variances"]
    ) -> "AbstractKernel":
        """Makes the kernel of the same form with other hyperparameters.

        Args:
            length_scale: The new length scales.
            variance: The new variance.

        Returns:
            The kernel.
        """
        return eqx.tree_at(lambda k: (k.length_scale, k.variance), self, (length_scale, variance))

    @property
    def alike(self) -> Count | int:
        """Returns how many of the length scales are always the same number."""
        return 1

    def squares(self, X: Float[Array, "points dim"]) -> Float[Array, "scales points points"]:
        """Computes squared distances, all that `of_squares` needs of the points.

        Args:
            X: The points.

        Returns:
            The squared distances, which do not depend on the hyperparameters.
        """
        squares = (X.T[:, :, None] - X.T[:, None, :]) ** 2
        return squares if self.length_scale.ndim else jnp.sum(squares, axis=0, keepdims=True)

    def of_squares(
        self, squares: Float[Array, "scales points points"]
    ) -> Float[Array, "points points"]:
        """Computes k of all pairs of points.

        Args:
            squares: The result of `squares`.

        Returns:
            The matrix of k.
        """
        weights = jnp.ravel(self.length_scale) ** -2
        s = jnp.zeros_like(squares[0])
        for weight, square in zip(weights, squares, strict=True):
            s = s + weight * square
        return self.variance * jax.vmap(jax.vmap(self.correlation))(s)

    @abc.abstractmethod
    def correlation(self, s: Scalar) -> Scalar:
        """Computes k / variance as a function of the squared distance.

        Args:
            s: The squared distance in length scales.

        Returns:
            The correlation.
        """

    @abc.abstractmethod
    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        """Draws the positive scale `tau` of base frequencies.

        Args:
            key: Random key.
            count: Number of draws.

        Returns:
            Independent draws.
        """


class SquaredExponential(AbstractKernel):
    """The squared exponential kernel: paths are infinitely smooth.

        k(x, z) = variance exp(-s / 2),    s = |(x - z) / length_scale|²

    It is the kernel of the FTS and DP-FTS-DE papers.

    Args:
        length_scale: The length scale, above 0, in units of x: a number, or a number for each
            coordinate.
        variance: The signal variance k(x, x), above 0, in squared units of y. Default: 1.

    Raises:
        ValueError: A number is not positive and finite, or an array has another shape.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> kernel = jaxbo.SquaredExponential(0.5)
        >>> round(float(kernel(jnp.array([0.0]), jnp.array([0.5]))), 2)
        0.61
    """

    order: ClassVar[int | None] = SMOOTH

    def correlation(self, s: Scalar) -> Scalar:
        return jnp.exp(-s / 2)

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        del key  # frequencies are Gaussian as they are
        return jnp.ones((count,), self.length_scale.dtype)


class Matern12(AbstractKernel):
    """The Matérn kernel of smoothness 1/2: paths are continuous, and differentiable nowhere.

        k(x, z) = variance exp(-a),    a = |(x - z) / length_scale|

    The gradient at zero distance, where there is none, is taken as 0.

    Args:
        length_scale: The length scale, above 0, in units of x: a number, or a number for each
            coordinate.
        variance: The signal variance k(x, x), above 0, in squared units of y. Default: 1.

    Raises:
        ValueError: A number is not positive and finite, or an array has another shape.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> kernel = jaxbo.Matern12(0.5)
        >>> round(float(kernel(jnp.array([0.0]), jnp.array([0.5]))), 2)
        0.37
    """

    order: ClassVar[int | None] = 0

    def correlation(self, s: Scalar) -> Scalar:
        return _matern12(s)

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        return _student(key, count, 1, self.length_scale.dtype)


class Matern32(AbstractKernel):
    """The Matérn kernel of smoothness 3/2: paths are differentiable once.

        k(x, z) = variance (1 + a) exp(-a),    a = √3 |(x - z) / length_scale|

    Args:
        length_scale: The length scale, above 0, in units of x: a number, or a number for each
            coordinate.
        variance: The signal variance k(x, x), above 0, in squared units of y. Default: 1.

    Raises:
        ValueError: A number is not positive and finite, or an array has another shape.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> kernel = jaxbo.Matern32(0.5)
        >>> round(float(kernel(jnp.array([0.0]), jnp.array([0.5]))), 2)
        0.48
    """

    order: ClassVar[int | None] = 1

    def correlation(self, s: Scalar) -> Scalar:
        return _matern32(3 * s)

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        return _student(key, count, 3, self.length_scale.dtype)


class Matern52(AbstractKernel):
    """The Matérn kernel of smoothness 5/2: paths are differentiable twice.

        k(x, z) = variance (1 + a + a²/3) exp(-a),    a = √5 |(x - z) / length_scale|

    Args:
        length_scale: The length scale, above 0, in units of x: a number, or a number for each
            coordinate.
        variance: The signal variance k(x, x), above 0, in squared units of y. Default: 1.

    Raises:
        ValueError: A number is not positive and finite, or an array has another shape.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> kernel = jaxbo.Matern52(jnp.array([0.5, 2.0]), variance=4.0)
        >>> round(float(kernel(jnp.array([0.0, 0.0]), jnp.array([0.5, 0.0]))), 2)
        2.1
    """

    order: ClassVar[int | None] = 2

    def correlation(self, s: Scalar) -> Scalar:
        return _matern52(5 * s)

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        return _student(key, count, 5, self.length_scale.dtype)


class OneOf(AbstractKernel):
    """A kernel of any of several forms. The form is data, so kernels of different form share a program.

    `forms` are kernels whose own hyperparameters do not matter. If `isotropic`, the length scales
    of all coordinates are set to a common number, their geometric mean. `stack` makes a batch of
    such kernels.
    """

    forms: tuple[AbstractKernel, ...] = ()
    form: Count = eqx.field(converter=lambda form: jnp.asarray(form, int), default=0)
    isotropic: Flag = eqx.field(converter=jnp.asarray, default=False)

    def with_hyperparameters(
        self, length_scale: Float[Array, "*scales"], variance: Float[Array, "*variances"]
    ) -> "OneOf":
        common = jnp.exp(jnp.mean(jnp.log(length_scale)))
        length_scale = jnp.where(self.isotropic, common, length_scale)
        return eqx.tree_at(lambda k: (k.length_scale, k.variance), self, (length_scale, variance))

    @property
    def alike(self) -> Count:
        return jnp.where(self.isotropic, self.length_scale.size, 1)

    def correlation(self, s: Scalar) -> Scalar:
        orders = [form.order for form in self.forms]
        if None not in orders:
            order = jnp.asarray(orders)[self.form]
            return _of_order(order, (2 * order + 1).astype(s.dtype) * s)
        # Over a batch of forms all are computed at each pair of points.
        return jax.lax.switch(self.form, [lambda s, f=f: f.correlation(s) for f in self.forms], s)

    def mixing(self, key: Key, count: int) -> Float[Array, " features"]:
        keys = jr.split(key, len(self.forms))
        draws = [form.mixing(k, count) for form, k in zip(self.forms, keys, strict=True)]
        return jnp.stack(draws)[self.form]


class KernelFunction(eqx.Module):
    """A covariance function without a spectral density, such as a user's own.

    `function` is any k(x, z) of two points. If points are to be found by gradients it is
    differentiable in x, also at x = z. Its numbers are the numbers of a module, or the numbers that
    a `functools.partial` binds. Each is fitted as its `factor` times the given number. A plain
    function has none.
    """

    function: Covariance
    factors: Float[Array, " numbers"]

    def __init__(self, function: Covariance):
        numbers, rest = eqx.partition(as_pytree(function), eqx.is_inexact_array_like)
        numbers = jax.tree.map(floating, numbers)
        self.function = eqx.combine(numbers, rest)
        self.factors = jnp.ones(sum(leaf.size for leaf in jax.tree.leaves(numbers)))

    def __call__(self, x: Point, z: Point) -> Scalar:
        """k(x, z)."""
        numbers, rest = eqx.partition(self.function, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(numbers)
        factors = jnp.split(self.factors.astype(x.dtype), np.cumsum([leaf.size for leaf in leaves]))
        leaves = [
            leaf.astype(x.dtype) * factor.reshape(leaf.shape)
            for leaf, factor in zip(leaves, factors[:-1], strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(structure, leaves), rest)(x, z)

    @property
    def hyperparameters(self) -> dict[str, Float[Array, "..."]]:
        """The fitted numbers, by the names of `fit.Bounds` and `fit.Priors`."""
        return {"factor": self.factors}

    def with_hyperparameters(self, factors: Float[Array, " numbers"]) -> "KernelFunction":
        """The same function with other numbers."""
        return eqx.tree_at(lambda k: k.factors, self, factors)

    @property
    def alike(self) -> int:
        """No two factors are the same."""
        return 1

    def squares(self, X: Float[Array, "points dim"]) -> Float[Array, "points dim"]:
        """All that `of_squares` needs of the points: the points themselves."""
        return X

    def of_squares(self, X: Float[Array, "points dim"]) -> Float[Array, "points points"]:
        """k of all pairs of points."""
        return gram(self, X, X)


#: What models are made of: with a spectral density, or without.
Kernel: TypeAlias = AbstractKernel | KernelFunction


def as_kernel(kernel: Covariance) -> Kernel:
    """A kernel as it is, another function of two points as `KernelFunction`; else `ValueError`."""
    if isinstance(kernel, Kernel):
        return kernel
    _check.require(
        callable(kernel) and not isinstance(kernel, type),
        f"kernel must be one such as Matern52(0.2), or a function k(x, z) of two points, got {kernel!r}.",
    )
    return KernelFunction(kernel)


def forms(dim: int, length_scale: float = 0.3) -> tuple[AbstractKernel, ...]:
    """Kernels to choose from: smooth and rough, with a common length scale or a scale for each
    coordinate.
    """
    scales = jnp.full((dim,), length_scale)
    return (
        SquaredExponential(length_scale),
        SquaredExponential(scales),
        Matern32(scales),
        Matern52(scales),
    )


def stack(kernels: Sequence[AbstractKernel], dim: int) -> AbstractKernel:
    """Kernels of any forms as a single kernel with a leading axis, to be mapped over.

    Kernels of the same form stay as they are; kernels of several forms become `OneOf`. Length
    scales stay single numbers if all are, else there is a length scale for each of `dim`
    coordinates.

    `ValueError` for no kernels, a kernel without a spectral density, or a length scale that does
    not fit.
    """
    _check.require(len(kernels) > 0, "expected at least one kernel, got none.")
    for kernel in kernels:
        _check.require(
            isinstance(kernel, AbstractKernel),
            f"{kernel!r} has no spectral density: expected an AbstractKernel, such as Matern52(0.2).",
        )
        _check.require(
            kernel.length_scale.shape in ((), (dim,)),
            f"length_scale must be one number or one for each of the {dim} coordinates of a point, got "
            f"shape {kernel.length_scale.shape}.",
        )
    vectors = any(kernel.length_scale.ndim for kernel in kernels)
    shape = (dim,) if vectors else ()
    scales = [jnp.broadcast_to(kernel.length_scale, shape) for kernel in kernels]
    structures = [jax.tree.structure(kernel) for kernel in kernels]
    isotropic = [kernel.length_scale.ndim == 0 for kernel in kernels]
    if len(set(structures)) == 1 and (not vectors or not any(isotropic)):
        same = [k.with_hyperparameters(s, k.variance) for k, s in zip(kernels, scales, strict=True)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *same)
    # What has numbers beside length scale and variance is a form of its own.
    plain = [structure.num_leaves == 2 for structure in structures]
    names = [(s, -1 if p else i) for i, (s, p) in enumerate(zip(structures, plain, strict=True))]
    forms = dict(zip(names, kernels, strict=True))
    order = list(forms)
    members = [
        OneOf(scale, kernel.variance, tuple(forms.values()), order.index(name), vectors and alike)
        for kernel, scale, name, alike in zip(kernels, scales, names, isotropic, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


def gram(
    kernel: Covariance, X: Float[Array, "points dim"], Z: Float[Array, "others dim"]
) -> Float[Array, "points others"]:
    """k(x, z) for every x of X and z of Z."""
    return jax.vmap(lambda x: jax.vmap(lambda z: kernel(x, z))(Z))(X)


def _student(key: Key, count: int, degrees: int, dtype: jnp.dtype) -> Float[Array, " features"]:
    """sqrt(degrees / chi2_degrees): a Matern's spectral density is Student's t, degrees = 2 nu."""
    chi2 = jnp.sum(jr.normal(key, (count, degrees), dtype) ** 2, axis=1)
    # A draw of exactly 0 (about one in 10^7 in float32, degrees = 1) must not become infinite.
    return jnp.sqrt(degrees / jnp.maximum(chi2, jnp.finfo(dtype).tiny))


# The Materns as functions of S = a^2. Plain differentiation of sqrt(S) at S = 0 gives NaN, and
# guarding the root alone gives a wrong (zero) Hessian there. Each derivative is a smoother kernel's
# rougher relative, so all of them are exact and finite wherever the true one is:
#     d matern52 / dS = -matern32 / 6,   d matern32 / dS = -matern12 / 2,   a = sqrt(S).


def _root(S: Scalar) -> Scalar:
    """sqrt(S) with gradient 0 at 0."""
    return jnp.where(S > 0, jnp.sqrt(jnp.where(S > 0, S, 1)), 0)


def _matern12(S: Scalar) -> Scalar:
    return jnp.exp(-_root(S))


@jax.custom_jvp
def _matern32(S: Scalar) -> Scalar:
    a = _root(S)
    return (1 + a) * jnp.exp(-a)


@_matern32.defjvp
def _(primals, tangents):
    (S,), (dS,) = primals, tangents
    return _matern32(S), -_matern12(S) / 2 * dS


@jax.custom_jvp
def _matern52(S: Scalar) -> Scalar:
    a = _root(S)
    return (1 + a + S / 3) * jnp.exp(-a)


@_matern52.defjvp
def _(primals, tangents):
    (S,), (dS,) = primals, tangents
    return _matern52(S), -_matern32(S) / 6 * dS


# All four in one, so that a stack of several forms takes one exponential at each pair of points. The
# factor 2 order + 1 of the Materns is -1 for the squared exponential: its S is negative, and a is 0.


@jax.custom_jvp
def _of_order(order: Count, S: Scalar) -> Scalar:
    smooth, one, two = (part.astype(S.dtype) for part in (order == SMOOTH, order > 0, order > 1))
    a = _root(S)
    return (1 + one * a + two / 3 * S) * jnp.exp(smooth / 2 * S - a)


@_of_order.defjvp
def _(primals, tangents):
    (order, S), (_, dS) = primals, tangents
    a = _root(S)
    constant = jnp.where(order == SMOOTH, 1 / 2, jnp.where(order == 1, -1 / 2, -1 / 6))
    rough = jnp.where(a > 0, -1 / (2 * jnp.where(a > 0, a, 1)), 0)
    factor = jnp.where(order == 0, rough, constant.astype(S.dtype))
    return _of_order(order, S), factor * _of_order(jnp.where(order > 0, order - 1, order), S) * dS
