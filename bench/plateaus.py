"""How soon a small hill is found where most values are equal: the beginning of much tuning.

    hill     0.2, but 1 on a cube with 2 % of the volume
    steps    five levels of the distance from a point, the best with about 2 % of the volume
    decoy    0.2, but 0.5 on a cube with 5 %, and 1 on another with 2 %
    noise    the hill, with noise of deviation 0.01 on all values

in 2, 4 and 8 dimensions, at a place drawn for each run. The number of evaluations until the best level
is met is compared. A run that does not meet it counts one evaluation more than there are.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.runner import Check, Experiment, Options, Result, interval, progress
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.algos.egp import EGP
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains import Cube
from jaxbo.kernels.covariance import SquaredExponential
from jaxbo.kernels.ensemble import Ensemble
from jaxbo.kernels.fitted import Exact, Fitted
from jaxbo.kernels.policy import EI, UCB, Thompson
from jaxbo.kernels.surrogate import Fixed
from jaxbo.loop import run
from jaxbo.types import Count, Key, Point, Scalar

DIMS, QUICK_DIMS = (2, 4, 8), (2,)
INITIAL, ROUNDS = 5, 60
HILL, DECOY = 0.02, 0.05
LEVELS = 5
#: So much later than at random is no later.
MARGIN = 1.1
RANDOM = "random search"


class Shape(NamedTuple):
    """An objective with its best level, from a key that draws where that is."""

    objective: Callable[[Key, int], Callable[[Point], Scalar]]
    best: float
    noise: float = 0.0


def _cube(key: Key, dim: int, share: float) -> Callable[[Point], jax.Array]:
    """Whether a point is in a cube of that share of the volume, drawn within the unit cube."""
    side = share ** (1 / dim)
    center = side / 2 + (1 - side) * jr.uniform(key, (dim,))
    return lambda x: jnp.all(jnp.abs(x - center) <= side / 2)


def _hill(key: Key, dim: int) -> Callable[[Point], Scalar]:
    inside = _cube(key, dim, HILL)
    return lambda x: jnp.where(inside(x), 1.0, 0.2)


def _steps(key: Key, dim: int) -> Callable[[Point], Scalar]:
    center = jr.uniform(key, (dim,))
    radius = _radius(dim)
    return lambda x: -jnp.clip(jnp.ceil(jnp.linalg.norm(x - center) / radius), 1.0, LEVELS)


@functools.cache
def _radius(dim: int) -> float:
    """Of 2 % of all points around another one, both drawn."""
    draws = np.random.default_rng(0).random((2, 100_000, dim))
    return float(np.quantile(np.linalg.norm(draws[0] - draws[1], axis=1), HILL))


def _decoy(key: Key, dim: int) -> Callable[[Point], Scalar]:
    hill_key, decoy_key = jr.split(key)
    hill, decoy = _cube(hill_key, dim, HILL), _cube(decoy_key, dim, DECOY)
    return lambda x: jnp.where(hill(x), 1.0, jnp.where(decoy(x), 0.5, 0.2))


SHAPES = {
    "hill": Shape(_hill, 1.0),
    "steps": Shape(_steps, -1.0),
    "decoy": Shape(_decoy, 1.0),
    "noise": Shape(_hill, 1.0, 0.01),
}


def methods(dim: int) -> dict[str, AbstractAlgorithm]:
    """What is compared, with length scales that begin at a fifth of the cube's diagonal."""
    cube, room, kernel = Cube(dim), INITIAL + ROUNDS, SquaredExponential(0.2 * dim**0.5)
    exact = Fitted(room, kernel, inference=Exact())
    sizes = {"candidates": 500}
    return {
        RANDOM: RandomSearch(cube),
        "TS": TS(cube, surrogate=Fixed(kernel), **sizes),
        "EGP, EI": EGP(cube, exact, EI(), **sizes),
        "EGP, UCB": EGP(cube, exact, UCB(), **sizes),
        "EGP, Thompson": EGP(cube, Fitted(room, kernel, size=100), Thompson(), **sizes),
        "warped ensemble, EI": EGP(cube, Ensemble.warped(dim, room), EI(), **sizes),
    }


def first(algorithm: AbstractAlgorithm, shape: Shape, dim: int, runs: int, seed: int) -> np.ndarray:
    """When each run meets the best level."""

    def one(key: Key) -> jax.Array:
        place_key, key = jr.split(key)
        function = shape.objective(place_key, dim)

        def noisy(key: Key, agent: Count, x: Point) -> Scalar:
            del agent
            return function(x) + shape.noise * jr.normal(key)

        values = run(algorithm, noisy, ROUNDS, key, initial=INITIAL)[1].values
        found = values[:, 0] >= shape.best - 0.1
        met: jax.Array = jnp.argmax(found) + 1
        return jnp.asarray(jnp.where(jnp.any(found), met, found.size + 1))

    return np.asarray(jax.jit(jax.vmap(one))(jr.split(jr.key(seed), runs)))


def _run(options: Options) -> Result:
    runs = options.runs_or(200, 50)
    dims = QUICK_DIMS if options.quick else DIMS
    shapes = options.problems_or(SHAPES, SHAPES)
    kinds = [(s, d, m) for d in dims for m in methods(d) for s in shapes]
    found = {
        (s, d, m): first(methods(d)[m], SHAPES[s], d, runs, options.seed)
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
        ratio = float(one.mean() / found[shape, dim, RANDOM].mean())
        claim = f"{shape}, {dim}-D, {method}: at most {MARGIN:g} times as late as at random"
        results[claim] = Check(ratio <= MARGIN, ratio)
    return results


EXPERIMENT = Experiment(
    source="plateaus",
    about="how soon a small hill is found where most values are equal",
    time="half an hour with --quick; not measured whole",
    run=_run,
    problems=tuple(SHAPES),
)
