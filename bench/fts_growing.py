"""FTS, Fig. 4: peers that keep observing and send every round, or one message before the start.

    one message      ω_n of 50 observations, drawn before the first round, used once
    peers go on      each round every peer asks and observes once more by TS, and sends a new ω_n

On the problems of `fts_landmine` (the authors' objective), `fts_eating` and `fts_har`, with M = 100 and
all else as there. Who has nobody to listen to goes on with TS: both sides are one `FTS`.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench import fts_activity, fts_landmine, fts_rivals
from bench.eating import PEOPLE, meals
from bench.fts_landmine import PROBLEM, Part, driven, noise_seed
from bench.fts_rivals import ALONE, GROWING, INITIAL, OBSERVATIONS, SHOWN, TARGETS, Problem
from bench.har import FEDERATED, SUBJECTS, movements
from bench.landmine import Tuning, fields
from bench.runner import Check, Experiment, Options, Result, below, no_worse, parts, scratch
from jaxbo import plotting
from jaxbo.loop import Compiled

ONCE = "FTS"
KINDS = (ALONE, ONCE, GROWING)
UNIT = {"landmine": "1 - best AUC", "eating": "validation error", "har": "validation error"}


def _run(options: Options) -> Result:
    fields()  # says at once if the data is missing
    runs, rounds = options.runs_or(20, 2), options.rounds_or(50, 5)
    keys = jr.split(jr.key(options.seed), runs)
    activities = {
        "eating": (Problem(PEOPLE, dim=3), meals()),
        "har": (Problem(SUBJECTS, dim=3), movements(FEDERATED)),
    }
    measures: dict[str, Callable[[], Any]] = {}
    for name, activity in activities.items():
        past = functools.cache(functools.partial(fts_activity.past_of, *activity, rounds, keys))
        for kind in KINDS:
            given = (*activity, kind, rounds, keys, past)
            measures[label(name, kind)] = functools.partial(_activity, *given)
    size = "fts-growing", (runs, rounds)
    for kind in () if options.quick else KINDS:
        given = (scratch(options, *size), kind, runs, rounds, options.seed)
        measures[label("landmine", kind)] = functools.partial(_landmine, *given)
    tables, folder = parts(options, *size, measures)
    return Result(
        settings={
            "initializations": runs,
            "rounds": rounds,
            "initial points": INITIAL,
            "targets": TARGETS,
            "observations of a peer before the start": OBSERVATIONS,
            "M": SHOWN,
        },
        curves={name: flat(table) for name, table in tables.items()},
        checks=checks(tables),
        unit="error at the end",
        figure=_figure(tables),
        scratch=folder,
    )


def label(problem: str, kind: str) -> str:
    """What a curve is called."""
    return f"{problem}: {kind}"


def flat(errors: Float[np.ndarray, "runs targets rounds"]) -> Float[np.ndarray, "pairs rounds"]:
    return errors.reshape(-1, errors.shape[-1])


def _activity(
    problem: Problem,
    objective: Compiled,
    kind: str,
    rounds: int,
    keys: Array,
    past: Callable[[], fts_activity.Past],
) -> np.ndarray:
    if kind == ALONE:
        return fts_activity.errors_of(past()[1][:, :, :TARGETS])
    method = kind, SHOWN
    values = fts_activity.values_of(problem, objective, method, rounds, keys, past())
    return fts_activity.errors_of(values)


def _landmine(folder: Path, kind: str, runs: int, rounds: int, seed: int) -> np.ndarray:
    """As `fts_landmine` has it; the runs are saved one by one, TS is first."""
    values = []
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as executor:
        for run in range(runs):
            init_key, run_key = jr.split(jr.fold_in(jr.key(seed), run))

            def one(kind: str, run: int = run, keys: Any = (init_key, run_key)) -> Part:
                algorithm: Any = fts_rivals.alone(PROBLEM, rounds)
                tuning, state = Tuning(False, noise_seed(seed, run)), None
                if kind != ALONE:
                    past = one(ALONE)
                    algorithm = fts_rivals.federated(PROBLEM, kind, SHOWN, rounds)
                    state = fts_landmine.informed(algorithm, keys[0], past)
                    tuning = Tuning(False, tuning.seed, TARGETS)
                path = folder / f"landmine-{kind}-{run}.npz"
                return driven(path, algorithm, tuning, rounds, keys[1], executor, state)

            values.append(one(kind).values[:, :TARGETS])
    return fts_activity.errors_of(np.stack(values))


# ---------------------------------------------------------------- what came out


def checks(errors: dict[str, np.ndarray]) -> dict[str, Check]:
    """The paper's claims: both below TS, and going on comparable to one message or better."""
    found = {}
    for problem in UNIT:
        if label(problem, ALONE) not in errors:
            continue
        alone, once, growing = (flat(errors[label(problem, kind)])[:, -1] for kind in KINDS)
        found[f"{label(problem, ONCE)}: below {ALONE}"] = below(once, alone)
        found[f"{label(problem, GROWING)}: below {ALONE}"] = below(growing, alone)
        claim = f"{label(problem, GROWING)}: no worse than one message, difference"
        found[claim] = no_worse(growing, once)
    return found


def _figure(errors: dict[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    problems = [problem for problem in UNIT if label(problem, ALONE) in errors]
    figure = Figure(figsize=(6 * len(problems), 4.5), dpi=plotting.DPI, layout="constrained")
    axes = np.ravel(figure.subplots(1, len(problems)))
    for ax, problem in zip(axes, problems, strict=True):
        curves = {kind: flat(errors[label(problem, kind)]) for kind in KINDS}
        plotting.regret(curves, ax, ylabel=UNIT[problem], band="error")
        ax.set_title(f"{problem}: mean over {TARGETS} targets and all runs")
    return figure


EXPERIMENT = Experiment(
    source="FTS, Fig. 4",
    about="peers that keep observing and send every round, or one message",
    time="40 min",
    run=_run,
)
