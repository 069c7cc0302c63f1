"""Measurements of scaling, and the cost of each method."""

from dataclasses import replace

import jax
import pytest

import jaxbo
from bench.common import timing
from bench.speed import floor, methods, round_parts, scaling
from bench.speed.floor import Case
from jaxbo.algos.base.algorithm import AbstractAlgorithm

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


@pytest.fixture(autouse=True)
def a_small_array(monkeypatch):
    """Is what reading it measures the bandwidth by."""
    monkeypatch.setattr(timing, "BYTES", 2**20)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [
        Case("FTS", 24, 3, 20, devices=4, chunk=3),
        Case(agents=24, rounds=3, features=20),
    ],
)
def test_a_case_is_measured_beside_its_floor(case):
    found = scaling.measured(case, repeats=1)
    assert found.floor > 0
    assert found.compile > 0
    # Every agent has room for a feature vector of each round.
    assert found.state >= 4 * case.agents * case.rounds * case.features
    assert found.memory >= found.state / 2


@pytest.mark.full
def test_the_parts_of_a_round_have_floors_of_their_own():
    parts = round_parts.measured(Case(agents=24, rounds=4, features=20), repeats=1)
    assert list(parts) == ["message", "candidates", "search", "rest", "learn"]
    assert [name for name, part in parts.items() if not part.work] == ["rest"]
    assert [name for name, part in parts.items() if part.random > 0] == ["message"]
    assert [name for name, part in parts.items() if part.cosines > 0] == ["search"]
    whole = round_parts.whole(parts)
    assert whole.took == pytest.approx(sum(part.took for part in parts.values()))
    assert whole.floor == pytest.approx(sum(part.floor for part in parts.values()))


def test_the_floor_grows_with_what_there_is_to_do():
    small = Case()
    for more in (Case(features=200), Case(dim=6), Case(dim=12)):
        assert floor.operations(more) > 1.9 * floor.operations(small)
    assert floor.moved(Case(rounds=40)) == 2 * floor.moved(small)
    # Who follows the broadcast needs no function of its own.
    assert floor.operations(Case("DP-FTS-DE")) < floor.operations(small)


def test_all_cases_can_be_built_and_have_names_of_their_own():
    cases = scaling.cases(quick=False)
    names = [scaling._name(case) for case in cases]
    assert len(set(names)) == len(names) > 20
    for case in cases:
        assert floor.algorithm(case).agents == case.agents
        assert case.devices == 1 or case == scaling.UNEVEN or case.agents % case.devices == 0


@pytest.mark.parametrize(("memory", "outcome"), [(104, "holds"), (400, "refuted")])
def test_memory_of_agents_that_devices_do_not_divide_is_compared(memory, outcome):
    one = scaling.Measured(1.0, 1.0, 100, 50, 1.0, 1.0, 1.0, "a device", "cpu")
    (check,) = scaling.checks(
        [(scaling.EVEN, one), (scaling.UNEVEN, replace(one, memory=memory))]
    ).values()
    assert check.outcome == outcome


@pytest.mark.full
def test_every_method_has_its_costs():
    public = {m for m in vars(jaxbo).values() if isinstance(m, type)}
    expected = {
        m
        for m in public
        if issubclass(m, AbstractAlgorithm) and not m.__name__.startswith("Abstract")
    }
    assert {type(make(methods.AGENTS)) for make in methods.METHODS.values()} == expected


@pytest.mark.full
def test_costs_grow_as_the_state_does():
    cost = methods.measured("TS")
    algorithm = methods.METHODS["TS"](1)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    of_an_agent = state.told, state.clients, state.past, state.origin
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(of_an_agent))
    assert cost.state == one
    assert one / 2 < cost.peak < 10 * one
    assert cost.first.seconds > 0
