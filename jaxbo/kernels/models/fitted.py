"""A model with hyperparameters of its own, fitted to its observations by maximum evidence.

    y = offset + scale f(x) + e,    f ~ GP(0, kernel),    e ~ N(0, noise) in units of scale²

`Fitted` keeps the observations, and two kinds of inference stand behind it:

    OnFeatures   f(x) = φ(x)'w;   w ~ N(mean, R R'), the square-root posterior (processes.posterior)
    Exact        f | y ~ GP;      a sample is a draw of the prior on features, corrected through the data:
                 f(x) = φ(x)'z + k(x, X) (K + noise I)⁻¹ (y - φ(X)z - e)      (Wilson et al., 2020)

On features, variance starves once there are more observations than features can tell apart. `Exact`
keeps all of it, for O(observations²) a point; features take O(features).
"""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float

from jaxbo._check import is_a, positive_number, require, whole
from jaxbo._extensible import Extensible
from jaxbo.kernels import linalg
from jaxbo.kernels.models import fit, warping
from jaxbo.kernels.models.fit import Bounds, Priors
from jaxbo.kernels.models.surrogate import (
    AbstractSurrogate,
    Belief,
    Moments,
    bounded,
    check_basis,
    condition,
    default_kernel,
    in_deviations,
    no_belief,
    no_moments,
    scaled,
    updated,
)
from jaxbo.kernels.models.warping import Warping
from jaxbo.kernels.processes import features, nystrom, posterior
from jaxbo.kernels.processes.covariance import AbstractKernel, Kernel, as_kernel, gram
from jaxbo.kernels.processes.features import Basis, FeatureMap, FourierFunction
from jaxbo.types import Count, Features, Flag, Function, Key, Point, Points, Scalar, named


class FittedBelief(eqx.Module):
    """Observations, the hyperparameters fitted to them, and the model that `inference` makes of both.

    `held` are the values in the first rows that are used, and 0 in the others. So no state holds
    NaN, for which `jax_debug_nans` would stop. `y` is NaN in rows without a value, and a value
    below `least` counts as `least`; `values` are the modeled numbers, `y` after `warping`.
    """

    x: Float[Array, "capacity dim"]
    held: Float[Array, " capacity"]
    least: Scalar
    warping: Warping | None
    kernel: Kernel
    noise: Scalar
    model: Any

    @property
    def y(self) -> Float[Array, "*beliefs capacity"]:
        return jnp.where(self.used, jnp.maximum(self.held, self.least[..., None]), jnp.nan)

    @property
    def values(self) -> Float[Array, " capacity"]:
        return self.y if self.warping is None else jax.vmap(self.warping)(self.y)

    @property
    def moments(self) -> Moments:
        """Of `values`."""
        return self.model.moments

    @property
    def used(self) -> Bool[Array, "*beliefs capacity"]:
        """Whether each row holds an observation; for several beliefs at once, too."""
        rows = jnp.broadcast_to(jnp.arange(self.held.shape[-1]), self.held.shape)
        return rows < self.moments.count[..., None]

    @property
    def standardized(self) -> Float[Array, " capacity"]:
        """`values` of mean 0 and deviation 1, NaN in rows without a value."""
        moments = self.moments
        return (self.values - moments.first - moments.mean) / moments.deviation

    @property
    def told(self) -> Flag:
        """Whether the values say anything of hyperparameters: enough of them are distinct.

        Values that differ by their own rounding only are not brought to a deviation of 1.
        """
        y = self.standardized
        return fit.informative(y) & (jnp.max(jnp.where(self.used, jnp.abs(y), 0)) > 0.5)


class AbstractInference(Extensible):
    """A way from observations and hyperparameters to a belief about a function."""

    @abc.abstractmethod
    def bounds(self) -> Bounds:
        """Returns the bounds between which `Fitted` looks for hyperparameters, unless told."""

    @abc.abstractmethod
    def basis(self, kernel: Kernel) -> Basis:
        """Chooses the function that draws the features, unless `Fitted` is told.

        Args:
            kernel: The kernel of the features.

        Returns:
            The function.
        """

    @abc.abstractmethod
    def start(self, phi: FeatureMap, noise: Scalar, capacity: int) -> Any:
        """Makes the model of no observations.

        Args:
            phi: The features.
            noise: The noise variance.
            capacity: The most observations.

        Returns:
            The model, which has `moments`.
        """

    @abc.abstractmethod
    def add(self, phi: FeatureMap, belief: FittedBelief, x: Point, value: Scalar) -> Any:
        """Adds a value to the model.

        Args:
            phi: The features.
            belief: The belief of the values before.
            x: The point.
            value: The value there, which may be NaN.

        Returns:
            The new model.
        """

    @abc.abstractmethod
    def rebuild(self, phi: FeatureMap, belief: FittedBelief) -> Any:
        """Makes the model of all values anew, after a change of hyperparameters or warping.

        Args:
            phi: The features.
            belief: The belief.

        Returns:
            The model.
        """

    @abc.abstractmethod
    def sample(self, key: Key, phi: FeatureMap, belief: FittedBelief) -> Function:
        """Draws a function from the belief, for standardized values.

        Args:
            key: Random key.
            phi: The features.
            belief: The belief.

        Returns:
            The function.
        """

    @abc.abstractmethod
    def predict(self, phi: FeatureMap, belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        """Predicts f at a point, for standardized values.

        Args:
            phi: The features.
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance at `x`.
        """

    @abc.abstractmethod
    def log_evidence(self, belief: FittedBelief) -> Scalar:
        """Computes the log marginal likelihood of the standardized values.

        Args:
            belief: The belief.

        Returns:
            The log marginal likelihood, in nats.
        """


class OnFeatures(AbstractInference):
    """A linear model on features, the default inference of `Fitted`.

    It takes O(features²) an observation, or less if the capacity is small. Its samples are
    functions that can be sent, and they cost the same after any number of observations. Its
    variance starves once there are more observations than features can tell apart.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Fitted(capacity=20, inference=jaxbo.OnFeatures())
        >>> [round(float(end), 5) for end in model.limits.noise]
        [1e-05, 1.0]
    """

    def bounds(self) -> Bounds:
        return Bounds()

    def basis(self, kernel: Kernel) -> Basis:
        return features.sine_cosine

    def start(self, phi: FeatureMap, noise: Scalar, capacity: int) -> Belief:
        return no_belief(phi.size, noise, capacity)

    def add(self, phi: FeatureMap, belief: FittedBelief, x: Point, value: Scalar) -> Belief:
        return condition(belief.model, phi(x), value)

    def rebuild(self, phi: FeatureMap, belief: FittedBelief) -> Belief:
        moments = _moments(belief.values) if belief.warping is not None else belief.moments
        start = posterior.prior(phi.size, belief.noise, outputs=(2,), capacity=belief.y.shape[0])
        outputs = jnp.stack([belief.values - moments.first, jnp.ones_like(belief.y)], axis=1)
        outputs = jnp.where(belief.used[:, None], outputs, jnp.nan)
        told = posterior.condition_all(start, jax.vmap(phi)(belief.x), outputs)
        return Belief(told, moments)

    def sample(self, key: Key, phi: FeatureMap, belief: FittedBelief) -> FourierFunction:
        return FourierFunction(phi, belief.model.sample(key))

    def predict(self, phi: FeatureMap, belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        return belief.model.predict(phi(x))

    def log_evidence(self, belief: FittedBelief) -> Scalar:
        return posterior.log_evidence(belief.model.posterior, belief.model.standardizing)


class InverseRoot(eqx.Module):
    """`matrix` = L⁻¹ with L L' = K + noise I; rows without an observation are rows of the identity."""

    matrix: Float[Array, "capacity capacity"]
    moments: Moments


class PathwiseFunction(eqx.Module):
    """f(x) = φ(x)'z + k(x, X)v: a sample of the prior, and its correction by the data."""

    features: FeatureMap
    weights: Features
    kernel: Kernel
    x: Points
    v: Float[Array, " points"]

    def __call__(self, x: Point) -> Scalar:
        k = jax.vmap(lambda z: self.kernel(x, z))(self.x)
        return linalg.dot(self.weights, self.features(x)) + linalg.dot(self.v, k)


class Exact(AbstractInference):
    """Inference by the exact process, for O(observations²) a point.

    It keeps all of the variance that features lose. A value of a sample takes O(capacity). In
    float32 keep the noise at 1e-4 or more, as `Fitted` does when it fits.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Fitted(capacity=20, inference=jaxbo.Exact())
        >>> [round(float(end), 5) for end in model.limits.noise]
        [0.0001, 1.0]
    """

    def bounds(self) -> Bounds:
        return Bounds(noise=(1e-4, 1.0))

    def basis(self, kernel: Kernel) -> Basis:
        return features.sine_cosine if isinstance(kernel, AbstractKernel) else nystrom.basis()

    def start(self, phi: FeatureMap, noise: Scalar, capacity: int) -> InverseRoot:
        del phi
        return InverseRoot(jnp.eye(capacity, dtype=noise.dtype), no_moments(noise.dtype))

    def add(self, phi: FeatureMap, belief: FittedBelief, x: Point, value: Scalar) -> InverseRoot:
        del phi
        matrix, moments = belief.model.matrix, belief.moments
        row = moments.count
        usable = jnp.isfinite(value) & (row < belief.y.shape[0])
        w, variance = _whitened(belief, x)
        pivot = jnp.sqrt(variance + belief.noise)
        # The new row of L is (w', pivot), so that of its inverse is (-w' L⁻¹, 1) / pivot.
        unit = (jnp.arange(w.size) == row).astype(w.dtype)
        new = (unit - linalg.dot(w, matrix)) / pivot
        at = jnp.where(usable, row, w.size)
        return InverseRoot(matrix.at[at].set(new, mode="drop"), updated(moments, value))

    def rebuild(self, phi: FeatureMap, belief: FittedBelief) -> InverseRoot:
        del phi
        moments = _moments(belief.values) if belief.warping is not None else belief.moments
        identity = jnp.eye(belief.y.shape[0], dtype=belief.y.dtype)
        pairs = belief.used[:, None] & belief.used[None, :]
        K = gram(belief.kernel, belief.x, belief.x) + belief.noise * identity
        L = linalg.cholesky(jnp.where(pairs, K, identity), belief.noise)
        L = jnp.where(pairs, L, identity)
        return InverseRoot(linalg.inverse_lower(L), moments)

    def sample(self, key: Key, phi: FeatureMap, belief: FittedBelief) -> PathwiseFunction:
        prior_key, noise_key = jr.split(key)
        dtype = belief.y.dtype
        z = jr.normal(prior_key, (phi.size,), dtype)
        e = jnp.sqrt(belief.noise) * jr.normal(noise_key, belief.y.shape, dtype)
        at_data = linalg.dot(jax.vmap(phi)(belief.x), z) + e
        residual = jnp.where(belief.used, belief.standardized - at_data, 0)
        matrix = belief.model.matrix
        v = linalg.dot(linalg.dot(matrix, residual), matrix)
        return PathwiseFunction(phi, z, belief.kernel, belief.x, jnp.where(belief.used, v, 0))

    def predict(self, phi: FeatureMap, belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        del phi
        w, variance = _whitened(belief, x)
        return linalg.dot(w, _white(belief)), variance

    def log_evidence(self, belief: FittedBelief) -> Scalar:
        white = _white(belief)
        log_det = -2 * jnp.sum(jnp.log(jnp.diagonal(belief.model.matrix)))
        count = jnp.sum(belief.used, dtype=white.dtype)
        return -0.5 * (jnp.sum(white**2) + log_det + count * math.log(2 * math.pi))


def _white(belief: FittedBelief) -> Float[Array, " capacity"]:
    """L⁻¹ y for the standardized values, zero in rows without a value."""
    y = jnp.where(belief.used, belief.standardized, 0)
    return linalg.dot(belief.model.matrix, y)


def _whitened(belief: FittedBelief, x: Point) -> tuple[Float[Array, " capacity"], Scalar]:
    """L⁻¹ k(X, x), and the variance at `x`."""
    k = jax.vmap(lambda z: belief.kernel(x, z))(belief.x)
    w = linalg.dot(belief.model.matrix, jnp.where(belief.used, k, 0))
    prior = belief.kernel(x, x)
    # No more can be known of f(x) than `count` observations at x itself would tell.
    count = belief.moments.count.astype(w.dtype)
    least = prior * belief.noise / (belief.noise + count * prior)
    return w, jnp.maximum(prior - linalg.inner(w, w), least)


def _moments(values: Float[Array, " capacity"]) -> Moments:
    """Moments of all values that are finite."""
    step = lambda moments, y: (updated(moments, y), None)  # noqa: E731
    return jax.lax.scan(step, no_moments(values.dtype), values)[0]


class Fitted(AbstractSurrogate):
    """A model whose hyperparameters are fitted to an agent's own values, by maximum evidence.

    The form of `kernel` stays. With fewer than `fit.FEWEST` distinct values nothing is fitted.
    Frequencies are common to all agents, length scales are not (FTS, section 5.2 and the authors'
    real experiments).

    With `Exact()` the kernel may be any function k(x, z), whose numbers are fitted if it has any
    (`KernelFunction`). Samples then begin from `size` inducing points in the cube
    (`nystrom.basis`). Samples of a rough kernel in many dimensions vary too little where nothing is
    observed.

    A value may be any number. Beyond ±1.5e16 in float32 (3e129 in float64) it counts as that. If
    all values differ by less than 1e-19 or by their own rounding, they count as equal.

    Args:
        capacity: The most observations that an agent will ever make, at least 1. Later observations
            are ignored.
        kernel: The kernel that fitting starts from, and that is expected unless `priors` say
            otherwise. Default: `SquaredExponential(0.2)`.
        size: Number of features, at least 1. Default: 200.
        noise: The noise variance that fitting starts from, above 0, in units of the values'
            variance. It is expected unless `priors` say otherwise. Default: 1e-2.
        refit_every: Number of rounds between fits, at least 1. None: nothing is fitted. Default: 5.
        basis: The function that draws the features. None: the choice of `inference`.
        inference: `OnFeatures()`, whose samples can be sent and cost the same after any number of
            observations. Or `Exact()`: for expected improvement, and for ensembles weighed by the
            exact evidence (egp-evidence). With Thompson sampling `Exact()` was better after 100
            evaluations on two of four functions, and neither was on the others (egp-synthetic).
            Default: `OnFeatures()`.
        warp: Whether skewed values are brought nearer to a Gaussian by a power transformation,
            fitted with the rest (`models.warping`). Default: False.
        keep_length_scale: Whether the length scale of `kernel` stays. Default: False.
        bounds: Bounds of the hyperparameters, as in `fit.fit`. None: the choice of `inference`.
        priors: Priors of the hyperparameters, as in `fit.fit`: `fit.LogNormal`, or `fit.Uniform`
            between `bounds`. `Priors()` expects nothing. None: around `kernel` and `noise`.

    Raises:
        ValueError: A number is out of its range, or the basis or `keep_length_scale` does not fit
            the kernel.

    Example:
        >>> import equinox as eqx, jax.numpy as jnp, jax.random as jr, jaxbo
        >>> model = jaxbo.Fitted(8, jaxbo.Matern52(0.3), size=20)
        >>> shared = model.setup(jr.key(0), dim=2)
        >>> x, y = jnp.array([0.2, 0.7]), jnp.array(1.5)
        >>> belief = eqx.filter_jit(model.condition)(shared, model.start(shared), x, y)
        >>> int(model.count(belief)), belief.x.shape
        (1, (8, 2))
    """

    capacity: int = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    kernel: Kernel = eqx.field(converter=as_kernel, default_factory=default_kernel)
    size: int = eqx.field(static=True, default=200)
    noise: Scalar = eqx.field(converter=named("noise"), default=1e-2)
    refit_every: int | None = eqx.field(static=True, default=5)
    basis: Basis | None = eqx.field(static=True, default=None)
    inference: AbstractInference = eqx.field(default_factory=OnFeatures)
    warp: bool = eqx.field(static=True, default=False)
    keep_length_scale: bool = eqx.field(static=True, default=False)
    bounds: Bounds | None = None
    priors: Priors | None = None

    def __check_init__(self):
        positive_number("noise", self.noise)
        is_a("inference", self.inference, AbstractInference)
        check_basis(self._basis, self.kernel)
        require(
            isinstance(self.kernel, AbstractKernel) or not self.keep_length_scale,
            "keep_length_scale is for kernels such as Matern52(0.2): a function k(x, z) has none.",
        )
        for name in ("capacity", "size", "refit_every"):
            if getattr(self, name) is not None or name != "refit_every":
                whole(name, getattr(self, name), least=1)

    @property
    def period(self) -> int | None:
        return self.refit_every

    def setup(self, key: Key, dim: int) -> FeatureMap:
        return self._basis(key, self.kernel, dim, self.size)

    def start(self, shared: FeatureMap) -> FittedBelief:
        dtype = self.noise.dtype
        return FittedBelief(
            x=jnp.zeros((self.capacity, shared.dim), dtype),
            held=jnp.zeros((self.capacity,), dtype),
            least=jnp.asarray(jnp.finfo(dtype).min, dtype),
            warping=warping.identity(dtype) if self.warp else None,
            kernel=self.kernel,
            noise=self.noise,
            model=self.inference.start(shared, self.noise, self.capacity),
        )

    def condition(
        self, shared: FeatureMap, belief: FittedBelief, x: Point, y: Scalar
    ) -> FittedBelief:
        row = belief.moments.count
        usable = jnp.isfinite(y) & (row < self.capacity)
        y = jnp.where(usable, bounded(y), jnp.nan)
        value = self._modeled(belief, y)
        # A failed observation writes what is there already.
        return FittedBelief(
            x=belief.x.at[row].set(jnp.where(usable, x, belief.x[row]), mode="drop"),
            held=belief.held.at[row].set(jnp.where(usable, y, 0), mode="drop"),
            least=belief.least,
            warping=belief.warping,
            kernel=belief.kernel,
            noise=belief.noise,
            model=self.inference.add(_features(shared, belief), belief, x, value),
        )

    def refit(self, shared: FeatureMap, belief: FittedBelief) -> FittedBelief:
        belief = self.rewarped(belief)
        found = fit.fit(
            belief.kernel,
            belief.noise,
            belief.x,
            belief.standardized,
            bounds=self.limits,
            priors=self.prior,
            fit_length_scale=not self.keep_length_scale,
        )
        new, old = (found.kernel, found.noise), (belief.kernel, belief.noise)
        kernel, noise = jax.tree.map(lambda a, b: jnp.where(belief.told, a, b), new, old)
        return self.under(shared, belief, kernel, noise)

    @property
    def _basis(self) -> Basis:
        return self.inference.basis(self.kernel) if self.basis is None else self.basis

    @property
    def prior(self) -> Priors:
        """Returns the priors of the hyperparameters."""
        return Priors.around(self.kernel, self.noise) if self.priors is None else self.priors

    @property
    def limits(self) -> Bounds:
        """Returns the bounds between which hyperparameters are looked for."""
        return self.inference.bounds() if self.bounds is None else self.bounds

    def focused(self, belief: FittedBelief, ready: Flag) -> FittedBelief:
        lowest = jnp.finfo(belief.held.dtype).min
        median = jnp.sort(jnp.where(belief.used, belief.held, jnp.inf))[belief.moments.count // 2]
        raised = jnp.where(belief.used, jnp.maximum(belief.held, median), jnp.nan)
        better = ready & (belief.least == lowest) & fit.informative(raised)
        belief = eqx.tree_at(lambda b: b.least, belief, jnp.where(better, median, lowest))
        if belief.warping is not None:  # whose values `refit` makes anew
            return belief
        return eqx.tree_at(lambda b: b.model.moments, belief, _moments(belief.values))

    def rewarped(self, belief: FittedBelief) -> FittedBelief:
        """Fits the warping of the observations anew; the model only becomes theirs by `under`.

        Args:
            belief: The belief.

        Returns:
            The belief with the new warping.
        """
        if belief.warping is None:
            return belief
        warped = eqx.tree_at(lambda b: b.warping, belief, warping.fit(belief.y))
        return eqx.tree_at(lambda b: b.model.moments, warped, _moments(warped.values))

    def under(
        self, shared: FeatureMap, belief: FittedBelief, kernel: Kernel, noise: Scalar
    ) -> FittedBelief:
        """Conditions on the same observations under other hyperparameters.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            kernel: The new kernel.
            noise: The new noise variance.

        Returns:
            The new belief.
        """
        belief = eqx.tree_at(lambda b: (b.kernel, b.noise), belief, (kernel, noise))
        model = self.inference.rebuild(_features(shared, belief), belief)
        return eqx.tree_at(lambda b: b.model, belief, model)

    def count(self, belief: FittedBelief) -> Count:
        return belief.moments.count

    def sample(self, key: Key, shared: FeatureMap, belief: FittedBelief) -> Function:
        return self.inference.sample(key, _features(shared, belief), belief)

    def predict(self, shared: FeatureMap, belief: FittedBelief, x: Point) -> tuple[Scalar, Scalar]:
        mean, variance = scaled(belief.moments, *self.standardized(shared, belief, x))
        if belief.warping is None:
            return mean, variance
        return warping.moments(belief.warping, mean, variance)

    def standardized(
        self, shared: FeatureMap, belief: FittedBelief, x: Point
    ) -> tuple[Scalar, Scalar]:
        """Does the same as `predict` for standardized values, in which `sample` draws functions.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance at `x`.
        """
        return self.inference.predict(_features(shared, belief), belief, x)

    def standard(self, belief: FittedBelief, y: Scalar) -> Scalar:
        return in_deviations(belief.moments, self._modeled(belief, y))

    def _modeled(self, belief: FittedBelief, y: Scalar) -> Scalar:
        """A value as the belief's model takes it."""
        y = jnp.maximum(y, belief.least)
        return y if belief.warping is None else belief.warping(y)

    def mixture(self, shared: FeatureMap, belief: FittedBelief) -> "Mixture":
        """Writes the model as a mixture of a single Gaussian, for standardized values.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The mixture.
        """

        def predict(x: Point) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
            mean, variance = self.standardized(shared, belief, x)
            return mean[None], variance[None]

        means = jax.vmap(lambda x: predict(x)[0][0])(belief.x)
        return Mixture(jnp.zeros((1,), belief.y.dtype), predict, best(means, belief.used))

    def log_evidence(self, belief: FittedBelief) -> Scalar:
        """Computes the log marginal likelihood of the standardized values under the kernel.

        On features it is the evidence of the linear model, which tends to the exact evidence as
        features grow.

        Args:
            belief: The belief.

        Returns:
            The log marginal likelihood, in nats.
        """
        return self.inference.log_evidence(belief)


class Mixture(NamedTuple):
    """f(x) ~ Σ_m w_m N(mean_m, variance_m), for standardized values.

    `predict` gives the means and variances at a point, `best` is the largest mean at an observed
    point.
    """

    log_weights: Float[Array, " experts"]
    predict: Callable[[Point], tuple[Float[Array, " experts"], Float[Array, " experts"]]]
    best: Scalar


def best(means: Float[Array, " capacity"], used: Bool[Array, " capacity"]) -> Scalar:
    """The largest of the means in use; without any a deviation below the prior mean, 0."""
    largest = jnp.max(jnp.where(used, means, -jnp.inf))
    return jnp.where(jnp.any(used), largest, -1)


def _features(shared: FeatureMap, belief: FittedBelief) -> FeatureMap:
    return features.with_kernel(shared, belief.kernel)
