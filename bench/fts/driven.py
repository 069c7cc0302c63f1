"""Runs on the SVMs of 29 landmine fields, which Python evaluates; each is kept in a file as it goes."""

import os
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bench.fts import rivals
from bench.fts.rivals import INITIAL, FederatedProblem
from bench.tasks.landmine import FIELDS, Tuning
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.federated import FederatedState
from jaxbo.algos.fts import FTS
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.runs.driver import drive
from jaxbo.types import Key

PROBLEM = FederatedProblem(FIELDS, dim=2)


class DrivenRun(NamedTuple):
    """All rows of a driven run, the seconds that it took, and whether in an earlier process.

    The seconds are NaN if it was interrupted.
    """

    queries: Float[np.ndarray, "rows agents 2"]
    values: Float[np.ndarray, "rows agents"]
    seconds: float
    earlier: bool = False


def informed(algorithm: FTS | RGPE | TAF, key: Key, past: DrivenRun) -> FederatedState:
    """The state before the first round: peers know their past, targets nothing."""
    return _informed(algorithm, key, jnp.asarray(past.queries), jnp.asarray(past.values))


_informed = eqx.filter_jit(rivals.informed)


def noise_seed(seed: int, run: int) -> int:
    return int(np.random.SeedSequence([seed, run]).generate_state(1)[0])


def driven(
    path: Path,
    algorithm: AbstractAlgorithm,
    tuning: Tuning,
    rounds: int,
    key: Key,
    executor: Executor,
    state: Any,
    initial: int = INITIAL,
) -> DrivenRun:
    """A driven run: from its file if it has ended before, continued if it has begun."""
    if path.exists():
        with np.load(path) as saved:
            return DrivenRun(saved["queries"], saved["values"], float(saved["seconds"]), True)
    unfinished = path.with_suffix(".open.npz")
    # Nobody knows how long the process took that was killed.
    whole = not unfinished.exists()
    begun = time.perf_counter()
    _, trace = drive(
        algorithm,
        tuning,
        rounds,
        key,
        initial=initial,
        executor=executor,
        checkpoint=unfinished,
        catch=(),
        progress=False,
        state=state,
    )
    seconds = time.perf_counter() - begun if whole else np.nan
    part = DrivenRun(np.asarray(trace.queries), np.asarray(trace.values), seconds)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, queries=part.queries, values=part.values, seconds=seconds)
    os.replace(temporary, path)
    return part
