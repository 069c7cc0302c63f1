"""`make federation`, of two owners and a round: it ends with a table, and at once when interrupted.

Its processes compile for themselves: JAX's cache of the tests is for their own process (conftest).
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxbo
from tests.runs.driven import environment

APP = Path(jaxbo.__file__).parent.parent / "federation"

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"
    ),
]
#: Seconds that everything has to end, and some more for a machine with much else to do.
SOON, BUSY = 5.0, 5.0


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "federation"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    app = folder / "owners.py"
    text = app.read_text()
    app.write_text(text.replace("= 5, 6, 120.0", "= 2, 1, 400.0"))
    assert app.read_text() != text
    return folder


def started(folder, out):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(folder / "start.py"), str(out)]
    return subprocess.Popen(command, env=environment(), **options)


def processes(out):
    """Those that belong to a federation with its files there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={out}/".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended, or is another user's
    return found


def test_a_federation_on_this_machine_ends_with_a_table(small, tmp_path):
    out = tmp_path / "out"
    with started(small, out) as process:
        lines = [line.strip() for line in process.stdout]
    assert process.returncode == 0, lines
    shown = [line.split(" in ")[0] for line in lines if line.startswith(("joined", "round"))]
    assert shown == ["joined: 2 of 2 owners", "round 1 of 1: 2 of 2 owners"]
    rows = ("learned prior (federated)", "FTS (federated)", "EI (alone)", "TS (alone)")
    assert all(any(line.startswith(row) for line in lines) for row in rows)
    assert (out / "federation.png").exists()
    assert processes(out) == []


def test_an_interrupt_ends_all_processes(small, tmp_path):
    out = tmp_path / "out"
    with started(small, out) as process:
        for line in process.stdout:
            if line.startswith("a message"):  # the server has begun, and owners are evaluating
                break
        assert len(processes(out)) >= 6  # two for each owner, and the server's
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        while processes(out) and time.monotonic() < start + SOON + BUSY:
            time.sleep(0.1)
        seconds = time.monotonic() - start
        assert processes(out) == []
        said = process.stdout.read()
    print(f"ended in {seconds:.1f} s")
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted" in said
    assert "Traceback" not in said
