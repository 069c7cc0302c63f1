"""Ensembles weighed by other evidence than the maximized one, to be compared with it.

    w_m ∝ exp(e_m / T),    e = log p(y | θ)                                  at the fitted θ
    or, by Laplace,        e = log p(y | θ) + log p(θ) - log det(I + S A S) / 2

θ are the log hyperparameters, A is minus the second derivatives of log p(y | θ), and S has the spreads
of the prior. The density of the prior is in units of its largest, so that Laplace's constants are gone:
the last term is the log of the share of the prior's volume that the data leave. A direction in which A
is negative leaves all of it. A flat prior stands for a Gaussian of the same largest density. A length
scale that several coordinates have in common is a single number.

With L L' = K, z = L⁻¹ y and W_i = L⁻¹ (dK / dθ_i) L'⁻¹,

    A_ij = z' W_i W_j z - tr(W_i W_j) / 2 - Σ (α α' - K⁻¹) ∘ (d²K / dθ_i dθ_j) / 2,    α = K⁻¹ y
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.ensemble import Ensemble, Experts
from jaxbo.kernels.models.fit import Problem
from jaxbo.kernels.models.fitted import Fitted, FittedBelief
from jaxbo.types import Scalar, floating


class Priced(Ensemble):
    """The ensemble with a temperature T, and with Laplace's evidence of exact experts if `laplace`."""

    temperature: Scalar = eqx.field(converter=floating, default=1.0)
    laplace: bool = eqx.field(static=True, default=False)

    def log_weights(self, shared: Experts, belief: FittedBelief) -> Float[Array, " experts"]:
        def evidence(expert: Fitted, phi: object, belief: FittedBelief) -> Scalar:
            del phi
            found = expert.log_evidence(belief)
            found += price(expert, belief) if self.laplace else 0
            return jnp.where(belief.told, found, 0)

        return jax.nn.log_softmax(shared.map(evidence, belief) / self.temperature)


def price(expert: Fitted, belief: FittedBelief) -> Scalar:
    """Laplace's evidence less the maximized evidence of an exact expert: 0 or less."""
    problem = fit.of_data(
        belief.kernel,
        belief.noise,
        belief.x,
        belief.standardized,
        bounds=expert.limits,
        priors=expert.prior,
    )
    S = spreads(problem)
    A = curvature(problem, belief.model.matrix)
    shares = jnp.linalg.eigvalsh(S[:, None] * A * S[None, :])
    volume = -jnp.sum(jnp.log1p(jnp.maximum(shares, 0))) / 2
    return problem.log_prior(problem.theta) + volume


def spreads(problem: Problem) -> Float[Array, " parameters"]:
    """The spreads of the prior of theta."""
    flat = (problem.high - problem.low) / math.sqrt(2 * math.pi)
    parts, first = [], 0
    sizes = {name: value.size for name, value in problem.kernel.hyperparameters.items()}
    for name, size in {**sizes, "noise": 1}.items():
        prior, own = getattr(problem.priors, name), flat[first : first + size]
        assert prior is None or isinstance(prior, fit.LogNormal)
        own = own if prior is None else jnp.full(size, prior.spread)
        # Length scales that are always the same make a step of 1 together with a step of 1 each.
        parts.append(own * jnp.sqrt(problem.kernel.alike) if name == "length_scale" else own)
        first += size
    return jnp.concatenate(parts)


def curvature(
    problem: Problem, inverse_root: Float[Array, "capacity capacity"]
) -> Float[Array, "parameters parameters"]:
    """Minus the second derivatives of the log evidence at the problem's theta, given L⁻¹."""
    identity = jnp.eye(len(problem.y), dtype=problem.y.dtype)
    pairs = problem.rows[:, None] & problem.rows[None, :]

    def covariance(theta: Float[Array, " parameters"]) -> Float[Array, "capacity capacity"]:
        kernel, noise = problem.unpack(theta)
        return jnp.where(pairs, kernel.of_squares(problem.squares) + noise * identity, 0)

    z = linalg.dot(inverse_root, problem.y)
    alpha = linalg.dot(z, inverse_root)
    gap = alpha[:, None] * alpha[None, :] - linalg.dot(inverse_root.T, inverse_root)
    bends = jax.hessian(lambda theta: jnp.sum(gap * covariance(theta)))(problem.theta)
    slopes = jnp.moveaxis(jax.jacfwd(covariance)(problem.theta), -1, 0)
    W = linalg.dot(linalg.dot(inverse_root, slopes), inverse_root.T)
    Wz = linalg.dot(W, z)
    traces = jnp.einsum("iab,jab->ij", W, W, precision=jax.lax.Precision.HIGHEST)
    return linalg.dot(Wz, Wz.T) - traces / 2 - bends / 2
