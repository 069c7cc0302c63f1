"""Owners of handwriting samples tune an SVM, each on its own data, which nobody else sees.

    x = (C, gamma)                                      both on a log scale
    value(owner, x) = mean over random halves of the owner's samples of
                      the accuracy on one half of an SVM trained on the other

Three ways, from the same initial points: alone (`TS`), by exchanging sampled functions (`FTS`: every
owner a target at once, a message every round), and at random (`RandomSearch`).

The samples are scikit-learn's digits. No sample has two owners; an owner's number of samples and its
shares of the ten digits are drawn at random, so the owners' objectives differ. FTS and TS have the
same surrogate, and FTS its default schedule. This module needs the extra `demo`.
"""

import functools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Float
from sklearn.datasets import load_digits
from sklearn.svm import SVC
from tqdm import tqdm

import jaxbo
from jaxbo import metrics, plotting
from jaxbo.algos.base import AbstractAlgorithm, AbstractFederated
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.kernels.covariance import SquaredExponential
from jaxbo.kernels.surrogate import Fixed
from jaxbo.loop import drive
from jaxbo.space import Real, Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any

#: Six decades of C and eight of gamma: nobody needs to know beforehand where to look.
SPACE = Space(C=Real(1e-3, 1e3, log=True), gamma=Real(1e-6, 1e2, log=True))
#: Evaluations that every method begins with, at the same points.
INITIAL = 3
#: The columns of the table.
MILESTONES = (5, 10, 20, 40)

# ---------------------------------------------------------------- the owners and their data

#: Concentration of the owners' sizes, and of each one's shares of the digits: sizes from 36 to 148
#: with twenty owners, and an owner's commonest digit about ten times as frequent as its rarest.
EVENNESS, DIVERSITY = 8.0, 1.0
#: Random halves that an accuracy is averaged over: on one, of 18 to 74 samples, it has coarse steps.
HALVES = 3
#: With more owners some have too few samples to train on one half and to validate on the other.
MOST_OWNERS = 40


class Owner(NamedTuple):
    """What one owner keeps to itself: images as rows of 64 pixels in [0, 1], and their digits."""

    images: Float[np.ndarray, "samples 64"]
    digits: np.ndarray


@functools.cache
def owners(count: int) -> tuple[Owner, ...]:
    """The digits shared out unevenly, always in the same way; every sample has one owner."""
    images, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    size = rng.dirichlet(np.full(count, EVENNESS))
    shares = size[:, None] * rng.dirichlet(np.full(10, DIVERSITY), size=count)
    owner = np.empty(len(digits), int)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(digits == digit))
        ends = len(rows) * np.cumsum(shares[:, digit]) / shares[:, digit].sum()
        owner[rows] = np.searchsorted(np.round(ends[:-1]), np.arange(len(rows)), side="right")
    return tuple(Owner(images[owner == n] / 16, digits[owner == n]) for n in range(count))


def accuracy(count: int, owner: int, parameters: Mapping[str, float]) -> float:
    """Validation accuracy of the SVM of one of `count` owners, on its own samples."""
    images, digits = owners(count)[owner]
    rng = np.random.default_rng(owner)
    right = []
    for _ in range(HALVES):
        train, validate = np.array_split(rng.permutation(len(digits)), 2)
        machine = SVC(**parameters).fit(images[train], digits[train])
        right.append(machine.predict(images[validate]) == digits[validate])
    return float(np.mean(right))


# ---------------------------------------------------------------- the three methods


def methods(count: int) -> dict[str, AbstractAlgorithm]:
    """What is compared, by name."""
    # The objective has no noise; the small one stands for steps of the accuracy.
    surrogate = Fixed(kernel=SquaredExponential(0.2), noise=1e-3)
    return {
        "FTS (federated)": FTS(SPACE, count, features=surrogate),
        "TS (alone)": TS(SPACE, count, surrogate=surrogate),
        "random search": RandomSearch(SPACE, count),
    }


def floats_sent(algorithm: AbstractAlgorithm, rounds: int) -> int:
    """How many numbers one agent sends in `rounds` rounds."""
    if not isinstance(algorithm, AbstractFederated):
        return 0

    def message(key: Any) -> Any:
        state = algorithm.init(key)
        client = jax.tree.map(lambda leaf: leaf[0], state.clients)
        return algorithm.message(key, state.shared, client)

    return rounds * metrics.floats(eqx.filter_eval_shape(message, jr.key(0)))


class Outcome(NamedTuple):
    """One method: accuracies, seconds of all seeds together, floats that one owner sent."""

    values: Float[np.ndarray, "seeds evaluations owners"]
    seconds: float
    floats: int

    @property
    def curves(self) -> Float[np.ndarray, "seeds evaluations"]:
        """The best accuracy so far, mean over owners."""
        return metrics.best_so_far(self.values).mean(axis=2)


def compare(
    seeds: int, rounds: int, count: int, executor: Executor, report: Callable[[str], None]
) -> dict[str, Outcome]:
    """All methods on all seeds; each seed has initial points of its own, shared by the methods."""
    objective = functools.partial(accuracy, count)
    outcomes = {}
    for name, algorithm in methods(count).items():
        start = time.perf_counter()
        values = []
        for seed in range(seeds):
            report(f"{name}, seed {seed + 1} of {seeds}")
            key = jr.key(seed)
            options = {"initial": INITIAL, "executor": executor, "progress": False}
            _, trace = drive(algorithm, objective, rounds, key, **options)
            values.append(np.asarray(trace.values, np.float64))
        seconds = time.perf_counter() - start
        outcomes[name] = Outcome(np.stack(values), seconds, floats_sent(algorithm, rounds))
    return outcomes


# ---------------------------------------------------------------- what a person sees


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Best accuracy after some evaluations, floats sent and seconds, a line for each method."""
    total = next(iter(outcomes.values())).values.shape[1]
    columns = [n for n in MILESTONES if n < total] + [total]
    head = "".join(f"{n:>14}" for n in columns)
    width = max(len(name) for name in outcomes)
    lines = [
        f"{'':{width}}  best validation accuracy (%) after ... evaluations",
        f"{'':{width}}{head}{'floats sent':>14}{'seconds':>9}",
    ]
    for name, outcome in outcomes.items():
        mean, error = metrics.mean_and_error(100 * outcome.curves)
        cells = "".join(f"{f'{mean[n - 1]:.2f} ± {error[n - 1]:.2f}':>14}" for n in columns)
        sent = f"{outcome.floats:>14,}{outcome.seconds:>9.1f}"
        lines.append(f"{name:{width}}{cells}{sent}")
    return "\n".join(lines)


def picture(outcomes: Mapping[str, Outcome], count: int) -> Axes:
    """Left: the mean over owners as evaluations go on. Right: every owner after a few of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=plotting.DPI, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    curves = {name: 100 * outcome.curves for name, outcome in outcomes.items()}
    label = "best validation accuracy (%), mean over owners"
    plotting.regret(curves, left, xlabel="evaluations", ylabel=label)
    return left
