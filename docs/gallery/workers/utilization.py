"""
How busy workers are
====================

Four workers evaluate the same function, and each is given its next query as it ends. The last worker is
slow, and nobody waits for it. Evaluations that had not ended have no bar.
"""

import jax.numpy as jnp
import jax.random as jr

import jaxbo

features = jaxbo.Fixed(size=20, capacity=40)
method = jaxbo.EGP(jaxbo.Cube(2), features, jaxbo.Thompson(), workers=4, candidates=50)


def duration(key, worker, x):
    return jr.uniform(key, minval=0.5, maxval=1.5) * jnp.where(worker == 3, 3, 1)


_, timeline = jaxbo.simulate(method, lambda x: -((x - 0.5) ** 2).sum(), duration, 30, jr.key(0))
ax = jaxbo.plotting.utilization(timeline)
