"""The gain of several priors, one for each group of agents, where agents are of several kinds.

Functions are of `prior.families`. Twenty agents begin with three random evaluations each. Nobody knows
the kind of an agent. Regret is in deviations of the functions, the mean over agents.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.claims import Check, at_most
from bench.prior.families import CLUSTERS, FAMILIES, regret, result
from bench.prior.setting import (
    ALONE,
    CLAIMED,
    FEATURES,
    INITIAL,
    KERNEL,
    LOST,
    TIMES,
    claims,
    methods,
)
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed

AGENTS, ROUNDS = 20, 7
AFTER = (4, 5, 7, 10)
ONE, GROUPS = "one group", "groups"
METHODS = (*ALONE, "FTS", ONE, GROUPS)
#: After five evaluations, how many times the regret of a single group.
GAINED = 3 / 4


class GroupProblem(NamedTuple):
    """A family of functions, and how many groups the learned prior has for it."""

    family: tuple[float, float, int]
    groups: int


PROBLEMS = {
    "opposed": GroupProblem(FAMILIES["opposed"], 2),
    "clusters": GroupProblem(CLUSTERS, 3),
    "unrelated": GroupProblem(FAMILIES["unrelated"], 2),
}


def method(name: str, groups: int) -> AbstractAlgorithm:
    """The algorithm of a name, where the learned prior has so many groups."""
    if name == GROUPS:
        model = Fixed(KERNEL, FEATURES, 1e-3)
        options = {"features": model, "candidates": 500, "groups": groups}
        return LearnedPrior(Cube(2), AGENTS, INITIAL + ROUNDS, **options)
    return methods(Cube(2), AGENTS)[CLAIMED if name == ONE else name]


def _run(options: Options) -> Result:
    runs = options.runs_or(40, 4)
    names = options.problems_or(PROBLEMS, PROBLEMS)
    kinds = [(problem, name) for problem in names for name in METHODS]
    keys, found = jr.split(jr.key(options.seed), runs), {}
    for problem, name in progress(kinds, "prior-groups"):
        family, groups = PROBLEMS[problem]
        one = functools.partial(regret, method(name, groups), AGENTS, ROUNDS)
        curves = jax.jit(jax.vmap(one, (0, None)))(keys, jnp.asarray(family, float))
        found[problem, name] = np.asarray(curves)
    return result(found, checks(found), AGENTS)


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """Groups are far ahead of rivals and ahead of a single group, and not behind where there are none."""
    found = {}
    for problem in dict.fromkeys(problem for problem, _ in regret):
        of = {method: one for (its, method), one in regret.items() if its == problem}
        ours = of | {CLAIMED: of[GROUPS]}
        if problem == "unrelated":
            found |= claims(problem, ours, ALONE, dict.fromkeys(AFTER, LOST))
        else:
            found |= claims(problem, ours, (*ALONE, "FTS"), TIMES)
            claim = f"{problem}: after 5, at most {GAINED:.3g} times the regret of one group, ratio"
            found[claim] = at_most(of[GROUPS][:, 4], of[ONE][:, 4], GAINED)
    return found


EXPERIMENT = Experiment(
    source="prior-groups",
    about="what agents of several kinds gain if each kind learns a prior of its own",
    time="10 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
