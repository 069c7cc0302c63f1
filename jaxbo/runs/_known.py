"""Whether a run knows every point of a finite domain, so that there is nothing left to ask.

A repetition shows whether there is noise: a run that has every point, and some again with the same value,
would learn nothing more. Where a value differs, more of them are worth having.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.domains.parameters import AbstractChoice, Integer, Real
from jaxbo.domains.space import Space

#: Values that differ by less, relative to their size, are the same but for rounding in float32.
_ROUNDING = 1e-6


def nothing_left(
    domain: AbstractDomain,
    queries: Float[np.ndarray, "rows agents dim"],
    values: Float[np.ndarray, "rows agents"],
) -> str | None:
    """Why every agent would only repeat itself; None if some would not. A failure is a value."""
    count = count_of(domain)
    if count is None or len(values) <= count:
        return None
    for agent in range(values.shape[1]):
        if not _all_known(queries[:, agent], values[:, agent], count):
            return None
    return f"all {count} points of the domain are known, and a repetition had the same value"


def count_of(domain: AbstractDomain) -> int | None:
    """How many points a domain has at most; None if it has a continuous variable."""
    if isinstance(domain, Finite):
        return len(np.unique(np.asarray(domain.points), axis=0))
    if not isinstance(domain, Space):
        return None
    sizes = [_size(parameter) for _, parameter in domain.parameters]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _size(parameter: Any) -> int | None:
    if isinstance(parameter, Integer):
        return parameter.size
    if isinstance(parameter, AbstractChoice):
        return parameter.size
    return 1 if isinstance(parameter, Real) and parameter.constant else None


def _all_known(queries: np.ndarray, values: np.ndarray, count: int) -> bool:
    distinct, first, which = np.unique(queries, axis=0, return_index=True, return_inverse=True)
    before = values[first][which.reshape(-1)]
    same = np.isclose(values, before, rtol=_ROUNDING, atol=0, equal_nan=True)
    return count <= len(distinct) < len(values) and bool(same.all())
