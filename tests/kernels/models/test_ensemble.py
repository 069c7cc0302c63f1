"""Ensembles of kernels: one alone, weights by Bayes' rule in float64, draws, numbers of any size."""

import functools

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

from jaxbo.kernels.models.ensemble import Ensemble, mixed
from jaxbo.kernels.models.fit import LogNormal, Priors
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.processes.covariance import Matern12, Matern52, SquaredExponential
from jaxbo.kernels.processes.features import with_kernel

DIM, SIZE, NOISE, CAPACITY = 2, 30, 1e-2, 10
# Of several forms, with one length scale and with one for each coordinate.
KERNELS = (
    SquaredExponential(0.3, 1.5),
    Matern52(jnp.array([0.2, 0.6])),
    Matern12(0.5, 0.7),
)
INFERENCES = [OnFeatures(), Exact()]
#: Of these the second is compiled in `make test-full` only: `test_fitted` has it.
QUICK = [OnFeatures(), pytest.param(Exact(), marks=pytest.mark.full)]
BEFORE, DUE = jnp.asarray(-1), jnp.asarray(0)  # rounds in which nothing is fitted, and all is


def expert(inference, capacity=CAPACITY, size=SIZE, **options):
    return Fitted(capacity, size=size, noise=NOISE, refit_every=1, inference=inference, **options)


def alone(kernel, inference, **options):
    return eqx.tree_at(lambda e: e.kernel, expert(inference, **options), kernel)


@eqx.filter_jit
def setup(model, key, dim):
    return model.setup(key, dim)


@eqx.filter_jit
def observe(model, shared, belief, x, y, round):
    return model.observe(shared, belief, x, y, round)


@eqx.filter_jit
def conditioned(model, shared, X, ys):
    """The belief after observations before the first round, which fit nothing."""
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    return jax.lax.scan(step, model.start(shared), (X, ys))[0]


@eqx.filter_jit
def refit(model, shared, belief):
    return model.refit(shared, belief)


def refitted(model, shared, X, ys):
    return refit(model, shared, conditioned(model, shared, X, ys))


@eqx.filter_jit
def features_of(phis, points):
    """Of each map at all points."""
    return jax.vmap(lambda phi: jax.vmap(phi)(points))(phis)


@eqx.filter_jit
def predict(model, shared, belief, others):
    return jax.vmap(lambda x: model.predict(shared, belief, x))(others)


@eqx.filter_jit
def samples(model, shared, belief, others, keys):
    return jax.vmap(lambda k: jax.vmap(model.sample(k, shared, belief))(others))(keys)


@eqx.filter_jit
def log_weights(model, shared, belief):
    return model.log_weights(shared, belief)


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def doubles(*arrays):
    return tuple(np.asarray(array, np.float64) for array in arrays)


CORRELATIONS = {
    SquaredExponential: lambda s: np.exp(-s / 2),
    Matern12: lambda s: np.exp(-np.sqrt(s)),
    Matern52: lambda s: (1 + np.sqrt(5 * s) + 5 * s / 3) * np.exp(-np.sqrt(5 * s)),
}


def standardized(ys):
    (y,) = doubles(ys)
    return (y - y.mean()) / y.std()


def evidence(form, length_scale, variance, noise, X, ys):
    """Of the standardized values under an exact process."""
    scale, variance, noise, X = doubles(length_scale, variance, noise, X)
    s = np.sum(((X[:, None] - X[None]) / scale) ** 2, axis=2)
    K = variance * CORRELATIONS[form](s) + noise * np.eye(len(X))
    return stats.multivariate_normal.logpdf(standardized(ys), cov=K)


def smooth(X):
    X = np.asarray(X)
    return np.sin(6 * X[:, 0]) + X[:, 1]


def values(X):
    return 3 + 5 * smooth(X)


@pytest.fixture
def points(key):
    return jr.uniform(jr.fold_in(key, 2), (8, DIM))


@pytest.fixture
def others(key):
    return jr.uniform(jr.fold_in(key, 3), (20, DIM))


@pytest.fixture
def close(x64):
    tolerance = 1e-9 if x64 else 1e-3
    return lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- one kernel


@pytest.mark.slow
@pytest.mark.parametrize("inference", QUICK)
def test_one_kernel_is_its_expert_alone(inference, key, points, others, x64):
    ensemble, single = Ensemble(KERNELS[:1], expert(inference)), alone(KERNELS[0], inference)
    shared, own = setup(ensemble, key, DIM), setup(single, jr.split(key, 1)[0], DIM)
    same_bits(shared.features, jax.tree.map(lambda leaf: leaf[None], own))
    belief = conditioned(ensemble, shared, points, values(points))
    expected = conditioned(single, own, points, values(points))
    tolerance = 1e-6 if x64 else 1e-4
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(
        close,
        predict(ensemble, shared, belief, others),
        predict(single, own, expected, others),
    )
    keys = jr.split(key, 5)
    within = jax.vmap(lambda k: jr.split(k)[1])(keys)  # the first half draws the expert
    close(
        samples(ensemble, shared, belief, others, keys),
        samples(single, own, expected, others, within),
    )
    assert ensemble.count(belief) == single.count(expected) == 8
    np.testing.assert_array_equal(log_weights(ensemble, shared, belief), [0])


# ---------------------------------------------------------------- weights


@pytest.mark.slow
def test_weights_are_bayes_rule_on_exact_evidence(key, points, x64):
    ensemble, ys = Ensemble(KERNELS, expert(Exact())), values(points)
    shared = setup(ensemble, key, DIM)
    tolerance = 1e-9 if x64 else 2e-3
    for last in (conditioned, refitted):
        belief = last(ensemble, shared, points, ys)
        found = belief.kernel.length_scale, belief.kernel.variance, belief.noise
        evidences = [
            evidence(type(kernel), *(part[m] for part in found), points, ys)
            for m, kernel in enumerate(KERNELS)
        ]
        expected = evidences - special.logsumexp(evidences)
        np.testing.assert_allclose(log_weights(ensemble, shared, belief), expected, atol=tolerance)


def recursion(weights, phis, noise, ys):
    """Equations (10) and (11) in float64: phis of all experts, and the weights after all values."""
    weights, phis, ys = doubles(weights, phis, ys)
    means = np.zeros((len(phis), phis.shape[2]))
    covariances = np.stack([np.eye(phis.shape[2])] * len(phis))
    for t, y in enumerate(ys):
        phi = phis[:, t]
        predicted = np.einsum("mi,mi->m", phi, means)
        gain = np.einsum("mij,mj->mi", covariances, phi)
        s = np.einsum("mi,mi->m", phi, gain) + noise
        weights = weights * stats.norm.pdf(y, predicted, np.sqrt(s))
        weights = weights / weights.sum()
        means = means + gain * ((y - predicted) / s)[:, None]
        covariances = covariances - gain[:, :, None] * gain[:, None, :] / s[:, None, None]
    return weights


def test_the_recursion_of_weights_is_their_batch_form(key, points, x64):
    ensemble, ys = Ensemble(KERNELS, expert(OnFeatures())), values(points)
    shared = setup(ensemble, key, DIM)
    # What else is drawn has a key of its own.
    keys = jr.key_data(jr.split(key, len(KERNELS) + 1))
    np.testing.assert_array_equal(jr.key_data(shared.draws.key), keys[-1])
    belief = conditioned(ensemble, shared, points, ys)
    phis = features_of(shared.features, points)
    y = standardized(ys)
    recursive = recursion(np.full(3, 1 / 3), phis, NOISE, y)
    (phis,) = doubles(phis)
    K = phis @ phis.transpose(0, 2, 1) + NOISE * np.eye(8)
    batch = special.softmax([stats.multivariate_normal.logpdf(y, cov=k) for k in K])
    np.testing.assert_allclose(recursive, batch, atol=1e-10)
    found = np.exp(log_weights(ensemble, shared, belief))
    np.testing.assert_allclose(found, recursive, atol=1e-9 if x64 else 2e-3)


@pytest.mark.slow
def test_after_a_refit_weights_start_anew_from_the_batch_form_and_go_on_by_recursion(
    key, points, x64
):
    ensemble, ys = Ensemble(KERNELS, expert(OnFeatures())), values(points)
    shared = setup(ensemble, key, DIM)
    # In a round that is due the last of six observations is followed by a refit.
    belief = conditioned(ensemble, shared, points[:-3], ys[:-3])
    for x, y, round in zip(points[-3:], ys[-3:], (DUE, BEFORE, BEFORE), strict=True):
        belief = observe(ensemble, shared, belief, x, y, round)
    of_new = jax.jit(jax.vmap(with_kernel))(shared.features, belief.kernel)
    (phis,) = doubles(features_of(of_new, points))
    noise = np.asarray(belief.noise, np.float64)
    K = phis @ phis.transpose(0, 2, 1) + noise[:, None, None] * np.eye(8)
    evidences = [stats.multivariate_normal.logpdf(standardized(ys), cov=k) for k in K]
    expected = evidences - special.logsumexp(evidences)
    found = log_weights(ensemble, shared, belief)
    # With a noise of 1e-5 evidence is hundreds of nats, each to seven digits.
    tolerance = 1e-7 * np.max(np.abs(evidences)) if x64 else 1e-3 * np.max(np.abs(evidences))
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.slow
def test_weights_on_features_tend_to_the_exact_ones(key, points):
    ys, errors = values(points), []
    evidences = [evidence(type(k), k.length_scale, k.variance, NOISE, points, ys) for k in KERNELS]
    expected = np.asarray(evidences - special.logsumexp(evidences))

    for size in (50, 5000):
        ensemble, distances = Ensemble(KERNELS, expert(OnFeatures(), size=size)), []
        for k in jr.split(key, 4):
            shared = setup(ensemble, k, DIM)
            found = log_weights(ensemble, shared, conditioned(ensemble, shared, points, ys))
            distances.append(np.abs(np.asarray(found) - expected))
        errors.append(np.mean(distances))
    assert errors[0] > 4 * errors[1]
    assert errors[1] < 0.2


def test_without_observations_weights_are_equal(key):
    ensemble = Ensemble(KERNELS, expert(Exact()))
    shared = setup(ensemble, key, DIM)
    found = log_weights(ensemble, shared, ensemble.start(shared))
    np.testing.assert_allclose(found, -np.log(3), rtol=1e-6)


# ---------------------------------------------------------------- a dictionary of ten decades


SCALES = 10.0 ** np.arange(-4, 7)
DICTIONARY = tuple(SquaredExponential(scale) for scale in SCALES)


def dictionary(inference, **options):
    return Ensemble(DICTIONARY, expert(inference, 24, keep_length_scale=True, **options))


@jax.jit
def drawn_numbers(key):
    point_key, value_key = jr.split(key)
    return jr.uniform(point_key, (24, 1)), jr.normal(value_key, (24,))


def prior_draw(key, scale):
    """24 noisy values on a line of a function of this length scale."""
    X, normals = doubles(*drawn_numbers(key))
    K = np.exp(-(((X - X.T) / scale) ** 2) / 2) + NOISE * np.eye(24)
    return jnp.asarray(X, float), jnp.asarray(np.linalg.cholesky(K) @ normals, float)


@pytest.mark.slow
@pytest.mark.parametrize("inference", QUICK)
def test_the_length_scale_of_the_data_gets_the_largest_weight(inference, key):
    ensemble, right = dictionary(inference), 0
    shared = setup(ensemble, key, 1)
    for k in jr.split(key, 10):
        belief = refitted(ensemble, shared, *prior_draw(k, 0.1))
        np.testing.assert_allclose(belief.kernel.length_scale, SCALES, rtol=1e-5)
        right += int(np.argmax(log_weights(ensemble, shared, belief))) == 3
    assert right >= 9


@eqx.filter_jit
def seen(model, shared, belief, others, key):
    """All numbers that a search would see."""
    return (
        model.log_weights(shared, belief),
        jax.vmap(lambda x: model.predict(shared, belief, x))(others),
        samples(model, shared, belief, others, jr.split(key, 20)),
    )


AWKWARD = {
    "constant": lambda y: 0 * y + 3,
    "zero": lambda y: 0 * y,
    "two values": lambda y: np.where(y > 0, 1.0, 0.0),
    "tiny": lambda y: 1e-20 * y,
    "huge": lambda y: 1e15 * y,
    "far": lambda y: 1e6 + y,
    "enormous": lambda y: 1e37 * y,
    "a penalty": lambda y: np.where(np.arange(y.size) == 3, -1e30, y),
    "the worst penalty": lambda y: np.where(np.arange(y.size) == 0, np.finfo(y.dtype).min, y),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize(
    ("inference", "warp"),
    [
        (OnFeatures(), False),
        pytest.param(OnFeatures(), True, marks=pytest.mark.full),
        pytest.param(Exact(), False, marks=pytest.mark.full),
        (Exact(), True),
    ],
)
def test_all_numbers_are_finite_over_ten_decades(inference, warp, repeats, kind, key):
    ensemble = dictionary(inference, warp=warp)
    shared = setup(ensemble, key, 1)
    X, ys = map(np.asarray, prior_draw(key, 0.1))
    X, others = np.tile(X[: 24 // repeats], (repeats, 1)), jr.uniform(key, (20, 1))
    ys = jnp.asarray(AWKWARD[kind](ys), float)
    belief = conditioned(ensemble, shared, jnp.asarray(X), ys)
    for after in (belief, refit(ensemble, shared, belief)):
        weights, (means, variances), draws = seen(ensemble, shared, after, others, key)
        np.testing.assert_allclose(np.sum(np.exp(weights)), 1, rtol=1e-5)
        for numbers in (weights, means, draws):
            assert np.all(np.isfinite(numbers))
        assert not np.any(np.isnan(variances))  # that of huge values may be out of range


# ---------------------------------------------------------------- draws


def weighed(key, floor, inference):
    """An ensemble and a belief whose weights are moderate: of five values."""
    ensemble = Ensemble(KERNELS, expert(inference), floor)
    shared, X = (
        setup(ensemble, key, DIM),
        jnp.array([[0.1, 0.2], [0.3, 0.3], [0.5, 0.8], [0.6, 0.1], [0.9, 0.7]]),
    )
    return ensemble, shared, conditioned(ensemble, shared, X, values(X))


def check_frequencies(drawn, probabilities):
    """By a chi-square test of level 1e-4."""
    counts = np.bincount(np.asarray(drawn), minlength=len(probabilities))
    certain = probabilities > 0
    assert counts[~certain].sum() == 0
    if certain.sum() == 1:  # the one that all draws are, then
        return
    expected = probabilities[certain] / probabilities[certain].sum() * counts.sum()
    assert stats.chisquare(counts[certain], expected).pvalue > 1e-4


@eqx.filter_jit
def drawn(model, shared, belief, keys):
    return jax.vmap(lambda k: model.draw(k, shared, belief))(keys)


@pytest.mark.parametrize("floor", [0.0, 1e-4, 0.3, 1 / 3])
def test_experts_are_drawn_by_weight_or_by_the_floor_if_that_is_more(floor, key):
    ensemble, shared, belief = weighed(key, floor, Exact())
    (weights,) = doubles(np.exp(log_weights(ensemble, shared, belief)))
    assert 0.01 < weights.min() < 0.3
    numbers = drawn(ensemble, shared, belief, jr.split(key, 20_000))
    check_frequencies(numbers, np.maximum(weights, floor))


@pytest.mark.parametrize("floor", [0.0, 0.01, 1 / 11])
def test_the_floor_is_what_hopeless_experts_are_drawn_with(floor, key):
    ensemble = eqx.tree_at(lambda e: e.floor, dictionary(Exact()), jnp.asarray(floor, float))
    shared = setup(ensemble, key, 1)
    belief = conditioned(ensemble, shared, *prior_draw(key, 0.1))
    (weights,) = doubles(np.exp(log_weights(ensemble, shared, belief)))
    assert weights[6:].max() < 1e-20
    numbers = drawn(ensemble, shared, belief, jr.split(key, 20_000))
    probabilities = np.maximum(weights, floor)
    check_frequencies(numbers, np.where(probabilities < 1e-9, 0, probabilities))


def test_with_equal_weights_and_the_largest_floor_draws_are_uniform(key):
    ensemble = Ensemble(KERNELS, expert(OnFeatures()), 1 / 3)
    shared = setup(ensemble, key, DIM)
    numbers = drawn(ensemble, shared, ensemble.start(shared), jr.split(key, 20_000))
    check_frequencies(numbers, np.full(3, 1 / 3))


def test_the_floor_does_not_change_weights_or_predictions(key, others):
    low, high = (weighed(key, floor, Exact()) for floor in (0.0, 1 / 3))
    same_bits(log_weights(*low), log_weights(*high))
    same_bits(predict(*low, others), predict(*high, others))


@pytest.mark.slow
def test_mean_and_variance_are_those_of_samples(key, others):
    # Law of total variance: within experts and between them.
    ensemble, shared, belief = weighed(key, 0.0, OnFeatures())
    count = 20_000
    (draws,) = doubles(samples(ensemble, shared, belief, others[:5], jr.split(key, count)))
    mean, variance = doubles(*predict(ensemble, shared, belief, others[:5]))
    moments = jax.tree.map(lambda leaf: leaf[0], belief.moments)
    draws = float(moments.offset) + float(moments.deviation) * draws
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / count))
    squares = (draws - mean) ** 2
    error = squares.std(axis=0) / np.sqrt(count)
    assert np.all(np.abs(squares.mean(axis=0) - variance) < 5 * error)


def test_moments_of_a_mixture_are_those_of_its_density(x64):
    weights, means, variances = np.array([[0.2, 0.5, 0.3], [-1.0, 0.5, 4.0], [0.3, 2.0, 0.1]])
    y = np.linspace(-15, 15, 200_001)
    density = weights @ stats.norm.pdf(y, means[:, None], np.sqrt(variances)[:, None])
    mean = np.trapezoid(y * density, y)
    expected = mean, np.trapezoid((y - mean) ** 2 * density, y)
    found = mixed(*(jnp.asarray(part, float) for part in (weights, means, variances)))
    np.testing.assert_allclose(found, expected, rtol=1e-9 if x64 else 1e-6)


# ---------------------------------------------------------------- several forms


@eqx.filter_jit
def seen_by(single, own, belief, others):
    return jax.vmap(lambda x: single.predict(own, belief, x))(others), single.log_evidence(belief)


@pytest.mark.slow
@pytest.mark.parametrize("inference", INFERENCES)
def test_every_expert_is_that_of_its_own_form(inference, key, points, others, close):
    ensemble, ys = Ensemble(KERNELS, expert(inference)), values(points)
    shared = setup(ensemble, key, DIM)
    belief = conditioned(ensemble, shared, points, ys)
    each = jax.jit(lambda b: shared.map(lambda e, phi, b: seen_by(e, phi, b, others), b))(belief)
    for m, kernel in enumerate(KERNELS):
        single = alone(kernel, inference)
        own = jax.tree.map(lambda leaf, m=m: leaf[m], shared.features)
        expected = conditioned(single, own, points, ys)
        found = jax.tree.map(lambda leaf, m=m: leaf[m], each)
        jax.tree.map(close, found, seen_by(single, own, expected, others))


@pytest.mark.slow
@pytest.mark.parametrize(
    "priors",
    [None, pytest.param(Priors(length_scale=LogNormal(2.0, 0.1)), marks=pytest.mark.full)],
)
@pytest.mark.parametrize("number", [0, 1])
def test_a_refit_finds_for_every_expert_what_it_finds_alone(number, priors, key, points):
    # The first is isotropic and stays so; the second has a length scale for each coordinate.
    ensemble = Ensemble(KERNELS, expert(Exact(), priors=priors))
    single = alone(KERNELS[number], Exact(), priors=priors)
    shared, own = setup(ensemble, key, DIM), setup(single, key, DIM)
    belief = refitted(ensemble, shared, points, values(points))
    expected = refitted(single, own, points, values(points))
    scales = belief.kernel.length_scale[number]
    assert (scales[0] == scales[1]) == (number == 0)
    of_all = eqx.filter_jit(lambda b: shared.map(lambda e, phi, b: e.log_evidence(b), b))
    alone_by_itself = eqx.filter_jit(single.log_evidence)(expected)
    np.testing.assert_allclose(of_all(belief)[number], alone_by_itself, atol=0.05)


# ---------------------------------------------------------------- what leaves no mark, programs


@pytest.mark.slow
@pytest.mark.parametrize("inference", QUICK)
def test_failures_and_observations_beyond_the_capacity_change_no_bit(inference, key):
    ensemble = Ensemble(KERNELS, expert(inference))
    shared, X = setup(ensemble, key, DIM), jr.uniform(key, (CAPACITY, DIM))
    ys = values(X)
    belief = refitted(ensemble, shared, X[:5], ys[:5])
    for round in (BEFORE, DUE):
        same_bits(observe(ensemble, shared, belief, X[5], ys[5] * jnp.nan, round), belief)
    belief = conditioned(ensemble, shared, X, ys)
    for round in (BEFORE, DUE):
        same_bits(observe(ensemble, shared, belief, X[0], ys[1], round), belief)
    assert ensemble.count(belief) == CAPACITY == ensemble.capacity


TRACES = []


@eqx.filter_jit
def program(ensemble, key, X, ys):
    TRACES.append(1)
    setup_key, sample_key = jr.split(key)
    shared = setup(ensemble, setup_key, DIM)
    belief = conditioned(ensemble, shared, X, ys)
    f = ensemble.sample(sample_key, shared, belief)
    return f(X[0]), ensemble.predict(shared, belief, X[1]), ensemble.log_weights(shared, belief)


@pytest.mark.slow
@pytest.mark.parametrize("inference", QUICK)
def test_other_numbers_do_not_compile_anew(inference, key, points):
    first = program(Ensemble(KERNELS, expert(inference), 0.1), key, points, values(points))
    kernels = tuple(k.with_hyperparameters(2 * k.length_scale, 3 * k.variance) for k in KERNELS)
    other = eqx.tree_at(lambda e: e.noise, expert(inference), jnp.asarray(0.1, float))
    ensemble, before = Ensemble(kernels, other, 0.2), len(TRACES)
    second = program(ensemble, jr.fold_in(key, 1), points + 0.1, -values(points))
    assert len(TRACES) == before
    assert not np.array_equal(first[2], second[2])


@pytest.mark.slow
def test_seeds_may_be_mapped_over(key, points, close):
    ensemble, keys = Ensemble(KERNELS, expert(OnFeatures())), jr.split(key, 4)
    together = jax.vmap(lambda k: program(ensemble, k, points, values(points)))(keys)
    for i, k in enumerate(keys):
        one = program(ensemble, k, points, values(points))
        jax.tree.map(close, jax.tree.map(lambda leaf, i=i: leaf[i], together), one)


@pytest.mark.slow
@pytest.mark.parametrize("inference", QUICK)
def test_it_is_exported_for_every_platform(inference):
    ensemble = Ensemble(KERNELS, expert(inference))

    def run(key, x, y):
        shared = setup(ensemble, key, DIM)
        belief = ensemble.observe(shared, ensemble.start(shared), x, y, jnp.zeros((), int))
        return ensemble.sample(key, shared, belief)(x), ensemble.predict(shared, belief, x)

    arguments = (
        jax.eval_shape(lambda: jr.key(0)),
        jax.ShapeDtypeStruct((DIM,), jnp.result_type(float)),
        jax.ShapeDtypeStruct((), jnp.result_type(float)),
    )
    exported = jax.export.export(jax.jit(run), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


@pytest.mark.slow
def test_the_warped_ensemble_is_exact_with_priors_and_takes_options(key):
    ensemble = Ensemble.warped(2, 30, refit_every=7, noise=1e-2)
    expert = ensemble.expert
    assert isinstance(expert.inference, Exact)
    assert (expert.warp, expert.capacity, expert.refit_every) == (True, 30, 7)
    assert expert.noise == jnp.asarray(1e-2, float)
    np.testing.assert_allclose(
        expert.priors.length_scale.median, np.exp(2**0.5) * 2**0.5, rtol=1e-6
    )
    assert len(ensemble.kernels) == 4
    # A few large values, as a Gaussian process has them after a logarithm.
    rng = np.random.default_rng(0)
    X, places = rng.random((25, 2)), rng.random((20, 2))
    truth = lambda X: np.exp(4 * np.sin(3 * X[:, 0]) * X[:, 1])  # noqa: E731
    shared = setup(ensemble, key, 2)
    told = jnp.asarray(X, float), jnp.asarray(truth(X), float)
    means, _ = predict(
        ensemble, shared, refitted(ensemble, shared, *told), jnp.asarray(places, float)
    )
    error = np.abs(np.log(np.maximum(means, 1e-3)) - np.log(truth(places)))
    assert np.median(error) < 0.1


@pytest.mark.parametrize(
    ("kernels", "floor", "message"),
    [
        ((), 0.0, "kernels is empty: an ensemble needs at least one"),
        ((lambda x, z: jnp.sum(x * z),), 0.0, "has no spectral density"),
        (KERNELS[0], 0.0, "kernels must be a sequence of kernels, got SquaredExponential"),
        (None, 0.0, "kernels must be a sequence of kernels, got None"),
        (KERNELS, -0.01, r"floor must be in \[0, 1 / 3\]"),
        (KERNELS, 0.34, r"floor must be in \[0, 1 / 3\]"),
        (KERNELS, float("nan"), r"floor must be in \[0, 1 / 3\]"),
    ],
)
def test_bad_configuration_is_refused(kernels, floor, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(kernels, expert(Exact()), floor)


def test_length_scales_that_do_not_fit_are_refused(key):
    ensemble = Ensemble((KERNELS[0], Matern52(jnp.ones(3))), expert(Exact()))
    with pytest.raises(ValueError, match="one for each of the 2 coordinates"):
        setup(ensemble, key, DIM)


@pytest.mark.slow
def test_few_distinct_values_tell_no_kernel_from_another(key):
    ensemble = Ensemble(KERNELS, expert(Exact()))
    shared = setup(ensemble, key, DIM)
    X = np.random.default_rng(0).random((CAPACITY, DIM))
    few, many = np.resize([0.2, 0.2, 1.0], CAPACITY), np.sin(9 * X[:, 0])
    weights = [
        log_weights(ensemble, shared, conditioned(ensemble, shared, *told))
        for told in ((jnp.asarray(X, float), jnp.asarray(y, float)) for y in (few, many))
    ]
    np.testing.assert_allclose(weights[0], -np.log(len(KERNELS)), rtol=1e-6)
    assert np.ptp(weights[1]) > 0.1
