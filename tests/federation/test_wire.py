"""Trees as they travel: named arrays, which come back as they were or are refused."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.federation import RefusedError
from jaxbo.federation.wire import pack, unpack


def test_a_tree_with_keys_travels_as_arrays():
    tree = {"key": jr.split(jr.key(0), 3), "a": (jnp.arange(3), None), "flag": jnp.array(True)}
    like = jax.eval_shape(lambda: tree)
    back = unpack(pack(tree), like)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, pack(back), pack(tree))


def test_bytes_that_are_neither_true_nor_false_are_refused():
    like = {"flag": jax.ShapeDtypeStruct((2,), bool)}
    with pytest.raises(RefusedError, match="other bytes"):
        unpack({"['flag']": np.array([1, 2], np.uint8).view(bool)}, like)
