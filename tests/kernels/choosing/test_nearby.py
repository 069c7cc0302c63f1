import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing import history
from jaxbo.kernels.choosing.nearby import BEST, nearby

COUNT = 200
SPACE = Space(kind=Categorical("a", "b", "c"), x=Real(0.0, 1.0), n=Integer(1, 4), y=Real(0.0, 1.0))


@jax.jit
def seen(points, values):
    def step(past, row):
        return history.add(past, *row), None

    empty = history.empty(points.shape[1], 20)
    return jax.lax.scan(step, empty, (points, values))[0]


def points_of(domain, key, values):
    """Evaluated points in the order of their values, and those near the best of them."""
    sample_key, near_key, other_key = jr.split(key, 3)
    evaluated = domain.sample(sample_key, len(values))
    others = domain.candidates(other_key, COUNT)
    found = eqx.filter_jit(nearby)(near_key, domain, seen(evaluated, values), others)
    return np.asarray(evaluated), np.asarray(others), np.asarray(found)


def test_a_few_variables_of_one_of_the_best_points_move_and_the_others_stay(key):
    values = jnp.arange(12.0)
    evaluated, _, found = points_of(SPACE, key, values)
    best = evaluated[np.argsort(-np.asarray(values))[:BEST]]
    owners = SPACE.variables.owners
    moved = np.stack(
        [(found != b[None])[:, owners == v].any(1) for b in best for v in range(4)], axis=1
    ).reshape(COUNT, BEST, 4)
    least = moved.sum(axis=2).min(axis=1)  # against the point that it came from
    assert (least <= 3).mean() > 0.9
    assert 1 < least.mean() < 2
    assert jax.vmap(SPACE.contains)(found).all()
    kinds = {tuple(row) for row in found[:, :3]}
    assert kinds == {(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)}


def test_moves_are_of_all_lengths(key):
    evaluated, _, found = points_of(Cube(2), key, jnp.array([1.0, jnp.nan, 0.0]))
    away = np.min(np.abs(found[:, None] - evaluated[None, [0, 2]]).max(axis=2), axis=1)
    assert (away > 0).all()
    assert (away < 0.02).mean() > 0.1
    assert (away > 0.1).mean() > 0.1


def test_where_nothing_but_failures_is_known_the_other_points_are_taken(key):
    _, others, found = points_of(Cube(2), key, jnp.full(5, jnp.nan))
    np.testing.assert_array_equal(found, others)


def test_points_that_are_not_allowed_and_those_of_a_finite_set_are_the_others(key):
    some = Space(x=Real(0.0, 1.0), y=Real(0.0, 1.0), where=jax.jit(lambda p: p["x"] + p["y"] < 1))
    _, _, found = points_of(some, key, jnp.arange(4.0))
    assert (found.sum(axis=1) < 1 + 1e-6).all()
    finite = Finite(np.eye(3))
    others = finite.points
    assert nearby(key, finite, seen(others, jnp.arange(3.0)), others) is others


def test_integers_with_few_values_move_as_choices_do():
    variables = Space(few=Integer(1, 8), many=Integer(1, 9), kind=Categorical("a", "b")).variables
    np.testing.assert_array_equal(variables.owners, [0, 1, 2, 2])
    np.testing.assert_array_equal(variables.near, [False, True, False, False])
    assert (variables.number, Cube(3).variables.number) == (3, 3)
