"""Whether better kernels have larger weights in an ensemble, by several kinds of evidence.

    EGP-TS            maximized evidence on features, as in the paper
    exact             maximized evidence of exact processes
    exact, Laplace    the same less a price for hyperparameters (`egp.priced`)
    exact, tempered   the maximized evidence, to the power 1 / T
    exact, equal      equal weights: a control, T without end
    warped            `Ensemble.warped`

Test functions without noise; 10 random points, then 60 evaluations, which begin at the same points for
all. Each kernel alone is run too, on features and exact. The result is the regret at the end, and the
weights at the end. Better kernels have larger weights if the mean regret of the kernels alone, by the
weights of an ensemble, is below their plain mean.
"""

import functools
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, within
from bench.common.panels import figure
from bench.common.search import BATCH, INITIAL, Method
from bench.common.text import number
from bench.egp.methods import EXACT, FEATURES, METHODS, REFIT, SINGLE
from bench.egp.priced import Priced
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics
from jaxbo.algos.egp import EGP
from jaxbo.kernels.models.ensemble import AbstractEnsemble, Ensemble
from jaxbo.kernels.processes import covariance
from jaxbo.objectives import functions
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import TestFunction
from jaxbo.runs.compiled import run
from jaxbo.types import Key

FUNCTIONS = {
    "drop-wave": functions.dropwave(),
    "eggholder": functions.eggholder(),
    "Zakharov-4d": functions.zakharov(4),
}
#: So many nats count as one.
TEMPERATURE = 10.0
PAPERS, WARPED = "EGP-TS", "EGP-TS, warped"
LAPLACE, TEMPERED, EQUAL = (f"{EXACT}, {kind}" for kind in ("Laplace", "tempered", "equal"))
KERNELS = tuple(name.removeprefix("GP-TS, ") for name in SINGLE)
#: Each kernel alone, as the ensembles on features have it, and as the exact ensembles have it.
ON_FEATURES = SINGLE
ALONE = tuple(f"GP-TS, exact, {kernel}" for kernel in KERNELS)


def _priced(temperature: float = 1.0, laplace: bool = False) -> Method:
    def method(dim: int, evaluations: int) -> EGP:
        base, model = _ensemble(EXACT, dim, evaluations)
        other = Priced(model.kernels, model.expert, temperature=temperature, laplace=laplace)
        return EGP(base.domain, other, base.policy)

    return method


def _alone(ensemble: str, number: int) -> Method:
    """A kernel as it is in the ensemble, where all kernels have the same program."""

    def method(dim: int, evaluations: int) -> EGP:
        base, model = _ensemble(ensemble, dim, evaluations)
        kernel = jax.tree.map(lambda leaf: leaf[number], covariance.stack(model.kernels, dim))
        return EGP(base.domain, eqx.tree_at(lambda e: e.kernel, model.expert, kernel), base.policy)

    return method


def _ensemble(name: str, dim: int, evaluations: int) -> tuple[EGP, Ensemble]:
    method = cast(EGP, METHODS[name](dim, evaluations))
    return method, cast(Ensemble, method.surrogate)


ENSEMBLES: dict[str, Method] = {
    PAPERS: METHODS[PAPERS],
    EXACT: _priced(),
    LAPLACE: _priced(laplace=True),
    TEMPERED: _priced(TEMPERATURE),
    EQUAL: _priced(np.inf),
    WARPED: METHODS[WARPED],
}
SINGLES: dict[str, Method] = {
    **{name: _alone(PAPERS, i) for i, name in enumerate(ON_FEATURES)},
    **{name: _alone(EXACT, i) for i, name in enumerate(ALONE)},
}
#: The kernels alone that an ensemble is made of.
MEMBERS = {PAPERS: ON_FEATURES, **dict.fromkeys((EXACT, LAPLACE, TEMPERED), ALONE)}
#: A method, and another that it is no worse than.
NO_WORSE = ((WARPED, PAPERS), (EXACT, PAPERS), (WARPED, EXACT))
#: Other evidence is worth having if it ends below this.
BETTER, THAN = (LAPLACE, TEMPERED, EQUAL), EXACT


class FoundWeights(NamedTuple):
    """The regret after each evaluation, and the weights at the end."""

    regret: Float[Array, "*runs rounds"]
    weights: Float[Array, "*runs experts"]


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(30, 4), options.rounds_or(60, 10)
    names = options.problems_or(FUNCTIONS, quick=["drop-wave"])
    methods = {EXACT: ENSEMBLES[EXACT]} if options.quick else {**ENSEMBLES, **SINGLES}
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        f"{name}, {method}": functools.partial(measured, make, FUNCTIONS[name], keys, rounds)
        for name in names
        for method, make in methods.items()
    }
    found, folder = parts(options, "egp-weights", (runs, rounds), measures)
    curves = {label: regret for label, (regret, _) in found.items()}
    # The kernels of `Ensemble.warped` are others.
    weights = {
        label: each
        for label, (_, each) in found.items()
        if each.shape[1] > 1 and not label.endswith(WARPED)
    }
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "features": FEATURES,
            "evaluations between fits": REFIT,
            "temperature": TEMPERATURE,
        },
        curves=curves,
        finals={
            f"{label}, weight of {kernel}": each[:, i]
            for label, each in weights.items()
            for i, kernel in enumerate(KERNELS)
        },
        checks=checks(curves, weights),
        headers=(
            "method",
            "regret",
            "95 % interval",
            *(f"weight of {kernel}" for kernel in KERNELS),
        ),
        rows=_rows(curves, weights),
        figure=figure(curves, tuple(ENSEMBLES), names, log=True),
        scratch=folder,
    )


def measured(
    method: Method, function: TestFunction, keys: Array, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """The regret and the weights of every run; a single kernel has a single weight."""
    algorithm = cast(EGP, method(function.dim, rounds))
    found = _measured(algorithm, Same(function=function), keys, rounds)
    return np.asarray(found.regret), np.asarray(found.weights)


@eqx.filter_jit
def _measured(algorithm: EGP, objective: Same, keys: Array, rounds: int) -> FoundWeights:
    model = algorithm.surrogate

    def one(key: Key) -> FoundWeights:
        state, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
        best = jax.lax.cummax(jnp.nan_to_num(trace.values[:, 0], nan=-jnp.inf))
        weights = jnp.ones((1,))
        if isinstance(model, AbstractEnsemble):
            weights = jnp.exp(model.log_weights(state.shared, state.belief))
        return FoundWeights(objective.function.maximum - best[INITIAL:], weights)

    return jax.lax.map(one, keys, batch_size=BATCH)


def _rows(curves: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> list[tuple[str, ...]]:
    def row(label: str, ends: np.ndarray) -> tuple[str, ...]:
        low, high = metrics.confidence_interval(ends)
        shares = (
            [f"{share:.2f}" for share in np.mean(weights[label], axis=0)]
            if label in weights
            else ()
        )
        regret = number(float(ends.mean())), f"{number(float(low))} to {number(float(high))}"
        return (label, *regret, *shares, *[""] * (len(KERNELS) - len(shares)))

    return [row(label, curve[:, -1]) for label, curve in curves.items()]


def checks(curves: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> dict[str, Check]:
    """Claims about the end of the runs, which share keys and initial points."""
    found: dict[str, Check] = {}
    for name in FUNCTIONS:
        ends = {
            method: curves[f"{name}, {method}"][:, -1]
            for method in (*ENSEMBLES, *SINGLES)
            if f"{name}, {method}" in curves
        }
        for ours, rival in NO_WORSE:
            if {ours, rival} <= set(ends):
                claim = f"{name}: {ours} no worse than {rival} {BY}, ratio"
                found[claim] = within(ends[ours], ends[rival])
        for ours in BETTER:
            if {ours, THAN} <= set(ends):
                claim = f"{name}: {ours} below {THAN}, difference"
                found[claim] = below(ends[ours], ends[THAN])
        for ensemble, members in MEMBERS.items():
            if {ensemble, *members} <= set(ends):
                alone = np.stack([ends[member] for member in members], axis=1)
                by_weight = np.sum(weights[f"{name}, {ensemble}"] * alone, axis=1)
                claim = f"{name}: kernels by the weights of {ensemble} below all alike, difference"
                found[claim] = below(by_weight, alone.mean(axis=1))
    return found


EXPERIMENT = Experiment(
    source="beyond the paper",
    about="whether better kernels have larger weights in an ensemble, by several kinds of evidence",
    time="30 min",
    run=_run,
    problems=tuple(FUNCTIONS),
)
