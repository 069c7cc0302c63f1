"""An owner's SuperNode that keeps what it has imported and compiled.

    python -m jaxbo.federation.node [--every SECONDS] --node-config 'partition-id=0 folder="…"' …

It takes the arguments of `flower-supernode` and does the same: it asks the server for messages, and gives
them to the app. But `flower-supernode` starts Python for each message, which imports JAX and compiles
anew. Here one process speaks to the server, and a second one, the worker, answers for as long as both
live. Nobody else can speak to the worker: it hears its parent alone, through a pipe without a name. There
is no port either.

The worker is started anew where it has died, and for another app or jaxbo: a process never holds two. The
message that it died of is answered with an error, and the owner's file has all that was evaluated. It
ends with its parent, even in the middle of an evaluation.

`--every`, by default Flower's three seconds, is how often the server is asked. Flower's dependencies
are not installed at run time, and its API for other processes (`--port`, `--isolation`) is not served.
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
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.cli.flower_supernode import (
    SuperNodeLifespanConfig,
    _parse_supernode_lifespan_config,
)
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.start_client_internal import _verify_fab

from jaxbo._check import seconds
from jaxbo.federation import _worker
from jaxbo.federation._worker import Task

#: Flower's.
EVERY = 3.0
#: Seconds that a worker has to end by itself.
PATIENCE = 1.0

log = logging.getLogger("flwr")


class Worker:
    """The process that answers. It is started before it is needed, because importing takes its time."""

    def __init__(self, target: Callable[..., object] = _worker.main):
        self._target = target
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._target, args=(theirs,))
        self._process.start()
        theirs.close()  # so that its death is heard
        self._app, self._package = None, package()

    def answer(self, task: Task) -> Message | None:
        """What the app answers; None where the worker has died."""
        if not self._fits(task):
            self.end()
            self._start()
        self._app = task.fab.hash_str
        try:
            self._pipe.send(task)
            return self._pipe.recv()
        except (EOFError, OSError):
            return None

    def _fits(self, task: Task) -> bool:
        """Whether it lives, and has neither another app nor an older jaxbo."""
        mine = self._app in (None, task.fab.hash_str) and self._package == package()
        return mine and self._process.is_alive()

    def end(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join(PATIENCE)
        self._process.kill()
        self._process.join()


def package() -> tuple[tuple[str, int, int], ...]:
    """What tells whether jaxbo has been installed anew."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)


class Server(NamedTuple):
    """What Flower's connection to the server can do."""

    node: int
    receive: Callable[[], Any]
    send: Callable[..., tuple[set[str], str]]
    run: Callable[[int], Run]
    fab: Callable[[str, int], Fab]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


class Node:
    """Takes messages from the server, and gives it the worker's answers."""

    def __init__(self, server: Server, config: SuperNodeLifespanConfig, worker: Worker):
        self._server, self._config, self._worker = server, config, worker
        #: Of the newest run.
        self._known: tuple[Run, Fab] | None = None

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
        """Answers one message, if there is one."""
        received = self._server.receive()
        if received is None:
            return False
        head, tree = received
        number = head.metadata.run_id
        run, fab = self._run(number)
        confirm = functools.partial(self._server.confirm, number)
        pull = functools.partial(self._server.pull, number)
        message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = tree.object_id  # which is not in what travels
        start = time.monotonic()
        self._send(self._answer(message, run, fab), time.monotonic() - start)
        log.info(
            "round %s: answered in %.2f s", message.metadata.group_id, time.monotonic() - start
        )
        return True

    def _run(self, number: int) -> tuple[Run, Fab]:
        """The run, and its app."""
        if self._known is None or self._known[0].run_id != number:
            run = self._server.run(number)
            self._known = run, self._server.fab(run.fab_hash, number)
        return self._known

    def _answer(self, message: Message, run: Run, fab: Fab) -> Message:
        TaskIdentity.run_id, TaskIdentity.node_id = run.run_id, self._server.node
        TaskIdentity.task_id = 0
        trusted = self._config.trusted_entities
        if trusted and not (fab.verifications.get("valid_license") and _verify_fab(fab, trusted)):
            log.error("the server's app is signed by none of the trusted entities")
            error = Error(ErrorCode.INVALID_FAB, "The app could not be verified.")
            return Message(error, reply_to=message)
        config, options = self._config.node_config, get_fused_config_from_fab(fab.content, run)
        context = Context(run.run_id, self._server.node, config, RecordDict(), options)
        reply = self._worker.answer(Task(message, context, run.fab_id, run.fab_version, fab))
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
    options, rest = parser.parse_known_args()
    seconds("--every", options.every)
    sys.argv = ["flower-supernode", *rest]
    config = _parse_supernode_lifespan_config()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    worker = Worker()
    try:
        where = config.server_address, config.insecure, config.root_certificates
        how = config.authentication_keys, config.max_retries, config.max_wait_time
        while True:
            # It logs why a connection has ended.
            with http_request_response(*where, *how) as connection:
                log.info("SuperNode %d asks every %g s", connection[0], options.every)
                Node(Server(*connection), config, worker).serve(options.every)
            time.sleep(options.every)
    finally:
        worker.end()


if __name__ == "__main__":
    main()
