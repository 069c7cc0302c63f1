"""Checkpoints: killed at any moment, a run goes on as if nothing had been."""

import functools
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile

import jax
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.objectives import functions
from jaxbo.objectives.families import Same
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._checkpoint import FORMAT
from jaxbo.runs.driver import drive
from tests.runs.driven import environment
from tests.walk import Stroll, Walk

RANDOM, TWO = (RandomSearch(Cube(2), agents) for agents in (3, 2))
WALK = Walk(Cube(2), 3)
quiet = functools.partial(drive, progress=False)


def bowl(agent, x):
    return float(-np.sum((x - 0.1 * agent) ** 2))


def same(one, other):
    return (
        np.array_equal(one.queries, other.queries)
        and np.array_equal(one.values, other.values, equal_nan=True)
        and jax.tree.all(jax.tree.map(np.array_equal, one.info, other.info))
        and one.failures == other.failures
    )


class Counting:
    """An objective that knows what it has evaluated."""

    def __init__(self, objective=bowl):
        self.objective, self.ended = objective, []

    def __call__(self, agent, x):
        value = self.objective(agent, x)
        self.ended.append((agent, *np.asarray(x).tolist()))
        return value


def files(path):
    """All but the lock, which stays and means nothing by itself."""
    return sorted(file.name for file in path.parent.iterdir() if file.suffix != ".lock")


# ---------------------------------------------------------------- stopped in between


class Killed(BaseException):
    pass


class Fate:
    """Kills at the n-th of the moments between which something happens; nothing happens after.

    After an interrupt the process tidies up.
    """

    def __init__(self, moment, interrupt=False):
        self.count = self.left = moment
        self.interrupt = interrupt

    def moment(self):
        self.left -= 1
        if self.left == 0 or (self.left < 0 and not self.interrupt):
            raise Killed

    def around(self, function):
        def wrapped(*args, **kwargs):
            self.moment()
            result = function(*args, **kwargs)
            try:
                self.moment()
            except Killed:
                if type(result) is int:  # as the system closes a killed process's files
                    os.close(result)
                raise
            return result

        return wrapped

    def fsync(self, file):
        """Bytes that have not reached the disk may be lost."""
        try:
            self.moment()
        except Killed:
            if stat.S_ISREG(os.fstat(file).st_mode):
                os.ftruncate(file, max(os.fstat(file).st_size - 1 - 7 * self.count % 60, 0))
            raise
        FSYNC(file)
        self.moment()


FSYNC = os.fsync


def kill_at(moment, monkeypatch, key, path, algorithm, objective, interrupt=False):
    """Whether the run came to an end before its `moment`, of all calls that change files."""
    fate = Fate(moment, interrupt)
    with monkeypatch.context() as patch:
        for name in ("open", "replace", "unlink"):
            patch.setattr(os, name, fate.around(getattr(os, name)))
        patch.setattr(os, "fsync", fate.fsync)
        patch.setattr(np, "savez", fate.around(np.savez))
        try:
            quiet(algorithm, fate.around(objective), 1, key, checkpoint=path, initial=1)
        except Killed:
            return False
    return True


def fails_once_in_four(agent, x):
    if float(x[0]) < 0.25:
        raise OSError("bad luck")
    return bowl(agent, x)


#: A seed of which two evaluations of four fail.
KILLED = 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("objective", "interrupt"), [(bowl, False), (fails_once_in_four, True)])
def test_killed_at_any_moment_it_loses_only_what_was_in_flight(
    objective, interrupt, path, monkeypatch
):
    key = jr.key(KILLED)
    _, expected = quiet(TWO, objective, 1, key, initial=1)
    if objective is fails_once_in_four:
        assert len(expected.failures) >= 2
    moment, finished = 0, False
    while not finished:
        moment += 1
        called = []

        def counted(agent, x, called=called):
            called.append((agent, *x))
            return objective(agent, x)

        finished = kill_at(moment, monkeypatch, key, path, TWO, counted, interrupt)
        _, trace = quiet(TWO, counted, 1, key, checkpoint=path, initial=1)
        assert same(trace, expected), moment
        assert 4 <= len(called) <= 5, moment  # one at a time: at most one twice
        assert len(set(called)) == 4
        assert files(path) == ["run.npz"]
        path.unlink()
    assert moment > 40


def test_killed_again_and_again_it_still_arrives(path, monkeypatch, key):
    _, expected = quiet(RANDOM, bowl, 1, key, initial=1)
    objective, kills = Counting(), 0
    # Far enough each time for one evaluation more than the last time, and not for three.
    while not kill_at(20, monkeypatch, key, path, RANDOM, objective):
        kills += 1
    assert kills >= 2
    assert 6 <= len(objective.ended) <= 6 + kills
    assert same(quiet(RANDOM, bowl, 1, key, checkpoint=path, initial=1)[1], expected)


def test_a_line_cut_off_in_the_journal_costs_that_evaluation_only(path, key):
    def stop_at(n):
        calls = []

        def objective(agent, x):
            calls.append(agent)
            if len(calls) == n:
                raise KeyboardInterrupt
            return bowl(agent, x)

        return objective, calls

    algorithm = RandomSearch(Cube(2), 5)
    journal = path.with_name("run.npz.open")
    with pytest.raises(KeyboardInterrupt):
        quiet(algorithm, stop_at(3)[0], 1, key, checkpoint=path)
    journal.write_bytes(journal.read_bytes()[:-9])
    objective, calls = stop_at(3)
    with pytest.raises(KeyboardInterrupt):
        quiet(algorithm, objective, 1, key, checkpoint=path)
    assert calls == [1, 2, 3]
    objective, calls = stop_at(9)
    _, trace = quiet(algorithm, objective, 1, key, checkpoint=path)
    assert calls == [3, 4]
    assert same(trace, quiet(algorithm, bowl, 1, key)[1])


@pytest.mark.parametrize("rubbish", [b"5\n", b"[]\n", b"\n", b"\xff\xfe\n", b"00000000 {}\n"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_rubbish_in_the_journal_is_refused_unless_it_is_cut_off(rubbish, place, path, key):
    with pytest.raises(KeyboardInterrupt):
        quiet(RANDOM, Counting(_interrupted_by_agent_2), 1, key, checkpoint=path)
    journal = path.with_name("run.npz.open")
    content = journal.read_bytes()
    journal.write_bytes(rubbish + content if place == "before" else content + rubbish)
    objective = Counting()
    with pytest.raises(CheckpointError, match=r"line \d of .*run.npz.open is damaged: restore it"):
        quiet(RANDOM, objective, 1, key, checkpoint=path)
    assert objective.ended == []
    journal.write_bytes(content + rubbish[:-1])
    quiet(RANDOM, objective, 1, key, checkpoint=path)
    assert [agent for agent, *_ in objective.ended] == [2]


def _interrupted_by_agent_2(agent, x):
    if agent == 2:
        raise KeyboardInterrupt
    return bowl(agent, x)


# ---------------------------------------------------------------- killed for real

SCRIPT = textwrap.dedent("""
    import os, sys, time
    from concurrent.futures import ThreadPoolExecutor
    import jax.random as jr
    import numpy as np
    from jaxbo.domains.base import Finite
    from jaxbo.runs.driver import drive
    from tests.walk import Walk

    log, path, result = sys.argv[1:]
    log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def objective(agent, x):
        line = f"{agent} {x.tolist()}\\n"
        os.write(log, f"began {line}".encode())
        time.sleep(0.5 if agent else 0.05)
        os.write(log, f"ended {line}".encode())
        return float(-np.sum((x - 0.1 * agent) ** 2))

    algorithm = Walk(Finite(np.random.default_rng(0).random((50, 2))))
    with ThreadPoolExecutor(2) as pool:
        _, trace = drive(algorithm, objective, 2, jr.key(7), initial=1,
                         executor=pool, checkpoint=path, progress=False)
    np.savez(result, queries=trace.queries, values=trace.values, info=trace.info)
""")


def began(log):
    return log.read_text().count("began") if log.exists() else 0


@pytest.mark.slow
def test_killed_for_real_it_loses_what_was_in_flight_and_asks_the_same(path, tmp_path):
    log, result = tmp_path / "log", tmp_path / "result.npz"
    # The program is compiled once; what is tested here is what comes after.
    cached = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-c", SCRIPT, log, path, result]
    # In the middle of the first row, and just after another was finished.
    for kills, moment in enumerate([2, 7], start=1):
        process = subprocess.Popen(command, env=environment() | cached)
        deadline = time.monotonic() + 120
        while began(log) < moment + kills - 1 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.003)
        time.sleep(0.25)  # far from where an evaluation ends, so that all that ended is written
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not result.exists()
    subprocess.run(command, env=environment() | cached, timeout=120, check=True)

    algorithm = Walk(Finite(np.random.default_rng(0).random((50, 2))))
    _, trace = quiet(algorithm, bowl, 2, jr.key(7), initial=1)
    with np.load(result) as found:
        np.testing.assert_array_equal(found["queries"], trace.queries)
        np.testing.assert_array_equal(found["values"], trace.values)
        # The other process compiles as users do.
        np.testing.assert_allclose(found["info"], trace.info, rtol=1e-5)
    lines = log.read_text().splitlines()
    expected = [f"{n} {x.tolist()}" for row in np.asarray(trace.queries) for n, x in enumerate(row)]
    ended = [line.removeprefix("ended ") for line in lines if line.startswith("ended")]
    assert set(ended) == set(expected)
    # Two workers: at most two evaluations are in flight when the kill comes.
    evaluations = len(expected)
    assert evaluations < began(log) <= evaluations + 2 * kills


# ---------------------------------------------------------------- finished, longer, shorter


def test_nothing_is_evaluated_after_the_end(path, key):
    objective = Counting()
    first = quiet(RANDOM, objective, 3, key, initial=1, checkpoint=path)[1]
    assert len(objective.ended) == 12
    content = path.read_bytes()
    again = quiet(RANDOM, objective, 3, key, initial=1, checkpoint=path)[1]
    assert len(objective.ended) == 12
    assert same(first, again)
    assert path.read_bytes() == content
    assert files(path) == ["run.npz"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_more_rounds_than_before_go_on(path, key):
    objective = Counting(fails_once_in_four)
    quiet(WALK, objective, 2, key, initial=4, checkpoint=path)
    before = len(objective.ended)
    state, trace = quiet(WALK, objective, 5, key, initial=4, checkpoint=path)
    undisturbed_state, undisturbed = quiet(WALK, fails_once_in_four, 5, key, initial=4)
    assert same(trace, undisturbed)
    assert len(objective.ended) - before == np.isfinite(trace.values[6:]).sum()
    np.testing.assert_array_equal(state.clients.weights, undisturbed_state.clients.weights)


def test_presence_may_be_told_for_more_rounds(path, key):
    present = jr.bernoulli(jr.key(0), 0.5, (4, 3))
    quiet(WALK, bowl, 2, key, checkpoint=path, present=present[:2])
    _, trace = quiet(WALK, bowl, 4, key, checkpoint=path, present=present)
    assert same(trace, quiet(WALK, bowl, 4, key, present=present)[1])


def grown(capacity):
    return Stroll(Cube(2), 1, Fixed(size=8, capacity=capacity))


@pytest.mark.slow
def test_with_a_larger_capacity_it_asks_what_a_run_that_had_it_asks(path, key):
    quiet(grown(4), bowl, 3, key, initial=1, checkpoint=path)
    line = r"write surrogate=Fixed\(…, capacity=7\)\. A checkpoint goes on with it"
    with pytest.raises(ValueError, match=line):
        quiet(grown(4), bowl, 6, key, initial=1, checkpoint=path)
    objective = Counting()
    _, trace = quiet(grown(7), objective, 6, key, initial=1, checkpoint=path)
    assert len(objective.ended) == 3
    assert same(trace, quiet(grown(7), bowl, 6, key, initial=1)[1])


@pytest.mark.slow
def test_a_model_that_is_fitted_goes_on_with_a_larger_capacity(path, key):
    def alg(capacity):
        points = Finite(np.random.default_rng(0).random((50, 1)))
        return TS(points, 1, Fitted(capacity, size=8, refit_every=2))

    _, before = quiet(alg(4), bowl, 3, key, initial=1, checkpoint=path)
    state, trace = quiet(alg(6), bowl, 5, key, initial=1, checkpoint=path)
    assert trace.queries.shape == (6, 1, 1)
    np.testing.assert_array_equal(trace.queries[:4], before.queries)
    again = jaxbo.replay(alg(6), trace, key)
    jax.tree.map(np.testing.assert_array_equal, state, again)
    assert int(state.clients.moments.count[0]) == 6


def test_fewer_rounds_than_before_are_refused(path, key):
    objective = Counting()
    quiet(RANDOM, objective, 3, key, checkpoint=path)
    with pytest.raises(ValueError, match=r"3 rows already, the run asks for 2"):
        quiet(RANDOM, objective, 2, key, checkpoint=path)
    assert len(objective.ended) == 9


def test_a_run_without_rounds_leaves_nothing_half_done(path, key):
    _, trace = quiet(RANDOM, bowl, 0, key, checkpoint=path)
    assert trace.queries.shape == (0, 3, 2)
    _, trace = quiet(RANDOM, bowl, 2, key, checkpoint=path)
    assert same(trace, quiet(RANDOM, bowl, 2, key)[1])


def test_the_queries_of_the_first_row_are_saved_before_they_are_evaluated(path, key):
    saved = []

    def objective(agent, x):
        with np.load(path) as archive:
            saved.append(archive["queries"][-1, agent])
        return bowl(agent, x)

    _, trace = quiet(RANDOM, objective, 2, key, checkpoint=path)
    np.testing.assert_array_equal(saved, trace.queries.reshape(6, 2))


# ---------------------------------------------------------------- another run's


def refused(path, message, algorithm=RANDOM, key=None, rounds=2, **options):
    objective = Counting()
    content = path.read_bytes()
    key = jr.key(0) if key is None else key
    with pytest.raises(CheckpointError, match=message) as caught:
        quiet(algorithm, objective, rounds, key, checkpoint=path, **options)
    assert isinstance(caught.value, ValueError)
    assert str(path) in str(caught.value)
    assert objective.ended == []
    assert path.read_bytes() == content
    assert files(path) == [path.name]


def named(**bounds):
    return Space({name: Real(*map(float, ends)) for name, ends in bounds.items()})


#: Which differences there are is a matter of `test_identity`.
OTHERS = {
    "method": (RANDOM, WALK),
    "domain": (RANDOM, RandomSearch(Cube(3), 3)),
    "bounds": (RandomSearch(named(a=(0, 1)), 1), RandomSearch(named(a=(0, 2)), 1)),
    "agents": (RANDOM, RandomSearch(Cube(2), 4)),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_a_checkpoint_of_another_algorithm_is_refused(difference, path):
    mine, other = OTHERS[difference]
    objective = _first if difference == "bounds" else bowl
    quiet(mine, objective, 0, jr.key(0), initial=1, checkpoint=path)
    refused(path, "another algorithm", other, initial=1)


def _first(agent, x):
    return next(iter(x.values()))


def test_a_checkpoint_of_another_run_is_refused(path):
    quiet(RANDOM, bowl, 2, jr.key(0), checkpoint=path)
    refused(path, "another key", key=jr.key(1))
    refused(path, "another initial", initial=1)
    refused(path, "another state", state=RANDOM.init(jr.key(0)))


def test_a_checkpoint_of_another_version_or_compiled_objective_is_refused(path, monkeypatch):
    objective = Same(functions.sphere(2))
    go = functools.partial(quiet, RANDOM, rounds=2, key=jr.key(0), checkpoint=path)
    go(objective=objective)
    go(objective=Same(functions.sphere(2)))
    for other in (Same(functions.levy(2)), Same(functions.sphere(2), noise=0.1), bowl):
        with pytest.raises(CheckpointError, match="another objective"):
            go(objective=other)
    monkeypatch.setattr("jaxbo._version.__version__", "0.0.1")
    with pytest.raises(CheckpointError, match="another version"):
        go(objective=objective)


def test_a_checkpoint_in_another_precision_is_refused(path):
    quiet(RANDOM, bowl, 2, jr.key(0), checkpoint=path)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        refused(path, "another precision", RandomSearch(Cube(2), 3))


# ---------------------------------------------------------------- damaged


@pytest.fixture
def saved(path):
    quiet(RANDOM, bowl, 2, jr.key(0), checkpoint=path)
    return path


@pytest.mark.slow
def test_a_file_cut_off_anywhere_is_refused(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 53):
        saved.write_bytes(content[:length])
        refused(saved, "not a readable checkpoint")


@pytest.mark.slow
def test_a_changed_byte_is_noticed_or_does_not_matter(saved):
    content = saved.read_bytes()
    _, expected = quiet(RANDOM, bowl, 2, jr.key(0))
    outcomes = {"refused": 0, "same": 0}
    for place in range(0, len(content), 41):  # each one in `test_files`
        flipped = content[place] ^ (1 << place % 8)
        saved.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        objective = Counting()
        try:
            _, trace = quiet(RANDOM, objective, 2, jr.key(0), checkpoint=saved)
        except CheckpointError:
            outcomes["refused"] += 1
        else:
            outcomes["same"] += 1
            assert same(trace, expected), place
            assert objective.ended == []
    assert outcomes["refused"] > outcomes["same"]


def rewritten(path, manifest=lambda m: m, **arrays):
    with np.load(path) as archive:
        content = dict(archive)
    changed = manifest(json.loads(str(content["manifest"])))
    content["manifest"] = np.array(json.dumps(changed))
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{**content, **arrays})


def without(name):
    return lambda manifest: {k: v for k, v in manifest.items() if k != name}


DAMAGE = {
    "another version": (lambda m: {**m, "format": FORMAT + 1}, f"format {FORMAT + 1}"),
    "no version": (without("format"), "not a readable"),
    "no identity": (without("identity"), "not a readable"),
    "no rows": (without("told"), "not a readable"),
    "no failures": (without("failures"), "not a readable"),
    "failures that are none": (lambda m: {**m, "failures": [[1]]}, "not a readable"),
    "an identity that is none": (lambda m: {**m, "identity": 7}, "not a readable"),
    "a list": (lambda m: [], "not a readable"),
    "more info than there is": (lambda m: {**m, "info": 3}, "not a readable"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_manifest_that_does_not_fit_is_refused(damage, saved):
    change, message = DAMAGE[damage]
    rewritten(saved, change)
    refused(saved, message)


def test_other_files_are_refused(saved, tmp_path):
    for content in [b"", b"hello\n", b"\0" * 300, zipfile.ZipFile.__doc__.encode()]:
        saved.write_bytes(content)
        refused(saved, "not a readable checkpoint")
    with saved.open("wb") as file:
        np.save(file, np.zeros(3))
    refused(saved, "not a readable checkpoint")
    with saved.open("wb") as file:
        np.savez(file, queries=np.zeros(3))
    refused(saved, "not a readable checkpoint")


@pytest.mark.parametrize("name", ["queries", "values"])
def test_arrays_of_another_shape_are_refused(name, saved):
    rewritten(saved, **{name: np.zeros((2, 7, 2)[: 3 if name == "queries" else 2])})
    refused(saved, "checkpoint")
