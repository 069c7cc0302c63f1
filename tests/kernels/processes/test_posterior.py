"""The square-root posterior against dense algebra in float64, in both forms of the root."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats

from jaxbo.kernels.accelerated import roots
from jaxbo.kernels.processes import features, posterior
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.posterior import DenseRoot, ProductRoot

pytestmark = [pytest.mark.users, pytest.mark.float64]

SIZE, POINTS = 24, 10
#: Without a capacity the root is a matrix, with this one a product of factors.
FORMS = [None, POINTS]

condition_all = jax.jit(posterior.condition_all)
condition = jax.jit(posterior.condition)
predict = jax.jit(jax.vmap(posterior.predict, in_axes=(None, 0)))
log_evidence = jax.jit(posterior.log_evidence)
sample = jax.jit(posterior.sample)


@functools.partial(jax.jit, static_argnums=(1, 4))
def features_of(key, size, scale, points, dim):
    return jax.vmap(features.cosine(key, SquaredExponential(scale), dim, size))(points)


def data(key, size=SIZE, points=POINTS, scale=0.3, noise=1e-2, dim=2, outputs=()):
    """Features of random points, values with noise, and features of other points."""
    rng = np.random.default_rng(0)
    phis = features_of(key, size, scale, jnp.asarray(rng.random((points + 300, dim)), float), dim)
    phis = np.asarray(phis)
    w, error = rng.standard_normal((size, *outputs)), rng.standard_normal((points, *outputs))
    ys = phis[:points].astype(np.float64) @ w + np.sqrt(noise) * error
    return phis[:points], ys.astype(phis.dtype), phis[points:]


def dense(phis, ys, noise):
    """Mean and covariance of the weights by the normal equations."""
    phis, ys = np.asarray(phis, np.float64), np.asarray(ys, np.float64)
    precision = phis.T @ phis + noise * np.eye(phis.shape[1])
    return np.linalg.solve(precision, phis.T @ ys), noise * np.linalg.inv(precision)


@jax.jit
def products(root):
    """R and R' of a root of either form, by products with unit vectors, which are rows."""
    unit = jnp.eye(SIZE)
    return jax.vmap(root.times)(unit), jax.vmap(root.transpose_times)(unit)


def covariance(root):
    """R R'."""
    columns = np.asarray(products(root)[0])
    return columns.T @ columns


def same_bits(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), a, b)


def bits(x):
    return np.asarray(x).tobytes()


@pytest.fixture
def close(x64):
    tolerance = 1e-9 if x64 else 2e-4
    return lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- the algebra


@pytest.mark.parametrize("capacity", FORMS)
def test_mean_and_covariance_are_those_of_dense_algebra(capacity, key, close):
    phis, ys, _ = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys)
    mean, cov = dense(phis, ys, 1e-2)
    close(told.mean, mean)
    close(covariance(told.root), cov)
    assert told.count == POINTS


@pytest.mark.parametrize("capacity", FORMS)
def test_predictions_are_those_of_dense_algebra(capacity, key, close):
    phis, ys, others = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys)
    mean, cov = dense(phis, ys, 1e-2)
    found = predict(told, others)
    others = np.asarray(others, np.float64)
    close(found[0], others @ mean)
    close(found[1], np.sum((others @ cov) * others, axis=1))


@pytest.mark.parametrize("capacity", FORMS)
def test_the_prior_is_standard_normal(capacity, key):
    start = posterior.prior(SIZE, 1e-2, capacity=capacity)
    np.testing.assert_array_equal(start.mean, 0)
    np.testing.assert_array_equal(covariance(start.root), np.eye(SIZE))
    assert log_evidence(start) == 0


@pytest.mark.parametrize("capacity", FORMS)
def test_root_and_transposed_root_are_adjoint(capacity, key, close):
    phis, ys, _ = data(key)
    root = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys).root
    times, transpose_times = products(root)
    close(times, np.asarray(transpose_times).T)


def test_more_features_than_the_kernel_takes_give_the_same_numbers(key, close, monkeypatch):
    phis, ys, others = data(key)
    root = condition_all(posterior.prior(SIZE, 1e-2, capacity=POINTS), phis, ys).root
    both = lambda root, z: (root.times(z), root.transpose_times(z))  # noqa: E731
    expected = jax.jit(both)(root, others[0])
    monkeypatch.setattr(roots, "LARGEST_FACTOR", SIZE - 1)
    jax.tree.map(close, jax.jit(lambda *given: both(*given))(root, others[0]), expected)


def test_both_forms_of_the_root_give_the_same_numbers(key, close):
    phis, ys, others = data(key)
    told = [condition_all(posterior.prior(SIZE, 1e-2, capacity=c), phis, ys) for c in FORMS]
    assert [type(belief.root) for belief in told] == [DenseRoot, ProductRoot]
    close(told[0].mean, told[1].mean)
    jax.tree.map(close, predict(told[0], others), predict(told[1], others))
    close(log_evidence(told[0]), log_evidence(told[1]))
    jax.tree.map(close, *(sample(key, belief) for belief in told))


@pytest.mark.parametrize("capacity", FORMS)
def test_observations_commute(capacity, key, close):
    phis, ys, others = data(key)
    start = posterior.prior(SIZE, 1e-2, capacity=capacity)
    order = np.random.default_rng(1).permutation(POINTS)
    there, back = condition_all(start, phis, ys), condition_all(start, phis[order], ys[order])
    close(there.mean, back.mean)
    jax.tree.map(close, predict(there, others), predict(back, others))
    close(log_evidence(there), log_evidence(back))


@pytest.mark.parametrize("capacity", FORMS)
def test_a_batch_is_its_points_one_by_one(capacity, key):
    phis, ys, _ = data(key)
    one_by_one = start = posterior.prior(SIZE, 1e-2, capacity=capacity)
    for phi, y in zip(phis, ys, strict=True):
        one_by_one = condition(one_by_one, phi, y)
    tight = {"rtol": 1e-5, "atol": 1e-5}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tight),
        condition_all(start, phis, ys),
        one_by_one,
    )


@pytest.mark.slow
@pytest.mark.parametrize("capacity", FORMS)
def test_a_batch_of_agents_is_its_agents(capacity, key, close):
    sets = [data(k) for k in jr.split(key, 3)]
    start = posterior.prior(SIZE, 1e-2, capacity=capacity)
    # Agents with 10, 7 and 3 observations.
    counts = np.array([[10], [7], [3]])
    ys = np.stack([s[1] for s in sets])
    ys = np.where(np.arange(POINTS)[None] < counts, ys, ys.dtype.type(np.nan))
    phis = np.stack([s[0] for s in sets])
    batch = jax.jit(jax.vmap(posterior.condition_all, in_axes=(None, 0, 0)))(start, phis, ys)
    for i in range(3):
        alone = condition_all(start, phis[i], ys[i])
        own = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        close(own.mean, alone.mean)
        jax.tree.map(close, predict(own, sets[i][2]), predict(alone, sets[i][2]))


@pytest.mark.parametrize("capacity", FORMS)
def test_the_same_point_many_times_is_one_point_with_less_noise(capacity, key, close):
    phis, _, others = data(key)
    start = posterior.prior(SIZE, 1e-2, capacity=capacity)
    ys = np.linspace(0, 1, POINTS).astype(phis.dtype)
    many = condition_all(start, np.tile(phis[:1], (POINTS, 1)), ys)
    once = condition(posterior.prior(SIZE, 1e-2 / POINTS), phis[0], np.mean(ys))
    jax.tree.map(close, predict(many, others), predict(once, others))


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize("capacity", FORMS)
def test_samples_have_the_posterior_mean_and_covariance(capacity, key):
    phis, ys, _ = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys)
    count = 40_000
    draws = jax.jit(jax.vmap(lambda k: posterior.sample(k, told)))(jr.split(key, count))
    mean, cov = dense(phis, ys, 1e-2)
    draws = np.asarray(draws, np.float64)
    # In the coordinates where the weights are standard normal, so that every direction counts.
    white = np.linalg.solve(np.linalg.cholesky(cov), (draws - mean).T)
    assert np.max(np.abs(np.mean(white, axis=1))) < 5 / np.sqrt(count)
    error = white @ white.T / count - np.eye(SIZE)
    assert np.max(np.abs(error)) < 5 * np.sqrt(2 / count)
    assert scipy.stats.kstest(white.ravel()[:: SIZE - 1], "norm").pvalue > 1e-4


def test_a_sample_is_the_mean_and_a_deviation(key):
    phis, ys, _ = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2), phis, ys)
    both = jax.jit(
        lambda key: (posterior.sample(key, told), told.mean + posterior.deviation(key, told))
    )
    np.testing.assert_array_equal(*both(key))


# ---------------------------------------------------------------- evidence


@pytest.mark.parametrize("capacity", FORMS)
def test_log_evidence_is_that_of_the_marginal(capacity, key):
    phis, ys, _ = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys)
    gram = np.asarray(phis, np.float64) @ np.asarray(phis, np.float64).T
    expected = scipy.stats.multivariate_normal.logpdf(ys, cov=gram + 1e-2 * np.eye(POINTS))
    np.testing.assert_allclose(log_evidence(told), expected, rtol=1e-4)


def test_log_evidence_of_a_combination_is_that_of_the_combined_values(key):
    phis, ys, _ = data(key, outputs=(2,))
    told = condition_all(posterior.prior(SIZE, 1e-2, outputs=(2,)), phis, ys)
    combination = jnp.array([0.7, -1.3])
    combined = np.asarray(ys, np.float64) @ np.asarray(combination, np.float64)
    gram = np.asarray(phis, np.float64) @ np.asarray(phis, np.float64).T
    expected = scipy.stats.multivariate_normal.logpdf(combined, cov=gram + 1e-2 * np.eye(POINTS))
    np.testing.assert_allclose(log_evidence(told, combination), expected, rtol=1e-4)


# ---------------------------------------------------------------- several outputs


@pytest.mark.parametrize("capacity", FORMS)
def test_every_output_is_a_posterior_of_its_own(capacity, key, close):
    phis, ys, others = data(key, outputs=(3,))
    together = condition_all(posterior.prior(SIZE, 1e-2, outputs=(3,), capacity=capacity), phis, ys)
    means, variances = predict(together, others)
    for i in range(3):
        alone = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis, ys[:, i])
        mean, variance = predict(alone, others)
        close(means[:, i], mean)
        close(variances, variance)
        close(together.quadratic[i, i], alone.quadratic)


# ---------------------------------------------------------------- failed evaluations, capacity


@pytest.mark.parametrize("capacity", FORMS)
@pytest.mark.parametrize("failed", [np.nan, np.inf, -np.inf])
def test_a_failed_evaluation_changes_no_bit(capacity, failed, key):
    phis, ys, others = data(key)
    told = condition_all(posterior.prior(SIZE, 1e-2, capacity=capacity), phis[:5], ys[:5])
    after = condition(told, others[0], jnp.asarray(failed, ys.dtype))
    same_bits(after, told)


def test_one_failed_output_fails_the_observation(key):
    phis, ys, others = data(key, outputs=(2,))
    told = condition_all(posterior.prior(SIZE, 1e-2, outputs=(2,)), phis, ys)
    same_bits(condition(told, others[0], jnp.array([1.0, jnp.nan])), told)


def test_failed_evaluations_take_up_no_capacity(key):
    phis, ys, _ = data(key)
    start = posterior.prior(SIZE, 1e-2, capacity=POINTS)
    both = np.stack([np.full_like(ys, np.nan), ys], axis=1).ravel()
    told = condition_all(start, np.repeat(phis, 2, axis=0), both)
    same_bits(told, condition_all(start, phis, ys))
    assert told.root.count == told.count == POINTS


def test_observations_beyond_the_capacity_change_no_bit(key):
    phis, ys, others = data(key)
    full = condition_all(posterior.prior(SIZE, 1e-2, capacity=POINTS), phis, ys)
    same_bits(condition(full, others[0], jnp.asarray(3.0)), full)


def test_the_root_is_a_product_where_that_is_smaller():
    kinds = {c: type(posterior.prior(SIZE, 1e-2, capacity=c).root) for c in (None, 1, 12, 25, 60)}
    assert kinds[1] is kinds[12] is ProductRoot
    assert kinds[None] is kinds[25] is kinds[60] is DenseRoot


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0, "noise": 1e-2}, "feature"),
        ({"size": 5, "noise": 0.0}, "noise must be positive"),
        ({"size": 5, "noise": -1.0}, "noise must be positive"),
        ({"size": 5, "noise": np.nan}, "noise must be positive"),
        ({"size": 5, "noise": 1e-2, "capacity": 0}, "capacity"),
    ],
)
def test_bad_sizes_and_noise_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        posterior.prior(**arguments)


# ---------------------------------------------------------------- accuracy

# Length scale, noise, features, points; median relative error of the variance and largest error of
# the mean relative to its largest value, as measured in float32 in two dimensions, rounded up. The
# benchmark prints the figures; here they may be three times worse.
ACCURACY = [
    (0.2, 1e-2, 100, 50, 3e-7, 4e-7),
    (0.2, 1e-4, 100, 50, 2e-6, 2e-6),
    (0.2, 1e-6, 100, 60, 1.5e-5, 3e-5),
    (0.5, 1e-6, 200, 150, 4e-5, 6e-7),
]


@pytest.mark.parametrize(
    ("scale", "noise", "size", "points", "variance_error", "mean_error"), ACCURACY
)
def test_float32_stays_accurate_down_to_small_noise(
    scale, noise, size, points, variance_error, mean_error, key
):
    phis, ys, others = (
        a.astype(np.float32) for a in data(key, size, points, scale=scale, noise=noise)
    )
    start = posterior.prior(size, jnp.asarray(noise, jnp.float32))
    mean, variance = predict(condition_all(start, phis, ys), others)
    assert mean.dtype == variance.dtype == jnp.float32
    mean, variance = np.asarray(mean, np.float64), np.asarray(variance, np.float64)
    true_mean, true_variance = dense_at(phis, ys, float(start.noise), others)
    assert np.median(np.abs(variance - true_variance) / true_variance) < 3 * variance_error
    assert np.max(np.abs(mean - true_mean)) / np.max(np.abs(true_mean)) < 3 * mean_error


def dense_at(phis, ys, noise, others):
    """Predictions by a Cholesky factorization of the normal equations in float64."""
    phis, ys, others = (np.asarray(a, np.float64) for a in (phis, ys, others))
    L = np.linalg.cholesky(phis.T @ phis + noise * np.eye(phis.shape[1]))
    white = np.linalg.solve(L, others.T)
    return white.T @ np.linalg.solve(L, phis.T @ ys), noise * np.sum(white**2, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [None, 60])
def test_float32_survives_hundreds_of_observations_with_hardly_any_noise(capacity, key):
    points = capacity or 400
    phis, ys, others = data(key, 100, points, scale=1.0, noise=1e-8, dim=1)
    start = posterior.prior(100, jnp.asarray(1e-8, phis.dtype), capacity=capacity)
    mean, variance = predict(condition_all(start, phis, ys), others)
    assert np.all(np.isfinite(mean))
    assert np.all((np.asarray(variance) >= 0) & (np.asarray(variance) <= 1e-4))


def test_every_part_is_exported_for_every_platform():
    def program(key, phis, ys):
        told = posterior.condition_all(posterior.prior(SIZE, 1e-2, capacity=POINTS), phis, ys)
        return posterior.sample(key, told), posterior.log_evidence(told)

    arguments = (
        jax.eval_shape(lambda: jr.key(0)),
        jax.ShapeDtypeStruct((POINTS, SIZE), jnp.result_type(float)),
        jax.ShapeDtypeStruct((POINTS,), jnp.result_type(float)),
    )
    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}
