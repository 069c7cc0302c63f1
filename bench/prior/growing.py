"""The worth of finished agents to an agent that begins, by messages before its start alone.

    n agents      20 evaluations each, by expected improvement alone
    newcomers     nothing, then five queries

The families are as in `prior.families`; the tasks are tabulated. Newcomers do not hear each other.

    learned prior    (m, S) after `STEPS` steps of expectation-maximization among the n, a message each
    FTS, TAF         what each of the n sends, once
    EI               nothing but location and scale, of the first, random values of all

A first query has no observation behind it: that of the learned prior is made from (m, S) alone. Regret
is the mean over newcomers, in deviations of the functions, of tasks in percentage points.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from bench.claims import Check, at_most
from bench.common.text import interval
from bench.prior import families
from bench.prior.setting import CLAIMED, FEATURES, INITIAL, KERNEL, LOST, ROUNDS
from bench.runner import Experiment, Options, Result, parts
from bench.tasks import tabulated
from jaxbo import plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior, LearnedPriorShared
from jaxbo.algos.taf import TAF
from jaxbo.domains.base import AbstractDomain, Cube
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models import private_prior
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.features import FeatureMap
from jaxbo.objectives.families import AbstractObjective, OnGrid
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar, named

NEWCOMERS, QUERIES = 10, 5
#: Of how many that have finished a newcomer hears; a task has as many owners as it has.
FINISHED = (1, 3, 10, 30, 100)
TASKS = {"landmine-svm": (1, 3, 10, 19)}
PROBLEMS = (*families.FAMILIES, *TASKS)
#: Variance of what the features cannot say, as in `prior-tuning`; 1e-3 elsewhere.
NOISE = {"landmine-svm": 1e-2}
CANDIDATES = 500

STEPS = 10
#: Other numbers of steps, of the form that is claimed, and of how many finished.
OTHER_STEPS, OF = (1, 3, 30), 30
RANKS = {"learned prior, one variance": 0, "learned prior, rank 10": 10, CLAIMED: FEATURES + 1}
EI = "EI"
METHODS = (EI, "FTS", "TAF", *RANKS)
#: Family, queries and how many times EI's regret the claimed form's may be after 30 have finished.
CLAIMS = (
    ("alike", 1, 1 / 2),
    ("alike", 5, 1 / 2),
    ("half", 1, 3 / 4),
    ("half", 5, 3 / 4),
    ("opposed", 5, 1 / 2),
    ("unrelated", 1, LOST),
    ("unrelated", 5, LOST),
)


# ---------------------------------------------------------------- functions


class Draws(AbstractObjective):
    """Draws of a process on many features."""

    weights: Float[Array, "agents features"]
    features: FeatureMap
    table: Float[Array, "points features"]
    noise: Scalar = eqx.field(converter=named("noise"), default=0.0)

    @property
    def agents(self) -> int:
        return self.weights.shape[0]

    def noiseless(self, agent: Count, x: Point) -> Scalar:
        return dot(self.features(x), self.weights[agent])

    def optimum(self, agent: Count) -> Scalar:
        return jnp.max(dot(self.table, self.weights[agent]))


class GrowingProblem(NamedTuple):
    """The domain, the number of agents that finish, and the functions that numbers stand for.

    Families have the same `kind`, and so the same programs.
    """

    kind: str
    domain: AbstractDomain
    finished: tuple[int, ...]
    objective: Callable[[Array], AbstractObjective]
    drawn: Callable[[Key], Array]

    @property
    def agents(self) -> int:
        """Newcomers come last."""
        return max(self.finished) + NEWCOMERS


@functools.cache
def problem(name: str) -> GrowingProblem:
    """A family or a task."""
    return _task(name) if name in TASKS else _family(name)


def _family(name: str) -> GrowingProblem:
    """Functions in deviations of all of them."""
    phi = features.sine_cosine(jr.key(0), KERNEL, 2, families.DRAWN)
    axis = (np.arange(60) + 0.5) / 60
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), float)
    table, agents = jax.vmap(phi)(grid), max(FINISHED) + NEWCOMERS

    def drawn(key: Key) -> Array:
        family = jnp.asarray(families.FAMILIES[name], float)
        weights = families.weights(key, family, agents)
        return weights / jnp.std(dot(table, weights.T))

    return GrowingProblem(
        "family", Cube(2), FINISHED, lambda w: Draws(weights=w, features=phi, table=table), drawn
    )


def _task(name: str) -> GrowingProblem:
    """The owners in another order each time, in percentage points."""
    its = tabulated.load(name)

    def drawn(key: Key) -> Array:
        return 100 * its.values[jr.permutation(key, its.agents)]

    domain = tabulated.domain(its)
    return GrowingProblem(
        name, domain, TASKS[name], lambda v: OnGrid(values=v, points=its.points), drawn
    )


# ---------------------------------------------------------------- runs

#: What all that finish have asked and seen.
Past = tuple[Float[Array, "runs rows agents dim"], Float[Array, "runs rows agents"]]


def measured(
    name: str, method: str, n: int, steps: int, runs: int, seed: int
) -> Float[np.ndarray, "runs queries"]:
    """Regret of the newcomers' queries so far, after n have finished."""
    keys, functions, before = begun(name, runs, seed)
    finished = jnp.arange(max(problem(name).finished)) < n
    return np.asarray(program(_like(name), method, steps)(finished, keys, functions, before))


@functools.cache
def begun(name: str, runs: int, seed: int) -> tuple[Array, Array, Past]:
    """Keys and functions of all runs, and the past of the finished agents."""
    draw_key, past_key, key = jr.split(jr.key(seed), 3)
    functions = jax.lax.map(problem(name).drawn, jr.split(draw_key, runs))
    past = past_of(_like(name))(jr.split(past_key, runs), functions)
    return jr.split(key, runs), functions, past


def _like(name: str) -> str:
    """The problem whose programs are its."""
    return next(other for other in PROBLEMS if problem(other).kind == problem(name).kind)


def model(name: str) -> Fixed:
    """The features of all methods."""
    return Fixed(KERNEL, FEATURES, NOISE.get(name, 1e-3))


def learning(name: str, agents: int, **options: Any) -> LearnedPrior:
    """A learned prior as it is tried here."""
    domain, given = problem(name).domain, {"features": model(name), "candidates": CANDIDATES}
    return LearnedPrior(domain, agents, INITIAL + ROUNDS, **given, **options)


@functools.cache
def past_of(name: str) -> Callable[[Array, Array], Past]:
    """Each searches by expected improvement; location and scale are taken from all values."""
    algorithm = learning(name, max(problem(name).finished), rank=0, trust=0.0)

    def one(given: tuple[Key, Array]) -> tuple[Array, Array]:
        key, functions = given
        objective = problem(name).objective(functions)
        trace = run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1]
        return trace.queries, trace.values

    return jax.jit(lambda *given: jax.lax.map(one, given))


@functools.cache
def program(name: str, method: str, steps: int) -> Callable[..., Array]:
    """Regret [runs queries], from who has finished, keys and functions of the runs, and the past."""
    its = problem(name)
    newcomers = its.agents - NEWCOMERS + jnp.arange(NEWCOMERS)
    one = _learned if method in (EI, *RANKS) else _listening

    def regret(
        finished: Bool[Array, " agents"], given: tuple[Key, Array, Past]
    ) -> Float[Array, " queries"]:
        key, functions, before = given
        objective = its.objective(functions)
        start = functools.partial(_begin, objective, newcomers[0])
        found = one(name, method, steps, start, key, finished, before)
        best = jax.lax.cummax(found, axis=0)
        lacking = jax.vmap(objective.optimum)(newcomers)[None, :] - best
        return jnp.mean(jnp.maximum(lacking, 0), axis=1)

    def all_of(finished: Bool[Array, " agents"], *given: Any) -> Float[Array, "runs queries"]:
        return jax.lax.map(functools.partial(regret, finished), given)

    return jax.jit(all_of)


def _begin(
    objective: AbstractObjective,
    first: Count,
    algorithm: AbstractAlgorithm,
    key: Key,
    **options: Any,
) -> Float[Array, "queries newcomers"]:
    """Values of the newcomers, of whom the algorithm's agent 0 is the first."""
    own = lambda key, agent, x: objective.noiseless(first + agent, x)  # noqa: E731
    return run(algorithm, own, QUERIES, key, **options)[1].values[:, :NEWCOMERS]


def _learned(
    name: str,
    method: str,
    steps: int,
    begin: Any,
    key: Key,
    finished: Bool[Array, " agents"],
    before: Past,
) -> Float[Array, "queries newcomers"]:
    """Newcomers have the prior that the finished agents learn; with EI alone its location and scale."""
    init_key, run_key = jr.split(key)
    rank, trust = RANKS.get(method, 0), 0.0 if method == EI else 0.5
    algorithm = learning(name, finished.size, rank=rank)
    if method == EI:
        prior = _process(algorithm.setup(init_key), before[1][:INITIAL])
    else:
        state = algorithm.warm_start(algorithm.init(init_key), *before)
        prior = algorithm.learned(state, steps, finished)
    return begin(learning(name, NEWCOMERS, rank=rank, trust=trust, prior=prior), run_key)


def _process(shared: LearnedPriorShared, values: Array) -> LearnedPriorShared:
    """The process of the features, for values of that mean and deviation."""
    size, dtype = shared.features.size, shared.prior.mean.dtype
    prior = private_prior.process(jr.key(0), size, jnp.mean(values), jnp.std(values), dtype)
    return LearnedPriorShared(shared.features, prior)


def _listening(
    name: str,
    method: str,
    steps: int,
    begin: Any,
    key: Key,
    finished: Bool[Array, " agents"],
    before: Past,
) -> Float[Array, "queries newcomers"]:
    """Newcomers hear a message of each finished agent. Finished agents come behind the newcomers."""
    del steps
    init_key, run_key = jr.split(key)
    domain, agents = problem(name).domain, NEWCOMERS + finished.size
    peers = np.arange(agents) >= NEWCOMERS
    common = {"features": model(name), "once": True, "targets": NEWCOMERS, "candidates": CANDIDATES}
    algorithm = (
        FTS(domain, agents, peers=peers.astype(float), **common)
        if method == "FTS"
        else TAF(domain, agents, Fitted(QUERIES, inference=Exact()), peers=peers, **common)
    )
    fill = functools.partial(jnp.pad, constant_values=jnp.nan)
    queries, values = before
    queries = fill(queries, ((0, 0), (NEWCOMERS, 0), (0, 0)))
    values = fill(values, ((0, 0), (NEWCOMERS, 0)))
    state = algorithm.warm_start(algorithm.init(init_key), queries, values)
    present = jnp.pad(finished, (NEWCOMERS, 0))
    everywhere = jnp.broadcast_to(present[None], (QUERIES, agents))
    return begin(algorithm, run_key, state=state, present=everywhere)


# ---------------------------------------------------------------- what came out


def _run(options: Options) -> Result:
    """--only names families and tasks."""
    runs = options.runs_or(40, 2)
    names = options.problems_or(PROBLEMS, ("alike",))
    kinds = [
        (name, method, n, STEPS)
        for name in names
        for method in METHODS
        for n in (problem(name).finished if method != EI else (max(problem(name).finished),))
    ]
    kinds += [
        (name, CLAIMED, OF, steps)
        for name in names
        if OF in problem(name).finished
        for steps in OTHER_STEPS
    ]
    measures = {
        label(*kind): functools.partial(measured, *kind, runs, options.seed) for kind in kinds
    }
    regret, folder = parts(options, "prior-growing", (runs,), measures)
    return Result(
        settings={"runs": runs, "newcomers": NEWCOMERS, "evaluations": INITIAL + ROUNDS},
        curves=regret,
        figure=_figure(regret, names),
        checks=checks(regret, names),
        unit="regret, deviations or percentage points",
        headers=("functions, method, finished", *(f"after {i + 1}" for i in range(QUERIES))),
        rows=[
            (label(*kind), *(interval(column) for column in regret[label(*kind)].T))
            for kind in kinds
        ],
        scratch=folder,
    )


def label(name: str, method: str, n: int, steps: int = STEPS) -> str:
    """The name of a curve."""
    after = "" if steps == STEPS else f", {steps} step{'s' * (steps > 1)}"
    return f"{name}, {method}" if method == EI else f"{name}, {method}, n = {n}{after}"


def checks(regret: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, Check]:
    """The claims, made beforehand."""
    found = {}
    for name, query, times in CLAIMS:
        if name in names:
            claim = f"{name}, n = {OF}: after {query}, at most {times:.3g} times EI's regret, ratio"
            found[claim] = at_most(
                regret[label(name, CLAIMED, OF)][:, query - 1],
                regret[label(name, EI, 0)][:, query - 1],
                times,
            )
    for name in names:
        if name == "unrelated":
            continue
        most = problem(name).finished[-1]
        ours = regret[label(name, CLAIMED, most)]
        rivals = [regret[label(name, rival, most)] for rival in ("FTS", "TAF")]
        for query in (1, QUERIES):
            rival = min(rivals, key=lambda one: one[:, query - 1].mean())[:, query - 1]
            claim = f"{name}, n = {most}: after {query}, no more regret than FTS and TAF, ratio"
            found[claim] = at_most(ours[:, query - 1], rival, 1.0)
        fewer = regret[label(name, CLAIMED, 1)]
        claim = (
            f"{name}: after {QUERIES}, at most {3 / 4} times the regret with n = {most} as with 1, "
            "ratio"
        )
        found[claim] = at_most(ours[:, -1], fewer[:, -1], 3 / 4)
    return found


def _figure(regret: dict[str, np.ndarray], names: tuple[str, ...]) -> Any:
    """Above the first query, below the fifth, against the number that have finished."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(4.5 * len(names), 8), dpi=plotting.DPI, layout="constrained")
    axes: Any = picture.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        for row, query in enumerate((1, QUERIES)):
            ax = axes[row, column]
            _panel(ax, name, query, regret)
            ax.set_title(f"{name}, query {query}")
            ax.set(xscale="log", yscale="log", xlabel="agents that have finished")
            ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("regret")
    axes[1, 0].set_ylabel("regret")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return picture


def _panel(ax: Any, name: str, query: int, regret: dict[str, np.ndarray]) -> None:
    finished = problem(name).finished
    ax.set_xticks(finished, [str(n) for n in finished])
    ax.minorticks_off()
    alone = regret[label(name, EI, 0)][:, query - 1].mean()
    ax.axhline(alone, color="0.5", ls="--", label="EI, alone")
    for color, method in zip(plotting.PALETTE, METHODS[1:], strict=False):
        curves = [regret[label(name, method, n)][:, query - 1] for n in finished]
        means = [curve.mean() for curve in curves]
        errors = [curve.std(ddof=1) / len(curve) ** 0.5 for curve in curves]
        ax.errorbar(finished, means, errors, color=color, marker="o", capsize=3, label=method)


EXPERIMENT = Experiment(
    source="prior-growing",
    about="what agents that have finished are worth to one that begins, by earlier messages",
    time="50 min",
    run=_run,
    problems=PROBLEMS,
)
