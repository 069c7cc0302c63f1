"""What a run of each method costs before it does anything useful: compiling it, and memory.

    first       seconds of a process's first call of `run`: tracing, compiling, running
    cached      the same in a second process, with JAX's persistent compilation cache
    state       bytes of an agent's state
    peak        bytes that the compiled program and its results hold at once, an agent

Bytes are those that an agent more takes, between 10 and 30 agents; where workers share a model, those of
one worker and the model. Each is a process of its own, `python -m bench.methods METHOD FOLDER`. Agents
are those of a small federation, as a user would begin with: defaults but for what has none.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxbo
from bench.runner import Check, Experiment, Options, Result, progress
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.loop import run
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
#: One line a method, of so many agents; workers that share a model are few.
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
    algorithm = METHODS[name](AGENTS)

    start = time.perf_counter()
    jax.block_until_ready(run(algorithm, objective, ROUNDS, jr.key(0), initial=INITIAL))
    first = time.perf_counter() - start

    def held(algorithm: AbstractAlgorithm) -> int:
        whole = lambda key: run(algorithm, objective, ROUNDS, key, initial=INITIAL)  # noqa: E731
        program: Any = jax.jit(whole).lower(jr.key(0)).compile()
        sizes = program.memory_analysis()
        return sizes.temp_size_in_bytes + sizes.output_size_in_bytes

    few, many = METHODS[name](AGENTS), METHODS[name](3 * AGENTS)
    agents = many.targets - few.targets
    state = _bytes(many) - _bytes(few) if agents else _bytes(few)
    peak = held(many) - held(few) if agents else held(few)
    return Cost(first, state / max(agents, 1), peak / max(agents, 1))


def _bytes(algorithm: AbstractAlgorithm) -> int:
    state = jax.eval_shape(lambda key: jax.tree.leaves(algorithm.init(key)), jr.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in state if not _is_key(leaf))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def elsewhere(name: str, folder: str) -> Cost:
    """In a process of its own, that finds in `folder` what an earlier one compiled."""
    command = [sys.executable, "-m", "bench.methods", name, folder]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def _import_seconds() -> float:
    """Seconds to import jaxbo where JAX is imported already, the best of three processes."""
    code = "import time, jax; t = time.perf_counter(); import jaxbo; print(time.perf_counter() - t)"
    root = Path(__file__).resolve().parent.parent
    calls = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True
        )
        for _ in range(3)
    ]
    return min(float(call.stdout) for call in calls)


def _run(options: Options) -> Result:
    """All methods."""
    names = ["TS", "FTS"] if options.quick else list(METHODS)
    found: dict[str, tuple[Cost, Cost]] = {}
    for name in progress(names, "methods"):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = elsewhere(name, folder), elsewhere(name, folder)
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
    time="5 min",
    run=_run,
)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", sys.argv[2])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print(json.dumps(measured(sys.argv[1])))
