"""Evaluations under way in an executor."""

import time
from collections.abc import Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from jaxbo.runs._executors import Here, LateError, Processes
from jaxbo.runs.renewing import Renewing

#: Seconds between two looks for evaluations that were cancelled without a word, or for an end.
BETWEEN_LOOKS = 0.5


class HeldError(RuntimeError):
    """All workers of an executor are held by evaluations that took too long."""


class Flight:
    """The evaluations that an executor has not given back, each with the caller's own name for it.

    With a `timeout`, `room` is False while all workers are busy, so that each evaluation begins as it is
    handed over, and its time counts from then. An executor may not say how many workers it has: then
    waiting counts, too. A late evaluation is given up: its outcome is a `LateError`, and its worker
    counts as busy until it has ended.
    """

    def __init__(self, executor: Executor, timeout: float | None):
        self.executor = executor
        self.timeout = None if isinstance(executor, Processes) else timeout
        self.running: dict[Future, tuple[Any, float]] = {}
        self._held: set[Future] = set()
        self._most = 1 if isinstance(executor, Here) else self._workers()

    def _workers(self) -> int | None:
        if self.timeout is None:
            return None
        pool = self.executor._pool if isinstance(self.executor, Renewing) else self.executor
        return getattr(pool, "_max_workers", None)

    @property
    def free(self) -> bool:
        """Whether a worker may be given another evaluation."""
        busy = len(self.running) + len(self._held)
        return self._most is None or busy < self._most

    def must_have_a_worker(self) -> None:
        """`HeldError` if no evaluation will ever begin."""
        if not self.running and not self.free:
            raise HeldError(
                f"all {self._most} workers of the executor are held by evaluations that took longer than "
                f"timeout={self.timeout:g} seconds, and cannot be ended: executor={self._most} makes "
                "processes that can be."
            )

    def submit(self, name: Hashable, call: Callable[..., Any], *arguments: Any) -> None:
        future = self.executor.submit(call, *arguments)
        self.running[future] = name, time.monotonic()

    def ended(self, ending: Callable[[], bool]) -> list[tuple[Any, Future]]:
        """Waits until some have ended, were cancelled or are too late: names and outcomes.

        Nothing if nothing is under way. Once `ending`, evaluations that have not begun are taken back.
        """
        found: list[tuple[Any, Future]] = []
        while self.running and not found:
            if ending():
                self.cancel()
            # `Executor.shutdown(cancel_futures=True)` cancels, and wakes nobody who waits.
            wait(self.running, timeout=self._patience(), return_when=FIRST_COMPLETED)
            self._held = {future for future in self._held if not future.done()}
            found = self._done() + self._late()
        return found

    def cancel(self) -> None:
        """Takes back the evaluations that have not begun."""
        self.running = {future: at for future, at in self.running.items() if not future.cancel()}

    def _patience(self) -> float:
        if self.timeout is None or not self.running:
            return BETWEEN_LOOKS
        first = min(begun for _, begun in self.running.values())
        return min(max(first + self.timeout - time.monotonic(), 0.0), BETWEEN_LOOKS)

    def _done(self) -> list[tuple[Any, Future]]:
        done = [future for future in self.running if future.done()]
        return [(self.running.pop(future)[0], future) for future in done]

    def _late(self) -> list[tuple[Any, Future]]:
        if self.timeout is None:
            return []
        now = time.monotonic()
        late = [f for f, (_, begun) in self.running.items() if now - begun >= self.timeout]
        found = []
        for future in late:
            name, _ = self.running.pop(future)
            if not future.cancel():
                self._held.add(future)
            outcome = Future()
            outcome.set_exception(LateError(self.timeout))
            found.append((name, outcome))
        return found
