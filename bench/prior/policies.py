"""Policies of agents that learn a prior together, and what the safeguard `mixing` costs them.

Functions are drawn as in `prior.synthetic`: twenty agents begin with three random evaluations
each. Agents learn any covariance, and differ only in how they choose a query. With `mixing` an agent
works alone in round t with the probability of `InverseSqrt()`, 1 - 1 / √max(t, 2). Regret is in
deviations of the functions, the mean over agents.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.claims import Check, at_most, within
from bench.prior.families import FAMILIES, regret, result
from bench.prior.setting import CLAIMED, LOST, ROUNDS, methods
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, UCB, AbstractPolicy, Thompson
from jaxbo.schedules import InverseSqrt

AGENTS = 20
NAMES = ("half", "opposed", "unrelated")
AFTER = (5, 10, 20)
POLICIES: dict[str, AbstractPolicy] = {"EI": EI(), "UCB": UCB(), "Thompson": Thompson()}
DEFAULT = "EI"
#: Policies that are tried with the safeguard, too.
SAFE = ("EI", "Thompson")
METHODS = (*POLICIES, *(f"{policy}, mixing" for policy in SAFE))
#: Evaluations -> how many times the regret without the safeguard that with it may be, where functions
#: have something in common. Where they have nothing, it costs nothing: `LOST`.
COSTS = {5: 1.25, 10: 2.0, 20: 2.0}


def algorithm(method: str) -> LearnedPrior:
    """The learned prior of that policy, with the safeguard or without."""
    policy, _, mixing = method.partition(", ")
    claimed = methods(Cube(2), AGENTS)[CLAIMED]
    assert isinstance(claimed, LearnedPrior)
    schedule = InverseSqrt() if mixing else None
    return dataclasses.replace(claimed, policy=POLICIES[policy], mixing=schedule)


def _run(options: Options) -> Result:
    runs = options.runs_or(40, 4)
    names = options.problems_or(NAMES, NAMES)
    keys, found = jr.split(jr.key(options.seed), runs), {}
    for method in progress(METHODS, "prior-policies"):
        one = functools.partial(regret, algorithm(method), AGENTS, ROUNDS)
        program = jax.jit(jax.vmap(one, (0, None)))
        for name in names:
            found[name, method] = np.asarray(program(keys, jnp.asarray(FAMILIES[name], float)))
    found = {(name, method): found[name, method] for name in names for method in METHODS}
    return result(found, checks(found), AGENTS)


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """No other policy is better than the default, and the safeguard costs a part of the gain alone."""
    found = {}
    others = [policy for policy in POLICIES if policy != DEFAULT]
    for name in dict.fromkeys(name for name, _ in regret):
        for n in AFTER:
            ours, *rivals = (regret[name, policy][:, n - 1] for policy in (DEFAULT, *others))
            claim = (
                f"{name}: after {n}, {DEFAULT} no worse than the better of {', '.join(others)} by "
                "more than 5 %, ratio"
            )
            found[claim] = within(ours, min(rivals, key=np.mean))
    for name in dict.fromkeys(name for name, _ in regret):
        for policy in SAFE:
            for n, most in COSTS.items():
                times = LOST if name == "unrelated" else most
                claim = (
                    f"{name}, {policy}: after {n}, at most {times:g} times the regret without "
                    "mixing, ratio"
                )
                safe, bold = (regret[name, one] for one in (f"{policy}, mixing", policy))
                found[claim] = at_most(safe[:, n - 1], bold[:, n - 1], times)
    return found


EXPERIMENT = Experiment(
    source="prior-policies",
    about="policies of agents that learn a prior together, and the cost of the safeguard",
    time="5 min",
    run=_run,
    problems=NAMES,
)
