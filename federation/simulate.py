"""Many virtual owners on Flower's simulation engine: seconds, bytes and memory of a federation.

    pip install "jaxbo-agents[flower]" "flwr[simulation]"
    python federation/simulate.py OWNERS [OUT]

The engine runs the apps of a server and of all owners, and owners share a process for each core. Owners
are hills in two dimensions. Their files will be in OUT, by default out/simulation.
"""

import logging
import os
import re
import resource
import sys
import time
from pathlib import Path

import jax.random as jr
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import jaxbo
from jaxbo.federation import flower

ROUNDS, INITIAL, DEADLINE = 3, 2, 3600.0
KEY = jr.key(0)


class Rounds(logging.Handler):
    """What the server says of rounds."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if re.match(r"joined|round \d+ of", said := record.getMessage()):
            self.lines.append(said)


def hill(agent: int, x: np.ndarray) -> float:
    """An owner's objective: all owners have nearly the same."""
    top = 0.4 + 0.1 * np.cos(agent + np.arange(2))
    return -float(((x - top) ** 2).sum())


def main(owners: int, out: Path) -> None:
    algorithm = jaxbo.LearnedPrior(jaxbo.Cube(2), owners, INITIAL + ROUNDS)
    inner = flower.client_app(algorithm, hill)
    client, server = ClientApp(), ServerApp()
    rounds, memory = Rounds(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        folder = out / f"owner{context.node_config['partition-id']}"
        folder.mkdir(exist_ok=True)
        context.node_config["folder"] = str(folder)
        return inner(message, context)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        log = logging.getLogger("flwr")
        log.addHandler(rounds)
        context.run_config["checkpoint"] = str(out / "server.npz")
        app = flower.server_app(algorithm, ROUNDS, KEY, initial=INITIAL, deadline=DEADLINE)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        app(grid, context)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    out.mkdir(parents=True)  # FileExistsError for files of another run
    start = time.monotonic()
    cores = {"num_cpus": os.cpu_count() or 1}
    backend = {"init_args": cores, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, owners, backend_config=backend)
    print(*rounds.lines, sep="\n")
    print(
        f"{owners} owners: {time.monotonic() - start:.0f} s; peak memory of the server "
        f"{memory[0] / 1024:.0f} MB before, {memory[1] / 1024:.0f} MB after"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "out/simulation").resolve())
