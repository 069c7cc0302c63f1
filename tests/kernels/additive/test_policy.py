"""Policies of sums of factors: how bounds grow, and what the largest of many normals is taken for."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm

from jaxbo.kernels.additive import decomposed
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.policy import FactorSample, MaxValueEntropy, UpperBound, gumbel
from jaxbo.kernels.additive.structure import Sampled
from jaxbo.schedules import Confidence


@pytest.mark.slow
def test_bounds_may_grow_as_the_theorem_says(key):
    schedule, count = Confidence(6 * 12**2, 0.1), 4
    fixed = float(schedule(jnp.asarray(count + 1)))
    expected = 2 * np.log(6 * 144 * np.pi**2 * (count + 1) ** 2 / 6 / 0.1)
    np.testing.assert_allclose(fixed, expected, rtol=1e-6)
    surrogate = Decomposed([(0, 1), (1, 2)], 5, grid=4)
    points = jr.uniform(key, (count, 3))

    @jax.jit
    def bounds(key):
        shared = surrogate.setup(key, 3)
        observe = lambda belief, x: (surrogate.condition(shared, belief, x, x[0]), None)  # noqa: E731
        belief, _ = jax.lax.scan(observe, surrogate.start(shared), points)
        asked = lambda beta: UpperBound(beta)(key, surrogate, shared, belief, points)  # noqa: E731
        grid = jax.tree.map(lambda leaf: leaf[:, 0], surrogate.grids(belief))
        joint = jax.vmap(lambda x: surrogate.standardized(shared, belief, x))(points)
        values = [jax.vmap(asked(beta).function)(1 - points) for beta in (schedule, fixed)]
        return values, joint, grid, asked(fixed).on(grid)

    values, joint, grid, (tables,) = bounds(key)
    np.testing.assert_allclose(*values, atol=1e-3)
    # The paper's table, and one of variances in units of the deviation of f at the best candidate.
    mean, variance = np.asarray(joint)[..., 0]
    s = np.sqrt(variance[np.argmax(mean + np.sqrt(fixed * variance))])
    mean, variance = np.asarray(grid.mean[0]), np.asarray(grid.variance[0])
    expected = [mean + np.sqrt(fixed * variance), mean + np.sqrt(fixed) * variance / (2 * s)]
    np.testing.assert_allclose(tables, expected, rtol=1e-3, atol=1e-3)


def test_the_largest_of_independent_normals_has_the_quartiles_of_its_gumbel(key):
    mean = jr.normal(key, (50,))
    variance = jnp.full((50,), 0.25)
    drawn = np.asarray(jax.jit(lambda k: gumbel(k, mean, variance, 4000))(jr.key(1)))
    normals = np.asarray(mean[None] + 0.5 * jr.normal(jr.key(2), (20_000, 50))).max(axis=1)
    quartiles = [0.25, 0.5, 0.75]
    np.testing.assert_allclose(
        np.quantile(drawn, quartiles), np.quantile(normals, quartiles), atol=0.05
    )


@pytest.mark.slow
def test_points_that_repeat_others_are_one():
    mean, variance = jnp.array([0.3, 0.1, 0.1, 0.1]), jnp.full((4,), 0.25)
    distinct = jnp.array([True, True, False, False])
    few = gumbel(jr.key(1), mean[:2], variance[:2], 100)
    np.testing.assert_allclose(gumbel(jr.key(1), mean, variance, 100, distinct), few, rtol=1e-5)
    assert jnp.mean(gumbel(jr.key(1), mean, variance, 100)) > jnp.mean(few) + 0.1


def test_a_drawn_function_is_that_of_any_one_chain(key):
    surrogate, x = Decomposed(Sampled(count=2), 1, grid=2), jnp.array([0.3, 0.6])

    @jax.jit
    def drawn(keys):
        shared = surrogate.setup(key, 2)
        belief = surrogate.start(shared)

        def one(key):
            found = FactorSample(2)(key, surrogate, shared, belief, x[None])
            functions, shares = found.chains
            of_all = surrogate.draw(jr.split(key)[1], belief, decomposed.SIZE)
            whole = jnp.abs(
                surrogate.sample(key, shared, belief)(x) - jax.vmap(lambda f: f(x))(of_all)
            )
            return found.function(x), jax.vmap(lambda f: f(x))(functions), shares, whole

        return jax.vmap(one)(keys)

    values, of_chains, shares, whole = map(np.asarray, drawn(jr.split(key, 20)))
    chain = shares.argmax(axis=1)
    assert set(chain) == set(whole.argmin(axis=1)) == {0, 1}
    np.testing.assert_allclose(whole.min(axis=1), 0, atol=1e-5)
    np.testing.assert_array_equal(shares, 2 * np.eye(2)[chain])
    np.testing.assert_allclose(values, of_chains[np.arange(20), chain], atol=1e-5)
    assert np.abs(np.diff(of_chains, axis=1)).max() > 0.1


@pytest.mark.slow
def test_a_drawn_function_is_that_of_any_one_chain_and_the_mean_of_all_tables(key):
    chains, grid = 3, 4
    surrogate = Decomposed(Sampled(count=chains), 2, grid=grid)
    shared = surrogate.setup(key, 2)
    belief = surrogate.start(shared)
    of_box = jax.tree.map(lambda leaf: leaf[:, 0], surrogate.grids(belief))
    at = jnp.array([1, 3])
    x = of_box.points[0, jnp.arange(2), at]

    @jax.jit
    @jax.vmap
    def drawn(key):
        objective = FactorSample(10)(key, surrogate, shared, belief, x[None])
        (tables,) = objective.on(of_box)
        return objective.function(x), tables[0, :, jnp.arange(2), at, 0], objective.chains[1]

    values, parts, shares = drawn(
        jr.split(key, 30)
    )  # factors of one variable, the others are empty
    np.testing.assert_allclose(values, np.sum(parts, axis=(1, 2)) / chains, atol=1e-4)
    assert np.std(values) > 0.3
    expected = chains * np.eye(chains)
    np.testing.assert_array_equal(np.unique(shares, axis=0), expected[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("paths", [False, True], ids=["Gumbel", "paths"])
def test_an_evaluation_tells_of_largest_values_above_what_is_known(paths, key):
    surrogate = Decomposed([(0,)], 4, grid=4, refit_every=None)
    x = jnp.linspace(0, 1, 4)[:, None]

    @jax.jit
    def asked(key):
        shared = surrogate.setup(key, 1)
        observe = lambda belief, x: (surrogate.condition(shared, belief, x, x[0]), None)  # noqa: E731
        belief, _ = jax.lax.scan(observe, surrogate.start(shared), x[:3])
        policy = MaxValueEntropy(50, paths, 20)
        objective = policy(key, surrogate, shared, belief, x)
        grid = jax.tree.map(lambda leaf: leaf[:, 0], surrogate.grids(belief))
        return grid, objective.chains, objective.on(grid), jax.vmap(objective.function)(x)

    grid, most, (tables,), values = asked(key)
    mean, variance = (np.asarray(of[0][0, 0], np.float64) for of in (grid.mean, grid.variance))
    np.testing.assert_allclose(most.min(), mean.max() + 1e-3, atol=1e-6)
    gamma = (np.asarray(most[0, 0]) - mean[:, None]) / np.sqrt(variance)[:, None]
    told = gamma * norm.pdf(gamma) / (2 * norm.cdf(gamma)) - norm.logcdf(gamma)
    np.testing.assert_allclose(tables[0, 0, 0], told.mean(axis=1), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(values, tables[0, 0, 0], rtol=2e-2, atol=1e-3)


def test_a_negative_beta_is_refused():
    with pytest.raises(ValueError, match="beta must be at least 0"):
        UpperBound(-1.0)


@pytest.mark.slow
def test_a_single_feature_or_sample_is_enough_and_none_is_refused():
    assert FactorSample(1).size == MaxValueEntropy(1, size=1).samples == 1
    for build in (FactorSample, MaxValueEntropy, lambda size: MaxValueEntropy(size=size)):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            build(0)
