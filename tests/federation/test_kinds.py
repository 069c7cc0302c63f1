"""A file says what it is of: a run, a run in rounds, a desk, a server, an owner, or its part of a sum."""

import shutil

import jax.random as jr
import pytest

import jaxbo
from jaxbo import CheckpointError
from jaxbo.federation import Coordinator, Owner, SecureSum
from jaxbo.runs.desk import Desk
from tests.runs.driven import MODEL, RANDOM, bowl, quiet
from tests.walk import LEDGER, SumWalk

MECHANISM = jaxbo.Mechanism(1.0, 5.0, jaxbo.Poisson(1.0))
PRIVATE = SumWalk(RANDOM.domain, mechanism=MECHANISM)
SECURE = SecureSum(2, colluding=0)


def compiled(folder):
    path = folder / "run.npz"
    jaxbo.run(RANDOM, lambda key, agent, x: x[0], 1, jr.key(0), checkpoint=path)
    return path


def in_rounds(folder):
    path = folder / "run.npz"
    quiet(MODEL, bowl, 1, jr.key(0), checkpoint=path)
    return path


def desk(folder):
    path = folder / "run.npz"
    with Desk(MODEL, jr.key(0), checkpoint=path) as opened:
        opened.ask()
    return path


def server(folder):
    path = folder / "run.npz"
    coordinator = Coordinator(RANDOM, 1, jr.key(0), path)
    coordinator.stop()
    return path


def owner(folder):
    coordinator = Coordinator(RANDOM, 1, jr.key(0), folder / "served.npz")
    request = coordinator.request()._replace(federation="0" * 16)
    coordinator.stop()
    Owner(RANDOM, bowl, 0, folder).answer(request)
    return folder / f"{request.federation}.npz"


def part_of_a_sum(folder):
    served = folder / "served.npz"
    coordinator = Coordinator(PRIVATE, 1, jr.key(0), served, ledger=LEDGER, secure=SECURE)
    request = coordinator.request(0)._replace(federation="0" * 16)
    coordinator.stop()
    Owner(PRIVATE, bowl, 0, folder, secure=SECURE).answer(request)
    return folder / f"{request.federation}.sum"


KINDS = {
    "a compiled run": compiled,
    "a run in rounds": in_rounds,
    "a desk": desk,
    "a server": server,
    "an owner": owner,
    "an owner's part of a secure sum": part_of_a_sum,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_file_of_one_kind_is_refused_by_all_others(kind, other, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    mine = KINDS[kind](tmp_path / "mine")
    if kind == other:
        KINDS[kind](tmp_path / "mine")
        return
    shutil.copy(KINDS[other](tmp_path / "theirs"), mine)
    content = mine.read_bytes()
    with pytest.raises(CheckpointError, match=f"is the file of {other} and not of {kind}"):
        KINDS[kind](tmp_path / "mine")
    assert mine.read_bytes() == content
