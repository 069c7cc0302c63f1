"""Pictures of agents, workers, releases and factors show the numbers that they are given."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxbo
from jaxbo import plotting
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import FactorGraph

MECHANISMS = {f"z = {z}": jaxbo.Mechanism(z, 1.0, jaxbo.Poisson(0.1)) for z in (1, 2)}


def labeled(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def bars(ax, label):
    """Row, start and end of each bar."""
    found = [c for c in ax.containers if c.get_label() == label]
    return [
        (round(p.get_y() + p.get_height() / 2), p.get_x(), p.get_x() + p.get_width())
        for container in found
        for p in container
    ]


def timeline(**changes):
    fields = {
        "queries": jnp.zeros((4, 1)),
        "values": jnp.array([1.0, 2.0, jnp.nan, 3.0]),
        "workers": jnp.array([1, 0, 1, 0]),
        "tickets": jnp.arange(4),
        "started": jnp.array([0.0, 0.0, 1.0, 3.0]),
        "ended": jnp.array([1.0, 3.0, 2.0, 4.0]),
    }
    return jaxbo.Timeline(**fields | changes)


def test_utilization_has_a_bar_an_evaluation_and_the_share_of_time_of_each_worker():
    ax = plotting.utilization(timeline())
    assert sorted(bars(ax, "evaluated")) == [(0, 0, 3), (0, 3, 4), (1, 0, 1)]
    assert bars(ax, "failed") == [(1, 1, 2)]
    assert texts(ax) == ["100 %", "50 %"]
    assert ax.get_xlim() == (0, 4)
    low, high = ax.get_ylim()
    assert low > high  # the first worker is at the top


def test_an_evaluation_that_never_ends_has_no_bar():
    ax = plotting.utilization(timeline(ended=jnp.array([1.0, jnp.inf, 2.0, jnp.inf])))
    assert bars(ax, "evaluated") == [(1, 0, 1)]
    with pytest.raises(ValueError, match="no evaluation whose start and end are known"):
        plotting.utilization(timeline(ended=jnp.full(4, jnp.inf)))


def test_utilization_of_a_trace_has_a_row_an_agent_and_time_from_the_first_start():
    times = np.array([[[100.0, 2.0], [101.0, 1.0]], [[103.0, 1.0], [np.nan, np.nan]]])
    trace = jaxbo.Trace(
        jnp.zeros((2, 2, 1)), np.array([[1.0, 2.0], [3.0, np.nan]]), (), times=times
    )
    ax = plotting.utilization(trace)
    assert sorted(bars(ax, "evaluated")) == [(0, 0, 2), (0, 3, 4), (1, 1, 2)]
    assert texts(ax) == ["75 %", "25 %"]
    assert ax.get_xlabel() == "seconds"
    with pytest.raises(ValueError, match="no evaluation whose start and end are known"):
        plotting.utilization(dataclasses.replace(trace, times=None))


def test_evaluations_of_a_desk_that_overlap_are_in_rows_of_their_own():
    started, ended = np.array([2.0, 0.0, 1.0, 0.0]), np.array([3.0, 2.0, 4.0, np.nan])
    assert plotting._times._free(started, ended).tolist() == [0, 0, 1, 0]


def test_a_timeline_marks_who_was_heard_who_was_not_and_what_failed():
    present = np.array([[True, False], [True, True], [False, True]])
    values = np.array([[np.nan, 1.0], [1.0, 2.0], [np.nan, 2.0], [1.0, 2.0]])
    trace = jaxbo.Trace(jnp.zeros((4, 2, 1)), values, (), initial=1)
    ax = plotting.timeline(present, run=trace)
    expected = {
        "heard": [[1, 0], [2, 0], [2, 1], [3, 1]],
        "not heard": [[1, 1], [3, 0]],
        "failed": [[2, 0]],  # the initial design is before the first round
    }
    for label, places in expected.items():
        np.testing.assert_array_equal(labeled(ax, label)[0].get_xydata(), places)
    assert texts(ax) == ["67 %", "67 %"]
    with pytest.raises(ValueError, match="run must have the 2 rounds and 2 agents"):
        plotting.timeline(present[:2], run=trace)


def test_a_privacy_curve_is_the_loss_that_a_ledger_has_after_as_many_releases():
    ax = plotting.privacy_curve(
        MECHANISMS, 5, 1e-3, accountant=jaxbo.accounting.moments, budget=1.5
    )
    for name, mechanism in MECHANISMS.items():
        (line,) = labeled(ax, name)
        assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
        ledger = jaxbo.Ledger(1e-3, accountant=jaxbo.accounting.moments)
        for loss in line.get_ydata():
            ledger = ledger.charge(mechanism)
            assert loss == pytest.approx(ledger.epsilon())
    np.testing.assert_array_equal(labeled(ax, "budget")[0].get_ydata(), [1.5, 1.5])
    assert texts(ax) == [*MECHANISMS, "budget"]


def test_a_privacy_curve_of_many_rounds_ends_at_the_last_one():
    one = {"one": MECHANISMS["z = 1"]}
    ax = plotting.privacy_curve(one, 1000, 1e-3, accountant=jaxbo.accounting.moments)
    rounds = ax.lines[0].get_xdata()
    assert (rounds[0], rounds[-1], len(rounds) <= 33) == (1, 1000, True)


@pytest.fixture
def agents():
    """Three agents in two rounds; the last one has failed, and values are small where they are good."""
    queries = jnp.asarray(
        [[[0.1, 0.2], [0.3, 0.4], [0.5, 0.5]], [[0.6, 0.7], [0.8, 0.9], [0.5, 0.5]]]
    )
    values = np.array([[1.0, 5.0, np.nan], [2.0, 4.0, np.nan]])
    return jaxbo.Trace(queries, values, (), direction="minimize")


def test_a_map_has_a_dot_at_the_best_point_of_each_agent_that_has_one(agents):
    ax = plotting.agent_map(agents, domain=jaxbo.Cube(2))
    dots = ax.collections[0]
    np.testing.assert_allclose(dots.get_offsets(), [[0.1, 0.2], [0.8, 0.9]], rtol=1e-6)
    assert texts(ax) == ["0", "1"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x₁", "x₂")
    turned = plotting.agent_map(agents, domain=jaxbo.Cube(2), first=1, second=0)
    np.testing.assert_allclose(turned.collections[0].get_offsets()[0], [0.2, 0.1], rtol=1e-6)


def test_lines_of_a_map_are_as_wide_as_an_agent_listens(agents):
    weights = np.array([[9.0, 0.5, 1.0], [1.0, 9.0, 0.0], [1.0, 1.0, 9.0]])
    ax = plotting.agent_map(agents, domain=jaxbo.Cube(2), weights=weights)
    widths = {line.get_label(): line.get_linewidth() for line in ax.lines}
    assert set(widths) == {"_0 1", "_1 0"}  # the third has no place
    assert widths["_1 0"] == 2 * widths["_0 1"]


def test_a_map_needs_agents_with_values_of_their_own(agents):
    for changes, message in (
        ({"shared": True}, "workers who share an objective"),
        ({"values": np.full((2, 3), np.nan)}, "no agent with a value"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.agent_map(dataclasses.replace(agents, **changes), domain=jaxbo.Cube(2))


def test_a_factor_graph_joins_each_factor_to_its_variables():
    scopes = [(0, 1), (2, 1), (2,)]
    ax = plotting.factor_graph(FactorGraph([3, 2, 3], scopes), names=["a", "b", "c"])
    assert texts(ax) == ["a", "b", "c", "φ₁", "φ₂", "φ₃"]
    (variables,), (factors,) = labeled(ax, "variable"), labeled(ax, "factor")
    for f, scope in enumerate(scopes):
        for v in scope:
            (line,) = labeled(ax, f"_{f} {v}")
            ends = [factors.get_xydata()[f], variables.get_xydata()[v]]
            np.testing.assert_array_equal(line.get_xydata(), ends)


@pytest.mark.slow
def test_messages_make_lines_wider_and_dots_the_maximum_on_a_tree():
    rng = np.random.default_rng(0)
    graph = FactorGraph([3, 2, 3], [(0, 1), (1, 2)])
    tables = [jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(5 * rng.normal(size=(2, 3)))]
    messages, _ = maxsum.settle(graph, graph.pack(tables), damping=0.0)
    ax = plotting.factor_graph(graph, messages=messages)
    best = max(
        itertools.product(range(3), range(2), range(3)),
        key=lambda x: tables[0][x[0], x[1]] + tables[1][x[1], x[2]],
    )
    for v, size in enumerate(graph.sizes):
        curve = labeled(ax, f"_belief {v}")[0]
        assert len(curve.get_xdata()) == size
        assert labeled(ax, f"_best {v}")[0].get_xdata()[0] == curve.get_xdata()[best[v]]
    widths = [
        labeled(ax, f"_{f} {v}")[0].get_linewidth() for f, v in [(0, 0), (0, 1), (1, 1), (1, 2)]
    ]
    assert max(widths) == widths[3] == plotting._factors._WIDEST
    assert max(widths[:2]) < min(widths[2:])
