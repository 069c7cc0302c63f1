"""From a belief to the function whose maximizer is queried next.

    Thompson              f ~ belief
    EI, UCB               of the mixture  f(x) ~ Σ_m w_m N(mean_m, std_m²),  in closed form:
                              EI = Σ_m w_m EI_m,    UCB = mean + √beta std of the mixture
    Drawn(policy)         of one expert, drawn by weight               (EGP-EI, appendix E)
    Largest               max_m f_m(x),  f_m ~ expert m                (BanditBO)

For a model of a single kernel the mixture is that model.

If outcomes have bounds, a model each says how far they are on the good side, their slack:

    EI                    EI · Π_k P(slack_k(x) ≥ 0),    over the best point expected to be feasible
    Thompson, UCB         f(x) where all slack_k(x) ≥ 0, and elsewhere less than anywhere there, the
                          less the more is missing; with f and slack_k drawn, or upper bounds
"""

import abc
import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._beta import Beta, as_beta, beta_at, check_beta
from jaxbo._check import is_a, require
from jaxbo._extensible import Extensible
from jaxbo.kernels.choosing import acquisition
from jaxbo.kernels.models.ensemble import AbstractEnsemble, first, mixed
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.predictions import composed
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.types import Flag, Function, Key, Point, Scalar


class Model(NamedTuple):
    """A surrogate and its belief."""

    surrogate: Any
    shared: Any
    belief: Any


#: Policies that have a rule for outcomes.
_WITH_RULE = "EI(), Thompson(), UCB() or Drawn()"
#: The value of points where a drawn outcome misses its bound: less than any function is, in deviations.
_BELOW = -1e3


class AbstractPolicy(Extensible):
    """How the next query follows from a belief.

    If two queries from the same belief do not differ by themselves, the model takes busy workers to
    observe the expected value.
    """

    @abc.abstractmethod
    def random(self) -> bool:
        """Says whether two queries from the same belief differ by themselves, ties apart."""

    @abc.abstractmethod
    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        """Returns the function to maximize.

        `surrogate` is a model, or another object with the methods that the policy asks for:
        `sample`, `mixture` or `count`.
        """

    @abc.abstractmethod
    def check(self, surrogate: AbstractSurrogate) -> None:
        """Checks that a surrogate has all that the policy needs.

        Args:
            surrogate: The model of the objective.

        Raises:
            ValueError: The surrogate lacks something.
        """

    def constrained(self, key: Key, model: Model, slacks: Sequence[Model]) -> Function:
        """Makes the function to maximize if outcomes have bounds.

        Args:
            key: Random key.
            model: The model of the objective, with its belief.
            slacks: The models of the outcomes' slacks, not empty.

        Returns:
            The function.

        Raises:
            ValueError: The policy has no rule for outcomes.
        """
        raise ValueError(f"{type(self).__name__} has no rule for outcomes: give {_WITH_RULE}.")

    def check_constrained(self, surrogate: AbstractSurrogate) -> None:
        """Checks that this policy and a surrogate can take outcomes.

        Args:
            surrogate: The model of the objective.

        Raises:
            ValueError: The policy, or the surrogate, is not for outcomes.
        """
        require(
            type(self).constrained is not AbstractPolicy.constrained,
            f"{type(self).__name__} has no rule for outcomes: give {_WITH_RULE}, or write constrained.",
        )
        require(
            type(surrogate).standard is not AbstractSurrogate.standard,
            f"outcomes need a surrogate such as Fixed, Fitted, Ensemble or Marginal, got "
            f"{type(surrogate).__name__}.",
        )


class Thompson(AbstractPolicy):
    """Thompson sampling: the function to maximize is drawn from the belief.

    From an ensemble, an expert is drawn by weight, and the function is drawn from its belief (eq.
    8, 9).

    Example:
        >>> import jaxbo
        >>> policy = jaxbo.Thompson()
        >>> policy.random()
        True
        >>> method = jaxbo.EGP(jaxbo.Cube(2), jaxbo.Fixed(), policy, workers=4)
        >>> method.random
        True
    """

    def random(self) -> bool:
        return True

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        return surrogate.sample(key, shared, belief)

    def constrained(self, key: Key, model: Model, slacks: Sequence[Model]) -> Function:
        return least_violated(self, key, model, slacks)

    def check(self, surrogate: AbstractSurrogate) -> None:
        is_a("surrogate", surrogate, AbstractSurrogate)


class EI(AbstractPolicy):
    """Expected improvement over the best posterior mean at an observed point.

    Its logarithm is maximized. The improvement of an ensemble is that of its mixture, in closed
    form.

    Example:
        >>> import equinox as eqx, jax.numpy as jnp, jax.random as jr, jaxbo
        >>> model = jaxbo.Fitted(4, size=10, inference=jaxbo.Exact())
        >>> shared = model.setup(jr.key(0), dim=1)
        >>> x, y = jnp.array([0.2]), jnp.array(1.0)
        >>> belief = eqx.filter_jit(model.condition)(shared, model.start(shared), x, y)
        >>> log_improvement = eqx.filter_jit(jaxbo.EI()(jr.key(1), model, shared, belief))
        >>> bool(log_improvement(x + 0.7) > log_improvement(x))
        True
    """

    def random(self) -> bool:
        return False

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        del key
        weights, predict, best = surrogate.mixture(shared, belief)

        def log_improvement(means: Array, variances: Array) -> Scalar:
            return _log_improvement(weights, means, variances, best)

        return composed(predict, log_improvement)

    def constrained(self, key: Key, model: Model, slacks: Sequence[Model]) -> Function:
        """Adds the log probability of being feasible to the log improvement.

        If no observed point is expected to be feasible, the probability of being feasible counts
        alone.

        Args:
            key: Random key.
            model: The model of the objective, with its belief.
            slacks: The models of the outcomes' slacks, not empty.

        Returns:
            The function to maximize.
        """
        del key
        chances = [_log_chance(slack) for slack in slacks]
        weights, predict, _ = model.surrogate.mixture(model.shared, model.belief)

        def mean(x: Point) -> Scalar:
            expected = jnp.sum(jnp.exp(weights) * predict(x)[0])
            return jnp.where(expected_feasible(slacks, x), expected, -jnp.inf)

        several = isinstance(model.surrogate, AbstractEnsemble)
        one = first(model.belief) if several else model.belief
        best = jnp.max(jnp.where(one.used, jax.vmap(mean)(one.x), -jnp.inf))
        found = best > -jnp.inf
        best = jnp.where(found, best, 0)

        def log_improvement(x: Point) -> Scalar:
            means, variances = predict(x)
            improvement = _log_improvement(weights, means, variances, best)
            return jnp.where(found, improvement, 0) + _sum(chance(x) for chance in chances)

        return log_improvement

    def check(self, surrogate: AbstractSurrogate) -> None:
        check_mixture(surrogate)


class UCB(AbstractPolicy):
    """The upper confidence bound: mean + √beta std, of an ensemble's mixture too.

    Args:
        beta: The squared number of standard deviations, at least 0. A function is a schedule of it
            over the evaluations that the model has seen. Default: 4.

    Raises:
        ValueError: `beta` is below 0.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr, jaxbo
        >>> model = jaxbo.Fitted(4, size=10, inference=jaxbo.Exact())
        >>> shared = model.setup(jr.key(0), dim=1)
        >>> bound = jaxbo.UCB(beta=9.0)(jr.key(1), model, shared, model.start(shared))
        >>> round(float(bound(jnp.array([0.5]))), 2)
        3.0
    """

    beta: Beta = eqx.field(converter=as_beta, default=4.0)

    def random(self) -> bool:
        return False

    def __check_init__(self):
        check_beta(self.beta)

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        del key
        weights, predict, _ = surrogate.mixture(shared, belief)
        beta = beta_at(self.beta, surrogate.count(belief) + 1)

        def bound(means: Array, variances: Array) -> Scalar:
            mean, variance = mixed(jnp.exp(weights), means, variances)
            std = acquisition.deviation(variance)
            return acquisition.upper_confidence_bound(mean, std, beta.astype(mean.dtype))

        return composed(predict, bound)

    def constrained(self, key: Key, model: Model, slacks: Sequence[Model]) -> Function:
        return least_violated(self, key, model, slacks)

    def check(self, surrogate: AbstractSurrogate) -> None:
        check_mixture(surrogate)


class Drawn(AbstractPolicy):
    """Another policy for a single expert of an ensemble, drawn by weight.

    It is for surrogates of several experts, `Ensemble` and `Marginal`.

    Args:
        policy: The policy for the drawn expert. Default: `EI()`.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Ensemble([jaxbo.Matern32(0.2), jaxbo.Matern52(0.2)], jaxbo.Fitted(20))
        >>> method = jaxbo.EGP(jaxbo.Cube(2), model, jaxbo.Drawn(jaxbo.UCB(2.0)))
        >>> method.policy.random()
        False
    """

    policy: AbstractPolicy = eqx.field(default_factory=EI)

    def random(self) -> bool:
        return self.policy.random()

    def __call__(self, key: Key, surrogate: Any, shared: Any, belief: Any) -> Function:
        expert_key, policy_key = jr.split(key)
        chosen = surrogate.draw(expert_key, shared, belief)
        return self.policy(policy_key, *shared.pick(chosen, belief))

    def constrained(self, key: Key, model: Model, slacks: Sequence[Model]) -> Function:
        """Draws an expert for the objective and an expert for each outcome.

        Args:
            key: Random key.
            model: The model of the objective, with its belief.
            slacks: The models of the outcomes' slacks, not empty.

        Returns:
            The function to maximize.
        """
        expert_key, policy_key = jr.split(key)
        keys = jr.split(expert_key, 1 + len(slacks))
        experts = [_drawn(*pair) for pair in zip(keys, (model, *slacks), strict=True)]
        return self.policy.constrained(policy_key, experts[0], experts[1:])

    def check(self, surrogate: AbstractSurrogate) -> None:
        self.policy.check(_of_several(surrogate).member)

    def check_constrained(self, surrogate: AbstractSurrogate) -> None:
        self.policy.check_constrained(_of_several(surrogate).member)


class Largest(AbstractPolicy):
    """The best sample of all experts: arms of a bandit by Thompson sampling (Nguyen et al., 2020).

    As in EGP-TS, arms are kernels of the same function, and all of them are given all observations.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Ensemble([jaxbo.Matern32(0.2), jaxbo.Matern52(0.2)], jaxbo.Fitted(20))
        >>> method = jaxbo.EGP(jaxbo.Cube(2), model, jaxbo.Largest())
        >>> method.policy.random()
        True
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


def least_violated(
    policy: AbstractPolicy, key: Key, model: Model, slacks: Sequence[Model]
) -> Function:
    """The policy's own function if the functions of all slacks are at least 0; any such point is better.

    Elsewhere minus the sum of the missing slack, in deviations of the slacks.
    """
    keys = jr.split(key, 1 + len(slacks))
    function, *others = [policy(k, *m) for k, m in zip(keys, (model, *slacks), strict=True)]
    levels = [slack.surrogate.standard(slack.belief, jnp.zeros(())) for slack in slacks]

    def ranked(x: Point) -> Scalar:
        pairs = zip(levels, others, strict=True)
        missing = _sum(jnp.maximum(level - other(x), 0) for level, other in pairs)
        return jnp.where(missing > 0, _BELOW - missing, function(x))

    return ranked


def expected_feasible(slacks: Sequence[Model], x: Point) -> Flag:
    """Whether all outcomes are expected to meet their bounds at a point."""
    expected = [slack.surrogate.predict(slack.shared, slack.belief, x)[0] for slack in slacks]
    return jnp.all(jnp.stack(expected) >= 0)


def _log_improvement(
    weights: Float[Array, " experts"],
    means: Float[Array, " experts"],
    variances: Float[Array, " experts"],
    best: Scalar,
) -> Scalar:
    each = jax.vmap(acquisition.log_expected_improvement, (0, 0, None))
    return jax.nn.logsumexp(weights + each(means, acquisition.deviation(variances), best))


def _log_chance(slack: Model) -> Function:
    """log P(slack(x) ≥ 0)."""
    weights, predict, _ = slack.surrogate.mixture(slack.shared, slack.belief)
    level = slack.surrogate.standard(slack.belief, jnp.zeros(()))

    def log_chance(x: Point) -> Scalar:
        means, variances = predict(x)
        each = jax.vmap(acquisition.log_probability_of_improvement, (0, 0, None))
        return jax.nn.logsumexp(weights + each(means, acquisition.deviation(variances), level))

    return log_chance


def _drawn(key: Key, model: Model) -> Model:
    """An expert, drawn by weight."""
    chosen = model.surrogate.draw(key, model.shared, model.belief)
    return Model(*model.shared.pick(chosen, model.belief))


def _sum(terms: Iterable[Scalar]) -> Scalar:
    """The sum of at least one term, without the 0 that `sum` begins with."""
    return functools.reduce(operator.add, terms)


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
