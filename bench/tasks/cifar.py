"""A convolutional network for small images, tuned: x in [0, 1]⁶ -> share of the validation images right.

    3 x 3 convolution, ReLU, 3 x 3 convolution, ReLU, largest of 2 x 2, dropout       twice
    dense layer, ReLU, dropout, dense layer of 10 scores
    SGD of mean cross-entropy: learning rate, batch and epochs are tuned, and the three dropout rates

The structure is that of the example of keras which the paper takes. It trains for 100 to 1000 epochs on
45000 images, in batches of 100 to 1000: that is out of reach here. So everything is smaller (`SPACE`):
2000 images of 16 x 16, the mean of 2 x 2 pixels, a fourth of the channels or less, 5 to 20 epochs, and
batches of 20 to 200. Validation and test are the 1000 images each of `cifar10_7000.npz`.

The objective is a JAX function: a run of an optimizer, training included, is a program. The slope of a
batch of any size is a sum over pieces of 20 images; images beyond its own have no weight.
"""

import functools
from collections.abc import Sequence
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from bench.tasks.data import load
from bench.tasks.network import shuffle
from jaxbo.domains.space import Integer, Real, Space
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Key, Point, Scalar

#: The paper's ranges, save the last two, of which it has batches of 100 to 1000 and 100 to 1000 epochs.
SPACE = Space(
    rate=Real(1e-5, 1.0, log=True),
    first=Real(0.0, 1.0),
    second=Real(0.0, 1.0),
    third=Real(0.0, 1.0),
    batch=Integer(20, 200, log=True),
    epochs=Integer(5, 20),
)
CHANNELS, DENSE, CLASSES = (8, 16), 64, 10
#: Side of a patch, and of the squares that are pooled.
WIDTH, POOL = 3, 2
#: Images of a piece of a batch: one loop to compile for all sizes.
PIECE: Final = 20
#: Images that are trained on.
TRAINING = 2000
#: A dropout rate of 1 leaves nothing to divide by: the largest that is used.
DROPPED = 0.999


class Pictures(eqx.Module):
    """Images, of mean 0, and their classes."""

    X: Float[Array, "images side side channels"]
    y: Int[Array, " images"]


class Cifar(eqx.Module):
    """The objective, the same for every agent. The key draws the start, the batches and the dropout."""

    train: Pictures
    validate: Pictures
    test: Pictures

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        return self.shares(key, x)[0]

    def shares(self, key: Key, x: Point) -> tuple[Scalar, Scalar]:
        """How many of the validation images and of the test images are right."""
        start_key, train_key = jr.split(key)
        theta = trained(train_key, start(start_key, self.train.X.shape[1], x), self.train, x)
        return right(theta, self.validate), right(theta, self.test)


def right(theta: PyTree, pictures: Pictures) -> Scalar:
    """The share of the pictures whose class has the largest score."""
    guess = jnp.argmax(scores(theta, pictures.X), axis=1)
    return jnp.mean(guess == pictures.y, dtype=pictures.X.dtype)


def start(key: Key, side: int, x: Point) -> PyTree:
    """Weights and biases of the six layers (He), in the precision of `x`."""
    flat = CHANNELS[1] * _side(_side(side)) ** 2
    inner = [3, CHANNELS[0], CHANNELS[0], CHANNELS[1]]
    sizes = [
        *((WIDTH**2 * a, b) for a, b in zip(inner, np.repeat(CHANNELS, 2).tolist(), strict=True)),
        (flat, DENSE),
        (DENSE, CLASSES),
    ]
    layers = []
    for layer_key, (rows, columns) in zip(jr.split(key, len(sizes)), sizes, strict=True):
        W = jr.normal(layer_key, (rows, columns), x.dtype) * (2 / rows) ** 0.5
        layers.append((W, jnp.zeros((columns,), x.dtype)))
    return layers


def _side(side: int) -> int:
    """After two convolutions, the first of which keeps the side, and a pool."""
    return (side - WIDTH + 1) // POOL


def scores(
    theta: PyTree,
    X: Float[Array, "images side side channels"],
    key: Key | None = None,
    rates: Sequence[Scalar] = (),
) -> Float[Array, "images classes"]:
    """Scores of each class; with a key, units are dropped at the rates."""
    *convolutions, dense, last = theta
    keys = [None] * 3 if key is None else list(jr.split(key, 3))
    for i in range(2):
        first, second = convolutions[2 * i : 2 * i + 2]
        X = jnp.pad(X, ((0, 0), (1, 1), (1, 1), (0, 0)))
        X = _pooled(_convolved(second, _convolved(first, X)))
        X = _dropped(keys[i], X, rates[i] if rates else None)
    W, b = dense
    hidden = jax.nn.relu(dot(X.reshape(len(X), -1), W) + b[None, :])
    hidden = _dropped(keys[2], hidden, rates[2] if rates else None)
    return dot(hidden, last[0]) + last[1][None, :]


def _convolved(
    layer: tuple[Array, Array], X: Float[Array, "images side side channels"]
) -> Float[Array, "images inner inner outputs"]:
    """ReLU of a convolution without padding: all patches times a matrix, which trains faster on CPU."""
    W, b = layer
    side = X.shape[1] - WIDTH + 1
    shifts = [X[:, i : i + side, j : j + side] for i in range(WIDTH) for j in range(WIDTH)]
    return jax.nn.relu(dot(jnp.concatenate(shifts, axis=3), W) + b[None, None, None, :])


def _pooled(X: Float[Array, "images side side channels"]) -> Float[Array, "images _ _ channels"]:
    """The largest of every square; a rest that does not fill a square is left out."""
    count, side, _, channels = X.shape
    side = side // POOL
    X = X[:, : side * POOL, : side * POOL]
    return jnp.max(X.reshape(count, side, POOL, side, POOL, channels), axis=(2, 4))


def _dropped(
    key: Key | None, X: Float[Array, "*units"], rate: Scalar | None
) -> Float[Array, "*units"]:
    """Units at 0 with probability `rate`, the others larger by as much."""
    if key is None or rate is None:
        return X
    rate = jnp.minimum(rate, DROPPED)
    return jnp.where(jr.uniform(key, X.shape, X.dtype) < rate, 0, X / (1 - rate))


def trained(key: Key, theta: PyTree, pictures: Pictures, x: Point) -> PyTree:
    """`theta` after all epochs, on `batch` images a step; the last step of an epoch has the rest."""
    chosen = SPACE.unpack(x)
    rates = [chosen["first"], chosen["second"], chosen["third"]]
    batch, count = chosen["batch"], pictures.y.shape[0]
    order_key, drop_key = jr.split(key)
    steps = (count + batch - 1) // batch

    def loss(theta: PyTree, key: Key, rows: Array, share: Float[Array, " piece"]) -> Scalar:
        found = scores(theta, pictures.X[rows], key, rates)
        return jnp.sum(
            share * optax.softmax_cross_entropy_with_integer_labels(found, pictures.y[rows])
        )

    def epoch(t: Count, theta: PyTree) -> PyTree:
        # Filled up, since a slice across the end would be moved to before it.
        order = jnp.pad(shuffle(order_key, t, count), (0, PIECE))
        epoch_key = jr.fold_in(drop_key, t)

        def step(i: Count, theta: PyTree) -> PyTree:
            size, step_key = jnp.minimum(batch, count - i * batch), jr.fold_in(epoch_key, i)

            def add(j: Count, slope: PyTree) -> PyTree:
                rows = jax.lax.dynamic_slice(order, (i * batch + j * PIECE,), (PIECE,))
                taken = j * PIECE + jnp.arange(PIECE, dtype=size.dtype) < size
                share = taken.astype(x.dtype) / size.astype(x.dtype)
                more = jax.grad(loss)(theta, jr.fold_in(step_key, j), rows, share)
                return jax.tree.map(jnp.add, slope, more)

            none = jax.tree.map(jnp.zeros_like, theta)
            slope = jax.lax.fori_loop(0, (size + PIECE - 1) // PIECE, add, none)
            return jax.tree.map(lambda a, g: a - chosen["rate"] * g, theta, slope)

        return jax.lax.fori_loop(0, steps, step, theta)

    return jax.lax.fori_loop(0, chosen["epochs"], epoch, theta)


@functools.cache
def cifar(training: int = TRAINING) -> Cifar:
    """The images at half their side, and `training` of them to train on. `DataMissingError` likewise."""
    data = load("cifar10_7000.npz")
    images = data["images"].astype(np.float32) / 255
    count, side = images.shape[:2]
    small = images.reshape(count, side // 2, 2, side // 2, 2, 3).mean(axis=(2, 4))
    train = np.flatnonzero(data["split"] == 0)[:training]
    mean = small[train].mean(axis=(0, 1, 2))

    def some(rows: Int[np.ndarray, " rows"]) -> Pictures:
        X = jnp.asarray(small[rows] - mean, float)
        return Pictures(X, jnp.asarray(data["y"][rows], jnp.int32))

    return Cifar(some(train), *(some(np.flatnonzero(data["split"] == i)) for i in (1, 2)))
