"""Kernels against tinygp, their derivatives and their spectra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import tinygp

from jaxbo.kernels import covariance
from jaxbo.kernels.covariance import Matern12, Matern32, Matern52, SquaredExponential

KERNELS = [SquaredExponential, Matern12, Matern32, Matern52]
ORACLES = {
    SquaredExponential: tinygp.kernels.ExpSquared,
    Matern12: tinygp.kernels.Exp,
    Matern32: tinygp.kernels.Matern32,
    Matern52: tinygp.kernels.Matern52,
}
SCALES = (0.3, 0.7, 1.9)


@pytest.fixture
def points(key):
    return jr.uniform(key, (7, 3))


def oracle(form, scales, variance, X, Z):
    """tinygp on points divided by the length scales, its Materns in Euclidean distance."""
    distance = {} if form is SquaredExponential else {"distance": tinygp.kernels.L2Distance()}
    return variance * ORACLES[form](**distance)(
        X / jnp.asarray(scales)[None], Z / jnp.asarray(scales)[None]
    )


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize("scales", [SCALES, (0.4, 0.4, 0.4)])
def test_gram_is_that_of_tinygp(form, scales, points):
    kernel = form(jnp.array(scales), 2.5)
    expected = oracle(form, scales, 2.5, points, points[:4])
    np.testing.assert_allclose(covariance.gram(kernel, points, points[:4]), expected, rtol=2e-5)


@pytest.mark.parametrize("form", KERNELS)
def test_isotropic_is_ard_with_equal_scales(form, points):
    one, each = form(0.4), form(jnp.full(3, 0.4))
    np.testing.assert_allclose(
        covariance.gram(one, points, points), covariance.gram(each, points, points), rtol=1e-6
    )


@pytest.mark.parametrize("form", KERNELS)
def test_gradients_are_finite_at_zero_distance(form):
    x = jnp.array([0.2, 0.9])
    kernel = form(jnp.array([0.3, 0.6]), 2.0)
    gradients = jax.grad(lambda kernel, x: kernel(x, x), argnums=(0, 1))(kernel, x)
    np.testing.assert_array_equal(gradients[0].length_scale, 0)
    assert gradients[0].variance == 1
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(jax.grad(kernel)(x, x), 0)


@pytest.mark.parametrize(
    ("form", "curvature"), [(SquaredExponential, 1.0), (Matern32, 3.0), (Matern52, 5 / 3)]
)
def test_hessian_at_zero_distance_is_the_true_one(form, curvature):
    x = jnp.array([0.2, 0.9])
    hessian = jax.hessian(form(0.5, 2.0))(x, x)
    np.testing.assert_allclose(hessian, -2 * curvature / 0.25 * np.eye(2), rtol=1e-6)


@pytest.mark.parametrize("form", KERNELS)
def test_gradient_is_that_of_tinygp_away_from_zero(form, points):
    x, z = points[0], points[1]
    expected = jax.grad(lambda x: oracle(form, SCALES, 1.0, x[None], z[None])[0, 0])(x)
    np.testing.assert_allclose(jax.grad(form(jnp.array(SCALES)))(x, z), expected, rtol=1e-4)


@pytest.mark.parametrize("form", KERNELS)
def test_spectrum_reproduces_the_kernel(form, key):
    """The mean of cos(frequency'(x - z)) over the spectral density is k(x, z) / variance."""
    scale_key, normal_key = jr.split(key)
    count = 200_000
    kernel = form(jnp.array([0.3, 0.8]), 4.0)
    normals = jr.normal(normal_key, (count, 2))
    frequencies = kernel.mixing(scale_key, count)[:, None] * normals / kernel.length_scale[None]
    x = jnp.array([0.1, 0.1])
    for z in jnp.array([[0.15, 0.1], [0.3, 0.4], [0.1, 0.9], [0.9, 0.8]]):
        cosines = jnp.cos(jnp.sum(frequencies * (x - z)[None], axis=1))
        deviation = float(jnp.mean(cosines)) - float(kernel(x, z)) / 4
        assert abs(deviation) < 5 * float(jnp.std(cosines)) / count**0.5


@pytest.mark.parametrize("form", KERNELS)
def test_mixing_is_positive_and_finite(form, key):
    scales = form(1.0).mixing(key, 100_000)
    assert bool(jnp.all((scales > 0) & jnp.isfinite(scales)))


@pytest.mark.parametrize("form", KERNELS)
def test_gram_is_positive_semidefinite(form, points):
    eigenvalues = np.linalg.eigvalsh(np.asarray(covariance.gram(form(0.5), points, points)))
    assert eigenvalues.min() > -1e-6


@pytest.mark.parametrize("form", KERNELS)
def test_nearby_points_far_from_the_origin_keep_their_precision(form):
    """|x|^2 - 2 x'z + |z|^2 would lose all digits here."""
    x, z = jnp.array([1000.0]), jnp.array([1000.25])
    near = form(0.5)(jnp.array([0.0]), jnp.array([0.25]))
    np.testing.assert_allclose(form(0.5)(x, z), near, rtol=1e-6)


def test_precision_is_that_of_the_points():
    x = jnp.zeros(2, jnp.float32)
    assert Matern52(1.0, 2.0)(x, x).dtype == jnp.float32


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_hyperparameters_must_be_positive(bad):
    with pytest.raises(ValueError, match="length_scale must be positive"):
        Matern52(bad)
    with pytest.raises(ValueError, match="variance must be positive"):
        Matern52(1.0, bad)


def test_length_scales_must_fit_the_points():
    kernel = SquaredExponential(jnp.ones(3))
    with pytest.raises(ValueError, match="one for each coordinate"):
        kernel(jnp.zeros(2), jnp.zeros(2))


def test_kernels_of_many_agents_are_one_batched_kernel(points):
    kernels = eqx.filter_vmap(Matern32)(jnp.array([0.2, 0.5]))
    values = jax.vmap(lambda kernel: kernel(points[0], points[1]))(kernels)
    np.testing.assert_allclose(values[1], Matern32(0.5)(points[0], points[1]), rtol=1e-6)
