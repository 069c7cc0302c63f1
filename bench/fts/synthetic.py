"""FTS, Fig. 1: a target learns from fifty peers whose functions are like its own, or are not.

    f ~ GP(0, SE(0.03)) on 1000 points of [0, 1], scaled to [0, 1];   y = f(x) + N(0, 0.01)
    peer n:  f ± d_n, the sign drawn at every point;   t_n observations at random points
    regret_t = 1 - max over queries up to round t of f, without the noise

Every run has a function, peers and an initial point of its own; all methods share them. Points that the
paper leaves open are chosen here as follows.

- Values are standardized by each agent, so noise is 0.01 over the variance of the functions' values,
  which is 0.05. Raw values under a kernel of variance 1, and a noise too small by twenty times, give
  the same order of the curves.
- The target's own samples, alone and in FTS, come from a model of 300 features of the default kind,
  near enough to the exact process: only the messages depend on M.
- Messages are on the features of appendix A: cosines of frequencies that are drawn independently.
- M is 20, 50, 100. The faster p_t is that of the paper's real experiments.
- For d_n = 1.2 peers have 100 observations and 100 features: as sure of themselves as they get.
"""

from typing import Any

import jax.random as jr
import numpy as np

from bench.claims import Check, below, difference, worst
from bench.fts.peers import (
    ALIKE,
    FAST,
    INITIAL,
    OBSERVATIONS,
    OWN_FEATURES,
    PEERS,
    SLOW,
    PeerSetting,
    Perturbed,
    message_model,
    regret,
    target_and_peers,
    values_of,
)
from bench.runner import Experiment, Options, Result, progress
from bench.tasks.synthetic import LENGTH_SCALE, NOISE, POINTS, VALUES_VARIANCE, draws, grid
from jaxbo import plotting
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential

FEATURES, UNLIKE = (20, 50, 100), 1.2
#: Curves of --quick: the smallest and the largest M for the larger t_n.
QUICK = (3, 5)
#: Rounds in which FTS is to be ahead.
AHEAD = (5, 30)
#: Where peers are unlike, what counts as no difference, of functions from 0 to 1.
SAME = 0.005


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(200, 40), options.rounds_or(50, 30)
    alike = [PeerSetting(t_n, M) for t_n in OBSERVATIONS for M in FEATURES]
    if options.quick:  # most of a minute goes into compiling
        alike = [alike[i] for i in QUICK]
    most = PeerSetting(OBSERVATIONS[-1], FEATURES[-1])
    unlike = [most._replace(distance=UNLIKE, exponent=p) for p in (SLOW, FAST)]
    function_key, run_key = jr.split(jr.key(options.seed))
    functions = draws(function_key, runs)
    keys = jr.split(run_key, runs)

    curves = {}
    for setting in progress([None, *alike, *unlike], "fts-synthetic"):
        if setting is None:
            curves["TS"] = regret(values_of(alone(rounds), functions, grid(), rounds, keys))
            continue
        peers = federated(setting, own=None), Perturbed(setting.distance), setting.observations
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


def own_model(rounds: int) -> Fixed:
    """The target's model of its own function, the same alone and in FTS."""
    kernel = SquaredExponential(LENGTH_SCALE)
    noise = NOISE / VALUES_VARIANCE
    return Fixed(kernel=kernel, size=OWN_FEATURES, noise=noise, capacity=INITIAL + rounds)


def alone(rounds: int) -> TS:
    """The target without peers."""
    return TS(domain=Finite(grid()), surrogate=own_model(rounds))


def federated(setting: PeerSetting, own: Fixed | None) -> FTS:
    """The target, agent 0, and its peers. Without `own`, the parts that the peers need."""
    return target_and_peers(grid(), message_model(setting.features), own, setting.exponent)


# ---------------------------------------------------------------- what the paper claims


def checks(
    curves: dict[str, np.ndarray], alike: list[PeerSetting], unlike: PeerSetting
) -> dict[str, Check]:
    """The paper's claims about Fig. 1, run by run."""
    alone = curves["TS"]
    found = {}
    for setting in alike:
        ours = curves[setting.name]
        rounds = range(AHEAD[0] - 1, min(AHEAD[1], len(ours[0])))
        claim = f"{setting.name}: below TS in all rounds {AHEAD[0]} to {AHEAD[1]}, worst difference"
        found[claim] = worst(below(ours[:, t], alone[:, t]) for t in rounds)
    few, many = OBSERVATIONS
    small, large = FEATURES[0], FEATURES[-1]
    mean = {(s.observations, s.features): curves[s.name].mean(1) for s in alike}
    claim = f"t_n = {many}: M = {large} below M = {small}, difference of mean regrets"
    found[claim] = below(mean[many, large], mean[many, small])
    if (few, large) in mean:
        claim = f"M = {large}: t_n = {many} below t_n = {few}, difference of mean regrets"
        found[claim] = below(mean[many, large], mean[few, large])
        claim = f"M matters more at t_n = {many} than at {few}, difference of gains in mean regret"
        gains = [mean[t_n, small] - mean[t_n, large] for t_n in (few, many)]
        found[claim] = below(*gains)
    claim = f"{unlike.name}: at the end no further from TS than {SAME:g}, difference"
    same = difference(curves[unlike.name][:, -1], alone[:, -1], least=-SAME, most=SAME)
    return found | {claim: same}


def _figure(
    curves: dict[str, np.ndarray], alike: list[PeerSetting], unlike: list[PeerSetting]
) -> Any:
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


def _by_size(settings: list[PeerSetting], observations: int) -> list[tuple[str, PeerSetting]]:
    return [(f"M = {s.features}", s) for s in settings if s.observations == observations]


EXPERIMENT = Experiment(
    source="FTS, Fig. 1",
    about="50 peers with functions like the target's or not: regret against M, t_n, d_n and p_t",
    time="4 min",
    run=_run,
)
