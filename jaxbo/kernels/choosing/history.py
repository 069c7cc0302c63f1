"""The evaluations of an agent, and the places where it need not look again.

    risk(x) = Σ_j weights_j k(x, x_j),   weights = (K + ε I)⁻¹ failed,   k(x, z) = exp(-|x - z| / reach)

is near 1 where evaluations failed, near 0 where they succeeded, and 0 where nothing is known. It is the
mean of a process that has observed which evaluations failed. The paths of this process are not smooth, so
the risk is nearly linear between a failure and a success. If the border is anywhere between the two, the
risk is the probability that the border was passed. `reach` is the likeliest of a few. The shortest stands
for failures that have nothing to do with their place: only points that failed are then avoided.

A repeated point teaches nothing if the objective has no noise. The first repetition shows whether
there is noise: its value is the same, or another. If a few near points have equal values, another near
point would have the same value, and a search goes far away. While all values are equal, no model says
where to look, and least of all a corner of the domain. If values are noise alone, a model still has a
peak, and a search would stay there. So a place that is no better than the rest after a few evaluations
is left with probability 1/2 in each round.
"""

import math
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo._keys import unwrap, wrap
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels import linalg
from jaxbo.kernels.choosing.blocks import of_all
from jaxbo.kernels.choosing.wanted import if_wanted
from jaxbo.kernels.moments import Moments, bounded, moments_of, no_moments, updated
from jaxbo.types import Flag, Key, Point, Points, Scalar

#: So many evaluations are remembered, or fewer if the agent's model can hold no more. Of an agent that
#: remembers K a search takes a few matrices of K² numbers.
MOST = 128
#: The same for an agent whose model has no limit.
UNLIMITED = 64
#: From so large a share of the rows on, a failure takes the place of another failure.
_FAILURES = 0.25
#: A point is avoided if its risk is larger.
TOLERATED = 0.07
#: The risk at a point that failed.
FORBIDDEN = 2.0
#: Lengths over which failures may be alike, in units of the root of the dimension, with which distances
#: in a cube grow. Over the first no two places are alike: failures by chance.
REACHES = (1e-3, 0.02, 0.05, 0.15, 0.5, 1.5)
#: How much each is expected, in nats: 0.15 most, half a nat less a factor e away, one nat less by chance.
EXPECTED = (-1.0, *(-(np.log(np.array(REACHES[1:]) / 0.15) ** 2) / 2))
#: The variance of failures that does not depend on the place.
_CHANCE = 1e-2
#: Points that are no farther apart are the same but for rounding.
_SAME = 1e-6
#: Values that differ by so many roundings are the same.
_ROUNDINGS = 8
#: Points are near up to this distance, in units of the root of the dimension.
_NEAR = 0.05
#: So many values of near points tell whether a place is worth more.
_FEW = 4
#: A place is better than all others if the difference of the means is so many standard errors.
_BETTER = 2.0
#: Values near a point are alike if their deviation is less than half of that of all values.
_ALIKE = 0.5
#: From a place of equal values a search goes to the farthest of so many candidates, which are drawn.
#: The farthest of all would be a corner, the more so the more dimensions there are.
_DRAWN = 8
#: Points that are looked at on the way to one that is not allowed.
_STEPS = 16
#: What has become of an evaluation.
_ENDED, _FAILED, _PENDING = 0, 1, 2
#: So many candidates are compared with what is remembered at a time, which bounds an agent's memory.
_BLOCK = 64


class Seen(eqx.Module):
    """All values that an agent has ever observed, in a few numbers.

    `least` and `most` are the ends of their range. `repeats` says whether any point that was evaluated
    twice had the same value again, and `varies` whether any had another value.
    """

    moments: Moments
    least: Scalar
    most: Scalar
    repeats: Flag
    varies: Flag

    @property
    def flat(self) -> Flag:
        """Whether all values are equal, two or more."""
        return (self.moments.count > 1) & same(self.least, self.most)

    @property
    def exact(self) -> Flag:
        """Whether the objective has shown that it has no noise."""
        return self.repeats & ~self.varies


class History(eqx.Module):
    """Points that an agent evaluated, with their values: all of them, or as many as there is room for.

    `y` is NaN if the evaluation failed, and infinite if it has not ended: `status` says so, and `values`
    are finite, so that `jax_debug_nans` and `jax_debug_infs` stop for no state. `order` counts the rows
    as they are written, from 0 on, and is -1 for an empty row. In a full history a success takes the
    place of the nearest success. So does a failure, or, where a quarter of the rows failed, it takes
    that of the nearest failure. So memory is of all places that were tried. `seen` is of all values that
    ever were.
    """

    x: Float[Array, "capacity dim"]
    values: Float[Array, " capacity"]
    status: Int[Array, " capacity"]
    order: Int[Array, " capacity"]
    seen: Seen

    @property
    def y(self) -> Float[Array, " capacity"]:
        """The values; NaN where an evaluation failed, infinite where it has not ended."""
        ended = jnp.where(self.status == _FAILED, jnp.nan, self.values)
        return jnp.where(self.status == _PENDING, jnp.inf, ended)

    @property
    def used(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point."""
        return self.order >= 0

    @property
    def failed(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point whose evaluation failed."""
        return self.used & (self.status == _FAILED)

    @property
    def known(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point whose evaluation has ended."""
        return self.used & (self.status != _PENDING)


def empty(dim: int, capacity: int | None, pending: int = 0) -> History:
    """No evaluation yet, of an agent whose model can hold `capacity` of them.

    `pending` are rows more, for points whose evaluations have not ended.
    """
    size = (UNLIMITED if capacity is None else min(capacity, MOST)) + pending
    x, y = jnp.zeros((size, dim), float), jnp.zeros((size,), float)
    no = jnp.zeros((), bool)
    most = jnp.full((), jnp.finfo(y.dtype).max, y.dtype)
    seen = Seen(no_moments(y.dtype), most, -most, no, no)
    return History(x, y, jnp.full((size,), _ENDED, jnp.int8), jnp.full((size,), -1), seen)


def add(past: History, x: Point, y: Scalar) -> History:
    """The history with a further evaluation; a value that is not finite is a failure.

    Nothing changes for a point that is not finite: there was no evaluation.
    """
    y = jnp.where(jnp.isfinite(y), y, jnp.nan).astype(past.values.dtype)
    happened = jnp.all(jnp.isfinite(x))
    value = jnp.isfinite(y) & happened
    known = (past.status == _ENDED) & past.used & value
    earlier, equal = known & _at(past.x, x), same(past.values, y)
    seen = past.seen
    told = Seen(
        updated(seen.moments, jnp.where(value, bounded(y), jnp.nan)),
        jnp.where(value, jnp.minimum(seen.least, y), seen.least),
        jnp.where(value, jnp.maximum(seen.most, y), seen.most),
        seen.repeats | jnp.any(earlier & equal),
        seen.varies | jnp.any(earlier & ~equal),
    )
    written = _written(past, x, y, happened)
    return eqx.tree_at(lambda past: past.seen, written, told)


def wait(past: History, x: Point, busy: Flag | bool = True) -> History:
    """With a point whose evaluation has not ended, if anybody is `busy` with it."""
    return _written(past, x, jnp.full((), jnp.inf, past.values.dtype), jnp.asarray(busy))


def _written(past: History, x: Point, y: Scalar, wanted: Flag) -> History:
    """The history with a further row, in the place of an empty row, or of the nearest row that may go."""
    many = jnp.mean(past.failed, dtype=past.values.dtype) >= _FAILURES
    going = jnp.where(jnp.isnan(y) & many, past.failed, past.used & (past.status == _ENDED))
    going = jnp.where(jnp.any(going), going, past.known)
    away = jnp.where(going, _distances(past.x, x), jnp.inf)
    row = jnp.where(wanted, jnp.argmin(jnp.where(past.used, away, -1)), past.values.size)
    last = jnp.max(past.order)
    status = jnp.where(jnp.isnan(y), _FAILED, jnp.where(jnp.isinf(y), _PENDING, _ENDED))
    value = jnp.where(status == _ENDED, y, 0)
    return History(
        past.x.at[row].set(x.astype(past.x.dtype), mode="drop"),
        past.values.at[row].set(value, mode="drop"),
        past.status.at[row].set(status.astype(past.status.dtype), mode="drop"),
        past.order.at[row].set(last + 1, mode="drop"),
        past.seen,
    )


def repeated(past: History, x: Point) -> Bool[Array, " capacity"]:
    """The rows that `x` repeats."""
    return past.used & _at(past.x, x)


def _at(X: Float[Array, "capacity dim"], x: Point) -> Bool[Array, " capacity"]:
    return _distances(X, x) <= _SAME


class Place(NamedTuple):
    """Whether values near a point are worth more, judged by `_FEW` of them or more.

    `level` says whether all are equal. `dull` says whether they are no better than all values, and differ
    as much from each other: noise alone.
    """

    level: Flag
    dull: Flag


def _place(past: History, x: Point) -> Place:
    near = past.used & (past.status == _ENDED) & _within(past.x, x, _NEAR)
    least, most = (jnp.where(near, past.values, end) for end in (jnp.inf, -jnp.inf))
    seen = past.seen.moments
    here = moments_of(past.values - seen.first, near)
    (variance, error), (all_variance, all_error) = _spread(here), _spread(seen)
    better = here.mean - seen.mean > _BETTER * jnp.sqrt(error + all_error)
    enough = here.count >= _FEW
    alike = variance < _ALIKE**2 * all_variance
    return Place(enough & same(jnp.min(least), jnp.max(most)), enough & ~better & ~alike)


def _spread(moments: Moments) -> tuple[Scalar, Scalar]:
    """The variance of values, and that of their mean; two values are the fewest."""
    count = jnp.maximum(moments.count, 2).astype(moments.squares.dtype)
    variance = moments.squares / (count - 1)
    return variance, variance / count


def _within(X: Float[Array, "capacity dim"], x: Point, distance: float) -> Bool[Array, " capacity"]:
    return _distances(X, x) <= distance * math.sqrt(x.size)


def same(a: Float[Array, "*shape"], b: Scalar) -> Bool[Array, "*shape"]:
    """Whether values differ by rounding only."""
    return jnp.abs(a - b) <= _ROUNDINGS * jnp.finfo(a.dtype).eps * jnp.abs(b)


# ---------------------------------------------------------------- where evaluations fail


class Risk(NamedTuple):
    """The probability, roughly, that an evaluation fails; `FORBIDDEN` at a point that did.

    `present` says whether any has failed.
    """

    x: Float[Array, "capacity dim"]
    failed: Bool[Array, " capacity"]
    weights: Float[Array, " capacity"]
    reach: Scalar

    @property
    def present(self) -> Flag:
        """Whether any evaluation failed."""
        return jnp.any(self.failed)

    def __call__(self, x: Point) -> Scalar:
        """The risk at a point; 0 everywhere as long as nothing has failed."""
        found = linalg.dot(self.weights, jnp.exp(-_distances(self.x, x) / self.reach))
        again = jnp.any(self.failed & _at(self.x, x))
        return jnp.where(again, FORBIDDEN, found)


class Limits(NamedTuple):
    """An agent with this past looks at points whose risk is at most `most`.

    `risks` are the risks of a search's candidates.
    """

    risk: Risk
    risks: Float[Array, " points"]
    most: Scalar

    @property
    def allowed(self) -> Bool[Array, " points"]:
        """The candidates that may be looked at; there is always such a candidate."""
        return self.risks <= self.most

    def allow(self, x: Point) -> Flag:
        """Whether the risk at a point is low enough."""
        low = lambda x: self.risk(x) <= self.most  # noqa: E731
        return if_wanted(self.risk.present, low, x, jnp.ones((), bool))

    def toward(self, domain: AbstractDomain, start: Point, end: Point) -> Point:
        """The last point that is allowed on the way from `start` to `end`, or the start."""

        def last(start: Point) -> Point:
            shares = jnp.linspace(0, 1, _STEPS)[:, None].astype(start.dtype)
            way = jax.vmap(domain.project)(start[None, :] + shares * (end - start)[None, :])
            allowed = jax.vmap(self.risk)(way) <= self.most
            if domain.constrained:
                allowed = allowed & jax.vmap(domain.allows)(way)
            return way[jnp.max(jnp.where(allowed, jnp.arange(_STEPS), 0))]

        wanted = jnp.ones((), bool) if domain.constrained else self.risk.present
        return if_wanted(wanted, last, start, end)

    def elsewhere(
        self,
        key: Key,
        past: History,
        candidates: Points,
        x: Point,
        alone: Flag | bool = True,
    ) -> Point:
        """`x`, unless it would teach nothing (`maximize.query`)."""
        coin_key, key = jr.split(key)
        place = _place(past, x)
        level = place.level & alone
        dull = place.dull & ~place.level & jr.bernoulli(coin_key)
        lost = (past.seen.flat | dull) & alone
        again = past.seen.exact & jnp.any(repeated(past, x))

        def other(known: tuple[Float[Array, "capacity dim"], Array]) -> Point:
            X, data = known

            def nearest(z: Point) -> Scalar:
                return jnp.min(jnp.where(past.used, _distances(X, z), jnp.inf))

            apart = of_all(nearest, candidates, _BLOCK)
            new = apart > _SAME
            # By its data: JAX's check for reused keys takes a loop for a second use.
            drawn = jr.uniform(wrap(data, key), apart.shape, apart.dtype)
            free = new & self.allowed
            drawn = jnp.where(free, drawn, -1)
            few = drawn >= jax.lax.top_k(drawn, min(_DRAWN, drawn.size))[0][-1]
            far = jnp.where(few | ~level, apart, 0)
            best = jnp.where(free, jnp.where(lost, drawn, far), -1)
            # Where all that is allowed was asked before, the place of least risk that was not.
            least = jnp.where(new, -self.risks, -jnp.inf)
            found = jnp.where(jnp.any(free), jnp.argmax(best), jnp.argmax(least))
            worth = jnp.any(free) | (again & jnp.any(new))
            return jnp.where(worth, candidates[found], x)

        return if_wanted(lost | again | level, other, (past.x, unwrap(key)), x)


def preferred(
    allowed: Bool[Array, " points"], values: Float[Array, " points"]
) -> Float[Array, " points"]:
    """The values of a function, so that any point that is allowed is better than all others."""
    return jnp.where(allowed, jnp.maximum(values, jnp.finfo(values.dtype).min), -jnp.inf)


def limits(past: History, candidates: Points) -> Limits:
    """Points whose risk is tolerated, or the candidates of least risk where none is."""
    nowhere = jnp.zeros_like(past.values), jnp.ones((), past.values.dtype)
    none = jnp.zeros(candidates.shape[:1], past.x.dtype)

    def known(past: History) -> tuple[tuple[Array, Scalar], Float[Array, " points"]]:
        fitted = _fitted(past)
        return fitted, of_all(Risk(past.x, past.failed, *fitted), candidates, _BLOCK)

    fitted, risks = if_wanted(jnp.any(past.failed), known, past, (nowhere, none))
    found = Risk(past.x, past.failed, *fitted)
    return Limits(found, risks, jnp.maximum(jnp.min(risks), TOLERATED))


def _fitted(past: History) -> tuple[Float[Array, " capacity"], Scalar]:
    """The weights under the likeliest reach, and that reach."""
    dtype, known = past.values.dtype, past.known
    count, failed = jnp.sum(known, dtype=dtype), past.failed.astype(dtype)
    distances = jax.vmap(lambda z: _distances(past.x, z))(past.x)
    distances = jnp.where(known[:, None] & known[None, :], distances, jnp.inf)
    identity = jnp.eye(known.size, dtype=dtype)

    def under(item: tuple[Scalar, Scalar]) -> tuple[Scalar, Float[Array, " capacity"]]:
        reach, prior = item
        # No eigenvalue is below `_CHANCE` or above the number of rows: float32 is enough.
        L = jax.lax.linalg.cholesky(
            jnp.exp(-distances / reach) + _CHANCE * identity, symmetrize_input=False
        )
        # The library's solve, which is quick for one right-hand side and compiles sooner than our own.
        solve = partial(jax.lax.linalg.triangular_solve, L, left_side=True, lower=True)
        white = solve(failed[:, None])
        # With the amplitude that is most likely.
        fit = jnp.log(jnp.sum(white**2) / count)
        weights = solve(white, transpose_a=True)[:, 0]
        return prior - count / 2 * fit - jnp.sum(jnp.log(jnp.diagonal(L))), weights

    reaches = jnp.asarray(REACHES, dtype) * math.sqrt(past.x.shape[1])
    # One after another: they take K² numbers each.
    evidences, weights = jax.lax.map(under, (reaches, jnp.asarray(EXPECTED, dtype)))
    best = jnp.argmax(evidences)
    return weights[best], reaches[best]


def _distances(X: Float[Array, "capacity dim"], x: Point) -> Float[Array, " capacity"]:
    return jnp.sqrt(jnp.sum((X - x[None, :]) ** 2, axis=1))
