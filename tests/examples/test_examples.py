"""What the examples show is so."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.processes.covariance import gram
from jaxbo.kernels.processes.features import sine_cosine
from jaxbo.metrics import best_so_far
from tests.examples import acquisition, kernel, one_model


@functools.cache
def periodic():
    return kernel.optimize(kernel.PERIODIC)


@pytest.mark.full
def test_the_best_point_is_found_with_kernels_of_ones_own():
    for _, trace in (periodic(), kernel.optimize(kernel.SPECTRAL)):
        assert best_so_far(trace.values)[-1] > 0.95


@pytest.mark.slow
def test_the_numbers_of_the_periodic_kernel_are_fitted():
    state, _ = periodic()
    period, _ = 0.3 * state.belief.kernel.factors
    assert period == pytest.approx(1 / 3, rel=0.03)


@pytest.mark.slow
def test_features_of_the_rational_quadratic_are_of_its_spectrum():
    own = kernel.RationalQuadratic(0.3, 1.5)
    X = jr.uniform(jr.key(0), (6, 2))
    phi = jax.vmap(sine_cosine(jr.key(1), own, 2, 4000))(X)
    np.testing.assert_allclose(phi @ phi.T, gram(own, X, X), atol=0.06)


@pytest.mark.slow
def test_the_probability_of_improvement_optimizes():
    egp = acquisition.EGP
    state, trace = acquisition.optimize(egp)
    assert best_so_far(trace.values)[-1] > 0.9
    ax = acquisition.picture(egp, state, trace)
    assert ax.lines
    function = egp.policy(jr.key(0), egp.surrogate, state.shared, state.belief)
    assert jnp.isfinite(function(jnp.array([0.5, 0.5])))


@pytest.mark.slow
def test_what_is_believed_is_drawn():
    ax = kernel.picture(kernel.PERIODIC, *periodic())
    mean = next(line for line in ax.lines if line.get_label() == "mean").get_ydata()
    truth = np.sin(6 * np.pi * np.linspace(0, 1, 200))
    assert np.abs(np.asarray(mean) - truth).max() < 0.3


def test_a_method_of_ones_own_optimizes():
    _, trace = one_model.optimize()
    assert best_so_far(trace.values).max() > 0.9
    assert 0.05 < trace.info.mean() < 0.5  # the share of points at random
