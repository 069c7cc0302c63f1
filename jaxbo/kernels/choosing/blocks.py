"""A function at many points, in blocks that stay in the cache."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbo.types import Point, Points

T = TypeVar("T", bound=Array)

#: Points of a block: a product of so many takes no more than 4 % longer than one of all.
BLOCK = 256


def of_all(function: Callable[[Point], T], points: Points, block: int = BLOCK) -> T:
    """`function` at every point: `jax.vmap`, of which no more than a block is held at a time."""
    return in_blocks(jax.vmap(function), points, block)


def in_blocks(many: Callable[[Points], T], points: Points, block: int = BLOCK) -> T:
    """A function of many points, of which no more than a block is computed at a time.

    Blocks are equally large, so that the function is compiled once; the last block is filled up.
    """
    count = points.shape[0]
    blocks = -(-count // block)
    if blocks <= 1:
        return many(points)
    size = -(-count // blocks)
    points = jnp.pad(points, ((0, size * blocks - count), (0, 0)), mode="edge")
    found = jax.lax.map(many, points.reshape(blocks, size, -1))
    return found.reshape(-1, *found.shape[2:])[:count]
