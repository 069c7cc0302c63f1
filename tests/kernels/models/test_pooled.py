"""Hyperparameters by pooled evidence, against dense densities and the truth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special
from scipy.stats import multivariate_normal

from jaxbo.kernels.models import pooled as module
from jaxbo.kernels.models.fit import LogNormal, Priors
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential

pytestmark = pytest.mark.float64

POINTS, CAPACITY = 12, 16
DTYPE = jnp.zeros(()).dtype


@eqx.filter_jit
def _told(own, X, y):
    shared = own.setup(jr.key(0), X.shape[1])
    see = lambda belief, row: (own.condition(shared, belief, *row), None)  # noqa: E731
    return jax.lax.scan(see, own.start(shared), (X, y))[0]


def told(own, X, y):
    """The belief after these observations; what is behind them failed."""
    X = np.concatenate([X, np.zeros((POINTS - len(X), X.shape[1]))])
    y = np.concatenate([y, np.full(POINTS - len(y), np.nan)])
    return _told(own, jnp.asarray(X, DTYPE), jnp.asarray(y, DTYPE))


@eqx.filter_jit
def evidence(pooled, own, belief):
    return pooled.evidence(own, belief)


@eqx.filter_jit
def agreed(pooled, own, belief, total):
    return pooled.agreed(own, belief, total)


@eqx.filter_jit
def of_all(pooled, own, belief):
    """Length scales, variances and noises of all settings."""
    problem = module._problem(own, belief)
    kernels, noises = jax.vmap(problem.unpack)(pooled._points(own, problem))
    return kernels.length_scale, kernels.variance, noises


def data(seed, scale=0.3, noise=0.01, dim=2):
    """A draw of a smooth function at random points."""
    rng = np.random.default_rng(seed)
    X = rng.random((POINTS, dim))
    squares = ((X[:, None] - X[None]) ** 2).sum(-1) / scale**2
    K = np.exp(-squares / 2) + noise * np.eye(POINTS)
    return X.astype(DTYPE), rng.multivariate_normal(np.zeros(POINTS), K).astype(DTYPE)


def hyperparameters(own, pooled, belief):
    return tuple(map(np.asarray, of_all(pooled, own, belief)))


def dense(y, K):
    """Log density of contrasts, at the scale that is likeliest."""
    contrasts = np.linalg.svd(np.ones((1, len(y))))[2][1:]
    K, z = contrasts @ K @ contrasts.T, contrasts @ y
    v = z @ np.linalg.solve(K, z) / len(z)  # that of y'C'(CKC')⁻¹Cy / (n - 1)
    return multivariate_normal(np.zeros(len(z)), v * K).logpdf(z), v


def covariance(X, scale, variance, noise):
    a = np.sqrt(5 * (((X[:, None] - X[None]) / scale).astype(float) ** 2).sum(-1))
    return variance * (1 + a + a**2 / 3) * np.exp(-a) + noise * np.eye(len(X))


@pytest.mark.parametrize("scales", [0.2, np.full(2, 0.2)])
def test_evidence_is_the_density_of_contrasts_under_each_setting(scales):
    own, pooled = Fitted(CAPACITY, Matern52(scales, 1.5), refit_every=None), Pooled(20)
    X, y = data(0)
    belief = told(own, X, 30 * y + 7)
    found = evidence(pooled, own, belief)
    settings = zip(*hyperparameters(own, pooled, belief), strict=True)
    expected = np.array([dense(y, covariance(X, *setting))[0] for setting in settings])
    np.testing.assert_allclose(found, expected - expected.max(), rtol=2e-3, atol=5e-3)


def test_an_agent_has_a_scale_of_its_own():
    own = Fitted(CAPACITY, Matern52(0.2, 1.5), refit_every=None)
    X, y = data(0)
    belief = told(own, X, y)
    pooled = Pooled(1)  # there is nothing to choose from
    kernel, noise = agreed(pooled, own, belief, np.zeros(1, y.dtype))
    setting = [values[-1] for values in hyperparameters(own, pooled, belief)]
    _, v = dense((y - y.mean()) / y.std(), covariance(X, *setting))
    scale = (2 * 1.5 + v * (POINTS - 1)) / (2 + POINTS - 1)
    np.testing.assert_allclose(kernel.length_scale, setting[0], rtol=1e-4)
    np.testing.assert_allclose(kernel.variance, np.clip(scale, *own.limits.variance), rtol=1e-3)
    np.testing.assert_allclose(noise, kernel.variance * setting[2], rtol=1e-3)


tempered = jax.jit(module._tempered, static_argnums=1)


def test_so_many_settings_count_that_what_lies_between_is_found():
    rng = np.random.default_rng(0)
    for spread in (0.1, 1.0, 1e2, 1e5):
        logs = -spread * rng.random(50)
        weights = np.asarray(tempered(jnp.asarray(logs, float), 4))
        count = 1 / np.sum(weights**2)
        plain = 1 / np.sum(special.softmax(logs) ** 2)
        np.testing.assert_allclose(count, max(4, plain), rtol=1e-2)
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)


def test_settings_fill_the_box_and_are_relative_to_the_variance():
    own, pooled = (
        Fitted(CAPACITY, SquaredExponential(np.full(2, 0.2), 5.0), refit_every=None),
        Pooled(64),
    )
    scales, variances, noises = hyperparameters(own, pooled, told(own, *data(0)))
    np.testing.assert_allclose(variances, 1, rtol=1e-6)
    limits = own.limits
    for values, (low, high) in zip(
        (*scales.T, noises), (*[limits.length_scale] * 2, limits.noise), strict=True
    ):
        shares = (np.log(values) - np.log(low)) / (np.log(high) - np.log(low))
        # Each quarter of the logarithms has its share, and nothing lies outside.
        counts, _ = np.histogram(shares, 4, (-1e-6, 1 + 1e-6))
        assert counts.sum() == 64
        assert (np.abs(counts - 16) <= 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("truth", [0.1, pytest.param(0.3, marks=pytest.mark.full), 1.0])
def test_many_agents_find_the_length_scale_that_few_observations_do_not_tell(truth):
    X, y = map(np.stack, zip(*(data(seed, truth) for seed in range(40)), strict=True))
    together, noise, alone = (np.asarray(part, float) for part in found_together(X, y))
    assert 0.75 * truth < together < 1.35 * truth
    assert 0.001 < noise < 0.05
    missed = np.abs(np.log(alone / truth))
    assert missed.mean() > 1.5 * abs(np.log(together / truth))


@jax.jit
def found_together(X, y):
    """Length scale and relative noise that all agree on, and the length scale of each alone."""
    own, pooled = Fitted(CAPACITY, SquaredExponential(0.05), refit_every=None), Pooled()
    beliefs = jax.vmap(lambda X, y: _told(own, X, y))(X, y)
    evidences = jax.vmap(lambda belief: pooled.evidence(own, belief))(beliefs)
    totals = jnp.concatenate([jnp.sum(evidences, axis=0)[None], evidences])
    one = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:1], leaf]), beliefs)
    kernel, noise = jax.vmap(lambda belief, total: pooled.agreed(own, belief, total))(one, totals)
    return kernel.length_scale[0], noise[0] / kernel.variance[0], kernel.length_scale[1:]


UNDER = np.nextafter(np.asarray(0.7, DTYPE), np.asarray(0, DTYPE))
#: The square of which is next to nothing.
SMALL = 1e-3 * np.sqrt(float(jnp.finfo(DTYPE).tiny))


@eqx.filter_jit
def restricted(own, belief):
    problem = module._problem(own, belief)
    return module.restricted(problem, problem.theta)


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [[], [3.0], [3.0, 3.0, 3.0], [0.7, UNDER, 0.7], [SMALL, -SMALL, 3 * SMALL]]
)
def test_values_that_do_not_differ_tell_nothing(values):
    own, pooled = Fitted(CAPACITY, refit_every=None, priors=Priors()), Pooled(400)
    X, y = np.random.default_rng(0).random((len(values), 2)), np.array(values)
    belief = told(own, X, y)
    flat = evidence(pooled, own, belief)
    np.testing.assert_array_equal(flat, np.zeros(400))
    found = restricted(own, belief)
    assert not found.told
    assert found.contrasts == max(len(values) - 1, 0)
    kernel, _ = agreed(pooled, own, belief, flat)
    low, high = np.log(np.asarray(own.limits.length_scale))
    share = (np.log(float(kernel.length_scale)) - low) / (high - low)
    np.testing.assert_allclose(share, 0.5, atol=0.06)
    assert np.isfinite(kernel.variance)


@pytest.mark.slow
def test_a_prior_counts_once_however_many_agents_there_are():
    prior = Priors(length_scale=LogNormal(0.1, 0.2))
    own, pooled = Fitted(CAPACITY, refit_every=None, priors=prior), Pooled(400)
    belief = told(own, *data(0))
    flat = eqx.tree_at(lambda f: f.priors, own, Priors())
    of_both = (evidence(pooled, each, belief) for each in (own, flat))
    np.testing.assert_array_equal(*of_both)
    kernel, _ = agreed(pooled, own, belief, np.zeros(400, DTYPE))
    np.testing.assert_allclose(kernel.length_scale, 0.1, rtol=0.1)


@pytest.mark.slow
def test_a_length_scale_that_is_to_stay_stays():
    own = Fitted(CAPACITY, SquaredExponential(0.07), refit_every=None, keep_length_scale=True)
    belief = told(own, *data(0))
    pooled = Pooled(32)
    kernel, noise = agreed(pooled, own, belief, evidence(pooled, own, belief))
    np.testing.assert_allclose(kernel.length_scale, 0.07, rtol=1e-6)
    assert 1e-5 < float(noise) < 1


def test_only_models_whose_hyperparameters_it_can_set_are_taken(as_users_have_it):
    Pooled().check(Fitted(8, refit_every=None))
    for own in (Fitted(8), Fitted(8, refit_every=None, warp=True), Fixed(), None):
        with pytest.raises(ValueError, match="needs own=Fitted"):
            Pooled().check(own)


def test_at_least_one_setting():
    assert Pooled(1).settings == 1
    with pytest.raises(ValueError, match="settings must be"):
        Pooled(0)
