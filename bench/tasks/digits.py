"""A convolutional network for a writer's digits, tuned: x in [0, 1]³ -> share of the test images right.

    learning rate η = low + (0.02 - low) x₁,   its decay likewise x₂,   L2 likewise x₃,   low = 1e-7
    step t: Adam on 32 images with rate η / (1 + decay t), of cross-entropy + L2 |weights|²;   60 steps

50 writers of MNIST images, a stand-in for federated EMNIST's. 5 x 5 convolution of 8 channels on every
second pixel, ReLU, mean of 2 x 2, and a dense layer to 10 classes: the papers do not say how large
theirs is, nor how long it trains. The objective is a JAX function: a round of all writers, training
included, is a program. With the images cut into patches in advance, training is matrix products.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from bench.tasks.data import load
from jaxbo.types import Count, Key, Point, Scalar

WRITERS, CLASSES = 50, 10
CHANNELS, WIDTH, STRIDE, POOL = 8, 5, 2, 2
BATCH, STEPS = 32, 60
#: Range of each of the three.
LOWEST, HIGHEST = 1e-7, 0.02


class Images(eqx.Module):
    """The images of each writer, cut into patches and filled up to as many images as the busiest
    wrote.
    """

    patches: Float[Array, "writers images places pixels"]
    y: Int[Array, "writers images"]
    known: Bool[Array, "writers images"]


class Writers(eqx.Module):
    """The objective of agent n, writer n. The key draws the network's start and the batches."""

    train: Images
    test: Images

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        rate, decay, l2 = LOWEST + x * (HIGHEST - LOWEST)
        start_key, batch_key = jr.split(key)
        theta = network(start_key, self.train.patches.shape[2:], x.dtype)
        optimizer = optax.scale_by_adam()
        patches, y = self.train.patches[agent], self.train.y[agent]
        share = self.train.known[agent].astype(x.dtype)

        def loss(theta: PyTree, chosen: Int[Array, " batch"]) -> Scalar:
            scores = predict(theta, patches[chosen])
            errors = optax.softmax_cross_entropy_with_integer_labels(scores, y[chosen])
            return jnp.mean(errors) + l2 * sum(jnp.sum(W**2) for W, _ in theta)

        def step(t: Count, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            theta, memory = carry
            # With replacement, so that writers of any number of images share a program.
            chosen = jr.categorical(jr.fold_in(batch_key, t), jnp.log(share), shape=(BATCH,))
            update, memory = optimizer.update(jax.grad(loss)(theta, chosen), memory)
            pace = rate / (1 + decay * t.astype(x.dtype))
            return jax.tree.map(lambda a, u: a - pace * u, theta, update), memory

        theta, _ = jax.lax.fori_loop(0, STEPS, step, (theta, optimizer.init(theta)))
        known = self.test.known[agent]
        right = jnp.argmax(predict(theta, self.test.patches[agent]), axis=1) == self.test.y[agent]
        return jnp.sum(right & known).astype(x.dtype) / jnp.sum(known).astype(x.dtype)


def network(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> PyTree:
    """Weights and biases of both layers, as large as their inputs ask for (He)."""
    places, pixels = shape
    inner = places // POOL**2 * CHANNELS
    layers = []
    for layer_key, rows, columns in zip(
        jr.split(key), (pixels, inner), (CHANNELS, CLASSES), strict=True
    ):
        W = jr.normal(layer_key, (rows, columns), dtype) * (2 / rows) ** 0.5
        layers.append((W, jnp.zeros((columns,), dtype)))
    return layers


def predict(
    theta: PyTree, patches: Float[Array, "images places pixels"]
) -> Float[Array, "images classes"]:
    """Scores of each class. Places that are averaged lie beside each other."""
    (W, b), (V, c) = theta
    seen = jax.nn.relu(patches @ W + b[None, None, :])
    images, places, channels = seen.shape
    seen = jnp.mean(seen.reshape(images, places // POOL**2, POOL**2, channels), axis=2)
    return seen.reshape(images, -1) @ V + c[None, :]


@functools.cache
def writers() -> Writers:
    """All writers. `DataMissingError` without the file."""
    data = load("digits_by_writer.npz")
    patches = cut(data["images"].astype(np.float32) / 255)
    return Writers(
        *(_padded(patches, data["y"], data["writer"], data["is_test"] == test) for test in (0, 1))
    )


def cut(images: Float[np.ndarray, "images 28 28"]) -> Float[np.ndarray, "images places pixels"]:
    """All patches, the four of a pool after each other."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (WIDTH, WIDTH), axis=(1, 2))
    windows = windows[:, ::STRIDE, ::STRIDE]
    count, side = windows.shape[:2]
    windows = windows.reshape(count, side // POOL, POOL, side // POOL, POOL, WIDTH**2)
    return windows.transpose(0, 1, 3, 2, 4, 5).reshape(count, side**2, WIDTH**2)


def _padded(patches: np.ndarray, y: np.ndarray, writer: np.ndarray, chosen: np.ndarray) -> Images:
    rows = [np.flatnonzero((writer == i) & chosen) for i in range(WRITERS)]
    longest = max(map(len, rows))
    # Filled up with the first image of all.
    index = np.zeros((WRITERS, longest), int)
    known = np.zeros((WRITERS, longest), bool)
    for i, some in enumerate(rows):
        index[i, : len(some)], known[i, : len(some)] = some, True
    return Images(
        jnp.asarray(patches[index], float), jnp.asarray(y[index], jnp.int32), jnp.asarray(known)
    )
