"""Results and points that come from outside: read once, in whatever form, and checked.

Results may be given as

    (points, values)                    arrays or lists; on a `Space` parameters by name, too
    [{"lr": 0.1, "value": 3.2}, …]      a dictionary for each result, as `Trace.table` has them
    {"lr": [0.1, …], "value": [3.2, …]} a list for each column
    a DataFrame                         of the same columns

If several agents have objectives of their own, the column "agent" says whose a result is. A value
that is NaN or None is an evaluation that failed. If a method has outcomes, there is a column for
each, and `values` are dictionaries: a dictionary for each result, as the objective returns it, or a
dictionary of columns. Dictionaries may hold text alone, as `csv.DictReader` reads it (`_text`). A
point that rounding has moved out of the domain is moved back.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbo._check import reals, reals_or_none, require
from jaxbo.algos.base import _text
from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.domains.space import Space

#: Rounding of float32, and of what was computed in it, relative to the size of a coordinate.
ROUNDING = 2.0**-22
#: The column of the values, and that of the agents.
VALUE, AGENT = "value", "agent"
#: Columns of a table that say how it came to a result; a parameter may not have such a name.
ABOUT = ("round", "status", "error", "start", "seconds")
#: The status of a query whose evaluation has not ended.
RUNNING = "running"
#: What results may look like, for messages.
FORMS = (
    "(points, values), a list of dictionaries of the parameters and 'value', or a DataFrame of such "
    "columns"
)


class KnownRows(NamedTuple):
    """Results, a row at a time. A point and a value are NaN where an agent has fewer than others.

    `outcomes` come by name, in the method's order; they are NaN where the value is.
    """

    queries: Float[np.ndarray, "points agents dim"]
    values: Float[np.ndarray, "points agents"]
    outcomes: Mapping[str, Float[np.ndarray, "points agents"]] = {}


class KnownResult(NamedTuple):
    """A result: its agent, its point, and its value and outcomes, NaN if the evaluation failed."""

    agent: int
    x: np.ndarray
    numbers: list[float]


def read(
    given: Any, domain: AbstractDomain, agents: int, targets: int, outcomes: Sequence[str] = ()
) -> KnownRows:
    """Results of `agents`, of which `targets` are asked; `ValueError` that says which result is wrong.

    A row has all agents if any that is no target has a result, else the targets. `outcomes` are the
    names of the method's outcomes.
    """
    x, y = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    names = [VALUE, *outcomes]
    if _is_array(x):
        rows, numbers = _of_arrays(x, columns_of(y, names), names, domain, agents, targets)
    else:
        results = (
            _of_records(given, domain, agents, names)
            if x is None
            else _results(x, columns_of(y, names), domain, agents)
        )
        rows, numbers = _stacked(results, domain.dim, agents, targets, len(names))
    rows = _checked(rows, numbers, domain)
    failed = np.isnan(numbers).any(axis=0)
    known = dict(zip(names, np.where(failed, np.nan, numbers), strict=True))
    return KnownRows(rows, known.pop(VALUE), known)


def columns_of(values: Any, names: Sequence[str]) -> list[Any]:
    """Values, or of several `names` a column each; `ValueError` for a column too many or too few."""
    if names == [VALUE]:
        return [values]
    if not isinstance(values, Mapping):
        require(
            isinstance(values, Iterable) and all(isinstance(v, Mapping | None) for v in values),
            f"values must be dictionaries of {names}: one for each result, or one of columns.",
        )
        rows = [dict.fromkeys(names) if row is None else row for row in values]
        wrong = [i for i, row in enumerate(rows) if set(row) != set(names)]
        require(not wrong, f"value {(wrong or [0])[0]}: expected a dictionary of {names}.")
        values = {name: [row[name] for row in rows] for name in names}
    require(set(values) == set(names), f"values: expected columns {names}, got {list(values)}.")
    return [values[name] for name in names]


def points(given: Any, domain: AbstractDomain) -> Float[np.ndarray, "points dim"]:
    """Points of the domain; on a `Space` parameters by name, too. `ValueError` for a point outside."""
    if _is_array(given):
        found = reals("the points", given)
        require(
            found.ndim == 2 and found.shape[1] == domain.dim,
            f"expected points of shape (points, {domain.dim}), got {found.shape}.",
        )
    else:
        rows = [_point(row, f"point {i}", domain) for i, row in enumerate(_rows(given, "points"))]
        found = np.reshape(rows, (-1, domain.dim))
    return inside(_rounded(found), np.ones(len(found), bool), domain)


def point(x: Any, domain: AbstractDomain) -> Float[np.ndarray, " dim"]:
    """A point of the domain, in any of the forms above; `ValueError`, of the argument `x`, for
    another.
    """
    try:
        given = [x] if isinstance(x, Mapping) else reals("coordinates", x)[None]
        (found,) = points(given, domain)
    except ValueError as error:
        raise ValueError(f"x: {error}") from error
    return found


def inside(x: Float[Any, "points dim"], wanted: np.ndarray, domain: AbstractDomain) -> np.ndarray:
    """The points; points that float32 may have moved out of the domain are moved back to it.

    `ValueError` with the first of the `wanted` points that is NaN or outside.
    """
    x = np.asarray(x, jax.dtypes.canonicalize_dtype(float))
    finite = np.isfinite(x).all(axis=1)
    held = np.where(finite[:, None], x, 0)  # `jax_debug_nans` would stop for the others
    outside = ~_each(domain.contains, held) & finite
    if outside.any():
        nearest = _each(domain.project, held)
        size = np.abs(domain.points).max(axis=0) if isinstance(domain, Finite) else 1
        moved = outside & (np.abs(nearest - held) <= ROUNDING * size).all(axis=1)
        x, outside = np.where(moved[:, None], nearest, x), outside & ~moved
    if (wrong := (outside | ~finite) & wanted).any():
        row = int(np.argmax(wrong))
        about = "has numbers that are not finite" if not finite[row] else _outside(domain)
        raise ValueError(f"point {row}, {x[row]}, {about}.")
    return x


def _each(function: Callable[[Array], Array], x: np.ndarray) -> np.ndarray:
    """Of each point. Within a `jit` too: the points are known while it is traced."""
    if not len(x):
        return np.zeros(0, bool)
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.vmap(function)(jnp.asarray(x, float)))


def _outside(domain: AbstractDomain) -> str:
    if isinstance(domain, Space):
        return (
            "is outside of the space: give parameters by name, or what space.encode makes of them"
        )
    return f"is outside of the domain: give a point of {domain}"


def is_numeric(given: Any) -> bool:
    """Whether it is an array of numbers."""
    if isinstance(given, np.ndarray):
        return given.dtype.kind not in "OUS"
    return isinstance(given, jax.Array)


def _is_array(given: Any) -> bool:
    """Whether it is made of numbers alone."""
    if isinstance(given, np.ndarray | jax.Array):
        return True
    if not isinstance(given, Sequence) or isinstance(given, str):
        return False
    return all(_is_array(row) or isinstance(row, Real | np.generic) for row in given) and bool(
        given
    )


def _of_arrays(
    x: Any,
    columns: Sequence[Any],
    names: Sequence[str],
    domain: AbstractDomain,
    agents: int,
    targets: int,
) -> tuple[np.ndarray, np.ndarray]:
    queries, numbers = reals("the points", x), numbers_of(columns, names)
    y, values = columns[0], numbers[0]
    if agents == 1 and (shape := of_one(queries, values, domain.dim)):
        queries, values = queries.reshape(shape), values.reshape(shape[:-1])
    shape = f"(points, {domain.dim})" if agents == 1 else f"(points, {targets}, {domain.dim})"
    require(
        queries.ndim == 3
        and queries.shape[1] in (agents, targets)
        and queries.shape == (*values.shape, domain.dim),
        f"expected points of shape {shape} and a value of each, got {np.shape(x)} and {np.shape(y)}.",
    )
    return _rounded(queries), np.stack([column.reshape(values.shape) for column in numbers])


def of_one(x: Any, y: Any, dim: int) -> tuple[int, int, int] | None:
    """The shape of rows of points of a single agent, whose values may be a column; None for others."""
    rows, column = x.shape[:-1], (*x.shape[:1], 1)
    fit = x.shape[-1:] == (dim,) and (rows == y.shape or (len(rows) == 1 and y.shape == column))
    return (y.size, 1, dim) if fit else None


def _rounded(x: np.ndarray) -> np.ndarray:
    """Coordinates in JAX's precision. Coordinates too small for it are 0, as for JAX."""
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(float))
    with np.errstate(over="ignore"):  # an infinite coordinate is refused as one
        x = x.astype(dtype)
    return np.where(np.abs(x) < np.finfo(dtype).tiny, np.zeros((), dtype), x)


def numbers_of(columns: Sequence[Any], names: Sequence[str]) -> list[np.ndarray]:
    """An array of each column, all of the same shape; None is NaN. `ValueError` names the column."""
    labels = ["the values" if len(names) == 1 else f"column {name!r} of values" for name in names]
    pairs = list(zip(labels, columns, strict=True))
    for label, column in pairs:
        require(column is not None, f"{label} must be a value for each point, got None.")
    arrays = [reals_or_none(label, column) for label, column in pairs]
    for label, array in zip(labels, arrays, strict=True):
        shape = arrays[0].shape
        require(
            array.shape == shape,
            f"{label} has shape {array.shape}, and {labels[0]} has {shape}: give one number a point.",
        )
    return arrays


def _results(
    x: Any, columns: Sequence[Any], domain: AbstractDomain, agents: int
) -> list[KnownResult]:
    for y in columns:
        require(
            isinstance(y, Iterable) and not isinstance(y, str | bytes),
            f"values must be a value for each point, got {y!r}.",
        )
    rows, lists = _rows(x, "points"), [list(y) for y in columns]
    for values in lists:
        require(
            len(rows) == len(values),
            f"expected a value of each point, got {len(rows)} points and {len(values)} values.",
        )
    pairs = zip(rows, zip(*lists, strict=True), strict=True)
    return [_result(i, row, numbers, domain, agents) for i, (row, numbers) in enumerate(pairs)]


def _of_records(
    given: Any, domain: AbstractDomain, agents: int, names: Sequence[str]
) -> list[KnownResult]:
    taken = isinstance(domain, Space) and VALUE in domain.names
    require(
        not taken,
        f"a parameter is called {VALUE!r}: give results as (points, values).",
    )
    results = []
    for i, row in enumerate(_rows(given, "known results")):
        for name in names:
            require(
                name in row,
                f"result {i} has no {name!r}, only {list(row)!s:.300}: rename the column, or give "
                f"{FORMS}.",
            )
        if row.get("status") == RUNNING:
            continue
        rest = {name: item for name, item in row.items() if name not in names}
        results.append(_result(i, rest, [row[name] for name in names], domain, agents))
    return results


def _rows(given: Any, name: str) -> list[Mapping[str, Any]]:
    """A dictionary for each row."""
    require(
        not isinstance(given, str | bytes | PathLike),
        f"{name}: {given!r:.80} is a text and not read as a file: read it before, such as with "
        "pandas.read_csv or csv.DictReader.",
    )
    to_records = getattr(given, "to_dict", None)
    if callable(to_records) and hasattr(given, "columns"):
        given = to_records("records")
    if isinstance(given, Mapping):
        given = _of_columns(given, name)
    rows = list(given) if isinstance(given, Iterable) else None
    of_run = ": give its table()" if hasattr(given, "table") else ""  # a desk or a trace
    require(
        rows is not None and all(isinstance(row, Mapping) for row in rows),
        f"{name} must be {FORMS}, got {type(given).__name__}{of_run}.",
    )
    assert rows is not None
    return rows


def _of_columns(columns: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    for column, items in columns.items():
        require(
            isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping),
            f"{name}: column {column!r} must be a list, got {items!r}.",
        )
    lists = {column: list(items) for column, items in columns.items()}
    lengths = {column: len(items) for column, items in lists.items()}
    require(len(set(lengths.values())) <= 1, f"{name}: columns of other lengths, {lengths}.")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _result(
    i: int, row: Mapping[str, Any], numbers: Sequence[Any], domain: AbstractDomain, agents: int
) -> KnownResult:
    names = domain.names if isinstance(domain, Space) else ()
    if _text.is_text(row, numbers):
        row, numbers = _of_text(i, row, domain), [_text.number(text) for text in numbers]
    agent = _agent(i, 0 if agents == 1 or AGENT in names else row.get(AGENT), agents)
    about = [name for name in (*ABOUT, AGENT) if name not in names]
    point = {name: item for name, item in row.items() if name not in about}
    x = _point(point, f"result {i}", domain)
    return KnownResult(agent, x, [_value(i, number) for number in numbers])


def _of_text(i: int, row: Mapping[str, Any], domain: AbstractDomain) -> dict[str, Any]:
    try:
        return _text.from_text(row, domain)
    except ValueError as error:
        raise ValueError(f"result {i}: {error}") from error


def _agent(i: int, agent: Any, agents: int) -> int:
    if isinstance(agent, int | np.integer) and not isinstance(agent, bool) and 0 <= agent < agents:
        return int(agent)
    raise ValueError(
        f"result {i}: expected {AGENT!r}, the number of one of {agents} agents, got {agent!r}."
    )


def _point(row: Mapping[str, Any], name: str, domain: AbstractDomain) -> np.ndarray:
    try:
        columns = [f"x{i}" for i in range(domain.dim)]
        coordinates = set(row) == set(columns)  # as in a table that was made without its space
        if isinstance(domain, Space) and not (coordinates and set(row).isdisjoint(domain.names)):
            return domain.encode(row)
        require(coordinates, f"expected {columns}, got {list(row)}")
        return reals("coordinates", [row[column] for column in columns])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _value(i: int, value: Any) -> float:
    if value is None:
        return math.nan
    require(
        isinstance(value, Real | np.generic) and np.asarray(value).dtype.kind in "biuf",
        f"result {i}: the value must be a real number, or None where it failed, got {value!r}.",
    )
    return float(value)


def _stacked(
    results: Sequence[KnownResult], dim: int, agents: int, targets: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """In rows, each agent's in their order; `count` numbers of each."""
    results = sorted(results, key=lambda result: result.agent)
    of = {n: list(own) for n, own in itertools.groupby(results, lambda result: result.agent)}
    width = agents if any(n >= targets for n in of) else targets
    rows = max(map(len, of.values()), default=0)
    queries = np.full((rows, width, dim), np.nan)
    numbers = np.full((count, rows, width), np.nan)
    for n, own in of.items():
        for row, result in enumerate(own):
            queries[row, n], numbers[:, row, n] = result.x, result.numbers
    return _rounded(queries), numbers


def _checked(queries: np.ndarray, numbers: np.ndarray, domain: AbstractDomain) -> np.ndarray:
    """The points, in the domain; `ValueError` for others, and for values that no model can be told."""
    x, columns = queries.reshape(-1, domain.dim), numbers.reshape(len(numbers), -1)
    nobody = np.isnan(x).all(axis=1) & np.isnan(columns[0])
    x = inside(x, ~nobody, domain)
    largest = float(np.finfo(jax.dtypes.canonicalize_dtype(float)).max)
    for y in columns:
        if (wrong := ~(np.abs(y) <= largest) & ~np.isnan(y)).any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"value {row} is {y[row]}: give a finite number, or NaN where it failed."
            )
    return x.reshape(queries.shape)
