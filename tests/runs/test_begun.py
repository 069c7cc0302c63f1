"""An evaluation that ends its process, again and again, becomes a failure."""

import shutil

import jax.random as jr
import numpy as np
import pytest

from jaxbo.federation import Coordinator, Owner, observations
from jaxbo.runs._begun import Begun
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.renewing import LostWorkerError
from tests.runs.driven import MODEL, RANDOM, bowl, files, quiet
from tests.walk import Walk


class DiedError(BaseException):
    """The end of a process: nothing catches it."""


class Deadly:
    """An objective that ends its process in one evaluation. The disk is then as in `after`."""

    def __init__(self, folder, after, call):
        self.folder, self.after, self.left = folder, after, call

    def __call__(self, agent, x):
        self.left -= 1
        if self.left == 0:
            shutil.copytree(self.folder, self.after)
            raise DiedError
        return bowl(agent, x)


def in_rounds(folder, objective):
    return quiet(RANDOM, objective, 2, jr.key(0), checkpoint=folder / "run.npz")[1]


def one_after_the_other(folder, objective):
    path = folder / "run.npz"
    return drive_async(MODEL, objective, 5, jr.key(0), checkpoint=path, progress=False)


def died(way, folder, times, call=2):
    """The folder after so many processes died in an evaluation."""
    for death in range(times):
        after = folder.with_name(f"{folder.name}{death}")
        with pytest.raises(DiedError):
            way(folder, Deadly(folder, after, call))
        # A run that goes on does not repeat what has ended.
        folder, call = after, 1
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(agent|query) 1 failed")
@pytest.mark.parametrize("way", [in_rounds, one_after_the_other])
def test_the_second_death_in_an_evaluation_makes_it_a_failure(way, path, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    undisturbed = way(tmp_path, bowl)
    folder = died(way, folder, times=1)
    once = shutil.copytree(folder, tmp_path / "once")
    np.testing.assert_array_equal(way(once, bowl).values, undisturbed.values)
    folder = died(way, folder, times=1, call=1)
    found = way(folder, bowl)
    (failure,) = found.failures
    assert "LostWorkerError('2 processes in turn have died" in failure.error
    assert np.flatnonzero(np.isnan(np.ravel(found.values))).tolist() == [1]
    assert files(folder) == ["run.npz"]


def test_an_owner_does_not_die_of_the_same_point_for_ever(tmp_path):
    algorithm, key = Walk(RANDOM.domain, 1), jr.key(0)

    def go(folder, objective):
        owner = Owner(algorithm, objective, 0, folder, key=key)
        with_server = Coordinator(algorithm, 1, key, tmp_path / "server.npz", initial=3)
        request = with_server.request()
        with_server.stop()
        owner.answer(request)
        return observations(folder / f"{request.federation}.npz")

    folder = tmp_path / "owner"
    folder.mkdir()
    folder = died(go, folder, times=2)
    known = go(folder, bowl)
    assert np.flatnonzero(np.isnan(known.values)).tolist() == [1]


def test_errors_interrupts_and_other_evaluations_are_no_deaths(tmp_path):
    path = tmp_path / "run.npz"
    path.touch()

    def interrupted(*args):
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Begun(path)(interrupted, 0, np.zeros(2))
    note = path.with_name("run.npz.begun")
    kept = []

    def dies(*args):
        kept.append(note.read_bytes())

    for _ in range(2):
        for other in ((1, np.zeros(2)), (0, np.full(2, 1e-9))):
            Begun(path)(bowl, *other)
            note.write_bytes(kept[-1] if kept else b"")
        Begun(path)(dies, 0, np.zeros(2))
        note.write_bytes(kept[-1])
    for other in ((1, np.zeros(2)), (0, np.full(2, 1e-9))):
        assert Begun(path)(bowl, *other) == bowl(*other)
        note.write_bytes(kept[-1])
    with pytest.raises(LostWorkerError):
        Begun(path)(bowl, 0, np.zeros(2))
    assert not note.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"evaluation": 1}', b"\xff"])
def test_a_note_that_cannot_be_read_says_nothing(content, tmp_path):
    path = tmp_path / "run.npz"
    path.touch()
    path.with_name("run.npz.begun").write_bytes(content)
    assert Begun(path)(bowl, 0, np.zeros(2)) == bowl(0, np.zeros(2))


def test_a_note_of_a_run_that_was_removed_is_of_no_use(tmp_path):
    note = tmp_path / "run.npz.begun"
    note.write_bytes(b"{}")
    Begun(tmp_path / "run.npz")
    assert not note.exists()
