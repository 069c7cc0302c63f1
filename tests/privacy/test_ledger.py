"""A ledger adds up, refuses, and comes back from a file as it was or not at all."""

import json
import math

import pytest

from jaxbo.privacy import accounting
from jaxbo.privacy.accounting import Event, moments, pld, renyi
from jaxbo.privacy.ledger import BudgetError, Ledger
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson, Relation

DELTA = 200**-1.1
ZERO_OUT = Relation.ZERO_OUT


def mechanism(q=0.25, z=1.0):
    return Mechanism(z, 11.0, Poisson(q))


def event(q=0.25, z=1.0, rounds=1):
    return Event(ZERO_OUT, q, z, rounds)


def test_a_ledger_adds_up_what_was_charged_and_stays_as_it_was():
    empty = Ledger(DELTA)
    one = empty.charge(mechanism()).charge(mechanism(0.5, 3.0), 4).charge(mechanism())
    assert (empty.releases, one.releases) == (0, 6)
    assert empty.epsilon() == 0
    assert one.epsilon() == pld([event(rounds=2), event(0.5, 3.0, 4)], DELTA)
    assert one.epsilon(1e-6) > one.epsilon()


def test_the_release_that_would_exceed_the_budget_is_refused_and_not_charged():
    ledger = Ledger(DELTA, 3.0, moments)
    allowed = accounting.rounds_for(mechanism(), 3.0, DELTA, moments)
    for _ in range(allowed):
        assert ledger.affords(mechanism())
        ledger = ledger.charge(mechanism())
    assert not ledger.affords(mechanism())
    with pytest.raises(BudgetError, match=f"release {allowed + 1} would bring epsilon"):
        ledger.charge(mechanism())
    assert ledger.releases == allowed
    assert ledger.epsilon() <= 3
    assert ledger.affords(mechanism(z=1e4))
    assert issubclass(BudgetError, ValueError)


@pytest.mark.parametrize(
    ("accountant", "budget"),
    [
        (None, 5.0),
        (moments, math.inf),
        (renyi, 5.0),
        pytest.param(None, math.inf, marks=pytest.mark.full),
        pytest.param(moments, 5.0, marks=pytest.mark.full),
        pytest.param(renyi, math.inf, marks=pytest.mark.full),
        pytest.param(pld, 5.0, marks=pytest.mark.full),
        (pld, math.inf),
    ],
)
def test_a_saved_ledger_goes_on_where_it_stopped(accountant, budget):
    drawn = Mechanism(9.0, 1.0, FixedSize(2, 50)) if accountant in (None, renyi) else mechanism(0.1)
    ledger = Ledger(DELTA, budget, accountant).charge(mechanism(0.1), 3).charge(drawn)
    resumed = Ledger.from_json(ledger.to_json())
    assert resumed == ledger
    assert resumed.charge(mechanism(0.1)).epsilon() == ledger.charge(mechanism(0.1)).epsilon()
    assert resumed.releases == 4


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99}, {"delta": 2.0}, {"budget": -1.0}, {"accountant": "other"},
        {"events": [{"relation": "zero-out", "q": 0.5, "z": -1.0, "count": 1}]},
        {"events": [{"relation": "zero-out", "q": 0.5, "z": 1.0, "count": -1}]},
        {"events": [{"relation": "friends", "q": 0.5, "z": 1.0, "count": 1}]}, {"events": None},
    ],
)  # fmt: skip
def test_a_ledger_that_was_changed_is_refused(change):
    saved = json.loads(Ledger(DELTA).charge(mechanism()).to_json())
    with pytest.raises(ValueError, match="not a saved ledger"):
        Ledger.from_json(json.dumps({**saved, **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3"])
def test_a_ledger_that_was_cut_off_is_refused(text):
    with pytest.raises(ValueError, match="no guarantee"):
        Ledger.from_json(text)


def test_an_accountant_of_ones_own_is_used_but_cannot_be_saved():
    ledger = Ledger(DELTA, 10.0, lambda events, delta: float(sum(e.count for e in events)))
    ledger = ledger.charge(mechanism(), 10)
    with pytest.raises(BudgetError):
        ledger.charge(mechanism())
    with pytest.raises(ValueError, match="can be saved"):
        ledger.to_json()


def test_a_budget_may_be_small():
    ledger = Ledger(DELTA, 0.1, pld)
    assert ledger.budget == 0.1
    assert ledger.affords(mechanism(z=1e4))
    assert not ledger.affords(mechanism())


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_refused(budget):
    with pytest.raises(ValueError, match="must be a positive epsilon"):
        Ledger(DELTA, budget)
    with pytest.raises(ValueError, match="must be positive"):
        accounting.noise_for(budget, DELTA, 0.5, 5)
