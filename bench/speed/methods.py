"""The cost of a run of each method before it does anything useful: compiling it, and memory.

    first           seconds of a process's first call of `run`: tracing, compiling, running
    drive           seconds that a first `drive` takes beside its evaluations: a row of them takes `SLOW`
                    seconds, and three rows come before the first round
    desk            seconds of a desk's first query, of the model alone
    cached, ...     each of the three in a second process, with JAX's persistent compilation cache,
                    which the first process has filled
    processor       seconds of all threads in each of these calls
    memory          megabytes that the process has held at most after each call
    growth          the part of `memory` that was added since jaxbo was imported
    state           bytes of an agent's state
    peak            bytes that the compiled program and its results hold at once, an agent

The parts of the time of `run`: tracing it in Python, lowering it, XLA's passes, writing its kernels for
LLVM, and LLVM, which compiles them on all cores. `bench programs` has the sizes of these programs.

Bytes are the bytes that an agent more takes, between 10 and 30 agents; if workers share a model, they
are of a worker and the model. Each is a process of its own, `python -m bench.speed.methods METHOD
FOLDER PART`.
"""

import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np

import jaxbo
from bench.claims import Check, met
from bench.common.timing import compiled, elsewhere, held, python, resident
from bench.runner import Experiment, Options, Result, progress
from bench.speed.defaults import AGENTS, INITIAL, METHODS, ROUNDS, whole
from jaxbo import metrics
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.one_model import AbstractOneModel

#: Seconds that a first call may take on two cores: of methods that fit nothing, of others, and cached.
QUICK, QUICK_GOAL, GOAL, CACHED = ("RandomSearch", "TS", "FTS", "DPFTSDE"), 2.0, 4.0, 1.0
#: Seconds that a first query of a desk may take if nothing was chosen, and megabytes of compiling it.
DESK, DESK_GOAL, MEMORY = "BO", 5.0, 500.0
#: Seconds that importing may take after JAX.
IMPORT = 0.5
#: Seconds of a row of evaluations that `drive` waits for.
SLOW = 1.0
#: Bytes that this process has held at most when all is imported.
IMPORTED = resident()
#: What is measured with a cache and without: the names of the costs, without and with.
CALLS = {
    "run": ("first", "cached"),
    "drive": ("drive", "cached drive"),
    "desk": ("desk", "cached desk"),
}


class Call(NamedTuple):
    """Seconds of a call and of all its threads, and megabytes at most: in all and since the imports."""

    seconds: float
    processor: float
    memory: float
    growth: float


class Cost(NamedTuple):
    """The first call, and bytes of the state and of the program for an agent more."""

    first: Call
    state: float
    peak: float


class Where(NamedTuple):
    """The parts of the seconds of a first call."""

    tracing: float
    lowering: float
    passes: float
    writing: float
    llvm: float


def measured(name: str) -> Cost:
    """In this process, which has compiled nothing yet."""
    few, many = METHODS[name](AGENTS), METHODS[name](3 * AGENTS)
    first = _called(lambda: whole(few, jr.key(0)))

    def more(size: Callable[[AbstractAlgorithm], int]) -> float:
        agents = many.targets - few.targets
        return (size(many) - size(few)) / agents if agents else size(few)

    state = more(lambda a: metrics.bytes_of(jax.eval_shape(a.init, jr.key(0))))
    peak = more(lambda a: held(compiled(partial(whole, a), jr.key(0))[0]))
    return Cost(first, state, peak)


def _called(call: Callable[[], Any]) -> Call:
    start, before = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    seconds, processor, most = time.perf_counter() - start, time.process_time() - before, resident()
    return Call(seconds, processor, most / 1e6, (most - IMPORTED) / 1e6)


def where(name: str) -> Where:
    """The parts of the time of a first call, by JAX's profiler."""
    algorithm, start = METHODS[name](AGENTS), time.perf_counter()
    traced = jax.jit(partial(whole, algorithm)).trace(jr.key(0))
    tracing, start = time.perf_counter() - start, time.perf_counter()
    lowered = traced.lower()
    lowering = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level, options.python_tracer_level = 3, 0
        with jax.profiler.trace(folder, profiler_options=options):
            lowered.compile()
        (file,) = Path(folder).rglob("*.xplane.pb")
        spent = _events(jax.profiler.ProfileData.from_file(str(file)))
    return Where(
        tracing,
        lowering,
        spent["backend_compile_and_load"] - spent["ThunkEmitter"] - spent["Codegen"],
        spent["ThunkEmitter"],
        spent["Codegen"],
    )


def _events(profile: jax.profiler.ProfileData) -> Counter[str]:
    """Seconds by the name of an event, up to its first mark."""
    events = (e for plane in profile.planes for line in plane.lines for e in line.events)
    seconds: Counter[str] = Counter()
    for event in events:
        seconds[re.split("[:#]", event.name)[0]] += event.duration_ns * 1e-9
    return seconds


def driven(name: str) -> Call:
    """A first `drive`, whose seconds are those beside its evaluations."""
    algorithm, rounds, initial = METHODS[name](AGENTS), 2, 3

    def slow(agent: int, x: np.ndarray) -> float:
        time.sleep(SLOW / algorithm.targets)
        return -float(np.sum((x - 0.5) ** 2))

    found = _called(
        lambda: jaxbo.drive(algorithm, slow, rounds, jr.key(0), initial=initial, progress=False)[1]
    )
    return found._replace(seconds=found.seconds - SLOW * (rounds + initial))


def asked(name: str) -> Call | None:
    """The first query of a desk that has no initial design; None where agents are several."""
    algorithm = METHODS[name](AGENTS)
    if not isinstance(algorithm, AbstractOneModel):
        return None
    return _called(lambda: jaxbo.Desk(algorithm, jr.key(0)).ask())


#: What a process of its own measures.
PARTS: dict[str, Callable[[str], Any]] = {
    "run": measured,
    "where": where,
    "drive": driven,
    "desk": asked,
}


def _import_seconds() -> float:
    """Seconds to import jaxbo where JAX is imported already, the best of three processes."""
    code = "import time, jax; t = time.perf_counter(); import jaxbo; print(time.perf_counter() - t)"
    return min(float(python("-c", code)) for _ in range(3))


def _run(options: Options) -> Result:
    """All methods."""
    names = ["TS", "FTS"] if options.quick else list(METHODS)
    found = {name: _of_method(name) for name in progress(names, "methods")}
    importing = _import_seconds()
    columns = {
        "first": "first run, s",
        "cached": "cached, s",
        "drive": "drive, s",
        "cached drive": "cached, s",
        "desk": "desk, s",
        "cached desk": "cached, s",
        **{key: f"{key}, s" for key in Where._fields},
        "state": "state, bytes an agent",
        "peak": "peak, bytes an agent",
    }
    return Result(
        {
            "agents": AGENTS,
            "rounds": ROUNDS,
            "initial points": INITIAL,
            "seconds to import jaxbo after jax": importing,
            "costs": found,
        },
        finals={name: np.asarray([cost["first"]]) for name, cost in found.items()},
        checks=checks(found)
        | {f"importing within {IMPORT:g} s after jax": met(importing, most=IMPORT)},
        headers=("method", *columns.values(), *(f"{part}: all threads, s; MB" for part in CALLS)),
        rows=[
            (name, *(_shown(key, cost[key]) for key in columns), *_beside(cost))
            for name, cost in found.items()
        ],
    )


def checks(found: dict[str, dict[str, Any]]) -> dict[str, Check]:
    """First calls within the goals, from all costs by method."""
    first = {
        f"{name}: the first {part} within {_goal(name):g} s": met(cost[key], most=_goal(name))
        for name, cost in found.items()
        for part, key in (("run", "first"), ("drive", "drive"), ("query of a desk", "desk"))
        if cost[key] is not None
    }
    cached = {
        f"{name}: the cached {part} within {CACHED:g} s": met(cost[key], most=CACHED)
        for name, cost in found.items()
        for part, key in (
            ("run", "cached"),
            ("drive", "cached drive"),
            ("query of a desk", "cached desk"),
        )
        if cost[key] is not None
    }
    return first | cached | (_of_desk(found[DESK]) if DESK in found else {})


def _of_desk(cost: dict[str, Any]) -> dict[str, Check]:
    """The goals for the desk that a user has who chooses no method."""
    return {
        f"{DESK}: a desk's first query within {DESK_GOAL:g} s": met(cost["desk"], most=DESK_GOAL),
        f"{DESK}: a desk's first query takes less than {MEMORY:g} MB": met(
            cost["growth"]["desk"], most=MEMORY
        ),
    }


def _of_method(name: str) -> dict[str, Any]:
    """All that is measured of it."""
    here = partial(elsewhere, "bench.speed.methods", name)
    parts: dict[str, Any] = {}
    for part, (cold, warm) in CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            parts[cold] = here(folder, part)
            # The second process finds in the folder what the first one compiled.
            parts[warm] = None if parts[cold] is None else here(folder, part)
    sizes, cached = (Cost(*parts[run]) for run in CALLS["run"])
    parts |= {"first": sizes.first, "cached": cached.first}
    calls = {key: None if part is None else Call(*part) for key, part in parts.items()}
    beside = {
        field: {key: call and getattr(call, field) for key, call in calls.items()}
        for field in Call._fields[1:]
    }
    spent = Where(*here("", "where"))._asdict()
    seconds = {key: call and call.seconds for key, call in calls.items()}
    return seconds | beside | {"state": sizes.state, "peak": sizes.peak} | spent


def _goal(name: str) -> float:
    return QUICK_GOAL if name in QUICK else GOAL


def _beside(cost: dict[str, Any]) -> list[str]:
    """Seconds of all threads in each first call, and megabytes that it added."""

    def cell(call: str) -> str:
        return f"{cost['processor'][call]:.1f}; {cost['growth'][call]:.0f}"

    return ["" if cost[cold] is None else cell(cold) for cold, _ in CALLS.values()]


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if key in ("state", "peak") else f"{value:.1f}"


EXPERIMENT = Experiment(
    source="no paper",
    about="compiling each method, with and without a cache, and its memory",
    time="17 min",
    run=_run,
)


if __name__ == "__main__":
    _, method, cache, part = sys.argv
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print(json.dumps(PARTS[part](method)))
