"""A private method: each broadcast follows from one release and from public numbers.

    vector(message) → v                               clipped as a whole, and summed up
    weights(round) → φ                                how agents count in each region: public
    release = mechanism.release(v of all, φ, present)
    broadcast(public key, shared, round, release) → broadcast

`AbstractPrivate` composes `aggregate` from these parts. So a broadcast has nothing else of the messages.
Accountants, ledgers and audits (`jaxbo.privacy.audit`) read the mechanism that runs.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import is_a, require
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.types import Count, Features, Flag, Key, Scalar


class Release(NamedTuple):
    """The server's result of a round. It tells `sums` to all agents, and keeps `included` secret.

    `included` are the agents in the sums, and `public` is a key that all may know.
    """

    sums: Float[Array, "regions released"]
    included: Bool[Array, " agents"]
    public: Key


class AbstractPrivate(AbstractFederated):
    """A method whose server releases a private sum in each of the first `releases` rounds.

    Write `vector`, `weights` and `broadcast`, and `join`, `message`, `choose` and `learn` as in
    `AbstractFederated`.
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
        """The numbers of an agent's message that are clipped as a whole, and summed up."""

    @abc.abstractmethod
    def weights(self, round: Count) -> Float[Array, "regions agents"]:
        """How much each agent counts in each region, in a round, the first being 0. Public."""

    @abc.abstractmethod
    def broadcast(
        self, key: Key, shared: PyTree, round: Count, release: Float[Array, "regions released"]
    ) -> PyTree:
        """The message to all agents, from the release and public numbers alone.

        In a round without a release (`releasing`) it must not depend on `release`. The key is public.
        """

    @property
    def gathers(self) -> bool:
        return False

    def releasing(self, round: Count) -> Flag:
        """Whether the server releases anything in this round, the first being 0."""
        return round.astype(self.releases.dtype) < self.releases

    def released(self, round: int) -> Mechanism | None:
        return self.mechanism if round < float(self.releases) else None

    def vectors(self, messages: PyTree) -> Float[Array, "agents released"]:
        """The vectors of all agents."""
        return jax.vmap(self.vector)(messages)

    def release(
        self, key: Key, round: Count, messages: PyTree, present: Bool[Array, " agents"]
    ) -> Release:
        """The private sum of a round, with the server's key of that round."""
        secret, public = jr.split(key)
        vectors = self.vectors(messages)
        sums = self.mechanism.release(secret, vectors, self.weights(round), present)
        return Release(sums, self.mechanism.included(secret, vectors, present), public)

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
