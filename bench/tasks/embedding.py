"""REMBO: a random subspace of few dimensions in place of the whole domain (Wang et al., 2013).

    x = A z clipped to [-1, 1]^dim,    z in [-√d, √d]^d,    A_ij ~ N(0, 1)

both on the scale of unit cubes.
"""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Key, Point, Scalar


class Embedded(eqx.Module):
    """An objective on the subspace that `matrix` spans."""

    objective: Any
    matrix: Float[Array, "dim subspace"]

    def __call__(self, key: Key, agent: Count, z: Point) -> Scalar:
        return self.objective(key, agent, self.point(z))

    def point(self, z: Point) -> Point:
        """The point of the whole cube."""
        x = dot(self.matrix, (2 * z - 1) * math.sqrt(z.size))
        return (jnp.clip(x, -1, 1) + 1) / 2


def embedded(key: Key, objective: Any, dim: int, subspace: int) -> Embedded:
    """The objective on a subspace that is drawn."""
    return Embedded(objective, jr.normal(key, (dim, subspace)))
