"""Our first choice beside methods of other libraries: BBOB, classical functions, and many coordinates.

    10 random points, the same for all methods, then 20, 50, 100 and 200 evaluations; of slow peers 50
    ratio = geometric mean over problems of regret(ours) / regret(peer)        `compare`

A run goes on to the largest budget and is read at each. Every method is told the same initial values, and
the regret is without noise, of the best point observed. `--only` takes words (`problems.WORDS`): `bbob`,
`noisy`, `classical`, `high`, `odd`, `even`, `2d`, `i1`, `f03`, `c02`, `h01`. Words of the same kind add
up, words of several kinds restrict each other. The name of a method leaves out all peers that are not
named. `DECHBO` is a method of ours, which runs only if it is named.

Settings are chosen on odd numbers, with `--only odd`. Even numbers are for the final table alone. A part
that takes hours: `--only odd --only bbob --only 2d --only 5d --only i1 --runs 5 --rounds 50`.
"""

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.best import compare, ours, problems
from bench.best.compare import LogRatio, Median
from bench.best.problems import INITIAL, CubeProblem
from bench.best.search import Runs, of_ours, of_peer, regrets
from bench.claims import Check
from bench.common.peers import PEERS
from bench.common.text import number
from bench.runner import Experiment, Options, Result, parts

BUDGETS = (20, 50, 100, 200)
QUICK = ("odd", "2d", "i1", "f01", "f03", "random")
#: The most runs of a slow peer, and the most evaluations of each.
MOST_SLOW, SLOW_ROUNDS = 3, 50

#: Log regrets of a problem's methods at each budget.
Logs = dict[tuple[str, str, int], np.ndarray]


def _run(options: Options) -> Result:
    words = options.problems_or((), quick=QUICK)
    runs, rounds = options.runs_or(15, 4), options.rounds_or(max(BUDGETS), min(BUDGETS))
    budgets = (*(b for b in BUDGETS if b < rounds), rounds)
    chosen, methods = problems.chosen(words), _methods(words)
    measures = {
        f"{problem.name}, {method}": functools.partial(
            measured, method, problem, runs, rounds, options.seed
        )
        for problem, method in itertools.product(chosen, methods)
    }
    found, folder = parts(options, "best", (runs, rounds), measures)
    by_name = {name: Runs(*arrays) for name, arrays in found.items()}
    logs = log_regrets(chosen, methods, budgets, by_name)
    ratios = compared(chosen, methods, logs)
    return Result(
        settings=_settings(runs, rounds, methods),
        finals={f"{n}, {m}, {b}": one for (n, m, b), one in logs.items()},
        checks=checks(ratios, words),
        unit="log10 regret",
        headers=HEADERS,
        rows=[*_rows(ratios), *_times(by_name, methods)],
        figure=_figure(ratios) if ratios else None,
        details={"median regret": medians(logs)},
        scratch=folder,
    )


def measured(method: str, problem: CubeProblem, runs: int, rounds: int, seed: int) -> Runs:
    """Runs of a method on a problem; fewer of a slow peer."""
    if method == ours.NAME or method in ours.BESIDE:
        return of_ours(problem, runs, rounds, seed, name=method)
    peer = PEERS[method]
    if peer.slow:
        runs, rounds = slow_runs(runs), min(rounds, SLOW_ROUNDS)
    return of_peer(peer.search, problem, runs, rounds, seed)


def slow_runs(runs: int) -> int:
    """The runs of a slow peer: half as many as other methods have, three at most and two at least."""
    return max(2, min((runs + 1) // 2, MOST_SLOW))


def _methods(words: tuple[str, ...]) -> tuple[str, ...]:
    """Our method, and named others that are installed. A line names each peer that is left out."""
    beside = [name for name in ours.BESIDE if name in words]
    asked = [name for name in PEERS if name in words] or ([] if beside else list(PEERS))
    for name in asked:
        if missing := PEERS[name].missing():
            print(f"{name} is left out: no {' and no '.join(missing)} here.", file=sys.stderr)
    return (ours.NAME, *(name for name in asked if not PEERS[name].missing()), *beside)


def _settings(runs: int, rounds: int, methods: Sequence[str]) -> dict[str, Any]:
    return {
        "runs": runs,
        "runs of slow peers": slow_runs(runs),
        "initial points": INITIAL,
        "evaluations": rounds,
        "evaluations of slow peers": min(rounds, SLOW_ROUNDS),
        "noise, interquartile ranges": problems.NOISE,
        "floor of regrets, interquartile ranges": compare.FLOOR,
        "peers": {name: PEERS[name].settings for name in methods if name in PEERS},
        **({"moves at a fit": ours.MOVES} if ours.BESIDE.keys() & set(methods) else {}),
    }


# ---------------------------------------------------------------- what was found


def log_regrets(
    chosen: Sequence[CubeProblem],
    methods: Sequence[str],
    budgets: Sequence[int],
    found: dict[str, Runs],
) -> Logs:
    """By problem, method and budget, as far as a method goes."""
    logs: Logs = {}
    for problem in chosen:
        scale = problem.scale()
        for method in methods:
            curves = regrets(problem, found[f"{problem.name}, {method}"])
            for budget in budgets:
                if (last := INITIAL + budget) <= curves.shape[1]:
                    logs[problem.name, method, budget] = compare.log_regrets(
                        curves[:, last - 1], scale
                    )
    return logs


def medians(logs: Logs) -> dict[str, dict[str, Median]]:
    """The median regret with its interval, by problem and budget, then by method."""
    found: dict[str, dict[str, Median]] = {}
    for (name, method, budget), values in logs.items():
        place = found.setdefault(f"{name}, {budget}", {})
        place[method] = Median(*(10**value for value in compare.median(values)))
    return found


def groups(chosen: Sequence[CubeProblem]) -> dict[str, list[CubeProblem]]:
    """Problems by kind, then BBOB's by its own groups and by dimension."""
    found: dict[str, list[CubeProblem]] = {}
    for problem in chosen:
        names = [problem.kind]
        if problem.kind in (problems.PLAIN, problems.NOISY):
            names += [f"{problem.kind}, {problem.group}", f"{problem.kind}, {problem.dim}-D"]
        for name in names:
            found.setdefault(name, []).append(problem)
    return dict(sorted(found.items(), key=lambda item: "," in item[0]))


Ratios = dict[tuple[str, int, str], LogRatio]


def compared(chosen: Sequence[CubeProblem], methods: Sequence[str], logs: Logs) -> Ratios:
    """By group, budget and peer."""
    found = {(method, budget) for _, method, budget in logs}
    budgets = sorted({budget for _, budget in found})
    return {
        (group, budget, peer): compare.ratio(
            [(logs[p.name, ours.NAME, budget], logs[p.name, peer, budget]) for p in members]
        )
        for group, members in groups(chosen).items()
        for budget in budgets
        for peer in methods
        if peer != ours.NAME and (peer, budget) in found
    }


def checks(ratios: Ratios, words: tuple[str, ...]) -> dict[str, Check]:
    """Claims about a peer's largest budget: less regret in the mean over a kind's problems.

    They name the parity that `words` have, and the budget, so that each result has claims of its own.
    """
    parity = "".join(f"{word} " for word in problems.PARITIES if word in words)
    last = {peer: max(b for _, b, p in ratios if p == peer) for _, _, peer in ratios}
    return {
        f"{parity}{group}, {budget} evaluations: less regret than {peer}, ratio": one.check()
        for (group, budget, peer), one in ratios.items()
        if budget == last[peer] and "," not in group
    }


# ---------------------------------------------------------------- table and picture

HEADERS = ("problems", "evaluations", "peer", "regret, ratio", "95 %", "wins", "ties", "losses")


def _rows(ratios: Ratios) -> list[tuple[str, ...]]:
    return [(group, str(budget), peer, *one.cells) for (group, budget, peer), one in ratios.items()]


def _times(found: dict[str, Runs], methods: Sequence[str]) -> list[tuple[str, ...]]:
    """Processor seconds: a run's in the mean over problems, and the most that a first call took."""
    rows = []
    for method in methods:
        of = [runs for name, runs in found.items() if name.endswith(f", {method}")]
        run, first = np.mean([r.seconds for r in of]), np.max([r.first for r in of])
        times = f"{number(float(run))} s a run", f"{number(float(first))} s the first call"
        rows.append(("processor time", "", method, *times, "", "", ""))
    return rows


#: Intervals of peers stand beside each other, each at so many times the evaluations of the one before.
BESIDE = 1.03


def _figure(ratios: Ratios) -> Any:
    """A panel for each kind: the ratio to each peer by budget."""
    from matplotlib.figure import Figure

    from jaxbo import plotting

    kinds = list(dict.fromkeys(group for group, _, _ in ratios if "," not in group))
    peers = list(dict.fromkeys(peer for _, _, peer in ratios))
    budgets = list(dict.fromkeys(budget for _, budget, _ in ratios))
    picture = Figure(figsize=(6.5 * len(kinds), 5), dpi=plotting.DPI, layout="constrained")
    axes: Any = picture.subplots(1, len(kinds), squeeze=False, sharey=True)
    for ax, kind in zip(axes.flat, kinds, strict=True):
        for place, (peer, color) in enumerate(zip(peers, plotting.PALETTE, strict=False)):
            found = {b: one for (g, b, p), one in ratios.items() if (g, p) == (kind, peer)}
            beside = np.array(list(found)) * BESIDE ** (place - (len(peers) - 1) / 2)
            low, high = np.array([one.interval for one in found.values()]).T
            middle = np.array([one.figure for one in found.values()])
            ends = [middle - low, high - middle]
            ax.errorbar(beside, middle, ends, marker="o", capsize=3, color=color, label=peer)
        ax.axhline(1, color=plotting.INK, linewidth=1)
        ax.set(xscale="log", yscale="log", title=kind, xlabel="evaluations")
        ax.set_xticks(budgets, list(map(str, budgets)), minor=False)
        ax.tick_params(axis="x", which="minor", labelbottom=False)
    axes.flat[0].set_ylabel(f"regret of {ours.NAME} / regret of the peer")
    axes.flat[0].legend()
    return picture


EXPERIMENT = Experiment(
    source="best",
    about="the first choice for a black box, beside other libraries' methods",
    time="weeks",
    run=_run,
    problems=(*itertools.chain(*problems.WORDS), *PEERS, *ours.BESIDE),
)
