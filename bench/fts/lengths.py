"""FTS with messages of two length scales: the authors' 0.01, and 0.3, which reaches further.

    error of a target: 1 - max over initial points and rounds up to t of the AUC, or of the share right

Three tasks: the SVMs of 29 landmine fields, evaluated beforehand and without the authors' noise
(`tasks.tabulated`); and 30 people's movements and meals, trained as in `fts-har` and `fts-eating`. All
methods look among 1024 Sobol points. TS and FTS have the same model of their own; peers know 50
observations of their own TS.

A message of length scale 0.01 has some 1000 cells of a square that do not know of each other: its maximum
lies where nothing was seen. So the objective is compared at the maximum of a peer's message, and at a
random point.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, difference, within
from bench.common import messages
from bench.common.panels import figure
from bench.common.text import interval
from bench.fts import activity, rivals
from bench.fts.activity import Method, Past
from bench.fts.rivals import ALONE, LONGER, SHOWN, FederatedProblem
from bench.runner import Experiment, Options, Result, parts
from bench.tasks import har, tabulated
from bench.tasks.eating import PEOPLE, meals
from bench.tasks.har import SUBJECTS, movements
from bench.tasks.landmine import FIELDS
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Finite
from jaxbo.kernels.linalg import dot
from jaxbo.runs.compiled import Compiled
from jaxbo.types import Count, Key, Point, Scalar

#: How each method is called here.
SHORT, LONG = "FTS, length scale 0.01", "FTS, length scale 0.3"
METHODS: dict[str, Method] = {ALONE: (ALONE, 0), SHORT: ("FTS", SHOWN), LONG: (LONGER, SHOWN)}
#: Rounds of which the mean is compared, beside the end.
EARLY = 20
#: Points among which the maximum of a message is looked for.
PLACES = 1000
PEAK, RANDOM = "at the maximum of a message", "at a random point"


class LengthTask(NamedTuple):
    """The loader of a task, the unit of its error, and its number of runs."""

    load: Callable[[], tuple[FederatedProblem, Compiled]]
    unit: str
    runs: int


def _landmine() -> tuple[FederatedProblem, Compiled]:
    return _among("landmine-svm", FIELDS), tabulated.load("landmine-svm")


def _among(table: str, owners: int) -> FederatedProblem:
    points = tabulated.points(table)
    return FederatedProblem(owners, points.shape[1], domain=Finite(points))


TASKS = {
    "landmine": LengthTask(_landmine, "1 - AUC", 30),
    "har": LengthTask(
        lambda: (_among("har-logistic", SUBJECTS), movements(har.FTS)), "validation error", 10
    ),
    "eating": LengthTask(lambda: (_among("har-logistic", PEOPLE), meals()), "validation error", 10),
}


def _run(options: Options) -> Result:
    names = options.problems_or(TASKS, ("landmine",))
    rounds = options.rounds_or(50, 5)
    measures: dict[str, Callable[[], Any]] = {}
    for name in names:
        runs = options.runs_or(TASKS[name].runs, 2)
        measures |= _measures(name, rounds, jr.split(jr.key(options.seed), runs))
    found, folder = parts(options, "fts-lengths", (options.runs, rounds), measures)
    errors = {name: found[name] for name in measures if PEAK not in name}
    values = {name: tuple(found[name]) for name in measures if PEAK in name}
    return Result(
        settings={
            **rivals.described(len(errors[f"{names[0]}: {ALONE}"]), rounds, (SHOWN,)),
            "longer length scale": messages.LONGER,
            "noise of the longer": messages.NOISIER,
            "units": {name: TASKS[name].unit for name in names},
        },
        curves={name: activity.flat(of_one) for name, of_one in errors.items()},
        checks=checks(errors, values),
        unit="error",
        headers=("method", f"mean of rounds 1 to {EARLY}", "end", PEAK, RANDOM),
        rows=[_row(name, of_one, values) for name, of_one in errors.items()],
        figure=_figure(errors, names),
        details={
            PEAK: {name: [float(np.mean(one)) for one in pair] for name, pair in values.items()},
            f"mean of rounds 1 to {EARLY}": {
                name: float(early(of_one).mean()) for name, of_one in errors.items()
            },
        },
        scratch=folder,
    )


def _measures(name: str, rounds: int, keys: Array) -> dict[str, Callable[[], Any]]:
    problem, objective = TASKS[name].load()
    past = functools.cache(lambda: activity.past_of(problem, objective, rounds, keys))
    found: dict[str, Callable[[], Any]] = {}
    for label, method in METHODS.items():
        given = problem, objective, method, rounds, keys, past
        found[f"{name}: {label}"] = functools.partial(activity.reached, *given)
        if method[1]:
            found[f"{name}: {label}, {PEAK}"] = functools.partial(_peaks, *given)
    return found


def _peaks(
    problem: FederatedProblem,
    objective: Compiled,
    method: Method,
    rounds: int,
    keys: Array,
    past: Callable[[], Past],
) -> tuple[np.ndarray, np.ndarray]:
    at_peak, at_random = at_peaks(problem, objective, method, rounds, keys, past())
    return np.asarray(at_peak), np.asarray(at_random)


@eqx.filter_jit
def at_peaks(
    problem: FederatedProblem,
    objective: Compiled,
    method: Method,
    rounds: int,
    keys: Array,
    past: Past,
) -> tuple[Float[Array, " runs"], Float[Array, " runs"]]:
    """A target's value at the maximum of a message to it, and at a random point: means of each run.

    The mean is over the targets and all their peers.
    """
    algorithm = rivals.federated(problem, *method, rounds)
    assert isinstance(algorithm, FTS)
    listened = jnp.asarray(rivals.others(problem)[:, problem.targets :])
    targets = jnp.arange(problem.targets)

    def one(given: tuple[Key, Past]) -> tuple[Scalar, Scalar]:
        key, past = given
        init_key, run_key = jr.split(key)
        state = rivals.informed(algorithm, init_key, *past)
        candidates_key, random_key, value_key = jr.split(run_key, 3)
        sent = state.clients.sent.weights[problem.targets :]
        candidates = algorithm.domain.candidates(candidates_key, PLACES)
        heard = dot(jax.vmap(state.shared.message)(candidates), sent.T)
        at_random = algorithm.domain.sample(random_key, problem.owners)

        def value(target: Count, x: Point, key: Key) -> Scalar:
            return objective(key, target, x)

        def mean(places: Array, key: Key) -> Scalar:
            keys = jr.split(key, (problem.targets, problem.owners))
            values = jax.vmap(jax.vmap(value, (None, 0, 0)), (0, None, 0))(targets, places, keys)
            return jnp.sum(values * listened) / jnp.sum(listened)

        peaks = candidates[jnp.argmax(heard, axis=0)]
        return mean(peaks, value_key), mean(at_random, value_key)

    return jax.lax.map(one, (keys, past), batch_size=activity.BATCH)


def early(errors: Float[np.ndarray, "runs targets rounds"]) -> Float[np.ndarray, " runs"]:
    """The mean over targets and the first rounds."""
    return errors[:, :, :EARLY].mean(axis=(1, 2))


def checks(
    errors: Mapping[str, np.ndarray], values: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, Check]:
    """Messages of the longer scale say where values are high, and FTS with them is ahead of TS early.

    The same is asked of the authors' scale. A run has one figure: its targets share its draws.
    """
    found: dict[str, Check] = {}
    for task in dict.fromkeys(name.split(": ")[0] for name in errors):
        alone = errors[f"{task}: {ALONE}"]
        for label in (SHORT, LONG):
            name = f"{task}: {label}"
            peak, random = values[f"{name}, {PEAK}"]
            claim = f"{name}: value {PEAK} above that {RANDOM}, difference"
            found[claim] = difference(peak, random, least=0.0)
            claim = f"{name}: below TS in rounds 1 to {EARLY}, difference of mean errors"
            found[claim] = below(early(errors[name]), early(alone))
            claim = f"{name}: at the end no worse than TS {BY}, ratio"
            found[claim] = within(activity.by_run(errors[name]), activity.by_run(alone))
        claim = f"{task}: {LONG}: below the scale 0.01 in rounds 1 to {EARLY}, difference of mean errors"
        found[claim] = below(early(errors[f"{task}: {LONG}"]), early(errors[f"{task}: {SHORT}"]))
    return found


def _row(
    name: str, errors: np.ndarray, values: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[str, ...]:
    pair = values.get(f"{name}, {PEAK}")
    at = ("-", "-") if pair is None else tuple(map(interval, pair))
    return name, interval(early(errors)), interval(activity.by_run(errors)), *at


def _figure(errors: Mapping[str, np.ndarray], names: tuple[str, ...]) -> Any:
    curves = {
        f"{task}, {label}": activity.flat(errors[f"{task}: {label}"])
        for task in names
        for label in METHODS
    }
    return figure(curves, tuple(METHODS), names, ylabel="error")


EXPERIMENT = Experiment(
    source="FTS, Fig. 2; messages of a longer length scale beside the authors'",
    about="messages of two length scales, on landmines, movements and meals",
    time="15 min",
    run=_run,
    problems=tuple(TASKS),
)
