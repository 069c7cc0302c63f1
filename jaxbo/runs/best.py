"""The best point of a noisy objective: where the model expects most, among the points that were asked.

    x* = argmax mean(x),    x asked, and its evaluation did not fail

Where outcomes have bounds, those points alone that are expected to meet them.

The largest of noisy values is large by luck. A posterior mean weighs all values near a point, so what it
promises is nearer to what is there.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxbo._check import is_a, require
from jaxbo._direction import upward
from jaxbo.algos.base import _origin
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.runs.trace import Trace
from jaxbo.runs.workers import Desk


class Best(NamedTuple):
    """A point of each agent, and what its model expects there; NaN where there is none.

    `mean` is in units of the values, and `deviation` that of the objective without noise.
    """

    x: Float[Array, "agents dim"]
    mean: Float[Array, " agents"]
    deviation: Float[Array, " agents"]


def best(algorithm: AbstractAlgorithm, state: PyTree, trace: Trace | Desk) -> Best:
    """The point with the best posterior mean among those in `trace`, of each agent that is asked.

    Workers who share a model have one. `state` is what the run returned with the trace, or that of the
    desk. Pure, but for a `Desk`: `jit` it, or `vmap` it over runs. `space.decode(best.x[0])` has
    parameters by name. For an objective without noise the best value observed is better.

    `TS`, `EGP`, `DECHBO` and `EXP3BO` expect what their surrogate does. `FTS`, `DPFTSDE`, `RGPE` and
    `TAF` expect what an agent's own model does (`own`, else `features`), whatever others have sent.
    `LearnedPrior` expects what an agent does under the prior of the last round.
    `ValueError` for another method, such as `CEPE` and `RandomSearch`, and for a trace without rows or of
    other sizes.
    """
    is_a("algorithm", algorithm, AbstractAlgorithm)
    agents, dim = min(algorithm.targets, algorithm.clients), algorithm.domain.dim
    queries, values = jnp.asarray(trace.queries), jnp.asarray(trace.values, float)
    require(
        queries.size > 0 and queries.shape == (*values.shape, dim) and values.size % agents == 0,
        f"expected a trace of {agents} agents and {dim} coordinates with a row or more, got queries of "
        f"shape {queries.shape} and values of shape {values.shape}.",
    )
    best = _best(algorithm, state, queries.reshape(-1, agents, dim), values.reshape(-1, agents))
    return best._replace(mean=upward(trace.direction, best.mean))


@eqx.filter_jit
def _best(
    algorithm: AbstractAlgorithm,
    state: PyTree,
    queries: Float[Array, "rows agents dim"],
    values: Float[Array, "rows agents"],
) -> Best:
    means, variances = jax.vmap(lambda x: algorithm.predict(state, x))(queries)
    fine = jnp.isfinite(values)
    if algorithm.outcomes:
        fine = fine & jax.vmap(lambda x: algorithm.feasible(state, x))(queries)
    row = jnp.argmax(jnp.where(fine, means, -jnp.inf), axis=0)
    agents = jnp.arange(row.size)
    some = jnp.any(fine, axis=0)
    origin = _origin.origin_of(state)
    offset = jnp.zeros_like(row, means.dtype) if origin is None else origin.value
    mean = means[row, agents] + offset
    deviation = jnp.sqrt(variances[row, agents])
    nothing = jnp.full_like(mean, jnp.nan)
    x = jnp.where(some[:, None], queries[row, agents], jnp.nan)
    return Best(x, jnp.where(some, mean, nothing), jnp.where(some, deviation, nothing))
