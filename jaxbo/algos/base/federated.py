"""How a federated method is written: from the two sides that exist in the world.

    a client, one agent                                    the server
    join(key, shared, index) → client                      aggregate(key, shared, round,
    message(key, shared, client) → message                           messages, present) → broadcast
    choose(key, shared, client, past, message, broadcast)
        → (x, info)
    learn(shared, round, client, x, value) → client

`AbstractFederated` composes `init`, `ask` and `tell` from the five functions, once:

    ask = each(message) → aggregate → each(choose),    tell = each(learn)

Here `each`, by default `vmap`, maps an agent's function to a function of all agents
(`jaxbo.layout`).

An agent's `past` (`kernels.choosing.history`) is kept here, for all methods alike. `choose` gives it to
`maximize`, which passes over places where evaluations fail and points that would teach nothing.

`message` is all that ever leaves a client: neither its past nor its failures do. A client learns of
others through the broadcast alone, so a simulation and a deployment run the same functions.
"""

import abc
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require, whole
from jaxbo._keys import unwrap, wrap
from jaxbo.algos.base._origin import Origin, after, no_origin
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm, Stage
from jaxbo.algos.base.keys import AskKeys, agent_keys, ask_keys, init_keys
from jaxbo.algos.base.outcomes import all_or_none, slacks_of, split, width
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import history
from jaxbo.kernels.choosing.history import History
from jaxbo.layout import Each
from jaxbo.types import Count, Flag, Key, Point, Scalar

#: The round of observations that were made before the first.
BEFORE_FIRST_ROUND = -1


class FederatedState(eqx.Module):
    """`shared` is agreed on by all parties before the start; `clients` and `past` have the agents axis.

    `past` has the evaluations of each agent. `round` counts the rounds told. `told` counts the
    observations that each target may hold: an observation a round, and the values of `warm_start`.
    Clients predict values less `origin`, which `drive` subtracts for each target. It is None if the
    method takes values as they are.
    """

    round: Int[Array, ""]
    told: Int[Array, " targets"]
    shared: PyTree
    clients: PyTree
    past: History
    origin: Origin | None


class Remembered(NamedTuple):
    """The `info` of a round: that of all agents, and the part of the broadcast that all parties
    remember.
    """

    agents: PyTree
    broadcast: PyTree


class AbstractFederated(AbstractAlgorithm):
    """A method whose agents exchange messages through a server.

    Write `join`, `message`, `aggregate`, `choose` and `learn`. Write `setup` too if agents have
    something in common. The class composes `init`, `ask` and `tell` from them. All agents query,
    and hold any number of observations, unless `targets` and `capacity` say otherwise. A subclass
    has the fields `domain` and `agents`, the number of agents.

    Raises:
        ValueError: The domain is no domain, or `agents` or `targets` is out of its range.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.FTS(jaxbo.Cube(1), agents=3, features=jaxbo.Fixed(size=10))
        >>> isinstance(method, jaxbo.AbstractFederated)
        True
        >>> state = jax.eval_shape(method.init, jax.random.key(0))
        >>> jax.eval_shape(method.messages, jax.random.key(1), state).weights.shape
        (3, 10)
    """

    agents: eqx.AbstractVar[int]

    def __check_init__(self):
        is_a("domain", self.domain, AbstractDomain)
        whole("agents", self.agents, least=1)
        whole("targets", self.targets, least=1)
        require(
            self.targets <= self.agents,
            f"targets must be at most the {self.agents} agents, got {self.targets}.",
        )

    @property
    def clients(self) -> int:
        """Returns the number of agents, each of which has a state of its own."""
        return self.agents

    @property
    def targets(self) -> int:
        """Returns how many agents query in each round, the first of all: by default all."""
        return self.agents

    # ------------------------------------------------------------ what a method is

    def setup(self, key: Key) -> PyTree:
        """Draws the part that all parties agree on before the start, such as features.

        Args:
            key: Random key.

        Returns:
            The part: by default nothing.
        """
        del key
        return ()

    @abc.abstractmethod
    def join(self, key: Key, shared: PyTree, index: Count) -> PyTree:
        """Makes the client of an agent before any observation.

        Args:
            key: The agent's random key.
            shared: The result of `setup`.
            index: The number of the agent, from 0 on.

        Returns:
            The client.
        """

    @abc.abstractmethod
    def message(self, key: Key, shared: PyTree, client: Any) -> PyTree:
        """Makes an agent's message: all that leaves a client in this round.

        Args:
            key: The agent's random key.
            shared: The result of `setup`.
            client: The agent's client.

        Returns:
            The message.
        """

    @abc.abstractmethod
    def aggregate(
        self,
        key: Key,
        shared: PyTree,
        round: Count,
        messages: PyTree,
        present: Bool[Array, " agents"],
    ) -> PyTree:
        """Makes the broadcast, which the server sends to every client.

        Args:
            key: The server's random key.
            shared: The result of `setup`.
            round: The number of the round, from 0 on.
            messages: The messages of all agents.
            present: Whether each agent's message has arrived. Other messages must not be used.

        Returns:
            The broadcast.
        """

    @abc.abstractmethod
    def choose(
        self,
        key: Key,
        shared: PyTree,
        client: Any,
        past: History,
        message: PyTree,
        broadcast: PyTree,
    ) -> tuple[Point, PyTree]:
        """Chooses the next query of a client.

        Args:
            key: The agent's random key.
            shared: The result of `setup`.
            client: The agent's client.
            past: The agent's own evaluations.
            message: The agent's own message.
            broadcast: The result of `aggregate`.

        Returns:
            The query, and the client's part of the `info`.
        """

    @abc.abstractmethod
    def learn(self, shared: PyTree, round: Count, client: Any, x: Point, value: Scalar) -> PyTree:
        """Updates a client by an observation.

        Args:
            shared: The result of `setup`.
            round: The number of the round, from 0 on; `BEFORE_FIRST_ROUND` for observations before
                it.
            client: The agent's client.
            x: The point.
            value: The value there; with outcomes, the slacks follow it. A value that is not finite
                must not change the client's beliefs.

        Returns:
            The new client.
        """

    # ------------------------------------------------------------ what few methods need

    @property
    def gathers(self) -> bool:
        """Says whether a broadcast may hold agents' messages.

        If not, it is made of sums over agents, whose size does not grow with their number.
        """
        return True

    @property
    def peer_capacity(self) -> int | None:
        """Returns `capacity` of the agents that are no targets, which observe in `warm_start` only."""
        return self.capacity

    @property
    def grows(self) -> bool:
        """Says whether `tell` changes `shared`: then no client can go on with its own part alone."""
        return False

    def usable(self, message: Any) -> Flag:
        """Says whether an agent's message can be used: by default, if all its numbers are finite.

        Args:
            message: The message of an agent.

        Returns:
            A truth value.
        """
        numbers = [a for a in jax.tree.leaves(message) if jnp.issubdtype(a.dtype, jnp.inexact)]
        fine = jnp.ones((), bool)
        for array in numbers:
            fine = fine & jnp.all(jnp.isfinite(array))
        return fine

    @property
    def remembers(self) -> bool:
        """Says whether `shared` changes with each broadcast: by default, whether `revised` is written."""
        return type(self).revised is not AbstractFederated.revised

    def remembered(self, broadcast: Any) -> PyTree:
        """Picks the arrays of a broadcast that all parties keep for the next round.

        Args:
            broadcast: The result of `aggregate`.

        Returns:
            The arrays: by default none.
        """
        del broadcast
        return ()

    def revised(self, shared: Any, remembered: Any) -> PyTree:
        """Revises the part that all parties share after a round, from the arrays that they remember.

        The result does not depend on any earlier round, which a party may have missed.

        Args:
            shared: The result of `setup`, or of an earlier revision.
            remembered: The result of `remembered`.

        Returns:
            The new `shared`.
        """
        del remembered
        return shared

    @property
    def settles(self) -> bool:
        """Says whether `settle` changes a client: by default, whether a method has its own."""
        return type(self).settle is not AbstractFederated.settle

    def settle(self, shared: PyTree, client: Any) -> PyTree:
        """Settles a client when the first round begins, after its earlier observations.

        Args:
            shared: The result of `setup`.
            client: The agent's client.

        Returns:
            The new client.
        """
        del shared
        return client

    def expect(self, shared: PyTree, client: Any, x: Point) -> tuple[Scalar, Scalar]:
        """Predicts a client's objective by its own model, without noise.

        Args:
            shared: The result of `setup`.
            client: The agent's client.
            x: The point.

        Returns:
            Mean and variance at `x`.
        """
        del shared, client
        return super().predict(None, x[None])  # which says that there is none

    # ------------------------------------------------------------ the composition

    def init(self, key: Key, *, each: Each = jax.vmap) -> FederatedState:
        keys, index = init_keys(key), jnp.arange(self.agents)
        shared = self.setup(keys.setup)
        join = each(self.join, in_axes=(0, None, 0))
        clients = join(agent_keys(keys.join, index), shared, index)
        zero = jnp.zeros((), int)
        past = each(lambda _: self.nothing())(index)
        origin = no_origin(self.targets) if self.invariant else None
        told = jnp.zeros((self.targets,), int)
        return FederatedState(zero, told, shared, clients, past, origin)

    def nothing(self) -> History:
        """Returns the past of an agent that has evaluated nothing."""
        return history.empty(self.domain.dim, self.capacity)

    def round(self, state: FederatedState) -> Count:
        return state.round

    def told(self, state: FederatedState) -> Count:
        return jnp.max(state.told)

    def ask(
        self,
        key: Key,
        state: FederatedState,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        if present is None:
            present = jnp.ones((self.agents,), bool)
        require(
            present.shape == (self.agents,),
            f"present must say yes or no for each of {self.agents} agents, got {present.shape}.",
        )
        keys = ask_keys(key)
        messages, broadcast = self.exchange(keys, state, present, each=each)
        return self.respond(keys.choice, state, messages, broadcast, each=each)

    def exchange(
        self,
        keys: AskKeys,
        state: FederatedState,
        present: Bool[Array, " agents"],
        *,
        each: Each = jax.vmap,
    ) -> tuple[PyTree, PyTree]:
        """Begins `ask`: makes the messages of all agents, and the server's broadcast.

        A method of sums may override it, to sum large messages up as they are made
        (`layout.total`). The broadcast is that of `aggregate` up to rounding.

        Args:
            keys: The random keys of the round.
            state: The state before the round.
            present: Whether each agent's message arrives.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The messages, for `choose`, and the broadcast. The messages are None if no agent needs
            its own.
        """
        messages = self.messages(keys.message, state, each=each)
        return messages, self.aggregate(keys.server, state.shared, state.round, messages, present)

    def respond(
        self,
        key: Key,
        state: FederatedState,
        messages: PyTree,
        broadcast: PyTree,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        """Ends `ask`: chooses the queries of all targets after a broadcast.

        Args:
            key: Random key, the part of the round's that is for choices.
            state: The state before the round.
            messages: The messages of all agents.
            broadcast: The server's broadcast.
            each: How a function of one agent is mapped over all. Default: `jax.vmap`.

        Returns:
            A query for each target, and the information about it.
        """
        own = agent_keys(key, jnp.arange(self.targets))
        first = self._first(self.targets, (state.clients, state.past, messages))
        # What all agents share is not mapped, so that what follows from it is computed once.
        choose = each(self.choose, in_axes=(0, None, 0, 0, 0, None))
        queries, info = choose(own, state.shared, *first, broadcast)
        if self.remembers:
            info = Remembered(info, self.remembered(broadcast))
        return queries, info

    def predict(
        self, state: FederatedState, x: Float[Array, "targets dim"]
    ) -> tuple[Float[Array, " targets"], Float[Array, " targets"]]:
        clients = self._first(self.targets, state.clients)
        return jax.vmap(self.expect, in_axes=(None, 0, 0))(state.shared, clients, x)

    def messages(self, key: Key, state: FederatedState, *, each: Each = jax.vmap) -> PyTree:
        """Makes the messages of all agents.

        Args:
            key: The random key of all agents.
            state: The state of this method.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The messages, with the agents axis.
        """
        keys = agent_keys(key, jnp.arange(self.agents))
        return each(self.message, in_axes=(0, None, 0))(keys, state.shared, state.clients)

    def tell(
        self,
        state: FederatedState,
        queries: Float[Array, "targets dim"],
        values: Float[Array, "targets ..."],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> FederatedState:
        count, shared = values.shape[0], state.shared
        self._check_row(queries.shape, values.shape)
        values = all_or_none(self.outcomes, values)
        round = jnp.where(stage.before, BEFORE_FIRST_ROUND, state.round)
        known = state.clients, state.past
        first = self._first(count, known)
        observe = each(self.observe, in_axes=(None, None, 0, 0, 0))
        new = observe(shared, round, first, queries, values)
        if count < self.agents:
            new = jax.tree.map(
                lambda old, some: old.at[:count].set(some), unwrap(known), unwrap(new)
            )
            new = wrap(new, known)
        clients, past = new
        if self.settles and stage.before is not False:
            settle = functools.partial(each(self.settle, in_axes=(None, 0)), shared)
            clients = jax.lax.cond(stage.last, settle, lambda clients: clients, clients)
        own = split(self.outcomes, values)[0][: self.targets]
        # In a round a failure counts, too.
        held = jnp.isfinite(own) | jnp.logical_not(stage.before)
        rounds = jnp.where(stage.before, state.round, state.round + 1)
        told, origin = state.told + held.astype(int), after(state.origin, own)
        if self.remembers and info is not None:
            new = self.revised(shared, info.broadcast)
            shared = jax.tree.map(lambda a, b: jnp.where(stage.before, a, b), shared, new)
        return FederatedState(rounds, told, shared, clients, past, origin)

    def _check_row(self, queries: tuple[int, ...], values: tuple[int, ...]) -> None:
        """`ValueError` unless the shapes fit observations of the targets, or of all agents."""
        counts, dim, rest = (self.targets, self.agents), self.domain.dim, width(self.outcomes)
        require(
            any((queries, values) == ((count, dim), (count, *rest)) for count in counts),
            f"expected queries of shape ({self.targets}, {dim}), or of all {self.agents} agents, and as "
            f"many values{slacks_of(self.outcomes)}, got {queries} and {values}.",
        )

    def check_start(self, state: FederatedState, values: Float[Array, "points agents"]) -> None:
        rest = width(self.outcomes)
        self._check_row((values.shape[1], self.domain.dim), (*values.shape[1:], *rest))
        counts = jnp.sum(jnp.isfinite(values), axis=0)
        told = jnp.max(state.told + counts[: self.targets])
        peers = jnp.max(counts[self.targets :], initial=0)
        for most, capacity in ((told, self.capacity), (peers, self.peer_capacity)):
            require(
                capacity is None or most <= capacity,
                f"{most} observations of an agent exceed the capacity of {capacity}: "
                f"{larger(self, most)}.",
            )
        room = self.initial_capacity
        require(
            room is None or told <= room,
            f"{told} observations of an agent before the first round, and the algorithm has room for "
            f"{room} of them: give it a larger initial_capacity.",
        )

    def observe(
        self,
        shared: PyTree,
        round: Count,
        known: tuple[PyTree, History],
        x: Point,
        value: Float[Array, "*numbers"],
    ) -> tuple[PyTree, History]:
        """Applies `learn` to a client, and adds the evaluation to its past.

        Args:
            shared: The result of `setup`.
            round: The number of the round, from 0 on.
            known: The client and its past.
            x: The point.
            value: The value there; with outcomes, the slacks follow it.

        Returns:
            The new client and its new past.
        """
        client, past = known
        past = history.add(past, x, split(self.outcomes, value)[0])
        # Where there was no evaluation, any point will do.
        x = jnp.where(jnp.isfinite(x), x, 0)
        return self.learn(shared, round, client, x, value), past

    def _first(self, count: int, tree: PyTree) -> PyTree:
        """The first `count` agents of a tree with the agents axis."""
        if count == self.agents:
            return tree
        return wrap(jax.tree.map(lambda leaf: leaf[:count], unwrap(tree)), tree)


class AbstractIndependent(AbstractFederated):
    """A method whose agents send nothing.

    The broadcast is a random key that all agents share in a round. Write `join`, `choose` and
    `learn`. A subclass has the fields `domain` and `agents`, the number of agents.

    Example:
        >>> import jaxbo, jax.numpy as jnp
        >>> class Center(jaxbo.AbstractIndependent):
        ...     domain: jaxbo.Cube
        ...     agents: int = 2
        ...     def join(self, key, shared, index): return ()
        ...     def choose(self, key, *rest): return jnp.full(self.domain.dim, 0.5), ()
        ...     def learn(self, shared, round, client, x, value): return client
        >>> Center(jaxbo.Cube(1)).targets
        2
    """

    @property
    def gathers(self) -> bool:
        return False

    def message(self, key: Key, shared: PyTree, client: Any) -> tuple[()]:
        del key, shared, client
        return ()

    def aggregate(
        self,
        key: Key,
        shared: PyTree,
        round: Count,
        messages: tuple[()],
        present: Bool[Array, " agents"],
    ) -> Key:
        del shared, round, messages, present
        return key
