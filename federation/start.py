"""A whole federation on this machine: a server and five owners, each a process of its own.

    python federation/start.py [OUT]

Rounds are shown as they end. Then the same owners tune by the demo's other methods, from the same
initial points, for comparison. Owners' files, logs and the picture will be in OUT, by default
out/federation. Ctrl-C ends all processes.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import owners
from local import Local

from jaxbo import demo, federation, plotting
from jaxbo.runs.driver import drive

APP = Path(__file__).resolve().parent
#: The exit status of a program that was interrupted.
INTERRUPTED = 128 + signal.SIGINT


def main(out: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        _whole(out)
    except KeyboardInterrupt:
        print(f"interrupted; the logs are in {out}", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _interrupt(*_: object) -> None:
    """Once: processes are ended undisturbed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _whole(out: Path) -> None:
    start = time.monotonic()
    if (out / "server.log").exists():  # of an earlier start
        shutil.rmtree(out)
    out.mkdir(parents=True)  # FileExistsError for a folder of something else
    with Local(out) as local:
        for n in range(owners.OWNERS):
            local.start_owner(n)
        print(f"a server and {owners.OWNERS} owners on {local.address}", flush=True)
        for line in local.run(APP, {"checkpoint": str(out / "server.npz")}, "run.log"):
            if line.startswith(("joined", "round", "a message")):
                print(line, flush=True)
            if line.startswith(f"round {owners.ROUNDS} of"):
                break
        else:
            raise RuntimeError(f"the run has not come to its end: see {out / 'run.log'}.")
    _compare(_values(out), time.monotonic() - start, out)


def _values(out: Path) -> np.ndarray:
    """The values that owners observed, evaluations by owners. NaN stands for an owner who was away."""
    values = np.full((demo.INITIAL + owners.ROUNDS, owners.OWNERS), np.nan)
    for n in range(owners.OWNERS):
        for file in (out / f"owner{n}").glob("*.npz"):
            seen = federation.observations(file)
            values[: demo.INITIAL, n] = seen.values[: demo.INITIAL]
            values[demo.INITIAL + seen.rounds[demo.INITIAL :], n] = seen.values[demo.INITIAL :]
    return values


def _compare(values: np.ndarray, seconds: float, out: Path) -> None:
    """The table and the picture of the demo."""
    outcomes = {}
    for name, algorithm in demo.methods(owners.OWNERS, owners.ROUNDS).items():
        if name != owners.METHOD:
            start = time.monotonic()
            options = {"initial": demo.INITIAL, "progress": False}
            _, trace = drive(algorithm, owners.objective, owners.ROUNDS, owners.KEY, **options)
            values, seconds = np.asarray(trace.values, np.float64), time.monotonic() - start
        floats = demo.floats_sent(algorithm, owners.ROUNDS)
        outcomes[name] = demo.Comparison(values[None], seconds, floats)
    print(f"\n{demo.table(outcomes)}\n")
    print(plotting.save(demo.picture(outcomes), out / "federation.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/federation").resolve())
