"""What a run of each method costs before it does anything useful: compiling it, and memory.

    first       seconds of a process's first call of `run`: tracing, compiling, running
    cached      the same in a second process, with JAX's persistent compilation cache
    state       bytes of an agent's state
    peak        bytes that the compiled program and its results hold at once, an agent

Bytes are those that an agent more takes, between 10 and 30 agents; where workers share a model, those of
one worker and the model. Each is a process of its own, `python -m bench.speed.methods METHOD FOLDER`.
Agents are those of a small federation, as a user would begin with: defaults but for what has none.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxbo
from bench.common.timing import compiled, elsewhere, held
from bench.runner import Check, Experiment, Options, Result, progress
from jaxbo import metrics
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

AGENTS, ROUNDS, INITIAL, DIM = 10, 30, 5, 2
ROWS = ROUNDS + INITIAL
#: Seconds that a first call may take on two cores.
GOAL = 5.0


def _exact() -> jaxbo.Fitted:
    return jaxbo.Fitted(ROWS, inference=jaxbo.Exact())


def _ensemble() -> jaxbo.Ensemble:
    kernels = jaxbo.SquaredExponential(0.3), jaxbo.Matern32(0.3), jaxbo.Matern52(0.3)
    return jaxbo.Ensemble(kernels, jaxbo.Fitted(ROWS))


def _decomposed() -> jaxbo.Decomposed:
    return jaxbo.Decomposed(list(itertools.combinations(range(DIM), 2)), ROWS)


DOMAIN = jaxbo.Cube(DIM)
#: One line a method, of so many agents; where they share a model there is one worker.
METHODS: dict[str, Callable[[int], AbstractAlgorithm]] = {
    "RandomSearch": lambda n: jaxbo.RandomSearch(DOMAIN, n),
    "TS": lambda n: jaxbo.TS(DOMAIN, n),
    "FTS": lambda n: jaxbo.FTS(DOMAIN, n),
    "FTS, own models": lambda n: jaxbo.FTS(DOMAIN, n, own=jaxbo.Fitted(ROWS)),
    "DPFTSDE": lambda n: jaxbo.DPFTSDE(DOMAIN, n),
    "CEPE": lambda n: jaxbo.CEPE(DOMAIN, n, jaxbo.schedules.growing(ROUNDS), room=INITIAL),
    "RGPE": lambda n: jaxbo.RGPE(DOMAIN, n, _exact()),
    "TAF": lambda n: jaxbo.TAF(DOMAIN, n, _exact()),
    "EGP": lambda n: jaxbo.EGP(DOMAIN, _ensemble()),
    "EXP3BO": lambda n: jaxbo.EXP3BO(DOMAIN, _ensemble()),
    "DECHBO": lambda n: jaxbo.DECHBO(DOMAIN, _decomposed()),
}


class Cost(NamedTuple):
    """Seconds of the first call, and bytes of the state and of the program: of one agent more."""

    first: float
    state: float
    peak: float


def objective(key: Key, agent: Count, x: Point) -> Scalar:
    """A bowl with noise."""
    return -jnp.sum((x - 0.5) ** 2) + 0.01 * jr.normal(key)


def measured(name: str) -> Cost:
    """In this process, which has compiled nothing yet."""
    few, many = METHODS[name](AGENTS), METHODS[name](3 * AGENTS)
    start = time.perf_counter()
    jax.block_until_ready(_whole(few, jr.key(0)))
    first = time.perf_counter() - start

    def more(size: Callable[[AbstractAlgorithm], int]) -> float:
        agents = many.targets - few.targets
        return (size(many) - size(few)) / agents if agents else size(few)

    state = more(lambda a: metrics.bytes_of(jax.eval_shape(a.init, jr.key(0))))
    peak = more(lambda a: held(compiled(partial(_whole, a), jr.key(0))[0]))
    return Cost(first, state, peak)


def _whole(algorithm: AbstractAlgorithm, key: Key) -> Any:
    return run(algorithm, objective, ROUNDS, key, initial=INITIAL)


def _import_seconds() -> float:
    """Seconds to import jaxbo where JAX is imported already, the best of three processes."""
    code = "import time, jax; t = time.perf_counter(); import jaxbo; print(time.perf_counter() - t)"
    calls = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        for _ in range(3)
    ]
    return min(float(call.stdout) for call in calls)


def _run(options: Options) -> Result:
    """All methods."""
    names = ["TS", "FTS"] if options.quick else list(METHODS)
    found: dict[str, tuple[Cost, Cost]] = {}
    for name in progress(names, "methods"):
        with tempfile.TemporaryDirectory() as folder:
            # The second process finds in the folder what the first one compiled.
            cold, warm = (Cost(*elsewhere("bench.speed.methods", name, folder)) for _ in range(2))
            found[name] = cold, warm
    importing = _import_seconds()
    checks = {
        f"{name}: the first call within {GOAL:g} s": Check(cold.first <= GOAL, cold.first)
        for name, (cold, _) in found.items()
    }
    return Result(
        {
            "agents": AGENTS,
            "rounds": ROUNDS,
            "initial points": INITIAL,
            "seconds to import jaxbo after jax": importing,
            "costs": {
                name: {**cold._asdict(), "cached": warm.first}
                for name, (cold, warm) in found.items()
            },
        },
        finals={name: np.asarray([cold.first]) for name, (cold, _) in found.items()},
        checks=checks,
        headers=(
            "method",
            "first call, s",
            "cached, s",
            "state, bytes an agent",
            "peak, bytes an agent",
        ),
        rows=[
            (
                name,
                f"{cold.first:.1f}",
                f"{warm.first:.1f}",
                f"{cold.state:.0f}",
                f"{cold.peak:.0f}",
            )
            for name, (cold, warm) in found.items()
        ],
    )


EXPERIMENT = Experiment(
    source="no paper",
    about="compiling each method, with and without a cache, and its memory",
    time="6 min",
    run=_run,
)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", sys.argv[2])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print(json.dumps(measured(sys.argv[1])))
