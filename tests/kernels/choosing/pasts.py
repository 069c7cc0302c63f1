"""Pasts of agents, their risks, and a search with a past."""

import functools

import jax
import jax.numpy as jnp

from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing import failures, history
from jaxbo.kernels.choosing.maximize import query

CUBE = Cube(2)
PEAK = jnp.asarray([0.3, 0.6])


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


def bowl(x):
    return -jnp.sum((x - PEAK) ** 2)


@jax.jit
def asked(key, past, candidates):
    return query(key, bowl, CUBE, candidates, past)
