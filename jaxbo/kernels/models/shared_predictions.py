"""An agent's predictions under priors on shared features: at a point, at many, and near a point.

    mean(x) = ψ(x)'E[w],    variance(x) = |φ|² - |G φ|²,    φ = R'ψ(x)           (`shared_prior`)
    ∇ variance = 2 J'c,     ∇² variance = 2 (J'R R'J - J'R G'G R'J + Σ_k c_k ∇²ψ_k)

with J the Jacobian of ψ at x, and c = Cov(w) ψ(x) = R (φ - G'G φ). So a climb takes no derivative of a
program: a trial takes O(dim (D² + capacity D)), or O(dim capacity D) if S has a low rank. At candidates,
φ and |φ|² are common to all agents. An agent's own part is the product of G and φ, with a row for each
observation: O(capacity D) a candidate. Rows that no agent uses are left out.

A variance is off by a few roundings of |φ|², in float32 some 5e-7. So with a noise of 1e-6 it may be 0,
or twice too large, at points that were observed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models.predictions import AbstractPredictions, MeansAndVariances
from jaxbo.kernels.models.shared_prior import AgentBelief, with_constant
from jaxbo.kernels.processes import posterior
from jaxbo.kernels.processes.features import (
    LARGEST_FORMED_HESSIAN,
    Curvature,
    FeatureMap,
    FourierFunction,
)
from jaxbo.types import Features, Point, Points, Scalar

#: So many rows of G are multiplied at a time, at many points.
_ROWS = 4


def with_constants(features: FeatureMap, points: Points) -> Float[Array, "points features"]:
    """ψ at many points."""
    return jax.vmap(lambda x: with_constant(features, x))(points)


class SharedPredictions(AbstractPredictions):
    """Predictions of the beliefs under priors of groups, with a leading axis, and of the belief alone."""

    features: FeatureMap
    groups: AgentBelief
    alone: AgentBelief
    weights: Float[Array, "beliefs features"]

    def __init__(self, features: FeatureMap, groups: AgentBelief, alone: AgentBelief):
        self.features, self.groups, self.alone = features, groups, alone
        # E[w] of all beliefs, once for all points.
        self.weights = _of_each(lambda belief: belief.weights, groups, alone)

    def _each(self, of_one: Callable[[AgentBelief], Any]) -> Any:
        return _of_each(of_one, self.groups, self.alone)

    def __call__(self, x: Point) -> MeansAndVariances:
        psi = with_constant(self.features, x)
        variances = self._each(lambda belief: _form(belief, psi))
        return linalg.dot(self.weights, psi), jnp.maximum(variances, 0)

    def many(
        self, points: Points
    ) -> tuple[Float[Array, "points beliefs"], Float[Array, "points beliefs"]]:
        psis = with_constants(self.features, points)
        variances = self._each(lambda belief: _forms(belief, psis))
        return linalg.dot(psis, self.weights.T), jnp.maximum(variances, 0).T

    def near(self, x: Point) -> Callable[[Point], MeansAndVariances]:
        psi, push = jax.linearize(lambda x: with_constant(self.features, x), x)
        slopes = jax.vmap(push)(jnp.eye(x.size, dtype=x.dtype))
        formed = x.size <= LARGEST_FORMED_HESSIAN
        weights = self.weights
        variances, covariances, forms = self._each(
            lambda belief: _at(belief, psi, slopes if formed else slopes[:0])
        )
        # The variances' derivatives are those of functions on the same features, but for J'Cov(w)J.
        all_weights = jnp.concatenate([weights, 2 * covariances])
        values = jnp.concatenate([linalg.dot(weights, psi), variances])
        toward = linalg.dot(all_weights, slopes.T)

        def curvature(weights: Features) -> Curvature:
            return FourierFunction(self.features, weights[:-1]).expansion(x)[2]

        def matrix(weights: Features) -> Float[Array, "dim dim"]:
            return jax.vmap(curvature(weights))(jnp.eye(x.size, dtype=x.dtype))

        bends = None
        if formed:
            bends = jax.vmap(matrix)(all_weights)
            bends = bends + jnp.concatenate([jnp.zeros_like(forms), 2 * forms])

        def bent(p: Point) -> Float[Array, " moments"]:
            """p'Hp of all means and variances."""
            if bends is not None:
                return jnp.sum(bends * (p[:, None] * p[None, :])[None], axis=(1, 2))
            bent = jax.vmap(lambda w: linalg.inner(p, curvature(w)(p)))(all_weights)
            step = linalg.dot(p, slopes)
            forms = self._each(lambda belief: _form(belief, step))
            return bent + jnp.concatenate([jnp.zeros_like(forms), 2 * forms])

        def quadratic(p: Point) -> MeansAndVariances:
            moved = values + jnp.sum(toward * p[None, :], axis=1) + bent(p) / 2
            means, variances = jnp.split(moved, 2)
            return means, jnp.maximum(variances, 0)

        return quadratic


def _of_each(of_one: Callable[[AgentBelief], Any], groups: AgentBelief, alone: AgentBelief) -> Any:
    """A function of every belief, the last alone."""
    if groups.offset.shape[0] > 1:
        learned = jax.vmap(of_one)(groups)
    else:  # a single group needs no axis
        first = of_one(jax.tree.map(lambda leaf: leaf[0], groups))
        learned = jax.tree.map(lambda leaf: leaf[None], first)
    own = of_one(alone)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), learned, own)


def _form(belief: AgentBelief, psi: Features) -> Scalar:
    """ψ'Cov(w)ψ."""
    phi = belief.prior.covariance.whiten(psi)
    gained = linalg.dot(belief.gains, phi)
    return linalg.inner(phi, phi) - linalg.inner(gained, gained)


def _at(
    belief: AgentBelief, psi: Features, slopes: Float[Array, "dim features"]
) -> tuple[Scalar, Features, Float[Array, "dim dim"]]:
    """ψ'Cov(w)ψ, Cov(w)ψ and J'Cov(w)J, for the rows J'."""
    S = belief.prior.covariance
    rows = jax.vmap(S.whiten)(jnp.concatenate([psi[None], slopes]))
    gained = linalg.dot(rows, belief.gains.T)
    variance = linalg.inner(rows[0], rows[0]) - linalg.inner(gained[0], gained[0])
    covariance = S.color(rows[0] - linalg.dot(gained[0], belief.gains))
    return variance, covariance, _products(rows[1:]) - _products(gained[1:])


def _products(rows: Float[Array, "dim columns"]) -> Float[Array, "dim dim"]:
    """rows rows', of few rows: as a batched product it takes twice as long on CPU."""
    return jnp.sum(rows[:, None, :] * rows[None, :, :], axis=2)


def _forms(belief: AgentBelief, psis: Float[Array, "points features"]) -> Float[Array, " points"]:
    """ψ'Cov(w)ψ for many ψ. Rows of G in use are multiplied, `_ROWS` at a time, and no others."""
    phis = jax.vmap(belief.prior.covariance.whiten)(psis)
    capacity = belief.gains.shape[0]
    chunks = -(-capacity // _ROWS)
    gains = jnp.pad(belief.gains, ((0, chunks * _ROWS - capacity), (0, 0)))
    used = -(-posterior.largest_of_batch(belief.known.count) // _ROWS)

    def add(k: Any, total: Float[Array, " points"]) -> Float[Array, " points"]:
        rows = jax.lax.dynamic_slice_in_dim(gains, k * _ROWS, _ROWS)
        return total + jnp.sum(linalg.dot(rows, phis.T) ** 2, axis=0)

    none = jnp.zeros(psis.shape[:1], psis.dtype)
    return jnp.sum(phis**2, axis=1) - jax.lax.fori_loop(0, used, add, none)
