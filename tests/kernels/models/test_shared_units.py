"""An agent's own unit of values, against dense generalized least squares."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.models import shared_prior, shared_units
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
CAPACITY, SIZE, NOISE = 8, 60, 1e-3
PHI = jax.jit(lambda key: features.sine_cosine(key, SquaredExponential(0.3), 2, SIZE))(jr.key(0))
RNG = np.random.default_rng(0)
X = RNG.random((CAPACITY, 2)).astype(DTYPE)
Y = (40.0 + 3.0 * RNG.standard_normal(CAPACITY)).astype(DTYPE)


@jax.jit
def measured(x, y, count):
    return shared_units.measured(
        PHI, jnp.asarray(NOISE, DTYPE), shared_prior.AgentData(x, y, count)
    )


def covariance(x):
    phi = np.asarray(jax.vmap(PHI)(jnp.asarray(x)), np.float64)
    return phi @ phi.T + NOISE * np.eye(len(x))


@pytest.mark.parametrize("count", [2, 5, CAPACITY])
def test_location_and_scale_are_those_of_generalized_least_squares(count):
    found = measured(X, Y, count)
    y, ones = Y[:count].astype(np.float64), np.ones(count)
    inverse = np.linalg.inv(covariance(X[:count]))
    location = ones @ inverse @ y / (ones @ inverse @ ones)
    scale = np.sqrt((y - location) @ inverse @ (y - location) / (count - 1))
    assert found.told
    np.testing.assert_allclose([found.location, found.scale], [location, scale], rtol=1e-4)
    expected = np.zeros(CAPACITY)  # rows that are not in use stay 0
    expected[:count] = (y - location) / scale
    np.testing.assert_allclose(found.known.y, expected, atol=1e-3)
    np.testing.assert_array_equal(found.known.x, X)
    assert found.known.count == count


def test_values_in_its_own_unit_do_not_depend_on_the_unit():
    one = measured(X, Y, 6)
    for size, zero in ((1e-16, 0.0), (1e16, 0.0), (10.0, 2e3)):
        other = measured(X, (zero + size * Y).astype(DTYPE), 6)
        np.testing.assert_allclose(other.known.y, one.known.y, atol=5e-3)
        np.testing.assert_allclose(other.scale, size * one.scale, rtol=5e-3)
        np.testing.assert_allclose(other.location, zero + size * one.location, rtol=1e-3)


@pytest.mark.parametrize(("y", "count"), [(Y, 0), (Y, 1), (np.full_like(Y, 1e5 / 3), CAPACITY)])
def test_equal_values_and_a_single_value_tell_no_unit(y, count):
    found = measured(X, y, count)
    assert not found.told
    np.testing.assert_array_equal(found.known.y, 0)
    assert found.known.count == (count if count > 1 else 0)  # a single value is left out
    np.testing.assert_allclose(found.location, y[0] if count else 0, rtol=1e-6)
    assert found.scale == 1


def test_the_variance_of_draws_is_right_on_average_where_a_sample_variance_is_not():
    """Six points that a search has come to are near each other."""
    x = np.concatenate([0.5 + 0.05 * RNG.standard_normal((6, 2)), RNG.random((2, 2))]).astype(DTYPE)
    root = np.linalg.cholesky(covariance(x))
    draws = (5.0 + 2.0 * RNG.standard_normal((4000, CAPACITY)) @ root.T).astype(DTYPE)
    found = jax.vmap(measured, (None, 0, None))(jnp.asarray(x), jnp.asarray(draws), CAPACITY)
    squares = np.asarray(found.scale, np.float64) ** 2
    error = squares.std() / np.sqrt(len(squares))
    assert abs(squares.mean() - 4.0) < 4 * error < 0.2
    assert draws.var(axis=1, ddof=1).mean() < 3.0
    location = np.asarray(found.location, np.float64)
    assert abs(location.mean() - 5.0) < 4 * location.std() / np.sqrt(len(location))
