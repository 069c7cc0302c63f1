"""
A learned prior, before the first query
=======================================

Ten agents have learned a prior together. A new agent expects this mean and this band, before it has
evaluated anything. The thin lines are the functions of the ten.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.kernels.models.shared_prior import doubting, nothing

shifts = 0.06 * jr.normal(jr.key(0), (10,))
f = lambda shift, x: jnp.exp(-20 * (x - 0.6 - shift) ** 2) + 0.3 * jnp.cos(9 * x)

features = jaxbo.Fixed(jaxbo.SquaredExponential(0.15), size=40, noise=1e-3)
method = jaxbo.LearnedPrior(jaxbo.Cube(1), 10, 12, features=features, candidates=100)
objective = lambda agent, x: f(shifts[agent], x[0])
state, _ = jaxbo.run(method, objective, 8, jr.key(1), initial=4)
learned = method.learned(state)

xs = jnp.linspace(0, 1, 120)
unknown = nothing(1, 1, xs.dtype)
new = doubting(learned.features, learned.prior, features.noise, unknown, jnp.ones(()))
mean, variance = jax.vmap(new.predict)(xs[:, None])
functions = jax.vmap(lambda shift: f(shift, xs))(shifts)
ax = jaxbo.plotting.posterior_1d(xs, mean, variance**0.5, samples=functions)
