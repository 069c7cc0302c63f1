"""The arguments of an objective, told by its signature.

    f(x)              every agent has the same function
    f(agent, x)       agents, or workers, are numbers
    f(key, agent, x)  compiled; the key is for noise

Parameters that have a default are the objective's own and are left alone.
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx

from jaxbo._check import require
from jaxbo.objectives.families import AbstractObjective

#: What `f(key, agent, x)` is called with, and `f(agent, x)`, which is meant where nothing else says so.
COMPILED, USUAL = 3, 2
#: The signatures that are right.
FORMS = "f(x), f(agent, x), or a compiled f(key, agent, x) in JAX"


def arguments_of(objective: Any, otherwise: int) -> int:
    """The number of arguments of an objective: the last so many of (key, agent, x).

    `otherwise` is for a signature that does not say: `f(*arguments)`, or some that are written in C.
    `ValueError` for an objective that cannot be called in any of the three ways.
    """
    require(
        callable(objective) and not isinstance(objective, type),
        f"objective must be a function, {FORMS}, got {objective!r}.",
    )
    if isinstance(objective, AbstractObjective):
        return COMPILED
    try:
        parameters = inspect.signature(objective).parameters.values()
    except (TypeError, ValueError):
        return otherwise
    needed = [p for p in parameters if p.default is p.empty and p.kind not in _REST]
    named = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    places = [p for p in parameters if p.kind in _IN_PLACE]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    count = len(needed) or (otherwise if open_ended else min(len(places), otherwise))
    require(
        not named and 1 <= count <= COMPILED,
        f"objective is called as {FORMS}, and this one is {_shown(objective)}: bind what else it needs, "
        "such as with functools.partial.",
    )
    return count


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_IN_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def called(objective: Callable[..., Any], agent: int, x: Any) -> Any:
    """The result of an objective in Python for an agent at x."""
    return objective(*(agent, x)[-arguments_of(objective, USUAL) :])


def check_python(objective: Any) -> None:
    """`ValueError` for an objective that is compiled, or cannot be called."""
    require(
        arguments_of(objective, USUAL) != COMPILED,
        f"objective must be in Python here, f(x) or f(agent, x), got {_shown(objective)}.",
    )


def _shown(objective: Any) -> str:
    """Its name and signature."""
    name = getattr(objective, "__name__", type(objective).__name__)
    return f"{name}{inspect.signature(objective)}"


def compiled(objective: Callable[..., Any]) -> Callable[..., Any]:
    """An objective in JAX as `f(key, agent, x)`, whichever of the three it is."""
    count = arguments_of(objective, COMPILED)
    return objective if count == COMPILED else _Fewer(objective, count)


class _Fewer(eqx.Module):
    """An objective that needs no key, and perhaps no agent. Equal objectives have one program."""

    objective: Callable[..., Any]
    count: int = eqx.field(static=True)

    def __call__(self, *arguments: Any) -> Any:
        return self.objective(*arguments[-self.count :])
