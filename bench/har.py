"""Logistic regression on one person's movements, tuned: x in [0, 1]³ -> share of the other half right.

    batch = 128 + 384 x₁,   L2 = 1e-6 + (10 - 1e-6) x₂,   learning rate η = 1e-6 + (1 - 1e-6) x₃
    W <- (W - η ∇ mean cross-entropy over the batch) / (1 + η L2),   50 times from 0

30 subjects, 6 activities, 561 features, standardized by the training half. Which windows are the
training half, and how long training takes, the papers do not say: a shuffle with a fixed seed, and 50
steps on batches taken in turn from one shuffle an evaluation. The step in the L2 term is implicit,
since an explicit one diverges in most of the papers' ranges. A batch is at most the whole half.

The weights stay in the span of the windows, W = X'A: training needs products of windows alone, and is
JAX: a round of all subjects, training included, is one program.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bench.data import load
from jaxbo.types import Count, Key, Point, Scalar

SUBJECTS, CLASSES, STEPS = 30, 6, 50
#: Of batch size, L2 parameter and learning rate.
LOWEST, HIGHEST = np.array([128, 1e-6, 1e-6]), np.array([512, 10, 1.0])


class Half(eqx.Module):
    """Windows of each subject, filled up to as many as the longest has.

    `products` are those with the windows of the training half.
    """

    products: Float[Array, "subjects windows trained"]
    y: Int[Array, "subjects windows"]
    known: Bool[Array, "subjects windows"]


class Movements(eqx.Module):
    """The objective of agent n, subject n. The key shuffles the windows of the training half."""

    train: Half
    test: Half

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        products, y, known = (leaf[agent] for leaf in jax.tree.leaves(self.train))
        lowest, highest = jnp.asarray(LOWEST, x.dtype), jnp.asarray(HIGHEST, x.dtype)
        batch, l2, rate = lowest + x * (highest - lowest)
        count = jnp.sum(known)
        size = jnp.minimum(jnp.floor(batch).astype(count.dtype), count)
        # The place of each window in the shuffle; those that are none come last.
        places = jnp.argsort(jnp.argsort(jnp.where(known, jr.uniform(key, y.shape), 2.0)))
        labels = jax.nn.one_hot(y, CLASSES, dtype=x.dtype)

        def step(t: Count, theta: tuple[Array, Array]) -> tuple[Array, Array]:
            A, b = theta
            chosen = known & ((places - t * size) % count < size)
            slope = jax.nn.softmax(products @ A + b[None, :]) - labels
            slope = jnp.where(chosen[:, None], slope, 0) / size.astype(x.dtype)
            return (A - rate * slope) / (1 + rate * l2), b - rate * jnp.sum(slope, axis=0)

        start = jnp.zeros_like(labels), jnp.zeros((CLASSES,), x.dtype)
        A, b = jax.lax.fori_loop(0, STEPS, step, start)
        products, y, known = (leaf[agent] for leaf in jax.tree.leaves(self.test))
        right = known & (jnp.argmax(products @ A + b[None, :], axis=1) == y)
        return jnp.sum(right).astype(x.dtype) / jnp.sum(known).astype(x.dtype)


@functools.cache
def movements() -> Movements:
    """All subjects, split in halves. `DataMissingError` without the file."""
    data = load("uci_har.npz")
    random = np.random.default_rng(0)
    halves: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for subject in range(1, SUBJECTS + 1):
        rows = random.permutation(np.flatnonzero(data["subject"] == subject))
        X, y = data["X"][rows].astype(np.float64), data["y"][rows].astype(np.int32) - 1
        middle = (len(rows) + 1) // 2
        train = X[:middle]
        X = (X - train.mean(0)) / (train.std(0) + 1e-6)  # some features do not change at all
        halves[0].append((X[:middle] @ X[:middle].T, y[:middle]))
        halves[1].append((X[middle:] @ X[:middle].T, y[middle:]))
    return Movements(*map(_padded, halves))


def _padded(subjects: list[tuple[np.ndarray, np.ndarray]]) -> Half:
    rows, columns = (max(K.shape[axis] for K, _ in subjects) for axis in (0, 1))
    products = np.zeros((len(subjects), rows, columns))
    labels = np.zeros((len(subjects), rows), np.int32)
    known = np.zeros((len(subjects), rows), bool)
    for i, (K, y) in enumerate(subjects):
        products[i, : K.shape[0], : K.shape[1]] = K
        labels[i, : len(y)], known[i, : len(y)] = y, True
    return Half(jnp.asarray(products, float), jnp.asarray(labels), jnp.asarray(known))
