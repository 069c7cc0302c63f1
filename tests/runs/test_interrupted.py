"""No evaluation that has ended is lost by a full disk, an interrupt, a kill or a fatal error."""

import contextlib
import functools
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor

import jax.random as jr
import numpy as np
import pytest

from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.desk import Desk
from tests.runs.driven import (
    MODEL,
    RANDOM,
    Counting,
    Interrupting,
    bowl,
    environment,
    files,
    quiet,
)

# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize("parallel", [False, True])
def test_a_full_disk_makes_no_failure_of_a_value_and_ends_the_run(parallel, path, full):
    def go(objective, executor):
        return quiet(RANDOM, objective, 1, jr.key(0), checkpoint=path, executor=executor)[1]

    def on_a_full_disk(agent, x):
        journal = path.with_name("run.npz.open")
        limit.enter_context(full(journal.stat().st_size + 20 if journal.exists() else 20))
        return bowl(agent, x)

    pool = ThreadPoolExecutor(1) if parallel else contextlib.nullcontext()
    with pool as executor:
        with contextlib.ExitStack() as limit, pytest.raises(OSError, match="File too large"):
            go(on_a_full_disk, executor)
        trace = go(bowl, executor)
    assert trace.failures == ()
    np.testing.assert_array_equal(trace.values, quiet(RANDOM, bowl, 1, jr.key(0))[1].values)


def state_of(desk):
    tickets = desk._now.tickets
    points = [entry.x.tolist() for entry in tickets.entries]
    return desk.out, desk.values.tolist(), points, tickets.returned


def test_what_a_desk_cannot_save_has_not_happened(path, full):
    desk, undisturbed = Desk(MODEL, jr.key(0), checkpoint=path), Desk(MODEL, jr.key(0))
    undisturbed.tell(undisturbed.ask().number, 0.5)
    for call in (lambda: desk.ask().number, lambda: desk.tell(0, 0.5), lambda: desk.ask().number):
        before, model = state_of(desk), desk.state
        content = path.read_bytes() if path.exists() else None
        with full(100), pytest.raises(OSError, match="File too large"):
            call()
        assert state_of(desk) == before
        assert desk.state is model
        assert (path.read_bytes() if path.exists() else None) == content
        assert files(path.parent) == ([path.name] if path.exists() else [])
        call()  # the same once more
    assert desk.values.tolist() == [0.5]
    np.testing.assert_array_equal(desk._point(1), undisturbed.ask().x)
    expected = state_of(desk)[:3]
    desk.close()
    again = Desk(MODEL, jr.key(0), checkpoint=path)
    assert again.ask().number == 1
    assert state_of(again)[:3] == expected


# ---------------------------------------------------------------- stopped on the way


def again_if_interrupted(call):
    """Its result, and whether it was interrupted."""
    try:
        return call(), False
    except KeyboardInterrupt:
        return call(), True


def three_results(desk):
    """Two are out at a time; the second is told first. Whether a call was interrupted."""
    interrupted = []
    while desk.told < 3:
        while len(desk.out) < min(2, 3 - desk.told):
            interrupted.append(again_if_interrupted(desk.ask)[1])
        number = desk.out[-1]
        value = bowl(0, desk._point(number))
        interrupted.append(again_if_interrupted(functools.partial(desk.tell, number, value))[1])
    return any(interrupted)


def test_a_desk_interrupted_at_any_moment_goes_on_with_the_same_call(tmp_path, monkeypatch):
    undisturbed = Desk(MODEL, jr.key(0))
    three_results(undisturbed)
    moment, interrupted = 0, True
    while interrupted:
        moment += 1
        path = tmp_path / f"desk{moment}"
        with Desk(MODEL, jr.key(0), checkpoint=path) as desk, monkeypatch.context() as patch:
            Interrupting(moment, patch)
            interrupted = three_results(desk)
        with Desk(MODEL, jr.key(0), checkpoint=path) as resumed:
            for one in (desk, resumed):
                np.testing.assert_array_equal(one.queries, undisturbed.queries)
                np.testing.assert_array_equal(one.values, undisturbed.values)
                assert one.out == ()
        assert not path.with_name(f"{path.name}.tmp").exists()
    assert moment > 80


class Killing(Interrupting):
    """Kills the process there. A file that is not on the disk yet loses its end, as in a power cut."""

    def __init__(self, moment, patch):
        super().__init__(moment, patch)
        whole, self.count = os.fsync, moment
        patch.setattr(os, "fsync", lambda file: self.cut(file) or whole(file))

    def cut(self, file):
        if self.left == 1 and stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, max(os.fstat(file).st_size - 1 - 7 * self.count % 60, 0))

    def moment(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Logged(Counting):
    """Knows of evaluations in processes that were killed."""

    def __init__(self, log):
        self.log = log

    def __call__(self, agent, x):
        with open(self.log, "a") as file:
            file.write(f"{agent} {x.tolist()}\n")
        return bowl(agent, x)


def rounds_at(path):
    """A run of two rounds and a design; its queries and values."""
    objective = Logged(path.with_name(f"{path.name}.log"))
    _, trace = quiet(RANDOM, objective, 2, jr.key(0), initial=1, checkpoint=path)
    return trace.queries, trace.values


def desk_at(path):
    with Desk(MODEL, jr.key(0), checkpoint=path) as desk:
        three_results(desk)
    return desk.queries, desk.values


WAYS = {"rounds": rounds_at, "desk": desk_at}


def killed_at(moment, way, folder):
    Killing(moment, pytest.MonkeyPatch())
    WAYS[way](folder / f"run{moment}")


#: Forks a process for every `step`-th moment, until one comes to its end, and says how they ended. JAX
#: runs in children alone: what has begun to run does not survive a fork.
EVERYWHERE = """
    import os, sys, warnings
    from pathlib import Path
    import jaxbo, pytest
    warnings.simplefilter("ignore")
    here, way, folder, step = sys.argv[1:]
    sys.path.insert(0, str(Path(here).parent))
    moment, status = 0, 1
    while status:
        moment += int(step)
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            print(moment, status, flush=True)
        else:
            import test_interrupted
            test_interrupted.killed_at(moment, way, Path(folder))
            os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("way", WAYS)
def test_a_process_killed_at_any_call_that_changes_files_goes_on(way, step, tmp_path):
    script = textwrap.dedent(EVERYWHERE)
    command = [sys.executable, "-c", script, __file__, way, str(tmp_path), str(step)]
    more = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    told = subprocess.run(
        command, env=environment() | more, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    moments, statuses = zip(*(map(int, line.split()) for line in told), strict=True)
    assert set(statuses[:-1]) == {signal.SIGKILL}
    assert statuses[-1] == 0
    assert moments[-1] > 80
    expected = WAYS[way](tmp_path / "undisturbed")
    for moment in moments:
        found = WAYS[way](tmp_path / f"run{moment}")
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(moment))
        if way == "rounds":
            calls = (tmp_path / f"run{moment}.log").read_text().splitlines()
            assert 9 <= len(calls) <= 10, moment
            assert len(set(calls)) == 9


# ---------------------------------------------------------------- one is fatal, others under way


class Refusing(ThreadPoolExecutor):
    """Takes two evaluations, and nothing more."""

    taken = 0

    def submit(self, fn, /, *args, **kwargs):
        self.taken += 1
        if self.taken > 2:
            raise RuntimeError("cannot schedule more")
        return super().submit(fn, *args, **kwargs)


#: Three queries in a row, or four by two workers. Errors that are not caught are fatal.
FATAL = {
    "drive": lambda path, objective, pool, catch=KeyError: quiet(
        RANDOM, objective, 1, jr.key(0), checkpoint=path, executor=pool, catch=catch
    ),
    "drive_async": lambda path, objective, pool, catch=KeyError: drive_async(
        MODEL, objective, 4, jr.key(0), checkpoint=path, executor=pool, catch=catch
    ),
}


def kept(way, path):
    """The agents, or the numbers of the queries, whose evaluations are in the checkpoint."""
    if way == "drive":
        counting = Counting()
        quiet(RANDOM, counting, 1, jr.key(0), checkpoint=path)
        return {0, 1, 2} - set(counting.calls)
    with Desk(MODEL, jr.key(0), checkpoint=path) as desk:
        return set(desk.results.tickets.tolist())


@pytest.mark.parametrize("error", [MemoryError, SystemExit])
@pytest.mark.parametrize("way", FATAL)
def test_what_is_under_way_when_one_is_fatal_is_kept(way, error, path):
    happened = threading.Event()

    def objective(worker, x):
        if worker == 0:  # ends when the other has been heard of
            assert happened.wait(60)
            return bowl(worker, x)
        threading.Timer(0.3, happened.set).start()
        raise error

    with ThreadPoolExecutor(2) as pool, pytest.raises(error):
        FATAL[way](path, objective, pool)
    assert kept(way, path) == {0}


class Cancelling(Executor):
    """Evaluates at once, but for the second evaluation, which it cancels and says so."""

    def __init__(self):
        self.count = 0

    def submit(self, fn, /, *args, **kwargs):
        self.count += 1
        outcome = Future()
        if self.count == 2:
            outcome.cancel()
            outcome.set_running_or_notify_cancel()
        else:
            outcome.set_result(fn(*args, **kwargs))
        return outcome


@pytest.mark.parametrize("way", FATAL)
def test_what_the_executor_cancels_is_no_failure_and_ends_the_run(way, path):
    with pytest.raises(CancelledError, match="the executor has cancelled") as caught:
        FATAL[way](path, bowl, Cancelling(), catch=Exception)
    assert "evaluating" in caught.value.__notes__[0]
    assert kept(way, path) - {2} == {0}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", FATAL)
def test_an_executor_that_somebody_shuts_down_ends_the_run(way, path):
    def objective(worker, x):
        pool.shutdown(wait=False, cancel_futures=True)
        time.sleep(0.1)  # another evaluation waits, and is cancelled
        return bowl(worker, x)

    with ThreadPoolExecutor(1) as pool, pytest.raises((CancelledError, RuntimeError)):
        FATAL[way](path, objective, pool, catch=Exception)
    assert kept(way, path) == {0}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", FATAL)
def test_what_was_cancelled_without_a_word_is_noticed(way, path):
    class Silent(Executor):
        """Takes evaluations, begins none, and cancels them when it has two."""

        taken = ()

        def submit(self, fn, /, *args, **kwargs):
            self.taken = (*self.taken, Future())
            if len(self.taken) == 2:
                threading.Timer(0.3, lambda: [one.cancel() for one in self.taken]).start()
            return self.taken[-1]

    with pytest.raises(CancelledError, match="was it shut down"):
        FATAL[way](path, bowl, Silent(), catch=Exception)
    assert kept(way, path) == set()


@pytest.mark.parametrize("way", FATAL)
def test_what_is_under_way_when_the_pool_takes_nothing_more_is_kept(way, path):
    def objective(worker, x):
        time.sleep(0.1 + 0.1 * worker)
        return bowl(worker, x)

    with Refusing(2) as pool, pytest.raises(RuntimeError, match="cannot schedule more"):
        FATAL[way](path, objective, pool)
    assert kept(way, path) == {0, 1}


@pytest.mark.parametrize("way", FATAL)
def test_what_is_under_way_when_the_disk_is_full_does_not_hang(way, path, full):
    def objective(worker, x):
        limit.enter_context(full(20))
        time.sleep(0.1)
        return bowl(worker, x)

    with ThreadPoolExecutor(1) as pool:
        with contextlib.ExitStack() as limit, pytest.raises(OSError, match="File too large"):
            FATAL[way](path, objective, pool)
        FATAL[way](path, bowl, pool)
    assert kept(way, path) >= {0, 1, 2}


@pytest.mark.parametrize("way", FATAL)
def test_what_is_under_way_when_one_cannot_be_saved_is_kept(way, path, monkeypatch):
    ended, whole = [], os.fsync

    def objective(worker, x):
        time.sleep(0.1 + 0.3 * worker)
        if worker == 0 and not ended:
            ended.append(worker)
        return bowl(worker, x)

    def full_once(file):
        if ended == [0]:
            ended.append("full")
            raise OSError(28, "No space left on device")
        whole(file)

    monkeypatch.setattr(os, "fsync", full_once)
    with ThreadPoolExecutor(2) as pool, pytest.raises(OSError, match="No space left"):
        FATAL[way](path, objective, pool)
    assert kept(way, path) - {2} == {1}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_success_under_way_when_all_before_it_failed_saves_the_run(path):
    calls = []

    def objective(worker, x):
        calls.append(worker)
        if len(calls) <= 2:
            raise KeyError("bad luck")
        time.sleep(0.3)
        return bowl(worker, x)

    with ThreadPoolExecutor(1) as pool:
        desk = FATAL["drive_async"](path, objective, pool)
    assert desk.told == 4
    assert np.isnan(desk.values).sum() == 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_whose_first_evaluations_all_failed_asks_no_more(path):
    calls = []

    def objective(worker, x):
        calls.append(worker)
        raise KeyError("no such file")

    with ThreadPoolExecutor(2) as pool, pytest.raises(KeyError, match="no such file"):
        drive_async(MODEL, objective, 30, jr.key(0), executor=pool, checkpoint=path)
    assert len(calls) <= 4  # two workers: one more each may have begun
    assert kept("drive_async", path) == set()
