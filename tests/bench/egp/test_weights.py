"""Ensembles whose weights are compared: what is run, what is reported, and the claims about it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.claims import Verdict
from bench.egp import weights
from bench.egp.methods import EXACT
from bench.egp.priced import Priced
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.processes.covariance import Matern32, SquaredExponential
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import dropwave
from jaxbo.runs.compiled import run

RUNS, ROUNDS = 5, 3
NAMES = [*weights.ENSEMBLES, *weights.SINGLES]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_room_and_ensembles_are_no_kernel_alone(name):
    method = {**weights.ENSEMBLES, **weights.SINGLES}[name](2, 60)
    assert isinstance(method, EGP)
    assert (method.domain.dim, method.capacity) == (2, 70)
    assert isinstance(method.surrogate, Ensemble) == (name in weights.ENSEMBLES)


def test_ensembles_differ_in_their_evidence_alone():
    base, laplace, tempered, equal = (
        weights.ENSEMBLES[name](2, 60).surrogate for name in (EXACT, *weights.BETTER)
    )
    assert all(isinstance(model, Priced) for model in (base, laplace, tempered, equal))
    assert {str(model.kernels) for model in (base, laplace, tempered, equal)} == {str(base.kernels)}
    assert [model.laplace for model in (base, laplace, tempered, equal)] == [
        False,
        True,
        False,
        False,
    ]
    temperatures = [float(model.temperature) for model in (base, laplace, tempered, equal)]
    assert temperatures == [1, 1, weights.TEMPERATURE, np.inf]


def even():
    """Every method ends alike in every run, and all weights are equal."""
    noise = 1 + 0.001 * np.arange(RUNS)[:, None]
    curves = {f"drop-wave, {name}": noise * np.ones((RUNS, ROUNDS)) for name in NAMES}
    shares = {f"drop-wave, {name}": np.full((RUNS, 4), 0.25) for name in weights.ENSEMBLES}
    return curves, shares


def test_methods_that_end_alike_are_no_worse_and_not_better():
    found = weights.checks(*even())
    assert len(found) == len(weights.NO_WORSE) + len(weights.BETTER) + len(weights.MEMBERS)
    assert all(check.holds == ("no worse" in claim) for claim, check in found.items())


def test_weights_follow_where_the_kernel_that_finds_most_has_the_largest():
    curves, shares = even()
    for members in (weights.ON_FEATURES, weights.ALONE):
        curves[f"drop-wave, {members[2]}"] = curves[f"drop-wave, {members[2]}"] / 10
    right, wrong = np.array([0.1, 0.1, 0.7, 0.1]), np.array([0.3, 0.3, 0.1, 0.3])
    for share, outcome in ((right, Verdict.HOLDS), (wrong, Verdict.REFUTED)):
        each = {label: np.tile(share, (RUNS, 1)) for label in shares}
        found = weights.checks(curves, each)
        follow = {claim: check for claim, check in found.items() if "kernels by" in claim}
        assert len(follow) == len(weights.MEMBERS)
        assert all(check.outcome is outcome for check in follow.values())


@pytest.mark.full
def test_regret_and_weights_are_of_the_same_run():
    def light(dim, evaluations):
        kernels = SquaredExponential(0.3), Matern32(0.3)
        expert = Fitted(weights.INITIAL + evaluations, size=10, refit_every=None)
        return EGP(Cube(dim), Ensemble(kernels, expert), candidates=10)

    keys = jax.random.split(jax.random.key(0), 2)
    regret, shares = weights.measured(light, dropwave(), keys, ROUNDS)
    assert regret.shape == (2, ROUNDS)
    # The first run, by itself; later rounds amplify rounding.
    objective = Same(function=dropwave())
    algorithm = light(2, ROUNDS)
    state, trace = jax.jit(
        lambda key: run(algorithm, objective, ROUNDS, key, initial=weights.INITIAL)
    )(keys[0])
    own = np.exp(algorithm.surrogate.log_weights(state.shared, state.belief))
    np.testing.assert_allclose(shares[0], own, atol=1e-3)
    first = dropwave().maximum - np.max(trace.values[: weights.INITIAL + 1])
    np.testing.assert_allclose(regret[0, 0], first, atol=1e-3)
    assert (np.diff(regret, axis=1) <= 0).all()
    assert ((regret >= 0) & (regret <= 1)).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert shares.shape == (2, 2)
    assert not jnp.allclose(shares, 0.5)
