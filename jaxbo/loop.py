"""The one loop: init, then ask → evaluate → tell, round after round.

`run` compiles all rounds, objective included, to one program. `drive` runs the same compiled parts
around a Python objective, which may be slow, parallel and unreliable. `replay` rebuilds a state from
what was observed: ask changes nothing and tell draws nothing, so a state is a function of the key and
the observations.
"""

import bisect
from collections.abc import Callable
from concurrent.futures import Executor
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

import jaxbo
from jaxbo._check import is_a, require, whole
from jaxbo._checkpoint import Checkpoint, fingerprint
from jaxbo._evaluate import BlackBox, Evaluator
from jaxbo._keys import barrier
from jaxbo._record import Failure, Record, Trace
from jaxbo.accounting import Event, event
from jaxbo.algos.base import AbstractAlgorithm, FederatedState
from jaxbo.kernels.mechanism import Mechanism
from jaxbo.ledger import BudgetError, Ledger
from jaxbo.objectives import AbstractObjective
from jaxbo.types import Count, Key, Point, Scalar

__all__ = ["Failure", "Trace", "drive", "replay", "run"]

#: A compiled objective: the value of agent `agent` at `x`; the key is for its noise.
Compiled: TypeAlias = Callable[[Key, Count, Point], Scalar]


class Keys(NamedTuple):
    """What a run draws with."""

    init: Key
    design: Key
    rounds: Key


def split_key(key: Key) -> Keys:
    """The keys of a run: before it, of its initial design, and of its rounds."""
    return Keys(*jr.split(key, 3))


# ---------------------------------------------------------------- compiled


def run(
    algorithm: AbstractAlgorithm,
    objective: Compiled,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    present: Bool[Array, "rounds agents"] | None = None,
    state: PyTree | None = None,
) -> tuple[PyTree, Trace]:
    """`rounds` rounds as one compiled program; returns the last state and the trace.

    `objective(key, agent, x)` is a JAX function or an `objectives.AbstractObjective`. Before the first
    round every target evaluates `initial` points of the method's initial design: drawn uniformly from
    the domain and the same under the same key, unless the method explores in its own way. `present`
    says whose messages arrive each round. `state`, if given, is where to start instead of
    `algorithm.init`, for instance after `warm_start`.

    Pure: `vmap` it over keys, or over algorithms that differ in numbers. It is compiled once for each
    structure: an objective that is a new lambda each time is compiled each time. A run that goes on from
    a `state` takes a new key: with the old one it would draw the same numbers again.

    Raises `ValueError` where sizes do not fit or the objective does not return one number.
    """
    _check_sizes(algorithm, rounds, initial, present, state)
    check_objective(algorithm, objective)
    # Without rounds there is nobody to be present.
    return _run(algorithm, objective, rounds, key, initial, present if rounds else None, state)


@eqx.filter_jit
def _run(
    algorithm: AbstractAlgorithm,
    objective: Compiled,
    rounds: int,
    key: Key,
    initial: int,
    present: Bool[Array, "rounds agents"] | None,
    state: PyTree | None,
) -> tuple[PyTree, Trace]:
    keys = split_key(key)
    # The barriers keep the parts from being fused across, and a number of rounds that the compiler does
    # not know keeps the loop's body from being specialized: both stay what `drive` compiles, to the bit.
    state = barrier(algorithm.init(keys.init) if state is None else state)

    def initial_row(i: Count, nothing: tuple[()]) -> tuple[tuple[()], tuple[Array, Array]]:
        queries = barrier(design_row(algorithm, keys, i))
        return nothing, (queries, barrier(_evaluate(objective, design_noise(keys, i), queries)))

    _, design = _table(initial_row, initial, ())
    if initial:
        state = barrier(algorithm.warm_start(state, *barrier(design)))

    def one_round(t: Count, state: PyTree) -> tuple[PyTree, PyTree]:
        ask_key, noise_key = round_keys(keys, t)
        here = None if present is None else present[t]
        queries, info = barrier(algorithm.ask(ask_key, state, here))
        values = barrier(_evaluate(objective, noise_key, queries))
        return barrier(algorithm.tell(state, queries, values)), (queries, values, info)

    state, rows = _table(one_round, rounds, state)
    queries, values, info = rows
    queries, values = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), design, (queries, values))
    return state, Trace(queries, values, info, initial)


def _table(
    step: Callable[[Count, PyTree], tuple[PyTree, PyTree]], count: int, state: PyTree
) -> tuple[PyTree, PyTree]:
    """The last state, and a row of each of `count` steps: `lax.scan` with a hidden number of steps."""

    def body(t: Count, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        state, row = step(t, carry[0])
        return state, jax.tree.map(lambda table, one: table.at[t].set(one), carry[1], row)

    shapes = jax.eval_shape(step, jnp.zeros((), int), state)[1]
    rows = jax.tree.map(lambda one: jnp.zeros((count, *one.shape), one.dtype), shapes)
    if not count:
        return state, rows
    return jax.lax.fori_loop(0, barrier(count), body, (state, rows))


def design_row(algorithm: AbstractAlgorithm, keys: Keys, row: Count) -> Float[Array, "targets dim"]:
    """A row of the initial design."""
    key, _ = jr.split(jr.fold_in(keys.design, row))
    agents = jnp.arange(algorithm.targets)
    return jax.vmap(lambda i: algorithm.initial(jr.fold_in(key, i), i))(agents)


def design_noise(keys: Keys, row: Count) -> Key:
    """The key of an objective's noise in a row of the initial design."""
    return jr.split(jr.fold_in(keys.design, row))[1]


def round_keys(keys: Keys, index: Count) -> tuple[Key, Key]:
    """What a round's queries and its noise are drawn with."""
    ask_key, noise_key = jr.split(jr.fold_in(keys.rounds, index))
    return ask_key, noise_key


def _evaluate(
    objective: Compiled, key: Key, queries: Float[Array, "targets dim"]
) -> Float[Array, " targets"]:
    agents = jnp.arange(queries.shape[0])
    values = jax.vmap(lambda i, x: objective(jr.fold_in(key, i), i, x))(agents, queries)
    return jnp.where(jnp.isfinite(values), values, jnp.nan)


def _check_sizes(
    algorithm: AbstractAlgorithm, rounds: int, initial: int, present: Any, state: PyTree
) -> None:
    whole("rounds", rounds)
    whole("initial", initial)
    held = 0
    if state is not None:
        fresh = eqx.filter_eval_shape(algorithm.init, jr.key(0))
        require(
            _shapes(state) == _shapes(fresh),
            "state is of another algorithm or another number of agents: begin with what "
            "algorithm.init returns.",
        )
        held = algorithm.told(state)
        require(
            initial == 0 or not isinstance(state, FederatedState) or state.round == 0,
            "initial points come before the first round, and this state has had one: initial=0.",
        )
    require(
        algorithm.capacity is None or held + rounds + initial <= algorithm.capacity,
        f"{initial} initial points and {rounds} rounds, after {held} observations, exceed the "
        f"algorithm's capacity of {algorithm.capacity} observations: give its surrogate a "
        "larger one.",
    )
    most = algorithm.initial_capacity
    require(
        most is None or initial <= most,
        f"{initial} initial points exceed the {most} for which the algorithm has room.",
    )
    shape, dtype = getattr(present, "shape", ()), getattr(present, "dtype", None)
    require(
        present is None or (len(shape) == 2 and shape[0] == rounds and dtype == np.bool_),
        f"present must be an array of bool with a row for each of the {rounds} rounds and a column for "
        f"each agent, got {type(present).__name__} of {dtype} and shape {shape}.",
    )


def _shapes(tree: PyTree) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def check_objective(algorithm: AbstractAlgorithm, objective: Compiled) -> None:
    """`ValueError` unless it returns one number, for as many agents as are asked."""
    point = jax.ShapeDtypeStruct((algorithm.domain.dim,), jnp.zeros(()).dtype)
    value = jax.eval_shape(objective, jr.key(0), jnp.zeros((), int), point)
    require(
        getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating),
        f"the objective must return one floating number for one agent and point, got {value}.",
    )
    known = objective.agents if isinstance(objective, AbstractObjective) else None
    require(
        known is None or known >= algorithm.targets,
        f"the objective has functions for {known} agents, the algorithm asks {algorithm.targets}.",
    )


# ---------------------------------------------------------------- around a Python objective

_init = eqx.filter_jit(lambda algorithm, key: algorithm.init(key))
_ask = eqx.filter_jit(lambda algorithm, key, state, present: algorithm.ask(key, state, present))
_tell = eqx.filter_jit(lambda algorithm, state, x, y: algorithm.tell(state, x, y))
_warm_start = eqx.filter_jit(lambda algorithm, state, x, y: algorithm.warm_start(state, x, y))
_compiled_design = eqx.filter_jit(design_row)
_compiled_evaluate = eqx.filter_jit(_evaluate)


def drive(
    algorithm: AbstractAlgorithm,
    objective: BlackBox | AbstractObjective,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    executor: Executor | None = None,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    progress: bool = True,
    present: Bool[Array, "rounds agents"] | None = None,
    state: PyTree | None = None,
    ledger: Ledger | None = None,
) -> tuple[PyTree, Trace]:
    """`run` for an objective in Python: `objective(agent, x)` with `x` a NumPy array.

    On a `Space`, `x` is a dictionary of parameters by name. An `AbstractObjective` is compiled and
    evaluated for all agents at once, and without a `ledger` gives the trace that `run` gives; to the
    last bit if its own values do not depend on what they are compiled with.

    `executor`: evaluations of a round run in it at the same time; by default one after the other. Not
    for an `AbstractObjective`.
    `checkpoint`: a file that makes the run continue where it stopped, however it stopped. It loses at
    most the evaluations in flight, and asks what an undisturbed run would have asked. That the Python
    objective is still the same one cannot be checked.
    `catch`: exceptions of these types are failed evaluations: recorded in `Trace.failures`, with a
    warning, and survived. Others are raised as they are, with the agent and the point in a note; so is
    the first one of an objective that has not succeeded once by the end of a row.
    `progress`: a bar, if `tqdm` is installed.
    `ledger`: what private releases have cost so far; needs a `checkpoint`, which no charge is lost from.
    Each release is charged and the charge saved with its queries before any of them is evaluated; a run
    that continues goes on with its own charges, given the ledger that it began with, and never releases
    again what it has. Noise must not be guessed nor ever be added to two sums: what is asked then comes
    from random numbers of the operating system's, not from `key`, so that no two runs share any. The
    checkpoint has them: guard it like the data. The run that follows begins with `Trace.ledger`.

    Raises `ValueError` where sizes do not fit, and `CheckpointError` (a `ValueError`) for a checkpoint
    that is corrupt or of another run, before anything is evaluated; so it does `BudgetError` if the
    ledger's budget does not pay for all releases.
    """
    _check_sizes(algorithm, rounds, initial, present, state)
    _check_way(algorithm, objective, executor, catch)
    keys = split_key(key)
    start = _init(algorithm, keys.init) if state is None else state
    releases = _releases(algorithm, start, rounds, ledger)
    require(
        ledger is None or checkpoint is not None,
        "a ledger needs a checkpoint: what was released stays charged, whatever becomes of the run.",
    )
    saved = None
    if checkpoint is not None:
        identity = _identity(algorithm, objective, key, initial, present, state, ledger)
        saved = Checkpoint(checkpoint, identity)
    here = None if present is None or not rounds else present[0]
    shapes = eqx.filter_eval_shape(algorithm.ask, keys.rounds, start, here)
    given = None if present is None else np.asarray(present)
    record = Record(shapes, initial, rounds, saved, ledger, given, jr.key_data(key).size)
    evaluator = Evaluator(algorithm.domain, objective, record, executor, catch)

    def evaluate(row: int, key: Key) -> None:
        if row < record.told:
            return
        if isinstance(objective, AbstractObjective):
            queries = jnp.asarray(record.queries[row])
            record.values[row] = _compiled_evaluate(objective, key, queries)
        else:
            evaluator(row)
        record.close(row)

    with _Bar(initial + rounds, progress) as bar:
        for row in range(initial):
            key_of_row = design_noise(keys, jnp.asarray(row))
            record.ask(row, lambda r=row: (_compiled_design(algorithm, keys, jnp.asarray(r)), None))
            evaluate(row, key_of_row)
            bar.advance(record.values)
        state = start
        if initial:
            state = _warm_start(algorithm, start, *record.observations(slice(initial)))
        for row in range(initial, initial + rounds):
            t = row - initial
            ask_key, noise_key = round_keys(keys, jnp.asarray(t))
            if record.secret is not None:
                secret = jr.wrap_key_data(jnp.asarray(record.secret), impl=jr.key_impl(key))
                ask_key = jr.fold_in(secret, t)
            here = None if present is None else present[t]
            asking = lambda s=state, k=ask_key, h=here: _ask(algorithm, k, s, h)  # noqa: E731
            record.ask(row, asking, releases[t])
            evaluate(row, noise_key)
            state = _tell(algorithm, state, *record.observations(row))
            bar.advance(record.values)
    return state, record.trace()


def _check_way(
    algorithm: AbstractAlgorithm, objective: Any, executor: Executor | None, catch: Any
) -> None:
    """How `drive` is to evaluate, and what it is to survive."""
    compiled = isinstance(objective, AbstractObjective)
    if compiled:
        check_objective(algorithm, objective)
    require(
        executor is None or not compiled,
        "an executor is for a Python objective; this one is compiled for all agents at once.",
    )
    kinds = catch if isinstance(catch, tuple) else (catch,)
    require(
        all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds),
        f"catch must be types of exceptions, got {catch!r}.",
    )


def _identity(
    algorithm: AbstractAlgorithm,
    objective: BlackBox | AbstractObjective,
    key: Key,
    initial: int,
    present: Any,
    state: PyTree | None,
    ledger: Ledger | None,
) -> dict[str, str]:
    """What makes a run this one, as far as it can be seen."""
    return fingerprint(
        version=jaxbo.__version__,
        algorithm=algorithm,
        objective=objective if isinstance(objective, AbstractObjective) else None,
        key=key,
        initial=initial,
        present=present is not None,  # which rows, the rows say
        state=state,
        precision=jnp.zeros(()),
        ledger=None if ledger is None else ledger.events,
    )


def _releases(
    algorithm: AbstractAlgorithm, start: PyTree, rounds: int, ledger: Ledger | None
) -> list[Mechanism | None]:
    """The private release of each round; `BudgetError` if a ledger cannot pay for all of them."""
    first = int(start.round) if isinstance(start, FederatedState) else 0
    releases = [algorithm.released(first + t) for t in range(rounds)]
    paid = [mechanism for mechanism in releases if mechanism is not None]
    if ledger is None:
        return releases
    is_a("ledger", ledger, Ledger)
    require(
        len(paid) > 0 or not releases,
        "there is a ledger, but nothing that this method releases is private: leave it out.",
    )
    if not _affords(ledger, paid):
        enough = bisect.bisect_left(
            range(len(paid)), True, key=lambda n: not _affords(ledger, paid[: n + 1])
        )
        raise BudgetError(
            f"the budget of epsilon {ledger.budget:.4g} at delta {ledger.delta:.4g} pays for {enough} of "
            f"the {len(paid)} releases asked for: with releases={enough} agents go on by themselves "
            "afterwards; or add noise, or ask for fewer rounds."
        )
    return releases


def _affords(ledger: Ledger, mechanisms: list[Mechanism]) -> bool:
    """Whether all of them can be charged; alike ones at once."""
    counts: dict[Event, tuple[Mechanism, int]] = {}
    for mechanism in mechanisms:
        alike = event(mechanism)
        counts[alike] = mechanism, counts.get(alike, (mechanism, 0))[1] + 1
    try:
        for mechanism, count in counts.values():
            ledger = ledger.charge(mechanism, count)
    except BudgetError:
        return False
    return True


class _Bar:
    """A progress bar with the best value so far, where `tqdm` is installed."""

    def __init__(self, rows: int, shown: bool):
        self.bar = None
        if shown:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=rows, unit="round")

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, values: np.ndarray) -> None:
        if self.bar is None:
            return
        known = values[np.isfinite(values)]
        if known.size:
            self.bar.set_postfix(best=f"{known.max():.4g}", refresh=False)
        self.bar.update()


# ---------------------------------------------------------------- from observations


def replay(
    algorithm: AbstractAlgorithm, trace: Trace, key: Key, *, state: PyTree | None = None
) -> PyTree:
    """The state after all rows of `trace`, rebuilt from the key and the observations.

    The `key` and, if it was given, the `state` that the run began with.
    """
    state = _init(algorithm, split_key(key).init) if state is None else state
    first = trace.initial
    if first:
        state = _warm_start(algorithm, state, trace.queries[:first], trace.values[:first])
    for queries, values in zip(trace.queries[first:], trace.values[first:], strict=True):
        state = _tell(algorithm, state, queries, values)
    return state
