"""A prior that agents learn together: federated empirical Bayes on shared features.

    w_n ~ N(m, S)                        all agents expect this of a function φ(x)'w_n
    E[w_n], Cov(w_n) given (m, S)        the message, as statistics that are summed over agents
    (m, S) ← M-step of the sums          the broadcast
    x_t = argmax of a policy             under the agent's own posterior given (m, S)

Federated Thompson sampling (FTS) sends a sampled function. It helps an agent whose optimum is near the
sender's. Here agents learn where their functions agree, in which directions they differ, and how much.
Each round makes a single step toward the most likely prior (`kernels.models.shared_prior`). This is
hierarchical Bayesian linear regression. Perrone et al. (NeurIPS 2018) have it centralized, with learned
features. Wang et al. (2021, "Pre-trained Gaussian processes") learn a prior from finished tasks.

Given (m, S), each agent's posterior is exact. The pair (m, S) is itself an estimate, a mode under an
inverse Wishart distribution: empirical Bayes. An agent that is unlike all others is wrong about itself
until its own evidence speaks against the learned prior. No regret bound of a single agent covers that.

`mixing` is a safeguard. With probability p_t an agent's round t takes nothing from others but the
location and the scale of values. If the policy is `Thompson()`, and the process of the features is
right about the agent, such a round is one of Thompson sampling alone. Together these rounds have the
regret bound of Thompson sampling in as many rounds as there are. Each other round costs the range of
the function at most. With 1 - p_t = 1 / √t there are about 2 √T other rounds among T. So the average
regret goes to 0, however wrong the learned prior is.

A server that hears single messages learns each agent's posterior mean, which is a function. A sum only
hides the mean among others' means. Two sums that differ in a single agent give the mean away.
`DPLearnedPrior` has a guarantee.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from jaxbo._check import is_a, positive, require, whole
from jaxbo._keys import aside
from jaxbo.algos.base._state import check_state
from jaxbo.algos.base.federated import AbstractFederated, FederatedState
from jaxbo.algos.base.keys import AskKeys, ask_keys
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.choosing.policy import EI, AbstractPolicy
from jaxbo.kernels.models import shared_evidence, shared_groups, shared_prior, shared_units
from jaxbo.kernels.models.fitted import Fitted, Mixture
from jaxbo.kernels.models.shared_covariance import Statistics
from jaxbo.kernels.models.shared_evidence import SettingsEvidence
from jaxbo.kernels.models.shared_groups import Doubt
from jaxbo.kernels.models.shared_prior import AgentData, SharedPrior, Terms
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.features import FeatureMap, FourierFunction
from jaxbo.layout import Each, total
from jaxbo.schedules import AbstractSchedule, as_schedule
from jaxbo.types import Count, Flag, Key, Point, Scalar, named

Message = TypeVar("Message")


class FeatureSettings(eqx.Module):
    """The feature maps among which evidence chooses, with a leading axis. `chosen` is the number of the
    present map. `start` is the prior from which agents learn with new features, but for the location.
    """

    features: FeatureMap
    noises: Float[Array, " settings"]
    start: SharedPrior
    chosen: Count

    def of(self, number: Count) -> FeatureMap:
        """The feature map of this number."""
        return jax.tree.map(lambda leaf: leaf[number], self.features)


class LearnedPriorShared(eqx.Module):
    """The features of all agents, and the priors of all groups that they have learned by now.

    `settings` is None if the features are given. `own_units` says whether the priors are of values in
    agents' own units.
    """

    features: FeatureMap
    prior: SharedPrior
    settings: FeatureSettings | None = None
    own_units: bool = eqx.field(static=True, default=False)


class LearnedPriorMessage(NamedTuple):
    """An agent's statistics under the present features, and its evidence of all."""

    statistics: Statistics
    evidence: SettingsEvidence


class LearnedPriorChoice(NamedTuple):
    """The priors of a round, the number of their features, and that of the next round's."""

    prior: SharedPrior
    chosen: Count
    next: Count


class LearnedPriorBroadcast(eqx.Module):
    """The priors of this round, and the round's common random key; the round's number if agents ask.

    `chosen` is the number of their features, and `next` that of the next round's, if evidence chooses.
    """

    key: Key
    prior: SharedPrior
    round: Count | None = None
    chosen: Count | None = None
    next: Count | None = None


def _schedule(mixing: ArrayLike | AbstractSchedule | None) -> AbstractSchedule | None:
    return None if mixing is None else as_schedule(mixing, "mixing")


def _gathered(
    shared: LearnedPriorShared, terms: tuple[Terms, SettingsEvidence | None]
) -> LearnedPriorMessage | Statistics:
    """The sum of several agents' messages, from terms with an axis of agents."""
    own, evidence = terms
    statistics = shared_groups.gathered(shared.prior, own)
    if evidence is None:
        return statistics
    return LearnedPriorMessage(statistics, jax.tree.map(lambda a: jnp.sum(a, axis=0), evidence))


def _features(features: Any) -> Any:
    """A model, or several of them among which evidence chooses."""
    if not isinstance(features, Sequence):
        return features
    return features[0] if len(features) == 1 else tuple(features)


class _Believed:
    """An agent's belief as policies ask for it."""

    def sample(self, key: Key, shared: object, belief: Doubt) -> FourierFunction:
        del shared
        return belief.sample(key)

    def mixture(self, shared: object, belief: Doubt) -> Mixture:
        del shared
        return belief.mixture()

    def count(self, belief: Doubt) -> Count:
        return belief.known.count


class LearnedPrior(AbstractFederated):
    """Agents learn a prior over functions together, and each searches by its own posterior.

    Values are taken as they are. Their location and scale are common to all agents, and learned. A
    failed evaluation is not learned from. An agent that is not `present` is in no sum, and hears the
    broadcast all the same.

    If agents' values differ in unit, say `own_units=True`. Then each agent finds its own location and
    scale by the evidence of its values, and agents learn from values in these units
    (`kernels.models.shared_units`). No message holds an agent's location or scale. The unit is right
    if the kernel and the noise are. If the noise is far too small, the unit grows as points come
    close. An agent of a single value, or of equal values, knows no unit and is in no sum. Until it
    knows one, its predictions have deviations of about 1.

    `rank` says how agents' functions may differ from their mean m, and it fixes the length of a
    message. D is `features.size` + 1:

        None      in any way, S any covariance                  D + 4 + D (D + 1) numbers
        r         most in r directions, which are learned       D + 4 + 2 D (r + 1) numbers
        0         independently, S one variance                 D + 8 numbers

    The first is ahead in the first rounds of most experiments, and in some by far. With any covariance
    each round finds the mean that all values tell of. With a rank each round goes a small part of the
    way. If agents have few and rough values, no form is ahead. If a server cannot receive all messages,
    let a part of the agents be `present` in each round. In `prior-participation` a tenth of 300
    agents, with any covariance, were ahead of all agents with rank 10, and sent less than half of the
    numbers. A rank is for agents that cannot send or hear so much: a broadcast has D (2 D + 1) + 5
    numbers with any covariance.

    `groups` is for agents of several kinds, such as functions that are upside down for half of
    them. Each group learns a prior of its own, and nobody knows the group of an agent. An agent's
    values count in the group that explains them best, and its search weighs all groups by its
    evidence. A message is `groups` times as long. Each group needs enough agents: one of few is
    soon lost.

    `features` may be a list. Then evidence chooses one of them after each round, and the first is
    that of the first round. An agent sends two numbers more for each. The evidence is that of all
    agents' values under nothing learned (`kernels.models.shared_evidence`). After a change agents
    learn the prior anew, from all their values.

    Each agent weighs the learned priors against nothing learned, by its own evidence. Nothing
    learned is a mean of 0 and the covariance of the kernel.

    For each group, a round takes an agent O(capacity² (D + r)), and O(capacity (D + r)) a candidate.
    With any covariance it takes O(D²) more for each observation and each point on a climb, and the
    server O(D³). It takes O(D²) for each candidate too, which agents share that are computed
    together. In a list of features, each takes O(capacity D²) more.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1.
        capacity: The most observations that an agent will ever make, at least 1. Later observations
            are not learned from. Default: 64.
        features: The features that all agents share. Their kernel is the prior before anything is
            learned. Their noise is a variance in units of the variance of all agents' values, or
            of an agent's own unit squared. Or a list of features of the same size, such as some
            with other length scales, among which the evidence of all values chooses. Default:
            `Fixed(noise=1e-3)`.
        policy: The rule for the next query: `EI()`, `UCB()` or `Thompson()`. Default: `EI()`.
        rank: Number of directions in which agents' functions differ most, at least 0. None: any
            covariance.
        groups: Number of groups that learn a prior each, at least 1. A `rank` must be at least
            `groups` - 1. Default: 1.
        own_units: Whether each agent's values have a location and a scale of their own, such as costs
            of one agent and percentages of another. If all values have one unit, this costs
            nothing on some tasks, and much on others. Default: False.
        degrees: Number of agents that the expected covariance counts for, above 0. Default: 5.
        shrink: Number of agents that the expected mean counts for, above 0. With any covariance it
            is the least number, and the evidence of all agents says how much more. Default: 1.
        trust: Probability, before any value, that the learned prior is right about an agent, in [0,
            1]. With 1 nobody doubts it, and with 0 all work alone. Default: 0.5.
        mixing: Probability p_t that an agent works alone in round t = 1, 2, …: a schedule or a
            number in [0, 1]. A schedule that goes to 1, such as `InverseSqrt()`, bounds what a
            wrong prior costs. None: it never does. Default: None.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.
        prior: A prior that others have learned, as `learned` returns it, for agents that begin
            later. It is the only message that they hear. It stays as it is, and they send nothing.
            It brings its own features, so `features` gives the noise alone. If they were chosen
            from a list, the prior brings their noise too. `own_units` must be as it was there.
            `rank`, `groups`, `degrees` and `shrink` do not count, and `trust` does. None: the
            agents learn a prior.

    Raises:
        ValueError: A number is out of its range, or the prior is of another dimension or of other
            units, or has learned nothing.

    Example:
        >>> import jaxbo
        >>> method = jaxbo.LearnedPrior(jaxbo.Cube(2), agents=50, capacity=20, rank=0)
        >>> method.capacity, method.rank, method.gathers
        (20, 0, False)
        >>> method.policy
        EI()
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    capacity: int = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=64
    )
    _: KW_ONLY
    features: Fixed | tuple[Fixed, ...] = eqx.field(
        converter=_features, default_factory=lambda: Fixed(noise=1e-3)
    )
    policy: AbstractPolicy = eqx.field(default_factory=EI)
    rank: int | None = eqx.field(static=True, default=None)
    groups: int = eqx.field(static=True, default=1)
    own_units: bool = eqx.field(static=True, default=False)
    degrees: Scalar = eqx.field(converter=named("degrees"), default=5.0)
    shrink: Scalar = eqx.field(converter=named("shrink"), default=1.0)
    trust: Scalar = eqx.field(converter=named("trust"), default=0.5)
    mixing: AbstractSchedule | None = eqx.field(default=None, converter=_schedule)
    candidates: int = eqx.field(static=True, default=1000)
    prior: LearnedPriorShared | None = None

    def __check_init__(self):
        require(
            len(self._models) > 0 and all(isinstance(model, Fixed) for model in self._models),
            f"features must be Fixed(...), or a list of them of which evidence chooses one, got "
            f"{self.features!r:.60}.",
        )
        self._check_alike()
        is_a("policy", self.policy, AbstractPolicy)
        self.policy.check(Fitted(1))
        whole("capacity", self.capacity, least=1)
        if self.rank is not None:
            whole("rank", self.rank)
        whole("groups", self.groups, least=1)
        directions = self._size if self.rank is None else self.rank
        require(
            self.groups - 1 <= min(directions, self._size),
            f"groups={self.groups} begin to differ in {self.groups - 1} directions: features.size "
            f"must be at least that, and rank too or None, got {self._size} and {self.rank}.",
        )
        is_a("own_units", self.own_units, bool)
        whole("candidates", self.candidates, least=1)
        positive("degrees", self.degrees)
        positive("shrink", self.shrink)
        require(
            (self.trust >= 0) & (self.trust <= 1), f"trust must be in [0, 1], got {self.trust}."
        )
        if self.prior is not None:
            is_a("prior", self.prior, LearnedPriorShared)
            require(
                len(self._models) == 1,
                "prior brings its own features, and agents choose no others: leave the list of "
                "features out, or give one Fixed(...) for the noise.",
            )
            shape = self.prior.prior.location.shape
            axes = 0 if self.prior.prior.share is None else 1  # that of groups
            require(
                len(shape) == axes, f"prior must be one, got an array of them of shape {shape}."
            )
            dim = self.prior.features.dim
            require(
                dim == self.domain.dim,
                f"prior was learned on {dim} dimensions, and the domain has {self.domain.dim}.",
            )
            require(
                self.prior.own_units == self.own_units,
                f"prior was learned with own_units={self.prior.own_units}: say so here, too.",
            )
            require(
                jnp.all(self.prior.prior.learned),
                "prior has learned nothing, not even the scale of values, since no two of them "
                "differed: leave it out, and agents learn one together.",
            )

    @property
    def _models(self) -> tuple[Fixed, ...]:
        """The models among which evidence chooses, or the single model that is given."""
        return self.features if isinstance(self.features, tuple) else (self.features,)

    @property
    def _size(self) -> int:
        return self._models[0].size

    def _check_alike(self) -> None:
        """`ValueError` unless the feature maps of all models have the same arrays."""
        if len(self._models) == 1 or self.prior is not None:
            return
        draw = lambda model: model.setup(jr.key(0), self.domain.dim)  # noqa: E731
        maps = [eqx.filter_eval_shape(draw, model) for model in self._models]
        structures = {jax.tree.structure(each) for each in maps}
        shapes = {tuple(leaf.shape for leaf in jax.tree.leaves(each)) for each in maps}
        require(
            len(structures) == len(shapes) == 1,
            "features of which evidence chooses one must be alike: give all the same size and basis, and "
            "kernels with as many length scales.",
        )

    def _noise(self, shared: LearnedPriorShared, chosen: Count | None = None) -> Scalar:
        """The noise of features of this number, or of the present ones."""
        if shared.settings is None:
            return self._models[0].noise
        return shared.settings.noises[shared.settings.chosen if chosen is None else chosen]

    @property
    def gathers(self) -> bool:
        return False

    @property
    def invariant(self) -> bool:
        return self.own_units

    @property
    def random(self) -> bool:
        return self.policy.random() or self.mixing is not None

    def learned(
        self,
        state: FederatedState,
        steps: int = 10,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> LearnedPriorShared:
        """Returns the prior that agents have learned from all their observations, for agents that
        begin later.

        It takes more steps of expectation-maximization, which cost messages and no evaluation. If
        evidence chooses the features, two steps go before.

        Args:
            state: The state of a run of this method.
            steps: Number of steps more, at least 0. Default: 10.
            present: Whether each agent takes part. None: all agents do.
            each: The map of a function of one agent to a function of all agents. Default:
                `jax.vmap`.

        Returns:
            The features and the prior, for the argument `prior` of another `LearnedPrior`.

        Raises:
            ValueError: The state is of another algorithm, `steps` is no whole number, or `present`
                is no array of a truth value for each agent.
        """
        whole("steps", steps)
        check_state(self, state)
        here = np.ones((self.agents,), bool) if present is None else present
        shape, dtype = getattr(here, "shape", ()), getattr(here, "dtype", None)
        require(
            shape == (self.agents,) and dtype == np.bool_,
            f"present must be an array of bool for each of the {self.agents} agents, got "
            f"{type(here).__name__} of {dtype} and shape {shape}.",
        )
        key = jr.key(0)  # of which nothing learned depends
        # The features may change in a first step, and then have learned nothing before a second.
        first = 0 if state.shared.settings is None else 2

        def step(_: Count, shared: LearnedPriorShared) -> LearnedPriorShared:
            now = eqx.tree_at(lambda state: state.shared, state, shared)
            _, heard = self.exchange(ask_keys(key), now, jnp.asarray(here), each=each)
            return self.revised(shared, self.remembered(heard))

        return jax.lax.fori_loop(0, first + steps, step, state.shared)

    def setup(self, key: Key) -> LearnedPriorShared:
        if self.prior is not None:
            return self.prior
        feature_key, basis_key = jr.split(key)
        # Of the same key: kernels of the same form have the same frequencies.
        maps = [model.setup(jr.clone(feature_key), self.domain.dim) for model in self._models]
        noises, size = jnp.stack([model.noise for model in self._models]), self._size
        rank = size + 1 if self.rank is None else self.rank
        prior = shared_groups.uninformed(basis_key, size, rank, self.groups, noises.dtype)
        if len(maps) == 1:
            return LearnedPriorShared(maps[0], prior, own_units=self.own_units)
        all_maps = jax.tree.map(lambda *leaves: jnp.stack(leaves), *maps)
        settings = FeatureSettings(all_maps, noises, prior, jnp.zeros((), int))
        return LearnedPriorShared(settings.of(settings.chosen), prior, settings, self.own_units)

    def join(self, key: Key, shared: LearnedPriorShared, index: Count) -> AgentData:
        del key, index
        return shared_prior.nothing(self.capacity, self.domain.dim, shared.prior.mean.dtype)

    def message(
        self, key: Key, shared: LearnedPriorShared, client: AgentData
    ) -> LearnedPriorMessage | Statistics | None:
        del key
        if self.prior is not None:
            return None
        one = jax.tree.map(lambda leaf: leaf[None], self._terms(shared, client))
        return _gathered(shared, one)

    def aggregate(
        self,
        key: Key,
        shared: LearnedPriorShared,
        round: Count,
        messages: LearnedPriorMessage | Statistics | None,
        present: Bool[Array, " agents"],
    ) -> LearnedPriorBroadcast:
        sums = None if messages is None else total(jax.vmap, self._counted)(present, messages)
        return self._broadcast(key, shared, sums, round)

    def exchange(
        self,
        keys: AskKeys,
        state: FederatedState,
        present: Bool[Array, " agents"],
        *,
        each: Each = jax.vmap,
    ) -> tuple[PyTree, LearnedPriorBroadcast]:
        if self.prior is not None:
            return super().exchange(keys, state, present, each=each)

        def counted(shared: LearnedPriorShared, present: Flag, client: AgentData) -> Any:
            return self._counted(present, self._terms(shared, client))

        # All messages together would be some D² numbers for each agent: their sums are made of fewer.
        sums = total(each, counted, (None, 0, 0), _gathered)(state.shared, present, state.clients)
        return None, self._broadcast(keys.server, state.shared, sums, state.round)

    def _terms(
        self, shared: LearnedPriorShared, client: AgentData
    ) -> tuple[Terms, SettingsEvidence | None]:
        """The parts of an agent's message."""
        noise, settings = self._noise(shared), shared.settings
        own = shared_units.in_unit(self.own_units, shared.features, noise, client)
        terms = shared_groups.terms(shared.features, shared.prior, noise, own.known)
        # Without a unit, an agent's values say nothing.
        terms = jax.tree.map(lambda leaf: jnp.where(own.told, leaf, 0), terms)
        if settings is None:
            return terms, None
        return terms, shared_evidence.evidence(settings.features, settings.noises, own.known)

    def _counted(self, present: Flag, message: Message) -> Message:
        """An agent's part of the sums: 0 if it is absent, or if a number is not finite."""
        heard = present & self.usable(message)
        return jax.tree.map(lambda a: jnp.where(heard, a, 0), message)

    def _broadcast(
        self,
        key: Key,
        shared: LearnedPriorShared,
        sums: LearnedPriorMessage | Statistics | None,
        round: Count,
    ) -> LearnedPriorBroadcast:
        """From the sums over agents; None if they send nothing."""
        told = None if self.mixing is None else round
        statistics = sums.statistics if isinstance(sums, LearnedPriorMessage) else sums
        prior = shared.prior
        if statistics is not None:
            prior = shared_groups.updated(prior, statistics, self.shrink, self.degrees)
        settings = shared.settings
        if settings is None:
            return LearnedPriorBroadcast(key, prior, told)
        following = settings.chosen
        if isinstance(sums, LearnedPriorMessage):
            best = shared_evidence.likeliest(sums.evidence, prior.scale[0], settings.chosen)
            # While all values are equal nothing is known of their scale.
            following = jnp.where(prior.learned[0], best, settings.chosen)
        return LearnedPriorBroadcast(key, prior, told, settings.chosen, following)

    def choose(
        self,
        key: Key,
        shared: LearnedPriorShared,
        client: AgentData,
        past: History,
        message: LearnedPriorMessage | Statistics | None,
        broadcast: LearnedPriorBroadcast,
    ) -> tuple[Point, tuple[()]]:
        del message
        trust, alone = self.trust, ~jnp.all(broadcast.prior.learned)
        if self.mixing is not None and broadcast.round is not None:
            turn_key, key = jr.split(key)
            own_turn = jr.uniform(turn_key) < self.mixing(broadcast.round + 1)
            trust, alone = jnp.where(own_turn, 0, trust), alone | own_turn
        # The features are the broadcast's: an agent may have missed the round before.
        settings, chosen, features = shared.settings, broadcast.chosen, shared.features
        if settings is not None and chosen is not None:
            features = settings.of(chosen)
        noise = self._noise(shared, chosen)
        own = shared_units.in_unit(self.own_units, features, noise, client)
        belief = shared_groups.doubting(features, broadcast.prior, noise, own.known, trust)
        # While all of an agent's own values are equal, the shared prior says where to look.
        return self.search(key, belief, past, broadcast.key, alone), ()

    def search(self, key: Key, belief: Doubt, past: History, common: Key, alone: Flag) -> Point:
        """Chooses the point that an agent of this belief queries.

        Args:
            key: The agent's random key.
            belief: The agent's belief.
            past: The agent's own evaluations.
            common: The random key of all agents in this round.
            alone: Whether the function comes from the agent's own values alone.

        Returns:
            The point.
        """
        function = self.policy(key, _Believed(), None, belief)
        candidates = self.domain.candidates(common, self.candidates)
        return query(aside(key), function, self.domain, candidates, past, alone=alone)

    def expect(
        self, shared: LearnedPriorShared, client: AgentData, x: Point
    ) -> tuple[Scalar, Scalar]:
        noise = self._noise(shared)
        own = shared_units.in_unit(self.own_units, shared.features, noise, client)
        known = shared.prior, noise, own.known, self.trust
        mean, variance = shared_groups.doubting(shared.features, *known).predict(x)
        return own.location + own.scale * mean, own.scale * (own.scale * variance)

    def learn(
        self, shared: LearnedPriorShared, round: Count, client: AgentData, x: Point, value: Scalar
    ) -> AgentData:
        del shared, round
        return shared_prior.observe(client, x, value)

    def remembered(self, broadcast: LearnedPriorBroadcast) -> LearnedPriorChoice | SharedPrior:
        if broadcast.chosen is None or broadcast.next is None:
            return broadcast.prior
        return LearnedPriorChoice(broadcast.prior, broadcast.chosen, broadcast.next)

    def revised(
        self, shared: LearnedPriorShared, remembered: LearnedPriorChoice | SharedPrior
    ) -> LearnedPriorShared:
        settings = shared.settings
        if settings is None or not isinstance(remembered, LearnedPriorChoice):
            assert isinstance(remembered, SharedPrior)
            return LearnedPriorShared(shared.features, remembered, own_units=shared.own_units)
        prior, chosen, following = remembered
        begun = chosen == following
        # Where values are far from 0, a round of its own would have to find the location again.
        start = eqx.tree_at(lambda p: p.location, settings.start, prior.location)
        prior = jax.tree.map(lambda a, b: jnp.where(begun, a, b), prior, start)
        settings = eqx.tree_at(lambda s: s.chosen, settings, following)
        features = settings.of(following)
        return LearnedPriorShared(features, prior, settings, shared.own_units)
