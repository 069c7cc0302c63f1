"""Test functions with their optima.

    TestFunction    x -> formula(lower + (upper - lower) x)

They live on the unit cube and are maximized. Functions that are usually minimized are negated here,
unless the papers maximize them as they stand.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from jaxbo._check import require, shown, takes, whole
from jaxbo.types import Function, Point, Points, Scalar, named


class TestFunction(eqx.Module):
    """A function of a box, on the unit cube, with its known maximum.

    Args:
        name: Its name, for messages.
        formula: A function of a point in original units, inside `lower` and `upper`, that gives the
            value to maximize. Define it at module level: `jit` then does not trace it again.
        lower: The lower ends of the box.
        upper: The upper ends of the box.
        maximum: The largest value.
        maximizers: Points of the unit cube with this value: all of them, or some of many.

    Raises:
        ValueError: Bounds are reversed or not finite, shapes differ, or a maximizer lies outside of the
            cube.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> square = lambda x: -jnp.sum(x**2)
        >>> box = {"lower": [-2.0], "upper": [2.0], "maximizers": jnp.array([[0.5]])}
        >>> f = jaxbo.functions.TestFunction("square", square, **box, maximum=0)
        >>> float(f(jnp.array([1.0])))
        -4.0
    """

    __test__: ClassVar[bool] = False  # pytest would collect a class of this name

    name: str = eqx.field(static=True)
    formula: Function = eqx.field(static=True)
    lower: Point = eqx.field(converter=named("lower"))
    upper: Point = eqx.field(converter=named("upper"))
    maximum: Scalar = eqx.field(converter=named("maximum"))
    maximizers: Points = eqx.field(converter=named("maximizers"))

    def __check_init__(self):
        require(isinstance(self.name, str), f"name must be text, got {shown(self.name)}.")
        require(
            takes(self.formula, 1) and not isinstance(self.formula, type),
            f"formula must be a function of one point, got {shown(self.formula)}.",
        )
        require(
            self.maximum.ndim == 0, f"maximum must be one number, got shape {self.maximum.shape}."
        )
        require(
            self.lower.shape == self.upper.shape == self.maximizers.shape[1:]
            and self.maximizers.ndim == 2,
            "lower, upper and each row of maximizers need one number a coordinate, got shapes "
            f"{self.lower.shape}, {self.upper.shape} and {self.maximizers.shape}.",
        )
        require(
            jnp.isfinite(self.upper - self.lower) & (self.lower < self.upper),
            f"lower must be finite and below upper, got {self.lower} and {self.upper}.",
        )
        require(
            (self.maximizers >= 0) & (self.maximizers <= 1),
            f"maximizers must lie in the unit cube, got {self.maximizers}: map them there with "
            "(x - lower) / (upper - lower).",
        )

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.lower.size

    def __call__(self, x: Point) -> Scalar:
        require(
            x.shape == self.lower.shape,
            f"{self.name} is a function of {self.dim} coordinates, x has shape {x.shape}.",
        )
        lower, upper = self.lower.astype(x.dtype), self.upper.astype(x.dtype)
        return self.formula(lower + (upper - lower) * x)


def ackley5() -> TestFunction:
    """Ackley in [0, 1]^5, maximized as it stands (EGP-TS, Table 1).

    Its maximum is 4.710965, at ten points: two coordinates at 1, three at 0.576666. The paper prints
    4.6930, a local maximum. Regret against it goes negative.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.ackley5()
        >>> function.dim, round(float(function.maximum), 3)
        (5, 4.711)
    """
    inner, places = 0.5766656189752691, range(5)
    maximizers = [
        [1.0 if i in (j, k) else inner for i in places] for j in places for k in places if j < k
    ]
    return _on_box("ackley5", _ackley, [0] * 5, [1] * 5, 4.71096504291836, maximizers)


def zakharov(dim: int = 4) -> TestFunction:
    """Negated Zakharov in [-5, 10]^dim (EGP-TS, with dim = 4).

    Its maximum is 0, at the origin.

    Args:
        dim: Number of coordinates, at least 1.

    Returns:
        The function, on the unit cube.

    Raises:
        ValueError: `dim` is less than 1.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.zakharov()
        >>> function.dim, round(float(function.maximum), 3)
        (4, 0.0)
    """
    whole("dim", dim, least=1)
    return _on_box("zakharov", _zakharov, [-5] * dim, [10] * dim, 0, [[0] * dim])


def dropwave() -> TestFunction:
    """Negated drop-wave in [-5.12, 5.12]^2 (EGP-TS).

    Its maximum is 1, at the origin.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.dropwave()
        >>> function.dim, round(float(function.maximum), 3)
        (2, 1.0)
    """
    return _on_box("dropwave", _dropwave, [-5.12] * 2, [5.12] * 2, 1, [[0, 0]])


def eggholder() -> TestFunction:
    """Negated eggholder in [-512, 512]^2 (EGP-TS).

    Its maximum is 959.6407, on the edge x₁ = 512.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.eggholder()
        >>> function.dim, round(float(function.maximum), 2)
        (2, 959.64)
    """
    best = [[512, 404.2318051201336]]
    return _on_box("eggholder", _eggholder, [-512] * 2, [512] * 2, 959.6406627208507, best)


def hartmann3() -> TestFunction:
    """Negated Hartmann function in [0, 1]^3.

    Its maximum is 3.86278.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.hartmann3()
        >>> function.dim, round(float(function.maximum), 3)
        (3, 3.863)
    """
    best = [[0.11458887012795324, 0.5556488949542697, 0.8525469845266573]]
    return _on_box("hartmann3", _hartmann3, [0] * 3, [1] * 3, 3.862779787332663, best)


def hartmann6() -> TestFunction:
    """Negated Hartmann function in [0, 1]^6 (DEC-HBO).

    Its maximum is 3.32237.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.hartmann6()
        >>> function.dim, round(float(function.maximum), 3)
        (6, 3.322)
    """
    best = [0.20168950910655, 0.1500106900645928, 0.47687397779107643, 0.2753324307905754]
    best += [0.31165161859162804, 0.6573005330913106]
    return _on_box("hartmann6", _hartmann6, [0] * 6, [1] * 6, 3.3223680114155147, [best])


def shekel4() -> TestFunction:
    """Negated Shekel function in [0, 10]^4 with ten peaks (DEC-HBO).

    Its maximum is 10.5364. The seventh peak is at (5, 3, 5, 3), as in today's libraries. Older
    collections have it at (5, 5, 3, 3), which changes the maximum by 3e-5. The paper does not print its
    constants.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.shekel4()
        >>> function.dim, round(float(function.maximum), 3)
        (4, 10.536)
    """
    best = [[4.000746868845845, 3.9995094815629673, 4.000746868845845, 3.9995094815629673]]
    return _on_box("shekel4", _shekel4, [0] * 4, [10] * 4, 10.536443153483528, best)


def michalewicz10() -> TestFunction:
    """Negated Michalewicz function in [0, π]^10, steepness m = 10 (DEC-HBO).

    Its maximum is 9.66015.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.michalewicz10()
        >>> function.dim, round(float(function.maximum), 2)
        (10, 9.66)
    """
    half = math.pi / 2
    best = [2.2029055199529126, half, 1.284991570272413, 1.9230584696163617, 1.7204697722211917]
    best += [half, 1.454413971098677, 1.756086520760216, 1.6557174165475732, half]
    return _on_box(
        "michalewicz10", _michalewicz, [0] * 10, [math.pi] * 10, 9.66015171564134, [best]
    )


def branin() -> TestFunction:
    """Negated Branin function in [-5, 10] x [0, 15].

    Its maximum is -0.397887, at three points.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.branin()
        >>> function.dim, round(float(function.maximum), 3)
        (2, -0.398)
    """
    return _on_box("branin", _branin, [-5, 0], [10, 15], -0.39788735772973816, _BRANIN_BEST)


def branin_rescaled() -> TestFunction:
    """Branin as CEPE's appendix D scales it: negated, with mean about 0 and variance about 1.

    Its maximum is 1.04739, at three points.

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.branin_rescaled()
        >>> function.dim, round(float(function.maximum), 3)
        (2, 1.047)
    """
    best = (54.81 - 0.39788735772973816) / 51.95
    return _on_box("branin_rescaled", _branin_rescaled, [-5, 0], [10, 15], best, _BRANIN_BEST)


def sobester() -> TestFunction:
    """(6x - 2)² sin(12x - 4), summed over [0, 1]^2, maximized as it stands (CEPE, appendix D).

    Its maximum is 31.6595, in the corner (1, 1).

    Returns:
        The function, on the unit cube.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.sobester()
        >>> function.dim, round(float(function.maximum), 2)
        (2, 31.66)
    """
    return _on_box("sobester", _sobester, [0, 0], [1, 1], 32 * math.sin(8), [[1, 1]])


def rosenbrock(dim: int = 2) -> TestFunction:
    """Negated Rosenbrock function in [-5, 10]^dim.

    Its maximum is 0, at (1, ..., 1).

    Args:
        dim: Number of coordinates, at least 2.

    Returns:
        The function, on the unit cube.

    Raises:
        ValueError: `dim` is less than 2.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.rosenbrock()
        >>> function.dim, round(float(function.maximum), 3)
        (2, 0.0)
    """
    whole("dim", dim, least=2)
    return _on_box("rosenbrock", _rosenbrock, [-5] * dim, [10] * dim, 0, [[1] * dim])


def sphere(dim: int = 2) -> TestFunction:
    """Negated sum of squares in [-5.12, 5.12]^dim.

    Its maximum is 0, in the center.

    Args:
        dim: Number of coordinates, at least 1.

    Returns:
        The function, on the unit cube.

    Raises:
        ValueError: `dim` is less than 1.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.sphere()
        >>> function.dim, round(float(function.maximum), 3)
        (2, 0.0)
    """
    whole("dim", dim, least=1)
    return _on_box("sphere", _sphere, [-5.12] * dim, [5.12] * dim, 0, [[0] * dim])


def levy(dim: int = 2) -> TestFunction:
    """Negated Levy function in [-10, 10]^dim.

    Its maximum is 0, at (1, ..., 1).

    Args:
        dim: Number of coordinates, at least 1.

    Returns:
        The function, on the unit cube.

    Raises:
        ValueError: `dim` is less than 1.

    Example:
        >>> import jaxbo
        >>> function = jaxbo.functions.levy()
        >>> function.dim, round(float(function.maximum), 3)
        (2, 0.0)
    """
    whole("dim", dim, least=1)
    return _on_box("levy", _levy, [-10] * dim, [10] * dim, 0, [[1] * dim])


def _on_box(
    name: str,
    formula: Function,
    lower: list[Any],
    upper: list[Any],
    maximum: ArrayLike,
    maximizers: list[Any],
) -> TestFunction:
    """A test function from maximizers in original units."""
    low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    cube = (np.asarray(maximizers, np.float64) - low) / (high - low)
    return TestFunction(name, formula, low, high, maximum, cube)


# The formulas, in original units and of one point.


def _root(square: Scalar) -> Scalar:
    """√square, with a finite derivative at 0."""
    return jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))


def _ackley(x: Point) -> Scalar:
    distance, ripple = _root(jnp.mean(x**2)), jnp.mean(jnp.cos(2 * math.pi * x))
    return -20 * jnp.exp(-0.2 * distance) - jnp.exp(ripple) + 20 + math.e


def _zakharov(x: Point) -> Scalar:
    weighted = jnp.sum(0.5 * jnp.arange(1, x.size + 1, dtype=x.dtype) * x)
    return -(jnp.sum(x**2) + weighted**2 + weighted**4)


def _dropwave(x: Point) -> Scalar:
    square = jnp.sum(x**2)
    return (1 + jnp.cos(12 * _root(square))) / (0.5 * square + 2)


def _eggholder(x: Point) -> Scalar:
    y = x[1] + 47
    return y * jnp.sin(_root(jnp.abs(y + x[0] / 2))) + x[0] * jnp.sin(_root(jnp.abs(x[0] - y)))


_HARTMANN_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN3_SCALES = np.array([[3.0, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
_HARTMANN3_CENTERS = 1e-4 * np.array(
    [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
)
_HARTMANN6_SCALES = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_HARTMANN6_CENTERS = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def _hartmann(x: Point, scales: np.ndarray, centers: np.ndarray) -> Scalar:
    offsets = x[None, :] - jnp.asarray(centers, x.dtype)
    exponents = jnp.sum(jnp.asarray(scales, x.dtype) * offsets**2, axis=1)
    return jnp.sum(jnp.asarray(_HARTMANN_WEIGHTS, x.dtype) * jnp.exp(-exponents))


def _hartmann3(x: Point) -> Scalar:
    return _hartmann(x, _HARTMANN3_SCALES, _HARTMANN3_CENTERS)


def _hartmann6(x: Point) -> Scalar:
    return _hartmann(x, _HARTMANN6_SCALES, _HARTMANN6_CENTERS)


_SHEKEL_WIDTHS = np.array([0.1, 0.2, 0.2, 0.4, 0.4, 0.6, 0.3, 0.7, 0.5, 0.5])
# Each peak repeats its first two coordinates.
_SHEKEL_PEAKS = np.tile(
    [[4, 4], [1, 1], [8, 8], [6, 6], [3, 7], [2, 9], [5, 3], [8, 1], [6, 2], [7, 3.6]], (1, 2)
)


def _shekel4(x: Point) -> Scalar:
    squares = jnp.sum((x[None, :] - jnp.asarray(_SHEKEL_PEAKS, x.dtype)) ** 2, axis=1)
    return jnp.sum(1 / (jnp.asarray(_SHEKEL_WIDTHS, x.dtype) + squares))


def _michalewicz(x: Point) -> Scalar:
    i = jnp.arange(1, x.size + 1, dtype=x.dtype)
    return jnp.sum(jnp.sin(x) * jnp.sin(i * x**2 / math.pi) ** 20)


_BRANIN_BEST = [[-math.pi, 12.275], [math.pi, 2.275], [3 * math.pi, 2.475]]


def _branin(x: Point) -> Scalar:
    u, v = x
    valley = v - 5.1 / (4 * math.pi**2) * u**2 + 5 / math.pi * u - 6
    return -(valley**2 + 10 * (1 - 1 / (8 * math.pi)) * jnp.cos(u) + 10)


def _branin_rescaled(x: Point) -> Scalar:
    return (_branin(x) + 54.81) / 51.95


def _sobester(x: Point) -> Scalar:
    return jnp.sum((6 * x - 2) ** 2 * jnp.sin(12 * x - 4))


def _rosenbrock(x: Point) -> Scalar:
    return -jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _sphere(x: Point) -> Scalar:
    return -jnp.sum(x**2)


def _levy(x: Point) -> Scalar:
    w = 1 + (x - 1) / 4
    bumps = jnp.sum((w[:-1] - 1) ** 2 * (1 + 10 * jnp.sin(math.pi * w[:-1] + 1) ** 2))
    last = (w[-1] - 1) ** 2 * (1 + jnp.sin(2 * math.pi * w[-1]) ** 2)
    return -(jnp.sin(math.pi * w[0]) ** 2 + bumps + last)
