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
    """RGPE: agents send the mean and covariance of posteriors, and an ensemble weighs them by rank.

    A message has M + M² floats, with M the number of features. Weights come from draws of every
    model at the agent's observations. The draws of its own model leave out the point they are at. A
    model of another agent is dropped if its median loss is above the 95 % quantile of the own
    losses (`ranking.ensemble_weights`). Improvement is over the largest mean of the ensemble at an
    own observation. An agent that has nothing to rank goes by its own model. `Trace.info` has the
    weights of all agents in each query. An agent's entry for itself is 0, and the rest of 1 is the
    weight of its own model.

    Differs from the original in that a left-out draw is compared to the values at the other points,
    not to draws there.

    A round takes O(agents draws (M² + capacity²)) an agent, so unlike a round of FTS it grows with
    the federation. Memory: that of `FTS`, M² floats more with `once`, and in a round M² + draws M a
    target and as much an agent. Measured in a run of 35 observations of ten agents with the
    defaults: 0.3 MB an agent at most.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1.
        own: The agent's own exact process, `Fitted(capacity, inference=Exact())`.
        features: Model of the objective for the messages, on a feature map that all agents share.
            It must standardize values. Default: `Fixed()`.
        peers: The agents to listen to: a truth value for each agent, or a row of them for each
            target. None: everybody.
        once: Whether each agent sends a single message, of its observations of `warm_start`, as in
            `FTS`. Default: False.
        targets: Number of agents that query, the first of all; the others only send. None: all
            agents.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.
        draws: Number of draws of every model, at least 1. Default: 100.

    Raises:
        ValueError: `own` is not exact, `features` do not standardize, or `peers` has another shape.

    Example:
        >>> import jaxbo
        >>> own = jaxbo.Fitted(20, inference=jaxbo.Exact())
        >>> method = jaxbo.RGPE(jaxbo.Cube(2), agents=5, own=own, targets=2, draws=50)
        >>> method.targets, method.capacity
        (2, 20)
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
        """Weighs the models by how well their draws rank the agent's observations.

        Args:
            key: Random key.
            shared: The result of `setup`.
            own: The belief of the agent's own process.
            messages: The messages of all agents, all of them finite.
            others: Whether the agent listens to each agent.

        Returns:
            The weights of the messages, and the weight of the agent's own model.
        """
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
