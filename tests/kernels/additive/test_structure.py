"""Structures: what trees and chains draw, in proportion to their density."""

import collections
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import chain, structure


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
    return chain.Evidence(
        lambda number, scope: (), lambda scopes, parts, logs: log_density(scopes, logs)
    )


def test_a_random_tree_is_another_after_every_fit():
    tree, nothing = structure.RandomTree(), of_scopes(lambda *_: jnp.zeros(()))

    @jax.jit
    def two(keys):
        scopes = tree.start(keys[0], DIM)
        return scopes, tree.update(keys[1], scopes, DIM, nothing).scopes

    before, after = jax.vmap(two)(jr.split(jr.key(0), (8, 2)))
    pairs = [np.sort(np.asarray(scopes), axis=2).tolist() for scopes in (before, after)]
    assert sum(sorted(one) != sorted(other) for one, other in zip(*pairs, strict=True)) > 4


DIM, PENALTY = 4, 0.4
#: What two slots can hold: nothing, a pair or a triple of four variables; no two of them the same.
SETS = [(), *(s for size in (2, 3) for s in itertools.combinations(range(DIM), size))]
STATES = [(a, b) for a in SETS for b in SETS if not a or a != b]


def test_a_chain_draws_structures_in_proportion_to_their_density():
    """Whatever the scores are; noise and variances too."""
    gains = np.asarray(jr.normal(jr.key(5), (DIM, DIM))) / 2
    count, steps, spread = 4000, 100, 0.5

    def log_density(scopes, logs):
        together = chain.shared(scopes[DIM:], DIM)
        return jnp.sum(gains * together) - jnp.sum((logs - 0.2) ** 2) / (2 * spread**2)

    scores = lambda key, parts, logs: jnp.asarray(2 * gains + 2 * gains.T)  # noqa: E731
    evidence = of_scopes(log_density)._replace(scores=scores)
    start = structure.Sampled(arity=3, factors=2).start(jr.key(0), DIM)

    @jax.jit
    def ends(keys):
        one = lambda k: chain.sample(  # noqa: E731
            k, start, evidence, DIM, fixed=DIM, steps=steps, penalty=PENALTY
        )
        return jax.vmap(one)(keys)

    found = ends(jr.split(jr.key(6), count))
    assert (found.scopes[:, :DIM] == start[None, :DIM]).all()
    seen = collections.Counter(
        tuple(tuple(v for v in row if v >= 0) for row in scopes)
        for scopes in np.asarray(found.scopes[:, DIM:]).tolist()
    )
    log_weights = []
    for state in STATES:
        pairs = {pair for factor in state for pair in itertools.permutations(factor, 2)}
        log_weights.append(sum(gains[p] for p in pairs) - PENALTY * sum(map(len, state)))
    expected = np.exp(np.asarray(log_weights, np.float64))
    expected /= expected.sum()
    counts = np.array([seen.pop(state, 0) for state in STATES])
    assert not seen  # nothing else: no factor of one variable, none twice
    error = 5 * np.sqrt(expected * (1 - expected) / count) + 1 / count
    assert (np.abs(counts / count - expected) <= error).all()
    assert 0.2 < found.accepted.mean() < 1
    logs = np.asarray(found.logs)
    np.testing.assert_allclose(logs.mean(axis=0), 0.2, atol=5 * spread / count**0.5)
    np.testing.assert_allclose(logs.std(axis=0), spread, rtol=5 / (2 * count) ** 0.5)
    assert found.evidence.shape == (count, steps)


@pytest.mark.slow
def test_what_observations_do_not_say_is_the_prior_of_slots():
    """By default a slot of pairs has 1 for nothing, and 1 / dim² for each pair."""
    dim, count = 3, 4000
    learned = structure.Sampled(factors=1, steps=40)
    start = learned.start(jr.key(0), dim)
    assert start.shape == (dim + 1, 2)
    nothing = of_scopes(lambda scopes, logs: jnp.zeros(()))  # and no prior of noise and variances
    last = jax.vmap(lambda key: learned.update(key, start, dim, nothing).scopes[dim])
    drawn = np.asarray(jax.jit(last)(jr.split(jr.key(8), count)))
    found = np.bincount(np.sum(drawn >= 0, axis=1), minlength=3) / count
    expected = np.array([1, 0, 3 / dim**2])
    expected /= expected.sum()
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


@pytest.mark.slow
def test_how_often_pairs_shared_a_factor_is_counted_after_every_move():
    start = jnp.array([[0, -1], [1, -1], [2, -1], [1, 0]])
    there = jnp.array([0, 1])
    density = of_scopes(lambda s, logs: -1e9 * jnp.any(s[3] != there).astype(float))
    still = chain.sample(jr.key(0), start, density, 3, fixed=3, steps=9)
    np.testing.assert_array_equal(still.pairs, [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(still.pairs, chain.shared(start, 3))
    assert still.accepted < 1


def test_scores_are_those_of_dense_algebra(key):
    """In NumPy, pair by pair; the deviation is that of quadratic forms."""
    n, dim, noise = 12, 4, 0.1
    X = np.asarray(jr.uniform(key, (n, dim)), np.float64)
    alone = np.exp(-0.5 * ((X[:, None] - X[None]) / 0.3) ** 2).transpose(2, 0, 1)
    rows = np.arange(n) < 10
    y = np.where(rows, np.sin(9 * X[:, 0] * X[:, 2]), 0)
    used = rows[:, None] & rows[None]
    K = np.where(used, alone.mean(axis=0), 0) + noise * np.eye(n)
    given = [jnp.asarray(a, jnp.float32) for a in (alone, K, y)]
    ask = jax.jit(
        jax.vmap(lambda k: chain.scores(k, *given, jnp.asarray(rows), jnp.asarray(noise)))
    )
    found = np.asarray(ask(jr.split(key, 50)))
    inverse = np.linalg.inv(K[:10, :10])
    H = np.eye(10) - 1 / 10
    centered = [H @ k[:10, :10] @ H for k in alone]
    for i, j in itertools.combinations(range(dim), 2):
        M = centered[i] * centered[j]
        a = inverse @ y[:10]
        slope = (a @ M @ a - np.trace(inverse @ M)) / 2
        deviation = np.sqrt(np.trace(inverse @ M @ inverse @ M) / 2)
        # The deviation is estimated by draws: its root mean square over keys is near.
        estimates = slope / found[:, i, j]
        np.testing.assert_allclose(np.sqrt(np.mean(estimates**2)), deviation, rtol=0.2)
        assert (np.sign(found[:, i, j]) == np.sign(slope)).all()


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
    with pytest.raises(ValueError, match="need two variables, got 1"):
        structure.Sampled().start(jr.key(0), 1)
    with pytest.raises(ValueError, match="scopes must have the variables of each factor"):
        structure.Given([0, 1])
