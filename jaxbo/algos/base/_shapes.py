"""Shapes of what agents and a server tell each other, without computing it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PyTree

from jaxbo.algos.base.federated import AbstractFederated


def shapes(of: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The shapes of a function's results, traced once for equal input."""

    def whole(static: tuple[tuple[Any, ...], Any], arrays: PyTree) -> PyTree:
        leaves, structure = static
        return of(*eqx.combine(arrays, jax.tree.unflatten(structure, leaves)))

    jitted = jax.jit(whole, static_argnums=0)

    def found(*arguments: PyTree) -> PyTree:
        arrays, static = eqx.partition(arguments, eqx.is_array)
        leaves, structure = jax.tree.flatten(static)
        return jitted.eval_shape((tuple(leaves), structure), arrays)

    return found


def message(algorithm: AbstractFederated, shared: PyTree) -> PyTree:
    """Some message of an agent."""
    key = jr.key(0)
    return algorithm.message(key, shared, algorithm.join(key, shared, jnp.zeros((), int)))
