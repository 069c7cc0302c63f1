"""CEPE: how its regret grows with the horizon, beside the order of Theorem 3.1.

    R(T) = O~(T^(2 / (3 - κ))),    κ -> 0 for the squared exponential kernel: 2 / 3

The setting of `cepe` on Branin, with N_t = t^(2/3), which does not depend on the horizon: one run is all
horizons up to its own. The slope of log R over log T is that of a line through the last three doublings.
Agents a thousand in number are beyond the paper.
"""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.cepe import AGENTS, cepe, cumulative, outcomes, settings
from bench.runner import Check, Experiment, Options, Result, parts
from jaxbo import metrics, plotting, schedules

FUNCTION, ORDER = "Branin", 2 / 3
DOUBLINGS = 3
MANY, MANY_RUNS = 1000, 5


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 3), options.rounds_or(4000, 400)
    numbers = (AGENTS,) if options.quick else (AGENTS, MANY)

    def measure(agents: int) -> Array:
        few = runs if agents == AGENTS else min(runs, MANY_RUNS)
        keys = jr.split(jr.key(options.seed), few)
        algorithm = cepe(schedules.growing(rounds), agents)
        return outcomes(algorithm, jnp.asarray(jnp.nan), FUNCTION, rounds, keys).regret / agents

    measures = {f"{agents} agents": functools.partial(measure, agents) for agents in numbers}
    regrets, folder = parts(options, "cepe-rate", (runs, rounds), measures)
    curves = {name: cumulative(regret) for name, regret in regrets.items()}
    slopes = {name: slope(values) for name, values in curves.items()}
    return Result(
        settings=settings(runs, rounds)
        | {"N_t": "t^(2/3)", "slopes": {name: values.tolist() for name, values in slopes.items()}},
        curves=curves,
        checks=checks(slopes),
        unit="cumulative regret of an agent",
        figure=_figure(curves, slopes),
        scratch=folder,
    )


def slope(curves: np.ndarray) -> np.ndarray:
    """Of log R over log T by least squares, for every run."""
    last = curves.shape[1]
    T = np.unique(np.geomspace(last / 2**DOUBLINGS, last, 50).astype(int))
    log_T = np.log(T) - np.log(T).mean()
    return np.log(curves[:, T - 1]) @ log_T / (log_T @ log_T)


def checks(slopes: dict[str, np.ndarray]) -> dict[str, Check]:
    """No faster than the theorem's order: the upper end of the 95 % interval of the slope's mean."""
    found = {}
    for name, values in slopes.items():
        _, high = metrics.confidence_interval(values)
        claim = f"{name}: slope at most {ORDER:.3f}, upper end of its interval"
        found[claim] = Check(bool(high <= ORDER), float(high))
    return found


def _figure(curves: dict[str, np.ndarray], slopes: dict[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=plotting.DPI, layout="constrained")
    ax = figure.subplots()
    T = np.arange(1, next(iter(curves.values())).shape[1] + 1)
    for index, (name, values) in enumerate(curves.items()):
        mean = values.mean(axis=0)
        low, high = metrics.confidence_interval(values)
        color = plotting.PALETTE[index]
        ax.fill_between(T, np.maximum(low, mean / 10), high, color=color, alpha=0.16, lw=0)
        label = f"{name}, slope {slopes[name].mean():.3f}"
        ax.plot(T, mean, color=color, ls=plotting.DASHES[index], label=label)
    end = next(iter(curves.values())).mean(axis=0)[-1]
    ax.plot(T, end * (T / T[-1]) ** ORDER, color=plotting.SOFT, lw=1, ls=":", label="slope 2/3")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("horizon T")
    ax.set_ylabel("cumulative regret of an agent")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, Theorem 3.1",
    about="how CEPE's regret grows with the horizon, with 50 and with 1000 agents",
    time="5 min",
    run=_run,
)
