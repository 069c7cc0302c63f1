"""The script that measures bytes on the wire, with a server that answers bytes."""

import importlib
import socket
import sys
import threading
from pathlib import Path

import pytest

import jaxbo

pytest.importorskip("flwr")
pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(jaxbo.__file__).parent.parent / "federation"))
traffic = importlib.import_module("traffic")


def answers_threefold(listener):
    """Answers each connection with three times its bytes."""
    for _ in range(2):
        connection, _ = listener.accept()
        data = b""
        while more := connection.recv(1000):
            data += more
        connection.sendall(3 * data)
        connection.close()


def asked(address, data):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 10) as owner:
        owner.sendall(data)
        owner.shutdown(socket.SHUT_WR)
        found = b""
        while more := owner.recv(1000):
            found += more
    return found


@pytest.mark.timeout(60)
def test_a_relay_passes_on_all_bytes_and_counts_them():
    data = bytes(range(256)) * 400
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answers_threefold, args=(listener,), daemon=True).start()
        with traffic.Relay(listener.getsockname()[1]) as relay:
            assert [asked(relay.address, d) for d in (data, b"more")] == [3 * data, 3 * b"more"]
            assert (relay.to_server, relay.from_server) == (len(data) + 4, 3 * len(data) + 12)


class Counter:
    to_server = from_server = 0


def test_a_table_has_the_bytes_of_each_round_alone():
    relay = Counter()

    def lines():
        yield "a message of FTS has 400 bytes of numbers"
        for name in ("joined: ", *(f"round {n} of 6: " for n in (1, 2, 6))):
            relay.to_server += 5000
            relay.from_server += 2000
            yield f"{name}5 of 5 owners in 2.0 s, 1500 bytes sent and 2500 received"
        pytest.fail("it does not end with the last round")

    numbers, found = traffic.rounds(lines(), relay, 5)
    each = {"seconds": 2.0, "records": (500, 300), "wire": (1000, 400)}
    assert found == [traffic.Traffic(n, **each) for n in (1, 2, 6)]
    assert numbers == 400
    assert (
        traffic.table(numbers, found).splitlines()[-1]
        == "| 6 | 2.0 | 400 | 500 | 1000 | 300 | 400 |"
    )
