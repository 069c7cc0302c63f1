"""The sum of an audit in which owners add the noise, and the rest of it that the attacker studies.

    sum = Δ / u · (Σ_n x_n + Σ_k noise_k  mod 2^32)        in the words of `jaxbo.privacy.distributed`

The attacker is the server, together with `colluding` owners. It names `threshold` owners in a sum, the
fewest that it may: the attacked owner, the colluding owners, and others who are present. The colluding
owners leave out their noise. So the sum has the shares of `threshold` - `colluding` owners. If fewer than
`threshold` owners are present, there is no sum.

The attacked owner is in each sum, and adds its share. In the second world its vector is 0. All owners
draw themselves. Masks are left out, because they cancel.

Parts, draws, noise and sums are those of owners and servers, by the same functions
(`jaxbo.algos.base._secure`). The noise comes from the operating system's randomness. It is drawn before
the compiled runs.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree, UInt32

from jaxbo.algos.base import _secure
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.privacy.distributed import SecureSum
from jaxbo.types import Count, Flag, Key


def noise(
    algorithm: AbstractPrivate, secure: SecureSum, runs: int, rounds: int
) -> UInt32[np.ndarray, "runs rounds numbers"]:
    """Sums of the shares of honest owners. They are 0 in a round without a release."""
    drawn = np.zeros((runs, rounds, _secure.size(algorithm)), np.uint32)
    for t in range(rounds):
        if algorithm.released(t) is not None:
            for _ in range(secure.threshold - secure.colluding):
                drawn[:, t] += _secure.noise(algorithm, secure, runs)
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
    agents = here.size
    sample_key, round_key = jr.split(key)

    def part(key: Key, agent: Count, message: PyTree) -> Int32[Array, " numbers"]:
        return _secure.part(algorithm, key, round, agent, message)

    numbers = jax.vmap(part)(jr.split(round_key, agents), jnp.arange(agents), messages)
    draws = jax.vmap(lambda key: _secure.drawn(algorithm, key))(jr.split(sample_key, agents))
    adds = here & draws
    adds = adds.at[victim].set(adds[victim] & takes_part)
    added = jnp.where(adds[:, None], numbers, 0).astype(jnp.uint32)
    total = jnp.sum(added, axis=0, dtype=jnp.uint32) + shares
    others = jnp.sum(added.at[victim].set(0), axis=0, dtype=jnp.uint32)

    def read(total: UInt32[Array, " numbers"]) -> Float[Array, "regions size"]:
        return _secure.read(algorithm, round, jnp.where(jnp.any(here), total, 0))

    return read(total), read(total - others)


def louder(
    algorithm: AbstractPrivate, secure: SecureSum, here: Bool[Array, " agents"]
) -> AbstractPrivate:
    """The method as a server broadcasts by it: its z says how much noise there is in the sum."""
    return _secure.louder(algorithm, jnp.where(jnp.any(here), secure.excess(secure.threshold), 1.0))
