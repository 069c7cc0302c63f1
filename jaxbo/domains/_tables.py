"""Index tables of a space's parameters, and the arithmetic of their points, on the host and compiled."""

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxbo.domains.base import GRID
from jaxbo.domains.parameters import Categorical, Integer, Parameter, Real

#: Of every parameter: the numbers of others, each with the cells of which one must hold.
Conditions: TypeAlias = tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]


class Tables(NamedTuple):
    """Facts about each coordinate and each parameter, for the arithmetic below."""

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
    branches: tuple[tuple[int, tuple[tuple[int, np.ndarray], ...]], ...]  # which cells activate
    given: np.ndarray | None  # coordinates that are not chosen


@functools.lru_cache(maxsize=128)
def tabulate(
    parameters: tuple[Parameter, ...], conditions: Conditions, context: tuple[bool, ...]
) -> Tables:
    """Host-side index tables; parameters that compare equal have equal tables."""
    sizes = [p.size if isinstance(p, Categorical) else 1 for p in parameters]
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
    owner = np.repeat(np.arange(len(parameters), dtype=np.int32), sizes)
    place = np.arange(max(sizes), dtype=np.int32)[None, :]
    taken = place < np.asarray(sizes)[:, None]
    real = [isinstance(p, Real) and not p.constant for p in parameters]
    bounds = [
        (*p.ends(), p.lower, p.upper) if isinstance(p, Real) else (0,) * 4 for p in parameters
    ]
    return Tables(
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
        branches=tuple(
            (child, tuple((parent, _among(parameters[parent], cells)) for parent, cells in its))
            for child, its in enumerate(conditions)
            if its
        ),
        given=np.asarray(context)[owner] if any(context) else None,
    )


def _among(parent: Parameter, cells: tuple[int, ...]) -> np.ndarray:
    """A truth value for every cell of a parameter: whether it is among `cells`."""
    return np.isin(np.arange(_size(parent)), cells)


def _cell_count(parameter: Parameter) -> int:
    return 1 if isinstance(parameter, Integer) and parameter.log else _size(parameter)


def _size(parameter: Parameter) -> int:
    """The number of values: 1 for a real, which has no cells."""
    return 1 if isinstance(parameter, Real) else parameter.size


# The same lines run as NumPy on the host and as JAX in compiled code (`xp` is either), and are
# made of operations with one correctly rounded result: no division but by powers of two, no
# logarithm, and no sum after a product that a compiler might fuse. So both give the same bits.


def cells_of(xp: Any, tables: Tables, x: Any) -> Any:
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


def active(xp: Any, tables: Tables, x: Any) -> Any:
    """Which parameters a point of the cube has a place for: a parent stands before its children."""
    cell, found = cells_of(xp, tables, x), [xp.ones((), bool)] * len(tables.starts)
    for child, its in tables.branches:
        for parent, among in its:
            fits = xp.asarray(among)[cell[tables.starts[parent]]]
            found[child] = found[child] & found[parent] & fits
    return xp.stack(found)


def settled(xp: Any, tables: Tables, x: Any, given: Any) -> Any:
    """The point with the `given` values in their places, and with inactive parameters in their middle."""
    if given is not None:
        x = xp.where(tables.given, given.astype(x.dtype), x)
    if not tables.branches:
        return x
    return xp.where(active(xp, tables, x)[tables.owner], x, xp.full_like(x, 0.5))


def placed(xp: Any, tables: Tables, unit: Any) -> Any:
    """Makes a point of the cube of a coordinate for each parameter: a choice owns a k-th of its
    coordinate.
    """
    x = unit[tables.owner]
    hot = xp.floor(x * tables.cells.astype(x.dtype)).astype(np.int32) == tables.position
    return xp.where(tables.categorical, hot.astype(x.dtype), x)


def snap(xp: Any, tables: Tables, x: Any) -> Any:
    """The nearest point of a space to a point of the cube."""
    cell = cells_of(xp, tables, x)
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


def inside(least: np.ndarray, most: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Bounds in a lower precision, rounded toward the inside of the interval.

    A constant has no inside: its bounds are rounded to the nearest number.
    """
    low, high = least.astype(dtype), most.astype(dtype)
    inner = np.where(low < least, np.nextafter(low, low.dtype.type(np.inf)), low)
    outer = np.where(high > most, np.nextafter(high, high.dtype.type(-np.inf)), high)
    constant = least == most
    return np.where(constant, low, inner), np.where(constant, high, outer)
