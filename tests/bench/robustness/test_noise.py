"""The unit and the claim of the experiment on noise."""

import jax.numpy as jnp
import numpy as np
import pytest

from bench.robustness import noise


@pytest.mark.full
def test_the_unit_is_the_deviation_of_a_grid():
    axis = (np.arange(200) + 0.5) / 200
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    values = [float(noise.BRANIN(jnp.asarray(x, float))) for x in grid[::97]]
    assert noise.deviation() == pytest.approx(np.std(values), rel=0.1)


def test_regret_is_less_run_by_run_or_undecided():
    draws = np.random.default_rng(0).normal(size=(2, 50))
    much = noise.BestRegrets(draws[0], draws[0] + 0.1 + 0.1 * draws[1])
    assert noise.less(much).holds
    assert noise.less(noise.BestRegrets(*much[::-1])).refuted
    same = noise.BestRegrets(draws[0], draws[0] + draws[1] - draws[1].mean())
    assert noise.less(same).undecided
