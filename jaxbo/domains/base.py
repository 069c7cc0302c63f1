"""The places of queries: a cube, a finite set, and the boxes of a cube.

    Cube      x in [0, 1]^dim
    Finite    x in {points_1, ..., points_n}
    Regions   region r is the box [c_j / splits_j, (c_j + 1) / splits_j) over j, closed at x_j = 1

Everything is written for a single point and works under `jit` and `vmap`. Domains without arrays have
only static fields: equal domains do not retrace. `space.Space` is the domain of named parameters.
"""

import functools
import math
from abc import abstractmethod
from typing import Any, Final, NamedTuple, TypeAlias

import equinox as eqx
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxbo._check import require, whole
from jaxbo._extensible import Extensible
from jaxbo.types import Count, Flag, Key, Point, Points, about, named

Region: TypeAlias = Int[ArrayLike, ""]

#: float32 holds every multiple of 2^-24 in [0, 1], and above 1/2 nothing finer.
GRID: Final = 2.0**-24
#: With more cells along an axis they hold fewer than 16 points of the grid and are visibly unequal.
MOST_CELLS: Final = 2**20
#: Up to here the golden lattice covers better than Sobol points; beyond, its projections are worse.
LATTICE_DIM: Final = 3
#: From here on Sobol points cover no better than independent draws.
SOBOL_DIM: Final = 20


class Axes(NamedTuple):
    """The variables of a domain, each with a grid of its own, for searches variable by variable.

    A variable has a single coordinate or, a choice, several.
    """

    columns: Int[np.ndarray, "variables width"]  # its coordinates, -1 fills up
    points: Float[Array, "dim grid"]  # of every coordinate, at each point of its variable's grid
    ordered: Bool[np.ndarray, " dim"]  # whether a part of the axis is an interval

    @property
    def owners(self) -> Int[np.ndarray, " dim"]:
        """The variable of every coordinate."""
        return np.argmax(
            np.any(self.columns[:, :, None] == np.arange(len(self.ordered)), axis=1), axis=0
        )


class AbstractDomain(Extensible):
    """A set of points on the scale of the unit cube."""

    dim: eqx.AbstractVar[int]

    @abstractmethod
    def sample(self, key: Key, count: int) -> Points:
        """Draws independent uniform points.

        Args:
            key: Random key.
            count: Number of points.

        Returns:
            The points.
        """

    @abstractmethod
    def candidates(self, key: Key, count: int) -> Points:
        """Gives points that cover the domain evenly, from which a maximizer starts.

        If neighbors in this list are neighbors along the first axis, equal shares of the list are
        slabs.

        Args:
            key: Random key.
            count: Number of points.

        Returns:
            The points.
        """

    @abstractmethod
    def project(self, x: Point) -> Point:
        """Gives the nearest point of the domain.

        Args:
            x: A point. If it is not finite, the result is any point of the domain.

        Returns:
            A point of the domain.
        """

    @abstractmethod
    def contains(self, x: Point) -> Flag:
        """Says whether a point is in the domain.

        Args:
            x: A point.

        Returns:
            Whether it is.
        """

    @property
    def constrained(self) -> bool:
        """Whether `project` may give points that are not in the domain. `allows` then says which."""
        return False

    def allows(self, x: Point) -> Flag:
        """Says whether a point that `project` gave is in the domain.

        Args:
            x: A point that `project` gave.

        Returns:
            Whether it is.
        """
        del x
        return jnp.ones((), bool)

    @property
    def product(self) -> "AbstractDomain":
        """The smallest domain around this one that has all combinations of its variables' values."""
        return self

    def axes(self, grid: int) -> Axes:
        """Gives a grid for every variable.

        Here each coordinate is a variable, evenly cut.

        Args:
            grid: Number of points for each variable.

        Returns:
            The variables with their grids.
        """
        points = jnp.broadcast_to(jnp.linspace(0, 1, grid), (self.dim, grid))
        return Axes(np.arange(self.dim)[:, None], points, np.ones(self.dim, bool))


class Cube(AbstractDomain):
    """The unit cube [0, 1]^dim.

    Args:
        dim: Number of coordinates, at least 1.

    Raises:
        ValueError: `dim` is not a positive whole number.

    Example:
        >>> import jax, jaxbo
        >>> square = jaxbo.Cube(2)
        >>> square.sample(jax.random.key(0), 5).shape
        (5, 2)
        >>> square.project(jax.numpy.array([0.5, 7.0])).tolist()
        [0.5, 1.0]
    """

    dim: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _natural("dim", self.dim)

    def sample(self, key: Key, count: int) -> Points:
        """Draws independent uniform points.

        Args:
            key: Random key.
            count: Number of points, at least 1.

        Returns:
            The points.
        """
        _natural("count", count)
        return jr.uniform(key, (count, self.dim), dtype=float)

    def candidates(self, key: Key, count: int) -> Points:
        """Gives points that cover the cube evenly, each of which is uniform by itself.

        Up to dimension 3 they are a golden lattice with a random shift. Up to 20 they are Sobol points
        with a digital shift, which cover better there; their table is a constant of the compiled
        program. Beyond 20 they are independent draws, because neither is better. Up to 20 they are in
        order along the first axis before the shift, which moves the place where the list begins.

        Args:
            key: Random key.
            count: Number of points, at least 1.

        Returns:
            The points.
        """
        _natural("count", count)
        if self.dim > SOBOL_DIM:
            return self.sample(key, count)
        shift = jr.bits(key, (1, self.dim), jnp.uint32)
        if self.dim > LATTICE_DIM:
            return _unit_interval(jnp.asarray(_in_order(_sobol(self.dim, count))) ^ shift)
        index = np.arange(count, dtype=np.uint32)[:, None]
        return _unit_interval(jnp.asarray(_in_order(index * _golden(self.dim))) + shift)

    def project(self, x: Point) -> Point:
        """Clips a point to the cube.

        Args:
            x: A point. A coordinate that is NaN becomes 0.

        Returns:
            The nearest point of the cube.
        """
        return clip(jnp, x, jnp.zeros_like(x), jnp.ones_like(x))

    def contains(self, x: Point) -> Flag:
        """Says whether a point is in the closed cube.

        Args:
            x: A point.

        Returns:
            True inside and on the border.
        """
        return jnp.all((x >= 0) & (x <= 1))


class Finite(AbstractDomain):
    """The rows of a matrix of points.

    The numbers may be any finite numbers, but maximizers expect the scale of the unit cube. Rows may be
    equal.

    Args:
        points: The points.

    Raises:
        ValueError: `points` is not a matrix, is empty or not finite, or JAX's precision makes different
            rows equal.

    Example:
        >>> import jax, jaxbo
        >>> grid = jaxbo.Finite(jax.numpy.array([[0.0], [0.5], [1.0]]))
        >>> grid.project(jax.numpy.array([0.6])).tolist()
        [0.5]
    """

    points: Points
    dim: int = eqx.field(static=True)

    def __init__(self, points: ArrayLike):
        given, points = points, named("points")(points)
        if points.ndim != 2 or 0 in points.shape:
            raise ValueError(f"points has shape {points.shape}, expected (points, dim), neither 0.")
        finite = jnp.isfinite(points)
        require(finite, "points must be finite, got nan or inf: leave those rows out.")
        _must_differ(given, points)
        self.points = points
        self.dim = points.shape[1]

    def sample(self, key: Key, count: int) -> Points:
        """Draws rows uniformly, with replacement.

        Args:
            key: Random key.
            count: Number of points, at least 1.

        Returns:
            The points.
        """
        _natural("count", count)
        return self.points[jr.randint(key, (count,), 0, self.points.shape[0])]

    def candidates(self, key: Key, count: int) -> Points:
        """Gives all points.

        Args:
            key: Not used.
            count: Not used.

        Returns:
            The points.
        """
        del key, count
        return self.points

    def project(self, x: Point) -> Point:
        """Gives the nearest row in Euclidean distance, and the first of rows that are as near.

        Args:
            x: A point.

        Returns:
            The row.
        """
        offset = jnp.abs(self.points - x[None, :])
        # Divided by the largest offset, so that squares neither overflow nor vanish.
        scale = jnp.max(offset, axis=1, keepdims=True)
        ratio = offset / jnp.where(scale > 0, scale, jnp.ones_like(scale))
        distance = scale[:, 0] * jnp.sqrt(jnp.sum(ratio**2, axis=1))
        return self.points[jnp.argmin(distance)]

    @property
    def product(self) -> Cube:
        """The cube, because the rows may be anywhere."""
        return Cube(self.dim)

    def contains(self, x: Point) -> Flag:
        """Says whether a point equals a row exactly.

        Args:
            x: A point.

        Returns:
            Whether it does.
        """
        return jnp.any(jnp.all(self.points == x[None, :], axis=1))


def _must_differ(given: ArrayLike, points: Points) -> None:
    """`ValueError` for rows that differ as they were given, and no longer as `points`."""
    if isinstance(given, jax.Array) or isinstance(points, jax.core.Tracer):
        return
    rows = np.asarray(given)
    _, first, again = np.unique(np.asarray(points), axis=0, return_index=True, return_inverse=True)
    merged = np.flatnonzero((rows != rows[first[again.reshape(-1)]]).any(axis=1))
    if merged.size:
        a, b = int(first[again.reshape(-1)][merged[0]]), int(merged[0])
        raise ValueError(
            f"points {a} and {b} differ, but {points.dtype} makes them equal: shift or scale them, or "
            "leave one out."
        )


class Regions(eqx.Module):
    """The unit cube cut into equal boxes, numbered row by row.

    A box is half open, and closed at the end of an axis. So every point of the cube is in exactly one
    box. A region is a number from 0 to `count` - 1, which may be traced.

    Args:
        splits: Number of boxes along each axis, at most 2^20, and fewer than 2^31 in all.

    Raises:
        ValueError: `splits` is empty, has an entry below 1, or makes too many regions.

    Example:
        >>> import jax, jaxbo
        >>> regions = jaxbo.Regions((2, 2))
        >>> int(regions.assign(jax.numpy.array([0.2, 0.7])))
        1
        >>> jaxbo.Regions.of(dim=3, count=4).splits
        (2, 2, 1)
    """

    splits: tuple[int, ...] = eqx.field(static=True, converter=about("splits", tuple))

    def __check_init__(self) -> None:
        if not self.splits:
            raise ValueError("splits is empty, expected one whole number for each axis.")
        for split in self.splits:
            _natural("every entry of splits", split)
        if math.prod(self.splits) >= 2**31 or max(self.splits) > MOST_CELLS:
            raise ValueError(
                f"splits {self.splits} make too many regions: at most {MOST_CELLS} along an "
                "axis, fewer than 2^31 in all."
            )

    @classmethod
    def of(cls, dim: int, count: int) -> "Regions":
        """Cuts the cube into boxes that are as even as possible.

        The splits have the smallest sum among all splits with this product. The first axes are cut
        most.

        Args:
            dim: Number of coordinates, at least 1.
            count: Number of regions, at least 1.

        Returns:
            The regions.
        """
        _natural("dim", dim)
        _natural("count", count)
        # A product of more than log2(count) factors has some equal to 1.
        axes = min(dim, count.bit_length())
        return cls(_even(axes, count) + (1,) * (dim - axes))

    @property
    def dim(self) -> int:
        """The number of coordinates of a point."""
        return len(self.splits)

    @property
    def count(self) -> int:
        """The number of regions."""
        return math.prod(self.splits)

    @property
    def lower(self) -> Float[Array, "regions dim"]:
        """The least corner of each region. It belongs to the region."""
        return jnp.asarray(self._indices() / np.asarray(self.splits)[None, :], float)

    @property
    def upper(self) -> Float[Array, "regions dim"]:
        """The greatest corner of each region. It belongs to the region on the cube's border alone."""
        return jnp.asarray((self._indices() + 1) / np.asarray(self.splits)[None, :], float)

    def assign(self, x: Point) -> Count:
        """Gives the region of a point.

        Args:
            x: A point. Outside of the cube it belongs to the nearest box along each axis.

        Returns:
            The number of the region.
        """
        # Compared with the very numbers that `project` clips to: floor(x n) can miss by one.
        lower, _ = self._boxes(x.dtype)
        cells = jnp.sum(x[:, None] >= lower[:, 1:], axis=1, dtype=int)
        return jnp.sum(cells * self._strides())

    def sample(self, key: Key, region: Region, count: int) -> Points:
        """Draws independent uniform points of a region.

        Args:
            key: Random key.
            region: Number of the region.
            count: Number of points, at least 1.

        Returns:
            The points.
        """
        _natural("count", count)
        draws = jr.uniform(key, (count, self.dim), dtype=float)
        lower, last = (edge[None, :] for edge in self.box(region, draws.dtype))
        return clip(jnp, lower + draws * (last - lower), lower, last)

    def box(self, region: Region, dtype: Any = float) -> tuple[Point, Point]:
        """Gives the least and the greatest point of a region, which are both in it.

        Args:
            region: Number of the region.
            dtype: The precision of the points.

        Returns:
            The two points.

        Raises:
            ValueError: There is no such region.
        """
        region = jnp.asarray(region, int)
        require(
            (region >= 0) & (region < self.count),
            f"region must be at least 0 and below count, {self.count}, got {region}.",
        )
        cells = region // self._strides() % jnp.asarray(self.splits)
        lower, last = (
            jnp.take_along_axis(table, cells[:, None], axis=1)[:, 0] for table in self._boxes(dtype)
        )
        return lower, last

    def project(self, region: Region, x: Point) -> Point:
        """Gives the nearest point of a region, to which `assign` gives this region to the last bit.

        Args:
            region: Number of the region.
            x: A point.

        Returns:
            A point of the region.
        """
        return clip(jnp, x, *self.box(region, x.dtype))

    def contains(self, region: Region, x: Point) -> Flag:
        """Says whether a point is in a region.

        Args:
            region: Number of the region.
            x: A point.

        Returns:
            Whether it is.
        """
        lower, last = self.box(region, x.dtype)
        return jnp.all((x >= lower) & (x <= last))

    def _strides(self) -> np.ndarray:
        return np.asarray([math.prod(self.splits[j + 1 :]) for j in range(self.dim)], int)

    def _indices(self) -> np.ndarray:
        return np.arange(self.count)[:, None] // self._strides()[None, :] % self.splits

    def _boxes(self, dtype: Any) -> tuple[Array, Array]:
        """First and last floating number of each cell of each axis; no number beyond the last."""
        cells = np.arange(max(self.splits))[None, :]
        splits = np.asarray(self.splits)[:, None]
        lower = np.where(cells < splits, cells / splits, np.inf).astype(dtype)
        above = ((cells + 1) / splits).astype(dtype)
        last = np.where(cells + 1 < splits, np.nextafter(above, np.zeros_like(above)), 1)
        return jnp.asarray(lower), jnp.asarray(last, dtype)


def clip(xp: Any, x: Any, lower: Any, upper: Any) -> Any:
    """Clipped to the bounds; NaN becomes the lower bound."""
    return xp.where(xp.isnan(x), lower, xp.clip(x, lower, upper))


def _unit_interval(bits: Array) -> Points:
    """Fixed-point fractions of 2^32 as numbers in [0, 1): the 24 leading bits are exact."""
    return (bits >> 8).astype(float) * GRID


def _in_order(points: np.ndarray) -> np.ndarray:
    """By their first coordinate: here, so that no maximizer need sort them."""
    return points[np.argsort(points[:, 0])]


def _golden(dim: int) -> np.ndarray:
    """Steps of the lattice as fractions of 2^32: powers of 1/g where g^(dim + 1) = g + 1.

    In whole numbers, whose products wrap around by themselves: fractional parts of i / g^j in
    float32 lose their last digits as i grows.
    """
    ratio = 2.0
    for _ in range(64):  # a contraction by at least 1/2 a step: float64 is reached before
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = (ratio ** -np.arange(1.0, dim + 1) * 2**32).astype(np.uint32)
    return (steps | 1)[None, :]  # odd: 2^32 points before one returns


def _sobol(dim: int, count: int) -> np.ndarray:
    """The first Sobol points as fractions of 2^32."""
    # Imported late: it takes as long as the rest of the package.
    from scipy.stats import qmc

    bits = 32
    points = qmc.Sobol(dim, scramble=False, bits=bits).random_base2((count - 1).bit_length())
    return (points[:count] * 2.0**bits).astype(np.uint32)


@functools.lru_cache(maxsize=1024)
def _even(axes: int, count: int) -> tuple[int, ...]:
    """The factors of `count`, largest first, with the smallest sum."""
    if axes == 1:
        return (count,)
    small = [n for n in range(1, math.isqrt(count) + 1) if count % n == 0]
    divisors = {*small, *(count // n for n in small)}
    splits = ((*_even(axes - 1, count // n), n) for n in divisors)
    return tuple(sorted(min(splits, key=sum), reverse=True))


def _natural(name: str, number: int) -> None:
    whole(name, number, least=1)
