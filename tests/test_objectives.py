import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.optimize as so
from numpy import cos, exp, pi, sin, sqrt
from scipy import stats

from jaxbo import functions
from jaxbo.functions import TestFunction
from jaxbo.kernels.covariance import Matern12, SquaredExponential
from jaxbo.objectives import (
    OnGrid,
    Same,
    Shifted,
    gp_draws,
    mixtures,
    perturbed,
    unit_range,
)

# Every function once more, in NumPy and for many points, in the form its literature prints.


def branin(x):
    u, v = x.T
    return (v - 5.1 * u**2 / (4 * pi**2) + 5 * u / pi - 6) ** 2 + (10 - 10 / (8 * pi)) * cos(u)


def eggholder(x):
    a, b = x.T
    return (b + 47) * sin(sqrt(abs(b + a / 2 + 47))) + a * sin(sqrt(abs(a - b - 47)))


def hartmann(x, A, P):
    A, P = np.array(A), 1e-4 * np.array(P)
    w = [1.0, 1.2, 3.0, 3.2]
    return sum(w[i] * exp(-(A[i] * (x - P[i]) ** 2).sum(1)) for i in range(4))


def hartmann3(x):
    A = [[3, 10, 30], [0.1, 10, 35]] * 2
    P = [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
    return hartmann(x, A, P)


def hartmann6(x):
    A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14]]
    A += [[3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    P = [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991]]
    P += [[2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]
    return hartmann(x, A, P)


def shekel4(x):
    beta = [0.1, 0.2, 0.2, 0.4, 0.4, 0.6, 0.3, 0.7, 0.5, 0.5]
    odd, even = [4, 1, 8, 6, 3, 2, 5, 8, 6, 7], [4, 1, 8, 6, 7, 9, 3, 1, 2, 3.6]
    C = np.array([odd, even, odd, even])
    return sum(1 / (beta[i] + ((x - C[:, i]) ** 2).sum(1)) for i in range(10))


def ackley(x):
    return -20 * exp(-0.2 * sqrt((x**2).mean(1))) - exp(cos(2 * pi * x).mean(1)) + 20 + exp(1)


def zakharov(x):
    s = (0.5 * np.arange(1, x.shape[1] + 1) * x).sum(1)
    return -((x**2).sum(1) + s**2 + s**4)


def levy(x):
    w = 1 + (x - 1) / 4
    inner = ((w - 1) ** 2 * (1 + 10 * sin(pi * w + 1) ** 2))[:, :-1].sum(1)
    last = (w[:, -1] - 1) ** 2 * (1 + sin(2 * pi * w[:, -1]) ** 2)
    return -(sin(pi * w[:, 0]) ** 2 + inner + last)


def dropwave(x):
    r = np.hypot(*x.T)
    return (1 + cos(12 * r)) / (0.5 * r**2 + 2)


def michalewicz(x):
    return (sin(x) * sin(np.arange(1, 11) * x**2 / pi) ** 20).sum(1)


def rosenbrock(x):
    return -so.rosen(x.T)


CASES = {  # the function, the same in NumPy, the maximum that its literature prints, its box
    "ackley5": (functions.ackley5(), ackley, 4.710965, (0, 1)),
    "zakharov": (functions.zakharov(), zakharov, 0, (-5, 10)),
    "dropwave": (functions.dropwave(), dropwave, 1, (-5.12, 5.12)),
    "eggholder": (functions.eggholder(), eggholder, 959.6407, (-512, 512)),
    "hartmann3": (functions.hartmann3(), hartmann3, 3.86278, (0, 1)),
    "hartmann6": (functions.hartmann6(), hartmann6, 3.32237, (0, 1)),
    "shekel4": (functions.shekel4(), shekel4, 10.5364, (0, 10)),
    "michalewicz10": (functions.michalewicz10(), michalewicz, 9.66015, (0, pi)),
    "branin": (functions.branin(), lambda x: -branin(x) - 10, -0.397887, ([-5, 0], [10, 15])),
    "branin_rescaled": (
        functions.branin_rescaled(),
        lambda x: -1 / 51.95 * (branin(x) - 44.81),
        1.04739,
        ([-5, 0], [10, 15]),
    ),
    "sobester": (
        functions.sobester(),
        lambda x: ((6 * x - 2) ** 2 * sin(12 * x - 4)).sum(1),
        31.6595,
        (0, 1),
    ),
    "rosenbrock": (functions.rosenbrock(3), rosenbrock, 0, (-5, 10)),
    "sphere": (functions.sphere(3), lambda x: -(x**2).sum(1), 0, (-5.12, 5.12)),
    "levy": (functions.levy(3), levy, 0, (-10, 10)),
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """A function, the oracle on the unit cube, and the maximum as printed."""
    function, oracle, printed, (lower, upper) = CASES[request.param]
    lower, extent = np.asarray(lower), np.subtract(upper, lower)
    return function, lambda x: oracle(lower + extent * x), printed


def by_coordinates(f, x):
    """The best point found from x by searching one coordinate at a time on a fine grid."""
    for i in range(x.size):
        line = np.repeat(x[None, :], 802, 0)
        line[:-1, i] = np.linspace(0, 1, 801)
        x = line[np.argmax(f(line))]
    return x


def search(f, dim):
    """The largest of many local maxima of f on the unit cube: value and point."""
    x = np.random.default_rng(0).random((20000, dim))
    starts = [by_coordinates(f, start) for start in x[np.argsort(-f(x))[:10]]]
    found = [
        so.minimize(
            lambda x: -f(x[None, :])[0],
            start,
            bounds=[(0, 1)] * dim,
            options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 300},
        )
        for start in starts
    ]
    best = min(found, key=lambda result: result.fun)
    return -best.fun, best.x


def test_the_maximum_is_the_best_of_many_searches_and_as_printed(case, x64):
    function, oracle, printed = case
    value, x = search(oracle, function.dim)
    precision = 1e-9 if x64 else 1e-7
    scale = 1 + abs(printed)
    assert abs(value - float(function.maximum)) < precision * scale + 3e-8
    assert abs(value - printed) < 6e-6 * scale
    assert np.min(np.max(np.abs(np.asarray(function.maximizers) - x), axis=1)) < 1e-4


def test_every_maximizer_attains_the_maximum_and_has_a_finite_gradient(case, x64):
    function, oracle, printed = case
    tolerance = (1e-11 if x64 else 3e-6) * (1 + abs(printed))
    maximizers = np.asarray(function.maximizers, np.float64)
    np.testing.assert_allclose(oracle(maximizers), float(function.maximum), rtol=0, atol=tolerance)
    both = jax.jit(jax.vmap(jax.value_and_grad(function)))
    values, gradients = both(function.maximizers)
    np.testing.assert_allclose(values, function.maximum, rtol=0, atol=tolerance)
    assert np.all(np.isfinite(gradients))


def test_the_function_is_its_formula(case, x64):
    function, oracle, _ = case
    x = np.random.default_rng(1).random((4000, function.dim)).astype(np.float32)
    expected = oracle(x.astype(np.float64))
    values = jax.jit(jax.vmap(function))(jnp.asarray(x, float))
    scale = np.max(np.abs(expected))
    error = np.max(np.abs(np.asarray(values, np.float64) - expected)) / scale
    # In float32 the eggholder, steep where its roots are near 0, loses the most: 3e-5.
    assert error < (1e-13 if x64 else 1e-4)


def test_a_function_has_the_precision_of_its_point(case):
    function, _, _ = case
    value = jax.eval_shape(function, jax.ShapeDtypeStruct((function.dim,), jnp.float32))
    assert value.dtype == jnp.float32
    assert not value.weak_type


def test_the_papers_maximizer_of_ackley_is_only_a_local_maximum():
    function = functions.ackley5()
    printed = function(jnp.asarray([0.6231, 0.6231, 1, 0.6231, 0.6231]))
    assert abs(printed - 4.692612) < 1e-5
    assert function.maximum > printed + 0.018
    assert function.maximizers.shape == (10, 5)


def test_every_branin_maximizer_is_listed():
    function = functions.branin()
    np.testing.assert_allclose(
        np.asarray(function.maximizers) * 15 - [5, 0],
        [[-pi, 12.275], [pi, 2.275], [9.42478, 2.475]],
        atol=1e-5,
    )


def test_equal_functions_share_one_compilation():
    traces = 0

    @jax.jit
    def value(function, x):
        nonlocal traces
        traces += 1
        return function(x)

    for _ in range(3):
        value(functions.levy(2), jnp.zeros(2))
    assert traces == 1


@pytest.mark.parametrize(
    ("lower", "upper", "maximizers", "message"),
    [
        ([1.0], [0.0], [[0.5]], "below upper"),
        ([0.0], [np.inf], [[0.5]], "below upper"),
        ([0.0], [1.0], [[1.5]], "unit cube"),
        ([0.0], [1.0], [[0.5, 0.5]], "one number a coordinate"),
    ],
)
def test_a_function_that_cannot_be_is_refused(lower, upper, maximizers, message):
    with pytest.raises(ValueError, match=message):
        TestFunction("mine", jnp.sum, *map(np.asarray, (lower, upper)), 0.0, np.asarray(maximizers))


@pytest.mark.parametrize("make", [lambda: functions.rosenbrock(1), lambda: functions.levy(0)])
def test_too_few_dimensions_are_refused(make):
    with pytest.raises(ValueError, match="at least"):
        make()


# Families.

GRID = np.linspace(0, 1, 21)[:, None]


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
    noise = (np.asarray(values, np.float64) - float(objective.noiseless(agent, x))) / 0.5
    assert stats.kstest(noise, "norm").pvalue > 1e-4


@pytest.mark.parametrize("kind", ["same", "shifted", "on grid"])
def test_without_noise_an_evaluation_is_the_noiseless_value(kind, key):
    objective = family(kind)(0.0)
    x, agent = jnp.full({"same": 2, "shifted": 3, "on grid": 1}[kind], 0.3), jnp.asarray(2)
    assert objective(key, agent, x) == objective.noiseless(agent, x)


@pytest.mark.parametrize("kind", ["same", "shifted", "on grid"])
@pytest.mark.parametrize("noise", [-0.1, np.nan, np.inf])
def test_a_noise_that_is_no_deviation_is_refused(kind, noise):
    with pytest.raises(ValueError, match="noise"):
        family(kind)(noise)


def test_the_same_function_has_its_own_optimum():
    objective = Same(functions.branin())
    assert objective.optimum(jnp.asarray(7)) == objective.function.maximum
    x = jnp.asarray([0.2, 0.7])
    assert objective.noiseless(jnp.asarray(7), x) == objective.function(x)


def shifted(function, shifts):
    objective = Shifted(function, np.asarray(shifts))
    return objective, jax.jit(jax.vmap(objective.noiseless, (None, 0)))


def test_shifting_moves_the_maximizer_by_exactly_the_shift():
    shifts = [[0.3, -0.1, 0.1], [-0.1, 0.4, -0.8], [0.0, 0.0, 0.0]]
    objective, values = shifted(functions.hartmann3(), shifts)
    for agent in range(3):
        x = objective.function.maximizers + objective.shifts[agent][None, :]
        np.testing.assert_allclose(values(agent, x), objective.function.maximum, rtol=1e-6)
        assert objective.optimum(jnp.asarray(agent)) == objective.function.maximum


def test_shifting_keeps_every_value_of_the_function(x64):
    objective, values = shifted(functions.levy(1), [[0.3]])
    fine = jnp.linspace(0, 1, 20001)[:, None]
    plain = jax.jit(jax.vmap(objective.function))(fine)
    moved = values(0, fine)
    for quantile in (jnp.min, jnp.max):
        np.testing.assert_allclose(quantile(moved), quantile(plain), atol=1e-5)
    # The faces stay, and nothing jumps: steps are those of the plain function, stretched.
    np.testing.assert_allclose(moved[jnp.asarray([0, -1])], plain[jnp.asarray([0, -1])], rtol=1e-6)
    stretch = 0.45 / 0.15
    assert jnp.max(jnp.abs(jnp.diff(moved))) < 1.01 * stretch * jnp.max(jnp.abs(jnp.diff(plain)))


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
    best = jax.vmap(objective.optimum)(jnp.arange(4))
    np.testing.assert_array_equal(best, objective.values.max(1))


def test_off_its_points_a_grid_function_is_that_of_the_nearest(key):
    x = np.asarray(jr.uniform(key, (500, 1)))
    objective = family("on grid")(0.0)
    values = jax.vmap(objective.noiseless, (None, 0))(jnp.asarray(1), jnp.asarray(x))
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
    scaled = unit_range(values)
    np.testing.assert_array_equal(scaled.min(1), 0)
    np.testing.assert_allclose(scaled.max(1), 1, rtol=3e-7)
    values = np.asarray(values)
    expected = (values - values.min(1, keepdims=True)) / np.ptp(values, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    np.testing.assert_allclose(unit_range(jnp.asarray(values[2])), scaled[2], rtol=3e-7)


def test_unit_range_of_a_constant_row_is_zero():
    np.testing.assert_array_equal(unit_range(jnp.full((2, 5), 7.0)), 0)


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
