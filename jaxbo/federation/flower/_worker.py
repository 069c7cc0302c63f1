"""The process of an owner that answers messages. It holds an app, and all that the app has compiled."""

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from flwr.app import Context, Error, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity

from jaxbo.federation import OwnerError, RefusedError

log = logging.getLogger("flwr")


class Job(NamedTuple):
    """A message, its app, and the SuperNode's configuration."""

    message: Message
    context: Context
    app: str
    version: str
    fab: Fab


def main(pipe: Connection) -> None:
    """Answers jobs until the pipe is closed, or until the parent has died."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    show_log()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(answered(job))


def show_log() -> None:
    """Lets an owner's log have jaxbo's lines, such as the rest of a budget. Flower shows its own."""
    ours = logging.getLogger("jaxbo.federation")
    ours.parent = log
    ours.setLevel(logging.INFO)


def _end_with_parent() -> None:
    """Ends this process at once, in an evaluation too. Files are written whole or not at all."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def answered(job: Job) -> Message:
    """The app's answer, or its error. The text of most errors stays here."""
    TaskIdentity.run_id, TaskIdentity.node_id = job.context.run_id, job.context.node_id
    TaskIdentity.task_id = 0
    try:
        install_from_fab(job.fab.content, skip_prompt=True)
        load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        return load(job.app, job.version, job.fab.hash_str)(job.message, job.context)
    except Exception as error:
        if isinstance(error, RefusedError):  # no fault of the app
            log.error("refused: %s", error)
        else:
            log.exception("the app raised an error")
        said = (
            str(error) if isinstance(error, OwnerError | RefusedError) else "see the owner's log."
        )
        text = f"{type(error).__name__}: {said}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text), reply_to=job.message)
