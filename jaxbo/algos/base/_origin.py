"""A model is told values of the host as differences to the first value.

    told = float32(value - origin),    origin = float32(the first finite value)

Float32 has seven digits, and -54321.06 and -54321.07 share all of them. So the subtraction is done on
the host, in float64. The first finite value of an agent fixes its origin, and the state holds it: a run
that goes on from a state subtracts the same number. A method has an origin only if a constant added to
all values changes none of its queries.

Values of compiled objectives are in JAX's precision already. They set no origin: if the state has
none, the origin is 0 from then on, and the model subtracts the first value itself (`Moments`). If
the state has an origin, the model is told their difference to it. So all that a model knows is on
the same scale.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._warning import warn
from jaxbo.kernels.moments import least, most
from jaxbo.types import on_device

#: Differences of so many rounding errors of float64 come from the objective's own sums.
ROUNDING_ERRORS = 16
#: A rounding error of so much of the values' deviation is as much noise as many objectives have.
TOLERATED = 1e-2
#: Rows of values that are looked at each time there is one more.
MANY = 64


class Origin(eqx.Module):
    """The number that was subtracted from all values told; 0 and not `known` before the first.

    Each agent that queries has an entry; workers who share a model have a number in common.
    """

    value: Float[Array, "*agents"]
    known: Bool[Array, "*agents"]


def no_origin(*shape: int) -> Origin:
    """Before any value."""
    return Origin(jnp.zeros(shape, float), jnp.zeros(shape, bool))


def after(origin: Origin | None, values: Float[Array, "..."]) -> Origin | None:
    """The origin once `values`, a row or several, were told: it never changes from then on."""
    if origin is None:
        return None
    finite = jnp.isfinite(values).reshape(-1, *origin.known.shape)
    return Origin(origin.value, origin.known | jnp.any(finite, axis=0))


def told(state: PyTree, values: Array | np.ndarray) -> tuple[PyTree, Array]:
    """The state with its origin, and the values to tell it: differences to the origin.

    Only NumPy's values set an origin. For values of JAX this is pure: `run` and `drive` share it.
    """
    origin = origin_of(state)
    if isinstance(values, jax.Array):
        return state, values if origin is None else less(values, origin)
    if origin is None:
        return state, rounded(values)
    # Copies: the state may be given up for the next one.
    value, known = np.array(origin.value), np.array(origin.known)
    # Agents that are no targets have no origin in the state: `lowered` has subtracted theirs.
    own, others = np.split(values, [known.size], axis=-1) if known.ndim else (values, None)
    rows = own.reshape(-1, *known.shape)
    fresh = np.isfinite(rows).any(axis=0) & ~known
    if fresh.any():
        value = np.where(fresh, first(rows), value)
        state = _with_origin(state, Origin(jnp.asarray(value), jnp.asarray(known | fresh)))
    told = _held(_exact(own, value))
    if others is not None:
        told = np.concatenate([told, _held(others)], axis=-1)
    return state, on_device(told)


def lowered(values: Float[np.ndarray, "points agents"], targets: int) -> np.ndarray:
    """All values of agents; values of agents that are no targets are less the first value of each."""
    others = values[:, targets:]
    offsets = first(others).astype(np.float64) if others.size else np.zeros(others.shape[1:])
    return np.concatenate([values[:, :targets], others - offsets], axis=1)


def less(values: Float[Array, "..."], origin: Origin) -> Array:
    """`values` - `origin`, the same to the last bit where the origin is 0; finite numbers stay so."""
    largest = float(jnp.finfo(values.dtype).max)
    subtracted = values - jnp.broadcast_to(origin.value.astype(values.dtype), values.shape)
    return jnp.where(jnp.isfinite(values), jnp.clip(subtracted, -largest, largest), values)


def first(rows: np.ndarray) -> np.ndarray:
    """The first finite number of each column, in JAX's precision; 0 where there is none."""
    finite = np.isfinite(rows)
    place = np.argmax(finite, axis=0)
    found = np.take_along_axis(rows, place[None], axis=0)[0]
    return _held(np.where(finite.any(axis=0), found, 0))


def difference(values: np.ndarray | np.floating, origin: np.ndarray) -> Array:
    """`values` - `origin` in JAX's precision; 0 where they are equal but for rounding in float64."""
    return rounded(_exact(values, origin))


def origin_of(state: PyTree) -> Origin | None:
    """The origin in a state, or None."""
    found = jax.tree.leaves(state, is_leaf=_is_origin)
    return next(filter(_is_origin, found), None)


def warn_if_cut(state: PyTree, values: np.ndarray) -> bool:
    """Warns if the model was told too little of the rows of values, and says whether it warned.

    After many rows it looks at 128, 256, 512, …: all looks together take no longer than a few.
    """
    rows = len(values)
    if rows > MANY and rows & (rows - 1):
        return False
    origin = origin_of(state)
    text = cut(values, np.zeros(()) if origin is None else np.asarray(origin.value))
    if text is not None:
        warn(text)
    return text is not None


def cut(values: np.ndarray, origin: np.ndarray) -> str | None:
    """The loss of a model that is told the values less `origin`, and a remedy; None if nothing is lost.

    Rows of values, and a column for each agent.
    """
    dtype = jax.dtypes.canonicalize_dtype(float)
    exact, some = _exact(values, origin), np.isfinite(values).any(axis=0)
    values, exact = values[:, some], exact[:, some]
    error = _extent(exact - _held(exact).astype(np.float64))
    with np.errstate(over="ignore"):
        deviation = np.std(exact, axis=0, where=np.isfinite(exact))
    differ = deviation > ROUNDING_ERRORS * np.finfo(np.float64).eps * _extent(values)
    if np.any(differ & (_extent(exact) > most(dtype))):
        return (
            f"the values differ by more than {most(dtype):.2g}, and the model takes all beyond for "
            f"equal, as {dtype} has no room for their squares: divide them by a constant in the "
            "objective. For what failed return NaN, not a penalty."
        )
    if np.any(differ & (deviation < least(dtype))):
        return (
            f"the values differ by less than {least(dtype):.2g}, and the model takes them for equal, as "
            f"their squares are 0 in {dtype}: multiply them by a constant in the objective."
        )
    if np.any(differ & (error > TOLERATED * deviation)):
        return (
            f"the values differ by less than {dtype} can tell apart at their size: subtract a constant "
            "in the objective."
        )
    return None


def _extent(values: np.ndarray) -> np.ndarray:
    """The largest size in each column; 0 where there is none."""
    return np.max(np.abs(values), axis=0, initial=0, where=np.isfinite(values))


def _exact(values: np.ndarray | np.floating, origin: np.ndarray) -> np.ndarray:
    """`values` - `origin` in float64; 0 where they are equal but for rounding."""
    origin = origin.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = values.astype(np.float64) - origin
    rounding = ROUNDING_ERRORS * np.finfo(np.float64).eps * np.abs(origin)
    return np.where(np.abs(exact) <= rounding, 0, exact)


def _is_origin(node: object) -> bool:
    return isinstance(node, Origin)


def _with_origin(state: PyTree, origin: Origin) -> PyTree:
    replaced = lambda node: origin if _is_origin(node) else node  # noqa: E731
    return jax.tree.map(replaced, state, is_leaf=_is_origin)


def rounded(values: Array | np.ndarray | np.floating) -> Array:
    """In JAX's precision; finite numbers stay so, and JAX's arrays are as they were."""
    return values if isinstance(values, jax.Array) else on_device(_held(values))


def _held(values: np.ndarray | np.floating) -> np.ndarray:
    """In JAX's precision, on the host."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    largest = float(np.finfo(dtype).max)
    return np.asarray(np.clip(values, -largest, largest)).astype(dtype)
