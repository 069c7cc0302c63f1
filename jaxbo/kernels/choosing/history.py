"""The evaluations of an agent, in the order in which they were made.

An agent remembers places where its evaluations failed (`failures`), and places where it need not look
again (`elsewhere`). If it can remember no more, an evaluation takes the place of its nearest.

A repeated point teaches nothing if the objective has no noise. The first repetition shows whether
there is noise: its value is the same, or another.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbo.kernels.moments import Moments, bounded, no_moments, updated
from jaxbo.types import Flag, Point, Scalar

#: So many evaluations are remembered, or fewer if the agent's model can hold no more. Of an agent that
#: remembers K a search takes a few matrices of K² numbers.
MOST = 128
#: The same for an agent whose model has no limit.
UNLIMITED = 64
#: From so large a share of the rows on, a failure takes the place of another failure.
_FAILURES = 0.25
#: Points that are no farther apart are the same but for rounding.
SAME = 1e-6
#: Values that differ by so many roundings are the same.
_ROUNDINGS = 8
#: What has become of an evaluation.
_ENDED, _FAILED, _PENDING = 0, 1, 2


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
    that of the nearest failure. So memory is of all places that were tried. Only a value that is no
    worse takes the place of the best. `seen` is of all values that ever were.
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
    def ended(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point with a value."""
        return self.used & (self.status == _ENDED)

    @property
    def pending(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point whose evaluation has not ended."""
        return self.used & (self.status == _PENDING)

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
    known = past.ended & value
    earlier, equal = known & repeated(past, x), same(past.values, y)
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
    going = jnp.where(jnp.isnan(y) & many, past.failed, past.ended)
    best = jnp.argmax(jnp.where(past.ended, past.values, -jnp.inf))
    kept = past.ended[best] & ~(jnp.isfinite(y) & (y >= past.values[best]))
    spare = going & ~(kept & (jnp.arange(going.size) == best))
    going = jnp.where(jnp.any(spare), spare, going)
    going = jnp.where(jnp.any(going), going, past.known)
    away = jnp.where(going, distances(past.x, x), jnp.inf)
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
    return past.used & (distances(past.x, x) <= SAME)


def same(a: Float[Array, "*shape"], b: Scalar) -> Bool[Array, "*shape"]:
    """Whether values differ by rounding only."""
    return jnp.abs(a - b) <= _ROUNDINGS * jnp.finfo(a.dtype).eps * jnp.abs(b)


def distances(X: Float[Array, "capacity dim"], x: Point) -> Float[Array, " capacity"]:
    """How far each row is from a point."""
    return jnp.sqrt(jnp.sum((X - x[None, :]) ** 2, axis=1))
