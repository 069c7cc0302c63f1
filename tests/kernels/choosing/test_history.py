"""What an agent remembers: where evaluations fail, and what would teach nothing."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.kernels.choosing import history
from jaxbo.kernels.choosing.maximize import Pieces, ascend, maximize, query

NAN = jnp.nan


@functools.partial(jax.jit, static_argnums=0)
def _told(capacity, x, y):
    start = history.empty(x.shape[1], capacity)
    return jax.lax.scan(lambda past, one: (history.add(past, *one), None), start, (x, y))[0]


def told(x, y, capacity=None):
    """The past of an agent that evaluated these points."""
    return _told(capacity, jnp.asarray(x, float), jnp.asarray(y, float))


add, wait, repeated = map(jax.jit, (history.add, history.wait, history.repeated))


@jax.jit
def risks(past, points):
    """At all points."""
    return history.limits(past, points).risks


@functools.partial(jax.jit, static_argnames="alone")
def elsewhere(keys, past, candidates, place, alone=True):
    """Where it is asked with each of the keys, if a search ends at `place`."""
    limits = history.limits(past, candidates)
    return jax.vmap(lambda k: limits.elsewhere(k, past, candidates, place, alone=alone))(keys)


def dense_risk(x, failed, at):
    """Of NumPy: the mean of a process that has observed who failed, under the likeliest reach."""
    X, f = np.asarray(x, float), np.asarray(failed, float)
    distances = np.linalg.norm(X[:, None] - X[None], axis=2)
    found = []
    for reach, expected in zip(history.REACHES, history.EXPECTED, strict=True):
        reach = reach * X.shape[1] ** 0.5
        K = np.exp(-distances / reach) + history._CHANCE * np.eye(len(X))
        weights = np.linalg.solve(K, f)
        evidence = -len(X) / 2 * np.log(f @ weights / len(X)) - np.linalg.slogdet(K)[1] / 2
        evidence += expected
        k = np.exp(-np.linalg.norm(np.asarray(at)[:, None] - X[None], axis=2) / reach)
        found.append((evidence, k @ weights))
    return max(found, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("rule", ["half", "chance"])
def test_risk_is_that_of_the_dense_formula(dim, rule, key):
    x_key, y_key, at_key = jr.split(key, 3)
    x, at = jr.uniform(x_key, (20, dim)), jr.uniform(at_key, (50, dim))
    failed = x[:, 0] > 0.5 if rule == "half" else jr.uniform(y_key, (20,)) < 0.3
    past = told(x, jnp.where(failed, NAN, 1.0))
    found = risks(past, at)
    np.testing.assert_allclose(found, dense_risk(x, failed, at), atol=2e-4)
    one = jax.jit(lambda past, x: history.limits(past, at).risk(x))(past, at[0])
    np.testing.assert_allclose(one, found[0], atol=1e-6)


def test_risk_is_zero_where_nothing_failed(key):
    past = told(jr.uniform(key, (9, 2)), jnp.arange(9.0))
    assert (risks(past, jr.uniform(key, (30, 2))) == 0).all()


def test_risk_grows_evenly_between_a_success_and_a_failure():
    x = jnp.asarray([0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0])
    past = told(x[:, None], jnp.where(x < 0.5, 1.0, NAN))
    found = risks(past, jnp.asarray([[0.4], [0.45], [0.5], [0.55], [0.59]]))
    np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 0.95], atol=0.1)


def test_an_evaluation_that_has_not_ended_is_neither_success_nor_failure():
    x, y = [[0.2], [0.8]], [1.0, NAN]
    past = told(x, y, capacity=3)
    waiting = wait(past, jnp.asarray([0.5]))
    at = jnp.linspace(0, 1, 11)[:, None]
    np.testing.assert_allclose(risks(waiting, at), risks(past, at), atol=1e-6)
    assert repeated(waiting, jnp.asarray([0.5])).any()
    nobody = wait(past, jnp.asarray([0.5]), jnp.zeros((), bool))
    assert not repeated(nobody, jnp.asarray([0.5])).any()


def test_a_full_history_remembers_every_place(key):
    # Most points are in one corner; all others are kept.
    apart = jnp.asarray([[0.9, 0.1], [0.1, 0.9], [0.9, 0.9], [0.5, 0.5]])
    x = jnp.concatenate([apart, 0.1 * jr.uniform(key, (30, 2))])
    y = jnp.arange(34.0).at[2].set(NAN).at[10:20].set(NAN)
    past = told(x, y, capacity=12)
    assert past.used.all()
    assert past.seen.moments.count == 23
    np.testing.assert_allclose(past.seen.moments.offset, np.nanmean(y), rtol=1e-6)
    for point in apart:
        assert repeated(past, point).any()
    assert repeated(past, x[-1]).any()
    # Failures take the places of successes up to a quarter.
    assert past.failed.sum() == 3


def test_what_fails_takes_the_place_of_a_failure_where_nothing_else_has_ended():
    past = history.empty(1, 2, pending=1)
    past = add(past, jnp.asarray([0.1]), jnp.asarray(NAN))
    for x in (0.2, 0.3):
        past = wait(past, jnp.asarray([x]))
    past = add(past, jnp.asarray([0.4]), jnp.asarray(1.0))
    np.testing.assert_allclose(np.sort(past.x[:, 0]), [0.2, 0.3, 0.4], atol=1e-6)


@pytest.mark.parametrize(
    ("values", "dull"),
    [
        (lambda near, e: e, True),
        (lambda near, e: 1e4 + 1e-2 * e, True),
        (lambda near, e: e - 1.0 * near, True),
        (lambda near, e: e + 5.0 * near, False),  # better than all others
        (lambda near, e: e * (1 - 0.9 * near), False),  # smooth here
    ],
    ids=["noise", "noise far from 0", "worse", "better", "smooth"],
)
@pytest.mark.parametrize("count", [3, 12])
def test_a_place_of_noise_alone_is_left_in_one_round_of_two(values, dull, count, key):
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
    assert drawn.mean() == pytest.approx(0.5 if dull and count > 3 else 0, abs=0.15)
    if drawn.any():
        assert len(np.unique(np.asarray(found)[drawn], axis=0)) > 50
        (heard,) = elsewhere(key[None], past, candidates, place, alone=False)
        np.testing.assert_array_equal(heard, place)


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


def test_failures_by_chance_are_avoided_nowhere_else(key):
    @jax.jit
    @jax.vmap
    def avoided(key):
        x_key, y_key, candidate_key = jr.split(key, 3)
        points, which = jr.uniform(x_key, (64, 2)), jr.uniform(y_key, (64,)) < 0.2
        past = told(points, jnp.where(which, NAN, 1.0), capacity=64)
        limits = history.limits(past, jr.uniform(candidate_key, (500, 2)))
        return 1 - limits.allowed.mean(), limits.allow(points[jnp.argmax(which)])

    share, again = avoided(jr.split(key, 400))
    assert not again.any()
    # 0.17, with a standard error of 0.01; 0.3 without a model of chance.
    assert np.mean(share) < 0.21


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


def test_points_that_wait_take_no_row_of_one_that_failed():
    past = history.empty(1, 4, pending=3)
    past = add(past, jnp.asarray([0.1]), jnp.asarray(NAN))
    for x in (0.2, 0.3, 0.4):
        past = add(past, jnp.asarray([x]), jnp.asarray(x))
    for x in (0.5, 0.6, 0.7, 0.8):
        past = wait(past, jnp.asarray([x]))
    assert past.failed.sum() == 1
    assert jnp.isinf(past.y).sum() == 4


def test_a_point_that_failed_is_avoided_among_any_number_of_successes(key):
    x = 0.5 + 1e-3 * jr.uniform(key, (40, 1))
    past = told(jnp.concatenate([jnp.asarray([[0.5]]), x]), [NAN, *[1.0] * 40])
    at = risks(past, jnp.asarray([[0.5]]))[0]
    assert at == history.FORBIDDEN
    assert risks(past, jnp.asarray([[0.5 + 5e-4]])) < history.TOLERATED


def test_a_point_that_is_not_finite_was_not_evaluated():
    past = told([[0.1, 0.2], [NAN, NAN]], [NAN, NAN])
    assert past.used.sum() == past.failed.sum() == 1


@pytest.mark.parametrize(
    ("values", "exact"),
    [
        ([1.0, 2.0], False),  # nothing was repeated
        ([1.0, 2.0, 1.0], True),
        ([1.0, 2.0, 1.0 + 1e-7], True),  # rounding
        ([1.0, 2.0, 1.1], False),
        ([1.0, 2.0, 1.0, 1.1], False),  # the same by chance
        ([1.0, 2.0, NAN], False),
    ],
)
def test_the_first_repetition_tells_whether_there_is_noise(values, exact):
    x = [[0.3, 0.3], [0.7, 0.7], *[[0.3, 0.3]] * (len(values) - 2)]
    assert told(x, values).seen.exact == exact


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([1.0, 1.0], True),
        ([1.0, 1.0 + 1e-7], True),  # rounding
        ([1.0, 1.1], False),
        ([1.1, 1.0], False),
        ([1.0, NAN], False),  # one is not enough
        ([NAN, NAN], False),
    ],
)
def test_values_are_flat_if_there_are_two_and_all_are_equal(values, flat):
    assert told([[0.3], [0.7]], values).seen.flat == flat


# ---------------------------------------------------------------- what is asked

POINTS = Finite(jnp.linspace(0, 1, 11)[:, None])


@jax.jit
def of_points(key, past):
    return query(key, lambda x: -(x[0] ** 2), POINTS, POINTS.candidates(key, 1), past)


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


CUBE = Cube(2)
PEAK = jnp.asarray([0.3, 0.6])


def bowl(x):
    return -jnp.sum((x - PEAK) ** 2)


@jax.jit
def asked(key, past, candidates):
    return query(key, bowl, CUBE, candidates, past)


@pytest.mark.bitwise
def test_where_nothing_failed_the_maximizer_is_asked_bit_for_bit(key):
    past = told(jr.uniform(key, (6, 2)), jnp.arange(6.0))
    candidates = CUBE.candidates(key, 100)
    x, _ = jax.jit(lambda c: maximize(bowl, CUBE, c))(candidates)
    np.testing.assert_array_equal(asked(key, past, candidates), x)


def test_a_place_where_evaluations_fail_is_passed_over(key):
    x = jr.uniform(key, (20, 2))
    fails = x[:, 0] < 0.5
    past = told(x, jnp.where(fails, NAN, x[:, 1]))
    found = asked(key, past, CUBE.candidates(key, 400))
    assert risks(past, found[None]) <= history.TOLERATED + 1e-6
    assert found[0] > 0.4
    # As near to the peak as is allowed, but that a climb does not slide along the border: no allowed
    # point of a fine grid is better by more than neighboring candidates differ.
    grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 101)] * 2), -1).reshape(-1, 2)
    allowed = risks(past, grid) <= history.TOLERATED
    best = jnp.max(jnp.where(allowed, jax.vmap(bowl)(grid), -jnp.inf))
    assert bowl(found) > best - 2e-2


def test_a_batch_in_which_nothing_failed_computes_no_risk(key):
    # The compiler takes what is the same in every step out of a loop, and would compute it always.
    agents, X = 7, CUBE.candidates(key, 300)
    pasts = jax.vmap(lambda _: history.empty(2, 50))(jnp.arange(agents))
    each = jax.vmap(lambda k, past: query(k, bowl, CUBE, X, past))
    program = jax.jit(each).lower(jr.split(key, agents), pasts).compile().as_text()
    entry = program[program.index("ENTRY") :]
    assert f"[{agents},50,50]" in program  # distances between all points, in the loop's body
    for shape in ("50,50", "50,150", "150,50"):
        assert f"[{agents},{shape}" not in entry


def test_if_all_failed_the_place_of_least_risk_is_asked(key):
    points = jr.uniform(key, (30, 2))
    past = told(points[:25], jnp.full((25,), NAN))
    domain = Finite(points)
    expected = risks(past, points)
    assert (expected > history.TOLERATED).sum() >= 25
    found = jax.jit(lambda k: query(k, bowl, domain, domain.candidates(k, 1), past))(key)
    allowed = points[expected <= jnp.maximum(expected.min(), history.TOLERATED)]
    assert (found[None] == allowed).all(axis=1).any()
    assert not (found[None] == points[:25]).all(axis=1).any()


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


def test_while_all_values_are_equal_any_candidate_is_drawn(key):
    past = told(jr.uniform(key, (5, 2)), jnp.full((5,), 0.2))
    candidates = CUBE.candidates(key, 100)
    every = jax.jit(jax.vmap(lambda k: query(k, bowl, CUBE, candidates, past)))
    found = np.asarray(every(jr.split(key, 400)))
    assert (found[:, None] == np.asarray(candidates)[None]).all(axis=2).any(axis=1).all()
    assert len(np.unique(found, axis=0)) > 80
    # Uniform: 400 draws of a mean of 1/2 with deviation 0.29 / 20.
    np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=0.07)


def test_climbs_stay_where_evaluations_do_not_fail():
    past = told([[0.5, 0.6], [0.35, 0.6], [0.9, 0.1]], [0.0, NAN, 1.0])
    limits = history.limits(past, jnp.asarray([[0.5, 0.6]]))
    x = jnp.asarray([0.5, 0.6])
    end, value = jax.jit(lambda x: ascend(bowl, CUBE, x, bowl(x), 20, limits=limits))(x)
    assert limits.allow(end)
    assert value > bowl(x)
    assert 0.4 < end[0] < 0.5


def test_pieces_keep_to_what_is_allowed(key):
    x = jr.uniform(key, (20, 2))
    past = told(x, jnp.where(x[:, 0] < 0.5, NAN, x[:, 1]))
    pieces = Pieces(Regions.of(2, 4), lambda region: bowl)
    candidates = CUBE.candidates(key, 200)
    found = jax.jit(lambda c: query(key, bowl, CUBE, c, past, pieces=pieces))(candidates)
    assert risks(past, found[None]) <= history.TOLERATED + 1e-6


def test_on_the_way_to_a_place_that_fails_the_last_allowed_point_is_taken():
    past = told([[0.2, 0.5], [0.8, 0.5]], [1.0, NAN])
    start, end = jnp.asarray([0.2, 0.5]), jnp.asarray([0.8, 0.5])
    limits = history.limits(past, start[None])
    found = limits.toward(CUBE, start, end)
    assert limits.allow(found)
    assert not limits.allow(found + (end - start) / 15)
    fine = history.limits(told([[0.2, 0.5]], [1.0]), start[None])
    np.testing.assert_array_equal(fine.toward(CUBE, start, end), end)
