"""CEPE: how its regret grows with the horizon, beside the order of Theorem 3.1.

    R(T) = O~(T^(2 / (3 - κ))),    κ -> 0 for the squared exponential kernel: 2 / 3
                                   κ = d / (2ν + d) for a Matern kernel

The setting of `cepe` on Branin, with N_t = t^(2/3), or the theorem's t^(2 / (3 - κ)) log(t / δ)^(1/3)
for a Matern kernel, which do not depend on the horizon: a run has all shorter horizons in it. Slopes of
log R over log T are slopes of a line through the last three doublings. Exploration alone has the slope
of N_t, which is given. The loss of agents while they exploit must grow no faster. Agents a thousand in
number are beyond the paper.
"""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.cepe.setting import AGENTS, LENGTH_SCALE, cepe, cumulative, outcomes, settings
from bench.claims import Check, on_average
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting, schedules
from jaxbo.algos.cepe import CEPE
from jaxbo.kernels.processes.covariance import Matern52

FUNCTION, ORDER = "Branin", 2 / 3
DOUBLINGS = 3
MANY, MANY_RUNS = 1000, 5
#: Of the Matern kernel of smoothness 5/2 in two dimensions.
KAPPA, DELTA = 2 / 7, 0.1
SCALE = 0.5
EXPLOITING = "while exploiting"


def _settings(rounds: int, quick: bool) -> dict[str, tuple[CEPE, np.ndarray]]:
    """Methods with their N_t."""
    growing = schedules.growing(rounds)
    optimal = schedules.optimal(rounds, KAPPA, DELTA, SCALE)
    found = {
        f"{AGENTS} agents": (cepe(growing), growing),
        f"{MANY} agents": (cepe(growing, MANY), growing),
        f"{AGENTS} agents, Matern": (cepe(optimal, kernel=Matern52(LENGTH_SCALE)), optimal),
    }
    return dict(list(found.items())[:1]) if quick else found


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 3), options.rounds_or(4000, 400)
    asked = _settings(rounds, options.quick)

    def measure(algorithm: CEPE) -> Array:
        few = runs if algorithm.agents == AGENTS else min(runs, MANY_RUNS)
        keys = jr.split(jr.key(options.seed), few)
        found = outcomes(algorithm, jnp.asarray(jnp.nan), FUNCTION, rounds, keys)
        return found.regret / algorithm.agents

    measures = {name: functools.partial(measure, method) for name, (method, _) in asked.items()}
    regrets, folder = parts(options, "cepe-rate", (runs, rounds), measures)
    curves = {name: cumulative(regret) for name, regret in regrets.items()}
    orders = {}
    for name, (_, numbers) in asked.items():
        orders[name] = orders[f"{name}, {EXPLOITING}"] = float(slope(numbers[None, :])[0])
        exploits = ~schedules.explores(numbers)
        curves[f"{name}, {EXPLOITING}"] = cumulative(regrets[name] * exploits)
    slopes = {name: slope(values) for name, values in curves.items()}
    return Result(
        settings=settings(runs, rounds)
        | {
            "N_t": {name: numbers[-1] for name, (_, numbers) in asked.items()},
            "slopes of N_t": orders,
            "2 / (3 - kappa)": {"squared exponential": ORDER, "Matern": 2 / (3 - KAPPA)},
            "slopes": {name: values.tolist() for name, values in slopes.items()},
        },
        curves=curves,
        checks=checks(slopes, orders),
        unit="cumulative regret of an agent",
        figure=_figure(curves, slopes),
        scratch=folder,
    )


def slope(curves: np.ndarray) -> np.ndarray:
    """The slope of log R over log T by least squares, for every run."""
    last = curves.shape[1]
    T = np.unique(np.geomspace(last / 2**DOUBLINGS, last, 50).astype(int))
    log_T = np.log(T) - np.log(T).mean()
    return np.log(curves[:, T - 1]) @ log_T / (log_T @ log_T)


def checks(slopes: dict[str, np.ndarray], orders: dict[str, float]) -> dict[str, Check]:
    """No faster than N_t, the theorem's order."""
    found = {}
    for name, values in slopes.items():
        claim = f"{name}: slope at most {orders[name]:.3f}"
        found[claim] = on_average(values, most=orders[name])
    return found


def _figure(curves: dict[str, np.ndarray], slopes: dict[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=plotting.DPI, layout="constrained")
    ax = figure.subplots()
    T = np.arange(1, next(iter(curves.values())).shape[1] + 1)
    whole = [name for name in curves if EXPLOITING not in name]
    for color, name in zip(plotting.PALETTE, whole, strict=False):
        for part, style in ((name, "-"), (f"{name}, {EXPLOITING}", "--")):
            values = curves[part]
            mean = values.mean(axis=0)
            low, high = metrics.confidence_interval(values)
            ax.fill_between(T, np.maximum(low, mean / 10), high, color=color, alpha=0.16, lw=0)
            label = f"{part}, slope {slopes[part].mean():.2f}"
            ax.plot(T, mean, color=color, ls=style, label=label)
    end = curves[whole[0]].mean(axis=0)[-1]
    ax.plot(T, end * (T / T[-1]) ** ORDER, color=plotting.SOFT, lw=1, ls=":", label="slope 2/3")
    if len(whole) > 1:
        end = curves[whole[-1]].mean(axis=0)[-1]
        order = 2 / (3 - KAPPA)
        label = f"slope {order:.2f}"
        ax.plot(T, end * (T / T[-1]) ** order, color=plotting.SOFT, lw=1, ls="-.", label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("horizon T")
    ax.set_ylabel("cumulative regret of an agent")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, Theorem 3.1",
    about="how CEPE's regret grows with the horizon, with 50 and with 1000 agents",
    time="8 min",
    run=_run,
)
