"""The exact maximum of a sum on a factor graph, one variable after another.

    max over x_v of the factors that have x_v   →   one factor of their other variables

The order in which variables go decides how large these factors become: exponential in the width of the
graph, 1 for a tree of pairs. Backwards, every variable takes its best point given the later ones.
"""

import functools
import itertools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbo.kernels import factor_graph
from jaxbo.kernels.factor_graph import FactorGraph, Tables


@functools.lru_cache(maxsize=128)
def order(graph: FactorGraph) -> tuple[tuple[int, ...], int]:
    """The variables in the order of elimination, and the cells of the largest table on the way.

    Always the variable whose elimination joins fewest that were not joined (min-fill), of those the
    one with the smallest table.
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


def maximize(
    graph: FactorGraph, tables: Tables, order: tuple[int, ...]
) -> Int[Array, " variables"]:
    """A point with the largest sum. Unrolled: compiling takes as long as there are factors."""
    live: list[tuple[tuple[int, ...], Array]] = [
        (scope, table[i])
        for group, table in zip(graph.members, tables, strict=True)
        for i, scope in enumerate(group.scopes)
    ]
    decisions: list[tuple[int, tuple[int, ...], Array]] = []
    for v in order:
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
