"""An acquisition of one's own: a policy says how the next query follows from what is believed.

    P(f(x) > best + margin)         the probability of improving on the best mean by a margin

A policy is given the belief of any surrogate that keeps its observations, as a mixture of Gaussians at
each point, in units of the values' standard deviation. It returns the function to maximize.

    python tests/examples/acquisition.py     draws the probability after a few evaluations
"""

import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import field
from jax.nn import logsumexp

import jaxbo
from jaxbo import plotting
from jaxbo.kernels.choosing.acquisition import deviation, log_probability_of_improvement
from jaxbo.kernels.choosing.policy import AbstractPolicy, check_mixture
from jaxbo.types import floating


class ProbabilityOfImprovement(AbstractPolicy):
    """The larger the `margin`, the more it explores. The logarithm is climbed: it is flat nowhere."""

    margin: jax.Array = field(converter=floating, default=0.1)

    def random(self):
        return False  # one belief leads to one query, but for ties

    def __call__(self, key, surrogate, shared, belief):
        log_weights, predict, best = surrogate.mixture(shared, belief)

        def log_probability(x):
            means, variances = predict(x)
            each = jax.vmap(log_probability_of_improvement, (0, 0, None))
            return logsumexp(log_weights + each(means, deviation(variances), best + self.margin))

        return log_probability

    def check(self, surrogate):
        check_mixture(surrogate)


OBJECTIVE = jaxbo.objectives.Same(jaxbo.functions.branin_rescaled(), noise=0.05)


EGP = jaxbo.EGP(
    jaxbo.Cube(2),
    jaxbo.Fitted(40, jaxbo.Matern52(0.3), refit_every=None, inference=jaxbo.Exact()),
    ProbabilityOfImprovement(),
)


def optimize(egp, rounds=12):
    """The last state, and what was evaluated."""
    return jaxbo.run(egp, OBJECTIVE, rounds, jr.key(0), initial=8)


def picture(egp, state, trace, ax=None):
    """The probability that the next query maximizes, and the evaluations."""
    axis = jnp.linspace(0, 1, 40)
    points = jnp.stack(jnp.meshgrid(axis, axis), axis=-1)
    log_probability = egp.policy(jr.key(0), egp.surrogate, state.shared, state.belief)
    surface = jnp.exp(jax.jit(jax.vmap(jax.vmap(log_probability)))(points))
    seen = trace.queries.reshape(-1, 2), trace.values.ravel()
    return plotting.posterior_2d(axis, axis, surface, seen, ax, label="probability")


if __name__ == "__main__":
    print(plotting.save(picture(EGP, *optimize(EGP)), "probability.png"))
