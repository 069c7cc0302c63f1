"""Pasts of agents, and their risks."""

import functools

import jax
import jax.numpy as jnp

from jaxbo.kernels.choosing import failures, history


@functools.partial(jax.jit, static_argnums=0)
def _told(capacity, x, y):
    start = history.empty(x.shape[1], capacity)
    return jax.lax.scan(lambda past, one: (history.add(past, *one), None), start, (x, y))[0]


def told(x, y, capacity=None):
    """The past of an agent that evaluated these points."""
    return _told(capacity, jnp.asarray(x, float), jnp.asarray(y, float))


@jax.jit
def risks(past, points):
    """At all points."""
    return failures.limits(past, points).risks
