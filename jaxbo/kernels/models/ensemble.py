"""An ensemble of models that weighs its kernels by how well each explains the data.

    f ~ Σ_m w_m GP(0, k_m),    w_m ∝ prior_m p(data | k_m)                        (EGP-TS, eq. 5 to 7)

The experts are a surrogate under M kernels, mapped over: each with its own features, posterior and
hyperparameters. A weight is the evidence that its expert carries, in logarithms: the recursion of
eq. 10 between refits and the batch form of eq. 7 after a refit, both to rounding.
"""

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._check import is_a, require
from jaxbo._keys import Held, held
from jaxbo.kernels.models.fit import Priors
from jaxbo.kernels.models.fitted import Exact, Fitted, FittedBelief, Mixture, best
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.kernels.processes import covariance
from jaxbo.kernels.processes.covariance import AbstractKernel, Kernel
from jaxbo.types import Count, Flag, Function, Key, Point, Scalar, named

#: What every expert is drawn with at least: appendix E.
FLOOR = 1e-4


class AbstractEnsemble(AbstractSurrogate):
    """Experts that are given the same observations, and how far each is believed."""

    @property
    @abc.abstractmethod
    def member(self) -> Fitted:
        """Returns the model that every expert is, but for its hyperparameters."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Returns how many experts there are."""

    @abc.abstractmethod
    def log_weights(self, shared: "Experts", belief: FittedBelief) -> Float[Array, " experts"]:
        """Computes the log weights of all experts.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The log weights; the weights sum to 1.
        """

    @abc.abstractmethod
    def draw(self, key: Key, shared: "Experts", belief: FittedBelief) -> Count:
        """Draws an expert.

        Args:
            key: Random key.
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The number of the expert.
        """

    @property
    def capacity(self) -> int:
        """Returns the most observations that a belief can hold, which is the expert's."""
        return self.member.capacity

    @property
    def period(self) -> int | None:
        return self.member.period

    def start(self, shared: "Experts") -> FittedBelief:
        return shared.map(lambda e, phi: e.start(phi))

    def condition(
        self, shared: "Experts", belief: FittedBelief, x: Point, y: Scalar
    ) -> FittedBelief:
        return shared.map(lambda e, phi, b: e.condition(phi, b, x, y), belief)

    def focused(self, belief: FittedBelief, ready: Flag) -> FittedBelief:
        return jax.vmap(lambda b: self.member.focused(b, ready))(belief)

    def count(self, belief: FittedBelief) -> Count:
        return belief.moments.count[0]

    def sample(self, key: Key, shared: "Experts", belief: FittedBelief) -> Function:
        """Draws from the mixture, eq. 8: an expert by weight, then a function of its own.

        Args:
            key: Random key.
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The function, in units of the values' standard deviation.
        """
        expert_key, function_key = jr.split(key)
        chosen = self.draw(expert_key, shared, belief)
        expert, phi, one = shared.pick(chosen, belief)
        return expert.sample(function_key, phi, one)

    def predict(self, shared: "Experts", belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        """Predicts the objective by the mixture, without noise.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance at `x`, in units of the values.
        """
        means, variances = shared.map(lambda e, phi, b: e.predict(phi, b, x), belief)
        return mixed(jnp.exp(self.log_weights(shared, belief)), means, variances)

    def standard(self, belief: FittedBelief, y: Scalar) -> Scalar:
        """Converts a value to the units of `sample`, which all experts have in common.

        Args:
            belief: The belief.
            y: A value.

        Returns:
            The value in deviations.
        """
        return self.member.standard(first(belief), y)

    def mixture(self, shared: "Experts", belief: FittedBelief) -> Mixture:
        """Makes the mixture of all experts as they are weighed, for standardized values.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The mixture.
        """

        def predict(x: Point) -> tuple[Float[Array, " experts"], Float[Array, " experts"]]:
            return shared.map(lambda e, phi, b: e.standardized(phi, b, x), belief)

        weights = self.log_weights(shared, belief)
        x, used = belief.x[0], belief.used[0]
        means = jax.vmap(lambda x: jnp.sum(jnp.exp(weights) * predict(x)[0]))(x)
        return Mixture(weights, predict, best(means, used))


def _as_tuple(kernels: Any) -> Any:
    named = isinstance(kernels, Mapping)
    return tuple(kernels) if isinstance(kernels, Iterable) and not named else kernels


class Ensemble(AbstractEnsemble):
    """Experts that differ in their kernel, weighed by evidence.

    The weights are as Bayes' rule says. So a wrong start is forgotten as fast as data allow. With a
    single kernel the ensemble is that expert alone.

    Args:
        kernels: The dictionary of kernels, of any forms with a spectral density; it must not be
            empty.
        expert: The rest of every expert: capacity, number of features, how often it refits,
            inference. Its own kernel does not matter.
        floor: The least weight with which an expert is drawn (appendix E), in [0, 1 / M] for M
            kernels. The weights themselves stay as they are. Default: 1e-4.

    Raises:
        ValueError: The dictionary is empty, a kernel has no spectral density, length scales do not
            fit, or the floor is out of its range.

    Example:
        >>> import jax.random as jr, jaxbo
        >>> kernels = [jaxbo.SquaredExponential(0.3), jaxbo.Matern32(0.3)]
        >>> model = jaxbo.Ensemble(kernels, jaxbo.Fitted(20, size=10))
        >>> shared = model.setup(jr.key(0), dim=1)
        >>> [round(float(w), 2) for w in model.log_weights(shared, model.start(shared))]
        [-0.69, -0.69]
    """

    kernels: tuple[AbstractKernel, ...] = eqx.field(converter=_as_tuple)
    expert: Fitted
    floor: Scalar = eqx.field(converter=named("floor"), default=FLOOR)

    @classmethod
    def warped(cls, dim: int, capacity: int, **options: Any) -> "Ensemble":
        """Makes an ensemble for few, expensive evaluations of anything: exact processes of warped values.

        It has a smooth kernel with a common length scale, and a smooth and two rough kernels with a
        length scale for each coordinate. The prior of length scales grows with the dimension. It
        takes O(capacity²) a point. With `EI()` its mean regret ended below that of BoTorch's LogEI
        on Zakharov's function and eggholder, and above it on Ackley's function and drop-wave, 30
        runs each (egp-synthetic).

        Args:
            dim: Number of coordinates of a point.
            capacity: The most observations, at least 1.
            options: Other arguments of `Fitted`.

        Returns:
            The ensemble.
        """
        given = {"inference": Exact(), "warp": True, "priors": Priors.scaled(dim)} | options
        return cls(covariance.forms(dim), Fitted(capacity, **given))

    def __check_init__(self):
        require(
            isinstance(self.kernels, tuple),
            f"kernels must be a sequence of kernels, got {self.kernels!r}.",
        )
        is_a("expert", self.expert, Fitted)
        require(len(self.kernels) > 0, "kernels is empty: an ensemble needs at least one.")
        for kernel in self.kernels:
            require(
                isinstance(kernel, AbstractKernel),
                f"kernels: {kernel!r:.60} has no spectral density: expected kernels such as "
                "Matern52(0.2).",
            )
        most = 1 / len(self.kernels)
        require(
            (self.floor >= 0) & (self.floor <= most),
            f"floor must be in [0, 1 / {len(self.kernels)}], got {self.floor}.",
        )

    @property
    def member(self) -> Fitted:
        return self.expert

    @property
    def size(self) -> int:
        return len(self.kernels)

    def setup(self, key: Key, dim: int) -> "Experts":
        return Experts.of(self.expert, covariance.stack(self.kernels, dim), key, dim)

    def refit(self, shared: "Experts", belief: FittedBelief) -> FittedBelief:
        return shared.map(lambda e, phi, b: e.refit(phi, b), belief)

    def log_weights(self, shared: "Experts", belief: FittedBelief) -> Float[Array, " experts"]:
        """Computes the log weights of all experts, by Bayes' rule from equal weights.

        They are equal as long as the values tell nothing of a kernel.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The log weights; the weights sum to 1.
        """
        evidences: Array = shared.map(
            lambda e, phi, b: jnp.where(b.told, e.log_evidence(b), 0), belief
        )
        return jax.nn.log_softmax(evidences)

    def draw(self, key: Key, shared: "Experts", belief: FittedBelief) -> Count:
        """Draws an expert, with its weight or `floor` if that is larger.

        Args:
            key: Random key.
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The number of the expert.
        """
        weights = jnp.maximum(jnp.exp(self.log_weights(shared, belief)), self.floor)
        return jr.categorical(key, jnp.log(weights))


class Experts(eqx.Module):
    """The experts of an ensemble and their features, with a leading axis.

    `draws` is the key of the ensemble's other draws, if there are any.
    """

    experts: Fitted
    features: Any
    draws: Held = eqx.field(converter=held)

    @classmethod
    def of(cls, expert: Fitted, kernels: Kernel, key: Key, dim: int) -> "Experts":
        """`expert` under every kernel of the stacked `kernels`, each with features of its own."""
        under = jax.vmap(lambda kernel: eqx.tree_at(lambda e: e.kernel, expert, kernel))(kernels)
        keys = jr.split(key, len(jax.tree.leaves(kernels)[0]) + 1)
        features = jax.vmap(lambda e, k: e.setup(k, dim))(under, keys[:-1])
        return cls(under, features, keys[-1])

    def map(self, function: Callable[..., Any], *each: Any) -> Any:
        """`function(expert, features, ...)` of every expert, with its own of `each`."""
        return jax.vmap(function)(self.experts, self.features, *each)

    def pick(self, number: Count, belief: FittedBelief) -> tuple[Fitted, Any, FittedBelief]:
        """A single expert, its features, and its belief."""
        return jax.tree.map(lambda leaf: leaf[number], (self.experts, self.features, belief))


def first(belief: FittedBelief) -> FittedBelief:
    """The belief of the first expert."""
    return jax.tree.map(lambda leaf: leaf[0], belief)


def mixed(
    weights: Float[Array, " experts"],
    means: Float[Array, " experts"],
    variances: Float[Array, " experts"],
) -> tuple[Scalar, Scalar]:
    """Mean and variance of a mixture of Gaussians."""
    mean = jnp.sum(weights * means)
    return mean, jnp.sum(weights * (variances + (means - mean) ** 2))
