"""An audit of the private sum: how well can a best distinguisher tell whether an agent took part?

    two runs:  the worst-case agent sends a vector longer than allowed, or never takes part;
               all others send nothing

Statistic and bound are those of `jaxbo.audit` (`jaxbo.privacy.auditing`), without a method around
the mechanism: so there are many more runs. The bound must stay below the epsilon that is claimed.
Broken mechanisms, which claim the same, must be caught: it is a test of the test.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import met
from bench.common.text import number
from bench.runner import Experiment, Options, Result, progress
from jaxbo import plotting
from jaxbo.privacy import accounting, auditing
from jaxbo.privacy.mechanism import Mechanism, Poisson, Weighting
from jaxbo.types import Key, Scalar

AGENTS, REGIONS, FEATURES, DELTA = 12, 2, 8, 1e-3
ROUNDS = (1, 40)
#: How much longer than allowed: clipping is on trial, too.
LONGER = 3.0
#: How a figure was made.
BOUND = "bound"
#: Of the two bounds together.
CONFIDENCE = 0.95
#: Losses small enough to be exceeded provably by so many runs.
SETTINGS = {
    "q = 0.25, z = 1.5": (0.25, 1.5),
    "q = 0.5, z = 3": (0.5, 3.0),
    "q = 1, z = 6": (1.0, 6.0),
}


class HalfTheNoise(Mechanism):
    """Broken: the effect of a forgotten factor."""

    def deviation(self, weights: Float[Array, "regions agents"]) -> Scalar:
        return Mechanism.deviation(self, weights) / 2


class Unclipped(Mechanism):
    """Broken: messages are added as long as they are."""

    def _bound(self, regions: int, dtype: jnp.dtype) -> Scalar:
        return jnp.full((), jnp.inf, dtype)


#: Whether the audit must catch it.
MECHANISMS = {"as it is": (Mechanism, False), "noise halved": (HalfTheNoise, True)} | {
    "not clipped": (Unclipped, True)
}


def _run(options: Options) -> Result:
    runs = options.runs_or(100_000, 40_000)
    key = jr.key(options.seed)
    rows, checks, bounds = [], {}, {}
    steps = [(s, m, T) for s in SETTINGS for m in MECHANISMS for T in ROUNDS]
    for i, (setting, name, rounds) in enumerate(progress(steps, "dp-audit")):
        q, z = SETTINGS[setting]
        kind, broken = MECHANISMS[name]
        claimed = accounting.epsilon(Mechanism(z, 1.0, Poisson(q)), rounds, DELTA)
        samples = ratios(kind(z, 1.0, Poisson(q)), rounds, runs, jr.fold_in(key, i))
        found = auditing.bound(*samples, DELTA, CONFIDENCE)
        bounds[setting, name, rounds] = claimed, found
        verdict = "caught" if found > claimed else "not caught"
        rows.append((f"{setting}, {name}", str(rounds), number(claimed), number(found), verdict))
        if not broken:
            claim = f"{setting}, {rounds} rounds: no more than the claimed epsilon is found, bound"
            checks[claim] = met(found, most=claimed)._replace(runs=runs, how=BOUND)
        elif rounds > 1:
            claim = f"{setting}, {rounds} rounds, {name}: caught, bound above the claimed epsilon"
            checks[claim] = met(found, least=claimed)._replace(runs=runs, how=BOUND)
    return Result(
        settings={
            "runs with and without the agent": runs,
            "agents": AGENTS,
            "regions": REGIONS,
            "delta": DELTA,
            "confidence": CONFIDENCE,
            "accountant": "PLD",
        },
        finals={f"{s}, {m}, {T} rounds": np.asarray([b]) for (s, m, T), (_, b) in bounds.items()},
        checks=checks,
        unit="lower bound on epsilon",
        headers=("mechanism", "rounds", "claimed ε", "bound on ε", ""),
        rows=rows,
        figure=_figure(bounds),
    )


def ratios(
    mechanism: Mechanism, rounds: int, runs: int, key: Key
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]:
    """The log likelihood ratio of `runs` runs with the agent, and of as many without."""
    with_key, without_key = jr.split(key)
    one = partial(_ratios, mechanism, rounds)
    return (
        np.asarray(one(jr.split(with_key, runs), True)),
        np.asarray(one(jr.split(without_key, runs), False)),
    )


@eqx.filter_jit
def _ratios(
    mechanism: Mechanism, rounds: int, keys: Array, takes_part: bool
) -> Float[Array, " runs"]:
    # All agents count alike in all regions, as late in a run: then one moves the sum by all of Δ.
    weights = Weighting(emphasis=0.0)(jnp.asarray(1), jnp.arange(AGENTS) % REGIONS, REGIONS)
    honest = Mechanism(mechanism.z, mechanism.S, mechanism.sampling)
    direction = jnp.ones(FEATURES) / FEATURES**0.5
    longest = direction * mechanism.S / REGIONS**0.5
    messages = jnp.zeros((AGENTS, FEATURES)).at[0].set(LONGER * longest)
    present = jnp.ones(AGENTS, bool).at[0].set(takes_part)
    # What the agent adds to the vectors of all regions, where it is drawn.
    adds = weights[:, 0][:, None] * longest[None, :] / mechanism.sampling.q
    deviation = honest.deviation(weights)

    def ratio(key: Key) -> Scalar:
        y = mechanism.release(key, messages, weights, present)
        return auditing.log_ratio(honest, y, adds, deviation)

    def run(key: Key) -> Scalar:
        return jnp.sum(jax.vmap(ratio)(jr.split(key, rounds)))

    return jax.lax.map(run, keys, batch_size=5000)


def _figure(bounds: dict[tuple[str, str, int], tuple[float, float]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=plotting.DPI, layout="constrained")
    for ax, rounds in zip(figure.subplots(1, len(ROUNDS)), ROUNDS, strict=True):
        for i, setting in enumerate(SETTINGS):
            claimed = bounds[setting, "as it is", rounds][0]
            ax.plot(
                [i - 0.35, i + 0.35], [claimed] * 2, color="black", label=None if i else "claimed"
            )
            for j, name in enumerate(MECHANISMS):
                found = bounds[setting, name, rounds][1]
                x, color = i + 0.22 * (j - 1), f"C{j}"
                ax.bar(x, found, 0.2, color=color, label=None if i else name)
        ax.set_xticks(range(len(SETTINGS)), list(SETTINGS), fontsize=8)
        ax.set(title="one round" if rounds == 1 else f"{rounds} rounds", ylabel="lower bound on ε")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    source="no paper; DP-FTS-DE's guarantee, tried",
    about="whether a best distinguisher learns more of one agent than is claimed",
    time="3 min",
    run=_run,
)
