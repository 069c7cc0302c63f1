"""A further observation, and products with the posterior's root, for many agents in a single pass
over memory.

    v = R'φ,   s = v'v + noise,   u = R v,   R ← R - u v' / (s + √(noise · s))

The plain way reads a root for v, for u and to change it. A program of the kernels is for a single
agent and reads its matrix once. A root that is a product of factors (`posterior.ProductRoot`) has a
vector for each factor: the vectors are read once from memory, and the second time from the cache.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

#: Features of the largest matrix that a program holds in registers: 64 KiB of float32.
LARGEST = 128
#: Features that a program of one warp goes through, factor by factor.
LARGEST_FACTOR = 1024


def told(
    matrix: Float[Array, "agents features features"],
    phi: Float[Array, "agents features"],
    noise: Float[Array, " agents"],
    *,
    interpret: bool = False,
) -> tuple[
    Float[Array, "agents features features"],
    Float[Array, "agents features"],
    Float[Array, " agents"],
]:
    """The roots after a further observation at `phi`, with u and s; at most `LARGEST` features."""
    from jax.experimental import pallas as pl  # a third of what importing jaxbo takes
    from jax.experimental.pallas import triton

    width = _power(phi.shape[1])
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (matrix, phi, noise)]
    call = pl.pallas_call(
        partial(_told, width=width),
        out_shape=tuple(shapes),
        grid=(phi.shape[0],),
        input_output_aliases={0: 0},  # written over the old ones, where these are not needed again
        compiler_params=triton.CompilerParams(num_warps=8 if width > 64 else 4, num_stages=1),
        interpret=interpret,
        name="root_told",
    )
    return call(matrix, phi, noise)


def _told(
    matrix: Any, phi: Any, noise: Any, new_matrix: Any, new_u: Any, new_s: Any, *, width: int
) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import load, store

    agent, columns = pl.program_id(0), pl.ds(pl.program_id(0) * 0, width)
    there = jnp.arange(width) < phi.shape[1]
    square = there[:, None] & there[None, :]
    R = load(matrix.at[agent, columns, columns], mask=square, other=0.0)
    f = load(phi.at[agent, columns], mask=there, other=0.0)
    e = load(noise.at[agent])
    v = jnp.sum(R * f[:, None], axis=0)
    s = jnp.sum(v * v) + e
    u = jnp.sum(R * v[None, :], axis=1)
    R = R - (u / (s + jnp.sqrt(e * s)))[:, None] * v[None, :]
    store(new_matrix.at[agent, columns, columns], R, mask=square)
    store(new_u.at[agent, columns], u, mask=there)
    store(new_s.at[agent], s)


def through(
    rows: Float[Array, "agents capacity features"],
    inverse_shrinks: Float[Array, "agents capacity"],
    count: Int[Array, " agents"],
    z: Float[Array, "agents features"],
    *,
    ascending: bool,
    descending: bool,
    interpret: bool = False,
) -> tuple[Float[Array, "agents features"], ...]:
    """z through the first `count` factors of each agent's root, and the result back through them.

    R'z if `ascending`, R z if `descending`, and both R'z and R R'z if both. There are at most
    `LARGEST_FACTOR` features.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    width = _power(z.shape[1])
    results = int(ascending) + int(descending)
    call = pl.pallas_call(
        partial(_through, width=width, ascending=ascending, descending=descending),
        out_shape=(jax.ShapeDtypeStruct(z.shape, z.dtype),) * results,
        grid=(z.shape[0],),
        compiler_params=triton.CompilerParams(num_warps=max(1, width // 256), num_stages=1),
        interpret=interpret,
        name="root_through",
    )
    return call(rows, inverse_shrinks, count, z)


def _through(
    rows: Any,
    inverse_shrinks: Any,
    count: Any,
    z: Any,
    *results: Any,
    width: int,
    ascending: bool,
    descending: bool,
) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import load, store

    agent, columns = pl.program_id(0), pl.ds(pl.program_id(0) * 0, width)
    there = jnp.arange(width) < z.shape[1]
    many = load(count.at[agent])

    def factor(k: Any, z: Array) -> Array:
        v = load(rows.at[agent, k, columns], mask=there, other=0.0)
        return z - v * (jnp.sum(v * z) * load(inverse_shrinks.at[agent, k]))

    now, rest = load(z.at[agent, columns], mask=there, other=0.0), list(results)
    if ascending:
        now = jax.lax.fori_loop(0, many, factor, now)
        store(rest.pop(0).at[agent, columns], now, mask=there)
    if descending:
        now = jax.lax.fori_loop(0, many, lambda k, z: factor(many - 1 - k, z), now)
        store(rest.pop(0).at[agent, columns], now, mask=there)


def _power(size: int) -> int:
    """The least power of two that is not smaller, at least 16."""
    return max(16, 1 << (size - 1).bit_length())
