"""Models with hyperparameters of their own: the exact process, features, warped values."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from jaxbo.kernels.models.fit import Priors
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.models.warping import Warping
from jaxbo.kernels.processes import gp
from jaxbo.kernels.processes.covariance import KernelFunction, SquaredExponential
from jaxbo.kernels.processes.features import cosine, sine_cosine, with_kernel

DIM, SIZE, NOISE, CAPACITY = 2, 30, 1e-2, 12
KERNEL = SquaredExponential(jnp.array([0.3, 0.5]), 1.5)
INFERENCES = [OnFeatures(), Exact()]
#: Warping is the same for both: on features it is compiled in `make test-full` only.
WARPED = [pytest.param(OnFeatures(), marks=pytest.mark.full), Exact()]
BOTH = [
    (OnFeatures(), False),
    pytest.param(OnFeatures(), True, marks=pytest.mark.full),
    (Exact(), False),
    (Exact(), True),
]
BEFORE, DUE = jnp.asarray(-1), jnp.asarray(0)  # rounds in which nothing is fitted, and all is


def model_of(inference, warp=False, **options):
    return Fitted(
        CAPACITY, KERNEL, SIZE, NOISE, refit_every=1, inference=inference, warp=warp, **options
    )


EXACT, ON_FEATURES = model_of(Exact()), model_of(OnFeatures())


@eqx.filter_jit
def observe(model, shared, belief, x, y, round):
    return model.observe(shared, belief, x, y, round)


def told(model, shared, X, ys, last=BEFORE):
    """The belief after observations, the last of them in round `last`."""
    belief = model.start(shared)
    for i, (x, y) in enumerate(zip(X, ys, strict=True)):
        belief = observe(model, shared, belief, x, y, last if i == len(ys) - 1 else BEFORE)
    return belief


refitted = functools.partial(told, last=DUE)


@eqx.filter_jit
def conditioned(model, shared, X, ys):
    """`told` for a model that is used once: cheaper to compile, without the refit."""
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    return jax.lax.scan(step, model.start(shared), (X, ys))[0]


@eqx.filter_jit
def predict(model, shared, belief, others):
    return jax.vmap(lambda x: model.predict(shared, belief, x))(others)


@eqx.filter_jit
def log_evidence(model, belief):
    return model.log_evidence(belief)


@eqx.filter_jit
def samples(model, shared, belief, others, keys):
    return jax.vmap(lambda k: jax.vmap(model.sample(k, shared, belief))(others))(keys)


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def doubles(*arrays):
    return tuple(np.asarray(array, np.float64) for array in arrays)


def gram(kernel, X, Z):
    """Of a squared exponential, in float64."""
    scale, variance, X, Z = doubles(kernel.length_scale, kernel.variance, X, Z)
    distances = (X[:, None] - Z[None]) / scale
    return variance * np.exp(-np.sum(distances**2, axis=2) / 2)


def standardized(ys):
    (y,) = doubles(ys)
    return (y - y.mean()) / (y.std() if y.std() > 0 else 1.0)


def dense(kernel, noise, X, ys, others):
    """Mean and covariance at `others` of the exact process, given the standardized values."""
    K = gram(kernel, X, X) + float(noise) * np.eye(len(X))
    across = gram(kernel, others, X)
    mean = across @ np.linalg.solve(K, standardized(ys))
    return mean, gram(kernel, others, others) - across @ np.linalg.solve(K, across.T)


def dense_evidence(kernel, noise, X, ys):
    K = gram(kernel, X, X) + float(noise) * np.eye(len(X))
    return stats.multivariate_normal.logpdf(standardized(ys), cov=K)


def smooth(X):
    X = np.asarray(X)
    return np.sin(6 * X[:, 0]) + X[:, 1]


def values(X):
    return 3 + 5 * smooth(X)


@eqx.filter_jit
def setup(model, key):
    return model.setup(key, DIM)


@pytest.fixture(scope="module")
def shared():
    return setup(EXACT, jr.key(1))


@pytest.fixture
def points():
    return jnp.asarray(np.random.default_rng(2).random((10, DIM)), float)


@pytest.fixture
def others():
    return jnp.asarray(np.random.default_rng(3).random((20, DIM)), float)


features_at = jax.jit(lambda phi, points: jax.vmap(phi)(points))


@pytest.fixture
def close(x64):
    # In float32 with a noise of 1e-2: a few units of the fourth digit.
    tolerance = 1e-9 if x64 else 1e-3
    return lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def check_predictions(belief, shared, X, ys, others, close):
    mean, variance = predict(EXACT, shared, belief, others)
    expected_mean, expected_covariance = dense(belief.kernel, belief.noise, X, ys, others)
    (y,) = doubles(ys)
    scale = y.std() if len(y) > 1 else 1.0
    close((mean - y.mean()) / scale, expected_mean)
    close(variance / scale**2, np.diag(expected_covariance))


# ---------------------------------------------------------------- the exact process


def test_exact_predictions_after_every_observation_are_those_of_a_dense_process(
    shared, points, others, close
):
    ys, belief = values(points), EXACT.start(shared)
    for n in range(1, 11):
        belief = observe(EXACT, shared, belief, points[n - 1], ys[n - 1], BEFORE)
        check_predictions(belief, shared, points[:n], ys[:n], others, close)
    same_bits((belief.kernel, belief.noise), (KERNEL, EXACT.noise))


@pytest.mark.parametrize("last", [told, refitted])
def test_failed_evaluations_between_leave_the_dense_process_of_the_others(
    last, shared, points, others, close
):
    ys, failed = values(points), np.array([0, 3, 4])
    belief = last(EXACT, shared, points, np.where(np.isin(np.arange(10), failed), np.nan, ys))
    keep = np.delete(np.arange(10), failed)
    check_predictions(belief, shared, points[keep], ys[keep], others, close)


def test_after_a_refit_it_is_the_dense_process_with_the_hyperparameters_found(
    shared, points, others, close
):
    belief = refitted(EXACT, shared, points, values(points))
    assert not np.any(np.asarray(belief.kernel.length_scale) == np.asarray(KERNEL.length_scale))
    # Further observations too, and a failure.
    belief = observe(EXACT, shared, belief, others[0], values(others)[0], BEFORE)
    belief = observe(EXACT, shared, belief, others[1], values(others)[1] * jnp.nan, BEFORE)
    X = np.concatenate([points, others[:1]])
    check_predictions(belief, shared, X, values(X), others, close)


@pytest.mark.parametrize("last", [told, refitted])
def test_it_is_the_process_of_its_standardized_values(last, shared, points, others, close):
    ys = np.where(np.arange(10) == 4, np.nan, values(points))
    belief = last(EXACT, shared, points, ys)
    process = jax.jit(gp.build)(belief.kernel, belief.noise, belief.x, belief.standardized)
    expected = jax.jit(jax.vmap(gp.predict, (None, 0)))(process, others)
    found = jax.jit(jax.vmap(lambda x: EXACT.standardized(shared, belief, x)))(others)
    jax.tree.map(close, found, expected)
    close(log_evidence(EXACT, belief), jax.jit(gp.log_evidence)(process))


@pytest.mark.parametrize("last", [told, refitted])
def test_exact_evidence_is_the_normal_density_of_the_standardized_values(
    last, shared, points, close
):
    ys = values(points)
    belief = last(EXACT, shared, points, np.where(np.arange(10) == 4, np.nan, ys))
    keep = np.delete(np.arange(10), 4)
    expected = dense_evidence(belief.kernel, belief.noise, points[keep], ys[keep])
    close(log_evidence(EXACT, belief), expected)


def test_a_refit_raises_the_evidence_to_that_of_the_best_of_a_grid(shared, points):
    ys = values(points)
    unbiased = dataclasses.replace(EXACT, priors=Priors())
    belief = refitted(unbiased, shared, points, ys)
    grid = np.geomspace(0.05, 5, 12)
    best = max(
        dense_evidence(SquaredExponential(jnp.array([a, b]), v), noise, points, ys)
        for a in grid
        for b in grid
        for v in (0.3, 1, 3, 10)
        for noise in (1e-4, 1e-2)
    )
    assert log_evidence(EXACT, belief) > best - 0.1
    assert log_evidence(EXACT, belief) > log_evidence(EXACT, told(EXACT, shared, points, ys)) + 1


def test_without_observations_the_prediction_is_the_prior(shared, others):
    belief = EXACT.start(shared)
    mean, variance = predict(EXACT, shared, belief, others)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(variance, KERNEL.variance, rtol=1e-6)
    assert log_evidence(EXACT, belief) == 0


# ---------------------------------------------------------------- evidence on features


@pytest.mark.slow
def test_evidence_on_features_is_that_of_their_own_gram_matrix(shared, points, close):
    ys = values(points)
    for last in (told, refitted):
        belief = last(ON_FEATURES, shared, points, ys)
        (phi,) = doubles(features_at(with_kernel(shared, belief.kernel), points))
        K = phi @ phi.T + float(belief.noise) * np.eye(10)
        expected = stats.multivariate_normal.logpdf(standardized(ys), cov=K)
        close(log_evidence(ON_FEATURES, belief), expected)


@eqx.filter_jit
def evidences(model, keys, X, ys):
    """One a map of features."""

    def one(key):
        shared = model.setup(key, DIM)
        return model.log_evidence(conditioned(model, shared, X, ys))

    return jax.vmap(one)(keys)


@pytest.mark.slow
def test_evidence_on_features_tends_to_the_exact_one(key, shared, points):
    ys = values(points)
    exact = dense_evidence(KERNEL, NOISE, points, ys)
    errors = []
    for size in (50, 500, 5000):
        model = Fitted(CAPACITY, KERNEL, size, NOISE)
        errors.append(np.mean(np.abs(evidences(model, jr.split(key, 8), points, ys) - exact)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.1


# ---------------------------------------------------------------- samples through the data


def test_samples_have_mean_and_covariance_of_the_exact_posterior(key, shared, points, others):
    # With frequencies drawn for every sample the features are the kernel on average.
    count, ys = 20_000, values(points)
    belief = refitted(EXACT, shared, points, ys)

    @jax.jit
    @jax.vmap
    def draw(key):
        map_key, sample_key = jr.split(key)
        own = EXACT.setup(map_key, DIM)
        return jax.vmap(EXACT.sample(sample_key, own, belief))(others[:5])

    (draws,) = doubles(draw(jr.split(key, count)))
    mean, covariance = dense(belief.kernel, belief.noise, points, ys, others[:5])
    deviations = draws - mean
    products = deviations[:, :, None] * deviations[:, None, :]
    for found, expected in ((deviations, 0), (products, covariance)):
        error = found.std(axis=0) / np.sqrt(count)
        assert np.all(np.abs(found.mean(axis=0) - expected) < 5 * error)


def test_samples_of_one_map_of_many_features_are_of_the_exact_posterior(key, points, others):
    count, ys = 2_000, values(points)
    model = Fitted(CAPACITY, KERNEL, 500, NOISE, inference=Exact())
    shared = setup(model, key)
    belief = conditioned(model, shared, points, ys)
    (draws,) = doubles(samples(model, shared, belief, others[:5], jr.split(key, count)))
    mean, covariance = dense(KERNEL, NOISE, points, ys, others[:5])
    std = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * std / np.sqrt(count))
    # Features err by hundredths of the prior variance, and so do covariances.
    bound = 5 * np.sqrt(2 / count) * np.outer(std, std) + 0.02
    assert np.all(np.abs(np.cov(draws.T) - covariance) < bound)


def test_samples_pass_through_the_values_as_near_as_the_noise_allows(key, shared, points, x64):
    noise = 1e-8 if x64 else 1e-4
    model = Fitted(CAPACITY, KERNEL, SIZE, noise, inference=Exact())
    ys = values(points)
    belief = conditioned(model, shared, points, ys)
    draws = samples(model, shared, belief, points, jr.split(key, 100))
    # Posterior deviation at a point that was observed is at most that of the noise.
    assert np.max(np.abs(draws - standardized(ys)[None])) < 6 * np.sqrt(noise)
    assert np.all(np.std(draws, axis=0) > 0)


@pytest.mark.slow
def test_on_features_variance_starves_where_that_of_exact_samples_does_not(key):
    # 60 observations in the left half take up all of 30 features.
    rng = np.random.default_rng(0)
    observed = jnp.asarray(rng.random((60, DIM)) * [0.5, 1], float)
    away = jnp.asarray(rng.random((10, DIM)) * [0.2, 1] + [0.75, 0], float)
    kernel, variances = SquaredExponential(0.1), []
    for inference in INFERENCES:
        model = Fitted(60, kernel, 30, 1e-3, inference=inference)
        shared = setup(model, key)
        belief = conditioned(model, shared, observed, values(observed))
        draws = samples(model, shared, belief, away, jr.split(key, 2000))
        variances.append(float(np.mean(np.var(draws, axis=0))))
    _, covariance = dense(kernel, 1e-3, observed, values(observed), away)
    exact = np.mean(np.diag(covariance))
    on_features, pathwise = variances
    assert exact > 0.9
    assert on_features < 0.2 * exact
    assert exact / 1.5 < pathwise < 1.5 * exact


# ---------------------------------------------------------------- what leaves no mark


@pytest.mark.slow
@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_failures_and_observations_beyond_the_capacity_change_no_bit(inference, warp, shared):
    model = model_of(inference, warp)
    X = np.random.default_rng(0).random((CAPACITY, DIM)).astype(KERNEL.variance.dtype)
    ys = np.exp(values(X))
    belief = model.start(shared)
    for i, (x, y) in enumerate(zip(X, ys, strict=True)):
        for round in (BEFORE, DUE):
            for failed in (jnp.nan, jnp.inf):
                after = observe(model, shared, belief, X[0], X.dtype.type(failed), round)
                same_bits(after, belief)
        belief = observe(model, shared, belief, x, y, DUE if i == 7 else BEFORE)
    for round in (BEFORE, DUE):
        same_bits(observe(model, shared, belief, X[0], ys[0], round), belief)


@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_beliefs_keep_their_shapes_and_types(inference, warp, shared, points, x64):
    model = model_of(inference, warp)
    start = model.start(shared)
    after = observe(model, shared, start, points[0], values(points)[0], DUE)
    kinds = lambda tree: [(a.shape, a.dtype) for a in jax.tree.leaves(tree)]  # noqa: E731
    assert kinds(start) == kinds(after)
    found = {a.dtype for a in jax.tree.leaves(after) if jnp.issubdtype(a.dtype, jnp.floating)}
    assert found == {jnp.dtype(jnp.float64 if x64 else jnp.float32)}


# ---------------------------------------------------------------- hyperparameters


@pytest.mark.slow
def test_a_batch_of_agents_refits_each_as_if_alone(shared, points, x64):
    ys = np.stack([values(points), -2 * smooth(points[:, ::-1])])
    alone = [refitted(EXACT, shared, points, y) for y in ys]
    before = [told(EXACT, shared, points[:-1], y[:-1]) for y in ys]
    step = jax.vmap(lambda belief, y: EXACT.observe(shared, belief, points[-1], y, DUE))
    batch = jax.jit(step)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *before), ys[:, -1])
    tolerance = 1e-6 if x64 else 3e-2  # where the evidence is flat, rounding decides
    for i in range(2):
        np.testing.assert_allclose(
            jnp.log(batch.kernel.length_scale[i]),
            jnp.log(alone[i].kernel.length_scale),
            atol=tolerance,
        )
        np.testing.assert_allclose(
            log_evidence(EXACT, jax.tree.map(lambda leaf, i=i: leaf[i], batch)),
            log_evidence(EXACT, alone[i]),
            atol=tolerance,
        )


def test_a_length_scale_that_is_kept_stays_while_noise_and_variance_are_fitted(shared, points):
    # Outside of the bounds for length scales, too.
    kernel = SquaredExponential(jnp.array([0.3, 20.0]), 1.5)
    model = Fitted(CAPACITY, kernel, SIZE, NOISE, 1, inference=Exact(), keep_length_scale=True)
    belief = refitted(model, shared, points, values(points))
    np.testing.assert_allclose(belief.kernel.length_scale, kernel.length_scale, rtol=1e-6)
    assert abs(float(jnp.log(belief.kernel.variance / kernel.variance))) > 0.1
    assert abs(float(jnp.log(belief.noise / NOISE))) > 0.1


@pytest.mark.parametrize("inference", INFERENCES)
def test_without_an_interval_nothing_is_ever_fitted(inference, shared, points, close):
    model = Fitted(CAPACITY, KERNEL, SIZE, NOISE, refit_every=None, inference=inference)
    belief = refitted(model, shared, points, values(points))
    same_bits((belief.kernel, belief.noise), (KERNEL, model.noise))
    jax.tree.map(close, belief, conditioned(model, shared, points, values(points)))


def test_the_noise_of_the_exact_process_stays_at_1e_4_or_above(shared, points):
    without_noise = 0.5 * points[:, 0] + points[:, 1]
    exact, on_features = (
        refitted(model, shared, points, without_noise).noise for model in (EXACT, ON_FEATURES)
    )
    np.testing.assert_allclose(exact, 1e-4, rtol=0.2)
    assert exact >= 1e-4 * (1 - 1e-5)
    assert on_features < 5e-5


READY, NOT_READY = jnp.asarray(True), jnp.asarray(False)


@eqx.filter_jit
def focused(model, shared, belief, ready):
    return model.refit(shared, model.focused(belief, ready))


@pytest.mark.slow
@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_a_fit_to_the_better_half_is_one_to_raised_values(inference, warp, shared, points, others):
    def alike(a, b, tolerance=1e-3):
        both = (predict(model, shared, belief, others) for belief in (a, b))
        for one, other in zip(*both, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)

    model, ys = model_of(inference, warp), values(points)
    middle = np.sort(ys)[len(ys) // 2]
    given = jnp.asarray(np.stack([ys, np.maximum(ys, middle)]), float)
    whole, raised = (told(model, shared, points, y) for y in given)
    found = focused(model, shared, whole, READY)
    expected = focused(model, shared, raised, NOT_READY)
    alike(found, expected)
    # A later value below the median counts as the median too.
    x, low = others[0], jnp.asarray([ys.min() - 1, middle, np.nan], float)
    more, as_much, failed = (
        observe(model, shared, belief, x, y, BEFORE)
        for belief, y in zip((found, expected, found), low, strict=True)
    )
    alike(more, as_much)
    same_bits(failed, found)
    # The next fit sees all values again. It begins at other hyperparameters.
    back = focused(model, shared, found, READY)
    alike(back, focused(model, shared, whole, NOT_READY), 0.02)
    assert float(back.y[: len(ys)].min()) == pytest.approx(ys.min(), rel=1e-6)


@pytest.mark.parametrize(
    "ys",
    [[], [0.0] * 5 + [1.0] * 5, [0.0] * 8 + [1.0] * 2, np.arange(4.0), [*range(5), *[6] * 3, 7, 8]],
)
def test_without_enough_different_values_there_is_no_better_half(ys, shared, points):
    belief = told(EXACT, shared, points[: len(ys)], jnp.asarray(ys, float))
    same_bits(belief.y, EXACT.focused(belief, READY).y)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fitted(0), "capacity must be"),
        (lambda: Fitted(5, refit_every=0), "refit_every must be"),
        (lambda: Fitted(5, size=0), "size must be"),
        (lambda: Fitted(5, noise=-1.0), "noise must be positive"),
    ],
)
def test_bad_configuration_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---------------------------------------------------------------- functions of one's own


def own(x, z):
    return KERNEL(x, z)


OWN = Fitted(CAPACITY, own, SIZE, NOISE, refit_every=1, inference=Exact())


def test_an_exact_process_is_that_of_any_function_of_two_points(shared, points, others):
    features = setup(OWN, jr.key(0))
    expected, found = (
        predict(m, phi, conditioned(m, phi, points, values(points)), others)
        for m, phi in ((EXACT, shared), (OWN, features))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_refit_keeps_a_function_and_fits_its_noise(points, others):
    features = setup(OWN, jr.key(0))
    belief = refitted(OWN, features, points, values(points))
    assert float(belief.noise) != NOISE
    mean, cov = dense(KERNEL, belief.noise, points, values(points), others)
    moments = belief.moments
    found = predict(OWN, features, belief, others)
    np.testing.assert_allclose((found[0] - moments.offset) / moments.deviation, mean, atol=2e-3)
    np.testing.assert_allclose(found[1] / moments.deviation**2, np.diag(cov), atol=2e-3)


def test_samples_of_a_function_of_ones_own_have_the_moments_of_the_exact_posterior(points, others):
    features = setup(OWN, jr.key(0))
    belief = conditioned(OWN, features, points, values(points))
    drawn = samples(OWN, features, belief, others, jr.split(jr.key(1), 2000))
    mean, cov = dense(KERNEL, NOISE, points, values(points), others)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.12)
    np.testing.assert_allclose(np.cov(drawn.T), cov, atol=0.12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fitted(5, own), "a function k.* has none: give a kernel"),
        (lambda: Fitted(5, own, basis=cosine, inference=Exact()), "a function k.* has none"),
        (lambda: Fitted(5, own, inference=Exact(), keep_length_scale=True), "keep_length_scale is"),
        (lambda: Fixed(own), "a function k.* has none: give a kernel"),
        (
            lambda: functools.partial(sine_cosine)(jr.key(0), KernelFunction(own), 2, 4),
            "a function k.* has none",
        ),
        (
            lambda: Pooled().check(dataclasses.replace(OWN, refit_every=None)),
            "agree on length scales",
        ),
    ],
)
def test_where_a_spectral_density_is_needed_a_function_without_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---------------------------------------------------------------- warped values


@pytest.mark.slow
@pytest.mark.bitwise
@pytest.mark.parametrize("inference", WARPED)
def test_before_the_first_refit_nothing_is_warped_bit_for_bit(inference, shared, points, others):
    plain, warped = (
        told(model_of(inference, warp), shared, points, values(points)) for warp in (False, True)
    )
    same_bits((plain.y, plain.values, plain.model), (warped.y, warped.values, warped.model))
    for a, b in zip(
        predict(model_of(inference), shared, plain, others),
        predict(model_of(inference, True), shared, warped, others),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)  # two programs, each with a rounding of its own


def skewed(X):
    """Values of a long tail: the exponential of a smooth function."""
    return np.exp(2 * smooth(X))


@pytest.mark.parametrize("inference", WARPED)
def test_a_refit_makes_skewed_values_more_symmetric_and_keeps_their_order(
    inference, shared, points
):
    ys = skewed(points)
    belief = refitted(model_of(inference, True), shared, points, ys)
    u = np.asarray(belief.values)[:10]
    np.testing.assert_array_equal(np.argsort(u), np.argsort(ys))
    assert 0 <= belief.warping.power < 0.8
    assert abs(stats.skew(u)) < 0.8 * abs(stats.skew(ys))
    close = functools.partial(np.testing.assert_allclose, atol=2e-5)
    close(np.mean(belief.standardized[:10]), 0)
    close(np.std(belief.standardized[:10]), 1)


def inverse(warp: Warping, u):
    """scipy's transformation of the standardized values, inverted by bisection, in float64."""
    low, high = np.full_like(u, -1e6), np.full_like(u, 1e6)
    for _ in range(100):
        middle = 0.5 * (low + high)
        below = stats.yeojohnson(middle, float(warp.power)) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return float(warp.offset) + float(warp.scale) * middle


@pytest.mark.parametrize("inference", WARPED)
def test_predictions_are_the_moments_of_the_values_before_the_warping(
    inference, shared, points, others, x64
):
    model, ys = model_of(inference, True), skewed(points)
    belief = refitted(model, shared, points, ys)
    means, variances = predict(model, shared, belief, others)
    of_standardized = jax.jit(jax.vmap(lambda x: model.standardized(shared, belief, x)))(others)
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    weights = weights / weights.sum()
    moments = belief.moments
    offset, deviation = float(moments.offset), float(moments.deviation)
    for mean, variance, m, v in zip(means, variances, *doubles(*of_standardized), strict=True):
        y = inverse(belief.warping, offset + deviation * (m + np.sqrt(v) * nodes))
        expected = np.sum(weights * y)
        std = np.sqrt(np.sum(weights * (y - expected) ** 2))
        assert abs(mean - expected) < 5e-3 * std
        np.testing.assert_allclose(np.sqrt(variance), std, rtol=1e-2)


def test_warped_predictions_of_skewed_values_are_nearer_to_the_truth(shared):
    # Twenty draws of points; at twenty others each.
    errors = []
    for i in range(20):
        X = np.random.default_rng(i).random((CAPACITY + 20, DIM)).astype(KERNEL.variance.dtype)
        X, others = X[:CAPACITY], X[CAPACITY:]
        errors.append([])
        for warp in (False, True):
            model = model_of(Exact(), warp)
            mean, _ = predict(model, shared, refitted(model, shared, X, skewed(X)), others)
            errors[-1].append(np.mean(np.abs(mean - skewed(others))))
    plain, warped = np.transpose(errors)
    assert np.mean(warped) < 0.8 * np.mean(plain)
    assert np.mean(warped < plain) > 0.7


# ---------------------------------------------------------------- values of any kind


# Powers of two, so that in standardized units not a bit changes; the last are 1e15 and 1e-15, because
# squares of values must neither overflow nor vanish.
SCALES = [(0, 20), (0, -20), (2**20, 0), (-(2**20), 10), (0, 50), (0, -50)]


@pytest.mark.parametrize(("offset", "power"), SCALES)
@pytest.mark.parametrize("last", [told, refitted])
@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_beliefs_follow_offset_and_scale(
    inference, warp, last, offset, power, shared, points, others, key
):
    model, scale = model_of(inference, warp), 2.0**power
    # Multiples of 1/8 are exact in float32 after a million has been added, and of an odd number of
    # them the median is one, too.
    ys = np.round(8 * smooth(points[:9])) / 8
    belief = last(model, shared, points[:9], ys)
    moved = last(model, shared, points[:9], offset + scale * ys)
    same_bits(log_evidence(model, moved), log_evidence(model, belief))
    new, old = (samples(model, shared, b, others, jr.split(key, 3)) for b in (moved, belief))
    same_bits(new, old)
    mean, variance = predict(model, shared, belief, others)
    new_mean, new_variance = predict(model, shared, moved, others)
    rounding = 4 * float(np.spacing(np.asarray(abs(offset), points.dtype))) / scale
    np.testing.assert_allclose((new_mean - offset) / scale, mean, rtol=1e-5, atol=1e-5 + rounding)
    assert not np.any(np.isnan(new_variance))
    if abs(power) < 60:  # the square of more is not in the range of float32
        np.testing.assert_allclose(new_variance / scale**2, variance, rtol=1e-5)


@pytest.mark.parametrize(
    "ys", [np.zeros(10), np.full(10, 7.0), np.full(10, -1e16)], ids=["0", "7", "-1e16"]
)
@pytest.mark.parametrize("last", [told, refitted])
@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_constant_values_give_predictions_of_that_value(
    inference, warp, last, ys, key, shared, points, others
):
    model = model_of(inference, warp)
    belief = last(model, shared, points, np.asarray(ys, points.dtype))
    mean, variance = predict(model, shared, belief, others)
    np.testing.assert_allclose(mean, ys[0], rtol=1e-5)
    assert np.all((np.asarray(variance) > 0) & np.isfinite(variance))
    assert np.all(np.isfinite(samples(model, shared, belief, others, jr.split(key, 3))))
    assert np.isfinite(log_evidence(model, belief))


@pytest.mark.parametrize("last", [told, refitted])
@pytest.mark.parametrize(("inference", "warp"), BOTH)
def test_repeated_points_give_finite_predictions(inference, warp, last, key, shared, others):
    model = model_of(inference, warp)
    X, ys = np.tile(others[:2], (5, 1)), np.tile(np.array([1.0, 3.0], others.dtype), 5)
    belief = last(model, shared, X, ys)
    mean, variance = predict(model, shared, belief, X)
    np.testing.assert_allclose(mean, ys, atol=0.1)
    assert np.all((np.asarray(variance) > 0) & np.isfinite(variance))
    assert np.all(np.isfinite(samples(model, shared, belief, others, jr.split(key, 3))))
    assert np.isfinite(log_evidence(model, belief))


# ---------------------------------------------------------------- programs


@pytest.mark.slow
@pytest.mark.parametrize("inference", WARPED)
def test_observing_and_sampling_are_exported_for_every_platform(inference):
    model = model_of(inference, warp=True)

    def program(key, x, y):
        shared = model.setup(key, DIM)
        belief = model.observe(shared, model.start(shared), x, y, jnp.zeros((), int))
        return model.sample(key, shared, belief)(x), model.predict(shared, belief, x)

    arguments = (
        jax.eval_shape(lambda: jr.key(0)),
        jax.ShapeDtypeStruct((DIM,), jnp.result_type(float)),
        jax.ShapeDtypeStruct((), jnp.result_type(float)),
    )
    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}
