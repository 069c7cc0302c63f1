"""
An acquisition function
=======================

The expected improvement over the best of twelve observations. The next query is where it is largest.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.kernels.choosing.acquisition import expected_improvement
from jaxbo.kernels.processes import features, posterior

branin = jax.vmap(jaxbo.functions.branin_rescaled())
phi = jax.vmap(features.sine_cosine(jr.key(0), jaxbo.SquaredExponential(0.25), 2, 200))

x = jr.uniform(jr.key(1), (12, 2))
y = branin(x)
belief = posterior.condition_all(posterior.prior(200, noise=1e-3), phi(x), y)

axis = jnp.linspace(0, 1, 40)
grid = jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)
mean, variance = jax.vmap(posterior.predict, (None, 0))(belief, phi(grid))
gain = jax.vmap(expected_improvement, (0, 0, None))(mean, variance**0.5, y.max())
label = "expected improvement"
ax = jaxbo.plotting.posterior_2d(axis, axis, gain.reshape(40, 40), (x, y), label=label)
