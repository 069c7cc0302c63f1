"""An executor that outlives its workers.

A pool of processes breaks for good when a process of it dies: out of memory, killed, crashed.
`Renewing` makes another pool, and asks again the evaluations that were under way.
"""

import functools
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, TypeVar

from jaxbo._check import require, takes

T = TypeVar("T")


class LostWorkerError(RuntimeError):
    """The worker of an evaluation died, and so did the worker that was asked again.

    To `drive` and `drive_async` it is a failed evaluation like any other.

    Example:
        >>> import jaxbo
        >>> issubclass(jaxbo.LostWorkerError, RuntimeError)
        True
    """


class Renewing(Executor):
    """An executor whose pool is made anew when a worker of it dies.

    `make` is called at once, and again after each death. Evaluations that were under way are then asked
    again, once. They run in turn, each alone in a pool of its own. So an evaluation that kills its
    worker is not mistaken for the others beside it. Evaluations that had not begun are given to the
    next pool. If the worker dies again, the future raises `LostWorkerError`.

    A future can be cancelled until it is sent to a worker, and while it waits to be asked again.

    Args:
        make: A function without arguments that returns an executor. This executor must break
            (`BrokenExecutor`) when a worker dies, as `lambda: ProcessPoolExecutor(8,
            get_context("spawn"))` does.

    Raises:
        ValueError: `make` is not such a function, or returns something else than an `Executor`.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> import jaxbo
        >>> with jaxbo.Renewing(lambda: ThreadPoolExecutor(2)) as pool:
        ...     pool.submit(pow, 2, 3).result()
        8
    """

    def __init__(self, make: Callable[[], Executor]):
        fine = callable(make) and takes(make, 0)
        require(fine, f"make must be a function without arguments, got {make!r}.")
        self._make = make
        # Never held while a pool is given something or told to end: it may call back.
        self._lock = threading.Lock()
        self._alone, self._ending = threading.Lock(), threading.Lock()
        self._open: dict[_Evaluation, None] = {}  # in the order of asking
        self._menders: list[threading.Thread] = []
        self._closed = False
        self._pool: Executor | None = self._new()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Gives a call to the pool.

        Args:
            fn: The function to call.
            args: Its arguments.
            kwargs: Its named arguments.

        Returns:
            The future of its result.

        Raises:
            RuntimeError: The executor has been shut down.
        """
        evaluation = _Evaluation(self, _Call(fn, args, kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open[evaluation] = None
        try:
            self._place(evaluation)
        except BaseException:
            self._close(evaluation)
            raise
        return evaluation

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls, and ends the pool after the calls that are left.

        Args:
            wait: Whether to return only when all workers have ended.
            cancel_futures: Whether to cancel the calls that have not begun.
        """
        with self._lock:
            self._closed = True
            left = list(self._open)
        if cancel_futures:
            for evaluation in left:
                evaluation.cancel()
        if wait:
            self._end(left)
        else:
            threading.Thread(target=self._end, args=(left,), daemon=True).start()

    def _end(self, left: "list[_Evaluation]") -> None:
        """Waits for the calls that are left, and for every worker."""
        futures.wait(left)
        with self._lock:
            menders = list(self._menders)
        for mender in menders:
            mender.join()
        with self._ending:  # a pool of processes cannot be shut down by two at the same time
            if self._pool is not None:
                self._pool.shutdown(wait=True)

    def _new(self) -> Executor:
        pool = self._make()
        require(isinstance(pool, Executor), f"make must return an Executor, got {pool!r}.")
        return pool

    def _place(self, evaluation: "_Evaluation") -> None:
        """Gives it to the pool that all share."""
        with self._lock:
            fresh = self._pool is None
            pool = self._new() if self._pool is None else self._pool
            self._pool = evaluation.pool = pool
        try:
            outcome = pool.submit(evaluation.call)
        except RuntimeError as error:
            if evaluation.pool is not pool:  # broke meanwhile, and a mender has it
                return
            if fresh or not isinstance(error, BrokenExecutor):
                raise
            self._renew(pool)
            return
        with self._lock:
            if evaluation.pool is not pool:
                return
            evaluation.outcome = outcome
        outcome.add_done_callback(functools.partial(self._ended, evaluation, pool))

    def _ended(self, evaluation: "_Evaluation", pool: Executor, outcome: Future) -> None:
        with self._lock:
            if evaluation.outcome is not outcome:  # lost, and a mender has it
                return
        try:
            value = outcome.result()
        except BrokenExecutor:
            self._renew(pool)
        except BaseException as error:
            self._finish(evaluation, error=error)
        else:
            self._finish(evaluation, value)

    def _renew(self, pool: Executor) -> None:
        """After a worker of `pool` died. A single evaluation that says so is enough: others may never.

        Called by threads of the pool, perhaps while it is locked: so others do the work.
        """
        with self._lock:
            mine = [one for one in self._open if one.pool is pool and not one.survived]
            if self._pool is pool:
                self._pool = None
            elif not mine:
                return
            begun = [one for one in mine if one.begun]
            waiting = [one for one in mine if not one.begun]
            for one in mine:
                one.pool = one.outcome = None
            mender = threading.Thread(target=self._mend, args=(pool, waiting, begun))
            self._menders = [thread for thread in self._menders if thread.is_alive()] + [mender]
            mender.start()

    def _mend(
        self, pool: Executor, waiting: "list[_Evaluation]", begun: "list[_Evaluation]"
    ) -> None:
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        finally:
            for evaluation in waiting:
                try:
                    self._place(evaluation)
                except BaseException as error:
                    self._finish(evaluation, error=error)
            with self._alone:
                for evaluation in begun:
                    self._again(evaluation)

    def _again(self, evaluation: "_Evaluation") -> None:
        """Once more, with nothing beside it."""
        if evaluation.done():  # cancelled
            return
        try:
            with self._new() as pool:
                evaluation.outcome = pool.submit(evaluation.call)
                value = evaluation.outcome.result()
        except BrokenExecutor as broken:
            error = LostWorkerError("its worker died, and so did the one that was asked again.")
            error.__cause__ = broken
            self._finish(evaluation, error=error)
        except BaseException as error:
            self._finish(evaluation, error=error)
        else:
            self._finish(evaluation, value)

    def _close(self, evaluation: "_Evaluation") -> bool:
        """Whether it was open; nobody else closes it then."""
        with self._lock:
            return self._open.pop(evaluation, self) is None

    def _finish(
        self, evaluation: "_Evaluation", value: Any = None, error: BaseException | None = None
    ) -> None:
        if not self._close(evaluation):
            return
        if error is None:
            evaluation.set_result(value)
        else:
            evaluation.set_exception(error)

    def _withdraw(self, evaluation: "_Evaluation") -> bool:
        """Whether it had not begun, and never will."""
        with self._lock:
            if evaluation.begun or evaluation not in self._open:
                return evaluation.cancelled()
            del self._open[evaluation]
            evaluation.call.drop()
        Future.cancel(evaluation)
        evaluation.set_running_or_notify_cancel()  # or who waits for it would go on waiting
        return True


class _Evaluation(Future):
    """An evaluation that was asked for, whichever pool it is in."""

    def __init__(self, executor: Renewing, call: "_Call"):
        super().__init__()
        self.executor, self.call = executor, call
        self.pool: Executor | None = None  # the one shared by all, if it is there
        self.outcome: Future | None = None  # a pool's own future

    @property
    def begun(self) -> bool:
        return self.outcome is not None and (self.outcome.running() or self.outcome.done())

    @property
    def survived(self) -> bool:
        """Whether a pool has an outcome of its own."""
        if self.outcome is None or not self.outcome.done():
            return False
        return self.outcome.cancelled() or not isinstance(self.outcome.exception(), BrokenExecutor)

    def cancel(self) -> bool:
        return self.executor._withdraw(self)

    def running(self) -> bool:
        return not self.done() and self.begun


class _Call:
    """The call that a pool is given; nothing, if it was dropped before the pool came to it.

    A pool's own futures are left alone: Python 3.11's pool of processes hangs for ever if a worker dies
    while a cancelled future waits (`InvalidStateError` in the thread that should say so).
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.call = functools.partial(fn, *args, **kwargs)

    def drop(self) -> None:
        self.call = functools.partial(bool)

    def __call__(self) -> Any:
        return self.call()

    def __reduce__(self) -> Any:  # so that workers need not import this module, and JAX
        return self.call.__reduce__()
