"""Another place for a search that would learn nothing where it is."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing import elsewhere as module
from jaxbo.kernels.choosing import failures
from jaxbo.kernels.choosing.maximize import maximize, query
from tests.kernels.choosing.pasts import CUBE, PEAK, asked, bowl, risks, told

NAN = jnp.nan
POINTS = Finite(jnp.linspace(0, 1, 11)[:, None])


@jax.jit
def of_points(key, past):
    return query(key, lambda x: -(x[0] ** 2), POINTS, POINTS.candidates(key, 1), past)


@functools.partial(jax.jit, static_argnames="alone")
def elsewhere(keys, past, candidates, place, alone=True):
    """Where it is asked with each of the keys, if a search ends at `place`."""
    limits = failures.limits(past, candidates)
    return jax.vmap(lambda k: module.elsewhere(k, past, limits, candidates, place, alone))(keys)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        (lambda near, e: e, 0.5),
        (lambda near, e: 1e4 + 1e-2 * e, 0.5),
        (lambda near, e: e - 1.0 * near, 0.5),
        (lambda near, e: e + 5.0 * near, 0),  # better than all others
        (lambda near, e: e * (1 - 0.9 * near), 0),  # smooth here
        (lambda near, e: e * (1 - near), 1),
    ],
    ids=["noise", "noise far from 0", "worse", "better", "smooth", "equal"],
)
@pytest.mark.parametrize("count", [3, 12])
def test_a_place_of_noise_is_left_in_one_round_of_two_and_one_of_equal_values_at_once(
    values, share, count, key
):
    place = jnp.full((2,), 0.5)
    near = jnp.arange(40) < count
    x = jnp.where(near[:, None], 0.5 + 0.02 * jr.uniform(key, (40, 2)), jr.uniform(key, (40, 2)))
    x = x.at[:, 0].multiply(jnp.where(near, 1, 0.8))
    x = x.at[:, 0].add(jnp.where(~near & (x[:, 0] > 0.4), 0.2, 0))  # none else is near
    # Of mean 0 and deviation 1 in both.
    e = jnp.where(jnp.arange(40) % 2 == 0, 1.0, -1.0)
    past = told(x, values(near.astype(float), e), capacity=64)
    candidates = jr.uniform(key, (200, 2))
    found = elsewhere(jr.split(key, 200), past, candidates, place)
    drawn = np.any(np.asarray(found) != np.asarray(place), axis=1)
    assert drawn.mean() == pytest.approx(share if count > 3 else 0, abs=0.15 if share < 1 else 0)
    if drawn.any():
        # Far from all evaluations are fewer of the candidates.
        assert len(np.unique(np.asarray(found)[drawn], axis=0)) > (50 if share < 1 else 20)
        (heard,) = elsewhere(key[None], past, candidates, place, alone=False)
        np.testing.assert_array_equal(heard, place)


@pytest.mark.slow
def test_from_a_place_of_equal_values_a_search_goes_far_and_not_to_one_corner(key):
    place = jnp.full((2,), 0.5)
    near, rest = 0.5 + 0.02 * jr.uniform(key, (5, 2)), jr.uniform(key, (10, 2))
    past = told(jnp.concatenate([near, rest]), jnp.r_[jnp.ones(5), jnp.linspace(0, 0.5, 10)])
    candidates = jr.uniform(key, (200, 2))
    found = np.asarray(elsewhere(jr.split(key, 200), past, candidates, place))
    assert np.any(found != np.asarray(place), axis=1).all()
    assert len(np.unique(found, axis=0)) > 20

    def away(points):
        distances = np.linalg.norm(np.asarray(points)[:, None] - np.asarray(past.x)[None], axis=2)
        return np.where(past.used, distances, np.inf).min(axis=1)

    # The farthest of eight is above the median of all, but for one draw in 2^8.
    assert np.mean(away(found) > np.median(away(candidates))) > 0.95
    (heard,) = elsewhere(key[None], past, candidates, place, alone=False)
    np.testing.assert_array_equal(heard, place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "left"),
    [([1, 1, 1, 1], True), ([1, 1, 1], False), ([1, 1, 1, 1.01], False), ([1, 1, 1, NAN], False)],
)
def test_a_place_where_all_values_are_equal_is_left(values, left, key):
    x = 0.5 + 0.02 * jr.uniform(key, (len(values), 2))
    past = told([*x, jnp.zeros(2)], [*values, 0.0])
    candidates = jr.uniform(key, (300, 2))
    query = jnp.full((2,), 0.51)
    (found,) = elsewhere(key[None], past, candidates, query)
    choices = np.asarray(candidates if left else query[None])
    assert (np.asarray(found)[None] == choices).all(1).any()
    # Elsewhere it may be asked.
    away = jnp.asarray([0.9, 0.2])
    np.testing.assert_array_equal(elsewhere(key[None], past, candidates, away)[0], away)


@pytest.mark.parametrize("value", [0.2, None], ids=["flat", "exact"])
def test_all_points_are_asked_before_one_that_failed_or_was_asked(value, key):
    """Of eleven points three fail, and one was repeated."""
    fails = lambda x: 0.55 < x < 0.85  # noqa: E731
    worth = lambda x: NAN if fails(x) else (x if value is None else value)  # noqa: E731
    x = [0.0, 0.0, 0.6]
    while len(x) < 12:
        past = told([[z] for z in x], [worth(z) for z in x], capacity=20)
        x.append(float(of_points(jr.fold_in(key, len(x)), past)[0]))
    assert len(set(np.round(x, 3))) == 11


@pytest.mark.slow
@pytest.mark.bitwise
def test_where_nothing_failed_the_maximizer_is_asked_bit_for_bit(key):
    past = told(jr.uniform(key, (6, 2)), jnp.arange(6.0))
    candidates = CUBE.candidates(key, 100)
    x, _ = jax.jit(lambda c: maximize(bowl, CUBE, c))(candidates)
    np.testing.assert_array_equal(asked(key, past, candidates), x)


@pytest.mark.slow
def test_if_all_failed_the_place_of_least_risk_is_asked(key):
    points = jr.uniform(key, (30, 2))
    past = told(points[:25], jnp.full((25,), NAN))
    domain = Finite(points)
    expected = risks(past, points)
    assert (expected > failures.TOLERATED).sum() >= 25
    found = jax.jit(lambda k: query(k, bowl, domain, domain.candidates(k, 1), past))(key)
    allowed = points[expected <= jnp.maximum(expected.min(), failures.TOLERATED)]
    assert (found[None] == allowed).all(axis=1).any()
    assert not (found[None] == points[:25]).all(axis=1).any()


@pytest.mark.slow
def test_a_repetition_of_an_exact_objective_gives_way_to_the_farthest_candidate(key):
    x = jnp.concatenate([PEAK[None], PEAK[None], jr.uniform(key, (4, 2))])
    candidates = CUBE.candidates(key, 100)
    found = asked(key, told(x, [1.0, 1.0, 0.1, 0.2, 0.3, 0.4]), candidates)
    distances = jnp.linalg.norm(candidates[:, None] - x[None], axis=2).min(axis=1)
    np.testing.assert_array_equal(found, candidates[jnp.argmax(distances)])
    # Of a noisy one, and before it is known, the best point may be asked again.
    for values in ([1.0, 1.1, 0.1, 0.2, 0.3, 0.4], [NAN, 1.0, 0.1, 0.2, 0.3, 0.4]):
        again = asked(key, told(x, values), candidates)
        if values[0] == 1.0:
            np.testing.assert_allclose(again, PEAK, atol=1e-5)


@pytest.mark.slow
def test_while_all_values_are_equal_any_candidate_is_drawn(key):
    past = told(jr.uniform(key, (5, 2)), jnp.full((5,), 0.2))
    candidates = CUBE.candidates(key, 100)
    every = jax.jit(jax.vmap(lambda k: query(k, bowl, CUBE, candidates, past)))
    found = np.asarray(every(jr.split(key, 400)))
    assert (found[:, None] == np.asarray(candidates)[None]).all(axis=2).any(axis=1).all()
    assert len(np.unique(found, axis=0)) > 80
    # Uniform: 400 draws of a mean of 1/2 with deviation 0.29 / 20.
    np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=0.07)
