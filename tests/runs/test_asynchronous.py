"""A desk before an executor: busy workers, failures, and what is kept."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.runs._evaluate import NotFiniteError
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.desk import Desk
from tests.runs.one_box import branin, egp, same, stroll


@pytest.mark.slow
def test_values_keep_their_digits_and_the_model_their_differences(tmp_path):
    offset = -54321.0
    total = lambda worker, x: offset + 0.01 * branin(worker, x)  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        options = {"executor": pool, "initial": 3}
        plain = drive_async(egp(), branin, 4, jr.key(1), **options)
        shifted = drive_async(egp(), total, 4, jr.key(1), checkpoint=tmp_path / "desk", **options)
    np.testing.assert_allclose(shifted.queries, plain.queries, atol=1e-2)
    assert shifted.values.dtype == np.float64
    np.testing.assert_allclose(shifted.values - offset, 0.01 * plain.values, rtol=1e-2, atol=1e-3)
    assert shifted.best[1] == shifted.values.max()
    again = Desk(egp(), jr.key(1), initial=3, checkpoint=tmp_path / "desk")
    np.testing.assert_array_equal(again.values, shifted.values)
    assert float(again.state.origin.value) == np.asarray(shifted.values[0], float).astype(
        again.state.origin.value.dtype
    )
    assert jax.tree.all(jax.tree.map(same, again.state.belief, shifted.state.belief))


@pytest.mark.slow
def test_asynchronous_workers_go_on_with_a_larger_capacity(tmp_path):
    def go(evaluations, capacity):
        with ThreadPoolExecutor(2) as pool:
            return drive_async(
                stroll(2, capacity=capacity),
                branin,
                evaluations,
                jr.key(0),
                executor=pool,
                checkpoint=tmp_path / "run",
            )

    before = go(4, 5)
    with pytest.raises(ValueError, match=r"write surrogate=Fixed\(…, capacity=8\)"):
        go(8, 5)
    after = go(8, 8)
    assert after.told == 8
    np.testing.assert_array_equal(after.values[:4], before.values)


def test_room_for_results_from_elsewhere_is_looked_for_before_anything_is_evaluated(tmp_path):
    method = stroll(capacity=6)
    again, asked = {"checkpoint": tmp_path / "run", "progress": False}, []

    def objective(x):
        asked.append(x)
        return float(x[0])

    drive_async(method, objective, 3, jr.key(0), **again)
    with Desk(method, jr.key(0), checkpoint=tmp_path / "run") as desk:
        desk.tell_new([0.5, 0.5], 0.5)
    with pytest.raises(ValueError, match=r"7 evaluations .*capacity of 6: write surrogate=Fixed"):
        drive_async(method, objective, 6, jr.key(0), **again)
    assert len(asked) == 3
    assert drive_async(method, objective, 5, jr.key(0), **again).told == 6


class Busy:
    """Counts how many of its calls run at the same time; every fourth fails."""

    def __init__(self, failing=True):
        self.lock, self.now, self.most, self.calls = threading.Lock(), 0, 0, 0
        self.failing = failing

    def __call__(self, worker, x):
        with self.lock:
            self.calls += 1
            self.now += 1
            self.most = max(self.most, self.now)
            fails = self.failing and self.calls % 4 == 0
        time.sleep(0.02 * (1 + worker))
        with self.lock:
            self.now -= 1
        if fails:
            raise RuntimeError("out of memory")
        return branin(worker, x)


@pytest.mark.slow
def test_workers_of_an_executor_are_kept_busy_and_failures_survived():
    objective = Busy()
    with ThreadPoolExecutor(3) as pool, pytest.warns(RuntimeWarning, match="out of memory"):
        desk = drive_async(stroll(3), objective, 9, jr.key(1), executor=pool, initial=3)
    assert objective.calls == desk.told == 12
    assert objective.most == 3
    assert np.isnan(desk.values).sum() == 3
    assert desk.out == ()


def test_nobody_waits_for_the_slowest():
    others, lock = threading.Event(), threading.Lock()
    began, ended = [], []

    def objective(worker, x):
        with lock:
            first = not began
            began.append(worker)
        if first:  # ends only once the other worker has ended four
            assert others.wait(60)
        with lock:
            ended.append(worker)
            if len(ended) == 4:
                others.set()
        return branin(worker, x)

    with ThreadPoolExecutor(2) as pool:
        desk = drive_async(stroll(2), objective, 7, jr.key(1), executor=pool, initial=3)
    assert np.isfinite(desk.values).all()
    assert len(set(ended[:4])) == 1


@pytest.mark.parametrize("initial", [0, 5])
@pytest.mark.parametrize("raises", [True, False])
def test_an_objective_that_never_succeeds_is_raised(initial, raises):
    calls = []

    def broken(worker, x):
        calls.append(worker)
        if raises:
            raise KeyError("no such file")
        return -np.inf

    with (
        ThreadPoolExecutor(2) as pool,
        pytest.warns(RuntimeWarning),
        pytest.raises((KeyError, NotFiniteError), match=r"no such file|returned -inf") as caught,
    ):
        drive_async(stroll(2), broken, 9, jr.key(1), executor=pool, initial=initial)
    assert "evaluating query" in caught.value.__notes__[0]
    assert max(initial, 3) <= len(calls) <= max(initial, 3) + 2


def test_an_objective_is_mended_and_nothing_of_its_failures_is_kept(tmp_path):
    def go(objective):
        with ThreadPoolExecutor(1) as pool:
            return drive_async(
                stroll(1), objective, 3, jr.key(1), executor=pool, initial=2, checkpoint=path
            )

    def broken(worker, x):
        raise NameError("x1")

    path = tmp_path / "mended"
    with pytest.warns(RuntimeWarning), pytest.raises(NameError, match="x1"):
        go(broken)
    mended = go(branin)
    path = tmp_path / "never broken"
    expected = go(branin)
    assert not jnp.isnan(mended.values).any()
    np.testing.assert_array_equal(mended.queries, expected.queries)
    np.testing.assert_array_equal(mended.values, expected.values)


def test_what_is_not_caught_is_raised_and_the_rest_kept(tmp_path):
    path = tmp_path / "night"

    def fragile(worker, x):
        if worker == 1:
            raise MemoryError
        return branin(worker, x)

    def go(objective):
        with ThreadPoolExecutor(2) as pool:
            return drive_async(
                stroll(2), objective, 6, jr.key(1), executor=pool, checkpoint=path, catch=KeyError
            )

    with pytest.raises(MemoryError):
        go(fragile)
    with Desk(stroll(2), jr.key(1), checkpoint=path) as kept:
        assert kept.told >= 1
    desk = go(branin)
    assert desk.told == 6
    np.testing.assert_array_equal(desk.values[: kept.told], kept.values)


def mistaken(x):
    raise RuntimeError("typo")


def test_results_from_elsewhere_outlive_a_mistake_in_the_objective(tmp_path):
    path, key = tmp_path / "desk", jr.key(2)
    with Desk(stroll(1), key, checkpoint=path) as desk:
        for i in range(3):
            desk.tell_new([i / 10, 0.5], float(i))
        with pytest.warns(RuntimeWarning, match="failed"):
            desk.tell_new([0.9, 0.5], np.nan)
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="typo"):
        drive_async(stroll(1), mistaken, 4, key, checkpoint=path, progress=False)
    again = Desk(stroll(1), key, checkpoint=path)
    np.testing.assert_array_equal(again.values, [0, 1, 2, np.nan])
    assert [failure.row for failure in again.failures] == [3]
    assert again.algorithm.surrogate.count(again.state.belief) == 3


def test_a_failure_from_elsewhere_does_not_make_a_run_hopeless(tmp_path):
    path, key, calls = tmp_path / "desk", jr.key(2), []
    with Desk(stroll(1), key, checkpoint=path) as desk, pytest.warns(RuntimeWarning):
        desk.tell_new([0.1, 0.1], np.nan)

    def flaky(x):
        calls.append(x)
        if 1 < len(calls) < 5:
            raise RuntimeError("flaky")
        return 1.0

    with pytest.warns(RuntimeWarning):
        desk = drive_async(stroll(1), flaky, 5, key, checkpoint=path, progress=False)
    assert desk.answered == 5


def test_an_error_of_a_rule_keeps_what_is_under_way(tmp_path):
    path, key = tmp_path / "desk", jr.key(2)
    begun = threading.Barrier(3)

    def objective(x):
        begun.wait(30)
        return 1.0

    def rule(desk):
        raise ZeroDivisionError

    options = {"stop": rule, "checkpoint": path, "progress": False}
    with ThreadPoolExecutor(3) as pool, pytest.raises(ZeroDivisionError):
        drive_async(stroll(3), objective, 6, key, executor=pool, **options)
    assert Desk(stroll(3), key, checkpoint=path).told == 3
