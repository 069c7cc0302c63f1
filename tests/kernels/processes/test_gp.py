"""The exact process against tinygp, and its guarantees about padding, failures and rounding."""

import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import tinygp

from jaxbo.kernels.processes import gp
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential

pytestmark = [pytest.mark.users, pytest.mark.float64]

NOISE = 0.01
KERNEL = SquaredExponential(jnp.array([0.3, 0.6]), 1.7)
append, refactor, build = jax.jit(gp.append), jax.jit(gp.refactor), jax.jit(gp.build)
predict = jax.jit(jax.vmap(gp.predict, in_axes=(None, 0)))


@pytest.fixture
def data(key):
    point_key, noise_key = jr.split(key)
    X = jr.uniform(point_key, (12, 2))
    return X, jnp.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * jr.normal(noise_key, (12,))


@pytest.fixture
def close(x64):
    tolerance = 1e-9 if x64 else 1e-3
    return lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture
def queries(key):
    return jr.uniform(jr.fold_in(key, 1), (20, 2))


@jax.jit
def observe(process, X, y):
    return jax.lax.scan(lambda process, row: (gp.append(process, *row), None), process, (X, y))[0]


def filled(data, capacity=12):
    return observe(gp.empty(KERNEL, NOISE, capacity, 2), *data)


def oracle(X, noise=NOISE):
    scales = KERNEL.length_scale[None]
    return scales, tinygp.GaussianProcess(
        KERNEL.variance * tinygp.kernels.ExpSquared(), X / scales, diag=noise
    )


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
def test_predictions_are_those_of_tinygp(data, queries, close):
    scales, process = oracle(data[0])
    expected = process.condition(data[1], queries / scales, diag=0.0).gp
    mean, variance = predict(filled(data), queries)
    close(mean, expected.loc)
    close(variance, expected.variance)


def test_log_evidence_is_that_of_tinygp(data, close):
    close(gp.log_evidence(filled(data, 20)), oracle(data[0])[1].log_probability(data[1]))


@pytest.mark.slow
def test_padding_changes_nothing(data, queries):
    exact, padded = filled(data, 12), filled(data, 40)
    tight = {"rtol": 1e-4, "atol": 1e-5}
    for a, b in zip(predict(exact, queries), predict(padded, queries), strict=True):
        np.testing.assert_allclose(a, b, **tight)
    np.testing.assert_allclose(gp.log_evidence(exact), gp.log_evidence(padded), **tight)
    np.testing.assert_array_equal(padded.chol[12:], jnp.eye(40)[12:])
    np.testing.assert_array_equal(padded.white[12:], 0)


def test_refactor_gives_the_factor_of_the_appends(data, close):
    process = filled(data, 15)
    again = refactor(process, KERNEL, NOISE)
    close(again.chol, process.chol)
    close(again.white, process.white)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_refactor_with_other_hyperparameters_is_a_process_made_with_them(
    data, queries, close, noise
):
    kernel = Matern52(0.5, 0.8)
    changed = refactor(filled(data, 15), kernel, noise)
    made = observe(gp.empty(kernel, noise, 15, 2), *data)
    jax.tree.map(close, changed, made)
    close(predict(changed, queries)[1], predict(made, queries)[1])


@pytest.mark.slow
def test_build_ignores_rows_without_a_value(data, close):
    X, y = data
    gaps = jnp.array([0, 5, 6])
    process = build(KERNEL, NOISE, X.at[gaps].set(jnp.nan), y.at[gaps].set(jnp.nan))
    keep = np.setdiff1d(np.arange(12), gaps)
    made = observe(gp.empty(KERNEL, NOISE, 12, 2), X[keep], y[keep])
    jax.tree.map(close, process, made)


@pytest.mark.parametrize("failure", [jnp.nan, jnp.inf, -jnp.inf])
def test_failed_evaluations_leave_no_mark(data, failure):
    process = filled(data, 15)
    same(append(process, jnp.array([0.5, 0.5]), jnp.asarray(failure)), process)


def test_a_full_buffer_stays_as_it_is(data):
    process = filled(data, 12)
    same(append(process, jnp.array([0.5, 0.5]), jnp.asarray(1.0)), process)


def test_without_data_predictions_are_the_prior(queries):
    mean, variance = predict(gp.empty(KERNEL, NOISE, 5, 2), queries)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(variance, 1.7, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rebuild", [False, True])
def test_float32_without_noise_gives_no_nan_and_no_negative_variance(key, rebuild):
    """Smooth functions, repeated points, noise far below rounding."""
    X = jnp.tile(jr.uniform(key, (20, 2)), (3, 1)).astype(jnp.float32)
    y = jnp.sin(5 * X[:, 0])
    kernel = SquaredExponential(jnp.float32(2.0), jnp.float32(1.0))
    process = observe(gp.empty(kernel, jnp.float32(1e-9), 64, 2), X, y)
    if rebuild:
        process = refactor(process, kernel, jnp.float32(1e-9))
    mean, variance = predict(process, X)
    assert mean.dtype == variance.dtype == jnp.float32
    assert bool(jnp.all(jnp.isfinite(mean) & jnp.isfinite(variance) & (variance > 0)))
    assert bool(jnp.isfinite(gp.log_evidence(process)))


@pytest.mark.slow
def test_variance_after_repeats_is_the_least_that_they_allow(close):
    """n observations at one point: v noise / (n v + noise)."""
    x = jnp.array([0.5, 0.5])
    process = observe(gp.empty(KERNEL, NOISE, 6, 2), jnp.tile(x, (6, 1)), jnp.ones(6))
    close(gp.predict(process, x)[1], 1.7 * NOISE / (6 * 1.7 + NOISE))


@pytest.mark.slow
def test_predictions_are_differentiable_in_the_point(data, x64):
    process = filled(data, 15)
    x, step = jnp.array([0.4, 0.3]), 1e-5 if x64 else 1e-2
    gradients = jax.jit(jax.jacrev(lambda x: jnp.stack(gp.predict(process, x))))(x)
    for i, shift in enumerate(step * jnp.eye(2)):
        ahead, behind = gp.predict(process, x + shift), gp.predict(process, x - shift)
        slope = (jnp.stack(ahead) - jnp.stack(behind)) / (2 * step)
        np.testing.assert_allclose(gradients[:, i], slope, rtol=0.02, atol=1e-6 if x64 else 5e-3)


@pytest.mark.slow
def test_agents_in_a_batch_do_not_touch_each_other(data):
    X, y = data
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), gp.empty(KERNEL, NOISE, 4, 2))
    step = jax.jit(jax.vmap(gp.append))
    one = step(start, X[:3], y[:3])
    failed = step(start, X[:3], y[:3].at[1].set(jnp.nan))

    def pick(batch, agents):
        return jax.tree.map(lambda leaf: leaf[agents], batch)

    others = jnp.array([0, 2])
    same(pick(one, others), pick(failed, others))
    same(pick(start, 1), pick(failed, 1))


def test_compiles_for_every_platform(data):
    X, y = data
    process = filled(data)

    def program(X, y, x):
        updated = gp.refactor(gp.append(process, x, y[0]), KERNEL, 0.1)
        return gp.predict(updated, x), gp.predict(gp.build(KERNEL, 0.1, X, y), x)

    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(X, y, X[0])
    assert exported.platforms == ("cpu", "cuda", "tpu")


def test_bad_sizes_and_noise_are_refused():
    with pytest.raises(ValueError, match="capacity and dim must be at least 1"):
        gp.empty(KERNEL, NOISE, 0, 2)
    with pytest.raises(ValueError, match="noise must be positive"):
        gp.empty(KERNEL, 0.0, 3, 2)


@jax.jit
def last_of(process, x, y):
    return gp.predict(gp.append(process, x, y), x)


@pytest.mark.slow
def test_any_function_of_two_points_is_a_kernel():
    kernel, x = SquaredExponential(0.4), jnp.array([0.3, 0.6])
    y = jnp.asarray(0.7)
    expected = last_of(gp.empty(kernel, 0.1, 3, 2), x, y)
    found = last_of(gp.empty(lambda x, z: kernel(x, z), 0.1, 3, 2), x, y)
    np.testing.assert_array_equal(found, expected)
