"""The exact maximum of a sum on a factor graph that is a tree, by two sweeps of messages.

    up      r_I(x_u) = max over the others of φ_I(x_I) + Σ_{v ∈ I, v ≠ u} Σ_{J below v} r_J(x_v)
    down    the others of I, all v ≠ u, take their best points given that of u

u is the variable of I that comes first, in an order in which each touches a variable before it. The
factors below v are the factors whose first variable it is. Both sweeps are loops over the factors,
so compiling takes as long for a thousand factors as for a single factor, and every message is sent
once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbo._check import require
from jaxbo.kernels.factors.graph import AbstractGraph, DataGraph, Tables

#: A group and the axis of its tables that is of the first variable.
_Kind = tuple[int, int]
#: What all below each variable is worth, at its points.
_Worth = Float[Array, "variables points"]


class _Walk(NamedTuple):
    """Every factor, from the root: its first variable, its kind and its row in its group."""

    first: Int[Array, " factors"]
    kind: Int[Array, " factors"]
    row: Int[Array, " factors"]


def maximize(graph: AbstractGraph, tables: Tables) -> Int[Array, " variables"]:
    """A point with the largest sum of a tree, or of several; first points of variables without factors.

    `ValueError` for a graph that is data without an `order`. Cycles in another graph are not
    noticed.
    """
    ordered = not isinstance(graph, DataGraph) or graph.order is not None
    require(ordered, "the graph must have an order: it is data, and may be no tree.")
    kinds = [(g, axis) for g, group in enumerate(graph.groups) for axis in range(len(group.shape))]
    walk, count = _walk(graph, kinds), len(graph.sizes)
    most = max(len(group.shape) for group in graph.groups) - 1

    def below(
        kind: _Kind, row: Int[Array, ""], up: _Worth
    ) -> tuple[Int[Array, " others"], Float[Array, "*grid"]]:
        """The other variables, and the largest sums of all factors below them, an axis each."""
        (g, axis), total = kind, jnp.zeros((), up.dtype)
        group = graph.groups[g]
        others = [i for i in range(len(group.shape)) if i != axis]
        variables = jnp.asarray(group.variables)[row, jnp.array(others, jnp.int32)]
        for v, i in zip(variables, others, strict=True):
            worth = up[v, : group.shape[i]]
            total = total[..., None] + worth.reshape((1,) * total.ndim + worth.shape)
        return variables, total

    def sent(kind: _Kind, row: Int[Array, ""], up: _Worth) -> Float[Array, " points"]:
        g, axis = kind
        total = jnp.moveaxis(tables[g][row], axis, 0) + below(kind, row, up)[1][None]
        best = jnp.max(total.reshape(len(total), -1), axis=1)
        return jnp.pad(best - jnp.max(best), (0, graph.points - len(best))).astype(up.dtype)

    def taken(
        kind: _Kind, row: Int[Array, ""], up: _Worth, at: Int[Array, ""]
    ) -> Int[Array, "2 most"]:
        """The other variables and their points, padded by a variable that does not exist."""
        g, axis = kind
        others, total = below(kind, row, up)
        total += jnp.moveaxis(tables[g][row], axis, 0)[at]
        points = list(jnp.unravel_index(jnp.argmax(total), total.shape))
        found = jnp.stack([others, jnp.array(points, jnp.int32)])
        return jnp.pad(found, ((0, 0), (0, most - len(others))), constant_values=count)

    def rise(i: Int[Array, ""], up: _Worth) -> _Worth:
        first, kind, row = (of[len(of) - 1 - i] for of in walk)
        return up.at[first].add(_switch(sent, kinds, kind, row, up))

    def fall(i: Int[Array, ""], x: Int[Array, " variables"]) -> Int[Array, " variables"]:
        first, kind, row = (of[i] for of in walk)
        variables, points = _switch(taken, kinds, kind, row, up, x[first])
        return x.at[variables].set(points, mode="drop")

    nothing = jnp.zeros((count, graph.points), jnp.result_type(*tables))
    up: _Worth = jax.lax.fori_loop(0, len(walk.first), rise, nothing)
    # Right for the roots: all others follow.
    best = jnp.where(jnp.asarray(graph.inside), up, -jnp.inf)
    x = jnp.argmax(best, axis=1).astype(jnp.int32)
    return jax.lax.fori_loop(0, len(walk.first), fall, x)


def _walk(graph: AbstractGraph, kinds: list[_Kind]) -> _Walk:
    order = jnp.asarray(graph.breadth_first())
    rank = jnp.zeros(order.shape, jnp.int32).at[order].set(jnp.arange(len(order), dtype=jnp.int32))
    firsts, of_kind, rows = [], [], []
    for g, group in enumerate(graph.groups):
        ranks = rank[group.variables]
        firsts.append(jnp.min(ranks, axis=1))
        of_kind.append(kinds.index((g, 0)) + jnp.argmin(ranks, axis=1))
        rows.append(jnp.arange(len(ranks)))
    first, kind, row = map(jnp.concatenate, (firsts, of_kind, rows))
    of = jnp.argsort(first)
    return _Walk(order[first[of]], kind[of], row[of])


def _switch(branch, kinds: list[_Kind], kind: Int[Array, ""], *given: Array) -> Array:
    """`branch` of a kind that is data."""
    return jax.lax.switch(kind, [lambda *a, k=k: branch(k, *a) for k in kinds], *given)
