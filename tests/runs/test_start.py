"""What a run begins with: results from before, and points that are asked first."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.algorithm import IN_ROUND
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs import _steps
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive, replay
from tests import stepped
from tests.walk import Stroll

quiet = functools.partial(drive, progress=False)
KEY = jr.key(0)
SPACE = Space(rate=Real(1e-3, 1.0, log=True), kind=Categorical("a", "b"))
ROWS = [
    {"agent": 0, "rate": 0.1, "kind": "a", "value": 5.0},
    {"agent": 0, "rate": 0.2, "kind": "b", "value": None},
    {"agent": 1, "rate": 1.0, "kind": "b", "value": 7.0},
]
AGENTS = TS(SPACE, 2, Fixed(size=4), candidates=8)
WORKERS = Stroll(Cube(1), 2, Fixed(size=4, capacity=12))
ONE = Stroll(Cube(1), 1, Fixed(size=4, capacity=12))
POINTS, VALUES = [[0.2], [0.4], [0.9]], [1.0, 2.0, np.nan]


def rate(agent, p):
    return p["rate"]


def first_coordinate(worker, x):
    return float(x[0])


def equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- in rounds


def test_what_is_known_is_told_before_anything_is_asked():
    state, trace = quiet(AGENTS, rate, 0, KEY, known=ROWS)
    assert trace.queries.shape == (0, 2, SPACE.dim)
    assert state.told.tolist() == [1, 1]
    assert state.origin.value.tolist() == [5, 7]
    start = stepped.init(AGENTS, jr.split(KEY, 3)[0])
    by_hand = AGENTS.warm_start(
        start, [{**row, "value": None if row["value"] is None else 0} for row in ROWS]
    )
    np.testing.assert_allclose(
        state.clients.posterior.mean, by_hand.clients.posterior.mean, atol=1e-6
    )


@pytest.mark.slow
def test_a_run_with_known_results_is_replayed_and_resumed(path):
    go = functools.partial(quiet, AGENTS, rate, key=KEY, initial=1, known=ROWS)
    go(rounds=1, checkpoint=path)
    state, trace = go(rounds=2, checkpoint=path)
    whole_state, whole = go(rounds=2)
    np.testing.assert_array_equal(trace.queries, whole.queries)
    equal(state, whole_state)
    equal(state, replay(AGENTS, trace, KEY, known=ROWS))
    with pytest.raises(CheckpointError, match="another known"):
        quiet(AGENTS, rate, 2, KEY, initial=1, known=ROWS[:2], checkpoint=path)
    with pytest.raises(CheckpointError, match="another first"):
        go(rounds=2, checkpoint=path, first=[{"rate": 0.1, "kind": "a"}])


@pytest.mark.slow
def test_known_results_leave_the_design_as_it_is_and_change_what_is_asked():
    trace = quiet(AGENTS, rate, 1, KEY, initial=1)[1]
    known = quiet(AGENTS, rate, 1, KEY, initial=1, known=ROWS)[1]
    np.testing.assert_array_equal(trace.queries[0], known.queries[0])
    assert (np.asarray(trace.queries[1]) != np.asarray(known.queries[1])).any()


def test_values_of_before_keep_their_digits():
    offset = [
        {**row, "value": None if row["value"] is None else row["value"] + 1e8} for row in ROWS
    ]
    shifted = quiet(AGENTS, lambda a, p: rate(a, p) + 1e8, 2, KEY, known=offset)[1]
    plain = quiet(AGENTS, rate, 2, KEY, known=ROWS)[1]
    np.testing.assert_allclose(shifted.queries, plain.queries, atol=1e-3)


@pytest.mark.slow
def test_agents_that_are_not_asked_bring_what_they_know():
    own = Fitted(8, size=4, refit_every=None, inference=Exact())
    points = Finite(np.linspace(0, 1, 11)[:, None])
    method = RGPE(points, 2, own, features=Fixed(size=4), targets=1)
    rows = [{"agent": 1, "x0": x, "value": 1e8 + x} for x in (0.1, 0.5, 0.9)]
    state, trace = quiet(method, first_coordinate, 1, KEY, known=rows)
    assert state.clients.beliefs.message.posterior.count.tolist() == [1, 3]
    assert trace.values.shape == (1, 1)
    # In float32 the values themselves would all be equal.
    squares = state.clients.beliefs.message.moments.squares
    assert float(squares[1]) == pytest.approx(0.32, abs=1e-5)


@pytest.mark.slow
def test_points_are_asked_first_and_count_as_initial():
    guesses = [{"rate": 0.5, "kind": "b"}, {"rate": 0.01, "kind": "a"}]
    state, trace = quiet(AGENTS, rate, 1, KEY, initial=1, first=guesses)
    assert trace.initial == 3
    for row, guess in enumerate(guesses):
        for agent in range(2):
            np.testing.assert_array_equal(trace.queries[row, agent], SPACE.encode(guess))
    plain = quiet(AGENTS, rate, 1, KEY, initial=1)[1]
    np.testing.assert_array_equal(trace.queries[2], plain.queries[0])
    equal(state, replay(AGENTS, trace, KEY))


@pytest.mark.slow
def test_workers_share_the_points_that_are_asked_first():
    _, trace = quiet(WORKERS, first_coordinate, 1, KEY, initial=1, first=POINTS)
    plain = quiet(WORKERS, first_coordinate, 1, KEY, initial=1)[1]
    np.testing.assert_allclose(trace.queries[:2].ravel()[:3], np.ravel(POINTS))
    np.testing.assert_array_equal(trace.queries[2], plain.queries[0])
    assert trace.initial == 3
    assert len(np.unique(trace.queries[:3])) == 6


def test_a_method_that_learns_nothing_can_be_asked_points_first():
    method = RandomSearch(Cube(1), 2)
    _, trace = quiet(method, first_coordinate, 1, KEY, first=POINTS)
    np.testing.assert_allclose(trace.queries[:3, 1], POINTS)
    np.testing.assert_array_equal(
        trace.queries[3], quiet(method, first_coordinate, 1, KEY)[1].queries[0]
    )


def never(agent, x):
    raise AssertionError("nothing is to be evaluated")


WRONG = {
    "no model": (RandomSearch(Cube(1)), {"known": (POINTS, VALUES)}, "learns nothing"),
    "no room": (
        TS(Cube(1), 1, Fixed(size=4, capacity=4)),
        {"known": (POINTS, VALUES)},
        r"after 3 observations, exceed .* write surrogate=Fixed\(…, capacity=5\)",
    ),
    "no room for who brings most": (
        TS(SPACE, 2, Fixed(size=4, capacity=3)),
        {"known": ROWS},
        "after 2 observations, exceed",
    ),
    "no room for workers": (WORKERS, {"known": (np.full((9, 1), 0.5), np.ones(9))}, "capacity=14"),
    "outside": (WORKERS, {"known": ([[2.0]], [1.0])}, "known: .* outside of the domain"),
    "no values": (WORKERS, {"known": [{"x0": 0.5}]}, "known: result 0 has no 'value'"),
    "of another shape": (WORKERS, {"known": ([[0.5, 0.5]], [1.0])}, "known: expected points"),
    "first outside": (WORKERS, {"first": [[2.0]]}, "outside of the domain"),
    "first that are none": (WORKERS, {"first": 3}, "points must be"),
    "a state of before": (
        ONE,
        {"known": (POINTS, VALUES), "state": "after a round"},
        "come before the first round",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_evaluated(name):
    method, options, message = WRONG[name]
    if "state" in options:
        state = quiet(method, first_coordinate, 1, KEY)[0]
        options = {**options, "state": state}
    with pytest.raises(ValueError, match=message):
        quiet(method, never, 2, KEY, **options)


# ---------------------------------------------------------------- a desk


def answered(desk, count):
    for _ in range(count):
        number, x = desk.ask()
        desk.tell(number, float(x[0]))


@pytest.mark.slow
@pytest.mark.parametrize("initial", [0, 2])
def test_a_desk_knows_what_drive_knows(initial):
    one = ONE
    desk = Desk(one, KEY, initial=initial, known=(POINTS, VALUES), first=[[0.7]])
    answered(desk, initial + 3)
    state, trace = quiet(
        one, first_coordinate, 2, KEY, initial=initial, known=(POINTS, VALUES), first=[[0.7]]
    )
    assert desk.told == 3 + initial + 3
    assert desk.answered == initial + 3
    np.testing.assert_array_equal(desk.queries[3:], trace.queries[:, 0])
    np.testing.assert_array_equal(desk.values[:3], VALUES)
    equal(desk.state, state)
    assert desk.best[1] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("initial", [0, 2])
def test_a_desk_with_known_and_new_results_is_resumed(initial, tmp_path):
    make = functools.partial(
        Desk, WORKERS, KEY, initial=initial, known=(POINTS, VALUES), checkpoint=tmp_path / "desk"
    )
    with make() as desk:
        answered(desk, 1)
        assert desk.tell_new([0.25], 3.5) == 4
        answered(desk, 1)
        desk.tell_new(jnp.asarray([0.75]), 1.5)
        answered(desk, 1)
        open_ = desk.ask()
        state, values, queries = desk.state, desk.values, desk.queries
    with make() as again:
        equal(again.state, state)
        np.testing.assert_array_equal(again.values, values)
        np.testing.assert_array_equal(again.queries, queries)
        assert again.ask().number == open_.number
        assert again.best == ([0.25], 3.5)


def test_new_results_change_neither_the_design_nor_the_keys_of_queries():
    method = ONE
    plain, told = (Desk(method, KEY, initial=2) for _ in range(2))
    told.tell_new([0.3], 1.0)
    for desk in (plain, told):
        answered(desk, 2)
    np.testing.assert_array_equal(plain.queries, told.queries[1:])
    expected = Desk(method, KEY, known=([[0.3]], [1.0]), first=plain.queries)
    answered(expected, 2)
    np.testing.assert_array_equal(told.ask().x, expected.ask().x)


def test_a_new_result_that_is_wrong_changes_nothing():
    desk = Desk(Stroll(SPACE, 1, Fixed(size=4, capacity=2)), KEY)
    for x, value, message in (
        ({"rate": 2.0, "kind": "a"}, 1.0, "point 0: parameter 'rate'"),
        ({"rate": 0.5}, 1.0, "missing parameters"),
        ({"rate": 0.5, "kind": "a"}, "high", "one real number"),
    ):
        with pytest.raises(ValueError, match=message):
            desk.tell_new(x, value)
    assert desk.told == 0
    assert desk.out == ()
    with pytest.warns(RuntimeWarning, match="query 0 failed"):
        desk.tell_new({"rate": 0.5, "kind": "a"}, np.nan)
    desk.tell_new({"rate": 0.1, "kind": "a"}, 2.0)
    with pytest.raises(ValueError, match=r"capacity of 2 is used up: write .*capacity=3"):
        desk.tell_new({"rate": 0.1, "kind": "b"}, 2.0)
    assert desk.values.tolist()[1:] == [2.0]
    assert [failure.row for failure in desk.failures] == [0]


def test_asynchronous_workers_know_what_was_known(tmp_path):
    def go(evaluations):
        with ThreadPoolExecutor(2) as pool:
            return drive_async(
                WORKERS,
                first_coordinate,
                evaluations,
                KEY,
                executor=pool,
                initial=1,
                known=(POINTS, VALUES),
                first=[[0.6]],
                checkpoint=tmp_path / "run",
            )

    assert go(2).told == 3 + 1 + 1 + 2
    desk = go(3)
    assert desk.answered == 5
    np.testing.assert_allclose(desk.queries[:3], POINTS)
    assert np.isclose(desk.values, 0.6).any()


@pytest.mark.slow
@pytest.mark.parametrize("loop", [drive, drive_async])
def test_failures_in_one_place_after_known_results_do_not_end_a_run(loop):
    """The model may go to a place where evaluations fail, as no design has been before."""
    calls, points = [], np.linspace(0, 1, 8)[:, None]

    def flaky(x):
        calls.append(x)
        if len(calls) <= failing:
            raise OSError("full")
        return 1.0

    go = lambda: loop(  # noqa: E731
        Stroll(Cube(1), 1, Fixed(size=4, capacity=20)), flaky, 9, KEY,
        known=(points, points[:, 0]), progress=False,
    )  # fmt: skip
    failing = 7
    with pytest.warns(RuntimeWarning, match="failed"):
        go()
    assert len(calls) == 9
    failing = 100
    calls.clear()
    with pytest.warns(RuntimeWarning, match="failed"), pytest.raises(OSError, match="full"):
        go()
    assert len(calls) == 8


@pytest.mark.slow
def test_an_objective_that_never_succeeds_is_raised_though_much_is_known():
    with ThreadPoolExecutor(2) as pool, pytest.warns(RuntimeWarning), pytest.raises(AssertionError):
        drive_async(WORKERS, never, 5, KEY, executor=pool, known=(POINTS, VALUES))


def test_rows_before_the_first_round_are_told_as_such_and_the_last_of_them_as_the_last():
    stages = [tuple(map(bool, _steps.stage(row, 3))) for row in range(5)]
    before, last = (True, False), (True, True)
    assert stages == [before, before, last, (False, False), (False, False)]
    assert _steps.stage(2, 0) is IN_ROUND
