"""Runs of a method on a problem. Our runs are a single program, and a peer's runs come in turn.

All evaluations count, initial evaluations too. The regret of every method is without noise, of the best
point observed so far.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.best import ours
from bench.best.problems import INITIAL, Beginning, CubeFunction, CubeProblem, example, start
from bench.common.peers import Search, check
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.domains.base import Cube
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

#: Runs of ours that are computed at the same time.
BATCH = 5


class Runs(NamedTuple):
    """The points and values of each run, and processor seconds.

    `seconds` is the time of a run, `first` that of a first call: compiling, or a short run of a peer.
    """

    x: Float[np.ndarray, "runs evaluations dim"]
    observed: Float[np.ndarray, "runs evaluations"]
    seconds: np.ndarray
    first: np.ndarray


def regrets(problem: CubeProblem, runs: Runs) -> Float[np.ndarray, "runs evaluations"]:
    """The regret of the best point observed so far, after each evaluation."""
    found = []
    for x, observed in zip(runs.x, runs.observed, strict=True):
        exact, told = problem.regrets(x), np.nan_to_num(observed, nan=-np.inf)
        best = [int(np.argmax(told[: t + 1])) for t in range(len(told))]
        found.append(exact[best])
    return np.stack(found)


# ---------------------------------------------------------------- ours


def of_ours(
    problem: CubeProblem,
    runs: int,
    evaluations: int,
    seed: int,
    initial: int = INITIAL,
    workers: int = 1,
    name: str = ours.NAME,
) -> Runs:
    """Runs of a method of ours, by its name. The number of workers divides the other two."""
    starts = [start(problem, one, evaluations, seed, initial) for one in range(runs)]
    x = jnp.asarray(np.stack([s.x for s in starts]), float)
    noise = jnp.asarray(np.stack([s.noise for s in starts]), float)[:, :initial]
    arguments = problem.argument, jnp.asarray(problem.noise()), x, noise
    size = runs, evaluations, initial, workers
    program, first = _program(name, problem.program, problem.dim, *size)
    before = time.process_time()
    queries, values = map(np.asarray, program(*arguments, jr.split(jr.key(seed), runs)))
    seconds = (time.process_time() - before) / runs
    return Runs(queries, values, np.array(seconds), np.array(first))


@functools.cache
def _program(
    name: str, alike: str, dim: int, runs: int, evaluations: int, initial: int, workers: int
) -> tuple[Any, float]:
    """The compiled program of all problems alike, and the processor seconds that compiling took."""
    make = ours.method if name == ours.NAME else ours.BESIDE[name]
    algorithm = make(Cube(dim), initial + evaluations, workers)
    rounds = evaluations // workers

    def all_runs(function: CubeFunction, noise: Array, x: Array, z: Array, keys: Array) -> Any:
        def one(given: tuple[Array, Array, Key]) -> tuple[Array, Array]:
            return _run(algorithm, function, noise, *given, rounds)

        return jax.lax.map(one, (x, z, keys), batch_size=BATCH)

    noise, x, z = jnp.asarray(0.0), jnp.zeros((runs, initial, dim)), jnp.zeros((runs, initial))
    keys, before = jr.split(jr.key(0), runs), time.process_time()
    lowered = jax.jit(all_runs).lower(example(alike, dim), noise, x, z, keys)
    return lowered.compile(), time.process_time() - before


def _run(
    algorithm: AbstractAlgorithm,
    function: CubeFunction,
    noise: Scalar,
    x: Float[Array, "initial dim"],
    z: Float[Array, " initial"],
    key: Key,
    rounds: int,
) -> tuple[Float[Array, "evaluations dim"], Float[Array, " evaluations"]]:
    """Every point of a run, the initial points first, and its value."""
    workers = algorithm.targets

    def objective(key: Key, agent: Count, x: Point) -> Scalar:
        del agent
        return function(x) + noise * jr.normal(key)

    init_key, run_key = jr.split(key)
    values = jax.vmap(function)(x) + noise * z
    rows = x.reshape(-1, workers, x.shape[1]), values.reshape(-1, workers)
    state = algorithm.warm_start(algorithm.init(init_key), *rows)
    _, trace = run(algorithm, objective, rounds, run_key, state=state)
    queries = jnp.concatenate([x, trace.queries.reshape(-1, x.shape[1])])
    return queries, jnp.concatenate([values, trace.values.ravel()])


# ---------------------------------------------------------------- peers


class Recorder:
    """The objective of a run, which keeps its points and values. A value is noise minus regret."""

    def __init__(self, problem: CubeProblem, begin: Beginning):
        self.problem, self.begin, self.deviation = problem, begin, problem.noise()
        self.x: list[np.ndarray] = []
        self.observed: list[float] = []

    def __call__(self, x: Any) -> float:
        point = np.array(x, float)
        exact = -float(self.problem.regrets(point[None])[0])
        self.observed.append(exact + self.deviation * float(self.begin.noise[len(self.x)]))
        self.x.append(point)
        return self.observed[-1]


def of_peer(
    search: Search,
    problem: CubeProblem,
    runs: int,
    rounds: int,
    seed: int,
    initial: int = INITIAL,
) -> Runs:
    """Runs of a peer, after a short run for the time that a first call alone takes."""
    first = _seconds(search, Recorder(problem, start(problem, 0, 1, seed, initial)), 1, seed)
    found = [Recorder(problem, start(problem, one, rounds, seed, initial)) for one in range(runs)]
    seconds = [_seconds(search, one, rounds, seed + number) for number, one in enumerate(found)]
    return Runs(
        np.stack([np.stack(one.x) for one in found]),
        np.stack([np.array(one.observed) for one in found]),
        np.array(np.mean(seconds)),
        np.array(first),
    )


def _seconds(search: Search, evaluate: Recorder, rounds: int, seed: int) -> float:
    before = time.process_time()
    search(evaluate, evaluate.begin.x, rounds, seed)
    seconds = time.process_time() - before
    check(np.stack(evaluate.x), evaluate.begin.x, rounds)
    return seconds
