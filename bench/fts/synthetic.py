"""FTS, Fig. 1: one target learns from fifty peers whose functions are like its own, or are not.

    f ~ GP(0, SE(0.03)) on 1000 points of [0, 1], scaled to [0, 1];   y = f(x) + N(0, 0.01)
    peer n:  f ± d_n, the sign drawn at every point;   t_n observations at random points
    regret_t = 1 - max over queries up to round t of f, without the noise

Every run has a function, peers and an initial point of its own; all methods share them. What the
paper leaves open is chosen here as follows.

- Values are standardized by each agent, so noise is 0.01 over the variance of the functions' values,
  which is 0.05. Raw values under a kernel of variance 1, and a noise too small by twenty times, give
  the same order of the curves.
- The target's own samples, alone and in FTS, come from a model of 300 features of the default kind,
  near enough to the exact process: only the messages depend on M.
- Messages are on the features of appendix A: cosines of frequencies that are drawn independently.
- M is 20, 50, 100. The faster p_t is the one of the paper's real experiments.
- For d_n = 1.2 peers have 100 observations and 100 features: as sure of themselves as they get.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.runner import Check, Experiment, Options, Result, progress
from jaxbo import metrics, plotting
from jaxbo.algos.base.federated import FederatedState
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.features import Cosine, cosine, independent
from jaxbo.objectives.families import OnGrid, gp_draws, perturbed, unit_range
from jaxbo.runs.compiled import run
from jaxbo.schedules import Power
from jaxbo.types import Key, Points

PEERS, POINTS, LENGTH_SCALE, NOISE = 50, 1000, 0.03, 0.01
OBSERVATIONS, FEATURES, INITIAL = (40, 100), (20, 50, 100), 1
ALIKE, UNLIKE = 0.02, 1.2
#: p_t = 1 - t^(-exponent).
SLOW, FAST = 0.5, 2.0
#: Variance of the values of the scaled functions, measured over 1000 of them.
VALUES_VARIANCE = 0.05
#: Curves of --quick: the smallest and the largest M for the larger t_n.
QUICK = (3, 5)
OWN_FEATURES = 300
#: Rounds in which FTS is to be ahead.
AHEAD = (5, 30)
#: Runs that are computed at the same time: a few hundred megabytes.
BATCH = 10


class Setting(NamedTuple):
    """One curve of the figure: FTS with `features` numbers a message."""

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


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(200, 40), options.rounds_or(50, 30)
    alike = [Setting(t_n, M) for t_n in OBSERVATIONS for M in FEATURES]
    if options.quick:  # most of a minute goes into compiling
        alike = [alike[i] for i in QUICK]
    most = Setting(OBSERVATIONS[-1], FEATURES[-1])
    unlike = [most._replace(distance=UNLIKE, exponent=p) for p in (SLOW, FAST)]
    function_key, run_key = jr.split(jr.key(options.seed))
    functions = draws(function_key, runs)
    keys = jr.split(run_key, runs)

    curves = {}
    for setting in progress([None, *alike, *unlike], "fts-synthetic"):
        if setting is None:
            curves["TS"] = regret(values_of(alone(rounds), functions, grid(), rounds, keys))
            continue
        peers = federated(setting, own=None), Shifted(setting.distance), setting.observations
        algorithm = federated(setting, own=own_model(rounds))
        curves[setting.name] = regret(values_of(algorithm, functions, grid(), rounds, keys, *peers))
    return Result(
        settings=_settings(runs, rounds),
        curves=curves,
        checks=checks(curves, alike, unlike[-1]),
        figure=_figure(curves, alike, unlike),
    )


def _settings(runs: int, rounds: int) -> dict[str, Any]:
    return {
        "runs": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "peers": PEERS,
        "points of the domain": POINTS,
        "length scale": LENGTH_SCALE,
        "noise variance": NOISE,
        "noise over the values' variance, of the model": NOISE / VALUES_VARIANCE,
        "features of the target's own model": OWN_FEATURES,
        "regret": "noise-free, after t rounds and the initial point",
    }


# ---------------------------------------------------------------- the methods


def grid() -> Points:
    """The domain, evenly spaced."""
    return jnp.linspace(0, 1, POINTS)[:, None]


def random_cosines(key: Key, kernel: AbstractKernel, dim: int, size: int) -> Cosine:
    """The paper's features (appendix A)."""
    return cosine(key, kernel, dim, size, independent)


def own_model(rounds: int) -> Fixed:
    """The target's model of its own function, the same alone and in FTS."""
    kernel = SquaredExponential(LENGTH_SCALE)
    noise = NOISE / VALUES_VARIANCE
    return Fixed(kernel=kernel, size=OWN_FEATURES, noise=noise, capacity=INITIAL + rounds)


def alone(rounds: int) -> TS:
    """The target without peers."""
    return TS(domain=Finite(grid()), surrogate=own_model(rounds))


def message_model(features: int) -> Fixed:
    """What messages are drawn from."""
    kernel, noise = SquaredExponential(LENGTH_SCALE), NOISE / VALUES_VARIANCE
    return Fixed(kernel=kernel, size=features, noise=noise, basis=random_cosines)


def federated(setting: Setting, own: Fixed | None) -> FTS:
    """The target, agent 0, and its peers. Without `own`, what the peers need."""
    return target_and_peers(grid(), message_model(setting.features), own, setting.exponent)


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


class Shifted(eqx.Module):
    """The functions of peers: f ± distance, the sign drawn at every point."""

    distance: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, key: Key, function: Float[Array, " points"]) -> Float[Array, "peers points"]:
        return perturbed(key, function, self.distance, PEERS)


#: (key, function of the target) -> the functions of its peers
Relatives = Callable[[Key, Float[Array, " points"]], Float[Array, "peers points"]]


# ---------------------------------------------------------------- compiled, all runs at once


@eqx.filter_jit
def draws(key: Key, runs: int) -> Float[Array, "runs points"]:
    return unit_range(gp_draws(key, SquaredExponential(LENGTH_SCALE), grid(), runs))


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
    """At what the target queries, without noise; alone, or with `peers` who have seen so much."""

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
    """Of the run itself, which TS has too; of the features; of the peers."""
    run_key, other = jr.split(key)
    init_key, peer_key = jr.split(other)
    return run_key, init_key, peer_key


def start(peers: FTS, algorithm: FTS, key: Key, queries: Array, values: Array) -> FederatedState:
    """The state before the first round, as `algorithm.warm_start` has it; `peers` do the learning.

    Where these have no `own`, agents learn nothing for their own models: peers' are never asked, and
    teaching them would be most of the work.
    """
    state = algorithm.init(key)
    if peers.own is not None:
        return peers.warm_start(state, queries, values)
    light = eqx.tree_at(lambda s: (s.shared.own, s.clients.beliefs.own), state, (None, None))
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
    """What the agents know before the start: the peers their observations, the target nothing."""
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


# ---------------------------------------------------------------- what the paper claims


def checks(
    curves: dict[str, np.ndarray], alike: list[Setting], unlike: Setting
) -> dict[str, Check]:
    """The paper's claims about Fig. 1. "Below" and "no different" are by 95 % intervals."""
    alone = curves["TS"]
    found = {}
    for setting in alike:
        gap = _gap(alone, curves[setting.name])
        claim = (
            f"{setting.name}: intervals below TS's in rounds {AHEAD[0]} to {AHEAD[1]}, least gap"
        )
        found[claim] = Check(gap > 0, gap)
    few, many = OBSERVATIONS
    small, large = FEATURES[0], FEATURES[-1]
    mean = {(s.observations, s.features): curves[s.name].mean(1) for s in alike}
    helps = mean[many, small] - mean[many, large]
    found[f"t_n = {many}: M = {large} below M = {small}, mean regret"] = _positive(helps)
    if (few, large) in mean:
        claim = f"M = {large}: t_n = {many} below t_n = {few}, mean regret"
        found[claim] = _positive(mean[few, large] - mean[many, large])
        claim = f"M matters more at t_n = {many} than at {few}, mean regret"
        found[claim] = _positive(helps - (mean[few, small] - mean[few, large]))
    worse = curves[unlike.name][:, -1] - alone[:, -1]
    low, high = metrics.confidence_interval(worse)
    claim = f"{unlike.name}: at the end no different from TS, difference"
    return found | {claim: Check(bool(low <= 0 <= high), float(worse.mean()))}


def _gap(above: np.ndarray, below: np.ndarray) -> float:
    """The least distance between the two intervals; negative where they overlap."""
    rounds = slice(AHEAD[0] - 1, AHEAD[1])
    low, _ = metrics.confidence_interval(above[:, rounds])
    _, high = metrics.confidence_interval(below[:, rounds])
    return float(np.min(low - high, initial=np.inf))


def _positive(differences: np.ndarray) -> Check:
    low, _ = metrics.confidence_interval(differences)
    return Check(bool(low > 0), float(differences.mean()))


def _figure(curves: dict[str, np.ndarray], alike: list[Setting], unlike: list[Setting]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.4), dpi=plotting.DPI, layout="constrained")
    schedules = [("p = 1 - 1/√t", unlike[0]), ("p = 1 - 1/t²", unlike[1])]
    panels = [
        (f"peers alike, d_n = {ALIKE}, t_n = {t_n}", _by_size(alike, t_n))
        for t_n in sorted({setting.observations for setting in alike})
    ]
    panels.append((f"peers unlike, d_n = {UNLIKE}", schedules))
    for ax, (title, settings) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        shown = {name: curves[setting.name] for name, setting in settings}
        plotting.regret({"TS": curves["TS"], **shown}, ax, log=True)
        ax.set_title(title)
    return figure


def _by_size(settings: list[Setting], observations: int) -> list[tuple[str, Setting]]:
    return [(f"M = {s.features}", s) for s in settings if s.observations == observations]


EXPERIMENT = Experiment(
    source="FTS, Fig. 1",
    about="50 peers with functions like the target's or not: regret against M, t_n, d_n and p_t",
    time="4 min",
    run=_run,
)
