"""A SuperLink and three SuperNodes, each a process of its own, some of them killed."""

import os
import re
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest

import jaxbo
import jaxbo.federation
from jaxbo.federation import Coordinator, observations, public_key

APP = Path(jaxbo.__file__).parent.parent / "federation"
sys.path.insert(0, str(APP))
from local import Local, free_port  # noqa: E402

AGENTS, ROUNDS, INITIAL = 3, 10, 2
KEY = jr.key(11)
DEADLINE = 50.0

NO_NOISE = "jaxbo.Mechanism(0.0, float('inf'), jaxbo.Poisson(1.0))"
APPS = {
    "fts": "jaxbo.FTS(jaxbo.Cube(2), 3)",
    "public": f"jaxbo.DPFTSDE(jaxbo.Cube(2), 3, {NO_NOISE})",
    "private": "jaxbo.DPFTSDE(jaxbo.Cube(2), 3)",
    "secure": "jaxbo.DPLearnedPrior(jaxbo.Cube(2), 3, 20, releases=2)",
}

CODE = """
import os, time
import jax.random as jr
import numpy as np
import jaxbo
from jaxbo.federation import flower

algorithm = {algorithm}
secure = {secure}

def objective(agent, x):
    with open({slow!r} + "-calls-%d" % agent, "a+") as file:
        file.write(".")
        file.seek(0)
        round = len(file.read()) - {initial}
    if agent == 2 and round == 1 and os.path.exists({slow!r}):
        open({slow!r} + "2", "w").close()
        time.sleep(1000)
    while agent == 0 and round == 2 and os.path.exists({slow!r} + "0"):
        time.sleep(0.1)
    return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))

client = flower.client_app(algorithm, objective, key=jr.key(11), secure=secure)
ledger = jaxbo.Ledger(delta=1e-5) if {charged} else None
server = flower.server_app(
    algorithm, {rounds}, jr.key(11), initial={initial}, ledger=ledger, deadline={deadline}, secure=secure
)
"""


def objective(agent, x):
    return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))


def app(path, name, rounds=ROUNDS, charged=False, deadline=200.0, secure=None):
    """A folder with an app of Flower's."""
    folder = path / f"app-{name}"
    folder.mkdir()
    text = (APP / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        text.replace('"digits"', f'"{name}"').replace("owners:", "app:")
    )
    fields = {"algorithm": APPS[name.split("-")[0]], "slow": str(path / "slow"), "rounds": rounds}
    fields |= {"initial": INITIAL, "deadline": deadline, "charged": charged, "secure": secure}
    (folder / "app.py").write_text(textwrap.dedent(CODE).format(**fields))
    return folder


def lines_of(local, folder, checkpoint, log):
    return list(local.run(folder, {"checkpoint": str(checkpoint)}, log))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_supernodes_query_what_drive_does(tmp_path):
    with Local(tmp_path) as local:
        for n in range(AGENTS):
            local.start_owner(n)
        reports = {}

        def whole(name):
            checkpoint = tmp_path / f"{name}.npz"
            reports[name] = lines_of(local, app(tmp_path, name), checkpoint, f"{name}.log")

        runs = [threading.Thread(target=whole, args=(name,)) for name in ("fts", "public")]
        for one in runs:
            one.start()
        for one in runs:
            one.join()
    for name in ("fts", "public"):
        algorithm = eval(APPS[name])
        assert any("round 10 of 10: 3 of 3 owners" in line for line in reports[name]), reports
        server = Coordinator(algorithm, ROUNDS, KEY, tmp_path / f"{name}.npz", initial=INITIAL)
        assert server.done
        assert server.present.all()
        file = f"{server.request().federation}.npz"
        queries = np.stack([observations(local.folder(n) / file).queries for n in range(AGENTS)], 1)
        options = {"initial": INITIAL, "progress": False}
        _, trace = jaxbo.drive(algorithm, objective, ROUNDS, KEY, **options)
        np.testing.assert_allclose(queries, trace.queries, atol=2e-3)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_flowers_own_supernode_serves_an_owner_as_well(tmp_path):
    with Local(tmp_path) as local:
        local.start_owner(0, ("flower-supernode", "--port", str(free_port())))
        for n in range(1, AGENTS):
            local.start_owner(n)
        folder = app(tmp_path, "fts", rounds=1)
        lines = lines_of(local, folder, tmp_path / "fts.npz", "fts.log")
    assert any("round 1 of 1: 3 of 3 owners" in line for line in lines), lines


def processes(*words):
    """The processes of this machine whose command has all these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has just ended
        if all(word in command for word in words):
            found.append(int(folder.name))
    return found


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_an_owner_and_the_server_killed_in_the_middle_go_on(tmp_path):
    slow, checkpoint = tmp_path / "slow", tmp_path / "server.npz"
    folder = app(tmp_path, "private-faults", rounds=2, charged=True, deadline=DEADLINE)
    first, second = [], []
    held = Path(f"{slow}0")
    slow.touch()
    held.touch()
    with Local(tmp_path) as local:
        for n in range(AGENTS):
            local.start_owner(n)
        for line in local.run(folder, {"checkpoint": str(checkpoint)}, "first.log"):
            first.append(line)
            if line.startswith("joined"):
                wait_for(Path(f"{slow}2"))
                local.kill_owner(2)  # in the middle of its evaluation
                slow.unlink()
            if line.startswith("round 1 "):
                for pid in processes("flwr-serverapp", local.address):
                    os.kill(pid, signal.SIGKILL)  # in the middle of round 2
                held.unlink()
                break
        local.start_owner(2)
        second = list(local.run(folder, {"checkpoint": str(checkpoint)}, "second.log"))
    assert any("round 1 of 2: 2 of 3 owners" in line and "absent: [2]" in line for line in first)
    assert any("round 2 of 2: 3 of 3 owners" in line for line in second), second
    assert not any("round 1 " in line for line in second)

    algorithm, ledger = eval(APPS["private"]), jaxbo.Ledger(delta=1e-5)
    server = Coordinator(algorithm, 2, KEY, checkpoint, initial=INITIAL, ledger=ledger)
    np.testing.assert_array_equal(server.present, [[1, 1, 1], [1, 1, 0]])
    assert server.ledger.releases == 2
    file = f"{server.request().federation}.npz"
    for n, rounds in enumerate(([-1, -1, 0, 1], [-1, -1, 0, 1], [-1, -1, 1])):
        np.testing.assert_array_equal(observations(local.folder(n) / file).rounds, rounds)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_owner_who_evaluates_at_the_deadline_and_a_superlink_that_is_killed(tmp_path):
    folder = app(tmp_path, "fts-faults", rounds=5, deadline=DEADLINE)
    checkpoint, held, first = tmp_path / "server.npz", tmp_path / "slow0", []
    held.touch()  # owner 0 does not end its second evaluation before this file is gone
    with Local(tmp_path, database=True) as local:
        for n in range(AGENTS):
            local.start_owner(n)
        for line in local.run(folder, {"checkpoint": str(checkpoint)}, "first.log"):
            first.append(line)
            if line.startswith("round 2 of"):
                held.unlink()
            if line.startswith("round 3 of"):
                local.kill_server()  # in the middle of round 4
                break
        local.start_server()
        second = lines_of(local, folder, checkpoint, "second.log")
    said, after = "\n".join(first), "\n".join(second)
    assert re.search(r"round 2 of 5: 2 of 3 owners in 5\d\.\d s.*; absent: \[0\]", said), said
    assert "the deadline of 50 s passed in round 2 without owners [0], who are absent" in said
    # It does what it was asked for meanwhile, one after the other.
    assert "round 3 of 5: 3 of 3 owners" in said
    assert "round 4 of 5: 3 of 3 owners" in after, after
    assert "round 5 of 5: 3 of 3 owners" in after
    assert "round 3 of" not in after

    server = Coordinator(eval(APPS["fts"]), 5, KEY, checkpoint, initial=INITIAL)
    away = np.ones((5, AGENTS), bool)
    away[2, 0] = False  # the broadcast after the round in which it was away
    np.testing.assert_array_equal(server.present, away)
    file = f"{server.request().federation}.npz"
    for n in range(AGENTS):
        rounds = observations(local.folder(n) / file).rounds
        np.testing.assert_array_equal(rounds, [-1, -1, 0, 1, 2, 3, 4])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_secure_sum_of_processes_survives_an_owner_that_is_killed(tmp_path):
    secure = "jaxbo.federation.SecureSum(2, colluding=0)"
    options = {"rounds": 3, "charged": True, "deadline": 40.0, "secure": secure}
    folder, lines = app(tmp_path, "secure-sums", **options), []
    directory = tmp_path / "directory.txt"
    with Local(tmp_path) as local:
        for n in range(AGENTS):
            local.folder(n).mkdir()
        keys = [public_key(local.folder(n)) for n in range(AGENTS)]
        directory.write_text("".join(f"{n} {key}\n" for n, key in enumerate(keys)))
        for n in range(AGENTS):
            local.start_owner(n, more=f'directory="{directory}"')
        for line in local.run(folder, {"checkpoint": str(tmp_path / "server.npz")}, "run.log"):
            lines.append(line)
            if line.startswith("round 1 of 3"):
                local.kill_owner(2)  # it has given keys, and is missing in the next stages
    said = "\n".join(lines)
    assert "joined: 3 of 3 owners" in said, said
    assert "stage 4 after the invitation: 3 of 3 owners" in said, said
    assert "stage 3 after round 1: 2 of 3 owners" in said, said
    assert "round 3 of 3: 2 of 3 owners" in said, said

    algorithm, ledger = eval(APPS["secure"]), jaxbo.Ledger(delta=1e-5)
    settings = {"initial": INITIAL, "ledger": ledger, "secure": eval(secure)}
    server = Coordinator(algorithm, 3, KEY, tmp_path / "server.npz", **settings)
    np.testing.assert_array_equal(server.present, [[1, 1, 1], [1, 1, 0], [1, 1, 0]])
    assert server.ledger.releases == 2
    for n in range(AGENTS):
        (seen,) = local.folder(n).glob("*.npz")
        assert observations(seen).rounds[-1] == (2 if n < 2 else 0)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_an_owner_of_a_process_stops_when_its_budget_is_spent(tmp_path):
    algorithm, delta = eval(APPS["private"]), 1e-5
    spent = [jaxbo.Ledger(delta).charge(algorithm.mechanism, n).epsilon() for n in (2, 3)]
    budget = sum(spent) / 2  # which pays for two releases
    folder = app(tmp_path, "private-budget", rounds=3, charged=True, deadline=DEADLINE)
    with Local(tmp_path) as local:
        local.start_owner(0, more=f"budget={budget} delta={delta}")
        for n in range(1, AGENTS):
            local.start_owner(n)
        lines = lines_of(local, folder, tmp_path / "server.npz", "run.log")
    said = "\n".join(lines)
    # The invitation and round 1 are asked for messages of two releases.
    assert "round 1 of 3: 3 of 3 owners" in said, said
    refusals = [line for line in lines if "the budget of this owner's data" in line]
    assert len(refusals) == 2, said  # of the requests of rounds 2 and 3, which are counted from 0
    for round, (refusal, times) in enumerate(
        zip(refusals, ("", r" \(2 refused\)"), strict=True), 1
    ):
        assert re.search(rf"round {round}: .*node \d+{times}: ", refusal), refusal
        assert f"2 releases have spent {spent[0]:.4g}, and another would exceed it" in refusal
    for number in (2, 3):
        (line,) = [line for line in lines if line.startswith(f"round {number} of 3")]
        assert "2 of 3 owners" in line
        assert "absent: [0]; 1 refused" in line

    ledger = jaxbo.Ledger(delta)
    server = Coordinator(algorithm, 3, KEY, tmp_path / "server.npz", initial=INITIAL, ledger=ledger)
    np.testing.assert_array_equal(server.present, [[1, 1, 1], [1, 1, 1], [0, 1, 1]])
    assert ledger.charged((local.folder(0) / "data.released").read_text()).releases == 2
    file = f"{server.request().federation}.npz"
    for n, rounds in enumerate(([-1, -1, 0], [-1, -1, 0, 1, 2], [-1, -1, 0, 1, 2])):
        np.testing.assert_array_equal(observations(local.folder(n) / file).rounds, rounds)


def wait_for(path):
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.2)
