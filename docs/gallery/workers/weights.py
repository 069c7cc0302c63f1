"""
Weights of an ensemble
======================

Three Gaussian processes of different length scales observe a function of length scale 0.2. The evidence
of their values decides how much each counts.
"""

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo

scales = (0.05, 0.2, 0.8)
expert = jaxbo.Fitted(25, size=50, refit_every=None)
ensemble = jaxbo.Ensemble([jaxbo.SquaredExponential(s) for s in scales], expert)
shared = ensemble.setup(jr.key(0), dim=1)
x = jr.uniform(jr.key(1), (25, 1))
y = jnp.sin(8 * x[:, 0]) + 0.5 * jnp.cos(5 * x[:, 0])


def learn(belief, row):
    belief = ensemble.condition(shared, belief, *row)
    return belief, jnp.exp(ensemble.log_weights(shared, belief))


_, weights = jax.jit(lambda: jax.lax.scan(learn, ensemble.start(shared), (x, y)))()
curves = {f"ℓ = {scale}": weights[None, :, i] for i, scale in enumerate(scales)}
ax = jaxbo.plotting.regret(curves, xlabel="observation", ylabel="weight")
