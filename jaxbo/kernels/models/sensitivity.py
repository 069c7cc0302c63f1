"""How much of a function's variance is due to each variable: Sobol indices.

    first_v = Var(E[f | x_v]) / Var(f)             what x_v does alone
    total_v = E[Var(f | all but x_v)] / Var(f)     what x_v does alone and with others

with variables that are independent and uniform. Estimators of Saltelli et al. (2010) and of Jansen
(1999), from two independent samples A and B, and A with the variable v of B:

    first_v = mean(f(B) (f(A with v of B) - f(A))) / Var(f)
    total_v = mean((f(A) - f(A with v of B))²) / 2 Var(f)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._check import require, whole
from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.types import Function, Key

#: A choice may have as many values.
_CHOICES = 256


class SobolIndices(NamedTuple):
    """A share of the variance for each variable; the errors are some 1 / √count."""

    first: Float[Array, " variables"]
    total: Float[Array, " variables"]


def check_sobol(domain: AbstractDomain, count: int) -> None:
    """`ValueError` for a domain without such indices, or for less than two points."""
    whole("count", count, least=2)
    require(
        not isinstance(domain, Finite),
        "domain: Sobol indices need a Cube or a Space: variables of a finite set do not vary "
        "independently.",
    )


def sobol(key: Key, function: Function, domain: AbstractDomain, count: int = 4096) -> SobolIndices:
    """The indices of `function` on a cube or a space, whose parameters are variables; 0 if it is flat.

    Every parameter of a space is drawn by itself: a context too, and points that `where` forbids.
    The function gets the projected point. So a parameter of a branch interacts with the choice of
    this branch. From `count` × (variables + 2) values. `ValueError` for a finite domain, whose
    points are not all combinations of their coordinates.
    """
    check_sobol(domain, count)
    a_key, b_key = jr.split(key)
    A, B = domain.product.sample(a_key, count), domain.product.sample(b_key, count)
    axes = domain.axes(_CHOICES)
    f = jax.vmap(lambda x: function(domain.project(x)))
    at_A, at_B = f(A), f(B)
    both = jnp.concatenate([at_A, at_B])
    center, variance = jnp.mean(both), jnp.var(both)

    def of(variable: Array) -> tuple[Array, Array]:
        mixed = f(jnp.where((jnp.asarray(axes.owners) == variable)[None, :], B, A))
        first = jnp.mean((at_B - center) * (mixed - at_A))
        return first, jnp.mean((at_A - mixed) ** 2) / 2

    shares = jax.lax.map(of, jnp.arange(len(axes.columns)))
    scale = jnp.where(variance > 0, variance, 1)
    return SobolIndices(*(share / scale for share in shares))
