"""Hyperparameters that agents agree on by pooled evidence, without sending data.

    C y_n ~ N(0, v_n C K_s C'),   K_s = k_s(X_n, X_n) + noise_s I,   C 1 = 0
    E_n(s) = max over v_n of log N(C y_n)                  agent n's log evidence of setting s
    log θ  = Σ_s w_s log θ_s,    w = softmax(Σ_n E_n)      what all agree on

C are contrasts of an agent's values: offset and scale are the agent's own, and the evidence is of what
is left when both are taken out (restricted likelihood). Of values that were only standardized, that of
smooth functions would point to length scales shorter than theirs.

Were the agents' functions independent draws of one process, Σ E_n would be the log evidence of all
data. The settings s are the same points of low discrepancy in the box of `Fitted`'s bounds for all
agents, so what is sent is one number a setting, and a sum is all that anybody needs.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from scipy.stats import qmc

from jaxbo._check import whole
from jaxbo.kernels import fit, linalg
from jaxbo.kernels.covariance import AbstractKernel
from jaxbo.kernels.fitted import Fitted, FittedBelief
from jaxbo.types import Scalar

#: An agent's scale is found as if so many more contrasts had the one expected.
_SHRINK = 2


class Restricted(NamedTuple):
    """Of one setting: log evidence of contrasts up to a constant, their number and weighed squares."""

    log_evidence: Scalar
    contrasts: Scalar
    squares: Scalar


class Pooled(eqx.Module):
    """Agents agree on length scales and noise over signal variance, a mean weighted by evidence.

    One length scale and the noise are covered well by the default number of `settings`; with one a
    coordinate, take more. An agent keeps a scale of its own: the signal variance that its values have
    under the agreed setting, drawn towards that of `Fitted.kernel` while there are few. Sends `settings`
    floats an agent and message; a query takes O(settings capacity³).

    `ValueError` for less than one setting.
    """

    settings: int = eqx.field(static=True, default=128)

    def __check_init__(self):
        whole("settings", self.settings, least=1)

    def evidence(self, own: Fitted, belief: FittedBelief) -> Float[Array, " settings"]:
        """Log evidence in nats of one agent's values under each setting, its largest 0.

        What is common to all settings does not matter, and float32 has digits only for the rest. All are
        0 before there are values that differ.
        """
        problem = _problem(own, belief)
        found = jax.vmap(lambda theta: restricted(problem, theta).log_evidence)
        evidences = found(self._points(problem))
        return (evidences - jnp.max(evidences)).astype(belief.y.dtype)

    def agreed(
        self, own: Fitted, belief: FittedBelief, total: Float[Array, " settings"]
    ) -> tuple[AbstractKernel, Scalar]:
        """One agent's kernel and noise by the sum of all agents' evidences, and the priors of `own`."""
        problem = _problem(own, belief)
        points = self._points(problem)
        logs = total.astype(points.dtype) + jax.vmap(problem.log_prior)(points)
        theta = jnp.sum(jax.nn.softmax(logs)[:, None] * points, axis=0)
        kernel, noise = problem.unpack(theta)
        _, contrasts, squares = restricted(problem, theta)
        scale = ((_SHRINK + squares) / (_SHRINK + contrasts)).astype(noise.dtype)
        return kernel.with_hyperparameters(
            kernel.length_scale, scale * kernel.variance
        ), scale * noise

    def _points(self, problem: fit.Problem) -> Float[Array, "settings parameters"]:
        sequence = qmc.Halton(problem.low.size, scramble=False).fast_forward(1)  # the first is 0
        shares = jnp.asarray(sequence.random(self.settings), problem.low.dtype)
        return problem.low[None, :] + shares * (problem.high - problem.low)[None, :]


def _problem(own: Fitted, belief: FittedBelief) -> fit.Problem:
    return fit.of_data(
        own.kernel,
        own.noise,
        belief.x,
        belief.standardized,
        bounds=own.limits,
        priors=own.priors,
        free=(not own.keep_length_scale, False, True),
    )


def restricted(problem: fit.Problem, theta: Float[Array, " parameters"]) -> Restricted:
    """The evidence of what does not depend on offset and scale, 0 where all values are the same.

        -(n - 1) / 2 log squares - log |K| / 2 - log(1'K⁻¹1) / 2,    squares = min over m of |y - m|²_K⁻¹

    (Patterson and Thompson, 1971), with the scale at its maximum.
    """
    kernel, noise = problem.unpack(theta)
    rows, y = problem.rows, problem.y
    ones = rows.astype(y.dtype)
    identity = jnp.eye(len(y), dtype=y.dtype)
    K = kernel.of_squares(problem.squares) + noise * identity
    L = linalg.cholesky(jnp.where(rows[:, None] & rows[None, :], K, identity), noise)
    white, flat = linalg.solve_lower(L, y), linalg.solve_lower(L, ones)
    length = jnp.maximum(linalg.inner(flat, flat), jnp.finfo(y.dtype).tiny)
    rest = white - linalg.inner(flat, white) / length * flat
    squares = linalg.inner(rest, rest)
    contrasts = jnp.maximum(jnp.sum(ones) - 1, 0)
    log_evidence = -(contrasts * jnp.log(squares) + jnp.log(length)) / 2
    log_evidence -= jnp.sum(jnp.log(jnp.diagonal(L)))
    told = (contrasts > 0) & jnp.any(y != 0)
    return Restricted(jnp.where(told, log_evidence, 0), contrasts, squares)
