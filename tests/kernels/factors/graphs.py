"""Graphs to test with, their sums by enumeration, and programs that the tests of all modules share."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.factors import elimination, local_search, maxsum
from jaxbo.kernels.factors import graph as factor_graph

#: Sizes and scopes: of a chain, of trees with factors of one to three variables, of parts.
TREES = {
    "chain": ((3, 4, 2, 5), ((0, 1), (1, 2), (2, 3))),
    "star": ((4, 3, 3, 2), ((0, 1), (2, 0), (0, 3), (0,))),
    "ternary": ((3, 2, 4, 2, 3), ((0, 1, 2), (2, 3, 4), (4,))),
    "parts": ((3, 3, 2, 2, 4), ((1, 0), (2, 3))),
    "alike": ((3, 2, 3, 2, 3, 2), ((3, 2), (0, 1), (4, 5), (5,), (2,), (0,))),
    "one": ((5,), ((0,),)),
}
CYCLES = {
    "triangle": ((3, 4, 2), ((0, 1), (1, 2), (2, 0))),
    "grid": ((2,) * 6, ((0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5))),
    "ternary": ((3,) * 5, ((0, 1, 2), (1, 2, 3), (2, 3, 4), (4, 0), (3,))),
    "complete": ((3,) * 5, tuple(itertools.combinations(range(5), 2))),
}
GRAPHS = {f"tree-{k}": v for k, v in TREES.items()} | {f"cycle-{k}": v for k, v in CYCLES.items()}
TIES = pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])


def named(graphs, *quick):
    """Each of these graphs by its name; all but the `quick` ones are more of the same."""
    names = [pytest.param(n, marks=[] if n in quick else pytest.mark.full) for n in graphs]
    return pytest.mark.parametrize("name", names)


def tables_of(key, sizes, scopes, whole=False):
    """Random ones; of whole numbers, so that maxima tie."""
    rng = np.random.default_rng(np.asarray(jr.key_data(key)))
    shapes = [tuple(sizes[v] for v in scope) for scope in scopes]
    draw = functools.partial(rng.integers, 0, 3) if whole else rng.standard_normal
    return [jnp.asarray(draw(size=shape), float) for shape in shapes]


def sums(sizes, scopes, tables):
    """The sum at every point of the grid, by enumeration."""
    total = np.zeros(sizes)
    for scope, table in zip(scopes, tables, strict=True):
        order = np.argsort(scope)
        shape = [1] * len(sizes)
        for v in scope:
            shape[v] = sizes[v]
        total = total + np.transpose(np.asarray(table, np.float64), order).reshape(shape)
    return total


def spread(tables, grid):
    """Tables of up to three axes, as if they had three."""
    return jnp.stack(
        [np.broadcast_to(t.reshape(t.shape + (1,) * (3 - t.ndim)), (grid,) * 3) for t in tables]
    )


# One program for a graph, whatever is asked of it: tables are packed within.


def _shared(function, *static):
    """Compiled once for a graph, given tables in the order of its scopes."""

    @functools.partial(jax.jit, static_argnums=0, static_argnames=static)
    def program(graph, tables, *numbers, **options):
        return function(graph, graph.pack(tables), *numbers, **options)

    return program


def _passed(graph, packed, damping):
    """Messages that have settled, after how many rounds, and what they say, each point with its sum."""
    messages, count = maxsum.settle(graph, packed, iterations=60, damping=damping)
    x = maxsum.decode(graph, packed, messages)
    better = local_search.improve(graph, packed, x)
    value = factor_graph.value(graph, packed, x)
    return count, maxsum.beliefs(graph, messages), x, better, value


passed = _shared(_passed)
bounds = _shared(lambda graph, packed: maxsum.upper_bound(graph, packed, sweeps=200)[1])
eliminated = _shared(elimination.maximize)
solve = _shared(maxsum.solve, "iterations", "decodings", "sweeps", "most_cells")
