"""Whether large or small values are good.

Methods maximize. A run that minimizes tells its method the negative of each value, and that is the only
place where the sign changes: traces, checkpoints and desks have the user's own values.
"""

from typing import Any, Literal, TypeAlias

from jaxbo._check import require

Direction: TypeAlias = Literal["maximize", "minimize"]


def check_direction(direction: Any) -> None:
    """`ValueError` for anything but the two."""
    require(
        isinstance(direction, str) and direction in ("maximize", "minimize"),
        f'direction must be "maximize" or "minimize", got {direction!r}.',
    )


def upward(direction: Direction, values: Any) -> Any:
    """The values as a method is told them: the larger the better."""
    return -values if direction == "minimize" else values
