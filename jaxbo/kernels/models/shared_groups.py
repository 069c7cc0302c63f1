"""Priors that groups of agents learn together, and what an agent believes under all of them.

    w_n ~ N(m_k, S_k) if agent n is of group k, which has the share π_k of all agents
    r_nk = 1 for the k of the largest π_k p(y_n | m_k, S_k), else 0      an agent's group
    N_k = Σ_n r_nk                       the server's sums: all statistics have the weight r_nk
    π_k ← (N_k + 1) / (N + K)
    (m_k, S_k) ← the step of these sums, as of a single prior            `shared_prior`

So K groups are a mixture of Gaussians, learned by classification expectation-maximization (Celeux and
Govaert, 1992), and a message has K times the numbers. If r_nk were the probabilities of groups, agents
of few values would be a part of every group, and groups would become alike. Location and scale are
common to all groups. A group that nobody is in becomes the process of the features again.

Equal groups would stay equal. So at first all agents are of group 1, and the other groups are the same.
As soon as agents differ, its sums are divided in K equal parts, as if agents were at the corners of a
regular simplex. Before location and scale are known, agents of a single value each do not differ. In
the part of group k all agents have, along K - 1 directions, the mean

    d + √K Σ_i H_ik u_i / √N,      Σ_n (d_n - d)(d_n - d)' = Σ_i u_i u_i',   |u_1| ≥ |u_2| ≥ …

with d the mean of d_n, and H the K - 1 rows of Helmert's matrix. The u_i are the directions in which
agents differ most. They tell agents apart in the next round.

An agent's own search weighs all groups by their probabilities. Nothing learned is a prior more, of the
share 1 - trust.
"""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_prior
from jaxbo.kernels.models.ensemble import mixed
from jaxbo.kernels.models.fitted import Mixture, best
from jaxbo.kernels.models.shared_covariance import AbstractCovariance, Isotropic, Statistics
from jaxbo.kernels.models.shared_predictions import SharedPredictions, with_constants
from jaxbo.kernels.models.shared_prior import AgentBelief, AgentData, SharedPrior, Terms
from jaxbo.kernels.processes.features import FeatureMap, FourierFunction
from jaxbo.types import Flag, Key, Point, Scalar

Tree = TypeVar("Tree")

#: Agents differ if |u_1| is larger: the deviation of a function is about 1, and less is rounding.
_APART = 1e-3


def uninformed(key: Key, size: int, rank: int, groups: int, dtype: jnp.dtype) -> SharedPrior:
    """The priors of all groups before any value, with a leading axis. All agents are of the first."""
    one = shared_prior.uninformed(key, size, rank, dtype)
    priors = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), one)
    return _shared(priors, (jnp.arange(groups) == 0).astype(dtype))


# ---------------------------------------------------------------- an agent


class Doubt(eqx.Module):
    """An agent's beliefs under the prior of each group and under nothing learned, by evidence.

    `alone` is that under nothing learned, whose covariance is of a simpler form. Its weight comes last.
    """

    features: FeatureMap
    groups: AgentBelief
    alone: AgentBelief
    log_weights: Float[Array, " beliefs"]

    @property
    def known(self) -> AgentData:
        """The agent's observations."""
        return self.alone.known

    def predict(self, x: Point) -> tuple[Scalar, Scalar]:
        """Mean and variance of the objective at x, without noise, in units of the values."""
        mean, variance = mixed(jnp.exp(self.log_weights), *self.mixture().predict(x))
        prior = self.alone.prior
        return prior.location + prior.scale * mean, prior.scale**2 * variance

    def mixture(self) -> Mixture:
        """As policies ask for it, for standardized values."""
        predict = SharedPredictions(self.features, self.groups, self.alone)
        expected = linalg.dot(jnp.exp(self.log_weights), predict.weights)
        means = linalg.dot(with_constants(self.features, self.known.x), expected)
        return Mixture(self.log_weights, predict, best(means, self.known.used))

    def sample(self, key: Key) -> FourierFunction:
        """A function drawn from one belief, which is drawn by weight; but for its constant."""
        expert_key, group_key, alone_key = jr.split(key, 3)
        chosen = jr.categorical(expert_key, self.log_weights)
        last = self.log_weights.size - 1
        group = jax.tree.map(lambda leaf: leaf[jnp.minimum(chosen, last - 1)], self.groups)
        drawn = self.alone.sample(alone_key), group.sample(group_key)
        weights = jax.lax.select(chosen == last, *drawn)
        return FourierFunction(self.features, weights[:-1])


def doubting(
    features: FeatureMap, prior: SharedPrior, noise: Scalar, known: AgentData, trust: Scalar
) -> Doubt:
    """An agent's beliefs where a prior is right with probability `trust`: that for all agents, or that
    of some group.
    """
    groups = prior
    if prior.share is None:
        groups = _shared(jax.tree.map(lambda leaf: leaf[None], prior), jnp.ones_like(trust)[None])
    one = _first(groups)
    S = Isotropic(jnp.ones((2,), one.mean.dtype), one.mean.size)
    alone = SharedPrior(one.location, one.scale, jnp.zeros_like(one.mean), S, None, one.learned)
    believed = lambda prior: shared_prior.believed(features, prior, noise, known)  # noqa: E731
    learned, own = _each(lambda prior: believed(prior.doubted), groups), believed(alone)
    shares = jnp.append(trust * _shares(groups), 1 - trust)
    evidence = jnp.append(learned.log_evidence, own.log_evidence)
    return Doubt(features, learned, own, jax.nn.log_softmax(evidence + jnp.log(shares)))


# ---------------------------------------------------------------- what is summed up


def terms(features: FeatureMap, priors: SharedPrior, noise: Scalar, known: AgentData) -> Terms:
    """The terms of an agent's statistics in its likeliest group, and 0 in the others."""
    beliefs = _each(lambda prior: shared_prior.believed(features, prior, noise, known), priors)
    shares = _shares(priors)
    likeliest = jnp.argmax(beliefs.log_evidence + jnp.log(shares))
    member = (jnp.arange(shares.size) == likeliest).astype(shares.dtype)
    each = _each(shared_prior.terms, beliefs)
    return _each(lambda r, one: jax.tree.map(lambda leaf: r * leaf, one), member, each)


def gathered(priors: SharedPrior, terms: Terms) -> Statistics:
    """The sum of several agents' statistics, from terms with an axis of agents."""
    its_agents = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), terms)
    return _each(shared_prior.gathered, priors, its_agents)


def statistics(
    features: FeatureMap, priors: SharedPrior, noise: Scalar, known: AgentData
) -> Statistics:
    """An agent's statistics in its likeliest group, and 0 in the others."""
    one = terms(features, priors, noise, known)
    return gathered(priors, jax.tree.map(lambda leaf: leaf[None], one))


def updated(
    priors: SharedPrior, total: Statistics, shrink: Scalar | float, degrees: Scalar | float
) -> SharedPrior:
    """An M-step of all groups, from the sums over agents."""
    # Location and scale are those of all values.
    values = jnp.broadcast_to(jnp.sum(total.values, axis=0), total.values.shape)
    total = eqx.tree_at(lambda t: t.values, total, values)
    before = _shares(priors)
    groups, apart = before.size, jnp.ones((), bool)
    if groups > 1:
        whole, together = _first(total), before[0] == 1
        parts, differ = _divided(_first(priors).covariance, whole, groups)
        equal = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), whole)
        at_first = jax.tree.map(lambda a, b: jnp.where(differ, a, b), parts, equal)
        total = jax.tree.map(lambda a, b: jnp.where(together, a, b), at_first, total)
        apart = differ | ~together
    step = lambda prior, total: shared_prior.updated(prior, total, shrink, degrees)  # noqa: E731
    new = _each(step, priors, total)
    counted = jnp.sum(total.agents)
    shares = (total.agents + 1) / (counted + groups)
    told = new.learned & (counted > 0) & apart
    return _shared(new, jnp.where(told, shares, before))


def _divided(S: AbstractCovariance, total: Statistics, groups: int) -> tuple[Statistics, Flag]:
    """The sums of one group in as many equal parts, whose d_n differ as agents' d_n differ most, and
    whether they differ at all.
    """
    agents = jnp.maximum(total.agents, 1)
    mean = total.shift / agents
    around = jax.tree.map(lambda away, mean: away - agents * mean, total.away, S.spread(mean[None]))
    axes = S.leading(around, groups - 1)
    left = jax.tree.map(jnp.subtract, around, S.spread(axes))
    corners = jnp.asarray(_simplex(groups), mean.dtype)

    def part(corner: Float[Array, " directions"]) -> Statistics:
        center = mean + linalg.dot(corner, axes) / jnp.sqrt(agents)
        away = jax.tree.map(lambda a, b: a + agents * b, left, S.spread(center[None]))
        whole = eqx.tree_at(lambda t: (t.shift, t.away), total, (agents * center, away))
        one = jax.tree.map(lambda leaf: leaf / groups, whole)
        return eqx.tree_at(lambda t: t.values, one, total.values)

    return jax.vmap(part)(corners), linalg.inner(axes[0], axes[0]) > _APART**2


def _simplex(corners: int) -> Float[np.ndarray, "corners directions"]:
    """The corners of a regular simplex around 0, whose mean square along each direction is 1."""
    k = np.arange(1, corners)
    rows = np.tril(np.ones((corners, corners)), -1)[1:] - np.diag(k.astype(float), 1)[:-1]
    return (corners / (k * (k + 1))) ** 0.5 * rows.T


def _shares(priors: SharedPrior) -> Float[Array, " groups"]:
    """The shares of all groups."""
    assert priors.share is not None
    return priors.share


def _shared(priors: SharedPrior, shares: Float[Array, " groups"]) -> SharedPrior:
    """The priors, with shares of all groups."""
    return eqx.tree_at(lambda p: p.share, priors, shares, is_leaf=lambda leaf: leaf is None)


def _first(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _each(function: Callable[..., Tree], *groups: PyTree) -> Tree:
    """A function of every group: `vmap`, but for a single group, whose bits it could change."""
    if jax.tree.leaves(groups)[0].shape[0] > 1:
        return jax.vmap(function)(*groups)
    return jax.tree.map(lambda leaf: leaf[None], function(*map(_first, groups)))
