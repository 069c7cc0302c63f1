"""Another place for an agent whose search has found a place that would teach nothing.

If a few near points have equal values, another near point would have the same value, and a search goes
far away. While all values are equal, no model says where to look, and least of all a corner of the
domain. If values are noise alone, a model still has a peak, and a search would stay there. So a place
that is no better than the rest after a few evaluations is left with probability 1/2 in each round.

The other place is the farthest from all evaluations, of so many candidates that are drawn:

    1          while all values are equal, or from a place that is left
    8          from a place of equal values; the farthest of all would be a corner
    all        if the point was evaluated before, and the objective has shown no noise
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._keys import unwrap, wrap
from jaxbo.kernels.choosing.blocks import of_all
from jaxbo.kernels.choosing.failures import BLOCK, Limits
from jaxbo.kernels.choosing.history import SAME, History, distances, repeated, same
from jaxbo.kernels.choosing.wanted import if_wanted
from jaxbo.kernels.moments import Moments, moments_of
from jaxbo.types import Flag, Key, Point, Points, Scalar

#: Points are near up to this distance, in units of the root of the dimension.
_NEAR = 0.05
#: So many values of near points tell whether a place is worth more.
_FEW = 4
#: A place is better than all others if the difference of the means is so many standard errors.
_BETTER = 2.0
#: Values near a point are alike if their deviation is less than half of that of all values.
_ALIKE = 0.5
#: From a place of equal values a search goes to the farthest of so many candidates.
_DRAWN = 8


def elsewhere(
    key: Key,
    past: History,
    limits: Limits,
    candidates: Points,
    x: Point,
    alone: Flag | bool = True,
) -> Point:
    """`x`, unless it would teach nothing (`maximize.query`)."""
    coin_key, key = jr.split(key)
    place = _place(past, x)
    dull = place.dull & ~place.level & jr.bernoulli(coin_key)
    lost, level = (past.seen.flat | dull) & alone, place.level & alone
    again = past.seen.exact & jnp.any(repeated(past, x))

    def other(known: tuple[Float[Array, "capacity dim"], Array]) -> Point:
        X, data = known

        def nearest(z: Point) -> Scalar:
            return jnp.min(jnp.where(past.used, distances(X, z), jnp.inf))

        apart = of_all(nearest, candidates, BLOCK)
        new = apart > SAME
        free = new & limits.allowed
        # By its data: JAX's check for reused keys takes a loop for a second use.
        lots = jr.uniform(wrap(data, key), apart.shape, apart.dtype)
        lots = jnp.where(free, lots, -1)
        largest = jax.lax.top_k(lots, min(_DRAWN, lots.size))[0]
        least = jnp.where(lost, largest[0], jnp.where(level, largest[-1], 0))
        farthest = jnp.argmax(jnp.where(free & (lots >= least), apart, -1))
        # Where all that is allowed was asked before, the place of least risk that was not.
        safest = jnp.argmax(jnp.where(new, -limits.risks, -jnp.inf))
        found = jnp.where(jnp.any(free), farthest, safest)
        worth = jnp.any(free) | (again & jnp.any(new))
        return jnp.where(worth, candidates[found], x)

    return if_wanted(lost | again | level, other, (past.x, unwrap(key)), x)


class Place(NamedTuple):
    """Whether values near a point are worth more, judged by `_FEW` of them or more.

    `level` says whether all are equal. `dull` says whether they are no better than all values, and differ
    as much from each other: noise alone.
    """

    level: Flag
    dull: Flag


def _place(past: History, x: Point) -> Place:
    near = past.ended & (distances(past.x, x) <= _NEAR * math.sqrt(x.size))
    least, most = (jnp.where(near, past.values, end) for end in (jnp.inf, -jnp.inf))
    seen = past.seen.moments
    here = moments_of(past.values - seen.first, near)
    (variance, error), (all_variance, all_error) = _spread(here), _spread(seen)
    better = here.mean - seen.mean > _BETTER * jnp.sqrt(error + all_error)
    enough = here.count >= _FEW
    alike = variance < _ALIKE**2 * all_variance
    return Place(enough & same(jnp.min(least), jnp.max(most)), enough & ~better & ~alike)


def _spread(moments: Moments) -> tuple[Scalar, Scalar]:
    """The variance of values, and that of their mean; two values are the fewest."""
    count = jnp.maximum(moments.count, 2).astype(moments.squares.dtype)
    variance = moments.squares / (count - 1)
    return variance, variance / count
