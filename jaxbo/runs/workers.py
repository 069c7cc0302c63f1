"""Workers that end when they end: one result is told as it comes, and one new query is asked.

    simulate      random durations, one compiled program
    Desk          hands out queries by number, and takes results back in any order
    drive_async   a Desk before an executor, all of whose workers are kept busy

EGP-TS, Algorithm 2. Query t comes from its own key, whatever order results arrive in: with one worker
all three ask what `run` asks. The state is a function of the key and of the results in their order.
"""

import threading
import warnings
from collections.abc import Callable
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from jaxbo import _version
from jaxbo._check import is_a, require, whole
from jaxbo._direction import Direction, check_direction, upward
from jaxbo.algos.base import _origin
from jaxbo.algos.base.algorithm import Stage
from jaxbo.algos.base.keys import design_keys, round_keys, run_keys
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.domains.space import Space
from jaxbo.runs import _steps
from jaxbo.runs._ahead import Ahead
from jaxbo.runs._checkpoint import Checkpoint, Rows, fingerprint
from jaxbo.runs._crew import Crew
from jaxbo.runs._ending import Ending
from jaxbo.runs._evaluate import BlackBox, NotFiniteError, check_catch, check_way, finite_number
from jaxbo.runs._executors import Where, opened
from jaxbo.runs._flight import Flight
from jaxbo.runs._progress import Progress
from jaxbo.runs.compiled import (
    Compiled,
    check_objective,
    check_queries,
)
from jaxbo.runs.trace import Failure
from jaxbo.types import Count, Key, Point, Scalar

#: How long worker number `worker` takes for x: a positive number.
Duration: TypeAlias = Callable[[Key, Count, Point], Scalar]


class Timeline(eqx.Module):
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
    is_a("algorithm", algorithm, AbstractOneModel)
    whole("evaluations", evaluations, least=1)
    whole("initial", initial)
    _check_room(algorithm, initial + evaluations)
    objective = check_objective(algorithm, objective)
    return _simulate(algorithm, objective, duration, evaluations, key, initial)


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


def _ahead_of(algorithm: AbstractOneModel, key: Key, initial: int) -> Ahead:
    """`tell_one` and `ask_one`, with arguments as a desk gives them."""
    count, dim = algorithm.targets, algorithm.domain.dim
    told = jnp.zeros(dim), jnp.zeros(()), _steps.stage(0, initial)
    out = jnp.zeros((count, dim)), jnp.zeros(count, bool)
    return Ahead(
        (_steps.tell_one, lambda state: (algorithm, state, *told)),
        (_steps.ask_one, lambda state: (algorithm, key, state, *out)),
    )


class Ticket(NamedTuple):
    """A query and its number. `x` is a dictionary of parameters on a `Space`, else an array."""

    number: int
    x: Any


class Desk:
    """Queries handed out one by one, results taken back in any order.

        desk = Desk(EGP(domain, surrogate, workers=4), jr.key(0), initial=10)
        number, x = desk.ask()
        desk.tell(number, value)

    At most `algorithm.targets` queries are out at the same time. The first ones are of the initial
    design, until `initial` results are in. Nothing is compiled again, whatever the order. A value that is
    NaN, infinite or more than JAX's precision holds is a failed evaluation, with a warning: `failures`
    says which. Values stay float64; `state` is of their differences to `state.origin`, as in `drive`.
    `direction="minimize"`: small values are good, and `state` is of their negative.
    `checkpoint` is a file that holds all of it after every call: a Desk made anew
    with the same arguments goes on, and hands the queries that were out out again. Threads may share
    it: each call is one step. A Desk keeps its file to itself until `close`, the end of a `with`, or
    until nothing refers to the Desk.

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
        checkpoint: str | PathLike | None = None,
        direction: Direction = "maximize",
    ):
        is_a("algorithm", algorithm, AbstractOneModel)
        whole("initial", initial)
        check_direction(direction)
        _check_room(algorithm, initial)
        self.algorithm, self.initial = algorithm, initial
        self.direction: Direction = direction
        self.state = _steps.init(algorithm, run_keys(key).init, jax.vmap)
        self._keys = run_keys(key)
        self._queries: list[np.ndarray] = []  # by ticket
        self._drawn: list[bool] = []  # whether a ticket is of the initial design
        self._values: dict[int, float] = {}  # by ticket, in the order of telling
        self._failures: list[Failure] = []
        self._cut = False  # whether a warning was given
        self._returned: list[int] = []  # handed out before a stop, to be handed out again
        self._lock = threading.RLock()
        self._ahead = _ahead_of(algorithm, key, initial)
        self._saved = None
        if checkpoint is not None:
            identity = fingerprint(
                version=_version.__version__,
                algorithm=algorithm,
                key=key,
                initial=initial,
                precision=jnp.zeros(()),
                direction=direction,
            )
            self._saved = Checkpoint(checkpoint, KIND, identity)
            self._saved.resume(self._resume)

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

    def ask(self) -> Ticket:
        """The next query and its number."""
        with self._lock:
            return self._ask()

    def _ask(self) -> Ticket:
        self._must_hold()
        if self._returned:
            ticket = self._ticket(self._returned[0])
            self._returned.pop(0)
            return ticket
        out, most = self.out, self.algorithm.targets
        require(
            len(out) < most,
            f"all {most} workers are busy: tell the result of one of {out} first.",
        )
        capacity = self.algorithm.surrogate.capacity
        require(
            capacity is None or len(self._queries) < capacity,
            f"the surrogate's capacity of {capacity} is used up: give it a larger one.",
        )
        drawn = self.told < self.initial
        row = jnp.asarray(sum(self._drawn) if drawn else self._drawn.count(False))
        x = self._drawn_point(row) if drawn else self._asked(row, out)
        check_queries(self.algorithm, x[None])
        number = len(self._queries)
        try:
            self._queries.append(np.asarray(x))
            self._drawn.append(drawn)
            self._save()
            self._ahead.start(self.state)
            return self._ticket(number)
        except BaseException:  # nobody has got the query, even if it was saved
            del self._queries[number:], self._drawn[number:]
            raise

    def _must_hold(self) -> None:
        if self._saved is not None:
            self._saved.must_hold()

    def noise_key(self, number: int) -> Key:
        """What a compiled objective draws the noise of this query's evaluation with."""
        with self._lock:
            drawn = self._drawn[number]
            row = jnp.asarray(self._drawn[:number].count(drawn))
        keys = design_keys(self._keys, row) if drawn else round_keys(self._keys, row)
        return jr.fold_in(keys.noise, 0)

    def _drawn_point(self, row: Count) -> Point:
        return _steps.design(self.algorithm, design_keys(self._keys, row).points, jax.vmap)[0]

    def _asked(self, row: Count, out: tuple[int, ...]) -> Point:
        pending = np.zeros((self.algorithm.targets, self.algorithm.domain.dim), float)
        for place, ticket in enumerate(out):
            pending[place] = self._queries[ticket]
        busy = jnp.arange(self.algorithm.targets) < len(out)
        key = round_keys(self._keys, row).ask
        self._ahead.wait()
        return _steps.ask_one(self.algorithm, key, self.state, jnp.asarray(pending, float), busy)

    def tell(self, number: int, value: Any) -> None:
        """The result of a query that is out; NaN if it failed."""
        try:
            self._tell(number, finite_number(value))
        except NotFiniteError as error:
            self.fail(number, error)

    def fail(self, number: int, error: Exception | str) -> None:
        """A query that is out has failed: why, `failures` will say, and a warning does."""
        why = error if isinstance(error, str) else repr(error)
        self._tell(number, np.nan, why)
        text = f"query {number} failed at x = {self._ticket(number).x}: {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _tell(self, number: int, value: float, why: str | None = None) -> None:
        with self._lock:
            whole_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
            require(
                whole_number and 0 <= number < len(self._queries),
                f"there is no query number {number!r}: {len(self._queries)} were handed out.",
            )
            require(number not in self._values, f"query {number} has been told already.")
            require(number in self.out, f"query {number} is not out: ask for it again first.")
            self._must_hold()
            before = self.state
            try:
                self._learn(int(number), value)
                if why is not None:
                    self._failures.append(Failure(int(number), 0, why))
                self._save()
            except BaseException:  # the same call again saves it, perhaps once more
                self._values.pop(int(number), None)
                self._failures = [f for f in self._failures if f.row != int(number)]
                self.state = before
                raise

    def _learn(self, ticket: int, value: float) -> None:
        """One result more. What stops it on the way leaves all as it was."""
        x, told = self._queries[ticket], self.told + 1
        known = np.asarray([*self._values.values(), value], np.float64)
        state = self.state
        if told > self.initial:
            state = self._told(state, x, value, self.initial)
        elif told == self.initial:
            points = [*(self._queries[t] for t in self._values), x]
            for row, one in enumerate(zip(points, known, strict=True)):
                state = self._told(state, *one, row)
        self._values[ticket], self.state = value, state
        if told >= self.initial and not self._cut:
            self._cut = _origin.warn_if_cut(state, upward(self.direction, known[:, None]))

    def _told(self, state: State, x: np.ndarray, value: float, row: int) -> State:
        self._ahead.wait()
        told = upward(self.direction, np.asarray([value], np.float64))
        state, values = _origin.told(state, told)
        stage = _steps.stage(row, self.initial)
        return _steps.tell_one(self.algorithm, state, jnp.asarray(x), values[0], stage)

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
    def failures(self) -> tuple[Failure, ...]:
        """The queries that failed, in that order, and why."""
        with self._lock:
            return tuple(self._failures)

    @property
    def best(self) -> tuple[Any, float]:
        """The best result and its query. `ValueError` before the first that did not fail."""
        with self._lock:
            known = {t: value for t, value in self._values.items() if np.isfinite(value)}
        require(len(known) > 0, "there is no result yet.")
        best = min if self.direction == "minimize" else max
        ticket = best(known, key=known.__getitem__)
        return self._ticket(ticket).x, known[ticket]

    def _forget(self) -> None:
        """As if nothing had been asked."""
        with self._lock:
            self._queries, self._drawn, self._values, self._returned = [], [], {}, []
            self._failures = []
            self.state = _steps.init(self.algorithm, self._keys.init, jax.vmap)
            self._save()

    def _ticket(self, ticket: int) -> Ticket:
        x, domain = self._queries[ticket], self.algorithm.domain
        return Ticket(ticket, domain.decode(x) if isinstance(domain, Space) else x.copy())

    def _save(self) -> None:
        if self._saved is None:
            return
        values = np.full(len(self._queries), np.nan)
        values[list(self._values)] = list(self._values.values())
        order = np.asarray(list(self._values), int)
        rows = np.reshape(self._queries, (-1, self.algorithm.domain.dim))
        info = [order, np.asarray(self._drawn, bool)]
        self._saved.save(Rows(self.told, rows, values, info, self._failures, None))

    def _resume(self, rows: Rows | None) -> None:
        if rows is None:
            return
        order, drawn = rows.info
        self._queries = [np.asarray(x) for x in rows.queries]
        self._drawn = drawn.tolist()
        for ticket in order.tolist():
            self._learn(ticket, float(rows.values[ticket]))
        self._failures = [Failure(*failure) for failure in rows.failures]
        self._returned = [t for t in range(len(self._queries)) if t not in self._values]


# ---------------------------------------------------------------- before an executor


def drive_async(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int,
    key: Key,
    *,
    executor: Where = None,
    initial: int = 0,
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
    Returns the `Desk` with all results. `stop` is a function of the Desk, asked after each result. All
    others are those of `drive`: a run that is stopped, started again with the same arguments, loses
    the evaluations in flight and nothing else. The Desk is closed: another call goes on. Raises
    `ValueError` where sizes do not fit. An objective that has not succeeded once in its first
    evaluations, as many as `initial`, as workers and at least three, ends the run as it does `drive`:
    these are not kept. Any other error is raised after all evaluations under way have ended, and their
    results are kept.
    """
    is_a("algorithm", algorithm, AbstractOneModel)
    whole("evaluations", evaluations)
    check_way(algorithm, objective, executor, timeout)
    check_catch(catch)
    _check_room(algorithm, initial + evaluations)
    ending = Ending(deadline, stop)
    total = initial + evaluations
    with (
        Desk(algorithm, key, initial=initial, checkpoint=checkpoint, direction=direction) as desk,
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
        f"{most}: give it one of at least {needed}.",
    )
