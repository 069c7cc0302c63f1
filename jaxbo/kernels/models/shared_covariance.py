"""How the covariance of agents' weights is held, and so how much an agent sends (`shared_prior`).

A form defines a spread: the part of a sum Σ r r' over vectors that the form is made of. It also
says how far sums move the mean. A form that has Σ G_n'G_n as a whole moves the mean to its
expectation (`shared_mean`). The others make the step of expectation-maximization.
"""

import abc
from typing import ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PyTree

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_mean
from jaxbo.kernels.models.shared_mean import MeanEstimate
from jaxbo.types import Features, Key, Scalar

#: The pivots of a covariance are no smaller than so large a part of its largest variance.
_FLOOR = 1e-6

Spread = TypeVar("Spread")


class Statistics(eqx.Module):
    """All that a prior learns from: of an agent, or the sum over agents.

    `values` counts the standardized values, sums them up, and their squares. `gained` is the spread of
    G_n, `away` that of d_n.
    """

    agents: Scalar
    values: Float[Array, "3"]
    shift: Features
    gained: PyTree
    away: PyTree


class AbstractCovariance(eqx.Module, Generic[Spread]):
    """S = R R', and the part of Σ r r', over vectors r, that it is made of: their spread.

    The axis `features` is that of ψ: the constant comes last.
    """

    #: Whether `moved` knows the error of the mean.
    tells_error: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """How many columns R has."""

    @abc.abstractmethod
    def whiten(self, psi: Features) -> Float[Array, " width"]:
        """R'ψ."""

    @abc.abstractmethod
    def color(self, z: Float[Array, " width"]) -> Features:
        """R z."""

    @abc.abstractmethod
    def spread(self, rows: Float[Array, "rows features"]) -> Spread:
        """The spread of the vectors."""

    def colored(self, rows: Float[Array, "rows width"]) -> Spread:
        """The spread of the vectors R z, for each row z."""
        return self.spread(jax.vmap(self.color)(rows))

    @abc.abstractmethod
    def own(self) -> Spread:
        """The spread of S, of D vectors of which S is the sum of products."""

    @abc.abstractmethod
    def identity(self) -> Spread:
        """The spread of the unit vectors."""

    @abc.abstractmethod
    def of(self, spread: Spread) -> "AbstractCovariance[Spread]":
        """The covariance of the same form that has this spread."""

    @abc.abstractmethod
    def leading(self, spread: Spread, count: int) -> Float[Array, "count features"]:
        """The largest parts u_i of Σ u_i u_i' with this spread, orthogonal, largest first; 0 for the
        constant.
        """

    @abc.abstractmethod
    def moved(
        self, total: Statistics, mean: Features, shrink: Scalar, unit: Scalar, centered: Scalar
    ) -> MeanEstimate:
        """How far the mean moves by the sum over agents. `error` is a spread, or None.

        `unit` is the variance of values, and `centered` how many agents have taken their own mean from
        them.
        """


def _step(total: Statistics, mean: Features, shrink: Scalar) -> MeanEstimate:
    """The step of expectation-maximization."""
    step = (total.shift - shrink * mean) / (total.agents + shrink)
    return MeanEstimate(step, total.shift - total.agents * step, None)


def _largest(
    squares: Float[Array, " rank"], directions: Float[Array, "features rank"], count: int
) -> Float[Array, "count features"]:
    """The directions of the largest squares, as long as their roots. The largest square is the last."""
    lengths = jnp.sqrt(jnp.maximum(squares[::-1][:count], 0))
    return lengths[:, None] * directions[:, ::-1][:, :count].T


class Isotropic(AbstractCovariance[Float[Array, "2"]]):
    """A variance for all features, and another for the constant. A spread has two numbers."""

    variances: Float[Array, "2"]
    features: int = eqx.field(static=True)

    @property
    def width(self) -> int:
        return self.features

    def _deviations(self) -> Features:
        counts = jnp.asarray([self.features - 1, 1])
        return jnp.repeat(jnp.sqrt(self.variances), counts, total_repeat_length=self.features)

    def whiten(self, psi: Features) -> Features:
        return self._deviations() * psi

    def color(self, z: Features) -> Features:
        return self._deviations() * z

    def spread(self, rows: Float[Array, "rows features"]) -> Float[Array, "2"]:
        squares = rows**2
        return jnp.stack([jnp.sum(squares[:, :-1]), jnp.sum(squares[:, -1])])

    def own(self) -> Float[Array, "2"]:
        return self.variances * self.identity()

    def identity(self) -> Float[Array, "2"]:
        return jnp.asarray([self.features - 1, 1], self.variances.dtype)

    def of(self, spread: Float[Array, "2"]) -> "Isotropic":
        return Isotropic(jnp.maximum(spread / self.identity(), 0), self.features)

    def leading(self, spread: Float[Array, "2"], count: int) -> Float[Array, "count features"]:
        return jnp.zeros((count, self.features), spread.dtype)  # all directions are alike

    def moved(
        self, total: Statistics, mean: Features, shrink: Scalar, unit: Scalar, centered: Scalar
    ) -> MeanEstimate:
        del unit, centered
        return _step(total, mean, shrink)


class Full(AbstractCovariance[Float[Array, " triangle"]]):
    """Any covariance, by its lower triangular root. A spread is a triangle, of D (D + 1) / 2 numbers."""

    tells_error = True
    root: Float[Array, "features features"]

    @property
    def width(self) -> int:
        return self.root.shape[1]

    def whiten(self, psi: Features) -> Float[Array, " width"]:
        return linalg.dot(psi, self.root)

    def color(self, z: Float[Array, " width"]) -> Features:
        return linalg.dot(self.root, z)

    def spread(self, rows: Float[Array, "rows features"]) -> Float[Array, " triangle"]:
        return linalg.triangle(linalg.dot(rows.T, rows))

    def colored(self, rows: Float[Array, "rows width"]) -> Float[Array, " triangle"]:
        if rows.shape[0] <= self.width:
            return super().colored(rows)
        # R Z'Z R': many vectors are brought together before they are colored.
        whole = linalg.dot(self.root, linalg.dot(linalg.dot(rows.T, rows), self.root.T))
        return linalg.triangle(whole)

    def own(self) -> Float[Array, " triangle"]:
        return linalg.triangle(linalg.dot(self.root, self.root.T))

    def identity(self) -> Float[Array, " triangle"]:
        return linalg.triangle(jnp.eye(self.root.shape[0], dtype=self.root.dtype))

    def of(self, spread: Float[Array, " triangle"]) -> "Full":
        matrix = linalg.symmetric(spread)
        return Full(linalg.cholesky(matrix, _FLOOR * jnp.max(jnp.diagonal(matrix))))

    def leading(
        self, spread: Float[Array, " triangle"], count: int
    ) -> Float[Array, "count features"]:
        squares, turn = jnp.linalg.eigh(linalg.symmetric(spread)[:-1, :-1])
        return _largest(squares, jnp.pad(turn, ((0, 1), (0, 0))), count)

    def moved(
        self, total: Statistics, mean: Features, shrink: Scalar, unit: Scalar, centered: Scalar
    ) -> MeanEstimate:
        gained, away = linalg.symmetric(total.gained), linalg.symmetric(total.away)
        known = gained, away, total.shift, mean, shrink, unit, centered
        step, left, error = shared_mean.estimated(self.root, *known)
        return MeanEstimate(step, left, linalg.triangle(error))


class Projected(NamedTuple):
    """The diagonal of a matrix A = Σ r r', and the product A Q."""

    diagonal: Features
    image: Float[Array, "features rank"]


class LowRank(AbstractCovariance[Projected]):
    """S = diag(variances) + U U'. A spread has D (rank + 1) numbers.

    `basis` is an orthonormal Q, which all parties have. It follows the leading directions of S, since
    rounds are steps of a subspace iteration.
    """

    variances: Float[Array, "2"]
    factor: Float[Array, "features rank"]
    basis: Float[Array, "features rank"]

    @property
    def width(self) -> int:
        return sum(self.factor.shape)

    @property
    def _rest(self) -> Isotropic:
        return Isotropic(self.variances, self.factor.shape[0])

    def whiten(self, psi: Features) -> Float[Array, " width"]:
        return jnp.concatenate([self._rest.whiten(psi), linalg.dot(psi, self.factor)])

    def color(self, z: Float[Array, " width"]) -> Features:
        size = self.factor.shape[0]
        return self._rest.color(z[:size]) + linalg.dot(self.factor, z[size:])

    def spread(self, rows: Float[Array, "rows features"]) -> Projected:
        return Projected(jnp.sum(rows**2, axis=0), linalg.dot(rows.T, linalg.dot(rows, self.basis)))

    def own(self) -> Projected:
        rest = self._rest.color(self._rest.whiten(jnp.ones_like(self.factor[:, 0])))
        low = self.spread(self.factor.T)
        return Projected(rest + low.diagonal, rest[:, None] * self.basis + low.image)

    def identity(self) -> Projected:
        return Projected(jnp.ones_like(self.basis[:, 0]), self.basis)

    def of(self, spread: Projected) -> "LowRank":
        """Nystrom's approximation A Q (Q'A Q)⁻¹ Q'A for the part above the rest, and the rest."""
        size, rank = self.basis.shape
        squares, directions = self._above(spread)
        total = jnp.sum(spread.diagonal[:-1])
        taken = jnp.sum((directions[:-1] ** 2) * squares[None, :])
        rest = jnp.maximum(total - taken, 0) / max(size - 1 - rank, 1)
        factor = directions * jnp.sqrt(jnp.maximum(squares - rest, 0))[None, :]
        last = jnp.maximum(spread.diagonal[-1] - jnp.sum(factor[-1] ** 2), 0)
        return LowRank(jnp.stack([rest, last]), factor, jnp.linalg.qr(directions)[0])

    def _above(self, spread: Projected) -> tuple[Array, Float[Array, "features rank"]]:
        """The squares and the directions of the part that the basis shows, the largest last."""
        small = linalg.dot(self.basis.T, spread.image)
        floor = _FLOOR * jnp.max(jnp.diagonal(small))
        L = linalg.cholesky((small + small.T) / 2, floor)
        half = linalg.solve_lower(L, spread.image.T).T
        squares, turn = jnp.linalg.eigh(linalg.dot(half.T, half))
        return squares, linalg.dot(half, turn) / jnp.sqrt(jnp.maximum(squares, floor))[None, :]

    def leading(self, spread: Projected, count: int) -> Float[Array, "count features"]:
        squares, directions = self._above(spread)
        return _largest(squares, directions.at[-1].set(0), count)

    def moved(
        self, total: Statistics, mean: Features, shrink: Scalar, unit: Scalar, centered: Scalar
    ) -> MeanEstimate:
        del unit, centered
        return _step(total, mean, shrink)


def covariance(
    key: Key, size: int, rank: int, dtype: jnp.dtype, constant: float = 1.0
) -> AbstractCovariance:
    """Variances of 1, and the constant's, in the form of that `rank`: 0 is isotropic, `size` is full."""
    variances = jnp.asarray([1.0, constant], dtype)
    if rank <= 0:
        return Isotropic(variances, size)
    if rank >= size:
        return Full(jnp.eye(size, dtype=dtype).at[-1, -1].set(constant**0.5))
    basis = jnp.linalg.qr(jr.normal(key, (size, rank), dtype))[0]
    return LowRank(variances, jnp.zeros((size, rank), dtype), basis)
