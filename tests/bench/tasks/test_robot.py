"""The physics against a reference's figures; goals, noise and what the coordinates stand for."""

import math
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from bench.tasks import robot
from bench.tasks.robot import Pushing, facing, goals, push

with warnings.catch_warnings():
    # As errors, the package's own deprecations crash the interpreter.
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("Box2D")

STILL = np.zeros(2)


@pytest.mark.parametrize(
    ("start", "duration", "stop"),
    [
        ((3.0, 2.0), 15.0, (-2.497839, -1.665226)),
        ((-1.0, 4.0), 30.0, (1.751997, -7.007990)),
        ((0.5, 0.5), 10.0, (-2.318947, -2.318947)),  # the hand starts inside of the object
    ],
)
def test_the_object_stops_where_it_does_in_the_original(start, duration, stop):
    found = push(start, duration, facing(*start), robot.SPEEDS[3], STILL)
    # Another order of the same operations in single precision errs by 6e-6.
    np.testing.assert_allclose(found, stop, atol=1e-5)


@pytest.mark.parametrize(
    ("angle", "stop"), [(0.6, (-9.024352, -6.016407)), (2.0, (-7.801690, -3.743132))]
)
def test_in_four_dimensions_the_hand_is_turned_and_faster(angle, stop):
    found = push((3.0, 2.0), 15.0, angle, robot.SPEEDS[4], STILL)
    np.testing.assert_allclose(found, stop, atol=1e-5)


def at(*values: float) -> np.ndarray:
    """The point of the cube for rx, ry, t and, in 4-D, the angle."""
    lowest, width = np.array([-5, -5, 1, 0]), np.array([10, 10, 29, 2 * math.pi])
    return (np.array(values) - lowest[: len(values)]) / width[: len(values)]


@pytest.mark.parametrize(
    ("x", "stop"),
    [
        # A hair longer than 15: int(10 t) is 150, not 149.
        (at(3, 2, 15.001), (-2.497839, -1.665226)),
        (at(3, 2, 15.001, 2.0), (-7.801690, -3.743132)),
    ],
)
def test_the_value_is_minus_the_distance_to_the_agents_goal(x, stop):
    objective = Pushing(len(x), clean=True, seed=0, goals=3)
    expected = [-math.dist(stop, goal) for goal in goals(3)]
    np.testing.assert_allclose([objective(n, x) for n in range(10)], expected, atol=1e-4)


def test_goals_are_drawn_from_the_square():
    many = np.concatenate([goals(seed) for seed in range(50)])
    assert many.shape == (500, 2)
    assert (np.abs(many) <= 5).all()
    assert (many.min(axis=0) < -4.8).all()
    assert (many.max(axis=0) > 4.8).all()
    np.testing.assert_array_equal(goals(7), many[70:80])


def test_noise_is_drawn_once_an_evaluation_and_has_the_originals_spread(monkeypatch):
    monkeypatch.setattr(robot, "goals", lambda seed: np.full((400, 2), (-2.0, -1.0)))
    x, clean = at(3, 2, 15.001), Pushing(3, clean=True, seed=0)
    assert clean(0, x) == pytest.approx(-0.830885, abs=1e-5)
    noisy = [Pushing(3, clean=False, seed=1)(agent, x) for agent in range(400)]
    assert np.std(noisy) == pytest.approx(0.13, abs=0.02)
    # Drawn at every step, it would mostly cancel out.
    assert np.mean(noisy) == pytest.approx(clean(0, x), abs=0.03)


def test_an_evaluation_is_the_same_in_any_order_and_in_another_process():
    objective = Pushing(4, clean=False, seed=5)
    points = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    here = [objective(agent, x) for agent, x in enumerate(points)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        there = list(executor.map(objective, (2, 1, 0), points[::-1]))
    assert there[::-1] == here
    assert pickle.loads(pickle.dumps(objective)) == objective
    assert Pushing(4, clean=False, seed=6)(0, points[0]) != here[0]


def test_the_noise_of_points_and_of_agents_is_independent(monkeypatch):
    monkeypatch.setattr(robot, "goals", lambda seed: np.full((2, 2), (-2.0, -1.0)))
    objective, x = Pushing(3, clean=False, seed=0), at(3, 2, 15.001)
    beside = np.nextafter(x, 1)
    assert abs(objective(0, x) - objective(0, beside)) > 1e-3
    assert abs(objective(0, x) - objective(1, x)) > 1e-3


def test_where_the_original_divides_by_zero_there_is_a_limit():
    assert facing(0.0, 2.0) == math.pi / 2
    assert facing(0.0, -2.0) == -math.pi / 2
    assert facing(-1.0, 4.0) == pytest.approx(math.atan(-4))
    beside = push((1e-6, 4.0), 20.0, facing(1e-6, 4.0), 5.0, STILL)
    np.testing.assert_allclose(
        push((0.0, 4.0), 20.0, facing(0.0, 4.0), 5.0, STILL), beside, atol=0.01
    )
    # The center of the cube, where many a design begins.
    assert math.isfinite(Pushing(3, clean=False, seed=0)(0, np.full(3, 0.5)))


def test_a_push_has_three_or_four_coordinates():
    with pytest.raises(ValueError, match=r"3 or 4 coordinates, got 2"):
        Pushing(2, clean=True, seed=0)
    with pytest.raises(ValueError, match=r"expected \(3,\)"):
        Pushing(3, clean=True, seed=0)(0, np.full(4, 0.5))


def test_where_warnings_are_errors_the_engine_is_loaded_all_the_same():
    # In a process of its own: otherwise this one would crash, and has loaded it already.
    push = "push((3.0, 2.0), 1.0, 0.0, 5.0, numpy.zeros(2))"
    code = f"import numpy; from bench.tasks.robot import push; print({push})"
    command = [sys.executable, "-W", "error", "-c", code]
    root = Path(robot.__file__).parents[2]
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def test_without_the_engine_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(ImportError, match="pip install box2d"):
        Pushing(3, clean=True, seed=0)(0, np.full(3, 0.4))
