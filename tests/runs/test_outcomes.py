"""Outcomes with bounds in every loop: values by name, failures, files, tables, and what is best."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import stopping
from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.egp import EGP
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.plotting._runs import modeled, observed, values_of
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._evaluate import BadValueError
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.best import best
from jaxbo.runs.compiled import run
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.timeline import simulate
from jaxbo.runs.trace import Round
from tests import stepped
from tests.walk import Stroll

KEY = jr.key(0)
COST = Outcome("cost", at_most=1.0)
SPACE = Space(a=Real(0, 1), b=Real(0, 1))
ONE = Stroll(SPACE, 1, Fixed(size=8), outcomes=[COST, Outcome("b2", at_least=0.01)])
#: A method whose arithmetic is that of the package: that of `Stroll` may be rounded in two ways.
#: Of a finite set no search is compiled.
POINTS = Finite(np.random.default_rng(0).random((40, 2)))
DRAWN = EGP(POINTS, Fixed(size=8), Thompson(), candidates=16, outcomes=ONE.outcomes)
AGENTS = TS(SPACE, 2, Fixed(size=8), candidates=16, outcomes=ONE.outcomes)
METHODS = pytest.mark.parametrize("method", [ONE, AGENTS], ids=["one model", "agents"])
quiet = functools.partial(drive, progress=False)


def bench(p):
    """Best at (0.8, 0.8), which costs too much: under the bound at (0.5, 0.5)."""
    distance = (p["a"] - 0.8) ** 2 + (p["b"] - 0.8) ** 2
    return {"value": -5 * distance, "cost": p["a"] + p["b"], "b2": p["b"] ** 2}


def compiled(key, agent, x):
    a, b = x
    return {"b2": b**2, "cost": a + b, "value": -5 * ((a - 0.8) ** 2 + (b - 0.8) ** 2)}


def equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def at_most(bound):
    """A cost of so much; the bound is a number that a program is given."""
    return eqx.tree_at(lambda outcome: outcome.at_most, COST, jnp.asarray(bound))


def met_of(outcomes):
    return (outcomes["cost"] <= 1) & (outcomes["b2"] >= 0.01)


# ---------------------------------------------------------------- in rounds


@pytest.mark.slow
@METHODS
def test_a_trace_has_all_outcomes_and_says_which_points_are_feasible(method):
    state, trace = quiet(method, bench, 3, KEY, initial=3)
    x = np.asarray(trace.queries, np.float64)
    np.testing.assert_allclose(trace.outcomes["cost"], x.sum(-1), atol=1e-6)
    np.testing.assert_array_equal(trace.feasible, met_of(trace.outcomes))
    assert 0 < trace.feasible.sum() < trace.feasible.size
    assert trace.outcomes["cost"].dtype == trace.values.dtype == np.float64
    equal(state, replay(method, trace, KEY))
    np.testing.assert_array_equal(values_of(trace), np.where(trace.feasible, trace.values, np.nan))


@pytest.mark.slow
@METHODS
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_evaluation_has_failed_if_any_of_its_numbers_is_not_finite(method):
    calls = iter(range(100))

    def sometimes(p):
        result, number = bench(p), next(calls)
        if number % 3 == 1:
            result[("value", "cost", "b2")[number // 3 % 3]] = np.inf if number % 2 else np.nan
        return result

    _, trace = quiet(method, sometimes, 3, KEY, initial=3)
    failed = np.arange(trace.values.size).reshape(trace.values.shape) % 3 == 1
    for column in (trace.values, *trace.outcomes.values()):
        np.testing.assert_array_equal(np.isnan(column), failed)
    assert not trace.feasible[failed].any()
    assert len(trace.failures) == failed.sum()
    assert "returned nan as 'cost', expected a finite number" in trace.failures[1].error


@METHODS
@pytest.mark.parametrize(
    "after", [4, *(pytest.param(after, marks=pytest.mark.full) for after in (1, 9))]
)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(method, after, tmp_path):
    calls = iter(range(after))

    def until(p):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return bench(p)

    whole = quiet(method, bench, 3, KEY, initial=3)
    path = tmp_path / "run"
    if after < whole[1].values.size:
        with pytest.raises(KeyboardInterrupt):
            quiet(method, until, 3, KEY, initial=3, checkpoint=path)
    resumed = quiet(method, bench, 3, KEY, initial=3, checkpoint=path)
    again = quiet(method, lambda p: None, 3, KEY, initial=3, checkpoint=path)
    for state, trace in (resumed, again):
        equal(state, whole[0])
        equal(
            (trace.queries, trace.values, trace.outcomes, trace.met),
            (
                whole[1].queries,
                whole[1].values,
                whole[1].outcomes,
                whole[1].met,
            ),
        )


def test_another_bound_is_another_run(tmp_path):
    quiet(ONE, bench, 0, KEY, initial=1, checkpoint=tmp_path / "run")
    other = Stroll(SPACE, 1, Fixed(size=8), outcomes=[Outcome("cost", at_most=1.5)])
    with pytest.raises(CheckpointError, match="outcomes"):
        quiet(other, bench, 0, KEY, initial=1, checkpoint=tmp_path / "run")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, "must return {'value': …, 'cost': …, 'b2': …}, got 1.0"),
        ({"value": 1.0, "cost": 2.0}, r"missing \['b2'\], unknown \[\]"),
        ({"value": 1.0, "cost": 2.0, "b2": 1.0, "c": 0}, r"missing \[\], unknown \['c'\]"),
        ({"value": 1.0, "cost": "2", "b2": 1.0}, "one real number as 'cost', got '2'"),
        ({"value": [1.0], "cost": 2.0, "b2": 1.0}, r"one real number as 'value', got \[1.0\]"),
    ],
)
def test_another_result_is_a_mistake_that_ends_the_run(result, message):
    with pytest.raises(BadValueError, match=message):
        quiet(ONE, lambda p: result, 1, KEY, initial=1)
    desk = Desk(ONE, KEY, initial=2)
    number, _ = desk.ask()
    with pytest.raises(BadValueError, match=message):
        desk.tell(number, result)
    assert desk.out == (number,)
    with pytest.raises(BadValueError, match=message):
        drive_async(ONE, lambda p: result, 1, KEY, initial=1, progress=False)


@pytest.mark.parametrize("loop", [run, quiet], ids=["run", "drive"])
@pytest.mark.parametrize("result", [{"value": 1.0}, 1.0, {"value": 1.0, "cost": 1, "b2": 1.0}])
def test_a_compiled_objective_is_checked_before_work_starts(loop, result):
    made = jax.tree.map(jnp.asarray, result)
    with pytest.raises(ValueError, match="the objective"):
        loop(ONE, lambda key, agent, x: made, 1, KEY)


# ---------------------------------------------------------------- compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [DRAWN, pytest.param(AGENTS, marks=pytest.mark.full)],
    ids=["one model", "agents"],
)
@pytest.mark.bitwise
def test_run_and_drive_agree_in_every_bit(method):
    state, trace = run(method, compiled, 4, KEY, initial=2)
    other, driven = quiet(method, compiled, 4, KEY, initial=2)
    equal(state, other)
    for name in ("queries", "values", "outcomes", "met"):
        equal(getattr(trace, name), getattr(driven, name))
    np.testing.assert_array_equal(trace.met, met_of(trace.outcomes))


@pytest.mark.slow
def test_a_record_has_outcomes_and_the_best_that_is_feasible(tmp_path):
    def record(round: Round):
        return round.best, round.values, round.outcomes

    _, (found, values, outcomes) = run(ONE, compiled, 5, KEY, record=record)
    feasible = np.where(met_of(outcomes), values, -np.inf)
    np.testing.assert_array_equal(found, np.maximum.accumulate(feasible, axis=0))
    path = tmp_path / "segments"
    run(ONE, compiled, 2, KEY, checkpoint=path)
    _, trace = run(ONE, compiled, 5, KEY, checkpoint=path)
    np.testing.assert_allclose(trace.outcomes["cost"], outcomes["cost"], atol=1e-3)


def test_to_minimize_changes_the_sign_of_values_alone():
    def negative(p):
        result = bench(p)
        return result | {"value": -result["value"]}

    up = quiet(ONE, bench, 3, KEY, initial=2)
    down = quiet(ONE, negative, 3, KEY, initial=2, direction="minimize")
    equal((up[0], up[1].outcomes, up[1].met), (down[0], down[1].outcomes, down[1].met))
    equal(up[1].values, -down[1].values)


# ---------------------------------------------------------------- one by one


def test_a_desk_has_outcomes_in_its_results_and_its_table():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        desk = Desk(ONE, KEY, initial=2)
        number = desk.ask().number
        with pytest.raises(ValueError, match="no result yet that meets the bounds"):
            _ = desk.best
        desk.tell(number, {"value": 9.0, "cost": 1.5, "b2": 0.5})
        with pytest.raises(ValueError, match="no result yet that meets the bounds"):
            _ = desk.best
        with pytest.raises(ValueError, match="told already"):
            desk.tell(number, {"value": 9.0, "cost": 1.5, "b2": 0.5})
        desk.tell(desk.ask().number, {"value": np.nan, "cost": 0.5, "b2": 0.5})
        desk.tell_new({"a": 0.1, "b": 0.2}, {"value": 1.0, "cost": 1.0, "b2": 0.01})
        desk.tell_new({"a": 0.3, "b": 0.2}, {"value": 2.0, "cost": 1.0, "b2": 0.0})
        pending = desk.ask()
    assert desk.outcomes["cost"].tolist()[::2] == [1.5, 1.0]
    assert desk.feasible.tolist() == [False, False, True, False]
    assert desk.best[1] == 1.0
    rows = desk.table()
    assert [row["cost"] for row in rows] == [1.5, None, 1.0, 1.0, None]
    assert list(rows[0])[4:7] == ["value", "cost", "b2"]
    assert rows[pending.number]["status"] == "running"
    assert [x["value"] for x in rows] == [9.0, None, 1.0, 2.0, None]


def test_a_desk_goes_on_from_its_file_with_what_it_knows(tmp_path):
    known = [{"a": 0.1, "b": 0.2, **bench({"a": 0.1, "b": 0.2})}]

    def told(path, stop):
        for _ in range(1 + stop):
            with Desk(ONE, KEY, initial=2, known=known, checkpoint=path) as desk:
                while desk.told < (3 if stop and _ == 0 else 6):
                    number, x = desk.ask()
                    desk.tell(number, bench(x))
        return desk

    whole, resumed = told(None, False), told(tmp_path / "desk", True)
    equal((whole.state, whole.queries), (resumed.state, resumed.queries))
    equal((whole.values, whole.outcomes), (resumed.values, resumed.outcomes))
    asked = drive_async(ONE, bench, 3, KEY, initial=2, known=known, progress=False)
    equal((whole.state, whole.outcomes), (asked.state, asked.outcomes))
    assert len(whole.values) == 6


@pytest.mark.slow
def test_a_compiled_objective_is_evaluated_by_workers():
    desk = drive_async(ONE, compiled, 2, KEY, initial=2, progress=False)
    _, trace = run(ONE, compiled, 2, KEY, initial=2)
    np.testing.assert_allclose(desk.outcomes["cost"], trace.outcomes["cost"][:, 0], atol=1e-4)


def test_simulated_workers_have_no_outcomes():
    with pytest.raises(ValueError, match="simulate is for methods without outcomes"):
        simulate(ONE, compiled, lambda key, worker, x: x[0], 2, KEY)


# ---------------------------------------------------------------- what is known


FORMS = {
    "a table": lambda table, x, columns: table,
    "columns": lambda table, x, columns: {n: [row[n] for row in table] for n in table[0]},
    "arrays": lambda table, x, columns: (x, columns),
    "points and results": lambda table, x, columns: (
        [{"a": row["a"], "b": row["b"]} for row in table],
        [{name: row[name] for name in columns} for row in table],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_results_are_known_in_any_form(form):
    _, trace = quiet(ONE, bench, 1, KEY, initial=3)
    columns = {"value": trace.values[:, 0]}
    columns |= {name: column[:, 0] for name, column in trace.outcomes.items()}
    given = FORMS[form](trace.table(SPACE), np.asarray(trace.queries)[:, 0], columns)
    state, _ = quiet(ONE, bench, 0, KEY, known=given)
    other, _ = quiet(ONE, bench, 0, KEY, known=trace.table(SPACE))
    equal(state, other)
    assert int(state.told) == 4
    start = stepped.init(ONE, jr.split(KEY, 3)[0])
    if form == "arrays":
        given = [np.asarray(given[0])[:, None], {name: y[:, None] for name, y in columns.items()}]
    told = ONE.warm_start(start, *(given if form == "arrays" else [given]))
    np.testing.assert_allclose(
        jax.tree.leaves(told.slacks)[-1], jax.tree.leaves(state.slacks)[-1], atol=1e-6
    )


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([{"a": 0.1, "b": 0.2, "value": 1.0, "cost": 1.0}], "result 0 has no 'b2'"),
        (([[0.1, 0.2]], [1.0]), r"values must be dictionaries of \['value', 'cost', 'b2'\]"),
        (([[0.1, 0.2]], {"value": [1.0]}), r"expected columns \['value', 'cost', 'b2'\]"),
        (([[0.1, 0.2]], [{"value": 1.0}]), "value 0: expected a dictionary of"),
        (
            ([[0.1, 0.2]], {"value": [1.0], "cost": [1.0], "b2": [np.inf]}),
            "value 0 is inf: give a finite number",
        ),
        (
            ([[0.1, 0.2]], {"value": [1.0], "cost": [1.0, 2.0], "b2": [1.0]}),
            "column 'cost' of values has shape",
        ),
    ],
)
def test_what_is_known_has_all_outcomes(known, message):
    with pytest.raises(ValueError, match=message):
        quiet(ONE, bench, 1, KEY, known=known)


def test_a_known_result_without_an_outcome_has_failed():
    known = [{"a": 0.1, "b": 0.2, "value": 1.0, "cost": None, "b2": 1.0}]
    state, _ = quiet(ONE, bench, 0, KEY, known=known)
    assert int(state.past.failed.sum()) == 1


# ---------------------------------------------------------------- what is best


@pytest.mark.slow
def test_the_best_point_and_rules_to_stop_pass_over_points_beyond_a_bound():
    model = Fitted(
        12, SquaredExponential(0.5), size=8, inference=Exact(), refit_every=None, noise=1e-4
    )
    x = np.linspace(0, 1, 9)
    domain = Finite(x[:, None])
    method = EGP(domain, model, outcomes=[at_most(0.5)])

    def value(x):
        return {"value": float(x[0]), "cost": float(x[0])}

    state, trace = quiet(method, value, 0, KEY, first=x[:, None].tolist())
    assert float(best(method, state, trace).x[0, 0]) == pytest.approx(0.5, abs=0.13)
    assert np.max(trace.values) == 1
    assert modeled(observed(trace, method.domain)).ranked[0].tolist() == [0.5]
    assert stopping.Target(0.5)(trace)
    assert not stopping.Target(0.6)(trace)
    nowhere = EGP(domain, model, outcomes=[at_most(-1.0)])
    state, trace = quiet(nowhere, value, 0, KEY, first=x[:, None].tolist())
    assert np.isnan(best(nowhere, state, trace).x).all()


# ---------------------------------------------------------------- does it help?


def hill(key, agent, x):
    """Best at (0.8, 0.8), which costs 1.6; where the cost is at most 1, 0.82 at (0.5, 0.5)."""
    return {"value": 1 - jnp.sum((x - 0.8) ** 2), "cost": jnp.sum(x)}


@eqx.filter_jit
def ended(policy, outcome):
    """The shortfall from the constrained optimum of the best point that is feasible, of six runs."""
    model = Fitted(
        20, SquaredExponential(0.4), size=32, inference=Exact(), refit_every=None, noise=1e-4
    )
    method = EGP(Cube(2), model, policy, candidates=128, outcomes=[outcome])

    def one(key):
        _, trace = run(method, hill, 12, key, initial=4)
        cheap = trace.outcomes["cost"] <= 1
        return 0.82 - jnp.max(jnp.where(cheap, trace.values, -jnp.inf))

    return jax.vmap(one)(jr.split(KEY, 6))


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [EI(), pytest.param(Thompson(), marks=pytest.mark.full)],
    ids=["improvement", "Thompson"],
)
def test_the_constrained_optimum_is_found_as_it_is_not_without_the_bound(policy):
    with_bound, without = (np.asarray(ended(policy, at_most(bound))) for bound in (1.0, 100.0))
    assert (with_bound > -1e-5).all()
    assert np.median(with_bound) < 0.02
    assert np.median(without) > max(0.05, 3 * np.median(with_bound))
