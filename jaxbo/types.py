"""Axis words and array aliases for the annotations.

Every annotation in the package names its axes with the following words:

    agents      who optimizes: owners, clients, workers (always the leading axis)
    rounds      one query per agent each
    dim         coordinates of a point of the domain
    features    components of a feature vector, weights of the linear model
    points      several points of the domain
    capacity    room for observations; a count says how much of it is used
    outputs     several value columns that share one covariance

Floating arrays are float32 unless the caller's own are float64; no function here changes the precision of
its arguments.
"""

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
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


Result = TypeVar("Result")


def floating(value: ArrayLike | Sequence[float]) -> Float[Array, "..."]:
    """`value` as a strongly typed floating array.

    Floating arrays keep their precision; Python numbers and integers take JAX's default. `ValueError` for
    a number that this precision takes for infinite or for 0, and for things that are no number.
    """
    if isinstance(value, str | bytes):  # JAX would look for a type of this name
        raise ValueError(f"expected a number, or an array of them, got {value!r}.")
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        value = _on_host(value)
    _check_held(value)
    try:
        array = jnp.asarray(value)
        if jnp.issubdtype(array.dtype, jnp.floating) and not array.weak_type:
            return array
        return jnp.asarray(value, dtype=float)
    except jax.errors.JAXTypeError:  # of what is traced
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected a number, or an array of them, got {value!r}.") from error


def named(name: str) -> Callable[[ArrayLike | Sequence[float]], Float[Array, "..."]]:
    """`floating`, with the name of the field in its errors: the converter of every numeric field."""
    return about(name, floating)


def about(name: str, convert: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """The same converter, with the name of the field in its errors."""

    def converted(value: Any) -> Result:
        try:
            return convert(value)
        except jax.errors.JAXTypeError:  # of what is traced
            raise
        except (TypeError, ValueError, OverflowError) as error:
            cause = error.__cause__ if isinstance(error, ValueError) else error
            raise ValueError(f"{name}: {error}") from cause

    return converted


def on_device(numbers: ArrayLike) -> Float[Array, "..."]:
    """`numbers` in JAX's precision, by no operation of JAX: `jax_debug_nans` looks at those."""
    if isinstance(numbers, jax.Array):
        return jnp.asarray(numbers, float)
    with np.errstate(over="ignore"):
        return jax.device_put(np.asarray(numbers, jax.dtypes.canonicalize_dtype(float)))


def as_pytree(function: Callable) -> Callable:
    """`function` as a pytree, so that whatever holds it passes through `jax.vmap` and `jax.jit`.

    Modules are pytrees already. Values bound by a `functools.partial` become leaves, and a plain function
    or closure becomes part of the structure.
    """
    if isinstance(function, functools.partial):
        return jax.tree_util.Partial(function.func, *function.args, **function.keywords)
    is_leaf = callable(function) and jax.tree_util.all_leaves([function])
    return jax.tree_util.Partial(function) if is_leaf else function


def _on_host(value: ArrayLike | Sequence[float]) -> ArrayLike | Sequence[float]:
    """Python's numbers in float64: JAX would cut them before they are looked at.

    Anything else comes back as it is, for JAX to refuse.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # numbers that are traced, or rows of several lengths
        return value
    if not all(isinstance(number, numbers.Real) for number in array.flat):
        return value
    try:
        return array.astype(np.float64)
    except OverflowError as error:
        raise ValueError("a number is lost in float64: give another unit or scale.") from error


def _check_held(value: ArrayLike | Sequence[float]) -> None:
    """`ValueError` for numbers on the host that are lost in JAX's default precision."""
    if not isinstance(value, np.ndarray | np.generic):
        return
    given = np.asarray(value)
    if given.dtype != np.float64:
        return
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(float))
    with np.errstate(over="ignore", under="ignore"):
        held = given.astype(dtype)
    info = np.finfo(dtype)
    lost = np.isinf(held) & ~np.isinf(given) | (np.abs(held) < info.tiny) & (given != 0)
    if lost.any():
        raise ValueError(
            f"{given[lost].flat[0]} is lost in {dtype}, which holds 0 and numbers from {info.tiny:.2g} "
            f"to {info.max:.2g} in size: give another unit or scale."
        )
