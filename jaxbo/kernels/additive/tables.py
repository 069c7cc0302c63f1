"""Beliefs of an additive process about each of its factors, on a grid of the factor's variables.

Observed is f = Σ_I f_I alone, but each f_I has a posterior of its own, with K of all of k:

    mean_I(x_I)     = k_I' (K + noise I)⁻¹ y                                     (DEC-HBO, eq. 1)
    variance_I(x_I) = k_I(x_I, x_I) - k_I' (K + noise I)⁻¹ k_I

`tables` has both on a grid, and `extend` brings them up to a further observation. With L⁻¹ the
inverse root of K + noise I and r its row for the new point, the change is w_I = Σ_j r_j k_I(x_I,
x_j). On a grid a squared exponential is a product over the axes, so w_I is a product of two
matrices. A whole table of two variables costs `grid² observations` multiplications, where making it
anew costs `grid² observations²`.

Tables are stacked by the number of their variables, an array for each of the kernel's groups: with
many small factors and a large factor, only a single table is large.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbo.kernels.additive.kernel import AdditiveKernel, Factor, Sample
from jaxbo.kernels.factors.graph import Tables
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import cos_turns, sin_turns

#: Factors whose tables are brought up to an observation at the same time.
_FACTORS = 16
#: Cells of a table that are made at the same time: each takes as many numbers as there are observations.
_CELLS = 4096


class GridTables(NamedTuple):
    """Posterior means of several outputs and the variance, for every factor on its grid, stacked by
    groups.
    """

    mean: tuple[Float[Array, "_factors outputs *_grid"], ...]
    variance: Tables


def tables(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    used: Bool[Array, " capacity"],
    inverse: Float[Array, "capacity capacity"],
    outputs: Float[Array, "outputs capacity"],
) -> GridTables:
    """Tables of all factors given observations, O(grid^variables capacity²) a factor.

    `points` are the grids of the coordinates, `used` the rows of `X` that hold an observation, `inverse`
    = L⁻¹ with L L' = K + noise I, and zero in the columns, save the diagonal, of the other rows, where
    `outputs` is zero.
    """
    alpha = dot(dot(outputs, inverse.T), inverse)  # K⁻¹y

    def one(factor: Factor) -> tuple[Float[Array, " outputs *grid"], Float[Array, "*grid"]]:
        variance = factor.variance
        first, *others = _axes(kernel, points, X, factor)

        def slab(
            row: Float[Array, " capacity"],
        ) -> tuple[Float[Array, " outputs *rest"], Float[Array, "*rest"]]:
            k = _joined(kernel, [row[None], *others])[0]
            grid = k.shape[:-1]
            k = jnp.where(used[None, :], variance * k.reshape(-1, k.shape[-1]), 0)
            w = dot(k, inverse.T)
            mean = dot(alpha, k.T).reshape(len(alpha), *grid)
            return mean, (variance - jnp.sum(w * w, axis=-1)).reshape(grid)

        cells = math.prod(len(axis) for axis in others)
        mean, left = jax.lax.map(slab, first, batch_size=min(len(first), max(1, _CELLS // cells)))
        return jnp.moveaxis(mean, 0, 1), left

    mean, variance = zip(*_of_factors(one, kernel), strict=True)
    return GridTables(mean, variance)


def extend(
    told: GridTables,
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    row: Float[Array, " capacity"],
    outputs: Float[Array, "outputs capacity"],
) -> GridTables:
    """The same tables after a further observation, whose row of L⁻¹ is `row`.

    O(grid^variables capacity) a factor.
    """
    white = dot(outputs, row)
    means, variances = [], []
    weighted = contract(kernel, points, X, row)
    for mean, variance, w in zip(*told, weighted, strict=True):
        of_outputs = white.reshape(1, -1, *(1,) * (w.ndim - 1))
        means.append(mean + w[:, None] * of_outputs)
        variances.append(variance - w * w)
    return GridTables(tuple(means), tuple(variances))


def contract(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    v: Float[Array, " capacity"],
) -> Tables:
    """Σ_j v_j k_I(x_I, X_j) of every factor on its grid."""

    def one(factor: Factor) -> Float[Array, "*grid"]:
        variance = factor.variance
        axes = _axes(kernel, points, X, factor)
        if isinstance(kernel.form, SquaredExponential):
            *others, last = (jnp.exp(-axis / 2) for axis in axes)
            grid = tuple(len(axis) for axis in axes)
            weighted = _product([v[None, :], *others]).reshape(-1, v.size)
            return variance * dot(weighted, last.T).reshape(grid)
        return variance * dot(_joined(kernel, axes), v)

    return _of_factors(one, kernel, at_once=_FACTORS)


def of_sample(drawn: Sample, points: Float[Array, "dim grid"]) -> Tables:
    """A function drawn from the process: f_I of every factor on its grid."""
    kernel = drawn.kernel

    def one(
        factor: Factor,
        frequencies: Float[Array, "features arity"],
        phases: Float[Array, " features"],
        weights: Float[Array, " features"],
    ) -> Float[Array, "*grid"]:
        scope, angles = factor.scope, []
        for axis in range(0, scope.size, kernel.width):
            u = jnp.zeros((points.shape[1], len(phases)), points.dtype)
            for place in range(axis, axis + kernel.width):
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

    prior = _of_factors(one, kernel, drawn.frequencies, drawn.phases, drawn.weights)
    return jax.tree.map(jnp.add, prior, contract(kernel, points, drawn.X, drawn.v))


def _of_factors(
    one: Callable[..., Any],
    kernel: AdditiveKernel,
    *more: Float[Array, "factors ..."],
    at_once: int | None = None,
) -> tuple[Any, ...]:
    """`one` of every factor and `more` of it, group by group: one factor after another, or `at_once` of
    them."""
    found = []
    for rows, places in kernel.members:
        scopes, scales = (a[rows, places] for a in (kernel.scopes, kernel.length_scales))
        factors = Factor(scopes, scales, kernel.variances[rows]), *(a[rows] for a in more)
        size = at_once and min(at_once, len(scopes))
        found.append(jax.lax.map(lambda each: one(*each), factors, batch_size=size))
    return tuple(found)


def _axes(
    kernel: AdditiveKernel,
    points: Float[Array, "dim grid"],
    X: Float[Array, "capacity dim"],
    factor: Factor,
) -> list[Float[Array, "grid capacity"]]:
    """Squared distances in length scales from the grid to the observations, of each variable."""
    places = []
    for v, scale in zip(factor.scope, factor.scales, strict=True):
        s = ((points[v][:, None] - X[:, v][None, :]) / scale) ** 2
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
