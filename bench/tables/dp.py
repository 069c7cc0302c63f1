"""Tables of the experiments of DP-FTS-DE."""

from collections.abc import Mapping
from typing import Any

from bench.tables.cells import Results, Rows, figure, final, over_rounds


def synthetic(results: Results) -> Rows:
    """Regret and privacy loss of every setting."""
    result = results["dp-synthetic"]
    rows = [
        [name, over_rounds(result, name), final(result, name), *_losses(result, name)]
        for name in result["methods"]
    ]
    return [["", "regret over all rounds", "regret at the end", *LOSSES], *rows]


def har(results: Results) -> Rows:
    """Validation error and privacy loss of every setting."""
    return _errors(results["dp-har"], "validation error", 100.0, " %")


def digits(results: Results) -> Rows:
    """The same."""
    return _errors(results["dp-digits"], "validation error", 100.0, " %")


def landmine(results: Results) -> Rows:
    """1 - AUC and privacy loss of every setting."""
    return _errors(results["dp-landmine"], "1 - AUC", 1.0, "")


#: Accountants, by the name that they have in a file.
LOSSES = {"ε, the paper's accountant": "moments", "ε, PLD": "pld"}


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
