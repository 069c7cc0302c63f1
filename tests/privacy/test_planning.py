"""A plan's noise, signal and ratios: against closed forms, dp-accounting and the mechanism that runs."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import optimize, special

from jaxbo import accounting
from jaxbo.privacy.mechanism import Mechanism, Poisson, Weighting


def plan(owners, rounds, epsilon, delta=None, **options):
    """By the quickest accountant, unless another one is given."""
    options = {"accountant": accounting.moments} | options
    return accounting.plan(owners, rounds, epsilon, delta, **options)


def gaussian_delta(epsilon, mu):
    """Balle and Wang (2018), equation 6: of noise 1/mu."""
    upper = special.log_ndtr(-mu / 2 - epsilon / mu)
    return special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + upper)


@pytest.mark.parametrize(("owners", "rounds", "epsilon"), [(3, 3, 2.0), (50, 40, 4.0)])
def test_with_everybody_the_noise_is_that_of_a_gaussian_in_closed_form(owners, rounds, epsilon):
    found = accounting.plan(owners, rounds, epsilon)
    mu = optimize.brentq(lambda mu: gaussian_delta(epsilon, mu) - found.delta, 1e-3, 1e2)
    assert found.z == pytest.approx(rounds**0.5 / mu, rel=2e-3)
    assert found.noise == pytest.approx(found.z / owners, rel=1e-5)
    assert found.ratio == pytest.approx(owners / found.z, rel=1e-5)
    assert found.whole == pytest.approx(found.ratio / found.size**0.5, rel=1e-5)
    assert found.accountant == "pld"


@pytest.mark.parametrize(
    "accountant",
    [accounting.moments, pytest.param(accounting.renyi, marks=pytest.mark.full), accounting.pld],
)
def test_a_plan_spends_what_was_asked_for_and_not_more(accountant):
    found = plan(20, 5, 3.0, 1e-4, q=0.5, accountant=accountant)
    spent = accounting.epsilon(found.mechanism(1.0), 5, 1e-4, accountant)
    assert spent <= 3.0
    assert spent == pytest.approx(3.0, rel=1e-3)
    assert found.accountant == accountant.__name__


SETTINGS = {
    "everybody": {"owners": 6},
    "half of them": {"owners": 40, "q": 0.5},
    "regions": {"owners": 8, "regions": 4},
    "regions, exact": {"owners": 10, "regions": 4, "exact": True, "q": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_plan_says_what_the_mechanism_does(name, key):
    """The longest message, sent by all: its mean and deviation in the releases of the mechanism."""
    found = plan(rounds=4, epsilon=3.0, size=5, **SETTINGS[name])
    S, owners, regions = 7.0, found.owners, found.regions
    unit = jnp.asarray([0.6, 0.0, -0.8, 0.0, 0.0])
    messages = jnp.broadcast_to(100 * unit, (owners, 5))
    own, everybody = jnp.arange(owners) % regions, jnp.ones(owners, bool)

    @jax.jit
    def released(weights, key):
        release = lambda k: found.mechanism(S).release(k, messages, weights, everybody)  # noqa: E731
        return jax.vmap(release)(jr.split(key, 40_000))

    first = Weighting()(jnp.asarray(1), own, regions)
    alike = Weighting(emphasis=0.0)(jnp.asarray(1), own, regions)
    for weights, noise in ((first, found.first), (alike, found.noise)):
        sums = np.asarray(released(weights, key), np.float64) / S
        error = 0.03 * noise
        np.testing.assert_allclose(sums.mean(axis=0) @ unit, found.signal, atol=error)
        across = sums[:, :, 1]  # a number in which nobody sends anything
        np.testing.assert_allclose(across.std(axis=0), noise, rtol=0.03)
    # The first round has the most noise, and its emptiest region the most drawing.
    sums = np.asarray(released(first, key), np.float64) / S
    along = (sums @ np.asarray(unit)).std(axis=0).max()
    assert found.signal / along == pytest.approx(found.ratio, rel=0.03)
    lengths = np.sqrt(np.mean(np.sum((sums - found.signal * np.asarray(unit)) ** 2, -1), 0)).max()
    assert found.signal / lengths == pytest.approx(found.whole, rel=0.03)


@pytest.mark.parametrize(("owners", "exact"), [(1, False), (3, True), (7, False), (40, True)])
def test_the_noise_is_the_mechanisms_own(owners, exact):
    for regions in (1, 4):
        found = plan(owners, 4, 3.0, regions=regions, exact=exact, q=0.5)
        assigned = jnp.arange(owners) % regions
        for weighting, noise in ((Weighting(), found.first), (Weighting(0.0), found.noise)):
            weights = weighting(jnp.asarray(1), assigned, regions)
            deviation = found.mechanism(1.0).deviation(weights)
            assert noise == pytest.approx(float(deviation), rel=1e-5)


def test_three_owners_are_left_with_noise_and_many_are_not():
    few, many = plan(3, 3, 2.0), plan(3000, 3, 2.0)
    assert few.only_noise
    assert str(few).startswith("3 owners at epsilon 2: only noise is left.")
    assert "remedies" in str(few)
    assert "the signal outweighs the noise" in str(many)
    assert many.whole > 1
    some = plan(30, 3, 2.0)
    assert not some.only_noise
    assert some.whole < 1
    assert "outweighs the signal, except" in some.verdict


def test_a_smaller_share_of_owners_never_gives_a_clearer_mean():
    for owners, rounds, epsilon in ((5, 1, 1.0), (50, 40, 2.0), (500, 3, 8.0)):
        ratios = [plan(owners, rounds, epsilon, q=q).ratio for q in (1.0, 0.5, 0.1)]
        assert sorted(ratios, reverse=True) == ratios


def test_more_privacy_more_releases_or_a_smaller_delta_leave_less():
    usual = plan(20, 3, 2.0, 1e-4)
    worse = [plan(20, 3, 1.0, 1e-4), plan(20, 6, 2.0, 1e-4), plan(20, 3, 2.0, 1e-6)]
    worse += [plan(20, 3, 2.0, 1e-4, regions=2), plan(10, 3, 2.0, 1e-4)]
    assert all(other.ratio < usual.ratio for other in worse)
    assert plan(20, 3, 2.0, 1e-4, size=200).whole < usual.whole


def test_extremes():
    nearly_open = plan(1000, 1, 50.0)
    assert nearly_open.ratio > 1000
    alone = plan(1, 1, 0.5)
    assert alone.only_noise
    assert "1 owner at" in alone.verdict
    secret = plan(1_000_000, 1000, 1.0)
    assert secret.delta == accounting.delta_for(1_000_000) == pytest.approx(1e-9)
    assert secret.z > 100
    assert not secret.only_noise
    assert plan(3, 1, 2.0, regions=5).first > 0  # more regions than owners


def test_delta_is_a_thousandth_of_all_owners_together():
    for owners in (1, 7, 10_000):
        assert accounting.delta_for(owners) * owners == pytest.approx(1e-3)
        assert plan(owners, 2, 1.0).delta == accounting.delta_for(owners)


def test_a_plan_of_regions_says_more_of_the_first_round():
    assert "in its own region" in str(plan(40, 10, 4.0, regions=4))
    assert "in its own region" not in str(plan(40, 10, 4.0))
    assert "sampling" in str(plan(40, 10, 4.0, q=0.5))


def test_a_plan_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan(3, 3, 2.0).z = 0.1
    made = plan(3, 3, 2.0, q=0.5).mechanism(2.0)
    assert isinstance(made, Mechanism)
    assert isinstance(made.sampling, Poisson)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"owners": 0}, "owners must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"delta": 0.0}, "delta must"),
        ({"delta": 0.2}, r"delta must be below 1 / 5 owners"),
        ({"q": 0.0}, "q must"),
        ({"size": 0}, "size must be"),
        ({"regions": 0}, "regions must be"),
    ],
)
def test_numbers_out_of_range_are_named(wrong, match):
    with pytest.raises(ValueError, match=match):
        plan(**{"owners": 5, "rounds": 2, "epsilon": 1.0} | wrong)
