"""The script that measures many virtual owners, without its engine."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("flwr")
SCRIPT = pathlib.Path(__file__).parents[2] / "federation" / "simulate.py"


@pytest.mark.full
def test_the_server_hears_all_owners_in_each_exchange(monkeypatch):
    spec = importlib.util.spec_from_file_location("simulate", SCRIPT)
    simulate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulate)
    heard = []
    close = simulate.Coordinator.close
    monkeypatch.setattr(
        simulate.Coordinator, "close", lambda s: heard.append(close(s)) or heard[-1]
    )
    rounds = simulate.rounds_alone(3)
    assert len(rounds) == len(heard) == simulate.ROUNDS + 1
    assert all(present.tolist() == [True] * 3 for present in heard)
    assert all(min(took) >= 0 for took in rounds)
