"""Which programs hold a kernel of our own, and how a function of an agent becomes a single kernel
for all agents.

    chosen(plain, kernel)    the kernel in programs for `platforms()`, the plain function in all others
    mapped(plain, kernel)    a function of one agent; under `vmap` it is one call of the kernel for all

The choice is made while a program is lowered (`jax.lax.platform_dependent`), because only then the
platform is known. A choice by JAX's default backend would depend on global state, and it would be wrong
for a program that runs on the CPU of a machine with a GPU. A program for a CPU has the same instructions
with and without kernels.

An exported program (`jax.export`) is plain on all platforms: JAX does not promise that another version of
it understands Triton's code.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxtyping import PyTree

T = TypeVar("T", bound=PyTree)

#: Platforms whose programs hold the kernels, where this process has such a device. On an H100 kernels are
#: 1.8 to 5.8 times as fast as the plain functions (`python -m bench gpu`). Tests put "cpu" here, where
#: kernels are interpreted.
PLATFORMS: tuple[str, ...] = ("cuda",)
#: Triton's least compute capability.
CAPABILITY = 8.0


def platforms() -> tuple[str, ...]:
    """The `PLATFORMS` that this process has devices for."""
    return tuple(platform for platform in PLATFORMS if is_here(platform))


def is_here(platform: str) -> bool:
    """Whether kernels can run in this process. If they cannot, programs are traced without them."""
    if platform == "cpu":
        return True
    try:
        devices = jax.devices(platform)
    except RuntimeError:  # there is none, or JAX was told not to use it
        return False
    capable = all(float(device.compute_capability) >= CAPABILITY for device in devices)
    try:  # JAX 0.12 calls its Triton deprecated
        triton = importlib.util.find_spec("jax.experimental.pallas.triton")
    except ModuleNotFoundError:
        return False
    return capable and triton is not None


def of_32_bits(*arrays: jax.Array) -> bool:
    """Whether kernels can take the arrays: they are float32, and JAX's own integers are int32."""
    return all(a.dtype == jnp.float32 for a in arrays) and jnp.result_type(int) == jnp.int32


def chosen(plain: Callable[[], T], kernel: Callable[[bool], T]) -> T:
    """`kernel(interpret)` in programs for `platforms()`, else `plain()`: alike but for rounding."""
    kernels = {platform: partial(kernel, platform == "cpu") for platform in platforms()}
    if not kernels:
        return plain()
    return jax.lax.platform_dependent(default=plain, **kernels)


def mapped(
    plain: Callable[[PyTree, PyTree, PyTree], T],
    kernel: Callable[..., T],
    interpret: bool,
) -> Callable[[PyTree, PyTree, PyTree], T]:
    """`plain(common, own, other)` of an agent, which is `kernel` of many under `vmap`.

    The kernel takes `own` and `other` with an axis of agents in front, and the keyword `interpret`.
    It is for agents that share `common` and have `own`, while `other` may be either. Other agents
    are mapped plainly: the kernel would copy their common part. A second axis, such as seeds, is
    put into the first.

    Derivatives are taken of `plain`, forward and reverse, of any order.
    """

    plain_of_all = jax.vmap(plain, (None, 0, 0))

    @jax.custom_batching.custom_vmap
    def of_all(common: PyTree, own: PyTree, other: PyTree) -> T:
        return _call(plain_of_all, kernel, interpret, (common, own, other))

    @of_all.def_vmap
    def _(size: int, batched: Any, *arguments: PyTree) -> tuple[T, Any]:
        shared, has = _is_shared(batched)
        if not has:
            return _marked(jax.vmap(plain_of_all, _axes(batched))(*arguments))
        if not shared:  # one group of agents after the other
            leaves, treedef = jax.tree.flatten(arguments)
            marks = jax.tree.leaves(batched)

            def of_group(group: list[jax.Array]) -> T:
                its = iter(group)
                merged = [next(its) if mark else a for mark, a in zip(marks, leaves, strict=True)]
                return of_all(*treedef.unflatten(merged))

            moving = [a for mark, a in zip(marks, leaves, strict=True) if mark]
            return _marked(jax.lax.map(of_group, moving))
        common, own, other = arguments
        flat = jax.tree.map(_joined, (own, _spread(size, batched[2], other)))
        found = of_all(common, *flat)
        return _marked(jax.tree.map(lambda a: a.reshape(size, -1, *a.shape[1:]), found))

    @jax.custom_batching.custom_vmap
    def of_one(common: PyTree, own: PyTree, other: PyTree) -> T:
        return plain(common, own, other)

    @of_one.def_vmap
    def _(size: int, batched: Any, *arguments: PyTree) -> tuple[T, Any]:
        shared, has = _is_shared(batched)
        if not (shared and has):
            return _marked(jax.vmap(plain, _axes(batched))(*arguments))
        common, own, other = arguments
        return _marked(of_all(common, own, _spread(size, batched[2], other)))

    differentiable = jax.custom_jvp(of_one)
    differentiable.defjvp(partial(jax.jvp, plain))
    return differentiable


# ---------------------------------------------------------------- a call of a kernel

_kernel = Primitive("jaxbo_kernel")
_kernel.multiple_results = True


def _call(plain: Callable[..., T], kernel: Callable[..., T], interpret: bool, arguments: Any) -> T:
    """`kernel(*arguments)` where a program can hold it, else `plain(*arguments)`.

    The kernel is traced where it is lowered, so that Pallas is imported only where it is needed.
    """
    leaves, treedef = jax.tree.flatten(arguments)
    shapes, result = jax.tree.flatten(jax.eval_shape(plain, *arguments))

    def flat(function: Callable[..., T]) -> Callable[..., list[jax.Array]]:
        return lambda *leaves: jax.tree.leaves(function(*treedef.unflatten(leaves)))

    found = _kernel.bind(
        *leaves,
        plain=flat(plain),
        kernel=flat(partial(kernel, interpret=interpret)),
        interpret=interpret,
        shapes=tuple(shapes),
    )
    return jax.tree.unflatten(result, found)


def _lowered(ctx: Any, *operands: Any, plain: Any, kernel: Any, interpret: Any, **_: Any) -> Any:
    return mlir.lower_fun(kernel if interpret else plain)(ctx, *operands)


def _lowered_for_cuda(ctx: Any, *operands: Any, plain: Any, kernel: Any, **_: Any) -> Any:
    exporting = getattr(ctx.module_context.lowering_parameters, "for_export", False)
    return mlir.lower_fun(plain if exporting else kernel)(ctx, *operands)


_kernel.def_abstract_eval(lambda *_, shapes, **__: [jax.typeof(shape) for shape in shapes])
_kernel.def_impl(lambda *leaves, **options: jax.jit(partial(_kernel.bind, **options))(*leaves))
mlir.register_lowering(_kernel, _lowered)
mlir.register_lowering(_kernel, _lowered_for_cuda, platform="cuda")

# ---------------------------------------------------------------- axes of agents


def _is_shared(batched: Any) -> tuple[bool, bool]:
    """Whether the common part has no axis of the batch, and whether all of an agent's own part has."""
    common, own, _ = batched
    return not any(jax.tree.leaves(common)), all(jax.tree.leaves(own))


def _axes(batched: Any) -> Any:
    """For `jax.vmap`."""
    return tuple(jax.tree.map(lambda b: 0 if b else None, part) for part in batched)


def _marked(found: T) -> tuple[T, Any]:
    """A result all of which has an axis of the batch."""
    return found, jax.tree.map(lambda _: True, found)


def _spread(size: int, batched: Any, tree: PyTree) -> PyTree:
    """With the batch's axis in front, where that is missing."""
    return jax.tree.map(
        lambda b, a: a if b else jnp.broadcast_to(a, (size, *a.shape)), batched, tree
    )


def _joined(a: jax.Array) -> jax.Array:
    """Two axes in front become one."""
    return a.reshape(-1, *a.shape[2:])
