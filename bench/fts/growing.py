"""FTS, Fig. 4: peers that keep observing and send every round, or a single message before the start.

    one message      ω_n of 50 observations, drawn before the first round, used once
    peers go on      a new ω_n before every round, of 50, 51, 52, ... observations of the peer's own TS

On the problems of `fts-landmine` (the authors' objective), `fts-eating` and `fts-har`, with M = 100 and
all else as there. The peers that go on are targets of the same `FTS` that listen to nobody.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Float

from bench.claims import BY, Check, below, within
from bench.fts import activity, rivals
from bench.fts.activity import by_run, flat
from bench.fts.driven import PROBLEM, DrivenRun, driven, informed, noise_seed
from bench.fts.rivals import ALONE, GROWING, INITIAL, SHOWN, TARGETS, FederatedProblem
from bench.runner import Experiment, Options, Result, parts, scratch
from bench.tasks import har
from bench.tasks.eating import PEOPLE, meals
from bench.tasks.landmine import Tuning, fields
from jaxbo import plotting

ONCE = "FTS"
KINDS = (ALONE, ONCE, GROWING)
UNIT = {"landmine": "1 - best AUC", "eating": "validation error", "har": "validation error"}


def _run(options: Options) -> Result:
    fields()  # says at once if the data is missing
    runs, rounds = options.runs_or(10, 2), options.rounds_or(50, 5)
    keys = jr.split(jr.key(options.seed), runs)
    tuned = {
        "eating": (FederatedProblem(PEOPLE, dim=3), meals()),
        "har": (FederatedProblem(har.SUBJECTS, dim=3), har.movements(har.FTS)),
    }
    measures: dict[str, Callable[[], Any]] = {}
    for name, problem in tuned.items():
        past = functools.cache(functools.partial(activity.past_of, *problem, rounds, keys))
        for kind in KINDS:
            method = kind, 0 if kind == ALONE else SHOWN
            given = (*problem, method, rounds, keys, past)
            measures[label(name, kind)] = functools.partial(activity.reached, *given)
    size = "fts-growing", (runs, rounds)
    for kind in () if options.quick else KINDS:
        given = (scratch(options, *size), kind, runs, rounds, options.seed)
        measures[label("landmine", kind)] = functools.partial(_landmine, *given)
    tables, folder = parts(options, *size, measures)
    return Result(
        settings=rivals.described(runs, rounds, (SHOWN,)),
        curves={name: flat(table) for name, table in tables.items()},
        checks=checks(tables),
        unit="error at the end",
        figure=_figure(tables),
        scratch=folder,
    )


def label(problem: str, kind: str) -> str:
    """The name of a curve."""
    return f"{problem}: {kind}"


def _landmine(folder: Path, kind: str, runs: int, rounds: int, seed: int) -> np.ndarray:
    """As `fts-landmine` has it; the runs are saved in turn, TS is first."""
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as executor:
        values = [_one(folder, kind, run, rounds, seed, executor) for run in range(runs)]
    return activity.errors_of(np.stack(values))


def _one(
    folder: Path, kind: str, run: int, rounds: int, seed: int, executor: Executor
) -> Float[np.ndarray, "rows targets"]:
    init_key, run_key = jr.split(jr.fold_in(jr.key(seed), run))

    def part(kind: str, *given: Any) -> DrivenRun:
        return driven(folder / f"landmine-{kind}-{run}.npz", *given)

    noise = noise_seed(seed, run)
    alone = rivals.alone(PROBLEM, rounds)
    past = part(ALONE, alone, Tuning(False, noise), rounds, run_key, executor, None)
    if kind == ALONE:
        return past.values[:, :TARGETS]
    algorithm = rivals.federated(PROBLEM, kind, SHOWN, rounds)
    state = informed(algorithm, init_key, past)
    tuning = Tuning(False, noise, TARGETS)
    known = rivals.given_points(algorithm)
    found = part(kind, algorithm, tuning, rounds, run_key, executor, state, INITIAL - known)
    return np.concatenate([past.values[:known, :TARGETS], found.values[:, :TARGETS]])


# ---------------------------------------------------------------- what came out


def checks(errors: dict[str, np.ndarray]) -> dict[str, Check]:
    """The paper's claims: both below TS, and going on comparable to a single message or better."""
    found = {}
    for problem in UNIT:
        if label(problem, ALONE) not in errors:
            continue
        alone, once, growing = (by_run(errors[label(problem, kind)]) for kind in KINDS)
        found[f"{label(problem, ONCE)}: below {ALONE}, difference"] = below(once, alone)
        found[f"{label(problem, GROWING)}: below {ALONE}, difference"] = below(growing, alone)
        claim = f"{label(problem, GROWING)}: no worse than one message {BY}, ratio"
        found[claim] = within(growing, once)
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
    time="15 min",
    run=_run,
)
