"""Two sweeps over a tree: its maximum against enumeration, of graphs that are fixed and of data."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import structure
from jaxbo.kernels.factors import maxsum, tree
from jaxbo.kernels.factors.graph import DataGraph, FactorGraph
from tests.kernels.factors.graphs import TIES, TREES, named, solve, sums, tables_of


@TIES
@named(TREES, "alike", "ternary")
def test_two_sweeps_over_a_tree_find_a_maximum(name, whole, key):
    sizes, scopes = TREES[name]
    graph = FactorGraph(sizes, scopes)
    for k in jr.split(key, 5):
        tables = tables_of(k, sizes, scopes, whole)
        solution = solve(graph, tables, most_cells=0)
        assert solution.route == "tree"
        assert solution.gap == 0
        most = sums(sizes, scopes, tables)
        for reached in (most[tuple(solution.x)], solution.value):
            np.testing.assert_allclose(reached, most.max(), rtol=1e-5, atol=1e-5)


def test_what_is_forbidden_far_away_is_not_chosen_on_a_long_chain(key):
    points, length = 3, 250
    graph = FactorGraph((points,) * length, [(v, v + 1) for v in range(length - 1)] + [(0,)])
    solve = jax.jit(functools.partial(maxsum.solve, graph))
    forbidden = jnp.array([[-1e7, 0, 0]])
    for k in jr.split(key, 3):
        tables = jr.normal(k, (length - 1, points, points))
        order = [forbidden, tables] if len(graph.groups[0].shape) == 1 else [tables, forbidden]
        solution = solve(tuple(order))
        most = np.array([-np.inf, 0, 0])
        for table in np.asarray(tables, np.float64):
            most = (most[:, None] + table).max(axis=0)
        assert solution.route == "tree"
        assert solution.x[0] != 0
        np.testing.assert_allclose(solution.value, most.max(), rtol=1e-5)


def test_a_long_chain_is_solved_as_exactly_and_compiles_at_once(key):
    points, length = 3, 300
    graph = FactorGraph((points,) * length, [(v, v + 1) for v in range(length - 1)])
    tables = jr.normal(key, (length - 1, points, points))
    program = jax.jit(functools.partial(maxsum.solve, graph))
    equations = len(jax.make_jaxpr(program)((tables,)).jaxpr.eqns[0].params["jaxpr"].eqns)
    assert equations < 200  # unrolled there would be several for each variable
    solution = program((tables,))
    most = np.zeros(points)  # of all before, by the value of the last (Viterbi)
    for table in np.asarray(tables, np.float64):
        most = (most[:, None] + table).max(axis=0)
    assert solution.exact
    np.testing.assert_allclose(solution.value, most.max(), rtol=1e-5)


@TIES
def test_two_sweeps_over_a_tree_that_is_data_find_a_maximum(whole, key):
    grid, dim, trees = 3, 6, 8

    @jax.jit
    @jax.vmap
    def solve(key, tables):
        random = structure.RandomTree()
        scopes = random.start(key, dim)
        graph = DataGraph(scopes, dim, grid, random.order(scopes))
        return scopes, maxsum.solve(graph, (tables,))

    shape = (trees, dim - 1, grid, grid)
    tables = jr.randint(key, shape, 0, 3).astype(float) if whole else jr.normal(key, shape)
    scopes, solutions = solve(jr.split(key, trees), tables)
    assert solutions.route == "tree"
    for i in range(trees):
        total = sums((grid,) * dim, [tuple(map(int, s)) for s in scopes[i]], tables[i])
        np.testing.assert_allclose(solutions.value[i], total.max(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(total[tuple(solutions.x[i, :dim])], total.max(), rtol=1e-5)
    np.testing.assert_array_equal(solutions.bound, solutions.value)


def test_two_sweeps_go_over_trees_of_triples_that_are_data(key):
    grid, dim = 3, 7
    below = np.array([[0, 1, 2], [3, 4, 2], [5, 0, 6]])  # each touches an earlier one
    solve = jax.jit(
        lambda scopes, order, table: maxsum.solve(DataGraph(scopes, dim, grid, order), (table,))
    )
    for k in jr.split(key, 5):
        name_key, factor_key, k = jr.split(k, 3)
        names = jr.permutation(name_key, dim)
        scopes = jr.permutation(factor_key, names[below])
        table = jr.normal(k, (len(below), *(grid,) * 3))
        solution = solve(scopes, names[np.array([2, 0, 3, 5, 6, 1, 4])], table)
        total = sums((grid,) * dim, [tuple(map(int, s)) for s in scopes], table)
        assert solution.route == "tree"
        np.testing.assert_allclose(total[tuple(solution.x[:dim])], total.max(), rtol=1e-5)


def test_a_graph_that_may_be_no_tree_is_not_swept():
    with pytest.raises(ValueError, match="must have an order"):
        tree.maximize(DataGraph(jnp.array([[0, 1]]), 2, 3), (jnp.zeros((1, 3, 3)),))
