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
from jaxtyping import Array, Float

from jaxbo.domains import AbstractDomain, Finite
from jaxbo.kernels.features import Curvature, FourierFunction
from jaxbo.types import Function, Point, Points, Scalar


def maximize(
    function: Function,
    domain: AbstractDomain,
    candidates: Points,
    *,
    starts: int = 4,
    steps: int = 5,
) -> tuple[Point, Scalar]:
    """The best point found, in the domain, and the function's value there.

    `candidates` are points of the domain. On a finite domain they should be all its points, and the
    best of them is the answer; elsewhere the best of each of `starts` equal shares of the candidates
    is refined by `steps` Newton steps.
    """
    values = jax.vmap(function)(candidates)
    if isinstance(domain, Finite):
        best = jnp.argmax(values)
        return candidates[best], values[best]
    first = _best_of_shares(values, starts)
    points, values = jax.vmap(lambda x, v: ascend(function, domain, x, v, steps))(
        candidates[first], values[first]
    )
    best = jnp.argmax(values)
    return points[best], values[best]


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
    """Trust-region Newton ascent from `x`, where the function is `value`; never worse than that."""

    def step(_: int, state: tuple[Point, Scalar, Scalar]) -> tuple[Point, Scalar, Scalar]:
        x, value, radius = state
        gradient, curvature = _expansion(function, x)
        trial = domain.project(x + _newton_step(gradient, curvature, x, radius))
        trial_value = function(trial)
        better = trial_value > value
        return (
            jnp.where(better, trial, x),
            jnp.where(better, trial_value, value),
            radius * jnp.where(better, _GROW, _SHRINK).astype(radius.dtype),
        )

    start = (x, value, jnp.full_like(value, _RADIUS))
    x, value, _ = jax.lax.fori_loop(0, steps, step, start)
    return x, value


def _expansion(function: Function, x: Point) -> tuple[Point, Curvature]:
    """Gradient, and product with the Hessian."""
    if isinstance(function, FourierFunction):
        return function.expansion(x)
    return jax.linearize(jax.grad(function), x)


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


def _best_of_shares(values: Float[Array, " points"], shares: int) -> Float[Array, " shares"]:
    """Where the best value of each of `shares` equal shares of the candidates stands."""
    size = -(-values.size // shares)
    padding = jnp.full((size * shares - values.size,), -jnp.inf, values.dtype)
    rows = jnp.concatenate([values, padding]).reshape(shares, size)
    # XLA's argmax on CPU costs five times a maximum followed by a search for it.
    columns = jnp.where(
        rows == jnp.max(rows, axis=1, keepdims=True), jnp.arange(size)[None, :], size
    )
    return jnp.min(columns, axis=1) + size * jnp.arange(shares)
