"""Each outcome of a claim, and the intervals beside SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from bench import claims
from bench.claims import Verdict


def draws(*levels, runs=12, spread=0.1):
    noise = spread * np.random.default_rng(0).standard_normal((len(levels), runs))
    return [level + row for level, row in zip(levels, noise, strict=True)]


@pytest.mark.parametrize(
    ("level", "outcome"),
    [(1.0, "holds"), (1.11, "undecided"), (1.4, "refuted")],
)
def test_no_worse_has_three_outcomes(level, outcome):
    ours, rival = draws(level, 1.0, spread=0.04)
    check = claims.within(ours, rival, 0.1)
    assert check.outcome == outcome
    assert (check.holds, check.refuted, check.undecided) == tuple(
        outcome == one for one in ("holds", "refuted", "undecided")
    )
    assert check.figure == pytest.approx(ours.mean() / rival.mean())
    assert (check.needed is not None) == check.undecided


def test_fewer_runs_decide_less_and_never_more():
    ours, rival = draws(1.0, 1.0, runs=40)
    found = [claims.within(ours[:n], rival[:n]).outcome for n in (1, 2, 3, 40)]
    assert found[:3] == ["undecided"] * 3
    assert found[3] == "holds"
    far, near = np.array([0.9, 0.6, 0.612]), np.array([0.45, 0.6, 0.555])
    assert claims.within(far, near).undecided  # means 0.704 and 0.535


def test_pairs_are_compared_as_scipy_does():
    ours, rival = draws(1.0, 1.1)
    ours += 3 * rival  # alike run by run
    check = claims.difference(ours, rival, most=0.0)
    low, high = stats.ttest_1samp(ours - rival, 0).confidence_interval()
    assert check.interval == pytest.approx((low, high))
    assert (check.figure, check.how) == (pytest.approx(np.mean(ours - rival)), "paired")
    below = claims.below(rival, ours)
    assert below.interval == pytest.approx((-high, -low))
    assert below.holds


def test_independent_runs_are_compared_as_scipy_does():
    ours, rival = draws(1.0, 1.1)
    check = claims.difference(ours, rival[:5], most=0.0, paired=False)
    expected = stats.ttest_ind(ours, rival[:5], equal_var=False).confidence_interval()
    assert check.interval == pytest.approx(tuple(expected))
    assert (check.runs, check.how) == (5, "apart")
    with pytest.raises(ValueError, match="12 and 5 runs are no pairs"):
        claims.below(ours, rival[:5])


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("level", [0.9, 1.0, 1.15, 1.3])
def test_a_ratio_is_decided_as_scipy_tests_the_means(paired, level):
    ours, rival = draws(level, 1.0, runs=20)
    check = claims.at_most(ours, rival, 1.1, paired=paired)
    if paired:
        test = stats.ttest_1samp(ours - 1.1 * rival, 0)
    else:
        test = stats.ttest_ind(ours, 1.1 * rival, equal_var=False)
    decided = "refuted" if test.statistic > 0 else "holds"
    assert check.outcome == (decided if test.pvalue < 0.05 else "undecided")
    low, high = check.interval
    assert low < ours.mean() / rival.mean() < high


def test_the_ends_of_a_ratio_are_those_at_which_the_test_turns():
    ours, rival = draws(1.2, 1.0)
    for end in claims.at_most(ours, rival, 1.1).interval:
        assert stats.ttest_1samp(ours - end * rival, 0).pvalue == pytest.approx(0.05)


def test_the_runs_that_it_would_take_grow_as_the_margin_comes_near():
    ours, rival = draws(1.0, 1.0, runs=10, spread=0.5)
    check = claims.difference(ours, rival, most=0.1)
    low, high = check.interval
    assert check.undecided
    expected = 10 * ((high - low) / 2 / (0.1 - check.figure)) ** 2
    assert check.needed == pytest.approx(expected)
    nearer = claims.difference(ours, rival, most=check.figure + 1e-3)
    assert nearer.needed == pytest.approx(10 * ((high - low) / 2e-3) ** 2)
    at = claims.difference(ours, rival, most=check.figure)
    assert (at.needed, at.content()["needed"]) == (math.inf, "hopeless")


def test_a_single_run_never_decides():
    one, other = np.array([1.0]), np.array([5.0])
    for check in (
        claims.within(one, other),
        claims.below(one, other),
        claims.on_average(one, most=2.0),
        claims.difference(one, np.arange(5.0), most=9.0, paired=False),
    ):
        assert (check.outcome, check.interval, check.needed) == ("undecided", None, None)
        assert check.how == "one run"


def test_a_rival_of_zero_is_no_division():
    zero, some = np.zeros(6), np.linspace(0.1, 0.2, 6)
    assert claims.within(zero, zero) == claims.Check(
        Verdict.HOLDS, 1.0, (-math.inf, 1.05), (1.0, 1.0), 6, None, "paired"
    )
    worse = claims.within(some, zero)
    assert (worse.outcome, worse.figure) == ("refuted", math.inf)
    assert claims.within(zero, some).holds
    # A rival that may be 0: any ratio above some number may be right.
    near = claims.at_most(some, np.array([1e-3, 0, 0, 0, 0, 0]), 1.5)
    assert near.refuted
    assert near.interval[0] > 1.5
    assert near.interval[1] == math.inf
    unclear = claims.within(np.array([0.1, -0.1, 0.2]), np.array([0.1, -0.2, 0.2]), paired=False)
    assert (unclear.outcome, unclear.interval) == ("undecided", claims.EVERYWHERE)


def test_runs_in_proportion_have_a_ratio_without_an_error():
    (rival,) = draws(1.0, runs=30)
    check = claims.at_most(rival / 3, rival, 0.75)
    assert check.holds
    assert check.interval == pytest.approx((1 / 3, 1 / 3))


def test_runs_that_are_all_equal_are_not_below_each_other():
    same = np.ones(4)
    assert claims.below(same, same).undecided
    assert claims.within(same, same).holds


def test_a_mean_is_held_against_a_number():
    (values,) = draws(1.0, runs=8)
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    check = claims.on_average(values, most=1.5)
    assert check.interval == pytest.approx((low, high))
    assert (check.holds, check.how) == (True, "mean")
    assert claims.on_average(values, least=1.5).refuted
    assert claims.on_average(values, least=0.9, most=0.95).outcome in ("refuted", "undecided")
    assert claims.on_average(values, least=0.0, most=2.0).holds


def test_a_share_has_the_exact_interval():
    check = claims.share([True] * 300, least=0.99)
    assert (check.figure, check.outcome) == (1.0, "undecided")  # 300 are too few for that
    assert check.interval == pytest.approx((0.025 ** (1 / 300), 1.0))
    assert check.needed > 300
    assert claims.share([True] * 500, least=0.99).holds
    assert claims.share([True, False] * 50, least=0.99).refuted


def test_a_median_has_the_interval_of_order_statistics():
    values = np.arange(20.0)
    check = claims.median(values, most=15.0)
    assert (check.figure, check.interval) == (9.5, (5.0, 14.0))  # 95.9 %
    assert check.holds
    assert claims.median(values, most=4.0).refuted
    assert claims.median(values[:5], most=100.0).interval is None


def test_what_is_not_random_is_met_or_not():
    assert claims.met(100, least=100, most=100).holds
    assert claims.met(2.0, most=1.0).refuted
    assert claims.met(math.nan, most=1.0).refuted
    assert claims.met(1.0, most=1.0).content() == {
        "outcome": "holds",
        "figure": 1.0,
        "margin": (-math.inf, 1.0),
        "interval": None,
        "runs": None,
        "needed": None,
        "how": "not random",
    }


def test_the_worst_of_several_decides():
    ours = draws(1.0, 1.08, 1.3, runs=30)
    rival = np.ones(30)
    good, open_, bad = (claims.within(one, rival, 0.1) for one in ours)
    assert [c.outcome for c in (good, open_, bad)] == ["holds", "undecided", "refuted"]
    assert claims.worst([good, open_]) is open_
    assert claims.worst([open_, bad, good]) is bad
    assert claims.worst([good, claims.met(0.0, most=9.0)]) is good


def test_a_claim_is_about_one_number_a_run():
    with pytest.raises(ValueError, match="one number a run"):
        claims.below(np.ones((2, 3)), np.ones((2, 3)))
