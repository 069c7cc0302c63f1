"""Numbered queries: handed out one by one, told in any order, and after a kill."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Context, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs._checkpoint import CheckpointError
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive
from tests.runs.one_box import branin, egp, same, stroll
from tests.walk import Stroll

POINTS = Finite(np.random.default_rng(0).random((64, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Thompson(), pytest.param(EI(), marks=pytest.mark.full)])
def test_a_desk_of_one_worker_asks_what_drive_asks(policy):
    refit_every = 4 if isinstance(policy, Thompson) else None
    algorithm = egp(policy=policy, refit_every=refit_every, domain=POINTS)
    _, trace = drive(algorithm, branin, 6, jr.key(1), initial=5, progress=False)
    desk = Desk(algorithm, jr.key(1), initial=5)
    for value in trace.values[:, 0]:
        number, _ = desk.ask()
        desk.tell(number, float(value))
    np.testing.assert_allclose(desk.queries, trace.queries[:, 0], atol=1e-3)
    np.testing.assert_array_equal(desk.values, trace.values[:, 0])


def test_results_are_taken_in_any_order():
    desk = Desk(stroll(4), jr.key(1), initial=3)
    tickets = [desk.ask() for _ in range(4)]
    assert desk.out == (0, 1, 2, 3)
    for number in (2, 0, 3, 1):
        desk.tell(number, float(number))
    assert desk.values.tolist() == [2.0, 0.0, 3.0, 1.0]
    np.testing.assert_array_equal(desk.queries[0], tickets[2].x)
    x, value = desk.best
    assert value == 3.0
    np.testing.assert_array_equal(x, tickets[3].x)


def test_a_desk_is_printed_with_how_much_it_knows_and_the_best_of_it():
    method = Stroll(Space(a=Real(0, 1), b=Integer(0, 3)), 2)
    desk = Desk(method, jr.key(1), initial=3)
    assert repr(desk) == "Desk(Stroll, 0 told)"
    first, second = desk.ask(), desk.ask()
    desk.tell(first.number, 0.25)
    desk._ahead.wait()  # types that are checked in its thread would forget warnings of this one
    with pytest.warns(RuntimeWarning):
        desk.tell(second.number, np.nan)
    assert repr(desk) == f"Desk(Stroll, 2 told, 1 failed, best 0.25 at {first.x})"


@pytest.mark.slow
def test_workers_get_more_of_the_initial_design_until_it_is_in():
    desk = Desk(stroll(3), jr.key(1), initial=2)
    first = [desk.ask() for _ in range(3)]  # one more than asked for
    desk.tell(first[1].number, 0.0)
    assert desk.algorithm.surrogate.count(desk.state.belief) == 1
    desk.tell(first[2].number, 1.0)
    assert desk.algorithm.surrogate.count(desk.state.belief) == 2
    desk.ask()
    desk.tell(first[0].number, 2.0)
    assert desk.algorithm.surrogate.count(desk.state.belief) == 3


def told_out_of_order(objective, evaluations, seed):
    """The desk of three workers, of whom a random one ends next."""
    desk, order, out = Desk(egp(3, EI(), capacity=48), jr.key(seed), initial=6), [], []
    random = np.random.default_rng(seed)
    while desk.told < evaluations:
        while len(out) < 3:
            out.append(desk.ask())
        query = out.pop(random.integers(3))
        desk.tell(query.number, objective(query.x))
        order.append(query.number)
    assert order != sorted(order)
    return desk


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*NaN")
def test_workers_avoid_where_others_failed():
    slope = lambda x: np.nan if x[0] > 0.6 else -float(np.sum((x - 0.8) ** 2))  # noqa: E731
    failed = []
    for seed in range(4):
        desk = told_out_of_order(slope, 36, seed)
        failed.append(np.isnan(np.asarray(desk.values)[16:]).mean())
        best = np.nanmax(desk.values)
        assert best > -0.4
    assert np.mean(failed) < 0.2  # of random points 40 % fail


@pytest.mark.slow
def test_workers_on_a_plateau_ask_everywhere():
    desk = told_out_of_order(lambda x: 0.2, 36, 0)
    queries = np.asarray(desk.queries[:36])
    apart = np.linalg.norm(queries[:, None] - queries[None], axis=2) + np.eye(36)
    assert apart.min() > 1e-3
    cells = {tuple(cell) for cell in np.minimum((queries * 4).astype(int), 3)}
    assert len(cells) > 9  # of 16; random points are in 14


_COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _COMPILED.append(event) if "backend_compile" in event else None
)


def test_nothing_is_compiled_anew_whoever_ends_first():
    def go(order, key):
        desk = Desk(stroll(3), key, initial=3)
        numbers = [desk.ask().number for _ in range(3)]
        for i in order:
            desk.tell(numbers[i], 0.1 * i)
        for number in [desk.ask().number for _ in range(3)][::-1]:
            desk.tell(number, 1.0)
        return desk.ask()

    go((0, 1, 2), jr.key(1))
    compiled = len(_COMPILED)
    assert compiled > 0
    go((2, 0, 1), jr.key(2))
    assert len(_COMPILED) == compiled


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "told already"),
        (7, "no query number 7"),
        (-1, "no query"),
        (True, "no query number True"),
    ],
)
def test_a_result_of_no_query_that_is_out_is_refused_and_changes_nothing(number, message):
    desk = Desk(stroll(3), jr.key(1))
    for _ in range(3):
        desk.ask()
    desk.tell(0, 1.0)
    state, values = desk.state, desk.values.tolist()
    with pytest.raises(ValueError, match=message):
        desk.tell(number, 2.0)
    assert desk.state is state
    assert desk.values.tolist() == values
    assert desk.out == (1, 2)
    for value in (None, "x", [1.0, 2.0], 1j):
        with pytest.raises(ValueError, match="must return one real number"):
            desk.tell(1, value)
    assert desk.out == (1, 2)


@pytest.mark.usefixtures("as_users_have_it")
def test_a_ticket_in_the_place_of_its_number_is_told_so():
    desk = Desk(stroll(1), jr.key(1))
    with pytest.raises(ValueError, match=r"number is Ticket\(number=0, .*give its \.number"):
        desk.tell(desk.ask(), 2.0)


def test_threads_that_tell_the_same_query_are_told_apart():
    desk = Desk(stroll(2), jr.key(1))
    for round in range(5):
        tickets = [desk.ask(), desk.ask()]
        gate = threading.Barrier(4, timeout=60)

        def tell(number, gate=gate):
            gate.wait()
            try:
                desk.tell(number, 1.0)
            except ValueError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(4) as pool:
            found = [
                t.result() for t in [pool.submit(tell, tickets[i % 2].number) for i in range(4)]
            ]
        refused = [text for text in found if text is not None]
        assert len(refused) == 2
        assert all("told already" in text for text in refused)
        assert desk.told == int(desk.state.told) == 2 * (round + 1)


def test_threads_are_given_queries_of_their_own():
    desk, gate = Desk(stroll(4), jr.key(1)), threading.Barrier(4, timeout=60)
    desk.tell(desk.ask().number, 1.0)

    def ask():
        gate.wait()
        return desk.ask()

    with ThreadPoolExecutor(4) as pool:
        tickets = [t.result() for t in [pool.submit(ask) for _ in range(4)]]
    alone = Desk(stroll(4), jr.key(1))
    alone.tell(alone.ask().number, 1.0)
    expected = {(t.number, *t.x.tolist()) for t in [alone.ask() for _ in range(4)]}
    assert {(t.number, *t.x.tolist()) for t in tickets} == expected


def test_what_stops_a_desk_on_the_way_loses_nothing(tmp_path, monkeypatch):
    desk = Desk(stroll(), jr.key(1), checkpoint=tmp_path / "desk.npz")
    first = desk.ask()
    state = desk.state

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jaxbo.runs._steps.tell_one", stopped)
        with pytest.raises(KeyboardInterrupt):
            desk.tell(first.number, 1.0)
    assert desk.out == (0,)
    assert desk.state is state
    desk.tell(first.number, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("jaxbo.runs._checkpoint.Checkpoint.save", stopped)
        with pytest.raises(KeyboardInterrupt):
            desk.ask()
    # Nobody has got that query, so it is handed out again.
    again = desk.ask()
    assert again.number == 1
    assert desk.out == (1,)


#: More than the precision holds.
HUGE = 10.0 * float(jnp.finfo(jnp.zeros(())).max)


@pytest.mark.parametrize("initial", [0, 3])
def test_a_value_that_is_no_finite_number_is_a_failure_and_the_desk_says_so(initial, tmp_path):
    desk = Desk(stroll(), jr.key(1), initial=initial, checkpoint=tmp_path / "desk")
    for value in (1.0, HUGE, np.nan, -np.inf, 2.0):
        number = desk.ask().number
        desk._ahead.wait()  # types that are checked in its thread would forget warnings of this one
        if value in (1.0, 2.0):
            desk.tell(number, value)
            continue
        with pytest.warns(RuntimeWarning, match=f"query {number} failed .*expected a finite"):
            desk.tell(number, value)
    with pytest.warns(RuntimeWarning, match="query 5 failed .*: the power went"):
        desk.fail(desk.ask().number, "the power went")
    assert int(desk.state.belief.moments.count) == 2
    assert desk.best[1] == 2
    np.testing.assert_array_equal(desk.values, [1, np.nan, np.nan, np.nan, 2, np.nan])
    assert [failure[:2] for failure in desk.failures] == [(1, 0), (2, 0), (3, 0), (5, 0)]
    assert "returned nan" in desk.failures[1].error
    assert desk.failures[-1].error == "the power went"
    desk.close()
    again = Desk(stroll(), jr.key(1), initial=initial, checkpoint=tmp_path / "desk")
    assert again.failures == desk.failures
    np.testing.assert_array_equal(again.values, desk.values)
    assert jax.tree.all(jax.tree.map(same, again.state.belief, desk.state.belief))


def test_more_queries_than_workers_or_room_are_refused():
    desk = Desk(stroll(2, capacity=3), jr.key(1))
    desk.ask()
    desk.ask()
    with pytest.raises(ValueError, match="all 2 workers are busy"):
        desk.ask()
    desk.tell(0, 0.0)
    desk.ask()
    desk.tell(1, 0.0)
    with pytest.raises(ValueError, match="used up"):
        desk.ask()
    with pytest.raises(ValueError, match="no result yet"):
        _ = Desk(stroll(), jr.key(0)).best


@pytest.mark.slow
def test_a_desk_goes_on_with_a_larger_capacity(tmp_path):
    def desk(capacity, path):
        method = Stroll(Cube(2), 2, Fixed(size=16, capacity=capacity))
        return Desk(method, jr.key(0), initial=2, checkpoint=path)

    def asked(desk, count):
        for _ in range(count):
            number, x = desk.ask()
            desk.tell(number, branin(0, x))

    with desk(4, tmp_path / "grown") as small:
        asked(small, 4)
        with pytest.raises(ValueError, match=r"write surrogate=Fixed\(…, capacity=5\)"):
            small.ask()
    with desk(9, tmp_path / "grown") as grown, desk(9, tmp_path / "large") as large:
        assert grown.told == 4
        asked(grown, 5)
        asked(large, 9)
    np.testing.assert_array_equal(grown.queries, large.queries)
    states = (jax.tree.leaves(desk.state) for desk in (grown, large))
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_parameters_come_by_name():
    space = Space(rate=Real(1e-3, 1.0, log=True), kind=Categorical("a", "b"))
    desk = Desk(Stroll(space), jr.key(1))
    number, x = desk.ask()
    assert set(x) == {"rate", "kind"}
    desk.tell(number, 1.0)
    assert desk.best == (x, 1.0)


@pytest.mark.parametrize("fitted", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_desk_made_anew_goes_on(fitted, tmp_path):
    def go(desk, until):
        asked = []
        while desk.told < until:
            while len(desk.out) < 2:
                asked.append(desk.ask())
            number = desk.out[-1]
            desk.tell(number, branin(0, desk._point(number)))
        return asked

    algorithm = egp(2, refit_every=5, domain=POINTS) if fitted else stroll(2)
    path = tmp_path / "desk"
    whole = Desk(algorithm, jr.key(1), initial=4)
    go(whole, 12)
    first = Desk(algorithm, jr.key(1), initial=4, checkpoint=path)
    go(first, 7)
    first.close()
    again = Desk(algorithm, jr.key(1), initial=4, checkpoint=path)
    assert again.told == 7
    assert again.out == ()
    # What was out is handed out again, under the number that it had.
    returned = again.ask()
    assert returned.number == first.out[0]
    go(again, 12)
    np.testing.assert_array_equal(again.queries, whole.queries)
    np.testing.assert_array_equal(again.values, whole.values)


def test_a_checkpoint_of_another_desk_or_a_run_is_refused(tmp_path):
    path = tmp_path / "desk"
    Desk(stroll(2), jr.key(1), checkpoint=path).ask()
    with pytest.raises(CheckpointError, match="another key"):
        Desk(stroll(2), jr.key(2), checkpoint=path)
    with pytest.raises(CheckpointError, match="another algorithm"):
        Desk(stroll(3), jr.key(1), checkpoint=path)
    drive(stroll(1), branin, 1, jr.key(1), checkpoint=tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError):
        Desk(stroll(1), jr.key(1), checkpoint=tmp_path / "run")


def test_a_smaller_capacity_than_the_file_s_is_refused(tmp_path):
    key = jr.key(2)
    small, large = stroll(capacity=3), stroll(capacity=5)
    with Desk(large, key, checkpoint=tmp_path / "other") as desk:
        for i in range(5):
            desk.tell_new([i / 10, 0.5], float(i))
    with pytest.raises(ValueError, match=r"more than the surrogate's capacity of 3: .*capacity=5"):
        Desk(small, key, checkpoint=tmp_path / "other")


@pytest.mark.slow
def test_a_first_point_is_asked_in_the_context_that_is_given():
    space = Space(x=Real(0.0, 1.0), load=Context(Integer(1, 3)))
    method = Stroll(space)
    desk = Desk(method, jr.key(3), first=[{"x": 0.5, "load": 1}])
    _, p = desk.ask(context={"load": 2})
    assert (p["x"], p["load"]) == (pytest.approx(0.5), 2)


@pytest.mark.slow
def test_each_query_has_noise_of_its_own_and_first_points_leave_that_of_others():
    first = [[0.2, 0.2], [0.8, 0.8]]
    desk, other = (
        Desk(stroll(9), jr.key(4), initial=3, first=first),
        Desk(stroll(9), jr.key(4), initial=3),
    )
    asked = np.stack([desk.ask().x for _ in range(9)])
    designed = np.stack([other.ask().x for _ in range(3)])
    np.testing.assert_allclose(asked[:2], first, rtol=1e-6)
    np.testing.assert_array_equal(asked[2:5], designed)
    noise = [jr.key_data(desk.noise_key(n)).tolist() for n in range(9)]
    assert len(np.unique(noise, axis=0)) == 9
    assert noise[2:5] == [jr.key_data(other.noise_key(n)).tolist() for n in range(3)]
    with pytest.raises(ValueError, match="no query number -1: 3 were"):
        other.noise_key(-1)
