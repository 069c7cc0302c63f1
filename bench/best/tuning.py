"""Our first choice beside others, where parameters are choices, integers and numbers.

The tasks are those of `bench.tasks.learners`.

    10 random points, the same for all methods, then 20 and 40 evaluations
    regret = (best - best so far) / (best - median at random)
    ratio = geometric mean over tasks of regret(ours) / regret(peer)        `compare`

The best of a task is the largest value that any run of any method found. The median is that of the random
points of all runs. A regret counts at least a hundredth. `--only` takes names of tasks.

Nothing was chosen on these tasks.
"""

import functools
import itertools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import Float

from bench.best import compare, ours
from bench.best.compare import LogRatio
from bench.claims import Check
from bench.common.peers import distributions, study, tpe_sampler
from bench.common.text import number
from bench.runner import Experiment, Options, Result, parts
from bench.tasks import learners
from jaxbo.domains.space import Space
from jaxbo.runs.driver import drive

INITIAL, BUDGETS = 10, (20, 40)
#: A regret counts at least as much.
FLOOR = 0.01
#: So many times a peer's regret is too much.
WORSE = 1.5
RANDOM, TPE = "random", "TPE"
QUICK = ("neighbors on cancer",)

Value = Callable[[Mapping[str, Any]], float]
#: Evaluates the initial points in order, then so many more.
Search = Callable[[Value, Space, Sequence[dict[str, Any]], int, int], None]


class TunedRuns(NamedTuple):
    """The values of each run in their order, and the processor seconds of a run without evaluations."""

    values: Float[np.ndarray, "runs evaluations"]
    seconds: np.ndarray


# ---------------------------------------------------------------- methods


def by_ours(
    evaluate: Value, space: Space, initial: Sequence[dict[str, Any]], rounds: int, seed: int
) -> None:
    """`ours.method`, which is told the initial points."""
    known = list(initial), [evaluate(values) for values in initial]
    method = ours.method(space, len(initial) + rounds)
    drive(method, evaluate, rounds, jr.key(seed), known=known, progress=False)


def by_tpe(
    evaluate: Value, space: Space, initial: Sequence[dict[str, Any]], rounds: int, seed: int
) -> None:
    """Tree-structured Parzen estimators of all parameters together, each of its own kind."""
    study(tpe_sampler(len(initial), seed), distributions(space), evaluate, initial, rounds)


def at_random(
    evaluate: Value, space: Space, initial: Sequence[dict[str, Any]], rounds: int, seed: int
) -> None:
    """Random points."""
    for values in (*initial, *drawn(space, rounds, seed)):
        evaluate(values)


METHODS: dict[str, Search] = {ours.NAME: by_ours, RANDOM: at_random, TPE: by_tpe}


def drawn(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    """Random points by name."""
    return [space.decode(x) for x in np.asarray(space.sample(jr.key(seed), count))]


# ---------------------------------------------------------------- runs


class TimedValue:
    """The objective of a run, which keeps its values and the processor seconds that they took."""

    def __init__(self, evaluate: Value):
        self.evaluate, self.values, self.seconds = evaluate, [], 0.0

    def __call__(self, values: Mapping[str, Any]) -> float:
        before = time.process_time()
        self.values.append(self.evaluate(values))
        self.seconds += time.process_time() - before
        return self.values[-1]


def measured(method: str, task: str, runs: int, rounds: int, seed: int) -> TunedRuns:
    """Runs of a method on a task."""
    space, found, seconds = learners.space(task), [], []
    for one in range(runs):
        # No two runs share a point, and no run goes on with the draws that it began with.
        own = zlib.crc32(f"{task} {seed} {one}".encode()) // 2
        begin, evaluate = drawn(space, INITIAL, own), TimedValue(learners.objective(task))
        before = time.process_time()
        METHODS[method](evaluate, space, begin, rounds, own + 1)
        seconds.append(time.process_time() - before - evaluate.seconds)
        found.append(evaluate.values)
    return TunedRuns(np.array(found), np.array(np.mean(seconds)))


def _run(options: Options) -> Result:
    tasks = options.problems_or(learners.TASKS, QUICK)
    runs, rounds = options.runs_or(6, 2), options.rounds_or(max(BUDGETS), 3)
    budgets = tuple(sorted({min(budget, rounds) for budget in BUDGETS}))
    measures = {
        f"{task}, {method}": functools.partial(measured, method, task, runs, rounds, options.seed)
        for task, method in itertools.product(tasks, METHODS)
    }
    found, folder = parts(options, "tuning", (runs, rounds), measures)
    by_name = {name: TunedRuns(*arrays) for name, arrays in found.items()}
    curves = {task: regrets({m: by_name[f"{task}, {m}"] for m in METHODS}) for task in tasks}
    ratios = compared(curves, budgets)
    return Result(
        settings={"runs": runs, "initial": INITIAL, "rounds": rounds, "floor": FLOOR},
        curves={
            f"{task}, {method}": curve
            for task, of in curves.items()
            for method, curve in of.items()
        },
        checks=checks(ratios),
        unit="regret, share of that of the median random point",
        headers=HEADERS,
        rows=rows(ratios, by_name),
        figure=picture(curves),
        details={"seconds of a run": {name: float(one.seconds) for name, one in by_name.items()}},
        scratch=folder,
    )


def regrets(found: Mapping[str, TunedRuns]) -> dict[str, Float[np.ndarray, "runs evaluations"]]:
    """The regret of a task's methods after each evaluation."""
    values = np.stack([one.values for one in found.values()])
    if not (values[:, :, :INITIAL] == values[0, :, :INITIAL]).all():
        raise RuntimeError("a method began elsewhere than all do.")
    best, median = values.max(), np.median(values[0, :, :INITIAL])
    so_far = np.maximum.accumulate(values, axis=2)
    return dict(zip(found, (best - so_far) / (best - median), strict=True))


Ratios = dict[tuple[str, int], LogRatio]


def compared(curves: Mapping[str, Mapping[str, np.ndarray]], budgets: Sequence[int]) -> Ratios:
    """By peer and budget."""

    def log(of: Mapping[str, np.ndarray], method: str, budget: int) -> np.ndarray:
        return np.log10(np.maximum(of[method][:, INITIAL + budget - 1], FLOOR))

    return {
        (peer, budget): compare.ratio(
            [(log(of, ours.NAME, budget), log(of, peer, budget)) for of in curves.values()]
        )
        for peer in METHODS
        if peer != ours.NAME
        for budget in budgets
    }


def checks(ratios: Ratios) -> dict[str, Check]:
    """Less regret than each peer, in the mean over tasks; or than TPE at least not `WORSE` times."""
    margins = {TPE: (1.0, WORSE)}
    return {
        f"regret after {budget} evaluations at most {most:g} times that of {peer}": one.check(most)
        for (peer, budget), one in ratios.items()
        for most in margins.get(peer, (1.0,))
    }


HEADERS = ("peer", "evaluations", "regret, ratio", "95 %", "wins", "ties", "losses")


def rows(ratios: Ratios, found: Mapping[str, TunedRuns]) -> list[tuple[str, ...]]:
    """Ratios, and processor seconds of a run without its evaluations."""
    table = [(peer, str(budget), *one.cells) for (peer, budget), one in ratios.items()]
    for method in METHODS:
        seconds = [one.seconds for name, one in found.items() if name.endswith(f", {method}")]
        table.append((method, "", f"{number(float(np.mean(seconds)))} s a run", "", "", "", ""))
    return table


def picture(curves: Mapping[str, Mapping[str, np.ndarray]]) -> Any:
    """A panel for each task."""
    from matplotlib.figure import Figure

    from jaxbo import plotting

    across = min(len(curves), len(learners.DATA))
    down = -(-len(curves) // across)
    found = Figure(figsize=(4.5 * across, 3 * down), dpi=plotting.DPI, layout="constrained")
    axes: Any = found.subplots(down, across, squeeze=False, sharex=True)
    for ax, (task, of) in zip(axes.flat, curves.items(), strict=False):
        for (method, curve), color in zip(of.items(), plotting.PALETTE, strict=False):
            shown = np.maximum(curve[:, INITIAL - 1 :], FLOOR)
            middle = 10 ** np.mean(np.log10(shown), axis=0)
            ax.plot(np.arange(len(middle)), middle, color=color, label=method)
        ax.set(yscale="log", title=task)
    for ax in axes[-1]:
        ax.set_xlabel("evaluations after the random points")
    axes.flat[0].set_ylabel("regret, geometric mean")
    axes.flat[0].legend()
    return found


EXPERIMENT = Experiment(
    source="no paper; beside Optuna",
    about="the first choice for a black box, on parameters of mixed kinds",
    time="90 min",
    run=_run,
    problems=learners.TASKS,
)
