"""Ranking-weighted ensembles of processes, in a federation (Feurer, Letham and Bakshy, 2018).

    w_n = share of draws in which the model of agent n misranks the agent's observations least
    x_t = argmax EI(x),   f(x) ~ N(Σ_n w_n μ_n(x), Σ_n w_n² σ_n²(x)),   the agent's own model among them

Adapted as in FTS, section 3.2: the models of others are posteriors on shared features.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float

from jaxbo._check import whole
from jaxbo._keys import unwrap, wrap
from jaxbo.algos.base.transfer import AbstractTransfer, TransferMessage, heard
from jaxbo.algos.base.two_models import SharedFeatures
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import ranking
from jaxbo.kernels.choosing.acquisition import deviation, log_expected_improvement
from jaxbo.kernels.linalg import dot, inner
from jaxbo.kernels.models.fitted import Fitted, FittedBelief, best
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.types import Function, Key, Point, Scalar


class RGPE(AbstractTransfer):
    """Agents exchange the mean and covariance of their posteriors: M + M² floats an agent and message.

    `own` is the agent's own exact process, `Fitted(capacity, inference=Exact())`; `features` model the
    objective for the messages, on a feature map that is common to all. Weights come from `draws` of every
    model at the agent's observations, those of its own leave out the point they are at. A model of
    another agent is dropped if its median loss is above the 95 % quantile of the own losses
    (`ranking.ensemble_weights`). Improvement is over the largest mean of the ensemble at an own
    observation. An agent that has nothing to rank goes by its own model.

    `peers` says whom to listen to: nothing is everybody, or yes or no for each agent, or a row of these
    for each target. `once` is the setting of FTS: one message an agent, of the observations of
    `warm_start`. The first `targets` agents query (default: all); the others only send.

    `Trace.info` has the weights of all agents in each query, 0 for itself: the rest of 1 is its own.
    Differs from the original in that a left-out draw is compared to the values at the other points, not
    to draws there. A round takes O(agents draws (M² + capacity²)) an agent: unlike that of FTS it grows
    with the federation. Memory: that of `FTS`, M² floats more with `once`, and in a round M² + draws M a
    target and as much an agent. Measured in a run of 35 observations of ten agents with the defaults:
    0.3 MB an agent at most.
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    own: Fitted
    _: KW_ONLY
    features: Fixed = eqx.field(default_factory=Fixed)
    peers: Bool[Array, " agents"] | Bool[Array, "targets agents"] | None = eqx.field(
        default=None, converter=heard
    )
    once: bool = eqx.field(static=True, default=False)
    targets: int = eqx.field(static=True, default=None)
    candidates: int = eqx.field(static=True, default=1000)
    draws: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        whole("draws", self.draws, least=1)

    @property
    def numbers_a_point(self) -> int:
        return self.features.size

    def acquisition(
        self,
        key: Key,
        shared: SharedFeatures,
        own: FittedBelief,
        messages: TransferMessage,
        others: Bool[Array, " agents"],
    ) -> tuple[Function, Float[Array, " agents"]]:
        weights, own_weight = self.weights(key, shared, own, messages, others)

        # A weighted sum of functions of the same features is one such function.
        theirs = dot(weights, messages.mean)
        covariances = jax.vmap(lambda factor: dot(factor.T, factor))(messages.factor)
        covariance = jnp.tensordot(weights**2, covariances, 1, precision="highest")

        def predict(x: Point) -> tuple[Scalar, Scalar]:
            phi = shared.message(x)
            mean, variance = self.own.standardized(shared.own, own, x)
            return (
                dot(theirs, phi) + own_weight * mean,
                jnp.maximum(inner(dot(covariance, phi), phi), 0) + own_weight**2 * variance,
            )

        largest = best(jax.vmap(lambda x: predict(x)[0])(own.x), own.used)

        def log_improvement(x: Point) -> Scalar:
            mean, variance = predict(x)
            return log_expected_improvement(mean, deviation(variance), largest)

        return log_improvement, weights

    def weights(
        self,
        key: Key,
        shared: SharedFeatures,
        own: FittedBelief,
        messages: TransferMessage,
        others: Bool[Array, " agents"],
    ) -> tuple[Float[Array, " agents"], Scalar]:
        """Those of the messages, and of the agent's own model."""
        own_key, key = jr.split(key)
        y, used, dtype = own.standardized, own.used, own.y.dtype
        phis = jax.vmap(shared.message)(own.x)

        def losses(known: tuple[Array, TransferMessage]) -> Float[Array, " draws"]:
            data, message = known
            key = wrap(data, own_key)
            z = jr.normal(key, (self.draws, phis.shape[1]), dtype)
            # φ'(mean + U'z). The product φ'U' comes first, because there are fewer points than features.
            at_data = dot(message.mean, phis.T), dot(message.factor, phis.T)
            scores = at_data[0][None, :] + dot(z, at_data[1])
            return jax.vmap(lambda s: ranking.misranked(s, y, used))(scores)

        keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(self.agents))
        mean, variance = ranking.leave_one_out(own.model.matrix, y, own.noise, used)
        z = jr.normal(own_key, (self.draws, y.size), dtype)
        drawn = mean[None, :] + jnp.sqrt(variance)[None, :] * z
        own_losses = jax.vmap(lambda s: ranking.misranked_left_out(s, y, used))(drawn)
        # One agent after the other: all draws of all of them are more than there is room for.
        theirs = jax.lax.map(losses, (unwrap(keys), messages)).T
        return ranking.ensemble_weights(theirs, own_losses, others)
