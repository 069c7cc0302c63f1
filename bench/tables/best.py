"""Tables of `best`, `tuning` and `workers`."""

import re

import numpy as np

from bench.best import compare
from bench.tables.cells import Results, Rows, after, digits

PEERS = ("random", "CMA-ES", "TPE")
#: BBOB's functions of many optima.
MULTIMODAL = {f"f{number:02d}" for number in (3, 4, *range(15, 25))}
#: The linear function, whose best point is a corner.
LINEAR = "f05"
#: Dimensions in words, as they end the name of a problem.
DIMS = {"two": "2d", "five": "5d", "ten": "10d"}


def best(results: Results) -> Rows:
    """Ratios of regrets on odd numbers, over problems, with Student's interval; problems won and lost."""
    return _ratios(results, "odd", ("two", "five"))


def best_even(results: Results) -> Rows:
    """The same on even numbers, on which nothing was chosen."""
    return _ratios(results, "even", ("two", "five", "ten"))


def _ratios(results: Results, parity: str, dims: tuple[str, ...]) -> Rows:
    found = [name for name in results if name.startswith(f"best-bbob-{parity}-")]
    if not found:
        return []
    finals = {key: one["final"] for key, one in results[found[0]]["methods"].items()}
    problems = sorted({key.rsplit(", ", 2)[0] for key in finals})
    without = [problem for problem in problems if LINEAR not in problem]
    but = " but f5" if len(without) < len(problems) else ""
    many = [problem for problem in problems if problem.split()[1] in MULTIMODAL]
    groups = {"all": problems}
    for dim in dims:
        groups[f"all{but}, {dim} dimensions"] = [p for p in without if p.endswith(f" {DIMS[dim]}")]
    for dim in dims[1:]:
        groups[f"multimodal, {dim} dimensions"] = [p for p in many if p.endswith(f" {DIMS[dim]}")]

    def cell(group: list[str], peer: str, budget: int) -> str:
        both = [[finals[f"{p}, {one}, {budget}"] for one in ("jaxbo", peer)] for p in group]
        means = np.array([ours["mean"] - theirs["mean"] for ours, theirs in both])
        errors = np.array([np.hypot(ours["se"], theirs["se"]) for ours, theirs in both])
        one = compare.over(means, errors)
        ratio = "{} ({} to {})".format(*map(digits, (one.figure, *one.interval)))
        return f"{ratio}; {one.wins}, {one.losses}"

    rows = [
        [f"{label} ({len(group)})", str(budget), *(cell(group, peer, budget) for peer in PEERS)]
        for label, group in groups.items()
        for budget in (20, 50)
    ]
    return [["problems", "evaluations", "random search", "CMA-ES (`cma`)", "TPE (Optuna)"], *rows]


def tuning(results: Results) -> Rows:
    """Mean regrets after 20 and 40 evaluations, by task."""
    found = results["tuning"]
    first = found["settings"]["initial"]
    methods = {"`BO`": "jaxbo", "TPE (Optuna)": "TPE", "random search": "random"}
    tasks = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in found["methods"]))
    times = first + 20, first + 40
    rows = [
        [task, *(after(found, f"{task}, {m}", times) for m in methods.values())] for task in tasks
    ]
    return [["", *methods], *rows]


def workers(results: Results) -> Rows:
    """Ratios of regrets by number of workers, with Student's interval over problems."""
    if "workers" not in results:
        return []
    pattern = re.compile(r"(\d+) workers, \d+ (evaluations|rounds): .+ (lone|random)")
    places = {("evaluations", "lone"): 0, ("rounds", "lone"): 1, ("evaluations", "random"): 2}
    cells: dict[str, list[str]] = {}
    for claim, check in results["workers"]["checks"].items():
        match = pattern.match(claim)
        assert match is not None
        ends = " to ".join(map(digits, check["interval"]))
        row = cells.setdefault(match[1], [""] * len(places))
        row[places[match[2], match[3]]] = f"{digits(check['figure'])} ({ends})"
    headers = "workers", "after the same evaluations", "after the same rounds", "over random search"
    return [list(headers), *([count, *row] for count, row in cells.items())]
