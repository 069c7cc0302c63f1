"""The mean of weights by the evidence of all agents, against dense densities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.kernels.models import shared_mean

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
D, AGENTS, COUNT, NOISE = 12, 8, 4, 1e-5
SCALE = 3.0
ROOT = np.tril(np.random.default_rng(0).standard_normal((D, D))) / 4 + np.eye(D)
S = ROOT @ ROOT.T


def functions(common, seed=1):
    """Agents' features and values; that share of the weights' variance is common to all."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((AGENTS, D)) * (1 - common) ** 0.5
    weights = SCALE * (own + rng.standard_normal(D) * common**0.5) @ ROOT.T
    features = rng.standard_normal((AGENTS, COUNT, D))
    values = np.einsum("ntd,nd->nt", features, weights)
    return features, values + SCALE * NOISE**0.5 * rng.standard_normal(values.shape)


@functools.partial(jax.jit, static_argnums=5)
def estimate(gained, away, shift, mean, unit, shrink):
    root, zero = jnp.asarray(ROOT, DTYPE), jnp.zeros((), DTYPE)
    given = jnp.asarray(shrink, DTYPE), unit, zero
    return shared_mean.estimated(root, gained, away, shift, mean, *given)


def estimated(features, values, mean=np.zeros(D), shrink=1.0, *, sums=None, unit=1.0):
    """From the sums over agents, under a prior of that mean."""
    gained, away, shift = np.zeros((D, D)), np.zeros((D, D)), np.zeros(D)
    for P, y in zip(features, values, strict=True):
        K = P @ S @ P.T + NOISE * np.eye(COUNT)
        d = S @ P.T @ np.linalg.solve(K, y - P @ mean)
        gained += S @ P.T @ np.linalg.solve(K, P @ S)
        away += np.outer(d, d)
        shift += d
    total = (gained, away, shift) if sums is None else sums
    arrays = (jnp.asarray(a, DTYPE) for a in (*total, mean, unit))
    found = estimate(*arrays, shrink)
    return jax.tree.map(lambda a: np.asarray(a, np.float64), found)


def density(features, values, kappa):
    """The log density of all values, at the most likely s; their mean and covariance of m there."""
    P, y = features.reshape(-1, D), values.ravel()
    K = P @ (S / kappa) @ P.T + NOISE * np.eye(len(y))
    for n in range(AGENTS):
        own = slice(n * COUNT, (n + 1) * COUNT)
        K[own, own] += features[n] @ S @ features[n].T
    s = (y @ np.linalg.solve(K, y) + 1) / (len(y) + 1)  # a value of 1 more
    log = -0.5 * ((len(y) + 1) * np.log(s) + np.linalg.slogdet(K)[1])
    gain = (S / kappa) @ P.T
    mean = gain @ np.linalg.solve(K, y)
    return log, mean, s * (S / kappa - gain @ np.linalg.solve(K, gain.T))


@pytest.mark.parametrize("common", [0.0, 0.5, 0.95])
def test_it_is_the_posterior_of_the_mean_where_scale_and_shrinkage_are_not_known(common):
    features, values = functions(common)
    parts = [density(features, values, kappa) for kappa in 1.0 * np.array(shared_mean.TIMES)]
    logs = np.array([log for log, _, _ in parts])
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    mean = sum(w * m for w, (_, m, _) in zip(weights, parts, strict=True))
    error = sum(
        w * (V + np.outer(m - mean, m - mean)) for w, (_, m, V) in zip(weights, parts, strict=True)
    )
    found = estimated(features, values)
    np.testing.assert_allclose(found.step, mean, atol=0.01 * SCALE)
    np.testing.assert_allclose(found.error, error, atol=0.01 * np.abs(error).max())


def test_from_whatever_mean_it_starts_it_ends_at_the_same():
    features, values = functions(0.5)
    start = np.random.default_rng(2).standard_normal(D)
    one, two = estimated(features, values), estimated(features, values, start)
    np.testing.assert_allclose(one.step, start + two.step, atol=5e-3)
    np.testing.assert_allclose(one.left, two.left, atol=5e-3)
    np.testing.assert_allclose(one.error, two.error, atol=5e-3)


def test_what_is_left_is_the_sum_of_shifts_under_the_new_mean():
    features, values = functions(0.5)
    found = estimated(features, values)
    again = estimated(features, values, found.step)
    np.testing.assert_allclose(again.step, 0, atol=5e-3)
    np.testing.assert_allclose(again.left, found.left, atol=5e-3)


def test_it_has_the_unit_of_values():
    features, values = functions(0.5)
    one, two = estimated(features, values), estimated(features, 1e-4 * values, unit=1e-8)
    np.testing.assert_allclose(1e-4 * one.step, two.step, atol=1e-6)
    np.testing.assert_allclose(1e-8 * one.error, two.error, atol=1e-3 * two.error.max())


def test_little_is_taken_for_common_where_nothing_is_and_all_where_all_is():
    kept = []
    for common in (0.0, 1.0):
        lengths = [
            [np.linalg.norm(found.step) for found in (estimated(*functions(common, seed)),)]
            for seed in range(20)
        ]
        kept.append(np.mean(lengths) / SCALE)
    assert kept[0] < 0.5 * kept[1]


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e-12, 1e12])
def test_whatever_the_sums_all_is_finite(size):
    features, values = functions(0.5)
    nothing = np.zeros((D, D)), np.zeros((D, D)), np.zeros(D)
    found = estimated(features, size * values, sums=nothing, unit=size**2)
    assert all(np.isfinite(leaf).all() for leaf in found)
    found = estimated(features, size * values, unit=size**2)
    assert all(np.isfinite(leaf).all() for leaf in found)
    if size != 1e-25:  # whose square is 0 in float32
        expected = size * estimated(features, values).step
        np.testing.assert_allclose(found.step, expected, rtol=0.02, atol=size * 0.01)
