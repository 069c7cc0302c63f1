"""Tables of factors: the posterior of each against dense NumPy, made anew or brought up to date."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive import structure
from jaxbo.kernels.additive import tables as factor_tables
from jaxbo.kernels.additive.kernel import AdditiveKernel
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential, gram

DIM, CAPACITY, GRID = 4, 12, 5
SCOPES = ((2,), (3, 1), (0, 2), (1, 2, 3))
FORMS = {"SE": SquaredExponential(0.3), "Matern 5/2": Matern52(0.4)}
#: What is known of their sizes: nothing, or all.
GROUPS = {"padded": None, "by size": ((1, 1), (2, 2), (1, 3))}
EITHER = pytest.mark.parametrize("groups", GROUPS)
FULL = {"marks": pytest.mark.full}
CASES = pytest.mark.parametrize(
    ("form", "groups"),
    [
        ("SE", "by size"),
        ("Matern 5/2", "padded"),
        pytest.param("SE", "padded", **FULL),
        pytest.param("Matern 5/2", "by size", **FULL),
    ],
)


def kernel_of(form, groups):
    scales = 0.3 + jnp.arange(12.0).reshape(4, 3) / 20
    variances = jnp.array([1.0, 0.5, 1.5, 2.0])
    scopes = structure.padded(SCOPES)
    return AdditiveKernel(scopes, FORMS[form], scales, variances, groups=GROUPS[groups])


@jax.jit
def inverse_of(kernel, X, used):
    """L⁻¹ of the observations, of which those not used are as if without any covariance."""
    K = gram(kernel, X, X) + 1e-2 * jnp.eye(CAPACITY)
    K = jnp.where(used[:, None] & used[None, :], K, jnp.eye(CAPACITY))
    return jnp.linalg.inv(jnp.linalg.cholesky(K))


@functools.cache
def observed(form, groups, count):
    """A kernel, the grid, and `count` observations of `CAPACITY`, one of which is 0, with their L⁻¹."""
    kernel = kernel_of(form, groups)
    X = jr.uniform(jr.key(1), (CAPACITY, DIM))
    used = jnp.arange(CAPACITY) < count
    inverse = inverse_of(kernel, X, used)
    y = jr.normal(jr.key(2), (CAPACITY,)).at[1].set(0)
    outputs = jnp.where(used[None, :], jnp.stack([y, jnp.ones_like(y)]), 0)
    points = jnp.stack([jnp.linspace(0, 1, GRID)] * DIM)
    return kernel, points, X, used, inverse, outputs


def of_factor(kernel, stacked, number):
    """The table of one factor: its axes come last."""
    (table,) = (
        table[number - rows.start]
        for table, (rows, _) in zip(stacked, kernel.members, strict=True)
        if rows.start <= number < rows.stop
    )
    (places,) = (places for rows, places in kernel.members if rows.start <= number < rows.stop)
    return table[(..., *(0,) * (places.stop - len(SCOPES[number])))]


@pytest.mark.slow
@CASES
def test_tables_are_the_posterior_of_every_factor(form, groups):
    count = 9
    kernel, points, X, used, inverse, outputs = observed(form, groups, count)
    told = jax.jit(factor_tables.tables)(kernel, points, X, used, inverse, outputs)
    told, points, X, outputs = jax.tree.map(np.asarray, (told, points, X[:count], outputs))
    covariance = jax.jit(gram)
    K = np.asarray(covariance(kernel, X, X), np.float64) + 1e-2 * np.eye(count)
    y = outputs[:, :count].astype(np.float64)
    for number, scope in enumerate(SCOPES):
        cells = np.indices((GRID,) * len(scope))
        x = np.stack([points[v][i] for v, i in zip(scope, cells, strict=True)], axis=-1)
        # k_I by its definition, of a plain kernel.
        one = kernel.form.with_hyperparameters(
            kernel.length_scales[number, : len(scope)], kernel.variances[number]
        )
        k = np.asarray(covariance(one, x.reshape(-1, len(scope)), X[:, scope]), np.float64)
        weights = np.linalg.solve(K, k.T)
        mean, variance = (of_factor(kernel, stacked, number) for stacked in told)
        assert mean.shape == (2, *(GRID,) * len(scope))
        np.testing.assert_allclose(mean, (y @ weights).reshape(mean.shape), atol=5e-4)
        expected = float(kernel.variances[number]) - np.sum(k.T * weights, axis=0)
        np.testing.assert_allclose(variance, expected.reshape(variance.shape), atol=5e-4)


@pytest.mark.slow
@CASES
def test_tables_brought_up_to_an_observation_are_those_made_anew(form, groups):
    made, extend = jax.jit(factor_tables.tables), jax.jit(factor_tables.extend)
    kernel, points, X, used, inverse, outputs = observed(form, groups, 8)
    told = made(kernel, points, X, used, inverse, outputs)
    for count in (9, 10, 11):
        kernel, points, X, used, inverse, outputs = observed(form, groups, count)
        told = extend(told, kernel, points, X, inverse[count - 1], outputs)
    anew = made(kernel, points, X, used, inverse, outputs)
    for mean, variance, *expected in zip(*told, *anew, strict=True):
        np.testing.assert_allclose(mean, expected[0], atol=1e-3)
        np.testing.assert_allclose(variance, expected[1], atol=1e-4)


@pytest.mark.slow
@EITHER
def test_tables_of_a_function_add_up_to_its_values(groups, key):
    kernel, points, X, used, inverse, _ = observed("SE", groups, 9)
    y = jnp.where(used, jnp.sin(5 * X[:, 0]), jnp.nan)
    at = np.array([3, 0, 4, 1])

    @jax.jit
    def both(key):
        drawn = additive.draw(key, kernel, jnp.asarray(1e-2), X, y, inverse, 50)
        return factor_tables.of_sample(drawn, points), drawn(points[np.arange(DIM), at])

    tables, value = both(key)
    total = sum(of_factor(kernel, tables, i)[tuple(at[list(s)])] for i, s in enumerate(SCOPES))
    np.testing.assert_allclose(total, value, atol=2e-4)
