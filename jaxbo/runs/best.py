"""The best point of a noisy objective: where the model expects most, among the points that were asked.

    x* = argmax mean(x),    x asked, and its evaluation did not fail

If outcomes have bounds, points count only if they are expected to meet them.

The largest of noisy values is large by luck. A posterior mean weighs all values near a point, so its
promise is nearer to the truth.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import is_a, require, shown
from jaxbo._direction import upward
from jaxbo.algos.base import _origin
from jaxbo.algos.base._state import check_state
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.runs.desk import Desk
from jaxbo.runs.trace import Trace
from jaxbo.types import on_device


class Best(NamedTuple):
    """A point of each agent, and the model's prediction there.

    All are NaN for an agent without a value.

    Args:
        x: The points.
        mean: The model's mean, in units of the values.
        deviation: The model's standard deviation of the objective without noise.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> found = jaxbo.Best(jnp.zeros((1, 2)), jnp.ones(1), jnp.zeros(1))
        >>> found.x[0].tolist(), float(found.mean[0])
        ([0.0, 0.0], 1.0)
    """

    x: Float[Array, "agents dim"]
    mean: Float[Array, " agents"]
    deviation: Float[Array, " agents"]


def best(algorithm: AbstractAlgorithm, state: PyTree, trace: Trace | Desk) -> Best:
    """The point with the best posterior mean among the points of a run, of each agent that is asked.

    Workers who share a model have a single point. Take it for a noisy objective: the largest of noisy
    values is large by luck. Without noise the best value observed is better. The function is pure,
    except for a `Desk`: `jit` it, or `vmap` it over runs. `space.decode(best.x[0])` has parameters by
    name.

    `TS`, `BO`, `EGP`, `DECHBO` and `EXP3BO` expect the mean of their surrogate. `FTS`, `DPFTSDE`,
    `RGPE` and `TAF` expect the mean of an agent's own model (`own`, else `features`), whatever others
    have sent. `LearnedPrior` and `DPLearnedPrior` expect the mean of an agent under the prior of the
    last round.

    Args:
        algorithm: The method of the run. `CEPE` and `RandomSearch` have no such mean.
        state: The state that the run returned with the trace, or the desk's.
        trace: The points and values.

    Returns:
        The points, with mean and standard deviation.

    Raises:
        ValueError: The method predicts nothing, or the trace has no rows or other sizes.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4), candidates=5)
        >>> state, trace = jaxbo.run(method, lambda x: -x[0], 0, jax.random.key(0), initial=3)
        >>> jaxbo.best(method, state, trace).x.shape
        (1, 1)
    """
    is_a("algorithm", algorithm, AbstractAlgorithm)
    require(
        isinstance(trace, Trace | Desk), f"trace must be a Trace or a Desk, got {shown(trace)}."
    )
    check_state(algorithm, state)
    agents, dim = min(algorithm.targets, algorithm.clients), algorithm.domain.dim
    known = trace.results if isinstance(trace, Desk) else trace
    queries, values = jnp.asarray(known.queries), on_device(known.values)
    require(
        queries.size > 0 and queries.shape == (*values.shape, dim) and values.size % agents == 0,
        f"expected a trace of {agents} agents and {dim} coordinates with a row or more, got queries of "
        f"shape {queries.shape} and values of shape {values.shape}.",
    )
    best, some = _best(algorithm, state, queries, values)
    best = best._replace(mean=upward(trace.direction, best.mean))
    return Best(*(_where(some, part) for part in best))


def _where(some: Bool[Array, " agents"], part: Float[Array, "agents ..."]) -> Array:
    """NaN for agents without a value; put in here, as `jax_debug_nans` stops for NaN in compiled code."""
    if isinstance(some, jax.core.Tracer) or isinstance(part, jax.core.Tracer):
        return jnp.where(jnp.reshape(some, (-1, *[1] * (part.ndim - 1))), part, jnp.nan)
    found = np.array(part)
    found[~np.asarray(some)] = np.nan
    return on_device(found)


@eqx.filter_jit
def _best(
    algorithm: AbstractAlgorithm,
    state: PyTree,
    queries: Float[Array, "... dim"],
    values: Float[Array, "..."],
) -> tuple[Best, Bool[Array, " agents"]]:
    """The best of each agent, and whether it has a value at all."""
    agents = min(algorithm.targets, algorithm.clients)
    queries = queries.reshape(-1, agents, queries.shape[-1])
    values = values.reshape(-1, agents)
    means, variances = jax.vmap(lambda x: algorithm.predict(state, x))(queries)
    fine = jnp.isfinite(values)
    if algorithm.outcomes:
        fine = fine & jax.vmap(lambda x: algorithm.feasible(state, x))(queries)
    row = jnp.argmax(jnp.where(fine, means, -jnp.inf), axis=0)
    own = jnp.arange(row.size)
    some = jnp.any(fine, axis=0)
    origin = _origin.origin_of(state)
    offset = jnp.zeros_like(row, means.dtype) if origin is None else origin.value
    mean = means[row, own] + offset
    return Best(queries[row, own], mean, jnp.sqrt(variances[row, own])), some
