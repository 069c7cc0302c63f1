"""Additive kernels: sums by their definition, and fits against dense NumPy."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive import structure
from jaxbo.kernels.additive.kernel import AdditiveKernel
from jaxbo.kernels.models import fit
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential, gram

DIM, GRID = 4, 5
SCOPES = ((0, 1), (2,), (1, 2, 3))
FORMS = {"SE": SquaredExponential(0.3), "Matern 5/2": Matern52(0.4)}


def kernel_of(form, tied):
    scopes = structure.padded(SCOPES)
    if tied:
        return AdditiveKernel(scopes, form, jnp.array([0.3, 0.4, 0.2, 0.5]))
    scales = 0.3 + jnp.arange(9.0).reshape(3, 3) / 20
    return AdditiveKernel(scopes, form, scales, jnp.array([1.0, 0.5, 2.0]))


def part(kernel, number, x, z):
    """k_I by its definition, of plain kernels."""
    scope = jnp.array(SCOPES[number])
    scales = kernel.length_scale
    scales = scales[scope] if scales.ndim == 1 else scales[number, : len(scope)]
    one = kernel.form.with_hyperparameters(scales, kernel.variances[number])
    return one(x[scope], z[scope])


@pytest.mark.parametrize(
    ("form", "tied"),
    [
        ("SE", False),
        ("Matern 5/2", True),
        pytest.param("SE", True, marks=pytest.mark.full),
        pytest.param("Matern 5/2", False, marks=pytest.mark.full),
    ],
)
def test_a_kernel_is_the_sum_of_its_factors(form, tied, key):
    kernel = kernel_of(FORMS[form], tied)
    X = jr.uniform(key, (6, DIM))
    pairs = lambda f: jax.jit(jax.vmap(lambda x: jax.vmap(lambda z: f(x, z))(X)))(X)  # noqa: E731
    parts = pairs(kernel.parts)
    for number in range(len(SCOPES)):
        expected = pairs(functools.partial(part, kernel, number))
        np.testing.assert_allclose(parts[..., number], expected, rtol=1e-5)
    np.testing.assert_allclose(kernel(X[0], X[0]), jnp.sum(kernel.variances), rtol=1e-6)
    np.testing.assert_allclose(kernel.of_squares(kernel.squares(X)), gram(kernel, X, X), rtol=1e-5)


def test_variance_is_split_among_factors_that_have_variables():
    kernel = AdditiveKernel(np.array([[0, 1], [-1, -1], [2, -1]]), SquaredExponential(0.3, 3.0))
    np.testing.assert_allclose(kernel.variances, [1.5, 0, 1.5])


def test_factors_can_be_apart_from_the_first():
    scopes = np.array([[0, -1], [1, -1], [-1, -1], [0, 1]])
    form, variance = SquaredExponential(0.3), jnp.array([3.0, 5.0])
    kernel = AdditiveKernel(scopes, form, None, variance, alone=2)
    np.testing.assert_allclose(kernel.variances, [1.5, 1.5, 0, 2.5])
    with pytest.raises(ValueError, match="two if some factors are apart, got shape \\(3,\\)"):
        AdditiveKernel(scopes, form, None, jnp.ones(3), alone=2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("many", [False, True], ids=["few variables", "many"])
def test_the_evidence_has_the_gradient_that_differences_say(form, many, key, x64, monkeypatch):
    if not x64:
        pytest.skip("differences need float64")
    if many:
        monkeypatch.setattr(additive, "DENSE", 1)
    kernel = kernel_of(FORMS[form], False)
    X = jr.uniform(key, (8, DIM))
    problem = fit.of_data(kernel, 1e-2, X, jnp.sin(5 * jnp.sum(X, axis=1)))
    gradient = jax.grad(problem.log_evidence)(problem.theta)
    step = 1e-6
    for i in range(problem.theta.size):
        move = jnp.zeros_like(problem.theta).at[i].set(step)
        up, down = (problem.log_evidence(problem.theta + s * move) for s in (1, -1))
        np.testing.assert_allclose(gradient[i], (up - down) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_fit_has_a_variance_and_length_scales_for_every_factor(key):
    kernel = kernel_of(FORMS["SE"], False)
    X = jr.uniform(key, (40, DIM))
    y = jnp.sin(6 * X[:, 2])  # of the second factor alone
    bounds = fit.Bounds(noise=(1e-2, 1.0))  # above what float32 rounds
    found = jax.jit(lambda y: fit.fit(kernel, 1e-2, X, y, bounds=bounds))(y)
    dense = gram(found.kernel, X, X) + found.noise * jnp.eye(40)
    sign, log_det = np.linalg.slogdet(np.asarray(dense, np.float64))
    assert sign == 1
    quadratic = np.asarray(y) @ np.linalg.solve(np.asarray(dense, np.float64), np.asarray(y))
    expected = -0.5 * (quadratic + log_det + 40 * np.log(2 * np.pi))
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-3)
    assert found.kernel.variances[1] > 10 * found.kernel.variances[0]


@pytest.mark.slow
def test_a_sample_passes_through_the_values_as_near_as_the_noise_allows(key):
    kernel, noise = kernel_of(FORMS["SE"], False), 1e-4
    X = jr.uniform(key, (6, DIM))
    y = jr.normal(jr.fold_in(key, 1), (6,)).at[2].set(jnp.nan)
    used = jnp.isfinite(y)
    K = jnp.where(used[:, None] & used[None, :], gram(kernel, X, X), 0)
    K = K + jnp.diag(jnp.where(used, noise, 1.0))
    inverse = jnp.asarray(np.linalg.inv(np.linalg.cholesky(np.asarray(K, np.float64))), K.dtype)

    @jax.jit
    @jax.vmap
    def drawn(key):
        return jax.vmap(additive.draw(key, kernel, jnp.asarray(noise), X, y, inverse, 50))(X)

    values = np.asarray(drawn(jr.split(key, 100)))
    error = (values - np.asarray(y)[None])[:, np.asarray(used)]
    assert np.abs(error).max() < 6 * noise**0.5
    assert values[:, 2].std() > 0.1


@pytest.mark.slow
def test_what_cannot_be_meant_is_refused(as_users_have_it):
    form = SquaredExponential(np.array([0.1, 0.5]))
    for groups in ((1, 1), (1, 3)), ((2, 1), (0, 2)), ():
        with pytest.raises(ValueError, match=r"groups \(.*\) are none of 2 factors in 2 places"):
            AdditiveKernel(np.array([[0, -1], [0, 1]]), form, groups=groups)
    with pytest.raises(
        ValueError, match=r"a factor in a group of 1 variables has more: \[\[0 1\]\]"
    ):
        AdditiveKernel(np.array([[0, 1], [0, -1]]), form, groups=((1, 1), (1, 2)))
