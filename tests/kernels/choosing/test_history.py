"""An agent's memory of its evaluations."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.choosing import history
from tests.kernels.choosing.pasts import told

NAN = jnp.nan
add, wait, repeated = map(jax.jit, (history.add, history.wait, history.repeated))


def test_a_full_history_remembers_every_place(key):
    # Most points are in one corner; all others are kept.
    apart = jnp.asarray([[0.9, 0.1], [0.1, 0.9], [0.9, 0.9], [0.5, 0.5]])
    x = jnp.concatenate([apart, 0.1 * jr.uniform(key, (30, 2))])
    y = jnp.arange(34.0).at[2].set(NAN).at[10:20].set(NAN)
    past = told(x, y, capacity=12)
    assert past.used.all()
    assert past.seen.moments.count == 23
    np.testing.assert_allclose(past.seen.moments.offset, np.nanmean(y), rtol=1e-6)
    for point in apart:
        assert repeated(past, point).any()
    assert repeated(past, x[-1]).any()
    # Failures take the places of successes up to a quarter.
    assert past.failed.sum() == 3


def test_a_worse_value_never_takes_the_place_of_the_best(key):
    x = jnp.concatenate([jnp.asarray([[0.9, 0.9], [0.5, 0.5]]), 0.1 * jr.uniform(key, (6, 2))])
    past = told(x, jnp.asarray([-1.0, 5.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]), capacity=4)
    near = jnp.asarray([0.51, 0.5])
    full = wait(add(add(past, near, jnp.asarray(4.0)), near + 0.01, jnp.asarray(NAN)), near + 0.02)
    assert repeated(full, x[1]).any()
    assert full.values.max() == 5
    better = add(past, near, jnp.asarray(6.0))
    assert not repeated(better, x[1]).any()
    assert better.values.max() == 6


def test_what_fails_takes_the_place_of_a_failure_where_nothing_else_has_ended():
    past = history.empty(1, 2, pending=1)
    past = add(past, jnp.asarray([0.1]), jnp.asarray(NAN))
    for x in (0.2, 0.3):
        past = wait(past, jnp.asarray([x]))
    past = add(past, jnp.asarray([0.4]), jnp.asarray(1.0))
    np.testing.assert_allclose(np.sort(past.x[:, 0]), [0.2, 0.3, 0.4], atol=1e-6)


def test_points_that_wait_take_no_row_of_one_that_failed():
    past = history.empty(1, 4, pending=3)
    past = add(past, jnp.asarray([0.1]), jnp.asarray(NAN))
    for x in (0.2, 0.3, 0.4):
        past = add(past, jnp.asarray([x]), jnp.asarray(x))
    for x in (0.5, 0.6, 0.7, 0.8):
        past = wait(past, jnp.asarray([x]))
    assert past.failed.sum() == 1
    assert jnp.isinf(past.y).sum() == 4


def test_a_point_that_is_not_finite_was_not_evaluated():
    past = told([[0.1, 0.2], [NAN, NAN]], [NAN, NAN])
    assert past.used.sum() == past.failed.sum() == 1


@pytest.mark.parametrize(
    ("values", "exact"),
    [
        ([1.0, 2.0], False),  # nothing was repeated
        ([1.0, 2.0, 1.0], True),
        ([1.0, 2.0, 1.0 + 1e-7], True),  # rounding
        ([1.0, 2.0, 1.1], False),
        ([1.0, 2.0, 1.0, 1.1], False),  # the same by chance
        ([1.0, 2.0, NAN], False),
    ],
)
def test_the_first_repetition_tells_whether_there_is_noise(values, exact):
    x = [[0.3, 0.3], [0.7, 0.7], *[[0.3, 0.3]] * (len(values) - 2)]
    assert told(x, values).seen.exact == exact


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([1.0, 1.0], True),
        ([1.0, 1.0 + 1e-7], True),  # rounding
        ([1.0, 1.1], False),
        ([1.1, 1.0], False),
        ([1.0, NAN], False),  # one is not enough
        ([NAN, NAN], False),
    ],
)
def test_values_are_flat_if_there_are_two_and_all_are_equal(values, flat):
    assert told([[0.3], [0.7]], values).seen.flat == flat
