"""Means and variances under shared priors, and their derivatives, against dense algebra in float64."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special

from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.maximize import maximize
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models import shared_groups, shared_prior
from jaxbo.kernels.models.shared_covariance import Full, LowRank
from jaxbo.kernels.models.shared_prior import SharedPrior
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
SIZE, CAPACITY, LENGTH = 20, 6, 0.3
D = SIZE + 1
RNG = np.random.default_rng(1)
ROOTS = np.tril(RNG.standard_normal((2, D, D)) / D**0.5) + 0.5 * np.eye(D)
FACTORS = RNG.standard_normal((2, D, 3)) / 2
MEANS = RNG.standard_normal((2, D)) / 2
SHARES, TRUST = np.array([0.6, 0.4]), 0.7
#: Forms of S: how it is held, and S itself.
FORMS = {
    "full": (lambda k: Full(jnp.asarray(ROOTS[k], DTYPE)), lambda k: ROOTS[k] @ ROOTS[k].T),
    "low rank": (
        lambda k: LowRank(
            jnp.asarray([0.3, 0.8], DTYPE),
            jnp.asarray(FACTORS[k], DTYPE),
            jnp.asarray(np.eye(D, 3), DTYPE),
        ),
        lambda k: np.diag([*[0.3] * SIZE, 0.8]) + FACTORS[k] @ FACTORS[k].T,
    ),
}


def feature_map(dim):
    draw = lambda key: features.sine_cosine(key, SquaredExponential(LENGTH), dim, SIZE)  # noqa: E731
    return jax.jit(draw)(jr.key(0))


MAPS = {dim: feature_map(dim) for dim in (2, 9)}


def with_derivatives(dim, x):
    """ψ [D], its Jacobian [D dim] and second derivatives [D dim dim] at a point."""
    slopes = 2 * np.pi * np.asarray(MAPS[dim].frequencies, np.float64) / LENGTH
    s, c = np.sin(slopes @ x), np.cos(slopes @ x)
    outer = slopes[:, :, None] * slopes[:, None, :]
    parts = (
        np.concatenate([s, c, [0.0]]),
        np.concatenate([c[:, None] * slopes, -s[:, None] * slopes, np.zeros((1, dim))]),
        np.concatenate([-s[:, None, None] * outer, -c[:, None, None] * outer, 0 * outer[:1]]),
    )
    psi, J, H = (part / (SIZE / 2) ** 0.5 for part in parts)
    psi[-1] = 1
    return psi, J, H


def psi_of(dim, points):
    return np.array([with_derivatives(dim, x)[0] for x in points])


def posteriors(dim, form, groups, noise, x, y):
    """Weights of all beliefs, their means and covariances, and the best mean at an observed point."""
    priors = [(MEANS[k], FORMS[form][1](k)) for k in range(groups)] + [(np.zeros(D), np.eye(D))]
    shares = SHARES[:groups] / SHARES[:groups].sum()
    P, logs, found = psi_of(dim, x).reshape(-1, D), [], []
    for m, S in priors:
        K = P @ S @ P.T + noise * np.eye(len(P))
        r, gain = y - P @ m, np.linalg.solve(K, P @ S).T
        logs.append(-0.5 * (r @ np.linalg.solve(K, r) + np.linalg.slogdet(K)[1]))
        found.append((m + gain @ r, S - gain @ P @ S))
    logs = np.array(logs) + np.log([*(TRUST * shares), 1 - TRUST])
    log_weights = logs - special.logsumexp(logs)
    means = np.exp(log_weights) @ [P @ w for w, _ in found]
    return log_weights, found, means.max() if len(P) else -1.0


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def doubt(dim, form, groups, noise, x, y, count):
    def prior(k):
        unit = jnp.zeros((), DTYPE), jnp.ones((), DTYPE), jnp.asarray(MEANS[k], DTYPE)
        share = jnp.asarray(SHARES[k] / SHARES[:groups].sum(), DTYPE)
        return SharedPrior(*unit, FORMS[form][0](k), None, jnp.ones((), bool), share)

    priors = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(prior, range(groups)))
    known = shared_prior.AgentData(x, y, count)
    return shared_groups.doubting(MAPS[dim], priors, noise, known, jnp.asarray(TRUST, DTYPE))


class AsItIs:
    """A doubt as policies ask for it."""

    def mixture(self, shared, doubt):
        del shared
        return doubt.mixture()


@eqx.filter_jit
def near_and_many(doubt, points):
    """Moments at points in two ways, and value, gradient and Hessian of all moments at each."""
    predict = doubt.mixture().predict

    def around(x):
        near = lambda p: jnp.stack(predict.near(x)(p))  # noqa: E731
        p = jnp.zeros_like(x)
        return near(p), jax.jacfwd(near)(p), jax.jacfwd(jax.jacfwd(near))(p)

    each = jnp.stack(jax.vmap(predict)(points), 1)
    return each, jnp.stack(predict.many(points), 1), jax.vmap(around)(points)


def given(dim, count, seed=2):
    rng = np.random.default_rng(seed)
    x, y = rng.random((CAPACITY, dim)), rng.standard_normal(CAPACITY)
    arrays = jnp.asarray(x, DTYPE), jnp.asarray(y, DTYPE), jnp.asarray(count)
    return x[:count], y[:count], arrays


@pytest.mark.parametrize(
    ("dim", "form", "groups", "count"),
    [(2, "full", 1, 5), (2, "full", 1, 0), (2, "low rank", 2, CAPACITY), (9, "full", 1, 5)],
)
def test_moments_and_derivatives_are_those_of_dense_posteriors(dim, form, groups, count):
    noise = 1e-2
    x, y, rows = given(dim, count)
    belief = doubt(dim, form, groups, jnp.asarray(noise, DTYPE), *rows)
    points = np.random.default_rng(3).random((5, dim))
    each, many, (values, gradients, hessians) = near_and_many(belief, jnp.asarray(points, DTYPE))
    log_weights, dense, _ = posteriors(dim, form, groups, noise, x, y)
    np.testing.assert_allclose(belief.log_weights, log_weights, atol=2e-3)
    for i, point in enumerate(points):
        psi, J, H = with_derivatives(dim, point)
        for b, (w, V) in enumerate(dense):
            moments = [w @ psi, psi @ V @ psi]
            for found in (each, many, values):
                np.testing.assert_allclose(found[i, :, b], moments, atol=2e-4)
            slopes = np.stack([w @ J, 2 * psi @ V @ J])
            np.testing.assert_allclose(
                gradients[i, :, b], slopes, atol=1e-3 * abs(slopes).max() + 1e-5
            )
            bends = np.stack(
                [
                    np.einsum("k,kij->ij", w, H),
                    2 * (J.T @ V @ J + np.einsum("k,kij->ij", V @ psi, H)),
                ]
            )
            np.testing.assert_allclose(
                hessians[i, :, b], bends, atol=1e-3 * abs(bends).max() + 1e-4
            )


PLACES = {
    "apart": np.random.default_rng(9).random((CAPACITY, 2)),
    "together": 0.5 + 0.01 * np.random.default_rng(9).standard_normal((CAPACITY, 2)),
    "at one point": np.full((CAPACITY, 2), 0.4),
}


@pytest.mark.parametrize("noise", [1e-2, 1e-6])
@pytest.mark.parametrize("places", PLACES)
def test_variances_at_many_points_are_off_by_roundings_of_what_they_were_before(places, noise):
    x, rng = PLACES[places], np.random.default_rng(10)
    points = np.concatenate([x, x + 1e-3, rng.random((20, 2))])
    rows = (jnp.asarray(a, DTYPE) for a in (x, rng.standard_normal(CAPACITY)))
    belief = doubt(2, "full", 1, jnp.asarray(noise, DTYPE), *rows, jnp.asarray(CAPACITY))
    each, many, around = near_and_many(belief, jnp.asarray(points, DTYPE))
    P, Q = psi_of(2, x), psi_of(2, points)
    for b, S in enumerate((FORMS["full"][1](0), np.eye(D))):
        before = np.einsum("ij,jk,ik->i", Q, S, Q)
        K = P @ S @ P.T + noise * np.eye(CAPACITY)
        after = before - np.einsum("ij,ji->i", Q @ S @ P.T, np.linalg.solve(K, P @ S @ Q.T))
        for found in (each, many, around[0]):
            variances = np.asarray(found, np.float64)[:, 1, b]
            rounding = 16 * float(jnp.finfo(DTYPE).eps)
            assert (np.abs(variances - after) < rounding * before + 1e-4 * after).all()
            assert (variances >= 0).all()
    assert all(np.isfinite(leaf).all() for leaf in around)


def log_improvement(means, deviations, best):
    """log E max(f - best, 0)."""
    z = (means - best) / deviations
    with np.errstate(all="ignore"):
        t = np.abs(z)
        below = -(z**2) / 2 + np.log1p(-t * np.sqrt(np.pi / 2) * special.erfcx(t / 2**0.5))
        above = np.log(np.exp(-(z**2) / 2) + z * np.sqrt(2 * np.pi) * special.ndtr(z))
    return np.log(deviations) - 0.5 * np.log(2 * np.pi) + np.where(z < -3, below, above)


@jax.jit
def searched(doubts, points):
    """Where agents' expected improvement is largest, and its logarithm there and at points."""

    def one(doubt):
        function = EI()(jr.key(0), AsItIs(), None, doubt)
        x, value = maximize(function, Cube(2), Cube(2).candidates(jr.key(5), 300))
        return x, value, function.many(points)

    return jax.vmap(one)(doubts)


@pytest.mark.slow
def test_a_search_finds_the_largest_expected_improvement():
    # Agents with 0 to all observations, halfway on average.
    agents, noise, rng = 14, 1e-3, np.random.default_rng(12)
    counts = np.arange(agents) % (CAPACITY + 1)
    x, y = rng.random((agents, CAPACITY, 2)), rng.standard_normal((agents, CAPACITY))
    rows = jnp.asarray(x, DTYPE), jnp.asarray(y, DTYPE), jnp.asarray(counts)
    ask = jax.vmap(lambda *rows: doubt(2, "full", 1, jnp.asarray(noise, DTYPE), *rows))
    grid = np.stack(np.meshgrid(*2 * [np.linspace(0, 1, 41)]), axis=-1).reshape(-1, 2)
    found, values, on_grid = searched(ask(*rows), jnp.asarray(grid, DTYPE))
    for n, count in enumerate(counts):
        log_weights, dense, best = posteriors(2, "full", 1, noise, x[n, :count], y[n, :count])
        Q = psi_of(2, np.concatenate([grid, np.asarray(found[n : n + 1], np.float64)]))
        of_each = [
            log + log_improvement(Q @ w, np.sqrt(np.einsum("ij,jk,ik->i", Q, V, Q)), best)
            for log, (w, V) in zip(log_weights, dense, strict=True)
        ]
        logs = special.logsumexp(of_each, axis=0)
        np.testing.assert_allclose(on_grid[n], logs[:-1], rtol=1e-3, atol=0.02)
        np.testing.assert_allclose(values[n], logs[-1], atol=0.02)
        # No point of a grid is better, but for rounding.
        assert logs[-1] > logs[:-1].max() - 1e-2
