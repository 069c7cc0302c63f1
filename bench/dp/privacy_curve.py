"""DP-FTS-DE, Fig. 3: the price of privacy on a real objective. The parts of `dp-landmine` and its kin.

    z in {1, 1.6, 2, 3, 4} at q = 0.35,   q in {0.1, 0.15, 0.2, 0.25, 0.35} at z = 1
    P = 4,  S = 22,  M = 100,  1 - p_t = 1/t;  10 initial points, then 60 rounds;  δ = 1 / N^1.1
    figure of a run: 1 - best value so far, noise included, mean over the agents

Other methods are without privacy: FTS-DE, FTS (a single region) and TS; and by problem a single region
under privacy (Fig. 8, S = 11), other weights and other numbers of regions (Fig. 9, 10), samples of a
fixed size (Fig. 11) and weights that do not adapt (Fig. 12b). As the authors have it, messages are on
features of length scale 0.01 with noise 1e-6 and of values as they are, and the agents' own samples
have hyperparameters fitted by maximum evidence, a length scale for each coordinate. Every setting of as
many regions is the same program: z, q and S are numbers.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from bench.claims import BY, Check, below, met, within
from bench.common import messages
from bench.common.text import number
from bench.common.timing import race
from bench.dp.privacy_loss import COLUMNS, Loss, delta, loss
from bench.runner import Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.ts import TS
from jaxbo.domains.base import AbstractDomain, Regions
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.privacy.mechanism import (
    EMPHASIS,
    FixedSize,
    Mechanism,
    Poisson,
    Weighting,
    region_weights,
)
from jaxbo.runs.compiled import run
from jaxbo.schedules import Power
from jaxbo.types import Count, Key, Point, Scalar

INITIAL, REGIONS, FEATURES, S = 10, 4, 100, 22.0
OWN_FEATURES, REFIT = 100, 5
WEIGHTING = Weighting(EMPHASIS, hold=10, decay=30)
#: Losses below this are what the paper calls the single-digit range.
SMALL = 10.0


class PrivacySetting(NamedTuple):
    """A point of the picture: no regions is TS, z = 0 is without privacy."""

    regions: int = REGIONS
    z: float = 0.0
    q: float = 1.0
    S: float = S
    weighting: Weighting = WEIGHTING
    fixed_size: bool = False

    def mechanism(self, agents: int) -> Mechanism:
        bound = self.S if self.z else np.inf
        if self.fixed_size:
            return Mechanism(self.z, bound, FixedSize(round(self.q * agents), agents))
        return Mechanism(self.z, bound, Poisson(self.q))


class Ratio(Weighting):
    """An agent counts rᵖ times as much in the region it explores; r falls from `emphasis` to 1."""

    power: float = 1.0

    def __call__(
        self, t: Count, assigned: Int[Array, " agents"], regions: int
    ) -> Float[Array, "regions agents"]:
        ratio = 1 + (self.emphasis - 1) / self.temperature(t)
        return region_weights(assigned, regions, jnp.ones(()), self.power * jnp.log(ratio))


TS_ALONE, WITHOUT_DE, WITH_DE, PRIVATE = "TS", "FTS", "FTS-DE", "z = 1.0, q = 0.35"
OPEN = {
    TS_ALONE: PrivacySetting(regions=0),
    WITHOUT_DE: PrivacySetting(regions=1),
    WITH_DE: PrivacySetting(),
}
BY_NOISE = {f"z = {z}, q = 0.35": PrivacySetting(z=z, q=0.35) for z in (1.0, 1.6, 2.0, 3.0, 4.0)}
BY_SAMPLE = {f"z = 1.0, q = {q}": PrivacySetting(z=1.0, q=q) for q in (0.1, 0.15, 0.2, 0.25, 0.35)}
SETTINGS = OPEN | BY_NOISE | BY_SAMPLE
QUICK = OPEN | {name: SETTINGS[name] for name in (PRIVATE, "z = 4.0, q = 0.35")}


def _with_and_without_privacy(name: str, **changed: Any) -> dict[str, PrivacySetting]:
    return {
        f"{WITH_DE}, {name}": SETTINGS[WITH_DE]._replace(**changed),
        f"{PRIVATE}, {name}": SETTINGS[PRIVATE]._replace(**changed),
    }


#: Figures of the appendix that not every problem has: those beside the settings of Fig. 3.
WITHOUT_REGIONS = {
    f"{name}, one region": setting._replace(regions=1, S=S / 2)
    for name, setting in BY_NOISE.items()
}
WEIGHTS = (
    _with_and_without_privacy("a = 9", weighting=Weighting(9.0, hold=10, decay=30))
    | _with_and_without_privacy("a = 1000 : 1", weighting=Ratio(1000.0, hold=10, decay=30))
    | _with_and_without_privacy("a² = 40² : 1", weighting=Ratio(40.0, 10, 30, power=2.0))
)
PARTITIONS: dict[str, PrivacySetting] = {}
for _count in (2, 3, 6):
    PARTITIONS |= _with_and_without_privacy(f"P = {_count}", regions=_count)
FIXED_SIZE = {
    f"{name}, fixed size": setting._replace(fixed_size=True)
    for name, setting in (BY_NOISE | BY_SAMPLE).items()
}
NOT_ADAPTIVE = {
    f"{PRIVATE}, not adaptive": SETTINGS[PRIVATE]._replace(weighting=Weighting(EMPHASIS, np.inf))
}


class PrivateProblem(NamedTuple):
    """What is tuned. `objective` returns the share that is right, or an AUC: 1 is the best there is."""

    domain: AbstractDomain
    agents: int
    objective: Callable[[Key, Count, Point], Scalar]
    unit: str
    #: Runs that are computed at the same time.
    batch: int
    #: Whether an evaluation trains a model inside the program.
    trains: bool
    #: What is measured beside `SETTINGS`, by figure.
    figures: Mapping[str, Mapping[str, PrivacySetting]] = {}


def measure(problem: PrivateProblem, options: Options, name: str, runs: int, rounds: int) -> Result:
    """All settings, their checks and the picture.

    Each setting's curve is saved as it ends: an interrupted run, started again, continues.
    """
    settings = dict(QUICK if options.quick else SETTINGS)
    figures = {} if options.quick else problem.figures
    for more in figures.values():
        settings |= more
    # First, since it fails if an accountant is not installed.
    losses = {
        setting: loss(settings[setting].mechanism(problem.agents), problem.agents, rounds)
        for setting in settings
    }
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        setting: functools.partial(shortfall, problem, settings[setting], keys, rounds)
        for setting in settings
    }
    curves, folder = parts(options, name, (runs, rounds), measures)
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
        figure=_figure(curves, losses, problem.unit, figures),
        scratch=folder,
    )


def _described(problem: PrivateProblem, runs: int, rounds: int) -> dict[str, Any]:
    return {
        "runs": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "agents": problem.agents,
        "P": REGIONS,
        "S": S,
        "M": FEATURES,
        "length scale of the messages": messages.LENGTH_SCALE,
        "noise of the messages": messages.NOISE,
        "features of the agents' own model": OWN_FEATURES,
        "rounds between refits": REFIT,
        "delta": delta(problem.agents),
    }


def training_seconds(problem: PrivateProblem) -> dict[str, float]:
    """The seconds of a round, all agents in one program, and a program called for each agent in turn."""
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


def method(
    problem: PrivateProblem, regions: int, mechanism: Mechanism, weighting: Weighting, rounds: int
) -> AbstractAlgorithm:
    """TS for no regions, else DP-FTS-DE."""
    scales = SquaredExponential(np.full(problem.domain.dim, 0.2))
    own = Fitted(INITIAL + rounds, scales, size=OWN_FEATURES, refit_every=REFIT)
    if not regions:
        return TS(problem.domain, problem.agents, own)
    return DPFTSDE(
        problem.domain,
        problem.agents,
        mechanism,
        regions=Regions.of(problem.domain.dim, regions),
        weighting=weighting,
        features=messages.model(FEATURES, standardize=False),
        own=own,
        mixing=Power(1.0),
        releases=jnp.inf,
    )


def shortfall(
    problem: PrivateProblem, setting: PrivacySetting, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    """1 - the best value so far, of every run the mean over its agents."""
    mechanism = setting.mechanism(problem.agents)
    return _shortfall(setting.regions, mechanism, setting.weighting, problem, keys, rounds)


@eqx.filter_jit
def _shortfall(
    regions: int,
    mechanism: Mechanism,
    weighting: Weighting,
    problem: PrivateProblem,
    keys: Array,
    rounds: int,
) -> Float[Array, "runs rounds"]:
    def one(key: Key) -> Array:
        algorithm = method(problem, regions, mechanism, weighting, rounds)
        _, trace = run(algorithm, problem.objective, rounds, key, initial=INITIAL)
        best = jax.lax.cummax(jnp.nan_to_num(trace.values, nan=0.0), axis=0)[INITIAL:]
        return 1 - jnp.mean(best, axis=1)

    return jax.lax.map(one, keys, batch_size=problem.batch)


# ---------------------------------------------------------------- what the paper claims


def checks(curves: dict[str, np.ndarray], losses: dict[str, Loss]) -> dict[str, Check]:
    """The claims about the end of the runs, run by run: all settings have the same keys."""
    ends = {name: curve[:, -1] for name, curve in curves.items()}
    found: dict[str, Check] = {}

    def is_below(lower: str, upper: str) -> None:
        if lower in ends and upper in ends:
            found[f"{lower} below {upper}, difference"] = below(ends[lower], ends[upper])

    def is_no_worse(ours: str, rival: str) -> None:
        if ours in ends and rival in ends:
            claim = f"{ours} no worse than {rival} {BY}, ratio"
            found[claim] = within(ends[ours], ends[rival])

    is_below(WITH_DE, TS_ALONE)
    is_below(WITH_DE, WITHOUT_DE)
    for name in BY_NOISE | BY_SAMPLE:
        moments = losses[name].moments if name in losses else None
        if moments is not None and moments < SMALL:
            is_below(name, TS_ALONE)
    is_below(PRIVATE, "z = 4.0, q = 0.35")
    is_below(PRIVATE, "z = 1.0, q = 0.1")
    for name, one_region in zip(BY_NOISE, WITHOUT_REGIONS, strict=True):
        is_below(name, one_region)  # Fig. 8
    for name in WEIGHTS | PARTITIONS:  # Fig. 9, 10: "robust"
        is_no_worse(name, WITH_DE if name.startswith(WITH_DE) else PRIVATE)
    for name, fixed_size in zip(BY_NOISE | BY_SAMPLE, FIXED_SIZE, strict=True):  # Fig. 11
        is_no_worse(fixed_size, name)
        if fixed_size in ends and name in losses:
            found |= renyi_below_moments(name, losses[name])
    for name in NOT_ADAPTIVE:
        is_below(PRIVATE, name)  # Fig. 12b
    return found


def renyi_below_moments(name: str, loss: Loss) -> dict[str, Check]:
    """Fig. 11's claim about the loss, of the paper's own sampling: every agent is drawn by itself.

    The bound for samples of a fixed size is about an agent in the place of another, and cannot be below.
    """
    if loss.renyi is None or loss.moments is None:
        return {}
    return {f"{name}: Rényi loss below that by moments": met(loss.renyi, most=loss.moments)}


def _rows(curves: dict[str, np.ndarray], losses: dict[str, Loss]) -> list[tuple[str, ...]]:
    rows = []
    for name, curve in curves.items():
        mean, error = metrics.mean_and_error(curve[:, -1])
        cells = (float(mean), float(error), len(curve), *losses[name])
        rows.append((name, *map(number, cells)))
    return rows


def _figure(
    curves: dict[str, np.ndarray],
    losses: dict[str, Loss],
    unit: str,
    figures: Mapping[str, Mapping[str, PrivacySetting]],
) -> Any:
    from matplotlib.figure import Figure

    rows = 1 + (len(figures) + 1) // 2
    figure = Figure(figsize=(14, 5 * rows), dpi=plotting.DPI, layout="constrained")
    (left, right, *rest) = np.ravel(figure.subplots(rows, 2, width_ratios=(1.1, 1)))
    _draw_trade_off(left, curves, losses, unit)
    shown = (*OPEN, PRIVATE, "z = 4.0, q = 0.35")
    some = {name: curves[name] for name in shown if name in curves}
    plotting.regret(some, right, ylabel=unit, band="error")
    for ax, title in zip(rest, figures, strict=False):
        _draw_ends(ax, curves, (TS_ALONE, WITH_DE, PRIVATE, *figures[title]), unit)
        ax.set_title(title)
    for ax in rest[len(figures) :]:
        ax.set_axis_off()
    return figure


def _draw_ends(ax: Any, curves: dict[str, np.ndarray], names: Sequence[str], unit: str) -> None:
    """The end of each setting, with its standard error."""
    for place, name in enumerate(reversed(names)):
        mean, error = metrics.mean_and_error(curves[name][:, -1])
        ax.errorbar(mean, place, xerr=error, fmt="o", color=plotting.BLUE, capsize=3)
    ax.set_yticks(range(len(names)), reversed(names))
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(f"{unit} at the end")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_trade_off(
    ax: Any,
    curves: dict[str, np.ndarray],
    losses: dict[str, Loss],
    unit: str,
) -> None:
    """Loss against utility, by the paper's accountant (open) and the tight accountant (filled)."""
    from matplotlib import ticker

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
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
