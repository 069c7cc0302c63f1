"""Values as people and tables give them: NumPy's numbers, signs for nothing, rounded floats, lists.

Whatever width or type a value has been through on its way, its meaning stays.
"""

import math
from typing import Any, Final

import numpy as np

#: The common mark of None and of all signs that tables have for it.
NOTHING: Final = object()


def set_fields(parameter: Any, **fields: Any) -> None:
    """Gives a frozen dataclass its fields, their numbers Python's."""
    for name, value in fields.items():
        object.__setattr__(parameter, name, as_plain(value))


def as_plain(value: Any) -> Any:
    """`value` with Python's numbers in the place of NumPy's or JAX's, in tuples too."""
    if isinstance(value, tuple):
        plain = tuple(map(as_plain, value))
        if all(a is b for a, b in zip(plain, value, strict=True)):
            return value
        return getattr(value, "_make", tuple)(plain)  # a named one keeps its names
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    if np.asarray(value).dtype.kind in "mM":  # dates: Python's are coarser
        return value
    item = value.item()
    return float(item) if isinstance(item, np.floating) else item


def as_tuples(value: Any) -> Any:
    """`value` with tuples in the place of lists, which is how JSON writes them."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def mark_of(value: Any) -> Any:
    """Two choices are the same if their marks are equal."""
    nan = isinstance(value, float) and math.isnan(value)
    # Pandas has signs of its own; this package does without pandas.
    missing = type(value).__name__ in ("NAType", "NaTType")
    return NOTHING if value is None or nan or missing else value


def clipped(number: float, lower: float | int, upper: float | int) -> float | int | None:
    """`number` within the bounds, which float32 may have moved it over; None if it is outside."""
    low, middle, high = (in_single(x) for x in (lower, number, upper))
    return min(max(number, lower), upper) if low <= middle <= high else None


def precision_of(value: Any, otherwise: np.dtype) -> np.dtype:
    """The precision of a floating number of NumPy or JAX; a number of Python has none."""
    dtype = getattr(value, "dtype", otherwise)
    return dtype if isinstance(dtype, np.dtype) and dtype.kind == "f" else otherwise


def rounds_to(value: Any, choice: Any, precision: np.dtype) -> bool:
    """Whether `value` is the number `choice` in this precision."""
    if not (isinstance(value, float) and isinstance(choice, float | int)):
        return False
    # A table may have been written with few digits. A whole number needs none behind the point.
    near = rounded_in(value, precision) if isinstance(choice, float) else value
    return near == rounded_in(choice, precision)


def rounded_in(number: float | int, precision: np.dtype) -> float:
    """NaN for an integer that no floating number is near."""
    try:
        with np.errstate(over="ignore"):
            return float(precision.type(number))
    except OverflowError:
        return math.nan


def in_single(number: float | int) -> float:
    """In float32."""
    return rounded_in(number, np.dtype(np.float32))


def as_number(value: Any) -> float:
    """`value` as a float; strings are no numbers, even where Python could read them as such."""
    value = as_plain(value)
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{value!r} is not a number")
    return number
