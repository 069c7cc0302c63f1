"""The queries of a desk and their results, as a record that never changes: each step makes a new record.

So a reader has queries, values and failures of the same moment. A step that is stopped on its way has
changed nothing.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxbo._check import require, shown
from jaxbo.algos.base import outcomes
from jaxbo.algos.base.outcomes import Outcome, width
from jaxbo.domains.base import AbstractDomain
from jaxbo.runs import table
from jaxbo.runs._checkpoint import Rows
from jaxbo.runs.table import KNOWN, RUNNING, Trials
from jaxbo.runs.trace import Failure

#: Where a query comes from: the points asked first and the initial design, the model, or not the desk.
DRAWN, ASKED, ELSEWHERE = range(3)


class Entry(NamedTuple):
    """A query and its result.

    The query was handed out at `start`, in seconds since 1970, and took so many `seconds`; both are NaN
    where they are not known. Until there is a result `numbers` is None, then the value and the outcomes,
    NaN where the evaluation failed.
    """

    x: Float[np.ndarray, " dim"]
    origin: int
    start: float = math.nan
    seconds: float = math.nan
    out: bool = True  # False from a stop until it is handed out again
    numbers: Float[np.ndarray, " numbers"] | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Tickets:
    """All queries by number, and the `order` in which their results came."""

    dim: int
    outcomes: tuple[Outcome, ...]
    entries: tuple[Entry, ...] = ()
    order: tuple[int, ...] = ()
    answered: int = 0  # results of the desk's own queries

    def with_entry(self, entry: Entry) -> "Tickets":
        """The record with a query more."""
        return dataclasses.replace(self, entries=(*self.entries, entry))

    def with_result(self, number: int, result: Entry) -> "Tickets":
        """The record with a result more: `result` takes the place of the query's entry."""
        own = self.answered + (result.origin != ELSEWHERE)
        return dataclasses.replace(
            self._changed(number, result), order=(*self.order, number), answered=own
        )

    def handed_out(self, number: int, start: float) -> "Tickets":
        """The record where a query that was out before a stop is out again."""
        return self._changed(number, self.entries[number]._replace(out=True, start=start))

    def _changed(self, number: int, entry: Entry) -> "Tickets":
        entries = *self.entries[:number], entry, *self.entries[number + 1 :]
        return dataclasses.replace(self, entries=entries)

    def must_be(self, number: Any) -> None:
        """`ValueError` unless this is the number of a query."""
        count = len(self.entries)
        whole_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
        require(not hasattr(number, "number"), f"number is {shown(number)}: give its .number.")
        require(
            whole_number and 0 <= number < count,
            f"there is no query number {shown(number)}: {count} were handed out.",
        )

    def must_be_out(self, number: Any) -> None:
        """`ValueError` unless this is the number of a query that somebody has."""
        self.must_be(number)
        told = self.entries[number].numbers is not None
        require(not told, f"query {number} has been told already.")
        require(self.entries[number].out, f"query {number} is not out: ask for it again first.")

    def blank(self) -> "Tickets":
        """The same queries without results."""
        entries = tuple(entry._replace(numbers=None, error=None) for entry in self.entries)
        return Tickets(self.dim, self.outcomes, entries)

    def elsewhere(self) -> "Tickets":
        """Results from elsewhere alone, numbered in their order."""
        kept = Tickets(self.dim, self.outcomes)
        for entry in self._told():
            if entry.origin == ELSEWHERE:
                kept = kept.with_entry(entry).with_result(len(kept.entries), entry)
        return kept

    def own(self, numbers: Iterable[int]) -> int:
        """How many of the numbers belong to the desk's own queries, and not to results from elsewhere."""
        return sum(self.entries[number].origin != ELSEWHERE for number in numbers)

    def count(self, origin: int) -> int:
        """How many queries come from there."""
        return sum(entry.origin == origin for entry in self.entries)

    def row(self, number: int) -> int:
        """How many queries of the same origin came before."""
        origin = self.entries[number].origin
        return sum(entry.origin == origin for entry in self.entries[:number])

    @property
    def out(self) -> tuple[int, ...]:
        """The numbers of the queries that somebody has."""
        return self._open(True)

    @property
    def returned(self) -> tuple[int, ...]:
        """The numbers of the queries that were out before a stop, to be handed out again."""
        return self._open(False)

    def _open(self, out: bool) -> tuple[int, ...]:
        entries = enumerate(self.entries)
        return tuple(n for n, entry in entries if entry.numbers is None and entry.out == out)

    def _told(self) -> Iterator[Entry]:
        return (self.entries[number] for number in self.order)

    # Of all results, in the order in which they came:

    @property
    def queries(self) -> Float[np.ndarray, "evaluations dim"]:
        return np.reshape([entry.x for entry in self._told()], (-1, self.dim))

    @property
    def numbers(self) -> Float[np.ndarray, "evaluations numbers"]:
        """The value of each, then its outcomes."""
        told = [entry.numbers for entry in self._told()]
        return np.reshape(np.asarray(told, np.float64), (-1, 1 + len(self.outcomes)))

    @property
    def values(self) -> Float[np.ndarray, " evaluations"]:
        return self.numbers[:, 0].copy()

    @property
    def observed(self) -> dict[str, Float[np.ndarray, " evaluations"]]:
        """Outcomes by name."""
        return self.named(self.numbers)

    @property
    def feasible(self) -> Bool[np.ndarray, " evaluations"]:
        return outcomes.feasible(self.outcomes, self.values, self.observed)

    @property
    def failures(self) -> tuple[Failure, ...]:
        entries = ((number, self.entries[number].error) for number in self.order)
        return tuple(Failure(number, 0, error) for number, error in entries if error is not None)

    def named(self, numbers: Float[np.ndarray, "*evaluations numbers"]) -> dict[str, Any]:
        """Outcomes by name, of values that their outcomes follow."""
        return {outcome.name: numbers[..., 1 + i] for i, outcome in enumerate(self.outcomes)}

    def table(self, domain: AbstractDomain) -> Trials:
        """A dictionary for each query, by its number."""
        rounds = itertools.count()
        asked = (next(rounds) if entry.origin == ASKED else -1 for entry in self.entries)
        rows = zip(self.entries, asked, strict=True)
        return Trials(self._row(domain, entry, round) for entry, round in rows)

    def _row(self, domain: AbstractDomain, entry: Entry, round: int) -> dict[str, Any]:
        nothing = np.full(1 + len(self.outcomes), np.nan)
        numbers = nothing if entry.numbers is None else entry.numbers
        value, observed = float(numbers[0]), {k: float(v) for k, v in self.named(numbers).items()}
        about = value, _status(entry), entry.error, entry.start, entry.seconds, observed
        return table.row(domain, entry.x, 0, round, *about)

    def rows(self) -> Rows:
        """As a file has them, by number."""
        queries = np.reshape([entry.x for entry in self.entries], (-1, self.dim))
        values = np.full((len(self.entries), *width(self.outcomes)), np.nan)
        for number, entry in zip(self.order, self._told(), strict=True):
            assert entry.numbers is not None
            values[number] = entry.numbers if self.outcomes else entry.numbers[0]
        times = np.reshape([(entry.start, entry.seconds) for entry in self.entries], (-1, 2))
        info = [np.asarray(self.order, int), np.asarray([e.origin for e in self.entries], int)]
        return Rows(len(self.order), queries, values, times, info, self.failures, None)

    def restored(self, rows: Rows) -> "Tickets":
        """The record that a file has."""
        order, origins = (column.tolist() for column in rows.info)
        errors = {number: error for number, _, error in rows.failures}
        told = {number: np.atleast_1d(rows.values[number]) for number in order}
        columns = zip(rows.queries, origins, rows.times.tolist(), strict=True)
        entries = tuple(
            Entry(x, origin, *times, out=False, numbers=told.get(n), error=errors.get(n))
            for n, (x, origin, times) in enumerate(columns)
        )
        return dataclasses.replace(self, entries=entries, order=tuple(order))


def _status(entry: Entry) -> str | None:
    """The status in a table; None where the value says it."""
    if entry.numbers is None:
        return RUNNING
    return KNOWN if entry.origin == ELSEWHERE and np.isfinite(entry.numbers[0]) else None
