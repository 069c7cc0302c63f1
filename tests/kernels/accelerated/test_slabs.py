"""The best candidates of slabs against NumPy in float64, and against the plain search."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Regions
from jaxbo.kernels.accelerated import slabs
from jaxbo.kernels.choosing.maximize import Pieces, maximize
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import FourierFunction

#: Candidates, features, agents, regions and slabs: less than a tile, as much as one, and more.
SHAPES = [(5, 3, 2, 1, 8), (64, 32, 64, 1, 1), (150, 37, 70, 3, 4), (130, 70, 3, 2, 3)]
#: Masked where those of the quicker tests are not.
OTHERWISE = list(zip(SHAPES, (True, True, False, False), strict=True))


def drawn(key, shape):
    candidates, size, agents, regions, _ = shape
    keys = jr.split(key, 4)
    return (
        jr.normal(keys[0], (candidates, size)),
        jnp.sort(jr.randint(keys[1], (candidates,), 0, regions)),
        jr.normal(keys[2], (agents, regions, size)),
        jr.bernoulli(keys[3], 0.3, (agents, candidates)),
    )


def all_values(phis, regions, weights):
    phis, weights = np.asarray(phis, np.float64), np.asarray(weights, np.float64)
    return np.einsum("cm,acm->ac", phis, weights[:, np.asarray(regions)])


@pytest.mark.parametrize(
    ("shape", "masked"),
    [
        *zip(SHAPES, (False, False, True, True), strict=True),
        *(pytest.param(s, m, marks=pytest.mark.full) for s, m in OTHERWISE),
    ],
)
def test_the_best_of_each_slab_is_that_of_all_values(shape, masked, key):
    phis, regions, weights, allowed = drawn(key, shape)
    *_, number = shape
    mask = allowed if masked else None
    places, found = slabs.best(phis, regions, weights, mask, slabs=number, interpret=True)
    values = all_values(phis, regions, weights)
    open_ = np.where(allowed, values, -np.inf) if masked else values
    width = -(-shape[0] // number)
    for slab in range(number):
        first = min(slab * width, shape[0] - 1)
        here = open_[:, first : first + width]
        best = here.max(axis=1)
        np.testing.assert_allclose(found[:, slab], best, rtol=1e-5, atol=1e-5)
        at = np.asarray(places[:, slab])
        assert np.all((first <= at) & (at < first + width))
        its = np.take_along_axis(open_, at[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(its, best, rtol=1e-5, atol=1e-5)


def test_the_first_of_equal_candidates_is_best_and_no_number_is_worst():
    phis = jnp.asarray([[0.0], [1.0], [1.0], [0.0], [-1.0], [2.0]])
    weights = jnp.asarray([1.0, jnp.nan, jnp.inf])[:, None, None]
    regions = jnp.zeros(6, int)
    places, values = slabs.best(phis, regions, weights, None, slabs=2, interpret=True)
    np.testing.assert_array_equal(places, [[1, 5], [0, 3], [1, 5]])
    np.testing.assert_array_equal(values, [[1, 2], [-jnp.inf, -jnp.inf], [jnp.inf, jnp.inf]])
    # An allowed candidate without a value is better than a good one that is not allowed.
    allowed = jnp.zeros((3, 6), bool).at[:, jnp.asarray([2, 4])].set(True)
    places, values = slabs.best(phis, regions, weights, allowed, slabs=2, interpret=True)
    least = jnp.finfo(jnp.float32).min
    np.testing.assert_array_equal(places, [[2, 4], [2, 4], [2, 4]])
    np.testing.assert_array_equal(values, [[1, -1], [least, least], [jnp.inf, least]])


def test_products_are_of_all_digits(key):
    # In TF32 a factor has 10 bits: a sum of 100 products would err by 1e-3.
    phis, weights = jr.normal(key, (20, 100)), jr.normal(jr.fold_in(key, 1), (9, 1, 100))
    regions = jnp.zeros(20, int)
    call = jax.jit(lambda *a: slabs.best(*a, None, slabs=20))
    jaxpr = str(call.trace(phis, regions, weights).jaxpr)
    assert jaxpr.count("dot_general") == jaxpr.count("Precision.HIGHEST, Precision.HIGHEST") == 1
    _, found = slabs.best(phis, regions, weights, None, slabs=20, interpret=True)
    np.testing.assert_allclose(found, all_values(phis, regions, weights), atol=2e-5)


# ---------------------------------------------------------------- in a search

DOMAIN, AGENTS = Cube(2), 5


@partial(jax.jit, static_argnums=1)
def setup(key, count):
    """Features, weights of agents in so many regions, and candidates."""
    phi = features.sine_cosine(key, SquaredExponential(0.2), 2, 20)
    return phi, jr.normal(key, (AGENTS, max(count, 1), 20)), DOMAIN.candidates(key, 90)


def searches(phi, candidates, count):
    """Queries of agents with functions of their own, in `count` regions, or without if there are none."""
    regions = Regions.of(2, max(count, 1))

    def one(weights):
        if not count:
            return maximize(FourierFunction(phi, weights[0]), DOMAIN, candidates, steps=0)
        pieces = Pieces(regions, lambda region: FourierFunction(phi, weights[region]))
        f = lambda x: pieces.of(regions.assign(x))(x)  # noqa: E731
        return maximize(f, DOMAIN, candidates, pieces=pieces, steps=0)

    return jax.jit(jax.vmap(one))


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(0, marks=pytest.mark.full), 4])
def test_a_search_finds_the_same_with_the_kernel(count, programs_for, key):
    phi, weights, candidates = setup(key, count)
    assert weights.shape[1] == Regions.of(2, max(count, 1)).count
    traced = searches(phi, candidates, count).trace(weights)
    assert "jaxbo_kernel" not in str(traced.jaxpr)
    plain = traced.lower().compile()(weights)
    programs_for("cpu")
    traced = searches(phi, candidates, count).trace(weights)
    assert str(traced.jaxpr).count("jaxbo_kernel") == 1
    found = traced.lower().compile()(weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, plain)


def test_features_of_an_agents_own_take_no_kernel(programs_for, key):
    programs_for("cuda")

    def one(key):
        phi = features.sine_cosine(key, SquaredExponential(0.2), 2, 20)
        f = FourierFunction(phi, jr.normal(key, (20,)))
        return maximize(f, DOMAIN, DOMAIN.candidates(key, 20))

    assert "jaxbo_kernel" not in str(jax.make_jaxpr(jax.vmap(one))(jr.split(key, 3)))
