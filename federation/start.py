"""A whole federation on this machine: a server, five owners, each a process of its own.

    python federation/start.py [OUT]

The owners' files, the logs and what the run found will be in OUT (out/federation). Afterwards the same
owners tune alone and at random, from the same initial points, for comparison.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

APP = Path(__file__).resolve().parent
#: Seconds until all processes must have started.
PATIENCE = 60.0


def main(out: Path) -> int:
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    sys.path.insert(0, str(APP))
    import owners

    environment = _environment(out)
    begin = time.monotonic()
    with ExitStack() as running:
        port = _free_port()
        address = f"127.0.0.1:{port}"
        command = ["flower-superlink", "--insecure", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation"]
        running.enter_context(_process(command, environment, out / "server.log"))
        for n in range(owners.OWNERS):
            folder = out / f"owner{n}"
            folder.mkdir()
            command = ["flower-supernode", "--insecure", "--superlink", address]
            command += ["--port", str(_free_port())]
            command += ["--node-config", f'partition-id={n} folder="{folder}"']
            running.enter_context(_process(command, environment, out / f"owner{n}.log"))
        _wait_for(port)
        _configure(out, address)
        print(f"a server and {owners.OWNERS} owners on {address}", flush=True)
        _run(out, environment)
    _compare(out, time.monotonic() - begin)
    return 0


def _environment(out: Path) -> dict[str, str]:
    """No telemetry, Flower's files in `out`, its commands on the path, and what was compiled kept."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {
        "PATH": path,
        "FLWR_HOME": str(out / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "JAX_COMPILATION_CACHE_DIR": str(out / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "OMP_NUM_THREADS": "1",  # owners share the cores
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """Running in the background, and ended afterwards."""
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server has not started within {PATIENCE:g} s: see its log.")


def _configure(out: Path, address: str) -> None:
    """Where `flwr run` finds the server."""
    folder = out / "flower"
    folder.mkdir(exist_ok=True)
    text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (folder / "config.toml").write_text(text)


def _run(out: Path, environment: dict[str, str]) -> None:
    """One run of the app, with its rounds shown as they end."""
    checkpoint = f'checkpoint="{out / "server.npz"}"'
    command = ["flwr", "run", str(APP), "here", "--stream", "--run-config", checkpoint]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    with process, (out / "run.log").open("w") as file:
        for line in process.stdout:
            file.write(line)
            if any(word in line for word in ("joined", "round ", "bytes", "Error", "error")):
                print(line.split("]\x1b[0m:", 1)[-1].split("\x1b[0m:", 1)[-1].strip(), flush=True)
    if not (out / "server.npz").exists():
        raise RuntimeError(f"the run has failed: see {out / 'run.log'}.")


def _compare(out: Path, seconds: float) -> None:
    """The table and the picture of the demo: what owners found together, alone and at random."""
    import owners

    from jaxbo import demo, federation, plotting
    from jaxbo.driver import drive

    outcomes = {}
    for name, algorithm in demo.methods(owners.OWNERS).items():
        start = time.monotonic()
        if name == owners.METHOD:
            found = [federation.observations(path) for path in sorted(out.glob("owner*/*.npz"))]
            values = np.stack([one.values for one in found], axis=1)
            start -= seconds
        else:
            options = {"initial": demo.INITIAL, "progress": False}
            _, trace = drive(algorithm, owners.objective, owners.ROUNDS, owners.KEY, **options)
            values = np.asarray(trace.values, np.float64)
        floats = demo.floats_sent(algorithm, owners.ROUNDS)
        outcomes[name] = demo.Outcome(values[None], time.monotonic() - start, floats)
    print(f"\n{demo.table(outcomes)}\n")
    print(plotting.save(demo.picture(outcomes), out / "federation.png"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/federation").resolve()))
