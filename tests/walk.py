"""Methods of few operations, for tests of files, records and processes: they compile in no time.

Queries depend on all that those of a method may: on the key, on what all share, on the agent's own
observations in their order, and on the messages of those who are present. They do not optimize.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.algos.base.outcomes import Outcome, as_outcomes
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing import history
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.privacy.accounting import moments
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import Mechanism

#: Numbers in a message.
SIZE = 100
#: Its accountant takes no time. The tests of `privacy` try the others.
LEDGER = Ledger(1e-5, accountant=moments)


class Walker(NamedTuple):
    """A client: what it has made of its values, and how many there were."""

    weights: jax.Array
    count: jax.Array


class Letter(NamedTuple):
    """A message, and the sum of those that arrived."""

    weights: jax.Array


class Walk(AbstractFederated):
    """Each agent goes to a random point, moved by its own values and by what it hears."""

    domain: AbstractDomain
    agents: int = eqx.field(static=True, default=3)
    invariant: bool = eqx.field(static=True, default=False)
    capacity = None

    def nothing(self):
        return history.empty(self.domain.dim, 1)  # nobody looks at it

    def setup(self, key):
        return jr.uniform(key, (SIZE,))

    def join(self, key, shared, index):
        return Walker(0.1 * jr.uniform(key, (SIZE,)), jnp.zeros((), int))

    def message(self, key, shared, client):
        return Letter(client.weights)

    def aggregate(self, key, shared, round, messages, present):
        return Letter(jnp.sum(jnp.where(present[:, None], messages.weights, 0), axis=0))

    def choose(self, key, shared, client, past, message, broadcast):
        dim = self.domain.dim
        place = jr.uniform(key, (dim,)) + client.weights[:dim] + 0.1 * broadcast.weights[:dim]
        return self.domain.project(jnp.mod(place, 1)), broadcast.weights[0]

    def learn(self, shared, round, client, x, value):
        fine = jnp.isfinite(value)
        weights = 0.9 * client.weights + (jnp.tanh(jnp.where(fine, value, 0)) + x[0]) * shared
        return Walker(jnp.where(fine, weights, client.weights), client.count + fine.astype(int))


class PrivateWalk(Walk):
    """The server adds noise to the first sums, and has no sum of the rounds after them."""

    mechanism: Mechanism = eqx.field(kw_only=True)
    releases: int = eqx.field(static=True, default=100, kw_only=True)

    def released(self, round):
        return self.mechanism if round < self.releases else None

    def aggregate(self, key, shared, round, messages, present):
        (sums,) = super().aggregate(key, shared, round, messages, present)
        due = round < self.releases
        return Letter(jnp.where(due, sums + self.mechanism.z * jr.normal(key, (SIZE,)), 0))


class SumWalk(AbstractPrivate):
    """The same, as a private method whose broadcast follows from a sum and from how much noise it has."""

    domain: AbstractDomain
    agents: int = eqx.field(static=True, default=3)
    mechanism: Mechanism = eqx.field(kw_only=True)
    releases: jax.Array = eqx.field(converter=jnp.asarray, default=100.0, kw_only=True)
    capacity = None

    nothing, setup, join, message = Walk.nothing, Walk.setup, Walk.join, Walk.message
    choose, learn = Walk.choose, Walk.learn

    def vector(self, message):
        return message.weights

    def weights(self, round):
        return jnp.ones((1, self.agents))

    def broadcast(self, key, shared, round, release):
        noise = self.mechanism.deviation(self.weights(round))
        return Heard(jnp.where(self.releasing(round), release[0], 0), noise)


class Heard(NamedTuple):
    """A sum, and the deviation of its noise."""

    weights: jax.Array
    noise: jax.Array


class Stroll(AbstractOneModel):
    """The same for workers of one black box: a query is a random point, moved by what the model says."""

    domain: AbstractDomain
    workers: int = eqx.field(static=True, default=1)
    surrogate: AbstractSurrogate = eqx.field(default_factory=lambda: Fixed(size=4))
    outcomes: tuple[Outcome, ...] = eqx.field(converter=as_outcomes, default=())

    @property
    def targets(self):
        return self.workers

    def prepare(self, key):
        return self.domain.sample(key, 2)

    def query(self, key, state, candidates):
        draw = jr.uniform(key, (self.domain.dim,))
        mean = lambda x: self.surrogate.predict(state.shared, state.belief, x)[0]  # noqa: E731
        slope = mean(candidates[1]) - mean(candidates[0])  # the same for values less any constant
        return self.domain.project(jnp.mod(candidates[0] + draw + slope, 1)), ()
