"""Settings of the features are chosen by the evidence of all agents' values, from sums.

    C y_n ~ N(0, scale² C K_s C'),   K_s = Φ_s Φ_s' + noise_s I,   C 1 = 0
    squares_s = Σ_n min over b of |y_n - b|² in the norm of K_s⁻¹
    volume_s  = Σ_n log|K_s| + log(1'K_s⁻¹1)
    log evidence of s = -(squares_s / scale² + volume_s) / 2

It is the restricted likelihood of each agent's values, as if agents' functions were independent draws of
the process of Φ_s. An agent's constant is its own. `scale` is the deviation of all values, as in
`shared_prior`, since agents search by the process of that scale. If each setting had its most likely
scale, a long length scale would explain any slope.

If agents have own units, values are in the units under the present setting, and other settings are
compared in the same units.

The learned (m, S) plays no part. It has been fitted to the same values, and would prefer short length
scales.

A round keeps its setting unless another is likelier by `LEAD` nats. Agents begin to learn again when
the setting changes, since weights of other features mean nothing.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels import linalg
from jaxbo.kernels.models import shared_units
from jaxbo.kernels.models.shared_prior import AgentData
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.types import Count, Scalar

#: By so many nats another setting must be likelier.
LEAD = 2.0


class SettingsEvidence(eqx.Module):
    """The parts of the evidence of all settings: of an agent, or the sum over agents."""

    squares: Float[Array, " settings"]
    volumes: Float[Array, " settings"]


def evidence(
    settings: FeatureMap, noises: Float[Array, " settings"], known: AgentData
) -> SettingsEvidence:
    """The parts of an agent, for feature maps with a leading axis; 0 if its values are equal."""
    own = shared_units.centered(known)

    def of(features: FeatureMap, noise: Scalar) -> tuple[Scalar, Scalar]:
        white, variances = shared_units.white(features, noise, known, own.values)
        _, rest, length = shared_units.about_constant(white)
        volume = jnp.sum(jnp.where(known.used, jnp.log(variances), 0)) + jnp.log(length)
        return linalg.inner(rest, rest), volume

    squares, volumes = jax.vmap(of)(settings, noises)
    found = SettingsEvidence(squares * own.unit**2, volumes)
    return jax.tree.map(lambda leaf: jnp.where(own.differ, leaf, 0), found)


def logs(total: SettingsEvidence, scale: Scalar) -> Float[Array, " settings"]:
    """The log evidence of each setting, in nats, up to a constant."""
    return -(total.squares / scale**2 + total.volumes) / 2


def likeliest(total: SettingsEvidence, scale: Scalar, chosen: Count) -> Count:
    """The number of the next round's setting, from the sum over agents and the scale of values."""
    found = logs(total, scale)
    best = jnp.argmax(found)
    return jnp.where(found[best] > found[chosen] + LEAD, best, chosen).astype(chosen.dtype)
