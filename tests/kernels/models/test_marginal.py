"""Hyperparameters integrated out: the chain against quadrature, and the experts made of it."""

import functools
import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo._keys import held
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.policy import EI, Drawn, Largest
from jaxbo.kernels.models import fit, marginal
from jaxbo.kernels.models.fit import Bounds, LogNormal, Priors, Uniform
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.marginal import Marginal
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs.compiled import run

CHAINS, COUNT = 24, 150


def data():
    x = np.linspace(0, 1, 12)[:, None]
    y = np.sin(5 * x[:, 0]) + 0.1 * np.cos(40 * x[:, 0])
    return x, (y - y.mean()) / y.std()


def problem(priors=Priors(length_scale=LogNormal(0.5, 0.7)), noise=(1e-3, 1.0)):
    x, y = data()
    y = np.append(y, np.nan)  # and a row that is not in use
    return fit.of_data(
        SquaredExponential(0.3),
        0.05,
        jnp.asarray(np.concatenate([x, x[:1]]), float),
        jnp.asarray(y, float),
        bounds=Bounds(length_scale=(0.05, 5.0), noise=noise),
        priors=priors,
        kept=("variance",),
    )


@jax.jit
def densities(grid):
    return jax.lax.map(problem().log_density, grid, batch_size=500)


@functools.partial(jax.jit, static_argnums=1)
def chains(keys, given=problem):
    """With the least and the largest parameters."""
    given = given()
    draws = jax.vmap(lambda k: marginal.sample(k, given, COUNT, warmup=200))(keys)
    return draws, given.low, given.high


@pytest.mark.slow
def test_samples_agree_with_quadrature(key):
    draws, low, high = map(np.asarray, chains(jr.split(key, CHAINS)))
    # A grid of the box, the variance being kept.
    sides = [np.linspace(low[i], high[i], 60) for i in (0, 2)]
    scale, noise = np.meshgrid(*sides, indexing="ij")
    grid = np.stack([scale, np.zeros_like(scale), noise], axis=-1).reshape(-1, 3).astype(low.dtype)
    logs = np.asarray(densities(grid), np.float64)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()

    assert draws.shape == (CHAINS, COUNT, 3)
    np.testing.assert_allclose(draws[..., 1], 0, atol=1e-6)
    assert ((draws >= low) & (draws <= high)).all()
    for power in (1, 2):
        for i in (0, 2):
            expected = (weights * grid[:, i].astype(np.float64) ** power).sum()
            means = draws[..., i].astype(np.float64) ** power
            means = means.mean(axis=1)
            error = means.std(ddof=1) / np.sqrt(CHAINS)
            assert abs(means.mean() - expected) < 4 * error + 1e-3
            assert error < 0.1 * max(abs(expected), 1)  # the agreement says something


def uniform():
    return problem(Priors(length_scale=Uniform(), noise=Uniform()), noise=(0.1, 0.3))


@pytest.mark.full
def test_samples_under_uniform_priors_agree_with_a_dense_quadrature_of_the_values(key):
    """The grid is even in the values themselves, where the prior is flat."""
    draws = np.exp(np.asarray(chains(jr.split(key, CHAINS), uniform)[0], np.float64))
    x, y = data()
    scales, noises = np.linspace(0.05, 5.0, 400), np.linspace(0.1, 0.3, 30)
    C = np.exp(-(((x - x.T) / scales[:, None, None]) ** 2) / 2)
    K = C[:, None] + noises[:, None, None] * np.eye(len(y))
    logs = -(y * np.linalg.solve(K, y[:, None])[..., 0]).sum(-1) / 2
    logs -= np.linalg.slogdet(K)[1] / 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    for i, expected in ((0, weights.sum(1) @ scales), (2, weights.sum(0) @ noises)):
        means = draws[..., i].mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(CHAINS)
        assert abs(means.mean() - expected) < 4 * error + 1e-3
        assert error < 0.1 * expected
    # Flat in the logarithm, the noise would be less.
    logs = logs - np.log(scales)[:, None] - np.log(noises)
    flat = np.exp(logs - logs.max()).sum(0) @ noises / np.exp(logs - logs.max()).sum()
    error = draws[..., 2].mean(axis=1).std(ddof=1) / np.sqrt(CHAINS)
    assert draws[..., 2].mean() > flat + 4 * error


X = jnp.asarray(np.random.default_rng(0).random((10, 2)), float)
Y = jnp.asarray(np.where(np.arange(10) == 4, np.nan, np.sin(5 * np.asarray(X)[:, 0])), float)
POINT = jnp.asarray([0.4, 0.6])


@pytest.fixture(scope="module")
def told():
    """A model, its features, and a belief of 9 values and one that failed, before and after a refit."""
    model = Marginal(
        Fitted(12, size=20, refit_every=1, warp=True, inference=Exact()), samples=6, warmup=20
    )

    @jax.jit
    def all_of_them(key):
        shared = model.setup(key, 2)
        belief, _ = jax.lax.scan(
            lambda b, xy: (model.condition(shared, b, *xy), None), model.start(shared), (X, Y)
        )
        return shared, belief

    shared, belief = all_of_them(jr.key(2))
    return model, shared, belief, refit(model, shared, belief)


@eqx.filter_jit
def refit(model, shared, belief):
    return model.refit(shared, belief)


@pytest.mark.slow
def test_experts_are_of_the_same_data_and_differ_in_their_hyperparameters(told):
    model, shared, belief, refitted = told
    assert model.count(refitted) == model.count(belief) == 9
    np.testing.assert_array_equal(refitted.y, belief.y)
    assert len(np.unique(refitted.noise)) > 1
    limits = model.expert.limits
    scales = refitted.kernel.length_scale
    assert bool(jnp.all((scales >= limits.length_scale[0]) & (scales <= limits.length_scale[1])))
    np.testing.assert_allclose(model.log_weights(shared, refitted), np.log(1 / 6), rtol=1e-6)


def test_what_is_believed_is_the_mean_over_the_samples(told):
    model, shared, _, refitted = told

    @jax.jit
    def found(shared, refitted):
        def of_one(i):
            expert, phi, belief = shared.pick(i, refitted)
            return expert.predict(phi, belief, POINT)

        return model.predict(shared, refitted, POINT), jax.vmap(of_one)(jnp.arange(model.size))

    (mean, variance), (means, variances) = found(shared, refitted)
    np.testing.assert_allclose(mean, np.mean(means), rtol=1e-4)
    np.testing.assert_allclose(variance, np.mean(variances) + np.var(means), rtol=1e-3)


def test_every_sample_is_drawn_alike(told, key):
    model, shared, _, refitted = told
    draw = jax.jit(jax.vmap(lambda k: model.draw(k, shared, refitted)))
    drawn = np.asarray(draw(jr.split(key, 6000)))
    counts = np.bincount(drawn, minlength=model.size)
    assert counts.sum() == 6000
    assert np.abs(counts - 1000).max() < 150  # five standard deviations


def test_nothing_is_drawn_but_by_the_key_of_the_setup(told):
    model, shared, belief, _ = told
    once, again = refit(model, shared, belief), refit(model, shared, belief)
    np.testing.assert_array_equal(once.noise, again.noise)
    other = refit(model, eqx.tree_at(lambda s: s.draws, shared, held(jr.key(5))), belief)
    assert bool(jnp.any(other.noise != once.noise))


@pytest.mark.slow
def test_a_whole_run(key):
    surrogate = Marginal(Fitted(8, size=20, refit_every=3), samples=3, warmup=20)
    algorithm = EGP(Finite(np.asarray(X)), surrogate)
    _, trace = run(algorithm, Same(branin_rescaled()), 4, key, initial=4)
    assert np.isfinite(trace.values).all()


def test_policies_of_several_experts_take_it():
    surrogate = Marginal(Fitted(8))
    for policy in (Drawn(EI()), Largest(), EI()):
        policy.check(surrogate)


def test_what_it_needs_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"blackjax.*\[bayes\]"):
        Marginal(Fitted(5))


@pytest.mark.parametrize(
    ("options", "message"), [({"samples": 0}, "samples"), ({"warmup": 5}, "warmup")]
)
def test_sizes_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Marginal(Fitted(5), **options)
