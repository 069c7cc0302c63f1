"""Workers of tests, which are processes of their own, run these functions instead of `_worker.main`."""

import os
import threading
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from jaxbo.federation.flower import _worker


def with_its_number(pipe):
    """Each job is answered with the process's number, or is the death of it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        if job.version == "deadly":
            os._exit(3)
        number = ConfigRecord({"number": os.getpid()})
        pipe.send(Message(RecordDict({"process": number}), reply_to=job.message))


def busy(pipe):
    """As a worker that evaluates for a long time."""
    threading.Thread(target=_worker._end_with_parent, daemon=True).start()
    pipe.send("busy")
    time.sleep(1000)
