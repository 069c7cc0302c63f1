"""CEPE, Fig. 1a: S-CEPE sends its sketches instead of its observations.

    the setting of `cepe` on Branin; N_T = 64 rounds of exploration
    x: numbers that CEPE sends over those that S-CEPE sends;   y: regret of S-CEPE over CEPE's

q_0 makes the inducing sets larger or smaller. As in the paper CEPE's exploration is interleaved, here
with N_t = 64 (t / T)^(2/3), and S-CEPE's comes first. "CEPE, first" explores first too, so that it has
the knowledge of S-CEPE. S-CEPE's agents send until all have sent everything. "own mean" is S-CEPE with
an agent's exact mean in the place of its own sketch of it, which costs nothing to send; "greedy" and
"random" pick inducing points by pivoted Cholesky instead of drawing each by itself. "alone" is CEPE
with alpha = 1, for which nobody needs to send anything.
"""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.cepe.setting import AGENTS, SHORT, cepe, cumulative, outcomes, settings, shorter
from bench.claims import Check, at_most, met, on_average
from bench.common.text import number
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting, schedules
from jaxbo.algos.cepe import CEPE
from jaxbo.kernels.processes import nystrom
from jaxbo.kernels.processes.sketch import AbstractSketch, Pivoted, Sketch

FUNCTION = "Branin"
Q0 = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0)
#: The paper's claim: so many times less communication at less than so many times the regret.
REDUCTION, COST = 14.0, 2.0
#: Inducing points of the greedy sketches.
COUNTS = (4, 5, 8, 16, 32)
PAPER, OWN, GREEDY, RANDOM = "S-CEPE", "S-CEPE, own mean", "S-CEPE, greedy", "S-CEPE, random"
#: Beyond the paper: so many agents in so many runs.
MANY, MANY_RUNS = 1000, 5
FIRST, ALONE = "CEPE, first", "alone"


def sketched(sketch: AbstractSketch, agents: int = AGENTS) -> CEPE:
    """S-CEPE."""
    return cepe(schedules.first(SHORT), agents, sketch=sketch)


def _many(rounds: int) -> dict[str, CEPE]:
    """With a thousand agents."""
    q0 = jnp.asarray(8.0)
    return {
        f"{name}, {MANY} agents": method
        for name, method in {
            "CEPE": cepe(shorter(rounds), MANY),
            PAPER: sketched(Sketch(q0=q0), MANY),
            OWN: sketched(Sketch(q0=q0, exact=True), MANY),
        }.items()
    }


def _sketches(quick: bool) -> dict[str, AbstractSketch]:
    found: dict[str, AbstractSketch] = {
        f"{name}, q0 = {q0:g}": Sketch(q0, exact)  # pyright: ignore[reportArgumentType]
        for name, exact in ((PAPER, False), (OWN, True))
        for q0 in Q0
    }
    for name, select in ((GREEDY, nystrom.greedy), (RANDOM, nystrom.random)):
        found |= {f"{name}, m = {m}": Pivoted(count=m, select=select) for m in COUNTS}
    return dict(list(found.items())[1::7]) if quick else found


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 3), options.rounds_or(2000, 200)
    keys = jr.split(jr.key(options.seed), runs)
    first = cepe(schedules.first(SHORT))
    asked: dict[str, CEPE] = {"CEPE": cepe(shorter(rounds)), FIRST: first, ALONE: first}
    asked |= {name: sketched(sketch) for name, sketch in _sketches(options.quick).items()}
    wants = jnp.asarray(jnp.nan)
    measures = {
        name: functools.partial(
            outcomes,
            algorithm,
            jnp.asarray(1.0) if name == ALONE else wants,
            FUNCTION,
            rounds,
            keys,
        )
        for name, algorithm in asked.items()
    }
    many = {} if options.quick else _many(rounds)
    measures |= {
        name: functools.partial(outcomes, algorithm, wants, FUNCTION, rounds, keys[:MANY_RUNS])
        for name, algorithm in many.items()
    }
    found, folder = parts(options, "cepe-communication", (runs, rounds), measures)
    thousand = {name: found.pop(name) for name in many}
    curves = {name: cumulative(regret) for name, (regret, _) in found.items()}
    sent = {name: scalars.sum(axis=1) for name, (_, scalars) in found.items()}
    sent[ALONE] = np.zeros(runs)  # nobody listens
    sends = [name for name in curves if name != ALONE]
    ratios = {name: sent["CEPE"] / np.maximum(sent[name], 1) for name in sends}
    relative = {name: curves[name][:, -1] / curves["CEPE"][:, -1] for name in curves}
    beside = {name: curves[name][:, -1] / curves[FIRST][:, -1] for name in curves}
    rows = [
        (
            name,
            number(float(sent[name].mean())),
            number(float(ratios[name].mean()) if name in ratios else None),
            number(float(relative[name].mean())),
            number(float(beside[name].mean())),
        )
        for name in curves
    ]
    for name, (regret, scalars) in thousand.items():
        base = next(iter(thousand.values()))
        R, S, base_R, base_S = (value.sum(axis=1) for value in (regret, scalars, *base))
        fewer, more = (number(float(np.mean(share))) for share in (base_S / S, R / base_R))
        rows.append((name, number(float(S.mean())), fewer, more, ""))
    return Result(
        settings=settings(runs, rounds)
        | {
            "rounds of exploration": SHORT,
            f"{MANY} agents": {row[0]: row[1:4] for row in rows if row[0] in thousand},
            "numbers sent": {name: float(v.mean()) for name, v in sent.items()},
            "reduction": {name: float(v.mean()) for name, v in ratios.items()},
            "regret over CEPE's": {name: float(v.mean()) for name, v in relative.items()},
            "regret over that of CEPE that explores first": {
                name: float(v.mean()) for name, v in beside.items()
            },
        },
        curves=curves,
        checks=checks(ratios, {name: curve[:, -1] for name, curve in curves.items()}),
        headers=("method", "numbers sent", "times fewer", "regret over CEPE's", "over CEPE, first"),
        rows=rows,
        figure=_figure(ratios, relative),
        scratch=folder,
    )


def checks(ratios: dict[str, np.ndarray], regrets: dict[str, np.ndarray]) -> dict[str, Check]:
    """Whether the best that sends `REDUCTION` times less has less than `COST` times the regret."""
    found = {}
    for method in (PAPER, OWN, GREEDY, RANDOM):
        names = _of(method, ratios)
        enough = [name for name in names if on_average(ratios[name], least=REDUCTION).holds]
        claim = f"{method}: {REDUCTION:g} times fewer numbers at under {COST:g} times the regret"
        if enough:
            best = min(enough, key=lambda name: regrets[name].mean())
            found[f"{claim}, ratio"] = at_most(regrets[best], regrets["CEPE"], COST)
        elif names:
            found[f"{claim}, times fewer"] = met(
                max(float(ratios[name].mean()) for name in names), least=REDUCTION
            )
    return found


def _of(method: str, ratios: dict[str, np.ndarray]) -> list[str]:
    return [name for name in ratios if name.startswith((f"{method}, q0", f"{method}, m"))]


def _figure(ratios: dict[str, np.ndarray], relative: dict[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=plotting.DPI, layout="constrained")
    ax = figure.subplots()
    looks = zip(plotting.PALETTE, "os^v", (PAPER, OWN, GREEDY, RANDOM), strict=False)
    for color, marker, method in looks:
        names = _of(method, ratios)
        if not names:
            continue
        x = [ratios[name].mean() for name in names]
        means = [relative[name].mean() for name in names]
        low, high = zip(*(metrics.confidence_interval(relative[n]) for n in names), strict=True)
        ax.fill_between(x, low, high, color=color, alpha=0.16, lw=0)
        ax.plot(x, means, color=color, marker=marker, label=method)
        for name, at, mean in zip(names, x, means, strict=True):
            if method == PAPER and at > 1.05:
                ax.annotate(
                    name.split("= ")[1], (at, mean), (3, 5), textcoords="offset points", fontsize=8
                )
    ax.axhline(1, color=plotting.SOFT, lw=0.8)
    ax.axhline(relative[ALONE].mean(), color=plotting.INK, lw=1, ls=":", label=ALONE)
    ax.axhline(relative[FIRST].mean(), color=plotting.SOFT, lw=1, ls="--", label=FIRST)
    ax.plot([REDUCTION], [COST], marker="x", color=plotting.INK, ls="", label="the paper's claim")
    ax.set_xscale("log")
    ax.set_xlabel("times fewer numbers sent than by CEPE (labels: q0)")
    ax.set_ylabel("regret over CEPE's")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, Fig. 1a",
    about="S-CEPE against CEPE: regret over numbers sent, for several q0",
    time="8 min",
    run=_run,
)
