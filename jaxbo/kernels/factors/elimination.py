"""The exact maximum of a sum on a factor graph, variable by variable.

    max over x_v of the factors that have x_v   →   one factor of their other variables

The order in which variables go decides how large the new factors become: exponential in the width
of the graph, 1 for a tree of pairs. Backwards, every variable takes its best point given the later
variables.

The work is unrolled, so compiling takes as long as there are variables. But connected parts of a
graph have nothing to do with each other, and parts of the same form are done side by side, by a
single program. So a thousand variables of their own factors, or in chains of ten, compile like a
single variable, or a single chain.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors.graph import FactorGraph, Tables


class Parts(NamedTuple):
    """Connected parts of a graph that have the same form, and how they lie in it.

    `graph` is such a part by itself, whose groups are the groups `groups` of the whole.
    """

    graph: FactorGraph
    variables: Int[np.ndarray, "parts variables"]
    groups: tuple[int, ...]
    rows: tuple[Int[np.ndarray, "parts factors"], ...]  # of the tables of each of these groups


@functools.lru_cache(maxsize=128)
def parts(graph: FactorGraph) -> tuple[Parts, ...]:
    """All connected parts, by their form. Variables without factors are in none."""
    place = {
        number: (group, row)
        for group, members in enumerate(graph.members)
        for row, number in enumerate(members.numbers)
    }
    shapes = [members.shape for members in graph.members]
    found: dict[FactorGraph, list[tuple[list[int], list[int]]]] = {}
    for variables, numbers in _connected(graph):
        # Variables keep their order, and so do the axes of tables.
        rank = {v: i for i, v in enumerate(variables)}
        scopes = {n: tuple(sorted(rank[v] for v in graph.scopes[n])) for n in numbers}
        numbers = sorted(numbers, key=lambda n, scopes=scopes: (scopes[n], n))
        form = FactorGraph(
            [graph.sizes[v] for v in variables],
            [scopes[n] for n in numbers],
            most_bytes=math.inf,  # they are there already
        )
        found.setdefault(form, []).append((variables, numbers))
    return tuple(
        Parts(
            form,
            np.array([variables for variables, _ in alike], np.int32),
            tuple(shapes.index(members.shape) for members in form.members),
            tuple(
                np.array([[place[of[i]][1] for i in members.numbers] for _, of in alike], np.int32)
                for members in form.members
            ),
        )
        for form, alike in found.items()
    )


def _connected(graph: FactorGraph) -> list[tuple[list[int], list[int]]]:
    """The variables, in increasing order, and the factors of every connected part."""
    near, part = factor_graph.neighbors(graph), {}
    for root in range(len(graph.sizes)):
        queue = [root] if root not in part else []
        part.setdefault(root, root)
        for u in queue:
            new = [v for v in near[u] if v not in part]
            part.update(dict.fromkeys(new, root))
            queue += new
    found: dict[int, tuple[list[int], list[int]]] = {}
    for number, scope in enumerate(graph.scopes):
        found.setdefault(part[scope[0]], ([], []))[1].append(number)
    for v in range(len(graph.sizes)):
        if part[v] in found:
            found[part[v]][0].append(v)
    return list(found.values())


def cells(graph: FactorGraph) -> int:
    """The cells of the largest table on the way."""
    return max(order(some.graph)[1] for some in parts(graph))


@functools.lru_cache(maxsize=128)
def order(graph: FactorGraph) -> tuple[tuple[int, ...], int]:
    """The variables in the order of elimination, and the cells of the largest table on the way.

    Always the variable whose elimination joins fewest that were not joined (min-fill); among
    equals, the variable with the smallest table.
    """
    near = factor_graph.neighbors(graph)
    left, found, most = set(range(len(graph.sizes))), [], 1

    def cost(v: int) -> tuple[int, int, int]:
        fill = sum(b not in near[a] for a, b in itertools.combinations(near[v], 2))
        return fill, _cells(graph, near[v] | {v}), v

    while left:
        v = min(left, key=cost)
        most = max(most, _cells(graph, near[v] | {v}))
        for a, b in itertools.permutations(near[v], 2):
            near[a].add(b)
        for u in near[v]:
            near[u].discard(v)
        left.remove(v)
        found.append(v)
    return tuple(found), most


def maximize(graph: FactorGraph, tables: Tables) -> Int[Array, " variables"]:
    """A point with the largest sum; first points of variables without factors."""
    x = jnp.zeros((len(graph.sizes),), jnp.int32)
    for some in parts(graph):
        own = tuple(tables[g][rows] for g, rows in zip(some.groups, some.rows, strict=True))
        best = jax.vmap(lambda own, form=some.graph: _maximize(form, own))(own)
        x = x.at[some.variables].set(best)
    return x


def _maximize(graph: FactorGraph, tables: Tables) -> Int[Array, " variables"]:
    """Of one part. Unrolled."""
    live: list[tuple[tuple[int, ...], Array]] = [
        (scope, table[i])
        for group, table in zip(graph.members, tables, strict=True)
        for i, scope in enumerate(group.scopes)
    ]
    decisions: list[tuple[int, tuple[int, ...], Array]] = []
    for v in order(graph)[0]:
        own = [factor for factor in live if v in factor[0]]
        live = [factor for factor in live if v not in factor[0]]
        others = tuple(sorted({u for scope, _ in own for u in scope} - {v}))
        joint = jnp.zeros([graph.sizes[u] for u in (*others, v)], tables[0].dtype)
        for scope, table in own:
            joint = joint + _spread(graph, scope, table, (*others, v))
        decisions.append((v, others, jnp.argmax(joint, axis=-1).astype(jnp.int32)))
        live.append((others, jnp.max(joint, axis=-1)))
    x = jnp.zeros((len(graph.sizes),), jnp.int32)
    for v, others, best in reversed(decisions):
        x = x.at[v].set(best[tuple(x[u] for u in others)])
    return x


def _cells(graph: FactorGraph, scope: set[int]) -> int:
    return math.prod(graph.sizes[v] for v in scope)


def _spread(
    graph: FactorGraph, scope: tuple[int, ...], table: Float[Array, "*grid"], axes: tuple[int, ...]
) -> Float[Array, "*joint"]:
    """A factor's table with the axes of `axes`, of length 1 where it does not depend on them."""
    order = sorted(range(len(scope)), key=lambda i: axes.index(scope[i]))
    shape = [graph.sizes[v] if v in scope else 1 for v in axes]
    return jnp.transpose(table, order).reshape(shape)
