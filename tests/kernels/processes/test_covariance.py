"""Kernels against tinygp, their derivatives and their spectra."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import tinygp

from jaxbo.kernels.processes import covariance, features
from jaxbo.kernels.processes.covariance import (
    KernelFunction,
    Matern12,
    Matern32,
    Matern52,
    OneOf,
    SquaredExponential,
)

pytestmark = [pytest.mark.users, pytest.mark.float64]

KERNELS = [SquaredExponential, Matern12, Matern32, Matern52]
ORACLES = {
    SquaredExponential: tinygp.kernels.ExpSquared,
    Matern12: tinygp.kernels.Exp,
    Matern32: tinygp.kernels.Matern32,
    Matern52: tinygp.kernels.Matern52,
}
SCALES = (0.3, 0.7, 1.9)


@pytest.fixture
def points():
    return jnp.asarray(np.random.default_rng(0).random((7, 3)), float)


gram = jax.jit(covariance.gram)
at = jax.jit(lambda kernel, x, z: kernel(x, z))
slope = jax.jit(lambda kernel, x, z: jax.grad(kernel)(x, z))


@functools.partial(jax.jit, static_argnums=0)
def oracle(form, scales, X, Z):
    """tinygp on points divided by the length scales, its Materns in Euclidean distance.

    And its gradient in the first point.
    """
    distance = {} if form is SquaredExponential else {"distance": tinygp.kernels.L2Distance()}
    kernel = ORACLES[form](**distance)
    one = lambda x: kernel((x / scales)[None], (Z[1] / scales)[None])[0, 0]  # noqa: E731
    return kernel(X / scales[None], Z / scales[None]), jax.grad(one)(X[0])


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize("scales", [SCALES, (0.4, 0.4, 0.4)])
def test_gram_and_gradient_are_those_of_tinygp(form, scales, points):
    scales = jnp.array(scales)
    expected, expected_slope = oracle(form, scales, points, points)
    np.testing.assert_allclose(gram(form(scales, 2.5), points, points), 2.5 * expected, rtol=2e-5)
    found = slope(form(scales), points[0], points[1])
    np.testing.assert_allclose(found, expected_slope, rtol=1e-4)


@pytest.mark.parametrize("form", KERNELS)
def test_isotropic_is_ard_with_equal_scales_and_positive_semidefinite(form, points):
    one, each = (gram(form(scale), points, points) for scale in (0.4, jnp.full(3, 0.4)))
    np.testing.assert_allclose(one, each, rtol=1e-6)
    assert np.linalg.eigvalsh(np.asarray(one)).min() > -1e-6


@jax.jit
def slopes_at_zero(kernel, x):
    both = jax.grad(lambda kernel, x: kernel(x, x), argnums=(0, 1))(kernel, x)
    return both, jax.grad(kernel)(x, x)


@pytest.mark.parametrize("form", KERNELS)
def test_gradients_are_finite_at_zero_distance(form):
    x = jnp.array([0.2, 0.9])
    gradients, first = slopes_at_zero(form(jnp.array([0.3, 0.6]), 2.0), x)
    np.testing.assert_array_equal(gradients[0].length_scale, 0)
    assert gradients[0].variance == 1
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(first, 0)


@pytest.mark.parametrize(
    ("form", "curvature"), [(SquaredExponential, 1.0), (Matern32, 3.0), (Matern52, 5 / 3)]
)
def test_hessian_at_zero_distance_is_the_true_one(form, curvature):
    x = jnp.array([0.2, 0.9])
    hessian = jax.jit(lambda kernel, x: jax.hessian(kernel)(x, x))(form(0.5, 2.0), x)
    np.testing.assert_allclose(hessian, -2 * curvature / 0.25 * np.eye(2), rtol=1e-6)


def reproduces(kernel, mixing, normals, shifts):
    """The mean of cos(frequency'(x - z)) over the spectral density is k(x, z) / variance."""
    mixing, normals = np.asarray(mixing, np.float64), np.asarray(normals, np.float64)
    assert ((mixing > 0) & np.isfinite(mixing)).all()
    frequencies = mixing[:, None] * normals / np.asarray(kernel.length_scale, np.float64)
    for shift in np.asarray(shifts):
        cosines = np.cos(frequencies @ shift)
        found = at(kernel, jnp.zeros(shift.size), jnp.asarray(shift, float))
        deviation = cosines.mean() - float(found) / float(kernel.variance)
        assert abs(deviation) < 5 * cosines.std() / len(cosines) ** 0.5


mixed = jax.jit(lambda kernel, key: kernel.mixing(key, 200_000))


@pytest.mark.parametrize("form", KERNELS)
def test_spectrum_reproduces_the_kernel(form, key):
    kernel = form(jnp.array([0.3, 0.8]), 4.0)
    normals = np.random.default_rng(0).standard_normal((200_000, 2))
    shifts = [[0.05, 0.0], [0.2, 0.3], [0.0, 0.8], [0.8, 0.7]]
    reproduces(kernel, mixed(kernel, key), normals, shifts)


@pytest.mark.parametrize("form", KERNELS)
def test_nearby_points_far_from_the_origin_keep_their_precision(form):
    """|x|^2 - 2 x'z + |z|^2 would lose all digits here."""
    far = at(form(0.5), jnp.array([1000.0]), jnp.array([1000.25]))
    near = at(form(0.5), jnp.array([0.0]), jnp.array([0.25]))
    np.testing.assert_allclose(far, near, rtol=1e-6)


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
    each = jax.jit(jax.vmap(lambda kernel, x, z: kernel(x, z), (0, None, None)))
    values = each(kernels, points[0], points[1])
    np.testing.assert_allclose(values[1], at(Matern32(0.5), points[0], points[1]), rtol=1e-6)


# ---------------------------------------------------------------- several kernels as one

ONE_SCALE = (SquaredExponential(0.3, 2.0), Matern12(0.5), Matern52(0.7, 0.5))
VECTORS = tuple(
    kernel.with_hyperparameters(jnp.array(SCALES), kernel.variance) for kernel in ONE_SCALE
)
MIXED = (ONE_SCALE[0], VECTORS[1], ONE_SCALE[2], VECTORS[0])


def member(stacked, number):
    return jax.tree.map(lambda leaf: leaf[number], stacked)


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize("scale", [0.4, jnp.array(SCALES)], ids=["one", "vector"])
def test_a_stack_of_one_form_keeps_it(form, scale):
    stacked = covariance.stack([form(scale, 2.0), form(2 * jnp.asarray(scale), 3.0)], 3)
    assert type(stacked) is form
    np.testing.assert_array_equal(stacked.length_scale, jnp.stack([1 * scale, 2 * scale]))
    np.testing.assert_array_equal(stacked.variance, [2.0, 3.0])


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def of_each(kernel, points):
    return covariance.gram(kernel, points, points), jax.grad(kernel)(points[0], points[1])


@pytest.mark.parametrize("kernels", [ONE_SCALE, VECTORS, MIXED, MIXED[:1] + MIXED[-1:]])
def test_a_stack_of_several_forms_is_each_of_them_at_any_points(kernels, points):
    stacked = covariance.stack(kernels, 3)
    assert type(stacked) is OneOf
    each, slopes = of_each(stacked, points)
    for m, kernel in enumerate(kernels):
        np.testing.assert_allclose(each[m], gram(kernel, points, points), rtol=1e-5)
        expected = slope(kernel, points[0], points[1])
        np.testing.assert_allclose(slopes[m], expected, rtol=1e-5)


def test_length_scales_of_a_stack_are_single_numbers_only_if_all_are():
    shapes = [covariance.stack(k, 3).length_scale.shape for k in (ONE_SCALE, VECTORS, MIXED)]
    assert shapes == [(3,), (3, 3), (4, 3)]


def test_in_a_stack_with_vectors_a_single_length_scale_stays_single():
    stacked = covariance.stack(MIXED, 3)
    scales = jnp.asarray(np.tile([0.1, 0.2, 0.4], (4, 1)), float)
    change = jax.jit(jax.vmap(lambda k, s: k.with_hyperparameters(s, jnp.asarray(3.0))))
    changed = change(stacked, scales)
    geometric = np.full(3, 0.2)
    for m, expected in enumerate([geometric, scales[1], geometric, scales[3]]):
        np.testing.assert_allclose(changed.length_scale[m], expected, rtol=1e-6)
    assert len(set(np.asarray(changed.length_scale[0]).tolist())) == 1
    np.testing.assert_array_equal(changed.variance, 3.0)


@pytest.mark.slow
def test_the_spectrum_of_each_of_a_stack_reproduces_its_kernel(key):
    mixing = jax.jit(jax.vmap(lambda k, key: k.mixing(key, 200_000)))
    numbers = mixing(covariance.stack(VECTORS, 3), jr.split(key, 3))
    normals = np.random.default_rng(0).standard_normal((200_000, 3))
    for kernel, own in zip(VECTORS, numbers, strict=True):
        reproduces(kernel, own, normals, [[0.05, 0, 0], [0.2, 0.3, -0.3], [0, 0.8, 0.5]])


@pytest.mark.slow
def test_products_of_features_of_a_stack_tend_to_its_kernels(key, points):
    @jax.jit
    @jax.vmap
    def products(kernel, key):
        phis = jax.vmap(features.sine_cosine(key, kernel, 3, 20_000))(points)
        return phis @ phis.T

    found = products(covariance.stack(MIXED, 3), jr.split(key, 4))
    for product, kernel in zip(found, MIXED, strict=True):
        expected = gram(kernel, points, points)
        np.testing.assert_allclose(product, expected, atol=0.05 * kernel.variance)


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ([], "at least one kernel, got none"),
        ([ONE_SCALE[0], Matern52(jnp.ones(2))], "one for each of the 3 coordinates"),
    ],
)
def test_what_cannot_be_stacked_is_refused(kernels, message):
    with pytest.raises(ValueError, match=message):
        covariance.stack(kernels, 3)


class Rational(covariance.AbstractKernel):
    """The rational quadratic, (1 + s / 2α)^-α: a user's, with a number that others do not have."""

    alpha: jax.Array = eqx.field(converter=jnp.asarray, default=1.0)

    def correlation(self, s):
        return (1 + s / (2 * self.alpha)) ** -self.alpha

    def mixing(self, key, count):
        return jnp.sqrt(jr.gamma(key, self.alpha, (count,)) / self.alpha)


@pytest.mark.slow
def test_kernels_of_ones_own_keep_their_numbers_in_a_stack():
    kernels = (
        Rational(0.3, alpha=0.5),
        SquaredExponential(0.3),
        Rational(0.2, alpha=8.0),
        Matern32(0.3),
    )
    x, z = jnp.array([0.1, 0.9]), jnp.array([0.7, 0.2])
    for some in ((kernels[0], kernels[2]), kernels):
        found = jax.jit(jax.vmap(lambda kernel: kernel(x, z)))(covariance.stack(some, 2))
        expected = [at(kernel, x, z) for kernel in some]
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    @jax.jit
    @jax.vmap
    def product(kernel):
        phi = features.cosine(jr.key(0), kernel, 2, 20_000)
        return phi(x) @ phi(z)

    # Features of each have its covariance.
    np.testing.assert_allclose(product(covariance.stack(kernels, 2)), expected, atol=0.03)


# ---------------------------------------------------------------- functions of one's own


class Bump(eqx.Module):
    """Two numbers, a vector, and a size that is none."""

    variance: float
    scales: jax.Array
    power: int = 2

    def __call__(self, x, z):
        return bump(x, z, self.variance, self.scales, self.power)


def bump(x, z, variance, scales, power=2):
    return variance * jnp.exp(-jnp.sum(jnp.abs((x - z) / scales) ** power))


MODULE = Bump(1.5, jnp.array([0.3, 0.7, 1.9]))
PARTIAL = functools.partial(bump, variance=1.5, scales=MODULE.scales)


@pytest.mark.parametrize("function", [MODULE, PARTIAL, lambda x, z: MODULE(x, z)])
def test_a_given_function_is_itself_through_jit_and_vmap(function, points):
    expected = gram(SquaredExponential(MODULE.scales / np.sqrt(2), 1.5), points, points)
    given = KernelFunction(function)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), given)

    @jax.jit
    def found(given, batch):
        each = jax.vmap(lambda k, x: k(x, points[0]))(batch, points[:2])
        return given.of_squares(given.squares(points)), each

    whole, each = found(given, batch)
    np.testing.assert_allclose(whole, expected, rtol=1e-5)
    np.testing.assert_allclose(each, expected[:2, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "factors"),
    [(MODULE, [2.0, 1.0, 3.0, 0.5]), (PARTIAL, [1.0, 3.0, 0.5, 2.0])],  # by name in a partial
)
def test_its_numbers_are_multiplied_by_their_factors(function, factors, points):
    given = KernelFunction(function).with_hyperparameters(jnp.array(factors))
    other = Bump(3.0, MODULE.scales * jnp.array([1.0, 3.0, 0.5]))
    expected = at(KernelFunction(other), *points[:2])
    np.testing.assert_allclose(at(given, *points[:2]), expected, rtol=1e-6)


def test_a_plain_function_has_no_numbers():
    assert KernelFunction(lambda x, z: jnp.sum(x * z)).factors.shape == (0,)


def test_precision_of_a_given_function_is_that_of_the_points():
    point = jnp.zeros(3, jnp.float32)
    assert KernelFunction(MODULE)(point, point + 1).dtype == jnp.float32


def test_a_kernel_stays_itself_and_no_function_is_refused(as_users_have_it):
    kernel = Matern52(0.2)
    assert covariance.as_kernel(kernel) is kernel
    for bad in (0.2, None, Matern52):
        with pytest.raises(ValueError, match=r"or a function k\(x, z\) of two points, got"):
            covariance.as_kernel(bad)
