"""
A posterior in two dimensions
=============================

The mean of a Gaussian process after twelve observations of Branin's function. The star is the best of
them.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.kernels.processes import features, posterior

branin = jax.vmap(jaxbo.functions.branin_rescaled())
phi = jax.vmap(features.sine_cosine(jr.key(0), jaxbo.SquaredExponential(0.25), 2, 200))

x = jr.uniform(jr.key(1), (12, 2))
y = branin(x)
belief = posterior.condition_all(posterior.prior(200, noise=1e-3), phi(x), y)

axis = jnp.linspace(0, 1, 40)
grid = jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)
mean, _ = jax.vmap(posterior.predict, (None, 0))(belief, phi(grid))
ax = jaxbo.plotting.posterior_2d(axis, axis, mean.reshape(40, 40), (x, y))
