"""The places that evaluate a Python objective: processes of this machine, a given executor, or here.

    executor=4       four processes, spawned; one that dies or is too late is replaced
    an Executor      of `concurrent.futures`, or of a library that has one
    executor=None    here, one evaluation after the other

Only the first can end an evaluation that is too late. A thread cannot be ended, and a pool of processes
does not say which process has which evaluation.
"""

import multiprocessing
import operator
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jaxbo._check import require, seconds, whole
from jaxbo.runs._begun import Begun
from jaxbo.runs.renewing import LostWorkerError, Renewing

#: A number of processes, an executor, or this thread.
Where: TypeAlias = Executor | int | None
#: How a script begins whose processes are spawned: each of them imports it.
GUARD = 'if __name__ == "__main__":'


def _begin_worker() -> None:
    """Run first in each process. An interrupt at the keyboard is for the process that has the run.

    A process ends when its parent has died, or it would wait for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


class LateError(TimeoutError):
    """An evaluation took longer than `timeout` seconds."""

    def __init__(self, timeout: float):
        super().__init__(f"the evaluation took longer than timeout={timeout:g} seconds")


class Here(Executor):
    """Evaluates in this thread, as it is asked; `through` calls it, to note its beginning and its end."""

    def __init__(self, through: Callable[..., Any] | None = None):
        self.through = operator.call if through is None else through

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        outcome = Future()
        try:
            outcome.set_result(self.through(fn, *args, **kwargs))
        except (Exception, SystemExit) as error:  # kept for the caller, which decides
            outcome.set_exception(error)
        return outcome


class Processes(Executor):
    """`count` processes, each a pool of its own, so that a death concerns a single evaluation.

    An evaluation of more than `timeout` seconds raises `LateError`, and its process is killed. When a
    process dies, its evaluation is asked again, once, and then raises `LostWorkerError`.
    """

    def __init__(self, count: int, timeout: float | None = None):
        self.timeout, self._ended = timeout, False
        self._threads = ThreadPoolExecutor(count)  # each waits for one process
        self._idle: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()
        self._pools: set[ProcessPoolExecutor] = set()
        for _ in range(count):
            self._add()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._evaluate, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for pool in list(self._pools):
            pool.shutdown(wait)

    def kill(self) -> None:
        """Ends all evaluations at once, and begins no other."""
        self._ended = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in list(self._pools):
            _kill(pool)

    def _add(self) -> None:
        pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        self._pools.add(pool)
        self._idle.put(pool)

    def _evaluate(self, call: Callable[[], Any]) -> Any:
        try:
            return self._once(call)
        except BrokenExecutor:
            pass
        try:
            return self._once(call)
        except BrokenExecutor as error:
            raise LostWorkerError(
                "its process died, and so did another one that was asked"
            ) from error

    def _once(self, call: Callable[[], Any]) -> Any:
        pool = self._idle.get()
        try:
            if self._ended:
                raise CancelledError("the run was interrupted")
            # Time counts from when the process is there and has imported the objective.
            pool.submit(operator.is_, call, None).result()
            outcome = pool.submit(call)
            if self.timeout is not None and not futures.wait([outcome], self.timeout).done:
                raise LateError(self.timeout)
            value = outcome.result()
        except (BrokenExecutor, LateError):
            self._pools.discard(pool)
            _kill(pool)
            self._add()
            raise
        except BaseException:
            self._idle.put(pool)
            raise
        self._idle.put(pool)
        return value


def _kill(pool: ProcessPoolExecutor) -> None:
    """Kills its processes. Python has no public way before 3.14."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def opened(executor: Where, timeout: float | None, path: Path | None = None) -> Iterator[Executor]:
    """The executor that is meant. Processes end with the `with`, on an interrupt at once.

    `path` is the file of the run, where evaluations here are noted.
    """
    if not isinstance(executor, int | np.integer):
        here = Here(None if path is None else Begun(path))
        yield here if executor is None else executor
        return
    processes = Processes(int(executor), timeout)
    try:
        yield processes
    except KeyboardInterrupt:
        processes.kill()
        raise
    finally:
        processes.shutdown()


def check_executor(executor: Any, objective: Any, timeout: Any) -> None:
    """`ValueError` unless it evaluates, keeps to `timeout`, and does not wait for ever."""
    if timeout is not None:
        seconds("timeout", timeout)
        require(
            executor is not None,
            "an evaluation here cannot be ended, so timeout needs an executor: executor=1 is a process "
            "that can be.",
        )
    if isinstance(executor, int | np.integer) and not isinstance(executor, bool):
        whole("executor", executor, least=1)
        _check_spawned(objective)
        return
    require(
        executor is None or isinstance(executor, Executor),
        "executor must be a number of processes, such as 4, an Executor of concurrent.futures, or None "
        f"to evaluate here; got {executor!r}.",
    )
    pool = executor._pool if isinstance(executor, Renewing) else executor
    require(
        not _forks(pool),
        "executor is a ProcessPoolExecutor that forks, and JAX has threads: what is forked from them can "
        'wait for ever. Write ProcessPoolExecutor(4, multiprocessing.get_context("spawn")), or '
        "executor=4.",
    )


def _forks(pool: Any) -> bool:
    """Whether processes of this pool are still to be forked."""
    if not isinstance(pool, ProcessPoolExecutor) or getattr(pool, "_processes", None):
        return False
    context = getattr(pool, "_mp_context", None)
    return context is not None and context.get_start_method() == "fork"


def _check_spawned(objective: Any) -> None:
    """`ValueError` for an objective that a new process cannot have."""
    main = sys.modules.get("__main__")
    require(
        not getattr(multiprocessing.current_process(), "_inheriting", False),
        f"each process of executor imports this script: put what starts the run under `{GUARD}`.",
    )
    require(
        getattr(objective, "__module__", None) != "__main__" or hasattr(main, "__file__"),
        "executor is a number of processes, which cannot import what is typed in a session: put the "
        "objective in a module, or give a ThreadPoolExecutor.",
    )
    try:
        pickle.dumps(objective)
    except Exception as error:
        raise ValueError(
            "executor is a number of processes, and the objective cannot be sent to one: make it a "
            f"function of a module, by def, or give a ThreadPoolExecutor ({error})."
        ) from error
