"""How soon a small hill is found where most values are equal: the beginning of much tuning.

    hill     0.2, but 1 on a cube with 2 % of the volume
    steps    five levels of the distance from a point, the best with about 2 % of the volume
    decoy    0.2, but 0.5 on a cube with 5 %, and 1 on another with 2 %
    noise    the hill, with noise of deviation 0.01 on all values

in 2, 4 and 8 dimensions, at a place drawn for each run. The number of evaluations until the best level
is met is compared. A run that does not meet it counts an evaluation more than there are.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from bench.claims import Check, at_most
from bench.common.text import interval
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.bo import BO
from jaxbo.algos.egp import EGP
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, UCB, Thompson
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

DIMS, QUICK_DIMS = (2, 4, 8), (2,)
INITIAL, ROUNDS = 5, 60
HILL, DECOY = 0.02, 0.05
LEVELS = 5
#: So much later than at random is no later.
MARGIN = 1.1
RANDOM = "random search"


class Shape(NamedTuple):
    """Its number, its best level, and the deviation of the noise."""

    number: int
    best: float
    noise: float = 0.0


SHAPES = {
    "hill": Shape(0, 1.0),
    "steps": Shape(1, -1.0),
    "decoy": Shape(2, 1.0),
    "noise": Shape(0, 1.0, 0.01),
}


def values(key: Key, x: Point) -> Float[Array, " shapes"]:
    """The value of every shape at a point, where their places follow from the key."""
    hill_key, decoy_key, steps_key = jr.split(key, 3)
    hill = jnp.where(_inside(hill_key, x, HILL), 1.0, 0.2)
    away = jnp.linalg.norm(x - jr.uniform(steps_key, x.shape)) / _radius(x.size)
    steps = -jnp.clip(jnp.ceil(away), 1.0, LEVELS)
    return jnp.stack(
        [hill, steps, jnp.maximum(hill, jnp.where(_inside(decoy_key, x, DECOY), 0.5, 0))]
    )


def _inside(key: Key, x: Point, share: float) -> Bool[Array, ""]:
    """Whether a point is in a cube of that share of the volume, drawn within the unit cube."""
    side = share ** (1 / x.size)
    center = side / 2 + (1 - side) * jr.uniform(key, x.shape)
    return jnp.all(jnp.abs(x - center) <= side / 2)


@functools.cache
def _radius(dim: int) -> float:
    """The radius around a point that holds 2 % of all points, both drawn."""
    draws = np.random.default_rng(0).random((2, 100_000, dim))
    return float(np.quantile(np.linalg.norm(draws[0] - draws[1], axis=1), HILL))


def methods(dim: int) -> dict[str, AbstractAlgorithm]:
    """The methods compared, with length scales that begin at a fifth of the cube's diagonal."""
    cube, room, kernel = Cube(dim), INITIAL + ROUNDS, SquaredExponential(0.2 * dim**0.5)
    exact = Fitted(room, kernel, inference=Exact())
    sizes = {"candidates": 500}
    return {
        RANDOM: RandomSearch(cube),
        "TS": TS(cube, surrogate=Fixed(kernel), **sizes),
        "EGP, EI": EGP(cube, exact, EI(), **sizes),
        "EGP, UCB": EGP(cube, exact, UCB(), **sizes),
        "EGP, Thompson": EGP(cube, Fitted(room, kernel, size=100), Thompson(), **sizes),
        "BO": BO(cube, room),
    }


@functools.cache
def program(method: str, dim: int) -> Callable[[Array, Shape], Array]:
    """When each run meets the best level, from the keys of the runs."""
    algorithm = methods(dim)[method]

    def one(key: Key, shape: Shape) -> Array:
        place_key, key = jr.split(key)

        def objective(key: Key, agent: Count, x: Point) -> Scalar:
            del agent
            return values(place_key, x)[shape.number] + shape.noise * jr.normal(key)

        found = run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1].values[:, 0]
        met = found >= shape.best - 0.1
        return jnp.asarray(jnp.where(jnp.any(met), jnp.argmax(met) + 1, met.size + 1))

    return jax.jit(jax.vmap(one, (0, None)))


def first(method: str, shape: Shape, dim: int, runs: int, seed: int) -> np.ndarray:
    """When each run meets the best level."""
    return np.asarray(program(method, dim)(jr.split(jr.key(seed), runs), shape))


def _run(options: Options) -> Result:
    runs = options.runs_or(50, 10)
    dims = QUICK_DIMS if options.quick else DIMS
    shapes = options.problems_or(SHAPES, SHAPES)
    kinds = [(s, d, m) for d in dims for m in methods(d) for s in shapes]
    found = {
        (s, d, m): first(m, SHAPES[s], d, runs, options.seed)
        for s, d, m in progress(kinds, "plateaus")
    }
    return Result(
        settings={"runs": runs, "initial": INITIAL, "rounds": ROUNDS, "margin": MARGIN},
        finals={f"{s}, {d}-D, {m}": one for (s, d, m), one in found.items()},
        checks=checks(found),
        headers=("shape", "dimensions", "method", "met", "evaluations until then"),
        rows=[
            (s, str(d), m, f"{100 * np.mean(one <= INITIAL + ROUNDS):.0f} %", interval(one))
            for (s, d, m), one in found.items()
        ],
    )


def checks(found: dict[tuple[str, int, str], np.ndarray]) -> dict[str, Check]:
    """No method is later than random search by more than the margin."""
    results = {}
    for (shape, dim, method), one in found.items():
        if method == RANDOM:
            continue
        claim = f"{shape}, {dim}-D, {method}: at most {MARGIN:g} times as late as at random, ratio"
        results[claim] = at_most(one, found[shape, dim, RANDOM], MARGIN)
    return results


EXPERIMENT = Experiment(
    source="plateaus",
    about="how soon a small hill is found where most values are equal",
    time="1 h",
    run=_run,
    problems=tuple(SHAPES),
)
