"""The evaluation under way in this process, in a file, so that an evaluation that kills is found out.

An evaluation may end its whole process: out of memory, a fault of compiled code. A run that is started
again asks it again, and would be killed for ever. So the file counts the processes that died in it.
A second death makes it a failed evaluation, as it does in a process of an `executor`.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxbo.runs import _archive
from jaxbo.runs.renewing import LostWorkerError

#: So many deaths are enough.
DEATHS = 2
#: The end of the file's name.
SUFFIX = ".begun"

log = logging.getLogger("jaxbo")


class Begun:
    """The file beside `path`, the file of a run. It is of a run that goes on, or is removed."""

    def __init__(self, path: Path):
        self.file = path.with_name(path.name + SUFFIX)
        if not path.exists():
            self.file.unlink(missing_ok=True)

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """`fn(*args)`, or `LostWorkerError` if too many processes have died in it."""
        name = _name(args)
        deaths = self._deaths(name)
        try:
            if deaths >= DEATHS:
                raise LostWorkerError(f"{deaths} processes in turn have died in this evaluation")
            if deaths:
                log.warning("the last process died in this evaluation: it is tried once more.")
            self._write({"evaluation": name, "begun": deaths + 1})
            return fn(*args)
        finally:
            with contextlib.suppress(OSError):
                self.file.unlink(missing_ok=True)

    def _deaths(self, name: str) -> int:
        """How often this evaluation began and did not end; 0 if the file cannot be read."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(self.file.read_bytes())
            if found["evaluation"] == name:
                return int(found["begun"])
        return 0

    def _write(self, content: dict[str, Any]) -> None:
        """In one step, or not at all if the disk is full: the evaluation goes on without a note.

        The note need not survive a power cut, which is not the evaluation's fault.
        """
        temporary = self.file.with_name(self.file.name + ".tmp")
        try:
            with open(temporary, "wb", opener=_archive.private) as file:
                file.write(json.dumps(content).encode())
            os.replace(temporary, self.file)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _name(args: tuple[Any, ...]) -> str:
    """A name of the arguments: the number of an agent, and a point or parameters by name."""
    exact = [a.tobytes() if isinstance(a, np.ndarray) else a for a in args]
    return hashlib.sha256(repr(exact).encode()).hexdigest()
