"""EGP-TS, Fig. 1, 2 and 6: an ensemble that chooses its kernel against each of its kernels alone.

    Ackley-5d, Zakharov-4d, drop-wave, eggholder, without noise; 10 random points, then 100 evaluations
    regret_t = max f - max over evaluations up to t of f

Every run has initial points of its own, the same for all methods. Thompson sampling is on 100 features
(D = 50 frequencies), as in the paper, but where it says exact. All methods fit their hyperparameters to
the initial points and then every 5 evaluations; the paper's ensemble does so every 50, its others every
time. GP-EI has one length scale where the paper's has one for each coordinate; hyperparameters that are
sampled are flat in the logarithm, where the paper's are uniform. "Warped" are settings of ours: the exact
process, one length scale a coordinate with the prior of `Priors.scaled`, values warped. BoTorch, where it
is installed, is LogEI with its default model.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.egp import botorch as egp_botorch
from bench.runner import Check, Experiment, Options, Result, no_worse, number, parts, progress
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.egp import EGP
from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, UCB, AbstractPolicy, Drawn, Largest, Thompson
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.marginal import Marginal
from jaxbo.kernels.processes.covariance import (
    AbstractKernel,
    Matern32,
    Matern52,
    SquaredExponential,
)
from jaxbo.objectives import functions
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import TestFunction
from jaxbo.runs.compiled import run
from jaxbo.types import Key

INITIAL, REFIT, FEATURES, NOISE = 10, 5, 100, 1e-4
FUNCTIONS = {
    "Ackley-5d": functions.ackley5(),
    "Zakharov-4d": functions.zakharov(4),
    "drop-wave": functions.dropwave(),
    "eggholder": functions.eggholder(),
}
BOTORCH = "BoTorch, LogEI"
#: Of the upper bound, mean + beta^(1/2) deviations.
BETA = 4.0
EXACT = "EGP-TS, exact"
#: Where fitting starts.
START = 0.3
#: The dictionary of Fig. 2.
SCALES = tuple(10.0**c for c in range(-4, 7))
#: Runs that are computed at the same time.
BATCH = 5

#: (dimension, evaluations) -> the algorithm
Method = Callable[[int, int], AbstractAlgorithm]


def papers(dim: int) -> tuple[AbstractKernel, ...]:
    """The dictionary of Fig. 1: four forms, one of them with a length scale for each coordinate."""
    wide = SquaredExponential(np.full(dim, START))
    return SquaredExponential(START), wide, Matern32(START), Matern52(START)


def _ensemble(dim: int, evaluations: int, **options: Any) -> Ensemble:
    return Ensemble(papers(dim), _expert(evaluations, **options))


def _scales(evaluations: int) -> Ensemble:
    kernels = [SquaredExponential(scale) for scale in SCALES]
    return Ensemble(kernels, _expert(evaluations, keep_length_scale=True))


def _egp(policy: AbstractPolicy = Thompson(), **options: Any) -> Method:
    return lambda dim, evaluations: EGP(Cube(dim), _ensemble(dim, evaluations, **options), policy)


def _egp_scales(policy: AbstractPolicy = Thompson()) -> Method:
    return lambda dim, evaluations: EGP(Cube(dim), _scales(evaluations), policy)


def _alone(number: int, policy: AbstractPolicy = Thompson(), **options: Any) -> Method:
    def method(dim: int, evaluations: int) -> EGP:
        expert = _expert(evaluations, **options)
        kernel = papers(dim)[number]
        return EGP(Cube(dim), eqx.tree_at(lambda e: e.kernel, expert, kernel), policy)

    return method


def _bayesian(dim: int, evaluations: int) -> EGP:
    expert = _expert(evaluations, kernel=SquaredExponential(START))
    return EGP(Cube(dim), Marginal(expert))


def _warped(policy: AbstractPolicy) -> Method:
    def method(dim: int, evaluations: int) -> EGP:
        model = Ensemble.warped(dim, INITIAL + evaluations, size=FEATURES, noise=NOISE, every=REFIT)
        return EGP(Cube(dim), model, policy)

    return method


def _expert(evaluations: int, **options: Any) -> Fitted:
    return Fitted(INITIAL + evaluations, size=FEATURES, noise=NOISE, every=REFIT, **options)


METHODS: dict[str, Method] = {
    "EGP-TS": _egp(),
    "GP-TS, SE": _alone(0),
    "GP-TS, SE ARD": _alone(1),
    "GP-TS, Matern 3/2": _alone(2),
    "GP-TS, Matern 5/2": _alone(3),
    "BanditBO": _egp(Largest()),
    "EXP3BO": lambda dim, evaluations: EXP3BO(Cube(dim), _ensemble(dim, evaluations)),
    "GP-EI": _alone(0, EI(), inference=Exact()),
    "GP-UCB": _alone(0, UCB(BETA), inference=Exact()),
    "EGP-TS, 11 scales": _egp_scales(),
    "BanditBO, 11 scales": _egp_scales(Largest()),
    "EXP3BO, 11 scales": lambda dim, evaluations: EXP3BO(Cube(dim), _scales(evaluations)),
    "fully Bayesian GP-TS": _bayesian,
    "EGP-EI": _egp(Drawn(EI()), inference=Exact()),
    EXACT: _egp(inference=Exact()),
    "EGP-TS, warped": _warped(Thompson()),
    "EGP-EI, warped": _warped(Drawn(EI())),
    "mixture EI, warped": _warped(EI()),
}
QUICK = ("EGP-TS", "GP-TS, SE")
SINGLE = tuple(name for name in METHODS if name.startswith("GP-TS"))
#: What Fig. 1, 2 and 6 claim: a method, and those that it is no worse than; None is the best of SINGLE.
CLAIMS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("EGP-TS", (None, "BanditBO", "EXP3BO", "GP-EI")),
    ("EGP-TS, 11 scales", ("BanditBO, 11 scales", "EXP3BO, 11 scales", "fully Bayesian GP-TS")),
    ("EGP-EI", ("GP-EI",)),
    ("EGP-TS", (EXACT,)),
    (EXACT, ("EGP-TS",)),
    ("EGP-TS, warped", (BOTORCH,)),
    ("EGP-EI, warped", (BOTORCH,)),
    ("mixture EI, warped", (BOTORCH,)),
)
#: The curves of a panel; all are in the table.
SHOWN = tuple(
    name for name in METHODS if name not in (*SINGLE[:1], *SINGLE[2:]) and "11" not in name
)


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(30, 4), options.rounds_or(100, 15)
    methods = QUICK if options.quick else tuple(METHODS)
    if not options.quick and egp_botorch.installed():
        methods = (*methods, BOTORCH)
    names = options.problems_or(FUNCTIONS, quick=["drop-wave"])
    keys = jr.split(jr.key(options.seed), runs)

    def measure(method: str, function: TestFunction) -> Any:
        if method == BOTORCH:
            return botorch(function, keys, rounds)
        return regret(METHODS[method], function, keys, rounds)

    measures = {
        f"{name}, {method}": functools.partial(measure, method, FUNCTIONS[name])
        for method in methods
        for name in names
    }
    curves, folder = parts(options, "egp-synthetic", (runs, rounds), measures)
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "features": FEATURES,
            "evaluations between fits": REFIT,
        },
        curves=curves,
        checks=checks(curves),
        headers=("method", *(f"{name}, s.e." for name in names)),
        rows=rows(curves, methods, names),
        figure=figure(curves, (*SHOWN, BOTORCH), names, log=True),
        scratch=folder,
    )


def regret(
    method: Method, function: TestFunction, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    """The smallest so far, after the initial points, of every run."""
    return _regret(method(function.dim, rounds), Same(function=function), keys, rounds)


def botorch(function: TestFunction, keys: Array, rounds: int) -> Float[np.ndarray, "runs rounds"]:
    """Of BoTorch, from the same initial points."""
    objective, algorithm = Same(function=function), RandomSearch(Cube(function.dim), 1)
    value = eqx.filter_jit(function)
    found = []
    for seed, key in enumerate(progress(keys, f"BoTorch, {function.dim}-D")):
        _, trace = run(algorithm, objective, 0, key, initial=INITIAL)
        values = egp_botorch.log_ei(
            lambda x: float(value(jnp.asarray(x, float))),
            np.asarray(trace.queries[:, 0]),
            rounds,
            seed,
        )
        found.append(float(function.maximum) - np.maximum.accumulate(values)[INITIAL:])
    return np.stack(found)


@eqx.filter_jit
def _regret(algorithm: AbstractAlgorithm, objective: Same, keys: Array, rounds: int) -> Array:
    def one(key: Key) -> Array:
        _, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
        best = jax.lax.cummax(jnp.nan_to_num(trace.values[:, 0], nan=-jnp.inf))
        return objective.function.maximum - best[INITIAL:]

    return jax.lax.map(one, keys, batch_size=BATCH)


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Claims about the end of the runs: no worse by the 95 % interval of the runs' differences."""
    found: dict[str, Check] = {}
    for name in FUNCTIONS:
        ends = {
            method: curves[f"{name}, {method}"][:, -1]
            for method in (*METHODS, BOTORCH)
            if f"{name}, {method}" in curves
        }
        found |= claims(name, ends)
    return found


def claims(name: str, ends: dict[str, np.ndarray]) -> dict[str, Check]:
    """Those of `CLAIMS` about methods that ran, from where each run ended."""
    found: dict[str, Check] = {}
    for ours, rivals in CLAIMS:
        for rival in rivals:
            if rival is None and set(SINGLE) <= set(ends):
                rival = min(SINGLE, key=lambda m: ends[m].mean())
            if ours in ends and rival in ends:
                claim = f"{name}: {ours} no worse than {rival}, difference"
                found[claim] = no_worse(ends[ours], ends[rival])
    return found


def rows(
    curves: dict[str, np.ndarray], methods: tuple[str, ...], names: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """Where each method ended, mean and standard error, where it ran."""

    def cell(curve: np.ndarray | None) -> str:
        if curve is None:
            return "-"
        mean, error = metrics.mean_and_error(curve[:, -1])
        return f"{number(float(mean))} {number(float(error))}"

    return [
        (method, *(cell(curves.get(f"{name}, {method}")) for name in names)) for method in methods
    ]


def figure(
    curves: dict[str, np.ndarray],
    methods: tuple[str, ...],
    names: tuple[str, ...],
    **options: Any,
) -> Any:
    """A panel for each name, with those of the methods that ran; options are `plotting.regret`'s."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.5 * len(names), 5), dpi=plotting.DPI, layout="constrained")
    axes: Any = picture.subplots(1, len(names), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=True):
        found = {method: curves.get(f"{name}, {method}") for method in methods}
        shown = {method: curve for method, curve in found.items() if curve is not None}
        plotting.regret(shown, ax, band="error", **options)
        ax.set_title(name)
    return picture


EXPERIMENT = Experiment(
    source="EGP-TS, Fig. 1, 2, 6",
    about="four test functions: ensembles of kernels, each kernel alone, bandits, fully Bayesian, EI",
    time="4 h",
    run=_run,
    problems=tuple(FUNCTIONS),
)
