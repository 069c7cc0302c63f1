"""Rows of text, as `csv.DictReader` has them, with the values that the text stands for.

A number is read if the parameter is a number, and a choice if it is printed like the text. Nothing,
which is how None is written, is a sign for nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.parameters import AbstractChoice
from jaxbo.domains.space import Space


def is_text(row: Mapping[str, Any], numbers: Sequence[Any]) -> bool:
    """Whether all of a row is text; its numbers too, so that it was not made in Python."""
    return all(isinstance(number, str) for number in numbers) and all(
        item is None or isinstance(item, str) for item in row.values()
    )


def from_text(row: Mapping[str, Any], domain: AbstractDomain) -> dict[str, Any]:
    """The row with the values that its text stands for; text that stands for none is left as it is."""
    choices: dict[str, tuple[Any, ...]] = {}
    if isinstance(domain, Space):
        kinds = dict(domain.parameters).items()
        choices = {name: kind.choices for name, kind in kinds if isinstance(kind, AbstractChoice)}
        choices |= {name: (constant.value,) for name, constant in domain.constants}
    return {name: _meaning(name, item, choices.get(name)) for name, item in row.items()}


def number(text: Any) -> Any:
    """The number that is written; None for nothing, and other text as it is."""
    if not isinstance(text, str) or not text.strip():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _meaning(name: str, text: Any, choices: tuple[Any, ...] | None) -> Any:
    if choices is None:
        return number(text)
    meant = [choice for choice in choices if str(choice) == text or (choice is None and not text)]
    if len(meant) > 1:
        several = " or ".join(map(repr, meant))
        raise ValueError(f"parameter {name!r}: the text {text!r} may be {several}: give values.")
    # A number may be written in another way: whoever encodes it looks for one that is equal.
    return meant[0] if meant else number(text)
