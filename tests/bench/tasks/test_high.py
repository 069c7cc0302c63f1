"""Black boxes of many coordinates: their bounds, and SciPy's and scikit-learn's answers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import BSpline
from sklearn.linear_model import Lasso

from bench.tasks import high


def test_a_straight_path_costs_its_length_and_what_it_crosses():
    rover = high.rover(10)
    assert rover.dim == 20
    start, goal = np.array(high.START), np.array(high.GOAL)
    straight = start + np.linspace(0, 1, 10)[:, None] * (goal - start)
    free = eqx.tree_at(lambda r: r.obstacles, rover, rover.obstacles + 5.0)
    assert float(free(jnp.asarray(straight.ravel(), float))) == pytest.approx(0, abs=1e-5)
    one = eqx.tree_at(lambda r: r.obstacles, rover, jnp.full((1, 2), 0.5))
    crossed = 2 * high.HALF_EDGE * np.sqrt(2) * high.INSIDE
    assert -float(one(jnp.asarray(straight.ravel(), float))) == pytest.approx(crossed, rel=0.05)


def test_a_path_is_a_clamped_cubic_spline_and_never_below_the_bound():
    rover = high.rover(10)
    points = np.random.default_rng(0).random((10, 2))
    knots = np.concatenate([[0] * 4, np.linspace(0, 1, 8)[1:-1], [1] * 4])
    times = np.linspace(0, 1, high.PIECES + 1)
    path = BSpline(knots, points, 3)(times)
    np.testing.assert_allclose(np.asarray(rover.basis) @ points, path, atol=1e-5)
    np.testing.assert_allclose(path[[0, -1]], points[[0, -1]])
    pieces, middles = np.diff(path, axis=0), (path[1:] + path[:-1]) / 2
    lengths = np.linalg.norm(pieces, axis=1)
    away = abs(middles[:, None] - np.asarray(rover.obstacles)).max(axis=2)
    inside = (away < high.HALF_EDGE).any(axis=1)
    missed = abs(points[0] - high.START).sum() + abs(points[-1] - high.GOAL).sum()
    cost = (lengths * (high.ANYWHERE + high.INSIDE * inside)).sum() + high.MISSED * missed
    least = high.ANYWHERE * np.linalg.norm(np.subtract(high.GOAL, high.START))
    value = float(rover(jnp.asarray(points.ravel(), float)))
    # A piece whose middle is at the border of an obstacle may count otherwise in float32.
    assert -value == pytest.approx(cost - least, rel=1e-4, abs=high.INSIDE * 3 * lengths.max())


def test_no_path_near_the_shortest_is_below_the_bound():
    rover = high.rover(10)
    free = eqx.tree_at(lambda r: r.obstacles, rover, rover.obstacles + 5.0)
    ends = np.array([high.START, high.GOAL])
    straight = (ends[0] + np.linspace(0, 1, 10)[:, None] * (ends[1] - ends[0])).ravel()
    spread = 10 ** np.linspace(-4, -1, 100)[:, None]
    near = straight + spread * np.random.default_rng(1).normal(size=(100, 20))
    values = jax.vmap(free)(jnp.asarray(near, float))
    assert (values <= 1e-5).all()
    assert (values > -1e-2).any()


def test_obstacles_leave_start_and_goal_free():
    obstacles = np.asarray(high.rover(10).obstacles)
    for end in (high.START, high.GOAL):
        assert (abs(obstacles - end).max(axis=1) > high.HALF_EDGE).all()


def test_penalties_give_the_coefficients_of_scikit_learn():
    task = high.lasso(20)
    assert task.dim == 20
    # The same sums of squares and products from a square root of the first.
    values, vectors = np.linalg.eigh(np.asarray(task.gram, np.float64))
    root = np.sqrt(values.clip(0))[:, None] * vectors.T * np.sqrt(20)
    target = np.linalg.lstsq(root.T, 20 * np.asarray(task.products, np.float64), rcond=None)[0]
    x = np.random.default_rng(0).uniform(0.4, 1.0, 20)
    penalties = np.asarray(task.penalties(jnp.asarray(x, float)), np.float64)
    model = Lasso(1.0, fit_intercept=False, tol=1e-10, max_iter=100_000)
    theirs = model.fit(root / penalties, target).coef_ / penalties
    ours = np.asarray(task.fit(jnp.asarray(penalties, float)))
    assert (theirs == 0).any()
    assert (theirs != 0).any()
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_the_largest_penalties_leave_no_coefficient_and_known_features_help():
    task = high.lasso(60)
    truth, covariance = np.asarray(task.coefficients), np.asarray(task.covariance)
    assert (truth != 0).sum() == 3
    none = float(task(jnp.ones(60)))
    assert -none == pytest.approx(truth @ covariance @ truth, rel=1e-4)
    known = float(task(jnp.asarray(np.where(truth != 0, 0.0, 1.0), float)))
    assert none < 10 * known < 0
