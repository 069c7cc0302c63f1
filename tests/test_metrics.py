import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxbo
from jaxbo import metrics

NAN, INF = np.nan, np.inf


def test_best_so_far_is_the_running_maximum_of_each_agent():
    values = np.random.default_rng(0).normal(size=(3, 7, 4))
    best = metrics.best_so_far(values)
    for t in range(7):
        np.testing.assert_array_equal(best[:, t], values[:, : t + 1].max(axis=1))


def test_failed_evaluations_are_passed_over():
    values = np.array([[NAN, 1.0], [2.0, INF], [-INF, 0.0], [1.0, 3.0]])
    expected = [[-INF, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 3.0]]
    np.testing.assert_array_equal(metrics.best_so_far(values), expected)


def test_simple_regret_is_the_distance_of_the_best_so_far_and_infinite_before_a_success():
    values = jnp.asarray([[NAN, 1.0], [2.0, 0.0], [3.0, 4.0]])
    regret = metrics.simple_regret(values, jnp.asarray([5.0, 4.0]))
    np.testing.assert_array_equal(regret, [[INF, 3.0], [3.0, 3.0], [2.0, 0.0]])
    np.testing.assert_array_equal(metrics.simple_regret(values, 5)[1:, 0], [3.0, 2.0])


def test_cumulative_regret_adds_the_distance_of_every_value():
    values = np.array([[1.0], [3.0], [2.0]])
    np.testing.assert_array_equal(metrics.cumulative_regret(values, 3.0), [[2.0], [2.0], [3.0]])


def test_a_failed_evaluation_shows_in_the_cumulative_regret():
    regret = metrics.cumulative_regret(np.array([[1.0], [NAN], [2.0]]), 3.0)
    np.testing.assert_array_equal(np.isfinite(regret[:, 0]), [True, False, False])


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("regret", [metrics.simple_regret, metrics.cumulative_regret])
def test_the_regret_of_a_run_that_minimizes_is_that_of_its_negatives_when_maximized(regret):
    values = np.array([[NAN, 1.0], [2.0, 0.0], [3.0, 4.0], [1.5, -1.0]])
    optimum = np.array([1.0, -2.0])
    found = regret(values, optimum, "minimize")
    np.testing.assert_array_equal(found, regret(-values, -optimum))
    assert (found[np.isfinite(found)] > 0).all()
    with pytest.raises(ValueError, match="direction must be"):
        regret(values, optimum, "down")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_mean_and_error_are_those_of_scipy(axis):
    x = np.random.default_rng(1).normal(size=(6, 5, 4))
    mean, error = metrics.mean_and_error(x, axis)
    np.testing.assert_allclose(mean, x.mean(axis))
    np.testing.assert_allclose(error, stats.sem(x, axis))


def test_means_of_single_precision_runs_do_not_lose_their_small_differences():
    x = jnp.asarray([4096.0, 4096.0009765625] * 500, jnp.float32)
    mean, error = metrics.mean_and_error(x)
    np.testing.assert_allclose(mean - 4096, 0.5**11, rtol=1e-9)
    np.testing.assert_allclose(error, 0.5**11 / np.sqrt(999), rtol=1e-9)


def test_infinite_runs_have_an_undefined_error():
    mean, error = metrics.mean_and_error(np.array([INF, 1.0]))
    assert mean == INF
    assert np.isnan(error)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_the_confidence_interval_is_students(level):
    x = np.random.default_rng(2).normal(size=(9, 3))
    low, high = metrics.confidence_interval(x, level=level)
    expected = stats.t.interval(level, 8, x.mean(0), stats.sem(x))
    np.testing.assert_allclose([low, high], expected)


def test_the_confidence_interval_covers_the_mean_as_often_as_it_says():
    x = np.random.default_rng(3).normal(2.0, 3.0, size=(5, 20000))
    low, high = metrics.confidence_interval(x, level=0.8)
    covered = np.mean((low <= 2.0) & (high >= 2.0))
    assert abs(covered - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 20000)


def test_one_run_has_no_error_and_is_refused():
    with pytest.raises(ValueError, match="at least two runs, got 1"):
        metrics.mean_and_error(np.ones((1, 3)))
    with pytest.raises(ValueError, match="at least two runs, got 0"):
        metrics.mean_and_error(1.0)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(ValueError, match="level"):
        metrics.confidence_interval(np.ones((3, 2)), level=level)


def test_the_size_of_a_message_is_that_of_its_arrays():
    message = {"sample": jnp.zeros((3, 100), jnp.float32), "count": jnp.zeros((), jnp.int32)}
    assert metrics.floats(message) == 301
    assert metrics.bytes_of(message) == 1204


def test_the_size_of_a_message_can_be_read_off_its_shapes():
    shapes = jax.eval_shape(lambda: (jnp.zeros((5, 7), jnp.float32), None, jnp.zeros(2, jnp.int8)))
    assert metrics.floats(shapes) == 37
    assert metrics.bytes_of(shapes) == 142


def test_no_message_has_no_size():
    assert metrics.floats(None) == metrics.bytes_of(()) == 0


def test_a_method_without_messages_sends_nothing_and_one_without_agents_is_refused():
    assert metrics.floats(metrics.message_of(jaxbo.TS(jaxbo.Cube(2), 3))) == 0
    assert metrics.floats(metrics.message_of(jaxbo.FTS(jaxbo.Cube(2), 3))) == 100
    with pytest.raises(ValueError, match="algorithm must be of type AbstractFederated"):
        metrics.message_of(jaxbo.BO(jaxbo.Cube(2)))
