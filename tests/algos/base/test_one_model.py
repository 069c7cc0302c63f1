"""Methods of one model: the rows that queries of several workers take, and what counts as a round."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import UCB, Thompson
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed

ROWS, WORKERS = 24, 3


def method(policy, rows=ROWS):
    return EGP(Cube(2), Fitted(rows, size=8, refit_every=None), policy, WORKERS, candidates=8)


@pytest.mark.parametrize(
    ("policy", "most"), [(Thompson(), 8), (UCB(), 7)], ids=["random", "not random"]
)
def test_rows_are_kept_for_queries_that_are_out_unless_they_are_drawn(policy, most):
    algorithm = method(policy)
    assert algorithm.capacity == most
    assert algorithm.room_for(most) <= ROWS < algorithm.room_for(most + 1)
    assert algorithm.room_for(1) == (3 if algorithm.random else 5)
    assert method(policy, algorithm.room_for(1)).capacity == 1
    with pytest.raises(ValueError, match="too small for 3 workers"):
        method(policy, algorithm.room_for(1) - 1)


@pytest.mark.slow
def test_a_state_remembers_all_points_that_are_out_and_a_part_of_a_round_takes_all_of_one(key):
    algorithm = method(Thompson())
    state = algorithm.init(key)
    assert state.past.used.shape == (ROWS + WORKERS,)
    assert state.past.x.shape == (ROWS + WORKERS, 2)
    for count in range(1, 5):
        state = eqx.filter_jit(algorithm.tell_one)(state, jr.uniform(key, (2,)), jnp.asarray(1.0))
        told = (algorithm.told(state), algorithm.round(state), state.told, state.past.used.sum())
        np.testing.assert_array_equal(told, [-(-count // WORKERS), count, count, count])


class Renewed(Fixed):
    """Fitted anew after every two evaluations, at no cost."""

    @property
    def period(self):
        return 2

    def refit(self, shared, belief):
        return belief


@pytest.mark.slow
def test_fits_are_due_when_evaluations_pass_a_period_and_at_the_end_of_those_before(key):
    algorithm = EGP(Cube(2), Renewed(size=4, capacity=ROWS), Thompson(), WORKERS, candidates=8)
    state, fitted = algorithm.init(key), []
    tell = eqx.filter_jit(algorithm.tell)
    one = eqx.filter_jit(algorithm.tell_one)
    x, y = jr.uniform(key, (WORKERS, 2)), jnp.arange(3.0)
    for last in (False, True):
        state = tell(state, x, y, Stage(jnp.asarray(True), jnp.asarray(last)))
        fitted.append(int(state.fitted))
    for _ in range(3):
        state = one(state, x[0], y[0])
        fitted.append(int(state.fitted))
    for failed in (False, True, True):
        state = tell(state, x, jnp.where(failed, jnp.nan, y))
        fitted.append(int(state.fitted))
    assert fitted == [0, 6, 6, 8, 8, 12, 12, 12]
