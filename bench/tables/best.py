"""Tables of `best` and `tuning`."""

import numpy as np

from bench.best import compare
from bench.tables.cells import Results, Rows, after, digits

PEERS = ("random", "CMA-ES", "TPE")
#: BBOB's functions of many optima that have odd numbers.
MULTIMODAL = {f"f{number:02d}" for number in (3, 15, 17, 19, 21, 23)}


def best(results: Results) -> Rows:
    """Ratios of regrets, over problems, with Student's interval; problems won and lost."""
    (name,) = (name for name in results if name.startswith("best-"))
    finals = {key: one["final"] for key, one in results[name]["methods"].items()}
    problems = sorted({key.rsplit(", ", 2)[0] for key in finals})
    without = [problem for problem in problems if "f05" not in problem]
    many = [problem for problem in problems if problem.split()[1] in MULTIMODAL]
    groups = {
        "all": problems,
        "all but f5, two dimensions": [problem for problem in without if problem.endswith("2d")],
        "all but f5, five dimensions": [problem for problem in without if problem.endswith("5d")],
        "multimodal, five dimensions": [problem for problem in many if problem.endswith("5d")],
    }

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
