"""
Agents that follow each other
=============================

Agents follow near agents more often than far ones. A line between two agents is wider the more often they
follow each other. A dot is at the best point of an agent.
"""

import jax.numpy as jnp
import jax.random as jr

import jaxbo

optima = jr.uniform(jr.key(47), (12, 2), minval=0.1, maxval=0.9)
distances = jnp.linalg.norm(optima[:, None] - optima[None], axis=-1)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.4), size=40)
fts = jaxbo.FTS(
    jaxbo.Cube(2),
    agents=12,
    features=features,
    mixing=0.5,
    peers=jnp.exp(-((distances / 0.2) ** 2)),
    candidates=100,
)
objective = lambda agent, x: optima[agent].sum() - ((x - optima[agent]) ** 2).sum()
_, trace = jaxbo.run(fts, objective, 40, jr.key(1), initial=3)
follows = (trace.info.source[:, :, None] == jnp.arange(12)).mean(axis=0)
ax = jaxbo.plotting.agent_map(trace, domain=fts.domain, weights=follows)
