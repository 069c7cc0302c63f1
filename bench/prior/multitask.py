"""What agents gain together by EI if all is known: an exact process of all functions.

    f_n = s_n a g + b h_n,    g, h_n ~ GP(0, k),    s_n = ±1                  (`prior.families`)
    K((x, n), (x', n')) = C[n, n'] k(x, x'),    C[n, n'] = s_n s_n' a² + b² [n = n'],    k = φ'φ

Every agent sees the observations of all, knows C and k, and asks by expected improvement for its own
function. The functions are drawn on the features φ. Their values have no noise. Float32 needs some, so
the process has a little.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bench.prior.families import signs
from bench.prior.setting import INITIAL, ROUNDS
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels import linalg
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models import shared_prior
from jaxbo.kernels.models.fitted import Mixture, best
from jaxbo.kernels.models.shared_prior import AgentData
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.types import Count, Key, Point, Points, Scalar

#: Variance of the noise, beside functions of variance 0.5 to 1. Of 400 observations float32 then has the
#: deviation to 1 %.
NOISE = 1e-4


class TaskProcess(eqx.Module):
    """The process given the observations of all agents.

    A row has the features of its point and the number of its agent. `chol` is the root of K + noise I,
    and `white` is chol⁻¹y. A row that is not used is a row of the identity.
    """

    phi: FeatureMap
    covariance: Float[Array, "agents agents"]
    rows: Float[Array, "rows features"]
    agent: Int[Array, " rows"]
    used: Bool[Array, " rows"]
    chol: Float[Array, "rows rows"]
    white: Float[Array, " rows"]

    def predict(self, agent: Count, x: Point) -> tuple[Scalar, Scalar]:
        """Mean and variance of an agent's function."""
        phi, own = self.phi(x), self.covariance[agent]
        # The features of common candidates are computed once, not for each agent.
        k = jnp.where(self.used, own[self.agent] * linalg.dot(self.rows, phi), 0)
        w = linalg.solve_lower(self.chol, k)
        variance = own[agent] * linalg.inner(phi, phi) - linalg.inner(w, w)
        return linalg.dot(w, self.white), jnp.maximum(variance, 0)


def given(
    phi: FeatureMap,
    covariance: Float[Array, "agents agents"],
    agent: Int[Array, " rows"],
    x: Points,
    y: Float[Array, " rows"],
) -> TaskProcess:
    """The process given all rows whose y is finite."""
    used, rows = jnp.isfinite(y), jax.vmap(phi)(x)
    identity = jnp.eye(len(y), dtype=rows.dtype)
    K = covariance[agent[:, None], agent[None, :]] * linalg.dot(rows, rows.T) + NOISE * identity
    chol = linalg.cholesky(
        jnp.where(used[:, None] & used[None, :], K, identity), jnp.asarray(NOISE)
    )
    white = linalg.solve_lower(chol, jnp.where(used, y, 0))
    return TaskProcess(phi, covariance, rows, agent, used, chol, white)


class TaskClient(NamedTuple):
    """An agent: its number, and its observations."""

    number: Count
    known: AgentData


class TaskBroadcast(NamedTuple):
    """The process given all observations, and the round's common random key."""

    key: Key
    process: TaskProcess


class MultiTask(AbstractFederated):
    """Agents send all their observations, and search by a process that is right about all of them."""

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    phi: FeatureMap
    covariance: Float[Array, "agents agents"]
    capacity: int = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=INITIAL + ROUNDS
    )
    candidates: int = eqx.field(static=True, default=500)

    @property
    def random(self) -> bool:
        return False

    def join(self, key: Key, shared: tuple[()], index: Count) -> TaskClient:
        del key, shared
        dtype = self.covariance.dtype
        return TaskClient(index, shared_prior.nothing(self.capacity, self.domain.dim, dtype))

    def message(self, key: Key, shared: tuple[()], client: TaskClient) -> TaskClient:
        del key, shared
        return client

    def aggregate(
        self,
        key: Key,
        shared: tuple[()],
        round: Count,
        messages: TaskClient,
        present: Bool[Array, " agents"],
    ) -> TaskBroadcast:
        del shared, round

        def values(present: Bool[Array, ""], known: AgentData) -> Float[Array, " capacity"]:
            return jnp.where(known.used & present, known.y, jnp.nan)

        y = jax.vmap(values)(present, messages.known).reshape(-1)
        x = messages.known.x.reshape(-1, self.domain.dim)
        agent = jnp.repeat(messages.number, self.capacity)
        return TaskBroadcast(key, given(self.phi, self.covariance, agent, x, y))

    def choose(
        self,
        key: Key,
        shared: tuple[()],
        client: TaskClient,
        past: History,
        message: TaskClient,
        broadcast: TaskBroadcast,
    ) -> tuple[Point, tuple[()]]:
        del shared, message
        function = EI()(key, self, broadcast.process, client)
        candidates = self.domain.candidates(broadcast.key, self.candidates)
        return query(key, function, self.domain, candidates, past, alone=False), ()

    def mixture(self, process: TaskProcess, client: TaskClient) -> Mixture:
        """As policies ask for it: a single component."""
        means, _ = jax.vmap(lambda x: process.predict(client.number, x))(client.known.x)

        def predict(x: Point) -> tuple[Float[Array, "1"], Float[Array, "1"]]:
            mean, variance = process.predict(client.number, x)
            return mean[None], variance[None]

        return Mixture(jnp.zeros((1,), means.dtype), predict, best(means, client.known.used))

    def learn(
        self, shared: tuple[()], round: Count, client: TaskClient, x: Point, value: Scalar
    ) -> TaskClient:
        del shared, round
        return TaskClient(client.number, shared_prior.observe(client.known, x, value))


def covariance(family: Float[Array, "3"], agents: int) -> Float[Array, "agents agents"]:
    """C, of the agents of a family."""
    share, rest, _ = family
    common = share * signs(family, agents)
    return common[:, None] * common[None, :] + rest**2 * jnp.eye(agents)


def bound(
    domain: AbstractDomain, agents: int, phi: FeatureMap, family: Float[Array, "3"]
) -> MultiTask:
    """The method for the functions of a family, drawn on the features `phi`."""
    return MultiTask(domain, agents, phi, covariance(family, agents))
