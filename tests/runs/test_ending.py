"""Runs that end early: the reasons, how they go on, and that nothing that was observed is lost."""

import itertools
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Context, Integer, Ordinal, Real
from jaxbo.domains.space import Space
from jaxbo.runs._exhausted import count_of, nothing_left, points_of
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.driver import replay
from tests.runs.driven import MODEL, RANDOM, Counting, bowl, environment, quiet
from tests.walk import Stroll

# ---------------------------------------------------------------- stop and deadline


def equal(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in leaves)


def after(rows):
    return lambda known: len(known.values) >= rows


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_run_that_is_stopped_has_the_first_rows_of_a_longer_one_and_goes_on(rows, path, key):
    state, whole = quiet(RANDOM, bowl, 4, key, initial=2)
    stopped_state, trace = quiet(RANDOM, bowl, 4, key, initial=2, stop=after(rows), checkpoint=path)
    np.testing.assert_array_equal(trace.queries, whole.queries[:rows])
    np.testing.assert_array_equal(trace.values, whole.values[:rows])
    assert trace.initial == min(rows, 2)
    assert equal(stopped_state, replay(RANDOM, trace, key))
    counting = Counting()
    again_state, again = quiet(RANDOM, counting, 4, key, initial=2, checkpoint=path)
    assert len(counting.calls) == 3 * (6 - rows)
    np.testing.assert_array_equal(again.values, whole.values)
    assert equal(again_state, state)


def test_a_run_that_goes_on_is_asked_of_what_it_has_and_stops_at_once(path, key):
    quiet(RANDOM, bowl, 4, key, stop=after(2), checkpoint=path)
    counting, lengths = Counting(), []
    stop = lambda trace: lengths.append(len(trace.values)) or len(trace.values) >= 2  # noqa: E731
    _, trace = quiet(RANDOM, counting, 4, key, stop=stop, checkpoint=path)
    assert counting.calls == []
    assert lengths == [1, 2]  # the second row is in the journal
    assert len(trace.values) == 2


def test_workers_are_stopped_by_a_function_of_the_desk_and_go_on(path, key):
    whole = drive_async(MODEL, bowl, 4, key, progress=False)
    stopped = drive_async(MODEL, bowl, 4, key, stop=after(2), checkpoint=path, progress=False)
    np.testing.assert_array_equal(stopped.values, whole.values[:2])
    again = drive_async(MODEL, bowl, 4, key, checkpoint=path, progress=False)
    np.testing.assert_array_equal(again.values, whole.values)


def test_what_is_under_way_when_workers_are_stopped_is_kept(path, key):
    together = threading.Barrier(2, timeout=60)

    def objective(worker, x):
        together.wait()
        time.sleep(0.3 * worker)
        return bowl(worker, x)

    with ThreadPoolExecutor(2) as pool:
        desk = drive_async(MODEL, objective, 4, key, executor=pool, stop=after(1), progress=False)
    assert desk.told == 2
    assert desk.out == ()


@pytest.mark.parametrize("way", ["drive", "drive_async"])
def test_after_the_deadline_nothing_begins_and_what_is_under_way_is_kept(way, path, key, caplog):
    calls = []

    def objective(agent, x):
        calls.append(agent)
        time.sleep(0.3)
        return bowl(agent, x)

    def go(objective, **more):
        if way == "drive":
            return quiet(RANDOM, objective, 3, key, checkpoint=path, **more)[1]
        return drive_async(MODEL, objective, 3, key, checkpoint=path, progress=False, **more)

    stopped = go(objective, deadline=0.2)
    assert "its deadline of 0.2 seconds has passed" in caplog.text
    begun = len(calls)
    assert begun <= 1
    counting = Counting()
    again = go(counting)
    assert len(counting.calls) == again.values.size - begun
    assert stopped.values.size <= begun


def test_without_a_file_the_row_ends_so_that_no_value_is_lost(key):
    def objective(agent, x):
        time.sleep(0.2)
        return bowl(agent, x)

    quiet(RANDOM, bowl, 1, key)  # compiled
    _, trace = quiet(RANDOM, objective, 3, key, deadline=0.3)
    assert trace.values.shape[0] <= 1
    assert np.isfinite(trace.values).all()


@pytest.mark.parametrize(("name", "wrong"), [("deadline", 0), ("deadline", "1h"), ("stop", 3)])
@pytest.mark.usefixtures("as_users_have_it")
def test_a_wrong_end_is_refused_by_name(name, wrong, key):
    with pytest.raises(ValueError, match=f"{name} must be"):
        quiet(RANDOM, bowl, 1, key, **{name: wrong})
    with pytest.raises(ValueError, match=f"{name} must be"):
        drive_async(MODEL, bowl, 1, key, **{name: wrong})


def test_an_error_of_a_rule_says_that_it_was_given_as_stop(key):
    for loop, algorithm in ((quiet, RANDOM), (drive_async, MODEL)):
        with pytest.raises(ValueError, match="ambiguous") as caught:
            loop(algorithm, bowl, 2, key, stop=lambda known: np.zeros(2) > 0)
        assert any("given as stop" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------- an interrupt at the keyboard

INTERRUPTED = """
    import os, signal, sys, time
    import jax.random as jr
    import numpy as np
    import jaxbo
    from tests.walk import Stroll

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in the background
    calls = []

    def objective(agent, x):
        calls.append(agent)
        if len(calls) == 2:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.5)
        return float(-np.sum((x - 0.1) ** 2))

    def drive(path):
        method = jaxbo.RandomSearch(jaxbo.Cube(2), 3)
        options = {"checkpoint": path, "progress": False}
        return jaxbo.drive(method, objective, 2, jr.key(0), **options)[1].values.shape

    def drive_async(path):
        method, options = Stroll(jaxbo.Cube(1), 2), {"checkpoint": path, "progress": False}
        return jaxbo.drive_async(method, objective, 4, jr.key(0), **options).values.shape

    for go in (drive, drive_async):
        for times in (1, 2):
            calls.clear()
            path = f"{sys.argv[1]}-{go.__name__}-{times}"
            try:
                print("returned", go(path), len(calls))
            except KeyboardInterrupt:
                print("raised", len(calls))
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            print("then", go(path), len(calls))
            print("so much for", times, file=sys.stderr)
"""


@pytest.mark.slow
def test_an_interrupt_ends_a_run_after_what_is_under_way_and_a_second_at_once(path):
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout.splitlines() == [
        *("returned (0, 3) 2", "then (2, 3) 6", "raised 2", "then (2, 3) 7"),
        *("returned (2,) 2", "then (4,) 4", "raised 2", "then (4,) 5"),
    ]
    said = done.stderr.split("so much for")
    told = ["it was interrupted" in text for text in said]
    assert told == [True, False, True, False, False]


def test_a_handler_of_interrupts_that_is_the_users_own_stays(key):
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGINT, mine)
    try:
        quiet(RANDOM, lambda x: _same(mine), 1, key)
    finally:
        signal.signal(signal.SIGINT, before)


def _same(handler):
    assert signal.getsignal(signal.SIGINT) is handler
    return 0.0


def test_a_run_in_another_thread_leaves_interrupts_alone(key):
    with ThreadPoolExecutor(1) as pool:
        before = signal.getsignal(signal.SIGINT)
        _, trace = pool.submit(quiet, RANDOM, lambda x: _same(before), 1, key).result()
    assert (trace.values == 0).all()


HEARD = """
    import os, signal, sys, time
    from concurrent.futures import ThreadPoolExecutor
    import jax.random as jr
    import numpy as np
    import jaxbo
    from tests.walk import Stroll

    signal.signal(signal.SIGINT, signal.default_int_handler)
    raised = []

    def objective(worker, x):
        if not raised:
            raised.append(worker)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            raise KeyboardInterrupt
        return float(-np.sum((x - 0.1) ** 2))

    model = Stroll(jaxbo.Cube(1), 2)
    options = {"checkpoint": sys.argv[1], "progress": False}
    with ThreadPoolExecutor(1) as pool:
        desk = jaxbo.drive_async(model, objective, 3, jr.key(0), executor=pool, **options)
        again = jaxbo.drive_async(model, objective, 3, jr.key(0), executor=pool, **options)
    print(desk.failures, again.told, np.isfinite(again.values).all())
"""


@pytest.mark.slow
def test_workers_who_hear_of_the_interrupt_leave_their_queries_open(path):
    """As processes of a terminal do: their evaluations have neither failed nor succeeded."""
    command = [sys.executable, "-c", textwrap.dedent(HEARD), str(path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout.split() == ["()", "3", "True"]


# ---------------------------------------------------------------- nothing left to ask

FOUR = Finite(jnp.linspace(0, 1, 4)[:, None])


def test_a_run_that_knows_every_point_and_sees_no_noise_ends_and_says_so(key, caplog):
    _, trace = quiet(RandomSearch(FOUR, 2), lambda x: float(x[0]), 200, key)
    assert 4 < len(trace.values) < 200
    for agent in range(2):
        assert len(np.unique(trace.queries[:, agent])) == 4
    assert "all 4 points of the domain are known" in caplog.text


def test_with_noise_a_run_goes_on(key):
    counter = itertools.count()
    _, trace = quiet(RandomSearch(FOUR, 2), lambda x: float(next(counter)), 30, key)
    assert len(trace.values) == 30


@pytest.mark.slow
def test_workers_who_know_every_point_end(key):
    space = Space(layers=Integer(1, 2), act=Categorical("relu", "tanh"))
    model = Stroll(space, 2)
    desk = drive_async(model, lambda p: float(p["layers"]), 30, key, progress=False)
    assert 4 < desk.told < 30
    _, trace = quiet(model, lambda p: float(p["layers"]), 15, key)
    assert 2 < len(trace.values) < 15


def test_a_compiled_objective_has_the_trace_of_run_to_its_last_round(key):
    _, trace = quiet(RandomSearch(FOUR, 2), lambda key, agent, x: x[0], 30, key)
    assert len(trace.values) == 30


@pytest.mark.parametrize(
    ("domain", "count"),
    [
        (Cube(2), None),
        (Finite(np.asarray([[0.0], [0.5], [0.5]])), 2),
        (Space(a=Real(0, 1), b=Integer(1, 3)), None),
        (Space(a=Real(2.0, 2.0), b=Integer(1, 3), c=Categorical("x", "y")), 6),
        (Space(b=Integer(1, 1024, log=True)), 1024),
    ],
)
def test_points_are_counted(domain, count):
    assert count_of(domain) == count


#: Spaces with conditions ask their functions of many points, so they are made when they are used.
PARTS = {
    "a branch": (lambda: Space(m=Categorical("a", "b"), k=Integer(1, 2).when(m="b")), 3),
    "two branches": (
        lambda: Space(
            m=Categorical("a", "b", "c"),
            k=Integer(1, 4, log=True).when(m="b"),
            o=Ordinal(16, 32, 64).when(m=["a", "c"]),
            r=Real(2.0, 2.0),
        ),
        10,
    ),
    "where": (lambda: Space(m=Integer(1, 4), where=lambda p: p["m"] < 3), 2),
    "a compiled where": (lambda: Space(m=Integer(1, 4), where=jax.jit(lambda p: p["m"] < 3)), 2),
    "both": (
        lambda: Space(
            m=Categorical("a", "b"),
            k=Integer(1, 3).when(m="b"),
            where=lambda p: p.get("k", 1) != 2,
        ),
        3,
    ),
    "a context": (lambda: Space(c=Context(Integer(1, 3)), m=Integer(1, 4)).at({"c": 2}), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_of_branches_and_of_what_where_allows_points_alone_are_counted(name):
    made, count = PARTS[name]
    space = made()
    most = count_of(space)
    assert most is not None
    assert most > count == points_of(space, most)
    drawn = np.unique(np.asarray(space.sample(jr.key(0), 256)), axis=0)
    assert len(drawn) == count
    repeated = np.concatenate([drawn, *[drawn[:1]] * (most + 1 - count)])[:, None]
    assert nothing_left(space, repeated, np.ones(repeated.shape[:2])) is not None
    assert nothing_left(space, repeated[1:], np.ones((most, 1))) is None
    assert nothing_left(space, repeated[:1].repeat(most + 1, 0), np.ones((most + 1, 1))) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a branch", "where"])
def test_a_run_over_parts_of_a_space_ends_where_nothing_is_left(name, key, caplog):
    made, count = PARTS[name]
    space = made()
    _, trace = quiet(RandomSearch(space), lambda p: float(len(p)), 100, key)
    assert len(trace.values) < 100
    assert f"all {count} points of the domain are known" in caplog.text


@pytest.mark.slow
def test_too_many_combinations_are_not_looked_at():
    space = Space(a=Integer(1, 100), b=Integer(1, 100), where=lambda p: p["a"] < 3)
    assert points_of(space, 10_000) is None


def test_nothing_is_left_where_all_agents_know_all_and_a_repetition_said_the_same():
    queries = np.asarray([[0.0], [1 / 3], [2 / 3], [1.0], [0.0]])[:, None]
    domain = Finite(queries[:4, 0])
    values = np.asarray([1.0, np.nan, 3.0, 4.0, 1.0])[:, None]
    assert nothing_left(domain, queries, values) is not None
    assert nothing_left(domain, queries[:4], values[:4]) is None
    noisy = values.copy()
    noisy[-1] = 1.1
    assert nothing_left(domain, queries, noisy) is None
    other = queries.copy()
    other[1] = 0.0
    two = np.concatenate([queries, other], axis=1), np.concatenate([values, values], axis=1)
    assert nothing_left(domain, *two) is None


def test_results_that_are_known_count_whatever_agents_have_fewer_of_them():
    queries = np.tile(np.asarray(FOUR.points)[[0, 1, 2, 3, 0]][:, None], (1, 2, 1))
    values = queries[..., 0].copy()
    assert nothing_left(FOUR, queries, values) is not None
    # The second agent brings a result less, and has asked nothing again.
    queries[0, 1], values[0, 1] = np.nan, np.nan
    assert nothing_left(FOUR, queries, values) is None
    # Now it brings three results less, and has two points only.
    queries[:3, 1], values[:3, 1] = np.nan, np.nan
    assert nothing_left(FOUR, queries, values) is None
    more = [np.concatenate([queries, np.tile(np.asarray(FOUR.points)[:, None], (1, 2, 1))])]
    assert nothing_left(FOUR, more[0], np.concatenate([values, more[0][5:, :, 0]])) is not None
