"""Where evaluations happen: processes by their number, what is too late, dies, leaves or would fork."""

import multiprocessing
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest

from jaxbo.runs._executors import LateError, opened
from jaxbo.runs._flight import HeldError
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.driver import drive
from jaxbo.runs.renewing import LostWorkerError, Renewing
from tests.runs.driven import MODEL, RANDOM, bowl, environment, quiet

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Objectives in a module that processes can import; it is quick to import."""
    (tmp_path / "evaluated_elsewhere.py").write_text(
        textwrap.dedent("""
        import os, pathlib, sys, time

        folder = pathlib.Path(__file__).parent

        def bowl(agent, x):
            return float(-sum((float(u) - 0.1) ** 2 for u in x))

        def signed(agent, x):
            time.sleep(0.2)  # all are busy
            (folder / f"by{os.getpid()}").touch()
            return bowl(agent, x)

        def hangs(agent, x):
            (folder / f"hung{agent}-{time.time()}").write_text(str(os.getpid()))
            if agent == 1:
                time.sleep(1000)
            return bowl(agent, x)

        def leaves(agent, x):
            if agent == 1:
                sys.exit("no license")
            return bowl(agent, x)

        def dies_once(agent, x):
            mark = folder / "died"
            if agent == 1 and not mark.exists():
                mark.touch()
                os._exit(1)
            return bowl(agent, x)

        def dies(agent, x):
            if agent == 1:
                os._exit(1)
            return bowl(agent, x)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("evaluated_elsewhere", None)
    import evaluated_elsewhere

    return evaluated_elsewhere


LOOPS = {
    "drive": lambda objective, **more: quiet(RANDOM, objective, 1, jr.key(0), **more)[1],
    "drive_async": lambda objective, **more: drive_async(
        MODEL, objective, 3, jr.key(0), progress=False, **more
    ),
}
both = pytest.mark.parametrize("loop", LOOPS)
#: With one process, which takes seconds to begin. In the other loop that is one worker alone.
of_drive = pytest.mark.parametrize(
    ("loop", "count"), [("drive", 1), pytest.param("drive_async", 2, marks=pytest.mark.full)]
)
quietly = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# ---------------------------------------------------------------- a number


@pytest.mark.usefixtures("as_users_have_it")
def test_a_number_is_so_many_processes_and_the_trace_is_that_of_none(key, elsewhere):
    _, trace = quiet(RANDOM, elsewhere.bowl, 2, key)
    _, parallel = quiet(RANDOM, elsewhere.signed, 2, key, executor=np.int64(2))
    np.testing.assert_array_equal(parallel.values, trace.values)
    assert len(list(elsewhere.folder.glob("by*"))) == 2


@both
def test_without_an_executor_evaluations_are_in_this_thread(loop):
    threads = []
    LOOPS[loop](lambda x: threads.append(threading.get_ident()) or float(x[0]))
    assert threads == [threading.get_ident()] * 3


def test_one_worker_after_the_other_asks_with_all_results(key):
    out = []

    def objective(worker, x):
        out.append(worker)
        return float(x[0])

    desk = drive_async(MODEL, objective, 4, key, progress=False)
    assert out == [0] * 4
    assert desk.told == 4


@both
@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "4", [1], object()])
@pytest.mark.usefixtures("as_users_have_it")
def test_what_is_no_executor_is_refused_by_name(loop, wrong):
    with pytest.raises(ValueError, match="executor must be"):
        LOOPS[loop](bowl, executor=wrong)


@both
def test_an_objective_that_processes_cannot_have_is_refused_before_work_starts(loop):
    with pytest.raises(ValueError, match="function of a module"):
        LOOPS[loop](lambda agent, x: 0.0, executor=2)


@both
def test_processes_that_would_be_idle_are_warned_of(loop, elsewhere):
    # Here warnings are errors, and so this one comes before any process.
    with pytest.raises(RuntimeWarning, match=r"executor=4 .* at most [23] evaluate"):
        LOOPS[loop](elsewhere.bowl, executor=4)


# ---------------------------------------------------------------- dies, leaves


@quietly
@of_drive
def test_a_process_that_dies_is_replaced_and_its_evaluation_asked_again(loop, count, elsewhere):
    known = LOOPS[loop](elsewhere.dies_once, executor=count)
    assert np.isfinite(known.values).all()
    assert (elsewhere.folder / "died").exists()


@pytest.mark.slow
@quietly
def test_an_evaluation_that_kills_its_process_twice_is_a_failure_and_others_are_innocent(elsewhere):
    trace = LOOPS["drive"](elsewhere.dies, executor=1)
    assert np.isnan(trace.values).tolist() == [[False, True, False]]
    assert LostWorkerError.__name__ in trace.failures[0].error


@quietly
@both
@pytest.mark.parametrize("executor", [None, "threads", 1, pytest.param(2, marks=pytest.mark.full)])
def test_sys_exit_in_an_evaluation_is_a_failure(loop, executor, elsewhere):
    if loop == "drive_async" and executor in (None, 1):
        return  # there is one worker alone
    with ThreadPoolExecutor(2) as pool:
        known = LOOPS[loop](elsewhere.leaves, executor=pool if executor == "threads" else executor)
    # Two workers share three evaluations, so worker 1 has one or two.
    assert len(known.failures) == np.sum(np.isnan(known.values)) in (1, 2)
    assert all("SystemExit('no license')" in failure.error for failure in known.failures)


def test_sys_exit_is_raised_where_not_all_exceptions_are_caught(elsewhere):
    with pytest.raises(SystemExit):
        LOOPS["drive"](elsewhere.leaves, catch=ValueError)


# ---------------------------------------------------------------- forks


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@both
def test_a_pool_that_would_fork_is_refused_by_name(loop):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, fork) as pool:
        for executor in (pool, Renewing(lambda: pool)):
            with pytest.raises(ValueError, match=r"forks.*spawn"):
                LOOPS[loop](bowl, executor=executor)


SCRIPT = """
    import jax.random as jr
    import jax.numpy as jnp
    import jaxbo

    def train(agent, x):
        return float(-jnp.sum((jnp.asarray(x) - 0.3) ** 2))

    {guard}
        trace = jaxbo.drive(
            jaxbo.RandomSearch(jaxbo.Cube(2)), train, 1, jr.key(0), executor=1, progress=False
        )[1]
        print("ended", trace.values.shape)
"""


def as_script(tmp_path, guard):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(guard=guard))
    command = [sys.executable, str(script)]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
def test_an_objective_in_jax_runs_in_processes_of_a_script(tmp_path):
    done = as_script(tmp_path, 'if __name__ == "__main__":')
    assert done.stdout == "ended (1, 1)\n", done.stderr


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    done = as_script(tmp_path, "if True:")
    assert "ended" not in done.stdout
    assert 'under `if __name__ == "__main__":`' in done.stderr


# ---------------------------------------------------------------- too late


def hung(elsewhere):
    return list(elsewhere.folder.glob("hung1-*"))


@pytest.mark.slow
@quietly
@of_drive
def test_an_evaluation_that_is_too_late_fails_and_its_process_is_ended(loop, count, elsewhere):
    begun = time.monotonic()
    known = LOOPS[loop](elsewhere.hangs, executor=count, timeout=1.0)
    assert time.monotonic() - begun < 100
    assert len(known.failures) == len(hung(elsewhere)) > 0
    assert all("longer than timeout=1 seconds" in failure.error for failure in known.failures)
    assert np.isnan(known.values).sum() == len(known.failures)
    for one in hung(elsewhere):
        assert not _runs(int(one.read_text()))


def _runs(process):
    import os

    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_time_counts_from_when_the_objective_is_imported(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import time\ntime.sleep(1.5)\ndef f(x):\n    return float(x[0])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import slow_to_import

    trace = LOOPS["drive"](slow_to_import.f, executor=1, timeout=1.0)
    assert np.isfinite(trace.values).all()


@quietly
@both
def test_a_thread_that_is_too_late_is_given_up_and_others_go_on(loop):
    free, begun = threading.Event(), []

    def objective(agent, x):
        begun.append(agent)
        if len(begun) == 1:
            free.wait(60)
        return bowl(agent, x)

    with ThreadPoolExecutor(2) as pool:
        known = LOOPS[loop](objective, executor=pool, timeout=0.5)
        assert not free.is_set()
        free.set()
    assert np.isnan(known.values).sum() == len(known.failures) == 1
    assert LateError.__name__ in known.failures[0].error
    assert len(begun) == 3


@quietly
@both
def test_a_run_whose_threads_are_all_given_up_ends_and_says_what_to_do(loop):
    free = threading.Event()

    def objective(agent, x):
        free.wait(60)
        return bowl(agent, x)

    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings():
        with pytest.raises(HeldError, match=r"all 2 workers.*executor=2"):
            LOOPS[loop](objective, executor=pool, timeout=0.3)
        free.set()


@both
def test_what_waits_for_a_thread_is_not_too_late(loop):
    def objective(agent, x):
        time.sleep(0.4)
        return bowl(agent, x)

    with ThreadPoolExecutor(1) as pool:
        known = LOOPS[loop](objective, executor=pool, timeout=0.9)
    assert np.isfinite(known.values).all()


def test_a_timeout_here_is_refused():
    with pytest.raises(ValueError, match="executor=1"):
        quiet(RANDOM, bowl, 1, jr.key(0), timeout=1.0)


@pytest.mark.parametrize("wrong", [0, -1.0, np.inf, [1.0, 2.0]])
@pytest.mark.usefixtures("as_users_have_it")
def test_a_timeout_is_a_positive_number(wrong):
    with pytest.raises(ValueError, match="timeout must be"):
        drive(RANDOM, bowl, 1, jr.key(0), timeout=wrong, executor=2)


@pytest.mark.slow
@quietly
def test_an_interrupt_at_once_ends_processes_at_once(elsewhere):
    began, outcomes = time.monotonic(), []

    def interrupted():
        with opened(1, None) as pool:
            outcomes.append(pool.submit(elsewhere.hangs, 1, [0.0]))
            while not hung(elsewhere):
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 60
    assert outcomes[0].done()


ORPHANS = """
    import os, sys, time
    import jax.random as jr
    import jaxbo

    def objective(x):
        if not os.path.exists(sys.argv[1]):
            with open(sys.argv[1], "w") as file:
                file.write(str(os.getpid()))
        time.sleep(60)
        return 0.0

    if __name__ == "__main__":
        search = jaxbo.RandomSearch(jaxbo.Cube(1), 1)
        jaxbo.drive(search, objective, 1, jr.key(0), executor=1, progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_processes_end_with_the_one_that_has_the_run(tmp_path):
    script, said = tmp_path / "run.py", tmp_path / "pid"
    script.write_text(textwrap.dedent(ORPHANS))
    running = subprocess.Popen(
        [sys.executable, str(script), str(said)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: said.exists() and said.read_text())
        worker = int(said.read_text())
        assert alive(worker)
    finally:
        running.kill()
        running.wait()
    wait_for(lambda: not alive(worker))


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
