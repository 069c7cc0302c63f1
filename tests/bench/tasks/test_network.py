"""Networks with room to spare against plain ones; what is learned; the data sets as they are read."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from bench.tasks import network
from bench.tasks.network import SPACE, DataSet, LabeledRows, Network


@pytest.fixture
def few_rooms(monkeypatch):
    """Batches of at most 8 rows and others: compiled in half the time."""
    monkeypatch.setattr(network, "ROOMS", (8, 64))


def made_up(
    rows: int, test: int, columns: int = 5, classes: int = 3, noise: float = 0.3
) -> DataSet:
    """Clouds of points around a center for each class, as many of each."""
    rng = np.random.default_rng(0)
    centers = rng.choice([-1.0, 1.0], (classes, columns))
    centers[:, :classes] = 2 * np.eye(classes)

    def some(count: int) -> LabeledRows:
        y = np.arange(count) % classes
        X = centers[y] + noise * rng.standard_normal((count, columns))
        return LabeledRows(jnp.asarray(X, float), jnp.asarray(y, jnp.int32))

    return DataSet(some(rows), some(test), classes)


@eqx.filter_jit
def plain_step(theta, memory, X, y, rate):
    """One step of `optax.adam` on a network of exactly these sizes and a batch of exactly these rows."""

    def loss(theta):
        (A, a), (B, b), (C, c) = theta
        hidden = jax.nn.relu(jax.nn.relu(X @ A + a[None, :]) @ B + b[None, :])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ C + c[None, :], y).mean()

    update, memory = optax.adam(rate).update(jax.grad(loss)(theta), memory)
    return optax.apply_updates(theta, update), memory


def plainly_trained(key, theta, table, rate, batch):
    """All epochs, one batch after the other: slices of the same shuffles."""
    memory, count = optax.adam(rate).init(theta), len(table.train.y)
    X, y = np.asarray(table.train.X), np.asarray(table.train.y)
    for epoch in range(network.EPOCHS):
        order = np.asarray(network.shuffle(key, jnp.asarray(epoch), count))
        for place in range(0, count, batch):
            rows = order[place : place + batch]
            theta, memory = plain_step(theta, memory, X[rows], y[rows], rate)
    return theta


@eqx.filter_jit
def started_and_trained(key, table, rate, firsts, seconds, batches):
    """Networks of several sizes at once."""

    def one(first, second, batch):
        theta = network.start(key, table, first, second, rate.dtype)
        return theta, network.trained(key, theta, table.train, rate, batch)

    return jax.vmap(one)(firsts, seconds, batches)


@pytest.mark.full
def test_networks_with_room_to_spare_train_like_plain_ones(few_rooms, monkeypatch, key):
    monkeypatch.setattr(network, "EPOCHS", 5)  # before rounding errors have grown
    cases = [
        (3, 7, 12),  # three batches
        (100, 100, 8),  # no room to spare: four batches and half of one
        (2, 60, 4),  # the smallest
        (41, 2, 64),  # all rows are less than one batch
    ]
    table, rate = made_up(36, 1), jnp.asarray(0.003)
    chosen = jnp.asarray(cases, jnp.int32).T
    with jax.numpy_dtype_promotion("standard"):  # inside of optax's Adam
        trained = started_and_trained(key, table, rate, *chosen)
        starts, ends = jax.tree.map(np.asarray, trained)
        for case, (first, second, batch) in enumerate(cases):
            sizes = (5, first, second, 3)

            def inside(theta, i, case=case, sizes=sizes):
                W, b = theta[i]
                return W[case, : sizes[i], : sizes[i + 1]], b[case, : sizes[i + 1]]

            start = [inside(starts, i) for i in range(3)]
            plain = plainly_trained(key, start, table, rate, batch)
            for i, (W, b) in enumerate(plain):
                V, c = inside(ends, i)
                np.testing.assert_allclose(V, W, rtol=1e-3, atol=1e-4)
                np.testing.assert_allclose(c, b, rtol=1e-3, atol=1e-4)
                assert np.abs(W - start[i][0]).max() > 0.005  # it did learn
                # What is beyond is out of use, to the bit.
                assert np.count_nonzero(ends[i][0][case]) == np.count_nonzero(V)
                assert np.count_nonzero(ends[i][1][case]) == np.count_nonzero(c)


def test_weights_start_as_large_as_their_neurons_inputs_ask_for(key):
    table = made_up(4, 1, columns=50)
    first, second = jnp.asarray(90), jnp.asarray(20)
    dtype = jnp.zeros(()).dtype
    theta = jax.jit(lambda key: network.start(key, table, first, second, dtype))(key)
    spreads = [np.std(W[np.asarray(W) != 0]) for W, _ in theta]
    np.testing.assert_allclose(spreads, np.sqrt(2 / np.array([50, 90, 20])), rtol=0.25)
    assert [np.count_nonzero(W) for W, _ in theta] == [50 * 90, 90 * 20, 20 * 3]
    np.testing.assert_allclose([np.abs(b).max() for _, b in theta], 0)


def test_every_epoch_takes_all_rows_in_an_order_of_its_own(key):
    orders = [np.asarray(network.shuffle(key, jnp.asarray(t), 50)) for t in range(3)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(50))
    assert len({tuple(order) for order in orders}) == 3


@eqx.filter_jit
def evaluated(objective, key, agent, x):
    return objective(key, agent, x)


@pytest.mark.full
def test_better_hyperparameters_are_right_more_often(few_rooms, key):
    objective = Network(made_up(60, 30, noise=0.5), runs=20)

    def value(agent=0, **chosen) -> float:
        x = SPACE.encode({"first": 50, "second": 50, "rate": 1e-2, "batch": 8} | chosen)
        with jax.numpy_dtype_promotion("standard"):  # inside of optax's Adam
            return float(evaluated(objective, key, jnp.asarray(agent), jnp.asarray(x)))

    good, narrow = value(), value(first=2, second=2, batch=64)
    assert good > 0.95
    assert narrow < good - 0.1
    # Three classes, guessed by networks that have hardly moved.
    still = [value(rate=1e-6), value(rate=1e-6, first=3, batch=64)]
    np.testing.assert_allclose(still, 1 / 3, atol=0.2)
    # A mean over 20 runs and 30 rows, the same for every agent.
    assert value(agent=3) == good
    whole = 600 * np.array([good, narrow, *still])
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-2)


def test_agents_are_evaluated_together(key):
    objective, dtype = Network(made_up(6, 3), runs=2), jnp.zeros(()).dtype
    points = jax.ShapeDtypeStruct((7, 4), dtype)
    with jax.numpy_dtype_promotion("standard"):
        values = jax.eval_shape(jax.vmap(objective), jr.split(key, 7), jnp.arange(7), points)
    assert (values.shape, values.dtype) == ((7,), dtype)


def test_corners_of_the_cube_are_the_ends_of_the_papers_ranges():
    lowest, highest = SPACE.decode(np.zeros(4)), SPACE.decode(np.ones(4))
    assert lowest == {"first": 2, "second": 2, "rate": 1e-6, "batch": 4}
    assert highest == {"first": 100, "second": 100, "rate": 1e-1, "batch": 64}
    assert (highest["first"], highest["batch"]) == (network.WIDTH, network.ROOMS[-1])
    assert list(network.ROOMS) == sorted(network.ROOMS)


# ---------------------------------------------------------------- the data sets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where data sets are read from; what was read elsewhere is forgotten."""
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    for read in network.TABLES.values():
        read.cache_clear()
    yield tmp_path
    for read in network.TABLES.values():
        read.cache_clear()


def test_of_images_the_pixels_stay_that_are_ever_used(folder):
    rng = np.random.default_rng(0)
    images = np.zeros((40, 28, 28), np.uint8)
    images[:, 10:12, 10:13] = rng.integers(1, 256, (40, 2, 3))
    images[39, 3, 3] = 255
    y, is_val = (np.arange(40) % 10).astype(np.uint8), np.arange(40) >= 30
    np.savez(folder / "mnist_7500.npz", images=images, y=y, is_val=is_val)
    table = network.mnist()
    assert table.train.X.shape == (30, 7)
    np.testing.assert_allclose(table.train.X[:, 1:], images[:30, 10:12, 10:13].reshape(30, 6) / 255)
    np.testing.assert_array_equal(table.test.y, y[30:])
    assert (table.test.X[-1, 0], table.classes) == (1, 10)


def test_a_missing_attribute_is_no_category(folder):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, [6, 3, 2], (30, 3)).astype(np.int8)
    codes[:6, 0] = np.arange(6)
    codes[5, 2] = -1
    y = (codes[:, 1] == 1).astype(np.uint8)
    np.savez(folder / "breast_cancer_ljubljana.npz", codes=codes, y=y)
    table = network.breast_cancer()
    assert (table.train.X.shape, table.test.X.shape) == ((21, 11), (9, 11))
    X = np.concatenate([table.train.X, table.test.X])
    assert set(np.unique(X)) == {0, 1}
    np.testing.assert_allclose(np.sort(X.sum(axis=1)), [2] + 29 * [3])
    # A column of the second attribute is the class.
    np.testing.assert_allclose(table.train.X[:, 7], np.asarray(table.train.y))


def test_of_the_traffic_set_failures_of_sensors_are_left_out(folder, monkeypatch):
    monkeypatch.setattr(network, "TRAFFIC", 40)
    names = "temp_K rain_1h snow_1h clouds_all weather_main_code hour weekday month is_holiday"
    rng = np.random.default_rng(0)
    X = np.abs(rng.standard_normal((43, 9))).astype(np.float32) + 1
    X[:, 4], X[:, 8] = rng.integers(0, 3, 43), 0
    X[:2, 0], X[20, 1] = 0, 9831
    y = (np.arange(43) % 4).astype(np.uint8)
    np.savez(
        folder / "metro_traffic.npz",
        X=X,
        y=y,
        feature_names=names.split(),
        weather_main=["Clear", "Clouds", "Rain"],
    )
    table = network.traffic()
    assert (table.train.X.shape, table.test.X.shape) == ((28, 11), (12, 11))
    found = np.concatenate([table.train.y, table.test.y])
    credible = np.delete(np.arange(43), [0, 1, 20])
    np.testing.assert_array_equal(np.bincount(found), np.bincount(y[credible]))
    numbers, weather = np.split(np.asarray(table.train.X), [8], axis=1)
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(numbers.std(axis=0), [1] * 7 + [0], atol=1e-5)
    np.testing.assert_allclose(weather.sum(axis=1), 1)
    assert np.abs(table.test.X).max() < 10


@pytest.mark.parametrize(
    ("name", "shape", "left"), [("iris", (105, 4), 45), ("wine", (125, 13), 53)]
)
def test_the_sets_of_scikit_learn_are_split_and_standardized(name, shape, left):
    table = network.TABLES[name]()
    assert (table.train.X.shape, table.test.y.shape, table.classes) == (shape, (left,), 3)
    np.testing.assert_allclose(np.mean(table.train.X, axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(table.train.X, axis=0), 1, atol=1e-4)
    assert np.bincount(table.train.y).min() > 0.25 * shape[0]
