"""Cells of tables: numbers as they are shown, and figures of methods."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: The contents of all results by name.
Results = Mapping[str, Mapping[str, Any]]
Rows = list[list[str]]
#: A smaller mean has an exponent.
SMALL = 1e-4


def digits(value: float, figures: int = 2) -> str:
    """So many significant figures, and no exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{figures - 1}e}")  # 0.996 has one figure more than 1.0
    return f"{rounded:.{max(figures - 1 - math.floor(math.log10(abs(rounded))), 0)}f}"


def spread(mean: float, error: float) -> str:
    """A mean to the second digit of its error, and that."""
    if not error:
        return figure(mean)
    if abs(mean) < SMALL:
        return f"{mean:.1e} ({error:.0e})"
    shown = digits(error)
    return f"{mean:.{len(shown.partition('.')[2])}f} ({shown})"


def final(result: Mapping[str, Any], method: str) -> str:
    """A method's mean at the end, with its error."""
    one = result["methods"].get(method)
    return "not run" if one is None else spread(one["final"]["mean"], one["final"]["se"])


def after(result: Mapping[str, Any], method: str, rounds: Sequence[int]) -> str:
    """Means of a curve."""
    curve = result["methods"][method]["curve"]["mean"]
    return ", ".join(digits(curve[n - 1]) for n in rounds)


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.0f} %"


def markdown(rows: Rows) -> str:
    """The first row is the head."""
    head, *rest = (re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *rest])


def figure(value: float | None) -> str:
    """Three significant figures; an exponent where the number is very small."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else "∞"
    return digits(value, 3) if value == 0 or abs(value) >= 1e-3 else f"{value:.2e}"


def over_rounds(result: Mapping[str, Any], method: str) -> str:
    """The mean of a method's curve."""
    curve = result["methods"][method]["curve"]["mean"]
    return figure(sum(curve) / len(curve))


def at(result: Mapping[str, Any], method: str, n: int) -> str:
    """A method's mean after n rounds, with its error."""
    curve = result["methods"][method]["curve"]
    return spread(curve["mean"][n - 1], curve["se"][n - 1])


def merged(results: Results, experiment: str) -> dict[str, Any]:
    """Methods and claims of an experiment, whose problems may be in files of their own."""
    found: dict[str, Any] = {"methods": {}, "checks": {}}
    for result in results.values():
        if result.get("experiment") == experiment:
            found["methods"] |= result["methods"]
            found["checks"] |= result["checks"]
    return found


def cells(result: Mapping[str, Any], problem: str, label: str, methods: Sequence[str]) -> str:
    """The ends of methods on a problem, or the best of them."""
    names = [f"{problem}, {method}" for method in methods]
    if "the best of" in label:
        names = [min(names, key=lambda name: result["methods"][name]["final"]["mean"])]
    return "; ".join(final(result, name) for name in names)
