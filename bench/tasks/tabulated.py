"""Tuning tasks of many owners, evaluated beforehand: `tables/NAME.npz` holds points and values.

    python -m bench.tasks.tabulated NAME      makes one, in minutes

The points are a Sobol sequence. A value is what an owner's learner scores on the owner's own data. The
owners of a task differ in their data alone. A method that looks for the best of the points can be run a
thousand times in the time of one fit.
"""

import argparse
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import qmc
from tqdm import tqdm

from bench.tasks import landmine
from bench.tasks.data import load as data
from jaxbo import demo
from jaxbo.domains.base import Finite
from jaxbo.domains.parameters import Integer, Real
from jaxbo.domains.space import Space
from jaxbo.objectives.families import OnGrid

FOLDER = Path(__file__).with_name("tables")
POINTS = 1024
#: Random halves that an accuracy is averaged over.
HALVES = 3
#: Concentration of an owner's shares of the classes: the commonest are several times as frequent.
DIVERSITY = 1.0


class TuningTask(NamedTuple):
    """So many owners, each of whom scores parameters on its own data."""

    about: str
    owners: int
    space: Space
    score: Callable[[int, Mapping[str, Any]], float]


class Part(NamedTuple):
    """An owner's data."""

    X: Float[np.ndarray, "rows features"]
    y: Int[np.ndarray, " rows"]


# ---------------------------------------------------------------- owners and their data


def divided(X: np.ndarray, y: np.ndarray, owners: int) -> tuple[Part, ...]:
    """The rows dealt out, always in the same way. An owner's shares of the classes are random."""
    rng = np.random.default_rng(0)
    classes = np.unique(y)
    shares = rng.dirichlet(np.full(len(classes), DIVERSITY), size=owners) + 0.1
    owner = np.empty(len(y), int)
    for column, label in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = len(rows) * np.cumsum(shares[:, column]) / shares[:, column].sum()
        owner[rows] = np.searchsorted(np.round(ends[:-1]), np.arange(len(rows)), side="right")
    return tuple(Part(X[owner == n], y[owner == n]) for n in range(owners))


@functools.cache
def cancer() -> tuple[Part, ...]:
    """569 tumors of ten hospitals, 30 standardized features."""
    from sklearn.datasets import load_breast_cancer

    X, y = map(np.asarray, load_breast_cancer(return_X_y=True))
    return divided((X - X.mean(axis=0)) / X.std(axis=0), y, 10)


@functools.cache
def movements() -> tuple[Part, ...]:
    """Windows of 30 people's movements, every fourth one, the first 15 principal components."""
    from sklearn.decomposition import PCA

    found = data("uci_har.npz")
    X = PCA(15, random_state=0).fit_transform(found["X"])
    parts = (np.flatnonzero(found["subject"] == n + 1)[::4] for n in range(30))
    return tuple(Part(X[rows], found["y"][rows]) for rows in parts)


@functools.cache
def fields() -> tuple[Part, ...]:
    """The landmine fields, both halves of each."""
    return tuple(
        Part(np.concatenate([f.X, f.X_test]), np.concatenate([f.y, f.y_test]))
        for f in landmine.fields()
    )


# ---------------------------------------------------------------- learners


def accuracy(
    make: Callable[..., Any], part: Part, seed: int, parameters: Mapping[str, Any]
) -> float:
    """The share that is right on one half of the owner's rows, trained on the other."""
    rng = np.random.default_rng(seed)
    right = []
    for _ in range(HALVES):
        train, validate = np.array_split(rng.permutation(len(part.y)), 2)
        if len(np.unique(part.y[train])) == 1:  # nothing to learn
            guess = np.full(len(validate), part.y[train][0])
        else:
            guess = make(**parameters).fit(part.X[train], part.y[train]).predict(part.X[validate])
        right.append(guess == part.y[validate])
    return float(np.mean(np.concatenate(right)))


def ranking(part: Part, seed: int, parameters: Mapping[str, Any]) -> float:
    """The area under the curve (AUC) on one half of the owner's rows, of trees trained on the other."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    split = train_test_split(*part, test_size=0.5, stratify=part.y, random_state=seed)
    X, X_test, y, y_test = split
    return float(roc_auc_score(y_test, boosted(**parameters).fit(X, y).decision_function(X_test)))


def machine(**parameters: Any) -> Any:
    """A support vector machine (SVM) with a Gaussian kernel."""
    from sklearn.svm import SVC

    return SVC(**parameters)


def boosted(**parameters: Any) -> Any:
    """Gradient boosting of trees."""
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(random_state=0, **parameters)


def _of(parts: Callable[[], tuple[Part, ...]], make: Callable[..., Any]) -> Callable[..., float]:
    return functools.partial(_scored, parts, make)


def _scored(
    parts: Callable[[], tuple[Part, ...]],
    make: Callable[..., Any],
    owner: int,
    parameters: Mapping[str, Any],
) -> float:
    return accuracy(make, parts()[owner], owner, parameters)


def _boosted_field(owner: int, parameters: Mapping[str, Any]) -> float:
    return ranking(fields()[owner], owner, parameters)


def _field(owner: int, parameters: Mapping[str, Any]) -> float:
    x = (np.array([parameters["C"], parameters["gamma"]]) - landmine.LOWEST) / landmine.WIDTH
    return landmine.Tuning(clean=True, seed=0)(owner, x)


SVM = Space(C=Real(1e-3, 1e3, log=True), gamma=Real(1e-6, 1e2, log=True))
TREES = Space(
    learning_rate=Real(1e-3, 1.0, log=True),
    n_estimators=Integer(3, 40, log=True),
    max_depth=Integer(1, 6),
    subsample=Real(0.2, 1.0),
)
(LOW_C, LOW_GAMMA), (WIDE_C, WIDE_GAMMA) = landmine.LOWEST.tolist(), landmine.WIDTH.tolist()
FIELD = Space(C=Real(LOW_C, LOW_C + WIDE_C), gamma=Real(LOW_GAMMA, LOW_GAMMA + WIDE_GAMMA))

TASKS: dict[str, TuningTask] = {
    "digits-svm": TuningTask(
        "the SVM of `jaxbo demo`", 20, demo.SPACE, functools.partial(demo.accuracy, 20)
    ),
    "landmine-svm": TuningTask("an SVM's AUC, 29 fields, the authors' ranges", 29, FIELD, _field),
    "landmine-trees": TuningTask("boosted trees' AUC, 29 fields", 29, TREES, _boosted_field),
    "cancer-svm": TuningTask("an SVM on tumors", 10, SVM, _of(cancer, machine)),
    "cancer-trees": TuningTask("boosted trees on tumors", 10, TREES, _of(cancer, boosted)),
    "movements-svm": TuningTask(
        "an SVM on 30 people's movements", 30, SVM, _of(movements, machine)
    ),
}

# ---------------------------------------------------------------- tables

#: Tasks whose tables are here.
READY = tuple(name for name in TASKS if (FOLDER / f"{name}.npz").is_file())


def points(dim: int) -> Float[np.ndarray, "points dim"]:
    """The points at which a task of this dimension is evaluated."""
    return qmc.Sobol(dim, rng=0).random(POINTS).astype(np.float32)


def load(name: str) -> OnGrid:
    """A task's functions on its points, which are in the unit cube."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
        return OnGrid(values=archive["values"], points=archive["points"])


def domain(objective: OnGrid) -> Finite:
    """The points at which a task's functions are known."""
    return Finite(objective.points)


def make(name: str, processes: int) -> None:
    """Evaluates all points for all owners. An interrupted call keeps the owners that are finished."""
    task = TASKS[name]
    whole, part = FOLDER / f"{name}.npz", FOLDER / f"{name}.part.npz"
    done = dict(np.load(part)) if part.is_file() else {}
    left = [owner for owner in range(task.owners) if str(owner) not in done]
    jobs = [(name, owner) for owner in left]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for owner, values in tqdm(pool.map(_row, jobs), total=len(jobs), unit="owner"):
            done[str(owner)] = values
            np.savez_compressed(part, allow_pickle=False, **done)
    values = np.stack([done[str(owner)] for owner in range(task.owners)]).astype(np.float32)
    np.savez_compressed(whole, points=points(task.space.dim), values=values)
    part.unlink(missing_ok=True)


def _row(job: tuple[str, int]) -> tuple[int, Float[np.ndarray, " points"]]:
    """All values of one owner."""
    name, owner = job
    task = TASKS[name]
    rows = [task.space.decode(x) for x in points(task.space.dim)]
    return owner, np.array([task.score(owner, parameters) for parameters in rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tabulates a tuning task.")
    parser.add_argument("name", choices=TASKS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    make(given.name, given.processes)
