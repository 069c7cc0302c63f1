"""Simulated workers: when they end, and what they ask."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.egp import EGP
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.runs.compiled import run
from jaxbo.runs.timeline import simulate
from tests.runs.one_box import OBJECTIVE, stroll


def at_once(key, worker, x):
    return jnp.ones(())


def random_time(key, worker, x):
    return jr.exponential(key)


KEYS = jr.split(jr.key(0), 64)


@functools.cache
def simulated(workers):
    """The past and the timeline of so many workers whose times are random, of a run for each key."""

    def one(key):
        state, timeline = simulate(stroll(workers), OBJECTIVE, random_time, 20, key, initial=4)
        return state.past, timeline

    return jax.tree.map(np.asarray, jax.vmap(one)(KEYS))


def first_run(workers):
    return jax.tree.map(lambda leaf: leaf[0], simulated(workers))


@functools.cache
def fails_in_half():
    """A timeline whose durations are plain numbers, of values that are finite where x0 is at most 0.5."""
    half = lambda key, agent, x: jnp.where(x[0] > 0.5, jnp.inf, 1.0)  # noqa: E731
    return simulate(stroll(2), half, lambda key, worker, x: 1.0, 12, jr.key(1), initial=2)[1]


POINTS = Finite(np.random.default_rng(0).random((64, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [EI(), pytest.param(Thompson(), marks=pytest.mark.full)])
def test_one_simulated_worker_asks_what_a_run_asks(policy):
    model = Fitted(9, size=8, refit_every=None, inference=Exact())
    algorithm = EGP(POINTS, model, policy)
    _, trace = run(algorithm, OBJECTIVE, 4, jr.key(1), initial=5)
    _, timeline = simulate(algorithm, OBJECTIVE, at_once, 4, jr.key(1), initial=5)
    # Later queries amplify rounding.
    np.testing.assert_allclose(timeline.queries[:2], trace.queries[5:7, 0], atol=5e-3)
    np.testing.assert_allclose(timeline.ended, [1.0, 2.0, 3.0, 4.0])
    assert timeline.tickets.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 3])
def test_simulated_workers_begin_with_the_design_of_a_run_of_one(workers):
    _, design = run(RandomSearch(Cube(2), 1), OBJECTIVE, 0, KEYS[0], initial=4)
    past, _ = first_run(workers)
    told = past.order >= 0
    x = past.x[told][np.argsort(past.order[told])]
    np.testing.assert_array_equal(x[:4], design.queries[:, 0])


@pytest.mark.slow
def test_durations_may_be_plain_numbers_and_nan_is_for_ever():
    plain = fails_in_half()
    np.testing.assert_allclose(plain.ended[:4], [1.0, 1.0, 2.0, 2.0])
    stuck = lambda key, worker, x: jnp.where(worker == 0, jnp.nan, 1.0)  # noqa: E731
    _, some = simulate(stroll(2), OBJECTIVE, stuck, 4, jr.key(1))
    np.testing.assert_allclose(some.ended, [1.0, 2.0, 3.0, 4.0])
    assert some.workers.tolist() == [1, 1, 1, 1]


@pytest.mark.slow
def test_simulated_workers_end_in_the_order_of_their_times_and_never_rest():
    _, s = first_run(3)
    assert (np.diff(s.ended) >= 0).all()
    assert sorted(set(s.tickets.tolist())) == sorted(s.tickets.tolist())
    for worker in range(3):
        mine = np.asarray(s.workers) == worker
        assert mine.sum() > 2
        # The next evaluation starts when the last one ends.
        np.testing.assert_allclose(s.started[mine][1:], s.ended[mine][:-1], rtol=1e-6)
        assert s.started[mine][0] == 0


def test_a_value_that_is_not_finite_is_a_failure():
    s = fails_in_half()
    failed = np.asarray(s.queries)[:, 0] > 0.5
    assert 0 < failed.sum() < failed.size
    np.testing.assert_array_equal(s.values, np.where(failed, np.nan, 1.0))


@pytest.mark.slow
def test_three_workers_take_a_third_of_the_time():
    # When they end does not depend on what they ask.
    one, three = (simulated(n)[1].ended[:, -1].mean() for n in (1, 3))
    # 20 mean times of 1; standard error of the ratio 0.02.
    assert 2.7 < one / three < 3.3


def test_a_simulation_is_checked_before_it_starts():
    with pytest.raises(ValueError, match="capacity"):
        simulate(stroll(2, capacity=9), OBJECTIVE, at_once, 8, jr.key(0), initial=2)
    with pytest.raises(ValueError, match="one floating number"):
        simulate(stroll(2), lambda key, agent, x: x, at_once, 8, jr.key(0))
    with pytest.raises(ValueError, match="evaluations"):
        simulate(stroll(2), OBJECTIVE, at_once, 0, jr.key(0))
    with pytest.raises(ValueError, match=r"^duration must be .* one number, .*complex64"):
        simulate(
            stroll(2), OBJECTIVE, lambda key, worker, x: jax.lax.complex(x[0], x[1]), 8, jr.key(0)
        )
