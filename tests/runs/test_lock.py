"""A checkpoint has a single owner: the second is refused, until the first has ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.random as jr
import numpy as np
import pytest

from jaxbo.runs import _lock
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._lock import Hold
from jaxbo.runs.desk import Desk
from tests.runs.driven import MODEL, RANDOM, Counting, bowl, environment, files, in_a_thread, quiet


@contextlib.contextmanager
def process(script, *arguments):
    """A Python process, killed at the end, and the first line that it writes."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    running = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


#: The ways to have a checkpoint, as functions of its path; each leaves it in the end.
OWNERS = {
    "drive": lambda path: quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=path),
    "drive_async": lambda path: in_a_thread(path),
    "Desk": lambda path: Desk(MODEL, jr.key(0), checkpoint=path).close(),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_a_file_in_use_is_refused_and_free_again_afterwards(owner, path):
    hold = Hold(path)
    hold.take()
    text = f"is in use by process {os.getpid()} on host"
    with pytest.raises(CheckpointError, match=text) as caught:
        OWNERS[owner](path)
    assert "another path" not in str(
        caught.value
    )  # a new beginning forgets what a ledger was charged
    assert files(path.parent) == []
    hold.release()
    OWNERS[owner](path)
    hold.take()
    hold.release()


HOLDER = """
    import sys, time
    from pathlib import Path
    from jaxbo.runs._lock import Hold
    hold = Hold(Path(sys.argv[1]))
    hold.take()
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_another_process_is_named_and_once_killed_is_forgotten(path):
    objective = Counting()
    with process(HOLDER, path) as (other, line):
        assert line == "held"
        name = f"process {other.pid} on host {socket.gethostname()}: wait until"
        with pytest.raises(CheckpointError, match=name):
            quiet(RANDOM, objective, 2, jr.key(0), checkpoint=path)
        assert objective.calls == []
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert path.with_name("run.npz.lock").exists()
    quiet(RANDOM, objective, 2, jr.key(0), checkpoint=path)
    assert len(objective.calls) == 6


def test_an_owner_that_has_just_taken_the_file_is_named(path, monkeypatch):
    one, other = Hold(path), Hold(path)
    one.take()
    lock = path.with_name("run.npz.lock")
    name = lock.read_bytes()
    lock.write_bytes(b"")  # as it is before the owner has written its name
    monkeypatch.setattr(_lock.time, "sleep", lambda _: lock.write_bytes(name))
    with pytest.raises(CheckpointError, match=f"by process {os.getpid()} on host"):
        other.take()
    one.release()


FORKING = """
    import os, sys, time, warnings
    from pathlib import Path
    from jaxbo.runs._archive import CheckpointError
    from jaxbo.runs._lock import Hold
    warnings.simplefilter("ignore")  # about forking beside JAX
    hold = Hold(Path(sys.argv[1]))
    hold.take()
    ready, write = os.pipe()
    if child := os.fork():
        os.read(ready, 1)
        try:
            Hold(hold.path).take()
        except CheckpointError:
            print(child, flush=True)
        time.sleep(600)
    try:
        hold.check()
    except CheckpointError:
        hold.release()  # which must not free the parent's
        os.write(write, b"1")
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_has_not_the_file_and_does_not_keep_it_from_others(path):
    with process(FORKING, path) as (parent, child):
        assert child.isdigit()  # the child could neither write nor free what its parent has
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            hold = Hold(path)
            hold.take()
            hold.release()
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_of_threads_that_begin_the_same_run_one_does_it(path):
    objective, gate = Counting(), threading.Barrier(4, timeout=60)

    def go():
        gate.wait()
        try:
            return quiet(RANDOM, objective, 3, jr.key(0), checkpoint=path)[1].values.tolist()
        except CheckpointError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(go) for _ in range(4)]]
    expected = quiet(RANDOM, bowl, 3, jr.key(0))[1].values.tolist()
    assert expected in found
    assert all(one == expected or "is in use by" in one for one in found)
    assert len(objective.calls) == 9


RACE = """
    import os, sys, time
    import jax.random as jr
    from jaxbo import Cube, RandomSearch, drive
    from jaxbo.runs._archive import CheckpointError

    path, log, start = sys.argv[1:]
    def objective(agent, x):
        with open(log, "a") as file:
            file.write("called\\n")
        time.sleep(0.3)
        return float(x[0])
    algorithm = RandomSearch(Cube(2), 3)
    drive(algorithm, objective, 0, jr.key(0), progress=False)
    print("ready", flush=True)
    while not os.path.exists(start):
        time.sleep(0.001)
    try:
        drive(algorithm, objective, 1, jr.key(0), checkpoint=path, progress=False)
        print("done", flush=True)
    except CheckpointError as error:
        print(error, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("attempt", range(5))
def test_of_processes_that_begin_the_same_run_one_does_it(attempt, path):
    log, start = path.with_name("log"), path.with_name("start")
    with contextlib.ExitStack() as stack:
        racing = [stack.enter_context(process(RACE, path, log, start)) for _ in range(3)]
        assert [line for _, line in racing] == ["ready"] * 3
        start.touch()
        found = [one.communicate(timeout=120)[0].strip() for one, _ in racing]
    assert found.count("done") == 1
    assert sum("is in use by process" in one for one in found) == 2
    assert log.read_text().count("called") == 3


def test_a_desk_has_its_file_until_it_is_closed(path):
    with Desk(MODEL, jr.key(0), checkpoint=path) as desk:
        desk.tell(desk.ask().number, 1.0)
        out = desk.ask()
        with pytest.raises(CheckpointError, match=r"which is this one: close the Desk"):
            Desk(MODEL, jr.key(0), checkpoint=path)
    for call in (desk.ask, lambda: desk.tell(out.number, 1.0)):
        with pytest.raises(CheckpointError, match="no longer held: it was closed"):
            call()
    assert desk.values.tolist() == [1.0]
    again = Desk(MODEL, jr.key(0), checkpoint=path)
    assert again.told == 1
    desk.close()  # once more is nothing, and frees no other's
    with pytest.raises(CheckpointError, match="in use"):
        Desk(MODEL, jr.key(0), checkpoint=path)
    again.tell(again.ask().number, 2.0)


def test_a_desk_that_is_dropped_leaves_its_file(path):
    desk = Desk(MODEL, jr.key(0), checkpoint=path)
    desk.tell(desk.ask().number, 1.0)
    del desk
    desk = Desk(MODEL, jr.key(0), checkpoint=path)
    assert desk.told == 1
    desk.itself = desk  # so that only the garbage collector frees it
    del desk
    assert Desk(MODEL, jr.key(0), checkpoint=path).told == 1


def test_a_desk_without_a_file_has_nothing_to_close():
    with Desk(MODEL, jr.key(0)) as desk:
        desk.ask()
    desk.tell(0, 1.0)


def test_the_desk_of_a_run_leaves_its_file_to_the_next_run(path):
    first = in_a_thread(path, evaluations=2)
    second = in_a_thread(path, evaluations=4)
    assert (first.told, second.told) == (2, 4)
    np.testing.assert_array_equal(second.values[:2], first.values)


@pytest.mark.parametrize("end", [KeyboardInterrupt, MemoryError])
def test_a_run_that_is_stopped_leaves_its_file(end, path):
    def stops(agent, x):
        raise end

    with pytest.raises(end) as caught:
        quiet(RANDOM, stops, 1, jr.key(0), checkpoint=path, catch=())
    assert quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=path)[1].values.shape == (1, 3)
    del caught  # whose traceback kept all of the run's objects


def test_a_refused_checkpoint_is_left_at_once(path):
    quiet(RANDOM, bowl, 2, jr.key(0), checkpoint=path)
    with pytest.raises(CheckpointError, match="another key") as caught:
        quiet(RANDOM, bowl, 2, jr.key(1), checkpoint=path)
    with pytest.raises(ValueError, match="at least as many rounds") as fewer:
        quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=path)
    with pytest.raises(CheckpointError) as desk:
        Desk(MODEL, jr.key(0), checkpoint=path)
    quiet(RANDOM, bowl, 3, jr.key(0), checkpoint=path)
    del caught, fewer, desk


def test_without_locks_a_checkpoint_is_refused(path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unknown(*_):
        raise OSError(38, "Function not implemented")

    objective = Counting()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unknown)
        with pytest.raises(CheckpointError, match=r"cannot be locked .*not implemented.*has locks"):
            quiet(RANDOM, objective, 1, jr.key(0), checkpoint=path)
    assert objective.calls == []
