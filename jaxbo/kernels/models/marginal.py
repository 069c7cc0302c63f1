"""Hyperparameters that are not estimated but integrated out: fully Bayesian.

    p(theta | y) ∝ p(y | theta) p(theta),    f ~ mean over theta_s ~ p(theta | y) of GP(theta_s)

The samples theta_s are by NUTS (Hoffman and Gelman, 2014), of blackjax: the extra `bayes`.
"""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._check import is_a, whole
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.ensemble import AbstractEnsemble, Experts
from jaxbo.kernels.models.fit import Problem
from jaxbo.kernels.models.fitted import Fitted, FittedBelief
from jaxbo.types import Count, Key, Scalar

#: Doublings of a trajectory at most: under vmap all chains wait for the longest one.
_DOUBLINGS = 5
#: Steps of the chain between two samples that are kept.
_APART = 4


class Marginal(AbstractEnsemble):
    """A fully Bayesian model: equally weighed experts whose hyperparameters are posterior samples.

    In place of maximum evidence, a chain goes on from its last sample whenever `expert` would
    refit. After some steps that adapt it, it keeps a sample every few steps. The prior is that of
    `expert`. With `Thompson` it is fully Bayesian GP-TS: a sample of the hyperparameters, then a
    function. With `EI` the acquisition is averaged over the samples (Snoek et al., 2012).

    The chain's randomness is drawn once, by `setup`, and depends on the number of observations:
    agents that share features share it. Memory: `samples` times that of `expert`.

    Args:
        expert: The model of each sample, with its prior and the rounds between refits.
        samples: Number of samples, at least 1. Default: 8.
        warmup: Steps that adapt the chain, at least 20. Default: 100.

    Raises:
        ImportError: blackjax is not installed.
        ValueError: A number is too small, or `expert` is no `Fitted`.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Marginal(jaxbo.Fitted(20, inference=jaxbo.Exact()), samples=4)
        >>> method = jaxbo.EGP(jaxbo.Cube(2), model, jaxbo.Thompson())
        >>> model.size, method.capacity
        (4, 20)
    """

    expert: Fitted
    samples: int = eqx.field(static=True, default=8)
    warmup: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        is_a("expert", self.expert, Fitted)
        whole("samples", self.samples, least=1)
        whole("warmup", self.warmup, least=20)
        if importlib.util.find_spec("blackjax") is None:
            raise ImportError(
                'sampling hyperparameters needs blackjax: pip install "jaxbo-agents[bayes]"'
            )

    @property
    def member(self) -> Fitted:
        return self.expert

    @property
    def size(self) -> int:
        return self.samples

    def setup(self, key: Key, dim: int) -> Experts:
        copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.samples), self.expert.kernel)
        return Experts.of(self.expert, copies, key, dim)

    def refit(self, shared: Experts, belief: FittedBelief) -> FittedBelief:
        belief = shared.map(lambda e, phi, b: e.rewarped(b), belief)
        last = jax.tree.map(lambda leaf: leaf[-1], belief)
        problem = fit.of_data(
            last.kernel,
            last.noise,
            last.x,
            last.standardized,
            bounds=self.expert.limits,
            priors=self.expert.prior,
            kept=("length_scale",) if self.expert.keep_length_scale else (),
        )
        key = jr.fold_in(shared.draws.key, last.moments.count)
        drawn = sample(key, problem, self.samples, self.warmup)
        drawn = jnp.where(last.told, drawn, problem.theta)
        found = jax.vmap(problem.unpack)(drawn)
        return shared.map(lambda e, phi, b, theta: e.under(phi, b, *theta), belief, found)

    def log_weights(self, shared: Experts, belief: FittedBelief) -> Float[Array, " experts"]:
        """Weighs all experts equally: samples of the posterior are as frequent as they are likely.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The log weights; the weights sum to 1.
        """
        del shared
        return jnp.full((self.samples,), -math.log(self.samples), belief.y.dtype)

    def draw(self, key: Key, shared: Experts, belief: FittedBelief) -> Count:
        """Draws any sample, all of them equally likely.

        Args:
            key: Random key.
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The number of the sample.
        """
        del shared, belief
        return jr.randint(key, (), 0, self.samples)


def sample(key: Key, problem: Problem, count: int, warmup: int) -> Float[Array, "count parameters"]:
    """theta ~ p(theta | data), dependent draws of a chain that starts at the problem's own."""

    def log_density(u: Float[Array, " parameters"]) -> Scalar:
        return problem.log_density(problem.inside(u)) + problem.log_volume(u)

    # blackjax relies on implicit promotion, which a user may have forbidden.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        u = _chain(key, log_density, problem.starts(1)[0], count, warmup)
    return jax.vmap(problem.inside)(u)


def _chain(
    key: Key,
    log_density: Callable[[Float[Array, " parameters"]], Scalar],
    start: Float[Array, " parameters"],
    count: int,
    warmup: int,
) -> Float[Array, "count parameters"]:
    import blackjax

    adapt_key, chain_key = jr.split(key)
    adapt: Any = blackjax.window_adaptation(
        blackjax.nuts, log_density, max_num_doublings=_DOUBLINGS
    )
    (state, parameters), _ = adapt.run(adapt_key, start, num_steps=warmup)
    kernel = blackjax.nuts(log_density, **parameters)

    def step(state: Any, key: Key) -> tuple[Any, Float[Array, " parameters"]]:
        state, _ = kernel.step(key, state)
        return state, state.position

    _, u = jax.lax.scan(step, state, jr.split(chain_key, count * _APART))
    return u[_APART - 1 :: _APART]
