"""DP-FTS-DE, Fig. 2, 4 to 7 and 12a: two hundred agents with functions alike, and the price of privacy.

    f ~ GP(0, SE(0.03)) on 1000 points of [0, 1], scaled to [0, 1];   y = f(x) + N(0, 0.01)
    agent n:  f ± 0.02, the sign drawn at every point; 10 initial points, then 40 rounds
    regret_t = max f_n - max over queries up to round t of f_n, without the noise; mean over agents

Every run has functions and initial points of its own; all methods share the functions. Losses are at δ
= 1 / N^1.1, by the paper's moments accountant and the tighter accountants. The agents' own model has
300 features, messages are on cosines of independent frequencies, as in `fts-synthetic`; values are
taken as they are, in [0, 1], since agents that standardized theirs alone would make the regions
incomparable: a panel shows the price of that. Private settings have the noise over the signal of round 1
beside them, and the share of messages that are clipped (`dp.signal`). The last panel has the regret of
settings with two regions and S = 11 by their loss.

Heterogeneous agents (Fig. 7) are 50, agent n with alpha f_n + (1 - alpha) f of independent draws, as the
paper writes it. Its picture of alpha = 0.7 is rather that of 0.7 as the share of the common f, which is
alpha = 0.3: both are measured.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check, below, difference
from bench.common.messages import random_cosines
from bench.common.text import number
from bench.dp.privacy_loss import COLUMNS, Loss, delta, loss
from bench.dp.signal import clipped, noise_over_signal
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.synthetic import LENGTH_SCALE, NOISE, VALUES_VARIANCE, grid
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite, Regions
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import OnGrid, gp_draws, mixtures, perturbed, unit_range
from jaxbo.privacy.mechanism import EMPHASIS, Mechanism, Poisson, Weighting
from jaxbo.runs.compiled import run
from jaxbo.schedules import Power
from jaxbo.types import Key, Scalar

AGENTS, UNLIKE_AGENTS, FEATURES, INITIAL, DISTANCE = 200, 50, 50, 10, 0.02
OWN_FEATURES = 300
#: p_t = 1 - t^(-exponent): the paper's, and the faster one of Fig. 7.
SLOW, FAST = 0.5, 2.0
#: Runs that are computed at the same time, and runs in which noise and clipping are looked at.
BATCH, LOOKED_RUNS = 5, 20
LOOKS = ("noise over signal", "messages clipped")


class SyntheticSetting(NamedTuple):
    """One curve. z = 0 is without privacy: then q is 1 and nothing is clipped."""

    regions: int = 2
    z: float = 0.0
    q: float = 1.0
    S: float = np.inf
    emphasis: float = EMPHASIS
    hold: float = 5.0
    distributed: bool = True
    exponent: float = SLOW
    alpha: float | None = None
    standardize: bool = False

    @property
    def agents(self) -> int:
        return AGENTS if self.alpha is None else UNLIKE_AGENTS

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.z, self.S, Poisson(self.q))


def private(q: float = 0.25, z: float = 1.0, S: float = 11.0, regions: int = 2) -> SyntheticSetting:
    """DP-FTS-DE as in Fig. 2b to d, except for the given settings."""
    return SyntheticSetting(regions, z, q, S)


#: name -> setting; None is TS.
FIGURES: dict[str, dict[str, SyntheticSetting | None]] = {
    "2a: distributed exploration": {
        "TS": None,
        "FTS": SyntheticSetting(regions=1),
        "FTS-DE, P = 2": SyntheticSetting(),
        "FTS-DE, P = 3": SyntheticSetting(regions=3),
        "FTS-DE, P = 4": SyntheticSetting(regions=4),
    },
    "2b: clipping": {f"S = {S:g}": private(S=S) for S in (2.0, 5.0, 11.0, 20.0, 40.0)},
    "2c: sampling": {f"q = {q}": private(q=q) for q in (0.15, 0.25, 0.5)},
    "2d: noise": {f"z = {z}": private(z=z) for z in (1.0, 1.2, 1.5)},
    "4: without DE": {
        "DP-FTS, S = 8": private(S=8.0, regions=1),
        "DP-FTS-DE, S = 11": private(),
    },
    "5: components of DE": {
        "FTS-DE, P = 2": SyntheticSetting(),
        "equal weights": SyntheticSetting(emphasis=0.0),
        "initial points anywhere": SyntheticSetting(distributed=False),
    },
    "6: regions under privacy": {f"P = {P}": private(regions=P) for P in (1, 2, 4, 8)},
    "7a: alpha = 0.7": {
        "TS, alpha = 0.7": SyntheticSetting(alpha=0.7, regions=0),
        "FTS-DE, alpha = 0.7": SyntheticSetting(alpha=0.7),
    },
    "7a: alpha = 0.3": {
        "TS, alpha = 0.3": SyntheticSetting(alpha=0.3, regions=0),
        "FTS-DE, alpha = 0.3": SyntheticSetting(alpha=0.3),
    },
    "7b: alpha = 1": {
        "TS, alpha = 1": SyntheticSetting(alpha=1.0, regions=0),
        "FTS-DE, alpha = 1": SyntheticSetting(alpha=1.0),
        "FTS-DE, alpha = 1, fast": SyntheticSetting(alpha=1.0, exponent=FAST),
    },
    "12a: weights": {
        "adaptive": private(),
        "not adaptive": private()._replace(hold=np.inf),
    },
    "ours: one scale for all": {
        "FTS, own scales": SyntheticSetting(regions=1, standardize=True),
        "FTS-DE, P = 4, own scales": SyntheticSetting(regions=4, standardize=True),
        "FTS-DE, P = 4, one scale": SyntheticSetting(regions=4),
    },
}
QUICK = ("2a: distributed exploration", "2d: noise")
#: What counts as no difference at the end, of functions from 0 to 1.
SAME = 0.005


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(50, 5), options.rounds_or(40, 20)
    figures = {name: FIGURES[name] for name in options.problems_or(FIGURES, QUICK)}
    draw_key, run_key = jr.split(jr.key(options.seed))
    keys = jr.split(run_key, runs)
    settings = list(dict.fromkeys(s for its in figures.values() for s in its.values()))
    # First, since it fails if an accountant is not installed.
    losses = {s: Loss() if s is None else loss(s.mechanism, s.agents, rounds) for s in settings}

    def measure(setting: SyntheticSetting | None) -> tuple[np.ndarray, np.ndarray]:
        unlike = setting is not None and setting.alpha is not None
        draws = _draws(draw_key, runs, 1 + UNLIKE_AGENTS if unlike else 1)
        regret = np.asarray(_regret(*_parts(setting), draws, keys, rounds))
        if setting is None or setting.z == 0:
            return regret, np.empty((0, len(LOOKS)))
        looked = draws[:LOOKED_RUNS], keys[:LOOKED_RUNS]
        return regret, np.asarray(_looks(*_parts(setting), *looked, rounds))

    measures = {_named(s): functools.partial(measure, s) for s in settings}
    found, folder = parts(options, "dp-synthetic", (runs, rounds), measures)
    known = {setting: found[_named(setting)][0] for setting in settings}
    looks = {setting: found[_named(setting)][1] for setting in settings}
    seen = {
        label: {s: float(values[:, i].mean()) for s, values in looks.items() if len(values)}
        for i, label in enumerate(LOOKS)
    }
    curves = {
        f"{figure}, {name}": known[setting]
        for figure, its in figures.items()
        for name, setting in its.items()
    }
    return Result(
        settings={
            **_described(runs, rounds),
            "losses": {
                f"{figure}, {name}": losses[setting]._asdict()
                for figure, its in figures.items()
                for name, setting in its.items()
            },
            **{
                label: {
                    f"{figure}, {name}": values[setting]
                    for figure, its in figures.items()
                    for name, setting in its.items()
                    if setting in values
                }
                for label, values in seen.items()
            },
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", "regret at the end", "s.e.", "mean regret", *COLUMNS, *seen),
        rows=_rows(figures, known, losses, seen),
        figure=_figure(figures, known, losses),
        scratch=folder,
    )


def _named(setting: SyntheticSetting | None) -> str:
    """The name of a setting's file, by what differs from the default."""
    if setting is None:
        return "TS"
    method = "DE" if setting.regions else "TS"
    differs = {
        name: value
        for name, value in setting._asdict().items()
        if value != SyntheticSetting._field_defaults[name]
    }
    return method + "".join(f", {name} {value}" for name, value in differs.items())


def _described(runs: int, rounds: int) -> dict[str, Any]:
    return {
        "runs": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "agents": AGENTS,
        "agents of Fig. 7": UNLIKE_AGENTS,
        "M": FEATURES,
        "features of the agents' own model": OWN_FEATURES,
        "delta": delta(AGENTS),
    }


# ---------------------------------------------------------------- the methods


class _Numbers(eqx.Module):
    """The numbers that differ between settings of the same program."""

    z: Scalar
    q: Scalar
    S: Scalar
    emphasis: Scalar
    hold: Scalar
    exponent: Scalar
    alpha: Scalar


class _Sizes(NamedTuple):
    """The settings that need another program. No regions: TS."""

    regions: int
    agents: int
    distributed: bool
    standardize: bool


def _parts(setting: SyntheticSetting | None) -> tuple[_Sizes, _Numbers]:
    s = SyntheticSetting(regions=0) if setting is None else setting
    numbers = (s.z, s.q, s.S, s.emphasis, s.hold, s.exponent, s.alpha or 0.0)
    sizes = _Sizes(s.regions, s.agents, s.distributed, s.standardize)
    return sizes, _Numbers(*(jnp.asarray(n, float) for n in numbers))


def method(sizes: _Sizes, n: _Numbers, rounds: int) -> Any:
    """TS for no regions, else DP-FTS-DE."""
    domain = Finite(grid())
    alike = {
        "kernel": SquaredExponential(LENGTH_SCALE),
        "noise": NOISE / VALUES_VARIANCE if sizes.standardize else NOISE,
        "standardize": sizes.standardize,
        "capacity": INITIAL + rounds,
    }
    own = Fixed(size=OWN_FEATURES, **alike)
    if not sizes.regions:
        return TS(domain, sizes.agents, own)
    return DPFTSDE(
        domain,
        sizes.agents,
        Mechanism(n.z, n.S, Poisson(n.q)),
        regions=Regions((sizes.regions,)),
        weighting=Weighting(n.emphasis, n.hold),
        features=Fixed(size=FEATURES, basis=random_cosines, **alike),
        own=own,
        mixing=Power(n.exponent),
        releases=jnp.inf,
        distributed=sizes.distributed,
    )


@eqx.filter_jit
def _draws(key: Key, runs: int, count: int) -> Float[Array, "runs draws points"]:
    draws = gp_draws(key, SquaredExponential(LENGTH_SCALE), grid(), runs * count)
    return unit_range(draws).reshape(runs, count, -1)


@eqx.filter_jit
def _regret(
    sizes: _Sizes,
    n: _Numbers,
    draws: Float[Array, "runs draws points"],
    keys: Array,
    rounds: int,
) -> Float[Array, "runs rounds"]:
    """The mean over the agents of every run. The first of its draws is the base."""

    def one(item: tuple[Array, Key]) -> Array:
        objective, run_key = _objective(sizes, n, *item)
        algorithm: AbstractAlgorithm = method(sizes, n, rounds)
        _, trace = run(algorithm, objective, rounds, run_key, initial=INITIAL)
        value = jax.vmap(jax.vmap(objective.noiseless), (None, 0))
        values = value(jnp.arange(sizes.agents), trace.queries)
        best = jax.lax.cummax(values, axis=0)[INITIAL:]
        return jnp.mean(jnp.max(objective.values, axis=1)[None, :] - best, axis=1)

    return jax.lax.map(one, (draws, keys), batch_size=BATCH)


def _objective(
    sizes: _Sizes, n: _Numbers, functions: Float[Array, "draws points"], key: Key
) -> tuple[OnGrid, Key]:
    """The agents' functions in a run, and the key of the run."""
    function_key, run_key = jr.split(key)
    base, own = functions[0], functions[1:]
    if own.shape[0]:
        functions = mixtures(base, own, n.alpha)
    else:
        functions = perturbed(function_key, base, DISTANCE, sizes.agents)
    return OnGrid(functions, grid(), NOISE**0.5), run_key


@eqx.filter_jit
def _looks(
    sizes: _Sizes,
    n: _Numbers,
    draws: Float[Array, "runs draws points"],
    keys: Array,
    rounds: int,
) -> Float[Array, "runs 2"]:
    """Noise over signal in round 1 and the share of messages clipped, with the functions of `_regret`."""
    algorithm: DPFTSDE = method(sizes, n, rounds)

    def one(item: tuple[Array, Key]) -> Array:
        objective, run_key = _objective(sizes, n, *item)
        loud = noise_over_signal(run_key, algorithm, objective, INITIAL, grid())
        return jnp.stack([loud, clipped(run_key, algorithm, objective, INITIAL, rounds)])

    return jax.lax.map(one, (draws, keys), batch_size=BATCH)


# ---------------------------------------------------------------- what the paper claims


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """The claims, each about the mean regret of rounds, run by run: all runs share functions and keys."""
    found: dict[str, Check] = {}

    def is_below(lower: str, upper: str) -> None:
        if lower in curves and upper in curves:
            claim = f"{lower} below {upper.split(', ', 1)[1]}, difference of mean regrets"
            found[claim] = below(curves[lower].mean(1), curves[upper].mean(1))

    de = "2a: distributed exploration"
    is_below(f"{de}, FTS", f"{de}, TS")
    is_below(f"{de}, FTS-DE, P = 2", f"{de}, FTS")
    is_below(f"{de}, FTS-DE, P = 3", f"{de}, FTS-DE, P = 2")
    is_below(f"{de}, FTS-DE, P = 4", f"{de}, FTS-DE, P = 3")
    for S in (2, 40):
        is_below("2b: clipping, S = 11", f"2b: clipping, S = {S}")
    is_below("2c: sampling, q = 0.5", "2c: sampling, q = 0.25")
    is_below("2c: sampling, q = 0.25", "2c: sampling, q = 0.15")
    is_below("2d: noise, z = 1.0", "2d: noise, z = 1.2")
    is_below("2d: noise, z = 1.2", "2d: noise, z = 1.5")
    is_below("4: without DE, DP-FTS-DE, S = 11", "4: without DE, DP-FTS, S = 8")
    for without in ("equal weights", "initial points anywhere"):
        is_below("5: components of DE, FTS-DE, P = 2", f"5: components of DE, {without}")
    is_below("6: regions under privacy, P = 2", "6: regions under privacy, P = 1")
    is_below("6: regions under privacy, P = 2", "6: regions under privacy, P = 8")
    for alpha in ("0.7", "0.3"):
        panel = f"7a: alpha = {alpha}"
        is_below(f"{panel}, FTS-DE, alpha = {alpha}", f"{panel}, TS, alpha = {alpha}")
    is_below("12a: weights, adaptive", "12a: weights, not adaptive")
    scale = "ours: one scale for all, FTS-DE, P = 4"
    is_below(f"{scale}, one scale", f"{scale}, own scales")
    fast, alone = "7b: alpha = 1, FTS-DE, alpha = 1, fast", "7b: alpha = 1, TS, alpha = 1"
    if fast in curves:
        claim = f"{fast}: at the end no worse than TS by more than {SAME:g}, difference"
        found[claim] = difference(curves[fast][:, -1], curves[alone][:, -1], most=SAME)
    return found


def _rows(
    figures: dict[str, dict[str, SyntheticSetting | None]],
    known: dict[SyntheticSetting | None, np.ndarray],
    losses: dict[SyntheticSetting | None, Loss],
    seen: dict[str, dict[SyntheticSetting | None, float]],
) -> list[tuple[str, ...]]:
    rows = []
    for figure, settings in figures.items():
        for name, setting in settings.items():
            mean, error = metrics.mean_and_error(known[setting][:, -1])
            regret = float(mean), float(error), float(known[setting].mean())
            cells = *regret, *losses[setting], *(values.get(setting) for values in seen.values())
            rows.append((f"{_panel(figure)}, {name}", *map(number, cells)))
    return rows


def _panel(figure: str) -> str:
    """The paper's figure; "ours" is not in it."""
    number, title = figure.split(": ", 1)
    return title if number == "ours" else f"Fig. {number}: {title}"


def _figure(
    figures: dict[str, dict[str, SyntheticSetting | None]],
    known: dict[SyntheticSetting | None, np.ndarray],
    losses: dict[SyntheticSetting | None, Loss],
) -> Any:
    from matplotlib.figure import Figure

    lines = _by_loss(known, losses)
    panels = len(figures) + bool(lines)
    columns = min(5, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.4 * columns, 4 * rows), dpi=plotting.DPI, layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for ax, (title, settings) in zip(axes.flat, figures.items(), strict=False):
        plotting.regret({name: known[setting] for name, setting in settings.items()}, ax, log=True)
        ax.set_title(_panel(title))
    if lines:
        _draw_by_loss(axes.flat[len(figures)], known, lines)
    for ax in axes.flat[panels:]:
        ax.remove()
    return figure


def _by_loss(
    known: dict[SyntheticSetting | None, np.ndarray],
    losses: dict[SyntheticSetting | None, Loss],
) -> dict[str, list[tuple[Any, ...]]]:
    """ε, mean regret and its error of the settings that differ from `private()` in q or in z alone."""
    found = {}
    for label, same in {"more or fewer drawn (q)": "z", "more or less noise (z)": "q"}.items():
        points = sorted(
            (losses[setting].pld, *metrics.mean_and_error(regret.mean(axis=1)))
            for setting, regret in known.items()
            if setting is not None
            and setting == private(setting.q, setting.z)
            and getattr(setting, same) == getattr(private(), same)
        )
        if points:
            found[label] = points
    return found


def _draw_by_loss(
    ax: Any,
    known: dict[SyntheticSetting | None, np.ndarray],
    lines: dict[str, list[tuple[Any, ...]]],
) -> None:
    for (label, points), color in zip(lines.items(), plotting.PALETTE, strict=False):
        epsilon, means, errors = zip(*points, strict=True)
        ax.errorbar(epsilon, means, errors, fmt="o-", color=color, capsize=3, label=label)
    without = {"TS alone": None, "FTS-DE, P = 2, not private": SyntheticSetting()}
    for (label, setting), line in zip(without.items(), ("--", ":"), strict=True):
        if setting in known:
            ax.axhline(known[setting].mean(), ls=line, color="black", label=label)
    ax.set(xlabel="privacy loss ε of all rounds, PLD", ylabel="mean regret", ylim=(0, None))
    ax.set_title("Regret by privacy loss, P = 2, S = 11")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 2, 4 to 7, 12a",
    about="200 agents with functions alike: regret against P, S, q, z, the parts of DE and likeness",
    time="25 min",
    run=_run,
    problems=tuple(FIGURES),
)
