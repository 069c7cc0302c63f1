"""The small network that owners tune: whose rows it trains on, and NumPy trains the same."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.tasks import perceptron
from jaxbo import demo

OWNER, HALF = 2, 1
CHOSEN = {"rate": 0.1, "momentum": 0.5, "batch": 7, "width": 9, "dropout": 0.25, "decay": 1e-2}


def one():
    return perceptron.ShuffledRows(
        *(jnp.asarray(part[OWNER, HALF]) for part in perceptron.halves())
    )


def test_every_row_trains_or_validates_and_owners_keep_their_own():
    found = perceptron.ShuffledRows(*perceptron.halves())
    for owner, (X, y) in enumerate(demo.owners(perceptron.OWNERS)):
        for half in range(demo.HALVES):
            count, train = found.samples[owner, half], found.train[owner, half]
            assert count == len(y)
            assert train == (count + 1) // 2
            rows = np.hstack([found.X[owner, half], found.y[owner, half][:, None]])[:count]
            expected = np.hstack([X, y[:, None]])
            np.testing.assert_array_equal(sorted(rows.tolist()), sorted(expected.tolist()))
    assert not np.array_equal(found.X[0, 0], found.X[0, 1])


@pytest.mark.full
def test_steps_are_those_of_momentum_weight_decay_and_dropout():
    half, steps = one(), perceptron.STEPS
    theta = perceptron.start(jr.key(1), jnp.asarray(CHOSEN["width"]), half.X.shape[1])
    numbers = {name: jnp.asarray(value) for name, value in CHOSEN.items()}
    found = jax.jit(perceptron.trained)(jr.key(2), theta, half, numbers)

    kept = 1 - CHOSEN["dropout"]

    @jax.jit
    def draws(t):
        rows, drop_key = perceptron.drawn(jr.key(2), t, half)
        shape = (perceptron.BATCH, perceptron.WIDTH)
        return rows, jr.bernoulli(drop_key, jnp.asarray(kept), shape)

    rows, survives = map(np.asarray, jax.vmap(draws)(jnp.arange(steps)))
    assert rows.max() < int(half.train)
    layers = [np.asarray(a, np.float64) for a in jax.tree.leaves(theta)]
    velocity = [np.zeros_like(a) for a in layers]
    X, y = np.asarray(half.X, np.float64), np.asarray(half.y)
    for t in range(steps):
        slope = gradient(layers, X, y, rows[t][: CHOSEN["batch"]], survives[t], kept)
        velocity = [
            CHOSEN["momentum"] * v + g + CHOSEN["decay"] * a
            for v, g, a in zip(velocity, slope, layers, strict=True)
        ]
        layers = [a - CHOSEN["rate"] * v for a, v in zip(layers, velocity, strict=True)]
    for ours, expected in zip(jax.tree.leaves(found), layers, strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-3)
    (W, b), (V, _) = found
    beyond = slice(CHOSEN["width"], None)
    assert not any(np.any(part) for part in (W[:, beyond], b[beyond], V[beyond]))
    moved = [np.abs(a - b).max() for a, b in zip(layers, jax.tree.leaves(theta), strict=True)]
    assert min(moved) > 0.05


def gradient(layers, X, y, rows, survives, kept):
    """By hand: of the mean cross-entropy of a batch."""
    W, b, V, c = layers
    x, answer = X[rows], np.eye(perceptron.CLASSES)[y[rows]]
    before = x @ W + b
    alive = (before > 0) * survives[: len(rows)] / kept
    h = before * alive
    scores = h @ V + c
    probability = np.exp(scores - scores.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    wrong = (probability - answer) / len(rows)
    back = (wrong @ V.T) * alive
    return x.T @ back, back.sum(axis=0), h.T @ wrong, wrong.sum(axis=0)
