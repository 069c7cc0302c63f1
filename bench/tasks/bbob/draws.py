"""The published generator of BBOB's instances, on the host and in float64.

uniform     Park and Miller's minimal standard, shuffled through a table of 32
normal      Box and Muller's cosine
rotation    Gram and Schmidt on the columns of a matrix of normal numbers
"""

import math

import numpy as np
from jaxtyping import Float

#: The congruential generator is x <- A x mod M, by Schrage's division M = A Q + R.
_A, _M, _Q, _R = 16807, 2147483647, 127773, 2836
#: The first numbers are not used; the last of these fill the table.
_WARM, _TABLE = 40, 32
#: The width of a row of the table: the largest number belongs to the last one.
_ROW = 67108865
#: It replaces 0, which has no logarithm.
_TINY = 1e-99


def uniform(count: int, seed: int) -> Float[np.ndarray, " count"]:
    """Numbers in (0, 1]."""
    state, table = max(abs(seed), 1), [0] * _TABLE
    for place in reversed(range(_WARM)):
        state = _next(state)
        if place < _TABLE:
            table[place] = state
    last, found = table[0], np.empty(count)
    for i in range(count):
        state, row = _next(state), last // _ROW
        last, table[row] = table[row], state
        found[i] = last / _M
    return np.where(found == 0, _TINY, found)


def _next(state: int) -> int:
    state = _A * (state % _Q) - _R * (state // _Q)
    return state + _M if state < 0 else state


def normal(count: int, seed: int) -> Float[np.ndarray, " count"]:
    """Standard normal numbers."""
    radius, angle = np.split(uniform(2 * count, seed), 2)
    found = np.sqrt(-2 * np.log(radius)) * np.cos(2 * math.pi * angle)
    return np.where(found == 0, _TINY, found)


def rotation(dim: int, seed: int) -> Float[np.ndarray, "dim dim"]:
    """An orthogonal matrix."""
    found = normal(dim * dim, seed).reshape(dim, dim).T.copy()
    for i in range(dim):
        for j in range(i):
            found[:, i] -= (found[:, i] @ found[:, j]) * found[:, j]
        found[:, i] /= np.linalg.norm(found[:, i])
    return found


def optimum(dim: int, seed: int) -> Float[np.ndarray, " dim"]:
    """A point of [-4, 4]^dim, on a grid of width 0.0008 and off the axes."""
    found = 8 * np.floor(1e4 * uniform(dim, seed)) / 1e4 - 4
    return np.where(found == 0, -1e-5, found)


def value(seed: int) -> float:
    """The value of an optimum: Cauchy's distribution, two digits, within [-1000, 1000]."""
    (above,), (below,) = normal(1, seed), normal(1, seed + 1)
    return float(np.clip(np.floor(1e4 * above / below + 0.5) / 100, -1000, 1000))
