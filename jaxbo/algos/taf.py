"""The transfer acquisition function, in a federation (Wistuba, Schilling and Schmidt-Thieme, 2018).

    x_t = argmax (w EI(x) + Σ_n w_n max(μ_n(x) - y*_n, 0)) / (w + Σ_n w_n),    w = ¾
    w_n = ¾ (1 - (d_n / bandwidth)²)₊,   d_n the share of pairs of observations that μ_n misranks

y*_n is the incumbent of agent n. Adapted as in FTS, section 3.2: the models of others are posteriors on
shared features.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbo._check import positive_number
from jaxbo.algos.base.transfer import AbstractTransfer, TransferMessage, heard
from jaxbo.algos.base.two_models import SharedFeatures
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import ranking
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models.fitted import Fitted, FittedBelief
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.types import Function, Key, Point, Scalar, named


class TAF(AbstractTransfer):
    """TAF: agents send posteriors and incumbents, and the transfer acquisition function adds them up.

    A message has M + M² + 1 floats, with M the number of features. As in FTS, section 3.2,
    improvement is over the incumbent that each agent sends. The original's improvement is over the
    best that agent n's model predicts where this agent has been, which needs no incumbent. An agent
    whose own values are all equal takes the original's reference if that is less. It gains nothing
    by going beyond another's best point, and everything by going there. `Trace.info` has w_n / (w +
    Σ_n w_n).

    Cost is that of `RGPE` without its draws. Memory is that of `FTS`, M² floats more with `once`,
    and M² of each agent that is heard, once for all. Measured in a run of 35 observations of ten
    agents with the defaults: 0.2 MB an agent at most.

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
        bandwidth: Share of misranked pairs from which on an agent is not listened to, above 0.
            While there is no pair to rank, all are listened to. Default: 0.5.

    Raises:
        ValueError: `own` is not exact, `features` do not standardize, `peers` has another shape, or
            `bandwidth` is not positive.

    Example:
        >>> import jaxbo
        >>> own = jaxbo.Fitted(20, inference=jaxbo.Exact())
        >>> method = jaxbo.TAF(jaxbo.Cube(2), agents=5, own=own, targets=2, bandwidth=0.4)
        >>> method.targets, round(float(method.bandwidth), 2)
        (2, 0.4)
    """

    sends_incumbent: ClassVar[bool] = True

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
    bandwidth: Scalar = eqx.field(default=0.5, converter=named("bandwidth"))

    def __check_init__(self):
        positive_number("bandwidth", self.bandwidth)

    @property
    def numbers_a_point(self) -> int:
        return self.agents

    def acquisition(
        self,
        key: Key,
        shared: SharedFeatures,
        own: FittedBelief,
        messages: TransferMessage,
        others: Bool[Array, " agents"],
    ) -> tuple[Function, Float[Array, " agents"]]:
        there = dot(messages.mean, jax.vmap(shared.message)(own.x).T)
        weights = jnp.where(others, self.weights(own, there), 0)
        own_weight = ranking.epanechnikov(jnp.zeros_like(self.bandwidth))
        log_improvement = EI()(key, self.own, shared.own, own)
        incumbents = _incumbents(own, there, messages)

        def function(x: Point) -> Scalar:
            """The logarithm of the sum: it has slopes where an improvement is next to nothing."""
            means = dot(messages.mean, shared.message(x))
            theirs = dot(weights, jnp.maximum(means - incumbents, 0))
            some = theirs > 0
            mine = jnp.log(own_weight) + log_improvement(x)
            both = jnp.logaddexp(mine, jnp.log(jnp.where(some, theirs, 1)))
            return jnp.where(some, both, mine)

        return function, weights / (own_weight + jnp.sum(weights))

    def weights(
        self, own: FittedBelief, predicted: Float[Array, "agents capacity"]
    ) -> Float[Array, " agents"]:
        """Computes w_n of all agents, however they are heard.

        Args:
            own: The belief of the agent's own process.
            predicted: The predictions of each agent's model at the points of the agent's own model.

        Returns:
            The weights.
        """
        y, used = own.y, own.used
        count = jnp.maximum(jnp.sum(ranking.pairs(y, used), dtype=y.dtype), 1)
        wrong = jax.vmap(lambda s: ranking.misranked(s, y, used))(predicted)
        return jax.vmap(ranking.epanechnikov)(wrong / count / self.bandwidth)


def _incumbents(
    own: FittedBelief, predicted: Float[Array, "agents capacity"], messages: TransferMessage
) -> Float[Array, " agents"]:
    """y*_n of all agents; inf, which nothing improves on, for an agent that has observed nothing."""
    sent = messages.incumbent
    assert sent is not None
    best = jnp.max(jnp.where(own.used[None, :], predicted, -jnp.inf), axis=1)
    equal = jnp.any(own.used) & ~jnp.any(ranking.pairs(own.y, own.used))
    known = sent > jnp.finfo(sent.dtype).min
    return jnp.where(known, jnp.where(equal, jnp.minimum(sent, best), sent), jnp.inf)
