"""Workers that end when they end: one result is told as it comes, and one new query is asked.

    simulate      random durations, one compiled program
    Desk          hands out queries by number, and takes results back in any order
    drive_async   a Desk before an executor, all of whose workers are kept busy

EGP-TS, Algorithm 2. Query t comes from its own key, whatever order results arrive in: with one worker
all three ask what `run` asks. The state is a function of the key and of the results in their order.
"""

import math
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

import jaxbo
from jaxbo._archive import CheckpointError
from jaxbo._check import is_a, require, whole
from jaxbo._checkpoint import Checkpoint, Rows, fingerprint
from jaxbo._evaluate import BadValueError, BlackBox, number
from jaxbo.algos.one_model import AbstractOneModel, State
from jaxbo.loop import Compiled, check_objective, design_noise, design_row, round_keys, split_key
from jaxbo.space import Space
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
    check_objective(algorithm, objective)
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
    keys, workers = split_key(key), jnp.arange(algorithm.targets)
    state = algorithm.init(keys.init)

    def evaluate(key: Key, x: Point) -> Scalar:
        value = objective(jr.fold_in(key, 0), jnp.zeros((), int), x)
        return jnp.where(jnp.isfinite(value), value, jnp.nan)

    if initial:
        rows = jnp.arange(initial)
        x = jax.vmap(lambda i: design_row(algorithm, keys, i)[0])(rows)
        values = jax.vmap(lambda i, x: evaluate(design_noise(keys, i), x))(rows, x)
        state = algorithm.warm_start(state, x[:, None], values[:, None])

    def begin(
        state: State, desks: _Desks, worker: Count, ticket: Count, now: Scalar, busy: Array
    ) -> _Desks:
        ask_key, noise_key = round_keys(keys, ticket)
        x = algorithm.ask_one(ask_key, state, desks.x, busy)
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
        value = evaluate(round_keys(keys, ticket)[1], x)
        state = algorithm.tell_one(state, x, value)
        desks = begin(state, desks, worker, count + i, now, workers != worker)
        return (state, desks), (x, value, worker, ticket, started, now)

    (state, _), rows = jax.lax.scan(step, (state, desks), jnp.arange(evaluations))
    return state, Timeline(*rows)


# ---------------------------------------------------------------- numbered queries

_init = eqx.filter_jit(lambda algorithm, key: algorithm.init(key))
_ask_one = eqx.filter_jit(lambda algorithm, key, s, x, busy: algorithm.ask_one(key, s, x, busy))
_tell_one = eqx.filter_jit(lambda algorithm, state, x, y: algorithm.tell_one(state, x, y))
_warm_start = eqx.filter_jit(lambda algorithm, state, x, y: algorithm.warm_start(state, x, y))
_design_point = eqx.filter_jit(lambda algorithm, keys, row: design_row(algorithm, keys, row)[0])


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
    design, until `initial` results are in. Nothing is compiled again, whatever the order. A NaN is a
    failed evaluation. `checkpoint` is a file that holds all of it after every call: a Desk made anew
    with the same arguments goes on, and hands the queries that were out out again. Threads may share
    it: each call is one step.

    `ValueError`, and nothing changes, for a number that is not out: told already, or never handed out;
    for more queries than workers; for more results than the surrogate can hold; and for a value that is
    not a number.
    """

    def __init__(
        self,
        algorithm: AbstractOneModel,
        key: Key,
        *,
        initial: int = 0,
        checkpoint: str | PathLike | None = None,
    ):
        is_a("algorithm", algorithm, AbstractOneModel)
        whole("initial", initial)
        _check_room(algorithm, initial)
        self.algorithm, self.initial = algorithm, initial
        self.state = _init(algorithm, split_key(key).init)
        self._keys = split_key(key)
        self._queries: list[np.ndarray] = []  # by ticket
        self._drawn: list[bool] = []  # whether a ticket is of the initial design
        self._values: dict[int, float] = {}  # by ticket, in the order of telling
        self._returned: list[int] = []  # handed out before a stop, to be handed out again
        self._lock = threading.RLock()
        self._saved = None
        if checkpoint is not None:
            identity = fingerprint(
                version=jaxbo.__version__,
                algorithm=algorithm,
                key=key,
                initial=initial,
                precision=jnp.zeros(()),
            )
            self._saved = Checkpoint(checkpoint, identity)
            self._resume(self._saved)

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
        if self._returned:
            return self._ticket(self._returned.pop(0))
        out, most = self.out, self.algorithm.targets
        require(
            len(out) < most,
            f"all {most} workers are busy: tell the result of one of {out} first.",
        )
        capacity = self.algorithm.surrogate.room
        require(
            capacity is None or len(self._queries) < capacity,
            f"the surrogate's capacity of {capacity} is used up: give it a larger one.",
        )
        drawn = self.told < self.initial
        row = jnp.asarray(sum(self._drawn) if drawn else self._drawn.count(False))
        x = _design_point(self.algorithm, self._keys, row) if drawn else self._asked(row, out)
        self._queries.append(np.asarray(x))
        self._drawn.append(drawn)
        ticket = len(self._queries) - 1
        try:
            self._save()
        except BaseException:
            self._returned.append(ticket)  # nobody has got it
            raise
        return self._ticket(ticket)

    def _asked(self, row: Count, out: tuple[int, ...]) -> Point:
        pending = np.zeros((self.algorithm.targets, self.algorithm.domain.dim), float)
        for place, ticket in enumerate(out):
            pending[place] = self._queries[ticket]
        busy = jnp.arange(self.algorithm.targets) < len(out)
        ask_key, _ = round_keys(self._keys, row)
        return _ask_one(self.algorithm, ask_key, self.state, jnp.asarray(pending, float), busy)

    def tell(self, number: int, value: Any) -> None:
        """The result of a query that is out; NaN if it failed."""
        with self._lock:
            whole_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
            require(
                whole_number and 0 <= number < len(self._queries),
                f"there is no query number {number!r}: {len(self._queries)} were handed out.",
            )
            require(number not in self._values, f"query {number} has been told already.")
            require(number in self.out, f"query {number} is not out: ask for it again first.")
            self._learn(int(number), _value(value))
            self._save()

    def _learn(self, ticket: int, value: float) -> None:
        """One result more. What stops it on the way leaves all as it was."""
        x, y = self._queries[ticket], _learned(value)
        told = self.told + 1
        state = self.state
        if told > self.initial:
            state = _tell_one(self.algorithm, state, jnp.asarray(x), jnp.asarray(y, float))
        elif told == self.initial:
            points = [*(self._queries[t] for t in self._values), x]
            values = jnp.asarray([*map(_learned, self._values.values()), y], float)
            points = jnp.asarray(np.stack(points))
            state = _warm_start(self.algorithm, state, points[:, None], values[:, None])
        self._values[ticket], self.state = value, state

    @property
    def queries(self) -> Float[Array, "evaluations dim"]:
        """Of all results, in the order in which they came."""
        with self._lock:
            rows = [self._queries[ticket] for ticket in self._values]
        return jnp.asarray(np.reshape(rows, (-1, self.algorithm.domain.dim)), float)

    @property
    def values(self) -> Float[Array, " evaluations"]:
        """Of all results, in the order in which they came; NaN where one failed."""
        with self._lock:
            return jnp.asarray([_learned(value) for value in self._values.values()], float)

    @property
    def best(self) -> tuple[Any, float]:
        """The best result and its query. `ValueError` before the first that did not fail."""
        with self._lock:
            known = {t: value for t, value in self._values.items() if math.isfinite(value)}
        require(len(known) > 0, "there is no result yet.")
        ticket = max(known, key=known.__getitem__)
        return self._ticket(ticket).x, known[ticket]

    def _forget(self) -> None:
        """As if nothing had been asked."""
        with self._lock:
            self._queries, self._drawn, self._values, self._returned = [], [], {}, []
            self.state = _init(self.algorithm, self._keys.init)
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
        self._saved.save(Rows(self.told, rows, values, info, [], None))

    def _resume(self, saved: Checkpoint) -> None:
        rows = saved.load()
        if rows is None:
            return
        if len(rows.info) != 2:
            raise CheckpointError(
                f"{saved.path} is of a run in rounds, not of a desk: give another path."
            )
        order, drawn = rows.info
        self._queries = [np.asarray(x) for x in rows.queries]
        self._drawn = drawn.tolist()
        for ticket in order.tolist():
            self._learn(ticket, float(rows.values[ticket]))
        self._returned = [t for t in range(len(self._queries)) if t not in self._values]


def _value(given: Any) -> float:
    """What an evaluation came to; NaN for what is not finite. `ValueError` for what is no number."""
    value = number(given)
    return value if math.isfinite(value) else math.nan


def _learned(value: float) -> float:
    """The value as the model's precision has it: one that is finite stays so."""
    most = float(jnp.finfo(jnp.zeros(())).max)
    return min(max(value, -most), most) if math.isfinite(value) else value


# ---------------------------------------------------------------- before an executor


def drive_async(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int,
    key: Key,
    *,
    executor: Executor,
    initial: int = 0,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Desk:
    """`evaluations` of a Python objective, and the `initial` ones before, by workers kept busy.

    `objective(worker, x)` runs in `executor`, `algorithm.targets` at the same time; as soon as one
    ends, its result is learned and the next query asked. Returns the `Desk` with all results.
    `catch` and `checkpoint` are those of `drive`: a run that is stopped, started again with the same
    arguments, loses the evaluations in flight and nothing else. Raises `ValueError` where sizes do not
    fit, and the objective's own exception, with its point, where all of its first evaluations, as many as
    there are workers, raised one: these are not kept.
    """
    whole("evaluations", evaluations)
    require(isinstance(executor, Executor), f"executor must be an Executor, got {executor!r}.")
    _check_room(algorithm, initial + evaluations)
    desk = Desk(algorithm, key, initial=initial, checkpoint=checkpoint)
    idle, running = list(range(algorithm.targets)), dict[Future, tuple[int, Ticket]]()
    failed: list[Exception] = []
    try:
        while desk.told < initial + evaluations:
            while idle and desk.told + len(running) < initial + evaluations:
                worker, ticket = idle.pop(0), desk.ask()
                running[executor.submit(objective, worker, ticket.x)] = worker, ticket
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                worker, ticket = running.pop(future)
                value, error = _outcome(future, worker, ticket, catch)
                desk.tell(ticket.number, value)
                idle.append(worker)
                failed += [] if error is None else [error]
            if len(failed) == desk.told >= min(algorithm.targets, initial + evaluations):
                desk._forget()  # a mistake in the objective, not bad luck: it may be mended
                raise failed[0]
    finally:
        for future in running:
            future.cancel()
    return desk


def _outcome(
    future: Future, worker: int, ticket: Ticket, catch: Any
) -> tuple[float, Exception | None]:
    """The value of an evaluation; NaN and its error, with a warning, where it failed."""
    try:
        return number(future.result()), None
    except Exception as error:
        error.add_note(f"worker {worker} evaluating query {ticket.number} at x = {ticket.x}")
        if isinstance(error, BrokenExecutor | BadValueError) or not isinstance(error, catch):
            raise
        text = f"query {ticket.number} failed at x = {ticket.x}: {error!r}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return math.nan, error


def _check_room(algorithm: AbstractOneModel, evaluations: int) -> None:
    most = algorithm.surrogate.room
    needed = evaluations if algorithm.random() else evaluations + algorithm.targets - 1
    require(
        most is None or needed <= most,
        f"{evaluations} evaluations by {algorithm.targets} workers exceed the surrogate's capacity of "
        f"{most}: give it one of at least {needed}.",
    )
