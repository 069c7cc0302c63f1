"""Evaluations of a Python objective, one after the other or in an executor; failures are survived."""

import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from numbers import Real
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxbo._check import require
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.runs._record import Record

#: An objective in Python: the value of an agent at a point, or at a dictionary of parameters.
BlackBox: TypeAlias = Callable[[int, Any], float]


#: So many evaluations may fail before the first success; of a longer initial design, all.
TRIES = 3

#: Seconds between two looks for evaluations that were cancelled without a word.
BETWEEN_LOOKS = 0.5


class Evaluator:
    """Evaluates the rows of a record."""

    def __init__(
        self,
        domain: AbstractDomain,
        objective: Any,
        record: Record,
        executor: Executor | None,
        catch: type[Exception] | tuple[type[Exception], ...],
        anew: bool,
    ):
        self.domain, self.objective, self.record = domain, objective, record
        self.executor, self.catch = executor, catch
        #: Whether the record has all evaluations there have been.
        self.anew = anew

    def __call__(self, row: int) -> None:
        """All values of `row` that are not known already."""
        ended = self.record.ended(row)
        for agent, (value, error) in ended.items():
            self.record.put(row, agent, value, error, new=False)
        agents = [a for a in range(self.record.values.shape[1]) if a not in ended]
        survived: list[BaseException] = []
        fatal: list[BaseException] = []
        # Evaluations that are under way when one is fatal are still waited for and recorded.
        for agent, outcome in self._outcomes(row, agents, stop=lambda: bool(fatal)):
            try:
                error = self._put(row, agent, outcome)
            except Exception as unsaved:  # a full disk may have room again for the next
                fatal.append(unsaved)
                continue
            if error is not None:
                (survived if self._survives(error) else fatal).append(error)
        if fatal:
            raise fatal[0]
        if survived and self._hopeless(row):
            # A mistake in the objective, not bad luck. What failed is not kept: it may be mended.
            self.record.give_up()
            raise survived[0]

    def _hopeless(self, row: int) -> bool:
        """Whether nothing has succeeded in as many evaluations as it takes to say so."""
        values, agents = self.record.values, self.record.values.shape[1]
        enough = (row + 1) * agents >= tries(self.record.initial * agents, values.size)
        return self.anew and enough and not np.isfinite(values).any()

    def _survives(self, error: BaseException) -> bool:
        return survives(error, self.catch)

    def _put(self, row: int, agent: int, outcome: Future) -> BaseException | None:
        """Records one evaluation; returns the exception if it failed."""
        value, error = outcome_of(outcome)
        if error is None:
            self.record.put(row, agent, value, None)
            return None
        x = self._argument(row, agent)
        error.add_note(f"evaluating agent {agent} at x = {x} (row {row})")
        if self._survives(error):
            self.record.put(row, agent, np.nan, repr(error))
            text = f"agent {agent} failed at x = {x} (row {row}): {error!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return error

    def _outcomes(
        self, row: int, agents: list[int], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, Future]]:
        """The evaluations as they end. After `stop`, those that have not begun are left out."""
        if self.executor is None:
            for agent in agents:
                if stop():
                    return
                self.record.begin(row, agent)
                yield agent, _call(self.objective, agent, self._argument(row, agent))
            return
        futures: dict[Future, int] = {}
        try:
            refused = self._submit(row, agents, futures)
            waiting = set(futures)
            while waiting:
                if refused is not None or stop():
                    waiting = {future for future in waiting if not future.cancel()}
                done = any_ended(waiting)
                waiting -= done
                for future in done:
                    yield futures[future], future
            if refused is not None:
                raise refused
        finally:
            for future in futures:
                future.cancel()

    def _submit(self, row: int, agents: list[int], futures: dict[Future, int]) -> Exception | None:
        """Hands evaluations to the executor. Returns its error if it refuses one."""
        assert self.executor is not None
        try:
            for agent in agents:
                self.record.begin(row, agent)
                future = self.executor.submit(self.objective, agent, self._argument(row, agent))
                futures[future] = agent
        except Exception as error:  # of a pool that takes nothing more
            return error
        return None

    def _argument(self, row: int, agent: int) -> Any:
        x = self.record.queries[row, agent]
        return self.domain.decode(x) if isinstance(self.domain, Space) else x.copy()


def _call(objective: BlackBox, agent: int, x: Any) -> Future:
    """The outcome of an evaluation in this thread."""
    outcome = Future()
    try:
        outcome.set_result(objective(agent, x))
    except Exception as error:  # kept for the caller, which decides
        outcome.set_exception(error)
    return outcome


class BadValueError(ValueError):
    """An objective that returned something else than a number: a mistake, never survived."""


class NotFiniteError(ValueError):
    """An objective that returned NaN, an infinity or more than the precision holds: it has failed."""


def tries(initial: int, evaluations: int) -> int:
    """How many evaluations must fail, none having succeeded, to end a run of so many.

    `initial` are those of the initial design.
    """
    return min(max(TRIES, initial), evaluations)


def check_catch(catch: Any) -> None:
    """`ValueError` unless these are types of exceptions."""
    kinds = catch if isinstance(catch, tuple) else (catch,)
    require(
        all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds),
        f"catch must be types of exceptions, got {catch!r}.",
    )


def survives(error: BaseException, catch: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether a run goes on after this error of an evaluation."""
    if isinstance(error, BrokenExecutor | CancelledError | BadValueError):
        return False
    return isinstance(error, (NotFiniteError, catch))


def any_ended(futures: Collection[Future]) -> set[Future]:
    """Waits until one has ended or was cancelled. All that have or were; none of none."""
    ended: set[Future] = set()
    while futures and not ended:
        # `Executor.shutdown(cancel_futures=True)` cancels, and wakes nobody who waits.
        wait(futures, timeout=BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
        ended = {future for future in futures if future.done()}
    return ended


def outcome_of(ended: Future) -> tuple[float, BaseException | None]:
    """The number that an evaluation returned, or NaN and why there is none."""
    if ended.cancelled():
        text = "the executor has cancelled this evaluation: was it shut down?"
        return np.nan, CancelledError(text)
    # Looked at and not raised: an interrupt of this thread is nobody's outcome.
    if (raised := ended.exception()) is not None:
        return np.nan, raised
    try:
        return finite_number(ended.result()), None
    except ValueError as error:
        return np.nan, error


def number(value: Any) -> float:
    """What an objective returned, as a number; infinite where float64 has none so large.

    NaN for a value that is masked, such as the mean of nothing but masked ones.
    """
    try:
        if isinstance(value, Real) and not isinstance(value, np.generic):  # NumPy counts durations
            return float(value)
        array = np.asarray(value)
        if array.shape == () and _is_real(array.dtype):
            return np.nan if np.ma.is_masked(value) else float(array)
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        pass
    raise BadValueError(f"the objective must return one real number, got {value!r}.")


def _is_real(dtype: np.dtype) -> bool:
    """Whether its numbers are real, such as JAX's narrow ones, which are no kind of NumPy's."""
    return dtype.kind in "biuf" or jax.dtypes.issubdtype(dtype, np.floating)


def finite_number(value: Any) -> float:
    """`number`, if the model can be told it. `NotFiniteError` if it cannot."""
    given = number(value)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(float))
    if not abs(given) <= float(np.finfo(dtype).max):
        raise NotFiniteError(
            f"the objective returned {given}, expected a finite number that {dtype} holds."
        )
    return given
