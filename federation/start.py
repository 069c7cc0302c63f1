"""A whole federation on this machine: a server and five owners, each a process of its own.

    python federation/start.py [OUT]

Rounds are shown as they end. Then the same owners tune alone and at random, from the same initial
points, for comparison. Owners' files, logs and the picture will be in OUT, by default out/federation.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import owners
from local import Local

from jaxbo import demo, federation, plotting
from jaxbo.driver import drive

APP = Path(__file__).resolve().parent


def main(out: Path) -> None:
    start = time.monotonic()
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    with Local(out) as local:
        for n in range(owners.OWNERS):
            local.start_owner(n)
        print(f"a server and {owners.OWNERS} owners on {local.address}", flush=True)
        for line in local.run(APP, {"checkpoint": str(out / "server.npz")}, "run.log"):
            if line.startswith(("joined", "round", "a message")):
                print(line, flush=True)
        files = [next(local.folder(n).glob("*.npz")) for n in range(owners.OWNERS)]
    values = np.stack([federation.observations(file).values for file in files], axis=1)
    _compare(values, time.monotonic() - start, out)


def _compare(values: np.ndarray, seconds: float, out: Path) -> None:
    """The table and the picture of the demo."""
    outcomes = {}
    for name, algorithm in demo.methods(owners.OWNERS).items():
        if name != owners.METHOD:
            start = time.monotonic()
            options = {"initial": demo.INITIAL, "progress": False}
            _, trace = drive(algorithm, owners.objective, owners.ROUNDS, owners.KEY, **options)
            values, seconds = np.asarray(trace.values, np.float64), time.monotonic() - start
        floats = demo.floats_sent(algorithm, owners.ROUNDS)
        outcomes[name] = demo.Outcome(values[None], seconds, floats)
    print(f"\n{demo.table(outcomes)}\n")
    print(plotting.save(demo.picture(outcomes), out / "federation.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/federation").resolve())
