"""Bytes on the wire in a round of a federation, beside those of arrays and of Flower's records.

    python federation/traffic.py [OUT]

This is the federation of `start.py`, with its files in OUT, by default out/traffic. A relay between the
owners and the server counts what TCP carries, without its own headers and without encryption. The rest is
from the server's log. All are bytes of a round and an owner.
"""

import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import owners
from local import Local

APP = Path(__file__).resolve().parent
#: Bytes that are read at a time.
CHUNK = 65536
ROUND = re.compile(r"round (\d+) of .* in ([\d.]+) s, (\d+) bytes sent and (\d+) received")
NUMBERS = re.compile(r"a message of \w+ has (\d+) bytes of numbers")


class Relay(AbstractContextManager):
    """Passes on what arrives at its port to a server's port and back, and counts it."""

    def __init__(self, port: int):
        self._port, self._lock = port, threading.Lock()
        self.to_server = self.from_server = 0

    def __enter__(self) -> "Relay":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes up whoever accepts
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                owner, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(owner,), daemon=True).start()

    def _connect(self, owner: socket.socket) -> None:
        to = "127.0.0.1", self._port
        with owner, suppress(OSError), socket.create_connection(to) as server:
            way_back = server, owner, False
            back = threading.Thread(target=self._pass_on, args=way_back, daemon=True)
            back.start()
            self._pass_on(owner, server, True)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, there: bool) -> None:
        with suppress(OSError):  # either side has ended
            while data := source.recv(CHUNK):
                with self._lock:
                    self.to_server += len(data) * there
                    self.from_server += len(data) * (not there)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class Traffic(NamedTuple):
    """Bytes of an owner in a round, to the server and from it."""

    round: int
    seconds: float
    records: tuple[int, int]
    wire: tuple[int, int]


def rounds(lines: Iterable[str], relay: Relay, agents: int) -> tuple[int, list[Traffic]]:
    """Bytes of numbers of a message, and the traffic of all rounds. It ends with the last round."""
    numbers, found, before = 0, [], (0, 0)
    for line in lines:
        now = relay.to_server, relay.from_server
        if said := NUMBERS.match(line):
            numbers = int(said[1])
        if said := ROUND.match(line):
            sent, received = int(said[3]) // agents, int(said[4]) // agents
            wire = (now[0] - before[0]) // agents, (now[1] - before[1]) // agents
            found.append(Traffic(int(said[1]), float(said[2]), (received, sent), wire))
        if line.startswith(("joined", "round")):
            before = now
        if line.startswith(f"round {owners.ROUNDS} of"):
            break
    return numbers, found


def table(numbers: int, found: list[Traffic]) -> str:
    """The table of all rounds, in Markdown."""
    rows = [
        "| round | seconds | numbers of the message | records to the server | on the wire | "
        "records from it | on the wire |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        (up, down), (wire_up, wire_down) = one.records, one.wire
        cells = one.round, one.seconds, numbers, up, wire_up, down, wire_down
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main(out: Path) -> None:
    if (out / "server.log").exists():  # of an earlier start
        shutil.rmtree(out)
    out.mkdir(parents=True)
    with Local(out) as local, Relay(local.port) as relay:
        for n in range(owners.OWNERS):
            local.start_owner(n, address=relay.address)
        lines = local.run(APP, {"checkpoint": str(out / "server.npz")}, "run.log")
        print(table(*rounds(lines, relay, owners.OWNERS)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/traffic").resolve())
