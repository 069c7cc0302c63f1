"""The gain of a prior that agents learn together, by how much their functions have in common.

    alike        0.9 common + 0.1 own
    half         0.5 common + 0.5 own
    opposed      0.8 common + 0.2 own, upside down for every other agent
    unrelated    own

`common` and `own` are draws of one process, SE(0.2) on the square. Twenty agents begin with three random
evaluations each. Regret is in deviations of the functions, the mean over agents. The methods that work
alone and those that send something have the same features; `EI` is the learned prior without trust.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common.panels import figure
from bench.runner import Check, Experiment, Options, Result, at_most, interval, progress
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

AGENTS, INITIAL, ROUNDS = 20, 3, 17
KERNEL = SquaredExponential(0.2)
#: So many features draw the functions, many more than a method has.
DRAWN = 600
#: Family -> share in common, share of one's own, and whether every other agent is upside down.
FAMILIES = {
    "alike": (0.9, 0.1, False),
    "half": (0.5, 0.5, False),
    "opposed": (0.8, 0.2, True),
    "unrelated": (0.0, 1.0, False),
}
#: Evaluations after which regret is looked at.
AFTER = (4, 5, 7, 10, 20)
#: Evaluations -> how many times the best rival's regret the learned prior's may be.
TIMES = {5: 1 / 2, 10: 2 / 3}
#: The same against the best lone method, where nothing is in common.
LOST = 1.05
#: The form of S that the claims are about: any covariance.
CLAIMED = "learned prior, full"
ALONE = ("TS", "EI")


def methods() -> dict[str, AbstractAlgorithm]:
    """What is compared."""
    cube, model = Cube(2), Fixed(KERNEL, 100, 1e-3)

    def learned(**options: Any) -> LearnedPrior:
        return LearnedPrior(
            cube, AGENTS, INITIAL + ROUNDS, features=model, candidates=500, **options
        )

    return {
        "TS": TS(cube, AGENTS, model, 500),
        "EI": learned(rank=0, trust=0.0),
        "FTS": FTS(cube, AGENTS, features=model, candidates=500),
        "learned prior, one variance": learned(rank=0),
        "learned prior, rank 10": learned(rank=10),
        CLAIMED: learned(rank=101),
    }


@functools.cache
def program(method: str) -> Callable[[Array, Array], Array]:
    """Regret [evaluations] of a run, from its key and the family."""
    algorithm = methods()[method]
    phi = features.sine_cosine(jr.key(0), KERNEL, 2, DRAWN)
    axis = (np.arange(60) + 0.5) / 60
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), float)
    table = jax.vmap(phi)(grid)

    def one(key: Key, family: Float[Array, "3"]) -> Float[Array, " evaluations"]:
        weights_key, run_key = jr.split(key)
        w = _weights(weights_key, family)

        def objective(key: Key, agent: Count, x: Point) -> Scalar:
            del key
            return dot(phi(x), w[agent])

        _, trace = run(algorithm, objective, ROUNDS, run_key, initial=INITIAL)
        values = dot(table, w.T)
        best = jax.lax.cummax(trace.values, axis=0)
        below = jnp.maximum(jnp.max(values, axis=0)[None, :] - best, 0)
        return jnp.mean(below, axis=1) / jnp.std(values)

    return jax.jit(jax.vmap(one, (0, None)))


def _weights(key: Key, family: Float[Array, "3"]) -> Float[Array, "agents features"]:
    common_key, own_key = jr.split(key)
    share, rest, turned = family
    odd = jnp.arange(AGENTS) % 2 == 1
    sign = jnp.where(odd & (turned > 0), -1.0, 1.0)
    common = jr.normal(common_key, (1, DRAWN))
    return sign[:, None] * share * common + rest * jr.normal(own_key, (AGENTS, DRAWN))


def _run(options: Options) -> Result:
    runs = options.runs_or(40, 4)
    names = options.problems_or(FAMILIES, FAMILIES)
    kinds = [(family, method) for family in names for method in methods()]
    regret = {
        (family, method): np.asarray(
            program(method)(
                jr.split(jr.key(options.seed), runs), jnp.asarray(FAMILIES[family], float)
            )
        )
        for family, method in progress(kinds, "prior-synthetic")
    }
    curves = {", ".join(kind): one for kind, one in regret.items()}
    return Result(
        settings={"runs": runs, "agents": AGENTS, "initial": INITIAL, "rounds": ROUNDS},
        curves=curves,
        figure=figure(
            curves,
            tuple(methods()),
            tuple(names),
            xlabel="evaluations",
            ylabel="regret, deviations",
            log=True,
        ),
        checks=checks(regret),
        unit="regret, deviations",
        headers=("functions", "method", *(f"after {n}" for n in AFTER)),
        rows=[(*kind, *(interval(one[:, n - 1]) for n in AFTER)) for kind, one in regret.items()],
    )


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """The learned prior is far ahead where agents have something in common, and not behind elsewhere."""
    found = {}
    for family in dict.fromkeys(family for family, _ in regret):
        ours = regret[family, CLAIMED]
        for n, times in (TIMES if family != "unrelated" else dict.fromkeys(AFTER, LOST)).items():
            rivals = (*ALONE, "FTS") if family != "unrelated" else ALONE
            best = min(rivals, key=lambda name: regret[family, name][:, n - 1].mean())
            among = ", ".join(rivals)
            claim = f"{family}: after {n}, at most {times:.3g} times the best regret of {among}"
            found[claim] = at_most(ours[:, n - 1], regret[family, best][:, n - 1], times)
    return found


EXPERIMENT = Experiment(
    source="prior-synthetic",
    about="what agents gain by learning a prior together, by how much they have in common",
    time="7 min",
    run=_run,
    problems=tuple(FAMILIES),
)
