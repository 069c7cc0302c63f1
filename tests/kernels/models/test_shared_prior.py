"""A prior learned from sums, against dense expectation-maximization in float64."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models import shared_groups, shared_mean, shared_prior
from jaxbo.kernels.models.shared_covariance import Full, Isotropic, LowRank
from jaxbo.kernels.models.shared_predictions import SharedPredictions
from jaxbo.kernels.models.shared_prior import SharedPrior
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
SIZE, AGENTS, CAPACITY = 20, 7, 6
D = SIZE + 1
NOISE, SHRINK, DEGREES = 1e-2, 1.5, 4.0
PHI = jax.jit(lambda key: features.sine_cosine(key, SquaredExponential(0.3), 2, SIZE))(jr.key(0))
COUNTS = np.array([6, 5, 3, 1, 0, 4, 6])
DIRECTIONS = np.linalg.qr(np.random.default_rng(3).standard_normal((D, 4)))[0]


def forms():
    rng = np.random.default_rng(1)
    root = np.tril(rng.standard_normal((D, D)) / D**0.5) + 0.5 * np.eye(D)
    return {
        "isotropic": Isotropic(jnp.asarray([0.7, 1.9], DTYPE), D),
        "low rank": LowRank(
            jnp.asarray([0.3, 0.8], DTYPE),
            jnp.asarray(rng.standard_normal((D, 4)) / 2, DTYPE),
            jnp.asarray(DIRECTIONS, DTYPE),
        ),
        "full": Full(jnp.asarray(root, DTYPE)),
    }


FORMS = forms()


@jax.jit
def columns(covariance):
    """Those of R."""
    return jax.vmap(covariance.color)(jnp.eye(covariance.width, dtype=DTYPE))


def dense(covariance):
    """R R', column by column."""
    R = np.asarray(columns(covariance)).T
    return R.astype(np.float64) @ R.T


def data():
    rng = np.random.default_rng(2)
    X = rng.random((AGENTS, CAPACITY, 2))
    return X, 5 + 3 * rng.standard_normal((AGENTS, CAPACITY))


X, Y = data()


def prior_with(covariance, *, learned=True):
    mean = np.random.default_rng(4).standard_normal(D) / 3
    location, scale, mean = (jnp.asarray(a, DTYPE) for a in (4.0, 2.0, mean))
    wide = covariance if covariance.tells_error else None
    return SharedPrior(location, scale, mean, covariance, wide, jnp.asarray(learned))


@jax.jit
@jax.vmap
def known(X, y):
    """What agents observed, with failures between, and failures alone where there was no value."""

    def see(one, row):
        x, y = row
        one = shared_prior.observe(one, x, jnp.full_like(y, jnp.nan))
        return shared_prior.observe(one, x, y), None

    return jax.lax.scan(see, shared_prior.nothing(CAPACITY, 2, DTYPE), (X, y))[0]


SEEN = np.where(np.arange(CAPACITY)[None] < COUNTS[:, None], Y, np.nan)
KNOWN = known(jnp.asarray(X, DTYPE), jnp.asarray(SEEN, DTYPE))
#: So many points have their features together.
ROWS = 64
rows_of = jax.jit(jax.vmap(PHI))


def psi(points):
    padded = np.zeros((1 + len(points) // ROWS, ROWS, 2))
    padded.reshape(-1, 2)[: len(points)] = points
    phis = np.concatenate([rows_of(jnp.asarray(rows, DTYPE)) for rows in padded])[: len(points)]
    return np.concatenate([phis.astype(np.float64), np.ones((len(points), 1))], axis=1)


def expected(prior, n):
    """Mean and covariance of an agent's weights, densely. At first its own mean is its location."""
    S, m = dense(prior.covariance), np.asarray(prior.mean, np.float64)
    P = psi(X[n, : COUNTS[n]])
    y = (Y[n, : COUNTS[n]] - float(prior.location)) / float(prior.scale)
    gain = np.linalg.solve(P @ S @ P.T + NOISE * np.eye(len(P)), P @ S).T
    residuals = y - P @ m
    offset = np.zeros(D)
    if not prior.learned and len(y):
        offset[-1] = residuals.mean()
    return m + offset + gain @ (residuals - offset[-1]), S - gain @ P @ S


@jax.jit
def predicted(prior, points):
    def of_one(belief):
        predict = SharedPredictions(PHI, jax.tree.map(lambda leaf: leaf[None], belief), belief)
        return jax.vmap(lambda x: [moment[0] for moment in predict(x)])(points)

    return jax.vmap(of_one)(beliefs(prior))


@jax.jit
def beliefs(prior):
    believed = lambda one: shared_prior.believed(PHI, prior, jnp.asarray(NOISE, DTYPE), one)  # noqa: E731
    return jax.vmap(believed)(KNOWN)


@jax.jit
def total(prior, here):
    """The sums of these agents' statistics."""
    each = jax.vmap(shared_prior.statistics)(beliefs(prior))
    heard = lambda a: jnp.where(here.reshape(-1, *[1] * (a.ndim - 1)), a, 0)  # noqa: E731
    return jax.tree.map(lambda a: jnp.sum(heard(a), axis=0), each)


@jax.jit
def updated(prior, total):
    return shared_prior.updated(prior, total, SHRINK, DEGREES)


def after(prior, here):
    return updated(prior, total(prior, here))


@functools.partial(jax.jit, static_argnums=0)
def uninformed(rank):
    return shared_prior.uninformed(jr.key(7), SIZE, rank, DTYPE)


def dense_mean(S, m, told, unit, centered):
    """The mean, what is left of the gradient, and the mean's error, by generalized least squares.

    `told` has each agent's features, values and covariance of values.
    """
    inverse = np.linalg.inv(S)
    known = sum(P.T @ np.linalg.solve(K, P) for P, _, K in told)
    rhs = sum(P.T @ np.linalg.solve(K, y) for P, y, K in told)
    # As if there were no noise, but for what the mean explains.
    shifts = [S @ P.T @ np.linalg.solve(K, y - P @ m) for P, y, K in told]
    square = sum(d @ inverse @ (d + 2 * m) for d in shifts) + m @ known @ m
    freedom = np.trace(known @ S) - centered
    found, logs = [], []
    for kappa in SHRINK * np.array(shared_mean.TIMES):
        precision = known + kappa * inverse
        mean = np.linalg.solve(precision, rhs)
        s = (max(square - rhs @ mean, 1e-3 * square) + unit) / (freedom + 1)
        volume = np.linalg.slogdet(precision @ S / kappa)[1]
        found.append((mean, s * np.linalg.inv(precision)))
        logs.append(-0.5 * ((freedom + 1) * np.log(s) + volume))
    shares = np.exp(logs - np.max(logs))
    shares = shares / shares.sum()
    new = sum(w * mean for w, (mean, _) in zip(shares, found, strict=True))
    error = sum(
        w * (V + np.outer(mean - new, mean - new))
        for w, (mean, V) in zip(shares, found, strict=True)
    )
    return new, S @ (rhs - known @ new), error


def dense_step(prior, here):
    """Location, scale, mean, covariance and what an agent expects after one step, densely."""
    # An agent without values says nothing before a prior is learned.
    there = [n for n in range(AGENTS) if here[n] and (prior.learned or COUNTS[n])]
    count = len(there)
    values = np.concatenate([Y[n, : COUNTS[n]] for n in there])
    location, scale = values.mean(), values.std()
    ratio = float(prior.scale) / scale
    constant = np.zeros(D)
    constant[-1] = (location - float(prior.location)) / float(prior.scale)
    before, m = dense(prior.covariance), np.asarray(prior.mean, np.float64)
    m = m - constant if prior.learned else m
    told, shifts, spread = [], [], np.zeros((D, D))
    for n in there:
        found, V = expected(prior, n)
        P = psi(X[n, : COUNTS[n]])
        y = (Y[n, : COUNTS[n]] - float(prior.location)) / float(prior.scale)
        own = constant[-1] if prior.learned else (y - P @ m).mean()
        told.append((P, y - own, P @ before @ P.T + NOISE * np.eye(len(P))))
        shift = found - np.asarray(prior.mean, np.float64)
        shift[-1] -= 0 if prior.learned else own
        shifts.append(shift)
        spread += V
    shifts = np.array(shifts)
    if isinstance(prior.covariance, Full):
        unit = 1 if prior.learned else (scale / float(prior.scale)) ** 2
        lost = 0 if prior.learned else count
        mean, left, error = dense_mean(before, m, told, unit, lost)
        if not prior.learned:
            error[-1] /= 10
            error[:, -1] /= 10
    else:
        mean = (count * m + shifts.sum(axis=0)) / (count + SHRINK)
        left, error = shifts.sum(axis=0) - count * (mean - m), 0
    centered = shifts - shifts.mean(axis=0)
    away = ratio**2 * (centered.T @ centered + np.outer(left, left) / count)
    spread = spread * (ratio**2 if prior.learned else 1)
    S = (DEGREES * np.eye(D) + spread + away) / (DEGREES + count)
    return location, scale, ratio * mean, S, S + ratio**2 * error


@pytest.mark.parametrize("form", FORMS)
def test_a_belief_is_the_dense_posterior(form):
    prior = prior_with(FORMS[form])
    points = np.random.default_rng(5).random((9, 2))
    means, variances = predicted(prior, jnp.asarray(points, DTYPE))
    P = psi(points)
    for n in range(AGENTS):
        m, V = expected(prior, n)
        np.testing.assert_allclose(means[n], P @ m, atol=2e-3)
        np.testing.assert_allclose(variances[n], np.einsum("ij,jk,ik->i", P, V, P), atol=2e-3)


class AsItIs:
    """A doubt as policies ask for it."""

    def mixture(self, shared, doubt):
        del shared
        return doubt.mixture()


PLACES = {
    "apart": np.random.default_rng(9).random((CAPACITY, 2)),
    "together": 0.5 + 0.01 * np.random.default_rng(9).standard_normal((CAPACITY, 2)),
    "at one point": np.full((CAPACITY, 2), 0.4),
}


@jax.jit
def variances_and_slopes(prior, noise, x, y, points):
    """Variances of a belief, and the expected improvement with its gradient."""
    data = shared_prior.AgentData(x, y, jnp.asarray(CAPACITY))
    doubt = shared_groups.doubting(PHI, prior, noise, data, jnp.asarray(1.0))
    improvement = EI()(jr.key(0), AsItIs(), None, doubt)
    of_both = jax.vmap(doubt.mixture().predict)(points)[1]
    return of_both[:, 0], jax.vmap(jax.value_and_grad(improvement))(points)


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-6])
@pytest.mark.parametrize("places", PLACES)
def test_a_variance_is_off_by_roundings_of_what_it_was_before_any_value(places, noise):
    covariance, rng = FORMS["full"], np.random.default_rng(10)
    points = np.concatenate([PLACES[places], PLACES[places] + 1e-3, rng.random((20, 2))])
    rows = PLACES[places], rng.standard_normal(CAPACITY), points
    rows = (jnp.asarray(row, DTYPE) for row in rows)
    given = prior_with(covariance), jnp.asarray(noise, DTYPE)
    variances, climbed = variances_and_slopes(*given, *rows)
    P, Q, S = psi(PLACES[places]), psi(points), dense(covariance)
    before = np.einsum("ij,jk,ik->i", Q, S, Q)
    K = P @ S @ P.T + noise * np.eye(CAPACITY)
    gained = np.einsum("ij,ji->i", Q @ S @ P.T, np.linalg.solve(K, P @ S @ Q.T))
    after = before - gained
    error = np.abs(np.asarray(variances, np.float64) - after)
    assert (error < 16 * float(jnp.finfo(DTYPE).eps) * before + 1e-4 * after).all()
    assert (variances >= 0).all()
    assert all(np.isfinite(leaf).all() for leaf in climbed)


@pytest.mark.slow
def test_a_sample_has_the_belief_s_mean_and_covariance():
    one = jax.tree.map(lambda leaf: leaf[0], beliefs(prior_with(FORMS["low rank"])))
    sample = jax.jit(jax.vmap(lambda one, key: one.sample(key), (None, 0)))
    draws = sample(one, jr.split(jr.key(6), 20_000))
    m, V = expected(prior_with(FORMS["low rank"]), 0)
    error = np.sqrt(np.diag(V) / len(draws))
    assert (np.abs(np.mean(draws, axis=0) - m) < 5 * error + 1e-3).all()
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), V, atol=0.05)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_that_of_dense_expectation_maximization(form, learned):
    prior = prior_with(FORMS[form], learned=learned)
    here = np.array([True, True, False, True, True, True, True])
    new = after(prior, jnp.asarray(here))
    location, scale, mean, S, wide = dense_step(prior, here)
    np.testing.assert_allclose([new.location, new.scale], [location, scale], rtol=1e-4)
    np.testing.assert_allclose(new.mean, mean, atol=2e-3)
    got, want = dense(new.covariance), S
    if form == "isotropic":
        want = np.diag([*[np.diag(S)[:-1].mean()] * SIZE, S[-1, -1]])
    if form == "low rank":
        # What is seen through the basis is the same, and so is the sum of variances.
        Q = DIRECTIONS
        np.testing.assert_allclose(np.trace(got), np.trace(S), rtol=0.02)
        got, want = Q.T @ got @ Q, Q.T @ S @ Q
        # Nystrom's approximation is exact there; then the rest takes the place of what is below it.
        np.testing.assert_allclose(got, want, atol=float(new.covariance.variances.max()))
        return
    np.testing.assert_allclose(got, want, atol=3e-3)
    if form == "full":
        np.testing.assert_allclose(dense(new.wide), wide, atol=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_is_learned_first_does_not_depend_on_the_values_unit_and_zero(form):
    start = uninformed({"low rank": 4, "full": D}.get(form, 0))

    @jax.jit
    @jax.vmap
    def first(a, b):
        moved = eqx.tree_at(lambda known: known.y, KNOWN, a + b * KNOWN.y)
        believed = lambda one: shared_prior.believed(PHI, start, jnp.asarray(NOISE, DTYPE), one)  # noqa: E731
        each = jax.vmap(lambda one: shared_prior.statistics(believed(one)))(moved)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), each)
        return shared_prior.updated(start, total, SHRINK, DEGREES)

    # The second: other values of the same functions.
    found = first(jnp.asarray([0.0, 50.0], DTYPE), jnp.asarray([1.0, 0.5], DTYPE))
    np.testing.assert_allclose(found.location[1], 50 + 0.5 * found.location[0], rtol=1e-4)
    np.testing.assert_allclose(found.scale[1], 0.5 * found.scale[0], rtol=1e-3)
    np.testing.assert_allclose(found.mean[1], found.mean[0], atol=2e-3)
    roots = [dense(jax.tree.map(lambda leaf, i=i: leaf[i], found.covariance)) for i in (0, 1)]
    np.testing.assert_allclose(roots[1], roots[0], atol=5e-3)


def test_a_low_rank_covariance_is_found_by_a_few_steps_of_the_iteration():
    rng = np.random.default_rng(7)
    U = np.linalg.qr(rng.standard_normal((D, 4)))[0] * np.array([3.0, 2.0, 1.5, 1.0])
    target = U @ U.T + 0.01 * np.eye(D)
    root = jnp.asarray(np.linalg.cholesky(target), DTYPE)
    covariance = FORMS["low rank"]
    step = jax.jit(lambda covariance: covariance.of(covariance.spread(root.T)))
    for _ in range(6):
        covariance = step(covariance)
    np.testing.assert_allclose(dense(covariance), target, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_the_spread_of_a_covariance_is_that_of_the_columns_of_its_root(form):
    spreads = jax.jit(
        lambda S: ((S.own(), S.spread(columns(S))), (S.identity(), S.spread(jnp.eye(D))))
    )
    for mine, other in spreads(FORMS[form]):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), mine, other)


@pytest.mark.parametrize("form", FORMS)
def test_the_rows_of_all_agents_together_have_the_sum_of_their_statistics(form):
    prior, here = prior_with(FORMS[form]), jnp.arange(AGENTS) != 2

    @jax.jit
    def gathered(prior):
        all_terms = jax.vmap(shared_prior.terms)(beliefs(prior))
        absent = lambda a: jnp.where(here.reshape(-1, *[1] * (a.ndim - 1)), a, 0)  # noqa: E731
        return shared_prior.gathered(prior, jax.tree.map(absent, all_terms))

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)  # noqa: E731
    jax.tree.map(close, gathered(prior), total(prior, here))


def test_nothing_is_learned_from_nobody_and_from_equal_values():
    prior = prior_with(FORMS["full"])
    nobody = after(prior, np.zeros((AGENTS,), bool))
    known = total(prior, np.ones((AGENTS,), bool))
    # As many values of 0.25, standardized.
    flat = float(known.values[0]) * np.array([1.0, 0.25, 0.0625])
    equal = updated(prior, dataclasses.replace(known, values=jnp.asarray(flat, DTYPE)))
    for new in (nobody, equal):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), new, prior)


@jax.jit
def step_of_rows(prior, y):
    """A step of agents who have these values, [agents values], at points of their own."""

    def one(x, y):
        data = shared_prior.AgentData(x, y, jnp.asarray(y.size))
        noise = jnp.asarray(NOISE, DTYPE)
        return shared_prior.statistics(shared_prior.believed(PHI, prior, noise, data))

    each = jax.vmap(one)(jnp.asarray(X[: len(y), : y.shape[1]], DTYPE), y)
    total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), each)
    return shared_prior.updated(prior, total, SHRINK, DEGREES)


@pytest.mark.parametrize("value", [3.3, 100.3, 12345.6, 1e-6, 0.0])
def test_equal_values_far_from_0_teach_where_they_are_and_nothing_else(value):
    start = uninformed(0)
    for agents in (1, AGENTS):
        new = step_of_rows(start, jnp.full((agents, CAPACITY), value, DTYPE))
        assert not new.learned
        np.testing.assert_allclose(new.location, value, rtol=1e-6)
        np.testing.assert_array_equal(new.scale, 1)


@pytest.mark.parametrize(("center", "unit"), [(12345.0, 1.0), (0.0, 1e-6), (-54321.0, 0.1)])
def test_the_scale_is_that_of_values_however_far_from_0(center, unit):
    y = jnp.asarray(center + unit * np.random.default_rng(8).standard_normal(Y.shape), DTYPE)
    prior = uninformed(0)
    for _ in range(2):  # the first step may only see where they are
        prior = step_of_rows(prior, y)
    assert prior.learned
    np.testing.assert_allclose(
        prior.location, np.mean(np.asarray(y, np.float64)), rtol=1e-6, atol=unit / 50
    )
    np.testing.assert_allclose(prior.scale, np.std(np.asarray(y, np.float64)), rtol=0.02)


@pytest.mark.slow
def test_many_steps_find_the_prior_that_functions_were_drawn_from():
    # 150 agents with twelve values each, of functions around a common one.
    rng = np.random.default_rng(8)
    common, spread = rng.standard_normal(D), 0.3
    points = rng.random((150, 12, 2))
    W = common + spread * rng.standard_normal((150, D))
    y = np.einsum("ntd,nd->nt", psi(points.reshape(-1, 2)).reshape(150, 12, D), W)
    y += 0.01 * rng.standard_normal(y.shape)
    counts = jnp.full((150,), 12, dtype=int)
    rows = jnp.asarray(points, DTYPE), jnp.asarray(y, DTYPE), counts
    told = jax.vmap(shared_prior.AgentData)(*rows)
    prior = uninformed(0)

    @jax.jit
    def step(prior):
        noise = jnp.asarray(1e-4, DTYPE)
        belief = lambda one: shared_prior.believed(PHI, prior, noise, one)  # noqa: E731
        each = jax.vmap(lambda one: shared_prior.statistics(belief(one)))(told)
        total = jax.tree.map(lambda a: jnp.sum(a, axis=0), each)
        return shared_prior.updated(prior, total, 1.0, 1.0)

    for _ in range(20):
        prior = step(prior)
    grid = rng.random((50, 2))
    mean = float(prior.location) + float(prior.scale) * (psi(grid) @ np.asarray(prior.mean))
    error = np.abs(mean - psi(grid) @ common)
    assert error.max() < 0.25 * np.std(psi(grid) @ common)
    found = float(prior.scale) * np.sqrt(float(prior.covariance.variances[0]))
    assert abs(found / spread - 1) < 0.2
