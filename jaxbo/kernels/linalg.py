"""Products, triangular solves and a Cholesky factorization at full precision.

    solve_lower(L, B) = L^-1 B,   solve_upper(L, B) = L'^-1 B,   inverse_lower(L) = L^-1
    triangle(A) = the lower triangle of a symmetric A, row by row,   symmetric(triangle(A)) = A
    cholesky(K, floor) = L with L L' = K,   whiten(L, k, spare) = L^-1 k with |L^-1 k|^2 <= spare

Matrix products default to TF32 on GPUs and bfloat16 on TPUs, which ruins a Gaussian process
silently. Every product in the core goes through `dot`, so the choice is made here, once.

The solves and the factorization are loops over rows in plain lax. Under vmap each step is a single
batched product, over agents and right-hand sides at once. Their time is that of the library's
triangular solve on a good day; on a bad day that routine, batched and with many right-hand sides,
was measured to take over a hundred times as long on CPU, because it starts threads of its own from
inside XLA's.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

#: Panels of columns in `cholesky`. More skip more of what is zero, but each is compiled: with four
#: the fit took twice as long to compile as with two and ran no faster.
_PANELS = 2
#: Rows of the smallest blocks in `inverse_lower`, at most.
_BLOCK = 32


def dot(a: Float[Array, "*a"], b: Float[Array, "*b"]) -> Float[Array, "*c"]:
    """`jnp.matmul` at full precision on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def inner(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, ""]:
    """The sum of a b, as a product with a vector of 1s.

    XLA's code for a sum over the last axis adds on CPU number after number, and its batched product
    of two vectors does too. With a vector of 1s, which has no axis of the batch, it is a product of
    a matrix and a vector, at about half the time.
    """
    return dot(a * b, jnp.ones(a.shape, a.dtype))


def triangle(A: Float[Array, "n n"]) -> Float[Array, " triangle"]:
    """The lower triangle of a symmetric matrix, row by row: half as many numbers."""
    return A[np.tril_indices(A.shape[0])]


def symmetric(t: Float[Array, " triangle"]) -> Float[Array, "n n"]:
    """The symmetric matrix with this lower triangle."""
    n = (math.isqrt(8 * t.shape[0] + 1) - 1) // 2
    row, column = np.indices((n, n))
    low, high = np.minimum(row, column), np.maximum(row, column)
    return t[high * (high + 1) // 2 + low]


def solve_lower(
    L: Float[Array, "capacity capacity"], B: Float[Array, " capacity *columns"]
) -> Float[Array, " capacity *columns"]:
    """X with L X = B, by forward substitution: a single right-hand side, or a right-hand side in
    each column of B.

    Only the lower triangle of L is read. Its diagonal must not hold 0: rows that are not in use
    are rows of the identity. Differentiable in L and B, any number of times, forward and reverse.
    """
    return _solve(jnp.tril(L), B, transpose=False)


def solve_upper(
    L: Float[Array, "capacity capacity"], B: Float[Array, " capacity *columns"]
) -> Float[Array, " capacity *columns"]:
    """X with L'X = B, by back substitution; L is the same lower triangle as in `solve_lower`."""
    return _solve(jnp.tril(L), B, transpose=True)


def inverse_lower(L: Float[Array, "capacity capacity"]) -> Float[Array, "capacity capacity"]:
    """L^-1, of which only the lower triangle is read; its diagonal must not hold 0.

    By halves: all diagonal blocks at once, then pairs of them by products. Three times as fast as
    substitution of the identity at 110 rows.
    """
    size, doublings = L.shape[0], 0
    while -(-size // 2**doublings) > _BLOCK:
        doublings += 1
    width = -(-size // 2**doublings)
    whole = width * 2**doublings
    # Rows of the identity fill up the last block.
    T = jnp.eye(whole, dtype=L.dtype).at[:size, :size].set(jnp.tril(L))
    blocks = jnp.stack([T[i : i + width, i : i + width] for i in range(0, whole, width)])
    identity = jnp.eye(width, dtype=L.dtype)
    inverses = jax.vmap(lambda block: _substitute(block, identity, range(width)))(blocks)
    for level in range(doublings):
        side = width * 2**level
        corners = [T[i + side : i + 2 * side, i : i + side] for i in range(0, whole, 2 * side)]
        first, second = inverses[::2], inverses[1::2]
        corner = -dot(dot(second, jnp.stack(corners)), first)
        top = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
        inverses = jnp.concatenate([top, jnp.concatenate([corner, second], axis=2)], axis=1)
    return inverses[0, :size, :size]


def cholesky(
    K: Float[Array, "capacity capacity"], floor: Float[Array, ""]
) -> Float[Array, "capacity capacity"]:
    """The lower triangular L with L L' = K, for K = C + floor I with a positive semidefinite C.

    Never NaN, in any precision. In exact arithmetic each row of L without its pivot has a squared
    norm of at most C_ii, and each squared pivot is at least `floor`. Both are enforced entry by
    entry, which corrects nothing but rounding; without it, rounding that makes K indefinite grows
    from row to row until it overflows. Only the lower triangle of K is read. Takes twice as long
    as `jnp.linalg.cholesky`, which gives NaN where K is not positive definite after rounding.
    """
    size = K.shape[0]
    spare = jnp.maximum(jnp.diagonal(K) - floor.astype(K.dtype), 0)
    L = jnp.zeros_like(K)
    width = -(-size // _PANELS)
    for first in range(0, size, width):
        last = min(first + width, size)
        left = K[first:, first:last] - dot(L[first:, :first], L[first:last, :first].T)
        panel, below = _panel(left, spare[first:], floor.astype(K.dtype))
        L = L.at[first:, first:last].set(panel)
        spare = jnp.concatenate([spare[:first], below])
    return L


def _panel(
    left: Float[Array, "rows width"], spare: Float[Array, " rows"], floor: Float[Array, ""]
) -> tuple[Float[Array, "rows width"], Float[Array, " rows"]]:
    """The columns of the factor from the rest of K's columns, and what is left of each row."""
    rows = jnp.arange(left.shape[0])

    def column(j, carry):
        panel, spare = carry
        pivot = jnp.sqrt(spare[j] + floor)
        entries = _clip((left[:, j] - dot(panel, panel[j])) / pivot, spare)
        entries = jnp.where(rows > j, entries, 0)
        panel = panel.at[:, j].set(jnp.where(rows == j, pivot, entries))
        return panel, jnp.maximum(spare - entries**2, 0)

    return jax.lax.fori_loop(0, left.shape[1], column, (jnp.zeros_like(left), spare))


def whiten(
    L: Float[Array, "capacity capacity"], k: Float[Array, " capacity"], spare: Float[Array, ""]
) -> Float[Array, " capacity"]:
    """w with L w = k, where |w|^2 is known to be at most `spare`.

    The next row of `cholesky` for the covariances k with the points so far: `spare` is then the
    point's own variance, and the bound keeps rounding from growing in the same way.
    """

    def row(i, carry):
        w, spare = carry
        value = _clip((k[i] - dot(L[i], w)) / L[i, i], spare)
        return w.at[i].set(value), jnp.maximum(spare - value**2, 0)

    start = jnp.zeros_like(k), jnp.maximum(spare, 0)
    return jax.lax.fori_loop(0, k.shape[0], row, start)[0]


def _clip(value: Float[Array, "*a"], spare: Float[Array, "*a"]) -> Float[Array, "*a"]:
    # The bound is no function of the inputs to be differentiated: exactly, it never acts.
    bound = jnp.sqrt(jax.lax.stop_gradient(spare))
    return jnp.clip(value, -bound, bound)


def _solve(
    L: Float[Array, "capacity capacity"], B: Float[Array, " capacity *columns"], transpose: bool
) -> Float[Array, " capacity *columns"]:
    # `custom_linear_solve` differentiates the solution through two more solves, not the loop.
    forward = (lambda X: dot(L, X), lambda _, B: _substitute(L, B, range(L.shape[0])))
    back = (lambda X: dot(L.T, X), lambda _, B: _substitute(L.T, B, range(L.shape[0])[::-1]))
    (matvec, solve), (_, transpose_solve) = (back, forward) if transpose else (forward, back)
    return jax.lax.custom_linear_solve(matvec, B, solve, transpose_solve)


def _substitute(
    T: Float[Array, "capacity capacity"], B: Float[Array, " capacity *columns"], order: range
) -> Float[Array, " capacity *columns"]:
    """T X = B for a triangular T whose row `order[i]` needs only rows `order[:i]` of X."""

    def row(i, X):
        i = order.start + order.step * i
        # Rows of X not reached yet are 0, so the whole row of T may be multiplied.
        return X.at[i].set((B[i] - dot(T[i], X)) / T[i, i])

    return jax.lax.fori_loop(0, len(order), row, jnp.zeros_like(B))
