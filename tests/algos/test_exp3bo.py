"""A bandit over kernels: arms that led to better values are followed more often."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.processes.covariance import Matern32, SquaredExponential
from tests import stepped

KERNELS = SquaredExponential(0.3), Matern32(0.3), Matern32(0.05)


def algorithm(gamma=0.1):
    expert = Fitted(20, size=40, noise=1e-2, refit_every=None)
    return EXP3BO(Cube(2), Ensemble(KERNELS, expert), gamma, candidates=64)


probabilities = eqx.filter_jit(lambda method, state: method.probabilities(state))


def test_it_is_the_recursion_of_exp3(key):
    gamma, method = 0.3, algorithm(0.3)
    state = stepped.init(method, key)
    gains, least, most = np.zeros(3), np.inf, -np.inf
    for i, value in enumerate([0.0, 2.0, np.nan, 1.0, 5.0, 4.0]):
        weights = np.exp(gamma / 3 * gains)
        p = (1 - gamma) * weights / weights.sum() + gamma / 3
        np.testing.assert_allclose(probabilities(method, state), p, rtol=1e-5)
        queries, info = stepped.ask(method, jr.fold_in(key, i), state)
        state = stepped.tell(method, state, queries, jnp.asarray([value]))
        if np.isnan(value):
            continue
        least, most = min(least, value), max(most, value)
        reward = (value - least) / (most - least) if most > least else 0.5
        gains[int(info.expert[0])] += reward / p[int(info.expert[0])]
    np.testing.assert_allclose(state.gains, gains, rtol=1e-5)


def test_arms_are_drawn_with_their_probabilities(key):
    method = algorithm()

    def known(key):
        gains = jnp.asarray([0.0, 20.0, 40.0])
        return eqx.tree_at(lambda state: state.gains, method.init(key), gains)

    arms = jax.jit(lambda keys: jax.vmap(lambda key: method.arm(known(key)))(keys))
    p = np.asarray(probabilities(method, jax.jit(known)(key)))
    counts = np.bincount(arms(jr.split(key, 3000)), minlength=3) / 3000
    # Five standard errors.
    np.testing.assert_allclose(counts, p, atol=5 * np.sqrt(0.25 / 3000))
    assert p.max() > 1.5 * p.min()


@pytest.mark.parametrize("gamma", [0.0, 1.5, -1.0])
def test_a_share_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match="gamma"):
        algorithm(gamma)
