"""The worth of a learned prior in the protocol of FTS: the SVMs of 29 landmine fields, on both scores.

    targets      fields 0 to 5: 3 random points, then 50 rounds
    the others   have finished 50 observations of their own TS, and say what they know once

as in `fts-landmine`, with the same initial points and, at equal points, the same noise. FTS, RGPE and TAF
hear 28 other fields. The learned prior is that of the 23 fields that are no targets. `together` is the
learned prior where nobody has finished: all 29 fields begin, and send a message every round. `EI` is the
learned prior without trust: the same features, of which the targets choose by the evidence of all six.

`predict_proba` is the authors' score, noisy and often upside down; `decision_function` has no noise. The
regret is below the best value of a field and a score that any run found, in percentage points of the AUC.
Its noise is part of a value, as in the paper.
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check
from bench.common.panels import figure
from bench.common.text import interval
from bench.fts import rivals
from bench.fts.driven import PROBLEM, DrivenRun, informed, noise_seed
from bench.fts.rivals import INITIAL, OBSERVATIONS, SHOWN, TARGETS
from bench.prior.setting import AFTER, CLAIMED, FEATURES, KERNEL, TIMES, claims
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.landmine import Tuning, fields
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.egp import EGP
from jaxbo.algos.learned_prior import LearnedPrior, LearnedPriorShared
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs.driver import drive
from jaxbo.types import Key

#: The scores by name, and whether each is the clean one.
SCORES = {"predict_proba": False, "decision_function": True}
#: Shares of noise among which evidence chooses. The authors' score is mostly noise.
NOISES = (1e-2, 1e-1, 1.0)
FITTED = ("EI, fitted", "EI, warped ensemble")
ALONE = ("TS", "EI", *FITTED)
HEARING = ("FTS", rivals.LONGER, rivals.RANKED, "RGPE", "TAF")
RIVALS = (*ALONE, *HEARING)
TOGETHER = f"{CLAIMED}, together"
RANKS = {"learned prior, one variance": 0, CLAIMED: None}
METHODS = (*RIVALS, *RANKS, TOGETHER)
#: The claims, as of `prior-tuning`: ahead of everybody at all times, and far ahead early.
AHEAD = dict.fromkeys(AFTER, 1.0) | TIMES


# ---------------------------------------------------------------- runs


def measured(score: str, run: int, rounds: int, seed: int) -> tuple[np.ndarray, ...]:
    """Values [evaluations targets] of each method, in the order of `METHODS`."""
    init_key, key = jr.split(jr.fold_in(jr.key(seed), run))
    tuning = Tuning(SCORES[score], noise_seed(seed, run))
    past = _driven(rivals.alone(PROBLEM, rounds), tuning, rounds, key)
    found = {"TS": past.values}
    alone = learning(TARGETS, INITIAL + rounds, 0, trust=0.0)
    found["EI"] = _driven(alone, tuning, rounds, key).values
    for method in FITTED:
        found[method] = _fitted(method, tuning, rounds, key, past)
    for method in HEARING:
        algorithm = rivals.federated(PROBLEM, method, SHOWN, rounds)
        state = informed(algorithm, init_key, past)
        found[method] = _driven(algorithm, tuning, rounds, key, state=state).values
    for method, rank in RANKS.items():
        prior = learned(rank, init_key, past)
        newcomers = learning(TARGETS, INITIAL + rounds, rank, prior)
        found[method] = _driven(newcomers, tuning, rounds, key).values
    everybody = learning(PROBLEM.owners, INITIAL + rounds, None)
    found[TOGETHER] = _driven(everybody, tuning, rounds, key).values
    return tuple(found[method][:, :TARGETS] for method in METHODS)


def learning(
    agents: int,
    capacity: int,
    rank: int | None,
    prior: LearnedPriorShared | None = None,
    **options: Any,
) -> LearnedPrior:
    """Fields that learn a prior, or that are given one."""
    options["prior"] = prior
    if prior is None:
        options["features"] = [Fixed(KERNEL, FEATURES, noise) for noise in NOISES]
    return LearnedPrior(rivals.domain_of(PROBLEM), agents, capacity, rank=rank, **options)


def learned(rank: int | None, key: Key, past: DrivenRun) -> LearnedPriorShared:
    """What the fields that are no targets have learned from their own observations."""
    queries, values = past.queries[:OBSERVATIONS, TARGETS:], past.values[:OBSERVATIONS, TARGETS:]
    algorithm = learning(values.shape[1], len(values), rank)
    return _learned(algorithm, key, jnp.asarray(queries, float), jnp.asarray(values, float))


@eqx.filter_jit
def _learned(
    algorithm: LearnedPrior,
    key: Key,
    queries: Float[Array, "rows fields 2"],
    values: Float[Array, "rows fields"],
) -> LearnedPriorShared:
    return algorithm.learned(algorithm.warm_start(algorithm.init(key), queries, values))


def _driven(
    algorithm: AbstractAlgorithm, tuning: Tuning, rounds: int, key: Key, **options: Any
) -> DrivenRun:
    begins: dict[str, Any] = {"initial": INITIAL, "catch": (), "progress": False}
    _, trace = drive(algorithm, tuning, rounds, key, **begins, **options)
    return DrivenRun(np.asarray(trace.queries), np.asarray(trace.values), np.nan)


def _fitted(
    method: str, tuning: Tuning, rounds: int, key: Key, past: DrivenRun
) -> Float[np.ndarray, "evaluations targets"]:
    """Each target's search by a model of its own values, from the same initial points."""
    own = rivals.own_model(PROBLEM, rounds)
    exact = eqx.tree_at(lambda model: model.inference, own, Exact())
    domain, total = rivals.domain_of(PROBLEM), INITIAL + rounds
    model = exact if method == "EI, fitted" else Ensemble.warped(PROBLEM.dim, total)
    columns = []
    for field in range(TARGETS):
        begun = past.queries[:INITIAL, field], past.values[:INITIAL, field]
        value = functools.partial(tuning, field)
        own_key = jr.fold_in(key, field)
        _, trace = drive(
            EGP(domain, model, EI()), value, rounds, own_key, known=begun, catch=(), progress=False
        )
        columns.append(np.concatenate([begun[1], np.asarray(trace.values)[:, 0]]))
    return np.stack(columns, axis=1)


# ---------------------------------------------------------------- what came out


def _run(options: Options) -> Result:
    fields()  # says at once if the data is missing
    runs, rounds = options.runs_or(10, 2), options.rounds_or(50, 10)
    scores = options.problems_or(SCORES, ("decision_function",))
    measures = {
        f"{score}, {run}": functools.partial(measured, score, run, rounds, options.seed)
        for run in range(runs)
        for score in scores
    }
    found, folder = parts(options, "prior-landmine", (rounds,), measures)
    curves = {}
    for score in scores:
        values = np.stack([np.stack(found[f"{score}, {run}"]) for run in range(runs)], axis=1)
        for method, regret in zip(METHODS, regrets(values), strict=True):
            curves[f"{score}, {method}"] = regret
    after = [n for n in (*AFTER, INITIAL + rounds) if n <= INITIAL + rounds]
    return Result(
        settings={
            "initializations": runs,
            "rounds": rounds,
            "initial points": INITIAL,
            "targets": TARGETS,
            "fields that have finished": PROBLEM.owners - TARGETS,
            "M of FTS, RGPE and TAF": SHOWN,
            "features of the learned prior": FEATURES,
            "noise that evidence chooses": NOISES,
        },
        curves=curves,
        checks=checks(curves, scores),
        unit="regret, percentage points",
        headers=("score", "method", *(f"after {n}" for n in after)),
        rows=[
            (*label.split(", ", 1), *(interval(curve[:, n - 1]) for n in after))
            for label, curve in curves.items()
        ],
        figure=figure(
            curves, METHODS, scores, xlabel="evaluations", ylabel="regret, percent", log=True
        ),
        scratch=folder,
    )


def regrets(
    values: Float[np.ndarray, "methods runs evaluations targets"],
) -> Float[np.ndarray, "methods runs evaluations"]:
    """Below the best value of each target that any method found in any run; the mean over targets."""
    best = np.maximum.accumulate(values, axis=2)
    return 100 * np.mean(values.max(axis=(0, 1, 2)) - best, axis=-1)


def checks(regret: dict[str, np.ndarray], scores: tuple[str, ...]) -> dict[str, Check]:
    """The claims, made beforehand: of the prior of finished fields, and of fields that begin together."""
    found: dict[str, Check] = {}
    for score in scores:
        of_score = {method: regret[f"{score}, {method}"] for method in METHODS}
        most = of_score[CLAIMED].shape[1]
        times = {n: factor for n, factor in AHEAD.items() if n <= most}
        found |= claims(score, of_score, RIVALS, times)
        found |= claims(f"{score}, nobody has finished", of_score, ALONE, times, TOGETHER)
    return found


EXPERIMENT = Experiment(
    source="prior-landmine",
    about="a learned prior for 29 landmine fields in the protocol of FTS, on both scores",
    time="45 min",
    run=_run,
    problems=tuple(SCORES),
)
