import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.optimize import minimize

from jaxbo.kernels.choosing import history, quadratic
from jaxbo.kernels.choosing.maximize import query
from tests.kernels.choosing.pasts import CUBE, PEAK, bowl, told

top = jax.jit(quadratic.top)
ROTATED = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, -0.4], [0.5, -0.4, 1.0]])
CENTER = np.array([0.4, 0.7, 0.55])


def peak(x):
    """A quadratic function with its top at `CENTER`."""
    away = x - CENTER
    return -np.einsum("ni,ij,nj->n", away, ROTATED, away)


def points(seed, count, dim=3):
    return np.random.default_rng(seed).random((count, dim))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_top_of_a_quadratic_is_found_in_one_step(scale):
    x = points(0, 30)
    found = top(told(x, scale * peak(x) + 3 * scale))
    assert found.trusted
    np.testing.assert_allclose(found.x, CENTER, atol=2e-3)


def test_steep_and_flat_directions_are_alike():
    steep = np.array([1.0, 1e3, 1e5])
    x = CENTER + 1e-2 * (points(1, 40) - 0.5) / np.sqrt(steep)
    found = top(told(x, -((x - CENTER) ** 2) @ steep))
    assert found.trusted
    np.testing.assert_array_less(np.abs(found.x - CENTER) * np.sqrt(steep), 1e-4)


def test_a_sum_over_coordinates_needs_fewer_points():
    center, steep = np.linspace(0.3, 0.7, 8), np.arange(1.0, 9.0)
    x = points(2, 51, 8)  # a full quadratic takes 68
    y = -((x - center) ** 2) @ steep
    found = top(told(x, y))
    assert found.trusted
    np.testing.assert_allclose(found.x, center, atol=2e-3)
    few = top(told(x[:50], y[:50]))
    assert few.explained == -jnp.inf
    assert not few.trusted


def test_forms_that_need_more_points_than_are_remembered_are_left_out():
    def found(dim, capacity):
        return quadratic.top(history.empty(dim, capacity))

    assert found(2, 8) is None
    assert found(2, 9) is not None
    assert quadratic.points_of_all_pairs(11) < history.MOST < quadratic.points_of_all_pairs(12)
    assert quadratic.points_of_sum(20) < history.MOST < quadratic.points_of_sum(21)
    assert jax.eval_shape(lambda: found(20, None)) is None
    assert quadratic.top(history.empty(21, 200, pending=16)) is None
    assert jax.eval_shape(lambda: found(20, 200)) is not None


def test_a_quadratic_says_how_much_it_explains():
    """Against least squares by NumPy, to which no change of coordinates matters."""
    x = points(3, 15)
    y = peak(x) + 0.3 * np.sin(9 * x[:, 0])
    i, j = np.triu_indices(3)
    terms = np.hstack([np.ones((15, 1)), x, x[:, i] * x[:, j]])
    left = y - terms @ np.linalg.lstsq(terms, y, rcond=None)[0]
    explained = 1 - (np.sum(left**2) / 5) / np.var(y, ddof=1)
    found = jax.jit(quadratic.of_all_pairs)(told(x, y))
    assert float(found.explained) == pytest.approx(explained, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_the_largest_within_the_radius(seed):
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=3) * 4
    curvatures = 3 * rng.normal(size=3) + (0 if seed % 2 else 9)  # of any sign, or a peak

    def loss(w):
        return -(slopes @ w - w @ (curvatures * w) / 2)

    inside = {"type": "ineq", "fun": lambda w: 4 - w @ w}
    starts = rng.normal(size=(20, 3))
    best = min(minimize(loss, s, constraints=inside).fun for s in starts)
    step = np.asarray(
        jax.jit(quadratic.largest)(jnp.asarray(slopes, float), jnp.asarray(curvatures, float))
    )
    assert np.linalg.norm(step) <= 2 + 1e-4
    assert loss(step) <= best + 1e-3 * abs(best)


def test_noise_is_not_explained():
    shares = [
        top(told(points(s, 40), np.random.default_rng(s).normal(size=40))).explained
        for s in range(20)
    ]
    assert max(shares) < quadratic.EXPLAINED


@pytest.mark.parametrize("y", [np.zeros(30), np.full(30, np.nan), np.r_[1.0, np.full(29, np.nan)]])
def test_values_that_say_nothing_are_not_trusted(y):
    found = top(told(points(6, 30), y))
    assert not found.trusted
    assert bool(jnp.all(jnp.isfinite(found.x)))


def test_points_on_a_side_of_the_cube_stay_there():
    x = points(7, 30)
    x[:, 2] = 1.0
    found = top(told(x, peak(x)))
    assert found.trusted
    assert float(found.x[2]) == pytest.approx(1, abs=1e-5)
    rest = CENTER[:2] - np.linalg.solve(ROTATED[:2, :2], ROTATED[:2, 2]) * (1 - CENTER[2])
    np.testing.assert_allclose(found.x[:2], rest, atol=2e-3)


def test_another_point_takes_the_place_of_the_maximizer_if_it_is_wanted_and_new():
    x = points(8, 12, 2)
    past = told(x, np.asarray(jax.vmap(bowl)(jnp.asarray(x, float))))
    candidates = CUBE.candidates(jr.key(0), 50)

    @jax.jit
    def asked(past, place, flag):
        return query(jr.key(1), bowl, CUBE, candidates, past, other=(place, flag))

    yes, no = jnp.asarray(True), jnp.asarray(False)
    place = jnp.asarray([0.9, 0.2])
    np.testing.assert_array_equal(asked(past, place, yes), place)
    np.testing.assert_allclose(asked(past, place, no), PEAK, atol=1e-3)
    # A repetition, a failure and a place beyond the border.
    np.testing.assert_allclose(asked(past, past.x[3], yes), PEAK, atol=1e-3)
    failed = history.add(past, place, jnp.asarray(jnp.nan))
    np.testing.assert_allclose(asked(failed, place + 1e-3, yes), PEAK, atol=1e-2)
    np.testing.assert_array_equal(asked(past, place + 1, yes), jnp.ones(2))
