"""The mean of agents' weights by the evidence of all, from sums over agents.

    w_n ~ N(m, s S),   m ~ N(0, s S / κ)        S = R R' is given; s and κ are not
    A = R⁻¹ Σ G_n'G_n R⁻' = Q Λ Q'              how much agents know (`shared_prior`)
    b = Q'R⁻¹ Σ d_n + Λ Q'R⁻¹ m₀                what they know, from a mean of 0 instead of m₀

For each κ the mean of m is R Q (Λ + κ)⁻¹ b, and its covariance is s R Q (Λ + κ)⁻¹ Q'R'. The values have

    log p(y) = -((T + 1) log s + Σ log(1 + Λ_i / κ)) / 2 + …,    s = (χ - b'(Λ + κ)⁻¹ b + u) / (T + 1)

with s at its most likely, as if there were a further value, of a variance u that is expected. Here
χ = Σ |R⁻¹ E[w_n]|², as agents would have it under a mean of 0, has T = Σ Λ_i degrees of freedom.
That is all of the values' square without noise, and their number. Terms that depend on neither s
nor κ are left out. So the evidence does not depend on the unit of values.

κ is an element of `TIMES` times a given number, each as likely as the others before. If functions
have much in common, small elements are likely. If they have nothing in common, large elements keep
m near 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxbo.kernels import linalg
from jaxbo.types import Features, Scalar

#: How many times the least κ a κ may be.
TIMES = tuple(2.0**i for i in range(7))
#: No mean explains more of χ than all but so much.
_LEAST = 1e-3


class MeanEstimate(NamedTuple):
    """How far the mean moves, the rest of Σ d_n then, and the covariance of its error if known."""

    step: Features
    left: Features
    error: PyTree


def estimated(
    root: Float[Array, "features features"],
    gained: Float[Array, "features features"],
    away: Float[Array, "features features"],
    shift: Features,
    mean: Features,
    shrink: Scalar,
    unit: Scalar,
    centered: Scalar,
) -> MeanEstimate:
    """From R, lower triangular, the sums of G_n'G_n, d_n d_n' and d_n, m₀, the least κ, and u.

    `centered` is how many degrees of freedom are lost: the agents whose own means were taken from values.
    """
    known, turn = jnp.linalg.eigh(_both(root, gained))
    known = jnp.maximum(known, 0)
    whiten = lambda w: linalg.dot(turn.T, linalg.solve_lower(root, w))  # noqa: E731
    before, gradient = whiten(mean), whiten(shift)
    b = gradient + known * before
    freedom = jnp.maximum(jnp.sum(known) - centered, 0)
    # Of all agents, for E[w_n] under a mean of 0.
    square = jnp.trace(_both(root, away)) + linalg.inner(before, gradient + b)

    def under(times: Scalar) -> tuple[Scalar, Features, Features]:
        """The evidence of a κ in nats, and the mean and the variances of m under it."""
        precision = known + times * shrink
        unexplained = jnp.maximum(square - linalg.inner(b / precision, b), _LEAST * square)
        s = jnp.maximum((unexplained + unit) / (freedom + 1), jnp.finfo(square.dtype).tiny)
        volume = jnp.sum(jnp.log(precision / (times * shrink)))
        return -0.5 * ((freedom + 1) * jnp.log(s) + volume), b / precision, s / precision

    logs, means, variances = jax.vmap(under)(jnp.asarray(TIMES, known.dtype))
    weights = jax.nn.softmax(logs)
    new = linalg.dot(weights, means)
    apart = jax.vmap(lambda weight, mean: jnp.sqrt(weight) * (mean - new))(weights, means)
    spread = jnp.diag(linalg.dot(weights, variances)) + linalg.dot(apart.T, apart)
    color = linalg.dot(root, turn)
    error = linalg.dot(color, linalg.dot(spread, color.T))
    return MeanEstimate(linalg.dot(color, new) - mean, linalg.dot(color, b - known * new), error)


def _both(
    root: Float[Array, "features features"], matrix: Float[Array, "features features"]
) -> Float[Array, "features features"]:
    """R⁻¹ A R⁻' of a symmetric A."""
    half = linalg.solve_lower(root, (matrix + matrix.T) / 2)
    whole = linalg.solve_lower(root, half.T)
    return (whole + whole.T) / 2
