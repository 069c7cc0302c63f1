"""The best point by the posterior mean: what an oracle says, for each agent, compiled and by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.keys import run_keys
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.best import best
from jaxbo.runs.compiled import run
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import Trace
from jaxbo.schedules import growing
from tests import stepped

KEY = jr.key(0)
EXACT = Fitted(20, SquaredExponential(0.2), size=8, noise=0.5, refit_every=None, inference=Exact())
METHODS = {
    "one model": EGP(Cube(1), EXACT, workers=2, candidates=8),
    "each its own": TS(Cube(1), 3, EXACT, candidates=8),
    "two models": FTS(Cube(1), 3, own=EXACT, features=Fixed(size=4), candidates=8, targets=2),
}


def noisy(rows, targets, seed=0):
    """A trace of points and values, some of which failed."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, targets, 1)).astype(np.float32)
    y = np.sin(6 * x[..., 0]) + rng.normal(size=(rows, targets)) + np.arange(targets)
    y[rng.random((rows, targets)) < 0.2] = np.nan
    return Trace(jnp.asarray(x, float), y, (), initial=rows)


def oracle(x, y):
    """Mean and deviation at all points, in dense algebra and units of the values."""
    fine = np.isfinite(y)
    kernel = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2) / (2 * 0.2**2))  # noqa: E731
    mean, deviation = y[fine].mean(), y[fine].std()
    K = kernel(x[fine], x[fine]) + 0.5 * np.eye(fine.sum())
    k = kernel(x, x[fine])
    expected = mean + deviation * k @ np.linalg.solve(K, (y[fine] - mean) / deviation)
    variance = 1 - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T))
    return np.where(fine, expected, -np.inf), deviation * np.sqrt(variance)


@pytest.mark.parametrize("name", METHODS)
def test_it_is_what_dense_algebra_says(name):
    method = METHODS[name]
    trace = noisy(6, method.targets)
    found = best(method, replay(method, trace, KEY), trace)
    agents = min(method.targets, method.clients)
    queries, values = (
        np.asarray(trace.queries).reshape(-1, agents),
        trace.values.reshape(-1, agents),
    )
    for agent in range(agents):
        mean, deviation = oracle(queries[:, agent].astype(float), values[:, agent])
        row = np.argmax(mean)
        assert found.x[agent, 0] == queries[row, agent]
        np.testing.assert_allclose(found.mean[agent], mean[row], atol=1e-3)
        np.testing.assert_allclose(found.deviation[agent], deviation[row], atol=1e-3)


def test_values_far_from_zero_are_in_their_own_units():
    method = METHODS["each its own"]
    trace = noisy(6, 3)
    far = Trace(trace.queries, trace.values + 1e4, (), initial=6)
    near, moved = (best(method, replay(method, t, KEY), t) for t in (trace, far))
    np.testing.assert_array_equal(near.x, moved.x)
    np.testing.assert_allclose(moved.mean, near.mean + 1e4, atol=2e-3)


def test_an_agent_whose_evaluations_all_failed_has_none():
    method = METHODS["each its own"]
    trace = noisy(6, 3)
    trace.values[:, 1] = np.nan
    found = best(method, replay(method, trace, KEY), trace)
    np.testing.assert_array_equal(np.isnan(found.x[:, 0]), [False, True, False])
    np.testing.assert_array_equal(np.isnan(found.mean), [False, True, False])
    np.testing.assert_array_equal(np.isnan(found.deviation), [False, True, False])


SMALL = TS(Finite(np.random.default_rng(0).random((32, 2))), 2, Fixed(size=8, capacity=4))


def mean_of(state, trace):
    return best(SMALL, state, trace).mean


@pytest.mark.slow
def test_runs_side_by_side_have_what_each_has():
    def one(key):
        return run(SMALL, lambda k, a, x: jnp.sin(6 * x[0]) + jr.normal(k), 3, key)

    states, traces = jax.jit(jax.vmap(one))(jr.split(KEY, 2))
    together, alone = jax.jit(jax.vmap(mean_of))(states, traces), jax.jit(mean_of)
    assert np.unique(together).size == together.size
    for i in range(2):
        of_one = jax.tree.map(lambda leaf, i=i: leaf[i], (states, traces))
        np.testing.assert_allclose(together[i], alone(*of_one), atol=1e-4)


@pytest.mark.slow
def test_states_side_by_side_may_share_a_trace():
    rng = np.random.default_rng(0)
    x, y = np.asarray(SMALL.domain.points)[rng.integers(32, size=(4, 2))], rng.normal(size=(4, 2))
    y[0, 0] = np.nan
    trace = Trace(jnp.asarray(x), jnp.asarray(y, float), (), initial=4)

    def told(key):
        return SMALL.warm_start(SMALL.init(key), trace.queries, trace.values)

    states = jax.jit(jax.vmap(told))(jr.split(jr.key(2), 3))
    together = jax.jit(jax.vmap(mean_of, in_axes=(0, None)))(states, trace)
    alone = jax.jit(mean_of)
    for i in range(3):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        np.testing.assert_allclose(together[i], alone(one, trace), atol=1e-5)


def test_a_desk_is_taken_as_a_trace_is():
    method = METHODS["one model"]
    trace = noisy(6, 1)
    desk = Desk(method, KEY, known=(trace.queries[:, 0], trace.values[:, 0]))
    state = stepped.warm_start(
        method,
        stepped.init(method, run_keys(KEY).init),
        jnp.asarray(trace.queries),
        jnp.asarray(trace.values, float),
    )
    found, expected = best(method, desk.state, desk), best(method, state, trace)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)


@pytest.mark.parametrize("method", [RandomSearch(Cube(1)), CEPE(Cube(1), 2, growing(3))])
def test_a_method_without_a_model_says_which_have_one(method):
    trace = noisy(2, method.targets)
    with pytest.raises(ValueError, match=r"has no model .* take TS, EGP"):
        best(method, stepped.init(method, KEY), trace)


@pytest.mark.slow
def test_a_trace_of_other_sizes_or_without_rows_is_refused():
    method = METHODS["each its own"]
    state = stepped.init(method, KEY)
    empty = drive(method, lambda agent, x: 0.0, 0, KEY, progress=False)[1]
    for trace in (empty, noisy(4, 2)):
        with pytest.raises(ValueError, match="a trace of 3 agents and 1 coordinates"):
            best(method, state, trace)
