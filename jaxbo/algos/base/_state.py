"""Whether a state belongs to a method."""

from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import PyTree

from jaxbo._check import require, shown


def check_state(algorithm: Any, state: PyTree) -> None:
    """`ValueError` for a state that this algorithm does not make, with the differences."""
    fresh = eqx.filter_eval_shape(algorithm.init, jr.key(0))
    given, expected = _leaves(state), _leaves(fresh)
    begin = "begin with what algorithm.init returns"
    require(
        jax.tree.structure(state) == jax.tree.structure(fresh),
        f"state is of another algorithm, or of other sizes: it must be a {type(fresh).__name__} of "
        f"{type(algorithm).__name__}, got {shown(state)}; {begin}.",
    )
    for path, leaf in expected.items():
        have, want = np.shape(given[path]), leaf.shape
        require(
            have == want,
            f"state is of another algorithm, capacity or number of agents: {path} has shape {have}, "
            f"expected {want}; {begin}. For a larger capacity replay(algorithm, trace, key) makes one.",
        )
    for path, leaf in expected.items():
        have = getattr(given[path], "dtype", type(given[path]).__name__)
        require(
            have == leaf.dtype,
            f"state is of another precision: {path} has type {have}, expected {leaf.dtype}. Make the "
            "algorithm and its state anew where jax_enable_x64 was switched.",
        )


def _leaves(tree: PyTree) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
