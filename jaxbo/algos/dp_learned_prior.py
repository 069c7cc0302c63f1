"""A prior that agents learn together under differential privacy: `LearnedPrior` with a single variance.

    w_n ~ N(m, s I)                        all agents expect this of a function φ(x)'w_n
    d_n = E[w_n] - m                       the message, a change of the weights, and of two variances
    Σ clip(d_n, …) / q + noise             the release, in the first rounds alone
    m, s, scale ← M-step of the release    the broadcast (`kernels.models.private_prior`)
    x_t = argmax of a policy               under the agent's own posterior given these

`privacy.mechanism` makes the release and says which guarantee the release has. Here the mechanism
has a single region, in which every agent counts 1. The whole message of an agent is a vector: d_n
and two numbers. The norm of a clipped message is at most `mechanism.S`, so an agent's presence
moves the sum by S / q at most. An agent adds 0 while it is absent or not drawn, or if its message
is not finite.

The server sees every message, and is trusted with it, unless sums are secure:
docs/explanations/privacy.md, "Who trusts whom". It sends the prior and a public key. Both follow from
releases and from public numbers: the M-step counts all agents of the roster, present or not, and as many
values of each as `first` says. An empty round releases noise. It costs as much as any other round.

The first rounds say most, and later rounds repeat it. So a few releases are enough. Fewer releases need
less noise for the same privacy loss. After the releases, each agent goes on by its own evidence.

Each agent measures its values in a unit of its own (`kernels.models.shared_units`), unless a public guess
of location and scale is given. So nobody needs to know the scale of values, which would be data too. The
M-step moves the scale only if there is a guess.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo._check import is_a, positive, require, whole
from jaxbo._keys import aside
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.algos.learned_prior import LearnedPrior, LearnedPriorBroadcast, LearnedPriorShared
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.policy import EI, AbstractPolicy
from jaxbo.kernels.models import private_prior, shared_groups, shared_units
from jaxbo.kernels.models.private_prior import Departure, Information
from jaxbo.kernels.models.shared_prior import AgentData, SharedPrior
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.types import Count, Features, Key, Point, Scalar, named

#: So many batches of so many designs say how much agents know.
_BATCHES, _DESIGNS = 16, 256


def _guess(name: str) -> Callable[[Any], Any]:
    """The converter of a number that may be left out."""
    return lambda value: None if value is None else named(name)(value)


class DPLearnedPriorShared(LearnedPriorShared):
    """The same, and how much an agent knows of each direction before the first release.

    `LearnedPrior` takes it as a prior, too, with the same `own_units`.
    """

    _: KW_ONLY
    information: Information


class DPLearnedPrior(AbstractPrivate):
    """Agents learn a prior together through a differentially private sum.

    An agent sends M + 3 floats to the server, and the server sends M + 5 back: M is the number of
    features. The first rounds have a release; then the prior stays. `mechanism` and `releases` say
    how much privacy a run costs. The defaults are an ε of 3.7 at δ = 1e-5:

        accounting.epsilon(mechanism, releases, delta)
        z = accounting.noise_for(epsilon, delta, q, releases)

    `mechanism.S` bounds the norm of a message. Choose it beforehand, and not by the data. If the
    prior is right about an agent with t values, |d_n|² is at most t on average. So S = √t leaves
    most messages about as they are, with t the number of initial evaluations.

    Each agent finds the location and the scale of its own values. Values of agents may then differ
    in unit, and no query depends on the units. Until two of its values differ, an agent sends
    zeros, and its predictions have deviations of about 1.

    If you know location and scale beforehand, give both. Agents then learn sooner, and they learn
    how wrong the guess is. The constant of m learns the location, and each release moves the scale
    by up to a factor of two. In the setting of `prior-private`, a scale that is wrong by a factor
    of three is worth about as much as no guess, and by a factor of ten less.

    How far a release moves m depends on how much agents know. `first` says that, by the number of
    their first values, since the server does not ask. A number that is too large makes the first
    step shorter, and one that is too small makes it less reliable.

    A round takes an agent O(capacity² M). In `setup` each side draws 4096 designs, which takes
    O(4096 first M² + M³), and it keeps M² numbers of them. With millions of agents the error of so few
    designs may be larger than the noise.

    Args:
        domain: The space to search.
        agents: Number of agents, at least 1.
        capacity: The most observations that an agent will ever make, at least 2, or 1 with a guess.
            Default: 64.
        mechanism: The server's release of a round. Default: `Mechanism(2.0, 2.0, Poisson(1.0))`.
        releases: Number of rounds with a release, from the first on, at least 0. Default: 3.
        location: A guess of the mean of an agent's function, in units of values. It is public, so
            do not take it from the data: for an accuracy, 0.5 may serve. Default: None, for each
            agent's own.
        scale: A guess of the deviation of an agent's function, above 0, in units of values. It is
            public too: for an accuracy, 0.2 may serve. Default: None, for each agent's own.
        features: The features that all agents share, as in `LearnedPrior`. Default:
            `Fixed(noise=1e-3)`.
        policy: The rule for the next query: `EI()`, `UCB()` or `Thompson()`. Default: `EI()`.
        first: Number of evaluations, at random points, that an agent is expected to have made before
            the first release, at least 2, or 1 with a guess of location and scale. It is public.
            Default: 3.
        shrink: Number of agents that the expected mean counts for, above 0. Default: 1.
        trust: Probability, before any value, that the learned prior is right about an agent, in [0,
            1]. Default: 0.5.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.

    Raises:
        ValueError: `LearnedPrior` refuses a number, the scale is not positive, the location is not
            finite, only one of the two is given, or `releases` is negative.

    Example:
        >>> import jaxbo
        >>> method = jaxbo.DPLearnedPrior(jaxbo.Cube(2), agents=50)
        >>> [method.released(round) is not None for round in range(5)]
        [True, True, True, False, False]
        >>> round(jaxbo.accounting.epsilon(method.mechanism, 3, 1e-5), 1)
        3.7
    """

    domain: AbstractDomain
    agents: int = eqx.field(static=True)
    capacity: int = eqx.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        static=True, default=64
    )
    _: KW_ONLY
    mechanism: Mechanism = eqx.field(default_factory=lambda: Mechanism(2.0, 2.0, Poisson(1.0)))
    releases: Scalar = eqx.field(converter=named("releases"), default=3.0)
    location: Scalar | None = eqx.field(converter=_guess("location"), default=None)
    scale: Scalar | None = eqx.field(converter=_guess("scale"), default=None)
    features: Fixed = eqx.field(default_factory=lambda: Fixed(noise=1e-3))
    policy: AbstractPolicy = eqx.field(default_factory=EI)
    first: int = eqx.field(static=True, default=3)
    shrink: Scalar = eqx.field(converter=named("shrink"), default=1.0)
    trust: Scalar = eqx.field(converter=named("trust"), default=0.5)
    candidates: int = eqx.field(static=True, default=1000)

    def __check_init__(self):
        is_a("features", self.features, Fixed)
        require(
            (self.location is None) == (self.scale is None),
            "give location and scale, or neither of them: then each agent finds its own.",
        )
        if self.location is not None and self.scale is not None:
            positive("scale", self.scale)
            require(jnp.isfinite(self.location), f"location must be finite, got {self.location}.")
        whole("agents", self.agents, least=1)
        whole("first", self.first, least=1)
        _ = self.open  # which refuses what it cannot work with
        for name in ("first", "capacity"):
            require(
                getattr(self, name) > 1 or not self.own_units,
                f"{name} must be at least 2, since a single value has no unit of its own: or give "
                "location and scale.",
            )

    @property
    def own_units(self) -> bool:
        """Returns whether each agent finds the location and the scale of its values."""
        return self.scale is None

    @property
    def invariant(self) -> bool:
        return self.own_units

    @property
    def least_initial(self) -> int:
        return 2 if self.own_units else 1

    @property
    def open(self) -> LearnedPrior:
        """Returns the method without privacy, whose agents do the same by themselves."""
        return LearnedPrior(
            self.domain,
            self.agents,
            self.capacity,
            features=self.features,
            policy=self.policy,
            rank=0,
            own_units=self.own_units,
            shrink=self.shrink,
            trust=self.trust,
            candidates=self.candidates,
        )

    @property
    def random(self) -> bool:
        return self.policy.random()

    def setup(self, key: Key) -> DPLearnedPriorShared:
        feature_key, basis_key = jr.split(key)
        features = self.features.setup(feature_key, self.domain.dim)
        dtype = self.features.noise.dtype
        location = jnp.zeros((), dtype) if self.location is None else self.location
        scale = jnp.ones((), dtype) if self.scale is None else self.scale
        prior = private_prior.process(basis_key, features.size, location, scale, dtype)
        point_key, function_key = jr.split(aside(key))
        x = self.domain.sample(point_key, _BATCHES * _DESIGNS * self.first)
        designs = x.reshape(_BATCHES, _DESIGNS, self.first, -1)
        public = prior, self.features.noise, designs, self.mechanism.S, self.own_units
        known = private_prior.information(function_key, features, *public)
        return DPLearnedPriorShared(features, prior, own_units=self.own_units, information=known)

    def join(self, key: Key, shared: DPLearnedPriorShared, index: Count) -> AgentData:
        return self.open.join(key, shared, index)

    def message(self, key: Key, shared: DPLearnedPriorShared, client: AgentData) -> Departure:
        del key
        known = shared.features, shared.prior, self.features.noise, client
        return private_prior.departed(self.own_units, *known)[1]

    def vector(self, message: Departure) -> Features:
        return message.vector

    def weights(self, round: Count) -> Float[Array, "regions agents"]:
        del round
        return jnp.ones((1, self.agents), self.features.noise.dtype)

    def broadcast(
        self,
        key: Key,
        shared: DPLearnedPriorShared,
        round: Count,
        release: Float[Array, "regions released"],
    ) -> LearnedPriorBroadcast:
        noise = self.mechanism.deviation(self.weights(round)), self.mechanism.sampling.q
        known = *noise, self.agents, self.shrink, shared.information, self.own_units
        learned = private_prior.updated(shared.prior, release[0], *known)
        releasing = self.releasing(round)
        prior = jax.tree.map(lambda a, b: jnp.where(releasing, a, b), learned, shared.prior)
        return LearnedPriorBroadcast(key, prior)

    def choose(
        self,
        key: Key,
        shared: DPLearnedPriorShared,
        client: AgentData,
        past: History,
        message: Departure,
        broadcast: LearnedPriorBroadcast,
    ) -> tuple[Point, tuple[()]]:
        del message
        noise = self.features.noise
        own = shared_units.in_unit(self.own_units, shared.features, noise, client)
        known = broadcast.prior, noise, own.known, self.trust
        belief = shared_groups.doubting(shared.features, *known)
        # Nobody may know whether all agents' values are equal. An agent looks for a difference by itself,
        # unless the learned prior explains its values better than the process.
        learned, process = belief.log_weights
        return self.open.search(key, belief, past, broadcast.key, learned <= process), ()

    def expect(
        self, shared: DPLearnedPriorShared, client: AgentData, x: Point
    ) -> tuple[Scalar, Scalar]:
        return self.open.expect(shared, client, x)

    def learn(
        self, shared: DPLearnedPriorShared, round: Count, client: AgentData, x: Point, value: Scalar
    ) -> AgentData:
        return self.open.learn(shared, round, client, x, value)

    def remembered(self, broadcast: LearnedPriorBroadcast) -> SharedPrior:
        return broadcast.prior

    def revised(
        self, shared: DPLearnedPriorShared, remembered: SharedPrior
    ) -> DPLearnedPriorShared:
        public = {"own_units": shared.own_units, "information": shared.information}
        return DPLearnedPriorShared(shared.features, remembered, **public)
