"""Many virtual owners on Flower's simulation engine: seconds, bytes and memory of a federation.

    pip install "jaxbo-agents[flower]" "flwr[simulation]"
    python federation/simulate.py OWNERS [--out FOLDER]
    python federation/simulate.py OWNERS --server
    python federation/simulate.py OWNERS --secure

The engine runs the apps of a server and of all owners, and owners share a process for each core. Owners
are hills in two dimensions. `--server` measures the server's part alone, without the engine: messages of
two owners stand for all. `--secure` measures a secure sum of all owners, without the engine. It needs the
extra `secure`.
"""

import argparse
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.random as jr
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import jaxbo
from jaxbo.federation import Coordinator, Owner, SecureSum, flower, public_key

ROUNDS, INITIAL, DEADLINE = 3, 2, 3600.0
KEY = jr.key(0)


class Rounds(logging.Handler):
    """The server's lines about rounds."""

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


def method(owners: int) -> jaxbo.LearnedPrior:
    return jaxbo.LearnedPrior(jaxbo.Cube(2), owners, INITIAL + ROUNDS)


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---------------------------------------------------------------- the server alone


class RoundCost(NamedTuple):
    """CPU seconds of an owner that answers, and of a server that hears all owners and ends the round."""

    answer: float
    hear: float
    close: float


def rounds_alone(owners: int) -> list[RoundCost]:
    """All exchanges of a federation, the first of which compile."""
    found, algorithm = [], method(owners)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        server = Coordinator(algorithm, ROUNDS, KEY, path / "server.npz", initial=INITIAL)
        for name in "01":
            (path / name).mkdir()
        pair = [Owner(algorithm, hill, agent, path / str(agent)) for agent in (0, 1)]
        while not server.done:
            request, times = server.request(), [time.process_time()]
            replies = [pair[0].answer(request)]
            times.append(time.process_time())
            replies.append(pair[1].answer(request))
            times.append(time.process_time())
            for agent in range(owners):
                server.hear(replies[agent % 2]._replace(agent=agent))
            times.append(time.process_time())
            server.close()
            times.append(time.process_time())
            took = np.diff(times)
            found.append(RoundCost(took[0], took[2], took[3]))
    return found


# ---------------------------------------------------------------- a secure sum


class Exchange(NamedTuple):
    """Bytes of arrays to an owner and from it, and CPU seconds of its answer and of the server."""

    to: int
    back: int
    answer: float
    server: float


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def sum_alone(owners: int) -> list[Exchange]:
    """The four exchanges of a secure sum, as the first owner sees them. Another sum compiles before."""
    secure = SecureSum(threshold=-(-2 * owners // 3), colluding=0 if owners < 5 else 1)
    algorithm = jaxbo.DPLearnedPrior(jaxbo.Cube(2), owners, INITIAL + ROUNDS, releases=2)
    ledger, found = jaxbo.Ledger(jaxbo.accounting.delta_for(owners)), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        options = {"initial": INITIAL, "ledger": ledger, "secure": secure}
        server = Coordinator(algorithm, 2, KEY, path / "server.npz", **options)
        for n in range(owners):
            (path / str(n)).mkdir()
        directory = path / "directory.txt"
        directory.write_text("".join(f"{n} {public_key(path / str(n))}\n" for n in range(owners)))
        known = {"secure": secure, "directory": directory}
        all_ = [Owner(algorithm, hill, n, path / str(n), **known) for n in range(owners)]
        while not server.done:
            begin, took, sizes = time.process_time(), [], []
            for n, owner in enumerate(all_):
                request, start = server.request(n), time.process_time()
                reply = owner.answer(request)
                took.append(time.process_time() - start)
                server.hear(reply)
                asked = {**(request.broadcast or {}), **(request.lists or {})}
                sizes.append([_bytes(arrays) for arrays in (asked, reply.message)])
            server.close()
            rest = time.process_time() - begin - sum(took)
            (to, back), median = sizes[0], float(np.median(took))
            found.append(Exchange(to, back, median, rest))
    return found[4:8]


# ---------------------------------------------------------------- on the engine


def simulate(owners: int, out: Path) -> None:
    """Runs a federation on the engine, and prints the server's lines."""
    algorithm = method(owners)
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
        memory.append(megabytes())
        app(grid, context)
        memory.append(megabytes())

    out.mkdir(parents=True)  # FileExistsError for files of another run
    start = time.monotonic()
    cores = {"num_cpus": os.cpu_count() or 1}
    backend = {"init_args": cores, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, owners, backend_config=backend)
    print(*rounds.lines, sep="\n")
    print(
        f"{owners} owners: {time.monotonic() - start:.0f} s; peak memory of the server "
        f"{memory[0]:.0f} MB before, {memory[1]:.0f} MB after"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="many virtual owners on Flower's simulation engine"
    )
    parser.add_argument("owners", type=int, help="how many")
    parser.add_argument("--out", type=Path, default=Path("out/simulation"), help="for their files")
    parser.add_argument("--server", action="store_true", help="the server's part alone")
    parser.add_argument("--secure", action="store_true", help="a secure sum alone")
    options = parser.parse_args()
    if not (options.server or options.secure):
        simulate(options.owners, options.out.resolve())
        return
    if options.secure:
        _print_sum(sum_alone(options.owners))
        return
    before = megabytes()
    for number, took in enumerate(rounds_alone(options.owners)):
        print(f"exchange {number}:", *(f"{name} {s:.3f} s" for name, s in took._asdict().items()))
    print(f"peak memory {before:.0f} MB before, {megabytes():.0f} MB after")


def _print_sum(stages: list[Exchange]) -> None:
    for name, one in zip(
        ("keys", "shares", "masked", "open", "sum"), [*stages, _total(stages)], strict=True
    ):
        print(
            f"{name}: {one.to} bytes to an owner, {one.back} from it; {one.answer:.3f} s of its CPU, "
            f"{one.server:.3f} s of the server's"
        )


def _total(stages: list[Exchange]) -> Exchange:
    return Exchange(*(sum(column) for column in zip(*stages, strict=True)))


if __name__ == "__main__":
    main()
