"""The best of every slab of candidates for many functions, linear in features that they share.

    value(agent, c) = weights(agent, region of c)'φ(c),     best = max over the candidates c of a slab

The plain way writes all values, agents x candidates, to memory and reads them again to find the
maxima. This kernel holds a single tile of them at a time. A program is for `_AGENTS` agents and a
single slab. It goes over the slab's candidates, `_CANDIDATES` at a time, and keeps each agent's
best value and its place.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbo.kernels.linalg import dot

#: A tile of values, and how many features are multiplied at a time: powers of two, as Triton needs.
#: Compiled for a Hopper GPU with so many warps, a thread takes 126 registers, or 172 with a mask and
#: regions. With four warps, or a larger tile, a thread has too few of them and writes to memory.
_AGENTS, _CANDIDATES, _FEATURES = 64, 64, 32
_WARPS = 8
#: An offset in an array of bytes is an integer of 32 bits.
LARGEST = 2**31


def best(
    phis: Float[Array, "candidates features"],
    regions: Int[Array, " candidates"],
    weights: Float[Array, "agents regions features"],
    allowed: Bool[Array, "agents candidates"] | None,
    *,
    slabs: int,
    interpret: bool = False,
) -> tuple[Int[Array, "agents slabs"], Float[Array, "agents slabs"]]:
    """The place of the best candidate of each slab, and its value; of equal candidates it is the first.

    Slabs are equal shares of the candidates, in order. If there are too few, the last candidate
    stands for a slab without any. `regions` do not decrease. Any candidate that is allowed is
    better than all others, and a value that is not a number is the worst.
    """
    from jax.experimental import pallas as pl  # a third of what importing jaxbo takes
    from jax.experimental.pallas import triton

    shape = weights.shape[0], slabs
    masks = () if allowed is None else (allowed,)
    program = partial(_slab, width=-(-phis.shape[0] // slabs), of_regions=weights.shape[1] > 1)
    call = pl.pallas_call(
        program if masks else partial(_unmasked, program),
        out_shape=(jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, phis.dtype)),
        grid=(-(-shape[0] // _AGENTS), slabs),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=2),
        interpret=interpret,
        name="best_of_slabs",
    )
    return call(phis.T, regions, weights, *masks)


def _unmasked(program: Any, phis: Any, regions: Any, weights: Any, *found: Any) -> None:
    program(phis, regions, weights, None, *found)


def _slab(
    phis: Any,
    regions: Any,
    weights: Any,
    allowed: Any,
    places: Any,
    values: Any,
    *,
    width: int,
    of_regions: bool,
) -> None:
    """A program: references to the arrays of `best`, features before candidates, and to its results."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import load, store

    (agents, _, features), candidates = weights.shape, phis.shape[1]
    dtype = values.dtype
    rows = pl.ds(pl.program_id(0) * _AGENTS, _AGENTS)
    present = pl.program_id(0) * _AGENTS + jnp.arange(_AGENTS) < agents
    first = jnp.minimum(pl.program_id(1) * width, candidates - 1)
    last = jnp.minimum(first + width, candidates)

    def tile(i: Any, known: Any) -> Any:
        start = first + i * _CANDIDATES
        here = start + jnp.arange(_CANDIDATES)
        inside, columns = here < last, pl.ds(start, _CANDIDATES)

        def product(region: Any) -> Array:
            def add(k: Any, total: Array) -> Array:
                terms = pl.ds(k * _FEATURES, _FEATURES)
                there = k * _FEATURES + jnp.arange(_FEATURES) < features
                w = load(
                    weights.at[rows, region, terms],
                    mask=present[:, None] & there[None, :],
                    other=0.0,
                )
                phi = load(
                    phis.at[terms, columns], mask=there[:, None] & inside[None, :], other=0.0
                )
                return total + dot(w, phi)

            zero = jnp.zeros((_AGENTS, _CANDIDATES), dtype)
            return jax.lax.fori_loop(0, -(-features // _FEATURES), add, zero)

        if of_regions:
            its = load(regions.at[columns], mask=inside, other=0)
            least = jnp.min(jnp.where(inside, its, jnp.iinfo(jnp.int32).max))

            def of_region(region: Any, found: Array) -> Array:
                return jnp.where((its == region)[None, :], product(region), found)

            zero = jnp.zeros((_AGENTS, _CANDIDATES), dtype)
            found = jax.lax.fori_loop(least, jnp.max(its) + 1, of_region, zero)
        else:
            found = product(jnp.int32(0))  # Pallas of JAX 0.12 takes no constant here
        found = jnp.where(found == found, found, -jnp.inf)
        if allowed is not None:
            may = load(
                allowed.at[rows, columns], mask=present[:, None] & inside[None, :], other=False
            )
            found = jnp.where(may, jnp.maximum(found, jnp.finfo(dtype).min), -jnp.inf)
        found = jnp.where(inside[None, :], found, -jnp.inf)
        place, value = known
        most = jnp.max(found, axis=1)
        at = jnp.min(jnp.where(found == most[:, None], here[None, :], candidates), axis=1)
        better = most > value
        return jnp.where(better, at, place), jnp.where(better, most, value)

    start = jnp.full((_AGENTS,), 0, jnp.int32) + first, jnp.full((_AGENTS,), -jnp.inf, dtype)
    place, value = jax.lax.fori_loop(0, -(-width // _CANDIDATES), tile, start)
    store(places.at[rows, pl.program_id(1)], place, mask=present)
    store(values.at[rows, pl.program_id(1)], value, mask=present)
