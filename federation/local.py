"""Flower's processes on this machine: a SuperLink, an owner's SuperNode each, and runs of an app."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

#: Seconds until the server must have started.
PATIENCE = 60.0
#: Seconds that processes have to end by themselves. Their files are whole at any time.
FAREWELL = 1.5
#: An owner's SuperNode. It looks for messages twice a second; by default it is every three seconds.
NODE = (sys.executable, "-m", "jaxbo.federation.flower.node", "--every", "0.5")


class Local(AbstractContextManager):
    """A server that listens on this machine alone; owners are added, and everything ends with the block.

    Logs, owners' folders and Flower's own files are in `out`. Compiled programs are there too, or in the
    folder of `JAX_COMPILATION_CACHE_DIR`: an owner that is started again finds them. With a `database` a
    SuperLink that is started again knows the owners. Without it Flower ends their SuperNodes then.
    """

    def __init__(self, out: Path, database: bool = False):
        self.out, self.database = out, database
        self.owners: dict[int, subprocess.Popen] = {}
        self.started: list[subprocess.Popen] = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {
            "JAX_COMPILATION_CACHE_DIR": str(out / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
            **os.environ,
            "PATH": path,
            "FLWR_HOME": str(out / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",  # owners share the cores
            "PYTHONUNBUFFERED": "1",  # what a run reports is shown at once, through a pipe as well
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def __enter__(self) -> "Local":
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        try:
            self.start_server()
        except BaseException:
            self.__exit__()
            raise
        folder = self.out / "flower"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            "insecure = true\n"
        )
        return self

    def __exit__(self, *error: object) -> None:
        end(self.started)

    def start_server(self) -> None:
        """Starts the SuperLink: at first, and again after it was killed."""
        command = ["flower-superlink", "--insecure", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.database:
            command += ["--database", str(self.out / "flower.db")]
        self.server = self._start(command, "server.log")
        self._wait(self.port)

    def kill_server(self) -> None:
        """The SuperLink and the server's apps, without a warning. Owners stay."""
        _signal(_groups({self.server.pid}), signal.SIGKILL)
        self.server.wait()

    def folder(self, owner: int) -> Path:
        """The folder of an owner's files."""
        return self.out / f"owner{owner}"

    def start_owner(
        self, owner: int, node: Sequence[str] = NODE, more: str = "", address: str | None = None
    ) -> None:
        """Starts an owner's SuperNode, with `more` in its configuration.

        `address` is that of the server unless it is of a relay.
        """
        self.folder(owner).mkdir(exist_ok=True)
        command = [*node, "--insecure", "--superlink", address or self.address]
        config = f'partition-id={owner} folder="{self.folder(owner)}" {more}'.strip()
        command += ["--node-config", config]
        # Apps are installed there, by each owner for itself.
        home = {"FLWR_HOME": str(self.out / "flower" / f"owner{owner}")}
        self.owners[owner] = self._start(command, f"owner{owner}.log", home)

    def kill_owner(self, owner: int) -> None:
        """It and all that it is doing, without a warning."""
        process = self.owners.pop(owner)
        _signal([process.pid], signal.SIGKILL)
        process.wait()

    def run(self, app: Path, config: Mapping[str, str | int], log: str) -> Iterator[str]:
        """The report of a run of an app, line by line, for as long as somebody reads it."""
        fields = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", fields]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, env=self.environment, start_new_session=True, **options)
        self.started.append(process)
        assert process.stdout is not None
        try:
            with (self.out / log).open("w") as file:
                for line in process.stdout:
                    file.write(line)
                    yield line.split("\x1b[0m:", 1)[-1].strip()
        finally:  # it only reads the server's log
            process.stdout.close()
            process.kill()
            process.wait()

    def _start(
        self, command: list[str], log: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen:
        environment = {**self.environment, **(more or {})}
        with (self.out / log).open("a") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        self.started.append(process)
        return process

    def _wait(self, port: int) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"the server has not started: see {self.out / 'server.log'}.")


def end(processes: Iterable[subprocess.Popen]) -> None:
    """All of them and all that they started, at once: asked to first, and then made to."""
    running = [process for process in processes if process.returncode is None]
    groups = _groups({process.pid for process in running})
    _signal(groups, signal.SIGTERM)
    until = time.monotonic() + FAREWELL
    while time.monotonic() < until and any(map(_runs, running)):
        time.sleep(0.05)
    _signal(groups, signal.SIGKILL)
    for process in running:
        process.wait()


def _runs(process: subprocess.Popen) -> bool:
    """Whether it does. After its end a process keeps its number until it is waited for."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _groups(pids: set[int]) -> set[int]:
    """The groups of processes and of all that they started: Flower's server opens groups of its own."""
    groups, found = set(pids), set(pids)
    try:
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # there is no such program
        return groups
    rows = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    while more := [row for row in rows if row[1] in found and row[0] not in found]:
        found |= {pid for pid, _, _ in more}
        groups |= {group for _, _, group in more}
    return groups


def _signal(groups: Iterable[int], how: signal.Signals) -> None:
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, how)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _toml(value: str | int) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
