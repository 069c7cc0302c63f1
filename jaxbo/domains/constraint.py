"""A known constraint: a function that says which points of a space may be asked.

A Python function is asked on the host with a point's values by name (`jax.pure_callback`). A function
under `jax.jit` is compiled into the search, and takes the values of `Space.unpack`.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxbo.types import Flag, Point, Points, as_pytree

#: Values of a point by name.
Values: TypeAlias = dict[str, Any]

#: So many points that are allowed are kept, for searches that find none.
EXAMPLES: Final = 64
#: So many are looked at for these, and so many at a time.
MOST, BATCH = 2**14, 2**10
#: The most that a search looks at for each candidate that it wants.
MOST_DRAWS: Final = 16


class Constraint(eqx.Module):
    """`predicate` of a point's values is True where it may be asked.

    `examples` are allowed, and about `share` of all points is.
    """

    predicate: Callable[[Values], Any]
    examples: Points
    compiled: bool = eqx.field(static=True)
    share: float = eqx.field(static=True)

    @classmethod
    def of(cls, where: Callable[[Values], Any]) -> "Constraint":
        """Without examples yet. `ValueError` for something else than a function."""
        if not callable(where):
            hint = "A parameter of this name goes into a mapping: Space({'where': ...})"
            raise ValueError(f"where must be a function of values by name, got {where!r}. {hint}.")
        compiled = isinstance(where, jax.stages.Wrapped)
        # A compiled predicate may hold arrays, which become leaves; a Python one is only called.
        predicate = as_pytree(inspect.unwrap(where)) if compiled else jax.tree_util.Partial(where)
        return cls(predicate, jnp.zeros((EXAMPLES, 0)), compiled, 1.0)

    def having(self, examples: Points, share: float) -> "Constraint":
        """The constraint with the given examples, and the share of all points that it allows."""
        return Constraint(self.predicate, examples, self.compiled, share)

    def draws(self, count: int) -> int:
        """How many points to look at for so many that are allowed: hardly more, which stay even."""
        return min(math.ceil(count / self.share), MOST_DRAWS * count)


def check_compiled(
    predicate: Callable[[Values], Any], unpack: Callable[[Point], Values], dim: int
) -> None:
    """`ValueError` unless a compiled predicate returns a single truth value."""
    x = jax.ShapeDtypeStruct((dim,), jnp.zeros(()).dtype)
    try:
        answer = jax.eval_shape(lambda x: predicate(unpack(x)), x)
    except Exception as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"where cannot be compiled, {type(error).__name__}: {text} Leave out jax.jit, or write it in "
            "jax.numpy for what Space.unpack gives."
        ) from error
    if getattr(answer, "shape", None) != () or answer.dtype != bool:
        raise ValueError(f"where must return one truth value, got {answer}.")


def on_host(
    predicate: Callable[[Values], Any], decode: Callable[[np.ndarray], Values], x: Point
) -> Flag:
    """A Python predicate's answer at a point, from compiled code."""
    flag = jax.ShapeDtypeStruct((), bool)

    def ask(x: Array) -> np.ndarray:
        rows = np.asarray(x)
        return answers(predicate, decode, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])

    return jax.pure_callback(ask, flag, x, vmap_method="expand_dims")


def answers(
    predicate: Callable[[Values], Any], decode: Callable[[np.ndarray], Values], X: np.ndarray
) -> Bool[np.ndarray, " points"]:
    """A Python predicate's answers at several points."""
    return np.asarray([asked(predicate, decode(x)) for x in X], bool)


def asked(predicate: Callable[[Values], Any], values: Values) -> bool:
    """A Python predicate's answer; `ValueError` where it gives none."""
    try:
        answer = predicate(values)
    except Exception as error:
        raise ValueError(f"where raised {error!r} at {values}.") from error
    if np.shape(answer) != () or np.asarray(answer).dtype != bool:
        raise ValueError(f"where must return True or False, got {answer!r} at {values}.")
    return bool(answer)


def examples(
    draw: Callable[[np.random.Generator, int], np.ndarray],
    allowed: Callable[[np.ndarray], Bool[np.ndarray, " points"]],
    among: str,
) -> tuple[np.ndarray, float]:
    """`EXAMPLES` points that are allowed, repeated where fewer are found, and the share that is.

    `ValueError` if none is found; `among` names the points for the message. The same in every process.
    """
    generator, found, tried = np.random.default_rng(0), [], 0
    while sum(map(len, found)) < EXAMPLES and tried < MOST:
        points = draw(generator, BATCH)
        found.append(points[allowed(points)])
        tried += BATCH
    some = np.concatenate(found)
    if not len(some):
        raise ValueError(
            f"where allows none of {tried} points drawn {among}: loosen it, or choose parameters of "
            "which it allows more, such as shares of a whole in the place of parts that must add up."
        )
    return np.resize(some[:EXAMPLES], (EXAMPLES, some.shape[1])), len(some) / tried


def spread_evenly(
    even: Float[Array, "many dim"],
    allowed: Bool[Array, " many"],
    examples: Float[Array, "few dim"],
    count: int,
) -> Points:
    """`count` of the points that are allowed, in their order; with examples where they are too few."""
    lacking = jnp.broadcast_to(jnp.sum(allowed) < count, examples.shape[:1])
    points, usable = jnp.concatenate([even, examples]), jnp.concatenate([allowed, lacking])
    places = jnp.nonzero(usable, size=usable.size)[0]
    total = jnp.sum(usable)
    # In whole numbers, without products that grow beyond them.
    step, rest = total // count, total % count
    index = jnp.arange(count)
    ranks = step * index + (rest.astype(float) * (index / count)).astype(int)
    return points[places[jnp.minimum(ranks, total - 1)]]
