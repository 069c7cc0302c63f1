"""A federation on Flower: any federated method as a `ServerApp` and a `ClientApp` (extra `flower`).

    app = flower.client_app(algorithm, objective)                     on every owner's machine
    app = flower.server_app(algorithm, rounds, key)                   on the server's

The network, who may take part and encryption are Flower's; what is sent and what survives is
`jaxbo.federation`'s. A round is one exchange: the broadcast to all owners there are, and from each its
next message, once it has evaluated its query.
"""

import logging
import time
from pathlib import Path
from typing import Any, get_type_hints

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

from jaxbo._check import require, whole
from jaxbo._evaluate import BlackBox
from jaxbo.algos.base import AbstractFederated
from jaxbo.federation import Coordinator, Owner, OwnerError, RefusedError, Reply, Request
from jaxbo.federation.wire import Packed
from jaxbo.ledger import Ledger
from jaxbo.types import Key

#: Seconds between two looks at who is there.
PAUSE = 1.0

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
    when it is back. An answer that cannot be used is refused with its reason in the log, and counts as
    absent. Where nobody answers the run ends with an error; started again, it goes on where it was. Where
    the server keeps what it knows, the run's configuration says, with an absolute path:

        [tool.flwr.app.config]
        checkpoint = "/home/server/jaxbo/federation.npz"
    """
    require(deadline > 0, f"deadline must be a positive number of seconds, got {deadline}.")
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
            if not coordinator.done:
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
    requests = [
        Message(content, node, MessageType.TRAIN, ttl=deadline, group_id=str(round))
        for node in grid.get_node_ids()
    ]
    received = []
    for message in grid.send_and_receive(requests, timeout=deadline):
        try:
            coordinator.hear(_reply(message))
        except RefusedError as error:
            # On one line: whoever answers may have written it.
            log.warning(
                "round %d: node %d: %.300r", round, message.metadata.src_node_id, str(error)
            )
        else:
            received.append(_size(message.content))
    heard = coordinator.close()
    log.info(
        "%s: %d of %d owners in %.1f s, %d bytes to each and %.0f back%s",
        "joined" if round < 0 else f"round {round + 1} of {coordinator.rounds}",
        heard.sum(),
        heard.size,
        time.monotonic() - start,
        _size(content),
        np.mean(received),
        "" if heard.all() else f"; absent: {np.flatnonzero(~heard).tolist()}",
    )


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


def _reply(message: Message) -> Reply:
    """`RefusedError` for what is none."""
    if message.has_error():
        raise RefusedError(message.error.reason)
    try:
        records = message.content
        return Reply(
            **_fields(records.config_records["reply"], Reply),
            message=_packed(records.array_records["message"]),
        )
    # Anybody may have written it: reading it can raise nearly anything.
    except Exception as error:
        raise RefusedError(f"this is no reply of jaxbo's ({error!r}).") from error


def _scalars(record: Request | Reply) -> ConfigRecord:
    """What of it is no array."""
    return ConfigRecord({name: getattr(record, name) for name in _kinds(type(record))})


def _fields(config: ConfigRecord, kind: type[Request] | type[Reply]) -> dict[str, Any]:
    """What `_scalars` wrote."""
    fields = {name: config[name] for name in _kinds(kind)}
    for name, expected in _kinds(kind).items():
        if type(fields[name]) is not expected:
            raise TypeError(f"{name} is {fields[name]!r}")
    return fields


def _kinds(kind: type[Request] | type[Reply]) -> dict[str, type]:
    return {name: t for name, t in get_type_hints(kind).items() if t in (int, str)}


def _arrays(packed: Packed) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in packed.items()})


def _packed(record: ArrayRecord) -> Packed:
    return {name: array.numpy() for name, array in record.items()}


def _size(records: RecordDict) -> int:
    """Bytes of what Flower sends."""
    return sum(record.count_bytes() for record in records.values())
