"""
A posterior in one dimension
============================

A Gaussian process after six observations, with functions drawn from it.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.kernels.processes import features, posterior

phi = jax.vmap(features.sine_cosine(jr.key(0), jaxbo.SquaredExponential(0.15), 1, 100))
truth = lambda x: jnp.sin(9 * x[:, 0]) * (0.4 + x[:, 0])

x = jnp.array([[0.05], [0.2], [0.35], [0.5], [0.6], [0.95]])
belief = posterior.condition_all(posterior.prior(100, noise=1e-4), phi(x), truth(x))

xs = jnp.linspace(0, 1, 200)[:, None]
mean, variance = jax.vmap(posterior.predict, (None, 0))(belief, phi(xs))
weights = jax.vmap(posterior.sample, (0, None))(jr.split(jr.key(1), 4), belief)
drawn = weights @ phi(xs).T
ax = jaxbo.plotting.posterior_1d(xs[:, 0], mean, variance**0.5, (x, truth(x)), truth(xs), drawn)
