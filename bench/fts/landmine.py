"""FTS, Fig. 2a, 3a and 5: the SVMs of 29 landmine fields, two hyperparameters each (`rivals`).

    best_t = max of the AUC over the initial points and rounds 1, ..., t

Once for each of two objectives (`tasks.landmine`): `predict_proba` is the authors', noisy and often
upside down, and their published figures belong to it alone; `decision_function` is the clean objective.

A run is an initialization of all fields; all methods share its initial points and, at equal points, the
noise. The peers of a run are that run's own TS runs of the other fields, their first 50 observations.
An evaluation's best AUC is an observed value, noise included, as in the paper.

Every part is saved as it goes: an interrupted run, started again, continues.
"""

import hashlib
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

import jaxbo
from bench.claims import BY, Check, met, on_average, within
from bench.common.text import number
from bench.fts import rivals
from bench.fts.driven import PROBLEM, DrivenRun, driven, informed, noise_seed
from bench.fts.rivals import (
    ALONE,
    FEATURES,
    FEDERATED,
    INITIAL,
    QUICK_FEATURES,
    SHOWN,
    TARGETS,
)
from bench.runner import Experiment, Options, Result, progress
from bench.tasks.landmine import Tuning, fields
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm

#: The objectives by name: the authors', and the clean one.
AUTHORS, CLEAN = "predict_proba", "decision_function"
#: The authors' best AUC after 3 + 50 points, by method and M (TS sends nothing: 0).
PUBLISHED = {
    ("TS", 0): 0.8213,
    **{("FTS", M): auc for M, auc in zip(FEATURES, (0.8194, 0.8270, 0.8260, 0.8247), strict=True)},
    **{("RGPE", M): auc for M, auc in zip(FEATURES, (0.8190, 0.7987, 0.8032, 0.8096), strict=True)},
    **{("TAF", M): auc for M, auc in zip(FEATURES, (0.7141, 0.7284, 0.7369, 0.8057), strict=True)},
}
PUBLISHED_ERROR = 0.008
#: Points that the figures were published for.
PUBLISHED_ROUNDS = 50
#: Seconds a round, evaluation included, that the authors took.
PUBLISHED_SECONDS = {"TS": 59 / 50, "FTS": 50 / 50, "RGPE": 7378 / 50, "TAF": 4254 / 50}


class Method(NamedTuple):
    """On a single objective; M is 0 for TS, which sends nothing."""

    objective: str
    kind: str
    features: int

    def __str__(self) -> str:
        size = f" M = {self.features}" if self.features else ""
        return f"{self.kind}{size} ({self.objective})"

    @property
    def published(self) -> float:
        return PUBLISHED[self.kind, self.features]


#: Best AUC [runs targets rounds] and seconds a round and agent.
Found = dict[Method, tuple[np.ndarray, float]]


def _run(options: Options) -> Result:
    fields()  # says at once if the data is missing
    runs, rounds = options.runs_or(5, 2), options.rounds_or(50, 10)
    sizes = QUICK_FEATURES if options.quick else FEATURES
    objectives = {AUTHORS: "the authors', noisy", CLEAN: "without noise, not the authors'"}
    settings = {"objectives": objectives, **rivals.described(runs, rounds, sizes)}
    made_by = {"version": jaxbo.__version__, "seed": options.seed, **settings, "initializations": 0}
    digest = hashlib.sha256(repr(sorted(made_by.items())).encode()).hexdigest()[:12]
    folder = options.out / f"fts-landmine.parts-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    # Threads would share the random generator inside libsvm, and forks the locks of JAX.
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as executor:
        found, earlier = _all(folder, executor, runs, rounds, sizes, options.seed)
    return Result(
        settings=settings,
        curves=_curves(found),
        checks=checks(found, rounds),
        unit="best AUC",
        headers=("method", "best AUC", "s.e.", "runs", "authors'", "floats sent", "s a round"),
        rows=_rows(found, rounds),
        figure=_figure(found, rounds),
        earlier=earlier,
        scratch=folder,
    )


# ---------------------------------------------------------------- evaluations


def _all(
    folder: Path, executor: Executor, runs: int, rounds: int, sizes: tuple[int, ...], seed: int
) -> tuple[Found, float]:
    """Everything that is evaluated, and the seconds spent on it before this process."""
    parts: dict[Method, list[DrivenRun]] = {}
    kinds = [(ALONE, 0), *((kind, M) for M in sizes for kind in FEDERATED)]
    steps = [(r, Method(o, *k)) for o in (AUTHORS, CLEAN) for r in range(runs) for k in kinds]
    for run, method in progress(steps, "fts-landmine"):
        key = jr.fold_in(jr.key(seed), run)
        init_key, run_key = jr.split(key)
        algorithm: AbstractAlgorithm = rivals.alone(PROBLEM, rounds)
        state = None
        if method.features:
            algorithm = rivals.federated(PROBLEM, method.kind, method.features, rounds)
            past = parts[Method(method.objective, ALONE, 0)][run]
            state = informed(algorithm, init_key, past)
        tuning = Tuning(method.objective == CLEAN, noise_seed(seed, run))
        path = folder / f"{method.objective}-run{run}-{method.kind}{method.features}.npz"
        part = driven(path, algorithm, tuning, rounds, run_key, executor, state)
        parts.setdefault(method, []).append(part)
    found = {method: _best(some) for method, some in parts.items()}
    earlier = [p.seconds for some in parts.values() for p in some if p.earlier]
    return found, float(np.nansum(earlier))


def _best(parts: list[DrivenRun]) -> tuple[np.ndarray, float]:
    best = np.stack([metrics.best_so_far(part.values)[INITIAL:, :TARGETS].T for part in parts])
    return best, float(np.nanmean([p.seconds / p.values[INITIAL:].size for p in parts]))


# ---------------------------------------------------------------- what came out


def _curves(found: Found) -> dict[str, np.ndarray]:
    """All runs of all targets; and the runs of each target, at a single M."""
    curves = {str(method): _flat(best) for method, (best, _) in found.items()}
    for method, (best, _) in found.items():
        if method.features in (0, SHOWN):
            for target in range(TARGETS):
                curves[f"{method}, target {target}"] = best[:, target]
    return curves


def _flat(best: np.ndarray) -> np.ndarray:
    return best.reshape(-1, best.shape[-1])


def checks(found: Found, rounds: int) -> dict[str, Check]:
    """The paper's claims: the authors' figures (their objective, their length), and FTS against all."""
    checks = {}
    # The targets of a run share its draws: one figure a run, their mean.
    finals = {method: best[:, :, -1].mean(axis=1) for method, (best, _) in found.items()}
    for method, (_, seconds) in found.items():
        final = finals[method]
        if method.objective == AUTHORS and rounds == PUBLISHED_ROUNDS:
            claim = f"{method}: at most {PUBLISHED_ERROR} (1 s.e.) below the authors' {method.published}"
            above = on_average(final - method.published, least=-PUBLISHED_ERROR)
            checks[f"{claim}, difference"] = above
        if method.kind == "FTS":
            others = [method._replace(kind=kind) for kind in ("RGPE", "TAF")]
            for rival in (Method(method.objective, ALONE, 0), *others):
                if rival in finals:
                    claim = f"{method}: 1 - AUC no worse than of {rival.kind} {BY}, ratio"
                    checks[claim] = within(1 - final, 1 - finals[rival])
        if method.features:
            sent, due = _floats(method)
            checks[f"{method}: floats in a message"] = met(sent, least=due, most=due)
        if method.objective == AUTHORS:
            limit = PUBLISHED_SECONDS[method.kind]
            claim = f"{method}: a round takes less than the authors' {limit:.2f} s"
            checks[claim] = met(seconds, most=limit)
    return checks


def _floats(method: Method) -> tuple[int, int]:
    """How many numbers one message holds, and how many it should."""
    sent, M = rivals.sent(PROBLEM, method.kind, method.features), method.features
    return sent, {"FTS": M, "RGPE": M + M**2, "TAF": M + M**2 + 1}[method.kind]


def _rows(found: Found, rounds: int) -> list[tuple[str, ...]]:
    rows = []
    for method, (best, seconds) in found.items():
        final = _flat(best)[:, -1]
        mean, error = metrics.mean_and_error(final)
        comparable = method.objective == AUTHORS and rounds == PUBLISHED_ROUNDS
        figures = (float(mean), float(error), len(final))
        theirs = number(method.published) if comparable else "-"
        sent = str(_floats(method)[0] if method.features else 0)
        rows.append((str(method), *map(number, figures), theirs, sent, f"{seconds:.3f}"))
    return rows


def _figure(found: Found, rounds: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 12), dpi=plotting.DPI, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.35, 1))
    top, bottom = parts
    for row, objective in zip(
        top.subplots(2, 2, width_ratios=(1.6, 1)), (AUTHORS, CLEAN), strict=True
    ):
        _draw_curves(row[0], found, objective)
        _draw_messages(row[1], found, objective, rounds)
    bottom.suptitle(f"each target, {AUTHORS}, M = {SHOWN}: mean and standard error over its runs")
    for target, ax in enumerate(bottom.subplots(2, 3).flat):
        _draw_target(ax, found, target)
    return figure


def _draw_curves(ax: Any, found: Found, objective: str) -> None:
    methods = {m: _flat(best) for m, (best, _) in found.items() if m.objective == objective}
    shown = {m: best for m, best in methods.items() if m.features in (0, SHOWN)}
    plotting.regret({m.kind: b for m, b in shown.items()}, ax, ylabel="best AUC", band="error")
    ax.set_title(f"objective: {objective}, mean over all targets and runs, M = {SHOWN}")


def _draw_messages(ax: Any, found: Found, objective: str, rounds: int) -> None:
    """Fig. 2a: the result against the size of messages."""
    methods = [method for method in found if method.objective == objective]
    comparable = objective == AUTHORS and rounds == PUBLISHED_ROUNDS
    rivals.draw_messages(
        ax,
        {(m.kind, m.features): _flat(found[m][0])[:, -1] for m in methods},
        {(m.kind, m.features): _floats(m)[0] for m in methods if m.features},
        PUBLISHED if comparable else {},
        "best AUC",
    )


def _draw_target(ax: Any, found: Found, target: int) -> None:
    methods = {m: best for m, (best, _) in found.items() if m.objective == AUTHORS}
    shown = {m.kind: b[:, target] for m, b in methods.items() if m.features in (0, SHOWN)}
    plotting.regret(shown, ax, ylabel="best AUC", band="error")
    ax.set_title(f"target {target}")


EXPERIMENT = Experiment(
    source="FTS, Fig. 2a, 3a and 5",
    about="SVMs of 29 landmine fields by TS, FTS, RGPE and TAF, the authors' objective and a clean one",
    time="30 min",
    run=_run,
)
