"""Who sends in a round, and claims about it."""

import numpy as np
import pytest

from bench.prior import participation


@pytest.mark.parametrize("senders", [6, 100])
def test_each_round_draws_its_own_senders(key, senders):
    present = np.asarray(participation.drawn(key, senders))
    assert present.shape == (participation.ROUNDS, participation.AGENTS)
    assert (present.sum(axis=1) == senders).all()
    # Of independent draws hardly any agent sends in all rounds, and few rounds are alike.
    assert not present.all(axis=0).any()
    assert len({row.tobytes() for row in present}) == participation.ROUNDS


def test_a_tenth_that_sends_any_covariance_sends_less_than_half_of_what_a_rank_sends():
    few, more = participation.FEW, participation.RANK
    assert participation.numbers(few) < 0.5 * participation.numbers(more)
    # Of so many agents, each sends as much as the documentation of `LearnedPrior` says.
    D = participation.algorithm(few).features.size + 1
    assert participation.numbers("any covariance, all") == D + 4 + D * (D + 1)
    assert participation.numbers(few) == pytest.approx(0.1 * (D + 4 + D * (D + 1)))
    assert participation.numbers(more) == D + 4 + 2 * D * 11
    assert participation.numbers(participation.VARIANCE) == D + 8


@pytest.mark.parametrize(("times", "holds"), [(0.9, True), (1.1, False)])
def test_a_tenth_is_to_have_no_more_regret(times, holds):
    spread = 1 + 0.01 * np.arange(20)[:, None] * np.ones(20)
    regret = {("half", method): spread for method in participation.METHODS}
    regret["half", participation.FEW] = times * spread
    found = participation.checks(regret)
    assert [check.holds for check in found.values()] == [holds] * 10
