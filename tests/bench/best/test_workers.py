"""Several workers beside a lone one: the same points first, and ratios of two kinds."""

import numpy as np
import pytest

from bench.best import problems, workers
from bench.best.workers import EVALUATIONS, INITIAL, LONE, RANDOM, WORKERS

RUNS, SOON = 2, 16


@pytest.mark.full
def test_all_searches_begin_with_the_same_points_and_evaluate_as_often(light):
    (problem,) = problems.chosen(("bbob", "2d", "i1", "f01"))
    found = {s: workers.measured(s, problem, RUNS, SOON, 0) for s in (LONE, 4, RANDOM)}
    for runs in found.values():
        assert runs.x.shape == (RUNS, INITIAL + SOON, 2)
        np.testing.assert_array_equal(runs.x[:, :INITIAL], found[LONE].x[:, :INITIAL])
        for x, observed in zip(runs.x, runs.observed, strict=True):
            np.testing.assert_allclose(
                observed - observed[0], problem.regrets(x[:1]) - problem.regrets(x), rtol=1e-3
            )
    afterwards = {s: runs.x[:, INITIAL:] for s, runs in found.items()}
    assert all(len(np.unique(x[0], axis=0)) > 4 for x in afterwards.values())
    assert not np.array_equal(afterwards[RANDOM][0], afterwards[RANDOM][1])


def test_a_ratio_is_after_as_many_evaluations_or_as_many_rounds():
    chosen = problems.chosen(("bbob", "2d", "i1", "f01", "f03"))
    falling = -np.tile(np.arange(1.0, INITIAL + EVALUATIONS + 1), (RUNS, 1)) / 100
    logs = {(p.name, s): falling + (s == RANDOM) for p in chosen for s in (LONE, *WORKERS, RANDOM)}
    found = workers.compared(chosen, logs, EVALUATIONS)
    assert len(found) == 3 * len(WORKERS)
    for claim, (ratio, most) in found.items():
        count = int(claim.split()[0])
        later = EVALUATIONS - EVALUATIONS // count
        log = -later / 100 if "rounds" in claim else -1.0 if "random" in claim else 0.0
        assert ratio.figure == pytest.approx(10**log)
        assert f"at most {most:g} times" in claim
