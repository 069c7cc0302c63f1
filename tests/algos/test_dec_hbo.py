"""DEC-HBO: that its queries maximize what they should, on any structure, for one worker and for many."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.domains import Cube
from jaxbo.kernels.covariance import SquaredExponential
from jaxbo.kernels.decomposed import Decomposed
from jaxbo.kernels.factor_policy import FactorSample, MaxValueEntropy, UpperBound, gumbel
from jaxbo.kernels.fitted import Exact, Fitted
from jaxbo.kernels.structure import RandomTree, Sampled

DIM = 4
PAIRS = tuple(itertools.combinations(range(DIM), 2))
STRUCTURES = {
    "given": PAIRS,
    "random tree": RandomTree(),
    "learned": Sampled(steps=20, count=2),
}


def observed(algorithm, key, count=30):
    """A state after some observations of a sum of two functions of two variables."""
    X = jr.uniform(key, (count, 1, DIM))
    y = jnp.sin(5 * X[..., 0] * X[..., 2]) + jnp.cos(4 * (X[..., 1] - X[..., 3]))
    return eqx.filter_jit(algorithm.warm_start)(algorithm.init(key), X, y)


POLICIES = {
    "upper bound": UpperBound(),
    "upper bound of the paper": UpperBound(joint=False),
    "sample": FactorSample(),
    "entropy": MaxValueEntropy(),
    "entropy, paths": MaxValueEntropy(paths=True, samples=3),
}


def objective(algorithm, state, key):
    """What `ask` maximizes for the first worker."""
    prepare_key, query_key = jr.split(key)
    candidates = algorithm.prepare(prepare_key)
    arguments = algorithm.surrogate, state.shared, state.belief, candidates
    return algorithm.policy(jr.fold_in(query_key, 0), *arguments)


@pytest.mark.parametrize(
    ("structure", "policy"),
    [
        ("given", "upper bound"),
        ("given", "entropy"),
        ("random tree", "upper bound of the paper"),
        ("learned", "sample"),
    ],
)
def test_a_query_maximizes_what_the_policy_says(structure, policy, key):
    surrogate = Decomposed(STRUCTURES[structure], 31, grid=12)
    algorithm = DECHBO(Cube(DIM), surrogate, POLICIES[policy])
    state = observed(algorithm, key)
    queries, _ = eqx.filter_jit(algorithm.ask)(key, state)

    @jax.jit
    def values(points):
        return jax.lax.map(objective(algorithm, state, key).function, points, batch_size=1000)

    assert values(queries)[0] >= jnp.max(values(jr.uniform(key, (1000, DIM)))) - 1e-2


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "upper bound"])
def test_on_the_grid_the_objective_is_the_sum_of_its_tables(policy, key):
    algorithm = DECHBO(Cube(DIM), Decomposed(PAIRS, 31, grid=5), POLICIES[policy])
    state = observed(algorithm, key)
    at = jnp.array([3, 0, 4, 1])

    @jax.jit
    def both(key):
        found = objective(algorithm, state, key)
        return found.tables[0, 0], found.function(jnp.linspace(0, 1, 5)[at])

    tables, value = both(key)
    total = sum(tables[i, at[u], at[v]] for i, (u, v) in enumerate(PAIRS))
    np.testing.assert_allclose(total, value, rtol=5e-3, atol=5e-3)


def test_samples_have_the_mean_and_the_variance_of_the_belief(key):
    surrogate = Decomposed(PAIRS, 31, grid=5, every=None)
    state = observed(DECHBO(Cube(DIM), surrogate), key)
    x = jnp.array([0.3, 0.8, 0.1, 0.6])
    keys = jr.split(key, 2000)
    draw = lambda k: surrogate.sample(k, state.shared, state.belief)(x)  # noqa: E731
    values = np.asarray(jax.jit(lambda keys: jax.lax.map(draw, keys, batch_size=100))(keys))
    mean, variance = surrogate.standardized(state.shared, state.belief, x)
    np.testing.assert_allclose(
        values.mean(), mean[0], atol=5 * float(variance[0] / 2000) ** 0.5 + 1e-3
    )
    np.testing.assert_allclose(values.var(), variance[0], rtol=0.2)


def test_the_largest_of_independent_normals_has_the_quartiles_of_its_gumbel(key):
    mean = jr.normal(key, (50,))
    variance = jnp.full((50,), 0.25)
    drawn = np.asarray(jax.jit(lambda k: gumbel(k, mean, variance, 4000))(jr.key(1)))
    normals = np.asarray(mean[None] + 0.5 * jr.normal(jr.key(2), (20_000, 50))).max(axis=1)
    quartiles = [0.25, 0.5, 0.75]
    np.testing.assert_allclose(
        np.quantile(drawn, quartiles), np.quantile(normals, quartiles), atol=0.05
    )


def test_one_factor_of_all_variables_is_a_plain_process(key):
    form = SquaredExponential(0.4)
    surrogate = Decomposed([range(2)], 12, form=form, grid=4, every=None)
    plain = Fitted(12, form, noise=surrogate.noise, every=None, inference=Exact())
    X, y = jr.uniform(key, (10, 2)), jr.normal(key, (10,))

    @eqx.filter_jit
    def predicted(model, x):
        shared = model.setup(jr.key(0), 2)

        def step(belief, observation):
            return model.condition(shared, belief, *observation), None

        belief = jax.lax.scan(step, model.start(shared), (X, y))[0]
        return model.predict(shared, belief, x)

    for x in jr.uniform(jr.key(1), (3, 2)):
        np.testing.assert_allclose(predicted(surrogate, x), predicted(plain, x), rtol=1e-4)


def test_a_negative_beta_is_refused():
    with pytest.raises(ValueError, match="beta must be at least 0"):
        UpperBound(-1.0)


def test_workers_ask_different_queries(key):
    algorithm = DECHBO(Cube(DIM), Decomposed(PAIRS, 40, grid=8), workers=3)
    X = jr.uniform(key, (8, 3, DIM))
    y = jnp.sin(5 * X[..., 0] * X[..., 2])
    state = eqx.filter_jit(algorithm.warm_start)(algorithm.init(key), X, y)
    queries, _ = eqx.filter_jit(algorithm.ask)(key, state)
    distances = jnp.linalg.norm(queries[:, None] - queries[None, :], axis=2)
    assert (distances[np.triu_indices(3, 1)] > 1e-3).all()


def test_agents_with_objectives_of_their_own_are_one_program(key):
    algorithm = DECHBO(Cube(2), Decomposed([[0], [1]], 12, grid=16, every=5))

    def best(shift, key):
        function = lambda x: -jnp.sum((x - shift) ** 2)  # noqa: E731
        state = algorithm.init(key)

        def round(carry, key):
            state, best = carry
            query, _ = algorithm.ask(key, state)
            value = jax.vmap(function)(query)
            return (algorithm.tell(state, query, value), jnp.maximum(best, value[0])), None

        start = (state, jnp.asarray(-jnp.inf))
        return jax.lax.scan(round, start, jr.split(key, 12))[0][1]

    shifts = jnp.array([0.2, 0.5, 0.9])
    values = jax.jit(jax.vmap(best))(shifts, jr.split(key, 3))
    assert (values > -3e-3).all()  # twelve random points come to -0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DECHBO(**{"domain": Cube(2), "surrogate": Decomposed([[0, 1]], 5), **options})
