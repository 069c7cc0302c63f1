"""Accuracy and speed: each figure by itself, and as a ratio to something that ran beside it.

Times are the best of repeats, taken in turn with the times that they are compared to, after warming up
and with compilation apart. They mean little on a machine that does something else: say so where you quote
them.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax.random as jr
import numpy as np

from bench.common.timing import HEADERS, Figure, checked
from bench.runner import Experiment, Options, Result, progress
from bench.speed import accuracy, additive, cepe, egp, maximizer, maxsum, private, rounds

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
    length = options.rounds_or(full=rounds.ROUNDS, quick=rounds.ROUNDS)
    repeats = 3 if options.quick else 10
    sets = 3 if options.quick else 10
    seeds = 2 if options.quick else 100
    keys = jr.split(jr.key(options.seed), 8)
    cepe_key = jr.fold_in(jr.key(options.seed), len(keys))
    lines: list[str] = []

    def fts() -> list[Figure]:
        numbers = rounds.AGENTS[: 2 if options.quick else None]
        figures, line = rounds.figures(keys[2], length, repeats, numbers)
        lines.extend([line] if line else [])
        return figures

    parts: dict[str, Callable[[], list[Figure]]] = {
        "posterior": lambda: accuracy.posterior_figures(keys[0], sets),
        "cosine": lambda: accuracy.cosine_figures(keys[1], repeats),
        "fts": fts,
        "dp-fts-de": lambda: private.figures(keys[4], seeds, min(repeats, 5)),
        "ensembles": lambda: egp.figures(
            keys[5], min(repeats, 3), egp.NUMBERS[: 2 if options.quick else None]
        ),
        "max-sum": lambda: [
            *maxsum.iteration_figures(keys[6], repeats),
            *maxsum.chain_figures(keys[6], min(repeats, 3)),
            *maxsum.gap_figures(keys[7]),
        ],
        "dec-hbo": lambda: additive.figures(
            3, (additive.FEWER[1],) if options.quick else additive.SIZES
        ),
        "cepe": lambda: cepe.figures(cepe_key, min(repeats, 5), options.quick),
        "maximizer": lambda: maximizer.figures(keys[3], runs),
    }
    names = options.problems_or(PARTS, quick=PARTS)
    figures = [figure for name in progress(names, "speed") for figure in parts[name]()]
    for line in lines:
        print(line)
    settings: dict[str, Any] = {
        "functions maximized": runs,
        "rounds": length,
        "repeats": repeats,
        "data sets": sets,
        "notes": lines,
        "figures": [{k: v for k, v in asdict(f).items() if k != "values"} for f in figures],
    }
    return Result(
        settings,
        finals={f.name: np.asarray(f.values or [f.value]) for f in figures},
        checks=checked(figures),
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
