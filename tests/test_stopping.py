"""Rules that end a run, tried against what they say in plain loops."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbo.stopping import NoProgress, Target

numbers = st.sampled_from([np.nan, -1.0, 0.0, 0.5, 1.0, 2.0])
tables = st.integers(1, 3).flatmap(
    lambda agents: st.lists(
        st.lists(numbers, min_size=agents, max_size=agents), min_size=1, max_size=8
    )
)
directions = st.sampled_from(["maximize", "minimize"])


def known(values, direction):
    return SimpleNamespace(values=np.asarray(values), direction=direction)


def upward(values, direction):
    return values if direction == "maximize" else [[-value for value in row] for row in values]


def best(rows, agent):
    """Of one agent's values, the larger the better; None before there is any."""
    return max((row[agent] for row in rows if row[agent] == row[agent]), default=None)


@pytest.mark.slow
@given(tables, directions, st.sampled_from([-1.0, 0.5, 2.0]))
def test_a_target_is_reached_when_every_agents_best_is_as_good(values, direction, target):
    rows = upward(values, direction)
    mine = target if direction == "maximize" else -target
    bests = [best(rows, agent) for agent in range(len(values[0]))]
    expected = all(one is not None and one >= mine for one in bests)
    assert Target(target)(known(values, direction)) == expected


@pytest.mark.slow
@given(tables, directions, st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_there_is_no_progress_when_nobody_has_become_better(values, direction, count, least):
    rows = upward(values, direction)
    if len(rows) <= count:
        assert not NoProgress(count, least)(known(values, direction))
        return
    pairs = [(best(rows[:-count], agent), best(rows, agent)) for agent in range(len(values[0]))]
    anything = any(before is not None for before, _ in pairs)
    better = any(
        now is not None and (before is None or now - before > least) for before, now in pairs
    )
    assert NoProgress(count, least)(known(values, direction)) == (anything and not better)


def test_rules_take_the_values_of_a_desk():
    for values, reached in (([0.1, 0.7], True), ([0.1, np.nan], False), ([], False)):
        assert Target(0.5)(known(values, "maximize")) is reached
    assert NoProgress(2)(known([1.0, 0.5, 0.2], "maximize"))
    assert not NoProgress(2)(known([1.0, 0.5, 0.2], "minimize"))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Target(np.nan),
        lambda: Target([0.1, 0.2]),
        lambda: Target("0.9"),
        lambda: NoProgress(0),
        lambda: NoProgress(2.5),
        lambda: NoProgress(2, -1.0),
        lambda: NoProgress(2, np.nan),
    ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_wrong_rules_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must"):
        wrong()


def test_equal_rules_are_equal_and_say_what_they_are():
    assert Target(0.9) == Target(0.9)
    assert repr(NoProgress(5)) == "NoProgress(count=5, least=0.0)"
    assert len(set(itertools.repeat(Target(0.9), 2))) == 1


@pytest.mark.slow
def test_the_best_of_workers_who_share_an_objective_is_that_of_any():
    values = [[0.0, 2.0], [1.0, np.nan], [1.5, 0.5]]
    for direction, sign in (("maximize", 1), ("minimize", -1)):
        shared = SimpleNamespace(values=sign * np.array(values), direction=direction, shared=True)
        assert Target(sign * 2.0)(shared)
        assert not Target(sign * 2.5)(shared)
        assert NoProgress(2)(shared)
        assert not NoProgress(2)(known(sign * np.array(values), direction))
