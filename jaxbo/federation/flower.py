"""A federation on Flower: any federated method as a `ServerApp` and a `ClientApp` (extra `flower`).

    app = flower.client_app(algorithm, objective)                     on every owner's machine
    app = flower.server_app(algorithm, rounds, key)                   on the server's

The network, who may take part and encryption are Flower's; what is sent and what survives is
`jaxbo.federation`'s. A round is one exchange: the broadcast to all owners there are, and from each its
next message, once it has evaluated its query.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from jaxbo._check import require, seconds, whole
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.federation import Coordinator, Owner, OwnerError, RefusedError, Reply, Request
from jaxbo.federation.coordinator import releases_of
from jaxbo.federation.owner import check_owners
from jaxbo.federation.wire import Packed
from jaxbo.privacy.ledger import Ledger
from jaxbo.runs._evaluate import BlackBox
from jaxbo.types import Key

#: Seconds between two looks at who is there and has answered, or less: a round has some looks.
PAUSE, LOOKS = 1.0, 4
#: The last part of each pause in which no answer is asked for: one that takes long delays nothing else.
QUIET = 0.25
#: How arrays travel: their bytes alone, little end first. Nothing is decoded that somebody has written.
BYTES = "jaxbo.bytes"
#: Names of their types are not longer.
LONGEST = 16

log = logging.getLogger("flwr")


def client_app(
    algorithm: AbstractFederated,
    objective: BlackBox,
    *,
    key: Key | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> ClientApp:
    """The app of all owners; the arguments are those of `federation.Owner`.

    An owner's SuperNode says who it is and where its file is to be:

        flower-supernode --node-config 'partition-id=0 folder="/home/owner/jaxbo"' …

    `partition-id` is the agent's number. Whatever goes wrong here travels as one sentence without data;
    the SuperNode's log has the rest.
    """
    check_owners(algorithm, objective, key, catch)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = context.node_config
        require(
            "partition-id" in config and "folder" in config,
            "start the SuperNode with --node-config 'partition-id=<the agent> folder=\"<where>\"'.",
        )
        agent, folder = config["partition-id"], str(config["folder"])
        whole("partition-id", agent)
        try:
            owner = Owner(algorithm, objective, int(agent), folder, key=key, catch=catch)
            reply = owner.answer(_request(message.content))
        except (OwnerError, RefusedError):
            raise
        except Exception as error:  # whose text would travel
            raise OwnerError(f"{type(error).__name__}: see the owner's log.") from error
        return Message(_of_reply(reply), reply_to=message)

    return app


def server_app(
    algorithm: AbstractFederated,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    ledger: Ledger | None = None,
    deadline: float = 3600.0,
) -> ServerApp:
    """The app of the server; the arguments are those of `federation.Coordinator`.

    It waits for as many SuperNodes as there are agents, and then round by round for their answers, each
    time up to `deadline` seconds: who has not answered by then is absent from the next round, and goes on
    when it is back. An owner that comes while a round is open is asked as well. An answer that cannot be
    used is refused with its reason in the log, and counts as absent. Where nobody answers the run ends
    with an error; started again, it goes on where it was.

    With a `ledger` nothing may tell who takes part. So a round takes `deadline` seconds, however many
    owners have answered: give it as long as an evaluation takes, and some seconds more. The server then
    waits for nobody before the first round, and a round in which nobody answers releases noise and is
    charged.

    Where the server keeps what it knows, the run's configuration says, with an absolute path:

        [tool.flwr.app.config]
        checkpoint = "/home/server/jaxbo/federation.npz"
    """
    releases_of(algorithm, rounds, key, initial, ledger)
    seconds("deadline", deadline)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        checkpoint = Path(str(context.run_config.get("checkpoint", "")))
        require(
            checkpoint.is_absolute(),
            f"the run's configuration must have an absolute path as its checkpoint, got {checkpoint}.",
        )
        coordinator = Coordinator(
            algorithm, rounds, key, checkpoint, initial=initial, ledger=ledger
        )
        log.info(
            "a message of %s has %d bytes of numbers",
            type(algorithm).__name__,
            coordinator.declared,
        )
        try:
            if not coordinator.done and ledger is None:
                _wait(grid, algorithm.agents, deadline)
            while not coordinator.done:
                _round(coordinator, grid, deadline)
        finally:
            coordinator.stop()

    return app


def _wait(grid: Grid, nodes: int, deadline: float) -> None:
    """Until there are so many, or the deadline has passed."""
    end = time.monotonic() + deadline
    while len(list(grid.get_node_ids())) < nodes and time.monotonic() < end:
        time.sleep(PAUSE)


def _round(coordinator: Coordinator, grid: Grid, deadline: float) -> None:
    """One exchange with all owners there are."""
    start, round = time.monotonic(), coordinator.round
    content = _of_request(coordinator.request())
    received = []
    for node, answer in _answers(grid, content, round, deadline, coordinator.ledger is not None):
        try:
            coordinator.hear(_reply(answer), f"node {node}")
        except RefusedError as error:
            # On one line: whoever answers may have written it.
            log.warning("round %d: %.300r", round, str(error))
        else:
            received.append(_size(answer.content))
    try:
        heard = coordinator.close()
    except RuntimeError as error:
        raise RuntimeError(f"{error} The deadline was {deadline:g} s.") from None
    log.info(
        "%s: %d of %d owners in %.1f s, %d bytes to each and %.0f back%s",
        "joined" if round < 0 else f"round {round + 1} of {coordinator.rounds}",
        heard.sum(),
        heard.size,
        time.monotonic() - start,
        _size(content),
        np.mean(received) if received else 0,
        "" if heard.all() else f"; absent: {np.flatnonzero(~heard).tolist()}",
    )


def _answers(
    grid: Grid, content: RecordDict, round: int, deadline: float, until_the_end: bool
) -> Iterator[tuple[int, Any]]:
    """Nodes and their answers as they come; an exception for an answer that Flower itself cannot read.

    Looks begin at instants that a clock gives. So neither the end nor what nodes are asked tells how long
    it took to hear the others.
    """
    looks = max(LOOKS, math.ceil(deadline / PAUSE))
    start, pause = time.monotonic(), deadline / looks
    asked, waiting = set(), {}
    for look in range(looks):
        _sleep_until(start + look * pause)
        fresh = _push(grid, content, round, asked, deadline - look * pause)
        asked |= set(fresh.values())
        waiting |= fresh
        yield from _heard(grid, waiting, start + (look + 1 - QUIET) * pause)
        if not (waiting or until_the_end):
            return
    _sleep_until(start + deadline)


def _push(
    grid: Grid, content: RecordDict, round: int, asked: Iterable[int], left: float
) -> dict[str, int]:
    """Asks the nodes that have not been, all at once: the names of the messages, and their nodes."""
    now = time.time()
    nodes = sorted(set(grid.get_node_ids()) - set(asked))
    messages = [
        Message(content, node, MessageType.TRAIN, ttl=left, group_id=str(round)) for node in nodes
    ]
    for message in messages:
        message.metadata.created_at = now  # the same for all: each is told it
    names = grid.push_messages(messages) if messages else []
    return {name: node for name, node in zip(names, nodes, strict=False) if name}


def _heard(grid: Grid, waiting: dict[str, int], until: float) -> Iterator[tuple[int, Any]]:
    """The answers that have come, in turn, as far as there is time; they leave `waiting`.

    Each is asked for by itself: Flower reads all answers that it is asked for, or none.
    """
    for name, node in list(waiting.items()):
        if time.monotonic() >= until:
            return
        answers = _pulled(grid, name)
        del waiting[name]
        if not answers:
            waiting[name] = node  # behind the others
        for answer in answers:
            yield node, answer


def _sleep_until(instant: float) -> None:
    left = instant - time.monotonic()
    if left > 0:
        time.sleep(left)


def _pulled(grid: Grid, name: str) -> list[Any]:
    """The answer to a message, if it has come."""
    try:
        return list(grid.pull_messages([name]))
    except httpx.HTTPStatusError:  # of this message; of more, the next look at who is there tells
        return []
    except (httpx.HTTPError, OSError):  # the network's, and no owner's
        raise
    except Exception as error:
        return [error]


# ---------------------------------------------------------------- in Flower's records


def _of_request(request: Request) -> RecordDict:
    records = {
        "request": _scalars(request),
        "setup": _arrays({"key": request.setup}),
    }
    if request.broadcast is not None:
        records["broadcast"] = _arrays(request.broadcast)
    return RecordDict(records)


def _request(records: RecordDict) -> Request:
    broadcast = records.array_records.get("broadcast")
    return Request(
        **_fields(records.config_records["request"], Request),
        setup=_packed(records.array_records["setup"])["key"],
        broadcast=None if broadcast is None else _packed(broadcast),
    )


def _of_reply(reply: Reply) -> RecordDict:
    return RecordDict({"reply": _scalars(reply), "message": _arrays(reply.message)})


def _reply(answer: Any) -> Reply | RefusedError:
    """What an answer is, or why it is none."""
    try:
        if isinstance(answer, Exception):
            raise answer
        if answer.has_error():
            return RefusedError(answer.error.reason)
        records, fields = answer.content, set(_kinds(Reply))
        config, arrays = records.config_records["reply"], records.array_records["message"]
        if set(records) != {"reply", "message"} or set(config) != fields:
            raise ValueError("it has more than a reply.")
        return Reply(**_fields(config, Reply), message=_packed(arrays))
    # Anybody may have written it: reading it can raise nearly anything.
    except Exception as error:
        return RefusedError(f"no reply of jaxbo's ({type(error).__name__}: {str(error)[:100]})")


def _scalars(record: Request | Reply) -> ConfigRecord:
    """What of it is no array."""
    return ConfigRecord({name: getattr(record, name) for name in _kinds(type(record))})


def _fields(config: ConfigRecord, kind: type[Request] | type[Reply]) -> dict[str, Any]:
    """What `_scalars` wrote, if it did."""
    return {name: config[name] for name in _kinds(kind)}


def _kinds(kind: type[Request] | type[Reply]) -> dict[str, type]:
    return {name: t for name, t in get_type_hints(kind).items() if t in (int, str)}


def _arrays(packed: Packed) -> ArrayRecord:
    return ArrayRecord({name: _array(array) for name, array in packed.items()})


def _array(array: np.ndarray) -> Array:
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return Array(str(array.dtype), array.shape, BYTES, data)


def _packed(record: ArrayRecord) -> Packed:
    return {name: _unpacked(array) for name, array in record.items()}


def _unpacked(array: Array) -> np.ndarray:
    """The array that these bytes are, without a copy of them. Raises where they are not."""
    if array.stype != BYTES or len(array.dtype) > LONGEST:
        raise TypeError("an array that is not of jaxbo's.")
    stored = np.dtype(array.dtype).newbyteorder("<")
    numbers = np.frombuffer(array.data, stored).reshape(array.shape)
    if numbers.shape != array.shape:
        raise TypeError("an array of a shape below zero.")
    return numbers.astype(stored.newbyteorder("="), copy=False)


def _size(records: RecordDict) -> int:
    """Bytes of what Flower sends."""
    return sum(record.count_bytes() for record in records.values())
