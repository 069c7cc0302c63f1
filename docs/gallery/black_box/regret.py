"""
Regret with bands
=================

Two methods search Branin's function, twenty times each. A line is the mean of the runs, and its
band is one standard error.
"""

import jax
import jax.random as jr

import jaxbo

branin = jaxbo.functions.branin_rescaled()
cube = jaxbo.Cube(2)
features = jaxbo.Fixed(jaxbo.SquaredExponential(0.25))
methods = {
    "random": jaxbo.RandomSearch(cube),
    "Thompson": jaxbo.TS(cube, 1, features, candidates=200),
}


def values(method):
    run = lambda key: jaxbo.run(method, branin, 25, key, initial=4)[1].values
    return jax.vmap(run)(jr.split(jr.key(0), 20))


regret = {
    name: jaxbo.metrics.simple_regret(values(method), branin.maximum)[..., 0]
    for name, method in methods.items()
}
ax = jaxbo.plotting.regret(regret, band="error", log=True)
