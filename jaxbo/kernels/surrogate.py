"""A model of one black box: Fourier features, a posterior, and values brought to unit scale.

    observe(x, y) → belief,   sample → f(x) = φ(x)'w,   predict(x) → mean, variance

Two ways to choose the hyperparameters, behind one interface. `Fixed`: given in advance, so that one
feature map can serve any number of agents. `Fitted`: the agent's own, by maximum evidence, on
frequencies that are still common to all.

Values of any offset and scale: the posterior mean is linear in the values, so the model carries the
mean for the values and for the constant 1 under one covariance, and standardizes by the running mean
and deviation when it is read, exactly as if all values had been standardized first.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbo._check import is_a, positive_number, require, whole
from jaxbo.kernels import features, fit, posterior
from jaxbo.kernels.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.features import Basis, FeatureMap, FourierFunction
from jaxbo.kernels.posterior import Posterior
from jaxbo.types import Count, Features, Flag, Key, Point, Scalar, floating


class Moments(eqx.Module):
    """Running mean and sum of squared deviations of `value - first` (Welford)."""

    count: Int[Array, ""]
    first: Scalar
    mean: Scalar
    squares: Scalar

    @property
    def deviation(self) -> Scalar:
        """Standard deviation; 1 where there is none: before two values, or if all are equal."""
        variance = self.squares / jnp.maximum(self.count, 1).astype(self.squares.dtype)
        # Below a rounding error of the values themselves, differences are noise, not signal.
        floor = (jnp.finfo(variance.dtype).eps * (jnp.abs(self.first) + jnp.abs(self.mean))) ** 2
        usable = variance > floor
        return jnp.where(usable, jnp.sqrt(jnp.where(usable, variance, 1)), 1)


def _no_moments(dtype: jnp.dtype) -> Moments:
    zero = jnp.zeros((), dtype)
    return Moments(jnp.zeros((), int), zero, zero, zero)


def _update_moments(moments: Moments, y: Scalar) -> Moments:
    observed = jnp.isfinite(y)
    count = moments.count + observed.astype(int)
    first = jnp.where(observed & (moments.count == 0), y, moments.first)
    delta = jnp.where(observed, y - first - moments.mean, 0)
    mean = moments.mean + delta / jnp.maximum(count, 1).astype(y.dtype)
    squares = moments.squares + delta * jnp.where(observed, y - first - mean, 0)
    return Moments(count, first, mean, squares)


class Belief(eqx.Module):
    """Posterior under one set of features; its outputs are the values less the first, and 1."""

    posterior: Posterior
    moments: Moments

    def mean_weights(self) -> Features:
        """Posterior mean of the weights for standardized values."""
        of_values, of_one = self.posterior.mean
        return (of_values - self.moments.mean * of_one) / self.moments.deviation

    def sample(self, key: Key) -> Features:
        """A draw of the weights for standardized values."""
        return self.mean_weights() + posterior.deviation(key, self.posterior)

    def predict(self, phi: Features) -> tuple[Scalar, Scalar]:
        """Mean and variance at features `phi`, in the units of the values."""
        _, variance = posterior.predict(self.posterior, phi)
        scale, offset = self.moments.deviation, self.moments.first + self.moments.mean
        return offset + scale * jnp.sum(phi * self.mean_weights()), scale**2 * variance


def _no_belief(size: int, noise: Scalar, capacity: int | None) -> Belief:
    start = posterior.prior(size, noise, outputs=(2,), capacity=capacity)
    return Belief(start, _no_moments(noise.dtype))


def _observe(belief: Belief, phi: Features, y: Scalar, standardize: bool) -> Belief:
    y = jnp.where(belief.posterior.root.has_room(), y, jnp.nan)  # beyond the capacity: no mark
    moments = _update_moments(belief.moments, y) if standardize else belief.moments
    outputs = jnp.stack([y - moments.first, jnp.ones_like(y)])
    return Belief(posterior.condition(belief.posterior, phi, outputs), moments)


def _check_basis(basis: object) -> None:
    require(
        callable(basis), f"basis must be features.cosine or features.sine_cosine, got {basis!r}."
    )


def _default_kernel() -> AbstractKernel:
    return SquaredExponential(0.2)


class AbstractSurrogate(eqx.Module):
    """How an agent models its objective. `shared` is what all agents draw together, once."""

    capacity: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def setup(self, key: Key, dim: int) -> FeatureMap:
        """Features for points of `dim` coordinates."""

    @abc.abstractmethod
    def start(self, shared: FeatureMap) -> Any:
        """The belief before any observation."""

    @abc.abstractmethod
    def observe(self, shared: FeatureMap, belief: Any, x: Point, y: Scalar, round: Count) -> Any:
        """The belief after observing `y` at `x` in round `round`, negative before the first.

        A non-finite `y` changes nothing.
        """

    @abc.abstractmethod
    def sample(self, key: Key, shared: FeatureMap, belief: Any) -> FourierFunction:
        """A function drawn from the belief, in units of the values' standard deviation."""

    @abc.abstractmethod
    def predict(self, shared: FeatureMap, belief: Any, x: Point) -> tuple[Scalar, Scalar]:
        """Mean and variance of the objective at `x`, without noise, in units of the values."""


class Fixed(AbstractSurrogate):
    """Hyperparameters given in advance: a linear model on features common to all agents.

    `noise` is the noise variance in units of the values' variance (of the values themselves without
    `standardize`), like the variance of `kernel`. `basis` draws the features: `sine_cosine` is nearer to
    the kernel for the same size than the `cosine` of FTS, appendix A, and cheaper to maximize.
    `capacity`, if given, is the most observations that an agent will ever make and may make the
    posterior cheaper (`posterior.prior`).
    """

    kernel: AbstractKernel = eqx.field(default_factory=_default_kernel)
    size: int = eqx.field(static=True, default=100)
    noise: Scalar = eqx.field(converter=floating, default=1e-2)
    standardize: bool = eqx.field(static=True, default=True)
    basis: Basis = eqx.field(static=True, default=features.sine_cosine)
    capacity: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        positive_number("noise", self.noise)
        is_a("kernel", self.kernel, AbstractKernel)
        _check_basis(self.basis)
        whole("size", self.size, least=1)
        if self.capacity is not None:
            whole("capacity", self.capacity, least=1)

    def setup(self, key: Key, dim: int) -> FeatureMap:
        return self.basis(key, self.kernel, dim, self.size)

    def start(self, shared: FeatureMap) -> Belief:
        return _no_belief(shared.size, self.noise, self.capacity)

    def observe(
        self, shared: FeatureMap, belief: Belief, x: Point, y: Scalar, round: Count
    ) -> Belief:
        del round
        return _observe(belief, shared(x), y, self.standardize)

    def sample(self, key: Key, shared: FeatureMap, belief: Belief) -> FourierFunction:
        return FourierFunction(shared, belief.sample(key))

    def predict(self, shared: FeatureMap, belief: Belief, x: Point) -> tuple[Scalar, Scalar]:
        return belief.predict(shared(x))


class FittedBelief(eqx.Module):
    """Observations, the hyperparameters fitted to them, and the belief under these."""

    x: Float[Array, "capacity dim"]
    y: Float[Array, " capacity"]
    kernel: AbstractKernel
    noise: Scalar
    belief: Belief


class Fitted(AbstractSurrogate):
    """Hyperparameters of the agent's own, refitted by maximum evidence every `every` rounds.

    The first fit is to the observations of the first round and all before it.

    `kernel` and `noise` are where fitting starts; the form of `kernel` stays. `capacity` is the most
    observations that an agent will ever make; later ones are ignored. Frequencies are common to all
    agents, length scales are not (FTS, section 5.2 and the authors' real experiments).
    """

    capacity: int = eqx.field(static=True)
    kernel: AbstractKernel = eqx.field(default_factory=_default_kernel)
    size: int = eqx.field(static=True, default=200)
    noise: Scalar = eqx.field(converter=floating, default=1e-2)
    every: int = eqx.field(static=True, default=5)
    basis: Basis = eqx.field(static=True, default=features.sine_cosine)

    def __check_init__(self):
        positive_number("noise", self.noise)
        is_a("kernel", self.kernel, AbstractKernel)
        _check_basis(self.basis)
        for name in ("capacity", "size", "every"):
            whole(name, getattr(self, name), least=1)

    def setup(self, key: Key, dim: int) -> FeatureMap:
        return self.basis(key, self.kernel, dim, self.size)

    def start(self, shared: FeatureMap) -> FittedBelief:
        return FittedBelief(
            x=jnp.zeros((self.capacity, shared.frequencies.shape[1]), self.noise.dtype),
            y=jnp.full((self.capacity,), jnp.nan, self.noise.dtype),
            kernel=self.kernel,
            noise=self.noise,
            belief=_no_belief(shared.size, self.noise, self.capacity),
        )

    def observe(
        self, shared: FeatureMap, belief: FittedBelief, x: Point, y: Scalar, round: Count
    ) -> FittedBelief:
        usable = jnp.isfinite(y) & (belief.belief.moments.count < self.capacity)
        row = belief.belief.moments.count
        y = jnp.where(usable, y, jnp.nan)
        # A failed observation writes what is there already.
        told = FittedBelief(
            x=belief.x.at[row].set(jnp.where(usable, x, belief.x[row]), mode="drop"),
            y=belief.y.at[row].set(y, mode="drop"),
            kernel=belief.kernel,
            noise=belief.noise,
            belief=_observe(belief.belief, self._features(shared, belief)(x), y, True),
        )
        due = (round >= 0) & (round % self.every == 0)
        # `round` is common to all agents: under vmap this stays a branch.
        return jax.lax.cond(due, lambda b: self._refit(shared, b, usable), lambda b: b, told)

    def sample(self, key: Key, shared: FeatureMap, belief: FittedBelief) -> FourierFunction:
        return FourierFunction(self._features(shared, belief), belief.belief.sample(key))

    def predict(self, shared: FeatureMap, belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        return belief.belief.predict(self._features(shared, belief)(x))

    def _features(self, shared: FeatureMap, belief: FittedBelief) -> FeatureMap:
        return features.with_kernel(shared, belief.kernel)

    def _refit(self, shared: FeatureMap, belief: FittedBelief, usable: Flag) -> FittedBelief:
        moments = belief.belief.moments
        standardized = (belief.y - moments.first - moments.mean) / moments.deviation
        fitted = fit.fit(belief.kernel, belief.noise, belief.x, standardized)
        phi = features.with_kernel(shared, fitted.kernel)
        outputs = jnp.stack([belief.y - moments.first, jnp.ones_like(belief.y)], axis=1)
        outputs = jnp.where(jnp.isfinite(belief.y)[:, None], outputs, jnp.nan)
        start = posterior.prior(shared.size, fitted.noise, outputs=(2,), capacity=self.capacity)
        told = posterior.condition_all(start, jax.vmap(phi)(belief.x), outputs)
        new = FittedBelief(belief.x, belief.y, fitted.kernel, fitted.noise, Belief(told, moments))
        # A failed evaluation changes nothing, so it does not trigger a refit either.
        return jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, belief)
