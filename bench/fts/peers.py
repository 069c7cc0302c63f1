"""A target that learns from fifty peers, who have observed functions like its own or unlike it.

    peer n:  f ± d_n, the sign drawn at every point;   t_n observations at random points

Every run has a function, peers and an initial point of its own; all methods share them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common.messages import random_cosines
from bench.tasks.synthetic import LENGTH_SCALE, NOISE, VALUES_VARIANCE
from jaxbo import metrics
from jaxbo.algos.base.federated import FederatedState
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import OnGrid, perturbed
from jaxbo.runs.compiled import run
from jaxbo.schedules import Power
from jaxbo.types import Key, Points

PEERS, INITIAL, OWN_FEATURES = 50, 1, 300
#: Observations of a peer, and the distance of functions that are alike.
OBSERVATIONS, ALIKE = (40, 100), 0.02
#: p_t = 1 - t^(-exponent).
SLOW, FAST = 0.5, 2.0
#: Runs that are computed at the same time: a few hundred megabytes.
BATCH = 10


class PeerSetting(NamedTuple):
    """A curve of the figure: FTS with `features` numbers a message."""

    observations: int
    features: int
    distance: float = ALIKE
    exponent: float = SLOW

    @property
    def name(self) -> str:
        schedule = "1/√t" if self.exponent == SLOW else "1/t²"
        return (
            f"FTS t_n = {self.observations}, M = {self.features}, d_n = {self.distance}, "
            f"1 - p_t = {schedule}"
        )


#: What peers of unknown likeness have seen and send.
MESSAGES = PeerSetting(OBSERVATIONS[0], features=100)


def described(runs: int, rounds: int) -> dict[str, Any]:
    """The settings that a result with them states."""
    return {
        "runs": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "peers": PEERS,
        "observations of a peer": MESSAGES.observations,
        "M": MESSAGES.features,
    }


def message_model(features: int) -> Fixed:
    """The features that messages are drawn from."""
    kernel, noise = SquaredExponential(LENGTH_SCALE), NOISE / VALUES_VARIANCE
    return Fixed(kernel=kernel, size=features, noise=noise, basis=random_cosines)


def target_and_peers(
    points: Points,
    features: Fixed,
    own: AbstractSurrogate | None,
    exponent: float = SLOW,
    **options: Any,
) -> FTS:
    """FTS whose agent 0 queries, on messages made before the start unless `options` say otherwise."""
    options = {"once": True} | options
    mixing = Power(exponent)
    return FTS(
        Finite(points), 1 + PEERS, features=features, own=own, mixing=mixing, targets=1, **options
    )


class Perturbed(eqx.Module):
    """The functions of peers: f ± distance, the sign drawn at every point."""

    distance: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, key: Key, function: Float[Array, " points"]) -> Float[Array, "peers points"]:
        return perturbed(key, function, self.distance, PEERS)


#: (key, function of the target) -> the functions of its peers
Relatives = Callable[[Key, Float[Array, " points"]], Float[Array, "peers points"]]


@eqx.filter_jit
def values_of(
    algorithm: TS | FTS,
    functions: Float[Array, "runs points"],
    points: Points,
    rounds: int,
    keys: Array,
    peers: FTS | None = None,
    relatives: Relatives | None = None,
    observations: int = 0,
) -> Float[Array, "runs rows"]:
    """The values at the target's queries, without noise; alone, or with `peers` who have seen so much."""

    def one(item: tuple[Array, Key]) -> Array:
        function, key = item
        key, init_key, peer_key = _keys(key)
        state = None
        if peers is not None:
            assert isinstance(algorithm, FTS)
            assert relatives is not None
            known = peers_data(peer_key, function, points, relatives, observations)
            state = start(peers, algorithm, init_key, *known)
        objective = OnGrid(function[None, :], points, NOISE**0.5)
        _, trace = run(algorithm, objective, rounds, key, initial=INITIAL, state=state)
        return jax.vmap(lambda x: objective.noiseless(jnp.zeros((), int), x))(trace.queries[:, 0])

    return jax.lax.map(one, (functions, keys), batch_size=BATCH)


def _keys(key: Key) -> tuple[Key, Key, Key]:
    """The keys of the run itself, which TS has too; of the features; of the peers."""
    run_key, other = jr.split(key)
    init_key, peer_key = jr.split(other)
    return run_key, init_key, peer_key


def start(peers: FTS, algorithm: FTS, key: Key, queries: Array, values: Array) -> FederatedState:
    """The state before the first round, as `algorithm.warm_start` has it; `peers` do the learning.

    Without an `own` in the settings, agents learn nothing for their own models: peers' are never asked,
    and teaching them would be most of the work.
    """
    state = algorithm.init(key)
    if peers.own is not None:
        return peers.warm_start(state, queries, values)
    # While they learn, the past is of their size; the state keeps its own, which no peer is asked by.
    light = eqx.tree_at(
        lambda s: (s.shared.own, s.clients.beliefs.own, s.past),
        state,
        (None, None, peers.init(key).past),
    )
    informed = peers.warm_start(light, queries, values).clients
    known = informed.beliefs.message, informed.sent
    return eqx.tree_at(
        lambda s: (s.clients.beliefs.message, s.clients.sent),
        state,
        known,
        is_leaf=lambda leaf: leaf is None,
    )


def peers_data(
    key: Key,
    function: Float[Array, " points"],
    points: Points,
    relatives: Relatives,
    observations: int,
) -> tuple[Float[Array, "observations agents dim"], Float[Array, "observations agents"]]:
    """The agents' knowledge before the start: the peers their observations, the target nothing."""
    function_key, place_key, noise_key = jr.split(key, 3)
    values = relatives(function_key, function)
    places = jax.vmap(lambda k: jr.choice(k, len(points), (observations,), replace=False))(
        jr.split(place_key, PEERS)
    )
    seen = jnp.take_along_axis(values, places, axis=1)
    seen = seen + NOISE**0.5 * jr.normal(noise_key, seen.shape, seen.dtype)
    known = jnp.concatenate([jnp.full((observations, 1), jnp.nan), seen.T], axis=1)
    queries = points[places.T]
    return jnp.concatenate([jnp.full_like(queries[:, :1], jnp.nan), queries], axis=1), known


def regret(values: Array | np.ndarray) -> Float[np.ndarray, "runs rounds"]:
    """Simple regret after every round, of values [runs rows] in [0, 1]."""
    return metrics.simple_regret(np.asarray(values)[..., None], 1.0)[:, INITIAL:, 0]
