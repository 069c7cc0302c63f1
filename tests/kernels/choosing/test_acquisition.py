import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from jaxbo.kernels.choosing import acquisition

IMPROVEMENTS = [
    acquisition.expected_improvement,
    acquisition.log_expected_improvement,
    acquisition.probability_of_improvement,
    acquisition.log_probability_of_improvement,
]
#: From the far tail, across both switching points (1.5 and 6), to certain improvement.
Z = np.concatenate(
    [-np.geomspace(1e4, 12, 25), np.arange(-12, 10.01, 0.25), [-1.51, -1.49, -6.01, -5.99]]
)


def dtype():
    return jnp.zeros(()).dtype


def rtol(float32, float64):
    return float32 if dtype() == jnp.float32 else float64


def scalars(*values):
    return tuple(jnp.asarray(value, dtype()) for value in values)


def rounded(z):
    """Points as the code under test will see them, in float64 for the oracle."""
    return np.asarray(z, dtype()).astype(np.float64)


def tail_moments(t):
    """The integrals of u^k exp(-t u - u²/2) over u > 0 for k = 0, 1: cdf(-t) and h(-t) over pdf."""
    integrals = [
        integrate.quad(
            lambda s, k=k: s**k * np.exp(-s - 0.5 * (s / t) ** 2), 0, 60, epsabs=0, epsrel=1e-13
        )[0]
        for k in (0, 1)
    ]
    return integrals[0] / t, integrals[1] / t**2


def ratios(z):
    """cdf(z) / pdf(z) and h(z) / pdf(z), without cancellation on either side."""
    if z < -0.5:
        return tail_moments(-z)
    pdf, cdf = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi), special.ndtr(z)
    return cdf / pdf, (pdf + z * cdf) / pdf


def log_pdf(z):
    return -0.5 * z * z - 0.5 * np.log(2 * np.pi)


def improvement(z):
    """Slope and curvature of log h at z: cdf / h and pdf / h - (cdf / h)²."""
    cdf, h = ratios(z)
    return cdf / h, 1 / h - (cdf / h) ** 2


def at_unit_variance(function):
    """`function(z, 1, 0)` of an array of z, compiled."""
    return jax.jit(jax.vmap(lambda z: function(z, jnp.ones_like(z), jnp.zeros_like(z))))


@pytest.mark.parametrize("std", [1.0, 0.037])
def test_log_expected_improvement_equals_quadrature_from_minus_1e4_to_10(std):
    evaluate = jax.vmap(acquisition.log_expected_improvement, in_axes=(0, None, None))
    mean, std, best = jnp.asarray(Z * std, dtype()), *scalars(std, 0)
    z = rounded(mean) / rounded(std)
    expected = [np.log(rounded(std)) + log_pdf(v) + np.log(ratios(v)[1]) for v in z]
    np.testing.assert_allclose(
        jax.jit(evaluate)(mean, std, best), expected, rtol=rtol(2e-6, 2e-14), atol=rtol(5e-6, 1e-13)
    )


def test_expected_improvement_equals_quadrature_to_relative_precision():
    z = rounded(np.arange(-12, 10, 0.25))
    expected = [np.exp(log_pdf(v)) * ratios(v)[1] for v in z]
    actual = at_unit_variance(acquisition.expected_improvement)(jnp.asarray(z, dtype()))
    np.testing.assert_allclose(actual, expected, rtol=rtol(1e-5, 1e-12))


def test_expected_improvement_is_the_mean_gain_of_draws(key):
    mean, std, best = scalars(0.3, 0.8, 0.9)
    gains = jnp.maximum(mean + std * jr.normal(key, (200_000,)) - best, 0)
    error = float(gains.std()) / np.sqrt(gains.size)
    actual = acquisition.expected_improvement(mean, std, best)
    assert abs(float(actual) - float(gains.mean())) < 5 * error


@pytest.mark.parametrize(
    ("mean", "std", "best"), [(0.8, 0.3, 0.9), (-2.0, 1.7, -1.4), (3.0, 0.5, 2.6)]
)
def test_all_are_those_of_a_normal_variable_above_any_value(mean, std, best):
    """`best` is beaten from where it is: neither from 0 nor from a share of it."""
    belief = stats.norm(mean, std)
    gain = belief.expect(lambda f: f - best, lb=best)
    chance = belief.sf(best)
    expected = [gain, np.log(gain), chance, np.log(chance)]
    actual = [float(evaluate(*scalars(mean, std, best))) for evaluate in IMPROVEMENTS]
    np.testing.assert_allclose(actual, expected, rtol=rtol(2e-6, 1e-9), atol=rtol(1e-6, 1e-9))


def test_probability_of_improvement_equals_scipy():
    z = rounded(np.arange(-12, 10, 0.25))
    actual = at_unit_variance(acquisition.probability_of_improvement)(jnp.asarray(z, dtype()))
    np.testing.assert_allclose(actual, special.ndtr(z), rtol=rtol(1e-5, 1e-13))


def test_log_probability_of_improvement_equals_scipy_from_minus_1e4_to_10():
    z = rounded(Z)
    actual = at_unit_variance(acquisition.log_probability_of_improvement)(jnp.asarray(z, dtype()))
    np.testing.assert_allclose(actual, special.log_ndtr(z), rtol=rtol(1e-5, 1e-13))


def test_slope_and_curvature_of_log_expected_improvement_equal_quadrature():
    z = rounded(Z)
    slope = jax.grad(acquisition.log_expected_improvement)
    curvature = jax.grad(slope)
    expected = np.array([improvement(v) for v in z])
    points = jnp.asarray(z, dtype())
    np.testing.assert_allclose(
        at_unit_variance(slope)(points), expected[:, 0], rtol=rtol(1e-5, 1e-12)
    )
    # The oracle itself subtracts two numbers near z² here, hence the shorter range.
    near = np.abs(z) < 100
    np.testing.assert_allclose(
        at_unit_variance(curvature)(points)[near], expected[near, 1], rtol=rtol(1e-4, 1e-8)
    )


@pytest.mark.slow
@pytest.mark.parametrize("function", IMPROVEMENTS)
@pytest.mark.parametrize("z", [-7.3, -4.1, -2.3, -0.4, 1.7])
def test_gradients_equal_central_differences_in_every_argument(function, z):
    arguments = np.array([0.2 + 0.7 * z, 0.7, 0.2])
    gradient = jax.grad(function, argnums=(0, 1, 2))(*scalars(*arguments))
    step = rtol(2e-2, 1e-4)
    for position, derivative in enumerate(gradient):
        shift = step * np.eye(3)[position]
        above, below = (float(function(*scalars(*(arguments + s)))) for s in (shift, -shift))
        reference = (above - below) / (2 * step)
        assert float(derivative) == pytest.approx(reference, rel=rtol(6e-2, 1e-5), abs=1e-6)


@pytest.mark.parametrize(
    "function",
    [acquisition.log_expected_improvement, acquisition.log_probability_of_improvement],
)
def test_logarithms_rise_with_the_mean_over_the_whole_range(function):
    grid = np.concatenate([-np.geomspace(1e4, 10, 4000), np.linspace(-9.999, 4, 4000)])
    values = np.asarray(at_unit_variance(function)(jnp.asarray(grid, dtype())))
    assert (np.diff(values) > 0).all()


@pytest.mark.slow
@given(
    z=st.floats(-1e4, 5, width=32),
    std=st.floats(0.015625, 64, width=32),
    growth=st.floats(1.015625, 4, width=32),
)
@settings(max_examples=60, deadline=None)
def test_log_expected_improvement_rises_with_the_standard_deviation(z, std, growth):
    mean, std, more, best = scalars(z * std, std, std * growth, 0)
    low = acquisition.log_expected_improvement(mean, std, best)
    high = acquisition.log_expected_improvement(mean, more, best)
    # Where improvement is certain the standard deviation hardly matters: rounding may show.
    assert float(high) > float(low) if z < 1 else float(high - low) > -1e-5


@given(z=st.floats(-8, 8, width=32), scale=st.floats(0.125, 8, width=32))
@settings(max_examples=40, deadline=None)
def test_expected_improvement_scales_with_the_values(z, scale):
    mean, std, best, factor = scalars(z, 1, 0, scale)
    one = acquisition.expected_improvement(mean, std, best)
    scaled = acquisition.expected_improvement(mean * factor, std * factor, best * factor)
    np.testing.assert_allclose(scaled, one * factor, rtol=rtol(1e-4, 1e-11))


@pytest.mark.slow
def test_log_expected_improvement_points_uphill_where_expected_improvement_is_flat():
    far = scalars(-60, 1, 0)
    assert float(jax.grad(acquisition.log_expected_improvement)(*far)) > 59
    if dtype() == jnp.float32:
        assert float(jax.grad(acquisition.expected_improvement)(*far)) == 0


def test_a_certain_point_improves_by_its_lead_or_not_at_all():
    mean, std, best = scalars(0.75, 0, 0.5)
    assert float(acquisition.expected_improvement(mean, std, best)) == pytest.approx(0.25)
    assert float(acquisition.expected_improvement(best, std, mean)) == 0
    assert float(acquisition.probability_of_improvement(mean, std, best)) == 1
    assert float(acquisition.probability_of_improvement(best, std, mean)) == 0


def at(function, last):
    """`function` of points whose coordinates are mean and variance."""
    return lambda x: function(x[0], acquisition.deviation(x[1]), jnp.asarray(last, x.dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "last"),
    [*((function, 0.25) for function in IMPROVEMENTS), (acquisition.upper_confidence_bound, 2.0)],
)
def test_values_gradients_and_hessians_are_finite_down_to_zero_variance(function, last):
    means = np.concatenate([-np.geomspace(1e2, 1e-8, 21), [0, 0.25], np.geomspace(1e-8, 1e2, 21)])
    variances = np.concatenate([[-1e-6, 0], np.geomspace(1e-37, 1e4, 42)])
    points = np.stack(np.meshgrid(means, variances), axis=-1).reshape(-1, 2)
    f = at(function, last)
    derivatives = jax.vmap(lambda x: (f(x), jax.grad(f)(x), jax.hessian(f)(x)))
    for array in jax.jit(derivatives)(jnp.asarray(points, dtype())):
        assert np.isfinite(array).all()


def test_upper_confidence_bound_adds_the_root_of_beta_standard_deviations():
    assert float(acquisition.upper_confidence_bound(*scalars(1, 0.5, 9))) == 2.5


@pytest.mark.parametrize("function", [*IMPROVEMENTS, acquisition.upper_confidence_bound])
def test_precision_is_that_of_the_posterior(function):
    x = jnp.asarray([0.4, 0.09], jnp.float32)
    assert at(function, 0.5)(x).dtype == jnp.float32
    assert jax.grad(at(function, 0.5))(x).dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("function", IMPROVEMENTS)
def test_functions_and_their_gradients_lower_for_every_platform(function):
    function = jax.jit(jax.vmap(jax.value_and_grad(at(function, 0.5))))
    points = jax.ShapeDtypeStruct((8, 2), dtype())
    exported = jax.export.export(function, platforms=("cpu", "cuda", "tpu"))(points)
    assert exported.platforms == ("cpu", "cuda", "tpu")
