"""The best point of a noisy objective: by the posterior mean, and by the best value observed.

    even      Branin's function and noise of the same deviation as its values
    uneven    the noise's deviation grows with x_1, from none to twice that of the values

Regret is that of the point without noise, in units of the function's deviation. Both points are of the
same runs.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check, below
from bench.common.text import interval
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.egp import EGP
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs.best import best
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

INITIAL, ROUNDS = 10, 35
BRANIN = branin_rescaled()
NOISES: dict[str, Callable[[Point], Scalar]] = {
    "even": lambda x: jnp.ones_like(x[0]),
    "uneven": lambda x: 2 * x[0],
}


@functools.cache
def deviation() -> float:
    """The standard deviation of the function's values over the square."""
    return float(jnp.std(jax.vmap(BRANIN)(Cube(2).candidates(jr.key(0), 10_000))))


class BestRegrets(NamedTuple):
    """Regret of the two points, of each run."""

    expected: np.ndarray
    observed: np.ndarray


def methods() -> dict[str, EGP | TS]:
    """The methods of the runs."""
    cube, fitted = Cube(2), Fitted(INITIAL + ROUNDS, size=200)
    return {"EGP, EI": EGP(cube, fitted, EI(), candidates=500), "TS": TS(cube, 1, fitted)}


@functools.cache
def measured(noise: str, method: str, runs: int, seed: int) -> BestRegrets:
    """Runs of a method under that noise."""
    algorithm, unit = methods()[method], deviation()

    def objective(key: Key, agent: Count, x: Point) -> Scalar:
        del agent
        return BRANIN(x) + unit * NOISES[noise](x) * jr.normal(key)

    def one(key: Key) -> Float[Array, "2"]:
        state, trace = run(algorithm, objective, ROUNDS, key, initial=INITIAL)
        expected = best(algorithm, state, trace).x[0]
        observed = trace.queries[jnp.argmax(trace.values[:, 0]), 0]
        points = jnp.stack([expected, observed])
        return (BRANIN.maximum - jax.vmap(BRANIN)(points)) / unit

    return BestRegrets(*np.asarray(jax.jit(jax.vmap(one))(jr.split(jr.key(seed), runs))).T)


def _run(options: Options) -> Result:
    runs = options.runs_or(100, 10)
    names = options.problems_or(NOISES, NOISES)
    kinds = [(noise, method) for noise in names for method in methods()]
    found = {kind: measured(*kind, runs, options.seed) for kind in progress(kinds, "noise")}
    return Result(
        settings={"runs": runs, "initial": INITIAL, "rounds": ROUNDS, "deviation": deviation()},
        finals={
            f"{', '.join(kind)}, {part}": regret
            for kind, one in found.items()
            for part, regret in one._asdict().items()
        },
        checks={
            f"{', '.join(kind)}: less regret than of the best observed, difference": less(one)
            for kind, one in found.items()
        },
        unit="regret, deviations",
        headers=("noise", "method", "best expected", "best observed"),
        rows=[(*kind, *map(interval, one)) for kind, one in found.items()],
    )


def less(found: BestRegrets) -> Check:
    """Whether the expected best has less regret, run by run."""
    return below(found.expected, found.observed)


EXPERIMENT = Experiment(
    source="noise",
    about="the best point of a noisy objective, by the posterior mean and by the values",
    time="3 min",
    run=_run,
    problems=tuple(NOISES),
)
