import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize as so
from numpy import cos, exp, pi, sin, sqrt

from jaxbo.objectives import functions
from jaxbo.objectives.functions import TestFunction

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
