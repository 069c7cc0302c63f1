"""The top of a quadratic function that is fitted to an agent's best points.

    q(w) = a + g'w + w'Hw / 2,    x = best + A w       least squares of the k best values
    top  = argmax q(w) over |w| ≤ 2                      a trust-region step, by eigenvalues

Near a smooth peak a function is a quadratic. Few coefficients find its top to more digits than a process
whose noise has a floor. The k best points spread as the level sets do, so that `A` makes steep and flat
directions alike: their root mean square along each axis of w is 1. A full quadratic has `A` from all
their second moments. A sum of functions of single coordinates has a diagonal `A`. In many dimensions a
sum needs far fewer points.

Either form says how much of the k values' variance it explains, adjusted for its number of coefficients.
The form that explains more is taken, if that is enough. The best points are the best of those that are
remembered (`choosing.history`). With room for 128, a full quadratic is fitted in up to eleven dimensions,
and a sum in up to twenty.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbo.kernels.choosing.history import MOST, History, same
from jaxbo.types import Count, Flag, Point, Points, Scalar

#: Points for each coefficient, of a full quadratic and of a sum. With half as many, a sum explained
#: functions of many peaks.
_POINTS, _POINTS_OF_SUM = 1.5, 3.0
#: The longest step, in root mean squares of the best points along one axis. In many dimensions the points
#: themselves are farther from the best.
_RADIUS = 2.0
#: The least share of the variance that a quadratic must explain.
EXPLAINED = 0.9
#: Of coefficients beside the points, in root mean squares; of second moments, as a share.
_RIDGE, _SHARE = 1e-4, 1e-4
#: Halvings that find the multiplier of the trust-region step.
_HALVINGS = 40


class Top(NamedTuple):
    """Where a quadratic is largest, and its adjusted R², of the values that it is fitted to.

    R² is -inf if there are too few values, or if all are equal. The point may lie outside of the
    domain.
    """

    x: Point
    explained: Scalar

    @property
    def trusted(self) -> Flag:
        """Whether the quadratic explains enough."""
        return (self.explained >= EXPLAINED) & jnp.all(jnp.isfinite(self.x))


class Quadratic(NamedTuple):
    """q = a + slopes'v - v'diag(curvatures)v / 2 at x = first + axes v, and its adjusted R²."""

    first: Point
    axes: Float[Array, "dim dim"]
    slopes: Float[Array, " dim"]
    curvatures: Float[Array, " dim"]
    explained: Scalar


def top(past: History) -> Top | None:
    """The top of the quadratic that explains more, of a full one and a sum over coordinates.

    A form that needs more points than there is room for, or than `history.MOST`, is left out. None if
    both do.
    """
    rows, dim = min(past.x.shape[0], MOST), past.x.shape[1]
    forms = (points_of_all_pairs, of_all_pairs), (points_of_sum, of_single_coordinates)
    fitted = [form(past) for points, form in forms if points(dim) <= rows]
    if not fitted:
        return None
    found = functools.reduce(_better, fitted)
    step = largest(found.slopes, found.curvatures)
    return Top(found.first + found.axes @ step, found.explained)


def _better(one: Quadratic, other: Quadratic) -> Quadratic:
    """The one that explains more."""
    better = one.explained >= other.explained
    return jax.tree.map(lambda a, b: jnp.where(better, a, b), one, other)


class _Best(NamedTuple):
    """The best points about the first of them, in units of their root mean square in each coordinate.

    `values` are 0 for the best and -1 for the last.
    """

    first: Point
    units: Float[Array, " dim"]
    z: Float[Array, "points dim"]
    values: Float[Array, " points"]
    enough: Flag


def points_of_all_pairs(dim: int) -> int:
    """The points that a full quadratic is fitted to."""
    return math.ceil(_POINTS * (dim + 1) * (dim + 2) / 2)


def points_of_sum(dim: int) -> int:
    """The points that a sum over coordinates is fitted to."""
    return math.ceil(_POINTS_OF_SUM * (1 + 2 * dim))


def _best(past: History, count: int) -> _Best:
    ended = jnp.where(past.ended, past.values, jnp.finfo(past.values.dtype).min)
    ordered, places = jax.lax.top_k(ended, count)
    first, last = ordered[0], ordered[-1]
    enough = (jnp.sum(past.ended) >= count) & ~same(first, last)
    below = jnp.where(enough, ordered - first, 0)
    values = below / jnp.where(enough, first - last, 1)
    away = past.x[places] - past.x[places[0]][None, :]
    units = jnp.sqrt(jnp.mean(away**2, axis=0))
    z = away / jnp.where(units > 0, units, 1)[None, :]
    return _Best(past.x[places[0]], units, z, values, enough)


def of_all_pairs(past: History) -> Quadratic:
    """A full quadratic."""
    dim = past.x.shape[1]
    i, j = np.triu_indices(dim)
    best = _best(past, points_of_all_pairs(dim))
    moments = best.z.T @ best.z / best.z.shape[0]
    L = jnp.linalg.cholesky(moments + _SHARE * jnp.eye(dim, dtype=best.z.dtype))
    w = jax.scipy.linalg.solve_triangular(L, best.z.T, lower=True).T
    fitted, explained = _fit(w, w[:, i] * w[:, j], best)
    halves = jnp.zeros((dim, dim), w.dtype).at[i, j].set(fitted[1 + dim :])
    curvatures, turned = jnp.linalg.eigh(-(halves + halves.T))
    axes = best.units[:, None] * (L @ turned)
    return Quadratic(best.first, axes, turned.T @ fitted[1 : 1 + dim], curvatures, explained)


def of_single_coordinates(past: History) -> Quadratic:
    """A sum of quadratics of single coordinates."""
    dim = past.x.shape[1]
    best = _best(past, points_of_sum(dim))
    fitted, explained = _fit(best.z, best.z**2, best)
    slopes, curvatures = fitted[1 : 1 + dim], -2 * fitted[1 + dim :]
    return Quadratic(best.first, jnp.diag(best.units), slopes, curvatures, explained)


def _fit(w: Points, squares: Float[Array, "points terms"], best: _Best) -> tuple[Array, Scalar]:
    """Coefficients of 1, w and `squares`, and the adjusted R²."""
    terms = jnp.concatenate([jnp.ones_like(w[:, :1]), w, squares], axis=1)
    rows, columns = terms.shape
    ridge = _RIDGE * jnp.eye(columns, dtype=w.dtype)
    Q, R = jnp.linalg.qr(jnp.concatenate([terms, ridge]))
    fitted = jax.scipy.linalg.solve_triangular(R, Q[:rows].T @ best.values)
    left = jnp.sum((best.values - terms @ fitted) ** 2) / (rows - columns)
    spread = jnp.sum((best.values - jnp.mean(best.values)) ** 2) / (rows - 1)
    explained = 1 - left / jnp.where(best.enough, spread, 1)
    return fitted, jnp.where(best.enough, explained, -jnp.inf)


def largest(slopes: Point, curvatures: Float[Array, " dim"]) -> Point:
    """The largest of slopes'v - v'diag(curvatures)v / 2 over |v| ≤ the radius.

    Along an axis of negative curvature where the slope is 0 but for rounding, it stays at the saddle.
    """
    scale = jnp.maximum(jnp.max(jnp.abs(curvatures)), 1e-3)

    def length(multiplier: Scalar) -> Scalar:
        return jnp.linalg.norm(slopes / (curvatures + multiplier))

    least = jnp.maximum(-jnp.min(curvatures), 0) + 1e-6 * scale
    most = least + jnp.linalg.norm(slopes) / _RADIUS

    def halve(_: Count, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        long = length(middle) > _RADIUS
        return jnp.where(long, middle, low), jnp.where(long, high, middle)

    # The least multiplier is taken if it keeps within the radius. At a peak that is the top itself.
    inside = length(least) <= _RADIUS
    _, high = jax.lax.fori_loop(0, _HALVINGS, halve, (least, most))
    return slopes / (curvatures + jax.lax.select(inside, least, high))
