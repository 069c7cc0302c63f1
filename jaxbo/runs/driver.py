"""Rounds around a Python objective, which may be slow, parallel and unreliable.

`drive` runs the parts that `run` compiles. `replay` rebuilds a state from the observations: ask changes
nothing and tell draws nothing, so a state is a function of the key and the observations.

The arguments of `drive`, and of `drive_async` if it has them:

Beginnings. `initial`: rows of the method's initial design, asked before the first round. `state`: a
    state to start from instead of `algorithm.init`, for instance after `warm_start`. `present`: says
    whose messages arrive each round.

Objectives. `objective(agent, x)` or `objective(x)`: `x` is a NumPy array. On a `Space`, `x` is a
    dictionary of parameters by name. An `AbstractObjective`, or a function `objective(key, agent, x)` in
    JAX, is compiled and evaluated for all agents at once. Without a `ledger` it gives the trace that
    `run` gives. The two traces agree to the last bit if the values do not depend on the program around
    the objective. The signature tells which form an objective has: parameters that have a default do not
    count. If the method has `outcomes`, the objective returns a dictionary,
    `{"value": y, "latency": t}`. The evaluation has failed if any number in it is not finite.

Known results. `known`: results from before, told before anything is asked. They are (points, values), on
    a `Space` with parameters by name, too. They may also be a list of dictionaries, such as
    `Trace.table`, or a DataFrame. The columns are then "value" and, for several agents, "agent"
    (`jaxbo.algos.base.known`). NaN or None is a failed evaluation. Known results are not in the trace,
    so `replay` takes them, too. `first`: points, such as a guess, that each agent is asked before its
    `initial` points. Workers who share a model are asked them together. They are among the trace's
    initial rows.

Executors. `executor`: evaluations of a round run in it at the same time. A number is so many processes,
    which are spawned and import the script that started the run. So the script begins with
    `if __name__ == "__main__":`. A process that dies is replaced, and its evaluation is asked again,
    once. By default evaluations run here, in turn. A compiled objective takes no executor. A pool that
    would fork processes after JAX has started is refused, because JAX has threads. `timeout`: the
    seconds that an evaluation may take; then it has failed. With a number of processes, the process that
    has the evaluation is ended. No other executor can end it: the worker is given up, and the run raises
    a `RuntimeError` when all workers are given up. With a timeout, a run hands out no more evaluations
    at a time than the executor has workers. If their number is unknown, as with dask, time counts from
    when an evaluation is handed over and not from when it begins.

Checkpoints. `checkpoint`: a file that makes the run continue from the row where it stopped, however it
    stopped. It loses at most the evaluations in flight. It asks the queries of an undisturbed run,
    unless a ledger has it draw noise that nobody can repeat. A checkpoint cannot check that the Python
    objective is still the same. Only a single run at a time has the file: the lock on `PATH.lock`, a
    file that stays, ends with its process. A surrogate of a larger `capacity` goes on with the file. It
    asks the queries of a run with this room from the start. With `Fixed`, that is so to the last bit if
    both capacities are on the same side of its `size`. Sums over more rows are rounded otherwise: with
    `Fitted`, queries moved by 5e-4 at most in ten rounds. If two peaks are equally good, the other peak
    may be taken. An evaluation that runs here may end the whole process, for instance out of memory.
    `PATH.begun` says which. The run that goes on tries it once more. After a second death it has failed
    with `LostWorkerError`.

Failures. `catch`: exceptions of the given types are failed evaluations. They are recorded in
    `Trace.failures`, with a warning, and survived. A value that is NaN, infinite or more than JAX's
    precision holds is treated in the same way. Other exceptions are raised as they are, with the agent
    and the point in a note. An executor that is broken, or has cancelled an evaluation, ends the run
    whatever `catch` says: its errors say nothing of the point. An objective may fail in all of the
    initial design and in at least three evaluations. It then ends the run with the exception that it
    raised, or with a `NotFiniteError` for a value. Results that are known stand in for a design: as many
    evaluations may fail, 20 at most, because the model may begin in a place where all fail. A run that
    goes on from a `state` with values does not end so. Nothing of the ended run is kept, unless a ledger
    was charged. Then all rounds but the last are kept as failures, and the last round is evaluated
    again.

Values. They stay float64 in the trace. If the method allows it (`invariant`), the model is told each
    value's difference to the first value of its agent. `state.origin` holds this first value, and the
    state predicts such differences. Other methods are told the values themselves. A single warning says
    whether float32 cuts the values told, or has no room for their squares, and how to mend it. With
    `direction` "minimize", small values are good. The trace has the user's own values. The method, and
    so `state`, is told their negative. A checkpoint of the other direction belongs to another run.

Ends. `deadline`: after so many seconds nothing more begins, and the run ends early. `stop`: a function
    of the trace so far, called after each row; the run ends when it says so. See `jaxbo.stopping`. An
    interrupt at the keyboard does the same as a deadline: evaluations under way end, and the trace is
    returned. Without a checkpoint the whole row ends, or its values would be lost. A second interrupt is
    a `KeyboardInterrupt` at once. A Python objective also ends the run when there is nothing left to
    ask: all agents have every point of a finite domain, and some point again with the same value. With
    noise the run goes on. A run that ends early has a trace of the complete rows, and says why in the
    log. With a checkpoint it goes on when it is started again.

Progress. `progress`: a bar of `tqdm` or `rich`, whichever is installed. Without them the log has a line
    every few seconds (`logging`, `jaxbo`, INFO). If no log has been set up, the standard error has the
    line.

Ledgers. `ledger`: the costs of private releases so far. It needs a `checkpoint`, so that no charge is
    lost. Each release is charged, and the charge is saved with its queries before any of them is
    evaluated. A run that continues must be given the ledger that it began with. It goes on with its own
    charges, and never makes a release twice. Noise must never be guessed, nor be added to two sums. So
    a round is asked with random words of the operating system, not with `key`. They are drawn anew each
    time and kept nowhere. A file beside the checkpoint, `PATH.released`, has all charges and only
    grows. It gives away a checkpoint that was removed or is an older copy: a `CheckpointError`. The run
    that follows begins with `Trace.ledger`. The promise is for a number of rounds that is settled
    beforehand: a run that `stop` ends tells something of its values by its length. Without a ledger,
    private releases are simulated, and a `SimulationWarning` says so once. With a ledger, a warning says
    if agents have too few observations before the first round: its release would be noise alone.
"""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

import functools
from collections.abc import Callable
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxbo import _version
from jaxbo._check import is_a, require
from jaxbo._direction import Direction, check_direction, upward
from jaxbo._keys import fresh
from jaxbo.algos.base import _origin, outcomes
from jaxbo.algos.base._state import check_state
from jaxbo.algos.base.algorithm import AbstractAlgorithm, Stage
from jaxbo.algos.base.keys import RunKeys, design_keys, round_keys, run_keys
from jaxbo.algos.base.outcomes import Observed, width
from jaxbo.objectives.families import AbstractObjective
from jaxbo.privacy.ledger import Ledger, check_budget
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs import _soon, _steps
from jaxbo.runs._ahead import Ahead
from jaxbo.runs._arguments import check_arguments, check_precision
from jaxbo.runs._checkpoint import Checkpoint
from jaxbo.runs._ending import Ending
from jaxbo.runs._evaluate import BlackBox, Evaluator, check_catch, check_way
from jaxbo.runs._executors import Where, opened
from jaxbo.runs._exhausted import nothing_left
from jaxbo.runs._flight import Flight
from jaxbo.runs._identity import Identity, identity
from jaxbo.runs._progress import Progress
from jaxbo.runs._record import Record
from jaxbo.runs._simulation import warn_of_noise_alone, warn_of_simulation
from jaxbo.runs._start import Start, beginning
from jaxbo.runs.compiled import (
    check_queries,
    check_sizes,
    evaluate_all,
)
from jaxbo.runs.trace import Trace
from jaxbo.types import Key, on_device

#: What a checkpoint is of.
KIND = "a run in rounds"

_compiled_evaluate = eqx.filter_jit(evaluate_all)


def _tell(known: tuple[AbstractAlgorithm, Array, Array, Stage, PyTree], state: PyTree) -> PyTree:
    algorithm, queries, values, stage, info = known
    return _steps.tell(algorithm, state, queries, values, stage, jax.vmap, info)


# A state is given up for the next one, which takes its memory: a population's is held once.
def _program(options: _soon.Options) -> Callable[..., PyTree]:
    return _soon.compiled(_tell, options, "all-except-first")


def _told(
    options: _soon.Options,
    algorithm: AbstractAlgorithm,
    state: PyTree,
    queries: Array | np.ndarray,
    values: Array | np.ndarray,
    observed: Observed,
    stage: Stage,
    info: PyTree = None,
) -> PyTree:
    """The state after a row more; it takes the memory of the state before."""
    state, told = outcomes.told(algorithm.outcomes, state, values, observed)
    return _program(options)((algorithm, on_device(queries), told, stage, info), state)


def _info_of(algorithm: AbstractAlgorithm, info: PyTree, round: int) -> PyTree:
    """The info of a round for a method that `remembers`; zeros before the first round, as in `run`."""
    if not algorithm.remembers or not jax.tree.leaves(info):
        return None
    if round < 0:
        return jax.tree.map(lambda rows: jnp.zeros(rows.shape[1:], rows.dtype), info)
    return jax.tree.map(lambda rows: jnp.asarray(rows[round]), info)


def _own(state: PyTree) -> PyTree:
    """A copy that may be given up: the state may be the caller's, or hold arrays of the algorithm."""
    return jax.tree.map(jnp.copy, state)


def drive(
    algorithm: AbstractAlgorithm,
    objective: BlackBox | AbstractObjective,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    known: Any = None,
    first: Any = None,
    executor: Where = None,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    timeout: float | None = None,
    deadline: float | None = None,
    stop: Callable[[Trace], Any] | None = None,
    direction: Direction = "maximize",
    progress: bool = True,
    present: Bool[Array, "rounds agents"] | None = None,
    state: PyTree | None = None,
    ledger: Ledger | None = None,
) -> tuple[PyTree, Trace]:
    """Runs a method for some rounds around an objective in Python, which may be slow and fail.

    `help(jaxbo.runs.driver)` says more of each argument. An objective compiled by JAX gives the trace
    of `run`. A run that ends early has a trace of the complete rows. An objective that never succeeds
    ends the run with the error that it raised.

    Args:
        algorithm: The method.
        objective: `f(x)`, `f(agent, x)` or, in JAX, `f(key, agent, x)`. `x` is an array, or on a
            `Space` a dictionary of parameters by name. With `outcomes` it returns a dictionary.
        rounds: Number of rounds, at least 0.
        key: Random key.
        initial: Number of points of the method's initial design, asked before the first round.
        known: Results from before, as (points, values) or a table. They are not in the trace.
        first: Points, such as a guess, that are asked before the `initial` points.
        executor: A number of processes, or a pool, for the queries of a round. Default: here, in turn.
        checkpoint: A file from which the same call goes on, however the run stopped.
        catch: Types of exceptions that are failed evaluations, which the run survives.
        timeout: Seconds that an evaluation may take; then it has failed. Default: any time.
        deadline: Seconds after which nothing more begins. Evaluations under way end, or reach their
            `timeout`. Default: none.
        stop: A function of the trace so far that ends the run (`jaxbo.stopping`). Default: none.
        direction: "minimize" if small values are good. The trace keeps the user's sign.
        progress: Whether a bar is shown, or else a line in the log every few seconds.
        present: Whether an agent's message arrives in a round. Default: all do.
        state: Where to start instead of `algorithm.init`, for instance after `warm_start`.
        ledger: Is charged for private releases, with secret noise; needs a `checkpoint`. Default:
            releases are simulated.

    Returns:
        The last state and the trace.

    Raises:
        ValueError: Sizes do not fit, or a query is outside of the domain, before it is evaluated.
        CheckpointError: The checkpoint is corrupt, of another run or in use. Nothing is evaluated.
        BudgetError: The ledger's budget does not pay for all releases.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(1), 2)
        >>> objective = lambda x: -((float(x[0]) - 0.3) ** 2)
        >>> _, trace = jaxbo.drive(method, objective, 3, jax.random.key(0), progress=False)
        >>> trace.values.shape, trace.values.dtype
        ((3, 2), dtype('float64'))
    """
    check_arguments(algorithm, key, objective)
    check_direction(direction)
    begin = beginning(algorithm, known, first, initial)
    initial = begin.asked
    held = begin.held(algorithm.targets)
    check_sizes(algorithm, rounds, initial, present, state, held)
    check_precision(algorithm)
    compiled = check_way(algorithm, objective, executor, timeout)
    check_catch(catch)
    keys, options = run_keys(key), _soon.DEFAULT if compiled else _soon.options(algorithm)
    init, ask = (_soon.compiled(step, options) for step in (_steps.init, _steps.ask))
    start = init(algorithm, keys.init, jax.vmap) if state is None else state
    if begin.known is not None:
        values = np.asarray(begin.known.values, jnp.zeros(()).dtype)  # NaN, of which JAX may warn
        algorithm.check_start(start, on_device(values))
    done = int(algorithm.round(start))
    releases = [algorithm.released(done + t) for t in range(rounds)]
    check_budget(ledger, releases)
    if ledger is None:
        warn_of_simulation(algorithm)
    require(
        ledger is None or checkpoint is not None,
        "a ledger needs a checkpoint: what was released stays charged, whatever becomes of the run.",
    )
    ending = Ending(deadline, stop)
    saved = None
    if checkpoint is not None:
        mine = _identity(algorithm, objective, key, begin, present, state, ledger, direction)
        saved = Checkpoint(checkpoint, KIND, mine)
    given = None if present is None else np.asarray(present)
    example = None if present is None or not rounds else present[0]
    # An error in `ask` ends the run before anything is evaluated.
    shapes = eqx.filter_eval_shape(_steps.ask, algorithm, keys.rounds, start, example, jax.vmap)
    what = compiled, direction, algorithm.one_objective, algorithm.outcomes
    record = Record(shapes, initial, rounds, saved, ledger, given, *what)
    if ledger is not None and rounds and done == record.told == 0:
        observed = int(algorithm.told(start)) + held + initial
        warn_of_noise_alone(algorithm, releases[0], observed, begin.initial)
    row = jnp.zeros(shapes[0].shape), jnp.zeros((algorithm.targets, *width(algorithm.outcomes)))
    tells = algorithm, *row, begin.stage(0), _info_of(algorithm, record.info_tree, -1)
    asks = lambda state: (algorithm, keys.rounds, state, example, jax.vmap)  # noqa: E731
    tell = _program(options), lambda state: (tells, state)
    ahead = Ahead(tell, *([(ask, asks)] if rounds else []))
    anew = int(algorithm.told(start)) == 0
    with (
        record,
        ending,
        opened(executor, timeout, None if saved is None else saved.path) as pool,
        Progress(initial + rounds, "round", progress) as bar,
    ):
        if compiled:
            here = outcomes.stacked(algorithm.outcomes, objective)
            evaluate = functools.partial(_evaluate_here, algorithm, here, record)
        else:
            flight = Flight(pool, timeout)
            at = flight, catch, anew, begin.told, ending
            evaluator = Evaluator(algorithm, objective, record, *at)
            evaluate = lambda row, key: evaluator(row)  # noqa: E731
        # A Python objective's run ends where nothing is left; a compiled one's trace is that of `run`.
        loop = _Loop(algorithm, begin, record, ending, bar, ahead, options, evaluate, not compiled)
        loop.before(keys, start)
        state = _own(start)
        del start  # or it would be held beside all that follow
        state = loop.begun(state)
        for t in range(rounds if record.told >= initial else 0):
            ask_key, noise_key = round_keys(keys, jnp.asarray(t))
            if ledger is not None:
                ask_key = fresh(key)  # of no use for a row that has been asked
            here = None if present is None else present[t]
            asking = lambda s=state, k=ask_key, h=here: ask(algorithm, k, s, h, jax.vmap)  # noqa: E731
            if not loop.completes(initial + t, asking, noise_key, state, releases[t]):
                break
            state = loop.told(state, initial + t, initial)
            if loop.ends(state, initial + t):
                break
    return state, record.trace()


class _Loop:
    """The rows of a run: asked, evaluated and told in turn, until it ends."""

    def __init__(
        self,
        algorithm: AbstractAlgorithm,
        begin: Start,
        record: Record,
        ending: Ending,
        bar: Progress,
        ahead: Ahead,
        options: _soon.Options,
        evaluate: Callable[[int, Key], bool],
        finite: bool,
    ):
        self.algorithm, self.begin, self.record = algorithm, begin, record
        self.ending, self.bar, self.ahead, self.evaluate = ending, bar, ahead, evaluate
        self.finite, self.resumed, self.cut = finite, record.told, False
        self.options = options

    def before(self, keys: RunKeys, start: PyTree) -> None:
        """All rows before the first round, or as many as there are before the run ends."""
        design = _soon.compiled(_steps.design, self.options)
        for row in range(self.begin.asked):
            points, noise = design_keys(keys, jnp.asarray(self.begin.design_row(row)))
            drawing = lambda key=points: design(self.algorithm, key, jax.vmap)  # noqa: E731
            asking = lambda row=row, drawn=drawing: (self.begin.given(row, drawn()), None)  # noqa: E731
            if not self.completes(row, asking, noise, start) or self._ended(row):
                return

    def begun(self, state: PyTree) -> PyTree:
        """The state after all that is known before the first round."""
        self.ahead.wait()
        asked = min(self.begin.asked, self.record.told)
        state = self.begin.tell(state, self._told, asked)
        for row in range(asked):
            state = self.told(state, row, asked)
        return state

    def completes(
        self,
        row: int,
        asking: Callable[[], tuple[Any, PyTree]],
        noise: Key,
        state: PyTree,
        release: Mechanism | None = None,
    ) -> bool:
        """Whether the row has all its values: asked and evaluated now, unless it was before."""
        record = self.record
        if row < record.told:
            return True
        if self.ending.now():
            return False
        record.ask(row, asking, release)
        check_queries(self.algorithm, record.queries[row])
        self.ahead.start(state)
        if not self.evaluate(row, noise):
            return False
        record.close(row)
        return True

    def told(self, state: PyTree, row: int, asked: int) -> PyTree:
        """The state after a row, where so many were asked before the first round."""
        self.ahead.wait()
        info = _info_of(self.algorithm, self.record.info_tree, row - self.begin.asked)
        at = self.begin.stage(row, asked), info
        return self._told(state, *self.record.observations(row), *at)

    def _told(self, state: PyTree, queries: Any, values: Any, *rest: Any) -> PyTree:
        values = upward(self.record.direction, values)
        return _told(self.options, self.algorithm, state, queries, values, *rest)

    def ends(self, state: PyTree, row: int) -> bool:
        """Whether the run ends after a round, of whose values float32 may have cut digits."""
        values = upward(self.record.direction, self.record.values[: row + 1])
        self.cut = self.cut or _origin.warn_if_cut(state, values)
        return self._ended(row)

    def _ended(self, row: int) -> bool:
        self.bar.advance_to(self.record.best_values[: row + 1], self.record.direction)
        return row + 1 >= self.resumed and self.ending.after(self.record.trace, self._left)

    def _left(self) -> str | None:
        if not self.finite:
            return None
        told = self.record.told
        rows = self.begin.before(self.record.queries[:told], self.record.values[:told])
        queries, values = rows
        if self.algorithm.one_objective:
            queries, values = queries.reshape(-1, 1, queries.shape[-1]), values.reshape(-1, 1)
        return nothing_left(self.algorithm.domain, queries, values)


def _evaluate_here(
    algorithm: AbstractAlgorithm, objective: Any, record: Record, row: int, key: Key
) -> bool:
    """Evaluates a compiled objective for all agents at once."""
    queries = jnp.asarray(record.queries[row])
    numbers = _compiled_evaluate(algorithm.domain, objective, key, queries)
    record.numbers[row] = np.reshape(numbers, record.numbers[row].shape)
    return True


def _identity(
    algorithm: AbstractAlgorithm,
    objective: BlackBox | AbstractObjective,
    key: Key,
    begin: Start,
    present: Any,
    state: PyTree | None,
    ledger: Ledger | None,
    direction: Direction,
) -> Identity:
    """The identity of a run, as far as it can be seen."""
    return identity(
        version=_version.__version__,
        algorithm=algorithm,
        objective=objective if isinstance(objective, AbstractObjective) else None,
        key=key,
        initial=begin.initial,
        first=begin.first,
        known=begin.known,
        present=present is not None,  # which rows, the rows say
        state=state,
        precision=jnp.zeros(()),
        ledger=None if ledger is None else ledger.events,
        direction=direction,
    )


def replay(
    algorithm: AbstractAlgorithm,
    trace: Trace,
    key: Key,
    *,
    state: PyTree | None = None,
    known: Any = None,
) -> PyTree:
    """Rebuilds the state after all rows of a trace, from the key and the observations.

    Values of NumPy are told as `drive` tells them, and values of JAX as they are.

    Args:
        algorithm: The method of the run.
        trace: All rows of the run.
        key: The key that the run began with.
        state: The state that the run began with. Default: it began with `algorithm.init`.
        known: The results from before that the run was given. Default: none.

    Returns:
        The state.

    Raises:
        ValueError: The trace does not have all rounds, or does not fit the method.

    Example:
        >>> import jax, jaxbo
        >>> method, key = jaxbo.RandomSearch(jaxbo.Cube(1), 2), jax.random.key(0)
        >>> _, trace = jaxbo.drive(method, lambda x: float(x[0]), 3, key, progress=False)
        >>> state = jaxbo.replay(method, trace, key)
        >>> int(method.round(state))
        3
    """
    check_arguments(algorithm, key)
    is_a("trace", trace, Trace)
    if state is not None:
        check_state(algorithm, state)
    require(trace.every == 1, "the trace does not have all rounds, which says too little.")
    driven = isinstance(trace.values, np.ndarray)  # values of a Python objective
    options = _soon.options(algorithm) if driven else _soon.DEFAULT
    init, tell = _soon.compiled(_steps.init, options), functools.partial(_told, options, algorithm)
    state = _own(init(algorithm, run_keys(key).init, jax.vmap) if state is None else state)
    begin = beginning(algorithm, known, None, trace.initial)
    state = begin.tell(state, lambda s, x, y, *at: tell(s, x, upward(trace.direction, y), *at))
    values = upward(trace.direction, trace.values)
    for row, (x, y) in enumerate(zip(trace.queries, values, strict=True)):
        observed = {name: column[row] for name, column in trace.outcomes.items()}
        info = _info_of(algorithm, trace.info, row - trace.initial)
        state = tell(state, x, y, observed, begin.stage(row), info)
    return state
