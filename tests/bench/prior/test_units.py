"""Agents whose values differ in unit, and claims about them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.prior import families, units
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube


@pytest.mark.full
def test_regret_is_in_deviations_of_the_functions_whatever_the_units():
    """Random search takes no notice of values."""
    random, family = RandomSearch(Cube(2), 3), jnp.asarray(families.FAMILIES["half"])

    def regret(units):
        return families.regret(random, 3, 2, jr.key(0), family, units=units)

    one, other = jax.jit(lambda: (regret(False), regret(True)))()
    np.testing.assert_allclose(one, other, rtol=1e-3)


def test_only_the_bound_has_agents_of_one_unit():
    assert [name for name in units.METHODS if not units.differ(name)] == [units.KNOWN]
    own = {name: getattr(units.method(name), "own_units", None) for name in units.METHODS}
    assert {name for name, its in own.items() if its} == {units.OWN, "EI"}
    assert {name for name, its in own.items() if its is False} == {units.BLIND, units.KNOWN}


@pytest.mark.parametrize(
    ("family", "times", "near", "ahead"),
    [
        ("half", 0.7, "holds", "holds"),
        ("half", 1.1, "holds", "refuted"),
        ("half", 2.1, "refuted", "refuted"),
        ("unrelated", 0.99, "holds", "holds"),
        ("unrelated", 1.1, "holds", "refuted"),
    ],
)
def test_own_units_are_to_be_ahead_and_near_to_one_unit(family, times, near, ahead):
    spread = 1 + 0.01 * np.arange(20)[:, None] * np.ones(20)
    regret = {(family, name): spread for name in units.METHODS}
    regret[family, units.OWN] = times * spread
    found = units.checks(regret)
    assert [c.outcome for claim, c in found.items() if units.KNOWN in claim] == [near] * 2
    assert {c.outcome for claim, c in found.items() if units.KNOWN not in claim} == {ahead}
    lone = "unrelated: after 20, at most 1.05 times the best regret of TS, EI, ratio"
    assert (lone in found) == (family == "unrelated")
