"""A sum of functions of a few variables each: which variables are in which, as arrays of indices.

    Σ_I φ_I(x_I),    x_v on a grid of its own;    the graph has an edge from each φ_I to each v in I

Tables of φ_I come and go, stacked by their shape.

    FactorGraph    which variables are in which factor is fixed, compiled once, on the host
    DataGraph      it is data, such as a draw of `kernels.additive.structure`: one program for all of them
"""

import abc
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import require, whole
from jaxbo.types import Scalar

#: The tables of all factors with the same shape, stacked: one array a group of the graph. Where there are
#: several sets of them, the axes of these come before that of the factors.
Tables = tuple[Float[Array, " _factors *_grid"], ...]

#: All variables, in some order.
Order: TypeAlias = Int[Array | np.ndarray, " variables"]

#: More than this is not tried unless asked for.
MOST_BYTES = 4 * 2**30


class Group(NamedTuple):
    """Factors whose tables have the same shape, and their variables in the order of the tables' axes."""

    shape: tuple[int, ...]
    variables: Int[Array | np.ndarray, "factors arity"]


class Incidence(NamedTuple):
    """For each variable, in an order, the factors of each group that it is each axis of; -1 fills up."""

    order: Order
    factors: tuple[tuple[Int[Array | np.ndarray, "variables most"], ...], ...]  # [group][axis]


class AbstractGraph(eqx.Module):
    """The graph that messages travel along."""

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The grid points of every variable."""

    @property
    @abc.abstractmethod
    def groups(self) -> tuple[Group, ...]:
        """The factors, by the shapes of their tables."""

    @abc.abstractmethod
    def incidence(self, order: Order) -> Incidence:
        """The factors of every variable, for variables in this order."""

    @abc.abstractmethod
    def breadth_first(self) -> Order:
        """Every variable after a variable that it shares a factor with, if that is known."""

    @abc.abstractmethod
    def colors(self) -> Bool[np.ndarray, "colors variables"]:
        """Sets of variables that move at the same time, by `share`; each variable is in a single set."""

    @property
    @abc.abstractmethod
    def share(self) -> float:
        """1 if no two variables of a color share a factor, else 1 over the number that do."""

    @property
    def points(self) -> int:
        """The longest grid."""
        return max(self.sizes)

    @property
    def inside(self) -> Bool[np.ndarray, "variables points"]:
        """Which points are on the grid of a variable."""
        return np.arange(self.points)[None, :] < np.array(self.sizes)[:, None]


class _Members(NamedTuple):
    """A group: the shape of its tables, its factors, and their variables."""

    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]


class FactorGraph(AbstractGraph):
    """Which variables each factor is a function of; compiled once, on the host.

    `sizes` are the grid points of every variable, `scopes` the variables of every factor. Factors
    of any number of variables, on grids of different sizes, go through a single program.

    `ValueError` for a variable without grid points, a factor without variables, with a variable
    twice or with a variable that does not exist, a graph without factors, and tables that exceed
    `most_bytes` together. Parts that are not connected, and variables of no factor, are fine: the
    latter take their first point.
    """

    lengths: tuple[int, ...] = eqx.field(static=True)
    scopes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    members: tuple[_Members, ...] = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sequence[SupportsIndex],
        scopes: Sequence[Sequence[SupportsIndex]],
        *,
        most_bytes: int | float = MOST_BYTES,
    ):
        self.lengths = tuple(operator.index(size) for size in sizes)
        self.scopes = tuple(tuple(operator.index(v) for v in scope) for scope in scopes)
        require(len(self.scopes) > 0, "the graph has no factors: scopes is empty.")
        for v, size in enumerate(self.sizes):
            require(size >= 1, f"variable {v} has {size} grid points, expected at least 1.")
        for number, scope in enumerate(self.scopes):
            require(len(scope) > 0, f"factor {number} has no variables.")
            require(len(set(scope)) == len(scope), _twice(number, scope))
            wrong = [v for v in scope if not 0 <= v < len(self.sizes)]
            require(
                not wrong,
                f"factor {number} names variables {wrong}, but there are {len(self.sizes)}.",
            )
        check_memory(
            sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes), most_bytes
        )
        # Within a table larger axes come first, so that fewer shapes differ.
        found: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for number, scope in enumerate(self.scopes):
            order = tuple(sorted(scope, key=lambda v: (-self.sizes[v], v)))
            found.setdefault(tuple(self.sizes[v] for v in order), []).append((number, order))
        self.members = tuple(
            _Members(shape, tuple(n for n, _ in members), tuple(order for _, order in members))
            for shape, members in sorted(found.items())
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.lengths

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(
            Group(group.shape, np.array(group.scopes, np.int32).reshape(-1, len(group.shape)))
            for group in self.members
        )

    def pack(self, tables: Sequence[Float[Array, "..."]]) -> Tables:
        """Tables in the order of `scopes`, each with an axis a variable of its scope, as groups."""
        require(
            len(tables) == len(self.scopes),
            f"expected a table for each of {len(self.scopes)} factors, got {len(tables)}.",
        )
        packed = []
        for group in self.members:
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

    def incidence(self, order: Order) -> Incidence:
        factors = []
        for group in self.groups:
            axes = []
            for column in np.asarray(group.variables).T:
                of = [np.flatnonzero(column == v) for v in order]
                most = max(1, max(len(one) for one in of))
                fill = [np.pad(one, (0, most - len(one)), constant_values=-1) for one in of]
                axes.append(np.array(fill))
            factors.append(tuple(axes))
        return Incidence(order, tuple(factors))

    def breadth_first(self) -> Order:
        near = neighbors(self)
        order: dict[int, None] = {}
        for root in range(len(self.sizes)):
            queue = [root] if root not in order else []
            order.setdefault(root)
            for u in queue:
                for v in sorted(near[u]):
                    if v not in order:
                        order[v] = None
                        queue.append(v)
        return np.array(list(order), np.int32)

    def colors(self) -> Bool[np.ndarray, "colors variables"]:
        """Colors of variables no two of which share a factor: greedily, variables with most
        neighbors first.
        """
        near, color = neighbors(self), {}
        for v in sorted(range(len(self.sizes)), key=lambda v: -len(near[v])):
            taken = {color[u] for u in near[v] if u in color}
            color[v] = next(c for c in itertools.count() if c not in taken)
        of = np.array([color[v] for v in range(len(self.sizes))])
        return of[None, :] == np.arange(of.max() + 1)[:, None]

    @property
    def share(self) -> float:
        return 1.0


class DataGraph(AbstractGraph):
    """Factors whose variables are data: any number of graphs go through a single program, under
    `vmap` too.

    Every factor has `arity` places, and -1 stands where it has fewer variables. All grids have
    `points`. A further variable beyond `count`, on which nothing depends, fills the empty places.

    `order` is given if it is known that the graph is a tree, of factors that leave no place empty:
    its variables, each after a variable that it shares a factor with.

    `ValueError` for a graph without factors, variables or points, and scopes that are no integers.
    Unless they are traced, also for a factor that names a variable twice or a variable that does
    not exist, and for an `order` of another graph.
    """

    scopes: Int[Array, "factors arity"]
    count: int = eqx.field(static=True)
    grid: int = eqx.field(static=True)
    order: Int[Array, " count"] | None = None

    def __check_init__(self):
        whole("count", self.count, least=1)
        whole("grid", self.grid, least=1)
        shape, dtype = self.scopes.shape, self.scopes.dtype
        require(
            len(shape) == 2 and min(shape) > 0 and jnp.issubdtype(dtype, jnp.integer),
            f"scopes must be integers [factors, arity], of at least one factor, got shape {shape} of "
            f"{dtype}.",
        )
        if self.order is not None:
            factors, arity = self.scopes.shape
            require(
                factors * (arity - 1) + 1 == self.count and self.order.shape == (self.count,),
                f"an order is of the {self.count} variables of a tree, but {factors} factors of {arity} "
                f"make none of them, or it has shape {self.order.shape}.",
            )
        if isinstance(self.scopes, jax.core.Tracer):
            return
        scopes = np.asarray(self.scopes)
        wrong = (scopes < -1) | (scopes >= self.count)
        require(
            ~wrong,
            f"factors name variables {np.unique(scopes[wrong]).tolist()}, but there are {self.count}.",
        )
        for number, scope in enumerate(scopes.tolist()):
            named = [v for v in scope if v >= 0]
            require(len(set(named)) == len(named), _twice(number, named))
        if self.order is None or isinstance(self.order, jax.core.Tracer):
            return
        order = np.asarray(self.order).tolist()
        require(
            _is_order(order, scopes.tolist()),
            f"{order} is no order of a tree with factors {scopes.tolist()}.",
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.grid,) * (self.count + 1)

    @property
    def groups(self) -> tuple[Group, ...]:
        variables = jnp.where(self.scopes < 0, self.count, self.scopes).astype(jnp.int32)
        return (Group((self.grid,) * self.scopes.shape[1], variables),)

    def incidence(self, order: Order) -> Incidence:
        # Any factor can be one of any variable's, so all of them are looked at.
        (group,) = self.groups
        of = jnp.asarray(order, jnp.int32)
        numbers = jnp.arange(len(group.variables), dtype=jnp.int32)
        at = group.variables.T[:, None, :] == of[None, :, None]
        axes = tuple(jnp.where(at, numbers[None, None, :], -1))
        return Incidence(order, (axes,))

    def breadth_first(self) -> Order:
        if self.order is None:
            return np.arange(self.count + 1, dtype=np.int32)
        return jnp.append(self.order, self.count).astype(jnp.int32)

    def colors(self) -> Bool[np.ndarray, "colors variables"]:
        """A single color: which variables share a factor is not known before."""
        return np.ones((1, len(self.sizes)), bool)

    @property
    def share(self) -> float:
        return 1 / self.scopes.shape[1]


def _is_order(order: list[int], scopes: list[list[int]]) -> bool:
    """Whether the factors are a tree of the variables, each of which touches a variable before it."""
    rank = {v: i for i, v in enumerate(order)}
    if sorted(rank) != list(range(len(order))) or not all(v in rank for s in scopes for v in s):
        return False
    before = {order[0]}
    for first, *others in sorted(sorted(rank[v] for v in scope) for scope in scopes):
        # The first variable of a factor is there, and it brings the others.
        if order[first] not in before or not before.isdisjoint(order[i] for i in others):
            return False
        before.update(order[i] for i in others)
    return True


def _twice(number: int, scope: Sequence[int]) -> str:
    return f"factor {number} names a variable twice: {tuple(scope)}."


def check_memory(cells: int, most_bytes: int | float = MOST_BYTES) -> None:
    """`ValueError` if tables of so many cells, of the default type, take more than `most_bytes`."""
    dtype = jnp.zeros((), float).dtype
    needed = dtype.itemsize * cells
    require(
        needed <= most_bytes,
        f"the tables of all factors would take {needed / 2**30:.3g} GiB ({needed} bytes) in {dtype}, "
        f"more than {most_bytes / 2**30:.3g} GiB: use coarser grids, or factors of fewer variables.",
    )


def value(graph: AbstractGraph, tables: Tables, x: Int[Array, " variables"]) -> Scalar:
    """The sum of all factors at a point of the grid."""
    total = jnp.zeros((), tables[0].dtype)
    for group, table in zip(graph.groups, tables, strict=True):
        index = [x[group.variables[:, axis]] for axis in range(len(group.shape))]
        total += jnp.sum(table[(jnp.arange(len(table)), *index)])
    return total


def over_factors(
    graph: AbstractGraph,
    tables: Tables,
    plan: Incidence,
    place: Int[Array, ""],
    each: Callable[[int, int, Int[Array, " most"]], Float[Array, "most _"]],
) -> Float[Array, " points"]:
    """The sum over the factors of a variable, at its points; `each` is given their group and its axis."""
    score = jnp.zeros((graph.points,), tables[0].dtype)
    for g, group in enumerate(graph.groups):
        for axis, size in enumerate(group.shape):
            members = jnp.asarray(plan.factors[g][axis])[place]
            found = jnp.where((members >= 0)[:, None], each(g, axis, jnp.maximum(members, 0)), 0)
            score = score.at[:size].add(jnp.sum(found, axis=0))
    return score


def neighbors(graph: FactorGraph) -> list[set[int]]:
    """The variables that each variable shares a factor with."""
    found: list[set[int]] = [set() for _ in graph.sizes]
    for scope in graph.scopes:
        for u, v in itertools.permutations(scope, 2):
            found[u].add(v)
    return found
