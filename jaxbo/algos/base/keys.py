"""The keys of a run: a tree, written down once.

    run ─┬─ init ─┬─ setup                       what all agree on
         │        └─ join ── an agent's          its client
         ├─ design ── a row's ─┬─ points ── an agent's
         │                     └─ noise ── an agent's
         └─ rounds ── a round's ─┬─ ask ─┬─ message ── an agent's
                                 │       ├─ server ─┬─ secret    of a private method's release
                                 │       │          └─ public
                                 │       └─ choice ── an agent's
                                 └─ noise ─┬─ an agent's
                                           └─ duration    of a simulated worker's evaluation

The compiled loop, the driver and both sides of a federation take their keys from here. `setup` and
`join`, `message`, `server` and `choice` are for federated methods. Workers who share a model split
`ask` into `candidates` and `query`, and other methods as they need. Each split gives all of its
keys, and an unused key costs nothing. An agent's key follows from its number: its draws depend
neither on how many agents there are nor on how they are laid over devices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int

from jaxbo.types import Count, Flag, Key


class RunKeys(NamedTuple):
    """The keys of a run: before it, in its initial design, in its rounds."""

    init: Key
    design: Key
    rounds: Key


class InitKeys(NamedTuple):
    """The key that sets up a federation, and the key that agents join with."""

    setup: Key
    join: Key


class DesignKeys(NamedTuple):
    """A row of the initial design: its points, and the noise of their evaluation."""

    points: Key
    noise: Key


class RoundKeys(NamedTuple):
    """A round: its queries, and the noise of their evaluation."""

    ask: Key
    noise: Key


class AskKeys(NamedTuple):
    """The keys of a federation's round: messages, the server's draws, and choices."""

    message: Key
    server: Key
    choice: Key


class QueryKeys(NamedTuple):
    """The keys of a round of workers who share a model: what they choose from, and choices."""

    candidates: Key
    query: Key


class ReleaseKeys(NamedTuple):
    """The server's keys of a private release: whom it draws and its noise, and what all may know."""

    secret: Key
    public: Key


def run_keys(key: Key) -> RunKeys:
    return RunKeys(*jr.split(key, 3))


def init_keys(key: Key) -> InitKeys:
    return InitKeys(*jr.split(key))


def design_keys(keys: RunKeys, row: Count) -> DesignKeys:
    return DesignKeys(*jr.split(jr.fold_in(keys.design, row)))


def round_keys(keys: RunKeys, index: Count) -> RoundKeys:
    return RoundKeys(*jr.split(jr.fold_in(keys.rounds, index)))


def row_keys(keys: RunKeys, before: Flag, index: Count) -> RoundKeys:
    """`design_keys` of a row before the first round, as keys of a round; else `round_keys`."""
    data = jnp.where(before, jr.key_data(keys.design), jr.key_data(keys.rounds))
    key = jr.wrap_key_data(data, impl=jr.key_impl(keys.rounds))
    return RoundKeys(*jr.split(jr.fold_in(key, index)))


def ask_keys(key: Key) -> AskKeys:
    return AskKeys(*jr.split(key, 3))


def query_keys(key: Key) -> QueryKeys:
    return QueryKeys(*jr.split(key))


def duration_key(noise: Key) -> Key:
    """A simulated worker's, of the key of its evaluation's noise."""
    return jr.fold_in(noise, 1)


def release_keys(key: Key) -> ReleaseKeys:
    return ReleaseKeys(*jr.split(key))


def agent_key(key: Key, agent: Count | int) -> Key:
    """An agent's own of a key that stands for all."""
    return jr.fold_in(key, agent)


def agent_keys(key: Key, agents: Int[Array, " agents"]) -> Array:
    """The own keys of several agents."""
    return jax.vmap(lambda agent: agent_key(key, agent))(agents)
