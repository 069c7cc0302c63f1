"""
Personal maximizers
===================

Agents of CEPE explore for each other. Each then goes to the maximum of a mixture of its own function and
the mean of all functions. The surface is that mean, and agents ended at the dots. The star is the agent
with the largest value.
"""

import jax.numpy as jnp
import jax.random as jr

import jaxbo

axis = jnp.linspace(0, 1, 25)
points = jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)
peaks = jr.uniform(jr.key(0), (20, 2), minval=0.2, maxval=0.8)
value = lambda peak, x: jnp.exp(-8 * ((x - peak) ** 2).sum(axis=-1))

cepe = jaxbo.CEPE(
    jaxbo.Finite(points),
    agents=20,
    numbers=jaxbo.schedules.first(40),
    alpha=0.7,
    kernel=jaxbo.SquaredExponential(0.25),
    noise=1e-3,
)
_, trace = jaxbo.run(cepe, lambda agent, x: value(peaks[agent], x), 45, jr.key(1))
mean = value(peaks[:, None], points).mean(axis=0).reshape(25, 25)
ended = trace.queries[-1], trace.values[-1]
ax = jaxbo.plotting.posterior_2d(axis, axis, mean, ended, label="mean of all functions")
