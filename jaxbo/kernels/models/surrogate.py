"""A model of a black box: Fourier features, a posterior, and values brought to unit scale.

    observe(x, y) → belief,   sample → f(x) = φ(x)'w,   predict(x) → mean, variance

`Fixed` has hyperparameters given in advance, so that a single feature map can serve any number of
agents. Models of `kernels.models.fitted` have the agent's own hyperparameters, by maximum evidence.

Values of any offset and scale: the posterior mean is linear in the values, so the model carries the
mean for the values and for the constant 1 under a common covariance, and standardizes by the
running mean and deviation when it is read, exactly as if all values had been standardized first.
"""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo._check import positive_number, require, whole
from jaxbo._extensible import Extensible
from jaxbo.kernels.moments import Moments, bounded, no_moments, updated
from jaxbo.kernels.processes import features, posterior
from jaxbo.kernels.processes.covariance import (
    AbstractKernel,
    Kernel,
    SquaredExponential,
    as_kernel,
)
from jaxbo.kernels.processes.features import Basis, FeatureMap, FourierFunction
from jaxbo.kernels.processes.posterior import Posterior
from jaxbo.types import Count, Features, Flag, Function, Key, Point, Scalar, named


class Belief(eqx.Module):
    """Posterior under a set of features; its outputs are the values less the first, and 1."""

    posterior: Posterior
    moments: Moments

    @property
    def standardizing(self) -> Float[Array, "2"]:
        """The weights that make standardized values of the two outputs."""
        return (
            jnp.stack([jnp.ones_like(self.moments.mean), -self.moments.mean])
            / self.moments.deviation
        )

    def mean_weights(self) -> Features:
        """Posterior mean of the weights for standardized values."""
        of_values, of_one = self.posterior.mean
        return (of_values - self.moments.mean * of_one) / self.moments.deviation

    def sample(self, key: Key) -> Features:
        """A draw of the weights for standardized values."""
        return self.mean_weights() + posterior.deviation(key, self.posterior)

    def predict(self, phi: Features) -> tuple[Scalar, Scalar]:
        """Mean and variance at features `phi`, for standardized values."""
        _, variance = posterior.predict(self.posterior, phi)
        return jnp.sum(phi * self.mean_weights()), variance


def scaled(moments: Moments, mean: Scalar, variance: Scalar) -> tuple[Scalar, Scalar]:
    """Mean and variance of standardized values, in the units of the values."""
    return moments.offset + moments.deviation * mean, moments.deviation**2 * variance


def in_deviations(moments: Moments, y: Scalar) -> Scalar:
    """A value in units of the values' deviation."""
    return (y - moments.first - moments.mean) / moments.deviation


def no_belief(size: int, noise: Scalar, capacity: int | None) -> Belief:
    """Nothing observed yet."""
    start = posterior.prior(size, noise, outputs=(2,), capacity=capacity)
    return Belief(start, no_moments(noise.dtype))


def condition(belief: Belief, phi: Features, y: Scalar, standardize: bool = True) -> Belief:
    """The belief after a further value; nothing changes if it is not finite or there is no room."""
    y = jnp.where(belief.posterior.root.has_room(), bounded(y), jnp.nan)  # no mark if there is none
    moments = updated(belief.moments, y) if standardize else belief.moments
    outputs = jnp.stack([y - moments.first, jnp.ones_like(y)])
    return Belief(posterior.condition(belief.posterior, phi, outputs), moments)


def check_basis(basis: object, kernel: Kernel) -> None:
    """`ValueError` unless it can draw features of the kernel."""
    require(
        callable(basis),
        f"basis must be features.cosine, features.sine_cosine or nystrom.basis(), got {basis!r}.",
    )
    if basis in (features.cosine, features.sine_cosine):
        features.spectral(kernel)


def default_kernel() -> AbstractKernel:
    """The kernel if nothing is known: its length scale is a fifth of the cube's edge."""
    return SquaredExponential(0.2)


class AbstractSurrogate(Extensible):
    """How an agent models its objective. All agents draw `shared` together, once.

    Values are standardized inside. With a `period`, hyperparameters are fitted anew every so many
    rounds. `capacity` is the most observations that a belief can hold, None if there is no limit.
    """

    if TYPE_CHECKING:  # a field of some surrogates, a property of others

        @property
        def capacity(self) -> int | None: ...

    else:
        capacity: eqx.AbstractVar[int | None]

    @property
    @abc.abstractmethod
    def period(self) -> int | None:
        """Returns how many rounds, or evaluations, lie between fits; None if nothing is fitted."""

    @property
    def invariant(self) -> bool:
        """Says whether a constant added to all values changes no sample and no variance."""
        return True

    @abc.abstractmethod
    def setup(self, key: Key, dim: int) -> Any:
        """Draws the features, which all agents share.

        Args:
            key: Random key.
            dim: Number of coordinates of a point.

        Returns:
            The features.
        """

    @abc.abstractmethod
    def start(self, shared: Any) -> Any:
        """Makes the belief before any observation.

        Args:
            shared: The result of `setup`.

        Returns:
            The belief.
        """

    @abc.abstractmethod
    def condition(self, shared: Any, belief: Any, x: Point, y: Scalar) -> Any:
        """Conditions a belief on an observation, under the hyperparameters it has.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.
            y: The value there. A value that is not finite changes nothing, bit for bit. A value
                beyond the capacity changes nothing either.

        Returns:
            The new belief.
        """

    @abc.abstractmethod
    def refit(self, shared: Any, belief: Any) -> Any:
        """Fits the hyperparameters of a belief anew, if it has any.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The new belief.
        """

    def focused(self, belief: Any, ready: Flag) -> Any:
        """Turns from all values to the better half of them, or back.

        In the better half, values below the median count as the median. So do later values, until it
        turns back. The belief turns to the better half only if enough values differ there.

        Args:
            belief: The belief. Its model is only that of these values after `refit`.
            ready: Whether it may turn to the better half.

        Returns:
            The new belief.

        Raises:
            ValueError: The surrogate always sees all values.
        """
        raise ValueError(f"{type(self).__name__} always sees all values: leave out focus.")

    @abc.abstractmethod
    def count(self, belief: Any) -> Count:
        """Counts the observations of a belief.

        Args:
            belief: The belief.

        Returns:
            The number of observations.
        """

    @abc.abstractmethod
    def sample(self, key: Key, shared: Any, belief: Any) -> Function:
        """Draws a function from the belief.

        Args:
            key: Random key.
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The function, in units of the values' standard deviation.
        """

    @abc.abstractmethod
    def predict(self, shared: Any, belief: Any, x: Point) -> tuple[Scalar, Scalar]:
        """Predicts the objective at a point, without noise.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance at `x`, in units of the values.
        """

    def standard(self, belief: Any, y: Scalar) -> Scalar:
        """Converts a value to the units of `sample`.

        Args:
            belief: The belief.
            y: A value.

        Returns:
            The value in deviations.

        Raises:
            ValueError: The surrogate does not say its samples' units.
        """
        raise ValueError(f"{type(self).__name__} does not say what its samples' units are.")

    def observe(self, shared: Any, belief: Any, x: Point, y: Scalar, round: Count) -> Any:
        """Applies `condition` in a round, and then `refit` when that is due.

        The first fit is to the observations of the first round and all before it.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.
            y: The value there.
            round: The number of the round, from 0 on; negative before the first.

        Returns:
            The new belief.
        """
        told = self.condition(shared, belief, x, y)
        if self.period is None:
            return told
        # A failed evaluation changes nothing, so it does not trigger a refit either.
        usable = self.count(told) > self.count(belief)
        due = (round >= 0) & (round % self.period == 0)

        def refit(told: Any) -> Any:
            new = refitted(self, shared, told)
            return jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, told)

        # `round` is common to all agents: under vmap this stays a branch.
        return jax.lax.cond(due, refit, lambda belief: belief, told)


@eqx.filter_jit
def refitted(surrogate: AbstractSurrogate, shared: Any, belief: Any) -> Any:
    """`surrogate.refit`, traced once in a process for the same shapes.

    It is the largest part of a program, which may hold it several times.
    """
    return surrogate.refit(shared, belief)


class Fixed(AbstractSurrogate):
    """A model with given hyperparameters: linear, on features that all agents share.

    Args:
        kernel: The kernel that the features stand for. Default: `SquaredExponential(0.2)`.
        size: Number of features, at least 1. Default: 100.
        noise: The noise variance, above 0, in units of the values' variance like the variance of
            `kernel`. Without `standardize` it is in units of the values, squared. Default: 1e-2.
        standardize: Whether values are standardized by their running mean and deviation. Default:
            True.
        basis: The function that draws the features. `features.sine_cosine`, the default, is nearer
            to the kernel for the same size than the `features.cosine` of FTS, appendix A, and
            cheaper to maximize.
        capacity: The most observations that an agent will ever make, at least 1. It may make the
            posterior cheaper (`posterior.prior`). None: no limit.

    Raises:
        ValueError: A number is out of its range, or the basis cannot draw features of the kernel.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr, jaxbo
        >>> model = jaxbo.Fixed(jaxbo.Matern52(0.3), size=20, standardize=False)
        >>> shared = model.setup(jr.key(0), dim=2)
        >>> x, y = jnp.array([0.2, 0.7]), jnp.array(2.0)
        >>> belief = model.condition(shared, model.start(shared), x, y)
        >>> [round(float(number), 2) for number in model.predict(shared, belief, x)]
        [1.98, 0.01]
    """

    kernel: Kernel = eqx.field(converter=as_kernel, default_factory=default_kernel)
    size: int = eqx.field(static=True, default=100)
    noise: Scalar = eqx.field(converter=named("noise"), default=1e-2)
    standardize: bool = eqx.field(static=True, default=True)
    basis: Basis = eqx.field(static=True, default=features.sine_cosine)
    capacity: int | None = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=None
    )

    def __check_init__(self):
        positive_number("noise", self.noise)
        check_basis(self.basis, self.kernel)
        whole("size", self.size, least=1)
        if self.capacity is not None:
            whole("capacity", self.capacity, least=1)

    @property
    def period(self) -> None:
        return None

    @property
    def invariant(self) -> bool:
        return self.standardize

    def setup(self, key: Key, dim: int) -> FeatureMap:
        return self.basis(key, self.kernel, dim, self.size)

    def start(self, shared: FeatureMap) -> Belief:
        return no_belief(shared.size, self.noise, self.capacity)

    def condition(self, shared: FeatureMap, belief: Belief, x: Point, y: Scalar) -> Belief:
        return condition(belief, shared(x), y, self.standardize)

    def refit(self, shared: FeatureMap, belief: Belief) -> Belief:
        del shared
        return belief

    def count(self, belief: Belief) -> Count:
        return belief.posterior.count

    def sample(self, key: Key, shared: FeatureMap, belief: Belief) -> FourierFunction:
        return FourierFunction(shared, belief.sample(key))

    def predict(self, shared: FeatureMap, belief: Belief, x: Point) -> tuple[Scalar, Scalar]:
        return scaled(belief.moments, *belief.predict(shared(x)))

    def standard(self, belief: Belief, y: Scalar) -> Scalar:
        return in_deviations(belief.moments, y)
