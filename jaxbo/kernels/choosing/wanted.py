"""A function that few agents of a batch need, computed for these agents alone.

Under `vmap` a `cond` computes both sides for everybody. In a large batch, nearly every round has an agent
that needs the function. So its batch gathers the agents who need it, computes for some of them at a time,
and is done when nobody is left.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from jaxbo.types import Flag

S = TypeVar("S")
T = TypeVar("T", bound=PyTree)

#: A batch computes for so many agents at a time, or for this share of all if that is more. A smaller
#: batch computes for all as soon as one of them needs it.
LEAST, SHARE = 64, 32


def if_wanted(wanted: Flag, compute: Callable[[S], T], given: S, otherwise: T) -> T:
    """`compute(given)` where it is wanted. Its result has the arrays of `otherwise`."""
    function = eqx.filter_closure_convert(compute, given)
    arrays, static = eqx.partition((function, given, otherwise), eqx.is_array)

    def of_one(wanted: Flag, arrays: PyTree) -> T:
        return _once(wanted, *eqx.combine(arrays, static))

    def always(arrays: PyTree) -> T:
        function, given, _ = eqx.combine(arrays, static)
        return function(given)

    chosen = jax.custom_batching.custom_vmap(of_one)

    @chosen.def_vmap
    def of_batch(size: int, batched: Any, *given: Any) -> tuple[T, Any]:
        wanted, arrays = jax.tree.map(jnp.asarray, given)  # outside of `jit` they may be NumPy's
        axes = jax.tree.map(lambda own: 0 if own else None, batched)
        few = max(LEAST, -(-size // SHARE))
        nothing = jax.vmap(lambda a: a, axes[1][2:], axis_size=size)(arrays[2])
        if batched[0] and size > few:
            of_some = jax.vmap(always, axes[1:], axis_size=few)
            found = _of_few(few, wanted, of_some, arrays, batched[1], nothing)
        else:  # for all or for nobody, which a batch of batches can choose for each batch

            def together(given: Any) -> T:
                of_all = jax.vmap(always, axes[1:], axis_size=size)
                new = of_all((arrays[0], given, arrays[2]))
                return jax.vmap(_chosen, (axes[0], 0, 0))(wanted, new, nothing)

            found = if_wanted(jnp.any(wanted), together, arrays[1], nothing)
        return found, jax.tree.map(lambda _: True, found)

    return chosen(wanted, arrays)


def _once(wanted: Flag, compute: Callable[[S], T], given: S, otherwise: T) -> T:
    """A loop of a single step or of no step. A batch skips it if nobody wants the step."""

    def step(state: tuple[Flag, T]) -> tuple[Flag, T]:
        # The compiler takes constants out of a loop, and would always compute them. A term that depends
        # on the state stays.
        held = jax.tree.map(lambda a: jnp.where(state[0], a, jnp.zeros_like(a)), given)
        return jnp.zeros_like(state[0]), compute(held)

    return jax.lax.while_loop(lambda state: state[0], step, (wanted, otherwise))[1]


def _chosen(wanted: Flag, new: T, old: T) -> T:
    return jax.tree.map(lambda a, b: jnp.where(wanted, a, b), new, old)


def _of_few(
    few: int,
    wanted: Bool[Array, " agents"],
    compute: Callable[[PyTree], T],
    arrays: PyTree,
    batched: PyTree,
    found: T,
) -> T:
    """`found`, but the results of all who want them: in as many steps as it takes, each for a `few`.

    `batched` says which arrays have the axis of agents.
    """
    size = wanted.shape[0]
    # The agents who want it come first, then numbers of nobody.
    agents = jnp.nonzero(wanted, size=size + few, fill_value=size)[0]
    total = jnp.sum(wanted)

    def step(state: tuple[Array, T]) -> tuple[Array, T]:
        done, found = state
        here = jax.lax.dynamic_slice_in_dim(agents, done, few)
        take = lambda a, own: a.at[here].get(mode="clip") if own else a  # noqa: E731
        new = compute(jax.tree.map(take, arrays, batched))
        put = lambda a, b: a.at[here].set(b, mode="drop")  # noqa: E731
        return done + few, jax.tree.map(put, found, new)

    start = jnp.zeros((), total.dtype), found
    return jax.lax.while_loop(lambda state: state[0] < total, step, start)[1]
