"""Points near the best ones: where a search that covers the whole domain looks too thinly.

    x = project(b + s m (c - b)),   m_v ~ Bernoulli(1/3) for each variable v, at least one is 1

b is one of the best points evaluated, c a point that covers the domain, and s = 10^-u with u uniform on
[0, 2]. So a few variables move, by any length, and the others stay: a choice takes another value, a
number goes along its axis. Late in a search the next query is of this kind, and few of a thousand points
that cover ten dimensions are.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.kernels.choosing.history import History
from jaxbo.types import Key, Points

#: The points moved are among so many of the best.
BEST = 5
#: A variable moves with this probability.
_MOVED = 1 / 3
#: The shortest move is this power of ten of the way to another point.
_SHORTEST = -2.0


def nearby(key: Key, domain: AbstractDomain, past: History, others: Points) -> Points:
    """As many points as `others`, near the best evaluated points; in place of each, one of its own.

    Where nothing is known, a point is not allowed, or the domain is finite, it is the one of `others`.
    """
    if isinstance(domain, Finite):
        return others
    variables = domain.variables
    best_key, move_key, least_key, length_key = jr.split(key, 4)
    count, numbers = others.shape[0], variables.number
    values = jnp.where(past.known & ~past.failed, past.values, -jnp.inf)
    tops, rows = jax.lax.top_k(values, min(BEST, values.size))
    usable = jnp.sum(tops > -jnp.inf, dtype=int)
    picked = jr.randint(best_key, (count,), 0, jnp.maximum(usable, 1))
    start = past.x[rows[picked]].astype(others.dtype)
    moved = jr.bernoulli(move_key, _MOVED, (count, numbers))
    certain = jr.randint(least_key, (count, 1), 0, numbers) == jnp.arange(numbers)[None, :]
    moved = (moved | certain)[:, variables.owners]
    length = 10 ** jr.uniform(length_key, (count, 1), others.dtype, _SHORTEST, 0)
    length = jnp.where(variables.near[None, :], length, 1)
    points = start + jnp.where(moved, length * (others - start), 0)
    points = jax.vmap(domain.project)(points)
    usable = jnp.broadcast_to(usable > 0, (count,))
    if domain.constrained:
        usable = usable & jax.vmap(domain.allows)(points)
    return jnp.where(usable[:, None], points, others)
