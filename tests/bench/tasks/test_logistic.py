"""The tuned logistic regression, against plain training of the weights by autodiff."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from bench.tasks import eating, har
from bench.tasks.logistic import STEPS, Ranges, training

CLASSES = 6
WIDE = Ranges(batch=(128, 512), l2=(1e-6, 10), rate=(1e-6, 1))


@pytest.fixture(scope="module")
def people():
    """30 made-up people, each of as many windows as their number asks for."""
    rng = np.random.default_rng(0)
    found = []
    for person in range(30):
        y = rng.integers(0, CLASSES, 10 + person % 7)
        X = rng.standard_normal((len(y), 12)) + 0.7 * np.eye(12)[y + 1]
        X[:, 3] = 0.25  # a feature that does not change
        found.append((X.astype(np.float32), y))
    return found


@jax.jit
def plainly_trained(X, labels, l2, rate):
    def loss(theta):
        scores = X @ theta[0] + theta[1][None, :]
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    def step(_, theta):
        slope = jax.grad(loss)(theta)
        return (theta[0] - rate * slope[0]) / (1 + rate * l2), theta[1] - rate * slope[1]

    start = jnp.zeros((X.shape[1], CLASSES)), jnp.zeros(CLASSES)
    return jax.lax.fori_loop(0, STEPS, step, start)


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("x", [(0.0, 0.0, 0.3), (0.5, 0.01, 1.0)])
def test_training_is_that_of_the_weights_themselves(x, products, people):
    # Each training half is a batch: the shuffle does not matter.
    objective = jax.jit(lambda *given: training(people, CLASSES, WIDE, products)(*given))
    rng, found, expected = np.random.default_rng(0), [], []
    l2, rate = (low + at * (high - low) for at, (low, high) in zip(x[1:], WIDE[1:], strict=True))
    for person, (X, y) in enumerate(people):
        order = rng.permutation(len(X))
        if person % 7:  # as many windows as the first has
            continue
        middle = (len(X) + 1) // 2
        data = X[order].astype(float)
        data = (data - data[:middle].mean(0)) / (data[:middle].std(0) + 1e-6)
        train, test, labels = jnp.asarray(data[:middle]), data[middle:], y[order]
        W, b = plainly_trained(train, jnp.asarray(labels[:middle]), l2, rate)
        guess = np.argmax(test @ np.asarray(W, float) + np.asarray(b, float), axis=1)
        expected.append(np.mean(guess == labels[middle:]))
        found.append(float(objective(jr.key(1), jnp.asarray(person), jnp.asarray(x))))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(set(found)) > 1


@pytest.mark.parametrize("size", [1, 3])
def test_a_step_is_on_a_batch_and_batches_are_taken_in_turn(size, people):
    rate = 0.5
    ranges = Ranges((size, size), (1e-6, 1e-6), (rate, rate))
    found = training(people, CLASSES, ranges, products=False)
    for person in (0, 3):
        known = np.asarray(found.train.known[person])
        X, y = (np.asarray(a[person], float) for a in (found.train.windows, found.train.y))
        draws = np.asarray(jr.uniform(jr.key(5), y.shape))
        order = np.argsort(np.where(known, draws, 2))[: known.sum()]
        W, b = np.zeros((12, CLASSES)), np.zeros(CLASSES)
        for t in range(STEPS):
            batch = order[(t * size + np.arange(size)) % len(order)]
            scores = np.exp(X[batch] @ W + b)
            slope = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[y[batch].astype(int)]
            W = (W - rate * X[batch].T @ slope / size) / (1 + rate * 1e-6)
            b = b - rate * slope.mean(0)
        test = np.asarray(found.test.known[person])
        guess = np.argmax(np.asarray(found.test.windows[person], float) @ W + b, axis=1)
        expected = np.mean((guess == np.asarray(found.test.y[person]))[test])
        ours = jax.jit(lambda person: found(jr.key(5), person, jnp.zeros(3)))(person)
        np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.full
def test_each_data_set_is_split_by_its_people(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(30), 12)
    X = rng.standard_normal((len(person), 5)).astype(np.float32)
    activity = rng.integers(1, 7, len(person)).astype(np.uint8)
    eats, kept = (rng.random((2, len(person))) < 0.5).astype(np.uint8)
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    np.savez(tmp_path / "uci_har.npz", X=X, y=activity, subject=person + 1)
    arrays = {"X": X, "y": eats, "user": person, "balanced": kept.astype(bool)}
    np.savez(tmp_path / "extrasensory_eating.npz", **arrays)
    for load in (har.movements, eating.meals):
        load.cache_clear()
    movements, meals = har.movements(har.FTS), eating.meals()
    for load in (har.movements, eating.meals):
        load.cache_clear()
    for objective, y, rows in ((movements, activity - 1, person >= 0), (meals, eats, kept == 1)):
        for n in range(30):
            halves = [h.y[n][h.known[n]] for h in (objective.train, objective.test)]
            expected = np.sort(y[rows & (person == n)])
            np.testing.assert_array_equal(np.sort(np.concatenate(halves)), expected)
            assert 0 <= len(halves[0]) - len(halves[1]) <= 1
