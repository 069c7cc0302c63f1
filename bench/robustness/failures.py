"""How many evaluations fail, and the price, if a part of the domain cannot be evaluated.

    ridge     rises to x_1 = 0.97, fails beyond 0.9: the best is on the border
    slope     rises to (0.8, 0.8), fails beyond x_1 = 0.6: a wide part fails
    chance    Branin's function, of whose evaluations 20 % fail wherever they are

Each method is told of failures in five ways.

    told         NaN
    forgetful    NaN, and no failure is remembered
    imputed      the worst value so far in the place of each failure
    penalty      the worst value of the domain
    informed     nothing: the search only looks where evaluations succeed

On `chance` a penalty means nothing, and nobody can be informed.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from bench.claims import Check, at_most, on_average
from bench.common.text import interval
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm, Stage
from jaxbo.algos.bo import BO
from jaxbo.algos.egp import EGP
from jaxbo.algos.ts import TS
from jaxbo.domains.base import AbstractDomain, Cube
from jaxbo.kernels.choosing import failures
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.layout import Each
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

DIM, INITIAL, ROUNDS = 2, 5, 20
#: Failures are counted after so many evaluations.
LEARNING = 10
#: So many of those may fail, and the regret may be so many times that of a search that is informed.
SHARE, TIMES = 0.1, 1.5
#: On `chance` the regret may be so many times that of a search that remembers no failure.
LOST = 1.1
CHANCE = 0.2


class FailingProblem(NamedTuple):
    """Its number, the largest x_1 that does not fail, its best value there and its worst."""

    number: int
    border: float
    best: float
    worst: float


BRANIN = branin_rescaled()
PROBLEMS = {
    "ridge": FailingProblem(0, 0.9, -(0.07**2), -(0.97**2) - 0.6**2),
    "slope": FailingProblem(1, 0.6, -(0.2**2), -2 * 0.8**2),
    "chance": FailingProblem(2, 1.0, float(BRANIN.maximum), math.nan),
}
WAYS = ("told", "forgetful", "imputed", "penalty", "informed")


def value(number: Count | int, x: Point) -> Scalar:
    """The value of that problem if nothing fails."""
    ridge = -((x[0] - 0.97) ** 2) - (x[1] - 0.4) ** 2
    slope = -jnp.sum((x - 0.8) ** 2)
    return jnp.stack([ridge, slope, BRANIN(x)])[number]


class Imputing(AbstractAlgorithm):
    """A method that is told the worst of an agent's values so far in the place of a failure."""

    domain: AbstractDomain
    method: AbstractAlgorithm

    @property
    def clients(self) -> int:
        return self.method.clients

    @property
    def targets(self) -> int:
        return self.method.targets

    @property
    def capacity(self) -> int | None:
        return self.method.capacity

    def init(self, key: Key, *, each: Each = jax.vmap) -> PyTree:
        return self.method.init(key, each=each), jnp.full((self.targets,), jnp.inf)

    def round(self, state: PyTree) -> Count:
        return self.method.round(state[0])

    def told(self, state: PyTree) -> Count:
        return self.method.told(state[0])

    def ask(
        self,
        key: Key,
        state: PyTree,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        return self.method.ask(key, state[0], present, each=each)

    def tell(
        self,
        state: PyTree,
        queries: Float[Array, "targets dim"],
        values: Float[Array, " targets"],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> PyTree:
        inner, worst = state
        worst = jnp.minimum(worst, jnp.where(jnp.isnan(values), jnp.inf, values))
        told = self.instead(values, worst)
        return self.method.tell(inner, queries, told, stage, info, each=each), worst

    def instead(self, values: Array, worst: Array) -> Array:
        """What is told. A failure stays a failure while nothing has succeeded."""
        return jnp.where(jnp.isnan(values) & jnp.isfinite(worst), worst, values)


class Forgetful(Imputing):
    """A method that is told of failures and takes every risk; traced apart from the method itself."""

    def ask(self, *args: Any, **kwargs: Any) -> tuple[Float[Array, "targets dim"], PyTree]:
        with tolerating(math.inf):
            return super().ask(*args, **kwargs)

    def instead(self, values: Array, worst: Array) -> Array:
        del worst
        return values


WRAPPED = {"imputed": Imputing, "forgetful": Forgetful}


def methods() -> dict[str, AbstractAlgorithm]:
    """What is compared."""
    cube, room = Cube(DIM), INITIAL + ROUNDS
    exact = Fitted(room, inference=Exact())
    return {
        "BO": BO(cube, room),
        "EGP, EI": EGP(cube, exact, EI(), candidates=500),
        "EGP, Thompson": EGP(cube, Fitted(room, size=100), Thompson(), candidates=500),
        "TS": TS(cube, 1, candidates=500),
    }


@contextlib.contextmanager
def tolerating(risk: float) -> Iterator[None]:
    """The traced program takes every risk up to that."""
    before = failures.TOLERATED
    failures.TOLERATED = risk
    try:
        yield
    finally:
        failures.TOLERATED = before


class Found(NamedTuple):
    """The share of evaluations that fail after the first, and the last regret, for every run."""

    failed: np.ndarray
    regret: np.ndarray


@functools.cache
def program(method: str, way: str) -> Callable[..., Array]:
    """Values of runs, from their keys, of a method that is told in that way."""
    algorithm = methods()[method]
    if way in WRAPPED:
        algorithm = WRAPPED[way](algorithm.domain, algorithm)

    def one(key: Key, problem: FailingProblem) -> Array:
        by_chance = jnp.isnan(problem.worst)

        def objective(key: Key, agent: Count, x: Point) -> Scalar:
            del agent
            if way == "informed":
                return value(problem.number, x.at[0].multiply(problem.border))
            instead = problem.worst if way == "penalty" else jnp.nan
            failed = (x[0] > problem.border) | (by_chance & (jr.uniform(key) < CHANCE))
            return jnp.where(failed, instead, value(problem.number, x))

        return run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1].values[:, 0]

    return jax.jit(jax.vmap(one, (0, None)))


@functools.cache
def measured(name: str, way: str, method: str, runs: int, seed: int) -> Found:
    """Runs of a method on a problem."""
    problem = PROBLEMS[name]
    values = np.asarray(program(method, way)(jr.split(jr.key(seed), runs), problem))
    failed = np.isnan(values) | (values == np.float32(problem.worst))
    best = np.max(np.where(failed, -np.inf, values), axis=1)
    return Found(failed[:, LEARNING:].mean(axis=1), problem.best - best)


def ways(name: str) -> tuple[str, ...]:
    """How methods can be told of this problem's failures."""
    return WAYS[:3] if name == "chance" else WAYS


def _run(options: Options) -> Result:
    runs = options.runs_or(100, 10)
    names = options.problems_or(PROBLEMS, PROBLEMS)
    kinds = [(n, m, w) for n in names for m in methods() for w in ways(n)]
    found = {
        (n, m, w): measured(n, w, m, runs, options.seed) for n, m, w in progress(kinds, "failures")
    }
    return Result(
        settings={
            "runs": runs,
            "initial": INITIAL,
            "rounds": ROUNDS,
            "tolerated": failures.TOLERATED,
        },
        finals={", ".join(kind): one.regret for kind, one in found.items()},
        checks=checks(found),
        details={"failed after ten": {", ".join(k): one.failed.mean() for k, one in found.items()}},
        headers=("problem", "method", "told by", "failed after ten", "regret"),
        rows=[
            (*kind, f"{100 * one.failed.mean():.0f} %", interval(one.regret))
            for kind, one in found.items()
        ],
    )


def checks(found: dict[tuple[str, str, str], Found]) -> dict[str, Check]:
    """Few evaluations fail, and little is lost by it."""
    results = {}
    for (name, method, way), one in found.items():
        if way != "told":
            continue
        if name == "chance":
            other = found[name, method, "forgetful"]
            claim = (
                f"{name}, {method}: mean regret at most {LOST:g} times that of a forgetful search, "
                "ratio"
            )
            results[claim] = at_most(one.regret, other.regret, LOST)
            continue
        claim = f"{name}, {method}: at most {SHARE:.0%} fail after ten evaluations, share"
        results[claim] = on_average(one.failed, most=SHARE)
        other = found[name, method, "informed"]
        claim = f"{name}, {method}: mean regret at most {TIMES:g} times that of an informed search, ratio"
        results[claim] = at_most(one.regret, other.regret, TIMES)
    return results


EXPERIMENT = Experiment(
    source="failures",
    about="what is lost where evaluations fail, in a part of the domain or by chance",
    time="15 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
