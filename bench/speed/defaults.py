"""Every method with its defaults, and the run of it whose first call is measured.

Agents are a small federation, as a user would begin with. Settings without a default have a plain value.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

AGENTS, ROUNDS, INITIAL, DIM = 10, 30, 5, 2
ROWS = ROUNDS + INITIAL


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
    "DPFTSDE": lambda n: jaxbo.DPFTSDE(DOMAIN, n, releases=jnp.inf),
    "DPLearnedPrior": lambda n: jaxbo.DPLearnedPrior(DOMAIN, n),
    "CEPE": lambda n: jaxbo.CEPE(
        DOMAIN, n, jaxbo.schedules.growing(ROUNDS), initial_capacity=INITIAL
    ),
    "RGPE": lambda n: jaxbo.RGPE(DOMAIN, n, _exact()),
    "TAF": lambda n: jaxbo.TAF(DOMAIN, n, _exact()),
    "EGP": lambda n: jaxbo.EGP(DOMAIN, _ensemble()),
    "EXP3BO": lambda n: jaxbo.EXP3BO(DOMAIN, _ensemble()),
    "DECHBO": lambda n: jaxbo.DECHBO(DOMAIN, _decomposed()),
    "LearnedPrior": lambda n: jaxbo.LearnedPrior(DOMAIN, n, ROWS),
    "BO": lambda n: jaxbo.BO(DOMAIN, ROWS),
}


def whole(algorithm: AbstractAlgorithm, key: Key) -> Any:
    """The run."""
    return run(algorithm, objective, ROUNDS, key, initial=INITIAL)


def objective(key: Key, agent: Count, x: Point) -> Scalar:
    """A bowl with noise."""
    return -jnp.sum((x - 0.5) ** 2) + 0.01 * jr.normal(key)
