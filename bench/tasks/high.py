"""Black boxes of many coordinates, whose best value is not known, but a bound of it is.

    rover(points)      the path of a rover past obstacles, after Wang et al. (2018)
        x       control points of a cubic B-spline in the unit square, one after the other
        cost    ∫ 0.05 + 20 [inside an obstacle] ds + 10 (|first - start|₁ + |last - goal|₁)
        regret  cost - 0.05 |goal - start|

    lasso(features)    a penalty for each coefficient of a regression, after Šehić et al. (2022)
        λ_j     λ_max 10^(-3 (1 - x_j)),    where λ_max leaves no coefficient
        β       500 accelerated steps toward argmin |y - Xβ|² / (2 n) + Σ_j λ_j |β_j|
        regret  (β - β*)'Σ(β - β*),    the error beyond the noise's on new rows

A value is minus the regret. A path begins at its first control point and ends at its last. Features are
normal with covariance Σ_ij = 0.6^|i-j|. There are half as many rows as features. A twentieth of the
coefficients β* are not 0, but two at least. All numbers are drawn here, none is of the originals.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.interpolate import BSpline

from jaxbo.kernels.linalg import dot
from jaxbo.types import Point, Scalar

START, GOAL = (0.05, 0.05), (0.95, 0.95)
OBSTACLES, HALF_EDGE = 15, 0.06
#: Of a unit of the path, of one inside an obstacle, and of the distance of its ends from start and goal.
ANYWHERE, INSIDE, MISSED = 0.05, 20.0, 10.0
#: Pieces of a path, each of which is inside of an obstacle or not by its middle.
PIECES = 500
CORRELATION, SIGNAL_TO_NOISE = 0.6, 10.0
#: Powers of ten between the smallest penalty and the largest, which leaves no coefficient.
DECADES = 3.0
#: Steps of the accelerated proximal gradient.
STEPS = 500


class Rover(eqx.Module):
    """The path of a rover. `basis` has the weight of each control point at each point of the path."""

    basis: Float[Array, "path points"]
    obstacles: Float[Array, "obstacles 2"]

    @property
    def dim(self) -> int:
        """Two coordinates a control point."""
        return 2 * self.basis.shape[1]

    @property
    def maximum(self) -> float:
        """A bound."""
        return 0.0

    def __call__(self, x: Point) -> Scalar:
        points = x.reshape(-1, 2)
        path = dot(self.basis.astype(x.dtype), points)
        pieces, middles = path[1:] - path[:-1], (path[1:] + path[:-1]) / 2
        lengths = jnp.sqrt(jnp.sum(pieces**2, axis=1))
        away = jnp.max(jnp.abs(middles[:, None] - self.obstacles[None].astype(x.dtype)), axis=2)
        blocked = jnp.any(away < HALF_EDGE, axis=1)
        ends = jnp.stack([points[0] - jnp.array(START), points[-1] - jnp.array(GOAL)])
        rates = jnp.where(blocked, ANYWHERE + INSIDE, ANYWHERE)
        cost = jnp.sum(lengths * rates) + MISSED * jnp.sum(jnp.abs(ends))
        return ANYWHERE * float(np.linalg.norm(np.subtract(GOAL, START))) - cost


class Lasso(eqx.Module):
    """A penalized regression, by what it needs of its rows. `covariance` is that of the features."""

    gram: Float[Array, "features features"]
    products: Float[Array, " features"]
    largest: Scalar
    step: Scalar
    coefficients: Float[Array, " features"]
    covariance: Float[Array, "features features"]

    @property
    def dim(self) -> int:
        """A penalty for each feature."""
        return len(self.products)

    @property
    def maximum(self) -> float:
        """A bound."""
        return 0.0

    def penalties(self, x: Point) -> Point:
        """The penalties that a point of the cube stands for."""
        return self.largest.astype(x.dtype) * 10 ** (DECADES * (x - 1))

    def fit(self, penalties: Point) -> Float[Array, " features"]:
        """The coefficients, by accelerated proximal gradient steps (FISTA)."""
        gram, products = self.gram.astype(penalties.dtype), self.products.astype(penalties.dtype)
        step = self.step.astype(penalties.dtype)

        def go_on(_: Scalar, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            beta, ahead, momentum = state
            moved = ahead - step * (dot(gram, ahead) - products)
            new = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - step * penalties, 0)
            following = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
            return new, new + (momentum - 1) / following * (new - beta), following

        none = jnp.zeros_like(products)
        return jax.lax.fori_loop(0, STEPS, go_on, (none, none, jnp.ones_like(step)))[0]

    def __call__(self, x: Point) -> Scalar:
        error = self.fit(self.penalties(x)) - self.coefficients.astype(x.dtype)
        return -dot(error, dot(self.covariance.astype(x.dtype), error))


@functools.cache
def rover(points: int) -> Rover:
    """A rover's path of so many control points, 4 at least."""
    knots = np.concatenate([[0] * 3, np.linspace(0, 1, points - 2), [1] * 3])
    basis = BSpline.design_matrix(np.linspace(0, 1, PIECES + 1), knots, 3).toarray()
    rng, obstacles = np.random.default_rng(0), np.zeros((0, 2))
    while len(obstacles) < OBSTACLES:
        center = rng.uniform(0.1, 0.9, 2)
        if min(abs(center - end).max() for end in (START, GOAL)) > 2 * HALF_EDGE:
            obstacles = np.vstack([obstacles, center])
    return Rover(jnp.asarray(basis, float), jnp.asarray(obstacles, float))


@functools.cache
def lasso(features: int) -> Lasso:
    """A regression of so many features, 4 at least."""
    rng, rows = np.random.default_rng(features), features // 2
    covariance = CORRELATION ** abs(np.subtract.outer(range(features), range(features)))
    X = rng.standard_normal((rows, features)) @ np.linalg.cholesky(covariance).T
    coefficients = np.zeros(features)
    active = rng.choice(features, max(2, features // 20), replace=False)
    coefficients[active] = rng.choice([-1.0, 1.0], len(active))
    signal = X @ coefficients
    y = signal + signal.std() / np.sqrt(SIGNAL_TO_NOISE) * rng.standard_normal(rows)
    gram, products = X.T @ X / rows, X.T @ y / rows
    numbers = (
        gram,
        products,
        abs(products).max(),
        1 / np.linalg.eigvalsh(gram)[-1],
        coefficients,
        covariance,
    )
    return Lasso(*(jnp.asarray(one, float) for one in numbers))
