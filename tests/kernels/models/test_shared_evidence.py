"""Settings of features by the evidence of all agents, against dense densities of contrasts."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg
from scipy import stats

from jaxbo.kernels.models import shared_evidence, shared_prior
from jaxbo.kernels.models.shared_evidence import SettingsEvidence
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

DTYPE = jnp.zeros(()).dtype
AGENTS, CAPACITY, SIZE = 8, 7, 40
LENGTHS, NOISES = np.array([0.1, 0.2, 0.4, 0.2]), np.array([1e-3, 1e-3, 1e-3, 1e-1])
COUNTS = np.array([7, 6, 5, 4, 7, 2, 1, 0])
RNG = np.random.default_rng(0)
X = RNG.random((AGENTS, CAPACITY, 2)).astype(DTYPE)
#: An agent's offset is its own.
SCALE = 3.0
OFFSETS = 5 * RNG.standard_normal((AGENTS, 1))


@jax.jit
def drawn():
    def one(length):
        return features.sine_cosine(jr.key(0), SquaredExponential(length), 2, SIZE)

    return jax.vmap(one)(jnp.asarray(LENGTHS, DTYPE))


@jax.jit
def phis():
    """[settings agents points features]"""
    each_point = jax.vmap(jax.vmap(lambda phi, x: phi(x), (None, 0)), (None, 0))
    return jax.vmap(each_point, (0, None))(drawn(), jnp.asarray(X))


PHI = np.asarray(phis(), np.float64)


def values(setting, seed=1):
    rng = np.random.default_rng(seed)
    noise = NOISES[setting] ** 0.5 * rng.standard_normal((AGENTS, CAPACITY))
    f = np.einsum("ntd,nd->nt", PHI[setting], rng.standard_normal((AGENTS, SIZE)))
    return (OFFSETS + SCALE * (f + noise)).astype(DTYPE)


@jax.jit
def sent(y, counts):
    known = jax.vmap(shared_prior.AgentData)(jnp.asarray(X), y, counts)
    one = lambda known: shared_evidence.evidence(drawn(), jnp.asarray(NOISES, DTYPE), known)  # noqa: E731
    return jax.vmap(one)(known)


@jax.jit
def decided(y, counts, chosen, scale):
    total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sent(y, counts))
    return shared_evidence.logs(total, scale), shared_evidence.likeliest(total, scale, chosen)


def given(y, chosen, *, scale=SCALE, counts=COUNTS):
    return (
        jnp.asarray(y, DTYPE),
        jnp.asarray(counts),
        jnp.asarray(chosen),
        jnp.asarray(scale, DTYPE),
    )


def densities(y):
    """The log density of all contrasts under each setting."""
    found = []
    for phi, noise in zip(PHI, NOISES, strict=True):
        total = 0.0
        for n, count in enumerate(COUNTS):
            if count < 2:
                continue
            C = scipy.linalg.null_space(np.ones((1, count))).T
            K = C @ (phi[n, :count] @ phi[n, :count].T + noise * np.eye(count)) @ C.T
            values = C @ y[n, :count].astype(np.float64)
            total += stats.multivariate_normal(cov=SCALE**2 * K).logpdf(values)
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize("setting", range(4))
def test_the_evidence_is_the_dense_density_of_contrasts(setting):
    y, chosen = values(setting), (setting + 1) % 4
    logs, best = decided(*given(y, chosen))
    dense = densities(y)
    np.testing.assert_allclose(logs - logs[0], dense - dense[0], atol=0.02)
    assert np.ptp(dense) > 5
    assert abs(np.max(dense) - dense[chosen] - shared_evidence.LEAD) > 0.1
    ahead = np.max(dense) > dense[chosen] + shared_evidence.LEAD
    assert best == (np.argmax(dense) if ahead else chosen)


def test_an_offset_and_a_scale_of_all_values_change_nothing():
    y, chosen = values(3), 2
    logs, best = decided(*given(y, chosen))
    assert best != chosen
    for changed, scale in ((y - OFFSETS, SCALE), (1e8 * y, 1e8 * SCALE), (1e-8 * y, 1e-8 * SCALE)):
        other, also = decided(*given(changed, chosen, scale=scale))
        np.testing.assert_allclose(other - other[0], logs - logs[0], atol=0.05)
        assert also == best


def test_a_small_noise_and_smooth_features_are_exact_enough():
    """The roundings of K_s are no smaller than this noise, and would be some 50 nats in float32."""
    noise, agents, count = 1e-6, 5, 40
    draw = lambda length: features.sine_cosine(jr.key(0), SquaredExponential(length), 2, 100)  # noqa: E731
    maps = jax.jit(jax.vmap(draw))(jnp.asarray([0.4, 0.8], DTYPE))
    rng = np.random.default_rng(0)
    x = rng.random((agents, count, 2)).astype(DTYPE)
    each = jax.vmap(jax.vmap(lambda phi, x: phi(x), (None, 0)), (None, 0))
    phi = np.asarray(jax.jit(jax.vmap(each, (0, None)))(maps, x), np.float64)
    f = np.einsum("ntd,nd->nt", phi[1], rng.standard_normal((agents, 100)))
    y = (f + noise**0.5 * rng.standard_normal(f.shape)).astype(DTYPE)
    known = jax.vmap(shared_prior.AgentData)(x, y, jnp.full(agents, count))
    one = lambda known: shared_evidence.evidence(maps, jnp.full(2, noise, DTYPE), known)  # noqa: E731
    sent = jax.jit(jax.vmap(one))(known)
    logs = np.asarray(-(sent.squares + sent.volumes) / 2, np.float64)
    C = scipy.linalg.null_space(np.ones((1, count))).T
    for n in range(agents):
        covariances = (C @ (p[n] @ p[n].T + noise * np.eye(count)) @ C.T for p in phi)
        dense = [stats.multivariate_normal(cov=K).logpdf(C @ y[n]) for K in covariances]
        assert logs[n, 1] - logs[n, 0] == pytest.approx(dense[1] - dense[0], abs=0.5)


def test_rows_that_are_not_in_use_change_nothing():
    """Whatever the noise is: a row without an observation has a variance, too, and 9 is far from 1."""
    noises, maps = jnp.asarray([1e-3, 9.0], DTYPE), jax.tree.map(lambda leaf: leaf[:2], drawn())

    @jax.jit
    def of(known):
        return shared_evidence.evidence(maps, noises, known)

    x, y = jnp.asarray(X[0]), jnp.asarray(values(0)[0])
    full = of(shared_prior.AgentData(x[:3], y[:3], jnp.asarray(3)))
    with_room = of(shared_prior.AgentData(x, y, jnp.asarray(3)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), full, with_room)


@pytest.mark.parametrize("alike", ["values", "counts"])
def test_equal_values_and_one_value_each_say_nothing(alike):
    y = np.full((AGENTS, CAPACITY), np.pi * 1e3) if alike == "values" else values(0)
    counts = COUNTS if alike == "values" else np.ones(AGENTS, int)
    logs, best = decided(*given(y, 2, counts=counts))
    np.testing.assert_array_equal(logs, 0)
    assert best == 2


def test_another_setting_must_be_clearly_likelier():
    def best(ahead):
        volumes = jnp.asarray([0.0, -2 * ahead], DTYPE)
        total, one = SettingsEvidence(jnp.ones(2, DTYPE), volumes), jnp.ones((), DTYPE)
        return int(shared_evidence.likeliest(total, one, jnp.asarray(0)))

    assert best(0.9 * shared_evidence.LEAD) == 0
    assert best(1.1 * shared_evidence.LEAD) == 1
