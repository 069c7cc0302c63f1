"""Products, triangular solves and the factorization against SciPy."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg

from jaxbo.kernels import linalg
from jaxbo.kernels.processes.covariance import SquaredExponential, gram

pytestmark = [pytest.mark.users, pytest.mark.float64]

SOLVES = [(linalg.solve_lower, 0), (linalg.solve_upper, "T")]


@pytest.fixture
def tolerance(x64):
    return 1e-10 if x64 else 1e-4


def triangle(key, size):
    return jnp.tril(jr.normal(key, (size, size)) / size) + jnp.eye(size)


def covariance(key, size, noise):
    X = jr.uniform(key, (size, 2))
    return gram(SquaredExponential(0.5), X, X) + noise * jnp.eye(size)


def test_inner_is_the_product_of_two_vectors_in_full_precision(key, x64):
    a, b = jr.normal(key, (2, 5, 1000))
    found = jax.vmap(linalg.inner)(a, b)
    expected = np.sum(np.asarray(a, np.float64) * np.asarray(b, np.float64), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-12 if x64 else 1e-4)


@pytest.mark.parametrize(("solve", "trans"), SOLVES)
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 30)])
def test_solves_are_those_of_scipy(solve, trans, shape, key, tolerance):
    matrix_key, side_key = jr.split(key)
    L, B = triangle(matrix_key, 9), jr.normal(side_key, shape)
    expected = scipy.linalg.solve_triangular(np.asarray(L), np.asarray(B), lower=True, trans=trans)
    np.testing.assert_allclose(solve(L, B), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("solve", [linalg.solve_lower, linalg.solve_upper])
def test_solves_read_the_lower_triangle_only(solve, key):
    L, b = triangle(key, 6), jnp.arange(6.0)
    above = jnp.triu(jnp.full((6, 6), 7.0), 1)
    np.testing.assert_array_equal(solve(L + above, b), solve(L, b))


@pytest.mark.parametrize(("solve", "trans"), SOLVES)
def test_solves_batch_over_agents_and_right_hand_sides(solve, trans, key, tolerance):
    matrix_key, side_key = jr.split(key)
    L = jax.vmap(lambda key: triangle(key, 8))(jr.split(matrix_key, 5))
    B = jr.normal(side_key, (5, 8, 3))
    X = jax.jit(jax.vmap(solve))(L, B)
    for i in range(5):
        expected = scipy.linalg.solve_triangular(
            np.asarray(L[i]), np.asarray(B[i]), lower=True, trans=trans
        )
        np.testing.assert_allclose(X[i], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("solve", "trans"), SOLVES)
def test_derivatives_are_those_of_the_library(solve, trans, key, tolerance):
    matrix_key, side_key = jr.split(key)
    L, b = triangle(matrix_key, 5), jr.normal(side_key, (5,))

    def own(L, b):
        return jnp.sum(jnp.sin(solve(L, b)))

    def library(L, b):
        L = jnp.tril(L)
        return jnp.sum(jnp.sin(jax.scipy.linalg.solve_triangular(L, b, lower=True, trans=trans)))

    for derivative in (jax.grad, jax.hessian):
        for argument in (0, 1):
            np.testing.assert_allclose(
                jax.jit(derivative(own, argument))(L, b),
                jax.jit(derivative(library, argument))(L, b),
                rtol=10 * tolerance,
                atol=10 * tolerance,
            )


@pytest.mark.parametrize("size", [1, 3, 4, 13])
def test_cholesky_is_that_of_numpy(size, key, tolerance):
    K = covariance(key, size, 0.1)
    L = jax.jit(linalg.cholesky)(K, jnp.asarray(0.1))
    np.testing.assert_allclose(L, np.linalg.cholesky(np.asarray(K)), atol=tolerance)


@pytest.mark.parametrize(
    "size", [1, 33, 110, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 31, 32, 65, 130))]
)
def test_the_inverse_is_that_of_substitution(size, key, tolerance):
    L = jnp.tril(jr.normal(key, (size, size))) / size + jnp.eye(size)
    untidy = L + jnp.triu(jnp.full((size, size), jnp.nan), 1)  # not read
    inverse = jax.jit(linalg.inverse_lower)(untidy)
    expected = scipy.linalg.solve_triangular(np.asarray(L), np.eye(size), lower=True)
    np.testing.assert_allclose(inverse, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(jnp.triu(inverse, 1), 0)


def test_the_inverse_of_a_factor_of_nearly_singular_matrices_is_as_good_as_substitution(key):
    x = jr.uniform(key, (110, 2))
    squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=2)
    K = jnp.exp(-squares / 0.18) + 1e-4 * jnp.eye(110)
    L = linalg.cholesky(K, jnp.asarray(1e-4))

    def error(inverse):
        product = np.asarray(inverse, np.float64) @ np.asarray(L, np.float64)
        return np.abs(product - np.eye(110)).max()

    assert error(linalg.inverse_lower(L)) < 3 * error(linalg.solve_lower(L, jnp.eye(110)))


def test_cholesky_bounds_what_rounding_can_do(key):
    """60 copies of a few points, almost no noise: LAPACK finds no float32 factor."""
    X = jnp.tile(jr.uniform(key, (4, 2)), (15, 1)).astype(jnp.float32)
    floor = jnp.asarray(1e-10, jnp.float32)
    K = gram(SquaredExponential(3.0), X, X) + floor * jnp.eye(60, dtype=jnp.float32)
    assert bool(jnp.any(jnp.isnan(jnp.linalg.cholesky(K))))
    L = linalg.cholesky(K, floor)
    assert bool(jnp.all(jnp.isfinite(L)))
    assert float(jnp.min(jnp.diagonal(L))) >= 0.99e-5
    np.testing.assert_allclose(jnp.sum(L**2, axis=1), jnp.diagonal(K), rtol=1e-5)


def test_whiten_is_the_next_row_of_the_factor(key, tolerance):
    K = covariance(key, 10, 0.1)
    L = linalg.cholesky(K, jnp.asarray(0.1))
    row = linalg.whiten(L[:9, :9], K[9, :9], jnp.asarray(1.0))
    np.testing.assert_allclose(row, L[9, :9], atol=tolerance)


def test_whiten_keeps_within_the_room_given(key):
    L = jnp.eye(5) * 1e-3
    row = linalg.whiten(L, jr.normal(key, (5,)), jnp.asarray(0.7))
    assert float(jnp.sum(row**2)) <= 0.7 * (1 + 1e-6)


def test_whiten_has_finite_gradients_where_the_bound_acts():
    def squared(k):
        return jnp.sum(linalg.whiten(jnp.eye(3), k, jnp.asarray(0.5)) ** 2)

    assert bool(jnp.all(jnp.isfinite(jax.grad(squared)(jnp.array([2.0, 1.0, 0.0])))))


def test_products_are_at_full_precision():
    text = str(jax.make_jaxpr(linalg.dot)(jnp.ones((2, 2)), jnp.ones((2, 2))))
    assert "HIGHEST" in text
