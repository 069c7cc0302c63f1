"""
A learned prior, before the first query
=======================================

Thirty agents have ten values each, and have learned a prior together. A new agent expects this mean and
this band, before it has evaluated anything. The thin lines are functions of ten of the agents.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.kernels.models.shared_groups import doubting
from jaxbo.kernels.models.shared_prior import nothing

shift_key, x_key = jr.split(jr.key(0))
shifts = 0.06 * jr.normal(shift_key, (30,))
f = lambda shift, x: jnp.exp(-20 * (x - 0.6 - shift) ** 2) + 0.3 * jnp.cos(9 * x)

features = jaxbo.Fixed(jaxbo.SquaredExponential(0.15), size=16, noise=1e-3)
method = jaxbo.LearnedPrior(jaxbo.Cube(1), agents=30, capacity=10, features=features)
x = jr.uniform(x_key, (10, 30, 1))
state = method.warm_start(method.init(jr.key(1)), x, f(shifts, x[:, :, 0]))
learned = method.learned(state)

xs = jnp.linspace(0, 1, 120)
unknown = nothing(1, 1, xs.dtype)
new = doubting(learned.features, learned.prior, features.noise, unknown, jnp.ones(()))
mean, variance = jax.vmap(new.predict)(xs[:, None])
drawn = jax.vmap(lambda shift: f(shift, xs))(shifts[:10])
ax = jaxbo.plotting.posterior_1d(xs, mean, variance**0.5, samples=drawn)
