"""A sparse Gaussian process of proteins' sizes, tuned: x in [0, 1]^(2 + 9 + 9 inducing) -> RMSE.

    Q = K_·m K_mm⁻¹ K_m·,   Λ = blockdiag(K - Q) + noise I              (PIC: Snelson, Ghahramani, 2007)
    mean(x) = Q_xn (Q + Λ)⁻¹ y + (K - Q)_xb [(Q + Λ)⁻¹ y]_b,   b the block that x lies in

With A = L⁻¹ K_m·, L L' = K_mm, and g = (I + A Λ⁻¹ A')⁻¹ A Λ⁻¹ y:

    mean(x) = a_x'g + (K - Q)_xb Λ_b⁻¹ (y_b - A_b'g)

so nothing larger than a block or the inducing inputs is ever factored. 5 % of the rows test; the others
are cut into 5 folds, each of which is predicted from the other four: the objective is the mean RMSE over
the folds, in angstrom. The kernel is a squared exponential of attributes and sizes of mean 0 and variance
1.

The paper does not say in which box it searches, nor how it cuts blocks. Here variances and length
scales are on log scales, coordinate u of an inducing input is the quantile u of that attribute, and
blocks are the leaves of a tree of medians over all inputs. A row never helps to predict itself: within
a block, the rows of the fold are left out.
"""

import functools
import itertools
from typing import Final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bench.tasks.data import load
from jaxbo.kernels import linalg
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Key, Point, Scalar

ATTRIBUTES, INDUCING, FOLDS = 9, 200, 5
#: Share of the rows that test, and what they and rows that fill up a block have for a fold.
TEST, TESTED, EMPTY = 0.05, FOLDS, -1
#: Ranges of the two variances, in variances of the values, and of length scales, in deviations.
SIGNAL, NOISE, SCALE = (0.1, 10.0), (0.01, 1.0), (0.1, 10.0)
#: Rows of a block, at most.
BLOCK = 180
#: Quantiles of an attribute between which inducing inputs are interpolated.
QUANTILES = 65
#: Inducing inputs may coincide: their values have this noise, a share of the signal variance. What it
#: takes from Q, Λ has more, so that it stays an approximation of the same process.
JITTER: Final = 1e-4


def dimensions(inducing: int) -> int:
    """How many hyperparameters there are."""
    return 2 + ATTRIBUTES + ATTRIBUTES * inducing


def scopes(inducing: int, size: int) -> list[tuple[int, ...]]:
    """Every `size` neighbors of the chain of the kernel, and of that of each inducing input."""
    kernel = 2 + ATTRIBUTES
    ends = [0, *range(kernel, kernel + ATTRIBUTES * inducing + 1, ATTRIBUTES)]
    return [
        tuple(range(v, v + size))
        for first, end in itertools.pairwise(ends)
        for v in range(first, end - size + 1)
    ]


class Hyperparameters(NamedTuple):
    """The hyperparameters of the kernel, and the inducing inputs."""

    signal: Scalar
    noise: Scalar
    scales: Float[Array, " columns"]
    inducing: Float[Array, "inducing columns"]


class FoldedRows(eqx.Module):
    """Inputs and values cut into blocks, and the fold of every row.

    `deviation` is that of the values before they were standardized.
    """

    X: Float[Array, "blocks size columns"]
    y: Float[Array, "blocks size"]
    fold: Int[Array, "blocks size"]
    quantiles: Float[Array, "columns quantiles"]
    deviation: Scalar

    def unpack(self, x: Point) -> Hyperparameters:
        """Hyperparameters of a point of the cube."""
        columns = self.X.shape[2]
        levels = jnp.linspace(0, 1, self.quantiles.shape[1], dtype=x.dtype)
        places = x[2 + columns :].reshape(-1, columns)
        attribute = jax.vmap(lambda u, q: jnp.interp(u, levels, q), in_axes=(1, 0), out_axes=1)
        return Hyperparameters(
            _between(x[0], SIGNAL),
            _between(x[1], NOISE),
            _between(x[2 : 2 + columns], SCALE),
            attribute(places, self.quantiles.astype(x.dtype)),
        )


def _between(u: Float[Array, "*shape"], ends: tuple[float, float]) -> Float[Array, "*shape"]:
    low, high = np.log(ends).tolist()
    return jnp.exp(low + (high - low) * u)


class PIC(eqx.Module):
    """The objective, the same for every agent and without noise: less the error over the folds."""

    rows: FoldedRows

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        del key, agent
        return -validation(self.rows.unpack(x), self.rows)


def validation(chosen: Hyperparameters, rows: FoldedRows) -> Scalar:
    """Mean over the folds of the RMSE there, each predicted from the others, in units of the values."""
    parts = conditionals(chosen, rows.X)

    def one(fold: Int[Array, ""]) -> Scalar:
        train = (rows.fold != EMPTY) & (rows.fold != TESTED) & (rows.fold != fold)
        return error(predicted(chosen.noise, *parts, rows.y, train), rows, rows.fold == fold)

    return jnp.mean(jax.lax.map(one, jnp.arange(FOLDS, dtype=rows.fold.dtype)))


def test(chosen: Hyperparameters, rows: FoldedRows) -> Scalar:
    """The RMSE of the test rows, predicted from all folds."""
    train = (rows.fold != EMPTY) & (rows.fold != TESTED)
    mean = predicted(chosen.noise, *conditionals(chosen, rows.X), rows.y, train)
    return error(mean, rows, rows.fold == TESTED)


def error(
    mean: Float[Array, "blocks size"], rows: FoldedRows, asked: Bool[Array, "blocks size"]
) -> Scalar:
    """RMSE over some rows, in units of the values."""
    squares = jnp.where(asked, (mean - rows.y) ** 2, 0)
    return rows.deviation * jnp.sqrt(jnp.sum(squares) / jnp.sum(asked, dtype=mean.dtype))


def conditionals(
    chosen: Hyperparameters, X: Float[Array, "blocks size columns"]
) -> tuple[Float[Array, "blocks inducing size"], Float[Array, "blocks size size"]]:
    """A = L⁻¹ K_m·, and K - Q, of every block."""
    Z = chosen.inducing / chosen.scales[None, :]
    X = X / chosen.scales[None, None, :]
    identity = jnp.eye(len(Z), dtype=Z.dtype)
    inverse = linalg.inverse_lower(
        jnp.linalg.cholesky(chosen.signal * (_correlations(Z, Z) + JITTER * identity))
    )

    def one(X: Float[Array, "size columns"]) -> tuple[Array, Array]:
        A = dot(inverse, chosen.signal * _correlations(Z, X))
        return A, chosen.signal * _correlations(X, X) - dot(A.T, A)

    return jax.lax.map(one, X)


def _correlations(
    X: Float[Array, "n columns"], Z: Float[Array, "m columns"]
) -> Float[Array, "n m"]:
    """Squared exponential, of inputs divided by their length scales."""
    # Not as x² + z² - 2 x'z: far from 0 that cancels, and the matrix is indefinite.
    far = jnp.zeros((len(X), len(Z)), X.dtype)
    for x, z in zip(X.T, Z.T, strict=True):
        far += (x[:, None] - z[None, :]) ** 2
    return jnp.exp(-far / 2)


def predicted(
    noise: Scalar,
    A: Float[Array, "blocks inducing size"],
    rest: Float[Array, "blocks size size"],
    y: Float[Array, "blocks size"],
    train: Bool[Array, "blocks size"],
) -> Float[Array, "blocks size"]:
    """The mean at every row given the rows that `train`; A and `rest` = K - Q as `conditionals` has
    them.
    """

    def factored(block: tuple[Array, ...]) -> tuple[Array, ...]:
        A, rest, y, train = block
        # Rows that do not train are rows of the identity, of value 0.
        pairs = train[:, None] & train[None, :]
        diagonal = jnp.diag(jnp.where(train, noise, 1))
        C = linalg.inverse_lower(jnp.linalg.cholesky(jnp.where(pairs, rest, 0) + diagonal))
        W, u = dot(C, jnp.where(train, A, 0).T), dot(C, jnp.where(train, y, 0))
        return C, W, u, dot(W.T, W), dot(W.T, u)

    C, W, u, inner, outer = jax.lax.map(factored, (A, rest, y, train))
    B = jnp.eye(A.shape[1], dtype=A.dtype) + jnp.sum(inner, axis=0)
    half = linalg.inverse_lower(jnp.linalg.cholesky(B))
    g = dot(half.T, dot(half, jnp.sum(outer, axis=0)))
    residual = jax.vmap(lambda C, W, u: dot(C.T, u - dot(W, g)))(C, W, u)
    weights = jnp.where(train, residual, 0)
    return jax.vmap(lambda A, rest, w: dot(g, A) + dot(rest, w))(A, rest, weights)


# ---------------------------------------------------------------- the data


@functools.cache
def protein(most: int | None = None) -> FoldedRows:
    """All proteins, or `most` of them drawn at random. `DataMissingError` without the file."""
    data = load("protein_casp.npz")
    order = np.random.default_rng(0).permutation(len(data["y"]))[:most]
    return cut(data["X"][order].astype(np.float64), data["y"][order].astype(np.float64))


def cut(X: Float[np.ndarray, "rows columns"], y: Float[np.ndarray, " rows"]) -> FoldedRows:
    """Rows in an order drawn at random: the first test, the others take turns at the folds."""
    fold = np.arange(len(y)) % FOLDS
    fold[: round(TEST * len(y))] = TESTED
    trained = fold != TESTED
    X = (X - X[trained].mean(axis=0)) / X[trained].std(axis=0)
    mean, deviation = y[trained].mean(), y[trained].std()
    quantiles = np.quantile(X[trained], np.linspace(0, 1, QUANTILES), axis=0).T
    blocks = leaves(X, np.arange(len(y)))
    size = max(map(len, blocks))
    # Filled up with a block's own first row.
    index = np.array([np.pad(rows, (0, size - len(rows)), mode="edge") for rows in blocks])
    known = np.arange(size)[None, :] < np.array([len(rows) for rows in blocks])[:, None]
    return FoldedRows(
        jnp.asarray(X[index], float),
        jnp.asarray((y[index] - mean) / deviation, float),
        jnp.asarray(np.where(known, fold[index], EMPTY), jnp.int32),
        jnp.asarray(quantiles, float),
        jnp.asarray(deviation, float),
    )


def leaves(
    X: Float[np.ndarray, "all columns"], rows: Int[np.ndarray, " rows"]
) -> list[Int[np.ndarray, " _"]]:
    """Rows halved at the median of the attribute that varies most, until `BLOCK` or fewer are left."""
    if len(rows) <= BLOCK:
        return [rows]
    rows = rows[np.argsort(X[rows, X[rows].std(axis=0).argmax()], kind="stable")]
    half = len(rows) // 2
    return leaves(X, rows[:half]) + leaves(X, rows[half:])
