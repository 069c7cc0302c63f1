"""Tables of the experiments of DP-FTS-DE."""

from collections.abc import Mapping
from typing import Any

from bench.tables.cells import Results, Rows, digits, figure, final, over_rounds

#: The names that these have in a file.
LOUD, CLIPPED = "noise over signal", "messages clipped"


def synthetic(results: Results) -> Rows:
    """Regret and privacy loss of every setting, noise over signal, and the share of messages clipped."""
    found = _of(results, "dp-synthetic")
    rows = [
        [name, over_rounds(result, name), final(result, name), *_losses(result, name)]
        for result in found
        for name in result["methods"]
    ]
    head = ["", "regret over all rounds", "regret at the end", *LOSSES]
    for name, shown in {LOUD: figure, CLIPPED: _small_share}.items():
        if not any(name in result["settings"] for result in found):
            continue
        head.append(name)
        cells = [
            shown(known[method]) if method in known else ""
            for result in found
            for known in [result["settings"].get(name, {})]
            for method in result["methods"]
        ]
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return [head, *rows]


def _small_share(share: float) -> str:
    return f"{digits(100 * share)} %"


def _of(results: Results, experiment: str) -> list[Mapping[str, Any]]:
    """The files of an experiment, whose problems may be apart."""
    return [result for result in results.values() if result.get("experiment") == experiment]


def controls(results: Results) -> Rows:
    """Errors early and at the end of each task."""
    found = {
        next(iter(result["methods"])).split(": ")[0]: result
        for result in _of(results, "dp-controls")
    }
    if not found:
        return []
    first = next(iter(found.values()))
    names = [name.split(": ")[1] for name in first["methods"]]
    head = [f"{task}, {time}" for task in found for time in ("rounds 1 to 20", "at the end")]

    def cells(task: str, name: str) -> list[str]:
        full = f"{task}: {name}"
        early = found[task]["details"]["mean of rounds 1 to 20"][full]
        return [figure(early), final(found[task], full)]

    rows = [[name, *(cell for task in found for cell in cells(task, name))] for name in names]
    return [["", *head], *rows]


def loudness(results: Results) -> Rows:
    """The noise of each setting over the signal, with both length scales."""
    found = {
        name: value
        for result in _of(results, "dp-controls")
        for name, value in result["settings"]["noise over signal"].items()
    }
    if not found:
        return []
    tasks = list(dict.fromkeys(name.split(": ")[0] for name in found))
    settings = [name for name in found if name.startswith(tasks[0]) and "longer" not in name]
    settings = [name.split(": ")[1] for name in settings]
    scales = {"length scale 0.01": "", "0.3": ", longer"}
    head = [f"{task}, {scale}" for task in tasks for scale in scales]
    rows = [
        [
            name,
            *(figure(found[f"{task}: {name}{end}"]) for task in tasks for end in scales.values()),
        ]
        for name in settings
    ]
    return [["noise over signal", *head], *rows]


def population(results: Results) -> Rows:
    """Mean regret of each method by the number of agents, and the noise over the signal."""
    result = results["dp-population"]
    loud = result["settings"]["noise over signal"]
    labels = [name.split(" agents, ") for name in result["methods"]]
    sizes = list(dict.fromkeys(size for size, _ in labels))
    kinds = list(dict.fromkeys(kind for _, kind in labels))

    def cell(size: str, kind: str) -> str:
        name = f"{size} agents, {kind}"
        regret = over_rounds(result, name)
        return f"{regret}; {figure(loud[name])}" if name in loud else regret

    rows = [[kind, *(cell(size, kind) for size in sizes)] for kind in kinds]
    return [["regret; noise over signal", *(f"{size} agents" for size in sizes)], *rows]


def har(results: Results) -> Rows:
    """Validation error and privacy loss of every setting."""
    return _errors(results["dp-har"], "validation error", 100.0, " %")


def landmine(results: Results) -> Rows:
    """1 - AUC and privacy loss of every setting."""
    return _errors(results["dp-landmine"], "1 - AUC", 1.0, "")


#: Accountants, by the name that they have in a file.
LOSSES = {"ε, the paper's accountant": "moments", "ε, Rényi": "renyi", "ε, PLD": "pld"}


def _losses(result: Mapping[str, Any], name: str) -> list[str]:
    losses = result["settings"]["losses"].get(name, {})
    return [figure(loss) if (loss := losses.get(kind)) else "" for kind in LOSSES.values()]


def _errors(result: Mapping[str, Any], what: str, times: float, unit: str) -> Rows:
    def row(name: str, one: Mapping[str, Any]) -> list[str]:
        mean, error = (times * one["final"][key] for key in ("mean", "se"))
        shown = f"{figure(mean)}{unit}", f"{error:.1g}{unit}"
        return [name, *shown, *_losses(result, name)]

    rows = [row(name, one) for name, one in result["methods"].items()]
    return [["", f"{what} at the end", "standard error", *LOSSES], *rows]
