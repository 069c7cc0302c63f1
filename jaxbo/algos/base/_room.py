"""The line that gives a method room for more observations."""

import dataclasses
from typing import Any

import jax.core

from jaxbo.kernels.models.surrogate import AbstractSurrogate


def larger(algorithm: Any, needed: object) -> str:
    """The line to write for `needed` observations: every model of the method that holds fewer.

    >>> from jaxbo import FTS, Cube, Fitted
    >>> larger(FTS(Cube(2), agents=4, own=Fitted(capacity=20)), 70)
    'write own=Fitted(capacity=70)'
    """
    if isinstance(needed, jax.core.Tracer):  # nobody will read it: `require` lets it pass
        return ""
    parts = dataclasses.fields(algorithm)
    written = [(part.name, _written(getattr(algorithm, part.name), needed)) for part in parts]
    lines = [f"{name}={text}" for name, text in written if text]
    return "write " + (" and ".join(lines) or f"capacity={needed}")


def _written(model: Any, needed: Any) -> str:
    """The model with more room; empty for a model with enough room, and for anything else."""
    if not isinstance(model, AbstractSurrogate) or not _is_small(model.capacity, needed):
        return ""
    name, fields = type(model).__name__, [field.name for field in dataclasses.fields(model)]
    if fields[0] == "capacity":
        return f"{name}(capacity={needed})"
    inner = [text for field in fields if (text := _written(getattr(model, field), needed))]
    return f"{name}(…, {inner[0] if inner else f'capacity={needed}'})"


def _is_small(capacity: int | None, needed: Any) -> bool:
    return capacity is not None and bool(capacity < needed)
