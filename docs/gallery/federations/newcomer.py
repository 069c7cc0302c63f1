"""
Regret of a newcomer
====================

Nine agents have thirty values each of similar functions. A tenth agent follows them in most of its
queries, or goes on alone. A line is the mean over ten seeds, and its band is the 95 % interval.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo

shifts = 0.03 * jr.normal(jr.key(0), (10, 2))
objective = jaxbo.objectives.Shifted(jaxbo.functions.branin_rescaled(), shifts)
old = jr.uniform(jr.key(1), (30, 10, 2)).at[:, 0].set(jnp.nan)  # agent 0 is new
values = jax.vmap(jax.vmap(objective.noiseless), (None, 0))(jnp.arange(10), old)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.25), size=60)


def regret(mixing):
    domain, settings = jaxbo.Cube(2), {"features": features, "mixing": mixing, "candidates": 100}
    fts = jaxbo.FTS(domain, 10, targets=1, **settings)

    def run(key):
        state = fts.warm_start(fts.init(key), old, values)
        return jaxbo.run(fts, objective, 15, key, state=state)[1].values

    found = jax.vmap(run)(jr.split(jr.key(2), 10))[..., 0]
    return jaxbo.metrics.simple_regret(found[..., None], objective.function.maximum)[..., 0]


ax = jaxbo.plotting.regret({"with others": regret(0.3), "alone": regret(1.0)})
