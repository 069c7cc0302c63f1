"""Better points of a sum on a factor graph, from a point that there is.

    improve    coordinate ascent: each variable to its best point given all others
    escape     iterated local search: out of where that ends, and up again

Neither makes the sum smaller, and neither says how far it is from the maximum: see `maxsum`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors.graph import AbstractGraph, DataGraph, Tables
from jaxbo.types import Count, Flag, Scalar

#: Factors that are kicked together, and the turns of all before there is one more of them: with one
#: alone, a fifth of small random graphs are left in the same local maxima however long it goes on.
MOST_KICKED, TURNS = 3, 2


class _Kicked(NamedTuple):
    """The best point after some kicks."""

    kicks: Count
    x: Int[Array, " variables"]
    value: Scalar


class _Climb(NamedTuple):
    """A point on its way up: the variables that wait for their turn, and the variable that had the
    last turn.
    """

    x: Int[Array, " variables"]
    waiting: Bool[Array, " variables"]
    last: Int[Array, ""]
    turns: Count


def improve(
    graph: AbstractGraph, tables: Tables, x: Int[Array, " variables"], *, sweeps: int = 10
) -> Int[Array, " variables"]:
    """Coordinate ascent: each variable in turn to its best point given all others.

    Until nothing changes, at most `sweeps` times. The sum never gets smaller.
    """
    tables = tuple(jnp.asarray(table) for table in tables)
    plan = graph.incidence(np.arange(len(graph.sizes)))
    every = jnp.ones((len(graph.sizes),), bool)
    return _ascend(graph, tables, plan, x, every, ~every, sweeps)


def escape(
    graph: AbstractGraph,
    tables: Tables,
    x: Int[Array, " variables"],
    *,
    kicks: int = 500,
    enough: Scalar | float = math.inf,
    sweeps: int = 10,
) -> Int[Array, " variables"]:
    """Iterated local search, from a point that coordinate ascent cannot improve. Not in DEC-HBO.

    A kick moves all variables of a factor to other points, which look random but are always the
    same. Factors take turns; with more factors than kicks, some do, evenly spread. After two turns
    of all, if there are so many kicks, it is up to two factors at a time, then up to three, then a
    single factor again. Coordinate ascent follows, of at most `sweeps`, and a better point is kept:
    the sum never gets smaller. A sum of `enough` ends it.

    Only variables whose surroundings changed are looked at, so but for adding up the sum a kick
    takes as long on a large graph as on a small graph. If the graph is data, a turn goes through
    all factors.
    """
    tables = tuple(jnp.asarray(table) for table in tables)
    count, scopes = len(graph.sizes), _scopes(graph)
    plan = graph.incidence(np.arange(count))
    sizes = jnp.asarray(graph.sizes, x.dtype)
    others = jnp.maximum(sizes - 1, 1).astype(jnp.uint32)
    order = np.linspace(0, len(scopes), max(1, min(len(scopes), kicks)), endpoint=False)
    order = order.astype(np.int32)  # of a turn
    places = jnp.arange(MOST_KICKED, dtype=jnp.int32)

    def going(kicked: _Kicked) -> Flag:
        return (kicked.kicks < kicks) & (kicked.value < enough)

    def kick(kicked: _Kicked) -> _Kicked:
        number, x, most = kicked
        turn, first = number // len(order), jnp.asarray(order)[number % len(order)]
        # Together with the next factors, every other one, every third, ... as turns go by.
        which = (first + places * (1 + turn % max(1, len(scopes) - 1))) % len(scopes)
        several = places <= turn // TURNS % MOST_KICKED
        scope = jnp.where(several[:, None], scopes[which], count).reshape(-1)
        moves = jnp.zeros((count,), bool).at[scope].set(True, mode="drop")
        steps = 1 + (_hash(number, count) % others).astype(x.dtype)
        near = jax.vmap(lambda v: _near(graph, plan, v))(jnp.minimum(scope, count - 1))
        waiting = moves | jnp.any(near & (scope < count)[:, None], axis=0)
        # Those that were kicked come last, or they would just go back.
        moved = jnp.where(moves, (x + steps) % sizes, x)
        new = _ascend(graph, tables, plan, moved, waiting, moves, sweeps)
        reached = factor_graph.value(graph, tables, new)
        better = reached > most
        return _Kicked(number + 1, jnp.where(better, new, x), jnp.where(better, reached, most))

    first = _Kicked(jnp.zeros((), jnp.int32), x, factor_graph.value(graph, tables, x))
    return jax.lax.while_loop(going, kick, first).x


def _scopes(graph: AbstractGraph) -> Int[Array, "factors most"]:
    """The variables of every factor; where there are fewer, a number that no variable has."""
    none, most = len(graph.sizes), max(len(group.shape) for group in graph.groups)
    padded = [
        jnp.pad(group.variables, ((0, 0), (0, most - len(group.shape))), constant_values=none)
        for group in graph.groups
    ]
    scopes = jnp.concatenate(padded)
    # Of a graph that is data the last variable only fills empty places.
    return (
        jnp.where(scopes == graph.count, none, scopes) if isinstance(graph, DataGraph) else scopes
    )


def _hash(seed: Int[Array, ""], length: int) -> UInt32[Array, " length"]:
    """Numbers that look random, ended as in MurmurHash3: the same for all points, and without a key."""
    places = jnp.arange(length, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    bits = places + seed.astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return bits ^ (bits >> 16)


def _ascend(
    graph: AbstractGraph,
    tables: Tables,
    plan: factor_graph.Incidence,
    x: Int[Array, " variables"],
    waiting: Bool[Array, " variables"],
    late: Bool[Array, " variables"],
    sweeps: int,
) -> Int[Array, " variables"]:
    """Coordinate ascent of the variables that wait, in turn; around a variable that moves all wait again.

    The `late` have their turn when no other waits. At most as many turns as in `sweeps` of all variables.
    """
    count = len(graph.sizes)
    inside = jnp.asarray(graph.inside)
    places = jnp.arange(count, dtype=jnp.int32)

    def going(climb: _Climb) -> Flag:
        return jnp.any(climb.waiting) & (climb.turns < sweeps * count)

    def move(climb: _Climb) -> _Climb:
        x, waiting, last, turns = climb
        ahead = (places - last - 1) % count + jnp.where(late, count, 0)
        i = jnp.argmin(jnp.where(waiting, ahead, 2 * count)).astype(jnp.int32)
        score = jnp.where(inside[i], _around(graph, tables, plan, i, x), -jnp.inf)
        # Where nothing is gained, nothing moves: so it ends.
        moves = jnp.max(score) > score[x[i]]
        best = jnp.argmax(score).astype(x.dtype)
        waiting = waiting | (moves & _near(graph, plan, i))
        x = x.at[i].set(jnp.where(moves, best, x[i]))
        return _Climb(x, waiting.at[i].set(False), i, turns + 1)

    first = _Climb(x, waiting, jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going, move, first).x


def _near(
    graph: AbstractGraph, plan: factor_graph.Incidence, place: Int[Array, ""]
) -> Bool[Array, " variables"]:
    """Whether each variable shares a factor with the given variable."""
    near = jnp.zeros((len(graph.sizes),), bool)
    for group, axes in zip(graph.groups, plan.factors, strict=True):
        for factors in axes:
            members = jnp.asarray(factors)[place]
            scopes = jnp.asarray(group.variables)[jnp.maximum(members, 0)]
            near = near.at[scopes].max(jnp.broadcast_to((members >= 0)[:, None], scopes.shape))
    # What only fills empty places has no turn.
    return near.at[graph.count].set(False) if isinstance(graph, DataGraph) else near


def _around(
    graph: AbstractGraph,
    tables: Tables,
    plan: factor_graph.Incidence,
    place: Int[Array, ""],
    x: Int[Array, " variables"],
) -> Float[Array, " points"]:
    """The sum of a variable's factors at each of its points, all other variables staying where they
    are.
    """

    def worth(g: int, axis: int, members: Int[Array, " most"]) -> Float[Array, "most _"]:
        scopes = jnp.asarray(graph.groups[g].variables)[members]

        def one(member: Int[Array, ""], scope: Int[Array, " arity"]) -> Float[Array, " _"]:
            at = (slice(None) if i == axis else x[v] for i, v in enumerate(scope))
            return tables[g][(member, *at)]

        return jax.vmap(one)(members, scopes)

    return factor_graph.over_factors(graph, tables, plan, place, worth)
