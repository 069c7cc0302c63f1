"""A kernel of one's own, twice: any function of two points, and one with a spectral density.

Where a process is exact, a model takes any k(x, z) that is a covariance. `Periodic` is a module, so its
numbers are fitted with the noise; those of a plain function stay as they are. Methods that send or
sample functions on Fourier features need to draw frequencies as well: `RationalQuadratic` says how.

    python tests/examples/kernel.py     draws what both believe after a few evaluations
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo import plotting
from jaxbo.kernels.models.fit import Bounds
from jaxbo.kernels.processes.covariance import AbstractKernel


class Periodic(eqx.Module):
    """exp(-2 Σ sin²(π (x - z) / period) / smoothness²): what is learned in one period holds in all."""

    period: float
    smoothness: float

    def __call__(self, x, z):
        s = jnp.sin(jnp.pi * (x - z) / self.period) / self.smoothness
        return jnp.exp(-2 * jnp.sum(s**2))


class RationalQuadratic(AbstractKernel):
    """(1 + s / 4)⁻², s the squared distance in length scales: functions of many scales at once.

    It is a mixture of squared exponentials of `tau` times the frequency, with tau² ~ Gamma(2) / 2.
    """

    def correlation(self, s):
        return (1 + s / 4) ** -2

    def mixing(self, key, count):
        return jnp.sqrt(jr.gamma(key, 2.0, (count,), self.length_scale.dtype) / 2)


def objective(key, worker, x):
    """Three waves, and a little noise."""
    return jnp.sin(6 * jnp.pi * x[0]) + 0.02 * jr.normal(key)


#: Without a spectral density: exact inference only. Each number is looked for within a factor of 1.4.
PERIODIC = jaxbo.EGP(
    jaxbo.Cube(1),
    jaxbo.Fitted(
        capacity=20,
        kernel=Periodic(period=0.3, smoothness=1.0),
        inference=jaxbo.Exact(),
        bounds=Bounds(factor=(0.7, 1.4)),
    ),
    jaxbo.EI(),
)
#: With one, wherever a kernel of the library is taken.
SPECTRAL = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(RationalQuadratic(0.2)), jaxbo.Thompson())


def optimize(egp, rounds=8):
    """The last state, and what was evaluated."""
    return jaxbo.run(egp, objective, rounds, jr.key(0), initial=12)


def picture(egp, state, trace, ax=None):
    """What the method believes of the objective, and the evaluations."""
    xs = jnp.linspace(0, 1, 200)[:, None]
    predict = jax.vmap(lambda x: egp.surrogate.predict(state.shared, state.belief, x))
    mean, variance = jax.jit(predict)(xs)
    seen = trace.queries.reshape(-1, 1), trace.values.ravel()
    return plotting.posterior_1d(xs[:, 0], mean, jnp.sqrt(variance), seen, ax=ax)


if __name__ == "__main__":
    for name, egp in {"periodic": PERIODIC, "rational": SPECTRAL}.items():
        print(plotting.save(picture(egp, *optimize(egp)), f"{name}.png"))
