"""Maximizing a sum of functions of a few variables each, by messages on their factor graph.

    maximize  Σ_I φ_I(x_I)   over  x_1 ... x_V,   each on a grid of its own      (DEC-HBO, section 3.3)

    q_{v→I}(x_v) = Σ_{J ∋ v, J ≠ I} r_{J→v}(x_v)
    r_{I→v}(x_v) = max over the others of φ_I(x_I) + Σ_{u ∈ I, u ≠ v} q_{u→I}(x_u)            (eq. 3)

A variable needs only the messages of its factors, and a factor only the messages of its variables.
On a tree the messages settle at the maximum; on a graph with cycles they are a good guess, so
`upper_bound` says how far from the maximum the guess can be:

    max Σ_I φ_I ≤ Σ_I max_{x_I} (φ_I(x_I) - Σ_{v ∈ I} λ_{I,v}(x_v)),   Σ_I λ_{I,v} = 0 for every v

for any λ. Bounded max-sum (Rogers et al., 2011) is a choice of λ. Here they descend, a color of
variables at a time, so that the bound never rises.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import require, whole
from jaxbo._shown import Shown
from jaxbo.kernels.factors import elimination, local_search, tree
from jaxbo.kernels.factors import graph as factor_graph
from jaxbo.kernels.factors.graph import AbstractGraph, DataGraph, FactorGraph, Group, Tables
from jaxbo.types import Count, Flag, Scalar

#: Messages have settled when none moves by more than this share of its largest entry.
TOLERANCE = 1e-5
#: Roundings by which a message that has settled may still move.
_ROUNDINGS = 4
#: Connected variables beyond which elimination would compile for too long.
MOST_UNROLLED = 200
#: A message from every factor of every group to each of its variables, padded to the longest grid.
Messages = tuple[Float[Array, "_factors _arity points"], ...]


# ---------------------------------------------------------------- messages


def start(graph: AbstractGraph, tables: Tables) -> Messages:
    """No messages yet."""
    shape = lambda group: (*group.variables.shape, graph.points)  # noqa: E731
    return tuple(jnp.zeros(shape(g), t.dtype) for g, t in zip(graph.groups, tables, strict=True))


def beliefs(graph: AbstractGraph, messages: Messages) -> Float[Array, "variables points"]:
    """The sum of all factors' messages to each variable: on a tree its largest sums, up to a constant."""
    total = jnp.zeros((len(graph.sizes), graph.points), messages[0].dtype)
    for group, message in zip(graph.groups, messages, strict=True):
        total = total.at[group.variables].add(message)
    return total


def step(
    graph: AbstractGraph, tables: Tables, messages: Messages, damping: Scalar | float = 0.0
) -> Messages:
    """A round in which all variables and all factors send at the same time (eq. 3).

    A message is, by a share `damping`, the last message, which leaves fixed points where they are.
    Messages are shifted to a largest value of 0: only differences matter, and sums stay bounded.
    """
    return _step(graph, tables, messages, damping)[0]


def _step(
    graph: AbstractGraph, tables: Tables, messages: Messages, damping: Scalar | float
) -> tuple[Messages, tuple[Float[Array, "_factors _arity"], ...]]:
    """`step`, and by how much each message was shifted: its rounding errors are of that size."""
    total = beliefs(graph, messages)
    sent, shifts = [], []
    for group, table, message in zip(graph.groups, tables, messages, strict=True):
        incoming = total[group.variables] - message
        new = _marginals(group, table, incoming)
        inside = jnp.asarray(graph.inside)[group.variables]
        new = jnp.where(inside, new, -jnp.inf)
        shift = jnp.max(new, axis=2, keepdims=True)
        new = jnp.where(inside, new - shift, 0)
        sent.append(damping * message + (1 - damping) * new)
        shifts.append(shift[:, :, 0])
    return tuple(sent), tuple(shifts)


def _marginals(
    group: Group,
    table: Float[Array, "factors ..."],
    incoming: Float[Array, "factors arity points"],
) -> Float[Array, "factors arity points"]:
    """max over the other variables of table + Σ their incoming, for each variable of each factor."""
    longest = incoming.shape[2]
    sent = [incoming[:, axis, :size] for axis, size in enumerate(group.shape)]
    found = [jnp.pad(most, ((0, 0), (0, longest - most.shape[1]))) for most in _each(table, sent)]
    return jnp.stack(found, axis=1)


def _each(table: Float[Array, "factors ..."], messages: list[Array]) -> list[Array]:
    """`_marginals`, a variable's after another's: the table is read twice, whatever its arity."""
    if len(messages) == 1:
        return [table]
    rest = _each(_without_variable(table, messages[0], 0), messages[1:])
    for message in messages[1:]:
        table = _without_variable(table, message, 1)
    return [table, *rest]


def _without_variable(
    table: Float[Array, "factors ..."], message: Float[Array, "factors points"], variable: int
) -> Float[Array, "factors ..."]:
    """max over a single variable of table + its message."""
    axis = variable + 1
    shape = [1] * table.ndim
    shape[0], shape[axis] = message.shape
    total = table + message.reshape(shape)
    # XLA vectorizes a maximum of two arrays, but none along an axis that is not the last.
    while axis < total.ndim - 1 and (size := total.shape[axis]) > 8:
        half = -(-size // 2)  # of an odd number, both have the middle
        low = jax.lax.slice_in_dim(total, 0, half, axis=axis)
        total = jnp.maximum(low, jax.lax.slice_in_dim(total, size - half, size, axis=axis))
    return jnp.max(total, axis=axis)


def settle(
    graph: AbstractGraph,
    tables: Tables,
    messages: Messages | None = None,
    *,
    iterations: Int[Array, ""] | int = 30,
    damping: Scalar | float = 0.5,
    tolerance: Scalar | float = TOLERANCE,
) -> tuple[Messages, Int[Array, ""]]:
    """Messages once none moves by more than `tolerance` of its largest entry, and after how many rounds.

    At most `iterations`, from `messages` if there are some already. On a tree without damping they
    settle after as many rounds as it is long. That none moves is known by looking at all of them:
    everything else that a node does needs its neighbors only.
    """
    last, count, _ = _settle(graph, tables, messages, iterations, damping, tolerance)
    return last, count


def _settle(
    graph: AbstractGraph,
    tables: Tables,
    messages: Messages | None,
    iterations: Int[Array, ""] | int,
    damping: Scalar | float,
    tolerance: Scalar | float,
) -> tuple[Messages, Int[Array, ""], Bool[Array, ""]]:
    """`settle`, and whether they have."""

    rounding = _ROUNDINGS * float(jnp.finfo(tables[0].dtype).eps)

    def still(new: Array, old: Array, shift: Array) -> Bool[Array, ""]:
        # Each by its own size: what is forbidden is worth -1e6, say, to some, and nothing to others.
        moved, size = (jnp.max(jnp.abs(entries), axis=2) for entries in (new - old, new))
        return jnp.all(moved <= tolerance * size + rounding * jnp.abs(shift))

    def unsettled(carry: tuple[Messages, Int[Array, ""], Bool[Array, ""]]) -> Bool[Array, ""]:
        _, count, settled = carry
        return (count < iterations) & ~settled

    def body(carry: tuple[Messages, Int[Array, ""], Bool[Array, ""]]) -> Any:
        old, count, _ = carry
        new, shifts = _step(graph, tables, old, damping)
        settled = jnp.stack([still(*each) for each in zip(new, old, shifts, strict=True)])
        return new, count + 1, jnp.all(settled)

    first = start(graph, tables) if messages is None else messages
    nothing = first, jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    return jax.lax.while_loop(unsettled, body, nothing)


# ---------------------------------------------------------------- from messages to a point


def decode(graph: AbstractGraph, tables: Tables, messages: Messages) -> Int[Array, " variables"]:
    """A point: variable by variable, each given the variables before it.

    In an order in which each touches a variable before it, if the graph allows. So a tie between
    two maxima is broken once, not by every variable for itself; on a tree with settled messages the
    point is a maximum (of a graph that is data, if it has an `order` or there are no ties).
    """
    total = beliefs(graph, messages)
    inside = jnp.asarray(graph.inside)
    chosen = jnp.zeros((len(graph.sizes),), jnp.int32)
    plan = graph.incidence(graph.breadth_first())
    incoming = tuple(
        total[group.variables] - message
        for group, message in zip(graph.groups, messages, strict=True)
    )

    def place(i: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
        chosen, known = carry
        v = jnp.asarray(plan.order)[i]
        # What messages say already is replaced by what is so, given those before.
        score = total[v] + _told(graph, tables, plan, i, messages, incoming, chosen, known)
        best = jnp.argmax(jnp.where(inside[v], score, -jnp.inf)).astype(jnp.int32)
        return chosen.at[v].set(best), known.at[v].set(True)

    known = jnp.zeros(chosen.shape, bool)
    return jax.lax.fori_loop(0, len(graph.sizes), place, (chosen, known))[0]


def _told(
    graph: AbstractGraph,
    tables: Tables,
    plan: factor_graph.Incidence,
    place: Int[Array, ""],
    messages: Messages,
    incoming: Messages,
    chosen: Int[Array, " variables"],
    known: Bool[Array, " variables"],
) -> Float[Array, " points"]:
    """The sum of a variable's factors, given the variables that are known, less the factors' messages."""

    def change(g: int, axis: int, members: Int[Array, " most"]) -> Float[Array, "most _"]:
        group = graph.groups[g]
        here = _given(group, axis, tables[g], incoming[g], members, chosen, known)
        return here - messages[g][members, axis, : group.shape[axis]]

    return factor_graph.over_factors(graph, tables, plan, place, change)


def _given(
    group: Group,
    axis: int,
    table: Float[Array, "factors ..."],
    incoming: Float[Array, "factors arity points"],
    members: Int[Array, " most"],
    chosen: Int[Array, " variables"],
    known: Bool[Array, " variables"],
) -> Float[Array, "most _"]:
    """max over unknown variables of table + incoming, at the known variables, for some factors of a
    group.
    """

    def one(member: Int[Array, ""]) -> Float[Array, " _"]:
        total = table[member]
        scope = jnp.asarray(group.variables)[member]
        for other, size in enumerate(group.shape):
            if other == axis:
                continue
            at, points = chosen[scope[other]], jnp.arange(size, dtype=chosen.dtype)
            message = incoming[member, other, :size]
            # A known variable is where it is; others are anywhere, and say what they are worth.
            fixed = jnp.where(points == at, 0, -jnp.inf).astype(total.dtype)
            weight = jnp.where(known[scope[other]], fixed, message)
            shape = [1] * len(group.shape)
            shape[other] = size
            total = total + weight.reshape(shape)
        return jnp.max(total, axis=tuple(i for i in range(len(group.shape)) if i != axis))

    return jax.vmap(one)(members)


# ---------------------------------------------------------------- how far it can be from the maximum


def upper_bound(
    graph: AbstractGraph, tables: Tables, *, sweeps: int = 30
) -> tuple[Scalar, Float[Array, " sweeps"]]:
    """No point has a larger sum than this, up to rounding; and the bound after every sweep, which never
    rises.

    Each variable in turn spreads the sums that its factors can reach, at each of its points, evenly
    among them. Variables of a color, which share no factor, do so at once. On a tree it tends to
    the maximum itself. If the graph is data all variables do at once, each by a part: 1 over the
    number of a factor's variables. Tables are finite: `penalized` makes them so. `ValueError` for
    `sweeps` below 1.
    """
    whole("sweeps", sweeps, least=1)
    colors = jnp.asarray(graph.colors())
    inside = jnp.asarray(graph.inside)
    degree = jnp.maximum(_degrees(graph), 1).astype(tables[0].dtype)

    def bound(shifts: Messages) -> Scalar:
        total = jnp.zeros((), tables[0].dtype)
        for group, table, shift in zip(graph.groups, tables, shifts, strict=True):
            most = (_marginals(group, table, shift) + shift)[:, 0, : group.shape[0]]
            total += jnp.sum(jnp.max(most, axis=1))
        return total

    def spread(shifts: Messages, color: Array) -> tuple[Messages, None]:
        reach = [
            _marginals(group, table, shift) + shift
            for group, table, shift in zip(graph.groups, tables, shifts, strict=True)
        ]
        mean = beliefs(graph, tuple(reach)) / degree[:, None]
        new = []
        for group, shift, most in zip(graph.groups, shifts, reach, strict=True):
            turn = color[group.variables][:, :, None] & inside[group.variables]
            new.append(shift + jnp.where(turn, graph.share * (mean[group.variables] - most), 0))
        return tuple(new), None

    def sweep(shifts: Messages, _: None) -> tuple[Messages, Scalar]:
        shifts, _ = jax.lax.scan(spread, shifts, colors)
        return shifts, bound(shifts)

    _, bounds = jax.lax.scan(sweep, start(graph, tables), length=sweeps)
    return jnp.min(bounds), bounds


def _degrees(graph: AbstractGraph) -> Int[Array, " variables"]:
    """The number of factors of each variable."""
    degrees = jnp.zeros((len(graph.sizes),), jnp.int32)
    for group in graph.groups:
        degrees = degrees.at[group.variables].add(1)
    return degrees


# ---------------------------------------------------------------- all of it


class _Looks(NamedTuple):
    """Messages on their way, and the best of the points that were looked at so far."""

    messages: Messages
    x: Int[Array, " variables"]
    value: Scalar
    looked: Count
    settled: Flag


class Solution(Shown):
    """A point, its sum, and a number that no point's sum exceeds, up to rounding.

    `route` is how it was found: by "elimination", by two sweeps over a "tree", or by "messages" on a
    graph with cycles, where it is a maximum if `value` and `bound` agree.
    """

    x: Int[Array, " variables"]
    value: Scalar
    bound: Scalar
    route: Literal["elimination", "tree", "messages"] = eqx.field(static=True)

    @property
    def exact(self) -> bool:
        """Whether the point is a maximum by its route."""
        return self.route != "messages"

    @property
    def gap(self) -> Scalar:
        """How much larger the maximum can be."""
        return self.bound - self.value


def solve(
    graph: AbstractGraph,
    tables: Tables,
    *,
    iterations: int = 30,
    damping: Scalar | float = 0.5,
    decodings: int = 30,
    kicks: int = 500,
    sweeps: int = 30,
    most_cells: int = 100_000,
) -> Solution:
    """The maximum by elimination, or by two sweeps over a tree, or else a good point by messages.

    Elimination is for graphs that are fixed, where no table on the way exceeds `most_cells`; it is
    unrolled, so no more than two hundred variables may be connected. Trees go by `factors.tree`
    (graphs that are data, if they have an `order`). Elsewhere messages may not settle, but they
    pass by good points: of `decodings` that are looked at on the way, by `decode` and
    `local_search.improve`, the best is kept. If `upper_bound`, of `sweeps` sweeps, does not say
    that it is a maximum, `local_search.escape` goes on from there, by `kicks`.

    A cell of -inf is forbidden: no point with such a cell is a maximum. If all points have such a
    cell, or no other point was found, `value` is -inf. `bound` is -inf if it is known that there is
    none. NaN and inf are refused; in traced tables, which cannot be looked at, they are forbidden
    too.

    `ValueError` if tables are not floating or do not fit the graph, for NaN and inf, for
    `iterations`, `decodings` or `sweeps` below 1, and for `kicks` below 0.
    """
    whole("iterations", iterations, least=1)
    whole("decodings", decodings, least=1)
    whole("kicks", kicks, least=0)
    whole("sweeps", sweeps, least=1)
    shapes = [(len(group.variables), *group.shape) for group in graph.groups]
    tables = tuple(jnp.asarray(table) for table in tables)
    found = [table.shape for table in tables]
    require(
        found == shapes,
        f"tables must have shapes {shapes}, got {found}: graph.pack(tables) makes them of one table a "
        "factor.",
    )
    for table in tables:
        kind = jnp.result_type(table)
        require(jnp.issubdtype(kind, jnp.floating), f"tables must be floating, got {kind}.")
        require(
            ~(jnp.isnan(table) | jnp.isposinf(table)),
            "tables must not have NaN or inf; -inf is for what is forbidden.",
        )
    given = tuple(jnp.where(jnp.isfinite(table), table, -jnp.inf) for table in tables)
    route = _route(graph, most_cells)
    if route == "elimination":  # which only adds and compares
        assert isinstance(graph, FactorGraph)
        x = elimination.maximize(graph, given)
        reached = factor_graph.value(graph, given, x)
        return Solution(x, reached, reached, route)
    tables, least = penalized(given)
    if route == "tree":
        x = tree.maximize(graph, tables)
        reached = factor_graph.value(graph, given, x)
        return Solution(x, reached, reached, route)
    between = -(-iterations // decodings)

    def going(looks: _Looks) -> Flag:
        return (looks.looked < -(-iterations // between)) & ~looks.settled

    def look(looks: _Looks) -> _Looks:
        messages, best, most, looked, _ = looks
        messages, _, settled = _settle(graph, tables, messages, between, damping, TOLERANCE)
        x = local_search.improve(graph, tables, decode(graph, tables, messages))
        reached = factor_graph.value(graph, tables, x)
        better = reached > most
        best, most = jnp.where(better, x, best), jnp.where(better, reached, most)
        return _Looks(messages, best, most, looked + 1, settled)

    x = jnp.zeros((len(graph.sizes),), jnp.int32)
    nothing = start(graph, tables), x, factor_graph.value(graph, tables, x)
    first = _Looks(*nothing, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    _, x, reached, _, _ = jax.lax.while_loop(going, look, first)
    bound, _ = upper_bound(graph, tables, sweeps=sweeps)
    if kicks:
        enough = bound - TOLERANCE * jnp.abs(bound)
        x = local_search.escape(graph, tables, x, kicks=kicks, enough=enough)
    reached = factor_graph.value(graph, given, x)
    bound = jnp.where(bound < least, -jnp.inf, bound)
    return Solution(x, reached, jnp.maximum(bound, reached), "messages")


def penalized(tables: Tables) -> tuple[Tables, Scalar]:
    """The tables with finite numbers for -inf, so small that no other cells make up for such a cell.

    And a number below all sums without a forbidden cell, and above all sums with such a cell. With
    S the sum of all factors' ranges, a forbidden cell is 2 S less than the least of its factor.
    Other cells stay as they are, to the last bit.
    """
    dtype = jnp.result_type(*tables)
    lows, highs = zip(*map(_ends, tables), strict=True)
    S = sum((jnp.sum(h - low) for h, low in zip(highs, lows, strict=True)), jnp.zeros((), dtype))
    size = jnp.max(jnp.abs(jnp.concatenate([*lows, *highs])))
    drop = 2 * S + jnp.where(S > 0, 0, jnp.maximum(size, 1))
    least = sum((jnp.sum(low) for low in lows), jnp.zeros((), dtype)) - drop / 4
    found = []
    for table, low in zip(tables, lows, strict=True):
        below = (low - drop).reshape(-1, *[1] * (table.ndim - 1))
        found.append(jnp.where(jnp.isfinite(table), table, below))
    return tuple(found), least


def _ends(table: Float[Array, "factors ..."]) -> tuple[Array, Array]:
    """The least and the largest finite cell of each factor; 0 where there is none."""
    rows = table.reshape(len(table), -1)
    fine = jnp.isfinite(rows)
    low = jnp.min(jnp.where(fine, rows, jnp.inf), axis=1)
    high = jnp.max(jnp.where(fine, rows, -jnp.inf), axis=1)
    some = jnp.any(fine, axis=1)
    return jnp.where(some, low, 0), jnp.where(some, high, 0)


def _route(graph: AbstractGraph, most_cells: int) -> Literal["elimination", "tree", "messages"]:
    """The algorithm that finds the maximum itself, if any does."""
    if isinstance(graph, DataGraph):
        return "messages" if graph.order is None else "tree"
    assert isinstance(graph, FactorGraph)
    forms = [some.graph for some in elimination.parts(graph)]
    largest = max(len(form.sizes) for form in forms)
    if largest <= MOST_UNROLLED and elimination.cells(graph) <= most_cells:
        return "elimination"
    # A connected graph is a tree if it has one edge, of a factor to a variable, less than nodes.
    edges = (sum(map(len, form.scopes)) - len(form.scopes) - len(form.sizes) for form in forms)
    return "tree" if all(n == -1 for n in edges) else "messages"
