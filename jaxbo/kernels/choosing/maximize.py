"""The best point of a domain for any function of a point, and the next query of an agent with a past.

First the function at candidates, then a few steps of Newton's method from the best of them. Under
`vmap` over functions that share their features and candidates, the first stage is a matrix product
(functions x features)(features x candidates) for every block of candidates: keep the candidates out of
the mapped axis. Features that are a function's own are held for one block only.

Each step of `ascend` maximizes the local model g'p + p'Hp/2 over |p| ≤ radius by conjugate gradients
(Steihaug, 1983), which need products H p only and cope with any curvature, then clips to the domain.
A step that does not improve is not taken and shrinks the radius: the result is never worse than the
start, and never outside the domain.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._keys import aside
from jaxbo.domains.base import AbstractDomain, Finite, Regions, clip
from jaxbo.kernels.choosing import history, slabs
from jaxbo.kernels.choosing.blocks import of_all
from jaxbo.kernels.choosing.history import History, Limits
from jaxbo.kernels.processes.features import Curvature, FourierFunction, expansion
from jaxbo.types import Count, Flag, Function, Key, Point, Points, Scalar


class Pieces(NamedTuple):
    """A function that is another smooth one, `of(region)`, in every region."""

    regions: Regions
    of: Callable[[Count], Function]


def maximize(
    function: Function,
    domain: AbstractDomain,
    candidates: Points,
    *,
    limits: Limits | None = None,
    pieces: Pieces | None = None,
    starts: int | None = None,
    steps: int = 3,
    key: Key | None = None,
) -> tuple[Point, Scalar]:
    """The best point found, in the domain, and the function's value there.

    `candidates` are points of the domain. On a finite domain they should be all its points, and the
    best of them is the answer. Elsewhere they are cut into `starts` equal shares (by default 4 up to
    dimension 2, 16 in dimension 3, 64 up to 5 and 128 beyond), which in the order of
    `domain.candidates` are slabs, so that their best are different peaks; the best of each is refined by
    two Newton steps, four from dimension 3 on, and the best results by `steps` more.

    A function that jumps between regions comes with its `pieces`: candidates are then put in order
    region by region before they are cut, into at least as many slabs as there are regions, and a point
    is refined by its own region's piece, without leaving it.

    `limits` say which points not to look at. Where several points of a finite domain are best,
    `key` draws one of them; without a key it is the first.
    """
    allowed = None if limits is None else limits.allowed
    if pieces is not None and not isinstance(domain, Finite):
        order = jnp.argsort(jax.vmap(pieces.regions.assign)(candidates))
        candidates = candidates[order]
        allowed = None if allowed is None else allowed[order]
    if isinstance(domain, Finite):
        values = _at(function, candidates, allowed)
        best = jnp.argmax(values) if key is None else any_largest(key, values)
        return candidates[best], values[best]

    def climb(x: Point, value: Scalar, steps: Count | int) -> tuple[Point, Scalar]:
        if pieces is None:
            return ascend(function, domain, x, value, steps, limits=limits)
        region = pieces.regions.assign(x)
        box = pieces.regions.box(region, x.dtype)
        return ascend(pieces.of(region), domain, x, value, steps, box, limits)

    # After so many steps the best of the starts hardly ever changes places with another.
    race = race_steps(domain.dim)
    starts = starts or default_starts(domain.dim)
    if pieces is not None:
        starts = max(starts, pieces.regions.count)
    first, values = slabs.best(_best_of_slabs, function, candidates, allowed, starts, pieces)
    points = candidates[first]
    if starts <= _TOGETHER:
        points, values = jax.vmap(lambda x, v: climb(x, v, race + steps))(points, values)
    else:
        points, values = _raced(climb, points, values, race, steps)
    best = jnp.argmax(values)
    return points[best], values[best]


def _raced(
    climb: Callable[[Point, Scalar, Count], tuple[Point, Scalar]],
    points: Float[Array, "starts dim"],
    values: Float[Array, " starts"],
    race: int,
    steps: int,
) -> tuple[Float[Array, "last dim"], Float[Array, " last"]]:
    """All starts climb `race` steps, a few at a time, and the best of them `steps` more.

    One loop, in which a climb is compiled once.
    """
    starts = len(values)
    width = _TOGETHER if starts <= 4 * _TOGETHER else 4 * _TOGETHER
    heats = -(-starts // width)

    def heat(i: Count, known: PyTree) -> PyTree:
        points, values, _ = known
        racing = i < heats
        # The last heat begins where it is as large as the others; where it overlaps, it goes on.
        begin = jnp.where(racing, jnp.minimum(i * width, starts - width), 0)
        places = jnp.where(racing, begin + jnp.arange(width), jax.lax.top_k(values, width)[1])
        many = jnp.where(racing, race, steps)
        last = jax.vmap(lambda x, v: climb(x, v, many))(points[places], values[places])
        points = jax.lax.dynamic_update_slice_in_dim(points, last[0], begin, 0)
        return points, jax.lax.dynamic_update_slice_in_dim(values, last[1], begin, 0), last

    last = points[:width], values[:width]
    return jax.lax.fori_loop(0, heats + 1, heat, (points, values, last))[2]


def any_largest(key: Key, values: Float[Array, " points"]) -> Count:
    """Where the largest value is; if it is there several times, at any of them."""
    ties = values == jnp.max(values)
    return jnp.argmax(jnp.where(ties, jr.uniform(key, values.shape), -1)).astype(int)


def query(
    key: Key,
    function: Function,
    domain: AbstractDomain,
    candidates: Points,
    past: History,
    *,
    alone: Flag | bool = True,
    pieces: Pieces | None = None,
) -> Point:
    """An agent's next query: the maximizer, where evaluations do not fail and teach something.

    Its risk of failure is no more than `history.TOLERATED`, or than the least of the candidates' if that
    is larger. If it would repeat an evaluation of an objective that has shown no noise, the candidate
    farthest from all evaluations takes its place. Three rules more hold if the function comes from the
    agent's own values `alone`. Where all values near the maximizer are equal, the farthest candidate
    takes its place, too. While all values are equal, a candidate is drawn. Where values near the
    maximizer are no better than the rest, a candidate is drawn in one round of two.
    """
    limits = history.limits(past, candidates)
    tie_key = aside(key)
    x, _ = maximize(function, domain, candidates, limits=limits, pieces=pieces, key=tie_key)
    return limits.elsewhere(key, past, candidates, x, alone)


# So many starts climb at the same time, or four times as many where there are many.
_TOGETHER = 4
# The radius starts at the scale on which neighbouring candidates differ and may grow: a step that
# gains doubles it, one that does not quarters it.
_RADIUS = 0.1
_GROW, _SHRINK = 2.0, 0.25
# Conjugate gradients end after `dim` steps in exact arithmetic; beyond a few the gain is not worth
# the products, because the model holds only within the radius.
CONJUGATE_STEPS = 6


def ascend(
    function: Function,
    domain: AbstractDomain,
    x: Point,
    value: Scalar,
    steps: Count | int,
    box: tuple[Point, Point] | None = None,
    limits: Limits | None = None,
) -> tuple[Point, Scalar]:
    """Trust-region Newton ascent from `x`, where the function is `value`; never worse than that.

    Within `box`, if given: from its least to its greatest point. Only through points that `limits`, if
    given, allow. A step takes one evaluation of value, gradient and curvature: a rejected trial shortens
    the step that led to it, an accepted one begins the next.
    """
    lower, upper = (jnp.zeros_like(x), jnp.ones_like(x)) if box is None else box

    def step(_: Count, state: tuple[Point, Scalar, Point, Scalar]):
        x, value, move, radius = state
        trial = x + move if box is None else clip(jnp, x + move, lower, upper)
        trial = domain.project(trial)
        trial_value, gradient, curvature = _expansion(function, trial)
        better = trial_value > value
        if box is not None:  # the nearest point of the domain may be outside
            better = better & jnp.all((trial >= lower) & (trial <= upper))
        if limits is not None:
            better = better & limits.allow(trial)
        radius = radius * jnp.where(better, _GROW, _SHRINK).astype(radius.dtype)
        following = _newton_step(gradient, curvature, trial, radius, lower, upper)
        return (
            jnp.where(better, trial, x),
            jnp.where(better, trial_value, value),
            jnp.where(better, following, move * _SHRINK),
            radius,
        )

    # The start itself is the first trial, of no length and better than nothing: `step` is compiled once.
    start = (
        x,
        jnp.full_like(value, -jnp.inf),
        jnp.zeros_like(x),
        jnp.full_like(value, _RADIUS / _GROW),
    )
    last: tuple[Point, Scalar, Point, Scalar] = jax.lax.fori_loop(0, steps + 1, step, start)
    end, end_value, _, _ = last
    better = end_value > value
    return jnp.where(better, end, x), jnp.where(better, end_value, value)


def default_starts(dim: int) -> int:
    """Enough to find the maximum of a sampled function 99 times of 100 up to dimension 6."""
    return {1: 4, 2: 4, 3: 16, 4: 64, 5: 64}.get(dim, 128)


def race_steps(dim: int) -> int:
    """How many steps all starts take before the best of them goes on."""
    return 2 if dim <= 2 else 4


def _expansion(function: Function, x: Point) -> tuple[Scalar, Point, Curvature]:
    """Value, gradient, and product with the Hessian."""
    if isinstance(function, FourierFunction):
        return function.expansion(x)
    return expansion(function, x)


def _newton_step(
    gradient: Point, curvature: Curvature, x: Point, radius: Scalar, lower: Point, upper: Point
) -> Point:
    """argmax of g'p + p'Hp/2 over |p| ≤ radius, coordinates held at a bound left out."""
    held = ((x <= lower) & (gradient < 0)) | ((x >= upper) & (gradient > 0))
    residual = jnp.where(held, 0, gradient)
    length = jnp.sum(residual * residual)

    def conjugate(_: Count, state: tuple[Point, Point, Point, Scalar, Flag]):
        step, direction, residual, length, done = state
        product = jnp.where(held, 0, curvature(direction))
        bend = -jnp.sum(direction * product)
        along = length / jnp.where(bend > 0, bend, 1)
        size = jnp.sum(direction * direction)
        # To the boundary: |step + t direction| = radius.
        cross = jnp.sum(step * direction)
        gap = jnp.maximum(radius * radius - jnp.sum(step * step), 0)
        root = jnp.sqrt(cross * cross + size * gap)
        limit = gap / jnp.where(size > 0, cross + root, 1)
        stop = (bend <= 0) | (along >= limit)
        step = jnp.where(done, step, step + jnp.where(stop, limit, along) * direction)
        residual = residual + along * product
        new = jnp.sum(residual * residual)
        direction = residual + (new / jnp.where(length > 0, length, 1)) * direction
        return step, direction, residual, new, done | stop | (new <= 0)

    start = jnp.zeros_like(x), residual, residual, length, length <= 0
    return jax.lax.fori_loop(0, min(x.size, CONJUGATE_STEPS), conjugate, start)[0]


def _at(
    function: Function, candidates: Points, allowed: Bool[Array, " points"] | None
) -> Float[Array, " points"]:
    """The function at all candidates, so that the largest value is that of the best to go on from."""
    values = of_all(function, candidates)
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    return values if allowed is None else history.preferred(allowed, values)


def _best_of_slabs(
    function: Function, candidates: Points, allowed: Bool[Array, " points"] | None, starts: int
) -> tuple[Int[Array, " starts"], Float[Array, " starts"]]:
    """Where the best of each share of the candidates is, and the value there."""
    values = _at(function, candidates, allowed)
    first = _best_of_shares(values, starts)
    return first, values[first]


def _best_of_shares(values: Float[Array, " points"], shares: int) -> Int[Array, " shares"]:
    """Where the best value of each of `shares` equal shares of the candidates stands."""
    size = -(-values.size // shares)
    padding = jnp.full((size * shares - values.size,), -jnp.inf, values.dtype)
    rows = jnp.concatenate([values, padding]).reshape(shares, size)
    # XLA's argmax on CPU costs five times a maximum followed by a search for it.
    columns = jnp.where(
        rows == jnp.max(rows, axis=1, keepdims=True), jnp.arange(size)[None, :], size
    )
    return jnp.min(columns, axis=1) + size * jnp.arange(shares)
