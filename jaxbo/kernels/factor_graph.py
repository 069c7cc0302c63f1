"""A sum of functions of a few variables each: which variables are in which, as arrays of indices.

    Σ_I φ_I(x_I),    x_v on a grid of its own;    the graph has an edge from each φ_I to each v in I

Compiled once, on the host; tables of φ_I come and go, stacked by their shape.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import require
from jaxbo.types import Scalar

#: The tables of all factors with the same shape, stacked: one array a group of the graph.
Tables = tuple[Float[Array, "..."], ...]


class Group(NamedTuple):
    """Factors whose tables have one shape: which they are, and their variables in the tables' order."""

    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]

    @property
    def variables(self) -> np.ndarray:
        """[factors arity]"""
        return np.array(self.scopes, np.int32).reshape(len(self.scopes), len(self.shape))


class FactorGraph(eqx.Module):
    """Which variables each factor is a function of; compiled once, on the host.

    `sizes` are the grid points of every variable, `scopes` the variables of every factor. Factors of
    any number of variables, on grids of different sizes, go through one program.

    `ValueError` for a variable without grid points, a factor without variables, with one twice or with
    one that there is not, a graph without factors, and tables that exceed `most_bytes` together.
    Parts that are not connected, and variables of no factor, are fine: the latter take their first point.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    scopes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    groups: tuple[Group, ...] = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sequence[SupportsIndex],
        scopes: Sequence[Sequence[SupportsIndex]],
        *,
        most_bytes: int = 4 * 2**30,
    ):
        self.sizes = tuple(int(size) for size in sizes)
        self.scopes = tuple(tuple(int(v) for v in scope) for scope in scopes)
        require(len(self.scopes) > 0, "the graph has no factors: scopes is empty.")
        for v, size in enumerate(self.sizes):
            require(size >= 1, f"variable {v} has {size} grid points, expected at least 1.")
        for number, scope in enumerate(self.scopes):
            require(len(scope) > 0, f"factor {number} has no variables.")
            require(
                len(set(scope)) == len(scope), f"factor {number} names a variable twice: {scope}."
            )
            wrong = [v for v in scope if not 0 <= v < len(self.sizes)]
            require(
                not wrong,
                f"factor {number} names variables {wrong}, but there are {len(self.sizes)}.",
            )
        needed = 4 * sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes)
        require(
            needed <= most_bytes,
            f"the tables of all factors would take {needed / 2**30:.3g} GiB in float32, more than "
            f"{most_bytes / 2**30:.3g}: use coarser grids, or factors of fewer variables.",
        )
        # Within a table larger axes come first, so that fewer shapes differ.
        found: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for number, scope in enumerate(self.scopes):
            order = tuple(sorted(scope, key=lambda v: (-self.sizes[v], v)))
            found.setdefault(tuple(self.sizes[v] for v in order), []).append((number, order))
        self.groups = tuple(
            Group(shape, tuple(n for n, _ in members), tuple(order for _, order in members))
            for shape, members in sorted(found.items())
        )

    @property
    def points(self) -> int:
        """The longest grid."""
        return max(self.sizes)

    @property
    def inside(self) -> Bool[np.ndarray, "variables points"]:
        """Which points are on the grid of a variable."""
        return np.arange(self.points)[None, :] < np.array(self.sizes)[:, None]

    def pack(self, tables: Sequence[Float[Array, "..."]]) -> Tables:
        """Tables in the order of `scopes`, each with an axis a variable of its scope, as groups."""
        require(
            len(tables) == len(self.scopes),
            f"expected a table for each of {len(self.scopes)} factors, got {len(tables)}.",
        )
        packed = []
        for group in self.groups:
            members = []
            for number, order in zip(group.numbers, group.scopes, strict=True):
                scope = self.scopes[number]
                expected = tuple(self.sizes[v] for v in scope)
                table = jnp.asarray(tables[number])
                require(
                    table.shape == expected,
                    f"the table of factor {number} must have shape {expected}, one axis for each of "
                    f"its variables {scope}, got {table.shape}.",
                )
                members.append(jnp.transpose(table, [scope.index(v) for v in order]))
            packed.append(jnp.stack(members))
        return tuple(packed)


def value(graph: FactorGraph, tables: Tables, x: Int[Array, " variables"]) -> Scalar:
    """The sum of all factors at a point of the grid."""
    total = jnp.zeros((), tables[0].dtype)
    for group, table in zip(graph.groups, tables, strict=True):
        index = [x[group.variables[:, axis]] for axis in range(len(group.shape))]
        total += jnp.sum(table[(jnp.arange(len(table)), *index)])
    return total


class Incidence(NamedTuple):
    """For each variable, in an order, the factors of each group that it is each axis of; -1 fills up."""

    order: np.ndarray
    factors: tuple[tuple[np.ndarray, ...], ...]  # [group][axis] -> [variables most]


def incidence(graph: FactorGraph, order: tuple[int, ...]) -> Incidence:
    """Of the variables in this order."""
    factors = []
    for group in graph.groups:
        axes = []
        for axis in range(len(group.shape)):
            of = [np.flatnonzero(group.variables[:, axis] == v) for v in order]
            most = max(1, max(len(one) for one in of))
            axes.append(np.array([np.pad(o, (0, most - len(o)), constant_values=-1) for o in of]))
        factors.append(tuple(axes))
    return Incidence(np.array(order, np.int32), tuple(factors))


def neighbors(graph: FactorGraph) -> list[set[int]]:
    """Of each variable, those that it shares a factor with."""
    found: list[set[int]] = [set() for _ in graph.sizes]
    for scope in graph.scopes:
        for u, v in itertools.permutations(scope, 2):
            found[u].add(v)
    return found


def breadth_first(graph: FactorGraph) -> tuple[int, ...]:
    """Every variable after one that it shares a factor with, if one of its part came before."""
    near = neighbors(graph)
    order: dict[int, None] = {}
    for root in range(len(graph.sizes)):
        queue = [root] if root not in order else []
        order.setdefault(root)
        for u in queue:
            for v in sorted(near[u]):
                if v not in order:
                    order[v] = None
                    queue.append(v)
    return tuple(order)


def colors(graph: FactorGraph) -> Bool[np.ndarray, "colors variables"]:
    """Variables that share a factor have different colors: greedily, those with most neighbors first."""
    near, color = neighbors(graph), {}
    for v in sorted(range(len(graph.sizes)), key=lambda v: -len(near[v])):
        taken = {color[u] for u in near[v] if u in color}
        color[v] = next(c for c in itertools.count() if c not in taken)
    of = np.array([color[v] for v in range(len(graph.sizes))])
    return of[None, :] == np.arange(of.max() + 1)[:, None]
