"""What a first call costs: the parts of its time, and how long a driver makes its user wait."""

import time
from types import SimpleNamespace

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

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
    assert found.kernels < found.instructions
    # Each of these is a few dozen milliseconds at least, and nothing is counted in another unit.
    assert 0.01 < found.passes + found.writing + found.llvm < 60


@pytest.mark.full
def test_a_driver_is_measured_beside_its_evaluations(monkeypatch):
    slept = []
    # Threads of other tests in this process may sleep, too: only this module's clock is another one.
    clock = SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter)
    monkeypatch.setattr(methods, "time", clock)
    monkeypatch.setattr(methods, "SLOW", 0.25)
    start = time.perf_counter()
    waited = methods.driven("RandomSearch")
    # Nothing sleeps, and five rows of evaluations are left out all the same.
    assert waited <= time.perf_counter() - start - 5 * 0.25
    assert abs(sum(slept) - 5 * 0.25) < 1e-9


def test_only_workers_of_one_model_have_a_desk():
    assert methods.asked("RandomSearch") is None
