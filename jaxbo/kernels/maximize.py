"""The best point of a domain for any function of a point.

First the function at candidates, then a few steps of Newton's method from the best of them. Under
`vmap` over functions that share their features and candidates, the first stage is one matrix product
(functions x features)(features x candidates): keep the candidates out of the mapped axis.

Each step of `ascend` maximizes the local model g'p + p'Hp/2 over |p| ≤ radius by conjugate gradients
(Steihaug, 1983), which need products H p only and cope with any curvature, then clips to the domain.
A step that does not improve is not taken and shrinks the radius: the result is never worse than the
start, and never outside the domain.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbo.domains import AbstractDomain, Finite
from jaxbo.kernels.features import Curvature, FourierFunction
from jaxbo.types import Count, Function, Point, Points, Scalar


def maximize(
    function: Function,
    domain: AbstractDomain,
    candidates: Points,
    *,
    starts: int | None = None,
    steps: int = 3,
) -> tuple[Point, Scalar]:
    """The best point found, in the domain, and the function's value there.

    `candidates` are points of the domain. On a finite domain they should be all its points, and the
    best of them is the answer. Elsewhere they are cut into `starts` slabs (by default 4 up to dimension
    2, 16 in dimension 3 and 64 beyond); the best of each slab is refined by two Newton steps, four from
    dimension 3 on, and the best of these by `steps` more.
    """
    if not isinstance(domain, Finite):
        # Shares of sorted candidates are slabs of the domain: their best are different peaks.
        candidates = candidates[jnp.argsort(candidates[:, 0])]
    values = jax.vmap(function)(candidates)
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    if isinstance(domain, Finite):
        best = jnp.argmax(values)
        return candidates[best], values[best]
    # After so many steps the best of the starts hardly ever changes places with another.
    race = 2 if domain.dim <= 2 else 4
    first = _best_of_shares(values, starts or _starts(domain.dim))
    climb = lambda x, value, steps: ascend(function, domain, x, value, steps)  # noqa: E731
    points, values = jax.vmap(lambda x, v: climb(x, v, race))(candidates[first], values[first])
    best = jnp.argmax(values)
    return climb(points[best], values[best], steps)


# The radius starts at the scale on which neighbouring candidates differ and may grow: a step that
# gains doubles it, one that does not quarters it.
_RADIUS = 0.1
_GROW, _SHRINK = 2.0, 0.25
# Conjugate gradients end after `dim` steps in exact arithmetic; beyond a few the gain is not worth
# the products, because the model holds only within the radius.
_CONJUGATE_STEPS = 6


def ascend(
    function: Function, domain: AbstractDomain, x: Point, value: Scalar, steps: int
) -> tuple[Point, Scalar]:
    """Trust-region Newton ascent from `x`, where the function is `value`; never worse than that.

    One evaluation of value, gradient and curvature a step: a rejected trial shortens the step that led
    to it, an accepted one begins the next.
    """
    radius = jnp.full_like(value, _RADIUS)
    _, gradient, curvature = _expansion(function, x)
    first = _newton_step(gradient, curvature, x, radius)

    def step(_: Count, state: tuple[Point, Scalar, Point, Scalar]):
        x, value, move, radius = state
        trial = domain.project(x + move)
        trial_value, gradient, curvature = _expansion(function, trial)
        better = trial_value > value
        radius = radius * jnp.where(better, _GROW, _SHRINK).astype(radius.dtype)
        following = _newton_step(gradient, curvature, trial, radius)
        return (
            jnp.where(better, trial, x),
            jnp.where(better, trial_value, value),
            jnp.where(better, following, move * _SHRINK),
            radius,
        )

    x, value, _, _ = jax.lax.fori_loop(0, steps, step, (x, value, first, radius))
    return x, value


def _starts(dim: int) -> int:
    """Enough to find the maximum of a sampled function 99 times of 100 up to dimension 6."""
    return {1: 4, 2: 4, 3: 16}.get(dim, 64)


def _expansion(function: Function, x: Point) -> tuple[Scalar, Point, Curvature]:
    """Value, gradient, and product with the Hessian."""
    if isinstance(function, FourierFunction):
        return function.expansion(x)
    (value, gradient), push = jax.linearize(jax.value_and_grad(function), x)
    return value, gradient, lambda p: push(p)[1]


def _newton_step(gradient: Point, curvature: Curvature, x: Point, radius: Scalar) -> Point:
    """argmax of g'p + p'Hp/2 over |p| ≤ radius, coordinates held at a bound of the cube left out."""
    held = ((x <= 0) & (gradient < 0)) | ((x >= 1) & (gradient > 0))
    residual = jnp.where(held, 0, gradient)
    step, direction = jnp.zeros_like(x), residual
    length = jnp.sum(residual * residual)
    done = length <= 0
    for _ in range(min(x.size, _CONJUGATE_STEPS)):
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
        length_of_step = jnp.where(stop, limit, along)
        step = jnp.where(done, step, step + length_of_step * direction)
        residual = residual + along * product
        new = jnp.sum(residual * residual)
        direction = residual + (new / jnp.where(length > 0, length, 1)) * direction
        length = new
        done = done | stop | (length <= 0)
    return step


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
