"""The places that agents avoid, for tests that compare queries with dense algebra."""

import functools

import jax

from jaxbo.kernels.choosing import failures, history


@jax.jit
@functools.partial(jax.vmap, in_axes=(1, 1, None))
def fine(queries, values, points):
    """For each agent and before each of its evaluations, the points at which it expects no failure."""

    def step(past, evaluation):
        return history.add(past, *evaluation), failures.limits(past, points).allowed

    past = history.empty(points.shape[1], None)
    return jax.lax.scan(step, past, (queries, values))[1]
