"""Families of related functions for many agents.

    Same            agent n:  f(x) + e                             e ~ N(0, noise²)
    Shifted         agent n:  f(warp(x)) + e,                      warp(peak + shiftₙ) = peak
    OnGrid          agent n:  values[n, i] + e,                    i = argminᵢ |x - pointsᵢ|
    gp_draws        V √Λ z,   z ~ N(0, I),   k(points, points) = V Λ V'
    perturbed       values ± distance, either sign with probability 1/2 at every point
    mixtures        alpha own + (1 - alpha) base

Everything lives on the unit cube and is maximized.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, Float

from jaxbo._check import is_a, require, whole
from jaxbo._extensible import Extensible
from jaxbo._keys import check_key
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes.covariance import Covariance, as_kernel, gram
from jaxbo.objectives.functions import TestFunction
from jaxbo.types import Count, Key, Point, Points, Scalar, named

#: Eigenvalues below this many machine epsilons of the largest are rounding. Clipping at 0 alone
#: keeps half of them: draws of length scale 0.2 on 1000 points were then 70 times too rough
#: between neighbors in float32. With 16 it is 1.3 times, and the covariance errs by 2e-5 at most.
_RANK_TOLERANCE = 16


class AbstractObjective(Extensible):
    """The values that every agent maximizes: `run` compiles it, and regret is measured by it.

    A subclass has `noise`, the standard deviation of an evaluation around the value without noise.

    Example:
        >>> import jaxbo
        >>> objective = jaxbo.objectives.Same(jaxbo.functions.sphere(), noise=0.1)
        >>> isinstance(objective, jaxbo.objectives.AbstractObjective)
        True
    """

    noise: eqx.AbstractVar[Scalar]

    @property
    def agents(self) -> int | None:
        """The number of agents that have functions; None for any number."""
        return None

    @abc.abstractmethod
    def noiseless(self, agent: Count, x: Point) -> Scalar:
        """The value of an agent at a point, without noise.

        Args:
            agent: Number of the agent, from 0.
            x: The point.

        Returns:
            The value.
        """

    @abc.abstractmethod
    def optimum(self, agent: Count) -> Scalar:
        """The largest value of an agent, without noise.

        Args:
            agent: Number of the agent, from 0.

        Returns:
            The value.
        """

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        """An evaluation. The noise depends on the key alone: pass every agent its own."""
        value = self.noiseless(agent, x)
        return value + self.noise.astype(value.dtype) * jr.normal(key, dtype=value.dtype)


class Same(AbstractObjective):
    """The same function for every agent.

    Args:
        function: The function.
        noise: Standard deviation of the noise, at least 0.

    Raises:
        ValueError: `function` is not a `TestFunction`, or `noise` is negative.

    Example:
        >>> import jax, jaxbo
        >>> objective = jaxbo.objectives.Same(jaxbo.functions.sphere())
        >>> value = objective(jax.random.key(0), jax.numpy.array(1), jax.numpy.array([0.5, 0.5]))
        >>> abs(float(value)), float(objective.optimum(jax.numpy.array(1)))
        (0.0, 0.0)
    """

    function: TestFunction
    noise: Scalar = eqx.field(converter=named("noise"), default=0.0)

    def __check_init__(self):
        is_a("function", self.function, TestFunction)
        _not_negative("noise", self.noise)

    def noiseless(self, agent: Count, x: Point) -> Scalar:
        del agent
        return self.function(x)

    def optimum(self, agent: Count) -> Scalar:
        del agent
        return self.function.maximum


class Shifted(AbstractObjective):
    """A function for every agent, with its first maximizer moved.

    Each coordinate is stretched on one side of the maximizer and compressed on the other, both
    linearly. The faces of the cube stay where they are, and nothing is cut off, wrapped around or
    looked up outside of the cube. Every value is still attained, so the optimum is that of the
    function. A coordinate whose maximizer lies on a face cannot be moved in this way.

    Args:
        function: The function.
        shifts: The move of each agent's maximizer, in units of the cube.
        noise: Standard deviation of the noise, at least 0.

    Raises:
        ValueError: `noise` is negative, a shift takes a maximizer to a face or beyond, or a shift is
            not 0 in a coordinate where the maximizer lies on a face.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> shifts = jnp.array([[0.0, 0.0], [0.25, 0.0]])
        >>> objective = jaxbo.objectives.Shifted(jaxbo.functions.sphere(), shifts)
        >>> abs(float(objective.noiseless(jnp.array(1), jnp.array([0.75, 0.5]))))
        0.0
    """

    function: TestFunction
    shifts: Float[Array, "agents dim"] = eqx.field(converter=named("shifts"))
    noise: Scalar = eqx.field(converter=named("noise"), default=0.0)

    def __check_init__(self):
        is_a("function", self.function, TestFunction)
        _not_negative("noise", self.noise)
        require(
            self.shifts.ndim == 2 and self.shifts.shape[1] == self.function.dim,
            f"shifts need a row for each agent with {self.function.dim} numbers, got shape "
            f"{self.shifts.shape}.",
        )
        peak = self.function.maximizers[:1].astype(self.shifts.dtype)
        moved = peak + self.shifts
        movable = (peak > 0) & (peak < 1) & (moved > 0) & (moved < 1)
        require(
            movable | (self.shifts == 0),
            f"shifts must leave the maximizer {peak[0]} inside the unit cube, and be 0 in a "
            f"coordinate where it lies on a face; they put it at {moved}.",
        )

    @property
    def agents(self) -> int:
        return self.shifts.shape[0]

    def noiseless(self, agent: Count, x: Point) -> Scalar:
        peak = self.function.maximizers[0].astype(x.dtype)
        return self.function(_warp(x, peak + self.shifts[agent].astype(x.dtype), peak))

    def optimum(self, agent: Count) -> Scalar:
        del agent
        return self.function.maximum


class OnGrid(AbstractObjective):
    """Functions known at finitely many points. Elsewhere the value is that of the nearest point.

    At a known point the value is exactly the given number; at a repeated point, the first number.

    Args:
        values: The values of each agent at each point.
        points: The points.
        noise: Standard deviation of the noise, at least 0.

    Raises:
        ValueError: `noise` is negative, a value is not finite, or shapes do not fit.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> objective = jaxbo.objectives.OnGrid(jnp.array([[1.0, 3.0]]), jnp.array([[0.0], [1.0]]))
        >>> float(objective.noiseless(jnp.array(0), jnp.array([0.9])))
        3.0
    """

    values: Float[Array, "agents points"] = eqx.field(converter=named("values"))
    points: Points = eqx.field(converter=named("points"))
    noise: Scalar = eqx.field(converter=named("noise"), default=0.0)

    def __check_init__(self):
        _not_negative("noise", self.noise)
        require(
            self.values.size > 0
            and self.points.ndim == 2
            and self.values.shape[1:] == self.points.shape[:1],
            f"values need a row for each agent with one number a point, got shape "
            f"{self.values.shape} for points of shape {self.points.shape}.",
        )
        require(jnp.isfinite(self.values), "values must be finite; some are not.")

    @property
    def agents(self) -> int:
        return self.values.shape[0]

    def noiseless(self, agent: Count, x: Point) -> Scalar:
        """The value of an agent at the nearest known point, without noise.

        Args:
            agent: Number of the agent, from 0.
            x: The point.

        Returns:
            The value.

        Raises:
            ValueError: `x` has another number of coordinates than the points.
        """
        require(
            x.shape == self.points.shape[1:],
            f"the points have {self.points.shape[1]} coordinates, x has shape {x.shape}.",
        )
        # Differences, not products: the distance of a point to itself must be exactly 0.
        distances = jnp.sum((self.points.astype(x.dtype) - x[None, :]) ** 2, axis=1)
        return self.values[agent, jnp.argmin(distances)]

    def optimum(self, agent: Count) -> Scalar:
        return jnp.max(self.values[agent])


def gp_draws(
    key: Key, kernel: Covariance, points: Points, count: int
) -> Float[Array, "draws points"]:
    """Independent draws of a Gaussian process of mean zero.

    They are made by an eigendecomposition, in O(points³): the matrix of a smooth kernel on a fine grid
    has no Cholesky factor. Directions below the rounding error are left out.

    Args:
        key: Random key.
        kernel: The covariance function.
        points: The points at which the process is drawn.
        count: Number of draws, at least 1.

    Returns:
        The draws.

    Raises:
        ValueError: `kernel` does not return one number for two points, or shapes do not fit.

    Example:
        >>> import jax, jaxbo
        >>> points = jax.numpy.linspace(0.0, 1.0, 5)[:, None]
        >>> kernel = jaxbo.SquaredExponential(0.3)
        >>> jaxbo.objectives.gp_draws(jax.random.key(0), kernel, points, count=2).shape
        (2, 5)
    """
    check_key(key)
    whole("count", count, least=1)
    points = _array("points", points, 2)
    as_kernel(kernel)  # or the error says what a kernel is
    covariances = gram(kernel, points, points)
    one = eqx.is_array(covariances) and covariances.ndim == 2
    require(one, "kernel must return one number for two points, and does not.")
    spectrum: tuple[Array, Array] = jnp.linalg.eigh(covariances)
    eigenvalues, vectors = spectrum
    rounding = _RANK_TOLERANCE * jnp.finfo(points.dtype).eps * eigenvalues[-1]
    scales = jnp.sqrt(jnp.where(eigenvalues > rounding, eigenvalues, 0))
    z = jr.normal(key, (count, points.shape[0]), points.dtype)
    return dot(z * scales[None, :], vectors.T)


def unit_range(values: Float[Array, "*batch points"]) -> Float[Array, "*batch points"]:
    """Scales each row to minimum 0 and, up to rounding, maximum 1. A constant row becomes 0.

    Args:
        values: The rows.

    Returns:
        The scaled rows.

    Raises:
        ValueError: `values` has no numbers.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> jaxbo.objectives.unit_range(jnp.array([[1.0, 3.0, 2.0]])).tolist()
        [[0.0, 1.0, 0.5]]
    """
    values = named("values")(values)
    require(
        values.ndim > 0 and values.size > 0,
        f"values must have a number or more in each row, got shape {values.shape}.",
    )
    low = jnp.min(values, axis=-1, keepdims=True)
    extent = jnp.max(values, axis=-1, keepdims=True) - low
    return (values - low) / jnp.where(extent > 0, extent, 1)


def perturbed(
    key: Key, values: Float[Array, " points"], distance: ArrayLike, agents: int
) -> Float[Array, "agents points"]:
    """Adds a distance to every value of every agent, with a random sign.

    This is FTS, appendix D.1, where `distance` is dₙ, and DP-FTS-DE, appendix B.1.1. The signs of an
    agent do not depend on how many agents there are.

    Args:
        key: Random key.
        values: The common values.
        distance: The distance, finite and at least 0.
        agents: Number of agents, at least 1.

    Returns:
        The values of each agent.

    Raises:
        ValueError: `distance` is negative or not finite, or `agents` is less than 1.

    Example:
        >>> import jax, jaxbo
        >>> values = jax.numpy.zeros(3)
        >>> found = jaxbo.objectives.perturbed(jax.random.key(0), values, 0.5, agents=2)
        >>> abs(found).tolist()
        [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """
    check_key(key)
    whole("agents", agents, least=1)
    values, distance = _array("values", values, 1), named("distance")(distance)
    _not_negative("distance", distance)
    keys = jax.vmap(jr.fold_in, (None, 0))(key, jnp.arange(agents))
    signs = jax.vmap(lambda key: jr.rademacher(key, values.shape, values.dtype))(keys)
    return values[None, :] + distance.astype(values.dtype) * signs


def mixtures(
    base: Float[Array, " points"], own: Float[Array, "agents points"], alpha: ArrayLike
) -> Float[Array, "agents points"]:
    """Mixes a common function with a function of each agent: alpha own + (1 - alpha) base.

    Agents are alike at alpha = 0, and independent of the base at alpha = 1. In DP-FTS-DE, appendix B.1
    (robustness against heterogeneous agents), `base` and the rows of `own` are independent draws of the
    same process, each scaled by `unit_range` before they are mixed.

    Args:
        base: The common values.
        own: The values of each agent.
        alpha: Weight of the agent's own values, in [0, 1].

    Returns:
        The mixed values of each agent.

    Raises:
        ValueError: `alpha` lies outside [0, 1], or shapes differ.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> jaxbo.objectives.mixtures(jnp.zeros(2), jnp.ones((1, 2)), 0.25).tolist()
        [[0.25, 0.25]]
    """
    base, own, alpha = _array("base", base, 1), _array("own", own, 2), named("alpha")(alpha)
    require(
        own.shape[1:] == base.shape,
        f"own must have as many points as base, got shapes {own.shape} and {base.shape}.",
    )
    _one("alpha", alpha)
    require((alpha >= 0) & (alpha <= 1), f"alpha must lie in [0, 1], got {alpha}.")
    alpha = alpha.astype(own.dtype)
    return alpha * own + (1 - alpha) * base[None, :]


def _warp(x: Point, source: Point, target: Point) -> Point:
    """Increasing and piecewise linear in each coordinate: 0 -> 0, source -> target, 1 -> 1."""
    below = x * target / jnp.where(source > 0, source, 1)
    above = 1 - (1 - x) * (1 - target) / jnp.where(source < 1, 1 - source, 1)
    # Unmoved coordinates are passed through: exact, and right for a maximizer on a face.
    return jnp.where(source == target, x, jnp.where(x <= source, below, above))


def _array(name: str, given: ArrayLike, ndim: int) -> Array:
    array = named(name)(given)
    require(
        array.ndim == ndim and array.size > 0,
        f"{name} must have {ndim} {'axis' if ndim == 1 else 'axes'} and a number or more, got shape "
        f"{array.shape}.",
    )
    return array


def _one(name: str, value: Array) -> None:
    require(value.ndim == 0, f"{name} must be one number, got shape {value.shape}.")


def _not_negative(name: str, value: Scalar) -> None:
    _one(name, value)
    require(
        (value >= 0) & jnp.isfinite(value), f"{name} must be finite and not negative, got {value}."
    )
