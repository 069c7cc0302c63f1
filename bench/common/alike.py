"""Regret of agents whose functions have a part in common, in deviations, for private methods.

f_n = 0.7 common + 0.3 own          draws of SE(0.2) on the square, divided by √(0.7² + 0.3²)
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Points, Scalar

#: Points that an agent knows before the first round, and the covariance of functions.
INITIAL, KERNEL = 3, SquaredExponential(0.2)
COMMON, OWN = 0.7, 0.3
SCALE = math.hypot(COMMON, OWN)
#: So many features draw the functions, many more than a method has.
DRAWN = 600
#: Points along each axis at which the largest value of a function is looked for.
SIDE = 40


class Alike(eqx.Module):
    """The functions of agents, by their weights on common features. Nothing is noisy."""

    phi: FeatureMap
    weights: Float[Array, "agents features"]

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        del key
        return dot(self.phi(x), self.weights[agent])


def grid(side: int = SIDE) -> Points:
    """The centers of equal cells of the square."""
    axis = (np.arange(side) + 0.5) / side
    return jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), float)


def drawn(key: Key, agents: int) -> tuple[Alike, Key]:
    """The functions of a run, and the key of the run itself. The common part is that of any number."""
    common_key, own_key, run_key = jr.split(key, 3)
    phi = features.sine_cosine(jr.key(0), KERNEL, 2, DRAWN)
    own = jr.normal(own_key, (agents, DRAWN))
    return Alike(phi, (COMMON * jr.normal(common_key, (1, DRAWN)) + OWN * own) / SCALE), run_key


def regret(
    algorithm: AbstractAlgorithm,
    agents: int,
    rounds: int,
    keys: Array,
    batch: int,
    side: int = SIDE,
) -> Float[np.ndarray, "runs rounds"]:
    """The mean regret of agents in each run, after each round: beside the best of the grid."""
    return np.asarray(_regret(algorithm, agents, rounds, keys, batch, side))


@eqx.filter_jit
def _regret(
    algorithm: AbstractAlgorithm, agents: int, rounds: int, keys: Array, batch: int, side: int
) -> Float[Array, "runs rounds"]:
    def one(key: Key) -> Float[Array, " rounds"]:
        objective, run_key = drawn(key, agents)
        _, trace = run(algorithm, objective, rounds, run_key, initial=INITIAL)
        values = dot(jax.vmap(objective.phi)(grid(side)), objective.weights.T)
        best = jax.lax.cummax(trace.values, axis=0)[INITIAL:]
        below = jnp.maximum(jnp.max(values, axis=0)[None, :] - best, 0)
        return jnp.mean(below, axis=1) / jnp.std(values)

    return jax.lax.map(one, keys, batch_size=batch)
