"""Outcomes with bounds: what they are, what evaluations may return, and what methods are told."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbo.algos.base import algorithm
from jaxbo.algos.base.outcomes import Outcome, columns, feasible, numbers_of, told
from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.federation.wire import check
from jaxbo.kernels.choosing.policy import Largest
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern52
from tests import stepped

LATENCY, RECALL = Outcome("latency", at_most=100.1), Outcome("recall", at_least=0.9)
NUMBERS = st.floats(-1e9, 1e9)


@given(NUMBERS, NUMBERS)
@settings(max_examples=60)
def test_a_bound_is_met_on_its_side_and_by_itself(bound, number):
    values = np.zeros(3)
    observed = {"most": np.array([number, bound, np.nan])}
    found = feasible([Outcome("most", at_most=bound)], values, observed)
    assert found.tolist() == [number <= bound, True, False]
    found = feasible([Outcome("most", at_least=bound)], values, observed)
    assert found.tolist() == [number >= bound, True, False]


def test_an_array_is_a_bound_to_sweep_over():
    @jax.vmap
    def slack(bound):
        return Outcome("latency", at_most=bound).slack(jnp.array([1.0, 4.0]))

    np.testing.assert_array_equal(slack(jnp.array([2.0, 3.0])), [[1, -2], [2, -1]])
    bound = Outcome("latency", at_most=jnp.array(2.0))
    observed = bound.slack(np.array([1.0, 4.0]))
    assert isinstance(observed, np.ndarray)
    np.testing.assert_array_equal(observed, [1, -2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "outcome 'latency' has one bound: write either at_most=… or at_least=…"),
        ({"at_most": 1, "at_least": 2}, "has one bound"),
        ({"at_most": np.nan}, "a bound must be one finite number, got nan"),
        ({"at_least": "100"}, "a bound must be one finite number, got '100'"),
        ({"at_least": [1.0, 2.0]}, "a bound must be one finite number"),
        ({"at_most": True}, "a bound must be one finite number, got True"),
        ({"at_most": jnp.array([1.0])}, r"a bound must be one finite number, got shape \(1,\)"),
        ({"at_most": jnp.array(jnp.inf)}, "a bound must be one finite number, got inf"),
    ],
)
def test_an_outcome_has_one_bound(given, message):
    with pytest.raises(ValueError, match=message):
        Outcome("latency", **given)


SURROGATE = Fixed(size=4)


@pytest.mark.parametrize(
    ("domain", "outcomes", "message"),
    [
        (Cube(2), LATENCY, "outcomes must be a list such as"),
        (Cube(2), [100.0], "outcomes must be a list such as"),
        (Cube(2), "latency", "outcomes must be a list such as"),
        (Cube(2), [LATENCY, LATENCY], "two outcomes have one name"),
        (Cube(2), [Outcome("value", at_most=1)], r"outcomes \['value'\] are called as"),
        (Cube(2), [Outcome("x1", at_most=1)], r"outcomes \['x1'\] are called as"),
        (Space(a=Real(0, 1)), [Outcome("a", at_most=1)], r"outcomes \['a'\] are called as"),
        (Cube(2), [Outcome("status", at_most=1)], r"outcomes \['status'\] are called as"),
    ],
)
def test_outcomes_of_a_method_have_names_of_their_own(domain, outcomes, message):
    for make in (
        lambda: EGP(domain, SURROGATE, outcomes=outcomes),
        lambda: TS(domain, 2, SURROGATE, outcomes=outcomes),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_method_says_at_once_what_has_no_rule_for_outcomes():
    ensemble = Ensemble([Matern52(0.3)], Fitted(8, size=4))
    with pytest.raises(ValueError, match="Largest has no rule for outcomes"):
        EGP(Cube(1), ensemble, Largest(), outcomes=[LATENCY])
    for other in (FTS, RandomSearch):
        with pytest.raises(TypeError, match="unexpected keyword argument 'outcomes'"):
            other(Cube(1), 2, outcomes=[LATENCY])


BOTH = [LATENCY, RECALL]


def test_an_evaluation_returns_its_value_and_all_outcomes_by_name():
    result = {"recall": 3, "value": 1, "latency": 2}
    assert numbers_of(BOTH, result) == [1, 2, 3]
    assert numbers_of([], 1.5) == [1.5]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, "must return {'value': …, 'latency': …, 'recall': …}, got 1.0"),
        ((1.0, 2.0, 3.0), "must return {'value': …"),
        ({"value": 1, "latency": 2}, r"missing \['recall'\], unknown \[\]"),
        (
            {"value": 1, "latency": 2, "recal": 3},
            r"missing \['recall'\], unknown \['recal'\]",
        ),
        ({"value": 1, "latency": 2, "recall": 3, "size": 4}, r"missing \[\], unknown \['size'\]"),
    ],
)
def test_what_an_evaluation_returns_is_named(result, message):
    with pytest.raises(ValueError, match=message):
        numbers_of(BOTH, result)


def test_a_dictionary_is_for_a_method_with_outcomes():
    with pytest.raises(ValueError, match="a dictionary is for a method with outcomes"):
        numbers_of([], {"value": 1.0})


# ---------------------------------------------------------------- what methods are told


def test_the_host_subtracts_bounds_before_float32_cuts_their_digits():
    """54321.06 and 54321.07 are one number in float32."""
    method = EGP(Cube(1), SURROGATE, outcomes=[Outcome("latency", at_most=54321.065)])
    state = stepped.init(method, jr.key(0))
    observed = {"latency": np.array([54321.06, 54321.07])}
    _, numbers = told(method.outcomes, state, np.array([7.0, 9.0]), observed)
    np.testing.assert_allclose(numbers, [[0, 0.005], [2, -0.005]], rtol=1e-4)


@pytest.mark.parametrize("make", [lambda o: EGP(Cube(2), SURROGATE, outcomes=o)])
def test_without_outcomes_a_state_is_what_it_was(make):
    paths = jax.tree_util.tree_leaves_with_path(make(()).init(jr.key(0)))
    assert not [path for path, _ in paths if "slacks" in jax.tree_util.keystr(path)]
    held = make(BOTH).init(jr.key(0))
    for one, rest in zip(jax.tree.leaves(held.belief), jax.tree.leaves(held.slacks), strict=True):
        assert rest.shape == (2, *one.shape)


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(jnp.zeros(()).dtype)


tell_one = eqx.filter_jit(lambda method, state, x, row: method.tell_one(state, x, row))
condition = eqx.filter_jit(SURROGATE.condition)


def test_each_outcome_has_the_belief_of_a_model_of_its_own(key):
    """As if its slacks were the values of another method; failures are nobody's."""
    X, columns = random(5, 2), random(5, 3)
    failed = columns.copy()
    failed[1, 0], failed[3, 2] = np.nan, np.inf
    fine = [0, 2, 4]
    method = EGP(Cube(2), Fixed(size=4), outcomes=BOTH)
    state = stepped.init(method, key)
    for x, row in zip(X, failed, strict=True):
        state = tell_one(method, state, jnp.asarray(x), jnp.asarray(row))
    beliefs = [model.belief for model in method.models(state)]
    alone = EGP(Cube(2), Fixed(size=4))
    for belief, column in zip(beliefs, columns.T, strict=True):
        other = stepped.init(alone, key)
        for x, y in zip(X[fine], column[fine], strict=True):
            other = tell_one(alone, other, jnp.asarray(x), jnp.asarray(y))
        for a, b in zip(jax.tree.leaves(belief), jax.tree.leaves(other.belief), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert int(state.past.failed.sum()) == 2


def test_agents_of_their_own_believe_what_one_model_does(key):
    X, rows = random(4, 2, 2), random(4, 2, 3)
    rows[2, 1, 2] = np.nan
    method = TS(Cube(2), 2, SURROGATE, outcomes=BOTH)
    state = stepped.init(method, key)
    for x, row in zip(X, rows, strict=True):
        state = stepped.tell(method, state, jnp.asarray(x), jnp.asarray(row))
    one = EGP(Cube(2), SURROGATE, outcomes=BOTH)
    for agent in range(2):
        other = stepped.init(one, key)
        beliefs = [model.belief for model in one.models(other)]
        for x, row in zip(X[:, agent], rows[:, agent], strict=True):
            row = np.where(np.all(np.isfinite(row)), row, np.nan)
            beliefs = [
                condition(state.shared, belief, jnp.asarray(x), jnp.asarray(y))
                for belief, y in zip(beliefs, row, strict=True)
            ]
        client = jax.tree.map(lambda leaf, i=agent: leaf[i], state.clients)
        found = [model.belief for model in method.models(state.shared, client)]
        # Two programs in float32 whose operations are ordered differently: a few units in the last
        # place, times the condition number of four observations.
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(beliefs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [(2,), (2, 2), (2, 4)])
def test_a_row_has_a_slack_for_each_outcome(rows):
    for method in (
        EGP(Cube(1), SURROGATE, workers=2, outcomes=BOTH),
        TS(Cube(1), 2, outcomes=BOTH),
    ):
        with pytest.raises(ValueError, match="many values, each with 2 slacks, got"):
            method.tell(stepped.init(method, jr.key(0)), jnp.zeros((2, 1)), jnp.zeros(rows))


def test_owners_of_a_federation_observe_values_alone():
    with pytest.raises(ValueError, match="outcomes are for run, drive and Desk"):
        check(TS(Cube(1), 2, SURROGATE, outcomes=BOTH))


@pytest.mark.parametrize("bound", [100.0, jnp.asarray(100.0)])
@pytest.mark.parametrize("number", [100.00001, np.float64(100.00001), np.array([100.00001])])
def test_a_slack_has_the_digits_of_the_host_whatever_the_bound_is(bound, number):
    slack = Outcome("cost", at_most=bound).slack(
        number if isinstance(bound, float) else np.asarray(number)
    )
    np.testing.assert_allclose(slack, -1e-5, rtol=1e-4)
    if not isinstance(number, float) or isinstance(number, np.generic):
        np.testing.assert_allclose(Outcome("cost", at_most=bound).slack(number), -1e-5, rtol=1e-4)


@pytest.mark.slow
def test_earlier_results_have_the_digits_of_the_host_too(monkeypatch):
    method = TS(Cube(1), 1, Fixed(size=8, capacity=4), outcomes=[Outcome("cost", at_most=100.0)])
    found = []
    monkeypatch.setattr(
        algorithm, "columns", lambda *given: found.append(columns(*given)) or found[0]
    )
    x = np.array([[0.2], [0.4]])
    values = {"value": np.zeros(2), "cost": np.array([100.0 - 1e-6, 100.0 + 1e-6])}
    method.warm_start(stepped.init(method, jr.key(0)), x, values)
    np.testing.assert_allclose(found[0][:, 0, 1], [1e-6, -1e-6], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("column", [False, True])
def test_results_of_one_agent_are_taken_under_jit_as_without(column):
    method = TS(Cube(2), 1, Fixed(size=8, capacity=4))
    state = stepped.init(method, jr.key(0))
    x, y = jr.uniform(jr.key(1), (3, 2)), jnp.arange(3.0)
    y = y[:, None] if column else y
    traced = jax.jit(lambda *given: method.warm_start(*given))(state, x, y)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        jax.tree.leaves(eqx.filter(traced.clients, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(method.warm_start(state, x, y).clients, eqx.is_inexact_array)),
    )
