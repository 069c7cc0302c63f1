"""The mathematics of sums whose noise owners add in shares."""

import itertools
import logging
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import special, stats

from jaxbo.privacy import accounting
from jaxbo.privacy.distributed import (
    _LEAST,
    _ROUNDING,
    UNIT,
    SecureSum,
    decoded,
    noise,
    rounded,
    squared_bound,
)
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson

pytestmark = pytest.mark.float64

KEY = jr.key(0)
DELTA = 1e-5


def full(value):
    return pytest.param(value, marks=pytest.mark.full)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def vector(size, norm, seed=0):
    drawn = np.random.default_rng(seed).normal(size=size)
    return jnp.asarray(norm * drawn / np.linalg.norm(drawn), float)


@pytest.mark.parametrize("size", [1, 400, full(7), full(5000)])
def test_no_rounded_vector_is_longer_than_the_bound(size):
    keys, many = jr.split(KEY, 200), jax.vmap(rounded, in_axes=(0, None, None))
    for norm in (0.3, 2.0, 50.0):  # the last is clipped
        found = many(keys, vector(size, norm), jnp.array(2.0))
        norms = np.sum(np.asarray(found, np.int64) ** 2, axis=1)
        assert norms.max() <= squared_bound(size)
    assert norms.min() > 0.999 * UNIT**2


@pytest.mark.parametrize("size", [1, 7, 400, 10**6])
def test_the_bound_is_that_of_kairouz_liu_and_steinke(size):
    """Distributed discrete Gaussian, 2021, Algorithm 1: for γ = 1, c = UNIT and β = exp(-1/2)."""
    beta, root = math.exp(-0.5), math.sqrt(size)
    likely = UNIT**2 + size / 4 + math.sqrt(2 * math.log(1 / beta)) * (UNIT + root / 2)
    assert squared_bound(size) == pytest.approx(min(likely, (UNIT + root) ** 2), abs=1, rel=1e-15)


def test_rounding_keeps_the_mean_and_is_between_neighbors():
    x = vector(40, 1e-4)  # a few units of the grid
    found = jax.vmap(lambda key: rounded(key, x, jnp.array(1.0)))(jr.split(KEY, 4000))
    apart = np.asarray(found) - np.asarray(x) * UNIT
    assert np.abs(apart).max() < 1
    # Of 40 means with a deviation of 0.5 / √4000 at most, the largest.
    assert np.abs(apart.mean(0)).max() < 5 * 0.5 / math.sqrt(4000)
    assert apart.std() > 0.1


@pytest.mark.slow
def test_what_is_not_finite_adds_nothing():
    for bad in (jnp.nan, jnp.inf):
        x = vector(5, 1.0).at[2].set(bad)
        assert not rounded(KEY, x, jnp.array(1.0)).any()


@pytest.mark.slow
@pytest.mark.parametrize("q", [full(0.25), 1.0])
def test_a_sum_of_rounded_parts_is_the_release_without_noise(q):
    agents, regions, size = 12, 3, 20
    draw = np.random.default_rng(1)
    messages = jnp.asarray(draw.normal(size=(agents, size)), float)
    weights = jnp.asarray(draw.dirichlet(np.ones(agents), regions), float)
    mechanism = Mechanism(0.0, 3.0, Poisson(q))
    sensitivity = mechanism.sensitivity(weights)
    parts = jax.vmap(mechanism.part, in_axes=(0, 1))(messages, weights)
    assert jnp.max(jnp.linalg.norm(parts.reshape(agents, -1), axis=1)) <= 1.00001 * sensitivity
    keys = jr.split(KEY, agents)
    numbers = jax.vmap(lambda key, part: rounded(key, part.ravel(), sensitivity))(keys, parts)
    shift = np.uint32(3_000_000_000)  # as a mask
    wrapped = np.sum(np.asarray(numbers).astype(np.uint32) + shift, 0, dtype=np.uint32)
    total = wrapped - np.uint32(agents * int(shift) % 2**32)
    sums = decoded(jnp.asarray(total), sensitivity).reshape(regions, size)
    np.testing.assert_allclose(sums, parts.sum(0), atol=float(agents * sensitivity / UNIT))
    if q == 1:
        whole = mechanism.release(KEY, messages, weights, jnp.ones(agents, bool))
        np.testing.assert_allclose(sums, whole, atol=float(agents * sensitivity / UNIT))


# --------------------------------------------------------------------------------- accounting


def discrete(deviation, center=0, reach=12):
    support = np.arange(-math.ceil(reach * deviation), math.ceil(reach * deviation) + 1)
    mass = np.exp(-((support - center) ** 2) / (2 * deviation**2))
    return support, mass / mass.sum()


def test_shares_of_the_fewest_owners_are_the_noise_that_is_charged():
    secure = SecureSum(threshold=10, colluding=2)
    share = secure.share(1.5, 400)
    np.testing.assert_allclose(8 * share**2, 1.5**2 * squared_bound(400) + _ROUNDING, rtol=1e-11)
    np.testing.assert_allclose(secure.excess(20), math.sqrt(20 / 8))


def test_no_share_is_below_the_formula():
    draw = np.random.default_rng(0)
    for _ in range(2000):
        z, size = float(np.float32(draw.uniform(0.01, 10))), int(draw.integers(1, 10_000))
        secure = SecureSum(int(draw.integers(2, 100)), colluding=int(draw.integers(0, 2)))
        shares = secure.threshold - secure.colluding
        expected = Fraction(z) ** 2 * squared_bound(size) + Fraction(_ROUNDING)
        assert shares * Fraction(secure.share(z, size)) ** 2 >= expected


@pytest.mark.parametrize(
    ("agents", "threshold", "colluding"), [(4, 3, 0), (4, 3, 1), (5, 3, 0), (5, 4, 1), (5, 5, 3)]
)
def test_a_server_that_lies_about_who_was_heard_opens_no_sum_of_fewer(agents, threshold, colluding):
    honest, needed = agents - colluding, threshold - colluding
    lists = [row for row in itertools.product((0, 1), repeat=honest) if sum(row) >= needed]
    sums = []
    for told in itertools.combinations_with_replacement(lists, honest):  # a list for each owner
        votes = np.sum(told, axis=0)
        heard, missing = votes >= needed, honest - votes >= needed
        assert not (heard & missing).any()
        if (heard | missing).all():  # all masks are opened
            sums.append(heard.sum())
    assert min(sums) == SecureSum(threshold, colluding).fewest(agents)


def test_a_sum_of_discrete_gaussians_is_one():
    _, mass = discrete(_LEAST)
    total = mass
    for _ in range(4):
        total = np.convolve(total, mass)
    middle = len(total) // 2
    support, expected = discrete(_LEAST * math.sqrt(5), reach=8)
    found = total[middle + support[0] : middle + support[-1] + 1]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
def test_a_rounded_gaussian_is_a_discrete_gaussian():
    deviation, center = 5.0, 3
    y = np.linspace(center - 60, center + 60, 120_001)
    grid = np.arange(-100, 101)
    weights = np.exp(-((grid[:, None] - y) ** 2) / (2 * _ROUNDING))
    weights /= weights.sum(0)
    density = stats.norm.pdf(y, center, math.sqrt(deviation**2 - _ROUNDING))
    found = weights @ density * (y[1] - y[0])
    mass = np.exp(-((grid - center) ** 2) / (2 * deviation**2))
    near = np.abs(grid - center) < 40
    np.testing.assert_allclose(found[near], (mass / mass.sum())[near], rtol=1e-9)


@pytest.mark.parametrize("q", [1.0, 0.25])
@pytest.mark.parametrize("z", [full(0.7), 1.0, full(3.0)])
def test_the_accountant_charges_what_dp_accounting_has_for_the_discrete_gaussian(q, z):
    unit, rounds = 64, 10  # far coarser than the grid in use
    sigma = math.sqrt((z * unit) ** 2 + _ROUNDING)
    loss = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        sigma,
        sensitivity=unit,
        sampling_prob=q,
        value_discretization_interval=1e-3,
        use_connect_dots=True,
    )
    theirs = loss.self_compose(rounds).get_epsilon_for_delta(DELTA)
    mine = accounting.epsilon(Mechanism(z, 1.0, Poisson(q)), rounds, DELTA)
    assert theirs <= 1.002 * mine
    np.testing.assert_allclose(theirs, mine, rtol=0.005)


@pytest.mark.parametrize("shift", [(32, 0), (20, 24), (31, 8)])
def test_no_direction_of_a_message_loses_more_than_the_gaussian(shift):
    z, norm = 1.3, math.hypot(*shift)
    sigma = math.sqrt((z * norm) ** 2 + 4)
    support, mass = discrete(sigma, reach=9)
    ratio = [np.exp((2 * support * s - s**2) / (2 * sigma**2)) for s in shift]
    joint, factor = np.outer(mass, mass), np.outer(*ratio)
    for epsilon in (0.1, 1.0, 3.0):
        delta = np.sum(joint * np.maximum(factor - math.exp(epsilon), 0))
        a, b = 1 / (2 * z) - epsilon * z, -1 / (2 * z) - epsilon * z
        gaussian = special.ndtr(a) - math.exp(epsilon) * special.ndtr(b)
        assert delta <= gaussian * (1 + 1e-6)
        assert delta > 0.9 * gaussian


@pytest.mark.parametrize(
    ("sensitivity", "q", "epsilon", "delta", "sigma"),
    [(5, 1.0, 2.0, 0.02092364, 5.008), (5, 0.1, 2.0, 2.340272571167144e-06, 5.008)],
)
def test_the_accountant_is_above_dp_accountings_published_values(
    sensitivity, q, epsilon, delta, sigma
):
    # Of `test_discrete_gaussian_from_privacy_parameters` of dp-accounting, on a grid of 5 units.
    z = math.sqrt(sigma**2 - _ROUNDING) / sensitivity
    mine = accounting.epsilon(Mechanism(z, 1.0, Poisson(q)), 1, delta)
    assert epsilon < mine < 1.35 * epsilon


# ---------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("secure", "mechanism", "reason"),
    [
        (SecureSum(11), Mechanism(1.0, 1.0, FixedSize(3, 20)), "draw themselves"),
        (
            SecureSum(10),
            Mechanism(1.0, 1.0, Poisson(1.0)),
            r"above \(20 owners \+ 1 colluding\) / 2",
        ),
        (SecureSum(12, colluding=5), Mechanism(1.0, 1.0, Poisson(1.0)), r"\+ 5 colluding"),
        (SecureSum(21), Mechanism(1.0, 1.0, Poisson(1.0)), "at most 20"),
        (SecureSum(11), Mechanism(0.0, 1.0, Poisson(1.0)), "z must be positive"),
        (SecureSum(11), Mechanism(1e-4, 1.0, Poisson(1.0)), "z is too small"),
        (SecureSum(11), Mechanism(1e4, 1.0, Poisson(1.0)), "does not fit into 32 bits"),
    ],
)
def test_settings_that_keep_no_promise_are_refused(secure, mechanism, reason):
    with pytest.raises(ValueError, match=reason):
        secure.check(mechanism, agents=20, size=100)


def test_a_threshold_is_above_the_colluding():
    with pytest.raises(ValueError, match="threshold must be above colluding"):
        SecureSum(3, colluding=3)
    SecureSum(11).check(Mechanism(1.0, 1.0, Poisson(0.5)), agents=20, size=100)


def test_noise_is_the_discrete_gaussian():
    deviation, size = 2.5, 20_000
    drawn = noise(deviation, size).astype(np.int32)
    support = np.arange(-7, 8)
    mass = np.exp(-(np.arange(-60, 61) ** 2) / (2 * deviation**2))
    mass /= mass.sum()
    inside = mass[60 - 7 : 60 + 8]
    expected = size * np.append(inside, 1 - inside.sum())
    counts = np.array([(drawn == k).sum() for k in support])
    counts = np.append(counts, size - counts.sum())
    # New numbers each time: once in ten million times this fails.
    assert stats.chisquare(counts, expected).pvalue > 1e-7
    large = noise(20_000.0, size).astype(np.int32)
    assert stats.kstest(large / 20_000.0, "norm").pvalue > 1e-7
