"""Collaborative exploration with personalized exploitation (Salgia, Vakili and Zhao, 2022).

    f_i = α_i h_i + (1 - α_i) Σ_j w_j h_j            what agent i maximizes; it observes h_i alone
    explore while fewer than N_t times:   x_i = argmax variance_i,      and (x_i, y_i) is sent to all
    else exploit:                         x_i = argmax α_i mean_i + (1 - α_i) Σ_j w_j mean_j

S-CEPE explores first, then sends its inducing points and their weights instead, a point a round
(`kernels.processes.nystrom`), while it queries the maximizer of its own mean.

Beyond the paper, an agent may also learn h_i from its first values while exploiting, which costs no
message: with M_i the mean given all its values, it then maximizes

    α_i M_i + (1 - α_i) (Σ_j w_j mean_j + w_i (M_i - mean_i))

And exploration may stop early (`Stays`).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from jaxbo import schedules
from jaxbo._check import is_a, positive, require, whole
from jaxbo._keys import Held, held
from jaxbo._shown import Shown
from jaxbo.algos.base.algorithm import IN_ROUND, Stage
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND, AbstractFederated, FederatedState
from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.kernels.choosing import exploration
from jaxbo.kernels.choosing.exploration import (
    AbstractExploration,
    Anywhere,
    Design,
    Expansion,
    Mean,
    OnPoints,
    Terms,
)
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.stays import Looked, Stays, not_looked
from jaxbo.kernels.processes import gp, nystrom
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.sketch import AbstractSketch
from jaxbo.layout import Each
from jaxbo.types import Count, Flag, Key, Point, Scalar, named

#: The last round of an agent that has not observed anything yet.
NEVER = BEFORE_FIRST_ROUND - 1


class Sketched(eqx.Module):
    """An agent's observations, and the mean of its sketch of them, with `count` inducing points.

    As many rows are used as the agent has `observations`; the others are 0.
    """

    x: Float[Array, "capacity dim"]
    y: Float[Array, " capacity"]
    mean: Mean
    count: Count


class CEPEShared(eqx.Module):
    """The common design, if there is one, and the last look, if exploration may stop early."""

    design: Design | None
    looked: Looked | None


class CEPEClient(eqx.Module):
    """An agent; `last` is the round of its last observation, `draws` the key of its inducing points.

    `own` is its belief given all that it learns from, where that is more than it sends.
    """

    index: Count
    draws: Held = eqx.field(converter=held)
    belief: PyTree
    sketched: Sketched | None
    observations: Count
    last: Count
    own: PyTree = None


class CEPEMessage(eqx.Module):
    """The server's knowledge of an agent: its mean given all that was sent, as receivers compute it.

    `count` is how many inducing points there are to send.
    """

    mean: Mean
    count: Count


class CEPEBroadcast(eqx.Module):
    """The weighted sum of the means that are present.

    `pending` is true until all inducing points are sent. `looked` is there if exploration may stop early.
    """

    round: Count
    key: Key
    mean: Mean
    present: Bool[Array, " agents"]
    pending: Flag
    looked: Looked | None = None


class CEPEInfo(Shown):
    """`scalars` is how many numbers the agent sent since its last query, and `bytes` is their size.

    A point and its value, or its weight, are dim + 1 numbers.
    """

    exploring: Flag
    scalars: Count
    bytes: Count


class CEPE(AbstractFederated):
    """CEPE: agents explore for each other, and exploit for themselves.

    If kernel and noise are common, all agents explore the same points in the same order. An agent
    then takes O(points) of memory on a finite domain, and O(exploration) elsewhere. A value from
    another point is then not learned from. With `initial_capacity`, or with kernels of their own,
    agents keep covariances of their own: measured in a run of 35 observations, five of them before
    the first round, 104 kB an agent at most. The prior mean is 0, and values are not standardized,
    since they are added up: bring them to mean 0 and the kernel's variance.

    With a sketch it is S-CEPE. Inducing points are sent until nobody has any left, which the
    paper's length of that phase bounds. An agent without inducing points counts as unknown, mean 0.

    A failed evaluation is not sent, and the agent then looks elsewhere. It exploits no place where
    its own evaluations fail, and with covariances of its own it explores none. Each point of the
    common design is evaluated once by every agent. An agent whose evaluation failed there goes on
    as if it had observed its own mean.

    `present` says whose observations the server has in a round, exploiting rounds included, since a
    server remembers nothing here. For the other agents an absent agent is unknown in that round,
    mean 0. It still knows itself. Values observed while exploiting are not sent, as in the paper. Nor
    does the agent use them, unless `lessons` says so.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1.
        numbers: N_t for rounds t = 1, 2, …, the number of explorations by then, such as
            `schedules.growing(rounds)`. Beyond its end nobody explores. With a sketch exploration
            comes first: `schedules.first(rounds)`.
        alpha: How much an agent's own function counts, in [0, 1]: a number, or a number for each
            agent. With 1 agents learn alone, and with 0 there is no personal taste. Default: 0.5.
        kernel: The kernel of all agents, or kernels on an axis of agents, such as
            `eqx.filter_vmap(SquaredExponential)(scales)`. None: `SquaredExponential(0.2)`.
        noise: The variance of an evaluation, above 0: a number, or a number for each agent.
            Default: 1e-2.
        weights: The weights w of agents in the common function, at least 0. None: 1 / agents.
        sketch: The choice of inducing points, `Sketch` or `Pivoted`. None: agents send
            observations.
        initial_capacity: The most observations before the first round, at least 0. Default: 0.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.
        start: The first point that is explored. None: any point, since before there are values all
            have the same variance.
        lessons: The most values observed while exploiting from which an agent learns its own
            function, at least 0. Each agent then takes O(points (exploration + lessons)) of memory on
            a finite domain, and O((exploration + lessons)²) elsewhere. Default: 0.
        stays: The rule that ends exploration before `numbers` do, without a sketch. None: it does
            not end early.

    Raises:
        ValueError: A number is out of its range, an array is not of the agents' shape, or
            exploration does not come first, or may stop early, under a sketch.

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> method = jaxbo.CEPE(jaxbo.Cube(1), 3, jaxbo.schedules.first(4), candidates=20)
        >>> state, trace = jaxbo.run(method, lambda x: -((x[0] - 0.3) ** 2), 6, jr.key(0))
        >>> trace.info.exploring[:, 0].tolist()
        [True, True, True, True, False, False]
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    explores: Bool[Array, " rounds"]
    alpha: Float[Array, " agents"]
    kernel: AbstractKernel
    noise: Float[Array, "*agents"]
    weights: Float[Array, " agents"]
    sketch: AbstractSketch | None
    steps: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)
    initial_capacity: int = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=0
    )
    start: Point | None = None
    lessons: int = eqx.field(static=True, default=0)
    stays: Stays | None = None

    def __init__(
        self,
        domain: AbstractDomain,
        agents: int,
        numbers: ArrayLike | Sequence[float],
        *,
        alpha: ArrayLike | Sequence[float] = 0.5,
        kernel: AbstractKernel | None = None,
        noise: ArrayLike | Sequence[float] = 1e-2,
        weights: ArrayLike | Sequence[float] | None = None,
        sketch: AbstractSketch | None = None,
        initial_capacity: int = 0,
        candidates: int = 1000,
        start: ArrayLike | Sequence[float] | None = None,
        lessons: int = 0,
        stays: Stays | None = None,
    ):
        explores = schedules.explores(numbers)
        steps = int(explores.sum())
        require(
            sketch is None or bool(explores[:steps].all()),
            "with a sketch all exploration comes first: give schedules.first(rounds).",
        )
        self.domain = domain
        self.agents = agents
        self.explores = jnp.asarray(explores)
        self.alpha, self.weights = personalization(alpha, weights, agents)
        self.kernel = SquaredExponential(0.2) if kernel is None else kernel
        self.noise = named("noise")(noise)
        self.sketch = sketch
        self.steps = steps
        self.initial_capacity = initial_capacity  # pyright: ignore[reportIncompatibleMethodOverride]
        self.candidates = candidates
        self.start = None if start is None else named("start")(start)
        self.lessons = lessons
        self.stays = stays

    def __check_init__(self):
        is_a("kernel", self.kernel, AbstractKernel)
        for name, value in (("kernel's variance", self.kernel.variance), ("noise", self.noise)):
            require(
                value.shape in ((), (self.agents,)),
                f"the {name} must be one number or one for each of {self.agents} agents, got shape "
                f"{value.shape}.",
            )
            positive(name, value)
        whole("initial_capacity", self.initial_capacity)
        whole("candidates", self.candidates, least=1)
        whole("lessons", self.lessons)
        if self.start is not None:
            is_a("domain", self.domain, AbstractDomain)
            require(
                self.start.shape == (self.domain.dim,) and bool(jnp.all(jnp.isfinite(self.start))),
                f"start must be a point of {self.domain.dim} coordinates, got {self.start}.",
            )
        if self.stays is not None:
            is_a("stays", self.stays, Stays)
            require(
                self.sketch is None,
                "with a sketch exploration cannot stop early: leave out stays, or the sketch.",
            )

    @property
    def targets(self) -> int:
        return self.agents

    @property
    def capacity(self) -> None:
        """Sets no limit: rounds that exploit hold nothing."""
        return None

    @property
    def common(self) -> bool:
        """Says whether all agents explore a common design."""
        return not (self.initial_capacity or self.kernel.variance.ndim or self.noise.ndim)

    @property
    def exploration(self) -> AbstractExploration:
        """Returns the form in which beliefs are held."""
        return self._holding(self.steps + self.initial_capacity)

    def _holding(self, capacity: int) -> AbstractExploration:
        """The form of beliefs of so many observations."""
        if isinstance(self.domain, Finite):
            return OnPoints(capacity=capacity, domain=self.domain)
        return Anywhere(capacity=capacity, domain=self.domain, candidates=self.candidates)

    @property
    def remembers(self) -> bool:
        return self.stays is not None

    def remembered(self, broadcast: CEPEBroadcast) -> Looked | None:
        return broadcast.looked

    def revised(self, shared: CEPEShared, remembered: Looked) -> CEPEShared:
        return CEPEShared(shared.design, remembered)

    @property
    def grows(self) -> bool:
        return self.common

    def tell(
        self,
        state: FederatedState,
        queries: Float[Array, "targets dim"],
        values: Float[Array, " targets"],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> FederatedState:
        design = state.shared.design
        if design is not None:
            shape = (self.agents, self.domain.dim)
            require(
                queries.shape == shape, f"expected queries of shape {shape}, got {queries.shape}."
            )
            # The design gets one point more: that of the agents who had evaluated all points before.
            there = jnp.all(jnp.isfinite(queries), axis=1)
            ahead = there & (state.clients.belief.count == design.count)
            exploring = self._exploring(state.shared, state.round)
            wanted = exploring & jnp.any(ahead) & ~jnp.asarray(stage.before)
            # The first of them that succeeded, or else the first. A sum is less to send than all queries.
            index = jnp.arange(self.agents)
            order = jnp.where(jnp.isfinite(values), index, index + self.agents)
            order = jnp.where(ahead, order, 2 * self.agents)
            first = order == jnp.min(order)
            x = jnp.sum(jnp.where((first & ahead)[:, None], queries, 0), axis=0)
            grown = self.exploration.designed(design, x, wanted)
            state = eqx.tree_at(lambda s: s.shared.design, state, grown)
        return super().tell(state, queries, values, stage, info, each=each)

    # ------------------------------------------------------------ the functions of a method

    def setup(self, key: Key) -> CEPEShared:
        del key
        design = self.exploration.no_design(self.kernel, self.noise) if self.common else None
        if self.stays is None:
            return CEPEShared(design, None)
        return CEPEShared(design, not_looked(self.agents, self.domain.dim))

    def join(self, key: Key, shared: CEPEShared, index: Count) -> CEPEClient:
        if shared.design is None:
            belief = self.exploration.start(*self._model(index))
        else:
            belief = exploration.no_answers(shared.design)
        sketched = None
        if self.sketch is not None:
            capacity = self.steps + self.initial_capacity
            x = jnp.zeros((capacity, self.domain.dim), self.alpha.dtype)
            y = jnp.zeros((capacity,), x.dtype)
            z = x[: self.sketch.size(capacity)]
            kernel, _ = self._model(index)
            nothing = self.exploration.of(Expansion(kernel, z, jnp.zeros_like(z[:, 0])))
            sketched = Sketched(x, y, nothing, jnp.zeros((), int))
        zero = jnp.zeros((), int)
        own = self._personal.start(*self._model(index)) if self.lessons else None
        return CEPEClient(index, key, belief, sketched, zero, jnp.full((), NEVER), own)

    def message(self, key: Key, shared: CEPEShared, client: CEPEClient) -> CEPEMessage:
        del key, shared
        if client.sketched is not None:
            return CEPEMessage(client.sketched.mean, client.sketched.count)
        return CEPEMessage(self.exploration.mean(client.belief), jnp.zeros((), int))

    def aggregate(
        self,
        key: Key,
        shared: CEPEShared,
        round: Count,
        messages: CEPEMessage,
        present: Bool[Array, " agents"],
    ) -> CEPEBroadcast:
        mean = exploration.total(messages.mean, jnp.where(present, self.weights, 0))
        pending = round - self.steps < jnp.max(jnp.where(present, messages.count, 0))
        looked = self._looked(key, shared, round, messages.mean, mean, present)
        return CEPEBroadcast(round, key, mean, present, pending, looked)

    def choose(
        self,
        key: Key,
        shared: CEPEShared,
        client: CEPEClient,
        past: History,
        message: CEPEMessage,
        broadcast: CEPEBroadcast,
    ) -> tuple[Point, CEPEInfo]:
        del key
        exploring, design = self._exploring(shared, broadcast.round), shared.design
        # This is common to all agents: under vmap these stay branches.
        x = jax.lax.cond(
            exploring,
            lambda: self._explore(design, client, past, broadcast),
            lambda: self._exploit(design, client, past, message, broadcast),
        )
        scalars = (self.domain.dim + 1) * self._sent(client, message, broadcast.round)
        return x, CEPEInfo(exploring, scalars, scalars * x.dtype.itemsize)

    def learn(
        self,
        shared: CEPEShared,
        round: Count,
        client: CEPEClient,
        x: Point,
        value: Scalar,
    ) -> CEPEClient:
        used = self._exploring(shared, round) | (round == BEFORE_FIRST_ROUND)
        known = client.belief, client.sketched, client.observations, client.last
        known = jax.lax.cond(
            used, lambda: self._learn(shared.design, round, client, x, value), lambda: known
        )
        belief, sketched, observations, last = known
        own = self._taught(used, round, client, x, value) if self.lessons else None
        return CEPEClient(client.index, client.draws, belief, sketched, observations, last, own)

    # ------------------------------------------------------------ their parts

    def _exploring(self, shared: CEPEShared, round: Count) -> Flag:
        last = self.explores.shape[0] - 1
        asked = self.explores[jnp.clip(round, 0, last)] & (round >= 0) & (round <= last)
        return asked if shared.looked is None else asked & ~shared.looked.over

    @property
    def _personal(self) -> AbstractExploration:
        """The form in which an agent's belief is held that it does not send."""
        return self._holding(self.steps + self.initial_capacity + self.lessons)

    def _taught(
        self, used: Flag, round: Count, client: CEPEClient, x: Point, value: Scalar
    ) -> PyTree:
        """The belief of an agent given a value, if it was explored or is one of the first after that."""
        exploited = jnp.cumsum(~self.explores)[jnp.clip(round, 0, len(self.explores) - 1)]
        exploited += jnp.maximum(round - len(self.explores) + 1, 0)
        learned = client.own.count - client.observations
        y = jnp.where(used | (learned < self.lessons), value, jnp.nan)
        # The number of rounds is common to all agents: later rounds cost nothing.
        return jax.lax.cond(
            used | (exploited <= self.lessons + self.steps),
            lambda: self._personal.observe(client.own, x, y),
            lambda: client.own,
        )

    def _looked(
        self,
        key: Key,
        shared: CEPEShared,
        round: Count,
        means: Mean,
        mean: Mean,
        present: Bool[Array, " agents"],
    ) -> Looked | None:
        """The maximizers of all agents if it is time to look at them, and whether enough of them stay."""
        stays, old = self.stays, shared.looked
        if stays is None or old is None:
            return None

        def maximizer(alpha: Scalar, own: Mean) -> Point:
            terms = [(alpha, own), (1 - alpha, mean)]
            return self.exploration.peak(key, shared.design, terms)

        def look() -> Looked:
            return stays.looked(old, jax.vmap(maximizer)(self.alpha, means), present)

        time = self._exploring(shared, round) & (round > 0) & (round % stays.every == 0)
        return jax.lax.cond(time, look, lambda: old)

    def _explore(
        self, shared: Design | None, client: CEPEClient, past: History, broadcast: CEPEBroadcast
    ) -> Point:
        x = self._widest(shared, client, past, broadcast)
        if self.start is None:
            return x
        first = (broadcast.round == 0) & (client.observations == 0)
        return jnp.where(first, self.domain.project(self.start.astype(x.dtype)), x)

    def _widest(
        self, shared: Design | None, client: CEPEClient, past: History, broadcast: CEPEBroadcast
    ) -> Point:
        """The point of largest variance."""
        if shared is None:
            return self.exploration.explore(broadcast.key, client.belief, past)
        # The next point of all, computed once; an agent that is behind goes where the others have been.
        x = self.exploration.explore(broadcast.key, shared)
        n = client.belief.count
        return jnp.where(n < shared.count, shared.x[jnp.minimum(n, self.steps - 1)], x)

    def _exploit(
        self,
        shared: Design | None,
        client: CEPEClient,
        past: History,
        message: CEPEMessage,
        broadcast: CEPEBroadcast,
    ) -> Point:
        alpha, weight = self.alpha[client.index], self.weights[client.index]
        if self.lessons:
            exact = self._personal.mean(client.own)
            # The server's sum has the agent as the others know it, if its message arrived.
            heard = jnp.where(broadcast.present[client.index], weight, 0)
            terms = [
                (alpha + (1 - alpha) * weight, exact),
                (1 - alpha, broadcast.mean),
                ((alpha - 1) * heard, message.mean),
            ]
            return self._best_of(shared, terms, exact, past, broadcast)
        exact = self.exploration.mean(client.belief)
        own = exact if self.sketch is not None and self.sketch.exact else message.mean
        # The server's sum lacks an agent whose message was lost; the agent itself does not.
        lost = jnp.where(broadcast.present[client.index], 0, weight)
        terms = [(alpha, own), (1 - alpha, broadcast.mean), ((1 - alpha) * lost, message.mean)]
        return self._best_of(shared, terms, exact, past, broadcast)

    def _best_of(
        self,
        shared: Design | None,
        terms: Terms,
        exact: Mean,
        past: History,
        broadcast: CEPEBroadcast,
    ) -> Point:
        """The maximizer of the terms, or of the agent's own mean as long as sketches are sent."""
        best = lambda terms: self.exploration.best(broadcast.key, shared, terms, past)  # noqa: E731
        if self.sketch is None:
            return best(terms)
        alone = [(jnp.ones((), self.alpha.dtype), exact)]
        return jax.lax.cond(broadcast.pending, lambda: best(alone), lambda: best(terms))

    def _sent(self, client: CEPEClient, message: CEPEMessage, round: Count) -> Count:
        """How many points with a value or a weight the agent has sent since its last query."""
        if self.sketch is not None:
            step = round - self.steps
            return ((step >= 0) & (step < message.count)).astype(int)
        since = (client.last == round - 1).astype(int)
        return jnp.where(round == 0, client.observations, since)

    def _learn(
        self, shared: Design | None, round: Count, client: CEPEClient, x: Point, value: Scalar
    ) -> tuple[PyTree, Sketched | None, Count, Count]:
        """The parts of a client that change with a value that is used."""
        fine = jnp.isfinite(value)
        if shared is None:
            belief = self.exploration.observe(client.belief, x, value)
        else:
            belief = exploration.answered(shared, client.belief, x, value)
            fine = fine & (belief.count > client.belief.count)
        sketched = client.sketched
        if sketched is not None:
            n = jnp.where(fine, client.observations, sketched.y.shape[0])
            x, y = sketched.x.at[n].set(x, mode="drop"), sketched.y.at[n].set(value, mode="drop")
            observed = jnp.where(
                jnp.arange(y.size) < client.observations + fine.astype(int), y, jnp.nan
            )
            before = sketched.mean, sketched.count
            mean, count = jax.lax.cond(
                round == self.steps - 1,  # the last of exploration
                lambda: self._drawn(jr.fold_in(client.draws.key, round), client.index, x, observed),
                lambda: before,
            )
            sketched = Sketched(x, y, mean, count)
        last = jnp.where(fine, round, client.last)
        return belief, sketched, client.observations + fine.astype(int), last

    def _model(self, index: Count) -> tuple[AbstractKernel, Scalar]:
        """An agent's kernel and noise."""
        kernel, noise = self.kernel, self.noise
        if kernel.variance.ndim:
            kernel = jax.tree.map(lambda leaf: leaf[index], kernel)
        return kernel, noise[index] if noise.ndim else noise

    def _drawn(
        self,
        key: Key,
        index: Count,
        x: Float[Array, "capacity dim"],
        y: Float[Array, " capacity"],
    ) -> tuple[Mean, Count]:
        """The posterior mean that follows from inducing points among the observations; how many."""
        assert self.sketch is not None
        kernel, noise = self._model(index)
        known = jnp.isfinite(y)
        process = gp.build(kernel, noise, x, y)  # which has them in the same order
        _, variances = jax.vmap(lambda z: gp.predict(process, z))(x)
        drawn = self.sketch.draw(key, kernel, x, jnp.where(known, variances, 0))
        used = jnp.arange(drawn.indices.shape[0]) < drawn.count
        phi = nystrom.feature_map(kernel, x[drawn.indices], used)
        weights = nystrom.weights(phi, nystrom.condition(phi, noise, x, y))
        mean = self.exploration.of(Expansion(kernel, phi.z, weights))
        return mean, drawn.count


def personalization(
    alpha: ArrayLike | Sequence[float], weights: ArrayLike | Sequence[float] | None, agents: int
) -> tuple[Float[Array, " agents"], Float[Array, " agents"]]:
    """alpha and w of every agent, w by default 1 / agents. `ValueError` for impossible numbers."""
    whole("agents", agents, least=1)
    alpha = _of_agents("alpha", alpha, agents)
    require((alpha >= 0) & (alpha <= 1), f"alpha must be in [0, 1], got {alpha}.")
    weights = _of_agents("weights", 1 / agents if weights is None else weights, agents)
    require(
        (weights >= 0) & jnp.isfinite(weights),
        f"weights must be finite and not negative, got {weights}.",
    )
    return alpha, weights


def _of_agents(
    name: str, value: ArrayLike | Sequence[float], agents: int
) -> Float[Array, " agents"]:
    value = named(name)(value)
    require(
        value.shape in ((), (agents,)),
        f"{name} must be one number or one for each of {agents} agents, got shape {value.shape}.",
    )
    return jnp.broadcast_to(value, (agents,))
