"""Workers of a cluster kept busy: EGP-TS asked anew as each ends, or in rounds that wait for the slowest.

    Hartmann-6, where an evaluation takes as long as a log-normal number says, of mean 0.5 s
    utilization = time that the workers evaluate / (workers x time from the first start to the last end)

and likewise to the last start, while there is something to ask for.

Four worker processes of dask, through `concurrent.futures`: `drive_async`, and `drive` with four queries
a round. An evaluation sleeps, and leaves the cores to the other workers; each says which process it ran
in, and when. While the algorithm learns a result and asks, a worker that waits for it is idle; compiling
and starting processes come before the first start.
"""

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float

from bench.claims import BY, Check, below, on_average, within
from bench.common.text import number
from bench.egp.methods import METHODS
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.algos.egp import EGP
from jaxbo.objectives import functions
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.driver import drive
from jaxbo.types import Key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKERS, MEAN, SPREAD = 4, 0.5, 0.5  # SPREAD is the deviation of a duration's logarithm
#: Of the rounds, or as many evaluations, that are drawn at random.
INITIAL = 2
ASYNCHRONOUS, ROUNDS = "asynchronous", "in rounds"
#: How busy all workers together should be.
BUSY = 0.9
HARTMANN = functions.hartmann6()


@dataclasses.dataclass(frozen=True)
class Slow:
    """Takes a while, the same for the same point, and writes down [process, start, end, value]."""

    log: str
    seed: int

    def __call__(self, agent: int, x: np.ndarray) -> float:
        del agent
        start = time.time()
        value = float(HARTMANN(jnp.asarray(x)))
        digits = np.frombuffer(np.asarray(x, np.float32).tobytes(), np.uint32)
        random = np.random.default_rng([self.seed, *digits.tolist()])
        takes = MEAN * random.lognormal(-(SPREAD**2) / 2, SPREAD)
        time.sleep(max(0.0, takes - (time.time() - start)))
        line = json.dumps([os.getpid(), start, time.time(), value]) + "\n"
        with open(self.log, "ab", buffering=0) as file:
            file.write(line.encode())
        return value


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(5, 2), options.rounds_or(15, 4)
    with _workers() as executor:
        _compile(algorithm(rounds), rounds)
        measures = {
            f"{way}, run {run}": lambda way=way, run=run: measured(
                way, rounds, jr.fold_in(jr.key(options.seed), run), executor, run
            )
            for run in range(runs)
            for way in (ASYNCHRONOUS, ROUNDS)
        }
        found, folder = parts(options, "cluster", (runs, rounds), measures)
    bars = {
        way: [found[f"{way}, run {run}"] for run in range(runs)] for way in (ASYNCHRONOUS, ROUNDS)
    }
    busy = {way: np.array([utilization(one) for one in all_]) for way, all_ in bars.items()}
    asking = {way: np.array([while_asking(one) for one in all_]) for way, all_ in bars.items()}
    took = {way: np.array([span(one) for one in all_]) for way, all_ in bars.items()}
    curves = {way: np.stack([regret(one) for one in all_]) for way, all_ in bars.items()}
    typical = int(np.argsort(busy[ROUNDS])[runs // 2])
    return Result(
        settings={
            "runs": runs,
            "workers": WORKERS,
            "evaluations": WORKERS * rounds,
            "of them drawn": WORKERS * min(INITIAL, rounds),
            "seconds an evaluation": f"log-normal, mean {MEAN}, deviation of the logarithm {SPREAD}",
            "utilization": {way: values.tolist() for way, values in busy.items()},
            "until the last start": {way: values.tolist() for way, values in asking.items()},
            "seconds": {way: values.tolist() for way, values in took.items()},
        },
        curves=curves,
        checks=checks(busy, took, curves),
        headers=(
            "way",
            "utilization",
            "s.e.",
            "until the last start",
            "s.e.",
            "seconds",
            "s.e.",
            "regret",
            "s.e.",
        ),
        rows=[_row(way, busy[way], asking[way], took[way], curves[way][:, -1]) for way in bars],
        figure=_figure({way: all_[typical] for way, all_ in bars.items()}),
        scratch=folder,
    )


def algorithm(rounds: int) -> EGP:
    """EGP-TS with the paper's four kernels, and four workers."""
    method: Any = METHODS["EGP-TS"](HARTMANN.dim, WORKERS * rounds)
    return dataclasses.replace(method, workers=WORKERS)


@contextmanager
def _workers() -> Iterator[Executor]:
    """Four processes of dask as an executor, ready to evaluate."""
    from distributed import Client, LocalCluster

    local: dict[str, Any] = {"processes": True, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=WORKERS, **local) as cluster, Client(cluster) as client:
        client.run(_ready)
        yield client.get_executor(pure=False)


def _ready() -> float:
    """The program that a first evaluation would compile."""
    return float(HARTMANN(jnp.zeros(HARTMANN.dim)))


def _compile(algorithm: EGP, rounds: int) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        for way in (ASYNCHRONOUS, ROUNDS):
            _go(way, algorithm, _sum, rounds, jr.key(0), pool)


def _sum(agent: int, x: np.ndarray) -> float:
    return float(np.sum(x))


def _go(
    way: str, algorithm: EGP, objective: Any, rounds: int, key: Key, executor: Executor
) -> None:
    first = min(INITIAL, rounds - 1)
    if way == ROUNDS:
        more: Any = {"initial": first, "executor": executor, "progress": False}
        drive(algorithm, objective, rounds - first, key, **more)
    else:
        more = {"initial": WORKERS * first, "executor": executor}
        drive_async(algorithm, objective, WORKERS * (rounds - first), key, **more)


def measured(
    way: str, rounds: int, key: Key, executor: Executor, seed: int
) -> Float[np.ndarray, "evaluations 4"]:
    """Worker, start, end and value of each evaluation as it ended, in seconds from the first start."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        _go(way, algorithm(rounds), Slow(str(log), seed), rounds, key, executor)
        rows = np.array([json.loads(line) for line in log.read_text().splitlines()])
    rows = rows[np.argsort(rows[:, 2])]
    rows[:, 0] = np.unique(rows[:, 0], return_inverse=True)[1]
    rows[:, 1:3] -= rows[:, 1].min()
    return rows


def span(bars: Float[np.ndarray, "evaluations 4"]) -> float:
    """Seconds from the first start to the last end."""
    return float(bars[:, 2].max() - bars[:, 1].min())


def utilization(bars: Float[np.ndarray, "evaluations 4"]) -> float:
    """The part of their time that the workers evaluate."""
    return float((bars[:, 2] - bars[:, 1]).sum() / (WORKERS * span(bars)))


def while_asking(bars: Float[np.ndarray, "evaluations 4"]) -> float:
    """The same until the last start."""
    end = bars[:, 1].max()
    return float((np.minimum(bars[:, 2], end) - bars[:, 1]).sum() / (WORKERS * end))


def regret(bars: Float[np.ndarray, "evaluations 4"]) -> Float[np.ndarray, " evaluations"]:
    """After each evaluation that has ended."""
    return float(HARTMANN.maximum) - np.maximum.accumulate(bars[:, 3])


def checks(
    busy: dict[str, np.ndarray], took: dict[str, np.ndarray], curves: dict[str, np.ndarray]
) -> dict[str, Check]:
    """Run by run, from the same initial points."""
    workers, least = f"{ASYNCHRONOUS} workers", f"at least {100 * BUSY:.0f} % of the time"
    return {
        f"{workers} are busy {least}, share": on_average(busy[ASYNCHRONOUS], least=BUSY),
        f"{workers} are busier than in rounds, difference of idle shares": below(
            1 - busy[ASYNCHRONOUS], 1 - busy[ROUNDS]
        ),
        f"{workers} end sooner than in rounds, difference in seconds": below(
            took[ASYNCHRONOUS], took[ROUNDS]
        ),
        f"{workers} have after as many evaluations no more regret than in rounds {BY}, ratio": within(
            curves[ASYNCHRONOUS][:, -1], curves[ROUNDS][:, -1]
        ),
    }


def _row(way: str, *measures: np.ndarray) -> tuple[str, ...]:
    return (way, *(number(float(v)) for m in measures for v in metrics.mean_and_error(m)))


def _figure(bars: dict[str, np.ndarray]) -> "Figure":
    """Who evaluated when."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=plotting.DPI, layout="constrained")
    panels: Any = figure.subplots(len(bars), 1, sharex=True)
    for ax, color, (way, rows) in zip(panels, plotting.PALETTE, bars.items(), strict=False):
        rows = rows[np.argsort(rows[:, 1])]
        ax.barh(
            rows[:, 0] + 1,
            rows[:, 2] - rows[:, 1],
            0.72,
            rows[:, 1],
            color=color,
            alpha=0.85,
            edgecolor="white",
            linewidth=1.2,
        )
        ax.axvline(span(rows), color=plotting.SOFT, lw=0.8, ls=":")
        words = f"{way}: {100 * utilization(rows):.0f} % busy, {span(rows):.1f} s"
        ax.set_title(words, loc="left", color=color, fontsize=11, fontweight="bold")
        ax.set_yticks(range(1, WORKERS + 1))
        ax.set_ylabel("worker", color=plotting.INK, fontsize=11)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.spines["bottom"].set_color(plotting.SOFT)
        ax.tick_params(colors=plotting.SOFT, labelcolor=plotting.INK, labelsize=10)
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
    panels[-1].set_xlabel("seconds", color=plotting.INK, fontsize=11)
    panels[-1].set_xlim(0, 1.01 * max(span(rows) for rows in bars.values()))
    return figure


EXPERIMENT = Experiment(
    source="no paper; EGP-TS's Algorithm 2 on processes",
    about="how busy the workers of a cluster are, asked anew as each ends or in rounds",
    time="4 min",
    run=_run,
)
