"""DEC-HBO, Table 1: structures learned on the way, beside all pairs, on the functions of `dec-synthetic`.

    Hartmann-6, Shekel-4, Michalewicz-10, without noise; 10 random points, then 150 evaluations

Chains over structures (`Sampled`) go on at every fit, and start from no pairs. Functions, initial points
and keys are those of `dec-synthetic`, and so is the method with all pairs.
"""

import functools

import jax.random as jr
import numpy as np

from bench.claims import BY, Check, on_average, within
from bench.common import search
from bench.common.panels import figure, rows
from bench.common.search import INITIAL, Method
from bench.dec.methods import REFIT
from bench.dec.table1 import BETA, FUNCTIONS, PAIRS, PAPER, factors, structured
from bench.runner import Experiment, Options, Result, parts
from jaxbo.kernels.additive.structure import Sampled

LEARNED = "DEC-HBO, learned"
METHODS: dict[str, Method] = {LEARNED: structured(Sampled()), PAIRS: factors(2)}


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(20, 2), options.rounds_or(150, 6)
    names = options.problems_or(FUNCTIONS, quick=["Shekel-4"])
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        f"{name}, {method}": functools.partial(
            search.regret, METHODS[method], FUNCTIONS[name], keys, rounds
        )
        for method in METHODS
        for name in names
    }
    curves, folder = parts(options, "dec-learned", (runs, rounds), measures)
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "evaluations between fits": REFIT,
            "beta": BETA,
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", *(f"{name}, s.e." for name in names)),
        rows=rows(curves, tuple(METHODS), names),
        figure=figure(curves, tuple(METHODS), names, log=True),
        scratch=folder,
    )


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Learned structures against the best of Table 1, and against all pairs."""
    found: dict[str, Check] = {}
    for name, best in PAPER.items():
        if f"{name}, {LEARNED}" in curves:
            learned, pairs = (curves[f"{name}, {method}"][:, -1] for method in (LEARNED, PAIRS))
            claim = f"{name}: learned structures below {best}, the best of Table 1, regret"
            found[claim] = on_average(learned, most=best)
            claim = f"{name}: learned structures no worse than all pairs {BY}, ratio"
            found[claim] = within(learned, pairs)
    return found


EXPERIMENT = Experiment(
    source="DEC-HBO, Table 1",
    about="three functions in 4 to 10 dimensions: structures learned on the way, beside all pairs",
    time="40 min",
    run=_run,
    problems=tuple(FUNCTIONS),
)
