"""The price of privacy: the methods that are compared, and the claims about their gain."""

import jax.random as jr
import numpy as np
import pytest

from bench.prior import private
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.privacy import accounting

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


@pytest.mark.full
def test_private_methods_cost_what_their_names_say():
    for epsilon in private.LOSSES:
        ours = private.label(epsilon)
        for name in (ours, ours + private.OWN, private.label(epsilon, private.RIVAL)):
            method = private.method(name, 50)
            releases = [method.released(t) for t in range(private.ROUNDS)]
            assert sum(one is not None for one in releases) == private.RELEASES
            cost = accounting.epsilon(releases[0], private.RELEASES, private.DELTA)
            assert cost == pytest.approx(epsilon, rel=1e-3)


def test_what_is_not_private_has_no_noise():
    for name in ("alone", "no noise"):
        method = private.method(name, 50)
        assert isinstance(method, DPLearnedPrior)
        assert float(method.mechanism.z) == 0


def test_a_share_of_the_gain_holds_or_not_or_is_undecided():
    noise = 0.01 * np.random.default_rng(0).standard_normal((3, 40))
    alone, learned, same = noise + np.asarray([[1.0], [0.5], [0.6]])
    assert private.kept(alone, learned, same, 0.7).holds
    assert private.kept(alone, learned, same, 0.9).refuted
    assert private.kept(alone, learned, same, 0.8).undecided
    assert private.kept(alone, learned, same, 0.8).figure == pytest.approx(0.8, abs=0.01)


def test_no_share_is_kept_of_a_gain_that_there_may_not_be():
    alone, noise = np.zeros(30), np.random.default_rng(1).normal(size=(2, 30))
    learned = noise[0] - noise[0].mean()
    assert private.kept(alone, learned, alone - 1.0, 0.7).undecided
    assert private.kept(alone, learned - 1.0, alone - 1.0, 0.7).holds


@pytest.mark.full
def test_regret_falls_and_is_in_deviations():
    regret = private.regret(4, "ε = 1", jr.split(jr.key(1), 2), 2)
    assert regret.shape == (2, private.ROUNDS)
    assert (np.diff(regret, axis=1) <= 1e-6).all()
    assert (regret[:, 0] < 5).all()
    assert (regret[:, -1] < regret[:, 0]).all()
