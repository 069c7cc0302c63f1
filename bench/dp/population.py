"""Privacy against regret by the number of agents: populations whose sum is louder than its noise.

    f_n = 0.7 common + 0.3 own, of `common.alike`;   3 initial points, then 10 rounds on a grid
    DP-FTS-DE:  P = 2,  S = 11,  M = 50,  q = 0.25,  1 - p_t = 1 / √t,  a release in every round
    z by the tight accountant, for ε in {4, 1, 1/4, 1/16} of all rounds at δ = 1 / N^1.1

Noise falls as 1 / N, and the signal of a broadcast does not. So the paper's trade-off is there if agents
are many. Regret is in deviations of the functions, the mean over agents and rounds. FTS-DE, TS and random
search are beside it, without privacy.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, on_average, within
from bench.common import alike
from bench.common.alike import INITIAL, KERNEL
from bench.common.text import interval, number
from bench.dp.privacy_loss import delta
from bench.dp.signal import noise_over_signal
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite, Regions
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.privacy import accounting
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.schedules import Power
from jaxbo.types import Key, Scalar

ROUNDS, FEATURES, NOISE = 10, 50, 1e-3
#: Points along each axis of the domain.
SIDE = 16
REGIONS, S, Q = 2, 11.0, 0.25
EPSILONS = (4.0, 1.0, 0.25, 0.0625)
#: The claims are about this loss.
CLAIMED = 1.0
#: Agents -> runs, and how many of them are computed at the same time.
POPULATIONS = {200: (20, 10), 1000: (12, 2), 10_000: (6, 1)}
QUICK = {200: (3, 3)}
OPEN, ALONE, RANDOM = "FTS-DE, no privacy", "TS", "random search"


def label(epsilon: float) -> str:
    """The name of a private method."""
    return f"ε = {epsilon:g}"


METHODS = (RANDOM, ALONE, OPEN, *map(label, EPSILONS))


@functools.cache
def noise(epsilon: float, agents: int, rounds: int) -> float:
    """z of as many releases as rounds, which cost so much together."""
    return accounting.noise_for(epsilon, delta(agents), Poisson(Q), rounds, accounting.pld)


def method(name: str, agents: int, rounds: int) -> AbstractAlgorithm:
    """One of `METHODS`."""
    domain = Finite(alike.grid(SIDE))
    model = Fixed(KERNEL, FEATURES, NOISE, standardize=False, capacity=INITIAL + rounds)
    if name == RANDOM:
        return RandomSearch(domain, agents)
    if name == ALONE:
        return TS(domain, agents, model)
    mechanism = Mechanism(0.0, np.inf, Poisson(1.0))
    if name != OPEN:
        epsilon = {label(e): e for e in EPSILONS}[name]
        mechanism = Mechanism(noise(epsilon, agents, rounds), S, Poisson(Q))
    return DPFTSDE(
        domain,
        agents,
        mechanism,
        regions=Regions.of(2, REGIONS),
        features=model,
        mixing=Power(0.5),
        releases=np.inf,
    )


def _run(options: Options) -> Result:
    rounds = options.rounds_or(ROUNDS, 5)
    populations = QUICK if options.quick else POPULATIONS
    measures: dict[str, Callable[[], Any]] = {}
    for agents, (runs, batch) in populations.items():
        keys = jr.split(jr.key(options.seed), options.runs or runs)
        for name in METHODS:
            algorithm = functools.partial(method, name, agents, rounds)
            measures[_named(agents, name)] = functools.partial(
                _regret, algorithm, agents, rounds, keys, batch
            )
        measures[_named(agents, LOUDNESS)] = functools.partial(
            _loudness, agents, rounds, keys, batch
        )
    found, folder = parts(options, "dp-population", (options.runs, rounds), measures)
    regret = {name: one for name, one in found.items() if LOUDNESS not in name}
    #: For z = 1: noise is in proportion to z.
    loudness = {agents: found[_named(agents, LOUDNESS)] for agents in populations}
    z = {N: {label(e): noise(e, N, rounds) for e in EPSILONS} for N in populations}
    ratios = {_named(N, name): z[N][name] * loudness[N] for N in populations for name in z[N]}
    return Result(
        settings={
            "runs": {N: len(regret[_named(N, ALONE)]) for N in populations},
            "rounds": rounds,
            "initial points": INITIAL,
            "P": REGIONS,
            "S": S,
            "q": Q,
            "M": FEATURES,
            "delta": {N: delta(N) for N in populations},
            "z": z,
            "noise over signal": {name: float(one.mean()) for name, one in ratios.items()},
        },
        curves=regret,
        checks=checks(regret, ratios),
        unit="regret, deviations",
        headers=("method", "mean regret", "regret at the end", "z", "noise over signal"),
        rows=[_row(name, one, z, ratios) for name, one in regret.items()],
        figure=_figure(regret, tuple(populations)),
        scratch=folder,
    )


#: The name of that measurement.
LOUDNESS = "noise over signal at z = 1"


def _named(agents: int, name: str) -> str:
    return f"{agents} agents, {name}"


def _regret(
    algorithm: Callable[[], AbstractAlgorithm], agents: int, rounds: int, keys: Array, batch: int
) -> Float[np.ndarray, "runs rounds"]:
    return alike.regret(algorithm(), agents, rounds, keys, batch, SIDE)


def _loudness(agents: int, rounds: int, keys: Array, batch: int) -> Float[np.ndarray, " runs"]:
    algorithm = method(label(CLAIMED), agents, rounds)
    algorithm = eqx.tree_at(lambda a: a.mechanism, algorithm, Mechanism(1.0, S, Poisson(Q)))
    assert isinstance(algorithm, DPFTSDE)
    return np.asarray(_ratios(algorithm, agents, keys, batch))


@eqx.filter_jit
def _ratios(algorithm: DPFTSDE, agents: int, keys: Array, batch: int) -> Float[Array, " runs"]:
    def one(key: Key) -> Scalar:
        objective, run_key = alike.drawn(key, agents)
        return noise_over_signal(run_key, algorithm, objective, INITIAL, alike.grid(SIDE))

    return jax.lax.map(one, keys, batch_size=batch)


def checks(regret: Mapping[str, np.ndarray], ratios: Mapping[str, np.ndarray]) -> dict[str, Check]:
    """With many agents privacy costs little, with few the noise leaves nothing of the gain."""
    found: dict[str, Check] = {}
    means = {name: one.mean(axis=1) for name, one in regret.items()}
    populations = sorted({int(name.split()[0]) for name in regret})
    private = label(CLAIMED)
    for N in populations:
        name = _named(N, private)
        found[f"{name}: noise below the signal, ratio"] = on_average(ratios[name], most=1.0)
        claim = f"{name}: below TS, difference of mean regrets"
        found[claim] = below(means[name], means[_named(N, ALONE)])
        claim = f"{name}: no worse than FTS-DE without privacy {BY}, ratio"
        found[claim] = within(means[name], means[_named(N, OPEN)])
        least, most = label(min(EPSILONS)), label(max(EPSILONS))
        claim = f"{_named(N, most)}: below {least}, difference of mean regrets"
        found[claim] = below(means[_named(N, most)], means[_named(N, least)])
    for few, many in itertools.pairwise(populations):
        ours, others = means[_named(many, private)], means[_named(few, private)]
        claim = f"{_named(many, private)}: below {few} agents, difference of mean regrets"
        # The common part of a run's functions is that of any number of agents.
        runs = min(len(ours), len(others))
        found[claim] = below(ours[:runs], others[:runs])
    return found


def _row(
    name: str,
    regret: np.ndarray,
    z: Mapping[int, Mapping[str, float]],
    ratios: Mapping[str, np.ndarray],
) -> tuple[str, ...]:
    agents, kind = name.split(" agents, ")
    ends = interval(regret.mean(axis=1)), interval(regret[:, -1])
    loud = number(float(ratios[name].mean())) if name in ratios else "-"
    return name, *ends, number(z[int(agents)].get(kind)), loud


def _figure(regret: Mapping[str, np.ndarray], populations: tuple[int, ...]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), dpi=plotting.DPI, layout="constrained")
    axes: Any = figure.subplots(1, 2, width_ratios=(1.2, 1))
    left, right = axes
    for N, color in zip(populations, plotting.PALETTE, strict=False):
        means, errors = zip(
            *(metrics.mean_and_error(regret[_named(N, label(e))].mean(axis=1)) for e in EPSILONS),
            strict=True,
        )
        left.errorbar(
            EPSILONS, means, errors, fmt="o-", color=color, capsize=3, label=f"{N} agents"
        )
        left.axhline(regret[_named(N, OPEN)].mean(), color=color, ls=":")
        left.axhline(regret[_named(N, ALONE)].mean(), color=color, ls="--")
    left.set(xscale="log", xlabel="privacy loss ε of all rounds", ylabel="mean regret, deviations")
    left.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    left.set_title("dashed: TS alone; dotted: FTS-DE without privacy", fontsize=9)
    left.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    shown = {name: regret[_named(populations[-1], name)] for name in (ALONE, OPEN, label(CLAIMED))}
    plotting.regret(shown, right, ylabel="regret, deviations", band="error")
    right.set_title(f"{populations[-1]} agents")
    return figure


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3, for populations that the paper does not have",
    about="200, 1000 and 10 000 agents alike: privacy loss against regret",
    time="10 min",
    run=_run,
)
