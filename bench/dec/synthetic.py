"""DEC-HBO, Table 1 and Fig. 1: factor graphs on three functions, against plain processes.

    Hartmann-6, Shekel-4, Michalewicz-10, without noise; 10 random points, then 150 evaluations
    regret_t = max f - max over evaluations up to t of f

Every run has initial points of its own, the same for all methods but REMBO, whose are in its subspace.
All processes are exact, their hyperparameters fitted to the initial points and then every 10
evaluations, values warped but where it says not. Random trees are drawn anew, and all fitted, at every
evaluation (RDUCB). ADD-GP-UCB and "as in the paper" maximize an upper bound with the sum of the
factors' deviations; the other upper bounds have the deviation of f, "exploring" more of it. The plain
process has a length scale for each coordinate with the prior of `Priors.scaled`. BoTorch, where it is
installed, is LogEI with its default model, fitted at every evaluation. REMBO (Wang et al., 2013) is EI
of a plain process in a random subspace of half the dimension, drawn anew in every run.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, on_average, within
from bench.common import botorch, peers, search
from bench.common.botorch import BOTORCH
from bench.common.panels import figure, rows
from bench.common.search import BATCH, INITIAL, Method
from bench.dec.methods import PLAIN, REFIT, REMBO, plain, scaled
from bench.dec.table1 import BETA, FUNCTIONS, MORE, PAIRS, PAPER, factors, structured
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.embedding import embedded
from jaxbo.domains.base import Cube
from jaxbo.kernels.additive.policy import (
    FactorSample,
    MaxValueEntropy,
    UpperBound,
)
from jaxbo.kernels.additive.structure import RandomTree
from jaxbo.kernels.choosing.policy import EI, UCB
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import TestFunction
from jaxbo.runs.compiled import run
from jaxbo.types import Key

METHODS: dict[str, Method] = {
    "ADD-GP-UCB": factors(1, UpperBound(BETA, joint=False)),
    "ADD-MES-G": factors(1, MaxValueEntropy()),
    "ADD-MES-R": factors(1, MaxValueEntropy(paths=True)),
    "DEC-HBO, one each": factors(1),
    "DEC-HBO, pairs": factors(2),
    "DEC-HBO, triples": factors(3),
    "DEC-HBO, one each, exploring": factors(1, UpperBound(MORE)),
    "DEC-HBO, pairs, exploring": factors(2, UpperBound(MORE)),
    "DEC-HBO, triples, exploring": factors(3, UpperBound(MORE)),
    "DEC-HBO, fours, exploring": factors(4, UpperBound(MORE)),
    "DEC-HBO, random trees": structured(RandomTree(), refit_every=1),
    "DEC-HBO, pairs, not warped": factors(2, warp=False),
    "DEC-HBO, pairs, as in the paper": factors(2, UpperBound(BETA, joint=False)),
    "DEC-HBO, pairs, Thompson": factors(2, FactorSample()),
    "GP-UCB": plain(UCB(BETA)),
    "GP-UCB, exploring": plain(UCB(MORE)),
    PLAIN: lambda dim, evaluations: scaled(Cube(dim), evaluations),
    REMBO: plain(EI()),  # of half the coordinates: see `rembo`
}
JOINT, SUMMED = PAIRS, "DEC-HBO, pairs, as in the paper"
#: Not run, for the time that it would take: 210 factors.
LEFT_OUT = {("DEC-HBO, fours, exploring", "Michalewicz-10")}
QUICK = ("ADD-GP-UCB", "DEC-HBO, pairs")
#: The curves of a panel; all are in the table.
SHOWN = (
    "ADD-GP-UCB",
    "ADD-MES-R",
    "DEC-HBO, one each",
    "DEC-HBO, pairs",
    "DEC-HBO, pairs, as in the paper",
    "DEC-HBO, triples, exploring",
    "DEC-HBO, fours, exploring",
    "GP-UCB, exploring",
    PLAIN,
    REMBO,
    BOTORCH,
)
#: Those of which one is to be below the best of Table 1.
OURS = tuple(name for name in METHODS if name.startswith("DEC-HBO"))


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 2), options.rounds_or(150, 6)
    methods = QUICK if options.quick else tuple(METHODS)
    if not options.quick and botorch.installed():
        methods = (*methods, BOTORCH)
    names = options.problems_or(FUNCTIONS, quick=["Shekel-4"])
    keys = jr.split(jr.key(options.seed), runs)

    def measure(method: str, function: TestFunction) -> Any:
        if method == BOTORCH:
            return peers.regret(peers.log_ei, function, keys, rounds)
        if method == REMBO:
            return rembo(function, keys, rounds)
        return search.regret(METHODS[method], function, keys, rounds)

    measures = {
        f"{name}, {method}": functools.partial(measure, method, FUNCTIONS[name])
        for method in methods
        for name in names
        if (method, name) not in LEFT_OUT
    }
    curves, folder = parts(options, "dec-synthetic", (runs, rounds), measures)
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "evaluations between fits": REFIT,
            "beta": BETA,
            "beta, exploring": MORE,
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", *(f"{name}, s.e." for name in names)),
        rows=rows(curves, methods, names),
        figure=figure(curves, SHOWN, names, log=True),
        scratch=folder,
    )


@eqx.filter_jit
def rembo(function: TestFunction, keys: Array, rounds: int) -> Float[Array, "runs rounds"]:
    """The regret of REMBO in half of the dimensions."""
    subspace = function.dim // 2
    algorithm = METHODS[REMBO](subspace, rounds)

    def one(key: Key) -> Array:
        matrix_key, key = jr.split(key)
        objective = embedded(matrix_key, Same(function=function), function.dim, subspace)
        _, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
        return function.maximum - jax.lax.cummax(trace.values[:, 0])[INITIAL:]

    return jax.lax.map(one, keys, batch_size=BATCH)


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """The best mean of ours against the best of Table 1, and each method against BoTorch."""
    found: dict[str, Check] = {}
    for name, best in PAPER.items():
        ends = {
            method: curves[f"{name}, {method}"][:, -1]
            for method in (*METHODS, BOTORCH)
            if f"{name}, {method}" in curves
        }
        for method in OURS:
            if method in ends:
                claim = f"{name}: {method} below {best}, the best of Table 1, regret"
                found[claim] = on_average(ends[method], most=best)
            if method in ends and BOTORCH in ends:
                claim = f"{name}: {method} no worse than {BOTORCH} {BY}, ratio"
                found[claim] = within(ends[method], ends[BOTORCH])
        if {JOINT, SUMMED} <= set(ends):
            claim = f"{name}: {JOINT} no worse than with the sum of the deviations {BY}, ratio"
            found[claim] = within(ends[JOINT], ends[SUMMED])
    return found


EXPERIMENT = Experiment(
    source="DEC-HBO, Table 1, Fig. 1",
    about="three functions in 4 to 10 dimensions: sums of factors; plain processes",
    time="3 h",
    run=_run,
    problems=tuple(FUNCTIONS),
)
