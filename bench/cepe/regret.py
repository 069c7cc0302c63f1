"""CEPE, Fig. 1b and 1c: fifty agents who want mixtures of the functions that all of them see.

    h(x) = Λ(x₁^i, x₂^j), i and j drawn from 1, 2, 3 for each agent;   y = h(x) + N(0, 0.01)
    f = α h + (1 - α) mean of all h,   α uniform in [0.1, 0.9];   900 points of the unit square
    regret(T) = Σ over agents and rounds of max f - f(x)

Λ is Branin or Sobester's function, whose values reach 31.7 under a kernel of variance 1; beyond the paper
it is also brought to mean 0 and variance 1. The rivals are told every observation of everybody, in every
round. Every run has powers and alphas of its own, which all methods share.

Points that the paper leaves open are tried both ways: N_t = t^(2/3), its example, and N_t = 64 (t /
T)^(2/3), so that N_T is its number. Rivals have its deviation of f (appendix A), the weighted sum of
the deviations of all h, or the deviation of a sum of independent processes. f* of EI and PI is the
largest mean at a point that the agent itself has queried, and an agent takes any of the points that
look equally good.
"""

import functools
import math
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.cepe.collaborative import IGPUCB, Collaborative, Improvement, Probability
from bench.cepe.setting import (
    AGENTS,
    FUNCTIONS,
    LENGTH_SCALE,
    NOISE,
    SHORT,
    cepe,
    cumulative,
    grid,
    outcomes,
    settings,
    shorter,
)
from bench.claims import Check, at_most
from bench.runner import Experiment, Options, Result, parts
from jaxbo import plotting, schedules
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.domains.base import Finite
from jaxbo.kernels.processes.covariance import SquaredExponential

OURS, ALONE, TOGETHER = "CEPE", "CEPE, alpha = 1", "CEPE, alpha = 0"
SHORTER = f"CEPE, N_T = {SHORT}"
INDICES = {"IGP-UCB": IGPUCB, "EI": Improvement, "PI": Probability}
#: With the paper's deviations (`joint=False`), then with those of independent processes.
RIVALS = (*INDICES, *(f"{name}, independent" for name in INDICES))


def methods(rounds: int) -> dict[str, tuple[AbstractFederated, float]]:
    """The methods by name, each with the alpha that agents are given, or NaN for their own wish."""
    ours, kernel = cepe(schedules.growing(rounds)), SquaredExponential(LENGTH_SCALE)

    def rival(index: type, joint: bool) -> Collaborative:
        return Collaborative(
            Finite(grid()), AGENTS, index(), kernel=kernel, noise=NOISE, joint=joint
        )

    rivals = [rival(index, joint) for joint in (False, True) for index in INDICES.values()]
    return {
        OURS: (ours, math.nan),
        SHORTER: (cepe(shorter(rounds)), math.nan),
        ALONE: (ours, 1.0),
        TOGETHER: (ours, 0.0),
        **{name: (method, math.nan) for name, method in zip(RIVALS, rivals, strict=True)},
    }


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 3), options.rounds_or(2000, 200)
    keys = jr.split(jr.key(options.seed), runs)
    names = list(FUNCTIONS)[: 1 if options.quick else None]
    asked = [(name, method) for name in names for method in methods(rounds)]

    def measure(name: str, method: str) -> Array:
        algorithm, alpha = methods(rounds)[method]
        return outcomes(algorithm, jnp.asarray(alpha), name, rounds, keys).regret

    measures = {f"{n}, {m}": functools.partial(measure, n, m) for n, m in asked}
    regrets, folder = parts(options, "cepe", (runs, rounds), measures)
    curves = {name: cumulative(regret) for name, regret in regrets.items()}
    return Result(
        settings=settings(runs, rounds) | {"N_t": f"t^(2/3), or {SHORT} (t / T)^(2/3)"},
        curves=curves,
        checks=checks(curves, names),
        unit="cumulative regret of all agents",
        figure=_figure(curves, names),
        scratch=folder,
    )


def checks(curves: dict[str, np.ndarray], names: list[str]) -> dict[str, Check]:
    """CEPE ends with the lowest regret, run by run: the runs of all share agents."""
    found = {}
    for name in names:
        ours = curves[f"{name}, {OURS}"][:, -1]
        for rival in (*RIVALS, ALONE, TOGETHER):
            claim = f"{name}: CEPE below {rival.removeprefix('CEPE, ')}, share of its regret"
            found[claim] = at_most(ours, curves[f"{name}, {rival}"][:, -1], 1.0)
        for rival in RIVALS:
            claim = f"{name}: {SHORTER} below {rival}, share of its regret"
            found[claim] = at_most(
                curves[f"{name}, {SHORTER}"][:, -1], curves[f"{name}, {rival}"][:, -1], 1.0
            )
    return found


def _figure(curves: dict[str, np.ndarray], names: list[str]) -> Any:
    from matplotlib.figure import Figure

    width = 6.5 * len(names)
    figure = Figure(figsize=(width, 4.6), dpi=plotting.DPI, layout="constrained")
    for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        shown = {
            label: curves[f"{name}, {label}"]
            for label in (OURS, SHORTER, *RIVALS)
            if f"{name}, {label}" in curves
        }
        plotting.regret(shown, ax, ylabel="cumulative regret of 50 agents", log=True)
        ax.set_title(name)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, Fig. 1b, c",
    about="50 agents with mixed wants: cumulative regret of CEPE, IGP-UCB, EI and PI",
    time="30 min",
    run=_run,
)
