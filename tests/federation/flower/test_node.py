"""A SuperNode that stays: what it takes from the server and gives back, and its worker's lives."""

import logging
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax.random as jr
import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.cli.flower_supernode import SuperNodeLifespanConfig

import jaxbo
from jaxbo.federation import Coordinator, RefusedError, flower
from jaxbo.federation.flower import _pinned, _records, _worker, node
from jaxbo.federation.flower._worker import Job
from jaxbo.federation.flower.node import Node, Server, Workers
from tests.federation import answering
from tests.runs.driven import environment
from tests.walk import Walk

KEY = jr.key(11)
WALK = Walk(jaxbo.Cube(2), 1)
RUN = 7


def objective(agent, x):
    return -float(np.sum(np.asarray(x, np.float64) ** 2))


class InThisProcess(Workers):
    """No process: the app is called. It dies where `lives` says so."""

    def __init__(self, client, lives=()):
        self.client, self.lives = client, list(lives)

    def answer(self, job: Job) -> Message | None:
        if self.lives and not self.lives.pop(0):
            return None
        return self.client(job.message, job.context)


class Link:
    """Flower's connection to a server, in this process: what is asked, and what has been answered."""

    def __init__(self, trusted=None, folder=""):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.waiting, self.parts, self.confirmed, self.heads = [], {}, [], []
        self.runs = 0
        config = {"partition-id": 0, "folder": str(folder)}
        self.config = SuperNodeLifespanConfig(
            **dict.fromkeys(SuperNodeLifespanConfig.__annotations__, None)
            | {"node_config": config, "trusted_entities": trusted}
        )

    def ask(self, content):
        message = Message(content, 1, "train", group_id="0")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.parts |= {
            name: part.deflate() for name, part in get_all_nested_objects(message).items()
        }
        self.waiting.append((message, get_object_tree(message)))

    def run(self, number):
        self.runs += 1
        run = Run.create_empty(number)
        run.fab_hash = "hash"
        return run

    def send(self, message, tree, seconds):
        assert seconds >= 0
        self.heads.append(message)
        return {name.object_id for name in whole(tree)}, "session"

    def push(self, number, session, name, content):
        assert (number, session) == (RUN, "session")
        self.parts[name] = content

    @property
    def server(self):
        receive = lambda: self.waiting.pop(0) if self.waiting else None  # noqa: E731
        fab = lambda name, number: Fab(name, b"", {})  # noqa: E731
        pull = lambda number, name: self.parts[name]  # noqa: E731
        confirm = lambda number, name: self.confirmed.append(name)  # noqa: E731
        return Server(1, receive, self.send, self.run, fab, pull, self.push, confirm)

    def answer(self):
        return inflate_object_from_contents(self.heads[-1].metadata.message_id, dict(self.parts))


def whole(tree):
    return [tree, *(one for child in tree.children for one in whole(child))]


@pytest.fixture(autouse=True)
def _no_app(monkeypatch):
    """The app's configuration is in its bundle, and there is none."""
    monkeypatch.setattr(node, "get_fused_config_from_fab", lambda content, run: {})


def test_a_node_answers_round_after_round_what_the_server_hears(tmp_path):
    link = Link(folder=tmp_path)
    staying = Node(link.server, link.config, InThisProcess(flower.client_app(WALK, objective)))
    server = Coordinator(WALK, 2, KEY, tmp_path / "server.npz")
    while not server.done:
        link.ask(_records.of_request(server.request()))
        assert staying.once()
        server.hear(_records.to_reply(link.answer()))
        server.close()
    assert not staying.once()
    assert server.present.all()
    assert (len(link.confirmed), link.runs) == (3, 1)


def test_a_message_that_a_worker_died_of_is_answered_with_an_error(tmp_path):
    link = Link(folder=tmp_path)
    worker = InThisProcess(lambda message, context: Message(RecordDict(), reply_to=message), [0, 1])
    staying = Node(link.server, link.config, worker)
    for code in (ErrorCode.CLIENT_APP_CRASHED, None):
        link.ask(RecordDict())
        staying.once()
        assert (link.answer().error.code if link.answer().has_error() else None) == code


def test_a_workers_log_has_what_owners_say(monkeypatch):
    said = []
    handler = logging.Handler()
    handler.emit = said.append
    monkeypatch.setattr(_worker.log, "handlers", [handler])
    ours = logging.getLogger("jaxbo.federation")
    before = ours.parent, ours.level
    try:
        _worker.show_log()
        logging.getLogger("jaxbo.federation._spending").info("half is left")
    finally:
        ours.parent = before[0]
        ours.setLevel(before[1])
    assert [record.getMessage() for record in said] == ["half is left"]


def test_a_nodes_log_names_rounds_as_the_servers_does():
    names = {"-1": "the invitation", "0": "round 1", "": "a message", "x": "a message"}
    assert {group: node._name(group) for group in names} == names


@pytest.mark.parametrize("error", [ValueError("secret 42"), RefusedError("this round is over.")])
def test_a_workers_errors_travel_without_data(error, monkeypatch, caplog):
    def app(message, context):
        raise error

    Link()
    monkeypatch.setattr(_worker, "install_from_fab", lambda content, skip_prompt: None)
    monkeypatch.setattr(_worker, "get_load_client_app_fn", lambda **_: lambda *_: app)
    message, context = Message(RecordDict(), 1, "train"), Context(RUN, 1, {}, RecordDict(), {})
    reply = _worker.answered(Job(message, context, "", "", Fab("one", b"", {})))
    said = {ValueError: "ValueError: see the owner's log.", RefusedError: f"RefusedError: {error}"}
    assert reply.error.reason == said[type(error)]
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == (type(error) is ValueError)  # a refusal is no fault


def test_an_app_that_nobody_trusted_has_signed_is_not_given_to_the_worker(tmp_path):
    link = Link(trusted={"somebody": "a key"}, folder=tmp_path)
    staying = Node(link.server, link.config, InThisProcess(None))
    link.ask(RecordDict())
    staying.once()
    assert link.answer().error.code == ErrorCode.INVALID_FAB


#: Flower reads patterns of names in a way that is deprecated.
OLD = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


def bundle(folder, objective="one", version="1.0.0", **files):
    """An app in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "digits"\nversion = "{version}"\ndescription = ""\n'
        '[tool.flwr.app]\npublisher = "us"\n[tool.flwr.app.components]\n'
        'serverapp = "app:server"\nclientapp = "app:client"\n'
    )
    for name, text in {"app": f"client = {objective!r}", **files}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def asked_with(link, app, mine):
    """What the worker is given, and the node's answer, where the server has this app."""
    jobs = []

    class Noting(InThisProcess):
        def answer(self, job):
            jobs.append(job)
            return Message(RecordDict(), reply_to=job.message)

    theirs = app if isinstance(app, bytes) else build_fab_from_disk(app)
    server = link.server._replace(fab=lambda name, number: Fab("their hash", theirs, {}))
    link.ask(RecordDict())
    Node(server, link.config, Noting(None), mine).once()
    return jobs, link.answer()


@OLD
def test_an_owner_with_a_copy_of_the_app_runs_that_copy_alone(tmp_path):
    mine = _pinned.read(str(bundle(tmp_path / "mine")))
    link = Link(folder=tmp_path)
    (job,), _ = asked_with(link, bundle(tmp_path / "theirs"), mine)
    assert (job.app, job.version, job.fab) == ("us/digits", "1.0.0", mine.fab)
    jobs, answer = asked_with(link, bundle(tmp_path / "new", "other", "2.0.0"), mine)
    assert not jobs
    assert answer.error.code == ErrorCode.INVALID_FAB
    assert answer.error.reason == (
        "the server's app is us/digits 2.0.0, this owner runs us/digits 1.0.0 alone: app.py, "
        "pyproject.toml differ."
    )
    for theirs in (bundle(tmp_path / "more", extra=""), b"no bundle"):
        jobs, answer = asked_with(link, theirs, mine)
        assert not jobs
        assert "this owner runs us/digits 1.0.0 alone" in answer.error.reason


@OLD
def test_a_copy_of_the_app_may_be_a_folder_or_a_bundle_packed_in_any_way(tmp_path):
    folder = bundle(tmp_path / "mine")
    packed = tmp_path / "mine.fab"
    packed.write_bytes(build_fab_from_disk(folder))
    again = tmp_path / "again.fab"
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(again, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert again.read_bytes() != packed.read_bytes()
    for path in (folder, packed):
        assert _pinned.read(str(path)).refusal(again.read_bytes()) is None
    with pytest.raises(ValueError, match="--app must be your copy"):
        _pinned.read(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="is no app of Flower's"):
        _pinned.read(str(tmp_path))


@pytest.mark.slow
def test_a_node_goes_on_after_what_it_cannot_read_and_after_a_run_that_has_ended(monkeypatch):
    link = Link()
    staying = Node(link.server, link.config, InThisProcess(None))
    happens = [ValueError("unreadable"), RunNotRunningException(), None, SystemExit()]
    slept = []

    def once():
        error = happens.pop(0)
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(staying, "once", once)
    monkeypatch.setattr(node, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(SystemExit):
        staying.serve(0.5)
    assert slept == [0.5, 0.5]


def test_a_node_gives_up_a_message_that_the_server_has_lost_and_answers_the_next(
    tmp_path, monkeypatch, caplog
):
    """A SuperLink that is started again knows its messages, and not their content."""
    link, lost = Link(folder=tmp_path), []

    def pull(number, name):
        if len(lost) < 2:
            lost.append(name)
            raise ObjectUnavailableError(name)
        return link.parts[name]

    monkeypatch.setattr(node, "LOST", 0.0)
    worker = InThisProcess(flower.client_app(WALK, objective))
    staying = Node(link.server._replace(pull=pull), link.config, worker)
    server = Coordinator(WALK, 1, KEY, tmp_path / "server.npz")
    request = _records.of_request(server.request())
    link.ask(request)
    assert not staying.once()
    assert "round 1: the server has not all of this request" in caplog.text
    assert (link.heads, link.confirmed) == ([], [])
    lost.extend(["", ""])
    link.ask(request)
    assert staying.once()
    server.hear(_records.to_reply(link.answer()))


@pytest.mark.full
def test_a_worker_stays_until_it_dies_or_two_other_apps_or_another_jaxbo_come(monkeypatch):
    def answered(app, version="harmless"):
        context = Context(1, 1, {}, RecordDict(), {})
        reply = workers.answer(Job(message, context, "", version, Fab(app, b"", {})))
        return None if reply is None else reply.content["process"]["number"]

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
    message = Message(RecordDict(), 1, "train")
    workers = Workers(answering.with_its_number)
    try:
        first, second = answered("one"), answered("two")
        assert [answered("one"), answered("two")] == [first, second]
        assert answered("one", version="deadly") is None
        again = answered("one")
        assert [answered("two"), answered("one")] == [second, again]
        third = answered("three")
        assert not alive(second)
        monkeypatch.setattr(node, "package", lambda: (("jaxbo", 0, 0),))
        last = answered("one")
        assert not alive(third)
        assert len({os.getpid(), first, second, again, third, last}) == 6
    finally:
        workers.end()
    assert not alive(last)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process")
def test_a_worker_does_not_outlive_its_node_even_in_the_middle_of_an_evaluation(tmp_path):
    code = (
        "import sys\n"
        "from jaxbo.federation.flower.node import Worker\n"
        "from tests.federation import answering\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker(answering.busy)\n"
        "    print(worker._process.pid, flush=True)\n"
        "    worker._pipe.recv(); print('busy', flush=True); sys.stdin.read()\n"
    )
    (tmp_path / "parent.py").write_text(code)
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, env=environment(), **options) as parent:
        worker = int(parent.stdout.readline())
        assert parent.stdout.readline() == "busy\n"
        parent.kill()
    end = time.monotonic() + 20
    while alive(worker) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(worker)


def alive(pid):
    """Whether it runs; one that nobody has waited for does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
