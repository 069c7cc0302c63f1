"""Max-sum on factor graphs: against enumeration on trees and with cycles, bounds, and what is refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import structure
from jaxbo.kernels.factors import elimination, local_search, maxsum, tree
from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors.graph import DataGraph, FactorGraph

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


def tables_of(key, sizes, scopes, whole=False):
    """Random ones; of whole numbers, so that maxima tie."""
    keys = jr.split(key, len(scopes))
    shapes = [tuple(sizes[v] for v in scope) for scope in scopes]
    if whole:
        return [jr.randint(k, s, 0, 3).astype(float) for k, s in zip(keys, shapes, strict=True)]
    return [jr.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


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


step = jax.jit(maxsum.step, static_argnums=0)
settle = jax.jit(maxsum.settle, static_argnums=0)
upper_bound = jax.jit(maxsum.upper_bound, static_argnums=0, static_argnames="sweeps")


@functools.partial(jax.jit, static_argnames=("graph", "iterations", "damping"))
def solved(graph, packed, iterations=30, damping=0.0):
    messages, count = maxsum.settle(graph, packed, iterations=iterations, damping=damping)
    x = maxsum.decode(graph, packed, messages)
    better = local_search.improve(graph, packed, x)
    return messages, count, x, better


# ---------------------------------------------------------------- exact on trees


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("name", TREES)
def test_on_a_tree_the_point_is_a_maximum(name, whole, key):
    sizes, scopes = TREES[name]
    graph = FactorGraph(sizes, scopes)
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes, whole)
        packed = graph.pack(tables)
        messages, count, x, better = solved(graph, packed)
        total = sums(sizes, scopes, tables)
        assert count <= 2 * len(scopes) + 1
        np.testing.assert_allclose(total[tuple(x)], total.max(), rtol=1e-5)
        np.testing.assert_allclose(factor_graph.value(graph, packed, x), total.max(), rtol=1e-5)
        np.testing.assert_array_equal(better, x)
        for v, size in enumerate(sizes):
            others = tuple(u for u in range(len(sizes)) if u != v)
            most = total.max(axis=others)
            belief = np.asarray(maxsum.beliefs(graph, messages))[v]
            np.testing.assert_allclose(
                belief[:size] - belief[:size].max(), most - most.max(), atol=2e-5
            )
            np.testing.assert_array_equal(belief[size:], 0)


@pytest.mark.parametrize("name", TREES)
def test_on_a_tree_the_bound_is_the_maximum(name, key):
    sizes, scopes = TREES[name]
    graph = FactorGraph(sizes, scopes)
    tables = tables_of(key, sizes, scopes)
    bound, _ = upper_bound(graph, graph.pack(tables), sweeps=200)
    np.testing.assert_allclose(bound, sums(sizes, scopes, tables).max(), rtol=1e-3)


# ---------------------------------------------------------------- with cycles


@pytest.mark.parametrize("name", GRAPHS)
def test_no_sum_exceeds_the_bound_and_the_bound_never_rises(name, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    gaps = []
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        most = sums(sizes, scopes, tables).max()
        bound, every = upper_bound(graph, graph.pack(tables), sweeps=40)
        slack = 1e-5 * (1 + abs(most))
        assert bound >= most - slack
        assert (np.diff(every) <= slack).all()
        assert every[-1] <= every[0] + slack
        trivial = sum(float(table.max()) for table in tables)
        assert every[0] <= trivial + slack
        gaps.append((bound - most) / (trivial - most + slack))
    assert np.mean(gaps) < 0.5  # at least half of what the sum of the maxima is too high


@pytest.mark.parametrize("name", CYCLES)
def test_with_cycles_the_point_is_good_and_coordinates_cannot_improve_it(name, key):
    sizes, scopes = CYCLES[name]
    graph = FactorGraph(sizes, scopes)
    climb = jax.jit(
        lambda packed: local_search.improve(graph, packed, jnp.zeros(len(sizes), jnp.int32))
    )
    reached, climbed = [], []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes)
        packed = graph.pack(tables)
        _, _, x, better = solved(graph, packed, 60, 0.5)
        total = sums(sizes, scopes, tables)
        extent = total.max() - total.mean()
        assert total[tuple(better)] >= total[tuple(x)] - 1e-5
        for v, size in enumerate(sizes):
            for point in range(size):
                other = [*np.asarray(better)]
                other[v] = point
                assert total[tuple(other)] <= total[tuple(better)] + 1e-5
        reached.append((total[tuple(better)] - total.mean()) / extent)
        climbed.append((total[tuple(climb(packed))] - total.mean()) / extent)
    assert np.mean(reached) > 0.95
    assert np.mean(reached) > np.mean(climbed) + 0.02  # without messages


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("name", GRAPHS)
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
    far = [*near[:2], near[2] + 10 * jr.normal(key, near[2].shape)]
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
    other_packed = other.pack([tables[i] for i in order])
    packed = graph.pack(tables)
    a = maxsum.beliefs(graph, settle(graph, packed)[0])
    b = maxsum.beliefs(other, settle(other, other_packed)[0])
    np.testing.assert_allclose(a, b[names], atol=1e-4)


def test_many_tables_on_one_graph_are_those_one_by_one(key):
    sizes, scopes = CYCLES["grid"]
    graph = FactorGraph(sizes, scopes)
    each = [graph.pack(tables_of(k, sizes, scopes)) for k in jr.split(key, 5)]
    together = jax.tree.map(lambda *tables: jnp.stack(tables), *each)
    _, _, x, better = jax.jit(jax.vmap(lambda packed: solved(graph, packed)))(together)
    for i, packed in enumerate(each):
        _, _, alone, alone_better = solved(graph, packed)
        np.testing.assert_array_equal(x[i], alone)
        np.testing.assert_array_equal(better[i], alone_better)


# ---------------------------------------------------------------- elimination, and the choice of a route


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("name", GRAPHS)
def test_elimination_finds_a_maximum_of_any_graph(name, whole, key):
    sizes, scopes = GRAPHS[name]
    graph = FactorGraph(sizes, scopes)
    assert sorted(elimination.order(graph)[0]) == list(range(len(sizes)))
    assert elimination.cells(graph) <= np.prod(sizes)
    maximum = jax.jit(lambda packed: elimination.maximize(graph, packed))
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes, whole)
        total = sums(sizes, scopes, tables)
        x = maximum(graph.pack(tables))
        np.testing.assert_allclose(total[tuple(x)], total.max(), rtol=1e-5)


def test_a_long_chain_is_eliminated_in_small_tables():
    graph = FactorGraph((4,) * 60, [(i, i + 1) for i in range(59)])
    assert elimination.order(graph)[1] == 16
    ring = FactorGraph((4,) * 60, [(i, (i + 1) % 60) for i in range(60)])
    assert elimination.order(ring)[1] == 64


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
    x = np.asarray(elimination.maximize(graph, graph.pack(tables)))
    chain = tables[0][:, :, None] + tables[1][None]
    np.testing.assert_array_equal(x[2:5], np.unravel_index(np.argmax(chain), chain.shape))
    np.testing.assert_array_equal(x[302:], [np.argmax(table) for table in tables[201:]])
    assert x[1] == 0


@pytest.mark.parametrize("most_cells", [0, 10**6], ids=["messages", "elimination"])
def test_a_solution_says_its_route_and_how_far_it_can_be(most_cells, key):
    sizes, scopes = CYCLES["complete"]
    graph = FactorGraph(sizes, scopes)
    solve = jax.jit(functools.partial(maxsum.solve, graph, most_cells=most_cells))
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        total = sums(sizes, scopes, tables)
        solution = solve(graph.pack(tables))
        assert solution.exact == (most_cells > 0)
        np.testing.assert_allclose(solution.value, total[tuple(solution.x)], rtol=1e-5)
        assert solution.bound >= total.max() - 1e-4
        if solution.exact:
            np.testing.assert_allclose(solution.value, total.max(), rtol=1e-5)
            assert solution.gap == 0


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


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("name", TREES)
def test_two_sweeps_over_a_tree_find_a_maximum(name, whole, key):
    sizes, scopes = TREES[name]
    graph = FactorGraph(sizes, scopes)
    solve = jax.jit(functools.partial(maxsum.solve, graph, most_cells=0))
    for k in jr.split(key, 5):
        tables = tables_of(k, sizes, scopes, whole)
        solution = solve(graph.pack(tables))
        assert solution.route == "tree"
        assert solution.gap == 0
        most = sums(sizes, scopes, tables)
        for reached in (most[tuple(solution.x)], solution.value):
            np.testing.assert_allclose(reached, most.max(), rtol=1e-5, atol=1e-5)


def test_a_bound_is_never_below_what_was_reached(key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    solve = jax.jit(functools.partial(maxsum.solve, graph, most_cells=0, sweeps=200))
    gaps = [solve(graph.pack(tables_of(k, sizes, scopes))).gap for k in jr.split(key, 30)]
    assert min(gaps) == 0
    assert np.mean(np.array(gaps) < 1e-5) > 0.5  # so it can be tight


def test_messages_end_when_they_have_settled_however_often_they_are_looked_at(key):
    sizes, scopes = CYCLES["triangle"]
    graph = FactorGraph(sizes, scopes)
    often = {"iterations": 10**8, "decodings": 10**8}  # a day, if it went on
    solution = jax.jit(functools.partial(maxsum.solve, graph, most_cells=0, **often))(
        graph.pack(tables_of(key, sizes, scopes))
    )
    assert solution.bound >= solution.value


def test_factors_of_four_and_five_variables_on_grids_of_different_sizes(key):
    sizes, scopes = (3, 2, 4, 2, 3, 2), ((0, 1, 2, 3), (2, 3, 4, 5, 1), (4, 0), (5,))
    graph = FactorGraph(sizes, scopes)
    both = [
        jax.jit(functools.partial(maxsum.solve, graph, most_cells=cells)) for cells in (0, 10**6)
    ]
    for k in jr.split(key, 10):
        tables = tables_of(k, sizes, scopes)
        total = sums(sizes, scopes, tables)
        found = [solve(graph.pack(tables)) for solve in both]
        for solution in found:
            np.testing.assert_allclose(solution.value, total[tuple(solution.x)], rtol=1e-5)
            assert solution.bound >= total.max() - 1e-4
        np.testing.assert_allclose(found[-1].value, total.max(), rtol=1e-5)


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


def test_solutions_of_many_tables_on_one_graph_are_those_one_by_one(key):
    sizes, scopes = CYCLES["ternary"]
    graph = FactorGraph(sizes, scopes)
    sets = [graph.pack(tables_of(k, sizes, scopes)) for k in jr.split(key, 5)]
    for cells in (0, 10**6):
        solve = functools.partial(maxsum.solve, graph, most_cells=cells)
        together = jax.jit(jax.vmap(solve))(jax.tree.map(lambda *t: jnp.stack(t), *sets))
        for i, tables in enumerate(sets):
            alone = jax.jit(solve)(tables)
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


@pytest.mark.parametrize("name", ["triangle", "grid", "complete"])
def test_the_bound_is_below_that_of_bounded_max_sum(name, key):
    sizes, scopes = CYCLES[name]
    graph = FactorGraph(sizes, scopes)
    gaps = []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes)
        most = sums(sizes, scopes, tables).max()
        bound, _ = upper_bound(graph, graph.pack(tables), sweeps=30)
        theirs = removed(sizes, scopes, tables)
        assert theirs >= most - 1e-5
        gaps.append((bound - most, theirs - most))
    ours, theirs = np.mean(gaps, axis=0)
    assert ours < 0.6 * theirs


# ---------------------------------------------------------------- out of local maxima


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("name", ["complete", "mixed"])
def test_escaping_never_loses_and_ends_where_coordinates_cannot_improve(name, whole, key):
    mixed = (3, 1, 4, 2, 3, 2), ((0, 1, 2, 3), (2, 3, 4), (4, 0), (5,), (3, 5), (5, 2))
    sizes, scopes = CYCLES.get(name, mixed)
    graph = FactorGraph(sizes, scopes)

    @jax.jit
    def climbed(packed):
        x = local_search.improve(graph, packed, jnp.zeros(len(sizes), jnp.int32))
        y = local_search.escape(graph, packed, x, kicks=50)
        return (
            x,
            local_search.escape(graph, packed, x, kicks=0),
            y,
            local_search.improve(graph, packed, y),
        )

    found = []
    for k in jr.split(key, 20):
        tables = tables_of(k, sizes, scopes, whole)
        x, none, y, again = climbed(graph.pack(tables))
        np.testing.assert_array_equal(none, x)
        np.testing.assert_array_equal(again, y)
        assert (np.asarray(y) >= 0).all()
        assert (np.asarray(y) < sizes).all()
        total = sums(sizes, scopes, tables)
        assert total[tuple(y)] >= total[tuple(x)] - 1e-5
        found.append([total[tuple(point)] >= total.max() - 1e-5 for point in (x, y)])
    before, after = np.mean(found, axis=0)
    assert after >= max(before, 0.9)


def test_escaping_ends_once_the_sum_is_enough(key):
    sizes, scopes = CYCLES["complete"]
    graph = FactorGraph(sizes, scopes)
    zero = jnp.zeros(len(sizes), jnp.int32)

    @jax.jit
    def escaped(packed, enough):
        return local_search.escape(graph, packed, zero, kicks=50, enough=enough)

    packed = graph.pack(tables_of(key, sizes, scopes))
    value = functools.partial(factor_graph.value, graph, packed)
    first, best = value(zero), value(escaped(packed, jnp.inf))
    assert best > first
    np.testing.assert_array_equal(escaped(packed, first), zero)
    between = (first + best) / 2
    assert between <= value(escaped(packed, between)) <= best


@pytest.mark.parametrize("kicks", [2, 3, 5])
def test_kicks_reach_the_whole_of_a_graph(kicks):
    """Five factors, in whose sums a better point is far: each is found by kicking it, and no other."""
    graph = FactorGraph((2,) * 10, [(2 * i, 2 * i + 1) for i in range(5)])
    tables = (jnp.tile(jnp.array([[1.0, 0.0], [0.0, 2.0]]), (5, 1, 1)),)
    zero = jnp.zeros(10, jnp.int32)
    x = jax.jit(lambda t: local_search.escape(graph, t, zero, kicks=kicks))(tables)
    expected = np.zeros(10)
    for i in np.arange(kicks) * 5 // kicks:
        expected[2 * i : 2 * i + 2] = 1
    np.testing.assert_array_equal(x, expected)


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


# ---------------------------------------------------------------- bad input


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
    shapes = r"shapes \[\(1, 3\), \(1, 3, 2\)\], see `pack`"
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


def test_tables_of_whole_numbers_are_refused(as_users_have_it):
    graph, tables = FactorGraph((3, 2), ((0, 1),)), jnp.zeros((1, 3, 2), int)
    with pytest.raises(ValueError, match="must be floating, got int"):
        maxsum.solve(graph, (tables,))


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


def test_a_variable_of_no_factor_takes_its_first_point(key):
    graph = FactorGraph((3, 4, 2), ((0, 2),))
    packed = graph.pack([jr.normal(key, (3, 2))])
    _, _, x, better = solved(graph, packed)
    assert x[1] == better[1] == 0


# ---------------------------------------------------------------- graphs that are data

#: As in `GRAPHS`, of grids of one size, with -1 where a factor has fewer variables.
SCOPES = np.array([[0, 1, 2], [2, 3, -1], [3, -1, -1], [4, 1, -1]])


def spread(tables, grid):
    """Tables of up to three axes, as if they had three."""
    return jnp.stack(
        [jnp.broadcast_to(t.reshape(t.shape + (1,) * (3 - t.ndim)), (grid,) * 3) for t in tables]
    )


@functools.partial(jax.jit, static_argnums=(2,))
def all_of_it(scopes, tables, grid):
    graph = DataGraph(scopes, 5, grid)
    messages, _ = maxsum.settle(graph, (tables,), damping=0.0)
    x = local_search.improve(graph, (tables,), maxsum.decode(graph, (tables,), messages))
    value = factor_graph.value(graph, (tables,), x)
    return x[:5], value, maxsum.upper_bound(graph, (tables,))[0]


@pytest.mark.parametrize(
    "scopes", [SCOPES, np.vstack([SCOPES, [[0, 3, -1]]])], ids=["tree", "cycle"]
)
def test_a_graph_that_is_data_gives_what_one_that_is_fixed_does(scopes, key):
    grid = 4
    fixed = [tuple(int(v) for v in scope if v >= 0) for scope in scopes]
    graph = FactorGraph((grid,) * 5, fixed)
    tables = tables_of(key, graph.sizes, fixed)
    x, value, bound = all_of_it(jnp.asarray(scopes), spread(tables, grid), grid)
    best = sums(graph.sizes, fixed, tables).max()
    packed = graph.pack(tables)
    np.testing.assert_allclose(value, factor_graph.value(graph, packed, x), atol=1e-5)
    assert value <= best + 1e-5
    if len(scopes) == len(SCOPES):  # a tree
        np.testing.assert_allclose(value, best, atol=1e-5)
    assert best - 1e-5 <= bound <= upper_bound(graph, packed, sweeps=30)[0] + 0.1 * abs(best)


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
def test_kicks_are_the_same_on_a_graph_that_is_data(whole, key):
    # Factors in the order of groups, so that they take the same turns.
    grid, fixed = 4, ((3,), (4,), (2, 3), (1, 4), (0, 3), (0, 1, 2), (1, 3, 4), (0, 2, 4))
    graph = FactorGraph((grid,) * 5, fixed)
    scopes = jnp.array([[*scope, *[-1] * (3 - len(scope))] for scope in fixed])
    zero, data = jnp.zeros(6, jnp.int32), DataGraph(scopes, 5, grid)
    here = jax.jit(lambda packed: local_search.escape(graph, packed, zero[:5], kicks=30))
    there = jax.jit(lambda table: local_search.escape(data, (table,), zero, kicks=30))
    for k in jr.split(key, 20):
        tables = tables_of(k, graph.sizes, fixed, whole)
        x = there(spread(tables, grid))
        np.testing.assert_array_equal(x[:5], here(graph.pack(tables)))
        assert x[5] == 0


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


def test_a_graph_that_may_be_no_tree_is_not_swept():
    with pytest.raises(ValueError, match="must have an order"):
        tree.maximize(DataGraph(jnp.array([[0, 1]]), 2, 3), (jnp.zeros((1, 3, 3)),))


def test_an_order_is_of_a_tree():
    order = jnp.arange(3)
    assert DataGraph(jnp.array([[0, 1], [1, 2]]), 3, 4, order).order is order
    with pytest.raises(ValueError, match="3 factors of 2 make none"):
        DataGraph(jnp.array([[0, 1], [1, 2], [2, 0]]), 3, 4, order)
    with pytest.raises(ValueError, match=r"it has shape \(2,\)"):
        jax.eval_shape(lambda s: DataGraph(s, 3, 4, order[:2]), jnp.array([[0, 1], [1, 2]]))


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
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
