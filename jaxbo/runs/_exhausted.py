"""Whether a run knows every point of a finite domain, so that there is nothing left to ask.

A repetition shows whether there is noise: a run that has every point, and some again with the same
value, would learn nothing more. If a value differs, more of them are worth having.
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
#: Combinations of values that are looked at one by one, to see which of them are points.
_MOST = 4096


def nothing_left(
    domain: AbstractDomain,
    queries: Float[np.ndarray, "rows agents dim"],
    values: Float[np.ndarray, "rows agents"],
) -> str | None:
    """Why every agent would only repeat itself; None if some would not. A failure is a value."""
    most = count_of(domain)
    if most is None or len(values) <= most:
        return None
    columns = [_asked(queries[:, agent], values[:, agent]) for agent in range(values.shape[1])]
    if not all(_only_repeated(*column) for column in columns):
        return None
    count = points_of(domain, most)
    if count is None or not all(_all_known(x, count) for x, _ in columns):
        return None
    return f"all {count} points of the domain are known, and a repetition had the same value"


def count_of(domain: AbstractDomain) -> int | None:
    """How many points a domain has at most; None if it has a continuous variable.

    For a space it is the number of all combinations of values, whether they are points or not: see
    `points_of`.
    """
    if isinstance(domain, Finite):
        return len(np.unique(np.asarray(domain.points), axis=0))
    sizes = _sizes(domain) if isinstance(domain, Space) else None
    return None if sizes is None else math.prod(sizes)


def points_of(domain: AbstractDomain, most: int) -> int | None:
    """How many of `most` combinations are points; None if there are too many to look at.

    Branches make a single point of several combinations, and `where` and a given context leave only some
    of them.
    """
    if not isinstance(domain, Space):
        return most
    if not (any(domain.conditions) or domain.constrained or domain.given is not None):
        return most
    sizes = _sizes(domain)
    return None if sizes is None or most > _MOST else len(domain.all_points(sizes))


def _sizes(domain: Space) -> list[int] | None:
    """How many values each parameter has; None if any is continuous."""
    sizes = [_size(parameter) for _, parameter in domain.parameters]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else None


def _size(parameter: Any) -> int | None:
    if isinstance(parameter, Integer):
        return parameter.size
    if isinstance(parameter, AbstractChoice):
        return parameter.size
    return 1 if isinstance(parameter, Real) and parameter.constant else None


def _asked(queries: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An agent's own rows. An agent with fewer results than the others has rows without a point."""
    own = ~np.isnan(queries).any(axis=1)
    return queries[own], values[own]


def _only_repeated(queries: np.ndarray, values: np.ndarray) -> bool:
    """Whether points were asked again, and said the same each time."""
    distinct, first, which = np.unique(queries, axis=0, return_index=True, return_inverse=True)
    before = values[first][which.reshape(-1)]
    same = np.isclose(values, before, rtol=_ROUNDING, atol=0, equal_nan=True)
    return len(distinct) < len(values) and bool(same.all())


def _all_known(queries: np.ndarray, count: int) -> bool:
    return count <= len(np.unique(queries, axis=0))
