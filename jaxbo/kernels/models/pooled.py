"""Hyperparameters that agents agree on by pooled evidence, without sending data.

    C y_n ~ N(0, v_n C K_s C'),   K_s = k_s(X_n, X_n) + noise_s I,   C 1 = 0
    E_n(s) = max over v_n of log N(C y_n)                      agent n's log evidence of setting s
    log θ  = Σ_s w_s log θ_s,    w = softmax(Σ_n E_n / T)      what all agree on

C are contrasts of an agent's values: offset and scale are the agent's own, and the evidence is of
the rest when both are taken out (restricted likelihood). If values were only standardized, the
evidence of smooth functions would point to length scales shorter than theirs.

Were the agents' functions independent draws of the same process, Σ E_n would be the log evidence of
all data. The settings s are the same points of low discrepancy in the box of `Fitted`'s bounds for
all agents, so a message is a number a setting, and a sum is all that anybody needs. T is 1 until
fewer settings count than it takes to interpolate between them, however many agents there are.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbo._check import whole
from jaxbo._shown import Shown
from jaxbo.kernels import linalg
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.fitted import Fitted, FittedBelief
from jaxbo.kernels.processes.covariance import AbstractKernel, Kernel
from jaxbo.types import Count, Flag, Scalar

#: Settings at the same time: of each, all agents hold a matrix of capacity².
_BATCH = 16
#: So many settings are to count, beside one for each parameter.
_MORE = 2
#: Halvings of the interval of log T, from 0 to `_HOTTEST`.
_HALVINGS, _HOTTEST = 30, 30.0
#: An agent's scale is found as if so many more contrasts had that of its kernel.
_SHRINK = 2


class Restricted(NamedTuple):
    """Results for a setting: log evidence up to a constant, the number of contrasts, and y'C'(C K
    C')⁻¹C y.
    """

    log_evidence: Scalar
    contrasts: Scalar
    squares: Scalar
    told: Flag


class Pooled(Shown):
    """Agents agree on length scales and on noise over signal variance, by the sum of their evidences.

    They agree on a mean weighted by evidence. With a single length scale, it is within about a
    tenth of where the evidence is largest, and the noise is within a factor of 1.8. With a length
    scale a coordinate, take more `settings`.

    An agent keeps a scale of its own: the signal variance that its values have under the agreed
    setting. It is drawn towards the variance of `Fitted.kernel` while there are few values, and
    stays within its bounds.

    An agent's message has `settings` floats more. An agent's evidence takes O(settings capacity³),
    and 16 capacity² floats at once.

    Args:
        settings: Number of settings of the hyperparameters that are compared, at least 1. Default:
            128.

    Raises:
        ValueError: `settings` is below 1.

    Example:
        >>> import jaxbo
        >>> own = jaxbo.Fitted(20, refit_every=None)
        >>> method = jaxbo.FTS(jaxbo.Cube(2), agents=5, own=own, pooled=jaxbo.Pooled(settings=64))
        >>> method.pooled.settings
        64
    """

    settings: int = eqx.field(static=True, default=128)

    def __check_init__(self):
        whole("settings", self.settings, least=1)

    def check(self, own: object) -> None:
        """Checks that it can set a model's hyperparameters.

        Args:
            own: The agents' own model.

        Raises:
            ValueError: It cannot set them.
        """
        if not isinstance(own, Fitted) or own.refit_every is not None or own.warp:
            raise ValueError(
                f"pooled=Pooled() needs own=Fitted(..., refit_every=None, warp=False), to set its "
                f"hyperparameters, got {own}."
            )
        _spectral(own.kernel)

    def evidence(self, own: Fitted, belief: FittedBelief) -> Float[Array, " settings"]:
        """Computes the log evidence of an agent's values under each setting.

        A part that is common to all settings does not matter, and float32 has digits only for the
        rest.

        Args:
            own: The agents' own model.
            belief: The agent's belief.

        Returns:
            The log evidences in nats, the largest 0. All are 0 before there are values that differ
            by more than rounding.
        """
        problem = _problem(own, belief)
        one = lambda theta: restricted(problem, theta).log_evidence  # noqa: E731
        found = jax.lax.map(one, self._points(own, problem), batch_size=_BATCH)
        return (found - jnp.max(found)).astype(belief.y.dtype)

    def agreed(
        self, own: Fitted, belief: FittedBelief, total: Float[Array, " settings"]
    ) -> tuple[AbstractKernel, Scalar]:
        """Finds an agent's hyperparameters, by the sum of all agents' evidences and the priors of `own`.

        Args:
            own: The agents' own model.
            belief: The agent's belief.
            total: The sum of all agents' log evidences of each setting.

        Returns:
            The kernel and the noise variance.
        """
        problem = _problem(own, belief)
        points = self._points(own, problem)
        logs = total.astype(points.dtype) + jax.vmap(problem.log_prior)(points)
        weights = _tempered(logs, min(self.settings, sum(_free(own)) + _MORE))
        theta = linalg.dot(weights, points)
        found, noise = problem.unpack(theta)
        kernel = _spectral(found)
        _, contrasts, squares, told = restricted(problem, theta)
        start = jnp.sum(_spectral(own.kernel).variance)
        scale = (_SHRINK * start + squares) / (_SHRINK + contrasts)
        scale = jnp.clip(jnp.where(told, scale, start), *own.limits.variance).astype(noise.dtype)
        return kernel.with_hyperparameters(
            kernel.length_scale, scale * kernel.variance
        ), scale * noise

    def _points(self, own: Fitted, problem: fit.Problem) -> Float[Array, "settings parameters"]:
        free = _free(own)
        shares = np.zeros((self.settings, len(free)))
        shares[:, free] = fit.kronecker(self.settings, sum(free))
        width = (problem.high - problem.low)[None, :]
        return problem.low[None, :] + jnp.asarray(shares, width.dtype) * width


def _free(own: Fitted) -> list[bool]:
    """Which parameters differ from setting to setting: length scales, variances, noise."""
    kernel = _spectral(own.kernel)
    scales = [not own.keep_length_scale] * kernel.length_scale.size
    return [*scales, *[False] * kernel.variance.size, True]


def _spectral(kernel: Kernel) -> AbstractKernel:
    if not isinstance(kernel, AbstractKernel):
        raise ValueError(
            "agents agree on length scales, and a function k(x, z) has none: give a kernel such as "
            "Matern52(0.2)."
        )
    return kernel


def _problem(own: Fitted, belief: FittedBelief) -> fit.Problem:
    """For a signal variance of 1: noise is relative to it."""
    kernel = _spectral(own.kernel)
    variance = kernel.variance
    return fit.of_data(
        kernel.with_hyperparameters(kernel.length_scale, variance / jnp.sum(variance)),
        own.noise,
        belief.x,
        belief.standardized,
        bounds=own.limits,
        priors=own.prior,
        kept=("length_scale", "variance") if own.keep_length_scale else ("variance",),
    )


def _tempered(logs: Float[Array, " settings"], least: int) -> Float[Array, " settings"]:
    """softmax(logs / T) with the smallest T from 1 on for which `least` settings count, 1 / Σ w²."""

    def weights(log_T: Scalar) -> Float[Array, " settings"]:
        return jax.nn.softmax(logs / jnp.exp(log_T))

    def enough(log_T: Scalar) -> Flag:
        return 1 / jnp.sum(weights(log_T) ** 2) >= least

    def halve(_: Count, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        found = enough(middle)
        return jnp.where(found, low, middle), jnp.where(found, middle, high)

    zero, hottest = jnp.zeros((), logs.dtype), jnp.full((), _HOTTEST, logs.dtype)
    _, high = jax.lax.fori_loop(0, _HALVINGS, halve, (zero, hottest))
    return weights(jax.lax.select(enough(zero), zero, high))


def restricted(problem: fit.Problem, theta: Float[Array, " parameters"]) -> Restricted:
    """The evidence of the part of the values that does not depend on offset and scale.

        -(n - 1) / 2 log squares - log |K| / 2 - log(1'K⁻¹1) / 2,    squares = min over m of |y - m|²_K⁻¹

    (Patterson and Thompson, 1971), with the scale at its maximum. Values must be standardized. If
    their sum of squares is not about their number they differ by rounding only: `told` is false and
    the evidence 0.
    """
    kernel, noise = problem.unpack(theta)
    rows, y = problem.rows, problem.y
    ones = rows.astype(y.dtype)
    identity = jnp.eye(len(y), dtype=y.dtype)
    K = kernel.of_squares(problem.squares) + noise * identity
    L = linalg.cholesky(jnp.where(rows[:, None] & rows[None, :], K, identity), noise)
    white, flat = linalg.solve_lower(L, y), linalg.solve_lower(L, ones)
    tiny = jnp.finfo(y.dtype).tiny
    length = jnp.maximum(linalg.inner(flat, flat), tiny)
    rest = white - linalg.inner(flat, white) / length * flat
    squares = jnp.maximum(linalg.inner(rest, rest), tiny)
    contrasts = jnp.maximum(jnp.sum(ones) - 1, 0)
    log_evidence = -(contrasts * jnp.log(squares) + jnp.log(length)) / 2
    log_evidence -= jnp.sum(jnp.log(jnp.diagonal(L)))
    told = (contrasts > 0) & (linalg.inner(y, y) > contrasts / 2)
    return Restricted(jnp.where(told, log_evidence, 0), contrasts, squares, told)
