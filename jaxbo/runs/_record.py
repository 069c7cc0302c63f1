"""The rows of a driven run, kept and saved as they grow."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxbo._check import require
from jaxbo._direction import Direction
from jaxbo.algos.base.outcomes import Outcome, feasible, met, split
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs._archive import DamagedError, OtherRunError
from jaxbo.runs._checkpoint import Checkpoint, Rows
from jaxbo.runs._released import Released
from jaxbo.runs.trace import Failure, Trace


class Record:
    """The rows of a driven run as host arrays, saved as they grow."""

    def __init__(
        self,
        shapes: PyTree,
        initial: int,
        rounds: int,
        saved: Checkpoint | None,
        ledger: Ledger | None,
        present: np.ndarray | None,
        compiled: bool,
        direction: Direction,
        shared: bool,
        outcomes: Sequence[Outcome] = (),
    ):
        queries, info = shapes
        rows = initial + rounds
        self.initial, self.saved, self.ledger, self.begun = initial, saved, ledger, ledger
        self.released = None if ledger is None or saved is None else Released(saved.path)
        self.queries = np.full((rows, *queries.shape), np.nan, queries.dtype)
        # A compiled objective's values are told as they come; a Python objective's in float64.
        self.compiled = compiled
        self.direction: Direction = direction
        self.shared = shared
        precision = queries.dtype if compiled else np.float64
        #: The value of each evaluation, then its outcomes.
        self.numbers = np.full((rows, queries.shape[0], 1 + len(outcomes)), np.nan, precision)
        self.values, self.outcomes = self.numbers[..., 0], outcomes
        #: When each evaluation began, and for how many seconds.
        self.times = np.full((*self.values.shape, 2), np.nan)
        leaves, self.structure = jax.tree.flatten(info)
        self.info = [np.zeros((rounds, *leaf.shape), leaf.dtype) for leaf in leaves]
        self.present = [] if present is None else [np.asarray(present)]
        self.asked = self.told = 0
        self.failures: list[Failure] = []
        if saved is None:
            return
        try:
            saved.resume(lambda rows: self._resume(saved, rows))
        except (DamagedError, OtherRunError) as error:
            if self.released is None:
                raise
            raise self.released.unusable(error) from error

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *error: object) -> None:
        """The checkpoint is left to others."""
        if self.saved is not None:
            self.saved.close()

    def _resume(self, saved: Checkpoint, rows: Rows | None) -> None:
        if rows is not None:
            self._check(saved, rows)
        if self.released is not None:  # nothing is counted for the checkpoint of another run
            self._charge(self.released, rows)
        if rows is None:
            return
        asked = rows.queries.shape[0]
        self.asked, self.told = asked, rows.told
        self.queries[:asked], self._kept[:asked] = rows.queries, rows.values
        self.times[:asked] = rows.times
        given = len(self.info)
        for one, theirs in zip(self._info(asked)[:given], rows.info[:given], strict=True):
            one[:] = theirs
        self.failures = [Failure(*failure) for failure in rows.failures]
        if self.told == asked:
            self.forget()  # a kill came between the last save and the journal's end

    def _check(self, saved: Checkpoint, rows: Rows) -> None:
        """`OtherRunError` for the rows of another run, `ValueError` for more rows than this run asks
        for.
        """
        asked = rows.queries.shape[0]
        require(
            asked <= self.queries.shape[0],
            f"the checkpoint has {asked} rows already, the run asks for {self.queries.shape[0]}: "
            "give at least as many rounds as before.",
        )
        mine = self._info(asked)
        if _sizes(rows.queries, rows.values, rows.times, *rows.info) != _sizes(
            self.queries[:asked], self._kept[:asked], self.times[:asked], *mine
        ):
            raise DamagedError(
                f"{saved.path} is a checkpoint with arrays of other sizes than this run's; "
                "restore it from a copy, or remove it to start again."
            )
        given = len(self.info)
        if any((a != b).any() for a, b in zip(mine[given:], rows.info[given:], strict=True)):
            raise OtherRunError(
                f"{saved.path} belongs to a run with another present; give the same rows as before "
                "to continue it"
            )
        if not asked - 1 <= rows.told <= asked:
            raise DamagedError(f"{saved.path} is damaged: restore it from a copy.")

    def _charge(self, released: Released, rows: Rows | None) -> None:
        """Goes on with the charges that were saved. `CheckpointError` if there have been more."""
        assert self.ledger is not None
        saved = None
        if rows is not None:
            try:
                saved = self.ledger.charged(rows.ledger or "")
            except ValueError as error:
                raise released.lost("has lost its ledger") from error
        released.open(self.ledger, saved)
        self.ledger = saved or self.ledger

    def _info(self, asked: int) -> list[np.ndarray]:
        """The info of the first `asked` rows; the initial design has none."""
        return [leaf[: max(asked - self.initial, 0)] for leaf in self.info + self.present]

    def ask(
        self,
        row: int,
        asking: Callable[[], tuple[Array | np.ndarray, PyTree]],
        release: Mechanism | None = None,
    ) -> None:
        """Queries of a row that has none yet, charged for the release that finds them."""
        if row < self.asked:
            return
        if self.ledger is not None and release is not None:
            self.ledger = self.ledger.charge(release)
        queries, info = asking()
        self.queries[row] = queries
        if row >= self.initial:
            for mine, leaf in zip(self.info, jax.tree.leaves(info), strict=True):
                mine[row - self.initial] = leaf
        self.asked = row + 1
        self._save()
        if self.ledger is not None and self.released is not None:
            self.released.grow(self.ledger)

    @property
    def _kept(self) -> np.ndarray:
        """The values as a checkpoint has them."""
        return self.numbers if self.outcomes else self.values

    def ended(self, row: int) -> dict[int, tuple[np.ndarray, str | None]]:
        """Evaluations of an open row that had ended when the run was stopped."""
        return {} if self.saved is None else self.saved.recorded(row)

    def begin(self, row: int, agent: int) -> None:
        """One evaluation begins."""
        self.times[row, agent, 0] = time.time()

    def put(
        self, row: int, agent: int, numbers: np.ndarray, error: str | None, *, new: bool = True
    ) -> None:
        """An evaluation has ended; `error` says why it failed, if it did."""
        self.numbers[row, agent] = numbers if np.isfinite(numbers).all() else np.nan
        if error is not None:
            self.failures.append(Failure(row, agent, error))
        if new:
            self.times[row, agent, 1] = time.time() - self.times[row, agent, 0]
        elif self.saved is not None:
            self.times[row, agent] = self.saved.times(row)[agent]
        if new and self.saved is not None:
            times = self.times[row, agent].tolist()
            self.saved.record(row, agent, numbers.tolist(), error, times)

    def forget(self) -> None:
        """The evaluations of the open row were in vain."""
        if self.saved is not None:
            self.saved.forget()

    def give_up(self) -> None:
        """All evaluations so far were in vain. Rounds stay where releases have been charged."""
        self.forget()
        if self.saved is not None and self.ledger == self.begun:
            self.saved.path.unlink(missing_ok=True)

    def close(self, row: int) -> None:
        """All evaluations of a row have ended."""
        self.told = row + 1
        if self.told == self.queries.shape[0]:
            self._save()

    def observations(
        self, rows: int | slice
    ) -> tuple[Array, Array | np.ndarray, dict[str, Array | np.ndarray]]:
        """Queries, values, and outcomes by name. They are NumPy's for a Python objective."""
        numbers = self._kept[rows].copy()
        values, observed = split(self.outcomes, jnp.asarray(numbers) if self.compiled else numbers)
        return jnp.asarray(self.queries[rows]), values, observed

    @property
    def best_values(self) -> np.ndarray:
        """Values of the rows that have been told, or are complete; NaN where a bound was missed."""
        _, observed = split(self.outcomes, self._kept)
        return np.where(feasible(self.outcomes, self.values, observed), self.values, np.nan)

    @property
    def info_tree(self) -> PyTree:
        """The info of the rounds so far, in the form that methods return it in."""
        return jax.tree.unflatten(self.structure, self.info)

    def trace(self) -> Trace:
        """The trace of the rows that have been told."""
        initial = min(self.initial, self.told)
        leaves = [jnp.asarray(leaf[: self.told - initial]) for leaf in self.info]
        info = jax.tree.unflatten(self.structure, leaves)
        queries, values, observed = self.observations(slice(self.told))
        failures = tuple(failure for failure in self.failures if failure.row < self.told)
        known = queries, values, info, initial, failures, self.ledger
        times = None if self.compiled else self.times[: self.told].copy()
        how: Any = {"direction": self.direction, "times": times, "shared": self.shared}
        within = met(self.outcomes, values, observed)
        return Trace(*known, **how, outcomes=observed, met=within)

    def _save(self) -> None:
        if self.saved is None:
            return
        asked = self.asked
        queries, values, info = self.queries[:asked], self._kept[:asked], self._info(asked)
        charged = None if self.ledger is None else self.ledger.charges()
        times = self.times[:asked]
        rows = Rows(self.told, queries, values, times, info, self.failures, charged)
        self.saved.save(rows)


def _sizes(*arrays: np.ndarray) -> list[tuple[int, ...]]:
    return [array.shape for array in arrays]
