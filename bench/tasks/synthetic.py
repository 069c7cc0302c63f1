"""Functions of a process on a fine grid of [0, 1], which the FTS papers' synthetic experiments maximize.

f ~ GP(0, SE(0.03)) on 1000 points, scaled to [0, 1];   y = f(x) + N(0, 0.01)
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import gp_draws, unit_range
from jaxbo.types import Key, Points

POINTS, LENGTH_SCALE, NOISE = 1000, 0.03, 0.01
#: Variance of the values of the scaled functions, measured over 1000 of them.
VALUES_VARIANCE = 0.05


def grid() -> Points:
    """The domain, evenly spaced."""
    return jnp.linspace(0, 1, POINTS)[:, None]


@eqx.filter_jit
def draws(key: Key, runs: int) -> Float[Array, "runs points"]:
    """A function for each run."""
    return unit_range(gp_draws(key, SquaredExponential(LENGTH_SCALE), grid(), runs))
