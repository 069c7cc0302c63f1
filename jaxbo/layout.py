"""How a function of a single agent becomes a function of all: at once, in chunks, and over devices.

Methods are written for a single agent, and take `each`, which maps over agents; `jax.vmap` is the
simplest. A `Layout` is another:

    mesh     agents are split over all devices of a mesh; each device maps its own, and what belongs to
             one agent does not leave its device
    chunk    at most so many agents of a device are computed at the same time, one chunk after the other

The common data of agents are on every device, and an aggregate over agents is left to the compiler. It
makes an all-reduce of a sum, and an all-gather of messages that all are to know. `total` sums results up
chunk by chunk, for results that are too large to be held for all agents. If the devices do not
divide the agents, rows of zeros are added, computed and dropped; what a run returns then lies whole on
every device, since a JAX array cannot be divided unevenly. If only the first agents query
(`targets` of some methods), their states are brought together to be asked and told, and sent back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo._keys import unwrap, wrap
from jaxbo.types import Count

#: `each(f, in_axes)`, of a function of one agent, is that of all. As for `jax.vmap`, `in_axes` is 0, or
#: says of each argument whether it has an axis of agents, 0, or is common to all, None.
Each: TypeAlias = Callable[..., Callable[..., Any]]


class Layout(NamedTuple):
    """Maps a function of a single agent over all agents."""

    mesh: Mesh | None = None
    chunk: int | None = None

    def __call__(
        self, f: Callable[..., Any], in_axes: int | tuple[int | None, ...] = 0
    ) -> Callable[..., Any]:
        def mapped(*arguments: PyTree) -> PyTree:
            for_one, common, own = _parted(f, in_axes, arguments)
            agents = _count(own)
            devices = 1 if self.mesh is None else self.mesh.size
            local = -(-agents // devices)
            on_a_device = jax.vmap(for_one, (None, 0))
            if self.chunk is not None and self.chunk < local:
                on_a_device = _in_chunks(on_a_device, _even(local, self.chunk))
            if self.mesh is None:
                return on_a_device(common, own)
            on_all = self._sharded(on_a_device)
            if devices * local == agents:
                return on_all(common, own)
            return _resized(on_all(common, _resized(own, devices * local)), agents)

        return mapped

    def _sharded(self, on_a_device: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """A function of common and of agents' arguments on all devices, each with its own agents."""
        assert self.mesh is not None
        return jax.shard_map(
            on_a_device,
            mesh=self.mesh,
            in_specs=(PartitionSpec(), PartitionSpec(self.mesh.axis_names)),
            out_specs=PartitionSpec(self.mesh.axis_names),
            check_vma=False,  # no collective is written in what is mapped
        )

    def total(
        self,
        f: Callable[..., Any],
        in_axes: int | tuple[int | None, ...] = 0,
        gather: Callable[..., PyTree] | None = None,
    ) -> Callable[..., Any]:
        """As `total` has it. A device sums its own agents up, and the compiler the sums of devices."""
        gathered = _added if gather is None else gather

        def summed(*arguments: PyTree) -> PyTree:
            for_one, common, own = _parted(f, in_axes, arguments)
            agents = _count(own)
            devices = 1 if self.mesh is None else self.mesh.size
            local = -(-agents // devices)
            size = local if self.chunk is None else _even(local, min(self.chunk, local))
            on_a_device = _sum_in_chunks(jax.vmap(for_one, (None, 0)), size, gathered)
            rows = jnp.ones((agents,), bool), own
            if self.mesh is not None:
                # Rows of zeros that are added do not count.
                rows = rows if devices * local == agents else _resized(rows, devices * local)
                on_a_device = self._sharded(on_a_device)
            return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), on_a_device(common, rows))

        return summed


def total(
    each: Each,
    f: Callable[..., Any],
    in_axes: int | tuple[int | None, ...] = 0,
    gather: Callable[..., PyTree] | None = None,
) -> Callable[..., Any]:
    """The sum over agents of a function of one agent. In chunks only a chunk's results are held.

    `gather` makes the sum from the common arguments and the results of some agents, with an axis of
    agents. Results of 0 must add nothing. Default: it adds results up.
    """
    if isinstance(each, Layout):
        return each.total(f, in_axes, gather)
    mapped, gathered = each(f, in_axes=in_axes), _added if gather is None else gather

    def summed(*arguments: PyTree) -> PyTree:
        common = _parted(f, in_axes, arguments)[1]
        return gathered(*common, mapped(*arguments))

    return summed


def _added(*common_and_rows: PyTree) -> PyTree:
    """The sum of all agents' results."""
    return jax.tree.map(lambda rows: jnp.sum(rows, axis=0), common_and_rows[-1])


def layout(mesh: Mesh | None = None, chunk: int | None = None) -> Each:
    """The `each` of a run: `jax.vmap`, if there is neither a mesh nor a chunk.

    `ValueError` for a chunk below 1, a mesh without devices, and inside of `jax.set_mesh` with explicit
    axes, which allows no other mesh.
    """
    if chunk is not None:
        whole("chunk", chunk, least=1)
        chunk = int(chunk)
    if mesh is None:
        return jax.vmap if chunk is None else Layout(None, chunk)
    is_a("mesh", mesh, Mesh)
    require(mesh.size > 0 and mesh.devices.ndim > 0, "mesh has no devices.")
    require(
        AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types,
        "agents are laid out by the compiler: give mesh= outside of jax.set_mesh with explicit axes.",
    )
    return Layout(Mesh(mesh.devices, mesh.axis_names), chunk)


def whole_where_uneven(each: Each, tree: PyTree, *counts: int) -> PyTree:
    """`tree`, whole on each device of a mesh that does not divide every one of `counts`.

    Without `counts` each array's first axis decides for itself. The compiler would divide such arrays
    among some of the devices, and jax 0.9 cannot say so of a result.
    """
    mesh = each.mesh if isinstance(each, Layout) else None
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())

    def laid_out(leaf: Array) -> Array:
        if all(count % mesh.size == 0 for count in counts or leaf.shape[:1]):
            return leaf
        return jax.lax.with_sharding_constraint(leaf, everywhere)

    return wrap(jax.tree.map(laid_out, unwrap(tree)), tree)


def _parted(
    f: Callable[..., Any], in_axes: int | tuple[int | None, ...], arguments: tuple[PyTree, ...]
) -> tuple[Callable[[list[PyTree], list[PyTree]], PyTree], list[PyTree], list[PyTree]]:
    """A function of the arguments that are common and of an agent's own, and both kinds of them."""
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)

    def for_one(common: list[PyTree], own: list[PyTree]) -> PyTree:
        all_have, it_has = iter(common), iter(own)
        return f(*(next(all_have if axis is None else it_has) for axis in axes))

    pairs = list(zip(arguments, axes, strict=True))
    return for_one, [a for a, axis in pairs if axis is None], [a for a, axis in pairs if axis == 0]


def _even(agents: int, chunk: int) -> int:
    """The size of the fewest chunks of at most so many agents, all about as large."""
    return -(-agents // -(-agents // chunk))


def _count(own: PyTree) -> int:
    """How many agents there are."""
    return jax.tree.leaves(own)[0].shape[0]


def _in_chunks(
    of_all: Callable[[PyTree, list[PyTree]], PyTree], size: int
) -> Callable[[PyTree, list[PyTree]], PyTree]:
    """A function of common and of agents' arguments, for `size` agents after the other.

    Results of the form of an argument, such as the clients after they learned, are written over it.
    """

    def mapped(common: PyTree, own: list[PyTree]) -> PyTree:
        agents = _count(own)
        # Every chunk makes its own keys of their data: a key that is common is used in all of them.
        data = unwrap(common)
        shapes = jax.eval_shape(of_all, common, own)
        reused = next((i for i, argument in enumerate(own) if _alike(argument, shapes)), None)
        if reused is None:
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        else:
            start = own[reused]

        def step(i: Count, results: PyTree) -> PyTree:
            # The last chunk begins where it is as large as the others; what is done stays as it is.
            first = jnp.minimum(i * size, agents - size)
            new = jnp.arange(size) >= i * size - first
            now = [results if j == reused else argument for j, argument in enumerate(own)]
            found = of_all(wrap(data, common), _rows(now, first, size))

            def write(leaf: jax.Array, old: jax.Array, one: jax.Array) -> jax.Array:
                kept = jnp.where(jnp.expand_dims(new, range(1, one.ndim)), one, old)
                return jax.lax.dynamic_update_slice_in_dim(leaf, kept, first, 0)

            before = unwrap(_rows(results, first, size))
            return wrap(jax.tree.map(write, unwrap(results), before, unwrap(found)), results)

        return jax.lax.fori_loop(0, -(-agents // size), step, start)

    return mapped


def _sum_in_chunks(
    of_all: Callable[[PyTree, list[PyTree]], PyTree], size: int, gathered: Callable[..., PyTree]
) -> Callable[[PyTree, tuple[Array, list[PyTree]]], PyTree]:
    """The sum, with an axis of 1, over the agents that count, of whom `size` are computed together."""

    def summed(common: PyTree, rows: tuple[Array, list[PyTree]]) -> PyTree:
        agents = _count(list(rows))
        data = unwrap(common)  # as in `_in_chunks`

        def found(i: Count) -> PyTree:
            first = jnp.minimum(i * size, agents - size)
            counted, own = _rows(rows, first, size)
            counted = counted & (jnp.arange(size) >= i * size - first)

            def of_those(results: jax.Array) -> jax.Array:
                its = jnp.expand_dims(counted, range(1, results.ndim))
                return jnp.where(its, results, jnp.zeros_like(results))

            given = wrap(data, common)
            return gathered(*given, jax.tree.map(of_those, of_all(given, own)))

        shapes = jax.eval_shape(found, jnp.zeros((), int))
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        step = lambda i, sums: jax.tree.map(jnp.add, sums, found(i))  # noqa: E731
        sums = jax.lax.fori_loop(0, -(-agents // size), step, start)
        return jax.tree.map(lambda leaf: leaf[None], sums)

    return summed


def _rows(tree: PyTree, first: Count, size: int) -> PyTree:
    data = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), unwrap(tree))
    return wrap(data, tree)


def _alike(one: PyTree, other: PyTree) -> bool:
    """Whether all trees have the same arrays, but for the numbers in them."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _resized(tree: PyTree, count: int) -> PyTree:
    """The first `count` agents, with zeros if they are fewer. Unlike other ways this crosses no
    device.
    """

    def resized(leaf: jax.Array) -> jax.Array:
        if count <= leaf.shape[0]:
            return leaf[:count]
        rest = [(0, count - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)]
        return jnp.pad(leaf, rest)

    return wrap(jax.tree.map(resized, unwrap(tree)), tree)
