"""What privacy does to a broadcast: how loud its noise is, and how many messages are clipped.

    signal   deviation over the domain's points of φ(x)'Σ φ_in clip(ω_n), of the region that x is in
    noise    z φ_max S / q, times the root mean square of |φ(x)| over the points

Both are of round 1, after the initial design. That only a sample is summed up is not counted as noise. If
noise is several times the signal, the point that all are asked for is the noise's own. Messages are
counted in all rounds, as they are before a sample is drawn.
"""

from typing import Any

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


def clipped(key: Key, algorithm: DPFTSDE, objective: Compiled, initial: int, rounds: int) -> Scalar:
    """Gives the share of all agents' messages in a run that are clipped, if every round has a release.

    Messages are drawn anew from the state of each round.
    """
    start_key, key = jr.split(key)
    start, _ = run(algorithm, objective, 0, start_key, initial=initial)

    def step(state: Any, key: Key) -> tuple[Any, Scalar]:
        message_key, run_key = jr.split(key)
        vectors = algorithm.vectors(algorithm.messages(message_key, state))
        regions = algorithm.weights(state.round).shape[0]
        share = jnp.mean(algorithm.mechanism.clipped(vectors, regions), dtype=vectors.dtype)
        return run(algorithm, objective, 1, run_key, state=state)[0], share

    return jnp.mean(jax.lax.scan(step, start, jr.split(key, rounds))[1])


@eqx.filter_jit
def ratios(
    algorithm: DPFTSDE, objective: Compiled, initial: int, points: Points, keys: Array, batch: int
) -> Float[Array, " runs"]:
    """Gives noise over signal in several runs."""

    def one(key: Key) -> Scalar:
        return noise_over_signal(key, algorithm, objective, initial, points)

    return jax.lax.map(one, keys, batch_size=batch)
