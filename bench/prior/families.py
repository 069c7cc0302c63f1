"""Functions that agents have in common, more or less: draws of a common process, SE(0.2) on the square.

alike        0.9 common + 0.1 own
half         0.5 common + 0.5 own
opposed      0.8 common + 0.2 own, upside down for every other agent
unrelated    own
"""

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo.types import Key

#: So many features draw the functions, many more than a method has.
DRAWN = 600
#: Family -> share in common, share of one's own, and whether every other agent is upside down.
FAMILIES = {
    "alike": (0.9, 0.1, False),
    "half": (0.5, 0.5, False),
    "opposed": (0.8, 0.2, True),
    "unrelated": (0.0, 1.0, False),
}


def weights(key: Key, family: Float[Array, "3"], agents: int) -> Float[Array, "agents features"]:
    """The functions of so many agents of a family, on `DRAWN` features."""
    common_key, own_key = jr.split(key)
    share, rest, _ = family
    common = jr.normal(common_key, (1, DRAWN))
    own = jr.normal(own_key, (agents, DRAWN))
    return signs(family, agents)[:, None] * share * common + rest * own


def signs(family: Float[Array, "3"], agents: int) -> Float[Array, " agents"]:
    """-1 for agents whose functions are upside down, 1 for others."""
    odd = jnp.arange(agents) % 2 == 1
    return jnp.where(odd & (family[2] > 0), -1.0, 1.0)
