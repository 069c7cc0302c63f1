"""
Which parameters matter
=======================

The share of the loss's variance that is due to each parameter, by a model of forty evaluations.
"""

import math

import jax.random as jr

import jaxbo

space = jaxbo.Space(
    rate=jaxbo.Real(1e-4, 1.0, log=True),
    depth=jaxbo.Integer(1, 8),
    kind=jaxbo.Categorical("relu", "tanh"),
)


def loss(agent, p):
    worse = 0.3 * (p["kind"] == "tanh")
    return (math.log10(p["rate"]) + 2) ** 2 + 0.2 * (p["depth"] - 5) ** 2 + worse


_, trace = jaxbo.drive(
    jaxbo.RandomSearch(space), loss, 40, jr.key(0), direction="minimize", progress=False
)
ax = jaxbo.plotting.importance(trace, domain=space)
