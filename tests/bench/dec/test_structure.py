"""Functions of a known structure: their maximum, their variance, and what is counted as found."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.dec import structure
from bench.dec.structure import LEARNED, Known, Sum, draw
from jaxbo.kernels.additive.chain import shared
from jaxbo.kernels.additive.structure import Sampled

drawn = jax.jit(draw, static_argnums=1)


def test_pairs_are_a_tree_beside_a_factor_for_each_variable(key):
    function = drawn(key, 20)
    scopes = np.asarray(function.scopes)
    np.testing.assert_array_equal(scopes[:20], [(v, -1) for v in range(20)])
    pairs = scopes[20:]
    assert len(pairs) == 5
    # Five edges that join six variables have no cycle.
    part = {int(v): int(v) for v in np.unique(pairs)}
    for a, b in pairs.tolist():
        part = {v: part[a] if p == part[b] else p for v, p in part.items()}
    assert len(part) == 6
    assert len(set(part.values())) == 1


def test_functions_have_the_variance_and_the_correlation_of_their_process(key):
    x = jnp.asarray([0.2, 0.5, 0.9, 0.4])
    far = 0.3
    z = x + jnp.asarray([far, 0, 0, 0])

    def values(key):
        function = draw(key, 4)
        one = jnp.any(function.scopes[4] == 0)
        return function.value(x), function.value(z), one

    f, g, one = jax.jit(jax.vmap(values))(jr.split(key, 4000))
    np.testing.assert_allclose([np.var(f), np.var(g)], 1, atol=0.1)
    np.testing.assert_allclose([np.mean(f), np.mean(g)], 0, atol=0.08)
    # Of half of the variance a fourth varies along one coordinate, of the other half all or nothing.
    k = np.exp(-0.5 * (far / structure.LENGTH_SCALE) ** 2)
    f, g, one = np.asarray(f), np.asarray(g), np.asarray(one)
    np.testing.assert_allclose(np.mean((f * g)[one]), (3 + k) / 8 + k / 2, atol=0.12)
    np.testing.assert_allclose(np.mean((f * g)[~one]), (3 + k) / 8 + 1 / 2, atol=0.12)


@pytest.mark.full
def test_the_maximum_is_that_of_enumeration_and_a_little_more(key):
    dim, grid = 5, 9

    @jax.jit
    def both(key):
        function = draw(key, dim)
        points = jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, grid)] * dim), axis=-1)
        largest = jnp.max(jax.lax.map(function.value, points.reshape(-1, dim), batch_size=1000))
        return largest, function.maximum(dim, grid), function.maximum(dim, 33)

    for one in jr.split(key, 5):
        largest, found, finer = both(one)
        assert largest - 1e-4 <= found < largest + 1
        np.testing.assert_allclose(found, finer, atol=1e-2)


def test_the_maximum_uses_the_pairs(key):
    """On a path, where no coordinate can be chosen by itself."""
    waves = jnp.zeros((2, 1, 2)).at[:, 0].set(jnp.asarray([[2.0, -2.0], [2.0, -2.0]]) * jnp.pi)
    scopes = jnp.asarray([[0, 2], [2, 1]], jnp.int32)
    # cos 2π(x₀ - x₂) + sin 2π(x₂ - x₁)
    weights = jnp.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])
    function = Sum(scopes, waves, weights)
    np.testing.assert_allclose(jax.jit(lambda f: f.maximum(3, 33))(function), 2, atol=1e-4)


def test_what_is_found_and_what_is_false():
    function = drawn(jr.key(0), 8)
    pairs = np.asarray(function.scopes)[8:].tolist()
    others = [
        list(p) for p in itertools.combinations(range(8), 2) if sorted(p) not in map(sorted, pairs)
    ]

    @jax.jit
    def held(scopes):
        model = structure._model(Known(scopes.astype(jnp.int32)), 5)
        shared = model.setup(jr.key(0), 8)
        return structure.held(model.scopes(shared, model.start(shared)), function, 8)

    np.testing.assert_allclose(held(function.scopes), [1, 0], atol=1e-6)
    np.testing.assert_allclose(held(jnp.asarray([[v, -1] for v in range(8)])), [0, 0], atol=1e-6)
    # One of the two pairs, twice in different orders, and one that is not there.
    half = [pairs[0], pairs[0][::-1], others[0]]
    np.testing.assert_allclose(held(jnp.asarray(half)), [0.5, 0.5], atol=1e-6)


@pytest.mark.full
def test_chains_count_by_their_share():
    function = drawn(jr.key(0), 8)
    model = structure._model(Sampled(count=2), 5)
    setup = model.setup(jr.key(0), 8)
    pairs = function.scopes[8:]
    scopes = model.scopes(setup, model.start(setup)).at[0, 8:10].set(pairs)
    np.testing.assert_allclose(structure.held(scopes, function, 8), [0.5, 0], atol=1e-6)
    assert np.asarray(shared(scopes[1], 8)).sum() == 0


@pytest.mark.parametrize("name", structure.METHODS)
def test_every_method_has_room_for_its_evaluations(name):
    algorithm = structure.METHODS[name](8, drawn(jr.key(0), 8), 30)
    assert algorithm.domain.dim == 8
    assert algorithm.capacity in (40, None)


def test_claims_are_about_the_ends_of_runs():
    good, bad = np.full((4, 3), 0.01), np.full((4, 3), 9.0) + np.arange(4)[:, None]
    names = [f"20-D, {name}" for name in structure.METHODS]
    right = {f"20-D, {LEARNED}": np.tile([[[0.6], [0.3]]], (4, 1, 1))}
    alike = structure.checks(dict.fromkeys(names, good), right, (20,))
    assert all(check.holds for check in alike.values())
    worse = {name: bad if "learned" in name or "true" in name else good for name in names}
    wrong = {f"20-D, {LEARNED}": np.tile([[[0.3], [0.6]]], (4, 1, 1))}
    found = structure.checks(worse, wrong, (20,))
    assert len(found) == len(alike)
    assert not any(check.holds for check in found.values())
