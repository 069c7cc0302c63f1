"""Ranks by counting, weights by hand, points left out by leaving them out."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from jaxbo.kernels.choosing import ranking
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import sine_cosine

Y = np.array([3.0, 1.0, np.nan, 2.0, 1.0, 5.0])
USED = np.isfinite(Y)
SCORES = np.array([1.0, 2.0, 9.0, 2.0, -1.0, 0.5])


def on_device(*arrays):
    """Numbers as floats of the default precision, truths as they are."""
    return [
        jnp.asarray(a) if np.asarray(a).dtype == bool else jnp.asarray(a, float) for a in arrays
    ]


MISRANKED, LEFT_OUT, WEIGHTS, PAIRS = map(
    jax.jit,
    (ranking.misranked, ranking.misranked_left_out, ranking.ensemble_weights, ranking.pairs),
)


def misranked(*arrays):
    return float(MISRANKED(*on_device(*arrays)))


def left_out(*arrays):
    return float(LEFT_OUT(*on_device(*arrays)))


def ensemble_weights(*arrays):
    return [np.asarray(found) for found in WEIGHTS(*on_device(*arrays))]


@jax.jit
def probabilities(scores, strangers, y):
    used, others = jnp.ones(y.shape, bool), jnp.ones(len(scores), bool)
    return Ranked().probabilities(scores, strangers, y, used, others)


def ordered_pairs():
    some = np.flatnonzero(USED)
    return [(j, k) for j, k in itertools.combinations(some, 2) if Y[j] != Y[k]]


def test_misranked_pairs_are_counted():
    wrong = sum((SCORES[j] - SCORES[k]) * (Y[j] - Y[k]) <= 0 for j, k in ordered_pairs())
    assert 0 < wrong < len(ordered_pairs())
    assert misranked(SCORES, Y, USED) == wrong
    assert PAIRS(*on_device(Y, USED)).sum() == len(ordered_pairs())
    assert misranked(2 * Y, Y, USED) == 0
    # Whatever stands where nothing was observed.
    other = np.where(USED, SCORES, -100.0)
    assert misranked(other, Y, USED) == wrong


def test_left_out_scores_are_compared_to_values():
    wrong = sum(
        (SCORES[j] > Y[k]) != (Y[j] > Y[k])
        for pair in ordered_pairs()
        for j, k in (pair, pair[::-1])
    )
    assert left_out(SCORES, Y, USED) == wrong / 2
    assert left_out(Y, Y, USED) == 0


def test_kendalls_tau_is_scipys(key):
    y = np.asarray(jr.normal(key, (40,)))
    scores = y + np.random.default_rng(5).standard_normal(40).astype(y.dtype)
    used = np.ones(40, bool)
    share = misranked(scores, y, used) / np.asarray(PAIRS(*on_device(y, used))).sum()
    expected = stats.kendalltau(scores, y).statistic
    assert 1 - 2 * share == pytest.approx(expected, abs=1e-6)


def by_hand(peers, own, present):
    """Draw by draw."""
    kept = [
        i for i in range(peers.shape[1])
        if present[i] and np.median(peers[:, i]) <= np.quantile(own, 0.95)
    ]  # fmt: skip
    weights, mine = np.zeros(peers.shape[1]), 0.0
    for losses, alone in zip(peers, own, strict=True):
        least = min([losses[i] for i in kept], default=np.inf)
        if alone <= least:
            mine += 1
            continue
        best = [i for i in kept if losses[i] == least]
        weights[best] += 1 / len(best)
    return weights / len(own), mine / len(own)


def test_weights_are_how_often_a_model_misranks_least():
    rng = np.random.default_rng(0)
    for _ in range(20):
        peers = rng.integers(0, 12, (31, 7)) + rng.integers(-4, 6, 7)
        own, present = rng.integers(0, 12, 31), rng.random(7) < 0.8
        weights, mine = ensemble_weights(peers, own, present)
        expected, alone = by_hand(peers, own, present)
        np.testing.assert_allclose(weights, expected, atol=1e-6)
        assert float(mine) == pytest.approx(alone, abs=1e-6)
        assert float(weights.sum() + mine) == pytest.approx(1, abs=1e-6)


def test_many_bad_models_do_not_dilute_one_good_one():
    # Without the median rule 200 models that guess would win draws by chance.
    rng = np.random.default_rng(0)
    bad = rng.integers(5, 30, (100, 200))
    good, own = rng.integers(4, 8, (100, 1)), rng.integers(5, 11, 100)
    peers = np.hstack([good, bad])
    weights, mine = ensemble_weights(peers, own, np.ones(201, bool))
    assert float(weights[1:].sum()) == 0
    assert float(weights[0]) > 0.5
    assert float(mine) > 0


def test_nobody_to_listen_to_leaves_the_own_model():
    losses = np.zeros((10, 3))
    weights, mine = ensemble_weights(losses, np.ones(10), np.zeros(3, bool))
    np.testing.assert_array_equal(weights, 0)
    assert float(mine) == 1
    # Where there is nothing to rank all losses are alike.
    weights, mine = ensemble_weights(losses, np.zeros(10), np.ones(3, bool))
    assert float(mine) == 1


def test_a_point_left_out_is_predicted_from_the_others(key):
    model = Fitted(12, SquaredExponential(0.3), noise=1e-2, refit_every=None, inference=Exact())
    x = np.asarray(jr.uniform(jr.key(1), (9, 2)), float)
    values = np.sin(5 * x[:, 0]) + x[:, 1] + 3

    @jax.jit
    def left_out(x, values):
        shared = model.setup(key, 2)
        step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
        belief = jax.lax.scan(step, model.start(shared), (x, values))[0]
        y = belief.standardized
        return y, ranking.leave_one_out(belief.model.matrix, y, belief.noise, belief.used)

    y, (mean, variance) = left_out(*on_device(x, values))
    y = np.asarray(y, float)[:9]
    K = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2 / 0.3**2)
    for i in range(9):
        rest = np.arange(9) != i
        A = K[np.ix_(rest, rest)] + 1e-2 * np.eye(8)
        expected = K[i, rest] @ np.linalg.solve(A, y[rest])
        left = 1 - K[i, rest] @ np.linalg.solve(A, K[rest, i])
        assert float(mean[i]) == pytest.approx(expected, abs=2e-4)
        assert float(variance[i]) == pytest.approx(left, abs=2e-4)
    np.testing.assert_array_equal(mean[9:], 0)
    np.testing.assert_array_equal(variance[9:], 0)


def test_the_kernel_of_taf():
    found = jax.vmap(ranking.epanechnikov)(jnp.array([0.0, 0.5, 1.0, 3.0]))
    np.testing.assert_allclose(found, [0.75, 0.5625, 0, 0])


STRANGERS = np.random.default_rng(9).standard_normal((64, 40))


def families(like, unlike, opposed, t):
    """P_n of so many peers of each kind after t of 40 observations, mean over 200 agents."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((200, 1, 40))
    scores = np.concatenate([
        y + rng.standard_normal((200, like, 40)),  # tau is 1/2
        rng.standard_normal((200, unlike, 40)),
        np.repeat(-y, opposed, axis=1),
    ], axis=1)  # fmt: skip
    found = probabilities_after(*on_device(scores, STRANGERS, y[:, 0], np.arange(40) < t))
    return np.asarray(found).mean(0)


@jax.jit
def probabilities_after(scores, strangers, y, used):
    others = jnp.ones(scores.shape[1], bool)
    one = jax.vmap(lambda s, y: Ranked().probabilities(s, strangers, y, used, others))
    return one(scores, y)


@pytest.mark.slow
def test_odds_start_even_and_part():
    for t in (0, 1):
        np.testing.assert_allclose(families(3, 3, 3, t), 0.5, atol=1e-5)
    early, late = families(3, 3, 3, 6), families(3, 3, 3, 40)
    assert early[:3].min() > early[3:6].max() > early[6:].max()
    assert late[:3].min() > 0.95
    assert late[3:6].max() < 0.2
    assert late[6:].max() < 1e-3


@pytest.mark.parametrize("peers", [1, 5])
def test_two_observations_prove_nothing(peers):
    # All of them order the one pair alike.
    y = np.array([0.0, 1.0])
    for sign in (1.0, -1.0):
        scores = np.tile(sign * y, (peers, 1))
        p = np.asarray(probabilities(*on_device(scores, STRANGERS[:, :2], y)))
        assert (np.abs(p - 0.5) < 0.3).all()
        assert ((p > 0.5) == (sign > 0)).all()


@pytest.mark.slow
def test_among_many_strangers_few_are_taken_for_related():
    few, many = families(0, 3, 0, 40), families(0, 60, 0, 40)
    assert few.mean() < 0.2
    assert many.mean() < 0.1
    # One that is related is found among them.
    assert families(1, 20, 0, 40)[0] > 0.8


@pytest.mark.parametrize("ties", [1, 10])
def test_ties_are_no_evidence(ties):
    # Of 20 values all are 0 but some that are 1: what strangers make of these is chance as well.
    y = (np.arange(20) < ties).astype(float)
    rng = np.random.default_rng(2)
    p = probabilities(*on_device(*rng.standard_normal((2, 64, 20)), y))
    assert np.mean(np.asarray(p) > 0.5) < 0.15


@functools.partial(jax.jit, static_argnums=2)
def features_at(key, x, scale):
    phi = sine_cosine(key, SquaredExponential(scale), x.shape[1], 100)
    return jax.vmap(phi)(x)


@pytest.mark.parametrize(
    ("scale", "dim"),
    [(0.03, 1), pytest.param(0.2, 1, marks=pytest.mark.full), (0.3, 2)],
)
def test_smooth_strangers_are_strangers(scale, dim):
    # Smooth functions order points alike more often than independent numbers would.
    rng = np.random.default_rng(3)
    shares = []
    for seed in range(20):
        x = jnp.asarray(rng.random((40, dim)), float)
        phi = np.asarray(features_at(jr.key(seed), x, scale))
        values = rng.standard_normal((64 + 20 + 1, 100)) @ phi.T
        strangers, scores, y = on_device(values[:64], values[64:84], values[84])
        p = probabilities(scores, strangers, y)
        shares.append(np.mean(np.asarray(p) > 0.5))
    assert np.mean(shares) < 0.25  # with the variance of independent ranks 0.1 to 0.4


@pytest.mark.slow
def test_agents_alike_are_all_listened_to():
    assert families(5, 0, 0, 3).mean() > 0.6
    for t in (6, 12, 40):
        assert families(5, 0, 0, t).mean() > 0.75


def test_the_odds_are_those_of_two_normals_mixed_as_is_likeliest():
    rng = np.random.default_rng(1)
    y, effect = rng.standard_normal(25), 0.4
    scores = np.vstack([y + 2 * rng.standard_normal((9, 25)), rng.standard_normal((11, 25))])
    strangers, others = rng.standard_normal((64, 25)), np.arange(20) != 4
    given = on_device(scores, strangers, y, np.ones(25, bool), others)
    found = eqx.filter_jit(Ranked.probabilities)(Ranked(effect), *given)
    taus, chances = (
        [stats.kendalltau(s, y).statistic for s in many] for many in (scores, strangers)
    )
    deviation = np.sqrt(np.mean(np.square(chances)))
    related, chance = stats.norm.pdf(taus, effect, deviation), stats.norm.pdf(taus, 0, deviation)
    shares = np.linspace(0.001, 0.999, 999)[:, None]
    likelihood = np.log(shares * related + (1 - shares) * chance)[:, others].sum(1)
    likelihood += np.log(shares * (1 - shares))[:, 0]
    share = shares[likelihood.argmax(), 0]
    assert 0.1 < share < 0.9
    expected = share * related / (share * related + (1 - share) * chance)
    np.testing.assert_allclose(found, np.where(others, expected, 0), atol=0.02)


@pytest.mark.parametrize("effect", [0.0, 1.5, np.nan])
def test_an_effect_is_a_tau(effect):
    with pytest.raises(ValueError, match="effect must be in"):
        Ranked(effect)
