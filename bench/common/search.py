"""A search for the maximum of an objective: random points, then evaluations, and the best so far.

Every run has initial points of its own, the same for all methods.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import TestFunction
from jaxbo.runs.compiled import run
from jaxbo.types import Key

#: Random points before the first query, and the noise of models whose observations have none.
INITIAL, NOISE = 10, 1e-4
#: Runs that are computed at the same time.
BATCH = 5

#: (dimension, evaluations) -> the algorithm
Method = Callable[[int, int], AbstractAlgorithm]


def regret(
    method: Method, function: TestFunction, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    """max f - the largest value so far, after the initial points, of every run."""
    return _regret(method(function.dim, rounds), Same(function=function), keys, rounds)


@eqx.filter_jit
def _regret(algorithm: AbstractAlgorithm, objective: Same, keys: Array, rounds: int) -> Array:
    def one(key: Key) -> Array:
        _, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
        best = jax.lax.cummax(jnp.nan_to_num(trace.values[:, 0], nan=-jnp.inf))
        return objective.function.maximum - best[INITIAL:]

    return jax.lax.map(one, keys, batch_size=BATCH)


@eqx.filter_jit
def traced(
    algorithm: AbstractAlgorithm, objective: Any, rounds: int, key: Key
) -> tuple[Float[Array, "points dim"], Float[Array, " points"]]:
    """Every point of a run, the initial points first, and its value."""
    _, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
    return trace.queries[:, 0], trace.values[:, 0]


def incumbents(values: Float[Array, " points"]) -> np.ndarray:
    """The best of the points up to each."""
    told = np.nan_to_num(np.asarray(values), nan=-np.inf)
    return np.array([int(np.argmax(told[: t + 1])) for t in range(len(told))])
