"""The loop: one program, or the same parts around a Python objective that may fail or be killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo

OPTIMA = np.linspace(0.2, 0.8, 4)
ROUNDS, INITIAL = 5, 2


def objective(agent, x):
    return -float(np.sum((x - OPTIMA[agent]) ** 2))


def compiled(key, agent, x):
    del key
    return -jnp.sum((x - jnp.asarray(OPTIMA, x.dtype)[agent]) ** 2)


def method(**options):
    return jaxbo.TS(jaxbo.Cube(2), 4, jaxbo.Fixed(size=20), 50, **options)


def go(f=objective, rounds=ROUNDS, seed=0, algorithm=None, **options):
    algorithm = method() if algorithm is None else algorithm
    return jaxbo.drive(
        algorithm, f, rounds, jr.key(seed), initial=INITIAL, progress=False, **options
    )


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a.queries), np.asarray(b.queries))
    np.testing.assert_array_equal(np.asarray(a.values), np.asarray(b.values))


class Counting:
    """An objective that counts its evaluations and fails where it is told to."""

    def __init__(self, fails=lambda row, agent: False):
        self.calls, self.fails = [], fails

    def __call__(self, agent, x):
        self.calls.append(agent)
        if self.fails((len(self.calls) - 1) // 4, agent):
            raise RuntimeError("out of memory")
        return objective(agent, x)


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_gives_the_trace_of_one_evaluation_after_the_other(pool):
    options = {} if pool is ThreadPoolExecutor else {"mp_context": _spawn()}
    with pool(2, **options) as executor:
        same(go(executor=executor)[1], go()[1])


def _spawn():
    import multiprocessing

    return multiprocessing.get_context("spawn")


def test_the_initial_design_is_the_same_for_every_method_under_one_key():
    _, a = jaxbo.run(method(), compiled, 1, jr.key(1), initial=3)
    _, b = jaxbo.run(jaxbo.RandomSearch(jaxbo.Cube(2), 4), compiled, 1, jr.key(1), initial=3)
    np.testing.assert_array_equal(a.queries[:3], b.queries[:3])
    assert (np.asarray(a.queries[3]) != np.asarray(b.queries[3])).any()


def test_a_replayed_state_is_that_of_the_run():
    state, trace = go()
    again = jaxbo.replay(method(), trace, jr.key(0))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_given_state_is_continued():
    algorithm = method()
    queries, values = jnp.full((1, 4, 2), 0.5), jnp.zeros((1, 4))
    state = algorithm.warm_start(algorithm.init(jr.key(0)), queries, values)
    after, _ = jaxbo.run(algorithm, compiled, 2, jr.key(1), state=state)
    assert int(algorithm.told(after)) == 3


def test_no_rounds_give_the_initial_design_alone():
    assert jaxbo.run(method(), compiled, 0, jr.key(0), initial=2)[1].values.shape == (2, 4)
    assert go(rounds=0)[1].values.shape == (INITIAL, 4)


# ---------------------------------------------------------------- failures


def test_failed_evaluations_are_recorded_warned_of_and_survived():
    f = Counting(lambda row, agent: (row, agent) in [(1, 2), (3, 0)])
    with pytest.warns(RuntimeWarning) as warned:
        _, trace = go(f)
    assert [str(w.message).split(" at ")[0] for w in warned] == ["agent 2 failed", "agent 0 failed"]
    assert np.argwhere(np.isnan(trace.values)).tolist() == [[1, 2], [3, 0]]
    assert [(failure.row, failure.agent) for failure in trace.failures] == [(1, 2), (3, 0)]
    assert "out of memory" in trace.failures[0].error


def test_an_objective_that_never_succeeds_raises_its_own_exception_with_agent_and_point():
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(RuntimeError, match="out of memory") as caught,
    ):
        go(Counting(lambda row, agent: True))
    assert "agent 0 at x = [" in caught.value.__notes__[0]


def test_exceptions_that_are_not_caught_are_raised_and_nothing_observed_is_lost(tmp_path):
    path = tmp_path / "run"
    f = Counting(lambda row, agent: (row, agent) == (3, 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        go(f, catch=(), checkpoint=path)
    rest = Counting()
    _, trace = go(rest, checkpoint=path)
    assert len(f.calls) - 1 + len(rest.calls) == 4 * (INITIAL + ROUNDS)
    same(trace, go()[1])


@pytest.mark.parametrize("value", [None, "0.5", np.zeros(2), 1j])
def test_a_value_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match="must return one real number"):
        go(lambda agent, x: value)


def test_an_infinite_value_is_a_failed_evaluation():
    _, trace = go(lambda agent, x: np.inf if agent == 1 else objective(agent, x))
    assert np.isnan(trace.values[:, 1]).all()
    assert np.isfinite(trace.values[:, 0]).all()


# ---------------------------------------------------------------- checkpoints

NIGHT = """
import sys, time, os
import jax.random as jr, jaxbo
sys.path.insert(0, {tests!r})
import test_loop
def f(agent, x):
    with open({log!r}, "a") as file:
        file.write("begun\\n")
    time.sleep(0.05)
    return test_loop.objective(agent, x)
jaxbo.drive(test_loop.method(), f, test_loop.ROUNDS, jr.key(0), initial=test_loop.INITIAL,
            progress=False, checkpoint={path!r})
print("done")
"""


def test_a_run_killed_at_any_moment_goes_on_as_if_undisturbed(tmp_path):
    log, path = tmp_path / "log", tmp_path / "night"
    code = NIGHT.format(tests=os.path.dirname(__file__), log=str(log), path=str(path))
    kills, done = 0, False
    while not done:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        begun = log.read_text().count("begun") if log.exists() else 0
        # Killed in the middle of a row, twice; then left alone.
        while kills < 2 and process.poll() is None:
            if log.exists() and log.read_text().count("begun") >= begun + 5:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        done = "done" in process.communicate()[0]
    assert kills == 2
    evaluations = log.read_text().count("begun")
    assert evaluations <= 4 * (INITIAL + ROUNDS) + kills
    f = Counting()
    same(go(f, checkpoint=path)[1], go()[1])
    assert not f.calls
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "night"]


def test_a_finished_run_goes_on_with_more_rounds(tmp_path):
    go(rounds=2, checkpoint=tmp_path / "run")
    f = Counting()
    same(go(f, checkpoint=tmp_path / "run")[1], go()[1])
    assert len(f.calls) == 4 * (ROUNDS - 2)


def test_failures_are_part_of_the_checkpoint(tmp_path):
    with pytest.warns(RuntimeWarning):
        go(Counting(lambda row, agent: (row, agent) == (1, 2)), checkpoint=tmp_path / "run")
    _, trace = go(checkpoint=tmp_path / "run")
    assert [(failure.row, failure.agent) for failure in trace.failures] == [(1, 2)]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"rounds": 1},
        {"algorithm": jaxbo.RandomSearch(jaxbo.Cube(2), 4)},
    ],
)
def test_a_checkpoint_of_another_run_is_refused_before_any_evaluation(tmp_path, change):
    go(rounds=2, checkpoint=tmp_path / "run")
    f = Counting()
    with pytest.raises(ValueError, match=r"checkpoint|another"):
        go(f, checkpoint=tmp_path / "run", **change)
    assert not f.calls


def test_a_damaged_checkpoint_is_refused_wherever_the_damage_is(tmp_path):
    path = tmp_path / "run"
    go(rounds=2, checkpoint=path)
    whole = path.read_bytes()
    for damaged in [b"", b"no archive", whole[:50], whole[: len(whole) // 2], whole[:-10]]:
        path.write_bytes(damaged)
        with pytest.raises(jaxbo.CheckpointError, match="not a readable checkpoint"):
            go(checkpoint=path)


def test_a_journal_line_that_a_kill_cut_off_costs_that_evaluation_alone(tmp_path):
    path, journal = tmp_path / "run", tmp_path / "run.open"
    with pytest.raises(RuntimeError, match="out of memory"):
        go(Counting(lambda row, agent: (row, agent) == (3, 3)), catch=(), checkpoint=path)
    journal.write_text(journal.read_text().rstrip()[:-5])
    f = Counting()
    same(go(f, checkpoint=path)[1], go()[1])
    assert f.calls[:2] == [2, 3]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("loop", [jaxbo.run, jaxbo.drive])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds must be a whole number"),
        ({"initial": -1}, "initial must be a whole number"),
        ({"present": jnp.ones((3, 4), bool)}, "present must have a row"),
        ({"present": jnp.ones((2, 3), bool)}, "present must say yes or no"),
        ({"state": jaxbo.RandomSearch(jaxbo.Cube(2), 3).init(jr.key(0))}, "state is of another"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_work_starts(loop, options, message):
    f = Counting()
    options = {"rounds": 2, **options}
    with pytest.raises(ValueError, match=message):
        loop(
            method(),
            compiled if loop is jaxbo.run else f,
            options.pop("rounds"),
            jr.key(0),
            **options,
        )
    assert not f.calls


def test_a_capacity_too_small_for_the_rounds_asked_is_refused():
    algorithm = jaxbo.TS(jaxbo.Cube(2), 4, jaxbo.Fixed(size=20, capacity=5), 50)
    with pytest.raises(ValueError, match="capacity of 5"):
        jaxbo.run(algorithm, compiled, 4, jr.key(0), initial=2)


@pytest.mark.parametrize("value", [jnp.zeros(2), 1])
def test_a_compiled_objective_must_return_one_floating_number(value):
    with pytest.raises(ValueError, match="must return one floating number"):
        jaxbo.run(method(), lambda key, agent, x: value, 2, jr.key(0))
