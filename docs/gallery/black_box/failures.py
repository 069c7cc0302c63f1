"""
Evaluations that fail
=====================

The best values lie at the border of a region where evaluations fail. The method queries less and less
in that region.
"""

import jax.numpy as jnp
import jax.random as jr

import jaxbo


def objective(x):
    value = -((x - jnp.array([0.65, 0.6])) ** 2).sum()
    return jnp.where(x.sum() > 1.3, jnp.nan, value)


features = jaxbo.Fixed(jaxbo.SquaredExponential(0.3))
method = jaxbo.TS(jaxbo.Cube(2), 1, features, candidates=200)
_, trace = jaxbo.run(method, objective, 30, jr.key(0), initial=10)
ax = jaxbo.plotting.contour(trace, 0, 1, domain=method.domain)
