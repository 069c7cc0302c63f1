"""The measurements for a GPU, tried without a GPU: kernels are interpreted, and sizes are small."""

import json

import jax
import jax.numpy as jnp
import pytest

from bench import runner
from bench.common import timing
from bench.common.timing import Figure
from bench.speed import floor, gpu
from bench.speed.floor import Case
from bench.speed.gpu import Device, Missing
from jaxbo.kernels.accelerated import choice, roots

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

CPU, GPU = Device(1e10, 1e11, gpu=False), Device(1e12, 1e13, gpu=True)


@pytest.fixture(autouse=True)
def a_small_array(monkeypatch):
    """The bandwidth is measured by reading a small array."""
    monkeypatch.setattr(timing, "BYTES", 2**20)


@pytest.mark.full
def test_kernels_are_compared_with_the_plain_programs(key, monkeypatch):
    names = list(gpu.tasks(key, 3, 6, 10, steps=1))
    (product,) = [name for name in names if "a draw" in name]
    assert len(names) == 4
    monkeypatch.setattr(gpu, "tasks", only(gpu.tasks, product))
    (right,) = gpu.errors(key, CPU, (3, 6, 10))
    assert right.check().holds

    def wrong(*arrays, **options):
        return tuple(a + 1e-3 for a in through(*arrays, **options))

    through = roots.through
    monkeypatch.setattr(roots, "through", wrong)
    (found,) = gpu.errors(key, CPU, (3, 6, 10))
    assert found.check().refuted
    assert 1e-4 < found.value < 1e-2


def only(tasks, name):
    return lambda *arguments, **options: {name: tasks(*arguments, **options)[name]}


def test_switching_on_ends_with_the_measurement():
    before = choice.PLATFORMS
    with gpu.switched("cpu"):
        assert choice.PLATFORMS == ("cpu",)
    assert before == choice.PLATFORMS
    with pytest.raises(ZeroDivisionError), gpu.switched():
        _ = 1 / 0
    assert before == choice.PLATFORMS


def test_a_task_is_timed_beside_its_floor(key):
    def make():
        return gpu.Task(lambda x: x + 1, (jnp.ones(8),), bytes=64.0, operations=1e11)

    (plain,) = gpu.ratios("a task", make, CPU, repeats=1)
    # A second of operations, and no time to speak of for its bytes.
    assert plain.beside == "its floor of 1e+03 ms"
    assert plain.ratio == pytest.approx(1e3 / plain.value)
    # On a GPU the kernel, too, beside the plain program; a CPU stands in for it here.
    found = gpu.ratios("a task", make, GPU, repeats=1)
    assert [f.beside.split()[-1] for f in found] == ["ms", "ms", "program"]
    assert found[2].ratio == pytest.approx(found[0].value / found[1].value)


@pytest.mark.full
def test_the_population_has_a_goal(monkeypatch):
    case = Case("DP-FTS-DE", 12, 2, features=10, chunk=5)
    found = gpu.compiled(floor.rounds(case)[0], jax.random.key(0), floor.rounds(case)[1])
    monkeypatch.setattr(gpu, "compiled", lambda *of_the_case: found)  # twice the same program
    each, compiling = gpu.of_rounds(case, CPU, kernels=False, repeats=1)
    assert each.name == "DP-FTS-DE, 12 agents, 2 rounds, in chunks of 5, plain"
    least = 1e6 * floor.seconds(case, CPU.read, CPU.fastest) / 24
    assert each.ratio == pytest.approx(least / each.value)
    assert compiling.value > 0
    monkeypatch.setattr(gpu, "POPULATION", 12)
    monkeypatch.setattr(gpu, "ROUNDS", 2)
    *_, whole = gpu.of_rounds(case, CPU, kernels=False, repeats=1)
    assert whole.goal == "<= 20"
    assert whole.check().holds


def test_what_cannot_be_measured_says_why():
    def too_large():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    def broken():
        raise ValueError("first line\nsecond line")

    late, soon = 0.0, float("inf")
    figure = Figure("a", 1.0, "s")
    assert gpu.attempted("a", lambda: [figure], soon) == [figure]
    assert gpu.attempted("a", lambda: [figure], late) == [Missing("a", "no time left")]
    assert gpu.attempted("a", too_large, soon) == [Missing("a", "out of memory")]
    assert gpu.attempted("a", broken, soon) == [Missing("a", "failed: ValueError: first line")]
    assert len(Missing("a", "b").cells()) == len(timing.HEADERS)


def test_a_million_agents_are_tried_at_once_and_in_chunks(key):
    cases = gpu.cases(gpu.SIZES, gpu=True)
    assert len(set(cases)) == len(cases)
    million = [case.chunk for case, _ in cases if (case.kind, case.agents) == ("FTS", 10**6)]
    assert million == [None, gpu.CHUNK]
    names = [
        name
        for part in gpu.PARTS
        for name, _ in gpu.measurements(part, key, GPU, gpu.FULL._replace(repeats=1))
    ]
    assert len(set(names)) == len(names) > 20
    # Without a GPU nothing is large.
    assert all(case.agents < 100 for case, _ in gpu.cases(gpu.SMALL.rounds, gpu=False))


@pytest.mark.full
def test_a_result_names_the_device(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu.floor, "rate", lambda case: 1e11)
    assert runner.main(["gpu", "--quick", "--only", "max-sum", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "gpu-max-sum.json").read_text())
    assert content["settings"]["device"] == jax.devices()[0].device_kind
    assert content["settings"]["kernels"] == "interpreted, no GPU"
    assert content["settings"]["missing"] == {}
    assert "a chain of 50 variables" in capsys.readouterr().out
