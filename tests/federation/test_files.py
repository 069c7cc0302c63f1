"""Files of owners and servers have a single owner, wherever an objective goes."""

import logging
import os
import threading

import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import CheckpointError
from jaxbo.federation import Coordinator, Owner, observations
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs._lock import Hold

SMALL = jaxbo.TS(jaxbo.Finite(np.linspace(0, 1, 8)[:, None]), 2, Fixed(size=4))


def value(agent, x):
    return float(x[0])


def server(path, **options):
    return Coordinator(SMALL, 2, jr.key(0), path, **{"initial": 1} | options)


def owners(folder, objective=value):
    (folder / "0").mkdir(exist_ok=True)
    (folder / "1").mkdir(exist_ok=True)
    return [Owner(SMALL, objective, n, folder / str(n)) for n in range(2)]


def exchange(coordinator, owners):
    for owner in owners:
        coordinator.hear(owner.answer(coordinator.request()))
    coordinator.close()


@pytest.mark.slow
def test_a_server_that_was_stopped_writes_no_more(tmp_path):
    first = server(tmp_path / "server.npz")
    with pytest.raises(CheckpointError, match="in use by process"):
        server(tmp_path / "server.npz")
    for owner in owners(tmp_path):
        first.hear(owner.answer(first.request()))
    first.stop()
    second = server(tmp_path / "server.npz")
    exchange(second, owners(tmp_path))
    content = (tmp_path / "server.npz").read_bytes()
    with pytest.raises(CheckpointError, match="no longer held"):
        first.close()
    assert first.round == -1
    assert (tmp_path / "server.npz").read_bytes() == content


def test_a_server_that_is_refused_or_dropped_leaves_the_file(tmp_path):
    path = tmp_path / "server.npz"
    running = server(path)
    del running
    with pytest.raises(CheckpointError, match="another initial") as caught:
        server(path, initial=2)
    server(path).stop()
    del caught  # whose traceback kept the one that was refused


@pytest.mark.slow
def test_servers_and_owners_find_their_files_wherever_objectives_go(tmp_path, monkeypatch):
    def moving(agent, x):
        os.chdir(tmp_path / "elsewhere")
        return value(agent, x)

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link.npz").symlink_to(tmp_path / "target" / "server.npz")
    monkeypatch.chdir(tmp_path)
    coordinator = server("link.npz")
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    both = [Owner(SMALL, moving, n, str(n)) for n in range(2)]
    while not coordinator.done:
        exchange(coordinator, both)
    name = f"{coordinator.request().federation}.npz"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "link.npz").is_symlink()
    for n in "01":
        assert len(observations(tmp_path / n / name).values) == 3


@pytest.mark.slow
def test_an_owner_waits_for_who_has_its_file_and_says_for_whom(tmp_path, caplog):
    coordinator = server(tmp_path / "server.npz")
    request, owner = coordinator.request(), owners(tmp_path)[0]
    hold = Hold(owner.folder / f"{request.federation}.npz")
    hold.take()
    replies = []
    call = threading.Thread(target=lambda: replies.append(owner.answer(request)))
    with caplog.at_level(logging.WARNING, "jaxbo"):
        call.start()
        call.join(1)
        assert call.is_alive()
        hold.release()
        call.join(60)
    assert [reply.agent for reply in replies] == [0]
    assert f"is in use by process {os.getpid()} on host" in caplog.text
