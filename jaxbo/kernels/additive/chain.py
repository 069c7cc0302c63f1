"""Markov chains that learn a structure: the variables that share a factor.

    target(U, noise, variances) = N(y; 0, Σ_I k_I + noise I) p(noise, variances) exp(-penalty places)

The first factors stay, a factor of each single variable. The others are slots. A slot holds a factor
of two or more variables, or nothing, and no two hold the same. There are these moves, and each keeps
the target as it is:

    hyper     noise, the variances of factors that stay and of slots, by a step of their logarithms
    birth     an empty slot gets a pair (i, j), with chance chances_ij
    death     a slot that holds a pair is emptied
    swap      a variable of a factor is exchanged for another
    growth    a factor gets a variable more, and shrinking is the way back

A variable joins others with chances in proportion to the sum of its chances with each of them. The
chances come from a score test of all pairs (`scores`) against the values that the structure does not
explain. They are made anew after every `RENEWED` moves. Between two tests each move keeps the target
exactly. A test asks where the chain is, so over many tests the chain adapts, and keeps the target only
nearly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo.kernels import linalg
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Key, Scalar

Scopes: TypeAlias = Int[Array, "factors arity"]
#: Logarithms of factors of the noise, and of the variances of factors that stay and of slots.
Logs: TypeAlias = Float[Array, "3"]

#: How far a move takes each of `Logs`, as a standard deviation.
_STRIDES = (0.7, 0.3, 0.5)
#: Shares of moves; the others change a factor.
_HYPER, _BIRTHS, _DEATHS = 0.25, 0.25, 0.25
#: Share of changes that keep the size of a factor, where it can change.
_SWAPS = 0.5
#: Share of births that do not ask the scores, and the largest score that counts, in deviations.
_BLIND, _HIGHEST = 0.3, 8.0
#: Moves between two score tests.
RENEWED = 100
#: Draws from which the deviation of a score is estimated.
_DRAWS = 16


class Evidence(NamedTuple):
    """The log evidence of scopes is `total` of them, of the sum of `part` over slots, and of `Logs`.

    `part` is of a slot's number and its variables. A move, of a single slot, changes a single summand.
    `prior` is the log density of noise and variances; None is flat. `scores` says of each pair of
    variables how much more of the values it would explain than chance, in deviations; None if nobody
    knows.
    """

    part: Callable[[Count, Int[Array, " arity"]], PyTree]
    total: Callable[[Scopes, PyTree, Logs], Scalar]
    prior: Callable[[Logs], Scalar] | None = None
    scores: Callable[[Key, PyTree, Logs], Float[Array, "dim dim"]] | None = None


class Chain(NamedTuple):
    """The last structure of a chain, and how it was found.

    `accepted` is the share of moves that were taken. `pairs` is the share of moves after which each
    pair shared a factor, `logs` is where noise and variances are, and `evidence` is the log evidence
    after each move. They are None where nothing is learned.
    """

    scopes: Scopes
    accepted: Scalar
    pairs: Float[Array, "dim dim"] | None = None
    logs: Logs | None = None
    evidence: Float[Array, " steps"] | None = None


class _Place(NamedTuple):
    """The state of a chain. `parts` is the sum of the slots' parts, and how many slots have each pair."""

    scopes: Scopes
    parts: tuple[PyTree, Float[Array, "dim dim"]]
    logs: Logs
    evidence: Scalar
    density: Scalar


class _Move(NamedTuple):
    """A slot's new variables, and log of the chance of the way back over the chance of the move.

    It is -inf if there is no such move.
    """

    row: Count
    scope: Int[Array, " arity"]
    ratio: Scalar


def sample(
    key: Key,
    scopes: Scopes,
    evidence: Evidence,
    dim: int,
    *,
    fixed: int,
    steps: int = 100,
    penalty: Scalar | float = 0.0,
    logs: Logs | None = None,
) -> Chain:
    """`steps` moves from `scopes` and `logs`, of which the first `fixed` factors stay as they are.

    Each factor in a slot is as a set: its variables are put in order.
    """
    factors = len(scopes)

    def part(row: Count, scope: Int[Array, " arity"]) -> tuple[PyTree, Float[Array, "dim dim"]]:
        return evidence.part(row, scope), shared(scope[None], dim)

    def add(parts: PyTree, factor: tuple[Count, Int[Array, " arity"]]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, parts, part(*factor)), None

    def at(scopes: Scopes, parts: PyTree, logs: Logs) -> _Place:
        found = evidence.total(scopes, parts[0], logs)
        taken = jnp.sum(scopes[fixed:] >= 0).astype(found.dtype)
        density = found - jnp.asarray(penalty, found.dtype) * taken
        if evidence.prior is not None:
            density = density + evidence.prior(logs).astype(found.dtype)
        return _Place(scopes, parts, logs, found, density)

    def tested(key: Key, here: _Place) -> Float[Array, "dim dim"]:
        if evidence.scores is None:
            return _chances(jnp.zeros((dim, dim)))
        return _chances(evidence.scores(key, here.parts[0], here.logs))

    def step(carry: Any, item: tuple[Count, Key]) -> tuple[Any, Scalar]:
        here, accepted, pairs, chances = carry
        number, key = item
        # All chains are tested in the same rounds: under vmap this stays a branch.
        test_key, key = jr.split(key)
        chances = jax.lax.cond(
            number % RENEWED == 0, lambda: tested(test_key, here), lambda: chances
        )
        kind_key, move_key, log_key, accept_key = jr.split(key, 4)
        kind = jr.uniform(kind_key)
        hyper = kind < _HYPER
        strides = jnp.where(hyper, jnp.asarray(_STRIDES, here.logs.dtype), 0)
        logs = here.logs + strides * jr.normal(log_key, (3,), here.logs.dtype)
        move = _move(move_key, kind - _HYPER, here.scopes, chances, fixed)
        ratio = jnp.where(hyper, 0, move.ratio)
        old = here.scopes[move.row]
        stays = hyper | ~jnp.isfinite(ratio)
        scope = jnp.asarray(jnp.where(stays, old, move.scope))
        changed = jax.tree.map(
            lambda parts, old, new: parts - old + new,
            here.parts,
            part(move.row, old),
            part(move.row, scope),
        )
        there = at(here.scopes.at[move.row].set(scope), changed, logs)
        gain = there.density - here.density + ratio.astype(here.density.dtype)
        take = jnp.log(jr.uniform(accept_key, dtype=gain.dtype)) < gain
        here = jax.tree.map(lambda new, old: jnp.where(take, new, old), there, here)
        # Counts of slots are whole, but for the rounding of their sums.
        pairs += (here.parts[1] > 0.5).astype(float)
        return (here, accepted + take.astype(int), pairs, chances), here.evidence

    scopes = scopes.at[fixed:].set(_ordered(scopes[fixed:], dim))
    shapes = jax.eval_shape(part, jnp.zeros((), int), scopes[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    parts, _ = jax.lax.scan(add, nothing, (jnp.arange(fixed, factors), scopes[fixed:]))
    logs = jnp.zeros_like(jnp.asarray(_STRIDES)) if logs is None else logs
    start = at(scopes, parts, logs), jnp.zeros((), int), jnp.zeros((dim, dim))
    items = jnp.arange(steps), jr.split(key, steps)
    (end, accepted, pairs, _), found = jax.lax.scan(step, (*start, jnp.zeros((dim, dim))), items)
    return Chain(end.scopes, accepted.astype(float) / steps, pairs / steps, end.logs, found)


def shared(scopes: Scopes, dim: int) -> Float[Array, "dim dim"]:
    """1 for pairs of variables that share a factor, 0 for others and on the diagonal."""
    has = jnp.any(
        scopes[:, :, None] == jnp.arange(dim, dtype=scopes.dtype)[None, None, :], axis=1
    ).astype(float)
    together = dot(has.T, has) > 0
    return (together & ~jnp.eye(dim, dtype=bool)).astype(float)


# ------------------------------------------------------------------------------------ moves


def _move(
    key: Key, kind: Scalar, scopes: Scopes, chances: Float[Array, "dim dim"], fixed: int
) -> _Move:
    """A birth, a death or a change, by the number `kind`, from which births begin at 0."""
    dim, arity = len(chances), scopes.shape[1]
    row_key, pair_key, size_key, place_key, variable_key = jr.split(key, 5)
    slots = jnp.arange(len(scopes)) >= fixed
    sizes = jnp.sum(scopes >= 0, axis=1)
    held, empty = slots & (sizes > 0), slots & (sizes == 0)
    full, free = (jnp.sum(mask).astype(chances.dtype) for mask in (held, empty))
    birth, death = kind < _BIRTHS, (kind >= _BIRTHS) & (kind < _BIRTHS + _DEATHS)
    row = jr.categorical(row_key, jnp.where(jnp.where(birth, empty, held), 0.0, -jnp.inf))
    old, size = scopes[row], sizes[row]
    none = jnp.full_like(old, -1)

    # A pair, and the chance to empty the slot again; or the other way round.
    i, j = jnp.divmod(_draw(pair_key, chances.ravel()), dim)
    pair = none.at[:2].set(jnp.stack([i, j]).astype(old.dtype))
    back = jnp.log(free) - jnp.log(full + 1) - jnp.log(chances[i, j])
    born = jnp.where((free > 0) & (i != j), back, -jnp.inf)
    back = jnp.log(chances[old[0], old[1]]) + jnp.log(full) - jnp.log(free + 1)
    died = jnp.where((full > 0) & (size == 2), back, -jnp.inf)

    # A variable for another, a variable more, or a variable less. The variables in `rest` stay.
    u = jr.uniform(size_key) if arity > 2 else jnp.zeros(())
    more, less = (u >= _SWAPS) & (u < (1 + _SWAPS) / 2), u >= (1 + _SWAPS) / 2
    place = jnp.floor(jr.uniform(place_key) * size.astype(float)).astype(int)
    place = jnp.where(more, jnp.minimum(size, arity - 1), jnp.minimum(place, size - 1))
    rest = jnp.where((jnp.arange(arity) == place) & ~(more & (size == arity)), -1, old)
    weights = _joining(rest, chances)
    variable = _draw(variable_key, weights)
    changed = rest.at[place].set(jnp.where(less, -1, variable).astype(old.dtype))
    count = size.astype(chances.dtype)
    to, of = jnp.log(weights[variable]), jnp.log(weights[old[place]])
    ratio = jnp.where(more, -jnp.log(count + 1) - to, jnp.where(less, of + jnp.log(count), of - to))
    fits = jnp.where(more, size < arity, jnp.where(less, size > 2, True)) & (weights[variable] > 0)
    ratio = jnp.where(fits & (full > 0), ratio, -jnp.inf)

    scope = jnp.where(birth, pair, jnp.where(death, none, changed))
    scope = _ordered(scope[None], dim)[0]
    ratio = jnp.where(birth, born, jnp.where(death, died, ratio))
    again = slots & (jnp.arange(len(scopes)) != row) & jnp.all(scopes == scope[None], axis=1)
    again = jnp.any(again) & jnp.any(scope >= 0)
    return _Move(row, scope, jnp.where(again, -jnp.inf, ratio))


def _joining(rest: Int[Array, " arity"], chances: Float[Array, "dim dim"]) -> Float[Array, " dim"]:
    """How likely each variable is to join others; the sum is 1, or 0 if there is no other variable."""
    dim = len(chances)
    has = jnp.any(rest[:, None] == jnp.arange(dim, dtype=rest.dtype)[None, :], axis=0)
    weights = jnp.where(has, 0, dot(has.astype(chances.dtype), chances))
    total = jnp.sum(weights)
    return weights / jnp.where(total > 0, total, 1)


def _draw(key: Key, weights: Float[Array, " numbers"]) -> Count:
    """A number, in proportion to its weight."""
    sums = jnp.cumsum(weights)
    u = jr.uniform(key, dtype=weights.dtype) * sums[-1]
    return jnp.minimum(jnp.searchsorted(sums, u, side="right"), len(weights) - 1).astype(int)


def _ordered(scopes: Scopes, dim: int) -> Scopes:
    """The variables of each in order, empty places last."""
    rows = jnp.sort(jnp.where(scopes < 0, dim, scopes), axis=1)
    return jnp.where(rows == dim, -1, rows)


def _chances(scores: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """How often a birth tries each pair. The sum over pairs is 1, and the diagonal is 0."""
    dim = len(scores)
    others = ~jnp.eye(dim, dtype=bool)
    good = jnp.where(others, jnp.exp(jnp.clip(jnp.nan_to_num(scores), 0, _HIGHEST)), 0)
    even = others.astype(good.dtype) * (2 / (dim * (dim - 1)))
    return (1 - _BLIND) * 2 * good / jnp.sum(good) + _BLIND * even


# ------------------------------------------------------------------------------------ scores


def scores(
    key: Key,
    alone: Float[Array, "dim capacity capacity"],
    K: Float[Array, "capacity capacity"],
    y: Float[Array, " capacity"],
    rows: Bool[Array, " capacity"],
    noise: Scalar,
) -> Float[Array, "dim dim"]:
    """The score test of every pair of variables, in deviations of the score.

        score_ij = (a'M a - tr K⁻¹M) / 2,   a = K⁻¹y,   M = centered k_i times centered k_j, by entries

    It is the slope of the log evidence where the pair has no variance yet. `alone` are the
    correlations k_i by each variable, `K` is the covariance of the values with the noise, and `rows`
    are the rows in use. The deviation is estimated from draws y ~ N(0, K). O(dim² capacity²).
    """
    n = jnp.maximum(jnp.sum(rows, dtype=K.dtype), 1)
    used = rows[:, None] & rows[None, :]

    def centered(k: Float[Array, "capacity capacity"]) -> Float[Array, "capacity capacity"]:
        mean = jnp.sum(jnp.where(used, k, 0), axis=1) / n
        level = jnp.sum(jnp.where(rows, mean, 0)) / n
        return jnp.where(used, k - mean[:, None] - mean[None, :] + level, 0)

    flat = jax.vmap(centered)(alone).reshape(len(alone), -1)
    inverse = linalg.inverse_lower(linalg.cholesky(K, noise))
    whole = dot(inverse.T, inverse)
    drawn = jnp.where(rows[None, :], dot(jr.normal(key, (_DRAWS, len(y)), y.dtype), inverse), 0)

    def of_matrix(A: Float[Array, "capacity capacity"]) -> Float[Array, "dim dim"]:
        return dot(flat * A.ravel()[None, :], flat.T)

    def of_weights(a: Float[Array, " capacity"]) -> Float[Array, "dim dim"]:
        return of_matrix(a[:, None] * a[None, :]) - expected

    expected = of_matrix(whole)
    square = lambda total, a: (total + of_weights(a) ** 2, None)  # noqa: E731
    spread, _ = jax.lax.scan(square, jnp.zeros_like(expected), drawn)
    found = of_weights(dot(whole, jnp.where(rows, y, 0)))
    return found / jnp.sqrt(spread / _DRAWS + jnp.finfo(spread.dtype).tiny)
