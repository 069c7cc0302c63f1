"""
A federation's regret
=====================

Ten agents have similar functions. In FTS they listen to each other, and in TS they do not. A line is the
mean over agents, and its band the 95 % interval over eight seeds.
"""

import jax
import jax.random as jr

import jaxbo

cube = jaxbo.Cube(2)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.3), size=60)
methods = {
    "FTS": jaxbo.FTS(cube, 10, features=features, candidates=100),
    "TS": jaxbo.TS(cube, 10, features, candidates=100),
}
shifts = 0.05 * jr.normal(jr.key(0), (10, 2))
objective = jaxbo.objectives.Shifted(jaxbo.functions.branin_rescaled(), shifts)


def regret(method):
    run = lambda key: jaxbo.run(method, objective, 20, key, initial=2)[1].values
    values = jax.vmap(run)(jr.split(jr.key(1), 8))
    return jaxbo.metrics.simple_regret(values, objective.function.maximum).mean(axis=2)


ax = jaxbo.plotting.regret({name: regret(method) for name, method in methods.items()})
