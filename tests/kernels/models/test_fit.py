"""Maximum evidence against tinygp and a long multi-start of SciPy, and its guarantees."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tinygp

from jaxbo.kernels.models import fit
from jaxbo.kernels.processes import covariance, gp
from jaxbo.kernels.processes.covariance import KernelFunction, Matern52, SquaredExponential, gram

START = SquaredExponential(0.2)
#: One program for all the agents of a batch.
fit_all = jax.jit(jax.vmap(lambda X, y: fit.fit(START, 0.05, X, y)))
#: Likewise, by the spectrum of one covariance.
keep_scale = jax.jit(jax.vmap(lambda X, y: fit.fit(START, 0.05, X, y, fit_length_scale=False)))


@pytest.fixture(params=[fit_all, keep_scale], ids=["all", "scale kept"])
def fitted(request):
    return request.param


def draws(agents=4, capacity=24, noise=0.02, length_scale=0.3):
    """Draws of a process at uniform points, every second agent with a third of its rows missing."""
    rng = np.random.default_rng(0)
    X = rng.random((agents, capacity, 2))
    squares = ((X[:, :, None] - X[:, None]) ** 2).sum(-1) / length_scale**2
    L = np.linalg.cholesky(np.exp(-squares / 2) + noise * np.eye(capacity))
    y = np.einsum("aij,aj->ai", L, rng.standard_normal((agents, capacity)))
    missing = (np.arange(agents)[:, None] % 2 == 1) & (np.arange(capacity)[None] % 3 == 1)
    return jnp.asarray(X, float), jnp.asarray(np.where(missing, np.nan, y), float)


@jax.jit
def tinygp_evidence(scale, variance, noise, X, y):
    kernel = variance * tinygp.kernels.ExpSquared()
    return tinygp.GaussianProcess(kernel, X / scale, diag=noise).log_probability(y)


@jax.jit
def built_evidence(kernel, noise, X, y):
    return gp.log_evidence(gp.build(kernel, noise, X, y))


def best_of_scipy(X, y, starts=12, scales=None, uniform=False):
    """The greatest log evidence within the default bounds, by float64 NumPy and L-BFGS-B.

    Or that of the density of the logarithms if all values are `uniform`, whose Jacobian is the values.
    """
    rows = np.isfinite(y)
    X, y = np.asarray(X, float)[rows], np.asarray(y, float)[rows]
    squares = ((X[:, None] - X[None]) ** 2).sum(-1)

    def loss(theta):
        scale, variance, noise = np.exp(theta)
        C = variance * np.exp(-squares / scale**2 / 2)
        L = np.linalg.cholesky(C + noise * np.eye(len(y)))
        inverse = np.linalg.inv(L)
        alpha = inverse.T @ inverse @ y
        G = (inverse.T @ inverse - np.outer(alpha, alpha)) / 2
        gradient = [(G * C * squares).sum() / scale**2, (G * C).sum(), np.trace(G) * noise]
        value = y @ alpha / 2 + np.log(np.diag(L)).sum() + len(y) / 2 * np.log(2 * np.pi)
        return value - uniform * sum(theta), np.array(gradient) - uniform

    bounds = fit.Bounds()
    pairs = bounds.length_scale, bounds.variance, bounds.noise
    box = [np.log(np.asarray(pair, float)) for pair in pairs]
    box[0] = box[0] if scales is None else np.log(np.asarray(scales, float))
    rng = np.random.default_rng(0)
    runs = [
        scipy.optimize.minimize(
            loss, [rng.uniform(*pair) for pair in box], jac=True, method="L-BFGS-B", bounds=box
        )
        for _ in range(starts)
    ]
    return -min(run.fun for run in runs)


@pytest.mark.parametrize(
    ("fitted", "scales"), [(fit_all, None), (keep_scale, (0.2, 0.2))], ids=["all", "scale kept"]
)
def test_reaches_the_optimum_of_a_long_search(fitted, scales):
    X, y = draws()
    found = fitted(X, y)
    gaps = np.array([best_of_scipy(*agent, scales=scales) for agent in zip(X, y, strict=True)])
    gaps = gaps - np.asarray(found.log_evidence, float)
    assert gaps.min() > -0.02
    assert np.median(gaps) < 0.02
    assert gaps.max() < 0.5


def test_reported_evidence_is_that_of_tinygp(fitted, x64):
    X, y = draws()
    found = fitted(X, y)
    for i in range(4):
        values = [found.kernel.length_scale[i], found.kernel.variance[i], found.noise[i]]
        rows = np.isfinite(y[i])
        expected = tinygp_evidence(*values, np.asarray(X[i])[rows], np.asarray(y[i])[rows])
        tolerance = 1e-8 if x64 else 1e-2
        np.testing.assert_allclose(found.log_evidence[i], expected, atol=tolerance)
        built = built_evidence(SquaredExponential(*values[:2]), values[2], X[i], y[i])
        np.testing.assert_allclose(built, expected, atol=tolerance)


def test_evidence_has_the_gradient_of_dense_algebra(x64):
    X, y = (leaf[0] for leaf in draws(1, capacity=10))
    noise = jnp.asarray(0.1)

    def dense(K, y):
        K = (K + K.T) / 2
        return -jnp.sum(y * jnp.linalg.solve(K, y)) / 2 - jnp.linalg.slogdet(K)[1] / 2

    @jax.jit
    def both(X, y):
        K = gram(SquaredExponential(0.3), X, X) + noise * jnp.eye(10)
        functions = (lambda K, y: fit.evidence(K, y, noise)), dense
        return [jax.value_and_grad(f, argnums=(0, 1))(K, y) for f in functions]

    tolerance = {"rtol": 1e-9, "atol": 1e-8} if x64 else {"rtol": 1e-3, "atol": 2e-3}
    own, reference = map(jax.tree.leaves, both(X, y))
    for a, b in zip(own, reference, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [SquaredExponential(0.3), Matern52(jnp.array([0.2, 2.0]))])
def test_evidence_by_the_spectrum_is_that_of_dense_algebra(kernel, x64):
    """And its gradient, with rows that are not in use."""
    X, y = (leaf[1] for leaf in draws())

    @jax.jit
    def both(X, y, thetas):
        dense = fit.of_data(kernel, 0.1, X, y)
        kept = fit.of_data(kernel, 0.1, X, y, kept=("length_scale",))
        assert dense.spectrum is None
        assert kept.spectrum is not None
        return [jax.vmap(jax.value_and_grad(p.log_evidence))(thetas) for p in (kept, dense)]

    tolerance = {"rtol": 1e-8} if x64 else {"rtol": 1e-3, "atol": 2e-3}
    numbers = [[1.0, 0.1], [7.0, 0.01], [0.1, 1.0]]
    scales = np.ravel(kernel.length_scale)
    thetas = np.log(np.array([[*scales, *pair] for pair in numbers]))
    (found, slope), (expected, right) = both(X, y, jnp.asarray(thetas, float))
    np.testing.assert_allclose(found, expected, **tolerance)
    np.testing.assert_allclose(slope[:, -2:], right[:, -2:], **tolerance)


@jax.jit
def keep_at_least_noise(kernel, X, y):
    return fit.fit(kernel, 1e-3, X, y, fit_length_scale=False)


@pytest.mark.parametrize("length_scale", [0.3, 1.0, 10.0])
def test_a_fit_at_the_least_noise_loses_nothing_to_rounding(length_scale):
    """Where eigenvalues of the size of the noise decide, below a rounding of the largest."""
    X = np.random.default_rng(0).random((60, 2))
    y = np.sum((X - 0.4) ** 2, axis=1) if length_scale < 10 else np.sum(X, axis=1)
    X, y = jnp.asarray(X, float), jnp.asarray((y - np.mean(y)) / np.std(y), float)
    found = keep_at_least_noise(SquaredExponential(length_scale), X, y)
    kernel, noise = found.kernel, float(found.noise)
    points, values = np.asarray(X, float), np.asarray(y, float)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    K = float(kernel.variance) * np.exp(-squares / length_scale**2 / 2) + noise * np.eye(60)
    reached = -values @ np.linalg.solve(K, values) / 2 - np.linalg.slogdet(K)[1] / 2
    reached -= 30 * np.log(2 * np.pi)
    best = best_of_scipy(X, y, scales=(length_scale, length_scale))
    assert reached > best - 0.5  # of 100 to 225 nats
    np.testing.assert_allclose(found.log_evidence, reached, rtol=0.01)


@pytest.mark.slow
def test_a_length_scale_that_stands_for_several_is_charged_its_prior_once():
    dim, priors = 5, fit.Priors.scaled(5)
    X = np.random.default_rng(0).random((25, dim))
    y = np.sin(7 * X[:, 0]) + np.cos(6 * X[:, 1])
    X, y = jnp.asarray(X, float), jnp.asarray((y - np.mean(y)) / np.std(y), float)
    alone = SquaredExponential(0.3)
    first = lambda: jax.tree.map(lambda a: a[0], covariance.stack(covariance.forms(dim), dim))  # noqa: E731
    tied = jax.jit(first)()

    @jax.jit
    def log_priors(kernel, thetas):
        return jax.vmap(fit.of_data(kernel, 0.01, X, y, priors=priors).log_prior)(thetas)

    scales = np.array([0.1, 0.5, 2.0])
    expected = -(((np.log(scales) - np.log(priors.length_scale.median)) / 3**0.5) ** 2) / 2
    for kernel, n in ((alone, 1), (tied, dim)):
        thetas = np.log([[*[scale] * n, 1.0, 0.01] for scale in scales])
        found = log_priors(kernel, jnp.asarray(thetas, float))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    one, many = (
        jax.jit(lambda k: fit.fit(k, 0.01, X, y, priors=priors, steps=60))(k) for k in (alone, tied)
    )
    np.testing.assert_allclose(many.kernel.length_scale, one.kernel.length_scale, rtol=0.02)
    np.testing.assert_allclose(many.log_evidence, one.log_evidence, atol=0.02)


UNIFORM = fit.Priors(fit.Uniform(), fit.Uniform(), fit.Uniform())


def test_a_uniform_prior_is_flat_in_the_value_and_not_in_its_logarithm():
    """p(log v) = p(v) v, beside the density of SciPy's uniform distribution."""
    values = np.geomspace(0.02, 9.0, 7)
    found = jax.jit(jax.vmap(fit.Uniform().log_density))(jnp.log(jnp.asarray(values, float)))
    dense = scipy.stats.uniform(0.01, 10 - 0.01).logpdf(values) + np.log(values)
    np.testing.assert_allclose(np.diff(found), np.diff(dense), rtol=1e-5)
    several = fit.Uniform().log_density(jnp.log(jnp.asarray(values, float)))
    np.testing.assert_allclose(several, np.log(values).sum(), rtol=1e-5, atol=1e-5)


def test_uniform_priors_add_the_logarithms_to_a_dense_evidence():
    X, y = (np.asarray(leaf[0], np.float64) for leaf in draws(1, capacity=10))
    kernel = SquaredExponential(jnp.array([0.3, 0.3]))
    thetas = np.log([[0.3, 0.5, 1.0, 0.1], [0.1, 2.0, 3.0, 0.5], [1.0, 1.0, 0.2, 0.2]])

    def dense(theta):
        scales, variance, noise = np.exp(theta[:2]), *np.exp(theta[2:])
        squares = (((X[:, None] - X[None]) / scales) ** 2).sum(-1)
        K = variance * np.exp(-squares / 2) + noise * np.eye(10)
        evidence = scipy.stats.multivariate_normal(np.zeros(10), K).logpdf(y)
        return evidence + np.log([*scales, variance, noise]).sum()

    problem = lambda X, y: fit.of_data(kernel, 0.1, X, y, priors=UNIFORM)  # noqa: E731
    found = jax.jit(lambda X, y, at: jax.vmap(problem(X, y).log_density)(at))(
        *(jnp.asarray(a, float) for a in (X, y, thetas))
    )
    np.testing.assert_allclose(found, [dense(theta) for theta in thetas], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_fit_under_uniform_priors_reaches_the_optimum_of_a_long_search():
    X, y = draws()
    settings = {"priors": UNIFORM, "steps": 60}  # an optimum is in a corner, which takes longer
    found = jax.jit(jax.vmap(lambda X, y: fit.fit(START, 0.05, X, y, **settings)))(X, y)
    values = found.kernel.length_scale, found.kernel.variance, found.noise
    reached = np.asarray(found.log_evidence + sum(map(jnp.log, values)), float)
    best = [best_of_scipy(*agent, uniform=True) for agent in zip(X, y, strict=True)]
    np.testing.assert_allclose(reached, best, atol=0.05)
    assert bool(jnp.all(found.log_evidence < fit_all(X, y).log_evidence))  # it is another optimum


def test_missing_rows_change_nothing(fitted):
    """Whatever stands in their points, and whether the value is NaN or infinite."""
    X, y = draws()
    missing = jnp.isnan(y)
    garbage = fitted(jnp.where(missing[:, :, None], jnp.nan, X), jnp.where(missing, jnp.inf, y))
    for a, b in zip(jax.tree.leaves(fitted(X, y)), jax.tree.leaves(garbage), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_data_the_start_is_returned(fitted):
    found = fitted(
        *(jnp.asarray(a, float) for a in (np.zeros((4, 24, 2)), np.full((4, 24), np.nan)))
    )
    np.testing.assert_allclose(found.kernel.length_scale, 0.2, rtol=1e-5)
    np.testing.assert_allclose(found.kernel.variance, 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.noise, 0.05, rtol=1e-5)
    np.testing.assert_allclose(found.log_evidence, 0, atol=1e-4)


def test_never_worse_than_the_start():
    """Even with no time to improve, at a start that is the optimum already."""
    X, y = draws()
    best = fit_all(X, y)
    brief = jax.jit(jax.vmap(lambda found, X, y: fit.fit(*found, X, y, restarts=1, steps=2)))
    again = brief((best.kernel, best.noise), X, y)
    assert bool(jnp.all(again.log_evidence >= best.log_evidence - 1e-3))


def test_a_descent_that_begins_where_the_loss_bends_down_finds_the_minimum():
    hole = lambda u, last: -jnp.exp(-(u[0] ** 2) / 2)  # noqa: E731
    u, loss, last = jax.jit(lambda u: fit._descend(hole, u, 10))(jnp.array([2.0]))
    np.testing.assert_allclose([u[0], loss + 1, last + 1], 0, atol=1e-3)


def test_difficult_values_give_finite_results_inside_the_bounds(fitted):
    """Constant, huge, nothing but noise, and a single observation."""
    X, _ = draws()
    noise = np.random.default_rng(1).standard_normal(24)
    one = np.where(np.arange(24) == 3, 1.0, np.nan)
    y = np.stack([np.ones(24), 1e6 * np.sin(9 * np.asarray(X)[1, :, 0]), noise, one])
    found = fitted(X, jnp.asarray(y, float))
    assert bool(jnp.all(jnp.isfinite(found.log_evidence)))
    values = found.kernel.length_scale, found.kernel.variance, found.noise
    bounds = fit.Bounds()
    pairs = bounds.length_scale, bounds.variance, bounds.noise
    for value, (low, high) in zip(values, pairs, strict=True):
        assert bool(jnp.all((value >= low * (1 - 1e-5)) & (value <= high * (1 + 1e-5))))


def test_relevance_of_each_coordinate_is_found():
    """y varies with the first coordinate only: the second length scale grows."""
    X = jnp.asarray(np.random.default_rng(0).random((30, 2)), float)
    y = jnp.asarray(np.sin(8 * np.asarray(X)[:, 0]), float)
    kernel = Matern52(jnp.array([0.5, 0.5]))
    scales = jax.jit(lambda X, y: fit.fit(kernel, 0.01, X, y))(X, y).kernel.length_scale
    assert scales[1] > 3 * scales[0]


@pytest.mark.slow
def test_what_is_not_fitted_keeps_its_value_and_a_narrow_prior_decides():
    X, y = (leaf[0] for leaf in draws())
    kernel = SquaredExponential(0.2, 30.0)  # outside of the bounds on purpose
    priors = fit.Priors(noise=fit.LogNormal(0.2, 0.01))
    settings = {"priors": priors, "fit_variance": False, "restarts": 2}
    found = jax.jit(lambda X, y: fit.fit(kernel, 0.5, X, y, **settings))(X, y)
    np.testing.assert_allclose(found.kernel.variance, 30.0, rtol=1e-5)
    np.testing.assert_allclose(found.noise, 0.2, rtol=0.02)
    assert found.kernel.length_scale != kernel.length_scale
    settings = {"fit_variance": False, "fit_noise": False, "restarts": 1, "steps": 2}
    found = jax.jit(lambda X, y: fit.fit(kernel, 2.0, X, y, **settings))(X, y)
    np.testing.assert_allclose(found.noise, 2.0, rtol=1e-5)


def test_agents_in_a_batch_do_not_touch_each_other(fitted):
    X, y = draws()
    found, failed = fitted(X, y), fitted(X, y.at[1].set(jnp.nan))
    for agent in (0, 2, 3):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(failed), strict=True):
            np.testing.assert_array_equal(a[agent], b[agent])


def test_precision_is_that_of_the_data():
    X, y = (leaf[0].astype(jnp.float32) for leaf in draws())
    found = jax.jit(lambda X, y: fit.fit(START, 0.05, X, y, restarts=1, steps=2))(X, y)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("free", [True, False])
def test_compiles_for_every_platform(free):
    X, y = (jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for shape in ((8, 2), (8,)))
    program = jax.jit(lambda X, y: fit.fit(START, 0.1, X, y, fit_length_scale=free).noise)
    exported = jax.export.export(program, platforms=["cpu", "cuda", "tpu"])(X, y)
    assert exported.platforms == ("cpu", "cuda", "tpu")


def test_bad_settings_are_refused():
    X, y = jnp.zeros((3, 2)), jnp.zeros(3)
    with pytest.raises(ValueError, match="restarts and steps must be at least 1"):
        fit.fit(START, 0.1, X, y, restarts=0)
    with pytest.raises(ValueError, match="reversed"):
        fit.Bounds(noise=(1.0, 0.1))
    with pytest.raises(ValueError, match="must be positive"):
        fit.Bounds(length_scale=(0.0, 1.0))
    with pytest.raises(ValueError, match="noise must be positive"):
        fit.fit(START, -1.0, X, y)


# ---------------------------------------------------------------- values that tell nothing


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ([0.2], False),
        ([0.2, 1.0], False),
        ([1.0, 2.0, 3.0, 4.0], False),
        ([1.0, 1.0 + 1e-7, 1.0 - 1e-7, 1.0 + 2e-7, 1.0 - 2e-7], False),  # rounding
        ([1.0, 2.0, 3.0, 4.0, 5.0], True),
        ([1e-6, 2e-6, 3e-6, 4e-6, 5e-6], True),
        ([1.0, 2.0, 3.0, 4.0, np.nan, np.inf], False),
    ],
)
def test_few_distinct_values_tell_nothing(levels, told):
    y = jnp.asarray(np.resize(levels, 24), jnp.float32)
    assert fit.informative(y) == told


def test_with_few_distinct_values_hyperparameters_stay_where_they_are():
    X, _ = draws()
    y = jnp.asarray(np.resize([-0.2, -0.2, -0.2, 4.4], (4, 24)), float)
    for fitted in (fit_all, keep_scale):
        found = fitted(X, y)
        np.testing.assert_allclose(found.kernel.length_scale, 0.2, rtol=1e-6)
        np.testing.assert_allclose(found.kernel.variance, 1.0, rtol=1e-6)
        np.testing.assert_allclose(found.noise, 0.05, rtol=1e-6)


def test_priors_around_a_kernel_are_greatest_there():
    kernel, noise = Matern52(jnp.asarray([0.1, 0.4])), jnp.asarray(1e-2)
    priors = fit.Priors.around(kernel, noise)

    def density(scales, noise):
        logs = {"length_scale": jnp.log(jnp.asarray(scales)), "noise": jnp.log(noise)}
        return priors.log_density(variance=jnp.zeros((1,)), **logs)

    np.testing.assert_allclose(density([0.2, 0.2], noise), 0, atol=1e-6)
    np.testing.assert_allclose(density([0.02, 0.2], noise), -(np.log(10) ** 2) / 6, rtol=1e-5)
    np.testing.assert_allclose(density([0.2, 0.2], 10 * noise), -(np.log(10) ** 2) / 8, rtol=1e-5)


# ---------------------------------------------------------------- functions of one's own


def rational(x, z, length_scale, shape):
    return (1 + jnp.sum((x - z) ** 2) / (2 * shape * length_scale**2)) ** -shape


@pytest.mark.slow
def test_numbers_of_a_function_are_fitted_as_factors_of_what_they_were():
    """With a large shape it is a squared exponential, whose length scale was 0.3 in the draws."""
    X, y = (a[0] for a in draws())
    own = KernelFunction(functools.partial(rational, length_scale=0.6, shape=50.0))
    found = jax.jit(lambda: fit.fit(own, 0.1, X, y))()
    kernel = SquaredExponential(0.6)
    best = jax.jit(lambda: fit.fit(kernel, 0.1, X, y, fit_variance=False))()
    assert float(found.log_evidence) > float(best.log_evidence) - 0.5
    length_scale = 0.6 * float(found.kernel.factors[0])
    assert length_scale == pytest.approx(float(best.kernel.length_scale), rel=0.1)


@pytest.mark.slow
def test_a_function_without_numbers_stays_and_its_noise_is_fitted():
    X, y = (a[0] for a in draws())
    plain = KernelFunction(lambda x, z: rational(x, z, jnp.asarray(0.3), 50.0))
    found = jax.jit(
        lambda: fit.fit(plain, 0.1, X, y, priors=fit.Priors.around(plain, jnp.asarray(0.1)))
    )()
    assert found.kernel.factors.shape == (0,)

    @jax.jit
    def evidence(noise):
        problem = fit.of_data(plain, noise, X, y)
        return problem.log_evidence(problem.theta)

    np.testing.assert_allclose(evidence(found.noise), found.log_evidence, rtol=1e-4)
    assert float(found.log_evidence) >= float(evidence(jnp.asarray(0.1)))


def test_what_a_function_does_not_have_cannot_be_kept():
    with pytest.raises(ValueError, match="cannot be kept"):
        fit.fit(
            KernelFunction(lambda x, z: jnp.sum(x * z)),
            0.1,
            jnp.zeros((3, 2)),
            jnp.zeros(3),
            fit_variance=False,
        )
