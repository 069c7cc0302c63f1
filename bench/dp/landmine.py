"""DP-FTS-DE, Fig. 3a, d and 11: the SVMs of 29 landmine fields (`tasks.landmine`), two hyperparameters.

See `privacy_curve` for the comparison. An SVM has two scores: here it is the clean score; the authors'
own is the noisy score. The domain is a grid of 51 x 51 points: all SVMs there are trained beforehand,
and a run looks its values up, so that all rounds of all settings are compiled.
"""

import functools
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bench.dp.privacy_curve import FIXED_SIZE, PrivateProblem, measure
from bench.runner import Experiment, Options, Result, kept, progress
from bench.tasks.landmine import FIELDS, Tuning, fields
from jaxbo.domains.base import Finite
from jaxbo.objectives.families import OnGrid

#: Points along each axis.
SIDE, QUICK_SIDE = 51, 11


def _run(options: Options) -> Result:
    fields()  # says at once if the data is missing
    side = QUICK_SIDE if options.quick else SIDE
    points = grid(side)
    folder = options.out / f"dp-landmine.svms-{side}"
    folder.mkdir(parents=True, exist_ok=True)
    # Threads would share the random generator inside libsvm, and forks the locks of JAX.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as executor:
        values = trained(folder, executor, points)
    objective = OnGrid(values=values, points=points)
    figures = {"Fig. 11: samples of a fixed size": FIXED_SIZE}
    domain, unit = Finite(points), "1 - AUC"
    problem = PrivateProblem(
        domain, FIELDS, objective, unit, batch=5, trains=False, figures=figures
    )
    runs, rounds = options.runs_or(20, 2), options.rounds_or(60, 5)
    result = measure(problem, options, "dp-landmine", runs, rounds)
    result.settings["grid"] = f"{side} x {side}"
    return result


def grid(side: int) -> Float[np.ndarray, "points 2"]:
    """The points of the domain."""
    axis = np.linspace(0, 1, side)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def trained(
    folder: Path, executor: Executor, points: Float[np.ndarray, "points 2"]
) -> Float[np.ndarray, "fields points"]:
    """The AUC of every field at every point; a field's row is saved as soon as it is there."""
    rows = []
    for field in progress(range(FIELDS), "dp-landmine, SVMs"):
        auc = functools.partial(Tuning(clean=True, seed=0), field)
        row = functools.partial(executor.map, auc, points, chunksize=50)
        rows.append(kept(folder / f"{field}.npz", lambda r=row: list(r())))
    return np.stack(rows)


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3a, d, 11",
    about="SVMs of 29 landmine fields: what privacy costs",
    time="40 min",
    run=_run,
)
