"""Arguments of the parties of a federation, given values of a wrong kind."""

import contextlib
import itertools

import jax.random as jr
import pytest

import jaxbo
from jaxbo import federation
from tests.arguments.wrong import all_work_or_say_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

KEY = jr.key(0)
FTS = jaxbo.FTS(jaxbo.Cube(2), 2, features=jaxbo.Fixed(size=4, capacity=8), candidates=4)
numbers = itertools.count()


def hill(agent, x):
    return -float(((x - 0.3) ** 2).sum())


def coordinator(checkpoint="server", **arguments):
    """One of its own file, and ended."""
    if isinstance(checkpoint, str):
        checkpoint = f"{checkpoint}{next(numbers)}"
    federation.Coordinator(checkpoint=checkpoint, **arguments).stop()


def hears(reply, sender=None):
    server = federation.Coordinator(FTS, 1, KEY, f"server{next(numbers)}")
    try:
        server.hear(reply, sender)
    finally:
        server.stop()


def hears_nothing(sender):
    with contextlib.suppress(federation.RefusedError):  # whoever sends it
        hears(None, sender)


def requests(agent):
    server = federation.Coordinator(FTS, 1, KEY, f"server{next(numbers)}")
    try:
        server.request(agent)
    finally:
        server.stop()


OWNER = federation.Owner(FTS, hill, 0, ".")
PRIVATE = jaxbo.DPLearnedPrior(jaxbo.Cube(2), 2, 8)
RUN = {"algorithm": FTS, "rounds": 2, "key": KEY, "initial": 0, "ledger": None, "secure": None}
TABLE = {
    "Owner": (
        federation.Owner,
        {
            "algorithm": FTS, "objective": hill, "agent": 0, "folder": ".", "key": None,
            "catch": Exception, "secure": None,
        },
    ),
    "Owner with a ledger": (
        lambda ledger: federation.Owner(PRIVATE, hill, 0, ".", ledger=ledger),
        {"ledger": None},
    ),
    "Owner with a directory": (
        lambda directory: federation.Owner(
            PRIVATE, hill, 0, ".", secure=federation.SecureSum(2, 0), directory=directory
        ),
        {"directory": None},
    ),
    "Coordinator with a directory": (
        lambda directory: coordinator(
            algorithm=PRIVATE, rounds=1, key=KEY, ledger=jaxbo.Ledger(1e-5),
            secure=federation.SecureSum(2, 0), directory=directory,
        ),
        {"directory": None},
    ),
    "public_key": (federation.public_key, {"folder": "."}),
    "SecureSum": (federation.SecureSum, {"threshold": 3, "colluding": 1}),
    "Coordinator": (coordinator, {**RUN, "checkpoint": "server"}),
    "observations": (federation.observations, {"path": "owner"}),
    "answer": (OWNER.answer, {"request": None}),
    "request": (requests, {"agent": None}),
    "hear": (hears, {"reply": None}),
    "hear from": (hears_nothing, {"sender": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["Owner", "Coordinator"])
def test_the_arguments_that_are_replaced_are_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, good = TABLE[name]
    make(**good)


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_of_a_party_works_or_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    all_work_or_say_why(TABLE, name)


def apps():
    flower = pytest.importorskip("jaxbo.federation.flower")
    return {
        "client_app": (
            flower.client_app,
            {"algorithm": FTS, "objective": hill, "key": None, "catch": Exception, "secure": None},
        ),
        "server_app": (flower.server_app, {**RUN, "deadline": 60.0}),
    }


@pytest.mark.parametrize("name", ["client_app", "server_app"])
def test_a_wrong_argument_of_an_app_works_or_is_named(name):
    make, good = apps()[name]
    make(**good)
    all_work_or_say_why(apps(), name)
