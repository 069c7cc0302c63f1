"""Tuning tasks of many owners, evaluated beforehand: `tables/NAME.npz` holds points and values.

    python -m bench.tasks.tabulated NAME      makes one, in minutes

The points are a Sobol sequence. A value is the score of an owner's learner on the owner's own data. The
owners of a task differ in their data alone. A method that looks for the best of the points can be run a
thousand times in the time of a single fit.
"""

import argparse
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.stats import qmc
from sklearn.datasets import load_breast_cancer, load_diabetes
from tqdm import tqdm

from bench.tasks import har, landmine, learners, perceptron
from jaxbo import demo
from jaxbo.domains.base import Finite
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.objectives.families import OnGrid

FOLDER = Path(__file__).with_name("tables")
POINTS = 1024


class TuningTask(NamedTuple):
    """So many owners, each of whom scores parameters on its own data."""

    owners: int
    space: Space
    score: Callable[[int, Mapping[str, Any]], float]


# ---------------------------------------------------------------- tasks

#: Hospitals that share the tumors, clinics that share the diabetes patients, and the least share of a
#: class that one has, beside a random one.
HOSPITALS, CLINICS, LEAST = 10, 10, 0.1
#: The patients' classes are quarters of the progress.
QUARTERS = 4


@functools.cache
def tumors() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """569 tumors of ten hospitals: 30 standardized features, and whether each is malignant."""
    X, y = map(np.asarray, load_breast_cancer(return_X_y=True))
    X, rng = (X - X.mean(axis=0)) / X.std(axis=0), np.random.default_rng(0)
    hospital = demo.dealt(y, rng.dirichlet(np.ones(2), size=HOSPITALS) + LEAST, rng)
    return tuple((X[hospital == n], y[hospital == n]) for n in range(HOSPITALS))


def _tumors(owner: int, parameters: Mapping[str, Any]) -> float:
    return demo.validated(*tumors()[owner], owner, parameters)


def _field(owner: int, parameters: Mapping[str, Any]) -> float:
    x = (np.array([parameters["C"], parameters["gamma"]]) - landmine.LOWEST) / landmine.WIDTH
    return landmine.Tuning(clean=True, seed=0)(owner, x)


@functools.cache
def patients() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """442 diabetes patients of ten clinics: 10 numbers each, and their disease's progress in a year."""
    X, y = map(np.asarray, load_diabetes(return_X_y=True))
    rng = np.random.default_rng(0)
    quarter = np.searchsorted(np.quantile(y, np.arange(1, QUARTERS) / QUARTERS), y)
    clinic = demo.dealt(quarter, rng.dirichlet(np.ones(QUARTERS), size=CLINICS) + LEAST, rng)
    return tuple((X[clinic == n], y[clinic == n]) for n in range(CLINICS))


def in_order(y: np.ndarray, guess: np.ndarray) -> float:
    """The share of the pairs whose guesses are in the order of y: half a pair where guesses are equal.

    Pairs with equal y do not count.
    """
    above = y[:, None] > y[None, :]
    said = np.sign(guess[:, None] - guess[None, :])
    return float(np.mean((1 + said[above]) / 2))


def _clinic(owner: int, parameters: Mapping[str, Any]) -> float:
    """The share of pairs in order on a random half by boosting on the other; mean of `demo.HALVES`."""
    (X, y), rng = patients()[owner], np.random.default_rng(owner)
    found = []
    for _ in range(demo.HALVES):
        train, validate = np.array_split(rng.permutation(len(y)), 2)
        trees = BOOSTING.make(dict(parameters), False).fit(X[train], y[train])
        found.append(in_order(y[validate], trees.predict(X[validate])))
    return float(np.mean(found))


#: Learning rate, number of trees, their depth, the share of the rows of a tree, and the rows of a leaf.
BOOSTING = learners.LEARNERS["boosting"]

(LOW_C, LOW_GAMMA), (WIDE_C, WIDE_GAMMA) = landmine.LOWEST.tolist(), landmine.WIDTH.tolist()
FIELD = Space(C=Real(LOW_C, LOW_C + WIDE_C), gamma=Real(LOW_GAMMA, LOW_GAMMA + WIDE_GAMMA))

#: Batch size, L2 parameter and learning rate.
LOGISTIC = Space({name: Real(*ends) for name, ends in har.DP_FTS_DE._asdict().items()})


def _person(owner: int, parameters: Mapping[str, Any]) -> float:
    point = jnp.asarray(LOGISTIC.encode(parameters))
    return float(har.mean_share(har.DP_FTS_DE)(jnp.asarray(owner), point))


def _network(owner: int, parameters: Mapping[str, Any]) -> float:
    point = jnp.asarray(perceptron.SPACE.encode(parameters))
    return float(perceptron.share(jnp.asarray(owner), point))


#: An SVM for each owner of `jaxbo demo`, for each landmine field (in the authors' ranges, without their
#: noise), and for each hospital; logistic regression for each person's movements, in DP-FTS-DE's ranges;
#: gradient boosting for each clinic, and a network for each owner of the demo.
TASKS: dict[str, TuningTask] = {
    "digits-svm": TuningTask(20, demo.SPACE, functools.partial(demo.accuracy, 20)),
    "landmine-svm": TuningTask(landmine.FIELDS, FIELD, _field),
    "cancer-svm": TuningTask(HOSPITALS, demo.SPACE, _tumors),
    "har-logistic": TuningTask(har.SUBJECTS, LOGISTIC, _person),
    "diabetes-boosting": TuningTask(CLINICS, BOOSTING.space, _clinic),
    "digits-network": TuningTask(perceptron.OWNERS, perceptron.SPACE, _network),
}

# ---------------------------------------------------------------- tables


def points(name: str) -> Float[np.ndarray, "points dim"]:
    """The points of a task's table, or the points that a new table will have."""
    if (path := FOLDER / f"{name}.npz").is_file():
        with np.load(path, allow_pickle=False) as archive:
            return archive["points"]
    return qmc.Sobol(TASKS[name].space.dim, scramble=False).random(POINTS).astype(np.float32)


def load(name: str) -> OnGrid:
    """A task's functions on its points, which are in the unit cube."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
        return OnGrid(values=archive["values"], points=archive["points"])


def domain(objective: OnGrid) -> Finite:
    """The points at which a task's functions are known."""
    return Finite(objective.points)


def make(name: str, processes: int) -> None:
    """Evaluates all points for all owners. An interrupted call keeps the owners that are finished."""
    task, x = TASKS[name], points(name)
    whole, part = FOLDER / f"{name}.npz", FOLDER / f"{name}.part.npz"
    done = dict(np.load(part)) if part.is_file() else {}
    jobs = [(name, owner) for owner in range(task.owners) if str(owner) not in done]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for owner, values in tqdm(pool.map(_row, jobs), total=len(jobs), unit="owner"):
            done[str(owner)] = values
            _write(part, done)
    values = np.stack([done[str(owner)] for owner in range(task.owners)]).astype(np.float32)
    _write(whole, {"points": x, "values": values})
    part.unlink(missing_ok=True)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """The file appears whole or not at all."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(new, path)


def _row(job: tuple[str, int]) -> tuple[int, Float[np.ndarray, " points"]]:
    """All values of an owner."""
    name, owner = job
    task = TASKS[name]
    rows = [task.space.decode(x) for x in points(name)]
    return owner, np.array([task.score(owner, parameters) for parameters in rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tabulates a tuning task.")
    parser.add_argument("name", choices=TASKS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    make(given.name, given.processes)
