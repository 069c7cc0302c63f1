"""The gain of a prior that agents learn together, by how much their functions have in common.

Functions are of `prior.families`. Twenty agents begin with three random evaluations each. Regret is in
deviations of the functions, the mean over agents. The pooled bound is `prior.multitask`.
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
from bench.prior import multitask
from bench.prior.families import FAMILIES, SHIFTED, drawn_on, regret, result
from bench.prior.setting import (
    AFTER,
    ALONE,
    BOUND,
    LOST,
    NEAR,
    RIVALS,
    ROUNDS,
    TIMES,
    claims,
    methods,
    rivals,
)
from bench.runner import Experiment, Options, Result, parts
from jaxbo.domains.base import Cube
from jaxbo.types import Key

AGENTS = 20
TOGETHER = methods(Cube(2), AGENTS)
#: In one batch of all runs these would hold too much: a process or many draws for each agent of each run.
LARGE = rivals(Cube(2), AGENTS)
METHODS = (*TOGETHER, *LARGE, BOUND)
#: Shifted functions have no bound: the covariance of several tasks does not describe them.
PROBLEMS = FAMILIES | {"shifted": SHIFTED}


@functools.cache
def program(method: str) -> Callable[[Array, Array], Array]:
    """Regret [runs evaluations] of runs, from their keys and the family."""

    def one(key: Key, family: Float[Array, " numbers"]) -> Float[Array, " evaluations"]:
        algorithm = (
            multitask.bound(Cube(2), AGENTS, drawn_on(), family)
            if method == BOUND
            else (TOGETHER | LARGE)[method]
        )
        return regret(algorithm, AGENTS, ROUNDS, key, family)

    if method not in TOGETHER:
        return jax.jit(lambda keys, family: jax.lax.map(lambda key: one(key, family), keys))
    return jax.jit(jax.vmap(one, (0, None)))


def _run(options: Options) -> Result:
    runs = options.runs_or(30, 4)
    names = options.problems_or(FAMILIES, FAMILIES)
    keys = jr.split(jr.key(options.seed), runs)
    kinds = {
        f"{family}, {method}": (family, method)
        for family in names
        for method in METHODS
        if method != BOUND or family in FAMILIES
    }
    measures = {name: functools.partial(_measured, *kind, keys) for name, kind in kinds.items()}
    measured, folder = parts(options, "prior-synthetic", (runs,), measures)
    found = {kind: measured[name] for name, kind in kinds.items()}
    return dataclasses.replace(result(found, checks(found), AGENTS), scratch=folder)


def _measured(family: str, method: str, keys: Array) -> np.ndarray:
    return np.asarray(program(method)(keys, jnp.asarray(PROBLEMS[family], float)))


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """The learned prior is far ahead where agents have something in common, and not behind elsewhere.

    In all families it is near to the bound.
    """
    found = {}
    for family in dict.fromkeys(family for family, _ in regret):
        ours = {method: one for (its, method), one in regret.items() if its == family}
        if family == "unrelated":
            found |= claims(family, ours, ALONE, dict.fromkeys(AFTER, LOST))
        else:
            found |= claims(family, ours, (*ALONE, *RIVALS), TIMES)
        if BOUND in ours:
            found |= claims(family, ours, (BOUND,), NEAR)
    return found


EXPERIMENT = Experiment(
    source="prior-synthetic",
    about="what agents gain by learning a prior together, by how much they have in common",
    time="60 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
