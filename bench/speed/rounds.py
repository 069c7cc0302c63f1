"""Rounds of FTS for few and many agents: time an agent and round, compile time, memory.

Every agent is a target and sends a message every round; M = 100 features, two dimensions, 1000
candidates, the best 4 refined. `python -m bench.speed.rounds AGENTS ROUNDS` runs a case in a process of
its own and prints the peak of its memory.
"""

import json
import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common.timing import Figure, compiled, elsewhere, held, race, resident
from bench.speed import botorch
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import Shifted
from jaxbo.objectives.functions import branin
from jaxbo.runs.compiled import run
from jaxbo.types import Key

AGENTS, ROUNDS = (29, 1000, 10_000), 60
SIZE, DIM, CANDIDATES, STARTS, SCALE, NOISE = 100, 2, 1000, 4, 0.2, 1e-2
#: How far apart the agents' peaks are, in units of the cube.
SHIFT = 0.1
#: Rounds between two refits of an agent's own hyperparameters.
EVERY = 5
UNIT = "us an agent and round"
#: Microseconds, and how many times faster than BoTorch.
GOAL, FASTER = 10, 1000


class Timed(NamedTuple):
    """A compiled run: seconds to compile it, bytes it holds at once, and how to start it."""

    compile: float
    memory: int
    call: Any


def algorithm(agents: int, rounds: int, *, dense: bool = False, fitted: bool = False) -> FTS:
    """FTS as measured; agents know beforehand how many rounds there are, unless `dense`."""
    kernel = SquaredExponential(SCALE)
    capacity = None if dense else rounds
    features = Fixed(kernel=kernel, size=SIZE, noise=NOISE, capacity=capacity)
    own = None
    if fitted:
        own = Fitted(capacity=rounds, kernel=kernel, size=SIZE, noise=NOISE, refit_every=EVERY)
    return FTS(Cube(DIM), agents, features=features, own=own, candidates=CANDIDATES)


def timed(method: FTS, rounds: int, key: Key) -> Timed:
    """All rounds as a single program, the objective included."""
    shifts = jr.uniform(key, (method.agents, DIM), minval=-SHIFT, maxval=SHIFT)
    objective = Shifted(function=branin(), shifts=shifts)

    def values(key: Key, objective: Shifted) -> Float[Array, "rounds agents"]:
        return run(method, objective, rounds, key)[1].values

    program, seconds = compiled(values, key, objective)
    return Timed(seconds, held(program), partial(program, key, objective))


# ---------------------------------------------------------------- figures


def figures(
    key: Key, rounds: int, repeats: int, numbers: tuple[int, ...] = AGENTS
) -> tuple[list[Figure], str | None]:
    """The figures of all numbers of agents, beside BoTorch if it is installed; and a line if it is
    not.
    """
    X, y = _data(key, rounds // 2)
    reference = botorch.calls(X, y, NOISE, SCALE, CANDIDATES, STARTS, seed=0)
    line = None if reference else "BoTorch is not installed: nothing ran beside the rounds."
    found = []
    for agents in numbers:
        method = algorithm(agents, rounds)
        few = min(repeats, 3) if agents == max(AGENTS) else repeats
        found += _rounds(f"FTS, {agents} agents", method, rounds, key, few, reference)
        found.append(_peak(agents, rounds))
    dense = algorithm(AGENTS[1], rounds, dense=True)
    found += _rounds(
        f"FTS, {AGENTS[1]} agents, any number of rounds", dense, rounds, key, repeats, reference
    )
    own = algorithm(AGENTS[0], rounds, fitted=True)
    name = f"FTS, {AGENTS[0]} agents, own hyperparameters refitted every {EVERY}"
    found += _rounds(name, own, rounds, key, repeats, reference, refits=rounds / EVERY)
    found.append(_refit(key, rounds, repeats, reference))
    return found, line


def _rounds(
    name: str,
    method: FTS,
    rounds: int,
    key: Key,
    repeats: int,
    reference: botorch.Calls | None,
    refits: float = 0,
) -> list[Figure]:
    """Microseconds an agent and round, and seconds to compile; the goal is for given hyperparameters."""
    program = timed(method, rounds, key)
    calls = {"own": program.call}
    if reference is not None:
        calls["round"] = reference.round
        if refits:
            calls["refit"] = reference.refit
    seconds = race(calls, repeats)
    each = 1e6 * seconds["own"] / (method.agents * rounds)
    best = float(np.min(each))
    found = [
        Figure(name, best, UNIT, values=tuple(each), goal="" if refits else f"<= {GOAL:g}"),
        Figure(f"{name}: compilation", program.compile, "s"),
        Figure(f"{name}: arrays of the program", program.memory / 2**20, "MiB"),
    ]
    if reference is None:
        return found
    theirs = np.min(seconds["round"])
    if refits:
        theirs += np.min(seconds["refit"]) * refits / rounds
    ratio = 1e6 * float(theirs) / best
    goal = "" if refits else f">= {FASTER} x"
    beside = f"one agent in BoTorch {reference.version}"
    return [*found, Figure(f"{name}: beside BoTorch", best, UNIT, beside, ratio, goal)]


def _refit(key: Key, rounds: int, repeats: int, reference: botorch.Calls | None) -> Figure:
    """A refit of all agents, halfway: half of the capacity is in use."""
    agents = AGENTS[0]
    half = rounds // 2
    sets = [_data(jr.fold_in(key, i), half) for i in range(agents)]
    X = jnp.asarray([np.pad(X, ((0, rounds - half), (0, 0))) for X, _ in sets], float)
    y = jnp.asarray([np.pad(y, (0, rounds - half), constant_values=np.nan) for _, y in sets], float)
    refit = jax.jit(jax.vmap(partial(fit.fit, SquaredExponential(SCALE), NOISE)))
    calls = {"own": lambda: refit(X, y)}
    if reference is not None:
        calls["refit"] = reference.refit
    seconds = race(calls, repeats)
    each = 1e3 * seconds["own"] / agents
    best = float(np.min(each))
    beside: dict[str, Any] = {}
    if reference is not None:
        ratio = 1e3 * float(np.min(seconds["refit"])) / best
        beside = {"beside": f"one agent in BoTorch {reference.version}", "ratio": ratio}
    name = f"a refit on {half} of {rounds} points, {agents} agents"
    return Figure(name, best, "ms an agent", values=tuple(each), **beside)


def _data(key: Key, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and standardized values of an agent in the middle of a run."""
    function = branin()
    X = jr.uniform(key, (points, DIM))
    y = np.asarray(jax.vmap(function)(X), np.float64)
    return np.asarray(X, np.float64), (y - y.mean()) / y.std()


# ---------------------------------------------------------------- memory


def _peak(agents: int, rounds: int) -> Figure:
    """The largest resident set of a process that does nothing else."""
    sizes = elsewhere("bench.speed.rounds", str(agents), str(rounds))
    return Figure(
        f"FTS, {agents} agents: peak of a process, beyond {sizes['before']:.0f} before it began",
        sizes["peak"] - sizes["before"],
        "MiB",
    )


def main(agents: int, rounds: int) -> None:
    """Prints the resident set before and at the most, in MiB."""
    jax.block_until_ready(jnp.zeros(()))
    before = resident()
    jax.block_until_ready(timed(algorithm(agents, rounds), rounds, jr.key(0)).call())
    print(json.dumps({"before": before / 2**20, "peak": resident() / 2**20}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
