"""Flower carries what owners and the server say: in one process, and in processes of their own."""

import io
import itertools
import logging
import math
import re
from collections import Counter

import httpx
import jax.random as jr
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxbo
from jaxbo.federation import (
    Coordinator,
    RefusedError,
    SecureSum,
    _sides,
    coordinator,
    flower,
    observations,
    public_key,
)
from jaxbo.federation.flower import _exchange, _records
from tests.walk import LEDGER, PrivateWalk, SumWalk, Walk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, ROUNDS, INITIAL = 3, 4, 2
KEY = jr.key(11)
SQUARE = jaxbo.Cube(2)
#: What Flower carries does not depend on what owners do.
WALK = Walk(SQUARE, AGENTS)
PRIVATE = PrivateWalk(SQUARE, AGENTS, mechanism=jaxbo.Mechanism(1.0, 5.0, jaxbo.Poisson(0.5)))
ALGORITHMS = {
    "a method without releases": WALK,
    "a private method": PRIVATE,
    "DP-FTS-DE": jaxbo.DPFTSDE(jaxbo.Finite(np.random.default_rng(0).random((50, 2))), AGENTS),
}
LEDGERS = {"a private method": LEDGER, "DP-FTS-DE": LEDGER}


@pytest.fixture(autouse=True)
def _identity():
    """The identity of a process of Flower's."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Clock:
    """Nobody waits."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    time = Clock()
    monkeypatch.setattr(_exchange, "time", time)
    return time


def objective(agent, x):
    return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))


class Here(Grid):
    """All nodes in this process. A client's exception becomes the error that Flower makes of it.

    `spoil` changes what a node answers, `tamper` the bytes that Flower makes of it. `call` is
    what happens whenever the server speaks to Flower, which takes time in the world.
    """

    def __init__(
        self,
        client,
        folders,
        spoil=lambda node, reply: reply,
        tamper=lambda node, parts: parts,
        call=lambda: None,
        config=None,
    ):
        self.client, self.folders, self.spoil, self.tamper = client, folders, spoil, tamper
        self.call, self.config = call, config or {}
        self.limits, self.records, self.answers, self.pushed = [], set(), {}, []
        self.stamps = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **options):
        raise NotImplementedError

    def push_messages(self, messages):
        self.call()
        names = []
        for message in messages:
            self.limits.append(message.metadata.ttl)
            self.stamps.append((message.metadata.created_at, message.metadata.dst_node_id))
            self.pushed.append((message.metadata.dst_node_id, message.metadata.group_id))
            names.append(f"{len(self.pushed)}")
            self.answers[names[-1]] = message.metadata.dst_node_id, self.answer(message)
        return names

    def pull_messages(self, message_ids):
        self.call()
        return [reply for name in message_ids for reply in self.pulled(*self.answers[name])]

    def pulled(self, node, replies):
        """The messages that Flower reads. It can read an answer once."""
        while replies:
            reply = replies.pop()
            parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            yield inflate_object_from_contents(reply.object_id, self.tamper(node, parts))

    def get_node_ids(self):
        self.call()
        return list(self.folders)

    def send_and_receive(self, messages, *, timeout=None):
        pytest.fail("one answer that Flower cannot read would take all others with it")

    def answer(self, message):
        node = message.metadata.dst_node_id
        config = {"partition-id": node - 100, "folder": str(self.folders[node])}
        context = Context(0, node, config | self.config, RecordDict(), {})
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


def serve(app, grid, path, **config):
    config = {"checkpoint": str(path / "server.npz"), **config}
    app(grid, Context(0, 1, {}, RecordDict(), config))


def found(folders):
    files = [next(folder.glob("*.npz")) for folder in folders.values()]
    return [observations(file) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full) if n == "DP-FTS-DE" else n for n in ALGORITHMS],
)
def test_a_run_on_flower_queries_what_drive_does(name, tmp_path, caplog, monkeypatch):
    algorithm = ALGORITHMS[name]
    monkeypatch.setattr(coordinator, "fresh", lambda key: key)  # noise that can be told
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGERS.get(name)}
    made, setup = [], _sides.setup
    monkeypatch.setattr(_sides, "setup", lambda *given: made.append(given) or setup(*given))
    client = flower.client_app(algorithm, objective, key=KEY)
    server = flower.server_app(algorithm, ROUNDS, KEY, **options)
    grid = Here(client, nodes(tmp_path))
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, grid, tmp_path)
    queries = np.stack([one.queries for one in found(grid.folders)], 1)
    options = {"initial": INITIAL, "progress": False}
    _, trace = jaxbo.drive(algorithm, objective, ROUNDS, KEY, **options)
    np.testing.assert_allclose(queries, trace.queries, atol=2e-3)
    assert "round 4 of 4: 3 of 3 owners" in caplog.text
    assert "a message of" in caplog.text
    assert "400 bytes of numbers" in caplog.text
    assert grid.records == {"reply", "message"}  # and nothing else leaves an owner
    assert len(made) == 2  # by the server, and by the process of all owners
    assert set(grid.limits) == {77.0}  # nobody is waited for, or asked, any longer


@pytest.mark.slow
def test_secure_sums_on_flower_query_what_drive_does(tmp_path, caplog):
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}
    grid = Here(client, nodes(tmp_path), _away_once)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(flower.server_app(algorithm, 3, KEY, **options), grid, tmp_path)
    queries = np.stack([one.queries for one in found(grid.folders)], 1)
    # Who was away after its masked numbers were sent is in the sum.
    _, trace = jaxbo.drive(algorithm, objective, 3, KEY, initial=INITIAL, progress=False)
    np.testing.assert_allclose(queries, trace.queries, atol=0.01)
    assert "joined: 3 of 3 owners" in caplog.text
    assert "stage 4 after round 1: 2 of 3 owners" in caplog.text
    assert grid.records == {"reply", "message"}
    assert set(grid.limits) == {77.0, 60.0}  # the latter where nothing is evaluated


@pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.slow), False])
def test_parties_on_flower_have_the_directory_of_their_configuration(known, tmp_path, caplog):
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}
    folders, path = nodes(tmp_path), tmp_path / "directory.txt"
    keys = [public_key(folder) for folder in folders.values()]
    path.write_text("".join(f"{n} {key}\n" for n, key in enumerate(keys)))
    grid = Here(client, folders, _unsigned_once, config={"directory": str(path)})
    server = flower.server_app(algorithm, 2, KEY, **options)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, grid, tmp_path, directory=str(path) if known else "")
    if known:  # the others go on
        assert "agent 2: its keys are not signed as the server's directory asks for" in caplog.text
        assert "joined: 2 of 3 owners" in caplog.text
        assert "stage 4 after the invitation: 2 of 3 owners" in caplog.text
        assert "has no sum" not in caplog.text
    else:
        assert "the keys of agent 2 are not signed as this owner's directory" in caplog.text
        assert caplog.text.count("has no sum: 0 owners, below the threshold of 2 in stage 2") == 1
    assert "stage 4 after round 1: 3 of 3 owners" in caplog.text


def _unsigned_once(node, reply):
    if reply.has_content() and node == 102:
        config, message = reply.content["reply"], reply.content["message"]
        if (config["round"], config["stage"]) == (-1, 0):
            kept = message["['signature']"]
            nothing = bytes(len(kept.data))
            message["['signature']"] = Array(kept.dtype, kept.shape, kept.stype, nothing)
    return reply


def _away_once(node, reply):
    config = reply.content["reply"]
    return None if (node, config["round"], config["stage"]) == (102, 0, 3) else reply


@pytest.mark.slow
def test_a_server_that_is_started_again_sends_each_owner_its_own_boxes(tmp_path, caplog):
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}
    killed = []

    def spoil(node, reply):
        if reply.has_error():  # of an owner that is asked without having been in the stage before
            return reply
        stage = reply.content["reply"]["stage"]
        if (node, stage) == (102, 2) and not killed:
            killed.append(True)
            raise KeyboardInterrupt
        return None if (node, stage) == (101, 0) else reply

    grid = Here(client, nodes(tmp_path), spoil)
    app = flower.server_app(algorithm, 1, KEY, **options)
    with pytest.raises(KeyboardInterrupt):
        serve(app, grid, tmp_path)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(app, grid, tmp_path)
    assert "stage 3 after the invitation: 2 of 3 owners" in caplog.text
    assert "stage 4 after the invitation: 2 of 3 owners" in caplog.text
    # An owner that gave no keys has no boxes: it is asked in the first two exchanges alone.
    asked = Counter(node for node, round in grid.pushed if round == "-1")
    assert asked == {100: 5, 101: 2, 102: 5}


@pytest.mark.slow
def test_a_node_that_answers_for_another_owner_in_a_sum_is_refused_by_name(tmp_path, caplog):
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}
    grid = Here(client, nodes(tmp_path), _for_another_once_a_sum)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(flower.server_app(algorithm, 3, KEY, **options), grid, tmp_path)
    said = r"node 100(?: \(\d+ refused\))?: agent 1: it began this sum as node 101, and no other"
    assert len(re.findall(said, caplog.text)) == 3
    # Its own number is absent, and the owner whose number it gave is heard.
    assert "heard already" not in caplog.text
    assert "node 101: " not in caplog.text
    assert "has no sum" not in caplog.text
    for name in ("stage 2 after the invitation", "stage 3 after round 1", "stage 4 after round 2"):
        assert re.search(rf"{name}: 2 of 3 owners .* absent: \[0\]; 1 refused", caplog.text)
    heard = np.load(tmp_path / "server.npz")["present"]
    np.testing.assert_array_equal(heard, [[0, 1, 1], [0, 1, 1], [1, 1, 1]])


def _for_another_once_a_sum(node, reply):
    """Node 100 answers before the others. It gives another number in a later stage of each sum."""
    if node != 100 or reply.has_error():
        return reply
    config = reply.content["reply"]
    return _config(reply, agent=1) if config["stage"] == config["round"] + 2 else reply


def test_a_node_cannot_begin_a_sum_as_another_owner(tmp_path, caplog):
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}

    def spoil(node, reply):
        if node != 100 or reply.has_error():
            return reply
        config = reply.content["reply"]
        return _config(reply, agent=1) if (config["stage"], config["round"]) == (0, 0) else reply

    grid = Here(client, nodes(tmp_path), spoil)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(flower.server_app(algorithm, 2, KEY, **options), grid, tmp_path)
    assert "node 100: agent 1: node 100 is agent 0, and node 101 is agent 1" in caplog.text
    assert re.search(r"round 1 of 2: 2 of 3 owners .* absent: \[0\]; 1 refused", caplog.text)
    assert "node 101: " not in caplog.text
    heard = np.load(tmp_path / "server.npz")["present"]
    np.testing.assert_array_equal(heard, [[1, 1, 1], [0, 1, 1]])


@pytest.mark.slow
def test_an_owner_whose_node_has_another_name_misses_this_sum_alone(tmp_path, caplog):
    """Flower names a node anew if it registers anew, as after a stop without a database."""
    quiet = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
    algorithm, secure = SumWalk(SQUARE, AGENTS, mechanism=quiet), SecureSum(2, colluding=0)
    client = flower.client_app(algorithm, objective, key=KEY, secure=secure)
    options = {"initial": INITIAL, "deadline": 77.0, "ledger": LEDGER, "secure": secure}
    grid = Here(client, nodes(tmp_path))
    answer = grid.answer

    def spoil(node, reply):
        if node == 102 and reply.content["reply"]["stage"] == 1:
            grid.folders[202] = grid.folders.pop(102)
            return None
        return reply

    def known(message):
        grid.config = {"partition-id": 2} if message.metadata.dst_node_id == 202 else {}
        return answer(message)

    grid.spoil, grid.answer = spoil, known
    with caplog.at_level(logging.INFO, "flwr"):
        serve(flower.server_app(algorithm, 2, KEY, **options), grid, tmp_path)
    assert "node 202: agent 2: it began this sum as node 102, and no other" in caplog.text
    heard = np.load(tmp_path / "server.npz")["present"]
    np.testing.assert_array_equal(heard, [[1, 1, 0], [1, 1, 1]])


def _nan(reply):
    weights = np.full(100, math.nan, np.float32)
    reply.content["message"] = _records.arrays({".weights": weights})
    return reply


def _shape(reply):
    reply.content["message"] = _records.arrays({".weights": np.zeros(3, np.float32)})
    return reply


def _config(reply, **fields):
    reply.content["reply"] = ConfigRecord(dict(reply.content["reply"]) | fields)
    return reply


def _empty(reply):
    reply.content = RecordDict()
    return reply


def _more(reply):
    reply.content["more"] = ConfigRecord({"text": ""})
    return reply


def _weights(dtype="float32", shape=(100,), stype=_records.BYTES, data=bytes(400)):
    def spoil(reply):
        reply.content["message"] = ArrayRecord({".weights": Array(dtype, shape, stype, data)})
        return reply

    return spoil


def _saved(save):
    file = io.BytesIO()
    save(file, np.zeros(100, np.float32))
    return file.getvalue()


SPOILED = {
    "silence": (lambda reply: None, None),
    "NaN": (_nan, "agent 1: .*not finite"),
    "shape": (_shape, "agent 1: .*must be float32"),
    "old": (lambda reply: _config(reply, round=-2), "agent 1: .*follows round -2"),
    "algorithm": (lambda reply: _config(reply, algorithm="other"), "agent 1: .*algorithm"),
    "kind": (
        lambda reply: _config(reply, agent="one"),
        "names no agent: agent must be of type int",
    ),
    "agent 0.0": (
        lambda reply: _config(reply, agent=0.0),
        "names no agent: agent must be of type int",
    ),
    "agent True": (
        lambda reply: _config(reply, agent=True),
        "names no agent: agent must be of type int",
    ),
    "empty": (_empty, "no reply"),
    "more": (_more, "no reply"),
    "more fields": (lambda reply: _config(reply, more=""), "no reply"),
    "an empty list": (lambda reply: _config(reply, round=[]), "round must be of type int"),
    "npy": (_weights(stype="numpy.ndarray", data=_saved(np.save)), "not of jaxbo's"),
    "npz": (_weights(stype="numpy.ndarray", data=_saved(np.savez)), "not of jaxbo's"),
    "npz as bytes": (_weights(data=_saved(np.savez)), "cannot reshape"),
    "no bytes": (_weights(data=b""), "no reply"),
    "three bytes": (_weights(data=bytes(3)), "buffer size"),
    "too many bytes": (_weights(data=bytes(10**7)), "cannot reshape"),
    "of an enormous shape": (_weights(shape=(10**12,)), "cannot reshape"),
    "of a negative shape": (_weights(shape=(-7,)), "no reply"),
    "objects": (_weights("object"), "no reply"),
    "no type": (_weights("f" * 10**6), "not of jaxbo's"),
    "records": (_weights("f4,f4,f4,f4"), "no reply"),
    "an error without a reason": (
        lambda reply: Message(Error(0), reply_to=asked_by(reply)),
        "None",
    ),
}


def asked_by(reply):
    """The message that it answers, as far as an answer needs it."""
    return Message(RecordDict(), reply.metadata.src_node_id, "train")


@pytest.mark.slow
def test_an_answer_of_no_use_is_refused_and_counts_as_absent(tmp_path, caplog):
    """A kind in every round but the first, and in the last one none."""
    answers = itertools.count()

    def in_turn(node, reply):
        if node != 101:
            return reply
        kind = next(answers) - 1
        return kinds[kind][0](reply) if 0 <= kind < len(kinds) else reply

    kinds = list(SPOILED.values())
    rounds = len(kinds) + 1
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, rounds, KEY)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, Here(client, nodes(tmp_path), in_turn), tmp_path)
    assert absent(tmp_path, rounds) == [[kind + 1, 1] for kind in range(len(kinds))]
    said = caplog.text
    for kind, (_, reason) in enumerate(kinds):
        before, said = said.split(f"round {kind + 1} of {rounds}: ", 1)
        assert said.startswith("2 of 3 owners")
        assert "absent: [1]" in said.splitlines()[0]
        assert reason is None or re.search(reason, before)
    assert f"round {rounds} of {rounds}: 3 of 3 owners" in said


def absent(path, rounds):
    """Rounds and agents, of the server that has ended."""
    server = Coordinator(WALK, rounds, KEY, path / "server.npz")
    server.stop()
    return np.argwhere(~server.present).tolist()


def _head(parts, kind):
    """The name of a part of this kind."""
    return next(name for name, part in parts.items() if part.startswith(kind.encode() + b" "))


def _body(kind, change):
    def tamper(parts):
        name = _head(parts, kind)
        head, body = parts[name].split(b"\x00", 1)
        return parts | {name: head + b"\x00" + change(body)}

    return tamper


#: What its hash says it is, and Flower cannot read.
UNREADABLE = {
    "missing": lambda parts: parts | {_head(parts, "ArrayChunk"): b""},
    "no JSON": _body("Array", lambda body: b"{"),
    "no dictionary": _body("Array", lambda body: b"[]"),
    "other parts": _body("ArrayRecord", lambda body: b'{".weights": "00"}'),
    "nested": _body("Array", lambda body: b"[" * 100_000),
    "no text": _body("Array", lambda body: b"\xff" * 9),
    "another message": _body("ConfigRecord", lambda body: b"\x08" * 50),
}


@pytest.mark.slow
def test_an_answer_that_flower_cannot_read_is_refused_as_well(tmp_path, caplog):
    """The invitation's of every owner, and a kind in every round."""
    pulled, kinds = itertools.count(), list(UNREADABLE.values())

    def tamper(node, parts):
        return kinds[next(pulled)](parts) if node == 101 else parts

    rounds = len(kinds) - 1
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, rounds, KEY)
    grid = Here(client, nodes(tmp_path), tamper=tamper)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, grid, tmp_path)
    assert absent(tmp_path, rounds) == [[round, 1] for round in range(rounds)]
    assert f"node 101 ({len(kinds)} refused): a reply that names no agent: no reply" in caplog.text


@pytest.mark.slow
def test_where_the_network_fails_the_app_ends_and_loses_nothing(tmp_path):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 3, KEY)
    grid = Here(client, nodes(tmp_path))
    failures = [httpx.HTTPStatusError("busy", request=None, response=None)]
    failures += [httpx.ConnectError("gone")]

    def tamper(node, parts):
        if failures and node == 101:
            raise failures.pop()
        return parts

    grid.tamper = tamper
    with pytest.raises(httpx.ConnectError):
        serve(server, grid, tmp_path)
    serve(server, grid, tmp_path)
    assert absent(tmp_path, 3) in ([], [[0, 1]])  # the answer in flight may be lost


def test_an_owner_that_comes_in_the_middle_of_a_round_is_asked(tmp_path, clock):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 2, KEY, deadline=60.0)
    silent = lambda node, reply: reply if node != 100 or clock.now > 100 else None  # noqa: E731
    grid = Here(client, nodes(tmp_path), silent)
    there = grid.get_node_ids
    grid.get_node_ids = lambda: [node for node in there() if node != 102 or clock.now > 90]
    serve(server, grid, tmp_path)
    assert grid.pushed.count((102, "-1")) == 1
    assert absent(tmp_path, 2) == [[0, 0]]


def test_a_late_answer_is_used_while_the_round_is_open(tmp_path, clock, caplog):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 2, KEY, deadline=60.0)
    grid = Here(client, nodes(tmp_path))
    pull, asked = grid.pull_messages, {}

    def late(names):
        """Node 101 takes 50 seconds for each answer."""
        slow = [n for n in names if grid.answers[n][0] == 101]
        return (
            []
            if any(clock.now < asked.setdefault(n, clock.now) + 50 for n in slow)
            else pull(names)
        )

    grid.pull_messages = late
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, grid, tmp_path)
    assert absent(tmp_path, 2) == []
    assert 3 * 50 <= clock.now < 3 * 52
    assert "deadline" not in caplog.text


def test_a_round_waits_for_the_first_owner_to_come(tmp_path, clock):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 1, KEY, deadline=60.0)
    grid = Here(client, nodes(tmp_path))
    there = grid.get_node_ids
    grid.get_node_ids = lambda: there() if clock.now > 90 else []  # nobody before the invitation
    serve(server, grid, tmp_path)
    assert absent(tmp_path, 1) == []


def test_a_deadline_that_passes_is_told_in_two_lines(tmp_path, caplog):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 1, KEY, deadline=7.0)
    grid = Here(client, nodes(tmp_path), lambda node, reply: None if node == 101 else reply)
    with caplog.at_level(logging.WARNING, "flwr"):
        serve(server, grid, tmp_path)
    said = [record.getMessage().splitlines() for record in caplog.records]
    assert [len(lines) for lines in said] == [2, 2]
    assert "deadline of 7 s passed in the invitation without owners [1]" in said[0][0]
    assert "deadline of 7 s passed in round 1 without owners [1]" in said[1][0]
    assert all("give a longer deadline" in lines[1] for lines in said)


NOTHING_OF_USE = {
    "the deadline of 7 s passed in the invitation, and nobody answered": lambda node, reply: None,
    "none of the 3 answers in the invitation could be used": lambda node, reply: _empty(reply),
}


@pytest.mark.parametrize("text", NOTHING_OF_USE)
def test_a_run_that_nobody_answers_ends_in_two_lines_without_a_traceback(text, tmp_path, caplog):
    server = flower.server_app(WALK, 1, KEY, deadline=7.0)
    client = flower.client_app(WALK, objective)
    grid = Here(client, nodes(tmp_path), NOTHING_OF_USE[text])
    try:
        serve(server, grid, tmp_path)
    except Exception as error:
        logging.getLogger("flwr").error("%s raised an exception", "ServerApp", exc_info=error)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info is None
    first, second = record.getMessage().splitlines()
    assert first.startswith(text)
    assert "give a longer deadline" in second


@pytest.mark.slow
def test_a_log_says_what_a_round_has_spent_and_when_the_budget_is(tmp_path, caplog):
    two = jaxbo.Ledger(delta=1e-5).charge(PRIVATE.mechanism, 2).epsilon()
    ledger = jaxbo.Ledger(delta=1e-5, budget=1.0001 * two)
    algorithm = PrivateWalk(SQUARE, AGENTS, mechanism=PRIVATE.mechanism, releases=2)
    client = flower.client_app(algorithm, objective)
    server = flower.server_app(algorithm, 3, KEY, ledger=ledger, deadline=5.0)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, Here(client, nodes(tmp_path)), tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    spent = [line.split("; epsilon ")[1] for line in lines if "; epsilon " in line]
    one = ledger.charge(PRIVATE.mechanism).epsilon()
    assert spent[0] == f"{one:.3g} spent, {1.0001 * two - one:.3g} left"
    assert spent[1:] == [f"{two:.3g} spent, {0.0001 * two:.3g} left"] * 3
    announced = [n for n, line in enumerate(lines) if "the budget is spent" in line]
    rounds = [n for n, line in enumerate(lines) if "owners in" in line]
    assert announced == [
        rounds[1] + 1
    ]  # with the second release, which the first round's end makes


@pytest.mark.slow
def test_owners_with_budgets_of_their_own_refuse_what_is_beyond(tmp_path, caplog):
    two = jaxbo.Ledger(delta=1e-5).charge(PRIVATE.mechanism, 2).epsilon()
    config = {"budget": 1.0001 * two, "delta": 1e-5}
    server = flower.server_app(PRIVATE, 3, KEY, ledger=LEDGER, deadline=5.0)
    folders, client = nodes(tmp_path), flower.client_app(PRIVATE, objective)
    serve(server, Here(client, folders, config=config), tmp_path)
    refused = [line for line in caplog.messages if f"2 releases have spent {two:.4g}" in line]
    assert len(refused) == 2 * AGENTS  # in the last two rounds
    assert [owner.rounds.tolist() for owner in found(folders)] == [[0]] * AGENTS


@pytest.mark.parametrize(
    "config", [{"budget": 1.0}, {"delta": 1e-5}, {"budget": "1", "delta": 0.1}]
)
def test_a_ledger_in_a_nodes_configuration_has_two_numbers(config, tmp_path, caplog):
    server = flower.server_app(PRIVATE, 1, KEY, ledger=LEDGER, deadline=5.0)
    grid = Here(flower.client_app(PRIVATE, objective), nodes(tmp_path), config=config)
    serve(server, grid, tmp_path)
    assert "0 of 3 owners" in caplog.text
    assert "ValueError: see the owner's log" in caplog.text


OBSERVER = 100 + AGENTS
#: Who is connected, and who of them answers.
THERE = [((), ()), ((100,), ()), ((100, 101, 102), ()), ((100, 101, 102), (100, 102))]


@pytest.mark.parametrize("deadline", [0.3, 20.0, 2.5])
@pytest.mark.parametrize(("connected", "answering"), THERE)
def test_with_a_ledger_who_is_there_changes_neither_times_nor_numbers(
    connected, answering, deadline, tmp_path, clock
):
    cost = 0.005
    client = flower.client_app(PRIVATE, objective)
    server = flower.server_app(PRIVATE, 3, KEY, ledger=LEDGER, deadline=deadline)
    folders = nodes(tmp_path) | {OBSERVER: tmp_path / "observer"}
    folders[OBSERVER].mkdir()
    watched = []

    def watch(node, reply):
        if node == OBSERVER:  # who is asked, and never answers
            watched.append(clock.now)
        return reply if node in answering else None

    there = {node: folders[node] for node in (*connected, OBSERVER)}
    grid = Here(client, there, watch, call=lambda: clock.sleep(cost))
    serve(server, grid, tmp_path)
    rounds = deadline * np.arange(4)
    np.testing.assert_allclose(watched, rounds + 2 * cost, rtol=0, atol=1e-9)
    stamps = [stamp for stamp, node in grid.stamps if node == OBSERVER]
    np.testing.assert_allclose(stamps, rounds, rtol=0, atol=1e-9)
    assert set(grid.limits) == {deadline}
    assert clock.now == pytest.approx(4 * deadline, abs=1e-9)
    saved = tmp_path / "server.npz.released"
    assert jaxbo.Ledger.from_json(saved.read_text()).releases == 3
    heard = np.load(tmp_path / "server.npz")["present"]
    assert heard.sum(axis=1).tolist() == [len(answering)] * len(heard)


def test_many_silent_nodes_take_turns_and_delay_no_look(tmp_path, clock):
    client = flower.client_app(WALK, objective)
    silent = lambda node, reply: None  # noqa: E731
    grid = Here(client, nodes(tmp_path), silent, call=lambda: clock.sleep(0.3))
    pulled, looks = [], []
    pull, there = grid.pull_messages, grid.get_node_ids
    grid.pull_messages = lambda names: pulled.append(names[0]) or pull(names)
    grid.get_node_ids = lambda: looks.append(clock.now) or there()
    assert (
        list(_exchange.Asking(grid, lambda node: RecordDict(), 0, 4.0).answers(punctual=True)) == []
    )
    np.testing.assert_allclose(looks, [0.0, 1.0, 2.0, 3.0], atol=1e-9)
    assert pulled == ["1", "2", "3", "1", "2", "3", "1"]
    assert clock.now == pytest.approx(4)


@pytest.fixture(scope="module")
def open_round(tmp_path_factory):
    """A server whose round is open, and the parts of an answer that it has not heard."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    path = tmp_path_factory.mktemp("open")
    server = Coordinator(WALK, 2, KEY, path / "server.npz")
    client = flower.client_app(WALK, objective)
    grid = Here(client, nodes(path))
    grid.push_messages([Message(_records.of_request(server.request()), 100, "train")])
    _, (reply,) = grid.answers["1"]
    parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
    yield server, reply.object_id, parts
    server.stop()


def spoiled(part, changes):
    """These bytes with some of them replaced, cut off or doubled."""
    for place, kind, byte in changes:
        at = place % (len(part) + 1)
        change = {
            "set": bytes([byte]) + part[at + 1 :],
            "cut": b"",
            "again": part[max(at - 9, 0) :],
        }
        part = part[:at] + change[kind]
    return part


def is_heard_or_refused(open_round, which, changes):
    server, name, parts = open_round
    names = sorted(parts)
    parts = parts | {n: spoiled(parts[n], changes) for n in names[which % len(names) :][:1]}
    grid = Here(None, {})
    grid.pull_messages = lambda _: [inflate_object_from_contents(name, dict(parts))]
    (answer,) = _exchange.pulled(grid, name)
    try:
        server.hear(_records.to_reply(answer))
    except RefusedError:
        pass
    else:
        weights = server._messages.popitem()[1].weights
        assert weights.shape == (100,)
        assert np.isfinite(weights).all()


CHANGES = st.lists(
    st.tuples(st.integers(0, 2000), st.sampled_from(["set", "cut", "again"]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
ONE_ANSWER = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, **ONE_ANSWER)
@given(which=st.integers(0, 9), changes=CHANGES)
def test_an_answer_with_other_bytes_is_heard_or_refused(open_round, which, changes):
    is_heard_or_refused(open_round, which, changes)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=10_000, **ONE_ANSWER)
@given(which=st.integers(0, 9), changes=CHANGES)
def test_ten_thousand_answers_with_other_bytes_are_heard_or_refused(open_round, which, changes):
    is_heard_or_refused(open_round, which, changes)


def test_an_owners_error_travels_without_its_data(tmp_path, caplog):
    def broken(agent, x):
        return "secret 42" if agent == 1 else objective(agent, x)

    client = flower.client_app(WALK, broken)
    server = flower.server_app(WALK, 2, KEY, initial=1)
    with caplog.at_level(logging.INFO, "flwr"):
        serve(server, Here(client, nodes(tmp_path)), tmp_path)
    assert "joined: 2 of 3 owners" in caplog.text
    assert "returned no number" in caplog.text
    assert "42" not in "".join(
        r.getMessage() for r in caplog.records if "node 101" in r.getMessage()
    )


def test_an_owner_without_a_name_or_a_folder_is_told_so(tmp_path, caplog):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 2, KEY)
    grid = Here(client, nodes(tmp_path) | {100: tmp_path / "nowhere"})
    serve(server, grid, tmp_path)
    # Where the folder would be is nobody else's business.
    assert "ValueError: see the owner's log" in caplog.text
    assert "nowhere" not in caplog.text
    for config in ({"partition-id": 0}, {"folder": str(tmp_path)}):
        message = Message(RecordDict(), 100, "train")
        with pytest.raises(ValueError, match="start the SuperNode with"):
            client(message, Context(0, 100, config, RecordDict(), {}))


@pytest.mark.slow
def test_a_server_without_a_checkpoint_or_an_answer_says_so(tmp_path):
    client = flower.client_app(WALK, objective)
    server = flower.server_app(WALK, 2, KEY)
    grid = Here(client, nodes(tmp_path), lambda node, reply: None)
    with pytest.raises(ValueError, match="absolute path as its checkpoint"):
        server(grid, Context(0, 1, {}, RecordDict(), {}))
    with pytest.raises(RuntimeError, match="nobody answered"):
        serve(server, grid, tmp_path)
    grid.spoil = lambda node, reply: reply
    serve(server, grid, tmp_path)  # started again it goes on
    with pytest.raises(ValueError, match="deadline"):
        flower.server_app(WALK, 2, KEY, deadline=0.0)
