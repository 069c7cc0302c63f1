"""Methods for owners who tune, each by its own tabulated scores (`bench.tasks.tabulated`).

Every owner looks for the best of 1024 points, by its own learner's score on its own data. Regret is in
percentage points of the score, a share, and the mean over owners.

    alone        TS and EI on the same features; EI with hyperparameters fitted to the owner's values,
                 and on an ensemble of warped values
    federated    FTS in all its settings, RGPE and TAF, with a message every round
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check
from bench.common.panels import figure
from bench.common.text import interval
from bench.prior import setting
from bench.prior.setting import AFTER, ALONE, FEATURES, INITIAL, ROUNDS, TIMES, claims
from bench.runner import Options, Result, parts
from bench.tasks import tabulated
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.egp import EGP
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import OnGrid
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

TOTAL = INITIAL + ROUNDS
#: Variance of what the features cannot say, as a share of the values' variance; 1e-3 elsewhere.
ROUGH = ("landmine-svm", "digits-network", "diabetes-boosting")
NOISE: dict[str, float] = dict.fromkeys(ROUGH, 1e-2)
#: The length scale of features on a square or a cube. Distances of random points grow as the root of the
#: dimension, and beyond a cube the length scale does so too, from that on the square.
LENGTH, CUBE = 0.2, 3
FITTED = ("EI, fitted", "EI, warped ensemble")
#: The claims: ahead of everybody at all times, and far ahead early.
AHEAD = dict.fromkeys(AFTER, 1.0) | TIMES


def length(dim: int) -> float:
    """The length scale of all features in that dimension."""
    return LENGTH if dim <= CUBE else LENGTH * math.sqrt(dim / 2)


def lone(kind: str, objective: OnGrid) -> EGP:
    """An owner's search by a model that is fitted to its own observations."""
    domain = tabulated.domain(objective)
    model = (
        Fitted(TOTAL, inference=Exact())
        if kind == "EI, fitted"
        else Ensemble.warped(domain.dim, TOTAL)
    )
    return EGP(domain, model, EI())


def federated(task: str, objective: OnGrid) -> dict[str, AbstractAlgorithm]:
    """The methods that search for all owners at once."""
    domain, noise = tabulated.domain(objective), NOISE.get(task, 1e-3)
    agents, kernel = objective.agents, SquaredExponential(length(domain.dim))
    sharing = setting.methods(domain, agents, kernel=kernel, noise=noise)
    # Their models have as many candidates as by default.
    theirs = setting.rivals(domain, agents, kernel=kernel, noise=noise, candidates=1000)
    return sharing | theirs


def program(task: str, method: str) -> Callable[[Array], Array]:
    """Regret [runs evaluations], from the keys of the runs."""
    objective = tabulated.load(task)
    owners = jnp.arange(objective.agents)
    best = jax.vmap(objective.optimum)(owners)

    if method in FITTED:
        algorithm = lone(method, objective)

        def values(key: Key) -> Float[Array, "evaluations owners"]:
            def one(owner: Count) -> Float[Array, " evaluations"]:
                def its(key: Key, agent: Count, x: Point) -> Scalar:
                    del key, agent
                    return objective.noiseless(owner, x)

                found = run(algorithm, its, ROUNDS, jr.fold_in(key, owner), initial=INITIAL)[1]
                return found.values[:, 0]

            return jax.vmap(one, out_axes=1)(owners)

    else:
        together = federated(task, objective)[method]

        def values(key: Key) -> Float[Array, "evaluations owners"]:
            return run(together, objective, ROUNDS, key, initial=INITIAL)[1].values

    def regret(key: Key) -> Float[Array, " evaluations"]:
        lacking = best[None, :] - jax.lax.cummax(values(key), axis=0)
        return 100 * jnp.mean(lacking, axis=1)

    return jax.jit(lambda keys: jax.lax.map(regret, keys))


RIVALS = (*ALONE, *FITTED, *setting.RIVALS)
METHODS = (*RIVALS, "learned prior, one variance", "learned prior, rank 10", setting.CLAIMED)


def compared(options: Options, experiment: str, names: tuple[str, ...]) -> Result:
    """All methods on the tasks of the given names."""
    runs = options.runs_or(30, 2)
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        f"{task}, {method}": functools.partial(_measured, task, method, keys)
        for task in names
        for method in METHODS
    }
    regret, folder = parts(options, experiment, (runs,), measures)
    checks: dict[str, Check] = {}
    for task in names:
        of_task = {method: regret[f"{task}, {method}"] for method in METHODS}
        checks |= claims(task, of_task, RIVALS, AHEAD)
    return Result(
        settings={"runs": runs, "initial": INITIAL, "rounds": ROUNDS, "features": FEATURES},
        curves=regret,
        figure=figure(
            regret, METHODS, names, xlabel="evaluations", ylabel="regret, percent", log=True
        ),
        checks=checks,
        unit="regret, percentage points",
        headers=("task", "method", *(f"after {n}" for n in AFTER)),
        rows=[
            (*label.split(", ", 1), *(interval(one[:, n - 1]) for n in AFTER))
            for label, one in regret.items()
        ],
        scratch=folder,
    )


def _measured(task: str, method: str, keys: Array) -> np.ndarray:
    return np.asarray(program(task, method)(keys))
