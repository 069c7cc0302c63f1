"""The steps of a run. A process traces each once for the same shapes, whichever program holds it.

A loop with another objective, a driver and a desk find the steps that the first of them has traced. A
step is compiled as a part of the program that calls it. A method that is patched later is not read
again, nor is a global that it reads, before `jax.clear_caches()`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm, Stage
from jaxbo.algos.base.keys import agent_keys
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.domains.space import Space
from jaxbo.layout import Each
from jaxbo.types import Count, Key, Point, Points


@eqx.filter_jit
def init(algorithm: AbstractAlgorithm, key: Key, each: Each) -> PyTree:
    return algorithm.init(key, each=each)


@eqx.filter_jit
def ask(
    algorithm: AbstractAlgorithm,
    key: Key,
    state: PyTree,
    present: Bool[Array, " agents"] | None,
    each: Each,
) -> tuple[Float[Array, "targets dim"], PyTree]:
    return algorithm.ask(key, state, present, each=each)


@eqx.filter_jit
def tell(
    algorithm: AbstractAlgorithm,
    state: PyTree,
    queries: Float[Array, "targets dim"],
    values: Float[Array, "targets ..."],
    stage: Stage,
    each: Each,
    info: PyTree = None,
) -> PyTree:
    return algorithm.tell(state, queries, values, stage, info, each=each)


@eqx.filter_jit
def design(algorithm: AbstractAlgorithm, key: Key, each: Each) -> Float[Array, "targets dim"]:
    """A row of the initial design."""
    agents = jnp.arange(algorithm.targets)
    return each(algorithm.initial)(agent_keys(key, agents), agents)


@eqx.filter_jit
def ask_one(
    algorithm: AbstractOneModel,
    key: Key,
    state: PyTree,
    pending: Points,
    busy: Bool[Array, " points"],
) -> Point:
    return algorithm.ask_one(key, state, pending, busy)


def slots(algorithm: AbstractOneModel) -> int:
    """How many queries may be out while a desk seeks another.

    All workers but one have a query. A query that was out before a stop may wait for its context.
    """
    domain = algorithm.domain
    waits = isinstance(domain, Space) and bool(domain.context)
    return algorithm.targets if waits else algorithm.targets - 1


@eqx.filter_jit
def tell_one(
    algorithm: AbstractOneModel,
    state: PyTree,
    x: Point,
    value: Float[Array, "*numbers"],
    stage: Stage,
) -> PyTree:
    return algorithm.tell_one(state, x, value, stage)


def stage(row: Count | int, initial: int) -> Stage:
    """The stage of a row of a run with `initial` rows before the first round.

    Its flags are arrays, so that all rows have the same program. A run without such rows has a smaller
    program.
    """
    if not initial:
        return IN_ROUND
    row = jnp.asarray(row, int)
    return Stage(row < initial, row == initial - 1)
