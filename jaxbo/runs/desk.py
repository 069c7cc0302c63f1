"""Queries handed out by number, whose results are taken back in any order.

This is Algorithm 2 of EGP-TS (Thompson sampling by an ensemble of Gaussian processes). Each result is
told as it comes, and then a new query is asked. Query t comes from its own key, whatever order results
arrive in. With a single worker, a desk asks the same queries as `run`. The state is a function of the
key and of the results in their order. A desk's programs are compiled in less time than those of `run`
(`_soon`), and round otherwise.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxbo import _version
from jaxbo._check import require
from jaxbo._direction import Direction, check_direction, upward
from jaxbo._warning import warn
from jaxbo.algos.base import _origin, outcomes
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.base.keys import agent_key, design_keys, round_keys, run_keys
from jaxbo.algos.base.known import point
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.algos.bo import BO, first_design
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.runs import _soon, _steps
from jaxbo.runs._ahead import of_workers
from jaxbo.runs._arguments import check_arguments, check_precision, check_room
from jaxbo.runs._checkpoint import Checkpoint, Rows
from jaxbo.runs._context import at, placed
from jaxbo.runs._evaluate import BadValueError, NotFiniteError, finite_numbers
from jaxbo.runs._identity import identity
from jaxbo.runs._start import beginning
from jaxbo.runs._tickets import ASKED, DRAWN, ELSEWHERE, Entry, Tickets
from jaxbo.runs.compiled import check_queries, contained
from jaxbo.runs.results import Results
from jaxbo.runs.table import Trials
from jaxbo.runs.trace import Failure
from jaxbo.types import Count, Key, Point

#: What a checkpoint is of.
KIND = "a desk"


class Ticket(NamedTuple):
    """A query and its number. `x` is a dictionary of parameters on a `Space`, else an array."""

    number: int
    x: Any


class _Moment(NamedTuple):
    """The record of a desk and the state after it: a single field of the desk, so both change
    together.
    """

    tickets: Tickets
    state: State


class Desk:
    """Hands out queries one by one, and takes back results in any order.

    At most `algorithm.targets` queries are out at the same time. The first queries are of the initial
    design, until `initial` results are in. A result from elsewhere is told by `tell_new`. Nothing is
    compiled again, whatever the order. Threads may share a desk: each call is a single step, and
    `results` are of one moment.

    A value that is NaN, infinite or more than JAX's precision holds is a failed evaluation, with a
    warning. `failures` lists them. Values stay float64. `state` is of their differences to
    `state.origin`, as in `drive`. If the space declares a `Context`, `ask(context={...})` gives its
    values, and the query has them.

    A desk keeps its checkpoint to itself until `close`, the end of a `with`, or until nothing refers to
    the desk. If a call raises an error, nothing changes. That includes an `OSError` because the file
    cannot be written, for example on a full disk: repeat the call later.

    Args:
        algorithm: The method. A domain stands for `BO(domain)`.
        key: Random key.
        initial: Number of points of the initial design. Default: 0, or for a domain `first_design` of
            it.
        known: Results from before, in any form that `drive` takes. They are among the desk's results.
        first: Points that are asked before all others, besides the `initial` ones.
        checkpoint: A file that holds everything after every call. A desk made anew with the same
            arguments, or a larger capacity, goes on with it, and hands out again the queries that were
            out.
        direction: "minimize" if small values are good. `state` is then of their negative.

    Raises:
        ValueError: A number is not out, because it was told already or never handed out. There are more
            queries than workers, or more results than the surrogate can hold. A value is not a number.
        CheckpointError: The file is damaged, of another run or in use.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4), candidates=5)
        >>> desk = jaxbo.Desk(method, jax.random.key(0), initial=2)
        >>> number, x = desk.ask()
        >>> desk.tell(number, 1.5)
        >>> desk.told, desk.values.tolist()
        (1, [1.5])
    """

    def __init__(
        self,
        algorithm: AbstractOneModel | AbstractDomain,
        key: Key,
        *,
        initial: int | None = None,
        known: Any = None,
        first: Any = None,
        checkpoint: str | PathLike | None = None,
        direction: Direction = "maximize",
    ):
        if isinstance(algorithm, AbstractDomain):
            initial = first_design(algorithm) if initial is None else initial
            algorithm = BO(algorithm)
        initial = 0 if initial is None else initial
        check_arguments(algorithm, key, kind=AbstractOneModel)
        check_precision(algorithm)
        check_direction(direction)
        begin = beginning(algorithm, known, first, initial)
        #: Results of queries of the desk's own that come before the model is asked.
        self.initial = len(begin.first) + begin.initial
        check_room(algorithm, begin.told + self.initial)
        self.algorithm, self._begin = algorithm, begin
        self.direction: Direction = direction
        self._keys = run_keys(key)
        self._cut = False  # whether a warning was given
        self._lock = threading.RLock()
        self._options = _soon.options(algorithm)
        self._ahead = of_workers(algorithm, key, begin.told + self.initial, self._options)
        self._saved = None
        if checkpoint is not None:
            mine = identity(
                version=_version.__version__,
                algorithm=algorithm,
                key=key,
                initial=begin.initial,
                first=begin.first,
                known=begin.known,
                precision=jnp.zeros(()),
                direction=direction,
            )
            self._saved = Checkpoint(checkpoint, KIND, mine)
            self._saved.resume(self._resume)
        else:
            self._resume(None)

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the checkpoint to others. Results can still be read. Without a checkpoint nothing
        changes.
        """
        with self._lock:
            if self._saved is not None:
                self._saved.close()

    @property
    def out(self) -> tuple[int, ...]:
        """The numbers of the queries that wait for a result."""
        return self._now.tickets.out

    def __repr__(self) -> str:
        """The method, how much is known and the best of it, in a line."""
        tickets = self._now.tickets
        failed = int(np.sum(np.isnan(tickets.values)))
        text = f"Desk({type(self.algorithm).__name__}, {len(tickets.values)} told"
        text += f", {failed} failed" if failed else ""
        if not tickets.feasible.any():
            return text + ")"
        x, value = self.best
        return f"{text}, best {value:.6g} at {x})"

    @property
    def told(self) -> int:
        """The number of results that have come."""
        return len(self._now.tickets.order)

    @property
    def answered(self) -> int:
        """The number of results that are of the desk's own queries."""
        return self._now.tickets.answered

    def own(self, numbers: Iterable[int]) -> int:
        """Counts the numbers that belong to the desk's own queries, and not to results from elsewhere.

        Args:
            numbers: Numbers of queries.

        Returns:
            How many they are.
        """
        return self._now.tickets.own(numbers)

    def ask(self, *, context: Mapping[str, Any] | None = None) -> Ticket:
        """Hands out the next query.

        Args:
            context: Values of the space's context by name. Default: the space has none.

        Returns:
            The query and its number.

        Raises:
            ValueError: All workers are busy, the surrogate is full, or the context does not fit the
                space.
        """
        algorithm = at(self.algorithm, context)
        with self._lock:
            self._must_hold()
            self._must_be_free()
            return self._ask_again(algorithm) or self._ask_anew(algorithm)

    def _must_be_free(self) -> None:
        out, most = self._now.tickets.out, self.algorithm.targets
        require(
            len(out) < most, f"all {most} workers are busy: tell the result of one of {out} first."
        )

    def _ask_again(self, algorithm: AbstractOneModel) -> Ticket | None:
        """A query that was out before a stop; None where there is none in this context."""
        tickets = self._now.tickets
        for number in tickets.returned:
            if contained(algorithm, tickets.entries[number].x[None]).all():
                again = tickets.handed_out(number, time.time())
                ticket = self._ticket(again, number)
                self._now = self._now._replace(tickets=again)
                return ticket
        return None

    def _ask_anew(self, algorithm: AbstractOneModel) -> Ticket:
        tickets = self._now.tickets
        self._must_have_room()
        origin = DRAWN if tickets.answered < self.initial else ASKED
        row = tickets.count(origin)
        if origin == DRAWN:
            x = self._drawn_point(algorithm, row)
        else:
            x = self._asked(algorithm, jnp.asarray(row), tickets)
        check_queries(algorithm, x[None])
        asked = tickets.with_entry(Entry(np.asarray(x), origin, time.time()))
        ticket = self._ticket(asked, len(tickets.entries))
        self._save(asked)
        self._ahead.start(self._now.state)
        self._now = self._now._replace(tickets=asked)
        return ticket

    def _must_have_room(self) -> None:
        capacity, needed = self.algorithm.surrogate.capacity, len(self._now.tickets.entries) + 1
        require(
            capacity is None or needed <= capacity,
            f"the surrogate's capacity of {capacity} is used up: {larger(self.algorithm, needed)}. "
            "A checkpoint goes on with it.",
        )

    def _must_hold(self) -> None:
        if self._saved is not None:
            self._saved.must_hold()

    def noise_key(self, number: int) -> Key:
        """The key of the noise of a query's evaluation, for a compiled objective.

        Args:
            number: Number of the query.

        Returns:
            A random key.
        """
        tickets = self._now.tickets
        tickets.must_be(number)
        row = tickets.row(number)
        if tickets.entries[number].origin == ASKED:
            return agent_key(round_keys(self._keys, jnp.asarray(row)).noise, 0)
        if row < self.initial:  # points that are asked first leave the others as they are
            row = (row - len(self._begin.first)) % self.initial
        return agent_key(design_keys(self._keys, jnp.asarray(row)).noise, 0)

    def _drawn_point(self, algorithm: AbstractOneModel, row: int) -> Point | np.ndarray:
        first = self._begin.first
        if row >= len(first):
            return self._designed(algorithm, row - len(first))
        x = placed(algorithm.domain, first[row])
        if contained(algorithm, x[None]).all():
            return x
        warn(f"row {row} of first is not allowed in this context: another point is asked.")
        return self._designed(algorithm, self.initial + row)  # a row that no other point has

    def _designed(self, algorithm: AbstractOneModel, row: int) -> Point:
        key = design_keys(self._keys, jnp.asarray(row)).points
        return self._step(_steps.design)(algorithm, key, jax.vmap)[0]

    def _asked(self, algorithm: AbstractOneModel, row: Count, tickets: Tickets) -> Point:
        count, dim = _steps.slots(self.algorithm), self.algorithm.domain.dim
        # Those that were out before a stop are pending as well, as many as there is room for.
        pending, out = np.zeros((count, dim), float), (*tickets.out, *tickets.returned)[:count]
        for place, number in enumerate(out):
            pending[place] = tickets.entries[number].x
        busy = jnp.arange(count) < len(out)
        key = round_keys(self._keys, row).ask
        self._ahead.wait()
        out = jnp.asarray(pending, float), busy
        return self._step(_steps.ask_one)(algorithm, key, self._now.state, *out)

    def tell(self, number: int, value: Any) -> None:
        """Takes the result of a query that is out.

        Args:
            number: Number of the query.
            value: The result, NaN if the evaluation failed. If the method has outcomes, a dictionary
                such as `{"value": y, "latency": t}`.
        """
        self._tell(number, *self._read(value))

    def tell_new(self, x: Any, value: Any) -> int:
        """Takes a result from elsewhere.

        Args:
            x: A point of the domain, or on a `Space` a dictionary of parameters by name.
            value: The result, as for `tell`.

        Returns:
            The number that it gets.

        Raises:
            ValueError: The point is outside of the domain, or the surrogate can hold no more results.
                Nothing has changed.
        """
        found = point(x, self.algorithm.domain)
        with self._lock:
            self._must_hold()
            self._must_have_room()
            numbers, why = self._read(value)
            tickets = self._now.tickets.with_entry(Entry(found, ELSEWHERE))
            number = len(tickets.entries) - 1
            self._learn(tickets, number, numbers, why)
        self._warn(number, why)
        return number

    def fail(self, number: int, error: Exception | str) -> None:
        """Records that the evaluation of a query failed, with a warning. `failures` has the reason.

        Args:
            number: Number of the query.
            error: The reason.
        """
        self._tell(number, self._nan, error if isinstance(error, str) else repr(error))

    @property
    def _nan(self) -> np.ndarray:
        return np.full(1 + len(self.algorithm.outcomes), np.nan)

    def _read(self, value: Any) -> tuple[np.ndarray, str | None]:
        """The numbers of a result, and why it is a failure."""
        try:
            return finite_numbers(value, self.algorithm.outcomes), None
        except NotFiniteError as error:
            return self._nan, repr(error)
        except BadValueError as error:
            raise BadValueError(f"value: {error}") from error

    def _tell(self, number: int, numbers: np.ndarray, why: str | None = None) -> None:
        with self._lock:
            tickets = self._now.tickets
            tickets.must_be_out(number)
            self._must_hold()
            self._learn(tickets, int(number), numbers, why)
        self._warn(number, why)

    def _warn(self, number: int, why: str | None) -> None:
        if why is not None:
            warn(f"query {number} failed at x = {self._ticket(self._now.tickets, number).x}: {why}")

    def _learn(self, tickets: Tickets, number: int, numbers: np.ndarray, why: str | None) -> None:
        """Takes a result more; nothing has changed unless it is saved."""
        entry = tickets.entries[number]
        seconds = time.time() - entry.start
        result = entry._replace(numbers=numbers, error=why, seconds=seconds)
        after = self._learned(_Moment(tickets, self._now.state), number, result)
        self._save(after.tickets)
        self._now = after

    def _learned(self, now: _Moment, number: int, result: Entry) -> _Moment:
        """The moment after a result more."""
        state, tickets = now.state, now.tickets.with_result(number, result)
        count = self._begin.told + self.initial
        if self._has_begun(now.tickets):
            state = self._told(state, result, _steps.stage(count, count))
        elif self._has_begun(tickets):
            state = self._told_before(state, tickets)
        if self._has_begun(tickets) and not self._cut:
            self._cut = _origin.warn_if_cut(state, upward(self.direction, tickets.values[:, None]))
        return _Moment(tickets, state)

    def _replayed(self, tickets: Tickets) -> _Moment:
        """The moment of the tickets, with all results told anew in their order."""
        state = self._step(_steps.init)(self.algorithm, self._keys.init, jax.vmap)
        now = _Moment(tickets.blank(), state)
        for number in tickets.order:
            now = self._learned(now, number, tickets.entries[number])
        return now

    @property
    def state(self) -> State:
        """The method's state with all results. Before the initial results are in, it is made anew each
        time.
        """
        tickets, state = self._now
        if self._has_begun(tickets) or not tickets.order:
            return state
        return self._told_before(state, tickets)

    def _told_before(self, state: State, tickets: Tickets) -> State:
        """The state with the results of the tickets, all of which came before the model was asked."""
        for row, number in enumerate(tickets.order):
            state = self._told(
                state, tickets.entries[number], _steps.stage(row, len(tickets.order))
            )
        return state

    def _has_begun(self, tickets: Tickets) -> bool:
        """Whether the tickets have all results that come before the model is asked."""
        others = len(tickets.order) - tickets.answered
        return tickets.answered >= self.initial and others >= self._begin.told

    def _told(self, state: State, result: Entry, stage: Stage) -> State:
        assert result.numbers is not None
        self._ahead.wait()
        value, *rest = result.numbers
        told = np.asarray(upward(self.direction, float(value)), np.float64)
        named = zip(self.algorithm.outcomes, rest, strict=True)
        observed = {outcome.name: number for outcome, number in named}
        state, told = outcomes.told(self.algorithm.outcomes, state, told, observed)
        return self._step(_steps.tell_one)(
            self.algorithm, state, jnp.asarray(result.x), told, stage
        )

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return _soon.compiled(step, self._options)

    @property
    def results(self) -> Results:
        """All results of this moment. Each property below is of a moment of its own if other threads
        tell.
        """
        now = self._now.tickets
        return Results(
            tickets=np.asarray(now.order, int),
            queries=jnp.asarray(now.queries, float),
            values=now.values,
            feasible=now.feasible,
            outcomes=now.observed,
            failures=now.failures,
            direction=self.direction,
        )

    @property
    def queries(self) -> Float[Array, "evaluations dim"]:
        """The points of all results, in the order in which they came."""
        return jnp.asarray(self._now.tickets.queries, float)

    @property
    def values(self) -> Float[np.ndarray, " evaluations"]:
        """The values of all results, in the order in which they came. They are NaN for failed
        evaluations.
        """
        return self._now.tickets.values

    @property
    def outcomes(self) -> dict[str, Float[np.ndarray, " evaluations"]]:
        """The outcomes of all results by name, in the order in which they came."""
        return self._now.tickets.observed

    @property
    def feasible(self) -> Bool[np.ndarray, " evaluations"]:
        """Whether a result did not fail and meets the bounds of all outcomes."""
        return self._now.tickets.feasible

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The queries that failed, in that order, with the reason of each."""
        return self._now.tickets.failures

    @property
    def best(self) -> tuple[Any, float]:
        """The query with the best result that meets all bounds, and its value. `ValueError` if there is
        none.
        """
        tickets = self._now.tickets
        values, feasible = tickets.values, tickets.feasible
        bounds = " that meets the bounds of all outcomes" if self.algorithm.outcomes else ""
        require(feasible.any(), f"there is no result yet{bounds}.")
        row = int(np.argmax(np.where(feasible, upward(self.direction, values), -np.inf)))
        return self._ticket(tickets, tickets.order[row]).x, float(values[row])

    def table(self) -> Trials:
        """A dictionary for each query, by its number; `known=` takes the table back.

        Queries of the model count rounds from 0. Queries of the initial design and results from
        elsewhere are in round -1.
        """
        return self._now.tickets.table(self.algorithm.domain)

    def _forget(self) -> None:
        """As if nothing had been asked. Results from elsewhere stay."""
        with self._lock:
            after = self._replayed(self._now.tickets.elsewhere())
            self._save(after.tickets)
            self._now = after

    def _point(self, number: int) -> np.ndarray:
        """A query, on a `Space` encoded."""
        return self._now.tickets.entries[number].x

    def _ticket(self, tickets: Tickets, number: int) -> Ticket:
        x, domain = tickets.entries[number].x, self.algorithm.domain
        return Ticket(number, domain.decode(x) if isinstance(domain, Space) else x.copy())

    def _save(self, tickets: Tickets) -> None:
        if self._saved is not None:
            self._saved.save(tickets.rows())

    def _resume(self, rows: Rows | None) -> None:
        tickets = self._known() if rows is None else self._nothing.restored(rows)
        capacity, count = self.algorithm.surrogate.capacity, len(tickets.entries)
        require(
            capacity is None or count <= capacity,
            f"the checkpoint has {count} queries, more than the surrogate's capacity of "
            f"{capacity}: {larger(self.algorithm, count)}.",
        )
        self._now = self._replayed(tickets)

    @property
    def _nothing(self) -> Tickets:
        return Tickets(self.algorithm.domain.dim, self.algorithm.outcomes)

    def _known(self) -> Tickets:
        """The results from before."""
        tickets = self._nothing
        for number, (x, numbers) in enumerate(self._begin.results()):
            result = Entry(x, ELSEWHERE, numbers=numbers)
            tickets = tickets.with_entry(result).with_result(number, result)
        return tickets
