"""DP-FTS-DE, Fig. 3, beside controls: whether anything is left of a broadcast under its noise.

    noise alone      z = 10⁴: all who listen query one random point, whatever was sent
    DE's points      initial points of one's own region, and never a message
    longer           messages of length scale 0.3 with noise 1e-2 in place of 0.01 with 1e-6

The rest is as in `privacy_curve`: P = 4, S = 22, M = 100, 1 - p_t = 1/t, 10 initial points, 60 rounds.
Tasks are tabulated at 1024 points, without noise: SVMs of 29 landmine fields, and logistic regression
for 30 people's movements (`tasks.tabulated`). So that many runs are cheap, agents' own model has length
scale 0.3 and noise 1e-2, where `privacy_curve` fits both. TS has the same model.
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

from bench.claims import Check, below, difference, on_average
from bench.common import messages
from bench.common.panels import figure
from bench.common.text import interval, number
from bench.dp import signal
from bench.dp.privacy_curve import (
    BY_NOISE,
    BY_SAMPLE,
    FEATURES,
    INITIAL,
    REGIONS,
    WEIGHTING,
    PrivacySetting,
)
from bench.dp.privacy_loss import loss
from bench.runner import Experiment, Options, Result, parts
from bench.tasks import tabulated
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Regions
from jaxbo.objectives.families import OnGrid
from jaxbo.runs.compiled import run
from jaxbo.schedules import Power
from jaxbo.types import Key

#: Rounds of which the mean is compared, beside the end.
EARLY = 20
#: Runs that are computed at the same time.
BATCH = 10


class Control(NamedTuple):
    """A curve: with a mechanism or not, whether there are messages, and of which length scale."""

    setting: PrivacySetting = PrivacySetting()
    speaks: bool = True
    longer: bool = False


RANDOM, ALONE, OPEN, POINTS = "random search", "TS", "FTS-DE", "DE's initial points alone"
NOISE, LONGER = "noise alone", "FTS-DE, longer"
FIRST = next(iter(BY_NOISE))
PRIVATE = {name: Control(setting) for name, setting in BY_NOISE.items()}
CONTROLS = {
    OPEN: Control(),
    **PRIVATE,
    NOISE: Control(BY_NOISE[FIRST]._replace(z=1e4)),
    POINTS: Control(speaks=False),
    LONGER: Control(longer=True),
    f"{FIRST}, longer": Control(BY_NOISE[FIRST], longer=True),
}
METHODS = (RANDOM, ALONE, *CONTROLS)
#: Whose noise is compared to the signal.
NOISY = {
    f"{name}{suffix}": Control(setting, longer=bool(suffix))
    for suffix in ("", ", longer")
    for name, setting in (BY_NOISE | BY_SAMPLE).items()
}


class ControlTask(NamedTuple):
    """The name of a table, its unit, and which difference is none."""

    table: str
    unit: str
    same: float


TASKS = {
    "landmine": ControlTask("landmine-svm", "1 - AUC", 0.003),
    "har": ControlTask("har-logistic", "validation error", 0.005),
}


def method(name: str, objective: OnGrid, rounds: int) -> AbstractAlgorithm:
    """One of `METHODS`."""
    domain, agents = tabulated.domain(objective), len(objective.values)
    own = messages.longer(FEATURES, capacity=INITIAL + rounds)
    if name == RANDOM:
        return RandomSearch(domain, agents)
    return TS(domain, agents, own) if name == ALONE else listening(CONTROLS[name], objective, own)


def listening(control: Control, objective: OnGrid, own: Any) -> DPFTSDE:
    """DP-FTS-DE. All of it that differs between controls are numbers."""
    domain, agents = tabulated.domain(objective), len(objective.values)
    model = messages.longer if control.longer else messages.model
    return DPFTSDE(
        domain,
        agents,
        control.setting.mechanism(agents),
        regions=Regions.of(domain.dim, REGIONS),
        weighting=WEIGHTING,
        features=model(FEATURES, standardize=False, capacity=own.capacity),
        own=own,
        mixing=Power(1.0),
        releases=np.inf if control.speaks else 0.0,
    )


@eqx.filter_jit
def shortfalls(
    algorithm: AbstractAlgorithm, objective: OnGrid, keys: Array, rounds: int
) -> Float[Array, "runs rounds"]:
    """1 - the best value so far, of every run the mean over its agents."""

    def one(key: Key) -> Array:
        _, trace = run(algorithm, objective, rounds, key, initial=INITIAL)
        return 1 - jnp.mean(jax.lax.cummax(trace.values, axis=0)[INITIAL:], axis=1)

    return jax.lax.map(one, keys, batch_size=BATCH)


def _run(options: Options) -> Result:
    names = options.problems_or(TASKS, ("landmine",))
    runs, rounds = options.runs_or(100, 3), options.rounds_or(60, 20)
    # First, since it fails if an accountant is not installed.
    losses = {
        name: loss(control.setting.mechanism(30), 30, rounds)._asdict()
        for name, control in PRIVATE.items()
    }
    keys = jr.split(jr.key(options.seed), runs)
    measures: dict[str, Callable[[], Any]] = {}
    for task in names:
        objective = tabulated.load(TASKS[task].table)
        for name in METHODS:
            measures[f"{task}: {name}"] = functools.partial(_curve, name, objective, keys, rounds)
        for name in NOISY:
            measures[f"{task}: {name}{LOUD}"] = functools.partial(
                _loudness, name, objective, keys[:LOUD_RUNS], rounds
            )
    found, folder = parts(options, "dp-controls", (runs, rounds), measures)
    curves = {name: one for name, one in found.items() if LOUD not in name}
    ratios = {name.removesuffix(LOUD): one for name, one in found.items() if LOUD in name}
    return Result(
        settings={
            "runs": runs,
            "rounds": rounds,
            "initial points": INITIAL,
            "length scales of the messages": (messages.LENGTH_SCALE, messages.LONGER),
            "noise of the messages": (messages.NOISE, messages.NOISIER),
            "units": {task: TASKS[task].unit for task in names},
            "noise over signal": {name: float(one.mean()) for name, one in ratios.items()},
            "losses": losses,
        },
        curves=curves,
        checks=checks(curves, ratios),
        unit="error",
        headers=("method", f"mean of rounds 1 to {EARLY}", "end", "noise over signal"),
        rows=[_row(name, one, ratios) for name, one in curves.items()],
        figure=figure(
            {name.replace(": ", ", ", 1): one for name, one in curves.items()},
            SHOWN,
            names,
            ylabel="error",
        ),
        details={
            f"mean of rounds 1 to {EARLY}": {
                name: float(early(one).mean()) for name, one in curves.items()
            }
        },
        scratch=folder,
    )


#: In the picture, where curves of other z lie on each other.
SHOWN = (RANDOM, ALONE, OPEN, FIRST, NOISE, POINTS, LONGER)
#: The name of a measurement of noise, and how many runs it has.
LOUD, LOUD_RUNS = ", noise over signal", 20


def _curve(name: str, objective: OnGrid, keys: Array, rounds: int) -> np.ndarray:
    return np.asarray(shortfalls(method(name, objective, rounds), objective, keys, rounds))


def _loudness(name: str, objective: OnGrid, keys: Array, rounds: int) -> np.ndarray:
    own = messages.longer(FEATURES, capacity=INITIAL + rounds)
    algorithm = listening(NOISY[name], objective, own)
    ratios = signal.ratios(algorithm, objective, INITIAL, objective.points, keys, BATCH)
    return np.asarray(ratios)


def early(curve: Float[np.ndarray, "runs rounds"]) -> Float[np.ndarray, " runs"]:
    """The mean over the first rounds."""
    return curve[:, :EARLY].mean(axis=1)


def checks(curves: Mapping[str, np.ndarray], ratios: Mapping[str, np.ndarray]) -> dict[str, Check]:
    """The paper's claims at both times, and the same of controls."""
    found: dict[str, Check] = {}
    for task in dict.fromkeys(name.split(": ")[0] for name in curves):
        for name in NOISY:
            claim = f"{task}: {name}: noise above the signal, ratio"
            found[claim] = on_average(ratios[f"{task}: {name}"], least=1.0)
        for time, at in {f"rounds 1 to {EARLY}": early, "the end": _end}.items():
            figures = {name: at(curves[f"{task}: {name}"]) for name in METHODS}
            for ours, rival in PAIRS:
                claim = f"{task}: {ours} below {rival}, {time}, difference"
                found[claim] = below(figures[ours], figures[rival])
            same = TASKS[task].same
            for name in PRIVATE:
                claim = f"{task}: {name} no further from {NOISE} than {same:g}, {time}, difference"
                found[claim] = difference(figures[name], figures[NOISE], least=-same, most=same)
    return found


#: Who is to be below whom.
PAIRS = (
    (ALONE, RANDOM),
    (OPEN, ALONE),
    *((name, ALONE) for name in PRIVATE),
    (NOISE, ALONE),
    (POINTS, ALONE),
    (OPEN, POINTS),
    (LONGER, ALONE),
    (LONGER, POINTS),
    (LONGER, OPEN),
    (f"{FIRST}, longer", ALONE),
)


def _end(curve: np.ndarray) -> np.ndarray:
    return curve[:, -1]


def _row(name: str, curve: np.ndarray, ratios: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    loud = number(float(ratios[name].mean())) if name in ratios else "-"
    return name, interval(early(curve)), interval(_end(curve)), loud


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3, beside controls",
    about="noise beside messages of 29 landmine fields and 30 people's movements",
    time="25 min",
    run=_run,
    problems=tuple(TASKS),
)
