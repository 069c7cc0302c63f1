"""Figures, intervals and claims in words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.claims import Verdict
from jaxbo import metrics


def margin(least: float | None, most: float | None) -> str:
    """In words, what a figure is to be."""
    if least is None:
        return f"at most {number(most)}"
    return (
        f"at least {number(least)}" if most is None else f"from {number(least)} to {number(most)}"
    )


def span(low: float | None, high: float | None) -> str:
    """An interval; an end that is none is infinite."""
    ends = "-∞" if low is None else number(low), "∞" if high is None else number(high)
    return f"{ends[0]} to {ends[1]}"


def wanting(check: Mapping[str, Any]) -> str:
    """For an undecided claim: the number of runs that would decide it, or the reason why none does.

    If the interval is over problems, it is their number.
    """
    if check["outcome"] != Verdict.UNDECIDED:
        return ""
    if check["interval"] is None:
        return str(check["how"])
    if check["needed"] is None:
        return ""
    unit = str(check["how"]).removeprefix("over ") if "over " in str(check["how"]) else "runs"
    return f"no number of {unit}" if check["needed"] == "hopeless" else f"{check['needed']} {unit}"


def number(value: float | None) -> str:
    """Four significant digits; a dash for NaN and other things that are no numbers."""
    return "-" if value is None else f"{value:.4g}"


def interval(values: np.ndarray) -> str:
    """The mean of all runs, and half the width of its 95 % confidence interval."""
    low, high = metrics.confidence_interval(values.astype(float))
    return f"{number(float(values.mean()))} ({number(float(high - low) / 2)})"
