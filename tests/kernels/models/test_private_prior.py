"""The M-step of a mean from a sum with noise."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.models import private_prior

pytestmark = pytest.mark.float64

SIZE, DRAWS = 12, 4000


def process(size=SIZE - 1):
    values = jnp.asarray(0.5), jnp.asarray(0.2)
    return private_prior.process(jr.key(0), size, *values, jnp.zeros(()).dtype)


@pytest.mark.parametrize("length", [0.0, 1.0, 4.0, 40.0])
def test_denoised_errs_less_than_the_release_whatever_the_sum(length):
    deviation = jnp.asarray(0.7)
    u = length * jr.normal(jr.key(1), (SIZE,)) / SIZE**0.5
    released = u[None] + deviation * jr.normal(jr.key(2), (DRAWS, SIZE))
    found = jax.vmap(private_prior.denoised, (0, None))(released, deviation)
    error = lambda estimate: np.sum(np.asarray(estimate - u[None]) ** 2, axis=1)  # noqa: E731
    gain = error(released) - error(found)
    assert gain.mean() > 3 * gain.std() / DRAWS**0.5


def test_without_noise_nothing_is_taken_away():
    total = jr.normal(jr.key(3), (SIZE,))
    np.testing.assert_allclose(private_prior.denoised(total, jnp.zeros(())), total, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-20, 1e15, 1e20, 1e30])
@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_a_small_or_empty_or_large_release_is_finite(size, length, deviation):
    released = jnp.full((size,), length)
    found = private_prior.denoised(released, jnp.asarray(deviation))
    assert np.isfinite(found).all()
    assert (np.abs(found) <= np.abs(released)).all()
    if deviation == 0 or length > 1e9:  # no noise, or none that is seen
        np.testing.assert_allclose(found, released, rtol=1e-6)


def test_without_noise_the_mean_is_the_most_likely_one():
    """That of agents with weights E[w_n], and κ more whose weights are 0."""
    weights = np.asarray(jr.normal(jr.key(4), (9, SIZE)))
    start = process()
    shifts = weights - np.asarray(start.mean)
    kappa = 2.0
    known = jnp.zeros(()), 9, jnp.asarray(kappa)
    found = private_prior.updated(start, jnp.asarray(shifts.sum(axis=0)), *known)
    rows = np.concatenate([weights, np.sqrt(kappa) * np.zeros((1, SIZE))])
    design = np.concatenate([np.ones(9), [np.sqrt(kappa)]])[:, None]
    expected = np.linalg.lstsq(design, rows, rcond=None)[0][0]
    np.testing.assert_allclose(found.mean, expected, atol=1e-5)
    again = private_prior.updated(found, jnp.zeros((SIZE,)), *known)
    np.testing.assert_allclose(again.mean, expected * 9 / 11, atol=1e-5)


def test_all_but_the_mean_stays():
    start = process()
    found = private_prior.updated(start, jnp.ones((SIZE,)), jnp.asarray(0.1), 4, jnp.ones(()))
    assert (float(found.location), float(found.scale)) == pytest.approx((0.5, 0.2))
    np.testing.assert_array_equal(found.covariance.own(), start.covariance.own())
    assert bool(start.learned)
