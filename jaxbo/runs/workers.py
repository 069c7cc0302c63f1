"""Workers that end when they end: one result is told as it comes, and one new query is asked.

    simulate      random durations, one compiled program
    Desk          hands out queries by number, and takes results back in any order
    drive_async   a Desk before an executor, all of whose workers are kept busy

EGP-TS, Algorithm 2. Query t comes from its own key, whatever order results arrive in: with one worker
all three ask what `run` asks. The state is a function of the key and of the results in their order.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxbo import _version
from jaxbo._check import require, shown, whole
from jaxbo._direction import Direction, check_direction, upward
from jaxbo._shown import Shown
from jaxbo._warning import warn
from jaxbo.algos.base import _origin, outcomes
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.base.keys import design_keys, round_keys, run_keys
from jaxbo.algos.base.known import point
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.algos.base.outcomes import width
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.runs import _steps, table
from jaxbo.runs._ahead import Ahead
from jaxbo.runs._arguments import check_arguments, check_precision
from jaxbo.runs._checkpoint import Checkpoint, Rows
from jaxbo.runs._crew import Crew
from jaxbo.runs._ending import Ending
from jaxbo.runs._evaluate import (
    BadValueError,
    BlackBox,
    NotFiniteError,
    check_catch,
    check_way,
    finite_numbers,
)
from jaxbo.runs._executors import Where, opened
from jaxbo.runs._flight import Flight
from jaxbo.runs._identity import identity
from jaxbo.runs._progress import Progress
from jaxbo.runs._start import beginning
from jaxbo.runs.compiled import (
    Compiled,
    check_objective,
    check_queries,
    contained,
)
from jaxbo.runs.table import KNOWN, RUNNING, Trials
from jaxbo.runs.trace import Failure
from jaxbo.types import Count, Key, Point, Scalar

#: How long worker number `worker` takes for x: a positive number.
Duration: TypeAlias = Callable[[Key, Count, Point], Scalar]


class Timeline(Shown):
    """What was evaluated, in the order in which it ended; times count from the first query.

    `tickets` are the numbers in the order of asking. The initial design is in neither.
    """

    queries: Float[Array, "evaluations dim"]
    values: Float[Array, " evaluations"]
    workers: Int[Array, " evaluations"]
    tickets: Int[Array, " evaluations"]
    started: Float[Array, " evaluations"]
    ended: Float[Array, " evaluations"]


class _Desks(NamedTuple):
    """What each worker is at."""

    x: Float[Array, "workers dim"]
    ticket: Int[Array, " workers"]
    started: Float[Array, " workers"]
    ends: Float[Array, " workers"]


def simulate(
    algorithm: AbstractOneModel,
    objective: Compiled,
    duration: Duration,
    evaluations: int,
    key: Key,
    *,
    initial: int = 0,
) -> tuple[State, Timeline]:
    """`evaluations` by `algorithm.targets` that work side by side, as one compiled program.

    `duration(key, worker, x)` says how long an evaluation takes; NaN is for ever, less than 0 no time at
    all. Before the clock starts, `initial` points of the initial design are evaluated. Pure: `vmap` it
    over keys. With one worker it asks what `run` asks. Raises `ValueError` where sizes do not fit.
    """
    check_arguments(algorithm, key, objective, AbstractOneModel)
    check_precision(algorithm)
    _check_duration(algorithm, duration)
    whole("evaluations", evaluations, least=1)
    whole("initial", initial)
    require(
        not algorithm.outcomes,
        "simulate is for methods without outcomes: take run, or drive_async.",
    )
    _check_room(algorithm, initial + evaluations)
    objective = check_objective(algorithm, objective)
    return _simulate(algorithm, objective, duration, evaluations, key, initial)


def _check_duration(algorithm: AbstractOneModel, duration: Duration) -> None:
    """`ValueError` unless it is a function of a key, a worker and a point that returns one number."""
    form = "duration must be a function f(key, worker, x) of one number"
    function = callable(duration) and not isinstance(duration, type)
    require(function, f"{form}, got {duration!r}.")
    point = jax.ShapeDtypeStruct((algorithm.domain.dim,), jnp.zeros(()).dtype)
    try:
        found = jax.eval_shape(duration, jr.key(0), jnp.zeros((), int), point)
    except TypeError as error:
        raise ValueError(f"{form}: {error}") from error
    real = jnp.issubdtype(getattr(found, "dtype", bool), jnp.number)
    fine = getattr(found, "shape", None) == () and real
    require(fine, f"{form}, and it returns {found}.")


@eqx.filter_jit
def _simulate(
    algorithm: AbstractOneModel,
    objective: Compiled,
    duration: Duration,
    evaluations: int,
    key: Key,
    initial: int,
) -> tuple[State, Timeline]:
    keys, workers = run_keys(key), jnp.arange(algorithm.targets)
    state = _steps.init(algorithm, keys.init, jax.vmap)

    def evaluate(key: Key, x: Point) -> Scalar:
        value = objective(jr.fold_in(key, 0), jnp.zeros((), int), x)
        fine = jnp.isfinite(value) & algorithm.domain.contains(x)
        return jnp.where(fine, value, jnp.nan)

    if initial:
        rows = jnp.arange(initial)
        points, noise = jax.vmap(lambda i: design_keys(keys, i))(rows)
        x = jax.vmap(lambda key: _steps.design(algorithm, key, jax.vmap)[0])(points)
        values = jax.vmap(evaluate)(noise, x)
        stages = jax.vmap(lambda row: _steps.stage(row, initial))(rows)

        def observe(state: State, row: tuple[Point, Scalar, Stage]) -> tuple[State, None]:
            return _steps.tell_one(algorithm, state, *row), None

        state, _ = jax.lax.scan(observe, state, (x, values, stages))

    def begin(
        state: State, desks: _Desks, worker: Count, ticket: Count, now: Scalar, busy: Array
    ) -> _Desks:
        ask_key, noise_key = round_keys(keys, ticket)
        x = _steps.ask_one(algorithm, ask_key, state, desks.x, busy)
        takes = jnp.asarray(duration(jr.fold_in(noise_key, 1), worker, x), now.dtype)
        takes = jnp.where(jnp.isnan(takes), jnp.inf, jnp.maximum(takes, 0))
        row = _Desks(x, ticket, now, now + takes)
        return jax.tree.map(lambda table, one: table.at[worker].set(one), desks, row)

    def fill(desks: _Desks, worker: Count) -> tuple[_Desks, None]:
        zero = jnp.zeros((), desks.ends.dtype)
        return begin(state, desks, worker, worker, zero, workers < worker), None

    count = algorithm.targets
    zeros = jnp.zeros((count,), float)
    empty = _Desks(jnp.zeros((count, algorithm.domain.dim), float), workers, zeros, zeros)
    desks, _ = jax.lax.scan(fill, empty, workers)

    def step(carry: tuple[State, _Desks], i: Count) -> tuple[tuple[State, _Desks], tuple]:
        state, desks = carry
        worker = jnp.argmin(desks.ends)
        x, ticket, started, now = jax.tree.map(lambda table: table[worker], desks)
        value = evaluate(round_keys(keys, ticket).noise, x)
        state = _steps.tell_one(algorithm, state, x, value, _steps.stage(initial, initial))
        desks = begin(state, desks, worker, count + i, now, workers != worker)
        return (state, desks), (x, value, worker, ticket, started, now)

    (state, _), rows = jax.lax.scan(step, (state, desks), jnp.arange(evaluations))
    return state, Timeline(*rows)


# ---------------------------------------------------------------- numbered queries

#: What a checkpoint is of.
KIND = "a desk"
#: Where a query comes from: the points asked first and the initial design, the model, or not the desk.
DRAWN, ASKED, ELSEWHERE = range(3)


def _ahead_of(algorithm: AbstractOneModel, key: Key, initial: int) -> Ahead:
    """`tell_one` and `ask_one`, with arguments as a desk gives them."""
    if isinstance(algorithm.domain, Space):
        algorithm = _over(algorithm, algorithm.domain.somewhere)
    count, dim = algorithm.targets, algorithm.domain.dim
    told = jnp.zeros(dim), jnp.zeros(width(algorithm.outcomes)), _steps.stage(0, initial)
    out = jnp.zeros((count, dim)), jnp.zeros(count, bool)
    return Ahead(
        (_steps.tell_one, lambda state: (algorithm, state, *told)),
        (_steps.ask_one, lambda state: (algorithm, key, state, *out)),
    )


def _at(algorithm: AbstractOneModel, context: Mapping[str, Any] | None) -> AbstractOneModel:
    """The same, asked for points with this context alone; `ValueError` for another context."""
    require(
        context is None or isinstance(context, Mapping),
        f"context must be a dictionary of values by name, got {context!r:.60}.",
    )
    if isinstance(algorithm.domain, Space) and (context or algorithm.domain.context):
        return _over(algorithm, algorithm.domain.at(context or {}))
    require(not context, f"context is for a Space that declares one, got {context!r}.")
    return algorithm


def _over(algorithm: AbstractOneModel, domain: AbstractDomain) -> AbstractOneModel:
    """The same on a part of its domain."""
    return eqx.tree_at(lambda a: a.domain, algorithm, domain)


class Ticket(NamedTuple):
    """A query and its number. `x` is a dictionary of parameters on a `Space`, else an array."""

    number: int
    x: Any


class Desk:
    """Queries handed out one by one, results taken back in any order.

        desk = Desk(EGP(domain, surrogate, workers=4), jr.key(0), initial=10)
        number, x = desk.ask()
        desk.tell(number, value)

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
    that were out out again. Threads may share it: each call is one step. A Desk keeps its file to
    itself until `close`, the end of a `with`, or until nothing refers to the Desk.

    `ValueError`, and nothing changes, for a number that is not out: told already, or never handed out;
    for more queries than workers; for more results than the surrogate can hold; for a value that is
    not a number; and for a file that is damaged, of another run or in use (`CheckpointError`). Nothing
    changes either if the file cannot be written (`OSError`, for example of a full disk): repeat the
    call when it can be.
    """

    def __init__(
        self,
        algorithm: AbstractOneModel,
        key: Key,
        *,
        initial: int = 0,
        known: Any = None,
        first: Any = None,
        checkpoint: str | PathLike | None = None,
        direction: Direction = "maximize",
    ):
        check_arguments(algorithm, key, kind=AbstractOneModel)
        check_precision(algorithm)
        check_direction(direction)
        begin = beginning(algorithm, known, first, initial)
        #: Results of queries of the desk's own that come before the model is asked.
        self.initial = len(begin.first) + begin.initial
        _check_room(algorithm, begin.told + self.initial)
        self.algorithm, self._begin = algorithm, begin
        self.direction: Direction = direction
        self._keys = run_keys(key)
        self._state = _steps.init(algorithm, self._keys.init, jax.vmap)
        self._queries: list[np.ndarray] = []  # by ticket
        self._origins: list[int] = []  # by ticket: `DRAWN`, `ASKED` or `ELSEWHERE`
        self._times: list[list[float]] = []  # by ticket: handed out when, and for how many seconds
        self._values: dict[int, float] = {}  # by ticket, in the order of telling
        self._rest: dict[int, np.ndarray] = {}  # by ticket: outcomes in the method's order
        self._failures: list[Failure] = []
        self._cut = False  # whether a warning was given
        self._returned: list[int] = []  # handed out before a stop, to be handed out again
        self._lock = threading.RLock()
        self._ahead = _ahead_of(algorithm, key, begin.told + self.initial)
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
        with self._lock:
            known = {*self._returned, *self._values}
            return tuple(n for n in range(len(self._queries)) if n not in known)

    @property
    def told(self) -> int:
        """How many results have come."""
        return len(self._values)

    @property
    def answered(self) -> int:
        """How many results of the desk's own queries have come."""
        return self.own(self._values)

    def own(self, numbers: Iterable[int]) -> int:
        """How many of these numbers are of the desk's own queries, and not of results from elsewhere."""
        return sum(self._origins[ticket] != ELSEWHERE for ticket in numbers)

    def ask(self, *, context: Mapping[str, Any] | None = None) -> Ticket:
        """The next query and its number, for the values of the space's context, if it has any."""
        with self._lock:
            return self._ask(_at(self.algorithm, context))

    def _ask(self, algorithm: AbstractOneModel) -> Ticket:
        self._must_hold()
        for number in self._returned:
            if contained(algorithm, self._queries[number][None]).all():
                ticket = self._ticket(number)
                self._returned.remove(number)
                self._times[number] = [time.time(), np.nan]
                return ticket
        out, most = self.out, self.algorithm.targets
        require(
            len(out) < most,
            f"all {most} workers are busy: tell the result of one of {out} first.",
        )
        self._must_have_room()
        origin = DRAWN if self.answered < self.initial else ASKED
        row = self._origins.count(origin)
        if origin == DRAWN:
            x = self._drawn_point(algorithm, row)
        else:
            x = self._asked(algorithm, jnp.asarray(row), out)
        check_queries(algorithm, x[None])
        number = len(self._queries)
        try:
            self._add(np.asarray(x), origin)
            self._save()
            self._ahead.start(self._state)
            return self._ticket(number)
        except BaseException:  # nobody has got the query, even if it was saved
            self._cut_off(number)
            raise

    def _add(self, x: np.ndarray, origin: int) -> None:
        self._queries.append(x)
        self._origins.append(origin)
        self._times.append([np.nan if origin == ELSEWHERE else time.time(), np.nan])

    def _cut_off(self, number: int) -> None:
        """As if this query and all later ones had not been."""
        del self._queries[number:], self._origins[number:], self._times[number:]

    def _must_have_room(self) -> None:
        capacity, needed = self.algorithm.surrogate.capacity, len(self._queries) + 1
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
        with self._lock:
            self._must_be(number)
            origin = self._origins[number]
            row = self._origins[:number].count(origin)
        if origin == ASKED:
            return jr.fold_in(round_keys(self._keys, jnp.asarray(row)).noise, 0)
        if row < self.initial:  # points that are asked first leave the others as they are
            row = (row - len(self._begin.first)) % self.initial
        return jr.fold_in(design_keys(self._keys, jnp.asarray(row)).noise, 0)

    def _drawn_point(self, algorithm: AbstractOneModel, row: int) -> Point | np.ndarray:
        first = self._begin.first
        if row < len(first):
            return _placed(algorithm.domain, first[row])
        key = design_keys(self._keys, jnp.asarray(row - len(first))).points
        return _steps.design(algorithm, key, jax.vmap)[0]

    def _asked(self, algorithm: AbstractOneModel, row: Count, out: tuple[int, ...]) -> Point:
        pending = np.zeros((self.algorithm.targets, self.algorithm.domain.dim), float)
        for place, ticket in enumerate(out):
            pending[place] = self._queries[ticket]
        busy = jnp.arange(self.algorithm.targets) < len(out)
        key = round_keys(self._keys, row).ask
        self._ahead.wait()
        return _steps.ask_one(algorithm, key, self._state, jnp.asarray(pending, float), busy)

    def tell(self, number: int, value: Any) -> None:
        """The result of a query that is out; NaN if it failed.

        Where the method has outcomes, a dictionary, `{"value": y, "latency": t}`.
        """
        try:
            self._tell(number, finite_numbers(value, self.algorithm.outcomes))
        except NotFiniteError as error:
            self.fail(number, error)
        except BadValueError as error:
            raise BadValueError(f"value: {error}") from error

    def tell_new(self, x: Any, value: Any) -> int:
        """A result from elsewhere, NaN if it failed; returns the number that it gets.

        `x` is a point of the domain, or on a `Space` a dictionary of parameters. `ValueError`, and
        nothing changes, for one outside of the domain, and for more results than the surrogate can hold.
        """
        found = point(x, self.algorithm.domain)
        with self._lock:
            self._must_hold()
            self._must_have_room()
            number = len(self._queries)
            self._add(found, ELSEWHERE)
            try:
                self.tell(number, value)
            except BaseException:
                if number not in self._values:
                    self._cut_off(number)
                raise
        return number

    def fail(self, number: int, error: Exception | str) -> None:
        """A query that is out has failed: why, `failures` will say, and a warning does."""
        why = error if isinstance(error, str) else repr(error)
        self._tell(number, np.full(1 + len(self.algorithm.outcomes), np.nan), why)
        text = f"query {number} failed at x = {self._ticket(number).x}: {why}"
        warn(text)

    def _must_be(self, number: int) -> None:
        whole_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
        require(
            whole_number and 0 <= number < len(self._queries),
            f"there is no query number {shown(number)}: {len(self._queries)} were handed out.",
        )

    def _tell(self, number: int, numbers: np.ndarray, why: str | None = None) -> None:
        with self._lock:
            self._must_be(number)
            require(number not in self._values, f"query {number} has been told already.")
            require(number in self.out, f"query {number} is not out: ask for it again first.")
            self._must_hold()
            before = self._state
            try:
                self._learn(int(number), numbers)
                self._times[number][1] = time.time() - self._times[number][0]
                if why is not None:
                    self._failures.append(Failure(int(number), 0, why))
                self._save()
            except BaseException:  # the same call again saves it, perhaps once more
                self._values.pop(int(number), None)
                self._failures = [f for f in self._failures if f.row != int(number)]
                self._state = before
                raise

    def _learn(self, ticket: int, numbers: np.ndarray) -> None:
        """One result more. What stops it on the way leaves all as it was."""
        value, self._rest[ticket] = float(numbers[0]), numbers[1:]
        values, state = {**self._values, ticket: value}, self._state
        known = np.asarray([*values.values()], np.float64)
        count = self._begin.told + self.initial
        if self._has_begun(self._values):
            state = self._told(state, ticket, value, _steps.stage(count, count))
        elif self._has_begun(values):
            state = self._told_before(state, values)
        self._values[ticket], self._state = value, state
        if self._has_begun(self._values) and not self._cut:
            self._cut = _origin.warn_if_cut(state, upward(self.direction, known[:, None]))

    @property
    def state(self) -> State:
        """The method's state with all results; made anew each time before the initial ones are in."""
        with self._lock:
            if self._has_begun(self._values) or not self._values:
                return self._state
            return self._told_before(self._state, self._values)

    def _told_before(self, state: State, values: dict[int, float]) -> State:
        """The state with these results, all of which came before the model was asked."""
        for row, (ticket, value) in enumerate(values.items()):
            stage = _steps.stage(row, len(values))
            state = self._told(state, ticket, value, stage)
        return state

    def _has_begun(self, values: Collection[int]) -> bool:
        """Whether these results are all that come before the model is asked."""
        own = self.own(values)
        return own >= self.initial and len(values) - own >= self._begin.told

    def _told(self, state: State, ticket: int, value: float, stage: Stage) -> State:
        self._ahead.wait()
        x, observed = jnp.asarray(self._queries[ticket]), self._observed([ticket])
        told = np.asarray(upward(self.direction, value), np.float64)
        observed = {name: column[0] for name, column in observed.items()}
        state, told = outcomes.told(self.algorithm.outcomes, state, told, observed)
        return _steps.tell_one(self.algorithm, state, x, told, stage)

    def _observed(self, tickets: Collection[int]) -> dict[str, np.ndarray]:
        """Outcomes by name, of these queries."""
        names = [outcome.name for outcome in self.algorithm.outcomes]
        rows = np.reshape([self._rest[ticket] for ticket in tickets], (len(tickets), len(names)))
        return dict(zip(names, rows.T, strict=True))

    @property
    def queries(self) -> Float[Array, "evaluations dim"]:
        """Of all results, in the order in which they came."""
        with self._lock:
            rows = [self._queries[ticket] for ticket in self._values]
        return jnp.asarray(np.reshape(rows, (-1, self.algorithm.domain.dim)), float)

    @property
    def values(self) -> Float[np.ndarray, " evaluations"]:
        """Of all results, in the order in which they came; NaN where one failed."""
        with self._lock:
            return np.asarray([*self._values.values()], np.float64)

    @property
    def outcomes(self) -> dict[str, Float[np.ndarray, " evaluations"]]:
        """Those of the method by name, of all results in the order in which they came."""
        with self._lock:
            return self._observed(self._values)

    @property
    def feasible(self) -> Bool[np.ndarray, " evaluations"]:
        """Which results did not fail, and meet the bounds of all outcomes."""
        with self._lock:
            return outcomes.feasible(self.algorithm.outcomes, self.values, self.outcomes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The queries that failed, in that order, and why."""
        with self._lock:
            return tuple(self._failures)

    @property
    def best(self) -> tuple[Any, float]:
        """The best result that meets all bounds, and its query. `ValueError` where there is none."""
        with self._lock:
            some = zip(self._values.items(), self.feasible, strict=True)
            known = {ticket: value for (ticket, value), fine in some if fine}
        none = "there is no result yet."
        if self.algorithm.outcomes:
            none = "there is no result yet that meets the bounds of all outcomes."
        require(len(known) > 0, none)
        best = min if self.direction == "minimize" else max
        ticket = best(known, key=known.__getitem__)
        return self._ticket(ticket).x, known[ticket]

    def table(self) -> Trials:
        """A dictionary for each query, by its number; `known=` takes it back.

        Queries of the model count rounds from 0; those of the initial design and results from elsewhere
        are in round -1.
        """
        with self._lock:
            return Trials(map(self._row, range(len(self._queries))))

    def _row(self, ticket: int) -> dict[str, Any]:
        origin, error = self._origins[ticket], dict(self._errors).get(ticket)
        asked = self._origins[:ticket].count(ASKED) if origin == ASKED else -1
        value = self._values.get(ticket, np.nan)
        status = RUNNING if ticket not in self._values else None
        if origin == ELSEWHERE and np.isfinite(value):
            status = KNOWN
        domain, x = self.algorithm.domain, self._queries[ticket]
        nothing = np.full(len(self.algorithm.outcomes), np.nan)
        rest = self._rest[ticket] if ticket in self._values else nothing
        named = [outcome.name for outcome in self.algorithm.outcomes]
        observed = dict(zip(named, rest.tolist(), strict=True))
        start, seconds = self._times[ticket]
        return table.row(domain, x, 0, asked, value, status, error, start, seconds, observed)

    @property
    def _errors(self) -> list[tuple[int, str]]:
        return [(failure.row, failure.error) for failure in self._failures]

    def _forget(self) -> None:
        """As if nothing had been asked. Results from elsewhere stay."""
        with self._lock:
            errors = dict(self._errors)
            kept = [t for t in self._values if self._origins[t] == ELSEWHERE]
            rows = [
                (self._queries[t], self._numbers(t), self._times[t], errors.get(t)) for t in kept
            ]
            self._cut_off(0)
            self._values, self._returned, self._failures = {}, [], []
            self._state = _steps.init(self.algorithm, self._keys.init, jax.vmap)
            for number, (x, numbers, times, error) in enumerate(rows):
                self._add(x, ELSEWHERE)
                self._times[number] = times
                self._learn(number, numbers)
                if error is not None:
                    self._failures.append(Failure(number, 0, error))
            self._save()

    def _numbers(self, ticket: int) -> np.ndarray:
        """The value of a result, then its outcomes."""
        return np.asarray([self._values[ticket], *self._rest[ticket]])

    def _ticket(self, ticket: int) -> Ticket:
        x, domain = self._queries[ticket], self.algorithm.domain
        return Ticket(ticket, domain.decode(x) if isinstance(domain, Space) else x.copy())

    def _save(self) -> None:
        if self._saved is None:
            return
        values = np.full((len(self._queries), *width(self.algorithm.outcomes)), np.nan)
        for ticket in self._values:
            values[ticket] = self._numbers(ticket) if values.ndim == 2 else self._values[ticket]
        order = np.asarray(list(self._values), int)
        rows = np.reshape(self._queries, (-1, self.algorithm.domain.dim))
        info = [order, np.asarray(self._origins, int)]
        times = np.reshape(np.asarray(self._times, float), (-1, 2))
        self._saved.save(Rows(self.told, rows, values, times, info, self._failures, None))

    def _resume(self, rows: Rows | None) -> None:
        if rows is None:
            for x, numbers in self._begin.results():
                self._add(x, ELSEWHERE)
                self._learn(len(self._queries) - 1, numbers)
            return
        order, origins = rows.info
        capacity = self.algorithm.surrogate.capacity
        require(
            capacity is None or len(rows.queries) <= capacity,
            f"the checkpoint has {len(rows.queries)} queries, more than the surrogate's capacity of "
            f"{capacity}: {larger(self.algorithm, len(rows.queries))}.",
        )
        self._queries = [np.asarray(x) for x in rows.queries]
        self._origins, self._times = origins.tolist(), rows.times.tolist()
        for ticket in order.tolist():
            self._learn(ticket, np.atleast_1d(rows.values[ticket]))
        self._failures = [Failure(*failure) for failure in rows.failures]
        self._returned = [t for t in range(len(self._queries)) if t not in self._values]


def _placed(domain: AbstractDomain, x: np.ndarray) -> np.ndarray:
    """A point in the context that was asked for, if the domain has one."""
    if not isinstance(domain, Space) or not domain.context:
        return x
    return np.asarray(domain.project(jnp.asarray(x, float)))


# ---------------------------------------------------------------- before an executor


def drive_async(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int,
    key: Key,
    *,
    executor: Where = None,
    initial: int = 0,
    known: Any = None,
    first: Any = None,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    timeout: float | None = None,
    deadline: float | None = None,
    stop: Callable[[Desk], Any] | None = None,
    direction: Direction = "maximize",
    progress: bool = True,
) -> Desk:
    """`evaluations` of a Python objective, and the `initial` ones before, by workers kept busy.

    `objective(worker, x)`, or `objective(x)`, runs in `executor`, `algorithm.targets` at the same
    time. As soon as one ends, its result is learned and the next query asked. Without an `executor`,
    and where it is a compiled `objective(key, worker, x)`, it is evaluated here, one at a time.
    Returns the `Desk` with all results. `known` and `first` are those of a `Desk`. `stop` is a function
    of the Desk, asked after each result. All others are those of `drive`: a run that is stopped,
    started again with the same arguments, loses the evaluations in flight and nothing else. The Desk is
    closed: another call goes on. Raises `ValueError` where sizes do not fit. An objective that has not
    succeeded once in its first evaluations, as many as `initial`, as workers and at least three, ends
    the run as it does `drive`: these are not kept. Any other error is raised after all evaluations
    under way have ended, and their results are kept.
    """
    check_arguments(algorithm, key, objective, AbstractOneModel)
    whole("evaluations", evaluations)
    check_way(algorithm, objective, executor, timeout)
    check_catch(catch)
    ending = Ending(deadline, stop)
    given = {"initial": initial, "known": known, "first": first, "direction": direction}
    begin = beginning(algorithm, known, first, initial)
    total = len(begin.first) + begin.initial + evaluations
    _check_room(algorithm, begin.told + total)
    with (
        Desk(algorithm, key, checkpoint=checkpoint, **given) as desk,
        ending,
        opened(executor, timeout) as pool,
        Progress(total, "evaluation", progress) as bar,
    ):
        Crew(desk, objective, Flight(pool, timeout), catch, ending, bar).work(total)
    return desk


def _check_room(algorithm: AbstractOneModel, evaluations: int) -> None:
    most = algorithm.surrogate.capacity
    needed = evaluations if algorithm.random else evaluations + algorithm.targets - 1
    require(
        most is None or needed <= most,
        f"{evaluations} evaluations by {algorithm.targets} workers exceed the surrogate's capacity of "
        f"{most}: {larger(algorithm, needed)}. A checkpoint goes on with it.",
    )
