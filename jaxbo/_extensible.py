"""Classes that users subclass. A single error says which methods a subclass still lacks, and where a
guide is.
"""

import inspect

from jaxbo._shown import Shown


class Extensible(Shown):
    """`TypeError` for a subclass that is made before it has all methods that it must have."""

    def __new__(cls, *args: object, **keywords: object):
        del args, keywords
        missing: list[str] = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise TypeError(_lacks(cls, missing))
        return super().__new__(cls)


def _lacks(cls: type, missing: list[str]) -> str:
    base = next(c for c in cls.__mro__ if c.__name__.startswith("Abstract"))
    lines = [f"    {name}{_signature(cls, name)}: {_first_line(cls, name)}" for name in missing]
    return (
        f"{cls.__name__} cannot be made yet. A subclass of {base.__name__} must have\n"
        + "\n".join(lines)
        + "\nCONTRIBUTING.md and tests/examples show whole ones."
    )


def _signature(cls: type, name: str) -> str:
    method = getattr(cls, name)
    if isinstance(method, property):
        return " (a property)"
    names = ", ".join(p for p in inspect.signature(method).parameters)
    return f"({names})"


def _first_line(cls: type, name: str) -> str:
    return (inspect.getdoc(getattr(cls, name)) or "see its base class.").splitlines()[0]
