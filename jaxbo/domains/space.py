"""The domain of named parameters: between their values and the points of the unit cube."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxbo.domains.base import GRID, AbstractDomain, Axes, Cube, clip
from jaxbo.domains.parameters import Categorical, Integer, Parameter, Real
from jaxbo.types import Count, Flag, Key, Point, Points, Scalar


class Space(AbstractDomain):
    """Named parameters, in order, as a domain in the unit cube.

    A real or an integer takes one coordinate, k choices take k. Raises `ValueError` that names
    the parameter where bounds, scale or choices are impossible.

    >>> penalty = Real(0.01, 100.0, log=True)
    >>> space = Space(C=penalty, depth=Integer(1, 8), loss=Categorical("l1", "l2"))
    >>> space.dim
    4
    >>> x = space.encode({"C": 1.0, "depth": 3, "loss": "l2"})
    >>> x.tolist()
    [0.5, 0.3125, 0.0, 1.0]
    >>> space.decode(x)["depth"], space.decode(x)["loss"]
    (3, 'l2')

    `decode` and `encode` are for Python objectives, `unpack` for compiled ones. All three and
    `project` agree on integers and choices to the last bit: whoever evaluates, the surrogate
    and the objective see the same rounded point. Reals are rounded to multiples of 2^-24, below
    which float32 cannot tell two points near 1 apart; that makes `encode` the exact inverse of
    `decode`. The derivative of a real coordinate passes through the rounding.
    """

    parameters: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(self, mapping: Mapping[str, object] | None = None, /, **parameters: object):
        mapping = {} if mapping is None else mapping
        if not isinstance(mapping, Mapping):
            raise ValueError(
                f"a space is given parameters by name, got {mapping!r:.80}: write "
                "Space(x=Real(0.0, 1.0)), or Space({'x': Real(0.0, 1.0)})."
            )
        if both := sorted(set(mapping) & set(parameters)):
            raise ValueError(f"parameters {both} were given twice, expected each name once.")
        pairs = (*mapping.items(), *parameters.items())
        if not pairs:
            raise ValueError("a space needs a parameter, such as Space(x=Real(0.0, 1.0)).")
        self.parameters = tuple((name, _checked(name, value)) for name, value in pairs)
        self.dim = len(self._tables.owner)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(name for name, _ in self.parameters)

    def sample(self, key: Key, count: int) -> Points:
        """`count` independent draws, every integer and choice as likely as the next."""
        return jax.vmap(self._place)(Cube(len(self.parameters)).sample(key, count))

    def candidates(self, key: Key, count: int) -> Points:
        """`count` points of the space that cover it evenly; some coincide if nothing is real."""
        return jax.vmap(self._place)(Cube(len(self.parameters)).candidates(key, count))

    def project(self, x: Point) -> Point:
        """Reals clipped, integers to their cell's point, choices to the largest (first) one."""
        inside = Cube(self.dim).project(x)
        snapped = _snap(jnp, self._tables, inside)
        passed = inside + jax.lax.stop_gradient(snapped - inside)
        return jnp.where(self._tables.real, passed, snapped)

    def contains(self, x: Point) -> Flag:
        """Whether `x` is in the cube and its integers and choices are already rounded."""
        within = (x >= 0) & (x <= 1)
        return jnp.all(within & (self._tables.real | (x == self.project(x))))

    def axes(self, grid: int) -> Axes:
        """Every parameter is a variable: all of its values if they are no more than `grid`, else an
        even choice. `ValueError` for more choices than that."""
        tables = self._tables
        values = np.zeros((len(self.parameters), grid))
        for row, (name, parameter) in enumerate(self.parameters):
            try:
                values[row] = parameter.spread(grid)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}.") from None
        points = jax.vmap(self._place, in_axes=1, out_axes=1)(jnp.asarray(values, float))
        columns = np.where(tables.taken, tables.rows, -1)
        return Axes(columns, points, ~tables.categorical)

    def unpack(self, x: Point) -> dict[str, Scalar | Count]:
        """Values by name for compiled objectives: reals, int32 integers, int32 choice numbers.

        Reals are in the precision of `x`, bounds rounded inward; a compiled and a Python
        objective see the same value to a few units of that precision (on a log scale, times
        the size of the log).
        """
        x = self.project(x)
        cells = _cells(jnp, self._tables, x)
        reals = self._reals(x)
        values = {}
        for (name, parameter), start in zip(self.parameters, self._tables.starts, strict=True):
            real = isinstance(parameter, Real)
            offset = parameter.lower if isinstance(parameter, Integer) else 0
            values[name] = reals[start] if real else cells[start] + offset
        return values

    def decode(self, x: Float[ArrayLike, " dim"]) -> dict[str, Any]:
        """Values by name, on the host, as Python numbers and the choices themselves.

        In float64 whatever the precision of `x`; never outside the bounds.
        """
        x = np.asarray(x)
        if x.shape != (self.dim,):
            raise ValueError(f"x has shape {x.shape}, expected ({self.dim},): one point.")
        x = x.astype(np.result_type(x, np.float32))
        x = clip(np, x, np.zeros_like(x), np.ones_like(x))
        cells, reals = _cells(np, self._tables, x), _snap(np, self._tables, x)
        values: dict[str, Any] = {}
        for (name, parameter), start in zip(self.parameters, self._tables.starts, strict=True):
            if isinstance(parameter, Real):
                values[name] = parameter.decode(float(reals[start]))
            elif isinstance(parameter, Integer):
                values[name] = parameter.lower + int(cells[start])
            else:
                values[name] = parameter.choices[cells[start]]
        return values

    def encode(self, values: Mapping[str, Any]) -> Float[np.ndarray, " dim"]:
        """The point with these values, in JAX's default precision.

        Raises `ValueError` naming the parameter that is missing, unknown, out of range or not
        among its choices.
        """
        values = _by_name(values)
        if set(values) != set(self.names):
            missing = [name for name in self.names if name not in values]
            unknown = [name for name in values if name not in self.names]
            raise ValueError(f"missing parameters {missing}, unknown parameters {unknown}.")
        x: list[float] = []
        for name, parameter in self.parameters:
            try:
                x += parameter.encode(values[name])
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}.") from None
        return _snap(np, self._tables, np.asarray(x, jax.dtypes.canonicalize_dtype(float)))

    @property
    def _tables(self) -> "_Tables":
        return _tabulate(tuple(parameter for _, parameter in self.parameters))

    def _place(self, unit: Float[Array, " parameters"]) -> Point:
        """One coordinate a parameter to the point: a choice owns one k-th of its coordinate."""
        tables = self._tables
        x = unit[tables.owner]
        hot = jnp.floor(x * tables.cells.astype(x.dtype)).astype(jnp.int32) == tables.position
        return self.project(jnp.where(tables.categorical, hot.astype(x.dtype), x))

    def _reals(self, x: Point) -> Point:
        """User units of the real coordinates; the others hold nothing of use."""
        tables, largest = self._tables, np.finfo(x.dtype).max
        low, high, least, most = np.clip(tables.bounds, -largest, largest)
        value: Point = low.astype(x.dtype) * (1 - x) + high.astype(x.dtype) * x
        # exp only where it is meant: elsewhere it may overflow and spoil the derivative.
        power = jnp.exp(jnp.where(tables.log, value, jnp.zeros_like(value)))
        value = jnp.where(tables.log, power, value)
        return jnp.clip(value, *_inside(least, most, x.dtype))


class _Tables(NamedTuple):
    """What the arithmetic needs to know of each coordinate, and of each parameter."""

    owner: np.ndarray  # its parameter
    position: np.ndarray  # its place within the parameter
    cells: np.ndarray  # integers or choices of the parameter; 1 for reals and log integers
    real: np.ndarray  # a real that is no constant, which is treated as one cell
    log: np.ndarray  # a real on a log scale
    categorical: np.ndarray
    bounds: np.ndarray  # of reals: low and high where x is linear, then in the user's units
    rows: np.ndarray  # parameter -> its coordinates, padded with its first
    taken: np.ndarray  # where a row is not padding
    starts: tuple[int, ...]  # parameter -> its first coordinate
    searched: tuple[tuple[int, np.ndarray, np.ndarray], ...]  # log integers: edges and points


@functools.lru_cache(maxsize=128)
def _tabulate(parameters: tuple[Parameter, ...]) -> _Tables:
    """Host-side index tables; parameters that compare equal have equal tables."""
    sizes = [len(p.choices) if isinstance(p, Categorical) else 1 for p in parameters]
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
    owner = np.repeat(np.arange(len(parameters), dtype=np.int32), sizes)
    place = np.arange(max(sizes), dtype=np.int32)[None, :]
    taken = place < np.asarray(sizes)[:, None]
    real = [isinstance(p, Real) and not p.constant for p in parameters]
    bounds = [
        (*p.ends(), p.lower, p.upper) if isinstance(p, Real) else (0,) * 4 for p in parameters
    ]
    return _Tables(
        owner=owner,
        position=np.arange(len(owner), dtype=np.int32) - starts[owner],
        cells=np.asarray([_cell_count(p) for p in parameters])[owner],
        real=np.asarray(real)[owner],
        log=np.asarray([isinstance(p, Real) and p.log for p in parameters])[owner],
        categorical=np.asarray([isinstance(p, Categorical) for p in parameters])[owner],
        bounds=np.asarray(bounds, float)[owner].T,
        rows=starts[:, None] + np.where(taken, place, 0),
        taken=taken,
        starts=tuple(starts.tolist()),
        searched=tuple(
            (start, *p.cells())
            for p, start in zip(parameters, starts.tolist(), strict=True)
            if isinstance(p, Integer) and p.log
        ),
    )


def _cell_count(parameter: Parameter) -> int:
    if isinstance(parameter, Categorical):
        return len(parameter.choices)
    return parameter.size if isinstance(parameter, Integer) and not parameter.log else 1


# The same lines run as NumPy on the host and as JAX in compiled code (`xp` is either), and are
# made of operations with one correctly rounded result: no division but by powers of two, no
# logarithm, and no sum after a product that a compiler might fuse. So both give the same bits.


def _cells(xp: Any, tables: _Tables, x: Any) -> Any:
    """Which integer or choice each coordinate of a point of the cube stands for."""
    cells = tables.cells.astype(x.dtype)
    cell = xp.minimum(xp.floor(x * cells), cells - 1).astype(np.int32)
    # Padding repeats a parameter's first coordinate, so the first largest is never padding.
    largest = xp.argmax(x[tables.rows], axis=1).astype(np.int32)
    cell = xp.where(tables.categorical, largest[tables.owner], cell)
    for coordinate, edges, _ in tables.searched:
        edges = xp.asarray(edges.astype(x.dtype))
        found = xp.searchsorted(edges, x[coordinate], side="right").astype(np.int32)
        cell = xp.where(np.arange(len(tables.owner)) == coordinate, found, cell)
    return cell


def _snap(xp: Any, tables: _Tables, x: Any) -> Any:
    """The nearest point of a space to a point of the cube."""
    cell = _cells(xp, tables, x)
    hot = (cell == tables.position).astype(x.dtype)
    # One rounding of the center, far from the cell's ends: snapping twice changes nothing.
    center = (cell.astype(x.dtype) + 0.5) * (1 / tables.cells).astype(x.dtype)
    snapped = xp.where(tables.categorical, hot, center)
    # abs, because zero has two signs and only one of them comes back from a round trip.
    snapped = xp.where(tables.real, xp.abs(xp.round(x / GRID) * GRID), snapped)
    for coordinate, _, points in tables.searched:
        point = xp.asarray(points.astype(x.dtype))[cell[coordinate]]
        snapped = xp.where(np.arange(len(tables.owner)) == coordinate, point, snapped)
    return snapped


def _inside(least: np.ndarray, most: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Bounds in a lower precision, rounded toward the inside of the interval.

    A constant has no inside: its bounds are rounded to the nearest number.
    """
    low, high = least.astype(dtype), most.astype(dtype)
    inner = np.where(low < least, np.nextafter(low, low.dtype.type(np.inf)), low)
    outer = np.where(high > most, np.nextafter(high, high.dtype.type(-np.inf)), high)
    constant = least == most
    return np.where(constant, low, inner), np.where(constant, high, outer)


def _by_name(values: Any) -> Mapping[str, Any]:
    """A row of a table, such as a Series of pandas, is a mapping too."""
    if isinstance(values, Mapping):
        return values
    if not hasattr(values, "keys"):
        raise ValueError(
            f"values must be a dictionary of parameters by name, got {values!r:.80}; `decode` is for "
            "points."
        )
    return dict(values)


def _checked(name: str, parameter: object) -> Parameter:
    if not isinstance(parameter, Parameter):
        raise ValueError(
            f"parameter {name!r} is {parameter!r}, expected Real, Integer or Categorical."
        )
    if problem := parameter.problem():
        raise ValueError(f"parameter {name!r}: {problem}.")
    return parameter
