"""Axis words and array aliases for the annotations.

Every annotation in the package names its axes with these words:

    agents      who optimizes: owners, clients, workers (always the leading axis)
    rounds      one query per agent each
    dim         coordinates of a point of the domain
    features    components of a feature vector, weights of the linear model
    points      several points of the domain
    capacity    room for observations; a count says how much of it is used
    outputs     several value columns that share one covariance

Floating arrays are float32 unless the caller's own are float64; no function here changes the
precision of what it is given.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

Key: TypeAlias = PRNGKeyArray
Scalar: TypeAlias = Float[Array, ""]
Count: TypeAlias = Int[Array, ""]
Flag: TypeAlias = Bool[Array, ""]
Point: TypeAlias = Float[Array, " dim"]
Points: TypeAlias = Float[Array, "points dim"]
Features: TypeAlias = Float[Array, " features"]

#: A function of one point, such as an acquisition function or a sampled objective.
Function: TypeAlias = Callable[[Point], Scalar]


def floating(value: ArrayLike) -> Float[Array, "..."]:
    """`value` as a strongly typed floating array: the converter of every numeric field.

    Floating arrays keep their precision; Python numbers and integers take JAX's default.
    """
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.floating) and not array.weak_type:
        return array
    return jnp.asarray(value, dtype=float)
