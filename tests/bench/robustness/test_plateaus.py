"""The shapes of the experiment on plateaus."""

import jax
import numpy as np
import pytest

from bench.robustness import plateaus


@pytest.mark.parametrize("dim", [2, 8])
def test_levels_have_the_shares_of_the_volume_that_are_said(dim):
    keys, points = (
        jax.random.split(jax.random.key(0), 200),
        jax.random.uniform(jax.random.key(1), (200, dim)),
    )
    values = jax.jit(jax.vmap(jax.vmap(plateaus.values, (None, 0)), (0, None)))(keys, points)
    hill, steps, decoy = np.moveaxis(np.asarray(values), -1, 0)
    for best, kind in ((1, hill), (-1, steps), (1, decoy)):
        assert np.mean(kind == best) == pytest.approx(plateaus.HILL, abs=0.01)
    assert np.mean(decoy == 0.5) == pytest.approx(plateaus.DECOY, abs=0.015)
    assert set(np.unique(steps)) <= {-1.0, -2.0, -3.0, -4.0, -5.0}
    assert set(np.unique(hill)) == {hill.dtype.type(0.2), 1.0}


@pytest.mark.full
def test_random_search_meets_the_best_level_when_chance_says():
    shape = plateaus.SHAPES["hill"]
    met = plateaus.first(plateaus.RANDOM, shape, 2, 300, 0)
    last = plateaus.INITIAL + plateaus.ROUNDS
    chance = 1 - (1 - plateaus.HILL) ** last
    error = np.sqrt(chance * (1 - chance) / met.size)
    assert np.mean(met <= last) == pytest.approx(chance, abs=4 * error)
    assert met.min() >= 1
    assert met.max() <= last + 1


def test_claims_compare_with_random_search():
    found = {
        ("hill", 2, plateaus.RANDOM): np.full(4, 30.0),
        ("hill", 2, "soon"): np.full(4, 32.0),
        ("hill", 2, "late"): np.full(4, 34.0),
    }
    assert [check.holds for check in plateaus.checks(found).values()] == [True, False]
