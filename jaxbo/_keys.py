"""Keys in a state, moved about by their data, and keys that nobody can guess.

JAX's check for reused keys takes every slice, update and barrier of a key for a use of it.
"""

import secrets
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from jaxbo._check import require, shown
from jaxbo.types import Key

#: Shapes of keys as `jax.random.PRNGKey` makes them, of JAX's generators.
_OLD = (2,), (4,)


def check_key(key: Any) -> None:
    """`ValueError` unless it is a random key, of the new kind or of the old."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        raise ValueError(f"key must be a random key of JAX, got {key}: give jax.random.key({key}).")
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        require(
            shape == (),
            f"key must be one key, got keys of shape {shape}: give one of them, or use jax.vmap.",
        )
        return
    require(
        dtype == np.uint32 and shape in _OLD,
        f"key must be a random key of JAX, got {shown(key)}: give jax.random.key(0), or another "
        "number.",
    )


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


#: `fold_in` of a small number gives a key that `split` gives, too.
_ASIDE = 2**31 - 1


def aside(key: Key) -> Key:
    """A key that no split of this key gives: for draws beside earlier draws."""
    return jr.fold_in(key, _ASIDE)


def fresh(like: Key) -> Key:
    """A new key of `like`'s kind: random words of the operating system, which nobody else has."""
    data = jr.key_data(like)
    words = np.frombuffer(secrets.token_bytes(data.nbytes), data.dtype).reshape(data.shape)
    return jr.wrap_key_data(jnp.asarray(words), impl=jr.key_impl(like))


class Held(eqx.Module):
    """A key in a state, by its data: files and `eqx.tree_serialise_leaves` take numbers only.

    `kind` is its generator; None for a key of the old kind, which is numbers already.
    """

    data: UInt32[Array, "*words"]
    kind: Any = eqx.field(static=True)

    @property
    def key(self) -> Key:
        return self.data if self.kind is None else jr.wrap_key_data(self.data, impl=self.kind)


def held(key: Key | Held) -> Held:
    """The key by its data: the converter of a field."""
    if isinstance(key, Held):
        return key
    return Held(jr.key_data(key), jr.key_impl(key)) if _is_key(key) else Held(key, None)
