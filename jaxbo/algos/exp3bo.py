"""EXP3BO: a bandit for adversaries picks the kernel whose sample is followed (Gopakumar et al., 2018).

    p_m = (1 - γ) exp(γ G_m / M) / Σ exp(γ G / M) + γ / M
    an arm m ~ p,    x = argmax f(x),  f ~ expert m,    G_m ← G_m + reward / p_m

A rival of EGP-TS: it weighs kernels by the values that they led to, EGP-TS by how well they explain all.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require
from jaxbo._keys import Held, aside, held
from jaxbo._shown import Shown
from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm, Stage
from jaxbo.algos.base.one_model import State
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.layout import Each
from jaxbo.types import Count, Key, Scalar, named


class Exp3State(eqx.Module):
    """`model` is that of an `EGP`; `gains` are G, and rewards are values between `least` and `most`."""

    model: State
    arms: Held = eqx.field(converter=held)
    gains: Float[Array, " experts"]
    least: Scalar
    most: Scalar


class Exp3Info(Shown):
    """The expert that was followed."""

    expert: Int[Array, " targets"]


class EXP3BO(AbstractAlgorithm):
    """EXP3BO: a bandit picks the kernel whose sample a single worker follows.

    Every kernel of the ensemble is an arm, and all arms are given all observations. A reward is the
    value's place between the smallest and the largest value so far.

    Differs from the original, whose arms are categories with data of their own; here arms are
    kernels, as the paper of EGP-TS adapts it.

    Memory: that of the ensemble; measured in a run of 35 observations with three kernels that are
    fitted, 0.8 MB at most.

    Args:
        domain: The space to search.
        surrogate: The ensemble whose kernels are the arms.
        gamma: Share of rounds in which an arm is picked at random, in (0, 1]. Default: 0.1.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.

    Raises:
        ValueError: `surrogate` is no `Ensemble`, or `gamma` is outside of (0, 1].

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> kernels = [jaxbo.Matern32(0.2), jaxbo.Matern52(0.2)]
        >>> model = jaxbo.Ensemble(kernels, jaxbo.Fitted(8, size=10, refit_every=None))
        >>> method = jaxbo.EXP3BO(jaxbo.Cube(1), model, candidates=50)
        >>> method.probabilities(method.init(jr.key(0))).tolist()
        [0.5, 0.5]
    """

    domain: AbstractDomain
    surrogate: Ensemble
    gamma: Scalar = eqx.field(converter=named("gamma"), default=0.1)
    candidates: int = eqx.field(static=True, default=1000)

    def __check_init__(self):
        is_a("surrogate", self.surrogate, Ensemble)
        require((self.gamma > 0) & (self.gamma <= 1), f"gamma must be in (0, 1], got {self.gamma}.")
        self._model()  # which checks the rest

    def _model(self) -> EGP:
        return EGP(self.domain, self.surrogate, candidates=self.candidates)

    @property
    def targets(self) -> int:
        return 1

    @property
    def capacity(self) -> int | None:
        return self.surrogate.capacity

    @property
    def invariant(self) -> bool:
        """Says whether the surrogate is invariant: rewards are places between two values anyway."""
        return self.surrogate.invariant

    def init(self, key: Key, *, each: Each = jax.vmap) -> Exp3State:
        del each  # there is one worker
        model_key, arm_key = jr.split(key)
        gains = jnp.zeros((len(self.surrogate.kernels),), self.gamma.dtype)
        # Not infinite: `jax_debug_infs` would stop for the state.
        least = jnp.full_like(self.gamma, jnp.finfo(self.gamma.dtype).max)
        return Exp3State(self._model().init(model_key), arm_key, gains, least, -least)

    def round(self, state: Exp3State) -> Count:
        return state.model.round

    def told(self, state: Exp3State) -> Count:
        return state.model.told

    def probabilities(self, state: Exp3State) -> Float[Array, " experts"]:
        """Computes the probability p of every arm.

        Args:
            state: The state of this method.

        Returns:
            The probabilities.
        """
        count = state.gains.size
        share = jnp.exp(self.gamma / count * (state.gains - jnp.max(state.gains)))
        return (1 - self.gamma) * share / jnp.sum(share) + self.gamma / count

    def arm(self, state: Exp3State) -> Count:
        """Picks the expert of this round, which the state settles: so `tell` knows it too.

        Args:
            state: The state of this method.

        Returns:
            The number of the expert.
        """
        logits = jnp.log(self.probabilities(state))
        return jr.categorical(jr.fold_in(state.arms.key, state.model.round), logits)

    def ask(
        self,
        key: Key,
        state: Exp3State,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], Exp3Info]:
        del each
        require(present is None, "present is for agents that send messages; workers send none.")
        candidate_key, sample_key = jr.split(key)
        arm = self.arm(state)
        expert, phi, belief = state.model.shared.pick(arm, state.model.belief)
        sample = expert.sample(sample_key, phi, belief)
        candidates = self.domain.candidates(candidate_key, self.candidates)
        x = query(aside(key), sample, self.domain, candidates, state.model.past)
        return x[None], Exp3Info(arm[None])

    def tell(
        self,
        state: Exp3State,
        queries: Float[Array, "targets dim"],
        values: Float[Array, " targets"],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> Exp3State:
        del info, each
        seen = self._seen(state, values)
        arm, value = self.arm(state), values[0]
        extent = seen.most - seen.least
        reward = jnp.where(extent > 0, (value - seen.least) / jnp.where(extent > 0, extent, 1), 0.5)
        # An arm is drawn in rounds only.
        drawn = jnp.isfinite(value) & ~jnp.asarray(stage.before)
        gain = jnp.where(drawn, reward / self.probabilities(state)[arm], 0)
        model = self._model().tell(state.model, queries, values, stage)
        gains = state.gains.at[arm].add(gain)
        return Exp3State(model, state.arms, gains, seen.least, seen.most)

    def predict(
        self, state: Exp3State, x: Float[Array, "targets dim"]
    ) -> tuple[Float[Array, " targets"], Float[Array, " targets"]]:
        return self._model().predict(state.model, x)

    def check_start(self, state: Exp3State, values: Float[Array, "points agents"]) -> None:
        self._model().check_start(state.model, values)

    def _seen(self, state: Exp3State, values: Float[Array, " n"]) -> Exp3State:
        """The state, whose extent of values has the new values too."""
        fine = jnp.isfinite(values)
        least = jnp.min(jnp.where(fine, values, jnp.inf), initial=jnp.inf)
        most = jnp.max(jnp.where(fine, values, -jnp.inf), initial=-jnp.inf)
        new = jnp.minimum(state.least, least), jnp.maximum(state.most, most)
        return eqx.tree_at(lambda s: (s.least, s.most), state, new)
