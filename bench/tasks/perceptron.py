"""A network of one hidden layer for an owner's digits, tuned: x in [0, 1]⁶ -> share that is right.

    scores = drop(max(0, X W + b)) V + c
    v ← momentum v + gradient + decay θ,   θ ← θ - rate v         200 steps

The owners and their digits are those of `jaxbo demo`. One random half of the digits trains, and the other
validates. The gradient is that of the mean cross-entropy of a batch, whose rows are drawn anew in each
step. Learning rate, momentum, batch size, neurons, the share of neurons that is dropped and weight decay
are tuned (`SPACE`). An owner has the same random numbers at all points: a value has no noise.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxbo import demo
from jaxbo.domains.parameters import Integer, Real
from jaxbo.domains.space import Space
from jaxbo.types import Count, Key, Point, Scalar

OWNERS, CLASSES = 20, 10
STEPS: Final = 200
#: Most neurons, and most rows of a batch.
WIDTH, BATCH = 32, 16
SPACE = Space(
    rate=Real(1e-3, 1.0, log=True),
    momentum=Real(0.0, 0.95),
    batch=Integer(1, BATCH, log=True),
    width=Integer(4, WIDTH, log=True),
    dropout=Real(0.0, 0.6),
    decay=Real(1e-5, 1e-1, log=True),
)


class ShuffledRows(NamedTuple):
    """An owner's rows in a random order: the first `train` to train on, the next to validate.

    Rows beyond `samples` fill up, so that all owners have as many.
    """

    X: Float[Array, "rows pixels"]
    y: Int[Array, " rows"]
    train: Count
    samples: Count


@functools.cache
def halves() -> tuple[np.ndarray, ...]:
    """Random halves of all owners, as in the demo: parts of `ShuffledRows`, [owners halves ...]."""
    owners = demo.owners(OWNERS)
    room = max(len(digits) for _, digits in owners)
    found = []
    for number, (X, y) in enumerate(owners):
        rng = np.random.default_rng(number)
        for _ in range(demo.HALVES):
            order = rng.permutation(len(y))
            train, filled = len(np.array_split(order, 2)[0]), np.resize(order, room)
            found.append((np.float32(X[filled]), np.int32(y[filled]), train, len(y)))
    columns = (np.stack(column) for column in zip(*found, strict=True))
    return tuple(c.reshape(OWNERS, demo.HALVES, *c.shape[1:]) for c in columns)


def start(key: Key, width: Count, pixels: int) -> PyTree:
    """Weights and biases of both layers (He), 0 for neurons beyond `width`.

    Such a neuron gives 0, where ReLU has no slope. So its weights stay 0, and training needs no mask.
    """
    first_key, second_key = jr.split(key)
    inside = jnp.arange(WIDTH) < width
    W = jnp.where(inside[None, :], jr.normal(first_key, (pixels, WIDTH)), 0) * (2 / pixels) ** 0.5
    V = jnp.where(inside[:, None], jr.normal(second_key, (WIDTH, CLASSES)), 0)
    V = V * jnp.sqrt(2 / width.astype(V.dtype))
    return (W, jnp.zeros(WIDTH)), (V, jnp.zeros(CLASSES))


def hidden(theta: PyTree, X: Float[Array, "rows pixels"]) -> Float[Array, "rows neurons"]:
    """The values of all neurons of the hidden layer."""
    (W, b), _ = theta
    return jax.nn.relu(X @ W + b[None, :])


def scores(theta: PyTree, h: Float[Array, "rows neurons"]) -> Float[Array, "rows classes"]:
    """The scores of each class, from the values of the neurons."""
    _, (V, c) = theta
    return h @ V + c[None, :]


def drawn(key: Key, step: Count, half: ShuffledRows) -> tuple[Int[Array, " batch"], Key]:
    """The rows that a step may take, and the key of the neurons that it drops."""
    row_key, drop_key = jr.split(jr.fold_in(key, step))
    return jr.randint(row_key, (BATCH,), 0, half.train), drop_key


def trained(key: Key, theta: PyTree, half: ShuffledRows, chosen: dict[str, Any]) -> PyTree:
    """`theta` after all steps."""
    taken = jnp.arange(BATCH) < chosen["batch"]
    share = taken.astype(float) / chosen["batch"].astype(float)
    kept = 1 - chosen["dropout"]

    def loss(theta: PyTree, rows: Int[Array, " batch"], drop_key: Key) -> Scalar:
        h = hidden(theta, half.X[rows])
        h = h * jr.bernoulli(drop_key, kept, h.shape).astype(h.dtype) / kept
        losses = optax.softmax_cross_entropy_with_integer_labels(scores(theta, h), half.y[rows])
        return share @ losses

    def step(t: Count, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        theta, velocity = carry
        slope = jax.grad(loss)(theta, *drawn(key, t, half))
        velocity = jax.tree.map(
            lambda v, g, a: chosen["momentum"] * v + g + chosen["decay"] * a, velocity, slope, theta
        )
        return jax.tree.map(lambda a, v: a - chosen["rate"] * v, theta, velocity), velocity

    rest = jax.tree.map(jnp.zeros_like, theta)
    return jax.lax.fori_loop(0, STEPS, step, (theta, rest))[0]


def right(key: Key, half: ShuffledRows, x: Point) -> Scalar:
    """The share of the validated rows whose digit the network says, after training on the others."""
    chosen = SPACE.unpack(x)
    start_key, step_key = jr.split(key)
    theta = start(start_key, chosen["width"], half.X.shape[1])
    theta = trained(step_key, theta, half, chosen)
    guess = jnp.argmax(scores(theta, hidden(theta, half.X)), axis=1)
    row = jnp.arange(len(half.y))
    validates = (row >= half.train) & (row < half.samples)
    return jnp.mean(guess == half.y, where=validates)


@jax.jit
def share(owner: Count, x: Point) -> Scalar:
    """The mean over halves of an owner, at a point."""
    its = ShuffledRows(*(jnp.asarray(part)[owner] for part in halves()))
    keys = jr.split(jr.fold_in(jr.key(0), owner), demo.HALVES)
    return jnp.mean(jax.vmap(right, (0, 0, None))(keys, its, x))
