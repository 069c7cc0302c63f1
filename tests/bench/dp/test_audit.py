"""The audit finds what there is to find, and no more."""

import numpy as np
import pytest
from scipy import stats

from bench.dp import audit
from jaxbo.privacy import accounting, auditing
from jaxbo.privacy.mechanism import Mechanism, Poisson


def test_equal_samples_rule_out_nothing():
    rng = np.random.default_rng(0)
    assert auditing.bound(rng.normal(size=20_000), rng.normal(size=20_000), 1e-3) < 0.2


@pytest.mark.full
def test_the_bound_is_a_bound_for_a_known_pair_and_near_it():
    # N(1, 1) against N(0, 1): the statistic is x itself, and the best epsilon is known in closed form.
    rng, delta = np.random.default_rng(0), 1e-2
    found = [
        auditing.bound(1 + rng.normal(size=100_000), rng.normal(size=100_000), delta)
        for _ in range(10)
    ]
    epsilon = np.linspace(0, 6, 10_001)
    loss = stats.norm.sf(epsilon - 0.5) - np.exp(epsilon) * stats.norm.sf(epsilon + 0.5)
    truth = epsilon[np.argmax(loss <= delta)]
    assert np.mean(np.asarray(found) > truth) <= 0.15
    assert np.mean(found) > 0.7 * truth


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["as it is", "noise halved", pytest.param("not clipped", marks=pytest.mark.full)]
)
def test_the_mechanism_passes_and_broken_ones_are_caught(name, key):
    kind, broken = audit.MECHANISMS[name]
    q, z, rounds = 0.5, 3.0, 1
    claimed = accounting.epsilon(Mechanism(z, 1.0, Poisson(q)), rounds, audit.DELTA)
    samples = audit.ratios(kind(z, 1.0, Poisson(q)), rounds, 100_000, key)
    assert (auditing.bound(*samples, audit.DELTA) > claimed) == broken
