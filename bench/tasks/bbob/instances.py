"""The arrays of an instance of a BBOB function.

All functions of a dimension have arrays of the same shapes, so the same program takes any of them.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from bench.tasks.bbob import draws

#: The rotation R has a seed of its own, so much larger than that of Q.
APART = 1_000_000
#: Two functions share the optimum and the rotations of another one.
SAME_SEED = {4: 3, 18: 17}
#: Rosenbrock's valley turned, and Griewank's function on it; Gallagher's peaks, so many of them.
TURNED, PEAKS = (9, 19), {21: 101, 22: 21}
MOST_PEAKS = max(PEAKS.values())
#: A hundredth of the coordinates at which Schwefel's own function has its optimum.
SCHWEFEL = 4.2096874637
#: The better center of Lunacek's function.
LUNACEK = 2.5


class Peaks(NamedTuple):
    """The peaks of Gallagher's functions: centers, factors of squared distances, and heights.

    The first peak is the optimum, of height 10. A height of 0 stands for no peak.
    """

    centers: Float[Array | np.ndarray, "peaks dim"]
    scales: Float[Array | np.ndarray, "peaks dim"]
    heights: Float[Array | np.ndarray, " peaks"]


class Instance(NamedTuple):
    """The number of a function, its optimum and the value there, and the paper's rotations R and Q."""

    number: Int[Array | np.ndarray, ""]
    optimum: Float[Array | np.ndarray, " dim"]
    value: Float[Array | np.ndarray, ""]
    R: Float[Array | np.ndarray, "dim dim"]
    Q: Float[Array | np.ndarray, "dim dim"]
    peaks: Peaks


def instance(number: int, dim: int, index: int) -> Instance:
    """Instance `index` of function `number`, in NumPy's float64. `ValueError` if there is none."""
    if not (1 <= number <= 24 and dim >= 2 and index >= 1):
        raise ValueError(
            f"expected a function of 1 to 24, 2 dimensions or more and an instance from 1 on, got "
            f"{number}, {dim} and {index}."
        )
    seed = SAME_SEED.get(number, number) + 10_000 * index
    Q = draws.rotation(dim, seed)
    peaks = _peaks(number, dim, seed)
    return Instance(
        np.asarray(number, np.int32),
        peaks.centers[0] if number in PEAKS else _optimum(number, dim, seed, Q),
        np.asarray(draws.value(seed)),
        draws.rotation(dim, seed + APART),
        Q,
        peaks,
    )


def _optimum(
    number: int, dim: int, seed: int, Q: Float[np.ndarray, "dim dim"]
) -> Float[np.ndarray, " dim"]:
    """The optimum of a function without peaks."""
    x = draws.optimum(dim, seed + APART if number == 12 else seed)
    if number in TURNED:
        return Q.sum(axis=0) / (2 * stretch(dim))
    if number == 4:
        return np.where(np.arange(dim) % 2 == 0, np.abs(x), x)
    if number == 5:
        return np.where(x > 0, 5.0, -5.0)
    if number == 8:
        return 0.75 * x
    if number == 20:
        return np.where(draws.uniform(dim, seed) < 0.5, -1, 1) * SCHWEFEL / 2
    if number == 24:
        return np.where(draws.normal(dim, seed) < 0, -1, 1) * LUNACEK / 2
    return x


def stretch(dim: int) -> float:
    """The factor that keeps the valley of Rosenbrock's functions in the box."""
    return max(1.0, math.sqrt(dim) / 8)


def _peaks(number: int, dim: int, seed: int) -> Peaks:
    """The peaks of an instance; other functions than Gallagher's have none."""
    centers, scales = np.zeros((2, MOST_PEAKS, dim))
    heights, count = np.zeros(MOST_PEAKS), PEAKS.get(number, 0)
    if count:
        width = 10.0 if count == MOST_PEAKS else 9.8
        centers[:count] = width * draws.uniform(count * dim, seed).reshape(count, dim) - width / 2
        centers[0] *= 0.8
        heights[:count] = [10.0, *np.linspace(1.1, 9.1, count - 1)]
        scales[:count] = _scales(count, dim, seed)
    return Peaks(centers, scales, heights)


def _scales(count: int, dim: int, seed: int) -> Float[np.ndarray, "count dim"]:
    """The factors of every peak, in an order of its own."""
    first = 1000.0 if count < MOST_PEAKS else math.sqrt(1000)
    order = np.argsort(draws.uniform(count - 1, seed))
    conditions = np.array([first, *1000 ** (order / (count - 2))])
    orders = [np.argsort(draws.uniform(dim, seed + 1000 * peak)) for peak in range(count)]
    return conditions[:, None] ** (np.stack(orders) / (dim - 1) - 0.5)
