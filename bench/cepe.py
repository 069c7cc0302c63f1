"""CEPE, Fig. 1b and 1c: fifty agents who want mixtures of what all of them see.

    h(x) = Λ(x₁^i, x₂^j), i and j drawn from 1, 2, 3 for each agent;   y = h(x) + N(0, 0.01)
    f = α h + (1 - α) mean of all h,   α uniform in [0.1, 0.9];   900 points of the unit square
    regret(T) = Σ over agents and rounds of max f - f(x)

Λ is Branin or Sobester's function. The rivals are told every observation of everybody, in every round.
What the paper leaves open: N_t = t^(2/3); f* of EI and PI is the largest mean at a point that the agent
itself has queried. Every run has powers and alphas of its own, which all methods share.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.runner import Check, Experiment, Options, Result, parts
from jaxbo import functions, metrics, plotting, schedules
from jaxbo.algos.base import AbstractFederated
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.collaborative import IGPUCB, Collaborative, Improvement, Probability
from jaxbo.domains import Finite
from jaxbo.functions import TestFunction
from jaxbo.kernels.covariance import SquaredExponential
from jaxbo.kernels.linalg import dot
from jaxbo.loop import run
from jaxbo.types import Count, Key, Point, Points, Scalar

AGENTS, SIDE, LENGTH_SCALE, NOISE = 50, 30, 0.2, 0.01
POWERS, ALPHAS = (1, 3), (0.1, 0.9)
FUNCTIONS = {"Branin": functions.branin_rescaled, "Sobester": functions.sobester}
OURS, ALONE, TOGETHER = "CEPE", "CEPE, alpha = 1", "CEPE, alpha = 0"
RIVALS = ("IGP-UCB", "EI", "PI")


class Federation(eqx.Module):
    """What one run's agents see, each of them at all points, and how much they want it alone."""

    function: TestFunction
    powers: Float[Array, "agents 2"]
    alpha: Float[Array, " agents"]

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        """A noisy observation."""
        noise = NOISE**0.5 * jr.normal(key, dtype=x.dtype)
        return self.function(x ** self.powers[agent]) + noise

    def regret(self, queries: Float[Array, "rounds agents 2"]) -> Float[Array, "rounds agents"]:
        """Of every query, without noise."""
        own = jax.vmap(lambda p: jax.vmap(self.function)(grid() ** p[None, :]))(self.powers)
        alpha = self.alpha[:, None]
        wanted = alpha * own + (1 - alpha) * jnp.mean(own, axis=0, keepdims=True)
        places = jnp.round(queries * (SIDE - 1)).astype(int)
        at = places[..., 0] * SIDE + places[..., 1]
        got = jnp.take_along_axis(wanted, at.T, axis=1).T
        return jnp.max(wanted, axis=1)[None, :] - got


def grid() -> Points:
    """900 points, evenly spaced."""
    side = jnp.linspace(0, 1, SIDE)
    return jnp.stack(jnp.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def federation(key: Key, name: str, agents: int = AGENTS) -> Federation:
    """Drawn for one run."""
    power_key, alpha_key = jr.split(key)
    powers = jr.randint(power_key, (agents, 2), POWERS[0], POWERS[1] + 1).astype(float)
    alpha = jr.uniform(alpha_key, (agents,), minval=ALPHAS[0], maxval=ALPHAS[1])
    return Federation(FUNCTIONS[name](), powers, alpha)


def cepe(numbers: np.ndarray, agents: int = AGENTS, **options: Any) -> CEPE:
    """The paper's setting."""
    kernel = SquaredExponential(LENGTH_SCALE)
    return CEPE(Finite(grid()), agents, numbers, kernel=kernel, noise=NOISE, **options)


def methods(rounds: int) -> dict[str, tuple[AbstractFederated, float]]:
    """By name, each with the alpha that agents are given, or NaN for what they want."""
    ours = cepe(schedules.growing(rounds))
    kernel = SquaredExponential(LENGTH_SCALE)

    def rival(index: Any) -> Collaborative:
        return Collaborative(Finite(grid()), AGENTS, index, kernel=kernel, noise=NOISE)

    indices = dict(zip(RIVALS, (IGPUCB(), Improvement(), Probability()), strict=True))
    return {
        OURS: (ours, math.nan),
        ALONE: (ours, 1.0),
        TOGETHER: (ours, 0.0),
        **{name: (rival(index), math.nan) for name, index in indices.items()},
    }


class Outcome(NamedTuple):
    """Of every round: regret of all agents, and numbers that they sent."""

    regret: Float[Array, "*runs rounds"]
    scalars: Float[Array, "*runs rounds"]


@eqx.filter_jit
def outcomes(
    algorithm: AbstractFederated,
    alpha: Scalar,
    name: str,
    rounds: int,
    keys: Array,
) -> Outcome:
    """One run for each key, one after the other: memory is that of one."""

    def one(key: Key) -> Outcome:
        draw_key, run_key = jr.split(key)
        drawn = federation(draw_key, name, algorithm.agents)
        wanted = jnp.where(jnp.isnan(alpha), drawn.alpha, alpha)
        method = eqx.tree_at(lambda a: a.alpha, algorithm, wanted)
        _, trace = run(method, drawn, rounds, run_key)
        regret = drawn.regret(trace.queries)
        ones = jnp.ones(regret.shape[1], regret.dtype)
        return Outcome(dot(regret, ones), jnp.sum(trace.info.scalars, axis=1).astype(regret.dtype))

    return jax.lax.map(one, keys)


def cumulative(regret: Array | np.ndarray) -> Float[np.ndarray, "runs rounds"]:
    """Summed up in float64."""
    return np.cumsum(np.asarray(regret, np.float64), axis=-1)


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
        settings=settings(runs, rounds) | {"N_t": "t^(2/3)"},
        curves=curves,
        checks=checks(curves, names),
        unit="cumulative regret of all agents",
        figure=_figure(curves, names),
        scratch=folder,
    )


def settings(runs: int, rounds: int) -> dict[str, Any]:
    """What all experiments of the paper have in common."""
    return {
        "runs": runs,
        "rounds": rounds,
        "agents": AGENTS,
        "points of the domain": SIDE**2,
        "length scale": LENGTH_SCALE,
        "noise variance": NOISE,
        "alpha": f"uniform in {list(ALPHAS)}",
    }


def checks(curves: dict[str, np.ndarray], names: list[str]) -> dict[str, Check]:
    """CEPE ends with the lowest regret: 95 % intervals of the differences of runs, which share agents."""
    found = {}
    for name in names:
        ours = curves[f"{name}, {OURS}"][:, -1]
        for rival in (*RIVALS, ALONE, TOGETHER):
            claim = f"{name}: CEPE below {rival.removeprefix('CEPE, ')}, share of its regret"
            found[claim] = less(ours, curves[f"{name}, {rival}"][:, -1])
    return found


def less(ours: np.ndarray, theirs: np.ndarray) -> Check:
    """Whether the interval of the difference is below 0, and the ratio of the means."""
    _, high = metrics.confidence_interval(ours - theirs)
    return Check(bool(high < 0), float(ours.mean() / theirs.mean()))


def _figure(curves: dict[str, np.ndarray], names: list[str]) -> Any:
    from matplotlib.figure import Figure

    width = 6.5 * len(names)
    figure = Figure(figsize=(width, 4.6), dpi=plotting.DPI, layout="constrained")
    for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        shown = {
            label.removeprefix(f"{name}, "): values
            for label, values in curves.items()
            if label.startswith(f"{name}, ")
        }
        plotting.regret(shown, ax, ylabel="cumulative regret of 50 agents", log=True)
        ax.set_title(name)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, Fig. 1b, c",
    about="50 agents with mixed wants: cumulative regret of CEPE, IGP-UCB, EI and PI",
    time="15 min",
    run=_run,
)
