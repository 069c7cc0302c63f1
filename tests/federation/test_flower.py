"""Flower carries what owners and the server say: in one process, and in processes of their own."""

import logging
import math
import re

import jax.random as jr
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import jaxbo
from jaxbo import flower
from jaxbo.federation import observations

AGENTS, ROUNDS, INITIAL = 3, 10, 2
KEY = jr.key(11)
ALGORITHMS = {
    "FTS": jaxbo.FTS(jaxbo.Cube(2), AGENTS),
    "DP-FTS-DE": jaxbo.DPFTSDE(jaxbo.Cube(2), AGENTS),
}


@pytest.fixture(autouse=True)
def _identity():
    """What a process of Flower's knows of itself."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def objective(agent, x):
    return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))


class Here(Grid):
    """All nodes in this process. A client's exception becomes the error that Flower makes of it."""

    def __init__(self, client, folders, spoil=lambda node, reply: reply):
        self.client, self.folders, self.spoil = client, folders, spoil
        self.limits, self.records = set(), set()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **options):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.folders)

    def send_and_receive(self, messages, *, timeout=None):
        self.limits |= {(timeout, message.metadata.ttl) for message in messages}
        return [reply for message in messages for reply in self.answer(message)]

    def answer(self, message):
        node = message.metadata.dst_node_id
        config = {"partition-id": node - 100, "folder": str(self.folders[node])}
        context = Context(0, node, config, RecordDict(), {})
        try:
            reply = self.client(message, context)
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        else:
            self.records |= set(reply.content)
        reply = self.spoil(node, reply)
        return [] if reply is None else [reply]


def nodes(path):
    """A folder for each node."""
    folders = {100 + n: path / str(n) for n in range(AGENTS)}
    for folder in folders.values():
        folder.mkdir()
    return folders


def serve(app, grid, path):
    app(grid, Context(0, 1, {}, RecordDict(), {"checkpoint": str(path / "server.npz")}))


def found(folders):
    files = [next(folder.glob("*.npz")) for folder in folders.values()]
    return [observations(file) for file in files]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_on_flower_queries_what_drive_does(name, tmp_path, caplog):
    algorithm = ALGORITHMS[name]
    client = flower.client_app(algorithm, objective, key=KEY)
    server = flower.server_app(algorithm, ROUNDS, KEY, initial=INITIAL, deadline=77.0)
    grid = Here(client, nodes(tmp_path))
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, grid, tmp_path)
    queries = np.stack([one.queries for one in found(grid.folders)], 1)
    options = {"initial": INITIAL, "progress": False}
    _, trace = jaxbo.drive(algorithm, objective, ROUNDS, KEY, **options)
    np.testing.assert_allclose(queries, trace.queries, atol=2e-3)
    assert "round 10 of 10: 3 of 3 owners" in caplog.text
    assert "a message of" in caplog.text
    assert "400 bytes of numbers" in caplog.text
    assert grid.records == {"reply", "message"}  # and nothing else leaves an owner
    assert grid.limits == {(77.0, 77.0)}  # nobody is waited for, or asked, any longer


def _nan(reply):
    weights = np.full_like(reply.content["message"][".weights"].numpy(), math.nan)
    reply.content["message"] = ArrayRecord({".weights": Array(weights)})
    return reply


def _shape(reply):
    reply.content["message"] = ArrayRecord({".weights": Array(np.zeros(3, np.float32))})
    return reply


def _config(reply, **fields):
    reply.content["reply"] = ConfigRecord(dict(reply.content["reply"]) | fields)
    return reply


def _empty(reply):
    reply.content = RecordDict()
    return reply


SPOILED = {
    "silence": (lambda reply: None, None),
    "NaN": (_nan, "agent 1: .*not finite"),
    "shape": (_shape, "agent 1: .*must be float32"),
    "old": (lambda reply: _config(reply, round=-2), "agent 1: .*follows round -2"),
    "algorithm": (lambda reply: _config(reply, algorithm="other"), "agent 1: .*algorithm"),
    "kind": (lambda reply: _config(reply, agent="one"), "this is no reply"),
    "empty": (_empty, "this is no reply"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_an_answer_of_no_use_is_refused_and_counts_as_absent(name, tmp_path, caplog):
    spoil, reason = SPOILED[name]
    seen = []

    def once(node, reply):
        seen.append(node)
        return spoil(reply) if node == 101 and seen.count(node) == 3 else reply

    client = flower.client_app(ALGORITHMS["FTS"], objective)
    server = flower.server_app(ALGORITHMS["FTS"], 4, KEY)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, Here(client, nodes(tmp_path), once), tmp_path)
    coordinator = jaxbo.federation.Coordinator(ALGORITHMS["FTS"], 4, KEY, tmp_path / "server.npz")
    absent = np.argwhere(~coordinator.present)
    np.testing.assert_array_equal(absent, [[2, 1]])
    assert "round 2 of 4: 2 of 3 owners" in caplog.text
    assert "absent: [1]" in caplog.text
    if reason is not None:
        assert any(re.search(reason, record.getMessage()) for record in caplog.records)


def test_an_owners_error_travels_without_its_data(tmp_path, caplog):
    def broken(agent, x):
        return "secret 42" if agent == 1 else objective(agent, x)

    client = flower.client_app(ALGORITHMS["FTS"], broken)
    server = flower.server_app(ALGORITHMS["FTS"], 2, KEY, initial=1)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, Here(client, nodes(tmp_path)), tmp_path)
    assert "joined: 2 of 3 owners" in caplog.text
    assert "returned no number" in caplog.text
    assert "42" not in "".join(
        r.getMessage() for r in caplog.records if "node 101" in r.getMessage()
    )


def test_an_owner_without_a_name_or_a_folder_is_told_so(tmp_path, caplog):
    client = flower.client_app(ALGORITHMS["FTS"], objective)
    server = flower.server_app(ALGORITHMS["FTS"], 2, KEY)
    grid = Here(client, nodes(tmp_path) | {100: tmp_path / "nowhere"})
    serve(server, grid, tmp_path)
    # Where the folder would be is nobody else's business.
    assert "ValueError: see the owner's log" in caplog.text
    assert "nowhere" not in caplog.text
    for config in ({"partition-id": 0}, {"folder": str(tmp_path)}):
        message = Message(RecordDict(), 100, "train")
        with pytest.raises(ValueError, match="start the SuperNode with"):
            client(message, Context(0, 100, config, RecordDict(), {}))


def test_a_server_without_a_checkpoint_or_an_answer_says_so(tmp_path):
    client = flower.client_app(ALGORITHMS["FTS"], objective)
    server = flower.server_app(ALGORITHMS["FTS"], 2, KEY)
    grid = Here(client, nodes(tmp_path), lambda node, reply: None)
    with pytest.raises(ValueError, match="absolute path as its checkpoint"):
        server(grid, Context(0, 1, {}, RecordDict(), {}))
    with pytest.raises(RuntimeError, match="nobody answered"):
        serve(server, grid, tmp_path)
    grid.spoil = lambda node, reply: reply
    serve(server, grid, tmp_path)  # started again it goes on
    with pytest.raises(ValueError, match="deadline"):
        flower.server_app(ALGORITHMS["FTS"], 2, KEY, deadline=0.0)
