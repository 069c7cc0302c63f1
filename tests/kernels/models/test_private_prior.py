"""The M-step of a mean from a sum with noise."""

import functools

import equinox as eqx
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


#: How much 40 agents know of each direction.
KNOWN = 40 * np.linspace(0.9, 0.01, SIZE)


def of_model(left, deviation, draws=DRAWS):
    """Sums whose mean is off by a variance of `left`, and their releases."""
    rng = np.random.default_rng(1)
    sums = np.sqrt(KNOWN**2 * left + KNOWN) * rng.standard_normal((draws, SIZE))
    return sums, sums + deviation * rng.standard_normal((draws, SIZE))


@pytest.mark.parametrize("left", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("deviation", [0.7, 7.0])
def test_denoised_errs_less_than_the_release_and_than_one_that_knows_no_direction(left, deviation):
    sums, released = of_model(left, deviation)
    known = jnp.asarray(KNOWN, jnp.zeros(()).dtype)
    each = jax.jit(jax.vmap(private_prior.denoised, (0, None, None, None)))
    found = np.asarray(each(jnp.asarray(released), jnp.asarray(deviation), known, known))
    error = lambda estimate: np.sum((estimate - sums) ** 2, axis=1)  # noqa: E731
    squares = np.sum(released**2, axis=1, keepdims=True)
    of_james_and_stein = np.maximum(1 - (SIZE - 2) * deviation**2 / squares, 0) * released
    for other in (released, of_james_and_stein):
        gain = error(other) - error(found)
        assert gain.mean() > 3 * gain.std() / DRAWS**0.5


@pytest.mark.parametrize("q", [1.0, 0.1])
def test_denoised_is_the_mean_given_the_release(q):
    """By the dense Gaussian of each variance that is left, and their evidences."""
    deviation, counted = 3.0, np.maximum(KNOWN, 20)
    released = of_model(0.1, deviation, 1)[1][0]
    means, logs = [], []
    for left in private_prior.VARIANCES:
        of_sum = np.diag(counted**2 * left + KNOWN)
        whole = of_sum + deviation**2 * np.eye(SIZE) + np.diag(KNOWN) * (1 - q) / q
        means.append(of_sum @ np.linalg.solve(whole, released))
        fit = released @ np.linalg.solve(whole, released)
        logs.append(-0.5 * (np.linalg.slogdet(whole)[1] + fit))
    weights = np.exp(np.asarray(logs) - max(logs))
    expected = weights @ np.asarray(means) / weights.sum()
    found = private_prior.denoised(*map(jnp.asarray, (released, deviation, counted, KNOWN)), q=q)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_without_noise_nothing_is_taken_away():
    total = jr.normal(jr.key(3), (SIZE,))
    known = jnp.asarray(KNOWN, total.dtype)
    found = private_prior.denoised(total, jnp.zeros(()), known, known)
    np.testing.assert_allclose(found, total, rtol=1e-5)


@pytest.mark.parametrize("known", [0.0, 1e-8, 30.0])
@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-20, 1e15, 1e20, 1e30])
@pytest.mark.parametrize("deviation", [0.0, 1.0, 1e19])
def test_a_small_or_empty_or_large_release_is_finite(known, length, deviation):
    released = jnp.full((SIZE,), length)
    counted = jnp.full_like(released, known)
    found = private_prior.denoised(released, jnp.asarray(deviation), counted, counted)
    assert np.isfinite(found).all()
    assert (np.abs(found) <= np.abs(released) * (1 + 1e-6)).all()
    if deviation == 0:
        np.testing.assert_allclose(found, released, rtol=1e-5)


def knows(known):
    """Agents who know so much of each direction."""
    known = jnp.asarray(known, jnp.zeros(()).dtype)
    eye = jnp.eye(known.size, dtype=known.dtype)
    return private_prior.Information(known, eye, jnp.ones_like(known[0]))


#: Agents who know all of their weights.
ALL = knows(np.ones(SIZE))


def released(shift, excess=(0.0, 0.0)):
    """The sum of such messages."""
    return private_prior.Departure(jnp.asarray(shift), jnp.asarray(excess)).vector


def test_without_noise_the_mean_is_the_most_likely_one():
    """That of agents with weights E[w_n], and κ more whose weights are 0."""
    weights = np.random.default_rng(4).standard_normal((9, SIZE))
    start = process()
    shifts = (weights - np.asarray(start.mean)).astype(start.mean.dtype)
    kappa = 2.0
    known = jnp.zeros(()), 1.0, 9, jnp.asarray(kappa), ALL
    found = private_prior.updated(start, released(shifts.sum(axis=0)), *known)
    rows = np.concatenate([weights, np.sqrt(kappa) * np.zeros((1, SIZE))])
    design = np.concatenate([np.ones(9), [np.sqrt(kappa)]])[:, None]
    expected = np.linalg.lstsq(design, rows, rcond=None)[0][0]
    np.testing.assert_allclose(found.mean, expected, atol=1e-5)
    again = private_prior.updated(found, released(np.zeros(SIZE)), *known)
    np.testing.assert_allclose(again.mean, expected * 9 / 11, atol=1e-5)


@pytest.mark.parametrize("excess", [(0.6, 0.0), (0.0, -0.5), (0.44, 0.44), (-9.0, 30.0)])
def test_variances_grow_by_the_mean_excess_and_by_four_at_most(excess):
    """The variances of values and of weights, in the unit of the values."""
    start, agents = process(), 50
    total = released(np.zeros(SIZE), (agents + 1) * np.asarray(excess))
    found = private_prior.updated(start, total, jnp.zeros(()), 1.0, agents, jnp.ones(()), ALL)
    of_values, of_weights = np.clip(1 + np.asarray(excess), 0.25, 4)
    assert float(found.location) == pytest.approx(0.5)
    assert float(found.scale) == pytest.approx(0.2 * of_values**0.5)
    expected = np.asarray(start.covariance.own()) * of_weights / of_values
    np.testing.assert_allclose(found.covariance.own(), expected, rtol=1e-5)


def test_a_unit_that_changes_changes_no_function():
    start = process()
    shift = np.random.default_rng(5).standard_normal(SIZE)
    known = jnp.zeros(()), 1.0, 5, jnp.ones(()), ALL
    one, two = (
        private_prior.updated(start, released(shift, excess), *known)
        for excess in ((0.0, 0.0), (3.0, 3.0))
    )
    assert float(two.scale) > 1.1 * float(one.scale)
    np.testing.assert_allclose(one.scale * one.mean, two.scale * two.mean, rtol=1e-5)


@pytest.mark.parametrize("q", [1.0, 0.2])
def test_an_excess_is_believed_by_the_noise(q):
    """As the mean of a Gaussian posterior, by the density on a grid."""
    agents, deviation, found = 20, 3.0, 1.4
    total = released(np.zeros(SIZE), (agents * found, 0.0))
    known = jnp.asarray(deviation), q, agents, jnp.ones(()), ALL
    prior = private_prior.updated(process(), total, *known)
    grid = np.linspace(-6, 6, 20_001)
    variance = 1 / q / agents + (deviation / 0.5 / agents) ** 2
    weights = np.exp(-0.5 * grid**2 - 0.5 * (found - grid) ** 2 / variance)
    expected = np.average(grid, weights=weights)
    assert (float(prior.scale) / 0.2) ** 2 == pytest.approx(1 + expected, rel=1e-4)


@pytest.mark.parametrize("name", ["first", "later", "too long"])
def test_a_step_is_that_of_dense_algebra(name):
    rng = np.random.default_rng(8)
    start, agents, kappa, of_S = process(), 30, 2.0, 0.6
    mean = 0.3 * rng.standard_normal(SIZE) * (name == "later")
    S = start.covariance.of(of_S * start.covariance.own())
    start = eqx.tree_at(lambda p: (p.mean, p.covariance), start, (jnp.asarray(mean), S))
    Q = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0]
    known = np.linspace(0.02, 0.9, SIZE)
    first = name != "later"  # later nothing is divided by what clipping leaves
    kept = 0.8 if first else 1.0
    shift = (20.0 if name == "too long" else 0.5) * agents * Q @ (known * Q[:, 0])
    least = 2 / 3 if name == "later" else 0.0
    counted = agents * Q @ np.diag(np.maximum(known, least)) @ Q.T
    # Weights are in units of √S.
    sums = (shift / kept - kappa * mean) / of_S**0.5
    step = np.linalg.solve(counted + kappa * np.eye(SIZE), sums)
    explained, most = step @ (agents * Q @ np.diag(known) @ Q.T) @ step, agents * known.sum()
    assert (explained > most) == (name == "too long")
    step *= min(1, (most / explained) ** 0.5)
    information = private_prior.Information(*map(jnp.asarray, (known, Q, kept if first else 0.5)))
    given = jnp.zeros(()), 1.0, agents, jnp.asarray(kappa), information
    found = private_prior.updated(start, released(shift), *given)
    np.testing.assert_allclose(found.mean, mean + of_S**0.5 * step, atol=1e-4)


@pytest.mark.parametrize("length", [1e3, 1e15, 1e25])
def test_however_large_a_sum_is_the_mean_explains_no_more_than_there_is(length):
    agents, known = 40, np.linspace(0.02, 0.9, SIZE)
    given = jnp.zeros(()), 1.0, agents, jnp.ones(()), knows(known)
    found = private_prior.updated(process(), released(np.full(SIZE, length)), *given)
    explained = agents * np.sum(known * np.asarray(found.mean, float) ** 2)
    np.testing.assert_allclose(explained, agents * known.sum(), rtol=1e-4)


# ---------------------------------------------------------------- an agent

AGENTS, CAPACITY, FEATURES = 2000, 5, 40
PHI = features.sine_cosine(jr.key(6), SquaredExponential(0.2), 2, FEATURES)


@functools.cache
def departures():
    """Departures of agents whose weights are as far away as the prior says, and half and twice as far."""
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


# ---------------------------------------------------------------- agents and the server

POPULATION, VALUES, NOISE = 30, 3, 1e-2


@jax.jit
def spoken(prior, x, y):
    """The messages of agents with these values."""

    def one(x, y):
        known = shared_prior.AgentData(x, y, jnp.asarray(VALUES))
        belief = shared_prior.believed(PHI, prior, jnp.asarray(NOISE), known)
        return private_prior.departure(belief).vector

    return jax.vmap(one)(x, y)


@jax.jit
def heard(prior, x, y, information):
    """The prior after a release without noise."""

    total = jnp.sum(spoken(prior, x, y), axis=0)
    given = jnp.zeros(()), 1.0, POPULATION, jnp.ones(()), information
    return private_prior.updated(prior, total, *given)


def rng_designs(seed, count):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.random((count, VALUES, 2)), jnp.zeros(()).dtype)


def designs(alike=False):
    return jnp.repeat(rng_designs(9, 1), POPULATION, 0) if alike else rng_designs(9, POPULATION)


def psis(x):
    phi = np.asarray(jax.vmap(jax.vmap(PHI))(x), float)
    return np.concatenate([phi, np.ones((*phi.shape[:2], 1))], axis=2)


@functools.partial(jax.jit, static_argnames="own_units")
def known_of(x, bound=np.inf, own_units=False):
    noise = jnp.asarray(NOISE)
    bound = jnp.asarray(bound)
    batches = x.reshape(2, -1, *x.shape[1:])
    known = PHI, process(FEATURES), noise, batches, bound, own_units
    return private_prior.information(jr.key(11), *known)


def test_information_is_what_values_take_from_the_covariance():
    x = designs()
    found, psi = known_of(x), psis(x)
    one = np.eye(FEATURES + 1)
    left = np.linalg.inv(one + np.einsum("nti,ntj->nij", psi, psi) / NOISE)
    known, turn = np.asarray(found.known), np.asarray(found.turn)
    np.testing.assert_allclose(turn * known @ turn.T, one - left.mean(axis=0), atol=2e-4)


def without_constant(psi):
    """K⁻¹ - K⁻¹1 1'K⁻¹ / 1'K⁻¹1 of each agent, whose features come without the constant."""
    phi = psi[..., :-1]
    inverse = np.linalg.inv(np.einsum("ntj,nsj->nts", phi, phi) + NOISE * np.eye(VALUES))
    sums = inverse.sum(axis=2)
    return inverse - sums[:, :, None] * sums[:, None] / sums.sum(axis=1)[:, None, None]


def test_information_of_own_units_is_that_of_values_without_their_constant():
    x = designs()
    found, psi = known_of(x, own_units=True), psis(x)
    expected = np.einsum("nti,nts,nsj->ij", psi, without_constant(psi), psi) / POPULATION
    known, turn = np.asarray(found.known), np.asarray(found.turn)
    np.testing.assert_allclose(turn * known @ turn.T, expected, atol=3e-4)


def test_a_message_in_own_units_is_that_of_dense_algebra():
    """And as far away as is expected of it, since the unit takes what would be in excess."""
    rng, x, start = np.random.default_rng(15), rng_designs(16, AGENTS), process(FEATURES)
    start = eqx.tree_at(lambda p: (p.location, p.scale), start, (jnp.zeros(()), jnp.ones(())))
    psi, w = psis(x), rng.standard_normal((AGENTS, FEATURES + 1))
    y = np.einsum("ntm,nm->nt", psi, w) + NOISE**0.5 * rng.standard_normal((AGENTS, VALUES))
    y = (5.0 + 0.2 * y).astype(start.mean.dtype)

    def one(x, y):
        known = shared_prior.AgentData(x, y, jnp.asarray(VALUES))
        return private_prior.departed(True, PHI, start, jnp.asarray(NOISE), known)[1]

    found = jax.jit(jax.vmap(one))(x, jnp.asarray(y))
    Q, centered = without_constant(psi), y.astype(float) - 5.0
    scale = np.sqrt(np.einsum("nt,nts,ns->n", centered, Q, centered) / (VALUES - 1))
    shift = np.einsum("ntj,nts,ns->nj", psi, Q, centered) / scale[:, None]
    np.testing.assert_allclose(found.shift, shift, rtol=2e-3, atol=2e-3)
    scales, weights = np.asarray(found.excess, float).T
    assert (scales == 0).all()
    assert np.abs(weights).mean() < 0.05
    assert abs(weights.mean()) < 0.01


@pytest.mark.parametrize("bound", [0.5, 1.7, np.inf])
def test_the_share_that_clipping_leaves_is_that_of_other_agents(bound):
    """The share of the common direction, over agents whose functions have something in common."""
    rng, x = np.random.default_rng(12), rng_designs(13, AGENTS)
    start = process(FEATURES)
    common, own = rng.standard_normal(FEATURES + 1), rng.standard_normal((AGENTS, FEATURES + 1))
    y = np.einsum("ntm,nm->nt", psis(x), 0.6 * common + 0.8 * own)
    vectors = np.asarray(spoken(start, x, (0.5 + 0.2 * y).astype(start.mean.dtype)))
    lengths = np.linalg.norm(vectors, axis=1)
    whole = vectors[:, :-2].sum(axis=0)
    clipped = (vectors[:, :-2] * np.minimum(1, bound / lengths)[:, None]).sum(axis=0)
    share = float(known_of(rng_designs(14, 400), bound).unclipped)
    assert share == pytest.approx(clipped @ whole / (whole @ whole), abs=0.05)
    assert share == 1 if np.isinf(bound) else share < 1


def test_a_server_that_guesses_right_finds_the_most_likely_mean_in_one_step():
    """The most likely mean, by dense algebra, where agents' points are the designs of the guess."""
    rng, x = np.random.default_rng(10), designs()
    psi = psis(x)
    common, own = rng.standard_normal(FEATURES + 1), rng.standard_normal((POPULATION, FEATURES + 1))
    values = np.einsum("ntm,nm->nt", psi, 0.9 * common + 0.4 * own)
    start = process(FEATURES)
    y = (0.5 + 0.2 * values).astype(start.mean.dtype)
    start = heard(start, x, y, known_of(x))
    found = np.asarray(start.scale * start.mean) / 0.2
    K = np.einsum("nti,nui->ntu", psi, psi) + NOISE * np.eye(VALUES)
    solved = np.linalg.solve(K, psi)
    precision = np.einsum("nti,ntj->ij", psi, solved) + np.eye(FEATURES + 1)
    expected = np.linalg.solve(precision, np.einsum("nti,nt->i", solved, values))
    np.testing.assert_allclose(found, expected, atol=5e-3 * np.abs(expected).max())


def test_where_agents_know_more_than_the_server_guesses_no_step_goes_astray():
    """All have the same points, and the server expects them everywhere."""
    x, psi = designs(alike=True), psis(designs(alike=True))[0]
    expected = np.asarray([1.5, -1.0, 0.5])
    start = process(FEATURES)
    y = np.broadcast_to(0.5 + 0.2 * expected, (POPULATION, VALUES)).astype(start.mean.dtype)
    information, off = known_of(designs()), [np.abs(expected).max()]
    for _ in range(6):
        start = heard(start, x, y, information)
        off.append(np.abs(start.scale / 0.2 * (psi @ np.asarray(start.mean)) - expected).max())
    assert max(off) < 2 * off[0]
    assert off[-1] < 0.1 * off[0]
