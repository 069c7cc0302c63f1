"""How loud the noise of a broadcast is, beside its sum over all agents without noise.

    signal   deviation over the domain's points of φ(x)'Σ φ_in clip(ω_n), of the region that x is in
    noise    z φ_max S / q, times the root mean square of |φ(x)| over the points

Both are of round 1, after the initial design. That only a sample is summed up is not counted as noise. If
noise is several times the signal, the point that all are asked for is the noise's own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs.compiled import Compiled, run
from jaxbo.types import Key, Points, Scalar


def noise_over_signal(
    key: Key, algorithm: DPFTSDE, objective: Compiled, initial: int, points: Points
) -> Scalar:
    """Gives noise over signal in the run of a key."""
    message_key, release_key = jr.split(key)
    state, _ = run(algorithm, objective, 0, key, initial=initial)
    vectors = algorithm.vectors(algorithm.messages(message_key, state))
    weights, mechanism = algorithm.weights(state.round), algorithm.mechanism
    quiet = Mechanism(0.0, mechanism.S, Poisson(1.0))
    sums = quiet.release(release_key, vectors, weights, jnp.ones(algorithm.agents, bool))
    phi = jax.vmap(state.shared.message)(points)
    heard = jnp.sum(phi * sums[jax.vmap(algorithm.regions.assign)(points)], axis=1)
    lengths = jnp.sqrt(jnp.mean(jnp.sum(phi**2, axis=1)))
    return mechanism.deviation(weights) * lengths / jnp.std(heard)


@eqx.filter_jit
def ratios(
    algorithm: DPFTSDE, objective: Compiled, initial: int, points: Points, keys: Array, batch: int
) -> Float[Array, " runs"]:
    """Gives noise over signal in several runs."""

    def one(key: Key) -> Scalar:
        return noise_over_signal(key, algorithm, objective, initial, points)

    return jax.lax.map(one, keys, batch_size=batch)
