"""PIC against dense algebra and its limits; the folds; how data are cut; what the experiment runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.common import search
from bench.dec import gp
from bench.speed import additive
from bench.tasks import sparse_gp
from bench.tasks.sparse_gp import FoldedRows, Hyperparameters


def made_up(blocks: int, size: int, columns: int = 3) -> FoldedRows:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((blocks, size, columns))
    y = np.sin(X.sum(axis=2)) + 0.1 * rng.standard_normal((blocks, size))
    fold = rng.permutation(np.arange(blocks * size) % 7 - 1).reshape(blocks, size)  # -1 ... 5
    quantiles = np.linspace(-2, 2, 5)[None] * np.ones((columns, 1))
    arrays = (jnp.asarray(a, float) for a in (X, y))
    return FoldedRows(
        *arrays, jnp.asarray(fold, jnp.int32), jnp.asarray(quantiles, float), jnp.asarray(2.5)
    )


def some(inducing, signal=1.5, noise=0.2) -> Hyperparameters:
    scales = jnp.asarray([0.8, 1.0, 1.7])
    return Hyperparameters(
        jnp.asarray(signal), jnp.asarray(noise), scales, jnp.asarray(inducing, float)
    )


def covariance(chosen: Hyperparameters, X, Z):
    far = (X[:, None] - Z[None]) / np.asarray(chosen.scales, float)
    return float(chosen.signal) * np.exp(-0.5 * (far**2).sum(axis=2))


def dense(chosen: Hyperparameters, rows: FoldedRows, train) -> np.ndarray:
    """K_PIC (K_PIC + noise I)⁻¹ y: exact within a block, by inducing inputs between blocks."""
    X = np.asarray(rows.X, float).reshape(-1, rows.X.shape[2])
    Z = np.asarray(chosen.inducing, float)
    block = np.repeat(np.arange(len(rows.X)), rows.X.shape[1])
    K_mm = covariance(chosen, Z, Z) + sparse_gp.JITTER * float(chosen.signal) * np.eye(len(Z))
    K_xm = covariance(chosen, X, Z)
    Q = K_xm @ np.linalg.solve(K_mm, K_xm.T)
    K = np.where(block[:, None] == block[None, :], covariance(chosen, X, X), Q)
    t = np.asarray(train).ravel()
    y = np.asarray(rows.y, float).ravel()[t]
    noisy = K[np.ix_(t, t)] + float(chosen.noise) * np.eye(t.sum())
    return (K[:, t] @ np.linalg.solve(noisy, y)).reshape(rows.y.shape)


@jax.jit
def predicted(chosen: Hyperparameters, rows: FoldedRows, train):
    parts = sparse_gp.conditionals(chosen, rows.X)
    return sparse_gp.predicted(chosen.noise, *parts, rows.y, train)


@pytest.fixture
def inducing():
    return np.random.default_rng(1).standard_normal((6, 3))


def test_predictions_are_those_of_dense_algebra(inducing):
    rows = made_up(4, 9)
    train = (np.asarray(rows.fold) >= 0) & (np.asarray(rows.fold) != 2)
    train[3] = False  # nothing trains in this block: it goes by inducing inputs alone
    chosen = some(inducing)
    found = predicted(chosen, rows, jnp.asarray(train))
    np.testing.assert_allclose(found, dense(chosen, rows, train), atol=2e-4)
    # The blocks matter: as one they give another answer.
    assert np.abs(found - exact(chosen, rows, train)).max() > 0.05


def exact(chosen: Hyperparameters, rows: FoldedRows, train) -> np.ndarray:
    """The process itself."""
    X, t = np.asarray(rows.X, float).reshape(-1, 3), np.asarray(train).ravel()
    K = covariance(chosen, X, X)
    noisy = K[np.ix_(t, t)] + float(chosen.noise) * np.eye(t.sum())
    y = np.asarray(rows.y, float).ravel()[t]
    return (K[:, t] @ np.linalg.solve(noisy, y)).reshape(rows.y.shape)


def test_one_block_is_the_exact_process(inducing):
    rows = made_up(1, 30)
    train = np.asarray(rows.fold) >= 1
    chosen = some(inducing)
    found = predicted(chosen, rows, jnp.asarray(train))
    np.testing.assert_allclose(found, exact(chosen, rows, train), atol=2e-4)


def test_inducing_inputs_at_all_rows_are_the_exact_process(monkeypatch):
    monkeypatch.setattr(sparse_gp, "JITTER", 1e-6)
    rows = made_up(4, 6)
    train = np.asarray(rows.fold) >= 1
    chosen = some(np.asarray(rows.X).reshape(-1, 3))
    found = jax.jit(lambda train: predicted.__wrapped__(chosen, rows, train))(jnp.asarray(train))
    np.testing.assert_allclose(found, exact(chosen, rows, train), atol=2e-3)


def test_a_fold_is_predicted_from_the_others(inducing):
    rows, chosen = made_up(4, 9), some(inducing)
    fold, y = np.asarray(rows.fold), np.asarray(rows.y, float)
    errors = []
    for k in range(sparse_gp.FOLDS):
        train = (fold >= 0) & (fold < sparse_gp.FOLDS) & (fold != k)
        residual = (dense(chosen, rows, train) - y)[fold == k]
        errors.append(2.5 * np.sqrt(np.mean(residual**2)))
    found = jax.jit(sparse_gp.validation)(chosen, rows)
    np.testing.assert_allclose(found, np.mean(errors), rtol=1e-3)
    train = (fold >= 0) & (fold < sparse_gp.FOLDS)
    residual = (dense(chosen, rows, train) - y)[fold == sparse_gp.TESTED]
    tested = jax.jit(sparse_gp.test)(chosen, rows)
    np.testing.assert_allclose(tested, 2.5 * np.sqrt(np.mean(residual**2)), rtol=1e-3)


def test_inducing_inputs_that_coincide_are_harmless():
    rows = made_up(4, 9)
    chosen = some(np.ones((20, 3)), noise=0.01)
    assert np.isfinite(jax.jit(sparse_gp.validation)(chosen, rows))


def test_rows_many_short_length_scales_from_the_mean_are_as_good():
    rows = made_up(2, 40)
    # Skewed attributes have such tails.
    near = 0.02 * rows.X + jnp.asarray([40.0, 0.0, -30.0])[None, None, :]
    rows = dataclasses.replace(rows, X=near)
    chosen = some(near.reshape(-1, 3)[:6], signal=10.0, noise=0.01)
    chosen = chosen._replace(scales=jnp.full(3, sparse_gp.SCALE[0]))
    train = np.asarray(rows.fold) >= 1
    found = predicted(chosen, rows, jnp.asarray(train))
    np.testing.assert_allclose(found, dense(chosen, rows, train), atol=5e-3)


# ---------------------------------------------------------------- the data


def test_blocks_hold_every_row_once(monkeypatch):
    monkeypatch.setattr(sparse_gp, "BLOCK", 16)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((203, 9)) * 10.0 ** np.arange(9), 3 + 2 * rng.standard_normal(203)
    rows = sparse_gp.cut(X, y)
    assert rows.X.shape == (16, 13, 9)
    known = np.asarray(rows.fold) != sparse_gp.EMPTY
    values = float(rows.deviation) * np.asarray(rows.y)[known]
    train = np.asarray(rows.fold)[known] != sparse_gp.TESTED
    np.testing.assert_allclose(values[train].mean(), 0, atol=1e-4)
    gaps = np.diff(np.sort(values)), np.diff(np.sort(y))
    np.testing.assert_allclose(*gaps, atol=1e-4)
    np.testing.assert_allclose(np.asarray(rows.X)[known][train].std(axis=0), 1, rtol=1e-4)
    counts = np.bincount(np.asarray(rows.fold)[known])
    assert (counts[sparse_gp.TESTED], counts[:-1].max() - counts[:-1].min()) == (10, 1)
    # Rows of a block are near each other.
    spread = np.asarray(rows.X).std(axis=1).mean()
    assert spread < 0.9


def test_corners_of_the_cube_are_the_ends_of_the_ranges():
    rows = made_up(2, 4)
    for corner, end in ((0.0, 0), (1.0, 1)):
        chosen = rows.unpack(jnp.full((2 + 3 + 4 * 3,), corner))
        np.testing.assert_allclose(chosen.signal, sparse_gp.SIGNAL[end], rtol=1e-5)
        np.testing.assert_allclose(chosen.noise, sparse_gp.NOISE[end], rtol=1e-5)
        np.testing.assert_allclose(chosen.scales, [sparse_gp.SCALE[end]] * 3, rtol=1e-5)
        np.testing.assert_allclose(chosen.inducing, np.full((4, 3), (-2, 2)[end]))
    # Every coordinate of the cube moves one number: the last one the last of the last inducing input.
    middle = jnp.full((17,), 0.5)
    moved = rows.unpack(middle.at[-1].set(0.75)).inducing - rows.unpack(middle).inducing
    np.testing.assert_allclose(np.flatnonzero(moved), [11])
    np.testing.assert_allclose(moved[3, 2], 1)


# ---------------------------------------------------------------- the experiment


def test_factors_are_neighbors_in_the_chain_of_the_kernel_and_of_each_inducing_input():
    assert sparse_gp.scopes(200, 1) == [(v,) for v in range(1811)]
    pairs = sparse_gp.scopes(2, 2)
    assert pairs == [(v, v + 1) for v in range(28) if v not in (10, 19)]
    assert sparse_gp.scopes(2, 3)[8:11] == [(8, 9, 10), (11, 12, 13), (12, 13, 14)]


@pytest.mark.parametrize("name", [name for name in gp.METHODS if name != gp.REMBO])
def test_every_method_has_room_for_its_evaluations(name):
    algorithm = gp.METHODS[name](5, 30)
    assert algorithm.domain.dim == 56
    assert algorithm.capacity in (40, None)


def test_the_best_so_far_is_the_first_of_equals_and_never_a_failure():
    values = jnp.asarray([jnp.nan, -3.0, -4.0, -2.0, -2.0, jnp.nan])
    assert search.incumbents(values)[1:].tolist() == [1, 1, 3, 3, 3]


def test_claims_are_about_the_ends_of_runs():
    good, bad = np.full((3, 4), 3.9), np.full((3, 4), 9.0) + np.arange(3)[:, None]
    same = dict.fromkeys(gp.METHODS, good)
    alike = gp.checks(same, same)
    assert len(alike) == 27
    assert all(check.holds for check in alike.values())
    worse = {name: bad if "DEC-HBO" in name else good for name in gp.METHODS}
    assert not any(check.holds for check in gp.checks(worse, worse).values())
    of_folds = {claim: check.holds for claim, check in gp.checks(same, worse).items()}
    assert of_folds == {claim: "on the folds" not in claim for claim in alike}


@pytest.mark.full
def test_an_iteration_grows_by_the_power_that_it_is_said_to():
    fewer, more = additive.FEWER[0], additive.WHOLE
    seconds = {fewer: 1.0, more: 8.0}
    np.testing.assert_allclose(additive.growth(seconds, fewer, 0.5), 3)
    np.testing.assert_allclose(additive.each(np.array([1.0, 2.0, 30.0])), 6)
    found = additive.iteration(additive.Size(1, 1, 12), 1)
    assert (found > 0).all()
