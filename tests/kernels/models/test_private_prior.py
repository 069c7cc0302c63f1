"""The M-step of a mean from a sum with noise."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.models import private_prior, shared_prior
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

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


def released(shift, excess=(0.0, 0.0)):
    """What a sum of such messages is."""
    return private_prior.Departure(jnp.asarray(shift), jnp.asarray(excess)).vector


def test_without_noise_the_mean_is_the_most_likely_one():
    """That of agents with weights E[w_n], and κ more whose weights are 0."""
    weights = np.random.default_rng(4).standard_normal((9, SIZE))
    start = process()
    shifts = (weights - np.asarray(start.mean)).astype(start.mean.dtype)
    kappa = 2.0
    known = jnp.zeros(()), 9, jnp.asarray(kappa)
    found = private_prior.updated(start, released(shifts.sum(axis=0)), *known)
    rows = np.concatenate([weights, np.sqrt(kappa) * np.zeros((1, SIZE))])
    design = np.concatenate([np.ones(9), [np.sqrt(kappa)]])[:, None]
    expected = np.linalg.lstsq(design, rows, rcond=None)[0][0]
    np.testing.assert_allclose(found.mean, expected, atol=1e-5)
    again = private_prior.updated(found, released(np.zeros(SIZE)), *known)
    np.testing.assert_allclose(again.mean, expected * 9 / 11, atol=1e-5)


@pytest.mark.parametrize("excess", [(0.6, 0.0), (0.0, -0.5), (0.44, 0.44), (-9.0, 30.0)])
def test_variances_grow_by_the_mean_excess_and_by_four_at_most(excess):
    """Of the values, and of the weights, whose unit is that of the values."""
    start, agents = process(), 50
    total = released(np.zeros(SIZE), (agents + 1) * np.asarray(excess))
    found = private_prior.updated(start, total, jnp.zeros(()), agents, jnp.ones(()))
    of_values, of_weights = np.clip(1 + np.asarray(excess), 0.25, 4)
    assert float(found.location) == pytest.approx(0.5)
    assert float(found.scale) == pytest.approx(0.2 * of_values**0.5)
    expected = np.asarray(start.covariance.own()) * of_weights / of_values
    np.testing.assert_allclose(found.covariance.own(), expected, rtol=1e-5)


def test_a_unit_that_changes_changes_no_function():
    start = process()
    shift = np.random.default_rng(5).standard_normal(SIZE)
    known = jnp.zeros(()), 5, jnp.ones(())
    one, two = (
        private_prior.updated(start, released(shift, excess), *known)
        for excess in ((0.0, 0.0), (3.0, 3.0))
    )
    assert float(two.scale) > 1.1 * float(one.scale)
    np.testing.assert_allclose(one.scale * one.mean, two.scale * two.mean, rtol=1e-5)


def test_an_excess_is_believed_by_the_noise():
    """As the mean of a Gaussian posterior, by the density on a grid."""
    agents, deviation, found = 20, 3.0, 1.4
    total = released(np.zeros(SIZE), (agents * found, 0.0))
    known = jnp.asarray(deviation), agents, jnp.ones(())
    prior = private_prior.updated(process(), total, *known)
    grid = np.linspace(-6, 6, 20_001)
    variance = 1 / agents + (deviation / 0.5 / agents) ** 2
    weights = np.exp(-0.5 * grid**2 - 0.5 * (found - grid) ** 2 / variance)
    expected = np.average(grid, weights=weights)
    assert (float(prior.scale) / 0.2) ** 2 == pytest.approx(1 + expected, rel=1e-4)


# ---------------------------------------------------------------- an agent

AGENTS, CAPACITY, FEATURES = 2000, 5, 40
PHI = features.sine_cosine(jr.key(6), SquaredExponential(0.2), 2, FEATURES)


@functools.cache
def departures():
    """Those of agents whose weights are as far away as the prior says, and half and twice as far."""
    rng, start = np.random.default_rng(7), process(FEATURES)
    x = rng.random((AGENTS, CAPACITY, 2)).astype(start.mean.dtype)
    noise, w = 1e-2, rng.standard_normal((AGENTS, FEATURES + 1))
    phi = np.asarray(jax.vmap(jax.vmap(PHI))(jnp.asarray(x)))
    y = np.einsum("ntm,nm->nt", phi, w[:, :-1]) + w[:, -1:]
    y = y + noise**0.5 * rng.standard_normal(y.shape)

    def one(x, y, count):
        known = shared_prior.AgentData(x, y, count)
        return private_prior.departure(shared_prior.believed(PHI, start, jnp.asarray(noise), known))

    each = jax.jit(jax.vmap(one))
    times = {"half": 0.5, "as expected": 1.0, "twice": 2.0}
    counts = np.full(AGENTS, CAPACITY)
    counts[:2] = 0, 1
    told = {name: (0.5 + 0.2 * factor * y).astype(x.dtype) for name, factor in times.items()}
    told["as expected"][2] = told["as expected"][2, 0]
    return {name: np.asarray(each(x, y, counts).excess) for name, y in told.items()}


def test_nothing_is_in_excess_where_the_prior_is_right():
    of_weights = departures()["as expected"][3:, 1]
    # It is cut at 3, which is beyond what all but few have.
    assert abs(of_weights.mean()) < 4 * of_weights.std() / AGENTS**0.5
    assert (of_weights > 2.99).mean() < 0.01


@pytest.mark.parametrize(("name", "factor"), [("half", 0.5), ("twice", 2.0)])
def test_values_farther_apart_are_in_excess(name, factor):
    right, wrong = departures()["as expected"][3:], departures()[name][3:]
    whole = right < 2.99  # the others are cut
    expected = np.minimum(factor**2 * (1 + right) - 1, 3)
    np.testing.assert_allclose(wrong[whole], expected[whole], rtol=1e-3, atol=1e-3)
    assert whole.mean() > 0.9
    assert (wrong <= 3).all()


def test_who_has_no_two_values_that_differ_says_nothing_of_variances():
    assert (departures()["as expected"][:3] == 0).all()
