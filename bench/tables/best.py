"""Tables of `best`, `tuning` and `workers`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.best import compare
from bench.claims import SYMBOLS
from bench.tables.cells import Results, Rows, after, digits

#: Peers and how a column names them.
PEERS = {"random": "random search", "CMA-ES": "CMA-ES (`cma`)", "TPE": "TPE (Optuna)"}
#: Others that some results have.
OTHERS = {
    "BoTorch": "LogEI (BoTorch)",
    "GPSampler": "GPSampler (Optuna)",
    "SMAC3": "SMAC3",
    "DECHBO": "`DECHBO`, learned structure",
    "Fitted": "`EGP`, `Fitted` and `EI`",
}
#: BBOB's functions of many optima.
MULTIMODAL = {f"f{number:02d}" for number in (3, 4, *range(15, 25))}
#: BBOB's own groups: their first and their last function.
KINDS = {
    "separable": (1, 5),
    "moderate conditioning": (6, 9),
    "ill-conditioned": (10, 14),
    "multimodal": (15, 19),
    "weak structure": (20, 24),
}
#: What a ratio of regrets is to be at most.
AIM = 0.7
#: The linear function, whose best point is a corner.
LINEAR = "f05"
#: Classical functions whose best point is on the border of the cube: eggholder, Sobester's and Ackley's.
AT_BORDER = {"c03", "c04", "c09"}
#: Dimensions in words, as they end the name of a problem.
DIMS = {"two": "2d", "five": "5d", "ten": "10d"}


def best(results: Results) -> Rows:
    """Ratios of regrets on odd numbers, over problems, with Student's interval; problems won and lost."""
    return _bbob(results, "best-bbob-odd-2d-5d-i1-random")


def best_even(results: Results) -> Rows:
    """The same on even numbers, on which nothing was chosen."""
    return _bbob(results, "best-bbob-even-2d-5d-10d-i1-random")


def best_botorch(results: Results) -> Rows:
    """The same on even numbers beside other Gaussian processes."""
    return _bbob(results, "best-bbob-even-2d-5d-i1-botorch")


def best_noisy(results: Results) -> Rows:
    """The same on even numbers with noise."""
    return _bbob(results, "best-noisy-even-2d-5d-i1-random")


def best_classical(results: Results) -> Rows:
    """The same on classical functions."""
    return _of(results, "best-classical-random", _by_number)


def best_high(results: Results) -> Rows:
    """Geometric means of regrets on paths of a rover and penalties of a Lasso, with error factors."""
    return _each(results, "best-high", "task and coordinates")


def best_beside(results: Results) -> Rows:
    """The same of other methods of ours on classical functions."""
    return _each(results, "best-classical-dechbo", "function")


def _each(results: Results, prefix: str, title: str) -> Rows:
    """Geometric means of the regrets of each problem, with the factor of a standard error."""
    found = _found(results, prefix)
    if found is None:
        return []
    finals = {tuple(key.rsplit(", ", 2)): one["final"] for key, one in found["methods"].items()}
    methods = {"jaxbo": "`BO`"} | PEERS | OTHERS
    told = {method for _, method, _ in finals}
    shown = {method: name for method, name in methods.items() if method in told}
    budgets = sorted({int(budget) for *_, budget in finals})

    def cell(problem: str, method: str, budget: int) -> str:
        one = finals.get((problem, method, str(budget)))
        if one is None:
            return ""
        return f"{digits(10 ** one['mean'])} ({digits(10 ** one['se'])})"

    rows = [
        [problem.split(" ", 2)[2], str(budget), *(cell(problem, m, budget) for m in shown)]
        for problem in _problems(found)
        for budget in budgets
    ]
    return [[title, "evaluations", *shown.values()], *rows]


Groups = dict[str, list[str]]


def best_aim(results: Results) -> Rows:
    """The ratio to the best other method of each group, with its outcome beside the aim, and losses."""
    kinds = {
        "BBOB": ("best-bbob-even-2d-5d-10d-i1-random", _by_dimension_and_kind),
        "BBOB with noise": ("best-noisy-even-2d-5d-i1-random", _by_dimension_and_kind),
        "classical functions": ("best-classical-random", lambda problems: {"all": problems}),
        "beside Gaussian processes": ("best-bbob-even-2d-5d-i1-botorch", _by_dimension),
    }
    rows, budgets = [], ("20", "50", "100")
    for kind, (prefix, groups) in kinds.items():
        found = _found(results, prefix)
        if found is None:
            continue
        for label, group in groups(_problems(found)).items():
            cells = (_hardest(found, group, budget) for budget in budgets)
            rows.append([f"{kind}: {label} ({len(group)})", *cells])
    return [["problems", *(f"after {budget}" for budget in budgets)], *rows]


def _hardest(result: Mapping[str, Any], group: Sequence[str], budget: str) -> str:
    """The comparison with the peer that has the least regret on these problems."""
    peers = {key.split(", ")[1] for key in result["methods"] if key.endswith(f", {budget}")}
    compared = {peer: _over(result, group, peer, budget) for peer in peers - {"jaxbo"}}
    if not compared:
        return ""
    peer = max(compared, key=lambda peer: compared[peer].mean)
    one, symbol = compared[peer], SYMBOLS[compared[peer].check(AIM).outcome]
    ratio = "{} ({} to {})".format(*map(digits, (one.figure, *one.interval)))
    return f"{peer} {ratio} {symbol}; {one.losses}"


def _over(
    result: Mapping[str, Any], group: Sequence[str], peer: str, budget: int | str
) -> compare.LogRatio:
    """Our regret over a peer's on these problems."""
    finals = result["methods"]
    both = [[finals[f"{p}, {one}, {budget}"]["final"] for one in ("jaxbo", peer)] for p in group]
    means = np.array([ours["mean"] - theirs["mean"] for ours, theirs in both])
    return compare.over(means, np.array([np.hypot(ours["se"], its["se"]) for ours, its in both]))


def _bbob(results: Results, prefix: str) -> Rows:
    return _of(results, prefix, _by_dimension)


def _of(results: Results, prefix: str, groups: Callable[[list[str]], Groups]) -> Rows:
    found = _found(results, prefix)
    return [] if found is None else _ratios(found, groups(_problems(found)))


def _by_number(problems: list[str]) -> Groups:
    numbers = {problem: problem.split()[1] for problem in problems}
    return {
        "all": problems,
        "best point inside": [p for p, number in numbers.items() if number not in AT_BORDER],
        "odd": [p for p, number in numbers.items() if int(number[1:]) % 2],
        "even": [p for p, number in numbers.items() if int(number[1:]) % 2 == 0],
    }


def _by_dimension(problems: list[str]) -> Groups:
    dims = [dim for dim, ending in DIMS.items() if any(p.endswith(f" {ending}") for p in problems)]
    without = [problem for problem in problems if LINEAR not in problem]
    but = " but f5" if len(without) < len(problems) else ""
    many = [problem for problem in problems if problem.split()[1] in MULTIMODAL]
    groups = {"all": problems}
    for dim in dims:
        groups[f"all{but}, {dim} dimensions"] = [p for p in without if p.endswith(f" {DIMS[dim]}")]
    for dim in dims[1:]:
        groups[f"multimodal, {dim} dimensions"] = [p for p in many if p.endswith(f" {DIMS[dim]}")]
    return groups


def _by_dimension_and_kind(problems: list[str]) -> Groups:
    """By dimension, and by BBOB's own groups in all dimensions together."""
    groups = {
        label: group
        for label, group in _by_dimension(problems).items()
        if not label.startswith("multimodal")
    }
    for kind, (first, last) in KINDS.items():
        numbers = {f"f{number:02d}" for number in range(first, last + 1)}
        groups[kind] = [p for p in problems if p.split()[1] in numbers]
    return groups


def _found(results: Results, prefix: str) -> Mapping[str, Any] | None:
    """The result whose name begins so; of several that of the most peers, whose name is the longest."""
    name = max((name for name in results if name.startswith(prefix)), key=len, default=None)
    return None if name is None else results[name]


def _problems(result: Mapping[str, Any]) -> list[str]:
    return sorted({key.rsplit(", ", 2)[0] for key in result["methods"]})


def _ratios(result: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> Rows:
    """A row for each group and budget, a column for each peer."""
    told = {tuple(key.rsplit(", ", 2)[1:]) for key in result["methods"]}
    budgets = sorted({int(budget) for _, budget in told})
    peers = {peer: name for peer, name in (PEERS | OTHERS).items() if peer in dict(told)}

    def cell(group: Sequence[str], peer: str, budget: int) -> str:
        if (peer, str(budget)) not in told:
            return ""
        one = _over(result, group, peer, budget)
        ratio = "{} ({} to {})".format(*map(digits, (one.figure, *one.interval)))
        return f"{ratio}; {one.wins}, {one.losses}"

    rows = [
        [f"{label} ({len(group)})", str(budget), *(cell(group, peer, budget) for peer in peers)]
        for label, group in groups.items()
        for budget in budgets
    ]
    return [["problems", "evaluations", *peers.values()], *rows]


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
