"""A checkpoint has a single owner: whoever works with it holds a lock on `PATH.lock` beside it.

The operating system keeps the lock, and it ends with its process, even if that is killed. The file
stays. It holds the name of the owner for the message, and a file that is left over stops nobody.
The reach of a lock depends on the platform:

    Linux, macOS    `flock` tells all processes of a machine apart, and all owners in a process. On a
                    network file system it tells machines apart too, if locks are passed on. NFS 4 and
                    SMB pass them on, and NFS 3 does with its lock manager. NFS with `nolock` does
                    not, nor does BeeGFS by default: the same run can then be started on two machines.
    Windows         `LockFileEx` locks the first byte, on network drives too.
    no locks        The file is refused, for example on Lustre mounted without `flock`.

A forked process does not inherit the lock: filelock closes it there. Otherwise the workers of a pool
would keep it, for they outlive a process that is killed.
"""

import gc
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from jaxbo.runs._archive import CheckpointError

log = logging.getLogger(__name__)

#: Seconds between looks at the name of an owner that has just taken a file, and how many looks.
PAUSE, LOOKS = 0.05, 10


class Hold:
    """A claim on a file. It lasts until `release`, or until nothing refers to it."""

    def __init__(self, path: Path):
        self.path = path
        # All threads share the claim.
        self._lock = FileLock(f"{path}.lock", mode=0o600, thread_local=False, on_acquired=_sign)

    def take(self) -> None:
        """`CheckpointError` if another process, or another owner in this one, has the file."""
        if self._taken():
            return
        mine = self._signature() == _signature()
        if mine:
            gc.collect()  # the owner may have been dropped in a circle of references
            if self._taken():
                return
        way = "close the Desk or end the run that has it" if mine else "wait until it has ended"
        raise CheckpointError(f"{self.path} is in use by {self._holder()}: {way}.")

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Waits until others have left the file; the log names them."""
        if not self._taken():
            log.warning("%s is in use by %s: waiting for it", self.path, self._holder())
            self._lock.acquire()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Leaves the file to others, unless it was left before."""
        self._lock.release()

    def check(self) -> None:
        """`CheckpointError` unless the file is held: not after `release`, nor in a forked process."""
        if not self._lock.is_locked:
            raise CheckpointError(
                f"{self.path} is no longer held: it was closed, or its owner is the process that "
                "forked this one. Open it again to go on."
            )

    def _taken(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be locked ({error}): keep it, and what is beside it, where you may "
                "write, on a file system that has locks."
            ) from error
        return True

    def _holder(self) -> str:
        signature = self._signature()
        host, _, process = signature.rpartition(" ")
        if not process.isdigit():  # the system lets nobody read it
            return "another process"
        this = ", which is this one" if signature == _signature() else ""
        return f"process {process} on host {host}{this}"

    def _signature(self) -> str:
        """The name in the lock's file. An owner that has just taken it is about to write its name."""
        for _ in range(LOOKS):
            if name := self._written():
                return name
            time.sleep(PAUSE)
        return ""

    def _written(self) -> str:
        try:
            with open(self._lock.lock_file, "rb", buffering=0) as file:
                file.seek(1)
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _signature() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _sign(file: int) -> None:
    """Writes the owner's name into the lock's file, behind the byte that Windows keeps from readers."""
    os.ftruncate(file, 0)
    os.lseek(file, 1, os.SEEK_SET)
    os.write(file, _signature().encode())
