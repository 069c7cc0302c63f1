"""How a function of one agent becomes one of all: at once, in chunks, and over devices.

Methods are written for one agent, and take `each`, which maps over agents; `jax.vmap` is the simplest. A
`Layout` is another one:

    mesh     agents are split over all devices of a mesh; each device maps its own, and nothing that
             belongs to one agent leaves its device
    chunk    at most so many agents of a device are computed at the same time, one chunk after the other

What agents have in common is on every device, and an aggregate over agents is left to the compiler,
which makes an all-reduce of a sum and an all-gather of what all are to know. Where agents do not divide
evenly the rest is filled with absent ones, that start from zeros and whose results are dropped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree

from jaxbo._check import is_a, whole
from jaxbo._keys import unwrap, wrap
from jaxbo.types import Count

#: `each(f, in_axes)`, of a function of one agent, is that of all. As for `jax.vmap`, `in_axes` is 0, or
#: says of each argument whether it has an axis of agents, 0, or is common to all, None.
Each: TypeAlias = Callable[..., Callable[..., Any]]


class Layout(NamedTuple):
    """Maps a function of one agent over all agents."""

    mesh: Mesh | None = None
    chunk: int | None = None

    def __call__(
        self, f: Callable[..., Any], in_axes: int | tuple[int | None, ...] = 0
    ) -> Callable[..., Any]:
        def mapped(*arguments: PyTree) -> PyTree:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)
            own = [argument for argument, axis in zip(arguments, axes, strict=True) if axis == 0]
            agents = jax.tree.leaves(own)[0].shape[0]
            devices = 1 if self.mesh is None else self.mesh.size
            local = -(-agents // devices)
            chunks = 1 if self.chunk is None else -(-local // self.chunk)
            size = -(-local // chunks)
            missing = devices * chunks * size - agents
            on_a_device = _in_chunks(f, axes, size) if chunks > 1 else jax.vmap(f, axes)
            if self.mesh is not None:
                mine, common = PartitionSpec(self.mesh.axis_names), PartitionSpec()
                on_a_device = jax.shard_map(
                    on_a_device,
                    mesh=self.mesh,
                    in_specs=tuple(mine if axis == 0 else common for axis in axes),
                    out_specs=mine,
                    check_vma=False,  # no collective is written in `f`
                )
            if not missing:
                return on_a_device(*arguments)
            more = [
                _resized(argument, agents + missing) if axis == 0 else argument
                for argument, axis in zip(arguments, axes, strict=True)
            ]
            return _resized(on_a_device(*more), agents)

        return mapped


def layout(mesh: Mesh | None = None, chunk: int | None = None) -> Each:
    """The `each` of a run: `jax.vmap`, if there is neither a mesh nor a chunk.

    `ValueError` for a chunk below 1.
    """
    if chunk is not None:
        whole("chunk", chunk, least=1)
    if mesh is None:
        return jax.vmap if chunk is None else Layout(None, chunk)
    is_a("mesh", mesh, Mesh)
    # Whatever its axes are for elsewhere, here the compiler propagates.
    return Layout(Mesh(mesh.devices, mesh.axis_names), chunk)


def _in_chunks(
    f: Callable[..., Any], axes: tuple[int | None, ...], size: int
) -> Callable[..., Any]:
    """`vmap` of `size` agents after the other; `size` divides their number.

    Where the results take the place of an argument, such as the clients after what they learned, they
    are written over it.
    """

    def mapped(*arguments: PyTree) -> PyTree:
        def chunk(own: list[PyTree]) -> PyTree:
            mine = iter(own)
            pairs = zip(arguments, axes, strict=True)
            return jax.vmap(f, axes)(*(next(mine) if axis == 0 else all_ for all_, axis in pairs))

        own = [argument for argument, axis in zip(arguments, axes, strict=True) if axis == 0]
        results = jax.eval_shape(chunk, own)
        chunks = jax.tree.leaves(own)[0].shape[0] // size
        place = next((i for i, argument in enumerate(own) if _alike(argument, results)), None)
        if place is None:
            blocks = jax.tree.map(lambda leaf: leaf.reshape(chunks, size, *leaf.shape[1:]), own)
            return jax.tree.map(
                lambda leaf: leaf.reshape(chunks * size, *leaf.shape[2:]),
                jax.lax.map(chunk, blocks),
            )

        def step(i: Count, results: PyTree) -> PyTree:
            now = [*own[:place], results, *own[place + 1 :]]
            first = i * size
            some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), now)
            return jax.tree.map(
                lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, first, 0),
                results,
                chunk(some),
            )

        return jax.lax.fori_loop(0, chunks, step, own[place])

    return mapped


def _alike(one: PyTree, other: PyTree) -> bool:
    """Whether these are trees of the same arrays, but for what is in them."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _resized(tree: PyTree, count: int) -> PyTree:
    """The first `count` agents, or these and zeros: what crosses no device."""

    def resized(leaf: jax.Array) -> jax.Array:
        if count <= leaf.shape[0]:
            return leaf[:count]
        rest = [(0, count - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)]
        return jnp.pad(leaf, rest)

    return wrap(jax.tree.map(resized, unwrap(tree)), tree)
