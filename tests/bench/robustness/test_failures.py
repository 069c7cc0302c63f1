"""The objectives and the imputation of the experiment on failures."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.robustness import failures
from bench.tables import robustness as tables
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed


def test_best_and_worst_values_are_those_of_a_grid():
    axis = np.linspace(0, 1, 201)
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2), float)
    for name, problem in failures.PROBLEMS.items():
        values = np.asarray(jax.vmap(lambda x, n=problem.number: failures.value(n, x))(grid))
        inside = np.asarray(grid)[:, 0] <= problem.border + 1e-6
        assert values[inside].max() <= problem.best + 1e-5
        assert values[inside].max() > problem.best - 2e-2
        if name != "chance":
            np.testing.assert_allclose(values.min(), problem.worst, atol=1e-5)


@pytest.mark.full
def test_a_failure_is_told_as_the_worst_value_so_far():
    plain = TS(Cube(2), 1, surrogate=Fixed(size=4))
    imputing = failures.Imputing(plain.domain, plain)
    queries = jax.random.uniform(jax.random.key(1), (6, 1, 2))
    values = jnp.array([[jnp.nan], [0.5], [jnp.nan], [-1.0], [jnp.nan], [2.0]])
    instead = jnp.array([[jnp.nan], [0.5], [0.5], [-1.0], [-1.0], [2.0]])
    state, expected = imputing.init(jax.random.key(0)), plain.init(jax.random.key(0))
    tell = eqx.filter_jit(plain.tell)
    tell_imputed = eqx.filter_jit(imputing.tell)
    for x, y, told in zip(queries, values, instead, strict=True):
        state, expected = tell_imputed(state, x, y), tell(expected, x, told)
    jax.tree.map(np.testing.assert_array_equal, state[0], expected)
    before = imputing.warm_start(imputing.init(jax.random.key(0)), queries, values)
    expected = plain.warm_start(plain.init(jax.random.key(0)), queries, instead)
    jax.tree.map(np.testing.assert_array_equal, before[0], expected)


@pytest.mark.full
def test_a_forgetful_search_fails_where_the_same_search_remembers():
    keys = jax.random.split(jax.random.key(0), 4)
    problem = failures.PROBLEMS["slope"]
    told, forgetful = (failures.program("TS", way)(keys, problem) for way in ("told", "forgetful"))
    first = slice(failures.INITIAL)
    np.testing.assert_array_equal(told[:, first], forgetful[:, first])
    assert np.isnan(forgetful).mean() > np.isnan(told).mean() + 0.1


@pytest.mark.full
def test_claims_compare_ways_of_telling():
    rng = np.random.default_rng(0)
    few = failures.Found(np.full(5, 0.05), rng.uniform(1, 1.1, 5))
    many = failures.Found(np.full(5, 0.5), rng.uniform(2, 2.1, 5))
    found = {
        (name, method, way): many if way == "told" and method == "TS" else few
        for name in failures.PROBLEMS
        for method in failures.methods()
        for way in failures.ways(name)
    }
    for claim, check in failures.checks(found).items():
        assert check.holds == ("TS" not in claim), claim


def test_a_table_has_no_column_of_a_method_that_a_result_has_not():
    told = {"ridge, TS, told": 0.1, "chance, TS, told": 0.2, "ridge, TS, penalty": 0.3}
    finals = {name: {"final": {"mean": mean, "se": 0.01, "n": 9}} for name, mean in told.items()}
    found = {"methods": finals, "experiment": "failures", "checks": {}, "settings": {}}
    head, *rows = tables.failures({"failures": found})
    assert head == [tables.TOLD, "TS, ridge", "TS, chance"]
    assert [bool(cell) for cell in rows[0]] == [True, True, True]
    assert [bool(cell) for cell in rows[-1]] == [True, True, False]
