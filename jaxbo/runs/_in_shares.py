"""The sum of an audit in which owners add the noise, and the rest of it that the attacker studies.

    sum = Δ / u · (Σ_n x_n + Σ_k noise_k  mod 2^32)        in the words of `jaxbo.privacy.distributed`

The attacker is the server, together with `colluding` owners. It names `threshold` owners in a sum, the
fewest that it may: the attacked owner, the colluding owners, and others who are present. The colluding
owners leave out their noise. So the sum has the shares of `threshold` - `colluding` owners. If fewer than
`threshold` owners are present, there is no sum.

The attacked owner is in each sum, and adds its share. In the second world its vector is 0. All owners
draw themselves. Masks are left out, because they cancel.

The noise is drawn by the function of a federation, from the operating system's randomness. It is drawn
before the compiled runs.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.privacy import distributed
from jaxbo.privacy.distributed import SecureSum
from jaxbo.types import Count, Flag, Key


def check(algorithm: AbstractPrivate, secure: SecureSum) -> None:
    """Checks the settings as owners and servers do."""
    # An audit tries what owners run. A federation is made of runs: it is imported when it is asked for.
    from jaxbo.federation._stages import check_secure

    check_secure(algorithm, secure)


def noise(
    algorithm: AbstractPrivate, secure: SecureSum, runs: int, rounds: int
) -> UInt32[np.ndarray, "runs rounds numbers"]:
    """Sums of the shares of honest owners. They are 0 in a round without a release."""
    from jaxbo.federation import _masks, _sides

    size = int(np.prod(_sides.sum_shape(algorithm).shape))
    owners = secure.threshold - secure.colluding
    share = secure.share(float(np.asarray(algorithm.mechanism.z)), size)
    drawn = np.zeros((runs, rounds, size), np.uint32)
    for t in range(rounds):
        if algorithm.released(t) is not None:
            for _ in range(owners):
                drawn[:, t] += _masks.noise(share, runs * size).reshape(runs, size)
    return drawn


def named(
    secure: SecureSum, present: Bool[Array, " agents"], victim: int
) -> Bool[Array, " agents"]:
    """The owners in a sum: as few as there may be, or nobody."""
    others = [n for n in range(present.size) if n != victim]
    order = jnp.asarray([victim, *others])
    ready = present[order] | (jnp.arange(present.size) <= secure.colluding)
    enough = jnp.sum(ready) >= secure.threshold
    here = ready & (jnp.cumsum(ready) <= secure.threshold) & enough
    return jnp.zeros_like(present).at[order].set(here)


def opened(
    algorithm: AbstractPrivate,
    victim: int,
    key: Key,
    round: Count,
    messages: PyTree,
    here: Bool[Array, " agents"],
    takes_part: Flag,
    shares: UInt32[Array, " numbers"],
) -> tuple[Float[Array, "regions size"], Float[Array, "regions size"]]:
    """The sum of the owners `here`, and the rest of it without the parts of the other owners."""
    mechanism, weights = algorithm.mechanism, algorithm.weights(round)
    regions, agents = weights.shape
    sample_key, round_key = jr.split(key)
    parts = jax.vmap(mechanism.part, in_axes=(0, 1))(algorithm.vectors(messages), weights)
    parts = parts.reshape(agents, -1)
    sensitivity = mechanism.sensitivity(weights).astype(parts.dtype)
    round_keys = jr.split(round_key, agents)
    numbers = jax.vmap(distributed.rounded, in_axes=(0, 0, None))(round_keys, parts, sensitivity)

    draw = lambda key: mechanism.sampling.draw(key, agents=1)[0]  # noqa: E731
    adds = here & jax.vmap(draw)(jr.split(sample_key, agents))
    adds = adds.at[victim].set(adds[victim] & takes_part)
    added = jnp.where(adds[:, None], numbers, 0).astype(jnp.uint32)
    total = jnp.sum(added, axis=0, dtype=jnp.uint32) + shares
    others = jnp.sum(added.at[victim].set(0), axis=0, dtype=jnp.uint32)

    def read(total: UInt32[Array, " numbers"]) -> Float[Array, "regions size"]:
        total = jnp.where(jnp.any(here), total, 0)
        return distributed.decoded(total, sensitivity).reshape(regions, -1)

    return read(total), read(total - others)


def louder(
    algorithm: AbstractPrivate, secure: SecureSum, here: Bool[Array, " agents"]
) -> AbstractPrivate:
    """The method as a server broadcasts by it: its z says how much noise there is in the sum."""
    z = algorithm.mechanism.z
    more = z * jnp.where(jnp.any(here), secure.excess(secure.threshold), 1)
    return eqx.tree_at(lambda a: a.mechanism.z, algorithm, more.astype(z.dtype))
