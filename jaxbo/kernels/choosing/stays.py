"""The end of exploration, once the maximizers of agents stay where they are.

near_n = |x_n - x'_n|_∞ ≤ distance        x_n now, and x'_n at the look before
over   = share of near agents ≥ share     of all agents whose messages arrived
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbo._check import require, whole
from jaxbo.types import Flag, Scalar, named


class Stays(eqx.Module):
    """Ends CEPE's exploration once the agents' maximizers stay where they are.

    All that is needed of an agent is sent anyway: its values, alpha and weights. After every few
    rounds of exploration, the server finds each agent's maximizer. If enough of them are near those of
    the look before, it says so in its broadcast, and nobody explores in later rounds.

    The theorem of CEPE is about numbers of rounds that do not depend on values. It bounds the loss of
    exploring still, since no more is explored. It does not bound the loss of exploiting.

    Args:
        every: Number of rounds between two looks, at least 1. Default: 4.
        distance: The farthest that a maximizer goes if it stays, at least 0: the largest difference
            in a coordinate of the unit cube. Default: 0.05.
        share: The share of agents whose maximizers stay, in (0, 1]. Default: 0.9.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> import jaxbo
        >>> rule = jaxbo.Stays(every=2)
        >>> numbers = jaxbo.schedules.first(64)
        >>> method = jaxbo.CEPE(jaxbo.Cube(1), 3, numbers, stays=rule)
        >>> method.stays.every
        2
    """

    every: int = eqx.field(static=True, default=4)
    distance: Scalar = eqx.field(converter=named("distance"), default=0.05)
    share: Scalar = eqx.field(converter=named("share"), default=0.9)

    def __check_init__(self):
        whole("every", self.every, least=1)
        require(self.distance >= 0, f"distance must be at least 0, got {self.distance}.")
        require((self.share > 0) & (self.share <= 1), f"share must be in (0, 1], got {self.share}.")

    def looked(
        self,
        before: "Looked",
        maximizers: Float[Array, "agents dim"],
        present: Bool[Array, " agents"],
    ) -> "Looked":
        """Looks at the maximizers again.

        Args:
            before: The look before.
            maximizers: The maximizer of each agent.
            present: Whether each agent's message arrived. Another agent is looked at again next time.

        Returns:
            This look.
        """
        maximizers = maximizers.astype(before.maximizers.dtype)
        near = jnp.max(jnp.abs(maximizers - before.maximizers), axis=1) <= self.distance
        there = jnp.sum(present).astype(self.share.dtype)
        staying = jnp.sum(near & present).astype(self.share.dtype)
        over = before.before & (there > 0) & (staying >= self.share * there)
        maximizers = jnp.where(present[:, None], maximizers, before.maximizers)
        return Looked(maximizers, jnp.ones((), bool), over)


class Looked(eqx.Module):
    """The maximizers of all agents at the last look, whether there was one, and whether exploration is
    over.
    """

    maximizers: Float[Array, "agents dim"]
    before: Flag
    over: Flag


def not_looked(agents: int, dim: int) -> Looked:
    """Before the first look."""
    no = jnp.zeros((), bool)
    return Looked(jnp.zeros((agents, dim), float), no, no)
