"""What an agent has evaluated, and where it need not look again.

    risk(x) = Σ_j weights_j k(x, x_j),   weights = (K + ε I)⁻¹ failed,   k(x, z) = exp(-|x - z| / reach)

is near 1 where evaluations failed, near 0 where they did not, and 0 where nothing is known: the mean of a
process that has observed which evaluations failed. Its paths are not smooth, so between a point that
failed and one that did not the risk is nearly linear. With a border anywhere between the two, it is the
probability that the border was passed. `reach` is the likeliest of a few. The shortest is taken where
failures have nothing to do with their place, and then hardly any place is avoided.

A point that repeats an earlier one teaches nothing if the objective has no noise. The first repetition
tells whether it has: its value is the same, or another. While all values are equal no model says where
to look, and its corners least of all.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo._keys import unwrap, wrap
from jaxbo.domains import AbstractDomain
from jaxbo.kernels import linalg
from jaxbo.types import Flag, Key, Point, Points, Scalar

#: So many of the last evaluations are remembered, or fewer if the agent's model can hold no more.
MOST = 256
#: The same for an agent whose model has no limit.
UNLIMITED = 64
#: A point is avoided if its risk is larger.
TOLERATED = 0.1
#: Lengths over which failures may be alike, in units of the root of the dimension, with which distances
#: in a cube grow.
REACHES = (0.02, 0.05, 0.15, 0.5, 1.5)
#: The logarithm of a reach is expected to be that of the middle one, and as likely a factor e away.
EXPECTED, _SPREAD = 0.15, 1.0
#: The variance of failures that does not depend on the place.
_CHANCE = 1e-2
#: Coordinates that differ by no more are the same but for rounding.
_SAME = 1e-6
#: Values that differ by so many roundings are the same.
_ROUNDINGS = 8
#: Points that are looked at on the way to one that is not allowed.
_STEPS = 16
#: Points whose distances to the past are computed at the same time.
_BLOCK = 256

T = TypeVar("T")


class History(eqx.Module):
    """The last points that an agent evaluated, and their values: NaN for one that failed, infinite for
    one that has not ended.

    `count` is how many there were. `repeats` says whether a point that was evaluated twice had the same
    value, and `varies` whether one had another.
    """

    x: Float[Array, "capacity dim"]
    y: Float[Array, " capacity"]
    count: Int[Array, ""]
    repeats: Flag
    varies: Flag

    @property
    def used(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point."""
        return jnp.arange(self.y.size) < self.count

    @property
    def failed(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point whose evaluation failed."""
        return self.used & jnp.isnan(self.y)

    @property
    def known(self) -> Bool[Array, " capacity"]:
        """Which rows hold a point whose evaluation has ended."""
        return self.used & ~jnp.isinf(self.y)

    @property
    def flat(self) -> Flag:
        """Whether all values are equal, two or more."""
        ended = self.used & jnp.isfinite(self.y)
        least = jnp.min(jnp.where(ended, self.y, jnp.inf), initial=jnp.inf)
        most = jnp.max(jnp.where(ended, self.y, -jnp.inf), initial=-jnp.inf)
        return (jnp.sum(ended) > 1) & same(least, most)

    @property
    def exact(self) -> Flag:
        """Whether the objective has shown that it has no noise."""
        return self.repeats & ~self.varies


def empty(dim: int, capacity: int | None) -> History:
    """No evaluation yet, of an agent whose model can hold `capacity` of them."""
    size = UNLIMITED if capacity is None else min(capacity, MOST)
    no = jnp.zeros((), bool)
    x, y = jnp.zeros((size, dim), float), jnp.zeros((size,), float)
    return History(x, y, jnp.zeros((), int), no, no)


def add(past: History, x: Point, y: Scalar) -> History:
    """With one evaluation more; a value that is not finite is a failure.

    Nothing changes for a point that is not finite: there was no evaluation.
    """
    y = jnp.where(jnp.isfinite(y), y, jnp.nan)
    earlier = repeated(past, x) & jnp.isfinite(past.y) & jnp.isfinite(y)
    equal = same(past.y, y)
    told = _written(past, x, y, jnp.all(jnp.isfinite(x)))
    repeats = past.repeats | jnp.any(earlier & equal)
    varies = past.varies | jnp.any(earlier & ~equal)
    return History(told.x, told.y, told.count, repeats, varies)


def wait(past: History, x: Point, busy: Flag | bool = True) -> History:
    """With a point whose evaluation has not ended, if anybody is `busy` with it."""
    return _written(past, x, jnp.full((), jnp.inf, past.y.dtype), jnp.asarray(busy))


def _written(past: History, x: Point, y: Scalar, wanted: Flag) -> History:
    """With one row more, in the place of the oldest."""
    size = past.y.size
    row = jnp.where(wanted, past.count % size, size)  # where writes are dropped
    return History(
        past.x.at[row].set(x.astype(past.x.dtype), mode="drop"),
        past.y.at[row].set(y.astype(past.y.dtype), mode="drop"),
        past.count + wanted.astype(int),
        past.repeats,
        past.varies,
    )


def repeated(past: History, x: Point) -> Bool[Array, " capacity"]:
    """The rows that `x` repeats."""
    return past.used & jnp.all(jnp.abs(past.x - x[None, :]) <= _SAME, axis=1)


def same(a: Float[Array, "*shape"], b: Scalar) -> Bool[Array, "*shape"]:
    """Whether values differ by rounding only."""
    return jnp.abs(a - b) <= _ROUNDINGS * jnp.finfo(a.dtype).eps * jnp.abs(b)


# ---------------------------------------------------------------- where evaluations fail


class Risk(NamedTuple):
    """The probability, roughly, that an evaluation fails. `present` says whether any has failed."""

    x: Float[Array, "capacity dim"]
    weights: Float[Array, " capacity"]
    reach: Scalar
    present: Flag

    def __call__(self, x: Point) -> Scalar:
        """At one point; 0 everywhere as long as nothing has failed."""
        return if_any(self.present, lambda: self._at(x), jnp.zeros((), self.x.dtype))

    def of_all(self, points: Points) -> Float[Array, " points"]:
        """At several points."""
        zeros = jnp.zeros(points.shape[:1], self.x.dtype)
        each = lambda: jax.lax.map(self._at, points, batch_size=_BLOCK)  # noqa: E731
        return if_any(self.present, each, zeros)

    def _at(self, x: Point) -> Scalar:
        return linalg.dot(self.weights, jnp.exp(-_distances(self.x, x) / self.reach))


def risk(past: History) -> Risk:
    """Where evaluations fail, from those that did and those that did not."""
    present = jnp.any(past.failed)
    zeros = jnp.zeros_like(past.y), jnp.ones((), past.y.dtype)
    weights, reach = if_any(present, lambda: _fitted(past), zeros)
    return Risk(past.x, weights, reach, present)


class Limits(NamedTuple):
    """Where an agent with this past looks: `allowed` says it of the candidates of a search, whose risk is
    at most `most`."""

    risk: Risk
    most: Scalar
    allowed: Bool[Array, " points"]

    def allow(self, x: Point) -> Flag:
        """Whether the risk at a point is low enough."""
        return self.risk(x) <= self.most

    def toward(self, domain: AbstractDomain, start: Point, end: Point) -> Point:
        """The last point that is allowed on the way from one to the other, or the start."""

        def last() -> Point:
            shares = jnp.linspace(0, 1, _STEPS)[:, None].astype(start.dtype)
            way = jax.vmap(domain.project)(start[None, :] + shares * (end - start)[None, :])
            allowed = self.risk.of_all(way) <= self.most
            return way[jnp.max(jnp.where(allowed, jnp.arange(_STEPS), 0))]

        return if_any(self.risk.present, last, end)

    def elsewhere(
        self,
        key: Key,
        past: History,
        candidates: Points,
        x: Point,
        alone: Flag | bool = True,
    ) -> Point:
        """`x`, unless it would teach nothing (`maximize.query`)."""
        lost, data = past.flat & alone, unwrap(key)

        def distances() -> Float[Array, " points"]:
            def nearest(z: Point) -> Scalar:
                return jnp.min(jnp.where(past.used, _distances(past.x, z), jnp.inf))

            found: Array = jax.lax.map(nearest, candidates, batch_size=_BLOCK)
            return jnp.where(self.allowed, found, -1)

        def other() -> Point:
            found = distances()
            # By its data: JAX's check for reused keys takes a loop for a second use.
            drawn = jr.uniform(wrap(data, key), found.shape, found.dtype)
            new = jnp.where(found > _SAME, drawn, -1)
            return candidates[jnp.argmax(jnp.where(lost, new, found))]

        repeats = past.exact & jnp.any(repeated(past, x))
        return if_any(lost | repeats, other, x)


def limits(past: History, candidates: Points) -> Limits:
    """Points whose risk is tolerated, or the candidates of least risk where none is."""
    found = risk(past)
    risks = found.of_all(candidates)
    most = jnp.maximum(jnp.min(risks), TOLERATED)
    return Limits(found, most, risks <= most)


def _fitted(past: History) -> tuple[Float[Array, " capacity"], Scalar]:
    """The weights under the likeliest reach, and that reach."""
    dtype, known = past.y.dtype, past.known
    count, failed = jnp.sum(known, dtype=dtype), past.failed.astype(dtype)
    distances = jax.vmap(lambda z: _distances(past.x, z))(past.x)
    pairs, identity = known[:, None] & known[None, :], jnp.eye(known.size, dtype=dtype)

    def under(reach: Scalar) -> tuple[Scalar, Float[Array, " capacity"]]:
        # No eigenvalue is below `_CHANCE` or above the number of rows: float32 is enough.
        K = jnp.where(pairs, jnp.exp(-distances / reach), 0) + _CHANCE * identity
        L = jnp.linalg.cholesky(K)
        weights = jax.scipy.linalg.cho_solve((L, True), failed)
        # With the amplitude that is most likely.
        fit = jnp.log(linalg.dot(failed, weights) / count)
        return -count / 2 * fit - jnp.sum(jnp.log(jnp.diagonal(L))), weights

    reaches = jnp.asarray(REACHES, dtype) * math.sqrt(past.x.shape[1])
    evidences, weights = jax.vmap(under)(reaches)
    prior = -((np.log(REACHES) - math.log(EXPECTED)) ** 2) / (2 * _SPREAD**2)
    best = jnp.argmax(evidences + jnp.asarray(prior, dtype))
    return weights[best], reaches[best]


def _distances(X: Float[Array, "capacity dim"], x: Point) -> Float[Array, " capacity"]:
    return jnp.sqrt(jnp.sum((X - x[None, :]) ** 2, axis=1))


def if_any(wanted: Flag, compute: Callable[[], T], otherwise: T) -> T:
    """`compute()` where it is wanted.

    Under `vmap` a `cond` computes both sides for everybody. This is a loop of one step or none, which
    nobody enters if nobody wants to.
    """

    def step(state: tuple[Flag, T]) -> tuple[Flag, T]:
        return jnp.zeros_like(state[0]), compute()

    return jax.lax.while_loop(lambda state: state[0], step, (wanted, otherwise))[1]
