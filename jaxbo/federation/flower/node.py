"""An owner's SuperNode that imports and compiles once.

    python -m jaxbo.federation.flower.node [--app COPY] [--every SECONDS] --node-config '…' …

It takes the arguments of `flower-supernode` and does the same: it asks the server for messages, and gives
them to the app. But `flower-supernode` starts Python for each message, which imports JAX and compiles
anew. Here the app is in a second process, the worker, which stays. The worker hears its parent alone,
through a pipe without a name: nobody else can speak to it, and no port is opened.

Another app gets another worker, and the two apps that were asked for last keep theirs. A worker that has
died is replaced, and all are when jaxbo has been installed anew. If a worker dies of a message, the
answer is an error, and the owner's file has all evaluations before it. Workers end with their parent,
even in the middle of an evaluation.

The server sends the app, and the worker runs it. With `--app`, the owner's own copy of it, a folder or
a `.fab` file, the node runs this copy and nothing else. If the server's app has other files, the answer
is a refusal that names both. Without it the node runs whatever the server sends, and says so when it
starts.

`--every` is how often the server is asked, by default every three seconds, like Flower's. Dependencies of
an app are not installed. Flower's API for processes and its report of health are not served.
"""

import argparse
import functools
import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.cli.flower_supernode import (
    SuperNodeLifespanConfig,
    _parse_supernode_lifespan_config,
)
from flwr.supernode.start_client_internal import _init_connection, _verify_fab

from jaxbo._check import require, seconds
from jaxbo.federation.flower import _pinned, _worker
from jaxbo.federation.flower._exchange import round_name
from jaxbo.federation.flower._pinned import PinnedApp
from jaxbo.federation.flower._worker import Job

#: Seconds between two questions to the server: Flower's.
EVERY = 3.0
#: Seconds for which a node asks for a part of a message that the server has not, and the most seconds
#: between two questions. A server that was started again has lost it, and Flower would ask for two hours.
LOST, LATEST = 20.0, 2.0
#: The arguments of a connection, which are fields of the configuration.
CONNECTION = (
    "server_address",
    "insecure",
    "root_certificates",
    "authentication_keys",
    "max_retries",
    "max_wait_time",
)
#: Workers at a time: of runs at a time whose messages alternate.
MOST = 2
#: Seconds that a worker has to end by itself.
PATIENCE = 1.0

log = logging.getLogger("flwr")


class Worker:
    """A process that answers for a single app."""

    def __init__(self, target: Callable[..., object]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs,))
        self._process.start()
        theirs.close()  # so that its death is heard

    def answer(self, job: Job) -> Message:
        """The app's answer; `EOFError` or `OSError` where the process has died."""
        self._pipe.send(job)
        return self._pipe.recv()

    def lives(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join(PATIENCE)
        self._process.kill()
        self._process.join()


class Workers:
    """The workers of the apps that were asked for last.

    The first is started before any app is known, because importing takes its time.
    """

    def __init__(self, target: Callable[..., object] = _worker.main):
        self._target, self._package = target, package()
        self._spare: list[Worker] = [Worker(target)]
        self._of: dict[str, Worker] = {}

    def answer(self, job: Job) -> Message | None:
        """The app's answer; None where the worker has died, or cannot be started."""
        app = job.fab.hash_str
        try:
            return self._worker(app).answer(job)
        except (EOFError, OSError):
            if app in self._of:
                self._of.pop(app).end()
            return None

    def _worker(self, app: str) -> Worker:
        if self._package != (now := package()):
            self.end()
            self._package = now
        worker = self._of.pop(app, None)
        if worker is not None and not worker.lives():
            worker.end()
            worker = None
        if worker is None:
            worker = self._spare.pop() if self._spare else Worker(self._target)
        self._of[app] = worker
        while len(self._of) > MOST:
            self._of.pop(next(iter(self._of))).end()  # the one that was asked the longest ago
        return worker

    def end(self) -> None:
        for worker in (*self._spare, *self._of.values()):
            worker.end()
        self._spare, self._of = [], {}


def _name(group: str) -> str:
    """The round that a message says it is of."""
    return round_name(int(group)) if group.lstrip("-").isdecimal() else "a message"


def package() -> tuple[tuple[str, int, int], ...]:
    """The times and sizes of jaxbo's files, which change when it is installed anew."""
    return tuple(map(_stamp, sorted(Path(__file__).parents[2].rglob("*.py"))))


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:  # it is being replaced
        return str(file), 0, 0
    return str(file), stat.st_mtime_ns, stat.st_size


class Server(NamedTuple):
    """Flower's connection to the server."""

    node: int
    receive: Callable[[], Any]
    send: Callable[..., tuple[set[str], str]]
    run: Callable[[int], Run]
    fab: Callable[[str, int], Fab]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


class Node:
    """Takes messages from the server, and gives it the workers' answers."""

    def __init__(
        self,
        server: Server,
        config: SuperNodeLifespanConfig,
        workers: Workers,
        app: PinnedApp | None = None,
    ):
        self._server, self._config, self._workers, self._app = server, config, workers, app
        #: Runs and their apps, by number, of the last few.
        self._known: dict[int, tuple[Run, Fab]] = {}

    def serve(self, every: float) -> None:
        """Until the server cannot be reached."""
        while True:
            try:
                done = self.once()
            except RunNotRunningException:
                done = True  # its answer is of no use any more
            except httpx.HTTPError:
                raise
            except Exception:
                log.exception("a message could not be answered")
                done = False
            if not done:
                time.sleep(every)

    def once(self) -> bool:
        """Answers a message, if there is any, and says whether there was."""
        received = self._server.receive()
        if received is None:
            return False
        head, tree = received
        number = head.metadata.run_id
        run, fab = self._run(number)
        confirm = functools.partial(self._server.confirm, number)
        pull = functools.partial(self._server.pull, number)
        inflate = functools.partial(
            pull_and_inflate_object_from_tree, max_time=LOST, backoff_cap=LATEST
        )
        try:
            message = inflate(tree, pull, confirm, return_type=Message)
        except ObjectPullError as error:
            log.warning(
                "%s: the server has not all of this request, as after a stop: it is not answered. (%s)",
                _name(head.metadata.group_id),
                error,
            )
            return False
        message.metadata.__dict__["_message_id"] = tree.object_id  # which is not in what travels
        start = time.monotonic()
        self._send(self._answer(message, run, fab), time.monotonic() - start)
        log.info(
            "%s: answered in %.2f s", _name(message.metadata.group_id), time.monotonic() - start
        )
        return True

    def _run(self, number: int) -> tuple[Run, Fab]:
        """The run, and its app."""
        if number not in self._known:
            run = self._server.run(number)
            self._known[number] = run, self._server.fab(run.fab_hash, number)
        while len(self._known) > MOST:
            self._known.pop(next(iter(self._known)))
        return self._known[number]

    def _answer(self, message: Message, run: Run, fab: Fab) -> Message:
        TaskIdentity.run_id, TaskIdentity.node_id = run.run_id, self._server.node
        TaskIdentity.task_id = 0
        trusted = self._config.trusted_entities
        if trusted and not (fab.verifications.get("valid_license") and _verify_fab(fab, trusted)):
            log.error("the server's app is signed by none of the trusted entities")
            error = Error(ErrorCode.INVALID_FAB, "The app could not be verified.")
            return Message(error, reply_to=message)
        name, version = run.fab_id, run.fab_version
        if self._app is not None:
            if refusal := self._app.refusal(fab.content):
                log.error("refused: %s", refusal)
                return Message(Error(ErrorCode.INVALID_FAB, refusal), reply_to=message)
            name, version, fab = self._app
        config, options = self._config.node_config, get_fused_config_from_fab(fab.content, run)
        context = Context(run.run_id, self._server.node, config, RecordDict(), options)
        reply = self._workers.answer(Job(message, context, name, version, fab))
        if reply is None:
            log.error("the worker died of a message; another one is started")
            error = Error(ErrorCode.CLIENT_APP_CRASHED, "The owner's process died.")
            return Message(error, reply_to=message)
        return reply

    def _send(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            wanted, session = self._server.send(
                remove_content_from_message(reply) if reply.has_content() else reply, tree, seconds
            )
            push = functools.partial(self._server.push, reply.metadata.run_id, session)
            push_objects(objects, push, object_ids_to_push=wanted)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--every", type=float, default=EVERY)
    parser.add_argument("--app")
    options, rest = parser.parse_known_args()
    seconds("--every", options.every)
    app = None if options.app is None else _pinned.read(options.app)
    if app is None:
        log.warning("this node runs any app that the server sends; --app COPY runs yours alone")
    sys.argv = ["flower-supernode", *rest]
    config = _parse_supernode_lifespan_config()
    require(
        not (config.insecure and config.authentication_keys),
        "a key is for a server with a certificate: leave out --insecure or the private key.",
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    workers = Workers()
    try:
        while True:
            with _init_connection(**{name: getattr(config, name) for name in CONNECTION}) as server:
                log.info("SuperNode %d asks every %g s", server[0], options.every)
                Node(Server(*server), config, workers, app).serve(options.every)
            time.sleep(options.every)  # Flower has logged why the connection ended
    finally:
        workers.end()


def _end(number: int, frame: object) -> None:
    """Flower interrupts a node, too: where its server does not know it any more, and says nothing."""
    log.info(
        "ended by %s. If nobody sent it, the server was started again and does not know this node: start "
        "this node again when its key is registered.",
        signal.Signals(number).name,
    )
    sys.exit(0)


if __name__ == "__main__":
    main()
