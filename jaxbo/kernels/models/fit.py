"""Hyperparameters by maximum evidence.

    evidence = log N(y; 0, K),   K = k(X, X) + noise I
    d evidence / dK = (alpha alpha' - K^-1) / 2,   alpha = K^-1 y

over theta = log length_scale (one, or one a coordinate), log variance and log noise, inside of
`Bounds`: theta = low + (high - low) sigmoid(4 u / (high - low)), u free. For another function k(x,
z), theta is the log factors of its numbers (`KernelFunction`), and log noise. Several runs of
L-BFGS, from the given hyperparameters and from points spread over the box, go side by side; the
best is returned.

Values that are all equal, or nearly, would be explained best by noise alone, or by a function that is
the same everywhere. Either would end the search. So with fewer than five distinct values the
hyperparameters stay where they are, and later a prior keeps them from the ends of the box.

If length scales stay, K = variance Q diag(values) Q' + noise I has the same Q throughout, and an
evaluation takes O(points) instead of O(points^3).

Every restart of every agent of a batch does the same work whatever its line search decides: an
evaluation a step, along a new direction if the last step was accepted, and nearer if it was not. A
line search with a loop of its own would make all wait for the slowest at every step.
"""

import math
from collections.abc import Callable, Collection

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo import _check
from jaxbo.kernels import linalg
from jaxbo.kernels.processes.covariance import AbstractKernel, Kernel
from jaxbo.types import Flag, Scalar, floating, named

#: Pairs kept by L-BFGS: more than the hyperparameters of a handful of coordinates need.
_MEMORY = 8
#: Longest step in any log hyperparameter, a factor of e^2: longer ones end where the box is flat.
_LONGEST = 2.0
#: Armijo's constant, and the range of the factor by which a rejected step shrinks.
_SUFFICIENT, _SHRINK = 1e-4, (0.1, 0.5)
#: Shares of the box, at each end, that the given start and the spread ones keep away from. At the
#: ends the gradient vanishes; spread wider, starts were measured to miss the optimum more often.
_MARGIN, _SPREAD_MARGIN = 0.02, 0.2
#: Eigenvalues are computed twice below this share of the largest.
_SMALL = 1 / 64
#: With fewer distinct values nothing is fitted.
FEWEST = 5
#: Values that differ by so many roundings are the same.
_ROUNDINGS = 8
#: Default spreads of the logarithms: a factor of 30 either way for length scales, 55 for the noise, is
#: within two of them.
_SPREAD_OF_SCALES, _SPREAD_OF_NOISE = math.sqrt(3), 2.0
#: Noise variance where nothing else is given, in units of the values' variance.
NOISE = 1e-2


def _pair(value: Float[Array, "2"] | tuple[float, float]) -> Float[Array, "2"]:
    return floating(value)


class Bounds(eqx.Module):
    """The smallest and the largest value of each hyperparameter.

    The defaults suit points of the unit cube and values of mean 0 and variance 1. `factor` is for
    the numbers of a function k(x, z), in units of the given numbers. Below a noise of 1e-5 of the
    variance float32 cannot evaluate the evidence of smooth functions: use float64.
    """

    length_scale: Float[Array, "2"] = eqx.field(converter=_pair, default=(0.01, 10.0))
    variance: Float[Array, "2"] = eqx.field(converter=_pair, default=(0.05, 20.0))
    noise: Float[Array, "2"] = eqx.field(converter=_pair, default=(1e-5, 1.0))
    factor: Float[Array, "2"] = eqx.field(converter=_pair, default=(0.01, 100.0))

    def __check_init__(self):
        for name, pair in vars(self).items():
            _check.positive(f"bounds of {name}", pair)
            _check.require(pair[0] <= pair[1], f"bounds of {name} are reversed: {pair}.")


class LogNormal(eqx.Module):
    """A prior: log value ~ N(log median, spread^2)."""

    median: Scalar = eqx.field(converter=named("median"))
    spread: Scalar = eqx.field(converter=named("spread"))

    def __check_init__(self):
        _check.positive("median", self.median)
        _check.positive("spread", self.spread)

    def log_density(self, log_value: Float[Array, "*dim"]) -> Scalar:
        """Log density of the log value, greatest at the median, up to a constant."""
        return -jnp.sum(((log_value - jnp.log(self.median)) / self.spread) ** 2) / 2


class Uniform(eqx.Module):
    """A prior that is flat in the value itself, between its `Bounds`: p(log value) ∝ value.

    It is for samples of hyperparameters (`Marginal`). `fit` looks for the greatest density of the
    logarithm, as under any prior. With few observations that is often at an upper bound. `None` is for
    the greatest density of the value itself, which is where the evidence is greatest.
    """

    def log_density(self, log_value: Float[Array, "*dim"]) -> Scalar:
        """Log density of the log value, greatest at the upper bound, up to a constant."""
        return jnp.sum(log_value)


#: A prior of a hyperparameter.
Prior = LogNormal | Uniform


class Priors(eqx.Module):
    """Priors of the hyperparameters; `None` is flat in the logarithm.

    The prior of the length scale holds for each coordinate's, independently, and the prior of the
    factor for each number of a function k(x, z). Outside of the `Bounds` all are 0.
    """

    length_scale: Prior | None = None
    variance: Prior | None = None
    noise: Prior | None = None
    factor: Prior | None = None

    @classmethod
    def scaled(cls, dim: int) -> "Priors":
        """Length scales that grow with the root of the dimension, as distances in a cube do.

        Median e^√2 √dim, spread √3: the prior of Hvarfner, Hellsten and Nardi (2024), with which a
        length scale a coordinate can be fitted to few points in many dimensions. The noise has a
        median of 1 % of the values' variance.
        """
        _check.whole("dim", dim, least=1)
        median = math.exp(math.sqrt(2)) * math.sqrt(dim)
        return cls(LogNormal(median, math.sqrt(3)), noise=LogNormal(NOISE, _SPREAD_OF_NOISE))

    @classmethod
    def around(cls, kernel: Kernel, noise: Scalar) -> "Priors":
        """Medians that are the given noise, and the geometric mean of the given length scales.

        Or the numbers of a function k(x, z).
        """
        of_noise = LogNormal(noise, _SPREAD_OF_NOISE)
        if not isinstance(kernel, AbstractKernel):
            return cls(factor=LogNormal(1.0, _SPREAD_OF_SCALES), noise=of_noise)
        median = jnp.exp(jnp.mean(jnp.log(kernel.length_scale)))
        return cls(LogNormal(median, _SPREAD_OF_SCALES), noise=of_noise)

    def log_density(self, alike: Scalar | float = 1.0, **logs: Float[Array, "..."]) -> Scalar:
        """Log density of the logarithms of the hyperparameters, by their names, up to a constant.

        If a single length scale stands for so many `alike`, it counts once.
        """
        found = [jnp.zeros_like(logs["noise"])]
        for name, log_values in logs.items():
            prior = getattr(self, name)
            if prior is not None:
                share = alike if name == "length_scale" else 1
                found.append(prior.log_density(log_values) / share)
        return jnp.sum(jnp.stack(found))


class Fit(eqx.Module):
    """Fitted hyperparameters and their log evidence in nats, priors not included."""

    kernel: Kernel
    noise: Scalar
    log_evidence: Scalar


def fit(
    kernel: Kernel,
    noise: Scalar | float,
    X: Float[Array, "capacity dim"],
    y: Float[Array, " capacity"],
    *,
    bounds: Bounds | None = None,
    priors: Priors | None = None,
    fit_length_scale: bool = True,
    fit_variance: bool = True,
    fit_noise: bool = True,
    restarts: int = 4,
    steps: int = 25,
) -> Fit:
    """The hyperparameters of greatest evidence, or with priors of greatest evidence times priors.

    `kernel` gives the form (its class; a length scale, or a length scale a coordinate; or a
    function k(x, z)) and, with `noise`, the first start, moved into the bounds if it lies outside
    of them. Rows whose y is not finite are ignored: NaN marks failures and padding alike. The other
    `restarts - 1` starts are the same low-discrepancy points of the box every time. `steps` is how
    often each evaluates the evidence; once more is for the given hyperparameters.

    The result is inside of the bounds, never worse than the start and never NaN. With fewer than
    `FEWEST` distinct values it is the start. A hyperparameter that is not fitted keeps its value,
    whatever the bounds.

    `ValueError` for no restart or no step, for noise that is not positive, and for a length scale
    or variance to be kept if the kernel has none.
    """
    if restarts < 1 or steps < 1:
        raise ValueError(f"restarts and steps must be at least 1, got {restarts} and {steps}.")
    _check.positive("noise", noise)
    fitted = {"length_scale": fit_length_scale, "variance": fit_variance, "noise": fit_noise}
    if not isinstance(kernel, AbstractKernel) and not (fit_length_scale and fit_variance):
        raise ValueError(
            f"a length scale or variance cannot be kept: {kernel!r} has none of its own."
        )
    kept = [name for name, varies in fitted.items() if not varies]
    problem = of_data(kernel, noise, X, y, bounds=bounds, priors=priors, kept=kept)

    def loss(u: Float[Array, " parameters"], at_given: Flag) -> Scalar:
        return -problem.log_density(jnp.where(at_given, problem.theta, problem.inside(u)))

    found, lowest, given = jax.vmap(lambda u: _descend(loss, u, steps))(problem.starts(restarts))
    best = jnp.argmin(lowest)
    better = (lowest[best] < given[0]) & informative(y)
    theta = jnp.where(better, problem.inside(found[best]), problem.theta)
    density = -jnp.where(better, lowest[best], given[0])
    prior = problem.log_prior(theta)
    evidence = jnp.where(jnp.isfinite(density), density - prior, density)  # the prior may be -inf
    return Fit(*problem.unpack(theta), evidence.astype(y.dtype))


def informative(y: Float[Array, " capacity"]) -> Flag:
    """Whether there are `FEWEST` values that differ by more than rounding; only finite values count."""
    known = jnp.isfinite(y)
    ordered = jnp.sort(jnp.where(known, y, jnp.inf))
    size = jnp.max(jnp.where(known, jnp.abs(y), 0), initial=0)
    step = _ROUNDINGS * jnp.finfo(y.dtype).eps * size
    apart = (ordered[1:] - ordered[:-1] > step) & jnp.isfinite(ordered[1:])
    return jnp.any(known) & (1 + jnp.sum(apart) >= FEWEST)


class Spectrum(eqx.Module):
    """K = variance Q diag(values) Q' + noise I, for length scales that stay; `powers` = (Q'y)^2."""

    values: Float[Array, " capacity"]
    powers: Float[Array, " capacity"]

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel,
        squares: Float[Array, "scales capacity capacity"],
        y: Float[Array, " capacity"],
        rows: Bool[Array, " capacity"],
    ) -> "Spectrum":
        one = kernel.with_hyperparameters(kernel.length_scale, jnp.ones_like(kernel.variance))
        correlations = one.of_squares(squares).astype(y.dtype)
        used = jnp.where(rows[:, None] & rows[None, :], correlations, 0)
        values, Q = _eigh(used)
        return cls(jnp.maximum(values, 0), linalg.dot(y, Q) ** 2)

    def evidence(self, variance: Scalar, noise: Scalar) -> Scalar:
        """`evidence` of K."""
        spread = variance * self.values + noise
        return -jnp.sum(self.powers / spread + jnp.log(spread)) / 2


def _eigh(
    A: Float[Array, "n n"],
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues, in no order, and eigenvectors of a positive semidefinite matrix.

    `jnp.linalg.eigh` errs by roundings of the largest eigenvalue, in which eigenvalues of the size
    of the noise are lost. So they are found again among themselves, from entries that err by their
    own roundings.
    """
    _, Q = jnp.linalg.eigh(A)
    inner = linalg.dot(Q.T, linalg.dot(A, Q))
    most = jnp.max(jnp.diagonal(inner)) * _SMALL
    small = jnp.diagonal(inner) < most
    # The others stay, below all of them.
    among = jnp.where(small[:, None] & small[None, :], (inner + inner.T) / 2, 0)
    _, U = jnp.linalg.eigh(among - jnp.diag(jnp.where(small, 0, most)))
    Q = linalg.dot(Q, U)
    return jnp.sum(Q * linalg.dot(A, Q), axis=0), Q


class Problem(eqx.Module):
    """Evidence and priors of the data as functions of theta, the log hyperparameters.

    `squares` is all that the kernel needs of the points. `spectrum` is there if only a variance and
    the noise are free.
    """

    kernel: Kernel
    theta: Float[Array, " parameters"]
    low: Float[Array, " parameters"]
    high: Float[Array, " parameters"]
    priors: Priors
    squares: Float[Array, "..."]
    y: Float[Array, " capacity"]
    rows: Bool[Array, " capacity"]
    spectrum: Spectrum | None

    def log_evidence(self, theta: Float[Array, " parameters"]) -> Scalar:
        """log N(y; 0, K) in nats, of the rows in use; the others are rows of the identity times noise."""
        kernel, noise = self.unpack(theta)
        if self.spectrum is None:
            found = self.evidence_of(kernel.of_squares(self.squares), noise)
        else:
            found = self.spectrum.evidence(kernel.hyperparameters["variance"], noise)
        count = jnp.sum(self.rows, dtype=self.y.dtype)
        unused = (len(self.y) - count) * jnp.log(noise) / 2
        return (found + unused - count * (math.log(2 * math.pi) / 2)).astype(theta.dtype)

    def evidence_of(self, covariance: Float[Array, "capacity capacity"], noise: Scalar) -> Scalar:
        """log N(y; 0, covariance + noise I) of the rows in use, up to a constant for the same noise."""
        K = jnp.where(self.rows[:, None] & self.rows[None, :], covariance, 0)
        return evidence(K + noise * jnp.eye(len(self.y), dtype=self.y.dtype), self.y, noise)

    def log_density(self, theta: Float[Array, " parameters"]) -> Scalar:
        """Log density of theta given the data, up to a constant, inside of the box."""
        return self.log_evidence(theta) + self.log_prior(theta)

    def log_prior(self, theta: Float[Array, " parameters"]) -> Scalar:
        """Log prior of theta, up to a constant."""
        kernel, _ = _unpack(self.kernel, theta, theta.dtype)
        logs, alike = _split(self.kernel, theta), jnp.asarray(kernel.alike, theta.dtype)
        if isinstance(kernel, AbstractKernel):  # one length scale may stand for several
            logs["length_scale"] = jnp.log(jnp.ravel(kernel.length_scale))
        return self.priors.log_density(alike, **logs)

    def unpack(self, theta: Float[Array, " parameters"]) -> tuple[Kernel, Scalar]:
        """The kernel and the noise."""
        return _unpack(self.kernel, theta, self.y.dtype)

    def pack(self, kernel: Kernel, noise: Scalar) -> Float[Array, " parameters"]:
        """theta of a kernel of the same form and a noise; `unpack` is the way back."""
        return _pack(kernel, noise)

    def inside(self, u: Float[Array, " parameters"]) -> Float[Array, " parameters"]:
        """theta of free coordinates: low + (high - low) sigmoid(4 u / (high - low))."""
        share = jax.nn.sigmoid(self._logit(u))
        return jnp.clip(self.low + (self.high - self.low) * share, self.low, self.high)

    def log_volume(self, u: Float[Array, " parameters"]) -> Scalar:
        """log |d theta / d u| = log 4 s (1 - s) of all coordinates, up to a constant; s the sigmoid."""
        logit = self._logit(u)
        return -jnp.sum(jax.nn.softplus(logit) + jax.nn.softplus(-logit))

    def _logit(self, u: Float[Array, " parameters"]) -> Float[Array, " parameters"]:
        width = self.high - self.low
        return 4 * u / jnp.where(width > 0, width, 1)

    def starts(self, restarts: int) -> Float[Array, "restarts parameters"]:
        """Free coordinates of theta and of further points."""
        return _starts(self.theta, self.low, self.high, restarts)


def of_data(
    kernel: Kernel,
    noise: Scalar | float,
    X: Float[Array, "capacity dim"],
    y: Float[Array, " capacity"],
    *,
    bounds: Bounds | None = None,
    priors: Priors | None = None,
    kept: Collection[str] = (),
) -> Problem:
    """The problem that `fit` solves; `kept` names the hyperparameters that stay, of `Bounds`."""
    theta = _pack(kernel, floating(noise))
    low, high = _box(Bounds() if bounds is None else bounds, kernel, theta, kept)
    rows = jnp.isfinite(y)
    squares, y = kernel.squares(jnp.where(rows[:, None], X, 0)), jnp.where(rows, y, 0)
    spectrum = None
    if isinstance(kernel, AbstractKernel) and "length_scale" in kept and kernel.variance.ndim == 0:
        spectrum = Spectrum.of(kernel, squares, y, rows)
    return Problem(
        kernel,
        jnp.clip(theta, low, high),
        low,
        high,
        Priors() if priors is None else priors,
        squares,
        y,
        rows,
        spectrum,
    )


@jax.custom_vjp
def evidence(
    K: Float[Array, "capacity capacity"], y: Float[Array, " capacity"], noise: Scalar
) -> Scalar:
    """log N(y; 0, K) in nats, less the constant -capacity / 2 log(2 pi).

    `noise` is the part of K's diagonal beside the covariance. It serves only to bound the effects
    of rounding (see `linalg.cholesky`), so it has no gradient of its own, and the evidence is never
    NaN. Rows of the identity with y = 0 add nothing. Differentiable once, in reverse.
    """
    L = linalg.cholesky(K, noise)
    return _log_normal(L, linalg.solve_lower(L, y))


def _evidence(K, y, noise):
    L = linalg.cholesky(K, noise)
    # The gradient needs K^-1 = L'^-1 L^-1.
    inverse = linalg.inverse_lower(L)
    white = linalg.dot(inverse, y)
    return _log_normal(L, white), (inverse, white)


def _evidence_back(residuals, cotangent):
    inverse, white = residuals
    alpha = linalg.dot(inverse.T, white)
    outer = alpha[:, None] * alpha[None, :]
    dK = cotangent / 2 * (outer - linalg.dot(inverse.T, inverse))
    return dK, -cotangent * alpha, jnp.zeros_like(cotangent)


evidence.defvjp(_evidence, _evidence_back)


def _log_normal(L, white) -> Scalar:
    return -jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(L)))


def _pack(kernel: Kernel, noise: Scalar) -> Float[Array, " parameters"]:
    """theta, in JAX's default precision, in which optax keeps its own numbers."""
    parts = [*map(jnp.ravel, kernel.hyperparameters.values()), noise[None]]
    return jnp.log(jnp.concatenate([part.astype(float) for part in parts]))


def _unpack(
    kernel: Kernel, theta: Float[Array, " parameters"], dtype: jnp.dtype
) -> tuple[Kernel, Scalar]:
    values = _split(kernel, jnp.exp(theta).astype(dtype))
    noise = values.pop("noise")
    given = kernel.hyperparameters
    shaped = [value.reshape(given[name].shape) for name, value in values.items()]
    return kernel.with_hyperparameters(*shaped), noise


def _split(kernel: Kernel, theta: Float[Array, " parameters"]) -> dict[str, Float[Array, "..."]]:
    """The parts of theta, the noise last."""
    given = kernel.hyperparameters
    ends = np.cumsum([value.size for value in given.values()])
    parts = jnp.split(theta[:-1], ends[:-1])
    return {**dict(zip(given, parts, strict=True)), "noise": theta[-1]}


def _box(
    bounds: Bounds, kernel: Kernel, theta: Float[Array, " parameters"], kept: Collection[str]
) -> tuple[Float[Array, " parameters"], Float[Array, " parameters"]]:
    """The ends of the box; a kept number has no width."""
    parts, fitted = [], []
    for name, value in _split(kernel, theta).items():
        pair = getattr(bounds, name)
        if name == "variance":  # where several add up, any of them may be next to nothing
            pair = pair / jnp.array([value.size**2, 1], pair.dtype)
        parts.append(jnp.repeat(pair[:, None].astype(float), value.size, axis=1))
        fitted += [name not in kept] * value.size
    ends = jnp.log(jnp.concatenate(parts, axis=1))
    fitted = np.array(fitted)
    return jnp.where(fitted, ends[0], theta), jnp.where(fitted, ends[1], theta)


def kronecker(count: int, dim: int) -> Float[np.ndarray, "count dim"]:
    """Points of low discrepancy in the unit cube, always the same, the first in its middle.

    The steps are powers of the generalized golden ratio, the root of r^(d + 1) = r + 1 (Roberts).
    """
    ratio = np.roots([1.0] + [0.0] * (dim - 1) + [-1.0, -1.0]).real.max()
    shifts = np.arange(count)[:, None] * ratio ** -np.arange(1.0, dim + 1)
    return (0.5 + shifts) % 1.0


def _starts(
    theta: Float[Array, " parameters"],
    low: Float[Array, " parameters"],
    high: Float[Array, " parameters"],
    restarts: int,
) -> Float[Array, "restarts parameters"]:
    """Free coordinates of theta and of further points, spread over the box."""
    shares = kronecker(restarts, len(theta))
    spread = _SPREAD_MARGIN + (1 - 2 * _SPREAD_MARGIN) * shares
    width = jnp.where(high > low, high - low, 1)
    given = jnp.clip((theta - low) / width, _MARGIN, 1 - _MARGIN)
    shares = jnp.asarray(spread, dtype=float).at[0].set(given)
    return (jnp.log(shares) - jnp.log1p(-shares)) * (width / 4)[None]


class _Descent(eqx.Module):
    """An accepted point, the memory of L-BFGS, and the step from there that is tried next."""

    u: Float[Array, " parameters"]
    value: Scalar
    gradient: Float[Array, " parameters"]
    direction: Float[Array, " parameters"]
    step: Scalar
    memory: PyTree


def _descend(
    loss: Callable[[Float[Array, " parameters"], Flag], Scalar],
    u: Float[Array, " parameters"],
    steps: int,
) -> tuple[Float[Array, " parameters"], Scalar, Scalar]:
    """The lowest point found by `steps` evaluations of `loss(u, False)` and its gradient, the loss
    there, and `loss(u, True)`: a further step, so that the loss is compiled once.
    """
    import optax  # late, as importing it takes a tenth as long as this package

    lbfgs = optax.scale_by_lbfgs(_MEMORY)
    empty = _without_memory(lbfgs.init(u))
    evaluate = jax.value_and_grad(loss)

    def accept(u, value, gradient, memory) -> _Descent:
        update, memory = lbfgs.update(gradient, memory, u)
        update = jnp.asarray(update)
        direction = -update * jnp.minimum(1, _LONGEST / jnp.max(jnp.abs(update)))
        return _Descent(u, value, gradient, direction, jnp.ones_like(value), memory)

    def step(state: _Descent, last: Flag) -> tuple[_Descent, Scalar]:
        u = state.u + state.step * state.direction
        value, gradient = evaluate(u, last)
        # Memory of a step without positive curvature would point uphill: begin anew.
        curved = jnp.sum((gradient - state.gradient) * (u - state.u)) > 0
        moved = accept(u, value, gradient, _select(curved, state.memory, empty))
        predicted = state.step * jnp.sum(state.gradient * state.direction)
        excess = value - state.value - predicted
        shrunk = eqx.tree_at(lambda s: s.step, state, state.step * _shrink(predicted, excess))
        enough = value <= state.value + _SUFFICIENT * predicted
        enough = enough & jnp.all(jnp.isfinite(gradient)) & ~last
        return _select(enough, moved, shrunk), value

    # Nothing is known at first: the first step, of no length, is accepted with any loss.
    zero = jnp.zeros_like(u)
    start = _Descent(u, jnp.full((), jnp.inf, u.dtype), zero, zero, zero[0], empty)
    end, values = jax.lax.scan(step, start, jnp.arange(steps + 1) == steps)
    return end.u, end.value, values[-1]


def _without_memory(start: PyTree) -> PyTree:
    """The memory at the start. Its count takes JAX's default type: optax adds it to an `arange`."""
    return eqx.tree_at(lambda memory: memory.count, start, jnp.asarray(0))


def _shrink(predicted: Scalar, excess: Scalar) -> Scalar:
    """The place of the minimum of the parabola through the rejected value, as a share of the step."""
    share = -predicted / (2 * excess)
    return jnp.clip(jnp.where(jnp.isfinite(share), share, _SHRINK[0]), *_SHRINK)


def _select(condition: Flag, yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda yes, no: jnp.where(condition, yes, no), yes, no)
