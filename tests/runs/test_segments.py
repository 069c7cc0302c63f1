"""A compiled run in segments has the bits of one program, whatever the segments and however often it
is stopped."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxbo._keys import unwrap
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.metrics import best_so_far
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs import _archive, _segments
from jaxbo.runs._checkpoint import CheckpointError
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive
from jaxbo.runs.trace import summary
from tests.runs.driven import MODEL, RANDOM, bowl, environment, files
from tests.walk import Stroll, Walk

#: Some runs below leave rounds out on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:the last:RuntimeWarning")

WALK = Walk(Cube(1), 3)
TS2 = TS(Finite(np.random.default_rng(0).random((32, 1))), 2, Fixed(size=8))


def noisy(key, agent, x):
    return -((x - 0.3) ** 2).sum() + 0.1 * jr.normal(key)


def equal(one, other):
    leaves = zip(jax.tree.leaves(unwrap(one)), jax.tree.leaves(unwrap(other)), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in leaves)


class StoppedError(Exception):
    """In the place of a kill."""


@pytest.fixture
def slowly(monkeypatch):
    """Segments of so many rows, each saved; after so many of them the run is stopped."""

    whole = _archive.write

    def slowly(rows, segments=None):
        monkeypatch.setattr(_segments, "GROWTH", rows)
        monkeypatch.setattr(_segments, "SEGMENT", 1e6)
        monkeypatch.setattr(_segments, "BETWEEN_SAVES", 0.0)
        monkeypatch.setattr(_segments, "PATIENCE", 0)
        left = [segments]

        def write(*arguments):
            whole(*arguments)
            if left[0] is not None:
                left[0] -= 1
                if left[0] == 0:
                    raise StoppedError

        monkeypatch.setattr(_segments._archive, "write", write)

    return slowly


SUMMARIES = "every other summary"
WAYS = {
    "rounds": {},
    "a design and small values": {"initial": 2, "direction": "minimize"},
    "every third": {"initial": 1, "every": 3},
    SUMMARIES: {"initial": 1, "every": 2, "record": summary},
}


@pytest.mark.slow
@pytest.mark.bitwise
@pytest.mark.parametrize(
    ("algorithm", "way"),
    [
        (WALK, SUMMARIES),
        *(pytest.param(WALK, way, marks=pytest.mark.full) for way in WAYS if way != SUMMARIES),
        # The bits of a model are in the test of a larger capacity, too.
        pytest.param(TS2, "a design and small values", marks=pytest.mark.full),
        pytest.param(TS2, SUMMARIES, marks=pytest.mark.full),
    ],
)
def test_segments_have_the_bits_of_one_program(algorithm, way, key, path, slowly):
    whole = run(algorithm, noisy, 7, key, **WAYS[way])
    slowly(3)
    assert equal(run(algorithm, noisy, 7, key, checkpoint=path, **WAYS[way]), whole)
    assert equal(run(algorithm, noisy, 7, key, checkpoint=path, **WAYS[way]), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        # Its design and its sign are those of `test_a_run_goes_on_with_a_larger_capacity...`, too.
        pytest.param(way, marks=pytest.mark.full) if way == "a design and small values" else way
        for way in WAYS
    ],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(way, key, path, slowly, monkeypatch):
    slowly(2)
    whole = run(WALK, noisy, 7, key, checkpoint=path.with_name("whole"), **WAYS[way])
    rows = []
    whole_rows = _segments._rows
    monkeypatch.setattr(
        _segments,
        "_rows",
        lambda known, carry: rows.append(int(known[2])) or whole_rows(known, carry),
    )
    for segments, reached in ((1, 1), (2, 3)):
        stopped = path.with_name(f"stopped{segments}")
        slowly(2, segments)
        with pytest.raises(StoppedError):
            run(WALK, noisy, 7, key, checkpoint=stopped, **WAYS[way])
        slowly(2)
        rows.clear()
        again = run(WALK, noisy, 7, key, checkpoint=stopped, **WAYS[way])
        assert rows[0] == reached
        assert equal(again, whole)
    assert files(path.parent) == ["stopped1", "stopped2", "whole"]


def test_a_run_goes_on_with_more_rounds(key, path, slowly):
    slowly(2)
    way = WAYS["a design and small values"]
    more = run(WALK, noisy, 7, key, checkpoint=path.with_name("whole"), **way)
    run(WALK, noisy, 5, key, checkpoint=path, **way)
    assert equal(run(WALK, noisy, 7, key, checkpoint=path, **way), more)
    with pytest.raises(ValueError, match="has 9 rows already, the run asks for 7"):
        run(WALK, noisy, 5, key, checkpoint=path, **way)


def growing(capacity):
    """Of both capacities below the root is a product: `size` is larger."""
    return Stroll(Cube(1), 1, Fixed(size=16, capacity=capacity))


@pytest.mark.slow
@pytest.mark.bitwise
@pytest.mark.parametrize(
    "way",
    [pytest.param({}, marks=pytest.mark.full), {"initial": 2, "direction": "minimize"}],
    ids=["rounds", "a design and small values"],
)
def test_a_run_goes_on_with_a_larger_capacity_as_if_it_had_had_it(way, key, path, slowly):
    slowly(2)
    run(growing(6), noisy, 4, key, checkpoint=path, **way)
    grown = run(growing(12), noisy, 8, key, checkpoint=path, **way)
    assert equal(grown, run(growing(12), noisy, 8, key, **way))
    assert equal(grown, run(growing(12), noisy, 8, key, checkpoint=path, **way))


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"every": 2}, {"record": summary}])
def test_a_run_of_which_not_all_is_recorded_keeps_its_capacity(way, key, path):
    run(growing(6), noisy, 4, key, checkpoint=path, **way)
    with pytest.raises(CheckpointError, match=r"another capacity, .* the same capacity as before"):
        run(growing(12), noisy, 8, key, checkpoint=path, **way)
    with pytest.raises(ValueError, match=r"capacity=8\)\.$"):
        run(growing(6), noisy, 8, key, checkpoint=path, **way)
    with pytest.raises(ValueError, match=r"capacity=8\)\. A checkpoint goes on with it\.$"):
        run(growing(6), noisy, 8, key, checkpoint=path)
    assert run(growing(6), noisy, 4, key, checkpoint=path, **way)[1] is not None


@pytest.mark.slow
def test_a_state_that_is_given_is_kept_and_goes_on(key, path, slowly):
    begun, _ = run(WALK, noisy, 7, jr.key(7), checkpoint=path.with_name("begun"))
    before = jax.tree.map(np.array, begun)
    slowly(2)
    whole = run(WALK, noisy, 7, key, state=begun, checkpoint=path)
    assert equal(begun, before)
    assert equal(run(WALK, noisy, 7, key, state=begun, checkpoint=path), whole)
    with pytest.raises(CheckpointError, match="another state"):
        run(WALK, noisy, 7, key, checkpoint=path)


def test_who_was_present_is_part_of_the_run(key, path, slowly):
    present = jnp.asarray([[True, False, True]] * 5)
    slowly(2)
    whole = run(WALK, noisy, 5, key, present=present, checkpoint=path.with_name("whole"))
    slowly(2, 2)
    with pytest.raises(StoppedError):
        run(WALK, noisy, 5, key, present=present, checkpoint=path)
    slowly(2)
    later = present.at[4, 0].set(False)
    with pytest.raises(CheckpointError, match="another present"):
        run(WALK, noisy, 5, key, present=present.at[0, 0].set(False), checkpoint=path)
    with pytest.raises(CheckpointError, match="another present"):
        run(WALK, noisy, 5, key, checkpoint=path)
    assert equal(run(WALK, noisy, 5, key, present=present, checkpoint=path), whole)
    with pytest.raises(CheckpointError, match="another present"):
        run(WALK, noisy, 5, key, present=later, checkpoint=path)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("algorithm", lambda go: go(algorithm=RandomSearch(Cube(2), 4))),
        ("key", lambda go: go(key=jr.key(1))),
        ("initial", lambda go: go(initial=1)),
        ("every", lambda go: go(every=2)),
        ("record", lambda go: go(record=summary)),
        ("direction", lambda go: go(direction="minimize")),
        ("objective", lambda go: go(objective=Same(branin_rescaled(), 0.1))),
    ],
)
def test_another_run_is_told_what_is_different(name, other, path):
    def go(algorithm=RANDOM, objective=noisy, key=jr.key(0), **more):
        return run(algorithm, objective, 2, key, checkpoint=path, **more)

    go()
    with pytest.raises(CheckpointError, match=f"another .*{name}"):
        other(go)
    go()


def test_a_file_of_another_kind_in_use_or_damaged_is_refused(key, path):
    drive(RANDOM, bowl, 1, key, checkpoint=path, progress=False)
    with pytest.raises(CheckpointError, match="the file of a run in rounds"):
        run(RANDOM, noisy, 2, key, checkpoint=path)
    other = path.with_name("other")
    run(RANDOM, noisy, 2, key, checkpoint=other)
    content = bytearray(other.read_bytes())
    content[len(content) // 2] ^= 255
    other.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        run(RANDOM, noisy, 2, key, checkpoint=other)
    hold = _segments.Hold(path)
    hold.take()
    with pytest.raises(CheckpointError, match="in use"):
        run(RANDOM, noisy, 2, key, checkpoint=path)
    hold.release()
    with pytest.raises(ValueError, match=r"folder .* does not exist"):
        run(RANDOM, noisy, 2, key, checkpoint=path.parent / "no" / "run.npz")


@pytest.mark.slow
def test_agents_over_devices_are_laid_out_again(key, path, slowly):
    mesh = Mesh(np.array(jax.devices()[:2]), ("agents",))
    algorithm = RandomSearch(Cube(2), 4)
    slowly(2)
    whole = run(algorithm, noisy, 5, key, mesh=mesh, checkpoint=path.with_name("whole"))
    slowly(2, 2)
    with pytest.raises(StoppedError):
        run(algorithm, noisy, 5, key, mesh=mesh, checkpoint=path)
    slowly(2)
    state, trace = run(algorithm, noisy, 5, key, mesh=mesh, checkpoint=path)
    assert equal((state, trace), whole)
    assert trace.values.sharding == whole[1].values.sharding


def test_a_bar_shows_what_is_recorded(key, capsys, slowly):
    pytest.importorskip("tqdm")
    slowly(2)
    _, rows = run(WALK, noisy, 7, key, progress=True, **WAYS["every other summary"])
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert f"best={rows.best[-1]:.4g}" in shown
    assert f"mean={rows.mean[-1]:.4g}" in shown
    _, trace = run(WALK, noisy, 7, key, progress=True, **WAYS["a design and small values"])
    shown = capsys.readouterr().err
    assert f"best={best_so_far(trace.values, 'minimize')[-1].min():.4g}" in shown


def test_a_run_under_jit_or_vmap_is_told_to_leave_these_out(key, path):
    for more in ({"progress": True}, {"checkpoint": path}):
        for transformed in (jax.jit, jax.vmap):
            keys = key if transformed is jax.jit else jr.split(key, 2)
            with pytest.raises(ValueError, match="leave them out under jit and vmap"):
                transformed(lambda k, m=more: run(RANDOM, noisy, 1, k, **m)[1].values)(keys)


@pytest.mark.slow
def test_one_program_serves_all_segments(key, slowly):
    traced = []

    def objective(x):
        traced.append(x)
        return x.sum()

    slowly(1)
    run(RANDOM, objective, 4, key, progress=True)
    few = len(traced)
    run(RANDOM, objective, 4, jr.key(1), progress=True)
    assert len(traced) == few + 1  # only its shape is looked at


@pytest.mark.slow
def test_an_empty_run_and_workers_are_runs_too(key, path):
    assert equal(run(RANDOM, noisy, 0, key, checkpoint=path)[1], run(RANDOM, noisy, 0, key)[1])
    run(MODEL, noisy, 1, key, checkpoint=path.with_name("workers"))


INTERRUPTED = """
    import os, signal, sys, threading
    import jax.random as jr
    import jaxbo
    from jaxbo.runs import _segments

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in the background
    _segments.SEGMENT = 1e-9  # one row at a time
    whole, count = _segments._rows, [0]

    def rows(known, carry):
        count[0] += 1
        found = whole(known, carry)
        if count[0] == 2:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return found

    objective = lambda x: x.sum()
    go = lambda **more: jaxbo.run(
        jaxbo.RandomSearch(jaxbo.Cube(2), 3), objective, 5, jr.key(0), initial=3, **more
    )[1]
    _segments._rows = rows
    for times in (1, 2):
        count[0], path = 0, sys.argv[1] + str(times)
        try:
            trace = go(checkpoint=path)
            print("returned", trace.values.shape, trace.initial)
        except KeyboardInterrupt:
            print("raised")
        assert (go(checkpoint=path).values == go().values).all()
        print("then", count[0])
"""


@pytest.mark.slow
def test_an_interrupt_ends_a_run_after_the_rows_in_hand_and_a_second_at_once(path):
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout.splitlines() == ["returned (2, 3) 2", "then 8", "raised", "then 10"]


def test_a_full_disk_leaves_the_last_save(key, path, slowly, full):
    slowly(2, 1)
    with pytest.raises(StoppedError):
        run(WALK, noisy, 7, key, checkpoint=path)
    content = path.read_bytes()
    slowly(2)
    with full(100), pytest.raises(OSError, match="File too large"):
        run(WALK, noisy, 7, key, checkpoint=path)
    assert path.read_bytes() == content
    whole = run(WALK, noisy, 7, key, checkpoint=path.with_name("whole"))
    assert equal(run(WALK, noisy, 7, key, checkpoint=path), whole)
