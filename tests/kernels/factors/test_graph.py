"""Factor graphs: how tables are packed, what a sum is, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors.graph import DataGraph, FactorGraph
from tests.kernels.factors.graphs import CYCLES, GRAPHS, TREES, sums, tables_of


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_knows_the_factors_of_every_variable_by_their_axes(name):
    graph = FactorGraph(*GRAPHS[name])
    order = np.random.default_rng(0).permutation(len(graph.sizes))
    plan = graph.incidence(order)
    np.testing.assert_array_equal(plan.order, order)
    for group, axes in zip(graph.groups, plan.factors, strict=True):
        for column, rows in zip(np.asarray(group.variables).T, axes, strict=True):
            for v, row in zip(order, rows, strict=True):
                expected = np.flatnonzero(column == v)
                np.testing.assert_array_equal(row[: len(expected)], expected)
                np.testing.assert_array_equal(row[len(expected) :], -1)


@pytest.mark.parametrize("name", GRAPHS)
def test_breadth_first_is_near_before_far_one_part_after_the_other(name):
    sizes, scopes = GRAPHS[name]
    near = np.array(
        [
            [any({u, v} <= set(s) for s in scopes) for u in range(len(sizes))]
            for v in range(len(sizes))
        ]
    )
    order, expected = FactorGraph(sizes, scopes).breadth_first().tolist(), []
    while len(expected) < len(sizes):  # the next one is near the earliest that has any left
        rest = [v for v in range(len(sizes)) if v not in expected]
        expected.append(next((v for u in expected for v in rest if near[u, v]), rest[0]))
    assert order == expected


@pytest.mark.parametrize("name", GRAPHS)
def test_variables_of_one_color_share_no_factor_and_a_tree_has_few(name):
    sizes, scopes = GRAPHS[name]
    colors = FactorGraph(sizes, scopes).colors()
    np.testing.assert_array_equal(colors.sum(axis=0), 1)
    assert colors.any(axis=1).all()
    for scope in scopes:
        assert (colors[:, list(scope)].sum(axis=1) <= 1).all()
    most = max(len(scope) for scope in scopes)
    # A tree has no more of them than its largest factor has variables.
    assert len(colors) == most if name.removeprefix("tree-") in TREES else len(colors) >= most


def test_the_value_of_a_point_is_the_sum_of_its_tables(key):
    sizes, scopes = CYCLES["ternary"]
    graph, tables = FactorGraph(sizes, scopes), tables_of(key, sizes, scopes)
    points = np.random.default_rng(0).integers(0, 3, (20, 5))
    value = jax.vmap(lambda x: factor_graph.value(graph, graph.pack(tables), x))
    expected = sums(sizes, scopes, tables)[tuple(points.T)]
    np.testing.assert_allclose(jax.jit(value)(jnp.asarray(points)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [1.5, "0"])
def test_what_is_no_whole_number_is_refused(wrong):
    with pytest.raises(TypeError):
        FactorGraph((3, 2), ((0, wrong),))
    with pytest.raises(TypeError):
        FactorGraph((3, wrong), ((0, 1),))


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ([[0, 9]], r"factors name variables \[9\], but there are 3"),
        ([[0, -3]], r"variables \[-3\]"),
        ([[0, 1], [2, 2]], "factor 1 names a variable twice"),
    ],
)
def test_impossible_graphs_that_are_data_are_refused(scopes, message):
    with pytest.raises(ValueError, match=message):
        DataGraph(jnp.array(scopes), 3, 4)


@pytest.mark.parametrize(
    ("sizes", "scopes", "message"),
    [
        ((3, 3), (), "no factors"),
        ((3, 3), ((),), "factor 0 has no variables"),
        ((3, 3), ((0, 1), (1, 1)), "factor 1 names a variable twice"),
        ((3, 3), ((0, 2),), r"names variables \[2\]"),
        ((3, 3), ((-1, 0),), r"names variables \[-1\]"),
        ((3, 0), ((0,),), "variable 1 has 0 grid points"),
        ((3000, 3000, 3000), ((0, 1, 2),), r"101 GiB \(108000000000 bytes\)"),
    ],
)
def test_impossible_graphs_are_refused(sizes, scopes, message):
    with pytest.raises(ValueError, match=message):
        FactorGraph(sizes, scopes)


def test_tables_that_do_not_fit_are_refused():
    graph = FactorGraph((3, 4), ((1, 0),))
    with pytest.raises(ValueError, match=r"shape \(4, 3\).*got \(3, 4\)"):
        graph.pack([jnp.zeros((3, 4))])
    with pytest.raises(ValueError, match="each of 1 factors, got 2"):
        graph.pack([jnp.zeros((4, 3))] * 2)


@pytest.mark.parametrize(
    ("scopes", "order"),
    [
        ([[0, 1], [1, 2]], [0, 0, 0]),
        ([[0, 1], [1, 2]], [0, 2, 1]),
        ([[0, 1], [1, 2], [2, 0]], [0, 1, 2, 3]),
        ([[0, 1], [1, -1]], [0, 1, 2]),
    ],
    ids=["no permutation", "not touched", "a cycle", "an empty place"],
)
def test_an_order_of_another_graph_is_refused(scopes, order):
    with pytest.raises(ValueError, match="is no order of a tree"):
        DataGraph(jnp.array(scopes), len(order), 2, jnp.array(order))


@pytest.mark.parametrize(
    ("scopes", "count", "grid", "error"),
    [
        (jnp.zeros((0, 2), int), 3, 4, "of at least one factor"),
        (jnp.zeros(2, int), 3, 4, r"integers \[factors, arity\]"),
        (jnp.zeros((2, 1)), 3, 4, "must be integers"),
        (jnp.zeros((2, 1), int), 0, 4, "count must be a whole number of at least 1"),
        (jnp.zeros((2, 1), int), 3, 0, "grid must be a whole number of at least 1"),
    ],
)
def test_a_graph_that_is_data_says_what_is_wrong(scopes, count, grid, error, as_users_have_it):
    with pytest.raises(ValueError, match=error):
        DataGraph(scopes, count, grid)


def test_an_order_is_of_a_tree():
    order = jnp.arange(3)
    assert DataGraph(jnp.array([[0, 1], [1, 2]]), 3, 4, order).order is order
    with pytest.raises(ValueError, match="3 factors of 2 make none"):
        DataGraph(jnp.array([[0, 1], [1, 2], [2, 0]]), 3, 4, order)
    with pytest.raises(ValueError, match=r"it has shape \(2,\)"):
        jax.eval_shape(lambda s: DataGraph(s, 3, 4, order[:2]), jnp.array([[0, 1], [1, 2]]))
