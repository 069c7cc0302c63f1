import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from jaxbo.kernels.models import warping
from jaxbo.kernels.models.warping import Warping
from jaxbo.objectives import functions

#: Standardized values of either sign, from where log(1 + t) = t to a far outlier.
T = np.concatenate([-np.geomspace(1e3, 1e-12, 46), [0], np.geomspace(1e-12, 1e3, 46)])
#: Powers across the range, near to and at those where the formula has a case of its own.
POWERS = [0.0, 1e-9, 1e-7, 1e-3, 0.4, 0.999, 1.0, 1.3, 1.999, 2 - 2**-22, 2.0]
#: Of most arrays of values, so that little is compiled twice, and of the values that are fitted.
SIZE, CAPACITY = 294, 60


def dtype():
    return jnp.zeros(()).dtype


def rtol(float32, float64):
    return float32 if dtype() == jnp.float32 else float64


def array(values, kind=None):
    return jnp.asarray(np.asarray(values, kind or dtype()))


def rounded(values):
    """Numbers as the code under test will see them, in float64 for the oracle."""
    return np.asarray(values, dtype()).astype(np.float64)


def of_power(power, offset=0.0, scale=1.0):
    return Warping(*(jnp.asarray(value, dtype()) for value in (offset, scale, power)))


@jax.jit
def forward(warp, y):
    return warp(y)


@jax.jit
def backward(warp, u):
    return warp.inverse(u)


@jax.jit
def slopes(warp, y):
    """Of warping and inverse: first derivatives in the warping and in the values, then second ones."""
    functions = (lambda w, y: w(y)), (lambda w, y: w.inverse(y))
    first = [jax.grad(function, argnums=(0, 1)) for function in functions]
    second = [jax.grad(jax.grad(function, argnums=1), argnums=1) for function in functions]
    return [jax.vmap(each, (None, 0))(warp, y) for each in first + second]


@jax.jit
def all_of_it(y):
    warp = warping.fit(y)
    u = warp(y)
    return warp, u, warp.inverse(u), warping.moments(warp, u[0], u[1] ** 2)


fit = jax.jit(warping.fit)
moments = jax.jit(warping.moments)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def standardized(y):
    """By the median and the mean absolute deviation from it, in float64."""
    y = np.asarray(y, np.float64)
    centred = y - np.median(y)
    return centred / np.abs(centred).mean()


def draws(kind, size=CAPACITY):
    """Values of a shape of their own: those of the first four ask for a power inside of the range."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(size)
    return {
        "normal": normal,
        "right": np.exp(0.3 * normal),
        "left": -np.exp(0.4 * normal),
        "uniform": rng.random(size) ** 2,
        "far right": np.exp(2 * normal),
        "far left": -np.exp(2 * normal),
    }[kind]


INSIDE, BEYOND = ["normal", "right", "left", "uniform"], ["far right", "far left"]


@pytest.mark.parametrize("power", POWERS)
def test_warped_values_equal_scipy(power):
    y = array(3 * T - 7)
    expected = stats.yeojohnson((rounded(y) + 7) / 3, rounded(power))
    actual = forward(of_power(power, offset=-7, scale=3), y)
    np.testing.assert_allclose(actual, expected, rtol=rtol(5e-6, 2e-13), atol=1e-15)
    # Without an offset small values keep their relative precision.
    actual, expected = forward(of_power(power), array(T)), stats.yeojohnson(rounded(T), power)
    np.testing.assert_allclose(actual, expected, rtol=rtol(2e-6, 2e-14))


@pytest.mark.parametrize("power", POWERS)
def test_slopes_equal_closed_form_and_quadrature(power):
    t = array(np.resize(T[::3], SIZE))
    (of_warp, by_t), *_ = slopes(of_power(power), t)
    p = np.where(t >= 0, rounded(power), 2 - rounded(power))
    log = np.log1p(np.abs(rounded(t)))
    integrals = [
        integrate.quad(lambda s, p=p, end=end: end**2 * s * np.exp(p * end * s), 0, 1)[0]
        for p, end in zip(p[:31], log[:31], strict=True)
    ]
    np.testing.assert_allclose(by_t, np.exp((p - 1) * log), rtol=rtol(3e-6, 1e-13))
    np.testing.assert_allclose(of_warp.power[:31], integrals, rtol=rtol(3e-6, 1e-13))


def test_the_identity_changes_no_bit_and_still_has_a_slope_in_the_power():
    y = array(np.concatenate([T, [1e30, -1e30, 1e-30]]))
    same = warping.identity(dtype())
    assert bits(forward(same, y)) == bits(backward(same, y)) == bits(y)
    t = array(np.linspace(-3, 3, SIZE))
    (of_warp, by_t), (of_inverse, by_u), *_ = slopes(same, t)
    np.testing.assert_array_equal([by_t, by_u], 1)
    expected = (1 + np.abs(t)) * np.log1p(np.abs(t)) - np.abs(t)
    np.testing.assert_allclose(of_warp.power, expected, rtol=rtol(3e-4, 1e-10), atol=1e-7)
    np.testing.assert_allclose(of_inverse.power, -expected, rtol=rtol(3e-4, 1e-10), atol=1e-7)


@given(
    t=st.floats(-100, 100, width=32),
    gap=st.floats(2**-10, 10, width=32),
    power=st.floats(0, 2, width=32),
)
@settings(max_examples=100, deadline=None)
def test_warping_and_inverse_are_strictly_increasing(t, gap, power):
    pair = array([t, t + gap * (1 + abs(t))])
    for function in (forward, backward):
        low, high = function(of_power(power), pair * (1 if function is forward else 0.1))
        assert float(low) < float(high)


@pytest.mark.parametrize("power", POWERS)
def test_neighbouring_values_do_not_change_places(power):
    t = array(np.linspace(-3, 3, 20_001))
    u = np.asarray(forward(of_power(power), t))
    # Across zero, too, where one formula takes over from the other; but for a rounding error.
    assert (np.diff(u) >= -rtol(3e-7, 1e-15) * np.abs(u[1:])).all()
    assert (np.diff(u[::100]) > 0).all()


@given(
    t=st.floats(-(2.0**20), 2.0**20, width=32),
    power=st.floats(0, 2, width=32),
    scale=st.floats(2**-10, 2**10, width=32),
)
@settings(max_examples=100, deadline=None)
def test_the_inverse_restores_the_values(t, power, scale):
    warp = of_power(power, offset=0.5, scale=scale)
    y = 0.5 + warp.scale * array(t)
    u = forward(warp, y)
    # What u has lost to rounding cannot come back: near the largest, a logarithm is shallow.
    slack = rtol(3e-6, 1e-14)
    np.testing.assert_allclose(
        backward(warp, u), y, rtol=slack * (2 + abs(float(u))), atol=slack * scale
    )


@pytest.mark.parametrize("power", POWERS)
def test_the_image_is_all_numbers_and_the_inverse_saturates_instead_of_overflowing(power):
    largest = 0.99 * float(jnp.finfo(dtype()).max)
    u = array(np.concatenate([-np.geomspace(largest, 1e-3, 40), np.geomspace(1e-3, largest, 40)]))
    for scale in (1e-30, 1.0, 1e30):
        warp = of_power(power, scale=scale)
        for function in (forward, backward):
            image = np.asarray(function(warp, u))
            assert np.isfinite(image).all()
            assert (np.diff(image) >= 0).all()
            assert image[0] < 0 < image[-1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0.0, 1.0, 2.5), r"power must be in \[0, 2\], got 2\.5"),
        ((0.0, 1.0, -0.1), r"power must be in \[0, 2\]"),
        ((0.0, 1.0, np.nan), r"power must be in \[0, 2\]"),
        ((0.0, 0.0, 1.0), r"scale must be positive and finite"),
    ],
)
def test_a_warping_that_is_none_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Warping(*fields)


@pytest.mark.parametrize("kind", INSIDE)
def test_the_fitted_power_is_that_of_scipy_where_it_is_in_range(kind):
    y = draws(kind)
    warp = fit(array(y))
    expected = stats.yeojohnson_normmax(standardized(rounded(y)))
    assert 0.1 < expected < 1.9
    assert float(warp.power) == pytest.approx(expected, abs=rtol(2e-4, 1e-6))
    np.testing.assert_allclose(warp.offset, np.median(rounded(y)), rtol=1e-6)


@pytest.mark.parametrize(("kind", "power"), [("far right", 0.0), ("far left", 2.0)])
def test_the_fitted_power_is_the_end_of_the_range_nearest_to_that_of_scipy(kind, power):
    expected = stats.yeojohnson_normmax(standardized(draws(kind)))
    assert abs(expected - power) > 0.1
    assert not 0 <= expected <= 2
    assert float(fit(array(draws(kind))).power) == power


@pytest.mark.parametrize("kind", INSIDE + BEYOND)
def test_no_power_has_a_greater_likelihood(kind):
    t = standardized(rounded(draws(kind)))
    grid = [stats.yeojohnson_llf(power, t) for power in np.linspace(0, 2, 401)]
    found = stats.yeojohnson_llf(float(fit(array(draws(kind))).power), t)
    assert found > max(grid) - rtol(1e-4, 1e-9)


@pytest.mark.parametrize("kind", INSIDE)
def test_the_warped_values_are_those_of_scikit_learn(kind):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    transformer = preprocessing.PowerTransformer(standardize=False)
    expected = transformer.fit_transform(standardized(rounded(draws(kind)))[:, None])[:, 0]
    y = array(draws(kind))
    actual = np.asarray(forward(fit(y), y))
    np.testing.assert_allclose(actual, expected, rtol=rtol(1e-3, 1e-6), atol=rtol(1e-4, 1e-7))
    assert 0.5 < actual.std() < 3
    assert abs(actual.mean()) < 1


@pytest.mark.parametrize("kind", INSIDE + BEYOND)
@pytest.mark.parametrize(
    ("factor", "shift"),
    [(1e30, 0), (1e-30, 0), (1, 1e6), (1e-3, -4), (3e7, 1e9), (1e30, -1e30), (8, 0)],
)
def test_affine_changes_of_the_values_leave_the_warped_ones(kind, factor, shift):
    moved = array(factor * draws(kind) + shift)
    # What rounding has left of the values, back in their own units.
    y = array((rounded(moved) - shift) / factor)
    actual, expected = forward(fit(moved), moved), forward(fit(y), y)
    # The offset, too, is a number of that precision.
    ulp = np.spacing(np.abs(array(shift))) / (factor * float(fit(y).scale))
    np.testing.assert_allclose(
        actual, expected, rtol=rtol(2e-4, 1e-6), atol=rtol(2e-5, 1e-7) + 3 * ulp
    )


@pytest.mark.parametrize("kind", INSIDE + BEYOND)
def test_values_of_the_other_sign_are_warped_in_mirror_image(kind):
    y = array(draws(kind))
    one, other = fit(y), fit(-y)
    assert float(one.power + other.power) == pytest.approx(2, abs=rtol(1e-5, 1e-6))
    np.testing.assert_allclose(
        forward(other, -y), -forward(one, y), rtol=rtol(1e-4, 1e-6), atol=1e-6
    )


@jax.jit
def fitted_and_warped(y):
    warped = lambda y: warping.fit(y)(y)  # noqa: E731
    return warping.fit(y), warped(y), jax.grad(lambda y: jnp.nansum(warped(y)))(y)


@pytest.mark.parametrize(
    "y",
    [
        1e30 * draws("far right", 40),
        1e-30 * draws("far left", 40),
        1e6 + draws("normal", 40),
        -1e30 + draws("normal", 40),
        np.append(draws("normal", 40), 1e30),
        np.append(draws("normal", 40), -float(np.finfo(np.float32).max)),
        np.array([-3.4e38, -1e38, 0, 1, 2, 1e38, 3.4e38]),
        np.array([-3.4e38, 3e38, 3.1e38, 3.2e38, 3.3e38, 3.4e38]),
        np.geomspace(1e-30, 1e30, 61),
        np.full(10, 1e30),
        np.array([3.0]),
        np.array([1.0, 2.0]),
        np.full(5, np.nan),
        np.array([0, 0, 0, 0, 0, 0, 1e-45]),
    ],
)
def test_everything_is_finite_at_any_scale(y):
    y = array(np.pad(y, (0, 62 - len(y)), constant_values=np.nan))
    warp, u, gradient = fitted_and_warped(y)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(warp))
    np.testing.assert_array_equal(np.isfinite(u), np.isfinite(y))
    assert np.nanmax(np.abs(u), initial=0) < y.size**2
    assert len(np.unique(y)) < 6 or np.nanstd(u) > 0.1
    assert np.isfinite(gradient).all()


def test_the_largest_numbers_have_a_spread_compiled_or_not():
    y = array(np.resize([-3.4e38, -2e38, -1e38, 1e38, 2e38, 3.4e38], CAPACITY))
    for leaf, compiled in zip(*map(jax.tree.leaves, (warping.fit(y), fit(y))), strict=True):
        np.testing.assert_allclose(leaf, compiled, rtol=1e-5)
    assert float(fit(y).scale) > 1e37


def test_without_a_value_the_warping_is_the_identity():
    assert bits(fit(jnp.full((CAPACITY,), jnp.nan))) == bits(warping.identity(dtype()))


@pytest.mark.parametrize("value", [0.0, -3.7, 1e6, 1e30])
@pytest.mark.parametrize("count", [1, 2, CAPACITY])
def test_constant_values_are_moved_to_zero_and_not_scaled(value, count):
    warp = fit(array(([value] * count + [np.nan] * CAPACITY)[:CAPACITY]))
    assert [float(warp.scale), float(warp.power)] == [1, 1]
    assert float(warp(array(value))) == 0


def test_a_spread_of_rounding_errors_is_none():
    y = np.nextafter(array(np.full(CAPACITY, 1e6)), array(np.resize([2e6, 0], CAPACITY)))
    assert [float(leaf) for leaf in (fit(y).scale, fit(y).power)] == [1, 1]
    # From some more of them on, there is one.
    for count in (4, 3, 2):
        y = array(1e6) + count * np.spacing(array(1e6)) * np.resize(array([1, -1]), CAPACITY)
        assert fit(y).scale == count * np.spacing(array(1e6))


def test_with_fewer_than_five_distinct_values_the_power_is_one():
    four = np.tile([0.0, 1.0, 3.0, 100.0], 15)
    assert float(fit(array(four)).power) == 1
    five = np.tile([0.0, 1.0, 3.0, 10.0, 100.0], 12)
    expected = stats.yeojohnson_normmax(standardized(five))
    assert float(fit(array(five)).power) == pytest.approx(np.clip(expected, 0, 2), abs=1e-3) != 1
    assert float(fit(array(four)).scale) > 1
    four[0] = 40
    assert float(fit(array(four)).power) < 0.5


def test_rows_that_failed_and_the_order_of_rows_leave_no_bit(key):
    y = np.asarray(array(draws("right", 48)))
    warps = []
    for seed, failure in enumerate([np.nan, np.inf, -np.inf]):
        rows = np.concatenate([y, np.full(12, failure, y.dtype)])
        warps.append(fit(array(np.random.default_rng(seed).permutation(rows))))
    assert bits(warps[0]) == bits(warps[1]) == bits(warps[2])
    assert float(warps[0].power) < 0.9
    # Sums over more rows may be taken in another order, but are of the same numbers.
    for ours, alone in zip(jax.tree.leaves(warps[0]), jax.tree.leaves(fit(array(y))), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=rtol(2e-6, 1e-7))


@pytest.mark.parametrize("power", POWERS)
def test_at_zero_the_curvature_is_that_of_either_side(power):
    *_, bend, inverse_bend = slopes(of_power(power), jnp.zeros(SIZE))
    np.testing.assert_allclose(bend, rounded(power) - 1, atol=1e-6)
    np.testing.assert_allclose(inverse_bend, 1 - rounded(power), atol=1e-6)


@pytest.mark.parametrize("power", [*POWERS, 1e-30])
def test_derivatives_are_finite_at_any_value(power):
    sizes = np.append(0, np.geomspace(1e-30, 1e30, SIZE // 2 - 1))
    y = array(np.concatenate([-sizes[::-1], sizes]))
    near = np.abs(y) < 1e15  # farther out the square that is a slope in the scale overflows
    for leaf in jax.tree.leaves(slopes(of_power(power, 0.5, 2), y)):
        assert not np.isnan(leaf).any()
        assert np.isfinite(np.asarray(leaf)[near]).all()


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0, 2.0])
def test_failed_values_stay_what_they_are_and_have_no_slope(power):
    warp, failed = of_power(power, 1, 2), array(np.resize([np.nan, np.inf, -np.inf], SIZE))
    for function in (forward, backward):
        np.testing.assert_array_equal(function(warp, failed), failed)
    (of_warp, _), (of_inverse, _), *_ = slopes(warp, failed)
    for leaf in jax.tree.leaves((of_warp, of_inverse)):
        np.testing.assert_array_equal(leaf, 0)


def test_values_of_a_shekel_function_become_near_normal(key):
    function = functions.shekel4()
    y = jax.jit(jax.vmap(function))(jr.uniform(key, (300, 4)))
    warp = fit(y[:150])
    before, after = stats.skew(np.asarray(y)), stats.skew(np.asarray(forward(warp, y)))
    assert before > 1.5
    assert abs(after) < before / 5  # of values that the warping has not seen, too
    _, before = stats.probplot(np.asarray(y), fit=True)
    _, after = stats.probplot(np.asarray(forward(warp, y)), fit=True)
    assert before[2] < 0.93
    assert after[2] > 0.98


def exact_moments(warp, mean, variance):
    """By adaptive quadrature on either side of the jump, in float64."""
    deviation, power = np.sqrt(variance), float(warp.power)

    def image(z):
        u = mean + deviation * z
        p = power if u >= 0 else 2 - power
        size = np.expm1(np.log1p(p * abs(u)) / p) if p else np.expm1(abs(u))
        return float(warp.offset) + float(warp.scale) * np.copysign(size, u)

    def expectation(f):
        split = np.clip(-mean / deviation, -12, 12)
        density = lambda z: f(image(z)) * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)  # noqa: E731
        sides = (-12, split), (split, 12)
        return sum(integrate.quad(density, *side, epsabs=1e-13, limit=200)[0] for side in sides)

    centre = expectation(lambda y: y)
    return centre, expectation(lambda y: (y - centre) ** 2)


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, 1.6, 2.0])
@pytest.mark.parametrize(("mean", "variance"), [(0, 1), (-1.5, 0.3), (2, 4), (0.1, 0.01)])
def test_moments_equal_adaptive_quadrature(power, mean, variance):
    warp = of_power(power, offset=-3, scale=2)
    actual = moments(warp, array(mean), array(variance))
    centre, spread = exact_moments(warp, mean, variance)
    assert float(actual[0]) == pytest.approx(centre, abs=3e-4 * np.sqrt(spread))
    assert float(actual[1]) == pytest.approx(spread, rel=5e-4)


def test_moments_of_a_logarithm_are_those_of_the_log_normal_law():
    mean, variance = moments(of_power(0), array(5), array(0.25))
    assert float(mean) == pytest.approx(np.exp(5 + 0.125) - 1, rel=rtol(1e-5, 1e-12))
    expected = np.expm1(0.25) * np.exp(10 + 0.25)
    assert float(variance) == pytest.approx(expected, rel=rtol(1e-5, 1e-12))


@given(
    mean=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False),
    variance=st.floats(0, 2.0**60, width=32, allow_subnormal=False),
)
@settings(max_examples=60, deadline=None)
def test_moments_under_the_identity_are_those_given(mean, variance):
    given_moments = array(mean), array(variance)
    actual = moments(warping.identity(dtype()), *given_moments)
    assert [float(value) for value in actual] == [float(value) for value in given_moments]


#: Means and variances of any size; the inverse of 70 may be near the largest number.
LAWS = np.meshgrid(
    np.concatenate([-np.geomspace(1e30, 1e-30, 9), [-70, 0, 70], np.geomspace(1e-30, 1e30, 9)]),
    np.concatenate([[-1e-9, 0], np.geomspace(1e-37, 1e30, SIZE // 21 - 2)]),
)


@jax.jit
def moments_and_slopes(warp, means, variances):
    each = jax.jacrev(warping.moments, argnums=(1, 2))
    in_axes = None, 0, 0
    laws = warp, means, variances
    return jax.vmap(warping.moments, in_axes)(*laws), jax.vmap(each, in_axes)(*laws)


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0, 2.0])
def test_moments_without_variance_are_the_inverse_and_have_its_slopes(power):
    warp = of_power(power, offset=-3, scale=2)
    means = array(np.linspace(-2, 2, SIZE))
    _, (_, slope), _, bend = slopes(warp, means)
    (centre, spread), _ = moments_and_slopes(warp, means, jnp.zeros_like(means))
    np.testing.assert_allclose(centre, backward(warp, means), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(spread, 0)
    _, (of_centre, of_spread) = moments_and_slopes(warp, means, jnp.full_like(means, 1e-20))
    # Exact: the mean of f(u) moves by f'' / 2 and its variance by f'^2 for each unit of variance.
    tolerance = rtol(3e-2, 1e-4)
    np.testing.assert_allclose(of_centre[0], slope, rtol=tolerance)
    np.testing.assert_allclose(of_centre[1], np.asarray(bend) / 2, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(of_spread[1], np.asarray(slope) ** 2, rtol=tolerance)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_moments_and_their_gradients_are_finite_for_any_law(power):
    means, variances = (array(axis.ravel()) for axis in LAWS)
    both, gradients = moments_and_slopes(of_power(power), means, variances)
    assert all(np.isfinite(leaf).all() for leaf in both)
    assert (np.asarray(both[1]) >= 0).all()
    near = (np.abs(means) <= 10) & (variances >= 0) & (variances <= 10)
    assert near.sum() > 50
    assert all(np.isfinite(leaf[near]).all() for leaf in jax.tree.leaves(gradients))


def test_agents_under_vmap_get_what_each_gets_alone(key):
    y = jr.normal(key, (5, CAPACITY)) ** 3 + 10.0 ** jnp.arange(5)[:, None].astype(dtype())
    y = y.at[1, 4:].set(jnp.nan).at[2, 2::3].set(jnp.nan).at[3, 2:].set(jnp.nan)
    together = jax.jit(jax.vmap(all_of_it))(y)
    for agent in range(5):
        one = jax.tree.map(lambda leaf, agent=agent: leaf[agent], together)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(all_of_it(y[agent])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_precision_follows_the_values():
    y = array(draws("right"), np.float32)
    for leaf in jax.tree.leaves((all_of_it(y), warping.identity(jnp.float32))):
        assert leaf.dtype == jnp.float32
        assert not leaf.weak_type


@pytest.mark.slow
def test_fit_and_moments_lower_for_every_platform():
    values = jax.ShapeDtypeStruct((4, 9), dtype())
    exported = jax.export.export(jax.jit(jax.vmap(all_of_it)), platforms=("cpu", "cuda", "tpu"))
    assert exported(values).platforms == ("cpu", "cuda", "tpu")
