"""Beliefs about one black box: values of any offset and scale, given or fitted hyperparameters."""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.models import fit
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential

DIM, SIZE, NOISE = 2, 30, 1e-2
FIXED = Fixed(SquaredExponential(0.3), SIZE, NOISE)
FITTED = Fitted(10, SquaredExponential(0.3), SIZE, NOISE, refit_every=3)
START = jnp.asarray(-1)  # before the first round


@eqx.filter_jit
def observe(model, shared, belief, x, y, round):
    return model.observe(shared, belief, x, y, round)


def told(model, shared, X, ys, first=-1):
    """The belief after observations in the rounds from `first` on; all before the start if negative."""
    belief = model.start(shared)
    for i, (x, y) in enumerate(zip(X, ys, strict=True)):
        round = START if first < 0 else jnp.asarray(first + i)
        belief = observe(model, shared, belief, x, y, round)
    return belief


@eqx.filter_jit
def predict(model, shared, belief, others):
    return jax.vmap(lambda x: model.predict(shared, belief, x))(others)


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def dense(phis, ys, noise, others):
    """Mean and variance at `others` of a linear model, in float64."""
    phis, ys, others = (np.asarray(a, np.float64) for a in (phis, ys, others))
    cov = noise * np.linalg.inv(phis.T @ phis + noise * np.eye(phis.shape[1]))
    return others @ cov @ phis.T @ ys / noise, np.sum((others @ cov) * others, axis=1)


def smooth(X):
    X = np.asarray(X)
    return np.sin(6 * X[:, 0]) + X[:, 1]


@pytest.fixture(scope="module")
def shared():
    return jax.jit(lambda key: FIXED.setup(key, DIM))(jr.key(1))


@pytest.fixture
def points():
    return jnp.asarray(np.random.default_rng(2).random((8, DIM)), float)


@pytest.fixture
def others():
    return jnp.asarray(np.random.default_rng(3).random((40, DIM)), float)


features_at = jax.jit(lambda phi, points: jax.vmap(phi)(points))


@eqx.filter_jit
def condition_and_refit(model, shared, X, ys):
    """Beliefs before and after a refit."""
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    belief = jax.lax.scan(step, model.start(shared), (X, ys))[0]
    return belief, model.refit(shared, belief)


@pytest.fixture
def close(x64):
    tolerance = 1e-9 if x64 else 5e-4
    return lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- given hyperparameters


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [None, 8])
def test_standardizing_as_it_goes_is_standardizing_in_advance(
    capacity, shared, points, others, close
):
    model = Fixed(FIXED.kernel, SIZE, NOISE, capacity=capacity)
    ys = 3 + 5 * smooth(points)
    mean, variance = predict(model, shared, told(model, shared, points, ys), others)
    y = np.asarray(ys, np.float64)
    expected = dense(
        features_at(shared, points), (y - y.mean()) / y.std(), NOISE, features_at(shared, others)
    )
    close(mean, y.mean() + y.std() * expected[0])
    close(variance, y.var() * expected[1])


def test_standardizing_is_exact_after_every_observation(shared, points, others, close):
    ys = 3 + 5 * smooth(points)
    belief, phis = FIXED.start(shared), features_at(shared, points)
    at_others = features_at(shared, others)
    for n in range(1, len(ys) + 1):
        belief = observe(FIXED, shared, belief, points[n - 1], ys[n - 1], START)
        y = np.asarray(ys[:n], np.float64)
        scale = y.std() if n > 1 else 1.0
        expected = dense(phis[:n], (y - y.mean()) / scale, NOISE, at_others)
        mean, variance = predict(FIXED, shared, belief, others)
        close(mean, y.mean() + scale * expected[0])
        close(variance, scale**2 * expected[1])


def test_without_standardizing_the_values_are_taken_as_they_are(shared, points, others, close):
    model = Fixed(FIXED.kernel, SIZE, NOISE, standardize=False)
    ys = 3 + 5 * smooth(points)
    found = predict(model, shared, told(model, shared, points, ys), others)
    expected = dense(features_at(shared, points), ys, NOISE, features_at(shared, others))
    jax.tree.map(close, found, expected)


def test_samples_are_of_the_posterior_of_standardized_values(key, shared, points, others):
    belief = told(FIXED, shared, points, 3 + 5 * smooth(points))
    count = 20_000
    draw = lambda k: jax.vmap(FIXED.sample(k, shared, belief))(others[:5])  # noqa: E731
    draws = np.asarray(jax.jit(jax.vmap(draw))(jr.split(key, count)), np.float64)
    y = np.asarray(3 + 5 * smooth(points), np.float64)
    mean, variance = dense(
        features_at(shared, points),
        (y - y.mean()) / y.std(),
        NOISE,
        features_at(shared, others)[:5],
    )
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / count))
    assert np.all(np.abs(draws.var(axis=0) / variance - 1) < 5 * np.sqrt(2 / count))


@pytest.mark.parametrize(("offset", "scale"), [(-40.0, 1.0), (0.0, 1e-3), (1e3, 250.0), (0.0, 1e4)])
def test_predictions_follow_offset_and_scale(offset, scale, shared, points, others, x64):
    ys = smooth(points)
    mean, variance = predict(FIXED, shared, told(FIXED, shared, points, ys), others)
    moved = told(FIXED, shared, points, offset + scale * ys)
    new_mean, new_variance = predict(FIXED, shared, moved, others)
    # Values themselves are rounded after the offset is added.
    rounding = 1e-9 if x64 else 2e-4 + 2e-6 * abs(offset) / scale
    np.testing.assert_allclose((new_mean - offset) / scale, mean, atol=rounding)
    np.testing.assert_allclose(new_variance / scale**2, variance, rtol=rounding)


@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_an_offset_of_a_million_leaves_the_sampled_function_as_it_was(offset, key, shared, points):
    # Multiples of 1/8 are exact in float32 after a million has been added.
    ys = np.round(8 * smooth(points)) / 8
    sample = lambda y: FIXED.sample(key, shared, told(FIXED, shared, points, y)).weights  # noqa: E731
    np.testing.assert_array_equal(sample(offset + ys), sample(ys))


@pytest.mark.parametrize("constant", [0.0, 7.0, -1e6])
def test_constant_values_give_finite_predictions_at_that_value(constant, shared, points, others):
    belief = told(FIXED, shared, points, np.full((8,), constant, points.dtype))
    mean, variance = predict(FIXED, shared, belief, others)
    np.testing.assert_allclose(mean, constant, rtol=1e-6)
    assert np.all((np.asarray(variance) > 0) & (np.asarray(variance) <= 1))


def test_values_that_differ_by_rounding_are_constant(shared, points, others):
    value = np.float32(1e6) if not jax.config.jax_enable_x64 else np.float64(1e6)
    ys = np.asarray(value + np.spacing(value) / 2 * np.array([0, 0, 2, 0, 0, 0, 0, 0]))
    mean, variance = predict(FIXED, shared, told(FIXED, shared, points, ys), others)
    np.testing.assert_allclose(mean, value, rtol=1e-6)
    assert np.all(np.isfinite(variance))


def test_without_observations_the_prediction_is_the_prior(shared, others):
    mean, variance = predict(FIXED, shared, FIXED.start(shared), others)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(variance, FIXED.kernel.variance, rtol=1e-5)


# ---------------------------------------------------------------- fitted hyperparameters


def test_hyperparameters_change_in_due_rounds_only(shared, points):
    belief, ys = FITTED.start(shared), smooth(points)
    for t, (x, y) in enumerate(zip(points, ys, strict=True)):
        after = observe(FITTED, shared, belief, x, y, jnp.asarray(t))
        unchanged = np.array_equal(after.kernel.length_scale, belief.kernel.length_scale)
        assert unchanged == (t % FITTED.refit_every != 0 or t + 1 < fit.FEWEST)
        belief = after


def test_nothing_is_fitted_before_the_first_round(shared, points):
    belief = told(FITTED, shared, points, smooth(points))
    same_bits((belief.kernel, belief.noise), (FITTED.kernel, FITTED.noise))


@pytest.mark.slow
def test_a_refit_is_the_fit_of_the_standardized_values(shared, points):
    ys = 3 + 5 * smooth(points)
    last = jnp.asarray(FITTED.refit_every * 2)
    before = told(FITTED, shared, points[:7], ys[:7])
    after = observe(FITTED, shared, before, points[7], ys[7], last)
    y = np.asarray(ys, np.float64)
    standardized = jnp.asarray((y - y.mean()) / y.std(), points.dtype)
    expected = eqx.filter_jit(fit.fit)(
        FITTED.kernel, FITTED.noise, points, standardized, priors=FITTED.prior
    )

    def evidence(kernel, noise):
        X = np.asarray(points, np.float64) / np.asarray(kernel.length_scale, np.float64)
        squares = np.sum((X[:, None] - X[None]) ** 2, axis=2)
        K = float(kernel.variance) * np.exp(-squares / 2) + float(noise) * np.eye(8)
        z = (y - y.mean()) / y.std()
        return -z @ np.linalg.solve(K, z) / 2 - np.linalg.slogdet(K)[1] / 2

    found = evidence(after.kernel, after.noise)
    assert found > evidence(FITTED.kernel, FITTED.noise)
    np.testing.assert_allclose(found, evidence(expected.kernel, expected.noise), atol=0.05)


@pytest.mark.slow
def test_after_a_refit_the_belief_is_that_of_all_data_under_the_new_kernel(
    shared, points, others, x64
):
    ys = 3 + 5 * smooth(points)
    belief = told(FITTED, shared, points, ys, 0)
    belief = observe(FITTED, shared, belief, others[0], jnp.asarray(2.0), jnp.asarray(9))
    assert not np.array_equal(belief.noise, FITTED.noise)
    afresh = Fixed(belief.kernel, SIZE, belief.noise)
    map_of_own = jax.jit(features.with_kernel)(shared, belief.kernel)
    X = np.concatenate([points, others[:1]])
    again = told(afresh, map_of_own, X, np.append(ys, ys.dtype.type(2)))
    tolerance = {"rtol": 1e-7, "atol": 1e-7} if x64 else {"rtol": 5e-3, "atol": 5e-3}
    for found, expected in zip(
        predict(FITTED, shared, belief, others),
        predict(afresh, map_of_own, again, others),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, **tolerance)


def test_between_refits_it_is_the_model_with_those_hyperparameters(shared, points, others, close):
    ys = 3 + 5 * smooth(points)
    fixed, fitted = (told(model, shared, points, ys) for model in (FIXED, FITTED))
    jax.tree.map(
        close, predict(FIXED, shared, fixed, others), predict(FITTED, shared, fitted, others)
    )


@pytest.mark.slow
def test_fitting_learns_a_length_scale_that_explains_the_data(key, others):
    # Values that vary along the first coordinate only, and slowly: the start is far too short.
    model = Fitted(40, SquaredExponential(jnp.full((DIM,), 0.05)), 200, 1e-2, refit_every=1)
    own = jax.jit(lambda key: model.setup(key, DIM))(key)
    X = np.random.default_rng(0).random((40, DIM))
    f = lambda X: np.sin(4 * np.asarray(X)[:, 0])  # noqa: E731
    told = jnp.asarray(X, float), jnp.asarray(f(X), float)
    before, after = condition_and_refit(model, own, *told)
    error = lambda b: np.max(np.abs(predict(model, own, b, others)[0] - f(others)))  # noqa: E731
    assert after.kernel.length_scale[1] > 3 * after.kernel.length_scale[0]
    assert error(after) < 0.1 < error(before)


def test_observations_beyond_the_capacity_change_no_bit(shared, points, others):
    X = np.concatenate([points, others[:2]])
    full = told(FITTED, shared, X, smooth(X), 0)
    for t in (10, 12):  # 12 is due
        same_bits(observe(FITTED, shared, full, others[5], jnp.asarray(9.0), jnp.asarray(t)), full)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("model", [FIXED, Fixed(FIXED.kernel, SIZE, NOISE, capacity=9), FITTED])
@pytest.mark.parametrize("failed", [np.nan, np.inf])
def test_a_failed_evaluation_changes_no_bit(model, failed, shared, points, others):
    belief = told(model, shared, points[:5], smooth(points[:5]), 0)
    for t in (5, 6):  # 6 is due
        y = jnp.asarray(failed, points.dtype)
        same_bits(observe(model, shared, belief, others[0], y, jnp.asarray(t)), belief)


@pytest.mark.parametrize("model", [FIXED, FITTED])
def test_a_failure_at_first_changes_no_bit(model, shared, others):
    start = jax.jit(lambda shared: model.start(shared))(shared)
    same_bits(observe(model, shared, start, others[0], jnp.asarray(jnp.nan), jnp.asarray(0)), start)


@pytest.mark.parametrize("model", [FIXED, FITTED])
def test_beliefs_keep_their_shapes_and_types(model, shared, points, x64):
    start = model.start(shared)
    after = observe(model, shared, start, points[0], jnp.asarray(1.0), jnp.asarray(0))
    kinds = lambda tree: [(a.shape, a.dtype) for a in jax.tree.leaves(tree)]  # noqa: E731
    assert kinds(start) == kinds(after)
    expected = jnp.float64 if x64 else jnp.float32
    found = {a.dtype for a in jax.tree.leaves(after) if jnp.issubdtype(a.dtype, jnp.floating)}
    assert found == {jnp.dtype(expected)}


@pytest.mark.slow
def test_a_batch_of_agents_refits_each_as_if_alone(shared, points, x64):
    ys = np.stack([smooth(points), -2 * smooth(points[:, ::-1])])
    before = [told(FITTED, shared, points[:7], y) for y in ys[:, :7]]
    due = jnp.asarray(3)
    alone = [
        observe(FITTED, shared, b, points[7], y, due) for b, y in zip(before, ys[:, 7], strict=True)
    ]
    step = jax.vmap(lambda belief, y: FITTED.observe(shared, belief, points[7], y, due))
    batch = jax.jit(step)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *before), ys[:, 7])
    tolerance = 1e-6 if x64 else 3e-2  # where the evidence is flat, rounding decides
    for i in range(2):
        np.testing.assert_allclose(
            jnp.log(batch.kernel.length_scale[i]),
            jnp.log(alone[i].kernel.length_scale),
            atol=tolerance,
        )


@pytest.mark.parametrize("model", [FIXED, FITTED])
def test_observing_and_sampling_are_exported_for_every_platform(model):
    def program(key, x, y):
        shared = model.setup(key, DIM)
        belief = model.observe(shared, model.start(shared), x, y, jnp.zeros((), int))
        return model.sample(key, shared, belief).weights, model.predict(shared, belief, x)

    arguments = (
        jax.eval_shape(lambda: jr.key(0)),
        jax.ShapeDtypeStruct((DIM,), jnp.result_type(float)),
        jax.ShapeDtypeStruct((), jnp.result_type(float)),
    )
    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fixed(noise=0.0), "noise must be positive"),
        (lambda: Fixed(size=0), "size must be"),
        (lambda: Fixed(capacity=0), "capacity must be"),
        (lambda: Fitted(0), "capacity must be"),
        (lambda: Fitted(5, refit_every=0), "refit_every must be"),
        (lambda: Fitted(5, noise=-1.0), "noise must be positive"),
    ],
)
def test_bad_configuration_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.slow
def test_the_kernel_keeps_its_form(shared, points):
    model = Fitted(8, Matern52(jnp.full((DIM,), 0.3)), SIZE, NOISE, refit_every=7)
    told = points[0], jnp.zeros(()), jnp.asarray(0)
    belief = eqx.filter_eval_shape(model.observe, shared, model.start(shared), *told)
    assert isinstance(belief.kernel, Matern52)
    assert belief.kernel.length_scale.shape == (DIM,)
