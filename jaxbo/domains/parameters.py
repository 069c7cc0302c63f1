"""Named parameters, each with its coordinates on the unit interval.

value = lower + (upper - lower) x              a real number
value = lower^(1 - x) upper^x                  a real number on a log scale
value = lower + floor(x n)                     one of n integers (log: steps of log)
value = choices[argmax(x_1, ..., x_k)]         one of k choices, k coordinates

NumPy's numbers become Python's when a parameter is made, so that their width limits nothing and JSON
can write decoded values. Values to encode may have been through a table or through JSON.
"""

import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np

from jaxbo.domains.base import MOST_CELLS

#: Bounds closer than this, relative to their size, leave float32 too few values between them.
NARROWEST: Final = 2.0**-20
#: Float32 takes smaller numbers for 0, and has no larger ones.
SMALLEST, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


@dataclass(frozen=True, init=False)
class Real:
    """A real number from `lower` to `upper`, both included; `log`: evenly spread in its log.

    Equal bounds make a constant. Float32 must hold both bounds and numbers between them.
    """

    lower: float | int
    upper: float | int
    log: bool

    def __init__(
        self, lower: SupportsFloat, upper: SupportsFloat, log: bool | np.bool_ = False
    ) -> None:
        _set(self, lower=lower, upper=upper, log=log)

    def problem(self) -> str:
        """Why this is no parameter, or nothing."""
        bounds = self.lower, self.upper
        if not all(isinstance(bound, int | float) for bound in bounds):
            return f"bounds must be numbers, got {self.lower!r} and {self.upper!r}"
        if not all(math.isfinite(bound) for bound in bounds if isinstance(bound, float)):
            return f"bounds must be finite, got {self.lower} and {self.upper}"
        if not self.lower <= self.upper:
            return f"lower must not exceed upper, got {self.lower} and {self.upper}"
        if self.log and not self.lower > 0:
            return f"a log scale needs a positive lower bound, got {self.lower}"
        if not self._resolved():
            return f"float32 cannot resolve [{self.lower}, {self.upper}]: shift or scale it"
        return ""

    def _resolved(self) -> bool:
        """Whether float32 holds the bounds and, unless they are equal, numbers between them."""
        if not all(b == 0 or SMALLEST <= abs(b) <= LARGEST for b in (self.lower, self.upper)):
            return False
        low, high = self.ends()
        least = NARROWEST * max(abs(low), abs(high), float(self.log))
        return self.constant or least < high - low <= LARGEST

    @property
    def constant(self) -> bool:
        """Whether there is one value only; its point is then in the middle, as an integer's is."""
        return self.lower == self.upper

    def ends(self) -> tuple[float, float]:
        """The bounds on the scale that x is linear in."""
        low, high = float(self.lower), float(self.upper)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def decode(self, x: float) -> float:
        """The value at coordinate `x`, exact at both ends."""
        low, high = float(self.lower), float(self.upper)
        value = low ** (1 - x) * high**x if self.log else low * (1 - x) + high * x
        return min(max(value, low), high)

    def encode(self, value: Any) -> list[float]:
        """The coordinate of `value`."""
        number = _clipped(_number(value), self.lower, self.upper)
        if number is None:
            raise ValueError(f"{value!r} is not in [{self.lower}, {self.upper}]")
        if self.constant:
            return [0.5]
        low, high = self.ends()
        return [((math.log(number) if self.log else number) - low) / (high - low)]

    def spread(self, grid: int) -> np.ndarray:
        """So many coordinates to look at, evenly; a constant repeats its point."""
        return np.full(grid, 0.5) if self.constant else np.linspace(0, 1, grid)


@dataclass(frozen=True, init=False)
class Integer:
    """A whole number from `lower` to `upper`, both included.

    The unit interval is cut into one cell a number, of equal length; `log`: number k owns the
    logs from k - 1/2 to k + 1/2 and its point is log k. At most 2^20 numbers within int32; on a
    log scale, fewer than float32 can tell apart (1 to 500 000, say).
    """

    lower: int
    upper: int
    log: bool

    def __init__(
        self, lower: SupportsIndex, upper: SupportsIndex, log: bool | np.bool_ = False
    ) -> None:
        _set(self, lower=lower, upper=upper, log=log)

    def problem(self) -> str:
        """Why this is no parameter, or nothing."""
        try:
            lower, upper = operator.index(self.lower), operator.index(self.upper)
        except TypeError:
            return f"bounds must be whole numbers, got {self.lower!r} and {self.upper!r}"
        if not lower <= upper:
            return f"lower must not exceed upper, got {lower} and {upper}"
        if self.log and lower < 1:
            return f"a log scale needs a positive lower bound, got {lower}"
        if lower < -(2**31) or upper >= 2**31:
            return f"bounds must fit int32, got {lower} and {upper}"
        if upper - lower >= MOST_CELLS or (self.log and not self._resolved()):
            return f"too many numbers from {lower} to {upper}: use Real and round in the objective"
        return ""

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """On a log scale: where one number's cell ends and the next begins; each one's point."""
        numbers = np.arange(self.lower, self.upper + 1)
        edges = np.log(np.append(numbers, self.upper + 1) - 0.5)
        width = edges[-1] - edges[0]
        return (edges[1:-1] - edges[0]) / width, (np.log(numbers) - edges[0]) / width

    def encode(self, value: Any) -> list[float]:
        """The coordinate of `value`."""
        number = _number(value)
        if not (self.lower <= number <= self.upper and number == int(number)):
            raise ValueError(f"{value!r} is no whole number in [{self.lower}, {self.upper}]")
        cell = int(number) - self.lower
        return [self.cells()[1][cell] if self.log else (cell + 0.5) / self.size]

    def spread(self, grid: int) -> np.ndarray:
        """So many coordinates to look at: of all numbers, if they are no more; the last one repeated."""
        if self.size > grid:
            return np.linspace(0, 1, grid)
        values = [self.encode(self.lower + i)[0] for i in range(self.size)]
        return np.asarray(values)[np.minimum(np.arange(grid), self.size - 1)]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.upper - self.lower + 1

    def _resolved(self) -> bool:
        edges, points = (table.astype(np.float32) for table in self.cells())
        line = np.insert(points, np.arange(1, self.size), edges)
        return bool(np.all(np.diff(line) > 0) and line[0] > 0 and line[-1] < 1)


@dataclass(frozen=True, init=False)
class Categorical:
    """One of `choices`, which may be any hashable objects, in as many coordinates, one-hot:
    every two choices are equally far apart.

    Choices that Python takes for equal, such as 1, 1.0 and True, cannot stand beside each other.
    Neither can None and NaN: a table has one sign for both.
    """

    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        _set(self, choices=choices)

    def problem(self) -> str:
        """Why this is no parameter, or nothing."""
        if not self.choices:
            return "no choices, expected Categorical(first, second, ...)"
        seen: dict[Hashable, Any] = {}
        try:
            for choice in self.choices:
                mark = _mark(choice)
                if mark in seen:
                    return (
                        "choices must differ from each other: "
                        f"{seen[mark]!r} and {choice!r} are the same to Python or in a table"
                    )
                seen[mark] = choice
        except TypeError:
            return "choices must be hashable and passed one by one: Categorical('a', 'b')"
        return ""

    def encode(self, value: Any) -> list[float]:
        """The coordinates of the choice equal to `value`, or else of the choice equal in float32.

        A table's NaN means None, its floating numbers mean whole ones, and JSON's list means a tuple.
        """
        meant = self._meant(value)
        if not meant:
            raise ValueError(f"{value!r} is not one of {self.choices}")
        if len(meant) > 1:
            several = " or ".join(repr(self.choices[i]) for i in meant)
            raise ValueError(f"{value!r} may be {several}, which are equal as floating numbers")
        return [float(meant == [i]) for i in range(len(self.choices))]

    def _meant(self, value: Any) -> list[int]:
        """The choices that `value` may be."""
        mark, marks = _mark(_plain(_tuples(value))), [_mark(choice) for choice in self.choices]
        same = (
            isinstance(mark, Hashable) and mark in marks
        )  # an array would be compared by its parts
        if same:
            index = marks.index(mark)
            # A whole number that has become a floating one may have been rounded.
            if not (isinstance(mark, float) and isinstance(marks[index], int)):
                return [index]
        precision = _precision(value, np.dtype(float if same else np.float32))
        return [i for i, other in enumerate(marks) if _rounds_to(mark, other, precision)]

    def spread(self, grid: int) -> np.ndarray:
        """All choices, the last one repeated: where each is if a choice counts as one coordinate."""
        size = len(self.choices)
        if size > grid:
            raise ValueError(f"{size} choices are more than a grid of {grid}")
        return (np.minimum(np.arange(grid), size - 1) + 0.5) / size


Parameter: TypeAlias = Real | Integer | Categorical

#: The common mark of None and of all signs that tables have for it.
NOTHING: Final = object()


def _set(parameter: Any, **fields: Any) -> None:
    """Gives a frozen dataclass its fields, their numbers Python's."""
    for name, value in fields.items():
        object.__setattr__(parameter, name, _plain(value))


def _plain(value: Any) -> Any:
    """`value` with Python's numbers in the place of NumPy's or JAX's, in tuples too."""
    if isinstance(value, tuple):
        plain = tuple(map(_plain, value))
        if all(a is b for a, b in zip(plain, value, strict=True)):
            return value
        return getattr(value, "_make", tuple)(plain)  # a named one keeps its names
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    if np.asarray(value).dtype.kind in "mM":  # dates: Python's are coarser
        return value
    item = value.item()
    return float(item) if isinstance(item, np.floating) else item


def _tuples(value: Any) -> Any:
    """`value` with tuples in the place of lists, which is how JSON writes them."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _mark(value: Any) -> Any:
    """Two choices are the same if their marks are equal."""
    nan = isinstance(value, float) and math.isnan(value)
    # Pandas has signs of its own; this package does without pandas.
    missing = type(value).__name__ in ("NAType", "NaTType")
    return NOTHING if value is None or nan or missing else value


def _clipped(number: float, lower: float | int, upper: float | int) -> float | int | None:
    """`number` within the bounds, which float32 may have moved it over; None if it is outside."""
    low, middle, high = (_single(x) for x in (lower, number, upper))
    return min(max(number, lower), upper) if low <= middle <= high else None


def _precision(value: Any, otherwise: np.dtype) -> np.dtype:
    """Of a floating number of NumPy's or JAX's; Python's may have had any."""
    dtype = getattr(value, "dtype", otherwise)
    return dtype if isinstance(dtype, np.dtype) and dtype.kind == "f" else otherwise


def _rounds_to(value: Any, choice: Any, precision: np.dtype) -> bool:
    """Whether `value` is what this precision makes of the number `choice`."""
    if not (isinstance(value, float) and isinstance(choice, float | int)):
        return False
    # A table may have been written with few digits. A whole number needs none behind the point.
    near = _rounded(value, precision) if isinstance(choice, float) else value
    return near == _rounded(choice, precision)


def _rounded(number: float | int, precision: np.dtype) -> float:
    """NaN for an integer that no floating number is near."""
    try:
        with np.errstate(over="ignore"):
            return float(precision.type(number))
    except OverflowError:
        return math.nan


def _single(number: float | int) -> float:
    """In float32."""
    return _rounded(number, np.dtype(np.float32))


def _number(value: Any) -> float:
    """`value` as a float; strings are no numbers, even where Python could read them as such."""
    value = _plain(value)
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{value!r} is not a number")
    return number
