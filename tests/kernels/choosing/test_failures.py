"""Where evaluations may fail, and a search that keeps to where they do not."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Regions
from jaxbo.kernels.choosing import failures, history
from jaxbo.kernels.choosing.maximize import Pieces, ascend, query
from tests.kernels.choosing.pasts import CUBE, asked, bowl, risks, told

NAN = jnp.nan


def dense_risk(x, failed, at):
    """Of NumPy: the mean of a process that has observed who failed, under the likeliest reach."""
    X, f = np.asarray(x, float), np.asarray(failed, float)
    distances = np.linalg.norm(X[:, None] - X[None], axis=2)
    found = []
    for reach, expected in zip(failures.REACHES, failures.EXPECTED, strict=True):
        reach = reach * X.shape[1] ** 0.5
        K = np.exp(-distances / reach) + failures._CHANCE * np.eye(len(X))
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
    one = jax.jit(lambda past, x: failures.limits(past, at).risk(x))(past, at[0])
    np.testing.assert_allclose(one, found[0], atol=1e-6)


def test_risk_is_zero_where_nothing_failed(key):
    past = told(jr.uniform(key, (9, 2)), jnp.arange(9.0))
    assert (risks(past, jr.uniform(key, (30, 2))) == 0).all()


def test_risk_grows_evenly_between_a_success_and_a_failure():
    x = jnp.asarray([0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0])
    past = told(x[:, None], jnp.where(x < 0.5, 1.0, NAN))
    found = risks(past, jnp.asarray([[0.4], [0.45], [0.5], [0.55], [0.59]]))
    np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 0.95], atol=0.1)


@pytest.mark.slow
def test_an_evaluation_that_has_not_ended_is_neither_success_nor_failure():
    x, y = [[0.2], [0.8]], [1.0, NAN]
    past = told(x, y, capacity=3)
    waiting = history.wait(past, jnp.asarray([0.5]))
    at = jnp.linspace(0, 1, 11)[:, None]
    np.testing.assert_allclose(risks(waiting, at), risks(past, at), atol=1e-6)
    assert history.repeated(waiting, jnp.asarray([0.5])).any()
    nobody = history.wait(past, jnp.asarray([0.5]), jnp.zeros((), bool))
    assert not history.repeated(nobody, jnp.asarray([0.5])).any()


@pytest.mark.slow
def test_failures_by_chance_are_avoided_nowhere_else(key):
    @jax.jit
    @jax.vmap
    def avoided(key):
        x_key, y_key, candidate_key = jr.split(key, 3)
        points, which = jr.uniform(x_key, (64, 2)), jr.uniform(y_key, (64,)) < 0.2
        past = told(points, jnp.where(which, NAN, 1.0), capacity=64)
        limits = failures.limits(past, jr.uniform(candidate_key, (500, 2)))
        return 1 - limits.allowed.mean(), limits.allow(points[jnp.argmax(which)])

    share, again = avoided(jr.split(key, 400))
    assert not again.any()
    # 0.17, with a standard error of 0.01; 0.3 without a model of chance.
    assert np.mean(share) < 0.21


def test_a_point_that_failed_is_avoided_among_any_number_of_successes(key):
    x = 0.5 + 1e-3 * jr.uniform(key, (40, 1))
    past = told(jnp.concatenate([jnp.asarray([[0.5]]), x]), [NAN, *[1.0] * 40])
    at = risks(past, jnp.asarray([[0.5]]))[0]
    assert at == failures.FORBIDDEN
    assert risks(past, jnp.asarray([[0.5 + 5e-4]])) < failures.TOLERATED


def test_a_place_where_evaluations_fail_is_passed_over(key):
    x = jr.uniform(key, (20, 2))
    fails = x[:, 0] < 0.5
    past = told(x, jnp.where(fails, NAN, x[:, 1]))
    found = asked(key, past, CUBE.candidates(key, 400))
    assert risks(past, found[None]) <= failures.TOLERATED + 1e-6
    assert found[0] > 0.4
    # As near to the peak as is allowed, but that a climb does not slide along the border: no allowed
    # point of a fine grid is better by more than neighboring candidates differ.
    grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 101)] * 2), -1).reshape(-1, 2)
    allowed = risks(past, grid) <= failures.TOLERATED
    best = jnp.max(jnp.where(allowed, jax.vmap(bowl)(grid), -jnp.inf))
    assert bowl(found) > best - 2e-2


@pytest.mark.slow
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


def test_climbs_stay_where_evaluations_do_not_fail():
    past = told([[0.5, 0.6], [0.35, 0.6], [0.9, 0.1]], [0.0, NAN, 1.0])
    limits = failures.limits(past, jnp.asarray([[0.5, 0.6]]))
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
    assert risks(past, found[None]) <= failures.TOLERATED + 1e-6


@pytest.mark.slow
def test_on_the_way_to_a_place_that_fails_the_last_allowed_point_is_taken():
    past = told([[0.2, 0.5], [0.8, 0.5]], [1.0, NAN])
    start, end = jnp.asarray([0.2, 0.5]), jnp.asarray([0.8, 0.5])
    limits = failures.limits(past, start[None])
    found = limits.toward(CUBE, start, end)
    assert limits.allow(found)
    assert not limits.allow(found + (end - start) / 15)
    fine = failures.limits(told([[0.2, 0.5]], [1.0]), start[None])
    np.testing.assert_array_equal(fine.toward(CUBE, start, end), end)
