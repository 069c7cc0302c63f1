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

from bench.prior.setting import INITIAL, KERNEL
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes import features
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

COMMON, OWN = 0.7, 0.3
SCALE = math.hypot(COMMON, OWN)
#: So many features draw the functions, many more than a method has.
DRAWN = 600


def regret(
    algorithm: AbstractAlgorithm, agents: int, rounds: int, keys: Array, batch: int
) -> Float[np.ndarray, "runs rounds"]:
    """The mean regret of agents in each run, after each round."""
    return np.asarray(_regret(algorithm, agents, rounds, keys, batch))


@eqx.filter_jit
def _regret(
    algorithm: AbstractAlgorithm, agents: int, rounds: int, keys: Array, batch: int
) -> Float[Array, "runs rounds"]:
    phi = features.sine_cosine(jr.key(0), KERNEL, 2, DRAWN)
    axis = (np.arange(40) + 0.5) / 40
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), float)

    def one(key: Key) -> Float[Array, " rounds"]:
        common_key, own_key, run_key = jr.split(key, 3)
        own = jr.normal(own_key, (agents, DRAWN))
        w = (COMMON * jr.normal(common_key, (1, DRAWN)) + OWN * own) / SCALE

        def objective(key: Key, agent: Count, x: Point) -> Scalar:
            del key
            return dot(phi(x), w[agent])

        _, trace = run(algorithm, objective, rounds, run_key, initial=INITIAL)
        values = dot(jax.vmap(phi)(grid), w.T)
        best = jax.lax.cummax(trace.values, axis=0)[INITIAL:]
        below = jnp.maximum(jnp.max(values, axis=0)[None, :] - best, 0)
        return jnp.mean(below, axis=1) / jnp.std(values)

    return jax.lax.map(one, keys, batch_size=batch)
