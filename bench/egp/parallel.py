"""EGP-TS, Fig. 5: several workers, who wait for each other or do not.

    Ackley-5d, the dictionary of 11 length scales; 10 random points, then 96 evaluations by K workers
    an evaluation takes ~ Exponential(1), whatever is evaluated

Synchronously (Algorithm 1) a round lasts as long as its slowest evaluation; asynchronously (Algorithm 2)
every worker goes on at once. Both are compiled whole, durations included.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, within
from bench.common.search import BATCH, INITIAL, Method
from bench.common.text import number
from bench.egp.methods import METHODS
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.algos.egp import EGP
from jaxbo.algos.random_search import RandomSearch
from jaxbo.objectives import functions
from jaxbo.objectives.families import Same
from jaxbo.runs.compiled import run
from jaxbo.runs.timeline import simulate
from jaxbo.types import Count, Key, Point, Scalar

WORKERS = (1, 2, 4, 8)
#: The method, and its rivals with `RIVAL_WORKERS` who wait for each other.
OURS, RIVALS, RIVAL_WORKERS = "EGP-TS, 11 scales", ("BanditBO, 11 scales", "GP-TS, SE"), 4
#: When workers are compared by time: eight who do not wait have ended nearly all.
MOMENT = 12
OBJECTIVE = Same(function=functions.ackley5())


def duration(key: Key, worker: Count, x: Point) -> Scalar:
    """How long a worker takes."""
    del worker
    return jr.exponential(key, (), x.dtype)


def _run(options: Options) -> Result:
    runs, evaluations = options.runs_or(30, 4), options.rounds_or(96, 16)
    workers = (1, 4) if options.quick else WORKERS
    keys = jr.split(jr.key(options.seed), runs)
    asked = {f"{K} waiting": (OURS, K, True) for K in workers}
    asked |= {f"{K} not waiting": (OURS, K, False) for K in workers if K > 1}
    if not options.quick:
        asked |= {f"{RIVAL_WORKERS} waiting, {r}": (r, RIVAL_WORKERS, True) for r in RIVALS}
    measures = {
        name: functools.partial(measured, METHODS[method], K, waiting, keys, evaluations)
        for name, (method, K, waiting) in asked.items()
    }
    found, folder = parts(options, "egp-parallel", (runs, evaluations), measures)
    curves = {name: regret for name, (regret, _) in found.items()}
    ends = {name: ended for name, (_, ended) in found.items()}
    times = np.linspace(0, evaluations, evaluations + 1)[1:]
    by_time = {name: at_times(curves[name], ends[name], times) for name in curves}
    return Result(
        settings={"runs": runs, "evaluations": evaluations, "initial points": INITIAL},
        curves=curves | {f"{name}, by time": curve for name, curve in by_time.items()},
        checks=checks(curves, by_time),
        headers=(
            "workers",
            "after all evaluations",
            "s.e.",
            f"after time {MOMENT}",
            "s.e.",
            "all took",
        ),
        rows=[_row(name, curves[name], by_time[name], ends[name]) for name in curves],
        figure=_figure(curves, by_time),
        scratch=folder,
    )


def measured(
    method: Method, workers: int, waiting: bool, keys: Array, evaluations: int
) -> tuple[Float[Array, "runs evaluations"], Float[Array, "runs evaluations"]]:
    """Regret after each evaluation, and when it ended."""
    algorithm: Any = method(OBJECTIVE.function.dim, evaluations)
    algorithm = dataclasses.replace(algorithm, workers=workers)
    program = _waiting if waiting else _not_waiting
    return program(algorithm, keys, evaluations)


@eqx.filter_jit
def _waiting(algorithm: EGP, keys: Array, evaluations: int) -> tuple[Array, Array]:
    workers = algorithm.workers
    rounds = evaluations // workers

    def one(key: Key) -> tuple[Array, Array]:
        init_key, run_key, time_key = jr.split(jr.fold_in(key, 1), 3)
        # As many initial points as one worker has, and the same ones.
        _, design = run(RandomSearch(algorithm.domain), OBJECTIVE, 0, key, initial=INITIAL)
        state = algorithm.init(init_key)
        state = algorithm.warm_start(state, design.queries, design.values)
        _, trace = run(algorithm, OBJECTIVE, rounds, run_key, state=state)
        takes = jr.exponential(time_key, (rounds, workers))
        ended = jnp.repeat(jnp.cumsum(jnp.max(takes, axis=1)), workers)
        return _regret(design.values[:, 0], trace.values.reshape(-1)), ended

    return jax.lax.map(one, keys, batch_size=BATCH)


@eqx.filter_jit
def _not_waiting(algorithm: EGP, keys: Array, evaluations: int) -> tuple[Array, Array]:
    def one(key: Key) -> tuple[Array, Array]:
        _, design = run(RandomSearch(algorithm.domain), OBJECTIVE, 0, key, initial=INITIAL)
        _, line = simulate(algorithm, OBJECTIVE, duration, evaluations, key, initial=INITIAL)
        return _regret(design.values[:, 0], line.values), line.ended

    return jax.lax.map(one, keys, batch_size=BATCH)


def _regret(initial: Array, values: Array) -> Array:
    """After each of `values`."""
    best = jax.lax.cummax(jnp.concatenate([initial, values]))
    return OBJECTIVE.function.maximum - best[len(initial) :]


def at_times(
    curves: Float[np.ndarray, "runs evaluations"],
    ended: Float[np.ndarray, "runs evaluations"],
    times: Float[np.ndarray, " times"],
) -> Float[np.ndarray, "runs times"]:
    """The regret of the evaluations that have ended by then; before the first end, NaN."""
    rows = []
    for curve, ends in zip(curves, ended, strict=True):
        done = np.searchsorted(ends, times, side="right")
        rows.append(np.where(done > 0, curve[np.maximum(done - 1, 0)], np.nan))
    return np.stack(rows)


def checks(curves: dict[str, np.ndarray], by_time: dict[str, np.ndarray]) -> dict[str, Check]:
    """Run by run, from the same initial points."""
    found: dict[str, Check] = {}
    at = {name: curve[:, MOMENT - 1] for name, curve in by_time.items()}
    most = max(WORKERS)
    both = f"{most} waiting", f"{most} not waiting"
    if set(both) <= set(curves):
        for name in both:
            claim = f"after all evaluations {name} are no worse than 1 {BY}, ratio"
            found[claim] = within(curves[name][:, -1], curves["1 waiting"][:, -1])
            claim = f"at time {MOMENT} {name} are better than 1, difference"
            found[claim] = below(at[name], at["1 waiting"])
        claim = f"at time {MOMENT} {most} are no worse not waiting than waiting {BY}, ratio"
        found[claim] = within(at[both[1]], at[both[0]])
    ours = f"{RIVAL_WORKERS} waiting"
    for rival in RIVALS:
        if f"{ours}, {rival}" in curves:
            claim = f"{RIVAL_WORKERS} workers: {OURS} no worse than {rival} {BY}, ratio"
            found[claim] = within(curves[ours][:, -1], curves[f"{ours}, {rival}"][:, -1])
    return found


def _row(name: str, curve: np.ndarray, timed: np.ndarray, ended: np.ndarray) -> tuple[str, ...]:
    moments = curve[:, -1], timed[:, MOMENT - 1]
    cells = [number(float(value)) for one in moments for value in metrics.mean_and_error(one)]
    return (name, *cells, number(float(ended[:, -1].mean())))


def _figure(curves: dict[str, np.ndarray], by_time: dict[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), dpi=plotting.DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = {name: curve for name, curve in curves.items() if "," not in name}
    plotting.regret(shown, left, xlabel="evaluations", log=True, band="error")
    plotting.regret({n: by_time[n] for n in shown}, right, xlabel="time", log=True, band="error")
    return figure


EXPERIMENT = Experiment(
    source="EGP-TS, Fig. 5",
    about="1 to 8 workers on one function, waiting for each other or not: by evaluations and by time",
    time="4 min",
    run=_run,
)
