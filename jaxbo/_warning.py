"""Warnings that point at the line of the user, however deep in the package they are given."""

import sys
import warnings

#: Packages whose frames stand between a user's line and a warning.
_BETWEEN = ("jaxbo", "jax", "equinox", "jaxtyping", "beartype")


def warn(text: str, kind: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn` at the innermost line outside of the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def _is_between(module: str) -> bool:
    return module.partition(".")[0] in _BETWEEN
