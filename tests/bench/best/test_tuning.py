"""Tuning tasks with mixed parameters: equal beginnings, honest regrets, the same parameters for all."""

import numpy as np
import pytest

from bench.best import ours, tuning
from bench.best.tuning import INITIAL, TunedRuns
from bench.common import peers
from bench.tasks import learners
from jaxbo.algos.ts import TS
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed

TASK, RUNS, ROUNDS = "neighbors on cancer", 2, 2


@pytest.fixture
def small_model(monkeypatch):
    """Ours is a small model, and a value follows from the point in no time."""
    small = lambda domain, evaluations: TS(domain, 1, surrogate=Fixed(size=4), candidates=4)  # noqa: E731
    monkeypatch.setattr(ours, "method", small)
    monkeypatch.setattr(learners, "objective", lambda task: lambda v: float(v["n_neighbors"]))


@pytest.mark.full
def test_methods_begin_with_the_same_points_and_draw_others_afterwards(small_model):
    found = {m: tuning.measured(m, TASK, RUNS, ROUNDS, 0) for m in (ours.NAME, tuning.RANDOM)}
    mine, theirs = (one.values for one in found.values())
    assert mine.shape == theirs.shape == (RUNS, INITIAL + ROUNDS)
    np.testing.assert_array_equal(mine[:, :INITIAL], theirs[:, :INITIAL])
    assert not np.array_equal(mine[0], mine[1])
    assert not np.array_equal(theirs[:, INITIAL:], theirs[:, :ROUNDS])


def test_a_regret_is_the_share_that_is_left_of_the_way_from_chance_to_the_best():
    at_first = np.tile(np.arange(INITIAL, dtype=float), (1, 1))  # their median is 4.5
    runs = [np.append(at_first, [[last]], axis=1) for last in (14.5, 3.0)]
    found = tuning.regrets(
        {n: TunedRuns(r, np.array(0.0)) for n, r in zip("ab", runs, strict=True)}
    )
    np.testing.assert_allclose(found["a"][0, [0, 4, 9, 10]], [1.45, 1.05, 0.55, 0.0])
    np.testing.assert_allclose(found["b"][0, -1], 0.55)  # a worse value changes nothing


def test_ratios_have_a_floor_and_claims_have_both_margins():
    curves = {
        task: {
            ours.NAME: np.full((3, INITIAL + 2), 1e-9) * [[1], [1], [scale]],
            tuning.RANDOM: np.full((3, INITIAL + 2), 0.1),
            tuning.TPE: np.full((3, INITIAL + 2), 1e-3),
        }
        for task, scale in (("one", 1.0), ("other", 2.0))
    }
    ratios = tuning.compared(curves, (1, 2))
    assert ratios[tuning.RANDOM, 2].figure == pytest.approx(tuning.FLOOR / 0.1)
    assert ratios[tuning.TPE, 1].figure == pytest.approx(1)  # both have solved it
    checks = tuning.checks(ratios)
    assert len(checks) == 2 * (1 + 2)
    assert checks["regret after 2 evaluations at most 1 times that of random"].holds
    assert checks["regret after 2 evaluations at most 1.5 times that of TPE"].holds


def test_optuna_has_the_same_parameters():
    pytest.importorskip("optuna")
    space = Space(a=Real(1e-3, 2, log=True), b=Integer(1, 9), c=Categorical("x", True))
    found = peers.distributions(space)
    assert (found["a"].low, found["a"].high, found["a"].log) == (1e-3, 2, True)
    assert (found["b"].low, found["b"].high, found["b"].log) == (1, 9, False)
    assert found["c"].choices == ("x", True)


@pytest.mark.full
@pytest.mark.parametrize("learner", learners.LEARNERS)
def test_a_task_has_no_noise_and_its_parameters_matter(learner):
    task = f"{learner} on diabetes"  # the quickest of the data sets
    space, value = learners.space(task), learners.objective(task)
    points = tuning.drawn(space, 3, 0)
    values = [value(point) for point in points]
    assert values[0] == value(points[0])
    assert np.isfinite(values).all()
    assert len(set(values)) > 1


def test_data_sets_are_of_two_classes_or_standardized():
    for data in learners.DATA:
        x, y, classifies, folds = learners._loaded(data)
        assert len(x) == len(y)
        assert folds.get_n_splits() == learners.FOLDS
        if classifies:
            assert set(y) == {0, 1}
        else:
            np.testing.assert_allclose((y.mean(), y.std()), (0, 1), atol=1e-9)
