"""The network against XLA's convolution and a plain training loop; what is learned; the images."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from bench.dec import cnn
from bench.tasks import cifar
from bench.tasks.cifar import SPACE, Cifar, Pictures


def made_up(count: int, seed: int = 0) -> Pictures:
    """A bright corner says the class, one of four."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 4
    X = 0.2 * rng.standard_normal((count, 16, 16, 3))
    for i, k in enumerate(y):
        X[i, 8 * (k // 2) :, 8 * (k % 2) :][:8, :8] += 0.5
    return Pictures(jnp.asarray(X, float), jnp.asarray(y, jnp.int32))


def point(**chosen):
    usual = {"rate": 0.05, "first": 0.0, "second": 0.0, "third": 0.0, "batch": 20, "epochs": 5}
    return jnp.asarray(SPACE.encode(usual | chosen), float)


def plain(theta, X):
    """The same network with XLA's own convolution and pool."""
    for i in range(2):
        for j, padding in ((0, "SAME"), (1, "VALID")):
            W, b = theta[2 * i + j]
            kernel = W.reshape(3, 3, X.shape[3], -1)
            numbers = ("NHWC", "HWIO", "NHWC")
            X = jax.lax.conv_general_dilated(X, kernel, (1, 1), padding, dimension_numbers=numbers)
            X = jax.nn.relu(X + b[None, None, None, :])
        window = (1, 2, 2, 1)
        X = jax.lax.reduce_window(X, -jnp.inf, jax.lax.max, window, window, "VALID")
    (W, b), (V, c) = theta[4:]
    return jax.nn.relu(X.reshape(len(X), -1) @ W + b[None, :]) @ V + c[None, :]


@pytest.mark.full
def test_scores_are_those_of_xlas_convolution(key):
    pictures = made_up(6)
    theta = cifar.start(key, 16, point())
    biased = [(W, b + 0.1 * jnp.arange(len(b), dtype=b.dtype)) for W, b in theta]
    found = jax.jit(cifar.scores)(biased, pictures.X)
    np.testing.assert_allclose(found, jax.jit(plain)(biased, pictures.X), rtol=1e-3, atol=1e-4)
    assert [W.shape for W, _ in theta] == [
        (27, 8),
        (72, 8),
        (72, 16),
        (144, 16),
        (64, 64),
        (64, 10),
    ]
    spreads = [float(np.std(W)) for W, _ in theta]
    np.testing.assert_allclose(spreads, np.sqrt(2 / np.array([27, 72, 72, 144, 64, 64])), rtol=0.2)


@pytest.mark.full
def test_training_is_plain_descent_on_the_batches_of_a_shuffle(key):
    pictures, x = made_up(65), point(batch=30)  # two pieces, two pieces, one
    theta = cifar.start(key, 16, x)
    train = jax.jit(lambda theta, x: cifar.trained(key, theta, pictures, x))
    found = train(theta, x)
    order_key, _ = jr.split(key)

    @jax.jit
    def step(theta, X, y):
        def loss(theta):
            return optax.softmax_cross_entropy_with_integer_labels(plain(theta, X), y).mean()

        return jax.tree.map(lambda a, g: a - 0.05 * g, theta, jax.grad(loss)(theta))

    for epoch in range(5):
        order = cifar.shuffle(order_key, jnp.asarray(epoch), 65)
        for rows in (order[:30], order[30:60], order[60:]):
            theta = step(theta, pictures.X[rows], pictures.y[rows])
    for (W, b), (V, c) in zip(found, theta, strict=True):
        np.testing.assert_allclose(W, V, rtol=1e-2, atol=2e-3)
        np.testing.assert_allclose(b, c, rtol=1e-2, atol=2e-3)


def test_dropout_leaves_the_mean_and_a_rate_of_one_is_harmless(key):
    X, rate = jnp.ones((20_000,)), jnp.asarray(0.3)
    found = cifar._dropped(key, X, rate)
    np.testing.assert_allclose(np.mean(found), 1, atol=0.02)
    np.testing.assert_allclose(np.mean(np.asarray(found) == 0), 0.3, atol=0.02)
    assert np.isfinite(cifar._dropped(key, X, jnp.asarray(1.0))).all()
    np.testing.assert_array_equal(cifar._dropped(None, X, rate), X)


@pytest.mark.full
def test_better_hyperparameters_are_right_more_often(key):
    objective = Cifar(made_up(60), made_up(40, 1), made_up(40, 2))
    shares = eqx.filter_jit(lambda objective, x: objective.shares(key, x))
    good = shares(objective, point(rate=0.1, epochs=20))
    np.testing.assert_array_less(0.9, np.asarray(good))
    for poor in (point(rate=1e-5), point(rate=0.1, first=1.0, second=1.0, third=1.0)):
        np.testing.assert_array_less(np.asarray(shares(objective, poor)), 0.75)


def test_images_are_halved_and_centered(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 32, 32, 3)).astype(np.uint8)
    y, split = (np.arange(30) % 10).astype(np.uint8), np.repeat([0, 1, 2], [20, 6, 4])
    np.savez(tmp_path / "cifar10_7000.npz", images=images, y=y, split=split)
    cifar.cifar.cache_clear()
    found = cifar.cifar(15)
    cifar.cifar.cache_clear()
    assert [len(part.y) for part in (found.train, found.validate, found.test)] == [15, 6, 4]
    np.testing.assert_allclose(np.mean(found.train.X, axis=(0, 1, 2)), 0, atol=1e-5)
    mean = images[:15].mean(axis=(0, 1, 2))
    corner = (images[20, 30:, :2].mean(axis=(0, 1)) - mean) / 255
    np.testing.assert_allclose(found.validate.X[0, 15, 0], corner, atol=1e-5)
    np.testing.assert_array_equal(found.test.y, y[26:])


@pytest.mark.parametrize("name", cnn.METHODS)
def test_every_method_has_room_for_its_evaluations(name):
    algorithm = cnn.METHODS[name](30)
    assert algorithm.domain.dim == 6
    assert algorithm.capacity in (40, None)


def test_corners_of_the_cube_are_the_ends_of_the_ranges():
    lowest, highest = SPACE.decode(np.zeros(6)), SPACE.decode(np.ones(6))
    assert (lowest["batch"], highest["batch"]) == (cifar.PIECE, 200)
    assert (lowest["rate"], highest["rate"]) == (1e-5, 1.0)
    assert (lowest["epochs"], highest["epochs"]) == (5, 20)


def test_claims_are_about_the_ends_of_runs():
    good, bad = np.full((3, 4), 0.1), np.full((3, 4), 0.9) + 0.01 * np.arange(3)[:, None]
    alike = cnn.checks(dict.fromkeys(cnn.METHODS, good))
    assert len(alike) == 6
    assert all(check.holds for check in alike.values())
    worse = {name: bad if name in cnn.OURS else good for name in cnn.METHODS}
    assert not any(check.holds for check in cnn.checks(worse).values())
