"""Checks of the first arguments of a run, each with a clear error: algorithm, objective and key."""

from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr

from jaxbo._check import require, shown
from jaxbo._keys import check_key
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.algos.base.outcomes import width
from jaxbo.runs._objective import FORMS


def check_arguments(
    algorithm: Any,
    key: Any,
    objective: Any = callable,
    kind: type[AbstractAlgorithm] = AbstractAlgorithm,
) -> None:
    """`ValueError` unless the arguments are an algorithm of the `kind`, a key and, if given, an
    objective.
    """
    check_algorithm(algorithm, kind)
    require(
        callable(objective) and not isinstance(objective, AbstractAlgorithm),
        f"objective must be a function, {FORMS}, got {shown(objective)}.",
    )
    check_key(key)


def check_algorithm(algorithm: Any, kind: type[AbstractAlgorithm] = AbstractAlgorithm) -> None:
    """`ValueError` unless it is an algorithm of the `kind`."""
    if isinstance(algorithm, kind):
        return
    hint = "the algorithm comes first, such as jaxbo.TS(jaxbo.Cube(2))"
    if isinstance(algorithm, type) and issubclass(algorithm, AbstractAlgorithm):
        hint = f"make one, such as {algorithm.__name__}(jaxbo.Cube(2), ...)"
    elif isinstance(algorithm, AbstractAlgorithm):
        hint = "use jaxbo.run or jaxbo.drive for it, or a method of workers who share a model"
    elif callable(algorithm):
        hint = "the algorithm comes first, then the objective"
    raise ValueError(f"algorithm must be of type {kind.__name__}, got {shown(algorithm)}: {hint}.")


def check_precision(algorithm: AbstractAlgorithm) -> None:
    """`ValueError` for an algorithm that was made in another precision, if it cannot work in the present
    precision.
    """
    default = jnp.zeros(()).dtype
    numbers = jax.tree.leaves(eqx.filter(algorithm, eqx.is_inexact_array))
    other = [leaf.dtype for leaf in numbers if leaf.dtype != default]
    if not other:
        return
    points = jax.ShapeDtypeStruct((algorithm.targets, algorithm.domain.dim), default)
    values = jax.ShapeDtypeStruct((algorithm.targets, *width(algorithm.outcomes)), default)
    try:
        fresh = eqx.filter_eval_shape(algorithm.init, jr.key(0))
        told = eqx.filter_eval_shape(algorithm.tell, fresh, points, values)
        same = [a.dtype for a in jax.tree.leaves(fresh)] == [a.dtype for a in jax.tree.leaves(told)]
    except (TypeError, ValueError):  # a loop that begins in one precision and goes on in another
        same = False
    require(
        same,
        f"the algorithm has numbers of {other[0]}, and JAX computes in {default} now: make it after "
        "jax_enable_x64 is switched, not before.",
    )


def check_room(algorithm: AbstractOneModel, evaluations: int) -> None:
    """`ValueError` for more evaluations by workers than the surrogate can hold."""
    most = algorithm.surrogate.capacity
    needed = evaluations if algorithm.random else evaluations + algorithm.targets - 1
    require(
        most is None or needed <= most,
        f"{evaluations} evaluations by {algorithm.targets} workers exceed the surrogate's capacity of "
        f"{most}: {larger(algorithm, needed)}. A checkpoint goes on with it.",
    )
