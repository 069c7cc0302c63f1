"""The learned prior in the protocol of FTS: whose observations count, regrets, and claims."""

import jax.random as jr
import numpy as np
import pytest

from bench.fts.driven import PROBLEM, DrivenRun
from bench.fts.rivals import TARGETS
from bench.prior import landmine
from bench.prior.setting import CLAIMED


@pytest.mark.slow
def test_the_prior_is_of_the_fields_that_are_no_targets():
    rng = np.random.default_rng(0)
    queries = rng.uniform(size=(6, PROBLEM.owners, 2))
    values = np.sin(5 * queries[..., 0]) + 0.1 * rng.normal(size=queries.shape[:2])

    def mean(values):
        prior = landmine.learned(0, jr.key(0), DrivenRun(queries, values, np.nan))
        return np.asarray(prior.prior.mean)

    theirs, others = values.copy(), values.copy()
    theirs[:, :TARGETS] += 1.0
    others[:, TARGETS:] *= -1.0
    np.testing.assert_array_equal(mean(theirs), mean(values))
    assert np.abs(mean(others) - mean(values)).max() > 0.1


def test_regret_is_below_the_best_that_any_method_found_in_any_run():
    values = np.zeros((2, 3, 4, 2))  # methods, runs, evaluations, targets
    values[1, 2, 3] = 0.5, 0.2  # the best of both targets: one method, one run, at the end
    values[0, 0, 1, 0] = 0.4
    regret = landmine.regrets(values)
    assert regret.shape == (2, 3, 4)
    assert (np.diff(regret, axis=2) <= 0).all()
    np.testing.assert_allclose(regret[0, 0], [35, 15, 15, 15])
    np.testing.assert_allclose(regret[1, 2], [35, 35, 35, 0])
    np.testing.assert_allclose(regret[0, 1], 35)


@pytest.mark.parametrize(("ours", "holds"), [(0.4, True), (2.0, False)])
def test_claims_compare_with_the_best_of_all_rivals(ours, holds):
    spread = 1 + 0.01 * np.arange(10)[:, None]
    regret = {
        f"{score}, {method}": np.ones((10, 53)) * spread * (ours if "learned" in method else 1.0)
        for score in landmine.SCORES
        for method in landmine.METHODS
    }
    found = landmine.checks(regret, tuple(landmine.SCORES))
    assert len(found) == 2 * 2 * len(landmine.AHEAD)
    assert all(check.holds is holds for check in found.values())
    # A single rival that is better is enough.
    regret["predict_proba, TAF"] = 0.1 * spread * np.ones((10, 53))
    found = landmine.checks(regret, tuple(landmine.SCORES))
    finished = [check for claim, check in found.items() if claim.startswith("predict_proba:")]
    assert len(finished) == len(landmine.AHEAD)
    assert not any(check.holds for check in finished)


def test_both_forms_are_among_the_methods():
    assert {CLAIMED, landmine.TOGETHER, *landmine.RANKS, *landmine.RIVALS} == set(landmine.METHODS)
