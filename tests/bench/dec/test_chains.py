"""R-hat of chains from two starts, and the claims about it."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.dec import chains
from bench.dec.functions import draw


def test_a_function_of_triples_is_one_of_three_variables_only_in_its_triples():
    """By inclusion and exclusion over the corners of a cube: what is left is of all three at once."""
    function = draw(jr.key(0), 10, 3)
    triples = np.asarray(function.scopes[10:])
    assert triples.shape == (2, 3)
    assert len(np.unique(triples)) == 6
    corners = np.array(list(itertools.product((0, 1), repeat=3)))
    signs = (-1.0) ** corners.sum(axis=1)
    value = jax.jit(jax.vmap(function.value))
    for scope in (*triples, [triples[0, 0], triples[0, 1], triples[1, 0]]):
        x = np.full((8, 10), 0.3)
        x[:, scope] += 0.5 * corners
        left = signs @ np.asarray(value(jnp.asarray(x, float)), np.float64)
        assert (abs(left) > 0.05) == (set(scope) in map(set, triples))


def test_r_hat_is_near_one_for_draws_of_one_law_and_large_for_two():
    rng = np.random.default_rng(0)
    alike = rng.normal(size=(2, 4000))
    assert abs(chains.r_hat(alike) - 1) < 0.01
    # The first half is no matter.
    started = alike + np.where(np.arange(4000) < 1900, 50.0, 0)
    assert abs(chains.r_hat(started) - 1) < 0.01
    # Two chains one deviation apart: between variance 1/3 of a squared distance of 1.
    apart = alike + np.array([[0.0], [1.0]])
    np.testing.assert_allclose(chains.r_hat(apart), np.sqrt(1 + 1 / 3), rtol=0.05)
    # A chain that is still on its way differs from itself.
    assert chains.r_hat(alike + np.linspace(0, 20, 4000)) > 1.5


def test_claims_are_about_r_hat_and_the_evidence_of_both():
    rng = np.random.default_rng(1)
    name = "20-D, 110 points"
    ends = rng.normal(size=(6, 1)) + np.array([[0.0, 0.5]])
    good = chains.checks({name: np.full(6, 1.05) + rng.normal(size=6) / 100}, {name: ends})
    assert len(good) == 2
    assert all(check.holds for check in good.values())
    stuck = ends + np.array([[0.0, 30.0]]) + rng.normal(size=(6, 2)) / 10
    bad = chains.checks({name: np.full(6, 3.0) + rng.normal(size=6) / 10}, {name: stuck})
    assert [check.outcome for check in bad.values()] == ["refuted", "refuted"]
