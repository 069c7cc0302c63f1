"""FTS among strangers, beyond the paper: P_N uniform, or learned from how peers rank the observed points.

    the target and peers of `fts-synthetic` (1000 points, SE 0.03, 40 observations a peer, M = 100)
    a share of the peers is alike (d_n = 0.02); of the others each has
        opposed      1 - f, the target's function upside down
        unrelated    a function of its own
    p_t = 1 - 1/√t;  every peer sends another draw every round;  regret is averaged over the rounds

TS alone is the floor. All have the same model of the target.
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, within
from bench.common.text import number
from bench.fts.peers import (
    ALIKE,
    INITIAL,
    MESSAGES,
    OWN_FEATURES,
    PEERS,
    Perturbed,
    described,
    message_model,
    regret,
    target_and_peers,
    values_of,
)
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.synthetic import LENGTH_SCALE, NOISE, VALUES_VARIANCE, draws, grid
from jaxbo import metrics, plotting
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.types import Key

SHARES, QUICK_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 1.0)
OPPOSED, UNRELATED = "opposed", "unrelated"
ALONE, UNIFORM, LEARNED = "TS", "uniform", "learned"


class Mixed(eqx.Module):
    """The first peers are alike, the rest draw a function from `strangers`, or have the opposite."""

    alike: Array
    strangers: Float[Array, "pool points"] | None

    def __call__(self, key: Key, function: Float[Array, " points"]) -> Float[Array, "peers points"]:
        like_key, key = jr.split(key)
        like = Perturbed(ALIKE)(like_key, function)
        if self.strangers is None:
            unlike = jnp.broadcast_to(1 - function, like.shape)
        else:
            unlike = jr.choice(key, self.strangers, (PEERS,), replace=False)
        return jnp.where(jnp.arange(PEERS)[:, None] < self.alike, like, unlike)


def name(kind: str, share: float, peers: str) -> str:
    """The name of a curve."""
    return f"{peers}, {share:.0%} alike, others {kind}"


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(100, 20), options.rounds_or(50, 25)
    shares = QUICK_SHARES if options.quick else SHARES
    function_key, stranger_key, run_key = jr.split(jr.key(options.seed), 3)
    own = own_model(rounds)
    rest = draws(function_key, runs), grid(), rounds, jr.split(run_key, runs)
    alone = TS(Finite(grid()), surrogate=own)
    measures = {ALONE: functools.partial(values_of, alone, *rest)}
    # Peers send messages only, which takes no model of their own.
    peers = target_and_peers(grid(), message_model(MESSAGES.features), None, once=False)
    pools = {OPPOSED: None, UNRELATED: draws(stranger_key, 200)}
    for kind, pool in pools.items():
        for share in shares:
            relatives = Mixed(jnp.asarray(round(share * PEERS)), pool)
            for label, ranked in ((UNIFORM, None), (LEARNED, Ranked())):
                algorithm = eqx.tree_at(
                    lambda a: (a.own, a.peers), peers, (own, ranked), is_leaf=lambda x: x is None
                )
                measures[name(kind, share, label)] = functools.partial(
                    values_of, algorithm, *rest, peers, relatives, MESSAGES.observations
                )
    values, folder = parts(options, "fts-mixed", (runs, rounds), measures)
    curves = {name: regret(value) for name, value in values.items()}
    return Result(
        settings=described(runs, rounds),
        curves=curves,
        checks=checks(curves, shares),
        headers=("peers", "mean regret", "s.e.", "at the end", "s.e."),
        rows=_rows(curves),
        figure=_figure(curves, shares),
        scratch=folder,
    )


def own_model(rounds: int) -> Fitted:
    """The target's, of known hyperparameters; it keeps the observations that peers are ranked by."""
    kernel, noise = SquaredExponential(LENGTH_SCALE), NOISE / VALUES_VARIANCE
    return Fitted(INITIAL + rounds, kernel, size=OWN_FEATURES, noise=noise, refit_every=None)


def checks(curves: dict[str, np.ndarray], shares: tuple[float, ...]) -> dict[str, Check]:
    """Learned weights do no harm where peers are bad, and are as good as uniform where they are good."""
    means = {name: curve.mean(axis=1) for name, curve in curves.items()}
    found = {}
    for kind in (OPPOSED, UNRELATED):
        for share in shares:
            learned, uniform = (name(kind, share, peers) for peers in (LEARNED, UNIFORM))
            for rival in (ALONE, uniform):
                claim = f"{learned}: no worse than {rival} {BY}, ratio"
                found[claim] = within(means[learned], means[rival])
        for share in shares:
            if share >= 0.5:
                learned = name(kind, share, LEARNED)
                claim = f"{learned}: below {ALONE}, difference"
                found[claim] = below(means[learned], means[ALONE])
    return found


def _rows(curves: dict[str, np.ndarray]) -> list[tuple[str, ...]]:
    rows = []
    for label, curve in curves.items():
        cells = (*metrics.mean_and_error(curve.mean(axis=1)), *metrics.mean_and_error(curve[:, -1]))
        rows.append((label, *(number(float(cell)) for cell in cells)))
    return rows


def _figure(curves: dict[str, np.ndarray], shares: tuple[float, ...]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), dpi=plotting.DPI, layout="constrained")
    for ax, kind in zip(figure.subplots(1, 2, sharey=True), (OPPOSED, UNRELATED), strict=True):
        for peers, color in ((UNIFORM, plotting.RED), (LEARNED, plotting.BLUE)):
            ends = [metrics.mean_and_error(curves[name(kind, s, peers)].mean(1)) for s in shares]
            means, errors = zip(*ends, strict=True)
            percent = [100 * s for s in shares]
            ax.errorbar(percent, means, errors, color=color, marker="o", capsize=3, label=peers)
        ax.axhline(curves[ALONE].mean(), color="0.5", ls="--", label="TS, alone")
        ax.set(title=f"the others {kind}", xlabel="% of peers alike", ylabel="mean regret")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="no paper; FTS, section 7",
    about="peers alike among strangers: P_N uniform, or learned from ranks",
    time="5 min",
    run=_run,
)
