"""FTS, beyond the paper: a kernel that nobody knows, and length scales agreed on by pooled evidence.

    the target and peers of `fts-synthetic` (1000 points, SE 0.03, 40 observations a peer, d_n = 0.02)
    the target's model of its own function has
        known      the hyperparameters that the functions were drawn with
        its own    refitted after every fifth round, by maximum evidence of what the target has seen
        pooled     agreed on before every query, by the evidence of the target and all peers

The peers' functions are the target's own but for ±d_n: their evidences are of the same function, not of
independent functions. Fits begin at a length scale of 0.2. Messages are the same in all three, on M =
100 features of the true kernel, once; p_t = 1 - 1/t², so the target goes mostly by its own model. TS
alone has no peers. Regret is averaged over the rounds.
"""

import functools
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from bench.claims import BY, Check, below, within
from bench.common.text import number
from bench.fts.peers import (
    ALIKE,
    FAST,
    INITIAL,
    MESSAGES,
    OWN_FEATURES,
    Perturbed,
    described,
    message_model,
    regret,
    target_and_peers,
    values_of,
)
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.synthetic import LENGTH_SCALE, NOISE, VALUES_VARIANCE, draws, grid
from jaxbo import metrics
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.processes.covariance import SquaredExponential

GUESS = 0.2
KNOWN, OWN, POOLED = "known", "its own", "pooled"
ALONE_KNOWN, ALONE_OWN = f"TS, {KNOWN}", f"TS, {OWN}"


def name(kind: str) -> str:
    """The name of a curve."""
    return f"FTS, {kind}"


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(400, 20), options.rounds_or(50, 25)
    function_key, run_key = jr.split(jr.key(options.seed))
    rest = draws(function_key, runs), grid(), rounds, jr.split(run_key, runs)
    noise = NOISE / VALUES_VARIANCE
    models = {
        KNOWN: own_model(rounds, LENGTH_SCALE, noise=noise, refit_every=None),
        OWN: own_model(rounds, GUESS, refit_every=5),
        POOLED: own_model(rounds, GUESS, refit_every=None),
    }
    measures = {
        f"TS, {kind}": functools.partial(values_of, TS(Finite(grid()), surrogate=model), *rest)
        for kind, model in models.items()
        if kind != POOLED
    }
    for kind, model in models.items():
        pooled = Pooled() if kind == POOLED else None
        messages = message_model(MESSAGES.features)
        algorithm = target_and_peers(grid(), messages, model, FAST, pooled=pooled)
        # Peers have models of their own only where these have something to say.
        peers = algorithm if pooled else eqx.tree_at(lambda a: a.own, algorithm, None)
        known = peers, Perturbed(ALIKE), MESSAGES.observations
        measures[name(kind)] = functools.partial(values_of, algorithm, *rest, *known)
    values, folder = parts(options, "fts-pooled", (runs, rounds), measures)
    curves = {label: regret(value) for label, value in values.items()}
    return Result(
        settings=described(runs, rounds) | {"settings": Pooled().settings},
        curves=curves,
        checks=checks(curves),
        headers=("target's model", "mean regret", "s.e.", "at the end", "s.e.", "floats a message"),
        rows=[_row(label, curve) for label, curve in curves.items()],
        scratch=folder,
    )


def own_model(rounds: int, length_scale: float, **options: Any) -> Fitted:
    """A target's model of its own function; where it is fitted, that begins with this length scale."""
    kernel, capacity = (
        SquaredExponential(length_scale),
        max(INITIAL + rounds, MESSAGES.observations),
    )
    return Fitted(capacity, kernel, size=OWN_FEATURES, inference=Exact(), **options)


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Pooled is better than the target's own fit, and as good as knowing."""
    means = {label: curve.mean(axis=1) for label, curve in curves.items()}
    ends = {label: curve[:, -1] for label, curve in curves.items()}
    pooled = name(POOLED)
    return {
        f"{pooled}: below {name(OWN)}, difference": below(means[pooled], means[name(OWN)]),
        f"{pooled}: at the end below {name(OWN)}, difference": below(ends[pooled], ends[name(OWN)]),
        f"{pooled}: no worse than {name(KNOWN)} {BY}, ratio": within(
            means[pooled], means[name(KNOWN)]
        ),
        f"{pooled}: below {ALONE_OWN}, difference": below(means[pooled], means[ALONE_OWN]),
    }


def _row(label: str, curve: np.ndarray) -> tuple[str, ...]:
    cells: list[Any] = [*metrics.mean_and_error(curve.mean(axis=1))]
    cells += metrics.mean_and_error(curve[:, -1])
    sent = 0 if label in (ALONE_KNOWN, ALONE_OWN) else MESSAGES.features
    sent += Pooled().settings if label == name(POOLED) else 0
    return (label, *(number(float(cell)) for cell in cells), str(sent))


EXPERIMENT = Experiment(
    source="no paper; FTS, section 7",
    about="a target whose hyperparameters nobody knows: its own fit, or agreed on with its peers",
    time="7 min",
    run=_run,
)
