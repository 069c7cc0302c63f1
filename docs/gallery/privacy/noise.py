"""
Noise against signal
====================

A private mean of messages, for more and more agents. The length of the mean stays. The expected length of
the noise falls with the number of agents. Below some forty agents, the noise hides the mean.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo

mechanism = jaxbo.Mechanism(z=1.0, S=5.0, sampling=jaxbo.Poisson(0.25))
common_key, own_key = jr.split(jr.key(0))
common = 0.5 * jr.normal(common_key, (50,))
messages = common + 0.5 * jr.normal(own_key, (400, 50))

agents = jnp.arange(1, 401)
means = jnp.cumsum(messages, axis=0) / agents[:, None]
deviation = jax.vmap(lambda n: mechanism.deviation(jnp.full((1, 1), 1 / n)))(agents)
curves = {"mean": jnp.linalg.norm(means, axis=1)[None], "noise": deviation[None] * 50**0.5}
ax = jaxbo.plotting.regret(curves, xlabel="agents", ylabel="length", log=True)
