"""Local search: that it never loses, where it ends, and that kicks find what ascent does not."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors import local_search, maxsum
from jaxbo.kernels.factors.graph import DataGraph, FactorGraph
from tests.kernels.factors.graphs import CYCLES, TIES, named, spread, sums, tables_of

MIXED = (3, 1, 4, 2, 3, 2), ((0, 1, 2, 3), (2, 3, 4), (4, 2), (5,), (3, 5), (5, 0))
#: No sum is this.
NEVER = jnp.array(jnp.inf, float)
#: Three turns of one or two factors, two of three, and on.
KICKS = 50
GRAPHS = {"complete": CYCLES["complete"], "mixed": MIXED}


def climbed(total, near, x, waiting, late):
    """Coordinate ascent by the whole sum: one variable after the other, the `late` ones at last."""
    x, waiting, last = list(x), set(waiting), -1
    while waiting:
        last = min(waiting, key=lambda v: (v in late, (v - last - 1) % len(x)))
        waiting.remove(last)
        line = total[(*x[:last], slice(None), *x[last + 1 :])]
        if line.max() > line[x[last]]:
            x[last] = int(np.argmax(line))
            waiting |= near[last]
    return x


def kicked(graph, total, x, kicks):
    """`escape` in plain Python, where there are at least as many kicks as factors."""
    sizes = graph.sizes
    scopes = [tuple(map(int, row)) for group in graph.groups for row in group.variables]
    near = [{w for s in scopes if v in s for w in s} - {v} for v in range(len(sizes))]
    for number in range(kicks):
        turn, first = divmod(number, len(scopes))
        together = 1 + turn // 2 % 3  # two turns each of one factor, of two and of three
        moved = {
            v
            for place in range(together)
            for v in scopes[(first + place * (1 + turn % (len(scopes) - 1))) % len(scopes)]
        }
        bits = np.asarray(local_search._hash(jnp.asarray(number), len(sizes)))
        # Never to where it is, if there is any other point.
        steps = [1 + int(b) % max(size - 1, 1) for b, size in zip(bits, sizes, strict=True)]
        y = [(x[v] + steps[v]) % sizes[v] if v in moved else x[v] for v in range(len(sizes))]
        y = climbed(total, near, y, moved | {w for v in moved for w in near[v]}, moved)
        x = y if total[tuple(y)] > total[tuple(x)] else x
    return x


@functools.partial(jax.jit, static_argnums=0)
def escaped(graph, tables, enough):
    """Where ascent from the first point ends, where kicks do from there, and ascent from there; sums."""
    packed = graph.pack(tables)
    x = local_search.improve(graph, packed, jnp.zeros(len(graph.sizes), jnp.int32))
    y = local_search.escape(graph, packed, x, kicks=KICKS, enough=enough)
    points = jnp.stack([x, y, local_search.improve(graph, packed, y)])
    return points, jax.vmap(lambda x: factor_graph.value(graph, packed, x))(points)


@pytest.mark.slow
@TIES
@named(GRAPHS, "mixed")
def test_escaping_never_loses_and_ends_where_coordinates_cannot_improve(name, whole, key):
    sizes, scopes = GRAPHS[name]
    graph, found = FactorGraph(sizes, scopes), []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes, whole)
        x, y, again = np.asarray(escaped(graph, tables, NEVER)[0])
        np.testing.assert_array_equal(again, y)
        assert (y >= 0).all()
        assert (y < sizes).all()
        total = sums(sizes, scopes, tables)
        if whole:  # sums have no rounding errors, in whatever order
            np.testing.assert_array_equal(kicked(graph, total, x.tolist(), KICKS), y)
        assert total[tuple(y)] >= total[tuple(x)] - 1e-5
        found.append([total[tuple(point)] >= total.max() - 1e-5 for point in (x, y)])
    before, after = np.mean(found, axis=0)
    assert after >= max(before, 0.9)


@pytest.mark.slow
def test_escaping_ends_once_the_sum_is_enough(key):
    sizes, scopes = MIXED
    graph, ends = FactorGraph(sizes, scopes), []
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        (_, _, _), (first, best, _) = escaped(graph, tables, NEVER)
        (start, end, _), _ = escaped(graph, tables, first)
        np.testing.assert_array_equal(end, start)
        between = (first + best) / 2
        assert between <= escaped(graph, tables, between)[1][1] <= best
        ends.append(best > first)
    assert np.any(ends)


MORE = [pytest.param(kicks, marks=pytest.mark.full) for kicks in (2, 5)]


@pytest.mark.parametrize("kicks", [0, 3, *MORE])
def test_kicks_reach_the_whole_of_a_graph(kicks):
    """Five factors, in whose sums a better point is far: each is found by kicking it, and no other."""
    graph = FactorGraph((2,) * 10, [(2 * i, 2 * i + 1) for i in range(5)])
    tables = (jnp.tile(jnp.array([[1.0, 0.0], [0.0, 2.0]]), (5, 1, 1)),)
    zero = jnp.zeros(10, jnp.int32)
    x = jax.jit(lambda t: local_search.escape(graph, t, zero, kicks=kicks))(tables)
    expected = np.zeros(10)
    for i in range(0, 5 * kicks, 5):
        i //= kicks
        expected[2 * i : 2 * i + 2] = 1
    np.testing.assert_array_equal(x, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "found"), [(4, 0), (5, 1)])
def test_three_factors_are_kicked_after_two_turns_of_one_and_of_two(turns, found):
    """Ten spins that like to be equal: most of them have to be kicked, which takes three pairs."""
    pairs = list(itertools.combinations(range(10), 2))
    tables = (jnp.tile(jnp.array([[1.0, 0.0], [0.0, 1.01]]), (len(pairs), 1, 1)),)
    zero, kicks = jnp.zeros(10, jnp.int32), turns * len(pairs)
    x = local_search.escape(FactorGraph((2,) * 10, pairs), tables, zero, kicks=kicks)
    np.testing.assert_array_equal(x, found)


@pytest.mark.slow
def test_after_a_kick_the_neighbors_have_their_turns_first():
    """Or the last variable, which alone is kicked, would go back."""
    graph = FactorGraph((2,) * 3, [(2,), (1,), (0, 2)])
    tables = graph.pack([jnp.zeros(2), jnp.zeros(2), jnp.array([[1.0, 0.0], [0.0, 2.0]])])
    zero = jnp.zeros(3, jnp.int32)
    np.testing.assert_array_equal(local_search.escape(graph, tables, zero, kicks=1), [1, 0, 1])


@pytest.mark.full
def test_kicks_find_the_maximum_of_more_random_graphs(key):
    graphs, factors, variables, grid = 60, 12, 8, 4
    few = {"iterations": 5, "decodings": 5, "sweeps": 1}
    draw = jax.vmap(lambda k: jr.uniform(k, (factors, variables)))(jr.split(key, graphs))
    scopes = jnp.argsort(draw, axis=2)[:, :, :3]
    tables = jr.normal(jr.fold_in(key, 1), (graphs, factors, grid, grid, grid))
    most = [
        sums((grid,) * variables, [tuple(map(int, one)) for one in scope], table).max()
        for scope, table in zip(np.asarray(scopes), np.asarray(tables), strict=True)
    ]

    def reached(kicks):
        def solve(scopes, tables):
            graph = DataGraph(scopes, variables, grid)
            return maxsum.solve(graph, (tables,), kicks=kicks, **few).value

        return np.asarray(jax.jit(jax.vmap(solve))(scopes, tables))

    without, after = reached(0), reached(60)
    assert (after >= without).all()
    before, share = (np.mean(value >= np.array(most) - 1e-4) for value in (without, after))
    assert share > before + 0.15  # 0.62 and 0.97


@pytest.mark.slow
def test_kicks_are_the_same_on_a_graph_that_is_data(key):
    # Factors in the order of groups, so that they take the same turns.
    grid, fixed = 4, ((3,), (4,), (2, 3), (1, 4), (0, 3), (0, 1, 2), (1, 3, 4), (0, 2, 4))
    graph = FactorGraph((grid,) * 5, fixed)
    scopes = jnp.array([[*scope, *[-1] * (3 - len(scope))] for scope in fixed])
    zero, data = jnp.zeros(6, jnp.int32), DataGraph(scopes, 5, grid)
    here = jax.jit(lambda packed: local_search.escape(graph, packed, zero[:5], kicks=30))
    there = jax.jit(lambda table: local_search.escape(data, (table,), zero, kicks=30))
    for i, k in enumerate(jr.split(key, 20)):
        tables = tables_of(k, graph.sizes, fixed, whole=i % 2 == 0)  # every other one has ties
        x = there(spread(tables, grid))
        np.testing.assert_array_equal(x[:5], here(graph.pack(tables)))
        assert x[5] == 0
