"""EGP-TS, Fig. 1, 2 and 6: an ensemble that chooses its kernel against each of its kernels alone.

    Ackley-5d, Zakharov-4d, drop-wave, eggholder, without noise; 10 random points, then 100 evaluations
    regret_t = max f - max over evaluations up to t of f

Every run has initial points of its own, the same for all methods (`egp.methods`). `--only peers` runs
methods of other libraries, as far as they are installed, and our methods that are compared with them.
`--only printed` runs the two methods that fit their hyperparameters as often as the paper prints.
"""

import functools
from typing import Any

import jax.random as jr
import numpy as np

from bench.claims import Check
from bench.common import peers, search
from bench.common.panels import figure, rows
from bench.common.search import INITIAL
from bench.egp.methods import (
    AS_PRINTED,
    FEATURES,
    METHODS,
    OTHERS,
    QUICK,
    REFIT,
    SINGLE,
    beside,
    claims,
)
from bench.runner import Experiment, Options, Result, parts
from jaxbo.objectives import functions
from jaxbo.objectives.functions import TestFunction

FUNCTIONS = {
    "Ackley-5d": functions.ackley5(),
    "Zakharov-4d": functions.zakharov(4),
    "drop-wave": functions.dropwave(),
    "eggholder": functions.eggholder(),
}
#: The curves of a panel; all are in the table.
SHOWN = tuple(
    name for name in METHODS if name not in (*SINGLE[:1], *SINGLE[2:]) and "11" not in name
)
#: The words that leave all other methods out.
PEERS_ALONE, AS_PRINTED_ALONE = "peers", "printed"


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(30, 4), options.rounds_or(100, 15)
    methods, names = _methods(options), _functions(options)
    keys = jr.split(jr.key(options.seed), runs)

    def measure(method: str, function: TestFunction) -> Any:
        if method in OTHERS:
            return peers.regret(OTHERS[method].search, function, keys, rounds)
        return search.regret(METHODS[method], function, keys, rounds)

    measures = {
        f"{name}, {method}": functools.partial(measure, method, FUNCTIONS[name])
        for method in methods
        for name in names
    }
    curves, folder = parts(options, "egp-synthetic", (runs, rounds), measures)
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "features": FEATURES,
            "evaluations between fits": REFIT,
            "as printed": {name: n for name, n in AS_PRINTED.items() if name in methods},
            "peers": {name: OTHERS[name].settings for name in methods if name in OTHERS},
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", *(f"{name}, s.e." for name in names)),
        rows=rows(curves, methods, names),
        figure=figure(curves, (*SHOWN, *OTHERS), names, log=True),
        scratch=folder,
    )


def _functions(options: Options) -> tuple[str, ...]:
    asked = options.problems_or(FUNCTIONS, quick=["drop-wave"])
    return tuple(name for name in asked if name in FUNCTIONS) or tuple(FUNCTIONS)


def _methods(options: Options) -> tuple[str, ...]:
    if options.quick:
        return QUICK
    others = tuple(name for name, peer in OTHERS.items() if not peer.missing())
    words = {AS_PRINTED_ALONE: tuple(AS_PRINTED), PEERS_ALONE: (*beside(others), *others)}
    if not words.keys() & set(options.only):
        return (*METHODS, *others)
    return tuple(name for word, names in words.items() if word in options.only for name in names)


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Claims about the end of the runs, which share keys and initial points."""
    found: dict[str, Check] = {}
    for name in FUNCTIONS:
        ends = {
            method: curves[f"{name}, {method}"][:, -1]
            for method in (*METHODS, *OTHERS)
            if f"{name}, {method}" in curves
        }
        found |= claims(name, ends)
    return found


EXPERIMENT = Experiment(
    source="EGP-TS, Fig. 1, 2, 6",
    about="four test functions: ensembles of kernels, each kernel alone, bandits, EI, other libraries",
    time="4 h",
    run=_run,
    problems=(*FUNCTIONS, PEERS_ALONE, AS_PRINTED_ALONE),
)
