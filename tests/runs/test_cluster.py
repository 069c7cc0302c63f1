"""Executors of many processes, and workers of them that die."""

import functools
import json
import multiprocessing
import os
import pickle
import signal
import textwrap
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import SimpleNamespace

import jax
import jax.random as jr
import numpy as np
import pytest

from bench.egp import cluster
from jaxbo.domains.base import Cube
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive
from jaxbo.runs.renewing import LostWorkerError, Renewing
from tests.walk import Stroll, Walk

SPAWN = multiprocessing.get_context("spawn")
TWO, THREE = (Walk(Cube(2), agents) for agents in (2, 3))
WORKERS = Stroll(Cube(2), 2)
quiet = functools.partial(drive, rounds=3, key=jr.key(1), initial=2, progress=False)

OBJECTIVES = """
import os
import time

PATIENCE = 60


def bowl(agent, x):
    return float(-sum((float(u) - 0.1 * agent) ** 2 for u in x))


def waits_for(path):
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.getpid()


class Watched:
    '''A bowl whose calls are written down.'''

    def __init__(self, folder):
        self.folder = str(folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def calls(self):
        '''[process, agent, x] of each call.'''
        try:
            with open(self.path("calls")) as file:
                return [eval(line) for line in file]
        except FileNotFoundError:
            return []

    def __call__(self, agent, x):
        line = repr([os.getpid(), agent, [float(u) for u in x]])
        with open(self.path("calls"), "ab", buffering=0) as file:
            file.write(line.encode() + b"\\n")
        self.then(agent, line)
        return bowl(agent, x)

    def then(self, agent, line):
        pass


class Together(Watched):
    '''Its first calls do not end before two processes have begun one.'''

    def then(self, agent, line):
        deadline = time.monotonic() + PATIENCE
        while len({process for process, *_ in self.calls()}) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)


class Deadly(Watched):
    '''The process that makes agent 1's first call dies; `always`, so do all that make this call.

    It dies a while after its call before has ended: a result that dask is still fetching from a worker
    when the worker dies is lost, and its executor raises `TypeError` for it.
    '''

    def __init__(self, folder, always):
        super().__init__(folder)
        self.always = always

    def then(self, agent, line):
        if agent != 1:
            return
        point = repr(eval(line)[1:])
        mine = self.path(f"fatal-{os.getpid()}")
        with open(mine, "w") as file:
            file.write(point)
        try:
            os.link(mine, self.path("fatal"))  # whole or not at all
        except FileExistsError:
            if not self.always or open(self.path("fatal")).read() != point:
                return
        time.sleep(0.5)
        os._exit(1)

    def fatal(self):
        '''The call that killed.'''
        with open(self.path("fatal")) as file:
            return eval(file.read())
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Objectives in a module that worker processes can import."""
    folder = tmp_path_factory.mktemp("importable")
    (folder / "objectives_on_a_cluster.py").write_text(textwrap.dedent(OBJECTIVES))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import objectives_on_a_cluster

        yield objectives_on_a_cluster


def processes(count=2):
    return ProcessPoolExecutor(count, SPAWN)


@pytest.fixture(scope="module")
def client(elsewhere):
    """Two worker processes of dask, which asks an evaluation again elsewhere, once."""
    import dask
    from distributed import Client, LocalCluster

    workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(**workers, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        yield client


@pytest.fixture(params=["processes", "renewing", "dask"])
def executor(request):
    with _executor(request.param, request) as executor:
        yield executor


@pytest.fixture(params=["renewing", "dask"])
def surviving(request):
    """An executor, and what it raises when a worker dies twice."""
    with _executor(request.param, request) as executor:
        yield executor, {"renewing": "LostWorkerError", "dask": "KilledWorker"}[request.param]


def _two_workers(client):
    """Waits for them; on a busy machine a nanny may end with the worker that it should start again."""
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=120)


@contextmanager
def _executor(kind, request):
    if kind == "dask":
        client = request.getfixturevalue("client")
        _two_workers(client)
        # The same call is another evaluation.
        with client.get_executor(pure=False) as executor:
            yield executor
        _two_workers(client)  # made anew, with threads of their own
    else:
        with processes() if kind == "processes" else Renewing(processes) as executor:
            yield executor


def same(one, other):
    return (
        np.array_equal(one.queries, other.queries)
        and np.array_equal(one.values, other.values, equal_nan=True)
        and jax.tree.all(jax.tree.map(np.array_equal, one.info, other.info))
    )


# ---------------------------------------------------------------- workers who live


@pytest.mark.slow
def test_a_round_in_processes_is_the_round_of_one_after_the_other(executor, elsewhere):
    state, trace = quiet(THREE, elsewhere.bowl)
    parallel_state, parallel = quiet(THREE, elsewhere.bowl, executor=executor)
    assert same(trace, parallel)
    assert jax.tree.all(jax.tree.map(np.array_equal, state, parallel_state))


@pytest.mark.slow
def test_all_workers_are_used_at_the_same_time(executor, elsewhere, tmp_path):
    objective = elsewhere.Together(tmp_path)
    desk = drive_async(WORKERS, objective, 6, jr.key(1), executor=executor, initial=4)
    assert desk.told == 10
    assert np.isfinite(desk.values).all()
    assert len({process for process, *_ in objective.calls()}) == 2
    points = [x for _, _, x in objective.calls()]
    assert sorted(points) == sorted(np.asarray(desk.queries).tolist())


# ---------------------------------------------------------------- workers who die


@pytest.mark.slow
def test_a_worker_that_dies_in_a_round_costs_nothing(surviving, elsewhere, tmp_path):
    executor, _ = surviving
    objective = elsewhere.Deadly(tmp_path, always=False)
    _, expected = quiet(THREE, elsewhere.bowl)
    _, trace = quiet(THREE, objective, executor=executor)
    assert same(trace, expected)
    assert not trace.failures
    calls = [call[1:] for call in objective.calls()]
    assert calls.count(objective.fatal()) == 2


@pytest.mark.slow
def test_a_worker_that_dies_beside_another_costs_nothing(surviving, elsewhere, tmp_path):
    executor, _ = surviving
    objective = elsewhere.Deadly(tmp_path, always=False)
    desk = drive_async(WORKERS, objective, 6, jr.key(1), executor=executor, initial=4)
    assert desk.told == 10
    assert np.isfinite(desk.values).all()
    assert objective.fatal() in [call[1:] for call in objective.calls()]


@pytest.mark.slow
def test_an_evaluation_that_always_kills_is_a_failure_and_the_only_one(
    surviving, elsewhere, tmp_path
):
    executor, error = surviving
    # dask blames what waits for a worker that dies as well: no more at a time than it has workers.
    algorithm = TWO if error == "KilledWorker" else THREE
    objective = elsewhere.Deadly(tmp_path, always=True)
    with pytest.warns(RuntimeWarning, match=f"agent 1 failed .* {error}") as warned:
        _, trace = quiet(algorithm, objective, executor=executor)
    assert len([w for w in warned if w.category is RuntimeWarning]) == 1

    def raises(agent, x):
        if [agent, x.tolist()] == objective.fatal():
            raise OSError("it would have killed")
        return elsewhere.bowl(agent, x)

    with pytest.warns(RuntimeWarning, match="it would have killed"):
        _, expected = quiet(algorithm, raises)
    assert same(trace, expected)
    assert np.isnan(trace.values).sum() == 1
    assert np.isnan(trace.values[0, 1])
    (failure,) = trace.failures
    assert error in str(failure)
    calls = [call[1:] for call in objective.calls()]
    assert calls.count(objective.fatal()) == 2
    assert len({repr(call) for call in calls}) == trace.values.size


@pytest.mark.slow
def test_beside_others_an_evaluation_that_always_kills_is_a_failure(surviving, elsewhere, tmp_path):
    executor, error = surviving
    objective = elsewhere.Deadly(tmp_path, always=True)
    with pytest.warns(RuntimeWarning, match=f"failed at x = .* {error}"):
        desk = drive_async(WORKERS, objective, 6, jr.key(1), executor=executor, initial=4)
    assert desk.told == 10
    (failed,) = np.flatnonzero(np.isnan(desk.values))
    assert desk.queries[failed].tolist() == objective.fatal()[1]


@pytest.mark.parametrize("way", ["rounds", "asynchronously"])
def test_an_ordinary_pool_breaks_and_the_checkpoint_goes_on(way, elsewhere, tmp_path):
    path, objective = tmp_path / "night", elsewhere.Deadly(tmp_path, always=False)

    def go(objective, executor, path=path):
        if way == "rounds":
            return quiet(THREE, objective, executor=executor, checkpoint=path)[1]
        more = {"executor": executor, "initial": 4, "checkpoint": path}
        return drive_async(WORKERS, objective, 6, jr.key(1), **more)

    with processes() as pool, pytest.raises(BrokenProcessPool):
        go(objective, pool)
    with processes() as pool:
        found = go(objective, pool)
    if way == "rounds":
        assert same(found, quiet(THREE, elsewhere.bowl)[1])
        assert not found.failures
    else:
        assert found.told == 10
        assert np.isfinite(found.values).all()
        again = Desk(WORKERS, jr.key(1), initial=4, checkpoint=path)
        np.testing.assert_array_equal(again.values, found.values)


# ---------------------------------------------------------------- a pool made anew


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """No process and no thread of a pool."""
    if "client" in request.fixturenames or "dask" in request.node.name:  # those of dask stay
        yield
        return
    before = set(threading.enumerate())
    yield
    until(lambda: {thread for thread in threading.enumerate() if not _of_a_bar(thread)} <= before)
    assert not [p for p in multiprocessing.active_children() if not p.name.startswith("Dask")]


def _of_a_bar(thread):
    """tqdm has a thread for as long as the process lives."""
    return type(thread).__name__ == "TMonitor"


def until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_the_one_that_kills_is_told_from_those_beside_it(elsewhere, tmp_path):
    objective = elsewhere.Deadly(tmp_path, always=True)
    with Renewing(lambda: processes(3)) as pool:
        futures = [pool.submit(objective, agent, [0.5]) for agent in range(12)]
        errors = [future.exception(timeout=60) for future in futures]
        assert pool.submit(elsewhere.bowl, 0, [2.0]).result() == -4.0
    assert isinstance(errors[1], LostWorkerError)
    assert not isinstance(errors[1], BrokenExecutor)
    assert isinstance(errors[1].__cause__, BrokenExecutor)
    assert [error for error in errors if error is not None] == [errors[1]]
    assert [f.result() for i, f in enumerate(futures) if i != 1] == [
        elsewhere.bowl(i, [0.5]) for i in range(12) if i != 1
    ]
    times = [[agent for _, agent, _ in objective.calls()].count(a) for a in range(12)]
    assert times[1] == max(times) == 2
    # A pool of processes has sent out what its workers are at and as many again and one: the rest waits.
    assert times.count(1) >= 12 - 7


@pytest.mark.slow
def test_deaths_of_many_are_survived_by_the_rest(elsewhere, tmp_path):
    folders = [tmp_path / str(i) for i in range(4)]
    for folder in folders:
        folder.mkdir()
    deadly = [elsewhere.Deadly(folder, always=i % 2 == 1) for i, folder in enumerate(folders)]
    with Renewing(processes) as pool:
        futures = [pool.submit(deadly[i % 4], 1, [float(i)]) for i in range(12)]
        wait(futures)
    lost = {i for i, future in enumerate(futures) if future.exception() is not None}
    once, always = ({int(deadly[i + j].fatal()[1][0]) for i in (0, 2)} for j in (0, 1))
    # One that kills once is lost too, if its first worker died of another.
    assert always <= lost <= always | once
    assert all(isinstance(futures[i].exception(), LostWorkerError) for i in lost)
    for i in set(range(12)) - lost:
        assert futures[i].result() == elsewhere.bowl(1, [float(i)])


def test_a_worker_that_dies_idle_costs_nothing(elsewhere):
    with Renewing(lambda: processes(1)) as pool:
        first = pool.submit(os.getpid).result()
        os.kill(first, signal.SIGKILL)
        others = [pool.submit(os.getpid) for _ in range(3)]
        assert first not in [other.result() for other in others]
        # The news may come late, but not later than this.
        (last,) = {pool.submit(os.getpid).result() for _ in range(2)}
        os.kill(last, signal.SIGKILL)
        until(lambda: last not in [child.pid for child in multiprocessing.active_children()])
        assert pool.submit(os.getpid).result() not in (first, last)


def test_what_has_not_begun_can_be_cancelled_and_is_never_called(elsewhere, tmp_path):
    gate, objective = tmp_path / "gate", elsewhere.Watched(tmp_path)
    with Renewing(lambda: processes(1)) as pool:
        running = pool.submit(elsewhere.waits_for, str(gate))
        until(running.running)
        futures = [pool.submit(objective, agent, [0.5]) for agent in range(6)]
        until(futures[0].running)  # sent, though not begun
        assert futures[5].cancel()
        assert futures[5].cancel()
        assert futures[5].cancelled()
        assert not running.cancel()
        assert not futures[0].cancel()
        assert not futures[4].running()  # two at most are sent before it
        done, _ = wait(futures[3:], return_when="FIRST_COMPLETED", timeout=60)
        assert done == {futures[5]}
        gate.touch()
        assert running.result(timeout=60) != os.getpid()
        assert [f.result(timeout=60) for f in futures[:5]]
        assert not futures[0].cancel()
        assert not futures[0].running()
    assert [agent for _, agent, _ in objective.calls()] == [0, 1, 2, 3, 4]


def test_a_worker_that_dies_while_a_cancelled_evaluation_waits_holds_nobody_up(elsewhere, tmp_path):
    gate = tmp_path / "gate"
    with Renewing(lambda: processes(1)) as pool:
        process = pool.submit(os.getpid).result()
        running = pool.submit(elsewhere.waits_for, str(gate))
        futures = [pool.submit(os.getpid) for _ in range(5)]
        until(running.running)
        assert futures[3].cancel()
        os.kill(process, signal.SIGKILL)
        gate.touch()
        assert running.result(timeout=60) != process
        for i in (0, 1, 2, 4):
            assert futures[i].result(timeout=60) != process
    assert futures[3].cancelled()


def test_exceptions_and_arguments_are_passed_on(elsewhere):
    with Renewing(processes) as pool:
        assert pool.submit(int, "11", base=2).result() == 3
        assert list(pool.map(pow, [2, 3], [3, 2])) == [8, 9]
        with pytest.raises(ValueError, match="invalid literal"):
            pool.submit(int, "eleven").result()
        with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
            pool.submit(lambda: 3).result()


def test_it_is_shut_down_as_executors_are(elsewhere, tmp_path):
    gate = tmp_path / "gate"
    pool = Renewing(lambda: processes(1))
    running = pool.submit(elsewhere.waits_for, str(gate))
    until(running.running)
    futures = [pool.submit(os.getpid) for _ in range(4)]
    until(futures[0].running)
    pool.shutdown(wait=False)
    assert not running.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(os.getpid)
    pool.shutdown(wait=False, cancel_futures=True)
    assert [futures[i].cancelled() for i in (0, 2, 3)] == [False, True, True]
    gate.touch()
    pool.shutdown()
    assert running.done()
    assert futures[0].done()


def test_what_is_lost_after_the_shutdown_is_asked_again_too(elsewhere, tmp_path):
    objective = elsewhere.Deadly(tmp_path, always=False)
    with Renewing(lambda: processes(1)) as pool:
        futures = [pool.submit(objective, agent, [0.5]) for agent in (0, 1, 2, 3, 4, 5)]
        pool.shutdown(wait=False)
    assert [f.result() for f in futures] == [elsewhere.bowl(a, [0.5]) for a in range(6)]


# ---------------------------------------------------------------- pools, one by one


class Manual(Executor):
    """Its futures are resolved by hand; `end` breaks it."""

    def __init__(self):
        self.futures, self.calls, self.open, self.broken = [], [], True, False

    def submit(self, fn, /, *args, **kwargs):
        if self.broken:
            raise BrokenExecutor
        self.futures.append(Future())
        self.calls.append(fn)
        return self.futures[-1]

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.open = False


class Pools:
    def __init__(self, broken=()):
        self.made, self.broken = [], broken

    def __call__(self):
        self.made.append(Manual())
        self.made[-1].broken = len(self.made) - 1 in self.broken
        return self.made[-1]


def test_one_that_says_that_the_pool_broke_is_enough():
    pools = Pools()
    with Renewing(pools) as pool:
        a, b, c, d = (pool.submit(pow, 2, n) for n in range(4))
        (first,) = pools.made
        for i in (0, 1, 2):
            first.futures[i].set_running_or_notify_cancel()
        first.futures[0].set_result(1)
        first.futures[1].set_exception(BrokenExecutor())
        # b and c were under way, d was not: it is in the next pool, they are in pools of their own.
        until(lambda: len(pools.made) == 3 and all(p.futures for p in pools.made))
        second, third = pools.made[1:]
        assert [p.calls[0]() for p in (second, third)] == [8, 2]
        assert not first.open
        assert second.open
        third.futures[0].set_result(2)
        until(lambda: len(pools.made) == 4 and pools.made[3].futures)
        assert not third.open
        assert pools.made[3].calls[0]() == 4
        first.futures[2].set_result("late")  # of a pool given up
        assert not c.done()
        assert pool.submit(pow, 2, 4) is not None
        pools.made[3].futures[0].set_exception(BrokenExecutor())
        with pytest.raises(LostWorkerError):
            c.result(timeout=60)
        for i in (0, 1):
            second.futures[i].set_result(second.calls[i]())
        assert (a.result(), b.result(), d.result()) == (1, 2, 8)
    assert not [p for p in pools.made if p.open]
    assert len(pools.made) == 4


def test_what_waits_to_be_asked_again_can_be_cancelled():
    pools = Pools()
    with Renewing(pools) as pool:
        a, b = pool.submit(pow, 2, 1), pool.submit(pow, 2, 2)
        for future in pools.made[0].futures:
            future.set_running_or_notify_cancel()
        pools.made[0].futures[0].set_exception(BrokenExecutor())
        until(lambda: len(pools.made) == 2 and pools.made[1].futures)
        pools.made[1].futures[0].set_running_or_notify_cancel()
        assert not a.cancel()
        assert a.running()
        assert b.cancel()
        pools.made[1].futures[0].set_result(2)
        assert a.result(timeout=60) == 2
    assert len(pools.made) == 2


def test_a_pool_that_is_born_broken_is_an_error():
    with Renewing(Pools(broken=(0, 1))) as pool, pytest.raises(BrokenExecutor):
        pool.submit(pow, 2, 1).result(timeout=60)
    pools = Pools(broken=(0,))
    with Renewing(pools) as pool:
        future = pool.submit(pow, 2, 1)
        until(lambda: len(pools.made) == 2 and pools.made[1].futures)
        pools.made[1].futures[0].set_result(2)
        assert future.result(timeout=60) == 2


def test_a_pool_that_cannot_be_made_anew_fails_what_needs_it():
    pools = Pools()

    def make():
        if len(pools.made) == 1:
            raise OSError("no more processes")
        return pools()

    with Renewing(make) as pool:
        futures = [pool.submit(pow, 2, n) for n in range(2)]
        pools.made[0].futures[0].set_running_or_notify_cancel()
        pools.made[0].futures[0].set_exception(BrokenExecutor())
        for future in futures:
            with pytest.raises(OSError, match="no more processes"):
                future.result(timeout=60)


class Shaky(ThreadPoolExecutor):
    """Breaks at some of its calls, as a pool of processes does: for all that have not ended."""

    def __init__(self):
        super().__init__(3)
        self.mine, self.mutex, self.broken = [], threading.Lock(), False

    def submit(self, fn, /, *args, **kwargs):
        with self.mutex:
            if self.broken:
                raise BrokenExecutor
            future = Future()
            self.mine.append(future)
        super().submit(self.work, future, fn)
        return future

    def work(self, future, call):
        if self.broken or not future.set_running_or_notify_cancel():
            return
        number, dies = call()
        if not dies:
            with self.mutex:
                if not self.broken:
                    future.set_result(number)
            return
        with self.mutex:
            self.broken = True
        for other in self.mine:
            if not other.done():
                other.set_exception(BrokenExecutor())


def test_many_threads_and_many_deaths_lose_nothing():
    random, died, lock = np.random.default_rng(0), set(), threading.Lock()
    once = set(random.choice(300, 20, replace=False).tolist())
    always = set(random.choice(sorted(set(range(300)) - once), 5, replace=False).tolist())

    def evaluate(number):
        with lock:
            first = number not in died
            died.add(number)
        return number, number in always or (number in once and first)

    with Renewing(Shaky) as pool, ThreadPoolExecutor(6) as users:
        futures = list(users.map(lambda n: pool.submit(evaluate, n), range(300)))
        wait(futures, timeout=60)
        for number, future in enumerate(futures):
            if number in always:
                assert isinstance(future.exception(timeout=0), LostWorkerError)
            elif number not in once or future.exception(timeout=0) is None:
                assert future.result(timeout=0) == number
            else:  # its own death was the second: at first it was beside another that died
                assert isinstance(future.exception(), LostWorkerError)


# ---------------------------------------------------------------- how busy they are


def test_utilization_is_the_part_of_the_time_that_workers_evaluate():
    # Worker, start, end, value: four workers, one of whom goes on while the others are done.
    ends = ((0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 2), (0, 1, 2), (1, 1.5, 2.5))
    bars = np.array([(*bar, 0.0) for bar in ends])
    assert cluster.span(bars) == 2.5
    assert cluster.utilization(bars) == pytest.approx(7 / (4 * 2.5))
    # Until 1.5: three have worked for 1, 1.5 and 1.5; two for 1.
    assert cluster.while_asking(bars) == pytest.approx((1.5 + 1 + 1 + 1.5) / (4 * 1.5))


@pytest.mark.slow
def test_a_slow_evaluation_takes_as_long_at_the_same_point_and_says_so(tmp_path, monkeypatch):
    slept = []
    # Threads of other tests in this process may sleep, too: only this module's clock is another one.
    clock = SimpleNamespace(sleep=slept.append, time=lambda: 5.0)
    monkeypatch.setattr(cluster, "time", clock)
    slow = cluster.Slow(str(tmp_path / "log"), 0)
    points = np.random.default_rng(0).random((400, 6))
    values = [slow(0, x) for x in (*points, points[0])]
    assert values[0] == values[-1]
    assert slept[0] == slept[-1]
    mean, error = np.mean(slept), np.std(slept) / 20
    assert abs(mean - cluster.MEAN) < 4 * error
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert rows == [[os.getpid(), 5.0, 5.0, value] for value in values]


# ---------------------------------------------------------------- bad input


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("make", [None, 3, dict, lambda: processes])
def test_it_needs_a_function_that_makes_executors(make):
    with pytest.raises(ValueError, match=r"make must (be a function|return an Executor)"):
        Renewing(make)
