"""How far a run is: a bar of tqdm or rich, whichever is installed, else lines in the log.

The log is `logging`'s, under the name `jaxbo`, at the level INFO. If no log has been set up, the lines go
to the standard error, as bars do.
"""

import logging
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jaxbo._check import flag
from jaxbo._direction import Direction

log = logging.getLogger("jaxbo")

#: Seconds between two lines.
EVERY = 5.0


class Bar(ABC):
    """A display of how much is done."""

    @abstractmethod
    def __init__(self, total: int, unit: str):
        """`ImportError` where it is not installed."""

    @abstractmethod
    def advance(self, count: int, words: str) -> None:
        """`count` more parts are done."""

    @abstractmethod
    def close(self) -> None:
        """No more will be done."""


class Progress:
    """The progress of a run of `total` parts, called `unit`; silent unless `shown`."""

    def __init__(self, total: int, unit: str, shown: bool):
        flag("progress", shown)
        self.bar = _bar(total, unit) if shown else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, count: int = 1, **facts: Any) -> None:
        """`count` more parts are done; numbers by name say how they went."""
        if self.bar is not None:
            words = ", ".join(f"{name}={_short(fact)}" for name, fact in facts.items())
            self.bar.advance(count, words)

    def advance_to(self, values: np.ndarray, direction: Direction, count: int = 1) -> None:
        """Shows that `count` more parts are done, and the values known since."""
        if self.bar is not None:
            self.advance(count, **_facts(values, direction))


def _facts(values: np.ndarray, direction: Direction) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    return {"best": known.min() if direction == "minimize" else known.max()}


def _short(fact: Any) -> str:
    return f"{fact:.4g}" if np.ndim(fact) == 0 else str(fact)


def _bar(total: int, unit: str) -> Bar:
    for kind in (_Tqdm, _Rich):
        try:
            return kind(total, unit)
        except ImportError:
            continue
    return _Lines(total, unit)


class _Tqdm(Bar):
    def __init__(self, total: int, unit: str):
        from tqdm import tqdm

        self.bar = tqdm(total=total, unit=unit)

    def advance(self, count: int, words: str) -> None:
        self.bar.set_postfix_str(words, refresh=False)
        self.bar.update(count)

    def close(self) -> None:
        self.bar.close()


class _Rich(Bar):
    def __init__(self, total: int, unit: str):
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            *RichProgress.get_default_columns(),
            "{task.completed:.0f}/{task.total:.0f} " + unit + "s",
            "{task.fields[words]}",
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("", total=total, words="")
        self.bar.start()

    def advance(self, count: int, words: str) -> None:
        self.bar.update(self.task, advance=count, words=words)

    def close(self) -> None:
        self.bar.stop()


class _Lines(Bar):
    def __init__(self, total: int, unit: str):
        self.total, self.unit = total, unit
        self.done, self.last = 0, time.monotonic()

    def advance(self, count: int, words: str) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= EVERY or self.done == self.total:
            self.last = now
            _say(f"{self.done} of {self.total} {self.unit}s{words and f': {words}'}")

    def close(self) -> None:
        """There is nothing to close."""


def _say(line: str) -> None:
    """Into the log, or where there is none to the standard error: it has been asked for."""
    if log.hasHandlers():
        log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)
