"""Owners of handwriting samples tune an SVM, each on its own data, which nobody else sees.

    x = (C, gamma)                                      both on a log scale
    value(owner, x) = mean over random halves of the owner's samples of
                      the accuracy on one half of an SVM trained on the other

Four ways, from the same initial points. Two are federated, with a message every round: `LearnedPrior`,
whose owners learn a prior together, and `FTS`, whose owners exchange sampled functions. In two each owner
is alone: Thompson sampling (`TS`) and expected improvement (EI).

The samples are scikit-learn's digits. No sample has two owners; an owner's number of samples and its
shares of the ten digits are drawn at random, so the owners' objectives differ. All have the same
surrogate, and their own defaults else. This module needs the extra `demo`.
"""

import functools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import Float
from sklearn.datasets import load_digits
from sklearn.svm import SVC
from tqdm import tqdm

import jaxbo
from jaxbo import metrics, plotting
from jaxbo._check import require
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.ts import TS
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.driver import drive

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:  # annotations are checked at run time; importing matplotlib takes its time in every worker
    Figure = Any

#: Six decades of C and eight of gamma: nobody needs to know beforehand where to look.
SPACE = Space(C=Real(1e-3, 1e3, log=True), gamma=Real(1e-6, 1e2, log=True))
#: Evaluations that every method begins with, at the same points.
INITIAL = 3
#: Each takes seconds to start, and a round of evaluations takes a fraction of one.
MOST_WORKERS = 8
#: The columns of the table.
MILESTONES = (5, 10, 20, 40)

# ---------------------------------------------------------------- the owners and their data

#: Concentration of the owners' sizes, and of each one's shares of the digits: sizes from 36 to 148
#: with twenty owners, and an owner's commonest digit about ten times as frequent as its rarest.
EVENNESS, DIVERSITY = 8.0, 1.0
#: Random halves that an accuracy is averaged over: on one, of 18 to 74 samples, it has coarse steps.
HALVES = 3
#: With more owners some have too few samples to train on one half and to validate on the other.
MOST_OWNERS = 40


class Writer(NamedTuple):
    """The data that an owner keeps to itself: images as rows of 64 pixels in [0, 1], and their digits."""

    images: Float[np.ndarray, "samples 64"]
    digits: np.ndarray


def dealt(
    labels: np.ndarray, shares: Float[np.ndarray, "owners classes"], rng: np.random.Generator
) -> np.ndarray:
    """The owner of each row: rows of a class are dealt out at random, by the owners' shares of it."""
    owner = np.empty(len(labels), int)
    for column, label in enumerate(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = len(rows) * np.cumsum(shares[:, column]) / shares[:, column].sum()
        owner[rows] = np.searchsorted(np.round(ends[:-1]), np.arange(len(rows)), side="right")
    return owner


@functools.cache
def owners(count: int) -> tuple[Writer, ...]:
    """The digits shared out unevenly, always in the same way; every sample has a single owner."""
    images, digits = map(np.asarray, load_digits(return_X_y=True))
    rng = np.random.default_rng(0)
    size = rng.dirichlet(np.full(count, EVENNESS))
    owner = dealt(digits, size[:, None] * rng.dirichlet(np.full(10, DIVERSITY), size=count), rng)
    return tuple(Writer(images[owner == n] / 16, digits[owner == n]) for n in range(count))


def accuracy(count: int, owner: int, parameters: Mapping[str, Any]) -> float:
    """Validation accuracy of the SVM of an owner, among `count`, on its own samples."""
    return validated(*owners(count)[owner], owner, parameters)


def validated(X: np.ndarray, y: np.ndarray, seed: int, parameters: Mapping[str, Any]) -> float:
    """The share of correct answers on a random half by an SVM trained on the other; mean of `HALVES`."""
    rng = np.random.default_rng(seed)
    right = []
    for _ in range(HALVES):
        train, validate = np.array_split(rng.permutation(len(y)), 2)
        machine = SVC(**parameters).fit(X[train], y[train])
        right.append(machine.predict(X[validate]) == y[validate])
    return float(np.mean(right))


# ---------------------------------------------------------------- the methods


def methods(count: int, rounds: int) -> dict[str, AbstractFederated]:
    """The methods that are compared in so many rounds, by name."""
    # The objective has no noise; the small one stands for steps of the accuracy.
    surrogate = Fixed(kernel=SquaredExponential(0.2), noise=1e-3)
    learned = functools.partial(LearnedPrior, SPACE, count, INITIAL + rounds, features=surrogate)
    return {
        "learned prior (federated)": learned(),
        "FTS (federated)": FTS(SPACE, count, features=surrogate),
        # Owners who trust nothing that is learned search by their own observations.
        "EI (alone)": learned(rank=0, trust=0.0),
        "TS (alone)": TS(SPACE, count, surrogate=surrogate),
    }


def floats_sent(algorithm: AbstractAlgorithm, rounds: int) -> int:
    """How many numbers an agent sends in `rounds` rounds."""
    if not isinstance(algorithm, AbstractFederated):
        return 0
    if isinstance(algorithm, LearnedPrior) and float(algorithm.trust) == 0:
        return 0  # nobody would listen
    return rounds * metrics.floats(metrics.message_of(algorithm))


class Comparison(NamedTuple):
    """A method: accuracies, seconds of all seeds together, floats that an owner sent."""

    values: Float[np.ndarray, "seeds evaluations owners"]
    seconds: float
    floats: int

    @property
    def curves(self) -> Float[np.ndarray, "seeds evaluations"]:
        """The best accuracy so far, mean over owners."""
        return metrics.best_so_far(self.values).mean(axis=2)


def compare(
    seeds: int, rounds: int, count: int, executor: Executor, report: Callable[[str], None]
) -> dict[str, Comparison]:
    """All methods on all seeds; each seed has initial points of its own, shared by the methods."""
    objective = functools.partial(accuracy, count)
    outcomes = {}
    for name, algorithm in methods(count, rounds).items():
        start = time.perf_counter()
        values = []
        for seed in range(seeds):
            report(f"{name}, seed {seed + 1} of {seeds}")
            key = jr.key(seed)
            options = {"initial": INITIAL, "executor": executor, "progress": False}
            _, trace = drive(algorithm, objective, rounds, key, **options)
            values.append(np.asarray(trace.values, np.float64))
        seconds = time.perf_counter() - start
        outcomes[name] = Comparison(np.stack(values), seconds, floats_sent(algorithm, rounds))
    return outcomes


# ---------------------------------------------------------------- what a person sees


def table(outcomes: Mapping[str, Comparison]) -> str:
    """Best accuracy after some evaluations, floats sent and seconds, a line for each method."""
    total = next(iter(outcomes.values())).values.shape[1]
    columns = [n for n in MILESTONES if n < total] + [total]
    head = "".join(f"{n:>16}" for n in columns)
    width = max(len(name) for name in outcomes)
    lines = [
        f"{'':{width}}  best validation accuracy (%) after ... evaluations",
        f"{'':{width}}{head}{'floats sent':>16}{'seconds':>9}",
    ]
    for name, outcome in outcomes.items():
        mean, error = _mean_and_error(100 * outcome.curves)
        spread = ["" if np.isnan(e) else f" ± {e:.2f}" for e in error]
        cells = "".join(f"{f'{mean[n - 1]:.2f}{spread[n - 1]}':>16}" for n in columns)
        sent = f"{outcome.floats:>14,}{outcome.seconds:>9.1f}"
        lines.append(f"{name:{width}}{cells}{sent}")
    return "\n".join(lines)


def _mean_and_error(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds, and its error, which is NaN for a single seed."""
    if len(curves) == 1:
        return curves[0], np.full_like(curves[0], np.nan)
    return metrics.mean_and_error(curves)


def picture(outcomes: Mapping[str, Comparison]) -> Figure:
    """Left the accuracy as evaluations go on, right its distance below the owner's best known."""
    from matplotlib.figure import Figure

    seeds, total, count = next(iter(outcomes.values())).values.shape
    figure = Figure(figsize=(12, 4.8), dpi=plotting.DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    options: Any = {"xlabel": "evaluations of each owner", "band": "error"}

    curves = {name: 100 * outcome.curves for name, outcome in outcomes.items()}
    plotting.regret(curves, left, ylabel="best validation accuracy (%)", **options)
    ticks = [INITIAL, *(n for n in MILESTONES if INITIAL < n < total), total]
    left.set_xscale("log")
    left.set_xticks(ticks, [str(n) for n in ticks])
    left.minorticks_off()
    # Before the initial points end all methods are the same.
    left.set_xlim(INITIAL, total)
    left.set_ylim(bottom=min(curve.mean(0)[INITIAL - 1] for curve in curves.values()) - 2)

    gaps = {name: 100 * gap.mean(axis=2) for name, gap in _gaps(outcomes).items()}
    plotting.regret(gaps, right, ylabel="points below the owner's best known", log=True, **options)
    right.yaxis.set_major_formatter("{x:g}")
    runs = f"mean and standard error of {seeds} seeds" if seeds > 1 else "one run"
    figure.suptitle(
        f"{count} owners tune an SVM, each on its own digits "
        f"({runs}, the same {INITIAL} initial points)",
        color=plotting.INK,
        fontsize=12,
    )
    return figure


def _gaps(outcomes: Mapping[str, Comparison]) -> dict[str, np.ndarray]:
    """How far each owner's best so far is below the best that anything found for that owner."""
    best = {name: metrics.best_so_far(outcome.values) for name, outcome in outcomes.items()}
    known = np.max([values[:, -1].max(axis=0) for values in best.values()], axis=0)
    return {name: known - values for name, values in best.items()}


def record(outcomes: Mapping[str, Comparison]) -> dict[str, Any]:
    """The figures behind the table and the picture, ready for JSON."""
    seeds, total, count = next(iter(outcomes.values())).values.shape
    settings = {"owners": count, "seeds": seeds, "evaluations": total, "initial": INITIAL}
    content: dict[str, Any] = {"version": jaxbo.__version__, "settings": settings, "methods": {}}
    for name, outcome in outcomes.items():
        mean, error = metrics.mean_and_error(outcome.curves)
        content["methods"][name] = {
            "accuracy": {"mean": mean.tolist(), "se": error.tolist()},
            "floats": outcome.floats,
            "seconds": outcome.seconds,
        }
    return content


class _Watched(Executor):
    """An executor with a progress bar that advances as evaluations end."""

    def __init__(self, pool: Executor, bar: tqdm):
        self.pool, self.bar = pool, bar

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future:
        future = self.pool.submit(fn, *args, **options)
        future.add_done_callback(lambda _: self.bar.update())
        return future


def _ready(count: int) -> None:
    """A worker's start. Control-C is for the main process, which ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owners(count)


def check(seeds: int, rounds: int, count: int) -> None:
    """`ValueError` unless `run` can do the job."""
    require(seeds >= 2, f"a standard error needs at least 2 seeds, got {seeds}.")
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}.")
    require(2 <= count <= MOST_OWNERS, f"owners must be 2 to {MOST_OWNERS}, got {count}.")


def run(seeds: int, rounds: int, count: int, out: Path) -> None:
    """The whole demo: compares, prints the table, writes `demo.png` and `demo.json` to `out`.

    `count` owners make `rounds` evaluations each after their initial ones, all of it `seeds` times.
    """
    check(seeds, rounds, count)
    start = time.perf_counter()
    sizes = [len(owner.digits) for owner in owners(count)]
    print(
        f"{count} owners of {min(sizes)} to {max(sizes)} handwritten digits tune an SVM, "
        f"{INITIAL + rounds} evaluations each, {seeds} times.",
        flush=True,
    )
    outcomes = _compare_in_processes(seeds, rounds, count)
    print(f"\n{table(outcomes)}\n")
    path = plotting.save(picture(outcomes), out / "demo.png")
    _write(out / "demo.json", json.dumps(record(outcomes), indent=1))
    print(f"{path} (figures in {out / 'demo.json'}), {time.perf_counter() - start:.0f} s in all")


def _compare_in_processes(seeds: int, rounds: int, count: int) -> dict[str, Comparison]:
    # Processes, because most of a small fit is Python; started anew, because JAX has threads and
    # a copy of a process with threads may hang.
    processes: Any = {"mp_context": multiprocessing.get_context("spawn"), "initializer": _ready}
    workers = min(os.cpu_count() or 1, count, MOST_WORKERS)
    pool = ProcessPoolExecutor(workers, initargs=(count,), **processes)
    total = len(methods(count, rounds)) * seeds * (INITIAL + rounds) * count
    bar = tqdm(total=total, unit="fit", unit_scale=True, disable=None)
    try:
        with bar:
            report = _print if bar.disable else bar.set_description
            return compare(seeds, rounds, count, _Watched(pool, bar), report)
    finally:
        pool.shutdown(cancel_futures=True)


def _print(line: str) -> None:
    """Progress where there is no terminal to draw a bar on."""
    print(line, flush=True)


def _write(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text)
    os.replace(part, path)
