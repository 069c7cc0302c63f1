"""Why a run ends before its last round: a deadline, a rule, an interrupt, or nothing left to ask."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxbo._check import require, seconds, takes

log = logging.getLogger(__name__)


class Ending:
    """Knows whether a run is to end.

    Within a `with` in the main thread it hears interrupts at the keyboard. The first interrupt ends the
    run after the evaluations under way, the second at once, by a `KeyboardInterrupt`. A handler of
    interrupts that is not Python's own stays as it is. `deadline` is in seconds from now; `stop` is a
    function of a trace or a desk, or None.
    """

    def __init__(self, deadline: float | None, stop: Callable[[Any], Any] | None):
        if deadline is not None:
            seconds("deadline", deadline)
        require(
            stop is None or (not isinstance(stop, type) and takes(stop, 1)),
            "stop must be a function of what is known so far alone, such as jaxbo.stopping.Target(0.9), "
            f"got {stop!r:.80}.",
        )
        self.stop = stop
        self._until = None if deadline is None else time.monotonic() + float(deadline)
        self._deadline = deadline
        self._before: Any = None
        self.interrupted = False
        #: Why the run ends; None as long as it goes on.
        self.why: str | None = None

    def __enter__(self) -> "Ending":
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._restore()
        if kind is None and self.why is not None:
            log.warning("the run has ended: %s", self.why)

    def _interrupt(self, number: int, frame: Any) -> None:
        del number, frame
        self._restore()
        self.interrupted = True
        # A handler may come in the middle of another line of the log, which would wait for itself.
        self._end("it was interrupted; the same call goes on with its checkpoint, if it has one")

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _end(self, why: str) -> None:
        self.why = self.why or why

    def now(self) -> bool:
        """Whether nothing more is to begin."""
        if self._until is not None and time.monotonic() >= self._until:
            self._end(f"its deadline of {self._deadline:g} seconds has passed")
        return self.why is not None

    def after(self, known: Callable[[], Any], nothing_left: Callable[[], str | None]) -> bool:
        """Whether the run ends, now that this is `known`; `nothing_left` says why it cannot go on."""
        if self.why is None and self._says(known):
            self._end(f"{_named(self.stop)} says so")
        if self.why is None and (why := nothing_left()) is not None:
            self._end(why)
        return self.why is not None

    def _says(self, known: Callable[[], Any]) -> bool:
        """Whether the rule says so. An error of the rule names the argument."""
        if self.stop is None:
            return False
        try:
            return bool(self.stop(known()))
        except Exception as error:
            error.add_note("asking the rule that was given as stop, which returns True or False")
            raise


def _named(stop: Any) -> str:
    return getattr(stop, "__name__", None) or repr(stop)
