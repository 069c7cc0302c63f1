"""
A federation's time line
========================

The server hears some agents in each round, and evaluations fail. At the right is the share of rounds in
which the server had an agent's message.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo

features = jaxbo.Fixed(jaxbo.SquaredExponential(0.4), size=20)
fts = jaxbo.FTS(jaxbo.Cube(2), agents=8, features=features, candidates=50)
reliable = jnp.linspace(1.0, 0.4, 8)
present = jr.uniform(jr.key(0), (24, 8)) < reliable


def objective(key, agent, x):
    return jnp.where(jr.uniform(key) < 0.08, jnp.nan, -((x - 0.4) ** 2).sum())


_, trace = jaxbo.run(fts, objective, 24, jr.key(1), initial=2, present=present)
ax = jaxbo.plotting.timeline(jax.device_get(present), run=trace)
