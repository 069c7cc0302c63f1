"""Noise of owners in shares beside noise of the server: the release of a secure sum in one process."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.prior import secure
from jaxbo.privacy import accounting
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.mechanism import Mechanism, Poisson

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


def test_methods_cost_what_their_names_say():
    for epsilon in secure.LOSSES:
        for shares in (None, *secure.MOST):
            method = secure.method(secure.label(epsilon, shares))
            cost = accounting.epsilon(method.mechanism, secure.RELEASES, secure.DELTA)
            assert cost == pytest.approx(epsilon, rel=1e-3)
            assert float(method.releases) == secure.RELEASES


@pytest.mark.full
def test_shares_add_up_to_the_noise_that_owners_add():
    agents, size = 20, 500
    shares = secure.InShares(1.5, 2.0, Poisson(1.0), secure=SecureSum(15))
    messages = jnp.asarray(np.random.default_rng(0).normal(size=(agents, size)), float)
    weights, present = jnp.ones((1, agents)), jnp.arange(agents) < 16
    # Numbers drawn anew, as the mechanism without noise has them.
    quiet = Mechanism(0.0, 2.0, Poisson(1.0)).release(jr.key(0), messages, weights, present)
    one = jax.jit(lambda key: shares.release(key, messages, weights, present) - quiet)
    noise = jax.vmap(one)(jr.split(jr.key(1), 40))
    expected = 1.5 * 2.0 * (16 / 14) ** 0.5  # of the 16 who are there
    # 20 000 numbers: the error of their deviation is half a percent.
    assert float(noise.std()) == pytest.approx(expected, rel=0.025)
    assert abs(float(noise.mean())) < 5 * expected / 20_000**0.5
    assert float(shares.deviation(weights)) == pytest.approx(3.0 * (20 / 14) ** 0.5)
