"""CEPE's rivals: agents share every observation, and each follows an index of its own wish.

    f_i = α_i h_i + (1 - α_i) Σ_j w_j h_j = Σ_j c_ij h_j
    x_i = argmax index(mean_i, std_i),   mean_i = Σ_j c_ij mean_j,   std_i² = Σ_j c_ij² variance_j

IGP-UCB, EI and PI as in section 6.2 and appendix D of Salgia, Vakili and Zhao (2022). Nobody explores
for others: h_j is learned where agent j looks for the maximum of f_j. Appendix A bounds the deviation
of f_i by std_i = Σ_j c_ij std_j instead, which is larger: `joint=False`.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxbo._check import is_a, positive_number, require, whole
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.cepe import NEVER, CEPEInfo, personalization
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing import acquisition
from jaxbo.kernels.choosing.exploration import nearest, safe
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import any_largest
from jaxbo.kernels.linalg import dot, inner
from jaxbo.kernels.processes import gp, nystrom
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.types import Count, Key, Point, Scalar, floating


class AbstractIndex(eqx.Module):
    """How good a point looks in round t = 1, 2, …; `best` is the largest mean at a point observed."""

    @abc.abstractmethod
    def __call__(self, t: Count, mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
        """The index of a point."""


class IGPUCB(AbstractIndex):
    """mean + β_t std,   β_t = B + R √(2 (γ_{t-1} + 1 + log 1/δ)),   γ_t = log t.

    `bound` is B, of the norm of the functions; `noise` is R, of the noise (Chowdhury and Gopalan, 2017).
    """

    bound: Scalar = eqx.field(converter=floating, default=15.0)
    noise: Scalar = eqx.field(converter=floating, default=1e-2)
    delta: Scalar = eqx.field(converter=floating, default=1e-3)

    def __check_init__(self):
        require(self.bound >= 0, f"bound must be at least 0, got {self.bound}.")
        require(self.noise >= 0, f"noise must be at least 0, got {self.noise}.")
        require((self.delta > 0) & (self.delta < 1), f"delta must lie in (0, 1), got {self.delta}.")

    def __call__(self, t: Count, mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
        del best
        gain = jnp.log(jnp.maximum(t - 1, 1).astype(mean.dtype))
        return mean + std * (
            self.bound + self.noise * jnp.sqrt(2 * (gain + 1 - jnp.log(self.delta)))
        )


class Improvement(AbstractIndex):
    """Expected improvement over the best mean by more than `margin`; its logarithm."""

    margin: Scalar = eqx.field(converter=floating, default=1e-2)

    def __call__(self, t: Count, mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
        del t
        return acquisition.log_expected_improvement(mean, std, best + self.margin)


class Probability(AbstractIndex):
    """Probability of improving on the best mean by more than `margin`; its logarithm."""

    margin: Scalar = eqx.field(converter=floating, default=1e-2)

    def __call__(self, t: Count, mean: Scalar, std: Scalar, best: Scalar) -> Scalar:
        del t
        return acquisition.log_probability_of_improvement(mean, std, best + self.margin)


class GridBelief(eqx.Module):
    """Mean and variance at all points, and the root of the features' covariance they follow from."""

    mean: Float[Array, " points"]
    variance: Float[Array, " points"]
    root: Float[Array, "features features"]
    count: Count


class CollaborativeClient(eqx.Module):
    """An agent: the shared knowledge of its function, its last place, and its last success."""

    index: Count
    belief: GridBelief
    seen: Bool[Array, " points"]
    last: Count


class CollaborativeMessage(eqx.Module):
    """The part that receivers compute from the observations of an agent."""

    mean: Float[Array, " points"]
    variance: Float[Array, " points"]


class CollaborativeBroadcast(eqx.Module):
    """Σ_j w_j mean_j and Σ_j w_j² variance_j, or Σ_j w_j std_j, of the agents present."""

    round: Count
    mean: Float[Array, " points"]
    spread: Float[Array, " points"]
    present: Bool[Array, " agents"]


class Collaborative(AbstractFederated):
    """Every observation is sent to all, whatever the round; `index` then says which point an agent
    queries.

    `alpha` and `weights` are as in `CEPE`, on a finite domain; so are prior mean and values. `joint`
    has the deviation of a sum of independent processes, its contrary the paper's bound. Processes are
    exact as far as `size` features tell points apart (`nystrom.greedy`): with a squared exponential
    kernel of a fifth of a square, 128 leave 1e-6 of the variance. Memory size² + points an agent, for
    any number of rounds. If several points look equally good, an agent takes any of them, so that
    agents who know nothing yet begin apart; the paper does not say. An agent does not look again at a
    place where its own evaluations fail.
    """

    domain: Finite
    agents: int = eqx.field(static=True)
    index: AbstractIndex
    alpha: Float[Array, " agents"]
    kernel: AbstractKernel
    noise: Scalar
    weights: Float[Array, " agents"]
    joint: bool = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __init__(
        self,
        domain: Finite,
        agents: int,
        index: AbstractIndex,
        *,
        alpha: ArrayLike = 0.5,
        kernel: AbstractKernel | None = None,
        noise: float | Scalar = 1e-2,
        weights: ArrayLike | None = None,
        joint: bool = True,
        size: int = 128,
    ):
        is_a("domain", domain, Finite)
        is_a("index", index, AbstractIndex)
        whole("size", size, least=1)
        positive_number("noise", noise)
        self.domain = domain
        self.agents = agents
        self.index = index
        self.alpha, self.weights = personalization(alpha, weights, agents)
        self.kernel = SquaredExponential(0.2) if kernel is None else kernel
        self.noise = floating(noise)
        self.joint = joint
        self.size = size

    def __check_init__(self):
        is_a("kernel", self.kernel, AbstractKernel)
        require(
            self.kernel.variance.ndim == 0,
            f"all agents have one kernel, got one of variance shape {self.kernel.variance.shape}.",
        )

    @property
    def targets(self) -> int:
        return self.agents

    @property
    def _power(self) -> int:
        """The power of the standard deviations that add up."""
        return 2 if self.joint else 1

    @property
    def capacity(self) -> None:
        return None

    def setup(self, key: Key) -> Float[Array, "points features"]:
        """Features of all points."""
        return nystrom.greedy(key, self.kernel, self.domain.points, self.size).rows.T

    def join(
        self, key: Key, shared: Float[Array, "points features"], index: Count
    ) -> CollaborativeClient:
        del key
        prior = jax.vmap(lambda x: self.kernel(x, x))(self.domain.points)
        root = jnp.eye(self.size, dtype=prior.dtype)
        belief = GridBelief(jnp.zeros_like(prior), prior, root, jnp.zeros((), int))
        return CollaborativeClient(index, belief, jnp.zeros(prior.shape, bool), jnp.full((), NEVER))

    def message(
        self, key: Key, shared: Float[Array, "points features"], client: CollaborativeClient
    ) -> CollaborativeMessage:
        del key, shared
        return CollaborativeMessage(client.belief.mean, client.belief.variance)

    def aggregate(
        self,
        key: Key,
        shared: Float[Array, "points features"],
        round: Count,
        messages: CollaborativeMessage,
        present: Bool[Array, " agents"],
    ) -> CollaborativeBroadcast:
        del key, shared
        weights = jnp.where(present, self.weights, 0)
        power = self._power
        spread = dot(weights**power, messages.variance ** (power / 2))
        return CollaborativeBroadcast(round, dot(weights, messages.mean), spread, present)

    def choose(
        self,
        key: Key,
        shared: Float[Array, "points features"],
        client: CollaborativeClient,
        past: History,
        message: CollaborativeMessage,
        broadcast: CollaborativeBroadcast,
    ) -> tuple[Point, CEPEInfo]:
        del shared
        alpha, weight = self.alpha[client.index], self.weights[client.index]
        others, power = 1 - alpha, self._power
        # In the sum an agent has its weight, unless its message was lost; c_ii is alpha more than that.
        held = jnp.where(broadcast.present[client.index], weight, 0)
        own = alpha + others * weight
        mean = (own - others * held) * message.mean + others * broadcast.mean
        spread = (own**power - (others * held) ** power) * message.variance ** (power / 2)
        spread = jnp.maximum(spread + others**power * broadcast.spread, 0) ** (1 / power)
        best = jnp.max(jnp.where(client.seen, mean, -jnp.inf))
        best = jnp.where(jnp.any(client.seen), best, 0)  # the prior mean
        t = broadcast.round + 1
        scores = jax.vmap(lambda m, s: self.index(t, m, s, best))(mean, spread)
        x = self.domain.points[any_largest(key, safe(past, self.domain.points, scores))]
        since = (client.last == broadcast.round - 1).astype(int)
        since = jnp.where(broadcast.round == 0, client.belief.count, since)
        scalars = (self.domain.dim + 1) * since
        return x, CEPEInfo(jnp.ones((), bool), scalars, scalars * x.dtype.itemsize)

    def learn(
        self,
        shared: Float[Array, "points features"],
        round: Count,
        client: CollaborativeClient,
        x: Point,
        value: Scalar,
    ) -> CollaborativeClient:
        fine = jnp.isfinite(value)
        i = nearest(self.domain.points, x)
        belief = _observed(self, shared, client.belief, i, jnp.where(fine, value, 0))
        belief = jax.tree.map(lambda a, b: jnp.where(fine, a, b), belief, client.belief)
        seen = client.seen.at[i].set(client.seen[i] | fine)
        return CollaborativeClient(client.index, belief, seen, jnp.where(fine, round, client.last))


def _observed(
    method: Collaborative,
    phi: Float[Array, "points features"],
    belief: GridBelief,
    i: Count,
    y: Scalar,
) -> GridBelief:
    """Potter's update (`kernels.processes.posterior`) of the root, and of its effect at all points."""
    noise = method.noise
    v = dot(phi[i], belief.root)
    s = inner(v, v) + noise
    u = dot(belief.root, v)
    change = dot(phi, u)  # the covariance of every point with this one
    x = method.domain.points[i]
    prior = method.kernel(x, x)
    least = gp.least_variance(prior, noise, belief.count + 1)
    variance = jnp.maximum(belief.variance - change**2 / s, jnp.minimum(least, belief.variance))
    return GridBelief(
        belief.mean + change * ((y - belief.mean[i]) / s),
        variance,
        belief.root - (u / (s + jnp.sqrt(noise * s)))[:, None] * v[None, :],
        belief.count + 1,
    )
