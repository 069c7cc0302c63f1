"""When a run has found enough: rules for `drive(stop=)` and `drive_async(stop=)`.

A rule is a function of the trace so far, or of the desk, that says whether to end. Both have `values`, in
the user's own sign, a `direction`, and `feasible`, which says which evaluations did not fail and met all
bounds: the rules here pass over the others. A lambda is a rule too:

    stop=lambda trace: np.nanmax(trace.values) > 0.9

If other threads tell a desk, too, `desk.results` has all of one moment.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from jaxbo._check import reals_or_none, require, shown, whole
from jaxbo.metrics import best_so_far
from jaxbo.runs.desk import Desk


@dataclass(frozen=True)
class Target:
    """Ends a run once the best value of each agent is as good as a target.

    Args:
        value: The target, a finite number.

    Raises:
        ValueError: The target is not a finite number.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> trace = jaxbo.Trace(jnp.zeros((2, 1, 1)), jnp.array([[0.2], [0.7]]), None)
        >>> jaxbo.stopping.Target(0.5)(trace), jaxbo.stopping.Target(0.9)(trace)
        (True, False)
    """

    value: float

    def __post_init__(self) -> None:
        fine = isinstance(self.value, Real) and math.isfinite(self.value)
        require(fine, f"value must be one finite number, got {self.value!r}.")

    def __call__(self, known: Any) -> bool:
        best = _best(known)[-1:]
        reached = best <= self.value if known.direction == "minimize" else best >= self.value
        return bool(reached.size and reached.all())


@dataclass(frozen=True)
class NoProgress:
    """Ends a run once the best value of no agent has become better for some time.

    Time is counted in rows of a trace, the initial design included, or in results of a desk. Before the
    first success there is no progress to miss.

    Args:
        count: The number of last rows or results that are looked at, at least 1.
        least: A value is better if it is so by more than this, at least 0.

    Raises:
        ValueError: `count` is below 1, or `least` is negative.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> trace = jaxbo.Trace(jnp.zeros((3, 1, 1)), jnp.array([[0.7], [0.2], [0.7]]), None)
        >>> jaxbo.stopping.NoProgress(2)(trace), jaxbo.stopping.NoProgress(3)(trace)
        (True, False)
    """

    count: int
    least: float = 0.0

    def __post_init__(self) -> None:
        whole("count", self.count, least=1)
        fine = isinstance(self.least, Real) and self.least >= 0
        require(fine, f"least must be a number that is not negative, got {self.least!r}.")

    def __call__(self, known: Any) -> bool:
        best = _best(known)
        if len(best) <= self.count or not np.isfinite(best[-1 - self.count]).any():
            return False
        before, now = best[-1 - self.count], best[-1]
        some = np.isfinite(now)
        return bool((np.abs(now[some] - before[some]) <= self.least).all())


def _best(known: Any) -> np.ndarray:
    """The best values so far, a column for each agent."""
    parts = "values", "direction"
    require(
        all(hasattr(known, part) for part in parts),
        f"known must be a Trace or a Desk, got {shown(known)}.",
    )
    known = known.results if isinstance(known, Desk) else known
    values = reals_or_none("values", known.values)
    values = np.where(getattr(known, "feasible", True), values, np.nan)
    values = values[:, None] if values.ndim == 1 else values
    best = best_so_far(values, known.direction)
    if getattr(known, "shared", False):  # workers' values are of one objective
        better = np.min if known.direction == "minimize" else np.max
        return better(best, axis=1, keepdims=True)
    return best
