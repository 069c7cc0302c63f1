"""Max-sum: against enumeration on trees and with cycles, its bounds, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors import local_search, maxsum
from jaxbo.kernels.factors.graph import DataGraph, FactorGraph
from tests.kernels.factors.graphs import (
    CYCLES,
    GRAPHS,
    TIES,
    TREES,
    bounds,
    named,
    passed,
    solve,
    spread,
    sums,
    tables_of,
)

step = jax.jit(maxsum.step, static_argnums=0)
settle = jax.jit(maxsum.settle, static_argnums=0)


# ---------------------------------------------------------------- exact on trees


@TIES
@named(TREES, "ternary", "parts")
def test_on_a_tree_the_point_is_a_maximum(name, whole, key):
    sizes, scopes = TREES[name]
    graph = FactorGraph(sizes, scopes)
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes, whole)
        count, beliefs, x, better, value = passed(graph, tables, 0.0)
        total = sums(sizes, scopes, tables)
        assert count <= 2 * len(scopes) + 1
        np.testing.assert_allclose(total[tuple(x)], total.max(), rtol=1e-5)
        np.testing.assert_allclose(value, total.max(), rtol=1e-5)
        np.testing.assert_array_equal(better, x)
        for v, size in enumerate(sizes):
            others = tuple(u for u in range(len(sizes)) if u != v)
            most = total.max(axis=others)
            belief = np.asarray(beliefs)[v]
            np.testing.assert_allclose(
                belief[:size] - belief[:size].max(), most - most.max(), atol=2e-5
            )
            np.testing.assert_array_equal(belief[size:], 0)


@named(TREES, "ternary")
def test_on_a_tree_the_bound_is_the_maximum(name, key):
    sizes, scopes = TREES[name]
    tables = tables_of(key, sizes, scopes)
    every = bounds(FactorGraph(sizes, scopes), tables)
    np.testing.assert_allclose(np.min(every), sums(sizes, scopes, tables).max(), rtol=1e-3)


# ---------------------------------------------------------------- with cycles


@named(GRAPHS, "tree-ternary", "cycle-ternary")
def test_no_sum_exceeds_the_bound_and_the_bound_never_rises(name, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    gaps = []
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        most = sums(sizes, scopes, tables).max()
        every = np.asarray(bounds(graph, tables))
        slack = 1e-5 * (1 + abs(most))
        assert (every >= most - slack).all()
        assert (np.diff(every) <= slack).all()
        assert every[-1] <= every[0] + slack
        trivial = sum(float(table.max()) for table in tables)
        assert every[0] <= trivial + slack
        gaps.append((every[39] - most) / (trivial - most + slack))
    assert np.mean(gaps) < 0.5  # at least half of what the sum of the maxima is too high


def test_the_bound_is_the_least_of_all_sweeps(key):
    sizes, scopes = TREES["parts"]
    graph = FactorGraph(sizes, scopes)
    bound, every = maxsum.upper_bound(graph, graph.pack(tables_of(key, sizes, scopes)), sweeps=4)
    assert every.shape == (4,)
    assert bound == np.min(every)


@pytest.mark.slow
@named(CYCLES, "ternary")
def test_with_cycles_the_point_is_good_and_coordinates_cannot_improve_it(name, key):
    sizes, scopes = CYCLES[name]
    graph = FactorGraph(sizes, scopes)
    climb = jax.jit(
        lambda t: local_search.improve(graph, graph.pack(t), jnp.zeros(len(sizes), jnp.int32))
    )
    reached, climbed = [], []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes)
        _, _, x, better, _ = passed(graph, tables, 0.5)
        total = sums(sizes, scopes, tables)
        extent = total.max() - total.mean()
        assert total[tuple(better)] >= total[tuple(x)] - 1e-5
        for v, size in enumerate(sizes):
            for point in range(size):
                other = [*np.asarray(better)]
                other[v] = point
                assert total[tuple(other)] <= total[tuple(better)] + 1e-5
        reached.append((total[tuple(better)] - total.mean()) / extent)
        climbed.append((total[tuple(climb(tables))] - total.mean()) / extent)
    assert np.mean(reached) > 0.95
    assert np.mean(reached) > np.mean(climbed) + 0.02  # without messages


# ---------------------------------------------------------------- messages


@named(GRAPHS, "tree-chain", "tree-ternary", "cycle-ternary")
def test_a_message_is_what_its_equation_says(name, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    tables = tables_of(key, sizes, scopes)
    packed = graph.pack(tables)
    last = step(graph, packed, maxsum.start(graph, packed))
    new = step(graph, packed, last)
    sent = {}  # (factor, variable) -> message before
    for group, message in zip(graph.members, last, strict=True):
        for number, scope, rows in zip(group.numbers, group.scopes, message, strict=True):
            sent |= {
                (number, v): np.asarray(row)[: sizes[v]] for v, row in zip(scope, rows, strict=True)
            }
    for group, message in zip(graph.members, new, strict=True):
        for number, order, rows in zip(group.numbers, group.scopes, message, strict=True):
            scope = scopes[number]
            for v, row in zip(order, rows, strict=True):
                total = np.asarray(tables[number], np.float64)
                for axis, u in enumerate(scope):
                    if u == v:
                        continue
                    q = sum(
                        sent[j, u] for j in range(len(scopes)) if u in scopes[j] and j != number
                    )
                    shape = [1] * len(scope)
                    shape[axis] = sizes[u]
                    total = total + np.broadcast_to(q, sizes[u]).reshape(shape)
                r = total.max(axis=tuple(i for i, u in enumerate(scope) if u != v))
                np.testing.assert_allclose(row[: sizes[v]], r - r.max(), atol=1e-5)


def test_a_message_needs_those_of_neighbors_only(key):
    sizes, scopes = TREES["chain"]
    graph = FactorGraph(sizes, scopes)
    near = tables_of(key, sizes, scopes)
    far = [*near[:2], near[2] + tables_of(jr.key(1), sizes, scopes)[2] * 10]
    before = [graph.pack(t) for t in (near, far)]
    one = [step(graph, p, maxsum.start(graph, p)) for p in before]
    number = {
        n: (g, i) for g, group in enumerate(graph.members) for i, n in enumerate(group.numbers)
    }
    g, i = number[0]
    np.testing.assert_array_equal(one[0][g][i], one[1][g][i])
    two = [step(graph, p, m) for p, m in zip(before, one, strict=True)]
    np.testing.assert_array_equal(two[0][g][i], two[1][g][i])  # two factors away: three rounds
    three = [step(graph, p, m) for p, m in zip(before, two, strict=True)]
    assert np.abs(np.asarray(three[0][g][i] - three[1][g][i])).max() > 1e-3


def test_damping_leaves_fixed_points_where_they_are(key):
    sizes, scopes = TREES["ternary"]
    graph = FactorGraph(sizes, scopes)
    packed = graph.pack(tables_of(key, sizes, scopes))
    messages, _ = settle(graph, packed, damping=0.0)
    for damping in (0.0, 0.3, 0.9):
        again = step(graph, packed, messages, damping)
        for a, b in zip(again, messages, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    damped, count = settle(graph, packed, iterations=200, damping=0.5, tolerance=1e-6)
    assert count < 200
    for a, b in zip(damped, messages, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.slow
def test_the_names_of_variables_and_the_order_of_factors_do_not_matter(key):
    sizes, scopes = CYCLES["ternary"]
    tables = tables_of(key, sizes, scopes)
    graph = FactorGraph(sizes, scopes)
    rng = np.random.default_rng(0)
    names, order = rng.permutation(len(sizes)), rng.permutation(len(scopes))
    other_sizes = [0] * len(sizes)
    for v, name in enumerate(names):
        other_sizes[name] = sizes[v]
    other = FactorGraph(other_sizes, [[names[v] for v in scopes[i]] for i in order])
    _, a, *_ = passed(graph, tables, 0.5)
    _, b, *_ = passed(other, [tables[i] for i in order], 0.5)
    np.testing.assert_allclose(a, b[names], atol=1e-4)


@pytest.mark.slow
def test_many_tables_on_one_graph_are_those_one_by_one(key):
    sizes, scopes = CYCLES["ternary"]
    graph = FactorGraph(sizes, scopes)
    each = [tables_of(k, sizes, scopes) for k in jr.split(key, 5)]
    together = [np.stack(tables) for tables in zip(*each, strict=True)]
    _, _, x, better, _ = jax.jit(jax.vmap(lambda tables: passed(graph, tables, 0.5)))(together)
    for i, tables in enumerate(each):
        _, _, alone, alone_better, _ = passed(graph, tables, 0.5)
        np.testing.assert_array_equal(x[i], alone)
        np.testing.assert_array_equal(better[i], alone_better)


# ---------------------------------------------------------------- solutions, and the choice of a route


@pytest.mark.slow
@pytest.mark.parametrize("most_cells", [0, 10**6], ids=["messages", "elimination"])
def test_a_solution_says_its_route_and_how_far_it_can_be(most_cells, key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        total = sums(sizes, scopes, tables)
        solution = solve(graph, tables, most_cells=most_cells, sweeps=200)
        assert solution.exact == (most_cells > 0)
        np.testing.assert_allclose(solution.value, total[tuple(solution.x)], rtol=1e-5)
        assert solution.bound >= total.max() - 1e-4
        if solution.exact:
            np.testing.assert_allclose(solution.value, total.max(), rtol=1e-5)
            assert solution.gap == 0


def test_a_bound_is_never_below_what_was_reached(key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    options = {"most_cells": 0, "sweeps": 200}
    gaps = [solve(graph, tables_of(k, sizes, scopes), **options).gap for k in jr.split(key, 30)]
    assert min(gaps) == 0
    assert np.mean(np.array(gaps) < 1e-5) > 0.5  # so it can be tight


@pytest.mark.slow
def test_messages_end_when_they_have_settled_however_often_they_are_looked_at(key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    often = {"iterations": 10**8, "decodings": 10**8}  # a day, if it went on
    solution = solve(graph, tables_of(key, sizes, scopes), most_cells=0, **often)
    assert solution.bound >= solution.value


@pytest.mark.full
def test_factors_of_four_and_five_variables_on_grids_of_different_sizes(key):
    sizes, scopes = (3, 2, 4, 2, 3, 2), ((0, 1, 2, 3), (2, 3, 4, 5, 1), (4, 0), (5,))
    graph = FactorGraph(sizes, scopes)
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        total = sums(sizes, scopes, tables)
        found = [solve(graph, tables, most_cells=cells) for cells in (0, 10**6)]
        for solution in found:
            np.testing.assert_allclose(solution.value, total[tuple(solution.x)], rtol=1e-5)
            assert solution.bound >= total.max() - 1e-4
        np.testing.assert_allclose(found[-1].value, total.max(), rtol=1e-5)


@pytest.mark.slow
def test_solutions_of_many_tables_on_one_graph_are_those_one_by_one(key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    each = [tables_of(k, sizes, scopes) for k in jr.split(key, 5)]
    stacked = [np.stack(tables) for tables in zip(*each, strict=True)]
    for cells in (0, 10**6):
        one = functools.partial(solve, graph, most_cells=cells, sweeps=200)
        together = jax.jit(jax.vmap(one))(stacked)
        for i, tables in enumerate(each):
            alone = one(tables)
            np.testing.assert_array_equal(together.x[i], alone.x)
            np.testing.assert_allclose(together.bound[i], alone.bound, rtol=1e-5)


def removed(sizes, scopes, tables):
    """The bound of Rogers et al. (2011) for pairs: of a tree, and what the pairs left out can add."""
    weights = [min(np.ptp(t, axis=a).max() for a in (0, 1)) for t in map(np.asarray, tables)]
    part, kept, added = list(range(len(sizes))), [], 0.0
    for number in np.argsort(weights)[::-1]:  # the spanning tree of the largest
        a, b = (part[v] for v in scopes[number])
        if a != b:
            part = [a if p == b else p for p in part]
            kept.append((scopes[number], tables[number]))
        else:  # depends on one of the two, and is as small as the other can make it
            table = np.asarray(tables[number])
            axis = int(np.argmin([np.ptp(table, axis=a).max() for a in (0, 1)]))
            kept.append(((scopes[number][1 - axis],), table.min(axis=axis)))
            added += weights[number]
    return sums(sizes, *zip(*kept, strict=True)).max() + added


@named(("triangle", "grid", "complete"), "triangle")
def test_the_bound_is_below_that_of_bounded_max_sum(name, key):
    sizes, scopes = CYCLES[name]
    graph = FactorGraph(sizes, scopes)
    gaps = []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes)
        most = sums(sizes, scopes, tables).max()
        bound = np.min(bounds(graph, tables)[:30])
        theirs = removed(sizes, scopes, tables)
        assert theirs >= most - 1e-5
        gaps.append((bound - most, theirs - most))
    ours, theirs = np.mean(gaps, axis=0)
    assert ours < 0.6 * theirs


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        (
            jnp.zeros((3, 3, 2)),
            {"iterations": 0},
            "iterations must be a whole number of at least 1",
        ),
        (jnp.zeros((3, 3, 2)), {"decodings": 0}, "decodings must be"),
        (jnp.zeros((3, 3, 2)), {"sweeps": 0}, "sweeps must be"),
        (jnp.zeros((3, 3, 2)), {"kicks": -1}, "kicks must be a whole number of at least 0"),
    ],
)
def test_impossible_searches_are_refused(tables, options, message):
    graph = FactorGraph((3, 2, 3), ((0, 1), (2, 1)))
    with pytest.raises(ValueError, match=message):
        maxsum.solve(graph, (tables,), **options)


def test_tables_of_another_graph_are_refused():
    graph = FactorGraph((3, 2), ((0, 1), (0,)))
    shapes = r"shapes \[\(1, 3\), \(1, 3, 2\)\], got .* graph\.pack\(tables\) makes them"
    for tables in (
        (jnp.zeros((1, 3, 2)), jnp.zeros((1, 3))),
        (jnp.zeros((1, 3)),),
        (jnp.zeros((2, 3)), jnp.zeros((1, 3, 2))),
    ):
        with pytest.raises(ValueError, match=shapes):
            maxsum.solve(graph, tables)


def test_a_larger_memory_is_enough_for_all_of_the_work():
    graph = FactorGraph((40_000,) * 2, [(0, 1)], most_bytes=8 * 2**33)
    shape = jax.ShapeDtypeStruct((1, 40_000, 40_000), jnp.float32)
    found = jax.eval_shape(lambda t: maxsum.solve(graph, (t,), most_cells=2 * 10**9), shape)
    assert found.route == "elimination"


def test_tables_of_whole_numbers_are_refused(as_users_have_it):
    graph, tables = FactorGraph((3, 2), ((0, 1),)), jnp.zeros((1, 3, 2), int)
    with pytest.raises(ValueError, match="must be floating, got int"):
        maxsum.solve(graph, (tables,))


def test_a_variable_of_no_factor_takes_its_first_point(key):
    sizes, scopes = TREES["parts"]  # of the last variable there is none
    _, _, x, better, _ = passed(FactorGraph(sizes, scopes), tables_of(key, sizes, scopes), 0.0)
    assert x[4] == better[4] == 0


# ---------------------------------------------------------------- graphs that are data

#: As in `GRAPHS`, of grids of one size, with -1 where a factor has fewer variables.
SCOPES = np.array([[0, 1, 2], [2, 3, -1], [3, -1, -1], [4, 1, -1]])


@functools.partial(jax.jit, static_argnums=2)
def all_of_it(scopes, tables, grid):
    graph = DataGraph(scopes, 5, grid)
    messages, _ = maxsum.settle(graph, (tables,), damping=0.0)
    x = local_search.improve(graph, (tables,), maxsum.decode(graph, (tables,), messages))
    value = factor_graph.value(graph, (tables,), x)
    return x[:5], value, maxsum.upper_bound(graph, (tables,))[0]


@pytest.mark.parametrize(
    "scopes",
    [SCOPES, pytest.param(np.vstack([SCOPES, [[0, 3, -1]]]), marks=pytest.mark.full)],
    ids=["tree", "cycle"],
)
def test_a_graph_that_is_data_gives_what_one_that_is_fixed_does(scopes, key):
    grid = 3
    fixed = [tuple(int(v) for v in scope if v >= 0) for scope in scopes]
    graph = FactorGraph((grid,) * 5, fixed)
    tables = tables_of(key, graph.sizes, fixed)
    x, value, bound = all_of_it(jnp.asarray(scopes), spread(tables, grid), grid)
    best = sums(graph.sizes, fixed, tables).max()
    np.testing.assert_allclose(value, sums(graph.sizes, fixed, tables)[tuple(x)], atol=1e-5)
    assert value <= best + 1e-5
    if len(scopes) == len(SCOPES):  # a tree
        np.testing.assert_allclose(value, best, atol=1e-5)
    assert best - 1e-5 <= bound <= np.min(bounds(graph, tables)[:30]) + 0.1 * abs(best)


@pytest.mark.slow
def test_graphs_that_are_data_vmap(key):
    grid, keys = 3, jr.split(key, 6)
    columns = jnp.argsort(jax.vmap(lambda k: jr.uniform(k, (4, 5)))(keys), axis=2)[:, :, :3]
    tables = jax.vmap(lambda k: jr.normal(k, (4, 3, 3, 3)))(keys)
    together = jax.vmap(lambda c, t: all_of_it(c, t, grid))(columns, tables)
    for i in range(6):
        scopes = [tuple(map(int, scope)) for scope in columns[i]]
        best = sums((grid,) * 5, scopes, tables[i]).max()
        alone = all_of_it(columns[i], tables[i], grid)
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_allclose(a, b[i], atol=1e-5)
        assert alone[1] <= best + 1e-5
        assert best <= alone[2] + 1e-5


# ---------------------------------------------------------------- hard constraints


def forbidding(key, sizes, scopes, share):
    """Random tables, `share` of whose cells are forbidden."""
    rng = np.random.default_rng(np.asarray(jr.key_data(key)))
    tables = [np.asarray(t) for t in tables_of(key, sizes, scopes)]
    return [jnp.asarray(np.where(rng.random(t.shape) < share, -np.inf, t)) for t in tables]


@named(GRAPHS, "tree-ternary", "cycle-complete", "cycle-ternary")
@pytest.mark.parametrize("most_cells", [1, 100_000])
@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_a_forbidden_cell_is_in_no_solution(name, most_cells, share, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    for own in jr.split(key, 4):
        tables = forbidding(own, sizes, scopes, share)
        total = sums(sizes, scopes, tables)
        best = total.max()
        found = solve(graph, tables, most_cells=most_cells)
        value = float(found.value)
        assert not np.isnan(value)
        assert value == pytest.approx(total[tuple(np.asarray(found.x)[: len(sizes)])], rel=1e-5)
        assert float(found.bound) >= best - 1e-4
        # Small graphs: the search on from the messages finds the maximum, too.
        assert value == pytest.approx(best, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_constraints_alone_are_satisfied(offset):
    """Colors of a ring of five, of which neighbors differ."""
    ring = [(i, (i + 1) % 5) for i in range(5)]
    graph = FactorGraph([3] * 5, ring)
    differ = jnp.where(jnp.eye(3, dtype=bool), -jnp.inf, offset)
    for most_cells in (1, 100_000):
        found = solve(graph, [differ] * 5, most_cells=most_cells)
        assert float(found.value) == 5 * offset
        assert all(found.x[a] != found.x[b] for a, b in ring)


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_refused_where_it_is_seen_and_forbidden_where_not(wrong):
    graph = FactorGraph([2, 2], [(0, 1)])
    table = jnp.asarray([[0.0, wrong], [2.0, 1.0]])
    with pytest.raises(ValueError, match="must not have NaN or inf; -inf is for what is forbidden"):
        maxsum.solve(graph, graph.pack([table]))
    found = solve(graph, [table])
    assert found.x.tolist() == [1, 0]
    assert float(found.value) == 2.0


@pytest.mark.slow
def test_penalties_leave_other_cells_as_they_are(key):
    sizes, scopes = GRAPHS["cycle-complete"]
    graph = FactorGraph(sizes, scopes)
    tables = forbidding(key, sizes, scopes, 0.3)
    given = graph.pack(tables)
    changed, least = maxsum.penalized(given)
    for one, other in zip(changed, given, strict=True):
        assert np.isfinite(one).all()
        fine = np.isfinite(other)
        np.testing.assert_array_equal(np.asarray(one)[fine], np.asarray(other)[fine])
    flat = jnp.stack(jnp.meshgrid(*[jnp.arange(n) for n in sizes], indexing="ij"), axis=-1)
    flat = flat.reshape(-1, len(sizes))
    worth = jax.jit(jax.vmap(lambda x: factor_graph.value(graph, changed, x)))(flat)
    allowed = np.isfinite(sums(sizes, scopes, tables)).reshape(-1)
    assert 0 < allowed.sum() < allowed.size
    assert worth[allowed].min() > least > worth[~allowed].max()
