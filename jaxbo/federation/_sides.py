"""The functions of an owner and of a server, as programs that are compiled soon.

The algorithm is an argument, and so is an agent's number. So all owners of a process, and all servers of
equal algorithms, share the programs. A process traces them once for the same shapes.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, PyTree, UInt32

from jaxbo.algos.base import _secure, _shapes
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.kernels.choosing.history import History
from jaxbo.runs import _soon
from jaxbo.types import Count, Key, Point, Scalar

Step = TypeVar("Step", bound=Callable[..., Any])


def _side(step: Step) -> Step:
    """A function of one party as a program of its own, which waits for evaluations and for others."""

    @functools.wraps(step)
    def call(algorithm: AbstractFederated, *rest: Any) -> Any:
        return _soon.compiled(step, _soon.options(algorithm, of_one=True))(algorithm, *rest)

    return cast(Step, call)


@_side
def setup(algorithm: AbstractFederated, key: Key) -> PyTree:
    return algorithm.setup(key)


class Common:
    """What all sides of a federation share. The last one is kept, since `setup` may take long.

    It keeps the precision in which it was made.
    """

    def __init__(self, algorithm: AbstractFederated):
        self._algorithm = algorithm
        self._last: tuple[bytes, PyTree] | None = None

    def of(self, key: np.ndarray) -> PyTree:
        """What `setup` makes of a key, which is given by its data."""
        name, last = key.tobytes(), self._last
        if last is None or last[0] != name:
            last = self._last = name, setup(self._algorithm, jr.wrap_key_data(jnp.asarray(key)))
        return last[1]


@_side
def initial(algorithm: AbstractFederated, key: Key, agent: Count) -> Point:
    return algorithm.initial(key, agent)


@_side
def join(
    algorithm: AbstractFederated, key: Key, shared: PyTree, agent: Count
) -> tuple[PyTree, History]:
    """A client that knows nothing yet, and its past."""
    return algorithm.join(key, shared, agent), algorithm.nothing()


@_side
def settle(algorithm: AbstractFederated, shared: PyTree, client: Any) -> PyTree:
    return algorithm.settle(shared, client)


@_side
def message(algorithm: AbstractFederated, key: Key, shared: PyTree, client: Any) -> PyTree:
    return algorithm.message(key, shared, client)


@_side
def choose(
    algorithm: AbstractFederated,
    key: Key,
    shared: PyTree,
    known: tuple[PyTree, History],
    message: PyTree,
    broadcast: PyTree,
) -> tuple[Point, PyTree]:
    return algorithm.choose(key, shared, *known, message, broadcast)


@_side
def observe(
    algorithm: AbstractFederated,
    shared: PyTree,
    round: Count,
    known: tuple[PyTree, History],
    x: Point,
    value: Scalar,
) -> tuple[PyTree, History]:
    return algorithm.observe(shared, round, known, x, value)


@_side
def aggregate(
    algorithm: AbstractFederated,
    key: Key,
    shared: PyTree,
    round: Count,
    messages: PyTree,
    present: Bool[Array, " agents"],
) -> PyTree:
    return algorithm.aggregate(key, shared, round, messages, present)


#: An owner's part of a secure sum.
part = _side(_secure.part)


@_side
def opened(
    algorithm: AbstractPrivate,
    key: Key,
    shared: PyTree,
    round: Count,
    total: UInt32[Array, " size"],
) -> PyTree:
    """The broadcast that follows from a sum of parts."""
    return algorithm.broadcast(key, shared, round, _secure.read(algorithm, round, total))


@_side
def revised(algorithm: AbstractFederated, shared: PyTree, remembered: PyTree) -> PyTree:
    return algorithm.revised(shared, remembered)


# ---------------------------------------------------------------- shapes


def _broadcast(algorithm: AbstractFederated, shared: PyTree) -> tuple[PyTree, PyTree]:
    one, agents = _shapes.message(algorithm, shared), jnp.arange(algorithm.agents)
    messages = jax.vmap(lambda _: one)(agents)
    known = shared, jnp.zeros((), int), messages, jnp.ones(agents.shape, bool)
    broadcast = algorithm.aggregate(jr.key(0), *known)
    return broadcast, algorithm.remembered(broadcast)


def _known(algorithm: AbstractFederated, shared: PyTree) -> tuple[PyTree, History]:
    client = algorithm.join(jr.key(0), shared, jnp.zeros((), int))
    return client, algorithm.nothing()


#: Of a message; of a broadcast, and of the arrays that parties remember; of a client and its past.
message_shapes = _shapes.shapes(_shapes.message)
broadcast_shapes = _shapes.shapes(_broadcast)
known_shapes = _shapes.shapes(_known)
