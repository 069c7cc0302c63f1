"""
A thousand agents in one program
================================

Each dot is the best point of an agent. All rounds of all agents are a single
compiled program.
"""

import jax.random as jr

import jaxbo

optima = jr.uniform(jr.key(0), (1000, 2), minval=0.2, maxval=0.8)


def objective(key, agent, x):
    return -((x - optima[agent]) ** 2).sum() - optima[agent].sum() + 0.01 * jr.normal(key)


features = jaxbo.Fixed(jaxbo.SquaredExponential(0.5), size=30)
fts = jaxbo.FTS(jaxbo.Cube(2), agents=1000, features=features, candidates=100)
_, trace = jaxbo.run(fts, objective, 20, jr.key(1), initial=3)
ax = jaxbo.plotting.agent_map(trace, domain=fts.domain)
