"""From a belief to the function whose maximizer is queried next.

    Thompson              f ~ belief
    EI, UCB               of the mixture  f(x) ~ Σ_m w_m N(mean_m, std_m²),  in closed form:
                              EI = Σ_m w_m EI_m,    UCB = mean + √beta std of the mixture
    Drawn(policy)         of one expert, drawn by weight               (EGP-EI, appendix E)
    Largest               max_m f_m(x),  f_m ~ expert m                (BanditBO)

For a model of one kernel the mixture is that model.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import ArrayLike

from jaxbo._check import is_a, require
from jaxbo._extensible import Extensible
from jaxbo.kernels.choosing import acquisition
from jaxbo.kernels.models.ensemble import AbstractEnsemble, mixed
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.types import Count, Function, Key, Point, Scalar, named

#: A squared number of standard deviations, or one for each t: a function such as `schedules.Confidence`.
Beta: TypeAlias = Scalar | Callable[[Count], Scalar]


def as_beta(value: ArrayLike | Callable[[Count], Scalar]) -> Beta:
    """A function as it is, a number as an array."""
    return value if callable(value) else named("beta")(value)


def check_beta(beta: Beta) -> None:
    """`ValueError` for a number below 0."""
    require(callable(beta) or beta >= 0, f"beta must be at least 0, got {beta}.")


def beta_at(beta: Beta, t: Count) -> Scalar:
    """Its value at t."""
    return beta(t) if callable(beta) else beta


class AbstractPolicy(Extensible):
    """How the next query follows from a belief.

    Where two queries from one belief do not differ by themselves, workers that are still busy are taken
    to observe what the model expects.
    """

    @abc.abstractmethod
    def random(self) -> bool:
        """Whether two queries from one belief differ by themselves, ties apart."""

    @abc.abstractmethod
    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        """The function to maximize.

        `surrogate` is a model, or another object with what the policy asks of it: `sample`, `mixture` or
        `count`.
        """

    @abc.abstractmethod
    def check(self, surrogate: AbstractSurrogate) -> None:
        """`ValueError` for a surrogate that has not what it takes."""


class Thompson(AbstractPolicy):
    """A function drawn from the belief: of an ensemble, from an expert drawn by weight (eq. 8, 9)."""

    def random(self) -> bool:
        return True

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        return surrogate.sample(key, shared, belief)

    def check(self, surrogate: AbstractSurrogate) -> None:
        is_a("surrogate", surrogate, AbstractSurrogate)


class EI(AbstractPolicy):
    """Expected improvement over the best posterior mean at a point observed; its logarithm is climbed."""

    def random(self) -> bool:
        return False

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        del key
        weights, predict, best = surrogate.mixture(shared, belief)

        def log_improvement(x: Point) -> Scalar:
            means, variances = predict(x)
            each = jax.vmap(acquisition.log_expected_improvement, (0, 0, None))
            return jax.nn.logsumexp(weights + each(means, acquisition.deviation(variances), best))

        return log_improvement

    def check(self, surrogate: AbstractSurrogate) -> None:
        check_mixture(surrogate)


class UCB(AbstractPolicy):
    """mean + √beta std; `beta` is the squared number of standard deviations, or a schedule of it
    over the evaluations that the model has seen."""

    beta: Beta = eqx.field(converter=as_beta, default=4.0)

    def random(self) -> bool:
        return False

    def __check_init__(self):
        check_beta(self.beta)

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        del key
        weights, predict, _ = surrogate.mixture(shared, belief)
        beta = beta_at(self.beta, surrogate.count(belief) + 1)

        def bound(x: Point) -> Scalar:
            mean, variance = mixed(jnp.exp(weights), *predict(x))
            std = acquisition.deviation(variance)
            return acquisition.upper_confidence_bound(mean, std, beta.astype(mean.dtype))

        return bound

    def check(self, surrogate: AbstractSurrogate) -> None:
        check_mixture(surrogate)


class Drawn(AbstractPolicy):
    """Another policy for one expert of an ensemble, drawn by weight."""

    policy: AbstractPolicy = eqx.field(default_factory=EI)

    def random(self) -> bool:
        return self.policy.random()

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        expert_key, policy_key = jr.split(key)
        chosen = surrogate.draw(expert_key, shared, belief)
        return self.policy(policy_key, *shared.pick(chosen, belief))

    def check(self, surrogate: AbstractSurrogate) -> None:
        self.policy.check(_of_several(surrogate).member)


class Largest(AbstractPolicy):
    """The best sample of all experts: arms of a bandit by Thompson sampling (Nguyen et al., 2020).

    As in EGP-TS, where arms are kernels of one function: all of them are given all observations.
    """

    def random(self) -> bool:
        return True

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        keys = jr.split(key, surrogate.size)
        samples = jax.vmap(lambda e, phi, b, k: e.sample(k, phi, b))(
            shared.experts, shared.features, belief, keys
        )
        return lambda x: jnp.max(jax.vmap(lambda f: f(x))(samples))

    def check(self, surrogate: AbstractSurrogate) -> None:
        _of_several(surrogate)


def _of_several(surrogate: AbstractSurrogate) -> AbstractEnsemble:
    if not isinstance(surrogate, AbstractEnsemble):
        raise ValueError(
            f"this policy needs a surrogate of several experts, Ensemble or Marginal, got "
            f"{type(surrogate).__name__}."
        )
    return surrogate


def check_mixture(surrogate: AbstractSurrogate) -> None:
    """`ValueError` for a surrogate whose belief is no mixture at each point."""
    require(
        isinstance(surrogate, Fitted | AbstractEnsemble),
        f"this policy needs a surrogate that keeps its observations, Fitted, Ensemble or Marginal, got "
        f"{type(surrogate).__name__}.",
    )
