"""EGP-TS, Fig. 1, 2 and 6: an ensemble that chooses its kernel against each of its kernels alone.

    Ackley-5d, Zakharov-4d, drop-wave, eggholder, without noise; 10 random points, then 100 evaluations
    regret_t = max f - max over evaluations up to t of f

Every run has initial points of its own, the same for all methods (`egp.methods`).
"""

import functools
from typing import Any

import jax.random as jr
import numpy as np

from bench.claims import Check
from bench.common import botorch, search
from bench.common.botorch import BOTORCH
from bench.common.panels import figure, rows
from bench.common.search import INITIAL
from bench.egp.methods import FEATURES, METHODS, QUICK, REFIT, SINGLE, claims
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


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(30, 4), options.rounds_or(100, 15)
    methods = QUICK if options.quick else tuple(METHODS)
    if not options.quick and botorch.installed():
        methods = (*methods, BOTORCH)
    names = options.problems_or(FUNCTIONS, quick=["drop-wave"])
    keys = jr.split(jr.key(options.seed), runs)

    def measure(method: str, function: TestFunction) -> Any:
        if method == BOTORCH:
            return botorch.regret(function, keys, rounds)
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
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", *(f"{name}, s.e." for name in names)),
        rows=rows(curves, methods, names),
        figure=figure(curves, (*SHOWN, BOTORCH), names, log=True),
        scratch=folder,
    )


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Claims about the end of the runs, which share keys and initial points."""
    found: dict[str, Check] = {}
    for name in FUNCTIONS:
        ends = {
            method: curves[f"{name}, {method}"][:, -1]
            for method in (*METHODS, BOTORCH)
            if f"{name}, {method}" in curves
        }
        found |= claims(name, ends)
    return found


EXPERIMENT = Experiment(
    source="EGP-TS, Fig. 1, 2, 6",
    about="four test functions: ensembles of kernels, each kernel alone, bandits, fully Bayesian, EI",
    time="4 h",
    run=_run,
    problems=tuple(FUNCTIONS),
)
