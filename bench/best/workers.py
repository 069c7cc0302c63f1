"""Our first choice with several workers, whose queries are chosen before the others' values are known.

    16 random points, the same for all, then 64 evaluations in rounds of 1, 4 or 16
    ratio = geometric mean over problems of regret(several workers) / regret(a lone worker)    `compare`

The ratio has two readings. After the same evaluations it is the price of not waiting for values. After
the same rounds it is the gain in the same time, if evaluations take equally long. `--only` takes the
words of `best`. Settings are chosen on odd numbers, so these are the default here.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bench.best import compare, problems
from bench.best.compare import LogRatio
from bench.best.problems import CubeProblem
from bench.best.search import Runs, of_ours, of_peer, regrets
from bench.common.peers import PEERS
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting

INITIAL, EVALUATIONS = 16, 64
#: Numbers of workers, and so many times a lone worker's regret is too much: after the same evaluations,
#: and after the same rounds.
WORKERS = {4: (1.5, 0.5), 16: (3.0, 0.3)}
LONE, RANDOM = 1, "random"
#: So many times random search's regret is too much.
CHANCE = 0.5
DEFAULT = ("bbob", "odd", "2d", "5d", "i1")
QUICK = ("bbob", "odd", "2d", "i1", "f01", "f03")

#: Log regrets after each evaluation, by problem and by number of workers or "random".
Logs = dict[tuple[str, int | str], Float[np.ndarray, "runs evaluations"]]


def _run(options: Options) -> Result:
    chosen = problems.chosen(options.problems_or(DEFAULT, QUICK))
    runs, evaluations = options.runs_or(10, 3), options.rounds_or(EVALUATIONS, 32)
    searches = (LONE, *WORKERS, RANDOM)
    measures = {
        f"{problem.name}, {search}": functools.partial(
            measured, search, problem, runs, evaluations, options.seed
        )
        for search, problem in itertools.product(searches, chosen)
    }
    found, folder = parts(options, "workers", (runs, evaluations), measures)
    logs: Logs = {}
    for problem, search in itertools.product(chosen, searches):
        runs_of = Runs(*found[f"{problem.name}, {search}"])
        logs[problem.name, search] = compare.log_regrets(regrets(problem, runs_of), problem.scale())
    ratios = compared(chosen, logs, evaluations)
    scales = {problem.name: np.log10(problem.scale()) for problem in chosen}
    curves = {
        named(search): np.mean([logs[p, search] - scale for p, scale in scales.items()], axis=0)
        for search in searches
    }
    return Result(
        settings={"runs": runs, "initial points": INITIAL, "evaluations": evaluations},
        curves=curves,
        checks={f"{claim}, ratio": one.check(most) for claim, (one, most) in ratios.items()},
        unit="log10 regret in interquartile ranges",
        headers=("regret of", "ratio", "95 %", "wins", "ties", "losses"),
        rows=[(claim, *one.cells) for claim, (one, _) in ratios.items()],
        figure=picture({name: metrics.mean_and_error(curve) for name, curve in curves.items()}),
        scratch=folder,
    )


def named(search: int | str) -> str:
    """A search as tables and pictures name it."""
    if search == RANDOM:
        return "random search"
    return "a lone worker" if search == LONE else f"{search} workers"


def measured(
    search: int | str, problem: CubeProblem, runs: int, evaluations: int, seed: int
) -> Runs:
    """Runs of `ours.method` with so many workers, or of random search."""
    if isinstance(search, int):
        return of_ours(problem, runs, evaluations, seed, INITIAL, search)
    return of_peer(PEERS[search].search, problem, runs, evaluations, seed, INITIAL)


def compared(
    chosen: Sequence[CubeProblem], logs: Logs, evaluations: int
) -> dict[str, tuple[LogRatio, float]]:
    """Ratios by claim, and the most that each may be."""

    def ratio(workers: int, rival: int | str, after: int) -> LogRatio:
        mine, theirs = INITIAL + evaluations - 1, INITIAL + after - 1
        pairs = [(logs[p.name, workers][:, mine], logs[p.name, rival][:, theirs]) for p in chosen]
        return compare.ratio(pairs)

    found = {}
    for workers, (price, gain) in WORKERS.items():
        rounds = evaluations // workers
        found |= {
            f"{workers} workers, {evaluations} evaluations: at most {price:g} times a lone worker's": (
                ratio(workers, LONE, evaluations),
                price,
            ),
            f"{workers} workers, {rounds} rounds: at most {gain:g} times a lone worker's": (
                ratio(workers, LONE, rounds),
                gain,
            ),
            f"{workers} workers, {evaluations} evaluations: at most {CHANCE:g} times random search's": (
                ratio(workers, RANDOM, evaluations),
                CHANCE,
            ),
        }
    return found


def picture(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Any:
    """Mean and standard error of each curve, from the last random point on."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(7, 4.5), dpi=plotting.DPI, layout="constrained")
    ax: Any = found.subplots()
    for (name, (mean, error)), color in zip(curves.items(), plotting.PALETTE, strict=False):
        after = np.arange(len(mean) - INITIAL + 1)
        middle, spread = mean[INITIAL - 1 :], error[INITIAL - 1 :]
        ax.plot(after, middle, color=color, label=name)
        ax.fill_between(after, middle - spread, middle + spread, color=color, alpha=0.2, lw=0)
    ax.set(
        xlabel="evaluations after the random points", ylabel="regret, log10 of interquartile ranges"
    )
    ax.legend()
    return found


EXPERIMENT = Experiment(
    source="no paper",
    about="the first choice for a black box, with 4 and 16 workers",
    time="40 min",
    run=_run,
    problems=tuple(itertools.chain(*problems.WORDS)),
)
