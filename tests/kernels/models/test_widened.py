"""Samples with so many times the deviation, beside the model's own mean and variance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.models.widened import Widened
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run

KERNEL = SquaredExponential(0.3)
MODELS = {
    "features": Fixed(KERNEL, size=40, noise=1e-2),
    "fitted": Fitted(8, KERNEL, size=40, refit_every=None),
    "exact, warped": Fitted(8, KERNEL, size=200, refit_every=None, inference=Exact(), warp=True),
}
X = np.random.default_rng(0).random((6, 2))
Y = np.exp(3 * X[:, 0]) - X[:, 1]
POINTS = jnp.asarray(np.random.default_rng(1).random((5, 2)), float)


@eqx.filter_jit
def told(model, refit=False):
    shared = model.setup(jr.key(0), 2)
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    rows = jnp.asarray(X, float), jnp.asarray(Y, float)
    belief = jax.lax.scan(step, model.start(shared), rows)[0]
    return shared, model.refit(shared, belief) if refit else belief


@eqx.filter_jit
def drawn(model, shared, belief, keys):
    return jax.vmap(lambda k: jax.vmap(model.sample(k, shared, belief))(POINTS))(keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_samples_have_so_many_times_the_deviation_and_the_same_mean(name):
    model = MODELS[name]
    shared, belief = told(model, refit=name == "exact, warped")
    keys = jr.split(jr.key(3), 4000)
    one = np.asarray(drawn(model, shared, belief, keys), float)
    three = np.asarray(drawn(Widened(model, 3.0), shared, belief, keys), float)
    none = np.asarray(drawn(Widened(model, 0.0), shared, belief, keys), float)
    np.testing.assert_allclose(three.std(0), 3 * one.std(0), rtol=1e-3)
    # The center is the mean: its error is that of so many draws.
    error = one.std(0) / np.sqrt(len(one))
    assert np.all(np.abs(none[0] - one.mean(0)) < 4.5 * error + 1e-4)
    np.testing.assert_allclose(none[0], none[1], atol=1e-5)
    np.testing.assert_allclose(three - none[0], 3 * (one - none[0]), atol=1e-3)


@pytest.mark.slow
def test_beta_is_a_schedule_of_the_observations_made():
    counts = Widened(MODELS["features"], lambda t: t.astype(float))
    shared, belief = told(MODELS["features"])
    key = jr.key(1)
    found = drawn(counts, shared, belief, key[None])
    expected = drawn(Widened(MODELS["features"], 7.0), shared, belief, key[None])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_it_believes_and_predicts_is_the_model_s():
    model = MODELS["fitted"]
    wide = Widened(model, 2.0)
    for one, other in zip(jax.tree.leaves(told(model)), jax.tree.leaves(told(wide)), strict=True):
        np.testing.assert_array_equal(one, other)
    shared, belief = told(model)
    assert wide.predict(shared, belief, POINTS[0]) == model.predict(shared, belief, POINTS[0])
    assert (wide.capacity, wide.period, wide.invariant) == (8, None, True)


@pytest.mark.slow
def test_a_larger_beta_looks_farther_away():
    """Far from all observations, where a sample of the model seldom has its maximum."""

    def spread(beta):
        method = TS(Cube(1), 20, Widened(MODELS["features"], beta), candidates=64)
        _, trace = run(method, lambda x: -20 * (x[0] - 0.5) ** 2, 10, jr.key(0), initial=8)
        return np.abs(np.asarray(trace.queries)[8:] - 0.5).mean()

    assert spread(6.0) > 1.5 * spread(1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")
@pytest.mark.parametrize("federated", [FTS, DPFTSDE])
def test_it_serves_as_the_agents_own_model(federated):
    wide = Widened(MODELS["features"], lambda t: 1 + jnp.log(t.astype(float)))
    points = Finite(np.random.default_rng(2).random((64, 2)))

    def queries(own):
        method = federated(points, 3, features=MODELS["features"], own=own, mixing=1.0)
        _, trace = run(method, lambda x: -jnp.sum((x - 0.4) ** 2), 3, jr.key(0), initial=2)
        assert np.isfinite(np.asarray(trace.values)).all()
        return np.asarray(trace.queries)[2:]

    assert np.any(queries(wide) != queries(MODELS["features"]))


@pytest.mark.usefixtures("as_users_have_it")
def test_other_models_and_factors_are_refused():
    with pytest.raises(ValueError, match="model must be Fixed"):
        Widened(Ensemble.warped(2, 8), 2.0)
    with pytest.raises(ValueError, match="beta must be at least 0"):
        Widened(MODELS["features"], -1.0)
