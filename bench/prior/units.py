"""The gain of a prior that agents learn together, where agents' values differ in unit.

Functions are of `prior.families`, and an agent's values are c + a f. Nobody knows an agent's a and c. TS,
FTS, RGPE and TAF do not notice units: they standardize an agent's values by its own mean and deviation.
Twenty agents begin with three random evaluations each. Regret is in deviations of the functions.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check
from bench.prior.families import FAMILIES, regret, result
from bench.prior.setting import (
    AFTER,
    ALONE,
    CLAIMED,
    FEATURES,
    INITIAL,
    KERNEL,
    LOST,
    RIVALS,
    ROUNDS,
    claims,
    methods,
    rivals,
)
from bench.runner import Experiment, Options, Result, parts
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.types import Key

AGENTS = 20
OWN = "learned prior, own units"
#: As if all agents had one unit, and the bound: they have.
BLIND, KNOWN = "learned prior, no own units", "learned prior, one unit"
METHODS = (*ALONE, *RIVALS, BLIND, OWN, KNOWN)
#: Evaluations -> how many times the best rival's regret the learned prior's may be; and of the bound's.
TIMES = {5: 3 / 4, 10: 3 / 4, 20: 1.0}
NEAR = {5: 2.0, 10: 2.0}


def method(name: str) -> AbstractAlgorithm:
    """The algorithm of a name. Expected improvement alone has own units, too."""
    if name in (BLIND, KNOWN):
        return methods(Cube(2), AGENTS)[CLAIMED]
    if name in (OWN, "EI"):
        model = Fixed(KERNEL, FEATURES, 1e-3)
        options = {"rank": 0, "trust": 0.0} if name == "EI" else {}
        common = {"features": model, "candidates": 500, "own_units": True}
        return LearnedPrior(Cube(2), AGENTS, INITIAL + ROUNDS, **common, **options)
    return (methods(Cube(2), AGENTS) | rivals(Cube(2), AGENTS))[name]


def differ(name: str) -> bool:
    """Whether agents' values differ in unit."""
    return name != KNOWN


@functools.cache
def program(name: str) -> Callable[[Array, Array], Array]:
    """Regret [runs evaluations] of runs, from their keys and the family."""

    def one(key: Key, family: Float[Array, " numbers"]) -> Float[Array, " evaluations"]:
        return regret(method(name), AGENTS, ROUNDS, key, family, units=differ(name))

    return jax.jit(lambda keys, family: jax.lax.map(lambda key: one(key, family), keys))


def _run(options: Options) -> Result:
    runs = options.runs_or(30, 2)
    names = options.problems_or(FAMILIES, FAMILIES)
    keys = jr.split(jr.key(options.seed), runs)
    kinds = {f"{family}, {name}": (family, name) for family in names for name in METHODS}
    measures = {name: functools.partial(_measured, *kind, keys) for name, kind in kinds.items()}
    measured, folder = parts(options, "prior-units", (runs,), measures)
    found = {kind: measured[name] for name, kind in kinds.items()}
    return dataclasses.replace(result(found, checks(found), AGENTS), scratch=folder)


def _measured(family: str, name: str, keys: Array) -> np.ndarray:
    return np.asarray(program(name)(keys, jnp.asarray(FAMILIES[family], float)))


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """The learned prior is ahead where agents have something in common, and not behind elsewhere.

    It is near to what it would be if all agents had one unit, and better than if nobody noticed.
    """
    found = {}
    for family in dict.fromkeys(family for family, _ in regret):
        ours = {name: one for (its, name), one in regret.items() if its == family}
        if family == "unrelated":
            found |= claims(family, ours, ALONE, dict.fromkeys(AFTER, LOST), OWN)
        else:
            found |= claims(family, ours, (*ALONE, *RIVALS), TIMES, OWN)
        found |= claims(family, ours, (KNOWN,), NEAR, OWN)
        found |= claims(family, ours, (BLIND,), dict.fromkeys((5, 10, 20), 1.0), OWN)
    return found


EXPERIMENT = Experiment(
    source="prior-units",
    about="what agents gain by learning a prior together, if their values differ in unit",
    time="10 min",
    run=_run,
    problems=tuple(FAMILIES),
)
