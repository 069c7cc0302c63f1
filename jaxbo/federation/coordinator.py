"""The server of a federation: its rounds. Its file is in `_server_memory`."""

import dataclasses
import logging
import weakref
from collections import Counter
from collections.abc import Callable
from os import PathLike

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, PyTree

from jaxbo import metrics
from jaxbo._check import require, shown, whole
from jaxbo._keys import fresh
from jaxbo._version import __version__
from jaxbo.algos.base import _secure
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND, AbstractFederated
from jaxbo.algos.base.keys import ask_keys, init_keys, release_keys, round_keys, run_keys
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.federation import _senders, _sides
from jaxbo.federation._directory import Directory
from jaxbo.federation._server_memory import ServerMemory
from jaxbo.federation._stages import (
    KEYS,
    MASKED,
    OPEN,
    ServersPart,
    check_secure,
    reply_like,
    said,
)
from jaxbo.federation.wire import (
    RefusedError,
    Reply,
    Request,
    check,
    check_agent,
    check_fields,
    check_key,
    digest,
    pack,
    unpack,
)
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.ledger import Ledger, check_budget
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs import _archive
from jaxbo.runs._identity import identity
from jaxbo.runs._lock import Hold
from jaxbo.runs._simulation import is_private, warn_of_noise_alone
from jaxbo.runs.compiled import check_sizes
from jaxbo.types import Key

log = logging.getLogger(__name__)

#: What replies go by that do not say which agent they are of.
NOBODY = "a reply that names no agent"


def releases_of(
    algorithm: AbstractFederated,
    rounds: int,
    key: Key,
    initial: int,
    ledger: Ledger | None,
    secure: SecureSum | None = None,
) -> list[Mechanism | None]:
    """The release of each round; `ValueError` for a method that no server can be made of."""
    check(algorithm)
    check_secure(algorithm, secure)
    check_key(key)
    whole("rounds", rounds, least=1)
    check_sizes(algorithm, rounds, initial, None, None)
    releases = [algorithm.released(t) for t in range(rounds)]
    check_budget(ledger, releases)
    require(
        ledger is not None or not any(map(is_private, releases)),
        f"what {type(algorithm).__name__} releases is private only with a ledger, and without one "
        "owners could guess its noise: give ledger=jaxbo.Ledger(delta), which counts what is spent.",
    )
    return releases


class Coordinator:
    """The server of a federation.

        while not coordinator.done:
            request = coordinator.request()                with secure sums: request(agent)
            for reply in …: coordinator.hear(reply)        RefusedError: say so, and go on
            coordinator.close()

    The first request invites owners to join and to evaluate their initial points, the others are
    broadcasts. All of them go to every owner there is, whether heard before or not: an owner that comes
    late joins, and an owner that comes back goes on. In the last two exchanges of a secure sum each
    owner has a request of its own.

    No release is made twice: the file beside the checkpoint, `PATH.released`, counts them, and a
    checkpoint that was removed or is an older copy is refused. With a ledger every round ends with a
    release, whether anybody was heard or not. Then let a clock say when to call `close`: a round that
    ends with the last answer would tell who takes part.

    Args:
        algorithm: The method. All of its agents query, and they observe values alone.
        rounds: Number of rounds, at least 0.
        key: The source of all that is random here, features included. It is the source of the owners'
            draws only if they have been given it.
        checkpoint: A file with which a server that was stopped goes on: give it the same arguments. A
            single server at a time has it, until it is stopped.
        initial: Number of points that an owner evaluates before the first round. A warning says if a
            private method needs more of them.
        ledger: Is charged for every private release, and both are saved before it is sent. The noise
            then comes from random words of the operating system, new each time. A method whose releases
            are private must have a ledger.
        secure: The settings of secure sums, the same as the owners'. The server then sees the sum of
            all messages, with noise that owners have added, and no message, as long as it passes on the
            owners' keys as they came, or if owners have a directory. A round with a release has four
            exchanges, each of which `close` ends. Fewer owners than `threshold` in one of them end the
            round, and its sum is 0. Default: the server sees each message.
        directory: The path of the owners' directory of their identities, the same as theirs, for secure
            sums. An owner whose keys are not signed is then refused, and is absent from the sum. Owners
            check signatures themselves. Default: the server takes any keys. If an owner has another
            identity or another directory, all others refuse, and the round ends without a sum.

    Raises:
        ValueError: Sizes do not fit, the method has no such parts, its messages cannot be summed up
            behind masks, its releases are private and there is no ledger, or the directory has no key
            of an agent.
        BudgetError: The budget does not pay for all rounds.
        CheckpointError: The checkpoint is of another run, or another server has it. `close` raises it
            too, once this server has been stopped.

    Example:
        >>> import tempfile, jax, jaxbo.federation
        >>> method, key = jaxbo.RandomSearch(jaxbo.Cube(1), 1), jax.random.key(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     server = jaxbo.federation.Coordinator(method, 2, key, f"{folder}/server.npz")
        ...     server.stop()
        >>> server.round, server.done
        (-1, False)
    """

    def __init__(
        self,
        algorithm: AbstractFederated,
        rounds: int,
        key: Key,
        checkpoint: str | PathLike,
        *,
        initial: int = 0,
        ledger: Ledger | None = None,
        secure: SecureSum | None = None,
        directory: str | PathLike | None = None,
    ):
        self._releases = releases_of(algorithm, rounds, key, initial, ledger, secure)
        path = _archive.located(checkpoint)
        self.algorithm, self.rounds, self.initial = algorithm, rounds, initial
        self._digest, self._keys = digest(algorithm), run_keys(key)
        self._setup_key = init_keys(self._keys.init).setup
        self._shared = _sides.setup(algorithm, self._setup_key)
        self._shapes = _sides.message_shapes(algorithm, self._shared)
        self.secure, self._sums = secure, None
        known = Directory.given(directory, algorithm.agents, secure)
        if secure is not None:
            assert isinstance(algorithm, AbstractPrivate)
            self._sums = ServersPart(secure, algorithm, known)
        self._messages: dict[int, PyTree] = {}
        self._senders: dict[int, str] = {}
        #: Senders whose names were given: another number is free for the first sender with a name.
        self._named: dict[int, str] = {}
        #: How many replies have been refused, by the name of the owner.
        self.refused: Counter[str] = Counter()
        events = None if ledger is None else ledger.events
        parts = {"algorithm": algorithm, "key": key, "initial": initial, "ledger": events}
        mine = identity(**parts, secure=said(secure))
        self._hold = Hold(path)
        self._hold.take()
        self.stop = weakref.finalize(self, self._hold.release)
        try:
            self._memory = ServerMemory.open(path, mine, ledger)
            require(
                self.round < rounds,
                f"the checkpoint has {self.round + 1} rounds already, the run asks for {rounds}: give "
                "at least as many as before.",
            )
            if self.round < 0:
                warn_of_noise_alone(algorithm, self._releases[0], initial, initial)
        except BaseException:
            self.stop()
            raise

    #: Leaves the checkpoint to another server.
    stop: Callable[[], object]

    @property
    def round(self) -> int:
        """The round of the request that is out. It is -1 for the invitation."""
        return self._memory.round

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self._memory.over and self.round == self.rounds - 1

    @property
    def ledger(self) -> Ledger | None:
        """The ledger with the charges so far."""
        return self._memory.ledger

    @property
    def present(self) -> Bool[np.ndarray, "rounds agents"]:
        """The agents whose messages each broadcast so far was made of, as `run` takes them."""
        return np.reshape(np.asarray(self._memory.present, bool), (-1, self.algorithm.agents))

    @property
    def stage(self) -> int:
        """The exchange of the round that is out: 0, with secure sums up to 3."""
        return self._memory.stage

    @property
    def declared(self) -> int:
        """Bytes of an agent's message to the server, as arrays; with secure sums, of what hides it."""
        if self._sums is not None:
            return metrics.bytes_of(reply_like(MASKED, self._sums.algorithm, True))
        return metrics.bytes_of(self._shapes)

    @property
    def personal(self) -> bool:
        """Whether each owner has a request of its own: in the last two exchanges of a secure sum."""
        return self._sums is not None and self._sums.personal(self.stage)

    @property
    def senders(self) -> dict[str, int]:
        """The agents who began the secure sum, by the names of those who sent their replies."""
        known = self._memory.lists
        return {
            known["senders"][n].item(): n for n in np.flatnonzero(known.get("joined", [])).tolist()
        }

    def request(self, agent: int | None = None) -> Request:
        """The request for an owner; the same until `close`.

        Args:
            agent: Number of the agent that is asked. Default: the request is the same for all, as long
                as it is not `personal`.

        Returns:
            The request.

        Raises:
            ValueError: There is no such agent, or there is none and each owner has its own request.
        """
        require(
            agent is not None or not self.personal,
            "in the last two exchanges of a secure sum each owner is asked with its own boxes and tags: "
            "give request(agent) the number of the agent.",
        )
        if agent is not None:
            check_agent(agent, self.algorithm)
        memory = self._memory
        setup = np.asarray(jr.key_data(self._setup_key))
        first = self.round == BEFORE_FIRST_ROUND or self.stage != KEYS
        asked = self._digest, self.round, self.initial, setup, None if first else memory.broadcast
        lists = None if self._sums is None else self._sums.lists(self.stage, memory.lists, agent)
        stage = self.stage, said(self.secure), lists
        return Request(memory.federation, __version__, *asked, *stage)

    def hear(self, reply: Reply | RefusedError, sender: str | None = None) -> None:
        """Keeps an owner's message.

        `refused` counts all refused replies by the name of the owner.

        Args:
            reply: The owner's reply. A reply that nobody could read is the `RefusedError` that says
                why.
            sender: The owner's name, if whoever carries the replies knows it. Default: the reply says
                which agent it is of. The first sender that is heard as an agent has its number in later
                rounds, too, and no sender has two. A sender who is new can take the number as long as
                the sender who has it does not answer. After the first exchange of a secure sum, a reply
                is refused if another sender began the sum as this agent. An owner whose name changes
                misses this sum, and takes part in the next.

        Raises:
            RefusedError: The message is of no use, or it is no reply. The error has the owner's name.
            ValueError: `sender` is no text, or an empty text.
        """
        require(
            sender is None or (isinstance(sender, str) and sender != ""),
            f"sender must be a name or None, got {shown(sender)}.",
        )
        try:
            message = self._message(reply, sender)
        # Anybody may have written it: reading it can raise nearly anything.
        except Exception as error:
            known, said = self._name(reply)
            name = known if sender is None else sender
            self.refused[name] += 1
            times = f" ({self.refused[name]} refused)" if self.refused[name] > 1 else ""
            detail = "" if said == name else f"{said}: "
            reason = error if isinstance(error, RefusedError) else type(error).__name__
            raise RefusedError(f"{name}{times}: {detail}{reason}") from None
        assert isinstance(reply, Reply)
        agent, name = reply.agent, self._name(reply)[0] if sender is None else sender
        if agent in self._messages:
            log.warning("%s is agent %d: %s is not heard", name, agent, self._senders[agent])
        self._messages[agent], self._senders[agent] = message, name
        if sender is not None:
            self._named[agent] = sender

    def _message(self, reply: Reply | RefusedError, sender: str | None) -> PyTree:
        """The message in it. Raises for a message that cannot be used."""
        if isinstance(reply, RefusedError):
            raise reply
        if not isinstance(reply, Reply):
            raise RefusedError(f"expected a reply, got {type(reply).__name__}.")
        check_fields(reply)
        if (reply.federation, reply.algorithm) != (self._memory.federation, self._digest):
            raise RefusedError("its message is of another federation or algorithm.")
        if reply.round != self.round:
            raise RefusedError(f"its message follows round {reply.round}, this is {self.round}.")
        if reply.stage != self.stage:
            raise RefusedError(f"its message is of stage {reply.stage}, this is {self.stage}.")
        if reply.agent not in range(self.algorithm.agents):
            raise RefusedError(f"there are {self.algorithm.agents} agents.")
        if sender is not None:
            self._check_sender(reply.agent, sender)
        if reply.agent in self._messages and not self._displaces(reply.agent, sender):
            first = self._senders[reply.agent]
            other = "" if sender in (None, first) else f", from {first}"
            raise RefusedError(f"it has been heard already{other}.")
        if self._sums is not None:
            return self._hidden(self._sums, reply)
        message = unpack(reply.message, self._shapes)
        if not self.algorithm.usable(message):
            raise RefusedError("its message has numbers that are not finite.")
        return message

    def _check_sender(self, agent: int, sender: str) -> None:
        """`RefusedError` if another sender has this agent's number."""
        if self.stage == KEYS:
            _senders.check(agent, sender, self._memory.names, self._senders)
            return
        # The next sum begins with its own names: an owner whose name has changed misses this one alone.
        begun = self._memory.lists
        first = begun["senders"][agent].item() if begun["joined"][agent] else sender
        if sender != first:
            raise RefusedError(f"it began this sum as {first}, and no other may answer for it.")

    def _displaces(self, agent: int, sender: str | None) -> bool:
        """Whether a sender has the number with which another was heard in this round."""
        names, other = self._memory.names, self._senders[agent]
        return self.stage == KEYS and bool(names) and names[agent] == sender != other

    def _hidden(self, sums: ServersPart, reply: Reply) -> PyTree:
        """The part of a secure sum in it."""
        members = sums.members(self.stage, self._memory.lists)
        if members is not None and not members[reply.agent]:
            raise RefusedError("it was not in the stage before.")
        like = reply_like(self.stage, sums.algorithm, self._following_sum())
        message = unpack(reply.message, like)
        named = self._memory.federation, self.round, reply.agent
        others = [one for n, one in self._messages.items() if n != reply.agent]
        sums.check(named, self.stage, message, others)
        return message

    def _following_sum(self) -> bool:
        """Whether the messages of this round are added up."""
        return self.algorithm.released(self.round + 1) is not None

    def _name(self, reply: object) -> tuple[str, str]:
        """The agent that it is of, for `refused`, and a text about that, for a person."""
        agent = reply.agent if isinstance(reply, Reply) else None
        # Python refuses to write numbers of thousands of digits.
        if type(agent) is not int or abs(agent) >= 2**63:
            return NOBODY, NOBODY
        said = f"agent {agent}"
        return (said if agent in range(self.algorithm.agents) else NOBODY), said

    def close(self) -> Bool[np.ndarray, " agents"]:
        """Ends the round, or its stage, and says who was heard. The next `request` is saved before.

        With a ledger a round in which nobody was heard ends like any other, with a release of noise
        that is charged: if there were none, that would tell that a certain owner is away. Without a
        ledger it is a `RuntimeError`, and the round stays open.
        """
        if not self._messages and self.ledger is None:
            raise RuntimeError(
                f"nobody answered in round {self.round}, of {self.algorithm.agents} owners: it stays "
                "open. Ask them again when they are there; a server that is started again goes on from "
                "its file."
            )
        self._hold.check()  # one that was stopped must not overwrite what another server has saved
        heard = np.isin(np.arange(self.algorithm.agents), list(self._messages))
        if self.round == self.rounds - 1:
            following = dataclasses.replace(self._memory, over=True)
        elif self._sums is None:
            following = self._following(heard)
        else:
            following = self._staged(self._sums, heard)
        if self.stage == KEYS:
            names = _senders.after(self._memory.names, self._named, self.algorithm.agents)
            following = dataclasses.replace(following, names=names)
        following.save()  # before anybody hears of it
        following.count()
        self._memory, self._messages = following, {}
        self._senders, self._named = {}, {}
        return heard

    def _following(self, heard: Bool[np.ndarray, " agents"]) -> ServerMemory:
        """The server after the broadcast of the next round, charged for its release."""
        memory, round = self._memory, self.round + 1
        ledger, release = memory.ledger, self._releases[round]
        if ledger is not None and release is not None:
            ledger = ledger.charge(release)
        ask_key = round_keys(self._keys, jnp.asarray(round)).ask
        if ledger is not None:
            ask_key = fresh(ask_key)
        nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), self._shapes)
        agents = range(self.algorithm.agents)
        messages = jax.tree.map(
            lambda *all_: jnp.stack(all_), *(self._messages.get(n, nothing) for n in agents)
        )
        known = self._revised(), jnp.asarray(round), messages, jnp.asarray(heard)
        broadcast = pack(_sides.aggregate(self.algorithm, ask_keys(ask_key).server, *known))
        return memory.after(round, broadcast, heard, ledger)

    def _staged(self, sums: ServersPart, heard: Bool[np.ndarray, " agents"]) -> ServerMemory:
        """The server after a stage of a secure sum."""
        memory, enough = self._memory, heard.sum() >= sums.secure.threshold
        release, nobody = self._releases[self.round + 1], np.zeros_like(heard)
        if release is None:
            return self._summed(sums, heard, None)
        if not enough:
            few = f"{heard.sum()} owners, below the threshold of {sums.secure.threshold}"
            log.warning("the next broadcast has no sum: %s in stage %d", few, self.stage + 1)
            return self._summed(sums, nobody, None)
        lists = sums.gathered(self.stage, memory.lists, self._messages, self._senders)
        if self.stage == OPEN:
            try:
                total = sums.total(memory.federation, self.round, lists)
            except RefusedError as error:
                # An owner was not honest: nobody can open the sum any more.
                log.warning("the next broadcast has no sum: %s", error)
                return self._summed(sums, nobody, None)
            return self._summed(sums, lists["heard"], total)
        ledger = memory.ledger
        if self.stage == MASKED and ledger is not None:  # before anybody helps to open the sum
            ledger = ledger.charge(release)
        return dataclasses.replace(memory, stage=self.stage + 1, lists=lists, ledger=ledger)

    def _summed(
        self, sums: ServersPart, heard: Bool[np.ndarray, " agents"], total: np.ndarray | None
    ) -> ServerMemory:
        """The server after the broadcast that follows from a sum, or from none."""
        algorithm, round = sums.algorithm, self.round + 1
        if total is None:
            total = np.zeros(sums.size, np.uint32)
        else:  # methods read off z how much noise there is
            algorithm = _secure.louder(algorithm, sums.secure.excess(int(heard.sum())))
        # As in `AbstractPrivate.release`; nothing here is drawn from the secret half.
        server = ask_keys(round_keys(self._keys, jnp.asarray(round)).ask).server
        known = self._revised(), jnp.asarray(round), jnp.asarray(total)
        broadcast = pack(_sides.opened(algorithm, release_keys(server).public, *known))
        return self._memory.after(round, broadcast, heard, self._memory.ledger)

    def _revised(self) -> PyTree:
        """The shared part after the broadcast that is out."""
        if not self.algorithm.remembers or not self._memory.broadcast:
            return self._shared
        like, _ = _sides.broadcast_shapes(self.algorithm, self._shared)
        remembered = self.algorithm.remembered(unpack(self._memory.broadcast, like))
        return _sides.revised(self.algorithm, self._shared, remembered)
