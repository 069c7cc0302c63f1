"""Priors of groups, against a dense mixture of Gaussians."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxlib
import numpy as np
import pytest
from scipy import stats

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_covariance, shared_groups, shared_prior
from jaxbo.kernels.models.shared_covariance import Full, LowRank
from jaxbo.kernels.models.shared_prior import SharedPrior
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
SIZE, AGENTS, CAPACITY, GROUPS = 10, 5, 4, 3
D = SIZE + 1
NOISE, SHRINK, DEGREES, TRUST = 1e-1, 1.5, 4.0, 0.7
PHI = jax.jit(lambda key: features.sine_cosine(key, SquaredExponential(0.3), 2, SIZE))(jr.key(0))
LOCATION, SCALE = 4.0, 2.0
#: Of the groups: shares, means, and roots of covariances.
RNG = np.random.default_rng(1)
SHARES = np.array([0.5, 0.3, 0.2])
MEANS = RNG.standard_normal((GROUPS, D)) / 2
ROOTS = np.tril(RNG.standard_normal((GROUPS, D, D)) / D**0.5) + 0.5 * np.eye(D)
COUNTS = np.array([4, 3, 1, 0, 4])
X = RNG.random((AGENTS, CAPACITY, 2))
Y = LOCATION + SCALE * RNG.standard_normal((AGENTS, CAPACITY))
stacked = jax.vmap(shared_prior.AgentData)
KNOWN = stacked(jnp.asarray(X, DTYPE), jnp.asarray(Y, DTYPE), jnp.asarray(COUNTS))


def priors(means=MEANS, roots=ROOTS, shares=SHARES):
    def one(mean, root, share):
        values = jnp.asarray(LOCATION, DTYPE), jnp.asarray(SCALE, DTYPE)
        return SharedPrior(*values, mean, Full(root), Full(root), jnp.ones((), bool), share)

    return jax.vmap(one)(*(jnp.asarray(a, DTYPE) for a in (means, roots, shares)))


def of_group(tree, k):
    return jax.tree.map(lambda leaf: leaf[k], tree)


@jax.jit
def sent(priors, known):
    """The statistics of all agents."""
    noise = jnp.asarray(NOISE, DTYPE)
    return jax.vmap(lambda one: shared_groups.statistics(PHI, priors, noise, one))(known)


@jax.jit
def doubts(priors, known, point):
    """Weights of all agents' beliefs, and the mean and variance at a point."""

    def one(known):
        given = jnp.asarray(NOISE, DTYPE), known, jnp.asarray(TRUST, DTYPE)
        doubt = shared_groups.doubting(PHI, priors, *given)
        return jnp.exp(doubt.log_weights), *doubt.predict(point)

    return jax.vmap(one)(known)


@jax.jit
def updated(priors, total):
    return shared_groups.updated(priors, total, SHRINK, DEGREES)


def psi(points):
    phis = np.asarray(jax.vmap(PHI)(jnp.asarray(points, DTYPE)), np.float64)
    return np.concatenate([phis, np.ones((len(points), 1))], axis=1)


FEATURES = psi(X.reshape(-1, 2)).reshape(AGENTS, CAPACITY, D)


def dense(n, m, S):
    """Log evidence of an agent's values, and its posterior mean and covariance."""
    P = FEATURES[n, : COUNTS[n]]
    y = (Y[n, : COUNTS[n]] - LOCATION) / SCALE
    K = P @ S @ P.T + NOISE * np.eye(len(P))
    log = stats.multivariate_normal(P @ m, K).logpdf(y) if len(y) else 0.0
    gain = np.linalg.solve(K, P @ S).T
    return log, m + gain @ (y - P @ m), S - gain @ P @ S


def test_an_agent_sends_the_statistics_of_its_likeliest_group():
    message = sent(priors(), KNOWN)
    for n in range(AGENTS):
        of_all = [dense(n, m, R @ R.T) for m, R in zip(MEANS, ROOTS, strict=True)]
        likely = np.argmax(np.log(SHARES) + [log for log, _, _ in of_all])
        shares = np.eye(GROUPS)[likely]
        np.testing.assert_array_equal(message.agents[n], shares)
        for k, (_, w, V) in enumerate(of_all):
            d, gained = w - MEANS[k], ROOTS[k] @ ROOTS[k].T - V
            np.testing.assert_allclose(message.shift[n, k], shares[k] * d, atol=2e-3)
            for mine, whole, atol in (
                (message.away, np.outer(d, d), 3e-3),
                (message.gained, gained, 2e-3),
            ):
                found = linalg.symmetric(mine[n, k])
                np.testing.assert_allclose(found, shares[k] * whole, atol=atol)
    assert np.count_nonzero(np.sum(message.agents, axis=0)) > 1


@pytest.mark.slow
def test_an_agent_s_belief_is_the_mixture_of_all_priors_and_of_nothing_learned():
    point = np.array([0.3, 0.6])
    weights, means, variances = doubts(priors(), KNOWN, jnp.asarray(point, DTYPE))
    at = psi(point[None])[0]
    all_priors = [(m, R @ R.T) for m, R in zip(MEANS, ROOTS, strict=True)]
    all_priors.append((np.zeros(D), np.eye(D)))
    shares = np.append(TRUST * SHARES, 1 - TRUST)
    for n in range(AGENTS):
        found = [dense(n, m, S) for m, S in all_priors]
        likely = shares * np.exp([log for log, _, _ in found])
        likely = likely / likely.sum()
        mean = np.array([at @ w for _, w, _ in found])
        variance = np.array([at @ V @ at for _, _, V in found])
        expected = likely @ mean
        spread = likely @ (variance + (mean - expected) ** 2)
        np.testing.assert_allclose(weights[n], likely, atol=1e-4)
        np.testing.assert_allclose(means[n], LOCATION + SCALE * expected, atol=2e-3)
        np.testing.assert_allclose(variances[n], SCALE**2 * spread, atol=4e-3)


def test_a_function_is_drawn_from_the_belief_of_a_prior_that_is_drawn_by_its_weight():
    n, draws = 0, 8000

    @jax.jit
    def drawn(priors, known, keys):
        given = jnp.asarray(NOISE, DTYPE), known, jnp.asarray(TRUST, DTYPE)
        doubt = shared_groups.doubting(PHI, priors, *given)
        return jnp.exp(doubt.log_weights), jax.vmap(lambda k: doubt.sample(k).weights)(keys)

    weights, found = drawn(priors(), of_group(KNOWN, n), jr.split(jr.key(3), draws))
    # More than one of them is likely.
    assert np.sort(weights)[-2] > 0.01
    all_priors = [(m, R @ R.T) for m, R in zip(MEANS, ROOTS, strict=True)]
    beliefs = [dense(n, *prior)[1:] for prior in [*all_priors, (np.zeros(D), np.eye(D))]]
    likely = np.asarray(weights, float)
    mean = sum(p * w for p, (w, _) in zip(likely, beliefs, strict=True))
    each = [V + np.outer(w - mean, w - mean) for w, V in beliefs]
    covariance = sum(p * V for p, V in zip(likely, each, strict=True))
    # But for the constant. Five standard errors, of squares of about normal numbers.
    mean, covariance, found = mean[:-1], covariance[:-1, :-1], np.asarray(found, float)
    deviations = np.sqrt(np.diag(covariance))
    errors = (found.mean(axis=0) - mean) / deviations
    assert np.abs(errors).max() < 5 / draws**0.5
    errors = (np.cov(found.T) - covariance) / np.outer(deviations, deviations)
    assert np.abs(errors).max() < 5 * (2 / draws) ** 0.5


def test_equal_groups_are_the_largest_and_believe_as_one():
    same = priors(MEANS[[0] * GROUPS], ROOTS[[0] * GROUPS])
    message = sent(same, KNOWN)
    np.testing.assert_array_equal(message.agents, np.tile([1, 0, 0], (AGENTS, 1)))
    first = eqx.tree_at(lambda p: p.share, same, jnp.asarray([1.0, 0.0, 0.0], DTYPE))
    point = jnp.asarray([0.3, 0.6], DTYPE)
    (_, *mine), (_, *theirs) = doubts(same, KNOWN, point), doubts(first, KNOWN, point)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)


def summed(message):
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), message)


@pytest.mark.slow
def test_a_step_is_that_of_each_group_with_location_and_scale_of_all_values():
    start, total = priors(), summed(sent(priors(), KNOWN))
    new = updated(start, total)
    values = np.concatenate([y[:count] for y, count in zip(Y, COUNTS, strict=True)])
    np.testing.assert_allclose(new.location, values.mean(), rtol=1e-4)
    np.testing.assert_allclose(new.scale, values.std(), rtol=1e-4)
    N = np.asarray(total.agents)
    np.testing.assert_allclose(new.share, (N + 1) / (AGENTS + GROUPS), rtol=1e-5)
    alone = jax.jit(lambda prior, total: shared_prior.updated(prior, total, SHRINK, DEGREES))
    for k in range(GROUPS):
        its = eqx.tree_at(lambda t: t.values, of_group(total, k), jnp.sum(total.values, axis=0))
        one = alone(of_group(start, k), its)
        np.testing.assert_allclose(new.mean[k], one.mean, atol=2e-3)
        np.testing.assert_allclose(new.covariance.root[k], one.covariance.root, atol=2e-3)


@functools.partial(jax.jit, static_argnums=(0, 1))
def uninformed(rank, groups):
    return shared_groups.uninformed(jr.key(7), SIZE, rank, groups, DTYPE)


@pytest.mark.bitwise
@pytest.mark.parametrize(
    "rank", [3, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, D))]
)
def test_a_single_group_has_the_bits_of_a_single_prior(rank):
    @jax.jit
    def step(prior):
        def one(known):
            belief = shared_prior.believed(PHI, prior, jnp.asarray(NOISE, DTYPE), known)
            return shared_prior.statistics(belief)

        return shared_prior.updated(prior, summed(jax.vmap(one)(KNOWN)), SHRINK, DEGREES)

    @jax.jit
    def grouped(priors):
        return updated(priors, summed(sent(priors, KNOWN)))

    groups = uninformed(rank, 1)
    single = of_group(groups, 0)
    for _ in range(3):
        single, groups = step(single), grouped(groups)
    mine, theirs = jax.tree.leaves(single), jax.tree.leaves(of_group(groups, 0))
    # Programs in float64 are compiled without regard to bits, and by XLA from jaxlib 0.12 on the two
    # programs may differ in their last bits.
    newer = jaxlib.version.__version_info__ >= (0, 12)
    rounding = 1e-14 if np.float64 == DTYPE else 1e-6 if newer else 0
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding)


def test_first_sums_are_divided_where_agents_differ_most():
    start = uninformed(D, GROUPS)
    total = summed(sent(start, KNOWN))
    np.testing.assert_array_equal(total.agents[1:], 0)
    one = of_group(total, 0)
    parts, differ = jax.jit(
        lambda t: shared_groups._divided(of_group(start, 0).covariance, t, GROUPS)
    )(one)
    assert differ
    for whole, part in (
        (one.shift, parts.shift),
        (one.away, parts.away),
        (one.agents, parts.agents),
    ):
        np.testing.assert_allclose(np.sum(part, axis=0), whole, atol=1e-4)
    N, d = float(one.agents), np.asarray(one.shift) / float(one.agents)
    around = (np.asarray(linalg.symmetric(one.away)) - N * np.outer(d, d))[:-1, :-1]
    apart = (np.asarray(parts.shift) * GROUPS / N - d)[:, :-1]
    np.testing.assert_allclose(np.asarray(parts.shift)[:, -1], one.shift[-1] / GROUPS, rtol=1e-6)
    # The groups' part of the covariance is its best approximation of that rank.
    values, vectors = np.linalg.eigh(around)
    best = (vectors[:, 1 - GROUPS :] * values[1 - GROUPS :]) @ vectors[:, 1 - GROUPS :].T
    np.testing.assert_allclose(N / GROUPS * apart.T @ apart, best, atol=1e-2)
    # All are as far from the middle, and from each other.
    products = apart @ np.linalg.pinv(best, rcond=1e-4, hermitian=True) @ apart.T * N / GROUPS
    np.testing.assert_allclose(products, np.eye(GROUPS) - 1 / GROUPS, atol=1e-2)


def test_a_low_rank_form_finds_directions_in_its_basis():
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(np.pad(rng.standard_normal((SIZE, 3)), ((0, 1), (0, 0))))[0]
    rows = np.array([[3.0, 0, 0], [0, 0, 2.0], [0, 1.0, 0]]) @ basis.T
    start = shared_covariance.covariance(jr.key(0), D, 3, DTYPE)
    assert isinstance(start, LowRank)
    S = eqx.tree_at(lambda s: s.basis, start, jnp.asarray(basis, DTYPE))
    found = jax.jit(lambda S: S.leading(S.spread(jnp.asarray(rows, DTYPE)), 2))(S)
    signs = np.sign(np.sum(found * rows[:2], axis=1))
    np.testing.assert_allclose(signs[:, None] * found, rows[:2], atol=1e-3)


def test_without_a_difference_or_anybody_all_stay_in_the_first_group():
    start = uninformed(D, GROUPS)
    flat = eqx.tree_at(lambda k: k.y, KNOWN, jnp.full_like(KNOWN.y, 12.3))
    nobody = jax.tree.map(jnp.zeros_like, summed(sent(start, KNOWN)))
    for total in (summed(sent(start, flat)), nobody):
        new = updated(start, total)
        np.testing.assert_array_equal(new.share, [1, 0, 0])
        assert not np.any(new.learned)
    there = priors()
    jax.tree.map(np.testing.assert_array_equal, updated(there, nobody), there)


@pytest.mark.parametrize("agents", [1, AGENTS])
def test_few_values_of_few_agents_leave_numbers_finite(agents):
    few = eqx.tree_at(lambda k: k.count, KNOWN, jnp.minimum(KNOWN.count, 2 if agents == 1 else 1))
    here = jnp.arange(AGENTS) < agents
    prior = uninformed(D, GROUPS)
    for _ in range(4):
        message = sent(prior, few)
        heard = lambda leaf: jnp.where(here.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)  # noqa: E731
        prior = updated(prior, summed(jax.tree.map(heard, message)))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(prior))
    np.testing.assert_allclose(np.sum(prior.share), 1, rtol=1e-5)


@pytest.mark.slow
def test_groups_are_one_until_agents_differ():
    # Before location and scale are known, agents of one value each are all alike.
    one_value = eqx.tree_at(lambda k: k.count, KNOWN, jnp.minimum(KNOWN.count, 1))
    step = lambda prior: updated(prior, summed(sent(prior, one_value)))  # noqa: E731
    alone, prior = step(uninformed(D, 1)), step(uninformed(D, GROUPS))
    np.testing.assert_array_equal(prior.share, np.eye(GROUPS)[0])
    single = of_group(alone, 0)
    for k in range(GROUPS):
        mine = of_group(prior, k)
        assert mine.learned
        np.testing.assert_allclose(mine.mean, single.mean, atol=1e-5)
        np.testing.assert_allclose(mine.covariance.root, single.covariance.root, atol=1e-5)
    prior = step(prior)
    assert (prior.share < 1).all()
    assert np.abs(prior.mean[0] - prior.mean[1]).max() > 0.01


def test_a_group_of_nobody_becomes_the_process():
    total = summed(sent(priors(), KNOWN))
    left = jax.tree.map(lambda leaf: leaf.at[2].set(0), total)
    left = eqx.tree_at(lambda t: t.values, left, total.values)
    new = of_group(updated(priors(), left), 2)
    np.testing.assert_allclose(new.mean, 0, atol=1e-4)
    np.testing.assert_allclose(new.covariance.root, np.eye(D), atol=1e-4)


@pytest.mark.parametrize("kinds", [2, GROUPS])
def test_agents_find_out_who_is_of_their_kind(kinds):
    rng, agents = np.random.default_rng(5), 30 * (kinds - 1) ** 2
    common = rng.standard_normal((kinds, D))
    common[1] = -common[0] if kinds == 2 else common[1]
    kind = np.arange(agents) % kinds
    points = rng.random((agents, CAPACITY, 2))
    W = common[kind] + 0.1 * rng.standard_normal((agents, D))
    y = np.einsum("ntd,nd->nt", psi(points.reshape(-1, 2)).reshape(agents, CAPACITY, D), W)
    counts = jnp.full((agents,), CAPACITY)
    known = stacked(jnp.asarray(points, DTYPE), jnp.asarray(y, DTYPE), counts)
    prior = uninformed(D, kinds)

    @jax.jit
    def step(prior):
        return updated(prior, summed(sent(prior, known)))

    for _ in range(8):
        prior = step(prior)
    found = np.asarray(sent(prior, known).agents)
    # Groups have no names: how many of each kind are in each group.
    table = np.array([found[kind == j].sum(axis=0) for j in range(kinds)])
    assert table.max(axis=1).sum() >= 0.9 * agents
    assert len(set(table.argmax(axis=1))) == kinds
