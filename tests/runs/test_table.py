"""Evaluations as a table, and back."""

import csv
import functools
import io
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.known import read
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.domains.parameters import Categorical, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs.compiled import run
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive
from tests.walk import Stroll

quiet = functools.partial(drive, progress=False)
KEY = jr.key(0)
SPACE = Space(rate=Real(1e-3, 1.0, log=True), kind=Categorical("a", None))
RANDOM = RandomSearch(SPACE, 2)
COLUMNS = ["agent", "round", "rate", "kind", "value", "status", "error", "start", "seconds"]


def sometimes(agent, p):
    if agent == 1 and p["kind"] is None:
        raise OSError("no luck")
    return p["rate"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trace_is_a_table_of_its_evaluations():
    before = time.time()
    _, trace = quiet(RANDOM, sometimes, 4, KEY, initial=2)
    table = trace.table(SPACE)
    assert all(list(row) == COLUMNS for row in table)
    assert [(row["round"], row["agent"]) for row in table] == [
        (max(t - 2, -1), agent) for t in range(6) for agent in range(2)
    ]
    for row, x, value in zip(
        table, trace.queries.reshape(12, -1), trace.values.ravel(), strict=True
    ):
        assert {name: row[name] for name in SPACE.names} == SPACE.decode(x)
        failed = row["agent"] == 1 and row["kind"] is None
        assert row["value"] == (None if failed else value)
        assert row["status"] == ("failed" if failed else "observed")
        assert row["error"] == ("OSError('no luck')" if failed else None)
        assert before <= row["start"] <= row["start"] + row["seconds"] <= time.time()
    assert {row["status"] for row in table} == {"failed", "observed"}


def test_times_are_those_of_the_evaluations(path):
    def slow(agent, p):
        time.sleep(0.02 * (1 + 4 * agent))
        return p["rate"]

    _, alone = quiet(RANDOM, slow, 1, KEY)
    with ThreadPoolExecutor(2) as pool:
        _, together = quiet(RANDOM, slow, 1, KEY, executor=pool, checkpoint=path)
    for trace in (alone, together):
        first, second = trace.table(SPACE)
        assert first["seconds"] >= 0.02
        assert second["seconds"] >= 0.1
    again = quiet(RANDOM, slow, 1, KEY, checkpoint=path)[1]
    np.testing.assert_array_equal(again.times, together.times)


class Stopped(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_times_outlive_a_stop_in_the_middle_of_a_round(path):
    def stops(agent, p):
        if agent == 1:
            raise Stopped
        return p["rate"]

    before = time.time()
    with pytest.raises(Stopped):
        quiet(RANDOM, stops, 1, KEY, checkpoint=path)
    stopped = time.time()
    first, second = quiet(RANDOM, sometimes, 1, KEY, checkpoint=path)[1].table()
    assert before <= first["start"] <= first["start"] + first["seconds"] <= stopped
    assert second["start"] >= stopped


def test_a_compiled_run_has_a_table_without_times():
    _, trace = run(RandomSearch(Cube(2), 1), lambda k, a, x: x[0], 4, KEY, initial=1, every=2)
    table = trace.table()
    assert [row["round"] for row in table] == [-1, 1, 3]
    np.testing.assert_array_equal(
        [[row["x0"], row["x1"]] for row in table], np.asarray(trace.queries[:, 0], float)
    )
    assert {(row["start"], row["seconds"], row["error"]) for row in table} == {(None, None, None)}
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), trace)
    with pytest.raises(ValueError, match="expected the trace of one run"):
        both.table()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_table_is_what_another_run_knows():
    pandas = pytest.importorskip("pandas")
    old = quiet(RANDOM, sometimes, 3, KEY)[1]
    method = TS(SPACE, 2, Fixed(size=4), candidates=8)
    table = old.table(SPACE)
    states = [
        quiet(method, sometimes, 0, KEY, known=known)[0]
        for known in (table, (old.queries, old.values), table.to_pandas().astype({"kind": object}))
    ]
    for other in states[1:]:
        np.testing.assert_array_equal(
            states[0].clients.posterior.mean, other.clients.posterior.mean
        )
    assert states[0].told.tolist() == np.isfinite(old.values).sum(axis=0).tolist()
    assert isinstance(table.to_pandas(), pandas.DataFrame)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_table_is_written_as_csv(tmp_path):
    table = quiet(RANDOM, sometimes, 1, KEY)[1].table(SPACE)
    text = table.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == text == table.to_csv()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["rate"]) for row in rows] == [row["rate"] for row in table]
    assert [row["kind"] for row in rows] == [row["kind"] or "" for row in table]
    assert quiet(RANDOM, sometimes, 0, KEY)[1].table(SPACE).to_csv() == "\n"


@pytest.mark.parametrize("seed", [0, 3])
def test_a_space_with_branches_has_a_column_of_each_parameter(seed):
    space = Space(
        model=Categorical("tree", "svm"), C=Real(0.1, 10.0, log=True).when(model="svm"), seed=7
    )
    _, trace = quiet(RandomSearch(space), lambda p: p.get("C", 1.0), 6, jr.key(seed))
    table = trace.table(space)
    assert {row["model"] for row in table} == {"tree", "svm"}
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    for x, row, written in zip(trace.queries[:, 0], table, rows, strict=True):
        expected = {"C": None, **space.decode(x)}
        assert {name: row[name] for name in space.names} == expected
        assert list(written)[2:5] == ["model", "C", "seed"]
        assert written["C"] == ("" if expected["C"] is None else str(expected["C"]))
    known = read(table, space, 1, 1)
    np.testing.assert_array_equal(known.queries, trace.queries)


def test_a_parameter_called_as_a_column_is_refused():
    space = Space(value=Real(0, 1), round=Real(0, 1), other=Real(0, 1))
    _, trace = run(RandomSearch(space), lambda k, a, x: x[0], 1, KEY)
    with pytest.raises(ValueError, match=r"\['value', 'round'\] are called as columns"):
        trace.table(space)
    assert len(trace.table()) == 1


@pytest.mark.slow
def test_a_desk_has_a_table_of_all_its_queries(tmp_path):
    method = Stroll(SPACE, 2)
    known = [{"rate": 0.1, "kind": None, "value": 2.0}, {"rate": 0.2, "kind": "a", "value": None}]
    make = functools.partial(Desk, method, KEY, initial=1, known=known, checkpoint=tmp_path / "d")
    with make() as desk:
        for value in (1.0, 3.0):
            desk.tell(desk.ask().number, value)
        number = desk.ask().number
        desk._ahead.wait()  # types that are checked in its thread would forget warnings of this one
        with pytest.warns(RuntimeWarning):
            desk.fail(number, "no luck")
        desk.tell_new({"rate": 0.5, "kind": "a"}, 4.0)
        desk.ask()
        table = desk.table()
    columns = {name: [row[name] for row in table] for name in COLUMNS}
    assert columns["value"] == [2.0, None, 1.0, 3.0, None, 4.0, None]
    assert columns["round"] == [-1, -1, -1, 0, 1, -1, 2]
    expected = ["known", "failed", "observed", "observed", "failed", "known", "running"]
    assert columns["status"] == expected
    assert columns["error"] == [None] * 4 + ["no luck", None, None]
    assert [start is None for start in columns["start"]] == [True] * 2 + [False] * 3 + [True, False]
    assert [s is None for s in columns["seconds"]] == [True] * 2 + [False] * 3 + [True] * 2
    with make() as again:
        assert again.table() == table
    assert Desk(method, KEY, known=table).values.tolist()[-1] == 4.0
    assert Desk(method, KEY, known=table).told == 6
