"""The exchange of owners and the server: arrays by name, and whose they are."""

from typing import Any, NamedTuple, TypeAlias, get_type_hints

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo._keys import unwrap
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.runs import _arguments, _identity
from jaxbo.types import Key

#: Raised by one when what is exchanged, or how a file is laid out, changes.
FORMAT = 11
#: What requests say of the settings of secure sums where there are none. Flower counts no empty text.
PLAIN = "none"
#: Arrays by name: a tree of arrays and keys on its way, or in a file.
Packed: TypeAlias = dict[str, np.ndarray]


class RefusedError(ValueError):
    """A request or a reply that cannot be used.

    Example:
        >>> import jaxbo.federation
        >>> issubclass(jaxbo.federation.RefusedError, ValueError)
        True
    """


def check_fields(record: "Request | Reply") -> None:
    """`RefusedError` where a number is none, or a name: `True` and `0.0` are no numbers of agents."""
    for name, kind in get_type_hints(type(record)).items():
        value = getattr(record, name)
        if kind in (int, str) and type(value) is not kind:
            raise RefusedError(
                f"{name} must be of type {kind.__name__}, got {type(value).__name__}."
            )


class Request(NamedTuple):
    """The server's request to all owners.

    Args:
        federation: Name of the run.
        version: Version of the server's jaxbo.
        algorithm: A digest of its method.
        round: The round.
        initial: Number of points that an owner that joins evaluates.
        setup: A key's data, of which an owner that joins makes the common part.
        broadcast: The broadcast of the round. None invites owners to join.
        stage: The exchange of the round, with secure sums one of four.
        secure: The settings of secure sums.
        lists: What owners tell each other in a later stage: keys and their signatures, who is there, and
            the boxes and tags for the owner that is asked.

    Example:
        >>> import jaxbo.federation
        >>> jaxbo.federation.Request._fields[:3]
        ('federation', 'version', 'algorithm')
    """

    federation: str
    version: str
    algorithm: str
    round: int
    initial: int
    setup: np.ndarray
    broadcast: Packed | None
    stage: int = 0
    secure: str = PLAIN
    lists: Packed | None = None


class Reply(NamedTuple):
    """All that leaves an owner: its message for the next round.

    Args:
        federation: Name of the run.
        algorithm: A digest of its method.
        round: The round of the request.
        agent: Number of the agent.
        message: The message for the round after it. With secure sums it is hidden, in four stages.
        stage: The stage of the request.

    Example:
        >>> import jaxbo.federation
        >>> jaxbo.federation.Reply._fields[2:]
        ('round', 'agent', 'message', 'stage')
    """

    federation: str
    algorithm: str
    round: int
    agent: int
    message: Packed
    stage: int = 0


def check(algorithm: AbstractFederated) -> None:
    """`ValueError` for a method that cannot be taken apart into owners and a server."""
    is_a("algorithm", algorithm, AbstractFederated)
    require(
        not algorithm.grows,
        "what all share grows with observations: give every agent an exploration of its own, with "
        "CEPE(…, initial_capacity=1).",
    )
    require(
        algorithm.targets == algorithm.agents,
        f"all agents of a federation query, and this algorithm asks {algorithm.targets} of "
        f"{algorithm.agents}.",
    )
    require(
        not algorithm.outcomes,
        "outcomes are for run, drive and Desk: owners of a federation observe values alone.",
    )


def check_key(key: Key) -> None:
    """`ValueError` unless it is of JAX's default kind, which both sides have."""
    _arguments.check_key(key)
    mine = jr.key_impl(jr.key(0))
    require(jr.key_impl(key) == mine, f"the key must be of the default kind, {mine}.")


def check_agent(agent: int, algorithm: AbstractFederated) -> None:
    """`ValueError` unless it is the number of an agent."""
    whole("agent", agent)
    require(
        agent < algorithm.agents,
        f"agent must be one of {algorithm.agents}, counted from 0; got {agent}.",
    )


def digest(algorithm: AbstractFederated) -> str:
    """The things that the two sides must have in common: the method and its numbers, precision, random
    bits.
    """
    # What a key means is a matter of JAX's version and settings, but its bits not of the machine.
    draw = jr.bits(jr.key(0), (64,))
    return _identity.whole(_identity.identity(algorithm=algorithm, draw=draw, format=FORMAT))


def pack(tree: PyTree) -> Packed:
    """Its arrays by name, keys as their data."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(unwrap(tree))
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def unpack(arrays: Packed, like: PyTree) -> PyTree:
    """The tree of the arrays; `like` has its shapes. `RefusedError` if they differ."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(path) for path, _ in leaves]
    if not isinstance(arrays, dict):
        raise RefusedError(f"expected arrays by name, got {type(arrays).__name__}.")
    if set(names) != set(arrays):
        others = [name for name in arrays if name not in names]
        raise RefusedError(
            f"expected the arrays {sorted(names)}, got {len(arrays)}, {len(others)} of other names."
        )
    tree = [
        _restored(name, arrays[name], leaf) for name, (_, leaf) in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, tree)


#: Traced once for all keys.
_key_data = jax.jit(jr.key_data)


def _restored(name: str, array: np.ndarray, like: Any) -> Array:
    is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
    data = _key_data.eval_shape(like) if is_key else like
    if type(array) is not np.ndarray:  # nor one of a subclass, which may do anything
        raise RefusedError(f"{name} must be an array, got {type(array).__name__}.")
    if array.shape != data.shape or array.dtype != data.dtype:
        raise RefusedError(
            f"{name} must be {data.dtype} of shape {data.shape}, got {array.dtype} of {array.shape}."
        )
    if array.dtype == bool and (array.view(np.uint8) > 1).any():
        raise RefusedError(f"{name} must be true or false, got other bytes.")
    return jr.wrap_key_data(jnp.asarray(array)) if is_key else jnp.asarray(array)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path) or "value"
