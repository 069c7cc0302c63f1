"""An agent's own unit of values: a location and a scale, by the evidence of these values.

    y_n = c_n + a_n z_n,    z_n ~ N(0, K),    K = Φ Φ' + noise I
    c_n = 1'K⁻¹y_n / 1'K⁻¹1,    a_n² = (y_n - c_n)'K⁻¹(y_n - c_n) / (t_n - 1)

If the function is a draw of the process, c_n is the most likely constant, and a_n is the scale by the
restricted likelihood. The mean and the deviation of the values would not do. A search closes in on a
maximum, where values are alike and high.

The learned (m, S) plays no part. If it did, the scales of S and of all agents could grow together. If
the noise is far too small, a_n grows as a search closes in: then close points say most.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models.shared_prior import AgentData
from jaxbo.kernels.processes import posterior
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.kernels.processes.posterior import AbstractRoot
from jaxbo.types import Flag, Scalar

#: Values differ if one is so many roundings of the largest away from their mean.
_ROUNDING = 16


class Centered(NamedTuple):
    """An agent's values about their mean, in units of the largest, and whether they differ at all."""

    values: Float[Array, " capacity"]
    mean: Scalar
    unit: Scalar
    differ: Flag


class InUnit(NamedTuple):
    """An agent's values in its own unit, this unit, and whether the agent knows it.

    An agent whose values are equal does not know it, and they become 0. An agent of a single value does
    not know it either. The value is left out, since 0 would say that the function is average there.
    """

    known: AgentData
    location: Scalar
    scale: Scalar
    told: Flag


def centered(known: AgentData) -> Centered:
    """The values about their mean: else float32 loses the differences of values far from 0.

    Differences to the first value are exact where values are close, so they are taken before.
    """
    used, y = known.used, jnp.where(known.used, known.y, 0)
    away = jnp.where(used, y - y[0], 0)
    mean = jnp.sum(away) / jnp.maximum(jnp.sum(used.astype(y.dtype)), 1)
    around = jnp.where(used, away - mean, 0)
    rounding = _ROUNDING * jnp.finfo(y.dtype).eps * jnp.max(jnp.abs(y))
    differ = jnp.max(jnp.abs(around)) > rounding
    unit = jnp.where(differ, jnp.max(jnp.abs(around)), 1)
    return Centered(around / unit, y[0] + mean, unit, differ)


def white(
    features: FeatureMap, noise: Scalar, known: AgentData, y: Float[Array, " capacity"]
) -> tuple[Float[Array, "capacity 2"], Float[Array, " capacity"]]:
    """Values and ones in the norm of K⁻¹, and the variance of each row given those before it.

    By the square root of the posterior, observation after observation: where features are smooth and
    the noise is small, float32 has lost the noise in K.
    """
    phis = jnp.where(known.used[:, None], jax.vmap(features)(known.x), 0)
    start = posterior.prior(phis.shape[1], noise, capacity=y.size)

    def step(
        state: tuple[AbstractRoot, Float[Array, "2 size"]], row: tuple[Array, Array]
    ) -> tuple[tuple[AbstractRoot, Float[Array, "2 size"]], tuple[Array, Scalar]]:
        (root, means), (phi, values) = state, row
        told = root.told(phi, noise)
        rest = values - linalg.dot(means, phi)
        return (told.root, means + rest[:, None] * (told.u / told.s)[None]), (rest, told.s)

    means = jnp.zeros((2, phis.shape[1]), y.dtype)
    rows = phis, jnp.stack([y, known.used.astype(y.dtype)], axis=1)
    _, (rests, variances) = jax.lax.scan(step, (start.root, means), rows)
    return rests / jnp.sqrt(variances)[:, None], variances


def about_constant(
    whitened: Float[Array, "capacity 2"],
) -> tuple[Scalar, Float[Array, " capacity"], Scalar]:
    """The most likely constant, the rest of the values in the norm, and 1'K⁻¹1."""
    values, ones = whitened.T
    length = jnp.maximum(linalg.inner(ones, ones), jnp.finfo(values.dtype).tiny)
    constant = linalg.inner(ones, values) / length
    return constant, values - constant * ones, length


def measured(features: FeatureMap, noise: Scalar, known: AgentData) -> InUnit:
    """An agent's values in its own unit; O(capacity² size)."""
    own = centered(known)
    constant, rest, _ = about_constant(white(features, noise, known, own.values)[0])
    degrees = jnp.maximum(known.count - 1, 1).astype(rest.dtype)
    scale = jnp.where(own.differ, jnp.sqrt(linalg.inner(rest, rest) / degrees), 1)
    constant = jnp.where(own.differ, constant, 0)
    z = jnp.where(known.used & own.differ, (own.values - constant) / scale, 0)
    location = own.mean + own.unit * constant
    count = jnp.where(known.count > 1, known.count, 0)
    return InUnit(AgentData(known.x, z, count), location, own.unit * scale, own.differ)


def in_unit(own: bool, features: FeatureMap, noise: Scalar, known: AgentData) -> InUnit:
    """The values in the unit that agents learn from: an agent's own, or as they are."""
    if own:
        return measured(features, noise, known)
    return InUnit(known, jnp.zeros_like(noise), jnp.ones_like(noise), jnp.ones((), bool))
