"""Evaluations of a Python objective, in turn or in an executor; failures are survived."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from decimal import Decimal
from numbers import Real
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Float

from jaxbo._check import require, shown
from jaxbo._warning import warn
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.outcomes import Outcome, names_of, numbers_of
from jaxbo.algos.bo import LARGEST_DESIGN
from jaxbo.domains.space import Space
from jaxbo.runs._ending import Ending
from jaxbo.runs._executors import LateError, check_executor
from jaxbo.runs._flight import Flight
from jaxbo.runs._objective import COMPILED, USUAL, arguments_of
from jaxbo.runs._record import Record
from jaxbo.runs.compiled import check_objective

#: An objective in Python: the value of an agent at a point, or at a dictionary of parameters. It may be
#: `f(x)`, too.
BlackBox: TypeAlias = Callable[..., Any]


#: So many evaluations may fail before the first success; of a longer initial design, all (`tries`).
TRIES = 3


class Evaluator:
    """Evaluates the rows of a record."""

    def __init__(
        self,
        algorithm: AbstractAlgorithm,
        objective: Any,
        record: Record,
        flight: Flight,
        catch: type[Exception] | tuple[type[Exception], ...],
        anew: bool,
        known: int,
        ending: Ending,
    ):
        self.domain, self.objective, self.record = algorithm.domain, objective, record
        self.outcomes = algorithm.outcomes
        self.flight, self.catch, self.ending = flight, catch, ending
        self.count = arguments_of(objective, USUAL)
        #: Whether the record has all evaluations there have been.
        self.anew = anew
        #: How many results were known before.
        self.known = known

    def __call__(self, row: int) -> bool:
        """All values of `row` that are not known already; whether they are, or the run ended before."""
        ended = self.record.ended(row)
        for agent, (numbers, error) in ended.items():
            self.record.put(row, agent, numbers, error, new=False)
        agents = [a for a in range(self.record.values.shape[1]) if a not in ended]
        survived: list[BaseException] = []
        fatal: list[BaseException] = []
        left = len(agents)
        # Evaluations that are under way when one is fatal are still waited for and recorded.
        for agent, outcome in self._outcomes(row, agents, fatal):
            try:
                error = self._put(row, agent, outcome)
            except Exception as unsaved:  # a full disk may have room again for the next
                fatal.append(unsaved)
                continue
            if error is None or self._survives(error):
                left -= 1
            if error is not None and not self._interrupted(error):
                (survived if self._survives(error) else fatal).append(error)
        if fatal:
            raise fatal[0]
        if survived and self._hopeless(row):
            # A mistake in the objective, not bad luck. What failed is not kept: it may be mended.
            self.record.give_up()
            raise survived[0]
        return left == 0

    def _hopeless(self, row: int) -> bool:
        """Whether nothing has succeeded in as many evaluations as it takes to say so."""
        values, agents = self.record.values, self.record.values.shape[1]
        least = tries(self.record.initial * agents, self.known, values.size)
        enough = (row + 1) * agents >= least
        return self.anew and enough and not np.isfinite(values).any()

    def _survives(self, error: BaseException) -> bool:
        return survives(error, self.catch)

    def _interrupted(self, error: BaseException) -> bool:
        """Whether an interrupt that ends the run has reached a worker, too."""
        return self.ending.interrupted and isinstance(error, KeyboardInterrupt)

    def _put(self, row: int, agent: int, outcome: Future) -> BaseException | None:
        """Records an evaluation; returns the exception if it failed."""
        numbers, error = outcome_of(outcome, self.outcomes)
        if error is None:
            self.record.put(row, agent, numbers, None)
            return None
        x = self._argument(row, agent)
        error.add_note(f"evaluating agent {agent} at x = {x} (row {row})")
        if self._survives(error):
            self.record.put(row, agent, numbers, repr(error))
            text = f"agent {agent} failed at x = {x} (row {row}): {error!r}"
            warn(text)
        return error

    def _outcomes(
        self, row: int, agents: list[int], fatal: list[BaseException]
    ) -> Iterator[tuple[int, Future]]:
        """The evaluations as they end. When the run ends, evaluations that have not begun are left
        out.
        """
        waiting: list[int] = list(agents)
        refused: list[Exception] = []

        def ends() -> bool:
            return bool(refused) or self._ends(fatal)

        try:
            while waiting or self.flight.running:
                if not ends():
                    self._submit(row, waiting, refused)
                outcomes = self.flight.ended(ends)
                yield from outcomes
                if ends() and not outcomes:
                    break
            if refused:
                raise refused[0]
        finally:
            self.flight.cancel()

    def _ends(self, fatal: list[BaseException]) -> bool:
        """Whether no more is to begin. Without a file the row ends, or its values would be lost."""
        return bool(fatal) or (self.record.saved is not None and self.ending.now())

    def _submit(self, row: int, waiting: list[int], refused: list[Exception]) -> None:
        """Hands evaluations to the executor while it takes them. An error is `refused`."""
        try:
            if waiting:
                self.flight.must_have_a_worker()
            while waiting and self.flight.free:
                agent = waiting[0]
                arguments = (agent, self._argument(row, agent))[-self.count :]
                self.record.begin(row, agent)
                self.flight.submit(agent, self.objective, *arguments)
                waiting.pop(0)
        except Exception as error:  # of a pool that takes nothing more
            refused.append(error)

    def _argument(self, row: int, agent: int) -> Any:
        x = self.record.queries[row, agent]
        return self.domain.decode(x) if isinstance(self.domain, Space) else x.copy()


class BadValueError(ValueError):
    """An objective that returned something else than a number: a mistake, never survived."""


class NotFiniteError(ValueError):
    """An objective that returned NaN, an infinity or more than the precision holds: it has failed."""


def tries(initial: int, known: int, evaluations: int) -> int:
    """How many evaluations must fail, none having succeeded, to end a run of so many.

    `initial` are the evaluations of the initial design, in whose place `known` results may stand. After
    known results the model is asked at once, and its first queries may all be where evaluations fail.
    """
    return min(max(TRIES, initial, min(known, LARGEST_DESIGN)), evaluations)


def check_catch(catch: Any) -> None:
    """`ValueError` unless all of them are types of exceptions."""
    kinds = catch if isinstance(catch, tuple) else (catch,)
    require(
        all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds),
        f"catch must be types of exceptions, got {catch!r}.",
    )


def check_way(algorithm: AbstractAlgorithm, objective: Any, executor: Any, timeout: Any) -> bool:
    """Whether the objective is compiled. `ValueError` for an objective that cannot be evaluated in this
    way.
    """
    if arguments_of(objective, USUAL) != COMPILED:
        check_executor(executor, objective, timeout)
        _warn_if_idle(algorithm, executor)
        return False
    check_objective(algorithm, objective)
    require(
        executor is None and timeout is None,
        "an executor and a timeout are for a Python objective, f(x) or f(agent, x); this one is compiled "
        "and evaluated here.",
    )
    return True


def _warn_if_idle(algorithm: AbstractAlgorithm, executor: Any) -> None:
    """A warning for more processes than evaluations at the same time."""
    most = algorithm.targets
    if isinstance(executor, int | np.integer) and executor > most:
        warn(
            f"executor={executor} is so many processes, and at most {most} evaluate at the same time: "
            f"{type(algorithm).__name__} has {most} workers or agents that ask."
        )


def survives(error: BaseException, catch: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether a run goes on after this error of an evaluation."""
    if isinstance(error, BrokenExecutor | CancelledError | BadValueError):
        return False
    if isinstance(error, SystemExit):  # of `sys.exit`: Python has it apart from other exceptions
        return issubclass(Exception, catch)
    return isinstance(error, (NotFiniteError, LateError, catch))


def outcome_of(
    ended: Future, outcomes: Sequence[Outcome] = ()
) -> tuple[Float[np.ndarray, " numbers"], BaseException | None]:
    """The value that an evaluation returned and its outcomes, or NaN and why there is none."""
    none = np.full(1 + len(outcomes), np.nan)
    if ended.cancelled():
        text = "the executor has cancelled this evaluation: was it shut down?"
        return none, CancelledError(text)
    # Looked at and not raised: an interrupt of this thread is nobody's outcome.
    if (raised := ended.exception()) is not None:
        return none, raised
    try:
        return finite_numbers(ended.result(), outcomes), None
    except ValueError as error:
        return none, error


def finite_numbers(result: Any, outcomes: Sequence[Outcome]) -> Float[np.ndarray, " numbers"]:
    """The value that an objective returned, then its outcomes. Errors are as in `finite_number`."""
    try:
        numbers = numbers_of(outcomes, result)
    except ValueError as error:
        raise BadValueError(str(error)) from error
    names = names_of(outcomes) if outcomes else [""]
    pairs = zip(numbers, names, strict=True)
    return np.asarray([finite_number(*pair) for pair in pairs], np.float64)


def number(value: Any, name: str = "") -> float:
    """The result of an objective, as a number; infinite if float64 has none so large.

    NaN for a masked value, such as the mean of masked values alone.
    """
    try:
        # Python has decimal numbers apart from other real numbers; NumPy counts durations among them.
        if isinstance(value, Real | Decimal) and not isinstance(value, np.generic):
            return float(value)
        array = np.asarray(value)
        if array.shape == () and _is_real(array.dtype):
            return np.nan if np.ma.is_masked(value) else float(array)
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        pass
    raise BadValueError(
        f"the objective must return one real number{_as(name)}, got {shown(value)}."
    )


def _as(name: str) -> str:
    return name and f" as {name!r}"


def _is_real(dtype: np.dtype) -> bool:
    """Whether its numbers are real, such as JAX's narrow types, which are no kind of NumPy's."""
    return dtype.kind in "biuf" or jax.dtypes.issubdtype(dtype, np.floating)


def finite_number(value: Any, name: str = "") -> float:
    """`number`, if the model can be told it. `NotFiniteError` if it cannot."""
    given = number(value, name)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(float))
    if not abs(given) <= float(np.finfo(dtype).max):
        raise NotFiniteError(
            f"the objective returned {given}{_as(name)}, expected a finite number that {dtype} holds."
        )
    return given
