"""
A slice
=======

A model of the loss along one parameter, through the best point. Dots are evaluations, and they have
other values of the other parameters.
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
ax = jaxbo.plotting.slice_1d(trace, "rate", domain=space)
