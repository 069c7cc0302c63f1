"""Named parameters, each with its coordinates on the unit interval.

value = lower + (upper - lower) x              a real number
value = lower^(1 - x) upper^x                  a real number on a log scale
value = lower + step floor(x n)                one of n integers (log: steps of log)
value = choices[floor(x k)]                    one of k choices in an order
value = choices[argmax(x_1, ..., x_k)]         one of k choices without one, k coordinates
value                                          a constant, no coordinate

NumPy's numbers become Python's when a parameter is made, so that their width limits nothing and JSON
can write decoded values. Values to encode may have been through a table or through JSON.
"""

import math
import operator
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, SupportsFloat, SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxbo.domains._values import (
    NOTHING,
    as_number,
    as_plain,
    as_tuples,
    clipped,
    mark_of,
    precision_of,
    rounds_to,
    set_fields,
)
from jaxbo.domains.base import MOST_CELLS

#: Bounds closer than this, relative to their size, leave float32 too few values between them.
NARROWEST: Final = 2.0**-20
#: Float32 takes smaller numbers for 0, and has no larger ones.
SMALLEST, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


class AbstractParameter:
    """The methods that all kinds of parameters have."""

    def when(self, mapping: Mapping[str, Any] | None = None, /, **values: Any) -> "Conditional":
        """Makes the parameter active only where others have certain values.

        All names must agree.

        Args:
            mapping: The values by name, for names that Python does not allow.
            values: The value of each parameter that this one depends on. A list, a set or a range holds
                several values, of which any will do.

        Returns:
            The parameter with its conditions, for a `Space`.

        Example:
            >>> import jaxbo
            >>> scale = jaxbo.Real(1e-3, 1e3, log=True).when(model="svm", kernel=["rbf", "poly"])
            >>> [name for name, values in scale.conditions]
            ['model', 'kernel']
        """
        return Conditional(self, _conditions({**(mapping or {}), **values}))


@dataclass(frozen=True, init=False)
class Real(AbstractParameter):
    """A real number between two bounds, both included.

    Equal bounds make a constant. Float32 must hold both bounds and numbers between them. A `Space`
    checks the bounds.

    Args:
        lower: The least value.
        upper: The largest value.
        log: Whether values are spread evenly in their logarithm. Both bounds are then positive.

    Example:
        >>> import jaxbo, numpy as np
        >>> space = jaxbo.Space(rate=jaxbo.Real(1e-4, 1.0, log=True))
        >>> round(space.decode(np.array([0.5]))["rate"], 6)
        0.01
    """

    lower: float | int
    upper: float | int
    log: bool

    def __init__(
        self, lower: SupportsFloat, upper: SupportsFloat, log: bool | np.bool_ = False
    ) -> None:
        set_fields(self, lower=lower, upper=upper, log=log)

    def problem(self) -> str:
        """Says why this is not a parameter; an empty text if it is."""
        if problem := _log_problem(self.log):
            return problem
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
        """Whether there is a single value. Its point is then in the middle, as that of an integer is."""
        return self.lower == self.upper

    def ends(self) -> tuple[float, float]:
        """Gives the bounds on the scale that the coordinate is linear in."""
        low, high = float(self.lower), float(self.upper)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def decode(self, x: float) -> float:
        """Gives the value at a coordinate, exact at both ends.

        Args:
            x: The coordinate, from 0 to 1.

        Returns:
            The value.
        """
        low, high = float(self.lower), float(self.upper)
        value = low ** (1 - x) * high**x if self.log else low * (1 - x) + high * x
        return min(max(value, low), high)

    def encode(self, value: Any) -> list[float]:
        """Gives the coordinate of a value.

        Args:
            value: A number within the bounds.

        Returns:
            The coordinate, in a list.

        Raises:
            ValueError: The value is no number or outside of the bounds.
        """
        number = clipped(as_number(value), self.lower, self.upper)
        if number is None:
            raise ValueError(f"{value!r} is not in [{self.lower}, {self.upper}]")
        if self.constant:
            return [0.5]
        low, high = self.ends()
        return [((math.log(number) if self.log else number) - low) / (high - low)]

    def spread(self, grid: int) -> np.ndarray:
        """Gives coordinates to look at, spread evenly. A constant repeats its point.

        Args:
            grid: Number of coordinates.

        Returns:
            The coordinates.
        """
        return np.full(grid, 0.5) if self.constant else np.linspace(0, 1, grid)


@dataclass(frozen=True, init=False)
class Integer(AbstractParameter):
    """A whole number between two bounds, both included.

    The unit interval is cut into cells of equal length, one for each number. On a log scale, number k
    owns the logarithms from k - 1/2 to k + 1/2, and its point is log k. There are at most 2^20 numbers,
    within int32. On a log scale there are fewer: float32 must tell all of them apart, as it does from 1
    to 500 000. A `Space` checks all this.

    Args:
        lower: The least number.
        upper: The largest number. Steps from `lower` must reach it.
        log: Whether numbers are spread evenly in their logarithm. `lower` is then at least 1.
        step: The distance of neighbors, at least 1. On a log scale it is 1.

    Example:
        >>> import jaxbo, numpy as np
        >>> space = jaxbo.Space(units=jaxbo.Integer(16, 64, step=16))
        >>> [space.decode(np.array([x]))["units"] for x in (0.0, 0.3, 1.0)]
        [16, 32, 64]
    """

    lower: int
    upper: int
    log: bool
    step: int

    def __init__(
        self,
        lower: SupportsIndex,
        upper: SupportsIndex,
        log: bool | np.bool_ = False,
        *,
        step: SupportsIndex = 1,
    ) -> None:
        set_fields(self, lower=lower, upper=upper, log=log, step=step)

    def problem(self) -> str:
        """Says why this is not a parameter; an empty text if it is."""
        if problem := _log_problem(self.log):
            return problem
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
        if problem := self._step_problem():
            return problem
        if self.size > MOST_CELLS or (self.log and not self._resolved()):
            return f"too many numbers from {lower} to {upper}: use Real and round in the objective"
        return ""

    def _step_problem(self) -> str:
        """Why the numbers are not cut evenly, or nothing."""
        if isinstance(self.step, bool) or not isinstance(self.step, int) or self.step < 1:
            return f"step must be a whole number of at least 1, got {self.step!r}"
        if self.step > 1 and self.log:
            return f"a step of {self.step} does not go with a log scale: give Ordinal(first, ...)"
        if self.step > 1 and (over := (self.upper - self.lower) % self.step):
            near = self.upper - over
            if near == self.lower:
                return f"step must be at most {self.upper - self.lower}, got {self.step}"
            return (
                f"steps of {self.step} from {self.lower} do not reach {self.upper}: end at {near} or "
                f"{near + self.step}"
            )
        return ""

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Gives the borders between the cells of a log scale, and the point of each number."""
        numbers = np.arange(self.lower, self.upper + 1)
        edges = np.log(np.append(numbers, self.upper + 1) - 0.5)
        width = edges[-1] - edges[0]
        return (edges[1:-1] - edges[0]) / width, (np.log(numbers) - edges[0]) / width

    def encode(self, value: Any) -> list[float]:
        """Gives the coordinate of a number.

        Args:
            value: A whole number within the bounds.

        Returns:
            The coordinate, in a list.

        Raises:
            ValueError: The value is not a whole number of this parameter.
        """
        number = as_number(value)
        if not (self.lower <= number <= self.upper and number == int(number)):
            raise ValueError(f"{value!r} is no whole number in [{self.lower}, {self.upper}]")
        cell, over = divmod(int(number) - self.lower, self.step)
        if over:
            raise ValueError(f"{value!r} is not {self.lower} plus steps of {self.step}")
        return [self.cells()[1][cell] if self.log else (cell + 0.5) / self.size]

    def spread(self, grid: int) -> np.ndarray:
        """Gives coordinates to look at. They are the coordinates of all numbers, if the grid has room,
        and the last is repeated.

        Args:
            grid: Number of coordinates.

        Returns:
            The coordinates.
        """
        if self.size > grid:
            return np.linspace(0, 1, grid)
        values = [self.encode(self.value(i))[0] for i in range(self.size)]
        return np.asarray(values)[np.minimum(np.arange(grid), self.size - 1)]

    @property
    def size(self) -> int:
        """The number of values."""
        return (self.upper - self.lower) // self.step + 1

    def value(self, cell: int) -> int:
        """Gives the number of a cell.

        Args:
            cell: The cell, from 0.

        Returns:
            The number.
        """
        return self.lower + self.step * cell

    def cell(self, value: Any) -> int:
        """Gives the cell of a number.

        Args:
            value: A number of this parameter. Another is a `ValueError`.

        Returns:
            The cell, from 0.
        """
        self.encode(value)
        return (int(as_number(value)) - self.lower) // self.step

    def _resolved(self) -> bool:
        edges, points = (table.astype(np.float32) for table in self.cells())
        line = np.insert(points, np.arange(1, self.size), edges)
        return bool(np.all(np.diff(line) > 0) and line[0] > 0 and line[-1] < 1)


@dataclass(frozen=True, init=False)
class AbstractChoice(AbstractParameter):
    """A choice among several, which may be any hashable objects.

    Choices that Python takes for equal, such as 1, 1.0 and True, cannot stand beside each other.
    Neither can None and NaN: a table has a single sign for both.
    """

    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        set_fields(self, choices=choices)

    @property
    def size(self) -> int:
        """The number of choices."""
        return len(self.choices)

    def problem(self) -> str:
        """Says why this is not a parameter; an empty text if it is."""
        if not self.choices:
            return f"no choices, expected {type(self).__name__}(first, second, ...)"
        seen: dict[Hashable, Any] = {}
        try:
            for choice in self.choices:
                mark = mark_of(choice)
                if mark in seen:
                    return (
                        "choices must differ from each other: "
                        f"{seen[mark]!r} and {choice!r} are the same to Python or in a table"
                    )
                seen[mark] = choice
        except TypeError:
            kind = type(self).__name__
            return f"choices must be hashable and passed one by one: {kind}('a', 'b')"
        return self._too_many()

    def _too_many(self) -> str:
        return ""

    def value(self, cell: int) -> Any:
        """Gives the choice of a cell.

        Args:
            cell: The cell, from 0.

        Returns:
            The choice.
        """
        return self.choices[cell]

    def cell(self, value: Any) -> int:
        """Gives the number of the choice that equals a value, or else equals it in float32.

        Args:
            value: A choice. NaN, as tables have it, means None. A floating number means a whole number,
                and a list, as JSON has it, means a tuple.

        Returns:
            The number of the choice, from 0.

        Raises:
            ValueError: The value is not a choice, or may be several.
        """
        meant = self._meant(value)
        if not meant:
            raise ValueError(f"{value!r} is not one of {self.choices}")
        if len(meant) > 1:
            several = " or ".join(repr(self.choices[i]) for i in meant)
            raise ValueError(f"{value!r} may be {several}, which are equal as floating numbers")
        return meant[0]

    def _meant(self, value: Any) -> list[int]:
        """The choices that `value` may be."""
        mark, marks = (
            mark_of(as_plain(as_tuples(value))),
            [mark_of(choice) for choice in self.choices],
        )
        same = (
            isinstance(mark, Hashable) and mark in marks
        )  # an array would be compared by its parts
        if same:
            index = marks.index(mark)
            # A whole number that has become a floating one may have been rounded.
            if not (isinstance(mark, float) and isinstance(marks[index], int)):
                return [index]
        precision = precision_of(value, np.dtype(float if same else np.float32))
        return [i for i, other in enumerate(marks) if rounds_to(mark, other, precision)]


class Categorical(AbstractChoice):
    """A choice among several without an order.

    It takes a coordinate for each choice, one-hot. So every two choices are equally far apart. Choices
    that Python takes for equal, such as 1, 1.0 and True, cannot stand beside each other. Neither can
    None and NaN: a table has a single sign for both. A `Space` checks this.

    Args:
        choices: The choices, any hashable objects.

    Example:
        >>> import jaxbo
        >>> space = jaxbo.Space(loss=jaxbo.Categorical("l1", "l2", None))
        >>> space.dim, space.encode({"loss": "l2"}).tolist()
        (3, [0.0, 1.0, 0.0])
    """

    def encode(self, value: Any) -> list[float]:
        """Gives the coordinates of the choice that a value means.

        Args:
            value: A choice.

        Returns:
            The coordinates.
        """
        cell = self.cell(value)
        return [float(cell == i) for i in range(self.size)]

    def spread(self, grid: int) -> np.ndarray:
        """Gives all choices as places on a single coordinate, the last repeated.

        Args:
            grid: Number of places.

        Returns:
            The places.

        Raises:
            ValueError: There are more choices than places.
        """
        if self.size > grid:
            raise ValueError(f"{self.size} choices are more than a grid of {grid}")
        return (np.minimum(np.arange(grid), self.size - 1) + 0.5) / self.size


class Ordinal(AbstractChoice):
    """A choice among several in their order, in a single coordinate.

    Neighbors in the list are near each other. Take it for sizes such as 16, 32, 64, 128, and for words
    such as "low", "middle", "high". Choices may be any that a `Categorical` may have.

    Args:
        choices: The choices, in their order.

    Example:
        >>> import jaxbo, numpy as np
        >>> space = jaxbo.Space(size=jaxbo.Ordinal(16, 32, 64, 128))
        >>> space.dim, space.decode(np.array([0.3]))
        (1, {'size': 32})
    """

    def _too_many(self) -> str:
        return "" if self.size <= MOST_CELLS else f"{self.size} choices are too many"

    def encode(self, value: Any) -> list[float]:
        """Gives the coordinate of the choice that a value means.

        Args:
            value: A choice.

        Returns:
            The coordinate, in a list.
        """
        return [(self.cell(value) + 0.5) / self.size]

    def spread(self, grid: int) -> np.ndarray:
        """Gives coordinates to look at. They are the coordinates of all choices, if the grid has room,
        and the last is repeated.

        Args:
            grid: Number of coordinates.

        Returns:
            The coordinates.
        """
        if self.size > grid:
            return np.linspace(0, 1, grid)
        return (np.minimum(np.arange(grid), self.size - 1) + 0.5) / self.size


@dataclass(frozen=True)
class Conditional:
    """A parameter that is active only where others have certain values: see `Real.when`."""

    parameter: Any
    conditions: tuple[tuple[str, tuple[Any, ...]], ...]

    def when(self, mapping: Mapping[str, Any] | None = None, /, **values: Any) -> "Conditional":
        """Adds conditions, which must all hold.

        Args:
            mapping: The values by name, for names that Python does not allow.
            values: The value of each parameter that this one depends on.

        Returns:
            The parameter with more conditions.
        """
        more = _conditions({**(mapping or {}), **values})
        return Conditional(self.parameter, (*self.conditions, *more))


@dataclass(frozen=True)
class Context:
    """A parameter that is given with every question and never chosen: `Desk.ask(context={...})`.

    The model learns how the objective depends on it: on a load, a price or a data set. Take `Thompson`
    or `UCB` for the policy. Expected improvement is over the best of all contexts.

    Args:
        parameter: A `Real`, an `Integer`, a `Categorical` or an `Ordinal`.

    Example:
        >>> import jaxbo
        >>> load = jaxbo.Context(jaxbo.Real(0.0, 1.0))
        >>> space = jaxbo.Space(threads=jaxbo.Integer(1, 8), load=load)
        >>> space.context, space.names
        (('load',), ('threads', 'load'))
    """

    parameter: Any


class ConstantParameter:
    """A value that a space adds to every point: it has no coordinate.

    Constants are equal if their values and the types of the values are.
    """

    def __init__(self, value: Any) -> None:
        self.value = as_plain(value)

    @property
    def is_number(self) -> bool:
        """Whether compiled objectives can have it."""
        return isinstance(self.value, int | float)

    def unpacked(self, dtype: Any) -> jax.Array:
        """The number. If it is not whole, it has the precision of other values."""
        whole = isinstance(self.value, int) and -(2**31) <= self.value < 2**31
        kind = np.bool_ if isinstance(self.value, bool) else np.int32 if whole else dtype
        return jnp.asarray(self.value, kind)

    def means(self, value: Any) -> bool:
        """Whether `value` is this constant, as far as a table or JSON can tell."""
        try:
            return AbstractChoice(self.value).cell(value) == 0
        except ValueError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantParameter) and self._mark == other._mark

    def __hash__(self) -> int:
        return hash(self._mark)

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def _mark(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


Parameter: TypeAlias = Real | Integer | Categorical | Ordinal

#: What a space holds as a constant where a parameter might stand.
Plain: TypeAlias = bool | int | float | str | None


def _log_problem(log: Any) -> str:
    """Why this is no truth value, or nothing."""
    fine = isinstance(log, bool | int) and log in (0, 1)
    return "" if fine else f"log must be True or False, got {log!r:.60}"


def is_missing(value: Any) -> bool:
    """Whether this is None or a sign that tables have for it."""
    return mark_of(as_plain(value)) is NOTHING


def as_constant(value: Any) -> ConstantParameter | None:
    """A number, a string, a truth value or None as a constant, and nothing else."""
    plain = as_plain(value)
    return ConstantParameter(plain) if isinstance(plain, Plain) else None


def _conditions(values: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """By name, the values of which any will do."""
    several = list, set, frozenset, range
    return tuple(
        (name, tuple(value) if isinstance(value, several) else (value,))
        for name, value in values.items()
    )
