"""Settings and results print their numbers: a few in full, many by the ends of their range."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.core
import numpy as np

#: Arrays of more numbers are summed up.
_MOST = 6
_DIGITS = 5


class Shown(eqx.Module):
    """A module that prints the numbers in its fields."""

    def __repr__(self) -> str:
        return _text(self)


def _text(value: Any, indent: int = 0) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _of_fields(type(value).__name__, _fields(value), indent)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # a named one
        fields: Any = getattr(value, "_asdict")()  # noqa: B009
        return _of_fields(type(value).__name__, list(fields.items()), indent)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _of_array(value)
    if isinstance(value, tuple | list | dict) and value:
        many = f"{type(value).__name__} of {len(value)}"
        return repr(value) if len(repr(value)) <= 80 else many
    return repr(value)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The fields that say something: not empty, and not as they are by default."""
    found = []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        default = item is None or (isinstance(item, tuple | dict) and not item)
        same = not eqx.is_array(item) and field.default is not dataclasses.MISSING
        if not default and not (same and item == field.default):
            found.append((field.name, item))
    return found


def _of_fields(name: str, fields: list[tuple[str, Any]], indent: int) -> str:
    texts = [f"{field}={_text(value, indent + 4)}" for field, value in fields]
    line = f"{name}({', '.join(texts)})"
    if len(line) + indent <= 100 and "\n" not in line:
        return line
    space = "\n" + " " * (indent + 4)
    return f"{name}({space}{f',{space}'.join(texts)})"


def _of_array(array: Any) -> str:
    shape = ",".join(map(str, array.shape))
    name = f"{array.dtype}[{shape}]"
    if isinstance(array, jax.core.Tracer) or jax.dtypes.issubdtype(
        array.dtype, jax.dtypes.extended
    ):
        return name
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return name
    numbers = np.asarray(array)
    if numbers.ndim == 0 or numbers.size <= _MOST:
        text = np.array2string(numbers, precision=_DIGITS, separator=", ")
        return " ".join(text.split()).replace("[ ", "[")
    if numbers.dtype == bool:
        return f"{name} with {int(numbers.sum())} True"
    fine = numbers[np.isfinite(numbers)]
    ends = f" from {fine.min():.{_DIGITS}g} to {fine.max():.{_DIGITS}g}" if fine.size else ""
    lost = numbers.size - fine.size
    return f"{name}{ends}{f', {lost} not finite' if lost else ''}"
