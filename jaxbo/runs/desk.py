"""Queries handed out by number, whose results are taken back in any order.

This is Algorithm 2 of EGP-TS (Thompson sampling by an ensemble of Gaussian processes). Each result is
told as it comes, and then one new query is asked. Query t comes from its own key, whatever order results
arrive in. With a single worker, a desk asks the same queries as `run`. The state is a function of the key
and of the results in their order.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

import threading
import time
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxbo import _version
from jaxbo._check import require
from jaxbo._direction import Direction, check_direction, upward
from jaxbo._warning import warn
from jaxbo.algos.base import _origin, outcomes
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.base.keys import design_keys, round_keys, run_keys
from jaxbo.algos.base.known import point
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.algos.bo import BO, first_design
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.runs import _steps
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
    """The record of a desk and the state after it: one field of the desk, so both change together."""

    tickets: Tickets
    state: State


class Desk:
    """Queries handed out one by one, results taken back in any order.

        desk = Desk(EGP(domain, surrogate, workers=4), jr.key(0), initial=10)
        number, x = desk.ask()
        desk.tell(number, value)

    A domain in the place of a method stands for `BO(domain)`, and `initial` is then `first_design`'s.

    Where the space declares a `Context`, `ask(context={...})` gives its values, and the query has them.

    At most `algorithm.targets` queries are out at the same time. The first ones are of the initial
    design, until `initial` results are in. `known` are results from before, in any form that `drive`
    takes, and are among the desk's results; `first` are points that are asked before all others,
    besides the `initial` ones. A result from elsewhere that comes later is told by `tell_new`. Nothing
    is compiled again, whatever the order. A value that is NaN, infinite or more than JAX's precision
    holds is a failed evaluation, with a warning: `failures` says which. Values stay float64; `state` is
    of their differences to `state.origin`, as in `drive`. With `direction="minimize"` small values are
    good, and `state` is of their negative. `checkpoint` is a file that holds all of it after every
    call: a Desk made anew with the same arguments, or a larger capacity, goes on, and hands the queries
    that were out out again. Threads may share it: each call is one step, and `results` are of one
    moment. A Desk keeps its file to itself until `close`, the end of a `with`, or until nothing refers
    to the Desk.

    `ValueError`, and nothing changes, for a number that is not out: told already, or never handed out;
    for more queries than workers; for more results than the surrogate can hold; for a value that is
    not a number; and for a file that is damaged, of another run or in use (`CheckpointError`). Nothing
    changes either if the file cannot be written (`OSError`, for example of a full disk): repeat the
    call when it can be.
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
        self._ahead = of_workers(algorithm, key, begin.told + self.initial)
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
        """Leaves the checkpoint to others. Results can still be read. Without a checkpoint, no change."""
        with self._lock:
            if self._saved is not None:
                self._saved.close()

    @property
    def out(self) -> tuple[int, ...]:
        """The numbers of the queries whose results have not come."""
        return self._now.tickets.out

    @property
    def told(self) -> int:
        """How many results have come."""
        return len(self._now.tickets.order)

    @property
    def answered(self) -> int:
        """How many results of the desk's own queries have come."""
        return self._now.tickets.answered

    def own(self, numbers: Iterable[int]) -> int:
        """How many of these numbers are of the desk's own queries, and not of results from elsewhere."""
        return self._now.tickets.own(numbers)

    def ask(self, *, context: Mapping[str, Any] | None = None) -> Ticket:
        """The next query and its number, for the values of the space's context, if it has any."""
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
        """The key of the noise of this query's evaluation, for a compiled objective."""
        tickets = self._now.tickets
        tickets.must_be(number)
        row = tickets.row(number)
        if tickets.entries[number].origin == ASKED:
            return jr.fold_in(round_keys(self._keys, jnp.asarray(row)).noise, 0)
        if row < self.initial:  # points that are asked first leave the others as they are
            row = (row - len(self._begin.first)) % self.initial
        return jr.fold_in(design_keys(self._keys, jnp.asarray(row)).noise, 0)

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
        return _steps.design(algorithm, key, jax.vmap)[0]

    def _asked(self, algorithm: AbstractOneModel, row: Count, tickets: Tickets) -> Point:
        count, dim = self.algorithm.targets, self.algorithm.domain.dim
        # Those that were out before a stop are pending as well, as many as there is room for.
        pending, out = np.zeros((count, dim), float), (*tickets.out, *tickets.returned)[:count]
        for place, number in enumerate(out):
            pending[place] = tickets.entries[number].x
        busy = jnp.arange(count) < len(out)
        key = round_keys(self._keys, row).ask
        self._ahead.wait()
        return _steps.ask_one(algorithm, key, self._now.state, jnp.asarray(pending, float), busy)

    def tell(self, number: int, value: Any) -> None:
        """The result of a query that is out; NaN if it failed.

        Where the method has outcomes, a dictionary, `{"value": y, "latency": t}`.
        """
        self._tell(number, *self._read(value))

    def tell_new(self, x: Any, value: Any) -> int:
        """A result from elsewhere, NaN if it failed; returns the number that it gets.

        `x` is a point of the domain, or on a `Space` a dictionary of parameters. `ValueError`, and
        nothing changes, for one outside of the domain, and for more results than the surrogate can hold.
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
        """A query that is out has failed: why, `failures` will say, and a warning does."""
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
        """Takes one result more; nothing has changed unless it is saved."""
        entry = tickets.entries[number]
        seconds = time.time() - entry.start
        result = entry._replace(numbers=numbers, error=why, seconds=seconds)
        after = self._learned(_Moment(tickets, self._now.state), number, result)
        self._save(after.tickets)
        self._now = after

    def _learned(self, now: _Moment, number: int, result: Entry) -> _Moment:
        """The moment after one result more."""
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
        """The moment of these, with all results told anew in their order."""
        state = _steps.init(self.algorithm, self._keys.init, jax.vmap)
        now = _Moment(tickets.blank(), state)
        for number in tickets.order:
            now = self._learned(now, number, tickets.entries[number])
        return now

    @property
    def state(self) -> State:
        """The method's state with all results; made anew each time before the initial ones are in."""
        tickets, state = self._now
        if self._has_begun(tickets) or not tickets.order:
            return state
        return self._told_before(state, tickets)

    def _told_before(self, state: State, tickets: Tickets) -> State:
        """The state with these results, all of which came before the model was asked."""
        for row, number in enumerate(tickets.order):
            state = self._told(
                state, tickets.entries[number], _steps.stage(row, len(tickets.order))
            )
        return state

    def _has_begun(self, tickets: Tickets) -> bool:
        """Whether these results are all that come before the model is asked."""
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
        return _steps.tell_one(self.algorithm, state, jnp.asarray(result.x), told, stage)

    @property
    def results(self) -> Results:
        """All results of this moment; each property below is of its own, where other threads tell."""
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
        """Of all results, in the order in which they came."""
        return jnp.asarray(self._now.tickets.queries, float)

    @property
    def values(self) -> Float[np.ndarray, " evaluations"]:
        """Of all results, in the order in which they came; NaN where one failed."""
        return self._now.tickets.values

    @property
    def outcomes(self) -> dict[str, Float[np.ndarray, " evaluations"]]:
        """Those of the method by name, of all results in the order in which they came."""
        return self._now.tickets.observed

    @property
    def feasible(self) -> Bool[np.ndarray, " evaluations"]:
        """Which results did not fail, and meet the bounds of all outcomes."""
        return self._now.tickets.feasible

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The queries that failed, in that order, and why."""
        return self._now.tickets.failures

    @property
    def best(self) -> tuple[Any, float]:
        """The best result that meets all bounds, and its query. `ValueError` where there is none."""
        tickets = self._now.tickets
        values, feasible = tickets.values, tickets.feasible
        bounds = " that meets the bounds of all outcomes" if self.algorithm.outcomes else ""
        require(feasible.any(), f"there is no result yet{bounds}.")
        row = int(np.argmax(np.where(feasible, upward(self.direction, values), -np.inf)))
        return self._ticket(tickets, tickets.order[row]).x, float(values[row])

    def table(self) -> Trials:
        """A dictionary for each query, by its number; `known=` takes it back.

        Queries of the model count rounds from 0; those of the initial design and results from elsewhere
        are in round -1.
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
