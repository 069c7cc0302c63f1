"""DP-FTS-DE, Fig. 3: what privacy costs on a real objective. The parts of `dp_landmine` and its kin.

    z in {1, 1.6, 2, 3, 4} at q = 0.35,   q in {0.1, 0.15, 0.2, 0.25, 0.35} at z = 1
    P = 4,  S = 22,  M = 100,  1 - p_t = 1/t;  10 initial points, then 60 rounds;  δ = 1 / N^1.1
    figure of a run: 1 - best value so far, noise included, mean over the agents

Beside them, without privacy: FTS-DE, FTS (one region) and TS. As the authors have it, messages are on
features of length scale 0.01 with noise 1e-6 and of values as they are, and the agents' own samples have
hyperparameters fitted by maximum evidence, a length scale for each coordinate. Every setting of as many
regions is the same program: z, q and S are numbers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.fts_synthetic import random_cosines
from bench.privacy_loss import COLUMNS, Loss, delta, loss
from bench.runner import Check, Options, Result, number, parts
from bench.speed_timing import race
from jaxbo import metrics, plotting
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.ts import TS
from jaxbo.domains import AbstractDomain, Regions
from jaxbo.kernels.covariance import SquaredExponential
from jaxbo.kernels.fitted import Fitted
from jaxbo.kernels.mechanism import EMPHASIS, Mechanism, Poisson, Weighting
from jaxbo.kernels.surrogate import Fixed
from jaxbo.loop import run
from jaxbo.schedules import Power
from jaxbo.types import Count, Key, Point, Scalar

INITIAL, REGIONS, FEATURES, S = 10, 4, 100, 22.0
LENGTH_SCALE, NOISE = 0.01, 1e-6
OWN_FEATURES, REFIT = 100, 5
WEIGHTING = Weighting(EMPHASIS, hold=10, decay=30)
#: Losses below this are what the paper calls the single-digit range.
SMALL = 10.0


class Setting(NamedTuple):
    """One point of the picture: no regions is TS, z = 0 is without privacy."""

    regions: int = REGIONS
    z: float = 0.0
    q: float = 1.0

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.z, S if self.z else np.inf, Poisson(self.q))


TS_ALONE, WITHOUT_DE, WITH_DE = "TS", "FTS", "FTS-DE"
OPEN = {TS_ALONE: Setting(regions=0), WITHOUT_DE: Setting(regions=1), WITH_DE: Setting()}
BY_NOISE = {f"z = {z}, q = 0.35": Setting(z=z, q=0.35) for z in (1.0, 1.6, 2.0, 3.0, 4.0)}
BY_SAMPLE = {f"z = 1.0, q = {q}": Setting(z=1.0, q=q) for q in (0.1, 0.15, 0.2, 0.25, 0.35)}
SETTINGS = OPEN | BY_NOISE | BY_SAMPLE
QUICK = OPEN | {name: SETTINGS[name] for name in ("z = 1.0, q = 0.35", "z = 4.0, q = 0.35")}


class Problem(NamedTuple):
    """What is tuned. `objective` returns the share that is right, or an AUC: 1 is the best there is."""

    domain: AbstractDomain
    agents: int
    objective: Callable[[Key, Count, Point], Scalar]
    unit: str
    #: Runs that are computed at the same time.
    batch: int
    #: Whether an evaluation trains a model inside the program.
    trains: bool


def measure(problem: Problem, options: Options, name: str, runs: int, rounds: int) -> Result:
    """All settings, their checks and the picture.

    Each setting's curve is saved as it ends: an interrupted run, started again, continues.
    """
    settings = QUICK if options.quick else SETTINGS
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        setting: functools.partial(shortfall, problem, SETTINGS[setting], keys, rounds)
        for setting in settings
    }
    curves, folder = parts(options, name, (runs, rounds), measures)
    losses = {
        setting: loss(SETTINGS[setting].mechanism, problem.agents, rounds) for setting in settings
    }
    return Result(
        settings={
            **_described(problem, runs, rounds),
            "losses": {setting: losses[setting]._asdict() for setting in settings},
            **(training_seconds(problem) if problem.trains else {}),
        },
        curves=curves,
        checks=checks(curves, losses),
        unit=problem.unit,
        headers=("method", problem.unit, "s.e.", "runs", *COLUMNS),
        rows=_rows(curves, losses),
        figure=_figure(curves, losses, problem.unit),
        scratch=folder,
    )


def _described(problem: Problem, runs: int, rounds: int) -> dict[str, Any]:
    return {
        "runs": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "agents": problem.agents,
        "P": REGIONS,
        "S": S,
        "M": FEATURES,
        "length scale of the messages": LENGTH_SCALE,
        "noise of the messages": NOISE,
        "features of the agents' own model": OWN_FEATURES,
        "rounds between refits": REFIT,
        "delta": delta(problem.agents),
    }


def training_seconds(problem: Problem) -> dict[str, float]:
    """Of one round, all agents in one program, and one program called for each agent in turn."""
    key, agents = jr.key(0), jnp.arange(problem.agents)
    points = problem.domain.sample(key, problem.agents)
    keys = jr.split(key, problem.agents)
    one = jax.jit(lambda *given: problem.objective(*given))
    together = jax.jit(lambda *given: jax.vmap(problem.objective)(*given))
    calls = {
        "seconds to train all agents' models, in one program": lambda: together(
            keys, agents, points
        ),
        "seconds to train all agents' models, in a loop": lambda: [
            one(keys[i], agents[i], points[i]) for i in range(problem.agents)
        ],
    }
    return {name: float(np.min(seconds)) for name, seconds in race(calls, 5).items()}


# ---------------------------------------------------------------- the methods


def method(problem: Problem, regions: int, mechanism: Mechanism, rounds: int) -> AbstractAlgorithm:
    """TS for no regions, else DP-FTS-DE."""
    scales = SquaredExponential(np.full(problem.domain.dim, 0.2))
    own = Fitted(INITIAL + rounds, scales, size=OWN_FEATURES, every=REFIT)
    if not regions:
        return TS(problem.domain, problem.agents, own)
    kernel = SquaredExponential(LENGTH_SCALE)
    return DPFTSDE(
        problem.domain,
        problem.agents,
        mechanism,
        regions=Regions.of(problem.domain.dim, regions),
        weighting=WEIGHTING,
        features=Fixed(
            kernel=kernel, size=FEATURES, noise=NOISE, standardize=False, basis=random_cosines
        ),
        own=own,
        mixing=Power(1.0),
    )


def shortfall(
    problem: Problem, setting: Setting, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    """1 - the best value so far, of every run the mean over its agents."""
    return _shortfall(setting.regions, setting.mechanism, problem, keys, rounds)


@eqx.filter_jit
def _shortfall(
    regions: int, mechanism: Mechanism, problem: Problem, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    def one(key: Key) -> Array:
        algorithm = method(problem, regions, mechanism, rounds)
        _, trace = run(algorithm, problem.objective, rounds, key, initial=INITIAL)
        best = jax.lax.cummax(jnp.nan_to_num(trace.values, nan=0.0), axis=0)[INITIAL:]
        return 1 - jnp.mean(best, axis=1)

    return jax.lax.map(one, keys, batch_size=problem.batch)


# ---------------------------------------------------------------- what the paper claims


def checks(curves: dict[str, np.ndarray], losses: dict[str, Loss]) -> dict[str, Check]:
    """The claims about the end of the runs; "below" is by the 95 % interval of the difference."""
    found: dict[str, Check] = {}

    def below(lower: str, upper: str) -> None:
        if lower in curves and upper in curves:
            difference = curves[upper][:, -1] - curves[lower][:, -1]
            low, _ = metrics.confidence_interval(difference)
            found[f"{lower} below {upper}"] = Check(bool(low > 0), float(difference.mean()))

    below(WITH_DE, TS_ALONE)
    below(WITH_DE, WITHOUT_DE)
    for name, (moments, *_) in losses.items():
        if moments is not None and moments < SMALL:
            below(name, TS_ALONE)
    below("z = 1.0, q = 0.35", "z = 4.0, q = 0.35")
    below("z = 1.0, q = 0.35", "z = 1.0, q = 0.1")
    return found


def _rows(curves: dict[str, np.ndarray], losses: dict[str, Loss]) -> list[tuple[str, ...]]:
    rows = []
    for name, curve in curves.items():
        mean, error = metrics.mean_and_error(curve[:, -1])
        cells = (float(mean), float(error), len(curve), *losses[name])
        rows.append((name, *map(number, cells)))
    return rows


def _figure(curves: dict[str, np.ndarray], losses: dict[str, Loss], unit: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), dpi=plotting.DPI, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    _draw_trade_off(left, curves, losses, unit)
    shown = (*OPEN, "z = 1.0, q = 0.35", "z = 4.0, q = 0.35")
    some = {name: curves[name] for name in shown if name in curves}
    plotting.regret(some, right, ylabel=unit, band="error")
    return figure


def _draw_trade_off(
    ax: Any,
    curves: dict[str, np.ndarray],
    losses: dict[str, Loss],
    unit: str,
) -> None:
    """Loss against utility, by the paper's accountant (open) and the tight one (filled)."""
    for group, label, color in (
        (BY_NOISE, "z = 1 to 4, q = 0.35", plotting.PALETTE[2]),
        (BY_SAMPLE, "q = 0.1 to 0.35, z = 1", plotting.RED),
    ):
        names = [name for name in group if name in curves]
        means, errors = zip(*(metrics.mean_and_error(curves[n][:, -1]) for n in names), strict=True)
        style = {"fmt": "o", "color": color, "capsize": 3}
        loose, tight = ([losses[name][i] for name in names] for i in (0, 2))
        ax.errorbar(loose, means, errors, **style, mfc="white", label=f"{label}: moments")
        ax.errorbar(tight, means, errors, **style, label=f"{label}: PLD")
    for name, style in ((TS_ALONE, "--"), (WITHOUT_DE, ":"), (WITH_DE, "-")):
        ax.axhline(curves[name][:, -1].mean(), color="0.5", ls=style, label=name)
    ax.set(xlabel="privacy loss ε", ylabel=f"{unit} at the end", xscale="log")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, ncols=2)
