"""Checkpoints are found wherever the run goes, and damage to them is noticed."""

import contextlib
import os
import pathlib

import jax
import jax.random as jr
import numpy as np
import pytest

from jaxbo.runs import _archive
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._checkpoint import Checkpoint, Rows
from jaxbo.runs._identity import identity
from jaxbo.runs._lock import Hold
from jaxbo.runs.desk import Desk
from tests.runs.driven import MODEL, RANDOM, Counting, bowl, files, in_a_thread, quiet

# ---------------------------------------------------------------- where files are


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder, the current one, with another in it that objectives change to."""
    home = tmp_path / "home"
    (home / "job").mkdir(parents=True)
    monkeypatch.chdir(home)
    return home


class Moving(Counting):
    """Changes to another folder as it is evaluated."""

    def __call__(self, agent, x):
        os.chdir(pathlib.Path(__file__).parent)
        return super().__call__(agent, x)


def test_an_objective_that_changes_directory_makes_no_second_file(here):
    objective = Moving()
    _, first = quiet(RANDOM, objective, 3, jr.key(0), checkpoint="run.npz")
    os.chdir(here)
    _, again = quiet(RANDOM, objective, 3, jr.key(0), checkpoint="run.npz")
    np.testing.assert_array_equal(first.values, again.values)
    assert len(objective.calls) == 9
    in_a_thread(os.path.join("job", "desk"), objective, 3)
    assert files(here) == ["job/desk", "run.npz"]
    os.chdir(here)
    with Desk(MODEL, jr.key(0), checkpoint="job/desk") as desk:
        assert desk.told == 3
        os.chdir(here / "job")
        desk.ask()
    assert files(here) == ["job/desk", "run.npz"]


@pytest.mark.slow
def test_a_link_stays_a_link_and_has_the_lock_of_its_file(here):
    target, link = here / "job" / "run.npz", here / "link"
    for make in (lambda: None, lambda: quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=target)):
        make()
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        quiet(RANDOM, bowl, 3, jr.key(0), checkpoint=link)
        assert link.is_symlink()
        assert not target.is_symlink()
        assert files(here) == ["job/run.npz", "link"]
        objective = Counting()
        quiet(RANDOM, objective, 3, jr.key(0), checkpoint=target)
        assert objective.calls == []
        hold = Hold(target)
        hold.take()
        with pytest.raises(CheckpointError, match="in use"):
            quiet(RANDOM, bowl, 3, jr.key(0), checkpoint=link)
        hold.release()
        target.unlink()


def test_a_path_that_cannot_be_is_refused_before_anything_is_paid_for(here, monkeypatch):
    (here / "circle").symlink_to(here / "circle")
    refused = {
        "nowhere/run.npz": "folder .*nowhere does not exist",
        "job": "is a folder",
        ".": "is a folder",
        "": "is a folder",
        "circle": "circle",
        "run.open": "must not end in .open",
        "run.npz.tmp": "must not end in .tmp",
        "run.npz.lock": "must not end in .lock",
    }
    objective = Counting()
    for path, message in refused.items():
        with pytest.raises((ValueError, OSError), match=message) as caught:
            quiet(RANDOM, objective, 1, jr.key(0), checkpoint=path)
        assert isinstance(caught.value, ValueError), path
        with pytest.raises(ValueError, match=message):
            Desk(MODEL, jr.key(0), checkpoint=path)
    # As root nothing is forbidden.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"nothing can be written in .*home"):
        quiet(RANDOM, objective, 1, jr.key(0), checkpoint="run.npz")
    assert objective.calls == []
    assert files(here) == ["circle"]


def test_what_a_killed_process_left_of_a_file_is_no_hindrance(path):
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text("mine")
    path.with_name("run.npz.tmp").symlink_to(elsewhere)
    quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=path)
    assert elsewhere.read_text() == "mine"
    path.with_name("run.npz.tmp").write_text("half")
    path.with_name("run.npz.tmp").chmod(0o644)
    quiet(RANDOM, bowl, 2, jr.key(0), checkpoint=path)
    assert files(path.parent) == ["elsewhere", "run.npz"]
    assert path.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- damage

IDENTITY = identity(run="this one")
TIMES = [1e9, 0.1]


def rows(**changes):
    """Two rows of three agents, the second open."""
    queries = np.arange(12.0).reshape(2, 3, 2)
    values = np.where(np.arange(2)[:, None] < 1, queries[..., 0], np.nan)
    known = {"told": 1, "queries": queries, "values": values, "info": [np.arange(7)]}
    known["times"] = np.arange(12.0).reshape(2, 3, 2)
    return Rows(**{**known, "failures": [(0, 1, "an error")], "ledger": None} | changes)


@contextlib.contextmanager
def opened(path):
    """A checkpoint and the rows that were saved in it."""
    checkpoint, found = Checkpoint(path, "a run", IDENTITY), []
    checkpoint.resume(found.append)
    try:
        yield checkpoint, found
    finally:
        checkpoint.close()


ENDED = {0: (0.1, None), 1: (-1e300, None), 2: (float("inf"), "OSError('x')")}


@pytest.fixture
def kept(path):
    """A checkpoint whose open row has all its evaluations."""
    with opened(path) as (checkpoint, _):
        checkpoint.save(rows())
    with opened(path) as (checkpoint, _):  # a kill came before the journal's first line
        for agent, (value, error) in ENDED.items():
            checkpoint.record(1, agent, [value], error, TIMES)
    return path


def ended(path):
    with opened(path) as (checkpoint, _):
        found = checkpoint.recorded(1)
        assert checkpoint.times(1) == dict.fromkeys(found, TIMES)
        return found


def flips(content, bits=range(8)):
    for place in range(len(content)):
        for bit in bits:
            flipped = bytes([content[place] ^ (1 << (bit + place) % 8)])
            yield content[:place] + flipped + content[place + 1 :]


def test_the_journal_is_its_owners_alone_and_its_name_reaches_the_disk(path, monkeypatch):
    synced = []
    monkeypatch.setattr(_archive, "sync", synced.append)
    previous = os.umask(0)
    try:
        with opened(path) as (checkpoint, _):
            checkpoint.save(rows())
            synced.clear()
            checkpoint.record(1, 0, [0.5], None, TIMES)
            checkpoint.record(1, 1, [0.5], None, TIMES)
            assert synced == [path.parent]
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(previous)
    assert modes == {"run.npz": 0o600, "run.npz.open": 0o600, "run.npz.lock": 0o600}


@pytest.mark.slow
def test_any_flipped_bit_of_the_journal_is_noticed(kept):
    journal = kept.with_name("run.npz.open")
    content = journal.read_bytes()
    assert ended(kept) == ENDED
    count = 0
    # A lock for each of thousands takes longer than all else.
    checkpoint = Checkpoint(kept, "a run", IDENTITY)
    for flipped in flips(content):
        journal.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"line [1-4] of .*\.open is damaged"):
            checkpoint._read_journal()
        count += 1
    assert count == 8 * len(content) > 2000
    with pytest.raises(CheckpointError, match=r"line 3 of .*\.open is damaged"):
        ended(kept)


def test_a_journal_cut_off_anywhere_loses_the_last_line_only(kept):
    journal = kept.with_name("run.npz.open")
    content = journal.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    for length in range(0, len(content), 7):
        for zeros in (b"", b"\0" * 50):  # a power cut may leave those
            journal.write_bytes(content[:length] + zeros)
            whole = sum(end <= length for end in ends)
            assert ended(kept) == {a: ENDED[a] for a in range(whole)}, length


def test_after_a_line_that_was_cut_off_the_journal_goes_on(kept):
    journal = kept.with_name("run.npz.open")
    journal.write_bytes(journal.read_bytes()[:-9])
    with opened(kept) as (checkpoint, _):
        assert checkpoint.recorded(1) == {0: ENDED[0], 1: ENDED[1]}
        checkpoint.record(1, 2, [7.0], None, TIMES)
    assert ended(kept) == {0: ENDED[0], 1: ENDED[1], 2: (7.0, None)}


def test_a_journal_of_an_earlier_save_is_passed_over(kept):
    journal = kept.with_name("run.npz.open")
    content = journal.read_bytes()
    with opened(kept) as (checkpoint, _):
        checkpoint.save(rows())
        assert checkpoint.recorded(1) == {}
    journal.write_bytes(content)  # a kill came before it was removed
    assert ended(kept) == {}
    with opened(kept) as (checkpoint, _):
        checkpoint.record(1, 2, [7.0], None, TIMES)
    assert ended(kept) == {2: (7.0, None)}


def test_the_values_of_a_run_that_was_begun_again_are_not_the_earlier_runs(path):
    def stopped_at(agent, offset):
        def objective(at, x):
            if at == agent:
                raise KeyboardInterrupt
            return bowl(at, x) + offset

        return objective

    journal = path.with_name("run.npz.open")
    with pytest.raises(KeyboardInterrupt):
        quiet(RANDOM, stopped_at(2, offset=1.0), 1, jr.key(0), checkpoint=path)
    old = journal.read_bytes()
    path.unlink()  # begun again, with the objective mended
    with pytest.raises(KeyboardInterrupt):
        quiet(RANDOM, stopped_at(0, offset=0.0), 1, jr.key(0), checkpoint=path)
    journal.write_bytes(old)
    _, trace = quiet(RANDOM, bowl, 1, jr.key(0), checkpoint=path)
    np.testing.assert_array_equal(trace.values, quiet(RANDOM, bowl, 1, jr.key(0))[1].values)


def same_rows(one, other):
    return jax.tree.all(
        jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=np.ndim(a) > 1), one, other)
    )


def noticed(path, content):
    """How many changed files are refused; `AssertionError` if another one has other rows."""
    checkpoint, refused = Checkpoint(path, "a run", IDENTITY), 0
    for changed in content:
        path.write_bytes(changed)
        try:
            found = checkpoint._load()
        except CheckpointError:
            refused += 1
        else:
            assert same_rows(found, rows())
    return refused


@pytest.mark.slow
def test_a_flipped_bit_of_a_checkpoint_is_noticed_or_does_not_matter(kept):
    content = kept.read_bytes()
    assert noticed(kept, flips(content, bits=[0])) > 0.8 * len(content)


@pytest.mark.long
def test_any_flipped_bit_of_a_checkpoint_is_noticed_or_does_not_matter(kept):
    content = kept.read_bytes()
    assert noticed(kept, flips(content)) > 0.8 * 8 * len(content)


def test_an_array_that_claims_to_be_shorter_is_noticed(path):
    # NumPy reads what the header says, and the sum of a long array is checked at its end.
    with opened(path) as (checkpoint, _):
        checkpoint.save(rows(info=[np.arange(7000)]))
    content = path.read_bytes()
    changed = content.replace(b"'shape': (7000,)", b"'shape': (3000,)")  # one bit
    assert changed != content
    assert noticed(path, [changed]) == 1


def test_a_line_that_found_no_room_damages_nothing(kept, full):
    journal = kept.with_name("run.npz.open")
    with opened(kept) as (checkpoint, _):
        with full(journal.stat().st_size + 20), pytest.raises(OSError, match="File too large"):
            checkpoint.record(1, 3, [7.0], None, TIMES)
        assert checkpoint.recorded(1) == ENDED
        assert ended_beside(kept) == ENDED
        checkpoint.record(1, 3, [7.0], None, TIMES)
    assert ended(kept) == ENDED | {3: (7.0, None)}


def ended_beside(path):
    """The evaluations that another process would find after a kill."""
    copy = path.with_name("copy.npz")
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.npz.open").write_bytes(path.with_name("run.npz.open").read_bytes())
    return ended(copy)
