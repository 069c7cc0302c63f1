"""Feature maps against float64 NumPy, the kernels they stand for, and automatic differentiation."""

import functools

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats

from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import Matern12, Matern32, Matern52, SquaredExponential
from jaxbo.kernels.processes.features import FourierFunction, cos_turns, sin_turns

pytestmark = [pytest.mark.users, pytest.mark.float64]

KERNELS = [SquaredExponential, Matern12, Matern32, Matern52]
MAPS = [eqx.filter_jit(make) for make in (features.cosine, features.sine_cosine)]
DIRECTIONS = [features.independent, features.orthogonal, features.quasi_random]
TURNS = [(jax.jit(cos_turns), np.cos), (jax.jit(sin_turns), np.sin)]
FULL = pytest.mark.full
SCALES = np.array([0.3, 0.7, 1.9])


def reduced(u):
    """Radians of the exact fraction of a turn, from the very number that was given."""
    u = np.asarray(u, np.float64)
    return 2 * np.pi * (u - np.rint(u))


def oracle(x, m, scale):
    """The features of either map as its definition writes them, in float64."""
    x, s, v = (np.asarray(a, np.float64) for a in (x, m.frequencies, m.variance))
    u = 2 * np.pi * (s @ (x / scale))
    if isinstance(m, features.SineCosine):
        return np.sqrt(v / len(s)) * np.concatenate([np.sin(u), np.cos(u)])
    c = np.cos(u + 2 * np.pi * np.asarray(m.phases, np.float64))
    return np.sqrt(v) * c / np.linalg.norm(c)


# ---------------------------------------------------------------- cosine and sine in turns


@pytest.mark.parametrize(("turns", "radians"), TURNS)
@pytest.mark.parametrize("largest", [0.6, 10.0, 1000.0])
def test_turns_err_by_rounding_only(turns, radians, largest, x64):
    u = jnp.asarray(np.linspace(-largest, largest, 1_000_003), float)
    error = np.max(np.abs(np.asarray(turns(u), np.float64) - radians(reduced(u))))
    assert error <= (5e-16 if x64 else 2e-7)


@pytest.mark.parametrize(("turns", "radians"), TURNS)
def test_float32_stays_float32(turns, radians):
    u = jnp.asarray(np.linspace(-1000, 1000, 100_001), jnp.float32)
    assert turns(u).dtype == jnp.float32
    assert np.max(np.abs(np.asarray(turns(u), np.float64) - radians(reduced(u)))) <= 2e-7


def test_turns_are_0_at_quarters_and_1_but_for_the_last_place():
    quarters = jnp.arange(-2, 2.25, 0.25)
    waves = np.tile([1, 0, -1, 0], 5)[:17], np.tile([0, 1, 0, -1], 5)[:17]
    for (turns, _), wave in zip(TURNS, waves, strict=True):
        found = turns(quarters)
        np.testing.assert_array_equal(found[wave == 0], 0)
        np.testing.assert_allclose(found, wave, rtol=jnp.finfo(found.dtype).eps)


@pytest.mark.parametrize(
    ("turns", "slope"), [(cos_turns, lambda r: -np.sin(r)), (sin_turns, np.cos)]
)
def test_first_and_second_derivatives_are_those_of_the_circle(turns, slope, x64):
    u = jnp.asarray(np.linspace(-20, 20, 1001), float)
    tolerance = 1e-13 if x64 else 2e-5

    @jax.jit
    def derivatives(u):
        slopes = jax.vmap(jax.grad(turns))(u), jax.vmap(jax.grad(jax.grad(turns)))(u)
        return *slopes, jax.jvp(turns, (u,), (jnp.ones_like(u),))[1], turns(u)

    first, second, by_jvp, wave = derivatives(u)
    np.testing.assert_allclose(first, 2 * np.pi * slope(reduced(u)), atol=tolerance)
    np.testing.assert_allclose(second, -4 * np.pi**2 * np.asarray(wave), atol=tolerance)
    np.testing.assert_array_equal(by_jvp, first)


# ---------------------------------------------------------------- where frequencies point


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, pytest.param(2, marks=FULL), 5])
def test_orthogonal_directions_are_orthogonal_in_blocks(dim, key, x64):
    draws = jax.jit(features.orthogonal, static_argnums=(1, 2))(key, 3 * dim + 1, dim)
    assert draws.shape == (3 * dim + 1, dim)
    for block in np.split(np.asarray(draws), range(dim, 3 * dim + 1, dim)):
        gram = block @ block.T
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-12 if x64 else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("directions", DIRECTIONS)
def test_directions_are_standard_normal_in_every_coordinate(directions, key):
    draw = jax.jit(jax.vmap(lambda k: directions(k, 5, 3)))
    draws = np.asarray(draw(jr.split(key, 2000)), np.float64)
    for row, column in np.ndindex(5, 3):
        assert scipy.stats.kstest(draws[:, row, column], "norm").pvalue > 1e-4 / 15
    lengths = np.sum(draws**2, axis=2)
    for row in range(5):
        assert scipy.stats.kstest(lengths[:, row], "chi2", args=(3,)).pvalue > 1e-4 / 5


# ---------------------------------------------------------------- feature maps


@pytest.mark.parametrize("make", MAPS)
def test_features_are_their_definition_and_a_function_is_their_product_with_weights(make, key, x64):
    points = jnp.asarray(np.random.default_rng(0).random((5, 3)), float)
    w = jnp.asarray(np.random.default_rng(1).standard_normal(50), float)

    @jax.jit
    def found(key):
        m = make(key, Matern52(jnp.asarray(SCALES), 2.5), 3, 50)
        return m, jax.vmap(m)(points), jax.vmap(FourierFunction(m, w))(points)

    m, phis, values = found(key)
    for x, phi, value in zip(points, phis, values, strict=True):
        np.testing.assert_allclose(phi, oracle(x, m, SCALES), atol=1e-13 if x64 else 5e-6)
        product = np.asarray(phi, np.float64) @ np.asarray(w, np.float64)
        np.testing.assert_allclose(value, product, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (MAPS[0], 2),
        (MAPS[1], 100),
        pytest.param(MAPS[0], 100, marks=FULL),
        pytest.param(MAPS[1], 2, marks=FULL),
    ],
)
def test_squared_norm_is_the_variance_at_every_point(make, size, key, x64):
    @jax.jit
    def found(key):
        m = make(key, SquaredExponential(0.2, 2.5), 2, size)
        return m, jax.vmap(lambda x: jnp.sum(m(x) ** 2))(jr.uniform(key, (500, 2)))

    m, norms = found(key)
    np.testing.assert_allclose(norms, 2.5, rtol=1e-12 if x64 else 2e-6)
    assert m.size == size
    assert jax.eval_shape(m, jnp.zeros(2)).shape == (size,)


@functools.cache
def products(make, form, size, draws, directions):
    """φ(x)'φ(z) of many draws at pairs from near to far, and the kernel there."""
    kernel = form(0.5, 1.5)

    @jax.jit
    def found(keys, pairs):
        def of_one_draw(key):
            m = make(key, kernel, 2, size, directions)
            return jax.vmap(lambda pair: jnp.sum(m(pair[0]) * m(pair[1])))(pairs)

        expected = jax.vmap(lambda pair: kernel(pair[0], pair[1]))(pairs)
        return jax.vmap(of_one_draw)(keys), expected

    pairs = jnp.asarray(np.random.default_rng(0).random((20, 2, 2)), float)
    return tuple(map(np.asarray, found(jr.split(jr.key(size), draws), pairs)))


@pytest.mark.parametrize(
    ("form", "directions"),
    [
        (SquaredExponential, features.independent),
        (SquaredExponential, features.orthogonal),
        (Matern12, features.quasi_random),
        *(
            pytest.param(form, features.quasi_random, marks=FULL)
            for form in (SquaredExponential, Matern32, Matern52)
        ),
    ],
)
def test_sine_cosine_is_the_kernel_on_average(form, directions):
    found, expected = products(features.sine_cosine, form, 50, 4000, directions)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 5 * error)


@pytest.mark.slow
@pytest.mark.parametrize("form", [SquaredExponential, pytest.param(Matern12, marks=FULL)])
def test_cosine_tends_to_the_kernel(form):
    # Dividing by the norm biases the product by O(1 / size).
    found, expected = products(features.cosine, form, 1000, 60, features.independent)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - expected), 5 * error + 3e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "form"),
    [
        (features.sine_cosine, SquaredExponential),
        pytest.param(features.cosine, SquaredExponential, marks=FULL),
        pytest.param(features.sine_cosine, Matern12, marks=FULL),
    ],
)
def test_error_falls_with_the_root_of_the_size(make, form):
    def error(size, draws):
        found, expected = products(make, form, size, draws, features.independent)
        return np.sqrt(np.mean((found - expected[None]) ** 2))

    assert 3.4 < error(50, 4000) / error(800, 300) < 4.6  # √16 = 4


# Spread frequencies help less where phases are independent draws.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "gain"),
    [pytest.param(features.cosine, 0.85, marks=FULL), (features.sine_cosine, 0.5)],
)
def test_directions_that_are_spread_err_less(make, gain):
    def error(directions):
        found, expected = products(make, SquaredExponential, 50, 4000, directions)
        return np.sqrt(np.mean((found - expected[None]) ** 2))

    independent = error(features.independent)
    assert error(features.orthogonal) < 0.95 * independent
    assert error(features.quasi_random) < gain * independent


@pytest.mark.parametrize(("dim", "kind"), [(2, features.quasi_random), (20, features.orthogonal)])
def test_the_better_spread_is_chosen_by_dimension(dim, kind, key):
    both = jax.jit(lambda key: (features.spread(key, 7, dim), kind(key, 7, dim)))
    np.testing.assert_array_equal(*both(key))


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (MAPS[0], 0.4),
        (MAPS[1], SCALES),
        pytest.param(MAPS[0], SCALES, marks=FULL),
        pytest.param(MAPS[1], 0.4, marks=FULL),
    ],
)
def test_gradients_in_the_length_scale_are_finite_differences(make, scale, key, x64):
    m = make(key, SquaredExponential(jnp.asarray(scale), 2.0), 3, 30)
    x, w = jnp.array([0.2, 0.5, 0.9]), jr.normal(key, (30,))

    def value(kernel):
        return jnp.sum(features.with_kernel(m, kernel)(x) * w)

    found = jax.jit(jax.grad(value))(SquaredExponential(jnp.asarray(scale), 2.0)).length_scale
    for i in range(np.size(scale)):
        change = 1e-5 * np.eye(np.size(scale))[i].reshape(np.shape(scale))
        after, before = (oracle(x, m, scale + sign * change) for sign in (1, -1))
        expected = (after - before) @ np.asarray(w, np.float64) / 2e-5
        tolerance = 1e-6 if x64 else 1e-3
        np.testing.assert_allclose(np.ravel(found)[i], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "form"),
    [
        (MAPS[0], Matern52),
        (MAPS[1], SquaredExponential),
        pytest.param(MAPS[0], SquaredExponential, marks=FULL),
        pytest.param(MAPS[1], Matern52, marks=FULL),
    ],
)
def test_another_kernel_is_a_draw_with_that_kernel(make, form, key):
    kernel = form(jnp.array([0.1, 2.0]), 3.0)
    found = features.with_kernel(make(key, form(0.5), 2, 20), kernel)
    jax.tree.map(np.testing.assert_array_equal, found, make(key, kernel, 2, 20))


# ---------------------------------------------------------------- sampled functions


@pytest.mark.parametrize(
    ("make", "dim", "ard"),
    [
        (MAPS[0], 2, True),
        (MAPS[1], 9, False),
        *(
            pytest.param(make, dim, ard, marks=FULL)
            for make, dim, ard in [
                (MAPS[0], 1, False),
                (MAPS[0], 9, False),
                (MAPS[0], 9, True),
                (MAPS[1], 1, False),
                (MAPS[1], 2, True),
                (MAPS[1], 9, True),
            ]
        ),
    ],
)
def test_expansion_is_that_of_automatic_differentiation(make, dim, ard, key, x64):
    scale = jnp.linspace(0.4, 1.2, dim) if ard else jnp.asarray(0.5)
    m = make(key, SquaredExponential(scale, 1.7), dim, 60)
    f = FourierFunction(m, jr.normal(jr.fold_in(key, 1), (60,)))
    x, p = jr.uniform(jr.fold_in(key, 2), (2, dim))

    @jax.jit
    def closed_form(f):
        value, gradient, curvature = f.expansion(x)
        return value, gradient, curvature(p), jax.vmap(curvature)(jnp.eye(dim))

    automatic = jax.jit(lambda f: (f(x), jax.grad(f)(x), jax.hessian(f)(x)))
    value, gradient, product, columns = closed_form(f)
    height, slope, hessian = automatic(f)
    close = {"rtol": 1e-9, "atol": 1e-9} if x64 else {"rtol": 1e-3, "atol": 2e-3}
    np.testing.assert_allclose(value, height, **close)
    np.testing.assert_allclose(gradient, slope, **close)
    np.testing.assert_allclose(product, np.asarray(hessian) @ np.asarray(p), **close)
    np.testing.assert_allclose(columns, hessian, **close)


# ---------------------------------------------------------------- input and devices


@pytest.mark.parametrize("make", MAPS)
def test_sizes_below_one_are_refused(make, key):
    for dim, size in [(0, 10), (2, 0), (2, -4)]:
        with pytest.raises(ValueError, match="size and dim"):
            make(key, SquaredExponential(0.2), dim, size)


@pytest.mark.parametrize("make", MAPS)
def test_length_scales_of_another_dimension_are_refused(make, key):
    for dim, scales in [(2, [0.1, 0.2, 0.3]), (2, [0.1]), (1, [0.1, 0.1])]:
        with pytest.raises(ValueError, match=f"each of the {dim} coordinates"):
            make(key, SquaredExponential(jnp.asarray(scales)), dim, 10)


def test_an_odd_number_of_sines_and_cosines_is_refused(key):
    with pytest.raises(ValueError, match="even size, got 7"):
        features.sine_cosine(key, SquaredExponential(0.2), 2, 7)


@pytest.mark.parametrize("make", MAPS)
def test_maps_are_exported_for_every_platform(make):
    def program(key, x):
        m = make(key, Matern32(0.3), 2, 20)
        f = FourierFunction(m, jnp.ones((20,)))
        value, gradient, curvature = f.expansion(x)
        return m(x), value, curvature(gradient)

    key = jax.eval_shape(lambda: jr.key(0))
    shape = jax.ShapeDtypeStruct((2,), jnp.result_type(float))
    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(key, shape)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}
