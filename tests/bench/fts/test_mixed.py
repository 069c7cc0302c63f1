"""The peers, and the claims about listening to some of them."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.fts import mixed
from bench.fts.peers import ALIKE, PEERS
from bench.tasks.synthetic import draws, grid


@pytest.mark.full
@pytest.mark.parametrize("alike", [0, 20, PEERS])
def test_so_many_peers_are_alike_and_the_others_are_strangers(alike, key):
    function = draws(key, 1)[0]
    pool = draws(jr.key(5), 60)
    for strangers in (None, pool):
        values = np.asarray(mixed.Mixed(jnp.asarray(alike), strangers)(jr.key(1), function))
        assert values.shape == (PEERS, len(grid()))
        off = np.abs(values[:alike] - np.asarray(function))
        np.testing.assert_allclose(off, ALIKE, atol=1e-5)
        for other in values[alike:]:
            expected = 1 - function[None] if strangers is None else pool
            assert np.abs(other - np.asarray(expected)).max(axis=1).min() < 1e-6


def curves(levels):
    noise = 0.001 * np.random.default_rng(0).standard_normal((len(levels), 20, 5))
    return {name: level + e for (name, level), e in zip(levels.items(), noise, strict=True)}


def test_claims_are_about_harm_and_help():
    shares = mixed.SHARES
    learned, uniform = (
        {mixed.name(k, s, peers): 0.2 - 0.1 * s for k in ("opposed", "unrelated") for s in shares}
        for peers in (mixed.LEARNED, mixed.UNIFORM)
    )
    good = mixed.checks(curves({"TS": 0.2} | learned | uniform), shares)
    assert len(good) == 2 * (2 * 5 + 3)
    assert all(check.holds for check in good.values())
    harmful = {name: level + 0.2 for name, level in learned.items()}
    bad = mixed.checks(curves({"TS": 0.2} | harmful | uniform), shares)
    assert not any(check.holds for check in bad.values())
