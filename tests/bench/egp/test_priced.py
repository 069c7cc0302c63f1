"""Ensembles by Laplace's and by tempered evidence, against dense algebra and quadrature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special

from bench.egp.priced import Priced, curvature, price
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fit import LogNormal, Priors
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import Matern32, Matern52, SquaredExponential

NOISE, POINTS, CAPACITY = 0.05, 14, 16
#: What is told of the variance and the noise beforehand: nothing is left to pay for.
KNOWN = 1e-3
LENGTH = LogNormal(0.5, 0.7)
PRIORS = Priors(LENGTH, LogNormal(1.0, KNOWN), LogNormal(NOISE, KNOWN))
KERNELS = (
    SquaredExponential(0.5),
    SquaredExponential(jnp.full(2, 0.5)),
    Matern32(0.5),
    Matern52(0.5),
)
CORRELATIONS = (
    lambda s: np.exp(-s / 2),
    lambda s: np.exp(-s / 2),
    lambda s: (1 + np.sqrt(3 * s)) * np.exp(-np.sqrt(3 * s)),
    lambda s: (1 + np.sqrt(5 * s) + 5 * s / 3) * np.exp(-np.sqrt(5 * s)),
)
COMMON = (True, False, True, True)

rng = np.random.default_rng(0)
X = rng.random((POINTS, 2))
Y = np.sin(5 * X[:, 0]) + 0.7 * np.cos(4 * X[:, 1]) + 0.1 * rng.standard_normal(POINTS)


def ensemble(kind=Priced, **options):
    expert = Fitted(CAPACITY, size=10, noise=NOISE, inference=Exact(), priors=PRIORS)
    return kind(KERNELS, expert, **options)


@eqx.filter_jit
def told(model, y):
    shared = model.setup(jr.key(0), 2)
    rows = jnp.asarray(X, float), y
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    return shared, jax.lax.scan(step, model.start(shared), rows)[0]


@pytest.fixture(scope="module")
def known():
    return told(ensemble(), jnp.asarray(Y, float))


@eqx.filter_jit
def refitted(model, shared, belief):
    return shared, model.refit(shared, belief)


@eqx.filter_jit
def parts(shared, belief):
    def one(expert, phi, belief):
        data = belief.x, belief.standardized
        problem = fit.of_data(belief.kernel, belief.noise, *data, priors=expert.prior)
        curved = curvature(problem, belief.model.matrix)
        return problem.theta, curved, expert.log_evidence(belief), price(expert, belief)

    return shared.map(one, belief)


@eqx.filter_jit
def weights(model, shared, belief):
    return jnp.exp(model.log_weights(shared, belief))


def log_evidence(number, theta):
    """The evidence, given the logs of two length scales, the variance and the noise."""
    scales = np.exp(theta[:2])
    scales = np.full(2, np.sqrt(np.prod(scales))) if COMMON[number] else scales
    s = np.sum(((X[:, None] - X[None]) / scales) ** 2, axis=2)
    K = np.exp(theta[2]) * CORRELATIONS[number](s) + np.exp(theta[3]) * np.eye(POINTS)
    y = (Y - Y.mean()) / Y.std()
    L = np.linalg.cholesky(K)
    white = np.linalg.solve(L, y)
    return -white @ white / 2 - np.log(np.diag(L)).sum() - POINTS / 2 * np.log(2 * np.pi)


def test_the_curvature_is_that_of_the_dense_evidence(known):
    theta, curved, evidences, _ = (np.asarray(part, np.float64) for part in parts(*known))
    steps = 1e-3 * np.eye(4)
    for number in range(len(KERNELS)):
        at = lambda step, n=number: -log_evidence(n, theta[n] + step)  # noqa: E731
        np.testing.assert_allclose(evidences[number], -at(0), rtol=1e-3)
        expected = [
            [(at(a + b) - at(a - b) - at(b - a) + at(-a - b)) / 4e-6 for b in steps] for a in steps
        ]
        np.testing.assert_allclose(curved[number], expected, atol=2e-3 * np.max(np.abs(expected)))


@pytest.mark.full
def test_laplace_is_near_to_the_integral_over_length_scales(known):
    found = parts(*refitted(ensemble(), *known))
    theta, _, evidences, prices = (np.asarray(part, np.float64) for part in found)
    logs, width = np.linspace(np.log(0.5) - 4, np.log(0.5) + 4, 81, retstep=True)
    density = (
        -(((logs - np.log(0.5)) / 0.7) ** 2) / 2 - np.log(0.7 * np.sqrt(2 * np.pi)) + np.log(width)
    )
    for number, common in enumerate(COMMON):
        rest = theta[number, 2:]
        at = lambda a, b, n=number, rest=rest: log_evidence(n, np.array([a, b, *rest]))  # noqa: E731
        if common:
            terms = [at(a, a) + p for a, p in zip(logs, density, strict=True)]
        else:
            terms = [
                at(a, b) + p + q
                for a, p in zip(logs, density, strict=True)
                for b, q in zip(logs, density, strict=True)
            ]
        marginal = special.logsumexp(terms)
        # It is less than the maximized evidence by more than the error.
        assert abs(evidences[number] + prices[number] - marginal) < 0.15
        assert evidences[number] - marginal > 0.5
    # Two length scales cost more than one.
    assert prices[1] < prices[0] - 0.5


def test_prices_and_a_temperature_change_the_weights_as_they_say(known):
    _, _, evidences, prices = (np.asarray(part, np.float64) for part in parts(*known))
    for T in (1.0, 4.0, np.inf):
        found = weights(ensemble(temperature=T), *known)
        np.testing.assert_allclose(found, special.softmax(evidences / T), rtol=1e-3)
    by_laplace = weights(ensemble(laplace=True), *known)
    np.testing.assert_allclose(by_laplace, special.softmax(evidences + prices), rtol=1e-3)
    np.testing.assert_array_equal(weights(ensemble(), *known), weights(ensemble(Ensemble), *known))


def test_where_values_tell_nothing_weights_are_equal():
    alike = told(ensemble(), jnp.ones(POINTS))
    found = weights(ensemble(laplace=True), *alike)
    np.testing.assert_allclose(found, 1 / len(KERNELS), rtol=1e-6)
