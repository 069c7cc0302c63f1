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


@pytest.fixture
def rng(key):
    return np.random.default_rng(np.asarray(jr.key_data(key)))


def array(values):
    return jnp.asarray(values, float)


def triangle(rng, size):
    return array(np.tril(rng.standard_normal((size, size)) / size) + np.eye(size))


def covariance(rng, size, noise):
    X = rng.random((size, 2))
    squares = np.sum((X[:, None] - X[None]) ** 2, axis=2)
    return array(np.exp(-squares / 2 / 0.5**2) + noise * np.eye(size))


def test_inner_is_the_product_of_two_vectors_in_full_precision(rng, x64):
    a, b = map(array, rng.standard_normal((2, 5, 1000)))
    found = jax.jit(jax.vmap(linalg.inner))(a, b)
    expected = np.sum(np.asarray(a, np.float64) * np.asarray(b, np.float64), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-12 if x64 else 1e-4)


@pytest.mark.parametrize(("solve", "trans"), SOLVES)
def test_solves_are_those_of_scipy(solve, trans, rng, tolerance):
    L = triangle(rng, 9)
    sides = [array(rng.standard_normal(shape)) for shape in [(9,), (9, 1), (9, 30)]]
    found = jax.jit(lambda L, sides: [solve(L, B) for B in sides])(L, sides)
    for X, B in zip(found, sides, strict=True):
        expected = scipy.linalg.solve_triangular(
            np.asarray(L), np.asarray(B), lower=True, trans=trans
        )
        np.testing.assert_allclose(X, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("solve", [linalg.solve_lower, linalg.solve_upper])
def test_solves_read_the_lower_triangle_only(solve, rng):
    L, b, solve = triangle(rng, 6), array(np.arange(6.0)), jax.jit(solve)
    untidy = array(np.asarray(L) + np.triu(np.full((6, 6), 7.0), 1))
    np.testing.assert_array_equal(solve(untidy, b), solve(L, b))


@pytest.mark.parametrize(("solve", "trans"), SOLVES)
def test_solves_batch_over_agents_and_right_hand_sides(solve, trans, rng, tolerance):
    L = array(np.stack([triangle(rng, 8) for _ in range(5)]))
    B = array(rng.standard_normal((5, 8, 3)))
    X = np.asarray(jax.jit(jax.vmap(solve))(L, B))
    for found, own, side in zip(X, np.asarray(L), np.asarray(B), strict=True):
        expected = scipy.linalg.solve_triangular(own, side, lower=True, trans=trans)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("solve", "trans"), SOLVES)
def test_derivatives_are_those_of_the_library(solve, trans, rng, tolerance):
    L, b = triangle(rng, 5), array(rng.standard_normal(5))

    def own(L, b):
        return jnp.sum(jnp.sin(solve(L, b)))

    def library(L, b):
        L = jnp.tril(L)
        return jnp.sum(jnp.sin(jax.scipy.linalg.solve_triangular(L, b, lower=True, trans=trans)))

    @jax.jit
    def derivatives(L, b):
        return [
            [derivative(f, argument)(L, b) for f in (own, library)]
            for derivative in (jax.grad, jax.hessian)
            for argument in (0, 1)
        ]

    for found, expected in derivatives(L, b):
        np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("size", [1, 3, 4, 13])
def test_cholesky_is_that_of_numpy(size, rng, tolerance):
    K = covariance(rng, size, 0.1)
    L = jax.jit(linalg.cholesky)(K, jnp.asarray(0.1))
    np.testing.assert_allclose(L, np.linalg.cholesky(np.asarray(K)), atol=tolerance)


@pytest.mark.parametrize(
    "size", [1, 33, 110, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 31, 32, 65, 130))]
)
def test_the_inverse_is_that_of_substitution(size, rng, tolerance):
    L = triangle(rng, size)
    untidy = array(np.where(np.triu(np.ones((size, size), bool), 1), np.nan, L))  # not read
    inverse = jax.jit(linalg.inverse_lower)(untidy)
    expected = scipy.linalg.solve_triangular(np.asarray(L), np.eye(size), lower=True)
    np.testing.assert_allclose(inverse, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0)


@pytest.mark.slow
def test_the_inverse_of_a_factor_of_nearly_singular_matrices_is_as_good_as_substitution(rng):
    x = rng.random((110, 2))
    squares = np.sum((x[:, None] - x[None]) ** 2, axis=2)
    K = array(np.exp(-squares / 0.18) + 1e-4 * np.eye(110))

    @jax.jit
    def inverses(K):
        L = linalg.cholesky(K, array(1e-4))
        return L, linalg.inverse_lower(L), linalg.solve_lower(L, jnp.eye(110))

    L, inverse, substituted = inverses(K)

    def error(inverse):
        product = np.asarray(inverse, np.float64) @ np.asarray(L, np.float64)
        return np.abs(product - np.eye(110)).max()

    assert error(inverse) < 3 * error(substituted)


@pytest.mark.slow
def test_cholesky_bounds_what_rounding_can_do(key):
    """60 copies of a few points, almost no noise: LAPACK finds no float32 factor."""

    @jax.jit
    def factors(key):
        X = jnp.tile(jr.uniform(key, (4, 2)), (15, 1)).astype(jnp.float32)
        floor = jnp.asarray(1e-10, jnp.float32)
        K = gram(SquaredExponential(3.0), X, X) + floor * jnp.eye(60, dtype=jnp.float32)
        return K, jnp.linalg.cholesky(K), linalg.cholesky(K, floor)

    K, none, L = map(np.asarray, factors(key))
    assert np.isnan(none).any()
    assert np.isfinite(L).all()
    assert L.diagonal().min() >= 0.99e-5
    np.testing.assert_allclose((L**2).sum(axis=1), K.diagonal(), rtol=1e-5)


def test_whiten_is_the_next_row_of_the_factor(rng, tolerance):
    @jax.jit
    def both(K):
        L = linalg.cholesky(K, array(0.1))
        return L, linalg.whiten(L[:9, :9], K[9, :9], array(1.0))

    L, row = both(covariance(rng, 10, 0.1))
    np.testing.assert_allclose(row, np.asarray(L)[9, :9], atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_triangle_has_each_number_of_a_symmetric_matrix_once(rng, n):
    half = rng.standard_normal((n, n))
    A = jnp.asarray(half + half.T)
    rows = [A[i, j] for i in range(n) for j in range(i + 1)]
    triangle = jax.jit(linalg.triangle)(A)
    np.testing.assert_array_equal(triangle, np.stack(rows))
    np.testing.assert_array_equal(jax.jit(linalg.symmetric)(triangle), A)


def test_whiten_keeps_within_what_is_left(rng):
    L, k = array(np.eye(5) * 1e-3), array(rng.standard_normal(5))
    row = np.asarray(jax.jit(linalg.whiten)(L, k, array(0.7)))
    assert (row**2).sum() <= 0.7 * (1 + 1e-6)


def test_whiten_has_finite_gradients_where_the_bound_acts():
    def squared(k):
        return jnp.sum(linalg.whiten(jnp.eye(3), k, jnp.asarray(0.5)) ** 2)

    assert bool(jnp.all(jnp.isfinite(jax.jit(jax.grad(squared))(array([2.0, 1.0, 0.0])))))


def test_products_are_at_full_precision():
    text = str(jax.make_jaxpr(linalg.dot)(jnp.ones((2, 2)), jnp.ones((2, 2))))
    assert "HIGHEST" in text
