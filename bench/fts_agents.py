"""FTS, Fig. 3d: how long a target's round takes against the number N of peers, by FTS, RGPE and TAF.

    N = 10, 100, 1000, 10000;   M = 100;   one message a peer, sent before the start (`fts_rivals`)

A compiled round of one target in two dimensions: it takes in all messages, maximizes its function and
learns from the value of a cheap objective. No program's time depends on what messages say, so these are
the agents' as they are before any observation. The least of some repeats, taken in turn.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench import fts_rivals
from bench.fts_rivals import COLORS, FEDERATED, SHOWN, Problem
from bench.runner import Check, Experiment, Options, Result, number
from bench.speed_timing import race
from jaxbo import plotting
from jaxbo.loop import run
from jaxbo.types import Count, Key, Point, Scalar

PEERS, QUICK_PEERS = (10, 100, 1000, 10_000), (10, 100, 1000)
DIM = 2
#: FTS is to stay within this factor from the fewest to the most peers.
FLAT = 2.0


def _run(options: Options) -> Result:
    repeats, rounds = options.runs_or(5, 3), options.rounds_or(5, 5)
    peers = QUICK_PEERS if options.quick else PEERS
    seconds = {kind: np.empty((repeats, len(peers))) for kind in FEDERATED}
    for i, N in enumerate(peers):
        for kind in FEDERATED:
            seconds[kind][:, i] = seconds_of(kind, N, rounds, repeats, options.seed)
    sent = {kind: fts_rivals.sent(Problem(1, DIM), kind, SHOWN) for kind in FEDERATED}
    return Result(
        settings={"repeats": repeats, "rounds": rounds, "M": SHOWN, "peers": peers},
        finals={f"{k}, N = {N}": seconds[k][:, i] for k in FEDERATED for i, N in enumerate(peers)},
        checks=checks(seconds, peers),
        headers=("method", "floats in a message", *(f"ms at N = {N}" for N in peers)),
        rows=[
            (kind, str(sent[kind]), *(number(1e3 * t) for t in seconds[kind].min(0)))
            for kind in FEDERATED
        ],
        figure=_figure(seconds, peers, sent),
    )


@eqx.filter_jit
def _start(algorithm: Any, key: Key) -> Any:
    return algorithm.init(key)


def bowl(key: Key, agent: Count, x: Point) -> Scalar:
    """An objective that costs nothing."""
    del key, agent
    return -jnp.sum((x - 0.3) ** 2)


def seconds_of(kind: str, peers: int, rounds: int, repeats: int, seed: int) -> np.ndarray:
    """A round's, of each repeat."""
    algorithm = fts_rivals.federated(Problem(peers, DIM, targets=1), kind, SHOWN, rounds)
    init_key, run_key = jr.split(jr.key(seed))
    state = jax.block_until_ready(_start(algorithm, init_key))
    calls = {kind: lambda: run(algorithm, bowl, rounds, run_key, state=state)[1].values}
    return race(calls, repeats)[kind] / rounds


def checks(seconds: dict[str, np.ndarray], peers: tuple[int, ...]) -> dict[str, Check]:
    """FTS stays, the others grow."""
    growth = {kind: float(t[:, -1].min() / t[:, 0].min()) for kind, t in seconds.items()}
    found = {}
    for kind, times in growth.items():
        if kind == "FTS":
            claim = f"FTS: a round at N = {peers[-1]} at most {FLAT:g} times that at N = {peers[0]}"
            found[claim] = Check(times <= FLAT, times)
        else:
            claim = f"{kind}: a round at N = {peers[-1]} grows more than that of FTS"
            found[claim] = Check(times > growth["FTS"], times)
    return found


def _figure(seconds: dict[str, np.ndarray], peers: tuple[int, ...], sent: dict[str, int]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=plotting.DPI, layout="constrained")
    ax = figure.subplots()
    for kind, some in seconds.items():
        label = f"{kind}: {sent[kind]} floats a message"
        ax.plot(peers, some.min(0), marker="o", color=COLORS[kind], label=label)
    ax.set(xscale="log", yscale="log", xlabel="peers N", ylabel="seconds a round")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="FTS, Fig. 3d",
    about="seconds a round against the number of peers, by FTS, RGPE and TAF",
    time="5 min",
    run=_run,
)
