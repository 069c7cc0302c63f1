"""The script that measures many virtual owners, without its engine."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("flwr")
SCRIPT = pathlib.Path(__file__).parents[2] / "federation" / "simulate.py"


@pytest.fixture
def simulate():
    spec = importlib.util.spec_from_file_location("simulate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_the_server_hears_all_owners_in_each_exchange(simulate, monkeypatch):
    heard = []
    close = simulate.Coordinator.close
    monkeypatch.setattr(
        simulate.Coordinator, "close", lambda s: heard.append(close(s)) or heard[-1]
    )
    rounds = simulate.rounds_alone(3)
    assert len(rounds) == len(heard) == simulate.ROUNDS + 1
    assert all(present.tolist() == [True] * 3 for present in heard)
    assert all(min(took) >= 0 for took in rounds)


@pytest.mark.full
def test_bytes_to_an_owner_of_a_secure_sum_grow_with_the_owners_alone(simulate):
    pytest.importorskip("cryptography")
    three, six = (simulate.sum_alone(owners) for owners in (3, 6))
    # Keys, signatures, boxes and tags of each other owner, and three lists with a byte for each.
    more = 3 * (2 * 32 + 64 + 60 + 16 + 3)
    assert sum(s.to for s in six) - sum(s.to for s in three) == more
    assert all(len(stages) == 4 for stages in (three, six))
