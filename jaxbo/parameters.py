"""Named parameters, each with its coordinates on the unit interval.

value = lower + (upper - lower) x              a real number
value = lower^(1 - x) upper^x                  a real number on a log scale
value = lower + floor(x n)                     one of n integers (log: steps of log)
value = choices[argmax(x_1, ..., x_k)]         one of k choices, k coordinates
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from jaxbo.domains import MOST_CELLS

#: Bounds closer than this, relative to their size, leave float32 too few values between them.
NARROWEST: Final = 2.0**-20


@dataclass(frozen=True)
class Real:
    """A real number from `lower` to `upper`, both included; `log`: evenly spread in its log."""

    lower: float | int
    upper: float | int
    log: bool = False

    def problem(self) -> str:
        """Why this is no parameter, or nothing."""
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            return f"bounds must be finite, got {self.lower} and {self.upper}"
        if not self.lower < self.upper:
            return f"lower must be below upper, got {self.lower} and {self.upper}"
        if self.log and not self.lower > 0:
            return f"a log scale needs a positive lower bound, got {self.lower}"
        low, high = self.ends()
        if not NARROWEST * max(abs(low), abs(high), float(self.log)) < high - low < math.inf:
            return f"float32 cannot resolve [{self.lower}, {self.upper}]: shift or scale it"
        return ""

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
        number = _number(value)
        if not self.lower <= number <= self.upper:
            raise ValueError(f"{value!r} is not in [{self.lower}, {self.upper}]")
        low, high = self.ends()
        return [((math.log(number) if self.log else number) - low) / (high - low)]

    def spread(self, grid: int) -> np.ndarray:
        """So many coordinates to look at, evenly."""
        return np.linspace(0, 1, grid)


@dataclass(frozen=True)
class Integer:
    """A whole number from `lower` to `upper`, both included.

    The unit interval is cut into one cell a number, of equal length; `log`: number k owns the
    logs from k - 1/2 to k + 1/2 and its point is log k. At most 2^20 numbers within int32; on a
    log scale, fewer than float32 can tell apart (1 to 500 000, say).
    """

    lower: int
    upper: int
    log: bool = False

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
    every two choices are equally far apart."""

    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        object.__setattr__(self, "choices", choices)

    def problem(self) -> str:
        """Why this is no parameter, or nothing."""
        if not self.choices:
            return "no choices, expected Categorical(first, second, ...)"
        try:
            distinct = len(set(self.choices))
        except TypeError:
            return "choices must be hashable and passed one by one: Categorical('a', 'b')"
        if distinct < len(self.choices):
            return f"choices must differ from each other, got {self.choices}"
        return ""

    def encode(self, value: Any) -> list[float]:
        """The coordinates of `value`."""
        try:
            index = self.choices.index(value)
        except ValueError:
            raise ValueError(f"{value!r} is not one of {self.choices}") from None
        return [float(index == i) for i in range(len(self.choices))]

    def spread(self, grid: int) -> np.ndarray:
        """All choices, the last one repeated: where each is if a choice counts as one coordinate."""
        size = len(self.choices)
        if size > grid:
            raise ValueError(f"{size} choices are more than a grid of {grid}")
        return (np.minimum(np.arange(grid), size - 1) + 0.5) / size


Parameter: TypeAlias = Real | Integer | Categorical


def _number(value: Any) -> float:
    """`value` as a float; strings are no numbers, even where Python could read them as such."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{value!r} is not a number")
    return number
