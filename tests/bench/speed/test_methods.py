"""What a first call costs: the parts of its time, and how long a driver makes its user wait."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bench import runner, tables
from bench.speed import methods


@pytest.fixture
def uncached():
    """What was compiled in an earlier run of the tests is compiled again."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.mark.full
@pytest.mark.usefixtures("uncached")
def test_the_parts_of_a_first_call_are_found():
    found = methods.where("RandomSearch")
    assert min(found) > 0
    # Each of these is a few dozen milliseconds at least, and nothing is counted in another unit.
    assert 0.01 < found.passes + found.writing + found.llvm < 60


@pytest.mark.full
def test_a_driver_is_measured_beside_its_evaluations(monkeypatch):
    slept = []
    # Threads of other tests in this process may sleep, too: only this module's clock is another one.
    clocks = {"perf_counter": time.perf_counter, "process_time": time.process_time}
    clock = SimpleNamespace(sleep=slept.append, **clocks)
    monkeypatch.setattr(methods, "time", clock)
    monkeypatch.setattr(methods, "SLOW", 0.25)
    start, before = time.perf_counter(), time.process_time()
    found = methods.driven("RandomSearch")
    # Nothing sleeps, and five rows of evaluations are left out all the same.
    assert found.seconds <= time.perf_counter() - start - 5 * 0.25
    assert 0 < found.processor <= time.process_time() - before
    assert abs(sum(slept) - 5 * 0.25) < 1e-9


def test_only_workers_of_one_model_have_a_desk():
    assert methods.asked("RandomSearch") is None


def test_a_call_is_measured_with_all_its_threads_and_its_memory(monkeypatch):
    def work():
        start = time.thread_time()
        while time.thread_time() < start + 0.05:
            pass

    def call():
        other = threading.Thread(target=work)
        other.start()
        other.join()
        time.sleep(0.05)

    monkeypatch.setattr(methods, "IMPORTED", 300 * 10**6)
    monkeypatch.setattr(methods, "resident", lambda: 700 * 10**6)
    found = methods._called(call)
    assert found.seconds >= 0.1
    assert found.processor >= 0.05
    assert (found.memory, found.growth) == (700, 400)


def test_the_memory_of_a_process_is_the_most_that_it_has_held():
    code = (
        "import numpy; from bench.common.timing import resident; before = resident();"
        "numpy.ones(2 * 10**7); print(resident() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 150e6 < int(done.stdout) < 200e6


@pytest.fixture
def asked_for(monkeypatch):
    """The processes that are begun: method, part, and whether their folder had something in it."""
    begun = []

    def elsewhere(module, name, folder, part):
        if part == "where":
            begun.append((name, part, folder))
            return list(range(1, 6))
        kept = Path(folder) / part
        begun.append((name, part, [file.name for file in Path(folder).iterdir()]))
        call = [1.0, 1.5, 900.0, 300.0] if kept.exists() else [6.0, 9.0, 1200.0, 600.0]
        kept.touch()
        if part == "run":
            return [call, 1000, 2000]
        return None if part == "desk" and name != "BO" else call

    monkeypatch.setattr(methods, "elsewhere", elsewhere)
    monkeypatch.setattr(methods, "_import_seconds", lambda: 0.4)
    return begun


def test_each_part_has_a_process_without_a_cache_and_then_a_process_with_it(asked_for):
    cost = methods._of_method("BO")
    assert asked_for == [
        *[("BO", part, some) for part in methods.CALLS for some in ([], [part])],
        ("BO", "where", ""),
    ]
    assert [cost[call] for pair in methods.CALLS.values() for call in pair] == 3 * [6.0, 1.0]
    assert cost["processor"]["drive"] == 9.0
    assert cost["growth"]["cached desk"] == 300.0
    assert (cost["state"], cost["peak"], cost["llvm"]) == (1000, 2000, 5)


@pytest.mark.usefixtures("asked_for")
def test_a_desk_of_the_first_choice_has_goals_of_its_own():
    found = {name: methods._of_method(name) for name in ("TS", "BO")}
    checks = methods.checks(found)
    outcomes = {claim: str(check.outcome) for claim, check in checks.items() if "desk" in claim}
    assert outcomes == {
        "BO: the first query of a desk within 4 s": "refuted",
        "BO: a desk's first query within 5 s": "refuted",
        "BO: the cached query of a desk within 1 s": "holds",
        "BO: a desk's first query takes less than 500 MB": "refuted",
    }


@pytest.mark.usefixtures("asked_for")
def test_each_call_from_the_cache_has_a_goal():
    checks = methods.checks({name: methods._of_method(name) for name in ("TS", "BO")})
    cached = {claim for claim in checks if "the cached" in claim}
    assert cached == {
        *(
            f"{name}: the cached {part} within 1 s"
            for name in ("TS", "BO")
            for part in ("run", "drive")
        ),
        "BO: the cached query of a desk within 1 s",
    }


@pytest.mark.usefixtures("asked_for")
def test_first_calls_have_two_tables_and_cells_of_older_results_are_empty():
    made = methods._run(runner.Options(quick=True))
    assert {len(made.headers)} == {len(row) for row in made.rows}
    settings = made.settings | {"costs": {"BO": methods._of_method("BO")} | made.settings["costs"]}
    head, bo, ts, _ = tables.TABLES["methods"]({"methods": {"settings": settings}})
    assert head[1:5] == ["first `run`", "cached", "first `drive`", "cached"]
    assert bo == ["BO", *3 * ["6.0 s", "1.0 s"], "1 kB", "2 kB"]
    assert ts == ["TS", *2 * ["6.0 s", "1.0 s"], "", "", "1 kB", "2 kB"]
    _, bo, ts, _ = tables.TABLES["methods-compiling"]({"methods": {"settings": settings}})
    assert bo == ["BO", *3 * ["9.0 s"], *3 * ["600 of 1200 MB"]]
    assert ts == ["TS", "9.0 s", "9.0 s", "", "600 of 1200 MB", "600 of 1200 MB", ""]
    older = {"first": 6.0, "cached": 1.0, "drive": 2.0, "desk": None, "state": 1000, "peak": 2000}
    results = {"methods": {"settings": {"costs": {"TS": older}}}}
    assert tables.TABLES["methods"](results)[1][1:7] == ["6.0 s", "1.0 s", "2.0 s", "", "", ""]
    assert tables.TABLES["methods-compiling"](results) == []
