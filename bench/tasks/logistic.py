"""Logistic regression on a person's data, tuned: x in [0, 1]³ -> share of the other half right.

    batch, L2 and learning rate η = lowest + x (highest - lowest)
    W <- (W - η ∇ mean cross-entropy over the batch) / (1 + η L2),   50 times from 0

The papers do not say which windows are the training half, nor how long training takes: here it is a
shuffle with a fixed seed, and 50 steps on batches taken in turn from a shuffle for each evaluation. The
step in the L2 term is implicit, since an explicit step diverges in most of the papers' ranges. A batch
is at most the whole half. Features are standardized by the training half.

Training is JAX: a round of all people, training included, is a program.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo.types import Count, Key, Point, Scalar

STEPS = 50


class Ranges(NamedTuple):
    """Lowest and highest of batch size, L2 parameter and learning rate."""

    batch: tuple[float, float]
    l2: tuple[float, float]
    rate: tuple[float, float]


class Half(eqx.Module):
    """Windows of each person, filled up to as many as the longest has.

    `windows` are their features, or their products with the windows of the training half.
    """

    windows: Float[Array, "people windows features"]
    y: Int[Array, "people windows"]
    known: Bool[Array, "people windows"]


class Training(eqx.Module):
    """The objective of agent n, person n. The key shuffles the windows of the training half.

    With `products` the weights are kept as W = X'A in the span of the windows X, where they stay: that
    is cheaper where features are more than windows.
    """

    train: Half
    test: Half
    lowest: Float[Array, " 3"]
    highest: Float[Array, " 3"]
    classes: int = eqx.field(static=True)
    products: bool = eqx.field(static=True)

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        windows, y, known = (leaf[agent] for leaf in jax.tree.leaves(self.train))
        batch, l2, rate = self.lowest + x * (self.highest - self.lowest)
        count = jnp.sum(known)
        size = jnp.minimum(jnp.floor(batch).astype(count.dtype), count)
        # The place of each window in the shuffle; those that are none come last.
        places = jnp.argsort(jnp.argsort(jnp.where(known, jr.uniform(key, y.shape), 2.0)))
        labels = jax.nn.one_hot(y, self.classes, dtype=x.dtype)

        def step(t: Count, theta: tuple[Array, Array]) -> tuple[Array, Array]:
            W, b = theta
            chosen = known & ((places - t * size) % count < size)
            slope = jax.nn.softmax(windows @ W + b[None, :]) - labels
            slope = jnp.where(chosen[:, None], slope, 0) / size.astype(x.dtype)
            along = slope if self.products else windows.T @ slope
            return (W - rate * along) / (1 + rate * l2), b - rate * jnp.sum(slope, axis=0)

        W, b = (
            jnp.zeros((windows.shape[1], self.classes), x.dtype),
            jnp.zeros(self.classes, x.dtype),
        )
        W, b = jax.lax.fori_loop(0, STEPS, step, (W, b))
        windows, y, known = (leaf[agent] for leaf in jax.tree.leaves(self.test))
        right = known & (jnp.argmax(windows @ W + b[None, :], axis=1) == y)
        return jnp.sum(right).astype(x.dtype) / jnp.sum(known).astype(x.dtype)


def training(
    people: list[tuple[np.ndarray, np.ndarray]], classes: int, ranges: Ranges, products: bool
) -> Training:
    """The windows and labels of each person; a shuffle with a fixed seed splits them in halves."""
    random = np.random.default_rng(0)
    halves: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for X, y in people:
        order = random.permutation(len(X))
        X, y = X[order].astype(np.float64), y[order].astype(np.int32)
        middle = (len(X) + 1) // 2
        train = X[:middle]
        X = (X - train.mean(0)) / (train.std(0) + 1e-6)  # some features do not change at all
        if products:
            X = X @ X[:middle].T
        halves[0].append((X[:middle], y[:middle]))
        halves[1].append((X[middle:], y[middle:]))
    lowest, highest = (jnp.array(ends, float) for ends in zip(*ranges, strict=True))
    train, test = map(_padded, halves)
    return Training(train, test, lowest, highest, classes, products)


def _padded(people: list[tuple[np.ndarray, np.ndarray]]) -> Half:
    rows, columns = (max(X.shape[axis] for X, _ in people) for axis in (0, 1))
    windows = np.zeros((len(people), rows, columns))
    labels = np.zeros((len(people), rows), np.int32)
    known = np.zeros((len(people), rows), bool)
    for i, (X, y) in enumerate(people):
        windows[i, : X.shape[0], : X.shape[1]] = X
        labels[i, : len(y)], known[i, : len(y)] = y, True
    return Half(jnp.asarray(windows, float), jnp.asarray(labels), jnp.asarray(known))
