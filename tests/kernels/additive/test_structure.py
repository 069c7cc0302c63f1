"""Structures: what trees and chains draw, in proportion to their density."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import structure


def test_a_random_tree_joins_all_variables():
    draw = jax.jit(structure.RandomTree().start, static_argnums=1)
    seen = set()
    for seed in range(20):
        scopes = np.asarray(draw(jr.key(seed), 6))
        assert scopes.shape == (5, 2)
        parts = [{v} for v in range(6)]
        for a, b in scopes:
            assert a != b
            joined = [p for p in parts if a in p or b in p]
            assert len(joined) == 2  # no cycle
            parts = [p for p in parts if p not in joined] + [set.union(*joined)]
        assert len(parts) == 1
        seen.add(tuple(sorted(map(tuple, np.sort(scopes, axis=1).tolist()))))
    assert len(seen) > 10


def of_scopes(log_density):
    """A density that is no sum over factors."""
    return structure.Evidence(lambda number, scope: (), lambda scopes, parts: log_density(scopes))


def test_a_chain_draws_structures_in_proportion_to_their_density():
    # Three variables, one place of pairs beside them: 16 states, of which three name one twice.
    weights = jr.uniform(jr.key(5), (4, 4)) + 0.2
    log_density = of_scopes(lambda scopes: jnp.log(weights[scopes[3, 0] + 1, scopes[3, 1] + 1]))
    start = jnp.array([[0, -1], [1, -1], [2, -1], [-1, -1]])
    count, steps = 4000, 40

    @jax.jit
    def ends(keys):
        one = lambda k: structure.sample(k, start, log_density, 3, fixed=3, steps=steps)  # noqa: E731
        return jax.vmap(one)(keys)

    chains = ends(jr.split(jr.key(6), count))
    assert (chains.scopes[:, :3] == start[None, :3]).all()
    found = np.zeros((4, 4))
    np.add.at(found, tuple(np.asarray(chains.scopes[:, 3] + 1).T), 1)
    expected = np.array(weights, np.float64)
    expected[[1, 2, 3], [1, 2, 3]] = 0
    expected /= expected.sum()
    error = 5 * np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(found / count - expected) <= error).all()
    assert 0.2 < chains.accepted.mean() < 1


def test_what_observations_do_not_say_is_the_prior_of_places():
    """By default a place is as likely taken, by any of the variables, as it is empty."""
    dim, count = 3, 4000
    learned = structure.Sampled(factors=1, steps=40)
    start = learned.start(jr.key(0), dim)
    assert start.shape == (dim + 1, 2)
    nothing = of_scopes(lambda scopes: jnp.zeros(()))
    last = jax.vmap(lambda key: learned.update(key, start, dim, nothing).scopes[dim])
    drawn = np.asarray(jax.jit(last)(jr.split(jr.key(8), count)))
    found = np.bincount(np.sum(drawn >= 0, axis=1), minlength=3) / count
    # One structure is empty, six have one variable, six two: none has one twice.
    expected = np.array([1, 6 / dim, 6 / dim**2])
    expected /= expected.sum()
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_how_often_pairs_shared_a_factor_is_counted_after_every_move():
    start = jnp.array([[0, -1], [1, -1], [2, -1], [0, 1]])
    density = of_scopes(lambda s: -1e9 * jnp.any(s != start).astype(float))
    still = structure.sample(jr.key(0), start, density, 3, fixed=3, steps=9)
    np.testing.assert_array_equal(still.pairs, [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(still.pairs, structure.shared(start, 3))
    assert still.accepted < 1


def test_scopes_of_any_length_are_filled_up():
    filled = structure.padded([(4,), (0, 1, 2), (3, 0)])
    np.testing.assert_array_equal(filled, [[4, -1, -1], [0, 1, 2], [3, 0, -1]])


@pytest.mark.parametrize(
    ("size", "least"), [("arity", 2), ("count", 1), ("steps", 1), ("factors", 1)]
)
def test_the_least_sizes_of_a_chain_are_taken_and_no_less(size, least):
    assert getattr(structure.Sampled(**{size: least}), size) == least
    with pytest.raises(ValueError, match=f"{size} must be"):
        structure.Sampled(**{size: least - 1})


def test_what_cannot_be_meant_is_refused(as_users_have_it):
    with pytest.raises(ValueError, match="penalty must be finite, got nan"):
        structure.Sampled(penalty=np.nan)
    with pytest.raises(ValueError, match="scopes must have the variables of each factor"):
        structure.Given([0, 1])
