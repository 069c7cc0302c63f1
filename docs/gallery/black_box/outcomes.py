"""
An outcome with a bound
=======================

An evaluation returns a latency beside its value, and the latency must stay below a bound. Evaluations
that miss the bound are crosses. The line is the best value that meets the bound.
"""

import jax.random as jr

import jaxbo


def objective(x):
    return {"value": x.sum() - x[0] ** 2, "latency": 100 * (x**2).sum()}


fast = jaxbo.Outcome("latency", at_most=70.0)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.5))
method = jaxbo.TS(jaxbo.Cube(2), 1, features, candidates=200, outcomes=[fast])
_, trace = jaxbo.run(method, objective, 30, jr.key(0), initial=8)
ax = jaxbo.plotting.progress(trace)
