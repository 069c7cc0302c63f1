"""
Every agent's progress
======================

The best value so far of each of thirty agents, and their median.
"""

import jax.random as jr

import jaxbo

optima = jr.uniform(jr.key(0), (30, 2), minval=0.2, maxval=0.8)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.5), size=30)
fts = jaxbo.FTS(jaxbo.Cube(2), agents=30, features=features, candidates=100)
objective = lambda agent, x: 1 - ((x - optima[agent]) ** 2).sum()
_, trace = jaxbo.run(fts, objective, 15, jr.key(1), initial=2)
ax = jaxbo.plotting.progress(trace)
