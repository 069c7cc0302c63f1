"""Bad input gets one clear error before any work starts."""

import equinox as eqx
import jax.core
import numpy as np


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


def at_least(size: int, least: int) -> None:
    """`ValueError` for a size below `least`."""
    require(size >= least, f"expected a size of at least {least}, got {size}.")
