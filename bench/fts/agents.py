"""FTS, Fig. 3d: how long a target's query takes against the number N of peers, by FTS, RGPE and TAF.

    N = 10, 100, 1000, 10000;   M = 100;   one message a peer, sent before the start (`rivals`)

A compiled query in two dimensions: it takes in all messages and maximizes the target's function. The
agents' knowledge is given, and only the query comes back. No program's time depends on the numbers in
messages, so the messages are the agents' as they are before any observation. Least of some repeats, the
methods in turn.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from bench.claims import Check, met
from bench.common.text import number
from bench.common.timing import race
from bench.fts import rivals
from bench.fts.rivals import COLORS, FEDERATED, SHOWN, FederatedProblem
from bench.runner import Experiment, Options, Result, progress
from jaxbo import plotting
from jaxbo.types import Key, Points

PEERS, QUICK_PEERS = (10, 100, 1000, 10_000), (10, 100, 1000)
DIM = 2
#: For how many the target's own model has room.
ROUNDS = 50
#: FTS is to stay within this factor from the fewest to the most peers.
FLAT = 2.0


def _run(options: Options) -> Result:
    repeats = options.runs_or(10, 3)
    peers = QUICK_PEERS if options.quick else PEERS
    columns = [seconds_of(N, repeats, options.seed) for N in progress(peers, "fts-agents")]
    seconds = {kind: np.stack([column[kind] for column in columns], axis=1) for kind in FEDERATED}
    sent = {kind: rivals.sent(FederatedProblem(1, DIM), kind, SHOWN) for kind in FEDERATED}
    return Result(
        settings={"repeats": repeats, "M": SHOWN, "peers": peers},
        finals={f"{k}, N = {N}": seconds[k][:, i] for k in FEDERATED for i, N in enumerate(peers)},
        checks=checks(seconds, peers),
        headers=("method", "floats in a message", *(f"ms at N = {N}" for N in peers)),
        rows=[
            (kind, str(sent[kind]), *(number(1e3 * t) for t in seconds[kind].min(0)))
            for kind in FEDERATED
        ],
        figure=_figure(seconds, peers, sent),
    )


def seconds_of(peers: int, repeats: int, seed: int) -> dict[str, np.ndarray]:
    """A query's, by method, of each repeat."""
    # The target's own past is one agent more, which it does not hear.
    problem = FederatedProblem(peers + 1, DIM, targets=1)
    algorithms = {kind: rivals.federated(problem, kind, SHOWN, ROUNDS) for kind in FEDERATED}
    init_key, ask_key = jr.split(jr.key(seed))
    states = {kind: _start(algorithm, init_key) for kind, algorithm in algorithms.items()}
    calls = {
        kind: functools.partial(_query, algorithms[kind], ask_key, states[kind])
        for kind in FEDERATED
    }
    return race(calls, repeats)


@eqx.filter_jit
def _start(algorithm: Any, key: Key) -> Any:
    return algorithm.init(key)


@eqx.filter_jit
def _query(algorithm: Any, key: Key, state: Any) -> Points:
    return algorithm.ask(key, state)[0]


def checks(seconds: dict[str, np.ndarray], peers: tuple[int, ...]) -> dict[str, Check]:
    """FTS stays, the others grow."""
    growth = {kind: float(t[:, -1].min() / t[:, 0].min()) for kind, t in seconds.items()}
    found = {}
    for kind, times in growth.items():
        if kind == "FTS":
            claim = f"FTS: a query at N = {peers[-1]} at most {FLAT:g} times that at N = {peers[0]}"
            found[claim] = met(times, most=FLAT)
        else:
            claim = f"{kind}: a query at N = {peers[-1]} grows more than that of FTS"
            found[claim] = met(times, least=math.nextafter(growth["FTS"], math.inf))
    return found


def _figure(seconds: dict[str, np.ndarray], peers: tuple[int, ...], sent: dict[str, int]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=plotting.DPI, layout="constrained")
    ax = figure.subplots()
    for kind, some in seconds.items():
        label = f"{kind}: {sent[kind]} floats a message"
        ax.plot(peers, some.min(0), marker="o", color=COLORS[kind], label=label)
    ax.set(xscale="log", yscale="log", xlabel="peers N", ylabel="seconds a query")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="FTS, Fig. 3d",
    about="seconds a query against the number of peers, by FTS, RGPE and TAF",
    time="3 min",
    run=_run,
)
