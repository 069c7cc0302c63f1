"""The beginning of a run: results from before, and points that are asked first."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxbo._check import whole
from jaxbo.algos.base import _origin
from jaxbo.algos.base.algorithm import AbstractAlgorithm, Stage
from jaxbo.algos.base.known import KnownRows, points
from jaxbo.runs import _steps


class Start(NamedTuple):
    """Rows before the first round: `known` results, `first` points, then `initial` of the design."""

    known: KnownRows | None
    first: Float[np.ndarray, "points dim"]
    workers: int  # who share the first points; 1 where each agent is asked all of them
    initial: int

    @property
    def told(self) -> int:
        """Rows of results that are known."""
        return 0 if self.known is None else len(self.known.values)

    @property
    def asked(self) -> int:
        """Rows that are asked before the first round."""
        return -(-len(self.first) // self.workers) + self.initial

    def before(
        self, queries: np.ndarray, values: np.ndarray
    ) -> tuple[Float[np.ndarray, "rows targets dim"], Float[np.ndarray, "rows targets"]]:
        """Rows of a run after the results that are known."""
        if self.known is None:
            return queries, values
        targets = values.shape[1]
        x, y = self.known.queries[:, :targets], self.known.values[:, :targets]
        if x.shape[1] < targets:  # workers who share a model bring theirs one by one
            x, y = np.repeat(x, targets, axis=1), np.repeat(y, targets, axis=1)
        return np.concatenate([x, queries]), np.concatenate([y, values])

    def held(self, targets: int) -> int:
        """How many rounds' worth of results an agent is told before it is asked."""
        if self.known is None:
            return 0
        if self.workers > 1:
            return -(-self.told // targets)
        there = ~np.isnan(self.known.queries[:, :targets]).all(axis=-1)
        return int(there.sum(axis=0).max(initial=0))

    def stage(self, row: int, asked: int | None = None) -> Stage:
        """The stage of a row that is asked, from 0 on; rows of results that are known are below 0.

        `asked` is how many rows were asked before the first round, if the run ended before all of them.
        """
        return _steps.stage(self.told + row, self.told + (self.asked if asked is None else asked))

    def design_row(self, row: int) -> int:
        """Which row of the design: points that are asked first leave all others as they are."""
        return (row - self.asked + self.initial) % max(self.asked, 1)

    def given(self, row: int, drawn: Array) -> Array | np.ndarray:
        """A row before the first round, with the points that are to be asked first in their places."""
        chosen = self.first[row * self.workers : (row + 1) * self.workers]
        if not len(chosen):
            return drawn
        if self.workers == 1:
            return np.broadcast_to(chosen, drawn.shape)
        return np.concatenate([chosen, np.asarray(drawn)[len(chosen) :]])

    def results(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The known points, and the value and outcomes of each, for workers who share a model."""
        if self.known is None:
            return []
        queries, values, observed = self.known
        numbers = np.stack([values[:, 0], *(one[:, 0] for one in observed.values())], axis=1)
        return list(zip(queries[:, 0], numbers, strict=True))

    def tell(self, state: PyTree, step: Callable[..., PyTree], asked: int | None = None) -> PyTree:
        """The state after the results that are known; `asked` is that of `stage`."""
        for row in range(self.told):
            assert self.known is not None
            queries, values, observed = jax.tree.map(lambda part, row=row: part[row], self.known)
            state = step(state, queries, values, observed, self.stage(row - self.told, asked))
        return state


def beginning(algorithm: AbstractAlgorithm, known: Any, first: Any, initial: int) -> Start:
    """`ValueError` for points and results that the method cannot be told or asked."""
    whole("initial", initial)
    workers = algorithm.targets if algorithm.one_objective else 1
    asked = np.zeros((0, algorithm.domain.dim))
    if first is not None:
        try:
            asked = points(first, algorithm.domain)
        except ValueError as error:
            raise ValueError(
                f"first must be points to ask, such as [{{...}}, ...]: {error}"
            ) from error
    return Start(_told(algorithm, known), asked, workers, int(initial))


def _told(algorithm: AbstractAlgorithm, known: Any) -> KnownRows | None:
    """The results that are known, as they are told."""
    if known is None:
        return None
    try:
        told = algorithm.known(known)
    except ValueError as error:
        raise ValueError(f"known: {error}") from error
    if not algorithm.invariant:
        return told
    return told._replace(values=_origin.lowered(told.values, algorithm.targets))
