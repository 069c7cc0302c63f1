"""The results of a desk at a moment."""

from collections.abc import Mapping

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo._direction import Direction
from jaxbo._shown import Shown
from jaxbo.runs.trace import Failure


class Results(Shown):
    """All results of a desk at a moment, in the order in which they came. Later results are not in it.

    `tickets` are the numbers of the queries. `values` are NaN where an evaluation failed, and
    `feasible` says which did not fail and met the bounds of all `outcomes`. `direction` says whether
    large or small values are good; they are the user's own either way.
    """

    tickets: Int[np.ndarray, " evaluations"]
    queries: Float[Array, "evaluations dim"]
    values: Float[np.ndarray, " evaluations"]
    feasible: Bool[np.ndarray, " evaluations"]
    outcomes: Mapping[str, Float[np.ndarray, " evaluations"]] = eqx.field(default_factory=dict)
    failures: tuple[Failure, ...] = eqx.field(static=True, default=())
    direction: Direction = eqx.field(static=True, default="maximize")
