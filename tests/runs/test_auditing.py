"""The audit of a method in whole runs: it proves a claim wrong that is, and none that is right."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import FixedSize, Mechanism, Poisson, accounting
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.privacy import auditing
from jaxbo.runs._objective import compiled
from jaxbo.runs.auditing import _Attack, _ratios
from jaxbo.types import floating, named
from tests.walk import Letter, Walk

POINTS = jaxbo.Finite(np.asarray([[0.0], [0.4], [1.0]]))
FEATURES = jaxbo.Fixed(size=4)
AGENTS, ROUNDS, DELTA = 3, 3, 1e-3


class Faulty(Mechanism):
    """So much of the noise that is claimed, and a bound so many times as long: one program for all."""

    noise: jax.Array = eqx.field(converter=floating, default=1.0, kw_only=True)
    longer: jax.Array = eqx.field(converter=floating, default=1.0, kw_only=True)

    def deviation(self, weights):
        return self.noise * Mechanism.deviation(self, weights)

    def _bound(self, regions, dtype):
        return self.longer.astype(dtype) * Mechanism._bound(self, regions, dtype)


def quiet(*given):
    """Broken: a third of the noise."""
    return Faulty(*given, noise=1 / 3)


def unclipped(*given):
    """Broken: messages are added as long as they are."""
    return Faulty(*given, longer=jnp.inf)


class Murmur(AbstractPrivate, Walk):
    """A method of few operations whose sums are private."""

    mechanism: Mechanism = eqx.field(kw_only=True)
    releases: jax.Array = eqx.field(kw_only=True, converter=named("releases"), default=2.0)

    def vector(self, message):
        return message.weights

    def weights(self, round):
        return jnp.full((1, self.agents), 1 / self.agents)

    def broadcast(self, key, shared, round, release):
        return Letter(jnp.where(self.releasing(round), release[0], 0))


def murmur(mechanism, releases=2):
    return Murmur(jaxbo.Cube(2), AGENTS, mechanism=mechanism, releases=releases)


def prior(mechanism):
    """A method of the package."""
    known = {"mechanism": mechanism, "releases": 2, "features": FEATURES}
    known |= {"location": 0.0, "scale": 1.0}  # so agents of a single value send something
    return jaxbo.DPLearnedPrior(POINTS, AGENTS, 8, **known)


def exploring(mechanism):
    """Two regions: weights change from round to round."""
    parts = jaxbo.Regions.of(1, 2)
    model = {"features": FEATURES, "candidates": 4, "regions": parts, "releases": 3}
    return jaxbo.DPFTSDE(POINTS, AGENTS, mechanism, **model)


def objective(agent, x):
    return -((x[0] - agent.astype(x.dtype) / 10) ** 2)


def audited(algorithm, key, runs=4000, **options):
    fixed = isinstance(algorithm.mechanism.sampling, FixedSize)
    accountant = accounting.renyi if fixed else accounting.moments
    options = {"delta": DELTA, "initial": 1, "accountant": accountant} | options
    return jaxbo.audit(algorithm, objective, ROUNDS, key, runs=runs, **options)


EVERYBODY, SOME, COUNT = Poisson(1.0), Poisson(0.5), FixedSize(2, AGENTS)
RIGHT = {
    "everybody": murmur(Faulty(2.0, 2.0, EVERYBODY)),
    "half of them": murmur(Faulty(2.0, 2.0, SOME)),
    "a fixed number": murmur(Faulty(4.0, 2.0, COUNT)),
}
WRONG = {
    "a third of the noise": murmur(quiet(2.0, 2.0, EVERYBODY)),
    "a third of the noise, half of them": murmur(quiet(2.0, 2.0, SOME)),
    "not clipped": murmur(unclipped(2.0, 2.0, EVERYBODY)),
    "a third of the noise, a fixed number": murmur(quiet(4.0, 2.0, COUNT)),
}
METHODS = {"DPLearnedPrior": prior, "DPFTSDE": exploring}
RELEASES = {"DPLearnedPrior": 2, "DPFTSDE": 3}


def on_bare_noise(q, releases, z, runs=20_000, repeats=20):
    """Mean and deviation of the bound from the best test of N(1 / z, 1), where drawn, against N(0, 1)."""
    rng, found = np.random.default_rng(0), []

    def statistic(x):
        drawn = x / z - 1 / (2 * z**2)
        missed = np.log1p(-q) if q < 1 else -np.inf
        return np.logaddexp(missed, np.log(q) + drawn).sum(1)

    for _ in range(repeats):
        one, other = rng.normal(size=(2, runs, releases))
        one += (rng.random(one.shape) < q) / z
        found.append(auditing.bound(statistic(one), statistic(other), DELTA))
    return np.mean(found), np.std(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full) if n == "everybody" else n for n in RIGHT],
)
def test_a_claim_that_is_right_is_not_refuted(name, key):
    found = audited(RIGHT[name], key)
    assert found.lower <= found.claimed < found.most
    assert not found.broken
    assert "not refuted" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_claim_that_is_wrong_is_refuted(name, key):
    found = audited(WRONG[name], key)
    assert found.claimed < found.lower <= found.most
    assert found.broken
    assert "the claim is broken" in str(found)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Mechanism, quiet])
@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_their_claim_and_break_it_without_the_noise(name, kind, key):
    for sampling in (EVERYBODY, SOME):
        algorithm = METHODS[name](kind(2.0, 2.0, sampling, True))
        found = audited(algorithm, key, runs=20_000, accountant=accounting.pld)
        assert found.broken == (kind is quiet)
        if kind is Mechanism:  # no attack is better: it has the power of one on bare noise
            mean, deviation = on_bare_noise(float(sampling.q), releases=RELEASES[name], z=2.0)
            assert abs(found.lower - mean) < 4 * deviation


@pytest.mark.full
def test_a_bound_is_above_the_truth_no_more_often_than_it_says(key):
    # Two Gaussian releases of everybody, in closed form.
    algorithm, confidence = murmur(Mechanism(2.0, 2.0, EVERYBODY)), 0.5
    truth = accounting.pld([accounting.event(algorithm.mechanism, 2)], DELTA)
    found = [
        audited(algorithm, k, confidence=confidence, accountant=accounting.pld).lower
        for k in jr.split(key, 40)
    ]
    assert np.mean(np.asarray(found) > truth) <= 0.25
    assert np.mean(found) > 0.6 * truth


def test_nothing_of_the_others_is_left_in_the_statistic(key):
    algorithm = murmur(Mechanism(1e-3, 2.0, EVERYBODY), releases=1)
    attack = _Attack(algorithm, compiled(objective), algorithm.init(key), 1, ROUNDS, 1)
    one, other = (_ratios(attack, key, world, 0.5, 100) for world in (True, False))
    # With hardly any noise a rest of theirs would show; of three rounds, one has a release.
    expected = 1 / (2 * 1e-3**2)
    np.testing.assert_allclose(one, expected, rtol=0.02)
    np.testing.assert_allclose(other, -expected, rtol=0.02)


@pytest.mark.slow
def test_too_few_runs_say_that_they_could_not_refute(key):
    found = audited(murmur(Faulty(1.0, 2.0, EVERYBODY)), key, runs=100, dropout=0.0)
    assert found.most < found.claimed
    assert f"{found.most:.3g} at most" in str(found)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"runs": 99}, "runs must be"),
        ({"dropout": 1.0}, "dropout must"),
        ({"confidence": 1.0}, "confidence must"),
        ({"delta": 1.0}, "delta must"),
    ],
)
def test_arguments_that_are_wrong_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        audited(murmur(Mechanism(2.0, 2.0, EVERYBODY)), jr.key(0), **options)


def test_a_method_that_releases_nothing_private_is_refused():
    with pytest.raises(ValueError, match="no release"):
        audited(murmur(Mechanism(2.0, 2.0, EVERYBODY), releases=0), jr.key(0))
    with pytest.raises(ValueError, match="z must be positive"):
        audited(murmur(Mechanism(0.0, 2.0, EVERYBODY)), jr.key(0))
