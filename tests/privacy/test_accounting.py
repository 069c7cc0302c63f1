import builtins
import functools
import itertools
import logging
import math

import dp_accounting
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, optimize, special, stats

from jaxbo.privacy import accounting
from jaxbo.privacy.accounting import Event, epsilon, moments, pld, renyi
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson, Relation

DELTA = 200**-1.1
ZERO_OUT = Relation.ZERO_OUT
SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
#: q, z, rounds, delta: the papers' settings, little and much noise, all agents, few and many rounds.
GRID = [
    (0.25, 1.0, 40, DELTA),
    (0.35, 4.0, 60, 29**-1.1),
    (0.35, 0.5, 5, 1e-3),
    (0.01, 1.1, 2000, 1e-5),
    (0.002, 0.7, 10_000, 1e-7),
    (0.9, 3.0, 10, 1e-6),
    (1.0, 6.0, 30, 1e-5),
    (0.05, 20.0, 1, 1e-3),
]


@pytest.fixture(autouse=True)
def quiet():
    """dp-accounting logs the orders that it leaves out, and that a lower bound is a lower bound."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def mechanism(q=0.25, z=1.0):
    return Mechanism(z, 11.0, Poisson(q))


def event(q=0.25, z=1.0, rounds=1):
    return Event(ZERO_OUT, q, z, rounds)


def theirs(accountant, q, z, rounds, delta):
    gaussian = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian), rounds)
    return accountant.get_epsilon(delta)


def lower_bound(events, delta, interval=2e-4):
    """dp-accounting's optimistic estimate: losses rounded down."""
    parts = []
    for q, z, rounds in events:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            z, pessimistic_estimate=False, value_discretization_interval=interval,
            sampling_prob=q, use_connect_dots=False, neighboring_relation=SPECIAL,
        )  # fmt: skip
        parts.append(one.self_compose(rounds))
    composed = functools.reduce(lambda one, other: one.compose(other), parts)
    return composed.get_epsilon_for_delta(delta)


def gaussian_delta(epsilon, mu):
    """Balle and Wang (2018), equation 6: without sampling, of noise 1/mu."""
    return special.ndtr(mu / 2 - epsilon / mu) - np.exp(
        epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    )


def log_ratio(q, z, x):
    """Log of the density with an agent over that without, for noise z on 0 or 1."""
    return np.logaddexp(np.log1p(-q), np.log(q) + (x - 0.5) / z**2)


def integral(log_function, low, high):
    edges = np.linspace(low, high, 13)
    return sum(
        integrate.quad(lambda x: math.exp(log_function(x)), a, b, epsabs=0, epsrel=1e-11)[0]
        for a, b in itertools.pairwise(edges)
    )


def one_release_delta(q, z, e):
    """The larger of the two directions' hockey-stick divergences, from where each begins."""
    base = stats.norm(0, z).logpdf

    def mixed(x):
        return base(x) + log_ratio(q, z, x)

    def begin(ratio):
        return 0.5 + z**2 * math.log((ratio - 1 + q) / q) if ratio > 1 - q else -math.inf

    low, high = -14 * z, 1 + 14 * z
    start, end = begin(math.exp(e)), begin(math.exp(-e))
    present, absent = 0.0, 0.0
    if start < high:
        start = max(start, low)
        present = integral(mixed, start, high) - math.exp(e) * integral(base, start, high)
    if end > low:
        end = min(end, high)
        absent = integral(base, low, end) - math.exp(e) * integral(mixed, low, end)
    return max(present, absent)


# --------------------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize(
    ("q", "z", "printed"),
    [(0.15, 1.0, 5.934), (0.25, 1.0, 9.908), (0.5, 1.0, 20.123), (0.25, 1.2, 7.391), (0.25, 1.5, 5.223)],
)  # fmt: skip
def test_the_moments_accountant_gives_the_papers_losses(q, z, printed):
    spent = epsilon(mechanism(q, z), 40, DELTA, moments)
    assert round(spent, 3) == printed
    assert round(moments([event(q, z, 40)], DELTA), 3) == printed


def test_the_moments_accountant_ends_at_the_thirty_second_moment():
    # Almost no loss: only the step from moments to epsilon is left.
    assert moments([event(1e-6, 1e3)], 1e-5) == pytest.approx(math.log(1e5) / 32, rel=1e-6)


@pytest.mark.parametrize(
    ("q", "z", "tight"),
    [(0.15, 1.0, 3.964), (0.25, 1.0, 7.054), (0.5, 1.0, 15.71), (0.25, 1.2, 5.152), (0.25, 1.5, 3.597)],
)  # fmt: skip
def test_the_default_reports_a_third_less_for_the_same_noise(q, z, tight):
    assert epsilon(mechanism(q, z), 40, DELTA) == pytest.approx(tight, abs=6e-4)


# -------------------------------------------------------------------------------- quadrature


@pytest.mark.parametrize(("q", "z"), [(0.25, 1.0), (0.01, 0.7), (0.9, 2.5), (0.5, 5.0)])
def test_moments_are_those_of_quadrature_and_the_other_direction_has_none_larger(q, z):
    base = stats.norm(0, z).logpdf
    ours = accounting._log_moments(q, z)
    for order in (1, 2, 5, 12):
        low, high = -14 * z, order + 1 + 14 * z
        forward, backward = (
            math.log(integral(lambda x, n=n: base(x) + n * log_ratio(q, z, x), low, high))
            for n in (order + 1, -order)
        )
        assert ours[order - 1] == pytest.approx(forward, rel=1e-6)
        assert backward <= ours[order - 1] * (1 + 1e-9)


@pytest.mark.parametrize(("q", "z"), [(0.25, 1.0), (0.01, 0.7), (0.9, 2.5), (0.5, 0.5)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_one_release_has_the_loss_that_quadrature_gives(q, z, delta):
    def excess(e):
        return one_release_delta(q, z, e) - delta

    expected = 0.0 if excess(0.0) <= 0 else optimize.brentq(excess, 0, 60, xtol=1e-9)
    spent = pld([event(q, z)], delta)
    assert spent == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert spent >= expected * (1 - 1e-6)


def simulated_delta(events, e, count, rng, direction):
    """E (1 - e^(ε - loss))+ over the sums of privacy losses, and its standard error."""
    total = np.zeros(count)
    for q, z, rounds in events:
        for _ in range(rounds):
            x = z * rng.normal(size=count)
            x += (rng.random(count) < q) if direction > 0 else 0
            ratio = np.log1p(q * np.expm1((x - 0.5) / z**2))
            total += direction * ratio
    gain = np.maximum(-np.expm1(e - total), 0)
    return gain.mean(), gain.std() / math.sqrt(count)


@pytest.mark.parametrize(
    "events", [[(0.25, 1.0, 40)], [(0.25, 1.0, 10), (0.6, 3.0, 15), (1.0, 8.0, 3)]]
)
def test_the_losses_of_many_rounds_are_those_of_a_simulation(events):
    spent = pld([event(*e) for e in events], DELTA)
    rng = np.random.default_rng(7)
    simulated = [simulated_delta(events, spent, 200_000, rng, d) for d in (1, -1)]
    delta, error = max(simulated)
    assert abs(delta - DELTA) < 5 * error + 1e-3 * DELTA


# ------------------------------------------------------------------------ between two accountants


@pytest.mark.parametrize(
    ("q", "z", "rounds", "delta"),
    [
        *(GRID[i] for i in (0, 3, 6)),
        *(pytest.param(*GRID[i], marks=pytest.mark.full) for i in (1, 2, 4, 5, 7)),
    ],
)
def test_each_accountant_equals_the_library_and_none_reports_less_than_its_lower_bound(
    q, z, rounds, delta
):
    ours = {a: a([event(q, z, rounds)], delta) for a in (moments, renyi, pld)}
    tight = theirs(dp_accounting.pld.PLDAccountant(SPECIAL), q, z, rounds, delta)
    curve = theirs(rdp.RdpAccountant(neighboring_relation=SPECIAL), q, z, rounds, delta)
    assert ours[pld] == pytest.approx(tight, rel=1e-3, abs=1e-6)
    assert ours[renyi] == pytest.approx(curve, rel=1e-9)
    least = lower_bound([(q, z, rounds)], delta)
    assert least <= ours[pld] * (1 + 1e-9)
    assert ours[pld] <= ours[renyi] * (1 + 1e-9)
    assert ours[renyi] <= ours[moments] * (1 + 1e-9)
    assert epsilon(mechanism(q, z), rounds, delta) == pytest.approx(ours[pld], rel=1e-4)


@pytest.mark.parametrize(("q", "z", "rounds", "delta"), [GRID[0], GRID[3], GRID[6]])
def test_taking_part_or_not_is_what_the_library_calls_adding_or_removing(q, z, rounds, delta):
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    added = theirs(dp_accounting.pld.PLDAccountant(relation), q, z, rounds, delta)
    assert pld([event(q, z, rounds)], delta) == pytest.approx(added, rel=1e-3)


@pytest.mark.parametrize("z", [0.6, 2.0, 9.0])
@pytest.mark.parametrize("rounds", [1, 25])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_with_everyone_drawn_the_loss_is_the_closed_form_of_the_gaussian(z, rounds, delta):
    mu = math.sqrt(rounds) / z
    exact = optimize.brentq(lambda e: gaussian_delta(e, mu) - delta, 0, 1e4, xtol=1e-12)
    spent = pld([event(1.0, z, rounds)], delta)
    assert spent == pytest.approx(exact, rel=1e-4)
    assert spent >= exact * (1 - 1e-7)
    assert renyi([event(1.0, z, rounds)], delta) >= exact
    assert moments([event(1.0, z, rounds)], delta) >= exact


# -------------------------------------------------------------------- releases of different kinds


def test_different_noise_without_sampling_composes_as_the_closed_form_says():
    events = [event(1.0, z, n) for z, n in [(3.0, 4), (5.0, 1), (11.0, 20)]]
    mu = math.sqrt(sum(e.count / e.z**2 for e in events))
    exact = optimize.brentq(lambda e: gaussian_delta(e, mu) - 1e-5, 0, 1e3, xtol=1e-12)
    assert pld(events, 1e-5) == pytest.approx(exact, rel=1e-4)


@pytest.mark.slow
def test_different_mechanisms_compose_as_the_librarys_composed_event():
    mixed = [(0.25, 1.0, 10), (0.1, 0.8, 20), (0.5, 4.0, 5)]
    events = [event(*e) for e in mixed]
    composed = dp_accounting.ComposedDpEvent([
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), n
        )
        for q, z, n in mixed
    ])  # fmt: skip
    for ours, other in [
        (pld, dp_accounting.pld.PLDAccountant(SPECIAL)),
        (renyi, rdp.RdpAccountant(neighboring_relation=SPECIAL)),
    ]:
        assert ours(events, 1e-4) == pytest.approx(
            other.compose(composed).get_epsilon(1e-4), rel=1e-3
        )
    assert lower_bound(mixed, 1e-4) <= pld(events, 1e-4) <= renyi(events, 1e-4)
    assert renyi(events, 1e-4) <= moments(events, 1e-4)


@pytest.mark.parametrize("accountant", [moments, renyi, pld])
def test_the_order_and_the_grouping_of_releases_do_not_matter(accountant):
    one = accountant([event(0.2, 1.0, 3), event(0.4, 2.0, 5)], 1e-4)
    parts = [event(0.4, 2.0, 4), event(0.2, 1.0, 3), event(0.4, 2.0, 1), event(0.9, 1.0, 0)]
    assert accountant(parts, 1e-4) == pytest.approx(one, rel=1e-9)
    assert accountant([], 1e-4) == 0


# ------------------------------------------------------------------------------------ fixed size


@pytest.mark.parametrize(("count", "agents"), [(10, 200), (50, 200), (29, 29)])
def test_a_fixed_size_is_charged_for_one_message_in_the_place_of_another(count, agents):
    # Two contributions apart: half the noise, in units of that distance.
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gaussian = dp_accounting.GaussianDpEvent(4.0 / 2)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(agents, count, gaussian), 30)
    drawn = Mechanism(4.0, 1.0, FixedSize(count, agents))
    spent = epsilon(drawn, 30, 1e-3)
    assert spent == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-6)
    assert spent > epsilon(mechanism(count / agents, 4.0), 30, 1e-3, renyi)


@pytest.mark.parametrize("accountant", [moments, pld])
def test_accountants_for_poisson_sampling_refuse_a_fixed_size(accountant):
    with pytest.raises(ValueError, match="use renyi"):
        epsilon(Mechanism(1.0, 1.0, FixedSize(3, 9)), 5, 1e-3, accountant)


def test_both_kinds_of_sampling_together_cost_more_than_either():
    fixed = Event(Relation.REPLACE, 0.05, 6.0, 10)
    both = renyi([fixed, event(0.2, 2.0, 10)], 1e-4)
    assert accounting.tightest([fixed, event()]) is renyi
    assert both > max(renyi([fixed], 1e-4), renyi([event(0.2, 2.0, 10)], 1e-4))


# -------------------------------------------------------------------------------- the way back


BUDGETS = [(2.0, 0.35, 60), (9.908, 0.25, 40), (0.3, 0.01, 1)]


@pytest.mark.parametrize(
    ("accountant", "budget", "q", "rounds"),
    [
        *((moments, *budget) for budget in BUDGETS),
        (pld, *BUDGETS[0]),
        *(pytest.param(pld, *budget, marks=pytest.mark.full) for budget in BUDGETS[1:]),
    ],
)
def test_the_noise_for_a_budget_spends_it_and_no_more(accountant, budget, q, rounds):
    z = accounting.noise_for(budget, DELTA, q, rounds, accountant)
    spent = epsilon(mechanism(q, z), rounds, DELTA, accountant)
    assert spent <= budget
    assert epsilon(mechanism(q, z * (1 - 1e-4)), rounds, DELTA, accountant) > budget
    assert float(np.float32(z)) == z


@pytest.mark.parametrize("q", [0.15, 0.35])
def test_noise_is_found_for_q_as_the_mechanism_will_hold_it_if_that_is_more(q):
    charged = []

    def record(events, delta):
        charged.append(events[0].q)
        return 1.0 / events[0].z

    accounting.noise_for(1.0, DELTA, q, 5, record)
    assert set(charged) == {max(q, float(np.float32(q)))}
    assert charged[0] >= accounting.event(Mechanism(1.0, 1.0, Poisson(np.float32(q)))).q


@pytest.mark.slow
def test_the_default_needs_less_noise_than_the_paper_for_the_papers_loss():
    paper, ours = (accounting.noise_for(9.908, DELTA, 0.25, 40, a) for a in (moments, None))
    assert paper == pytest.approx(1.0, abs=1e-4)
    assert ours == pytest.approx(0.831, abs=1e-3)


@pytest.mark.slow
def test_the_noise_for_a_fixed_size_is_found_from_its_sampling():
    sampling = FixedSize(10, 200)
    z = accounting.noise_for(4.0, 1e-3, sampling, 20)
    assert epsilon(Mechanism(z, 1.0, sampling), 20, 1e-3) == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 10**6), (1e5, 2**40)])
def test_a_loss_whose_distribution_takes_gigabytes_is_refused_at_once(z, rounds):
    with pytest.raises(ValueError, match=rf"events of {rounds} rounds .*accounting\.renyi"):
        pld([event(0.5, z, rounds)], DELTA)


def test_no_noise_is_named_where_none_is_enough():
    # The moments accountant cannot report less than log(1/delta) / 32.
    with pytest.raises(ValueError, match="no z up to"):
        accounting.noise_for(0.1, 1e-5, 0.1, 5, moments)


@pytest.mark.parametrize(
    "accountant", [moments, *(pytest.param(one, marks=pytest.mark.slow) for one in (renyi, pld))]
)
def test_one_round_more_than_the_rounds_for_a_budget_exceeds_it(accountant):
    rounds = accounting.rounds_for(mechanism(), 6.0, DELTA, accountant)
    assert epsilon(mechanism(), rounds, DELTA, accountant) <= 6
    assert epsilon(mechanism(), rounds + 1, DELTA, accountant) > 6


def test_no_round_is_allowed_where_one_is_too_many():
    assert accounting.rounds_for(mechanism(1.0, 0.1), 1.0, 1e-5) == 0


@pytest.mark.slow
@pytest.mark.parametrize("accountant", [moments, renyi, pld])
def test_the_loss_falls_with_noise_and_delta_and_rises_with_q_and_rounds(accountant):
    start = accountant([event(0.3, 1.0, 20)], 1e-4)
    assert accountant([event(0.3, 1.1, 20)], 1e-4) < start
    assert accountant([event(0.3, 1.0, 20)], 1e-3) < start
    assert accountant([event(0.35, 1.0, 20)], 1e-4) > start
    assert accountant([event(0.3, 1.0, 21)], 1e-4) > start


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("accountant", [moments, renyi, pld])
def test_a_delta_that_is_no_probability_is_refused(delta, accountant):
    with pytest.raises(ValueError, match="delta must lie"):
        accountant([event()], delta)
    with pytest.raises(ValueError, match="delta must lie"):
        Ledger(delta)


@pytest.mark.parametrize("q", [0.0, -0.5, 1.5, math.nan])
def test_a_q_outside_the_half_open_interval_is_refused(q):
    with pytest.raises(ValueError, match="q must lie"):
        event(q)
    with pytest.raises(ValueError, match="q must lie"):
        accounting.noise_for(1.0, 1e-3, q, 5)


@pytest.mark.parametrize("z", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_not_positive_is_refused(z):
    with pytest.raises(ValueError, match="z must be positive"):
        event(z=z)


def test_a_mechanism_without_noise_has_no_loss_to_report():
    with pytest.raises(ValueError, match="nothing is private"):
        epsilon(Mechanism(0.0, 1.0, Poisson(0.5)), 1, 1e-3)


def test_a_sweep_of_mechanisms_is_refused():
    with pytest.raises(ValueError, match="each setting by itself"):
        epsilon(Mechanism(jnp.asarray([1.0, 2.0]), 1.0, Poisson(0.5)), 1, 1e-3)


def test_a_negative_number_of_rounds_is_refused():
    with pytest.raises(ValueError, match="rounds must be a whole number"):
        epsilon(mechanism(), -1, DELTA)


@pytest.mark.slow
def test_without_the_extra_two_accountants_say_what_to_install_and_the_papers_works(monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for accountant in (None, renyi, pld):
        with pytest.raises(ImportError, match=r"pip install \"jaxbo-agents\[privacy\]\""):
            epsilon(mechanism(), 40, DELTA, accountant)
    assert round(epsilon(mechanism(), 40, DELTA, moments), 3) == 9.908
