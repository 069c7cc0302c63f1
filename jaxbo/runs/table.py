"""Evaluations as a table: a dictionary for each, which `known=` takes back."""

import csv
import io
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxbo._check import require, shown
from jaxbo.algos.base.known import ABOUT, AGENT, RUNNING, VALUE
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space

if TYPE_CHECKING:
    import pandas

#: The status of an evaluation that ended well, of one that failed, and of a result from elsewhere.
OBSERVED, FAILED, KNOWN = "observed", "failed", "known"


class Trials(list[dict[str, Any]]):
    """A list of dictionaries: agent, round, parameters, value, outcomes, status, error, start, seconds.

    `round` is -1 before the first. On a `Space` parameters come by name, None for an inactive
    parameter, else as x0, x1, …. `value` is None where there is none, and `status` is observed, failed,
    known or running. `start` is when the evaluation was handed over, in seconds since 1970, and
    `seconds` are from then to its end; None where they were not measured.
    """

    def to_csv(self, path: str | PathLike | None = None) -> str:
        """The table as comma-separated values, None as nothing; written to `path`, if given."""
        require(
            path is None or isinstance(path, str | PathLike),
            f"path must be that of a file, such as 'results.csv', got {shown(path)}.",
        )
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self[0]) if self else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self)
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def to_pandas(self) -> "pandas.DataFrame":
        """The table as a DataFrame. `ImportError` where pandas is not installed."""
        import pandas

        return pandas.DataFrame(self)


def row(
    domain: AbstractDomain | None,
    x: np.ndarray,
    agent: int,
    round: int,
    value: float,
    status: str | None = None,
    error: str | None = None,
    start: float = math.nan,
    seconds: float = math.nan,
    outcomes: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """An evaluation as a dictionary; a value that is NaN has failed, unless the `status` says something
    else.
    """
    status = status or (FAILED if math.isnan(value) else OBSERVED)
    return {
        AGENT: agent,
        "round": round,
        **parameters(domain, x),
        VALUE: _or_none(value),
        **{name: _or_none(number) for name, number in (outcomes or {}).items()},
        "status": status,
        "error": error,
        "start": _or_none(start),
        "seconds": _or_none(seconds),
    }


def parameters(domain: AbstractDomain | None, x: np.ndarray) -> Mapping[str, Any]:
    """A point's parameters by name, None for an inactive parameter: all rows have the same columns."""
    if not isinstance(domain, Space):
        return {f"x{i}": float(number) for i, number in enumerate(x)}
    taken = [name for name in domain.names if name in (AGENT, VALUE, *ABOUT)]
    require(not taken, f"parameters {taken} are called as columns of the table are: rename them.")
    values = domain.decode(x)
    return {name: values.get(name) for name in domain.names}


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


__all__ = ["FAILED", "KNOWN", "OBSERVED", "RUNNING", "Trials", "parameters", "row"]
