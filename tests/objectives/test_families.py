import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy import exp, sqrt
from scipy import stats

from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.kernels.processes.covariance import Matern12, SquaredExponential
from jaxbo.objectives import functions
from jaxbo.objectives.families import (
    OnGrid,
    Same,
    Shifted,
    gp_draws,
    mixtures,
    perturbed,
    unit_range,
)
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive

# Every function once more, in NumPy and for many points, in the form its literature prints.


GRID = np.linspace(0, 1, 21)[:, None]


evaluated = eqx.filter_jit(lambda objective, *given: objective(*given))
noiseless = eqx.filter_jit(lambda objective, agent, x: objective.noiseless(agent, x))
optimum = eqx.filter_jit(lambda objective, agent: objective.optimum(agent))
ranged = jax.jit(unit_range)


def family(kind):
    values = np.random.default_rng(2).normal(size=(3, 21))
    return {
        "same": lambda noise: Same(functions.sobester(), noise),
        "shifted": lambda noise: Shifted(functions.hartmann3(), np.zeros((3, 3)), noise),
        "on grid": lambda noise: OnGrid(values, GRID, noise),
    }[kind]


@pytest.mark.parametrize("kind", ["same", "shifted", "on grid"])
def test_an_evaluation_is_the_noiseless_value_plus_gaussian_noise(kind, key):
    objective = family(kind)(0.5)
    x, agent = jnp.full({"same": 2, "shifted": 3, "on grid": 1}[kind], 0.3), jnp.asarray(1)
    keys = jr.split(key, 4000)
    values = jax.jit(jax.vmap(objective, (0, None, None)))(keys, agent, x)
    noise = (np.asarray(values, np.float64) - float(noiseless(objective, agent, x))) / 0.5
    assert stats.kstest(noise, "norm").pvalue > 1e-4


@pytest.mark.parametrize("kind", ["same", "shifted", "on grid"])
def test_without_noise_an_evaluation_is_the_noiseless_value(kind, key):
    objective = family(kind)(0.0)
    x, agent = jnp.full({"same": 2, "shifted": 3, "on grid": 1}[kind], 0.3), jnp.asarray(2)
    assert evaluated(objective, key, agent, x) == noiseless(objective, agent, x)


@pytest.mark.parametrize("kind", ["same", "shifted", "on grid"])
@pytest.mark.parametrize("noise", [-0.1, np.nan, np.inf])
def test_a_noise_that_is_no_deviation_is_refused(kind, noise):
    with pytest.raises(ValueError, match="noise"):
        family(kind)(noise)


def test_the_same_function_has_its_own_optimum():
    objective = Same(functions.branin())
    assert objective.optimum(jnp.asarray(7)) == objective.function.maximum
    x = jnp.asarray([0.2, 0.7])
    assert noiseless(objective, jnp.asarray(7), x) == jax.jit(lambda x: objective.function(x))(x)


def shifted(function, shifts):
    objective = Shifted(function, np.asarray(shifts))
    return objective, jax.jit(jax.vmap(objective.noiseless, (None, 0)))


def test_shifting_moves_the_maximizer_by_exactly_the_shift():
    shifts = [[0.3, -0.1, 0.1], [-0.1, 0.4, -0.8], [0.0, 0.0, 0.0]]
    objective, values = shifted(functions.hartmann3(), shifts)
    for agent in range(3):
        x = jnp.asarray(np.asarray(objective.function.maximizers) + shifts[agent], float)
        np.testing.assert_allclose(values(agent, x), objective.function.maximum, rtol=1e-6)
        assert optimum(objective, jnp.asarray(agent)) == objective.function.maximum


def test_shifting_keeps_every_value_of_the_function(x64):
    objective, values = shifted(functions.levy(1), [[0.3]])
    fine = jnp.asarray(np.linspace(0, 1, 20001)[:, None], float)
    plain = np.asarray(jax.jit(jax.vmap(objective.function))(fine))
    moved = np.asarray(values(0, fine))
    for quantile in (np.min, np.max):
        np.testing.assert_allclose(quantile(moved), quantile(plain), atol=1e-5)
    # The faces stay, and nothing jumps: steps are those of the plain function, stretched.
    np.testing.assert_allclose(moved[[0, -1]], plain[[0, -1]], rtol=1e-6)
    stretch = 0.45 / 0.15
    assert np.abs(np.diff(moved)).max() < 1.01 * stretch * np.abs(np.diff(plain)).max()


def test_a_shift_of_zero_changes_nothing_even_where_the_maximizer_lies_on_a_face(key):
    objective, values = shifted(functions.sobester(), [[0.0, 0.0]])
    x = jr.uniform(key, (100, 2))
    np.testing.assert_array_equal(values(0, x), jax.jit(jax.vmap(objective.function))(x))


@pytest.mark.parametrize(
    ("function", "shift"),
    [
        (functions.sphere(2), [0.5, 0.0]),
        (functions.sphere(2), [0.0, -0.7]),
        (functions.sphere(2), [0.0, np.nan]),
        (functions.sobester(), [-0.1, 0.0]),
    ],
)
def test_a_shift_that_cannot_be_made_is_refused(function, shift):
    with pytest.raises(ValueError, match="maximizer"):
        Shifted(function, np.asarray([shift]))


def test_shifts_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match="2 numbers"):
        Shifted(functions.sphere(2), np.zeros((4, 3)))


def test_on_its_points_a_grid_function_is_exactly_as_given(key):
    points = jr.uniform(key, (300, 3))
    values = np.random.default_rng(3).normal(size=(4, 300))
    objective = OnGrid(values, points)
    look = jax.vmap(jax.vmap(objective.noiseless, (None, 0)), (0, None))
    np.testing.assert_array_equal(jax.jit(look)(jnp.arange(4), points), objective.values)
    best = jax.jit(jax.vmap(objective.optimum))(jnp.arange(4))
    np.testing.assert_array_equal(best, np.asarray(objective.values).max(1))


def test_off_its_points_a_grid_function_is_that_of_the_nearest(key):
    x = np.asarray(jr.uniform(key, (500, 1)))
    objective = family("on grid")(0.0)
    values = jax.jit(jax.vmap(objective.noiseless, (None, 0)))(jnp.asarray(1), jnp.asarray(x))
    nearest = np.argmin(np.abs(x - GRID.T), axis=1)
    np.testing.assert_array_equal(values, np.asarray(objective.values)[1, nearest])


@pytest.mark.parametrize(
    ("values", "match"),
    [(np.zeros((2, 20)), "shape"), (np.zeros((0, 21)), "shape"), (np.full((1, 21), np.nan), "fin")],
)
def test_grid_values_that_do_not_fit_are_refused(values, match):
    with pytest.raises(ValueError, match=match):
        OnGrid(values, GRID)


# Draws and mixtures.

DRAWS = jax.jit(gp_draws, static_argnums=3)
PERTURBED = jax.jit(perturbed, static_argnums=3)


def moments(draws, variance):
    """Largest deviation of the mean and the covariance from 0 and `variance`, in their errors."""
    draws, count = np.asarray(draws, np.float64), len(draws)
    d = np.diag(variance)
    mean = np.abs(draws.mean(0)) / sqrt(d / count)
    covariance = np.abs(draws.T @ draws / count - variance)
    return mean.max(), (covariance / sqrt((np.outer(d, d) + variance**2) / count)).max()


@pytest.mark.parametrize("kernel", [SquaredExponential(0.2), Matern12(0.1, 2.0)])
def test_draws_have_the_covariance_of_the_process(key, kernel):
    draws = DRAWS(key, kernel, jnp.asarray(GRID, float), 40000)
    distance = np.abs(GRID - GRID.T)
    smooth = isinstance(kernel, SquaredExponential)
    truth = exp(-((distance / 0.2) ** 2) / 2) if smooth else 2 * exp(-distance / 0.1)
    mean, covariance = moments(draws, truth)
    assert mean < 5
    assert covariance < 5.5


def test_draws_are_as_smooth_as_the_process_where_its_matrix_is_singular(key):
    points = jnp.linspace(0, 1, 1000)[:, None]
    draws = np.asarray(DRAWS(key, SquaredExponential(0.03), points, 300), np.float64)
    h = 1 / 999 / 0.03
    curvature = np.mean(np.diff(draws, 2, axis=1) ** 2)
    # Clipping eigenvalues at zero alone makes this 1.6 times too large in float32.
    np.testing.assert_allclose(curvature, 6 - 8 * exp(-(h**2) / 2) + 2 * exp(-2 * h**2), rtol=0.1)
    np.testing.assert_allclose(np.mean(draws**2), 1, rtol=0.1)


def test_draws_of_a_long_length_scale_are_not_rough_between_neighbors(key):
    points = jnp.linspace(0, 1, 400)[:, None]
    draws = np.asarray(DRAWS(key, SquaredExponential(0.2), points, 300), np.float64)
    roughness = sqrt(np.mean(np.diff(draws, 2, axis=1) ** 2))
    # Clipping eigenvalues at zero alone makes this about ten times too large in float32.
    np.testing.assert_allclose(roughness, sqrt(3) * (1 / 399 / 0.2) ** 2, rtol=0.2)


def test_unit_range_scales_each_row_from_zero_to_one():
    values = jnp.asarray(np.random.default_rng(4).normal(3, 5, (4, 50)))
    scaled = np.asarray(ranged(values))
    np.testing.assert_array_equal(scaled.min(1), 0)
    np.testing.assert_allclose(scaled.max(1), 1, rtol=3e-7)
    values = np.asarray(values)
    expected = (values - values.min(1, keepdims=True)) / np.ptp(values, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    np.testing.assert_allclose(ranged(jnp.asarray(values[2])), scaled[2], rtol=3e-7)


def test_unit_range_of_a_constant_row_is_zero():
    np.testing.assert_array_equal(ranged(jnp.full((2, 5), 7.0)), 0)


def test_perturbed_functions_differ_by_the_distance_at_every_point_either_way(key):
    values = jr.uniform(key, (1000,))
    agents = np.asarray(PERTURBED(key, values, 0.02, 50), np.float64)
    difference = agents - np.asarray(values, np.float64)
    np.testing.assert_allclose(np.abs(difference), 0.02, atol=1e-7)
    signs = np.sign(difference)
    assert abs(signs.mean()) < 5 / sqrt(50_000)
    products = signs @ signs.T / 1000 - np.eye(50)
    assert np.max(np.abs(products)) < 6 / sqrt(1000)


def test_perturbations_do_not_depend_on_how_many_agents_there_are(key):
    values = jnp.zeros(30)
    few, many = PERTURBED(key, values, 1.2, 3), PERTURBED(key, values, 1.2, 10)
    np.testing.assert_array_equal(few, many[:3])


@pytest.mark.parametrize("distance", [-0.1, np.nan])
def test_a_negative_distance_is_refused(key, distance):
    with pytest.raises(ValueError, match="distance"):
        perturbed(key, jnp.zeros(3), distance, 2)


def test_mixtures_go_from_the_base_to_the_agents_own():
    rng = np.random.default_rng(5)
    base, own = jnp.asarray(rng.random(10)), jnp.asarray(rng.random((4, 10)))
    np.testing.assert_array_equal(mixtures(base, own, 0), np.broadcast_to(base, (4, 10)))
    np.testing.assert_array_equal(mixtures(base, own, 1), own)
    expected = 0.7 * np.asarray(own) + 0.3 * np.asarray(base)
    np.testing.assert_allclose(mixtures(base, own, 0.7), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, np.nan])
def test_an_alpha_outside_of_the_unit_interval_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        mixtures(jnp.zeros(3), jnp.ones((2, 3)), alpha)


def test_a_sweep_over_alpha_is_one_vmapped_program():
    rng = np.random.default_rng(5)
    base, own = jnp.asarray(rng.random(10)), jnp.asarray(rng.random((4, 10)))
    swept = jax.jit(jax.vmap(mixtures, (None, None, 0)))(base, own, jnp.asarray([0.0, 1.0]))
    np.testing.assert_array_equal(swept[1], own)


@pytest.mark.slow
def test_functions_for_fewer_agents_than_ask_are_refused():
    shifts = jnp.zeros((2, 2))
    grid = OnGrid(jnp.ones((2, 5)), jnp.linspace(0, 1, 10).reshape(5, 2))
    for objective in (Shifted(functions.branin(), shifts), grid):
        assert objective.agents == 2
        with pytest.raises(ValueError, match="functions for 2 agents, the algorithm asks 3"):
            run(RandomSearch(Cube(2), 3), objective, 2, jr.key(0))
        with pytest.raises(ValueError, match="functions for 2 agents, the algorithm asks 3"):
            drive(RandomSearch(Cube(2), 3), objective, 2, jr.key(0), progress=False)
        run(RandomSearch(Cube(2), 2), objective, 2, jr.key(0))
    assert Same(functions.branin()).agents is None


@pytest.mark.parametrize("way", [run, drive])
def test_functions_of_another_dimension_than_the_domain_are_refused(way):
    grid = OnGrid(jnp.ones((2, 5)), jnp.linspace(0, 1, 10).reshape(5, 2))
    for objective, text in ((Same(functions.sphere(2)), "of 2 coordinates"), (grid, "have 2")):
        with pytest.raises(ValueError, match=text):
            way(RandomSearch(Cube(1), 2), objective, 2, jr.key(0))
