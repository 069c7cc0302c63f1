"""Elimination: the maximum of any graph, and how small its programs and tables are."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.factors import elimination
from jaxbo.kernels.factors.graph import FactorGraph
from tests.kernels.factors.graphs import GRAPHS, TIES, eliminated, named, sums, tables_of


@TIES
@named(GRAPHS, "tree-parts", "cycle-ternary")
def test_elimination_finds_a_maximum_of_any_graph(name, whole, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    assert sorted(elimination.order(graph)[0]) == list(range(len(sizes)))
    assert elimination.cells(graph) <= np.prod(sizes)
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes, whole)
        total = sums(sizes, scopes, tables)
        x = eliminated(graph, tables)
        np.testing.assert_allclose(total[tuple(x)], total.max(), rtol=1e-5)


def test_a_long_chain_is_eliminated_in_small_tables():
    graph = FactorGraph((4,) * 60, [(i, i + 1) for i in range(59)])
    assert elimination.order(graph)[1] == 16
    ring = FactorGraph((4,) * 60, [(i, (i + 1) % 60) for i in range(60)])
    assert elimination.order(ring)[1] == 64


@pytest.mark.slow
def test_parts_of_one_form_are_one_program(key):
    # Two forms: chains of three, and single variables; variable 1 is of no factor.
    chains = [(v, v + 1) for start in range(2, 302, 3) for v in (start, start + 1)]
    graph = FactorGraph((4,) * 352, [*chains, (0,), *((v,) for v in range(302, 352))])
    few = FactorGraph((4,) * 9, [(0,), (2, 3), (3, 4), (5, 6), (6, 7), (8,)])
    assert sorted(len(some.variables) for some in elimination.parts(graph)) == [51, 100]

    def size(graph):
        tables = graph.pack([jnp.zeros((4,) * len(scope)) for scope in graph.scopes])
        program = jax.make_jaxpr(lambda tables: elimination.maximize(graph, tables))(tables)
        return len(program.jaxpr.eqns)

    assert size(graph) == size(few)
    tables = tables_of(key, graph.sizes, graph.scopes)
    x = np.asarray(eliminated(graph, tables))
    chain = tables[0][:, :, None] + tables[1][None]
    np.testing.assert_array_equal(x[2:5], np.unravel_index(np.argmax(chain), chain.shape))
    np.testing.assert_array_equal(x[302:], [np.argmax(table) for table in tables[201:]])
    assert x[1] == 0
