"""Accuracy and speed: each figure by itself, and as a ratio to something that ran beside it.

Times are the best of repeats, taken in turn with what they are compared to, after warming up and with
compilation apart. They mean little on a machine that does something else: say so where you quote them.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax.random as jr
import numpy as np

from bench.runner import Check, Experiment, Options, Result, progress
from bench.speed import accuracy as speed_accuracy
from bench.speed import additive as speed_additive
from bench.speed import cepe as speed_cepe
from bench.speed import egp as speed_egp
from bench.speed import maximizer as speed_maximizer
from bench.speed import maxsum as speed_maxsum
from bench.speed import private as speed_private
from bench.speed import rounds as speed_rounds
from bench.speed.timing import HEADERS, Figure

#: What is measured, each by itself with --only.
PARTS = (
    "posterior",
    "cosine",
    "fts",
    "dp-fts-de",
    "ensembles",
    "max-sum",
    "dec-hbo",
    "cepe",
    "maximizer",
)


def run(options: Options) -> Result:
    """All measurements; --runs is how many functions are maximized, --rounds how long FTS runs."""
    runs = options.runs_or(full=300, quick=40)
    rounds = options.rounds_or(full=speed_rounds.ROUNDS, quick=speed_rounds.ROUNDS)
    repeats = 3 if options.quick else 10
    sets = 3 if options.quick else 10
    seeds = 2 if options.quick else 100
    keys = jr.split(jr.key(options.seed), 8)
    cepe_key = jr.fold_in(jr.key(options.seed), len(keys))
    lines: list[str] = []

    def fts() -> list[Figure]:
        numbers = speed_rounds.AGENTS[: 2 if options.quick else None]
        figures, line = speed_rounds.figures(keys[2], rounds, repeats, numbers)
        lines.extend([line] if line else [])
        return figures

    parts: dict[str, Callable[[], list[Figure]]] = {
        "posterior": lambda: speed_accuracy.posterior_figures(keys[0], sets),
        "cosine": lambda: speed_accuracy.cosine_figures(keys[1], repeats),
        "fts": fts,
        "dp-fts-de": lambda: speed_private.figures(keys[4], seeds, min(repeats, 5)),
        "ensembles": lambda: speed_egp.figures(
            keys[5], min(repeats, 3), speed_egp.NUMBERS[: 2 if options.quick else None]
        ),
        "max-sum": lambda: [
            *speed_maxsum.iteration_figures(keys[6], repeats),
            *speed_maxsum.chain_figures(keys[6], min(repeats, 3)),
            *speed_maxsum.gap_figures(keys[7]),
        ],
        "dec-hbo": lambda: speed_additive.figures(
            3, (speed_additive.FEWER[1],) if options.quick else speed_additive.SIZES
        ),
        "cepe": lambda: speed_cepe.figures(cepe_key, min(repeats, 5), options.quick),
        "maximizer": lambda: speed_maximizer.figures(keys[3], runs),
    }
    names = options.problems_or(PARTS, quick=PARTS)
    figures = [figure for name in progress(names, "speed") for figure in parts[name]()]
    for line in lines:
        print(line)
    settings: dict[str, Any] = {
        "functions maximized": runs,
        "rounds": rounds,
        "repeats": repeats,
        "data sets": sets,
        "notes": lines,
        "figures": [{k: v for k, v in asdict(f).items() if k != "values"} for f in figures],
    }
    return Result(
        settings,
        finals={f.name: np.asarray(f.values or [f.value]) for f in figures},
        checks={
            f"{figure.name}, {figure.goal}": Check(figure.holds, figure.deciding())
            for figure in figures
            if figure.holds is not None
        },
        headers=HEADERS,
        rows=[figure.cells() for figure in figures],
    )


EXPERIMENT = Experiment(
    source="no paper; beside NumPy, jnp.cos and BoTorch",
    about="accuracy of float32, time and memory of rounds, how often maxima are found",
    time="15 min",
    run=run,
    problems=PARTS,
)
