"""A private method: each broadcast follows from one release and from public numbers.

    vector(message) → v                               clipped as a whole, and summed up
    weights(round) → φ                                how agents count in each region: public
    release = mechanism.release(v of all, φ, present)
    broadcast(public key, shared, round, release) → broadcast

`AbstractPrivate` composes `aggregate` from these parts. So a broadcast has nothing else of the messages.
Accountants, ledgers and audits (`jaxbo.audit`) read the mechanism that runs.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import is_a, require
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.keys import release_keys
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.types import Count, Features, Flag, Key, Scalar


class Release(NamedTuple):
    """The server's part of a round: `sums` for all agents, and a key that all may know."""

    sums: Float[Array, "regions released"]
    public: Key


class AbstractPrivate(AbstractFederated):
    """A method whose server releases a private sum in each of the first `releases` rounds.

    Write `vector`, `weights` and `broadcast`, and `join`, `message`, `choose` and `learn` as in
    `AbstractFederated`. Beside `domain` and `agents` it has the fields `mechanism` and `releases`.

    Raises:
        ValueError: `mechanism` is none, or `releases` is no number or negative.

    Example:
        >>> import jaxbo
        >>> method = jaxbo.DPLearnedPrior(jaxbo.Cube(1), 50, 20, releases=3)
        >>> isinstance(method, jaxbo.AbstractPrivate), method.gathers
        (True, False)
        >>> method.released(2) is method.mechanism, method.released(3)
        (True, None)
    """

    mechanism: eqx.AbstractVar[Mechanism]
    releases: eqx.AbstractVar[Scalar]

    def __check_init__(self):
        is_a("mechanism", self.mechanism, Mechanism)
        require(
            self.releases.ndim == 0,
            f"releases must be one number, got shape {self.releases.shape}.",
        )
        require(self.releases >= 0, f"releases must be a number of rounds, got {self.releases}.")

    @abc.abstractmethod
    def vector(self, message: Any) -> Features:
        """Takes the numbers that are clipped as a whole, and summed up, from a message.

        Args:
            message: An agent's message.

        Returns:
            The numbers, as one vector.
        """

    @abc.abstractmethod
    def weights(self, round: Count) -> Float[Array, "regions agents"]:
        """Computes how much each agent counts in each region, which is public.

        Args:
            round: The number of the round, from 0 on.

        Returns:
            The weight of each agent in each region.
        """

    @abc.abstractmethod
    def broadcast(
        self, key: Key, shared: PyTree, round: Count, release: Float[Array, "regions released"]
    ) -> PyTree:
        """Makes the broadcast from the release and from public numbers alone.

        In a round without a release (`releasing`) the broadcast must not depend on `release`.

        Args:
            key: Random key of the round, which is public.
            shared: The result of `setup`.
            round: The number of the round, from 0 on.
            release: The private sum of each region.

        Returns:
            The broadcast.
        """

    @property
    def gathers(self) -> bool:
        return False

    def releasing(self, round: Count) -> Flag:
        """Says whether the server releases anything in a round.

        Args:
            round: The number of the round, from 0 on.

        Returns:
            A truth value.
        """
        return round.astype(self.releases.dtype) < self.releases

    def released(self, round: int) -> Mechanism | None:
        return self.mechanism if round < float(self.releases) else None

    def vectors(self, messages: PyTree) -> Float[Array, "agents released"]:
        """Takes the `vector` of each agent's message.

        Args:
            messages: The messages of all agents.

        Returns:
            A vector for each agent.
        """
        return jax.vmap(self.vector)(messages)

    def release(
        self, key: Key, round: Count, messages: PyTree, present: Bool[Array, " agents"]
    ) -> Release:
        """Makes the private sum of a round.

        Args:
            key: The server's random key of the round, which is secret.
            round: The number of the round, from 0 on.
            messages: The messages of all agents.
            present: Whether each agent's message arrived.

        Returns:
            The sums, and a key that all may know.
        """
        keys = release_keys(key)
        vectors, weights = self.vectors(messages), self.weights(round)
        sums = self.mechanism.release(keys.secret, vectors, weights, present)
        return Release(sums, keys.public)

    def aggregate(
        self,
        key: Key,
        shared: PyTree,
        round: Count,
        messages: PyTree,
        present: Bool[Array, " agents"],
    ) -> PyTree:
        release = self.release(key, round, messages, present)
        return self.broadcast(release.public, shared, round, release.sums)
