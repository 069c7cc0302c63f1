"""The audit of secure sums: it proves a claim wrong if owners add too little noise, and else none."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import jaxbo
from jaxbo import FixedSize, Mechanism, Poisson, accounting
from jaxbo.federation import SecureSum
from jaxbo.privacy import distributed
from jaxbo.privacy.distributed import UNIT
from jaxbo.runs import _in_shares
from jaxbo.runs._objective import compiled
from jaxbo.runs.auditing import _Attack, _of_owners, _ratios, _shares
from tests.runs.test_auditing import (
    DELTA,
    EVERYBODY,
    METHODS,
    RELEASES,
    ROUNDS,
    SOME,
    Murmur,
    objective,
    on_bare_noise,
)
from tests.walk import SIZE, Letter, SumWalk

AGENTS, NUMBERS = 4, 4
SECURE = SecureSum(threshold=3)


class Whisper(Murmur):
    """The same with shorter sums: owners draw noise for each number, one by one."""

    def vector(self, message):
        return message.weights[:NUMBERS]

    def broadcast(self, key, shared, round, release):
        heard = jnp.zeros(SIZE, release.dtype).at[:NUMBERS].set(release[0])
        return Letter(jnp.where(self.releasing(round), heard, 0))


def whisper(z=2.0, sampling=EVERYBODY, agents=AGENTS):
    mechanism = Mechanism(z, 2.0, sampling)
    return Whisper(jaxbo.Cube(2), agents, mechanism=mechanism, releases=2)


def audited(algorithm, key, secure=SECURE, runs=4000):
    options = {"delta": DELTA, "initial": 1, "accountant": accounting.pld, "secure": secure}
    return jaxbo.audit(algorithm, objective, ROUNDS, key, runs=runs, **options)


def a_third(monkeypatch):
    share = SecureSum.share
    monkeypatch.setattr(SecureSum, "share", lambda *known: share(*known) / 3)


def forgotten(monkeypatch):
    monkeypatch.setattr(distributed, "noise", lambda deviation, size: np.zeros(size, np.uint32))


def for_all(monkeypatch):
    """As if the colluding owners added noise, too."""
    share = SecureSum.share

    def less(secure, z, size):
        return share(secure, z, size) * (1 - secure.colluding / secure.threshold) ** 0.5

    monkeypatch.setattr(SecureSum, "share", less)


# The noise is that of the operating system: a test that holds here may fail once in very many times.
@pytest.mark.slow
@pytest.mark.parametrize("sampling", [pytest.param(EVERYBODY, marks=pytest.mark.full), SOME])
def test_a_claim_that_is_right_is_not_refuted(sampling, key):
    found = audited(whisper(sampling=sampling), key)
    assert not found.broken
    assert 0 < found.lower < found.claimed < found.most


@pytest.mark.parametrize("spoil", [pytest.param(a_third, marks=pytest.mark.slow), forgotten])
def test_too_little_noise_is_caught(spoil, key, monkeypatch):
    spoil(monkeypatch)
    found = audited(whisper(), key)
    assert found.broken
    assert found.claimed < found.lower <= found.most


@pytest.mark.full
def test_noise_that_counts_on_owners_who_collude_is_caught(key, monkeypatch):
    secure = SecureSum(threshold=4, colluding=3)
    assert not audited(whisper(), key, secure, runs=10_000).broken
    for_all(monkeypatch)
    assert audited(whisper(), key, secure, runs=10_000).broken


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_their_claim_and_break_it_without_the_noise(name, key, monkeypatch):
    secure = SecureSum(threshold=3, colluding=2)  # of three owners: there is a sum in each round
    for sampling in (EVERYBODY, SOME):
        algorithm = METHODS[name](Mechanism(2.0, 2.0, sampling, True))
        found = audited(algorithm, key, secure, runs=10_000)
        assert not found.broken
        # No attack is better: it has the power of one on bare noise.
        q, releases = float(sampling.q), RELEASES[name]
        mean, deviation = on_bare_noise(q, releases, z=2.0, runs=10_000)
        assert abs(found.lower - mean) < 5 * deviation
        with monkeypatch.context() as spoiled:
            a_third(spoiled)
            assert audited(algorithm, key, secure, runs=10_000).broken


# ------------------------------------------------------------------------------- the sum


def test_nothing_of_the_others_is_left_in_the_statistic(key):
    # All others collude: there is a sum in each round, and its noise is the owner's alone.
    algorithm, secure = whisper(z=1e-3, agents=3), SecureSum(threshold=3, colluding=2)
    start = algorithm.init(key)
    attack = _Attack(algorithm, compiled(objective), start, 1, ROUNDS, 1, secure)
    shares = _shares(attack, 100)
    one, other = (_ratios(attack, key, world, 0.5, 100, shares) for world in (True, False))
    expected = 2 / (2 * 1e-3**2)  # with hardly any noise a rest of theirs would show; two releases
    np.testing.assert_allclose(one, expected, rtol=0.02)
    np.testing.assert_allclose(other, -expected, rtol=0.02)


@pytest.mark.slow
def test_a_round_without_a_sum_tells_nothing(key):
    start = whisper().init(key)
    attack = _Attack(whisper(), compiled(objective), start, 1, ROUNDS, 1, SECURE)
    ratios = _ratios(attack, key, True, 0.999, 100, _shares(attack, 100))
    assert np.mean(ratios == 0) > 0.9  # of the two others whom a sum needs, hardly any is present


def test_the_noise_is_that_of_the_owners_who_do_not_collude():
    algorithm, secure = whisper(), SecureSum(threshold=4, colluding=2)
    drawn = _in_shares.noise(algorithm, secure, 500, ROUNDS).astype(np.int32)
    assert drawn.shape == (500, ROUNDS, NUMBERS)
    assert not drawn[:, 2].any()  # there is no third release
    # z = 2; of 4000 numbers; once in ten million times this fails.
    assert stats.kstest(drawn[:, :2].ravel() / (2.0 * UNIT), "norm").pvalue > 1e-7


def test_a_sum_has_the_fewest_owners_that_it_may_have():
    secure, agents, victim = SecureSum(threshold=4, colluding=2), 5, 3
    known = jax.jit(lambda present: _in_shares.named(secure, present, victim))
    always = np.isin(range(agents), [0, 1, victim])  # the first two others collude
    for row in itertools.product((False, True), repeat=agents):
        here = np.asarray(known(jnp.asarray(row)))
        ready = np.asarray(row) | always
        assert here.sum() == (4 if ready.sum() >= 4 else 0)
        assert not (here & ~ready).any()
        assert (here & always).sum() == (3 if here.any() else 0)


@pytest.mark.slow
def test_a_sum_is_the_release_of_the_same_owners(key):
    algorithm, victim = whisper(), 1
    state = algorithm.init(key)
    messages = algorithm.messages(key, state)
    here = jnp.arange(AGENTS) != 2
    noise = jnp.full(NUMBERS, 5 * UNIT, jnp.uint32)
    known = algorithm, victim, key, jnp.asarray(0), messages, here
    sensitivity = algorithm.mechanism.sensitivity(algorithm.weights(jnp.asarray(0)))

    def exact(takes_part, of):
        part = Mechanism(0.0, 2.0, EVERYBODY)
        vectors, weights = algorithm.vectors(messages), algorithm.weights(jnp.asarray(0))
        return part.release(key, vectors, weights, here & of) + 5 * sensitivity

    opened = jax.jit(lambda takes_part: _in_shares.opened(*known, takes_part, noise))
    agents, grid = jnp.arange(AGENTS), AGENTS * float(sensitivity) / UNIT
    for takes_part in (True, False):
        sums, rest = opened(jnp.asarray(takes_part))
        np.testing.assert_allclose(
            sums, exact(takes_part, takes_part | (agents != victim)), atol=grid
        )
        np.testing.assert_allclose(
            rest, exact(takes_part, takes_part & (agents == victim)), atol=grid
        )


def test_a_method_is_told_the_noise_of_its_sum(key):
    algorithm = SumWalk(jaxbo.Cube(2), AGENTS, mechanism=Mechanism(2.0, 2.0, EVERYBODY))
    state = algorithm.init(key)
    attack = _Attack(algorithm, compiled(objective), state, 1, ROUNDS, 1, SECURE)
    known = key, state, algorithm.messages(key, state)
    heard = jax.jit(
        lambda present: _of_owners(
            attack, SECURE, *known, present, jnp.asarray(True), jnp.zeros(SIZE, jnp.uint32)
        )
    )
    noise = algorithm.mechanism.deviation(algorithm.weights(state.round))
    for present, factor in ((True, SECURE.excess(3)), (False, 1)):
        broadcast, _, there = heard(jnp.full(AGENTS, present))
        assert there == present
        np.testing.assert_allclose(broadcast.noise, noise * factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("sampling", "secure", "match"),
    [
        (FixedSize(2, AGENTS), SECURE, "draw themselves"),
        (Poisson(1.0), SecureSum(threshold=2), "threshold must be above"),
    ],
)
def test_settings_that_no_federation_accepts_are_refused(sampling, secure, match):
    with pytest.raises(ValueError, match=match):
        audited(whisper(4.0, sampling), jr.key(0), secure)
