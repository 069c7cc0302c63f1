"""Flower's processes on this machine: a SuperLink, SuperNodes, and runs of an app."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

#: Seconds until the server must have started.
PATIENCE = 60.0


class Local(AbstractContextManager):
    """A server that listens on this machine alone; owners are added, and everything ends with the block.

    Logs, owners' folders and Flower's own files are in `out`.
    """

    def __init__(self, out: Path):
        self.out = out
        self.owners: dict[int, subprocess.Popen] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = os.environ | {
            "PATH": path,
            "FLWR_HOME": str(out / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            # Every message is a new process: what one has compiled, the next ones find.
            "JAX_COMPILATION_CACHE_DIR": str(out / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",  # owners share the cores
            "PYTHONUNBUFFERED": "1",  # what a run reports is shown at once, through a pipe as well
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def __enter__(self) -> "Local":
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        command = ["flower-superlink", "--insecure", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation"]
        self.server = self._start(command, "server.log")
        try:
            self._wait(port)
        except RuntimeError:
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
        for process in [*self.owners.values(), self.server]:
            _end(process, signal.SIGTERM)

    def folder(self, owner: int) -> Path:
        """What an owner keeps."""
        return self.out / f"owner{owner}"

    def start_owner(self, owner: int) -> None:
        self.folder(owner).mkdir(exist_ok=True)
        command = ["flower-supernode", "--insecure", "--superlink", self.address]
        command += ["--port", str(_free_port())]
        command += ["--node-config", f'partition-id={owner} folder="{self.folder(owner)}"']
        self.owners[owner] = self._start(command, f"owner{owner}.log")

    def kill_owner(self, owner: int) -> None:
        """It and all that it is doing, without a warning."""
        _end(self.owners.pop(owner), signal.SIGKILL)

    def run(self, app: Path, config: Mapping[str, str | int], log: str) -> Iterator[str]:
        """What one run of an app reports, line by line, for as long as somebody reads it."""
        fields = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", fields]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, env=self.environment, **options)
        assert process.stdout is not None
        try:
            with (self.out / log).open("w") as file:
                for line in process.stdout:
                    file.write(line)
                    yield line.split("\x1b[0m:", 1)[-1].strip()
        finally:
            process.stdout.close()
            process.terminate()
            process.wait()

    def _start(self, command: list[str], log: str) -> subprocess.Popen:
        with (self.out / log).open("a") as file:
            return subprocess.Popen(
                command, env=self.environment, stdout=file, stderr=file, start_new_session=True
            )

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


def _end(process: subprocess.Popen, how: signal.Signals) -> None:
    """A process and those that it started."""
    try:
        os.killpg(process.pid, how)
        process.wait(10)
    except ProcessLookupError:
        process.wait()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _toml(value: str | int) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
