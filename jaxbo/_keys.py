"""Keys in a state: moved about by their data, since JAX's check for reused keys takes every
slice, update and barrier of a key for a use of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PyTree


def _is_key(leaf: Any) -> bool:
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def unwrap(tree: PyTree) -> PyTree:
    """The tree with the data of its keys in their place."""
    return jax.tree.map(lambda leaf: jr.key_data(leaf) if _is_key(leaf) else leaf, tree)


def wrap(data: PyTree, like: PyTree) -> PyTree:
    """Undoes `unwrap`; `like` is a tree with keys in the same places."""
    return jax.tree.map(
        lambda leaf, new: jr.wrap_key_data(new, impl=jr.key_impl(leaf)) if _is_key(leaf) else new,
        like,
        data,
    )


def barrier(tree: PyTree) -> PyTree:
    """`jax.lax.optimization_barrier`."""
    return wrap(jax.lax.optimization_barrier(unwrap(tree)), tree)
