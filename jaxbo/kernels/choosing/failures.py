"""Where an agent's evaluations may fail, from its history.

    risk(x) = Σ_j weights_j k(x, x_j),   weights = (K + ε I)⁻¹ failed,   k(x, z) = exp(-|x - z| / reach)

is near 1 where evaluations failed, near 0 where they succeeded, and 0 where nothing is known. It is the
mean of a process that has observed which evaluations failed. The paths of this process are not smooth, so
the risk is nearly linear between a failure and a success. If the border is anywhere between the two, the
risk is the probability that the border was passed. `reach` is the likeliest of a few. The shortest stands
for failures that have nothing to do with their place: only points that failed are then avoided.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels import linalg
from jaxbo.kernels.choosing.blocks import of_all
from jaxbo.kernels.choosing.history import SAME, History, distances
from jaxbo.kernels.choosing.wanted import if_wanted
from jaxbo.types import Flag, Point, Points, Scalar

#: A point is avoided if its risk is larger.
TOLERATED = 0.07
#: The risk at a point that failed.
FORBIDDEN = 2.0
#: Lengths over which failures may be alike, in units of the root of the dimension, with which distances
#: in a cube grow. Over the first no two places are alike: failures by chance.
REACHES = (1e-3, 0.02, 0.05, 0.15, 0.5, 1.5)
#: How much each is expected, in nats: 0.15 most, half a nat less a factor e away, one nat less by chance.
EXPECTED = (-1.0, *(-(np.log(np.array(REACHES[1:]) / 0.15) ** 2) / 2))
#: The variance of failures that does not depend on the place.
_CHANCE = 1e-2
#: So many candidates are compared with what is remembered at a time, which bounds an agent's memory.
BLOCK = 64
#: Points that are looked at on the way to one that is not allowed.
_STEPS = 16


class Risk(NamedTuple):
    """The probability, roughly, that an evaluation fails; `FORBIDDEN` at a point that did.

    `present` says whether any has failed.
    """

    x: Float[Array, "capacity dim"]
    failed: Bool[Array, " capacity"]
    weights: Float[Array, " capacity"]
    reach: Scalar

    @property
    def present(self) -> Flag:
        """Whether any evaluation failed."""
        return jnp.any(self.failed)

    def __call__(self, x: Point) -> Scalar:
        """The risk at a point; 0 everywhere as long as nothing has failed."""
        found = linalg.dot(self.weights, jnp.exp(-distances(self.x, x) / self.reach))
        again = jnp.any(self.failed & (distances(self.x, x) <= SAME))
        return jnp.where(again, FORBIDDEN, found)


class Limits(NamedTuple):
    """An agent with this past looks at points whose risk is at most `most`.

    `risks` are the risks of a search's candidates.
    """

    risk: Risk
    risks: Float[Array, " points"]
    most: Scalar

    @property
    def allowed(self) -> Bool[Array, " points"]:
        """The candidates that may be looked at; there is always such a candidate."""
        return self.risks <= self.most

    def allow(self, x: Point) -> Flag:
        """Whether the risk at a point is low enough."""
        low = lambda x: self.risk(x) <= self.most  # noqa: E731
        return if_wanted(self.risk.present, low, x, jnp.ones((), bool))

    def toward(self, domain: AbstractDomain, start: Point, end: Point) -> Point:
        """The last point that is allowed on the way from `start` to `end`, or the start."""

        def last(start: Point) -> Point:
            shares = jnp.linspace(0, 1, _STEPS)[:, None].astype(start.dtype)
            way = jax.vmap(domain.project)(start[None, :] + shares * (end - start)[None, :])
            allowed = jax.vmap(self.risk)(way) <= self.most
            if domain.constrained:
                allowed = allowed & jax.vmap(domain.allows)(way)
            return way[jnp.max(jnp.where(allowed, jnp.arange(_STEPS), 0))]

        wanted = jnp.ones((), bool) if domain.constrained else self.risk.present
        return if_wanted(wanted, last, start, end)


def preferred(
    allowed: Bool[Array, " points"], values: Float[Array, " points"]
) -> Float[Array, " points"]:
    """The values of a function, so that any point that is allowed is better than all others."""
    return jnp.where(allowed, jnp.maximum(values, jnp.finfo(values.dtype).min), -jnp.inf)


def limits(past: History, candidates: Points) -> Limits:
    """Points whose risk is tolerated, or the candidates of least risk where none is."""
    nowhere = jnp.zeros_like(past.values), jnp.ones((), past.values.dtype)
    none = jnp.zeros(candidates.shape[:1], past.x.dtype)

    def known(past: History) -> tuple[tuple[Array, Scalar], Float[Array, " points"]]:
        fitted = _fitted(past)
        return fitted, of_all(Risk(past.x, past.failed, *fitted), candidates, BLOCK)

    fitted, risks = if_wanted(jnp.any(past.failed), known, past, (nowhere, none))
    found = Risk(past.x, past.failed, *fitted)
    return Limits(found, risks, jnp.maximum(jnp.min(risks), TOLERATED))


def _fitted(past: History) -> tuple[Float[Array, " capacity"], Scalar]:
    """The weights under the likeliest reach, and that reach."""
    dtype, known = past.values.dtype, past.known
    count, failed = jnp.sum(known, dtype=dtype), past.failed.astype(dtype)
    apart = jax.vmap(lambda z: distances(past.x, z))(past.x)
    apart = jnp.where(known[:, None] & known[None, :], apart, jnp.inf)
    identity = jnp.eye(known.size, dtype=dtype)

    def under(item: tuple[Scalar, Scalar]) -> tuple[Scalar, Float[Array, " capacity"]]:
        reach, prior = item
        # No eigenvalue is below `_CHANCE` or above the number of rows: float32 is enough.
        L = jax.lax.linalg.cholesky(
            jnp.exp(-apart / reach) + _CHANCE * identity, symmetrize_input=False
        )
        # The library's solve, which is quick for one right-hand side and compiles sooner than our own.
        solve = partial(jax.lax.linalg.triangular_solve, L, left_side=True, lower=True)
        white = solve(failed[:, None])
        # With the amplitude that is most likely.
        fit = jnp.log(jnp.sum(white**2) / count)
        weights = solve(white, transpose_a=True)[:, 0]
        return prior - count / 2 * fit - jnp.sum(jnp.log(jnp.diagonal(L))), weights

    reaches = jnp.asarray(REACHES, dtype) * math.sqrt(past.x.shape[1])
    # One after another: they take K² numbers each.
    evidences, weights = jax.lax.map(under, (reaches, jnp.asarray(EXPECTED, dtype)))
    best = jnp.argmax(evidences)
    return weights[best], reaches[best]
