"""Bad input gets a single clear error before any work starts."""

import inspect
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

#: The largest number that JAX's integers hold by default.
MOST = 2**31 - 1


def require(condition: object, message: str) -> None:
    """`ValueError(message)` unless every element of `condition` holds.

    A condition on traced values cannot be decided while tracing and passes: build configuration
    outside of `jit` and `vmap` to have it checked.
    """
    if isinstance(condition, jax.core.Tracer):
        return
    if not bool(np.all(np.asarray(condition))):
        raise ValueError(message)


def positive(name: str, value: object) -> None:
    """`ValueError` unless every element of `value` is positive and finite."""
    if isinstance(value, jax.core.Tracer) or not eqx.is_array_like(value):
        return
    array = np.asarray(value)
    if not bool(np.all(np.isfinite(array) & (array > 0))):
        raise ValueError(f"{name} must be positive and finite, got {array}.")


def positive_number(name: str, value: object) -> None:
    """`ValueError` unless `value` is a single number, positive and finite."""
    fine = eqx.is_array(value) or (
        isinstance(value, Real | np.generic) and eqx.is_array_like(value)
    )
    require(fine and np.ndim(value) == 0, f"{name} must be one number, got {value!r:.60}.")  # type: ignore[arg-type]
    positive(name, value)


def reals(name: str, given: Any) -> Float[np.ndarray, "..."]:
    """`given` in float64. `ValueError` for anything but an array of real numbers."""
    try:
        array = np.asarray(given)
        real = array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating)
        require(real, "not real")
        return array.astype(np.float64)
    except jax.errors.JAXTypeError:  # of what is traced
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be real numbers, one row as long as the other, got {shown(given)}."
        ) from error


def reals_or_none(name: str, given: Any) -> Float[np.ndarray, "..."]:
    """The same, with NaN for a None among them."""
    if given is None or (isinstance(given, np.ndarray | jax.Array) and given.dtype != object):
        return reals(name, given)
    try:
        array = np.array(given, object)
    except ValueError:  # rows of other lengths
        return reals(name, given)
    for place, value in np.ndenumerate(array):
        array[place] = np.nan if value is None else value
    return reals(name, array.tolist())


def rows_of(name: str, given: Any) -> Float[np.ndarray, "*runs rounds agents"]:
    """Values of agents in rounds; None is NaN. `ValueError` for less than the two axes."""
    values = reals_or_none(name, given)
    require(
        values.ndim >= 2,
        f"{name} must have an axis of rounds and one of agents, got shape {values.shape}: those of one "
        "agent are values[:, None].",
    )
    return values


def shown(value: Any) -> str:
    """A short text for a thing that is wrong."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and not isinstance(value, eqx.Module):
        return f"the function {getattr(value, '__name__', value)}"
    if value is None or isinstance(value, str | int | float | list | tuple):
        return f"{value!r:.60}"
    return f"{type(value).__name__}"


def is_a(name: str, value: object, kind: type) -> None:
    """`ValueError` unless `value` is a `kind`."""
    require(
        isinstance(value, kind),
        f"{name} must be of type {kind.__name__}, got {type(value).__name__}.",
    )


def flag(name: str, value: object) -> None:
    """`ValueError` unless `value` is True or False."""
    require(isinstance(value, bool | np.bool_), f"{name} must be True or False, got {value!r:.60}.")


def whole(name: str, number: object, least: int = 0, most: float = MOST) -> None:
    """`ValueError` unless `number` is a Python or NumPy integer from `least` to `most`."""
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    size = int(number) if is_whole else least - 1  # type: ignore[call-overload]
    require(
        size >= least, f"{name} must be a whole number of at least {least}, got {shown(number)}."
    )
    require(size <= most, f"{name} must be at most {most}, which 32 bits hold, got {number}.")


def seconds(name: str, value: object) -> None:
    """`ValueError` unless `value` is a time: a real number, positive and finite."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    require(
        real and 0 < value < float("inf"),  # type: ignore[operator]
        f"{name} must be a positive number of seconds, got {value!r}.",
    )


def takes(function: object, count: int) -> bool:
    """Whether it can be called with so many arguments; True for a function written in C that does not
    say.
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
