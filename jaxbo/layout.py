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

#: From a function of one agent to one of all: arguments and results get a first axis, that of agents.
Each: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


class Layout(NamedTuple):
    """Maps a function of one agent over all agents."""

    mesh: Mesh | None = None
    chunk: int | None = None

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def mapped(*arguments: PyTree) -> PyTree:
            agents = jax.tree.leaves(arguments)[0].shape[0]
            devices = 1 if self.mesh is None else self.mesh.size
            local = -(-agents // devices)
            chunks = 1 if self.chunk is None else -(-local // self.chunk)
            size = -(-local // chunks)
            missing = devices * chunks * size - agents

            def on_a_device(*arguments: PyTree) -> PyTree:
                if chunks == 1:
                    return jax.vmap(f)(*arguments)
                return jax.lax.map(lambda one: f(*one), arguments, batch_size=size)

            if self.mesh is not None:
                on_all = PartitionSpec(self.mesh.axis_names)
                # No collective is written in `f`, so there is nothing to check.
                on_a_device = jax.shard_map(
                    on_a_device, mesh=self.mesh, in_specs=on_all, out_specs=on_all, check_vma=False
                )
            if not missing:
                return on_a_device(*arguments)
            results = on_a_device(*_resized(arguments, agents + missing))
            return _resized(results, agents)

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


def _resized(tree: PyTree, count: int) -> PyTree:
    """The first `count` agents, or these and zeros: what crosses no device."""

    def resized(leaf: jax.Array) -> jax.Array:
        if count <= leaf.shape[0]:
            return leaf[:count]
        rest = [(0, count - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)]
        return jnp.pad(leaf, rest)

    return wrap(jax.tree.map(resized, unwrap(tree)), tree)
