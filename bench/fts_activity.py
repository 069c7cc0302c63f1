"""FTS, Fig. 2b, c, 3b, c, 6 and 7: what 30 people's classifiers lose by tuning alone (`fts_rivals`).

    figure of a target: 1 - max over the initial points and rounds up to t of the share that is right

The objective is a JAX function: a run with all its training is one program. A run is one initialization
of all people; all methods share its initial points, and the peers of a run are that run's own TS runs
of the others, their first 50 observations. What is best is what was observed, noise included, as in the
paper. Beside the paper's four methods: FTS that learns whom to listen to.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench import fts_rivals
from bench.fts_rivals import (
    ALONE,
    FEATURES,
    FEDERATED,
    INITIAL,
    LENGTH_SCALE,
    NOISE,
    OBSERVATIONS,
    OWN_FEATURES,
    QUICK_FEATURES,
    RANKED,
    REFIT,
    SHOWN,
    TARGETS,
    Problem,
)
from bench.runner import Check, Options, Result, below, no_worse, number, parts
from jaxbo import metrics, plotting
from jaxbo.loop import Compiled, run
from jaxbo.types import Count, Key, Point, Scalar

UNIT = "validation error"
#: Runs that are computed at the same time.
BATCH = 5

#: (method, M); M is 0 for TS, which sends nothing.
Method = tuple[str, int]


class Owned(eqx.Module):
    """The objective of each agent of a federation: that of the person whom it stands for."""

    objective: Callable[[Key, Count, Point], Scalar]

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        person = jnp.where(agent < TARGETS, agent, agent - TARGETS)
        return self.objective(key, person, x)


class Found(NamedTuple):
    """Of one method: the error by run, target and round; seconds a round and target."""

    errors: Float[np.ndarray, "runs targets rounds"]
    seconds: float

    @property
    def flat(self) -> Float[np.ndarray, "pairs rounds"]:
        return self.errors.reshape(-1, self.errors.shape[-1])


def measure(problem: Problem, objective: Compiled, options: Options, name: str) -> Result:
    """All methods and messages, the claims and the picture."""
    runs, rounds = options.runs_or(20, 2), options.rounds_or(50, 10)
    sizes = QUICK_FEATURES if options.quick else FEATURES
    methods: list[Method] = [(ALONE, 0), *((kind, M) for M in sizes for kind in FEDERATED)]
    methods.append((RANKED, SHOWN))
    keys = jr.split(jr.key(options.seed), runs)
    past = functools.cache(lambda: past_of(problem, objective, rounds, keys))
    measures = {
        label(method): functools.partial(_timed, problem, objective, method, rounds, keys, past)
        for method in methods
    }
    tables, folder = parts(options, name, (runs, rounds), measures)
    found = {method: _found(tables[label(method)]) for method in methods}
    sent = {method: fts_rivals.sent(problem, *method) for method in methods if method[1]}
    return Result(
        settings=_settings(problem, runs, rounds, sizes),
        curves={label(method): some.flat for method, some in found.items()},
        checks=checks(found),
        unit=UNIT,
        headers=("method", UNIT, "s.e.", "runs x targets", "floats sent", "s a round"),
        rows=[_row(method, some, sent.get(method, 0)) for method, some in found.items()],
        figure=_figure(found, sent),
        scratch=folder,
    )


def label(method: Method) -> str:
    kind, M = method
    return f"{kind}, M = {M}" if M else kind


def _settings(problem: Problem, runs: int, rounds: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    return {
        "initializations": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "people": problem.owners,
        "targets": TARGETS,
        "observations of a peer": min(OBSERVATIONS, INITIAL + rounds),
        "M": sizes,
        "length scale of the messages": LENGTH_SCALE,
        "noise of the messages": NOISE,
        "features of the target's own model": OWN_FEATURES,
        "rounds between refits": REFIT,
    }


# ---------------------------------------------------------------- compiled


Past = tuple[Float[Array, "runs rows owners dim"], Float[Array, "runs rows owners"]]


@eqx.filter_jit
def past_of(problem: Problem, objective: Compiled, rounds: int, keys: Array) -> Past:
    """What every person asked and saw by TS of its own."""
    algorithm = fts_rivals.alone(problem, rounds)

    def one(key: Key) -> tuple[Array, Array]:
        _, run_key = jr.split(key)
        trace = run(algorithm, objective, rounds, run_key, initial=INITIAL)[1]
        return trace.queries, trace.values

    return jax.lax.map(one, keys, batch_size=BATCH)


@eqx.filter_jit
def values_of(
    problem: Problem, objective: Compiled, method: Method, rounds: int, keys: Array, past: Past
) -> Float[Array, "runs rows targets"]:
    """What the targets observed, in a federation with everybody's past."""
    algorithm = fts_rivals.federated(problem, *method, rounds)

    def one(given: tuple[Key, Past]) -> Array:
        key, past = given
        init_key, run_key = jr.split(key)
        state = fts_rivals.informed(algorithm, init_key, *past)
        tuned = Owned(objective)
        trace = run(algorithm, tuned, rounds, run_key, initial=INITIAL, state=state)[1]
        return trace.values[:, :TARGETS]

    return jax.lax.map(one, (keys, past), batch_size=BATCH)


def errors_of(values: Array | np.ndarray) -> Float[np.ndarray, "runs targets rounds"]:
    """The least error up to each round."""
    best = np.fmax.accumulate(np.asarray(values), axis=1)[:, INITIAL:]
    return 1 - np.moveaxis(best, 1, 2)


def _timed(
    problem: Problem,
    objective: Compiled,
    method: Method,
    rounds: int,
    keys: Array,
    past: Callable[[], Past],
) -> np.ndarray:
    """A row for each run and target: seconds a round and agent that queries, then the errors."""
    function: Any = past_of
    given: tuple[Any, ...] = (problem, objective, rounds, keys)
    if method[1]:
        function, given = values_of, (problem, objective, method, rounds, keys, past())
    compiled = function.lower(*given).compile()
    begun = time.perf_counter()
    found = jax.block_until_ready(compiled(*given))
    elapsed = time.perf_counter() - begun
    values = found if method[1] else found[1][:, :, :TARGETS]
    queries = len(keys) * (INITIAL + rounds) * (TARGETS if method[1] else problem.owners)
    seconds = elapsed / queries
    errors = errors_of(values)
    return np.concatenate([np.full((*errors.shape[:2], 1), seconds), errors], axis=2)


def _found(table: np.ndarray) -> Found:
    return Found(table[:, :, 1:], float(table[0, 0, 0]))


# ---------------------------------------------------------------- what came out


def checks(found: dict[Method, Found]) -> dict[str, Check]:
    """The paper's claims about the end, by the 95 % interval of the runs' and targets' differences."""
    ends = {method: some.flat[:, -1] for method, some in found.items()}
    claims = {}
    for method, end in ends.items():
        kind, M = method
        if kind not in ("FTS", RANKED):
            continue
        claim = f"{label(method)}: no worse than {ALONE}, difference"
        claims[claim] = no_worse(end, ends[ALONE, 0])
        if kind == RANKED:
            claim = f"{label(method)}: no worse than uniform, difference"
            claims[claim] = no_worse(end, ends["FTS", M])
            continue
        for rival in ("RGPE", "TAF"):
            claims[f"{label(method)}: below {rival}, which sends more"] = below(end, ends[rival, M])
    return claims


def _row(method: Method, found: Found, sent: int) -> tuple[str, ...]:
    mean, error = metrics.mean_and_error(found.flat[:, -1])
    cells = (number(float(mean)), number(float(error)), str(len(found.flat)), str(sent))
    return (label(method), *cells, f"{found.seconds:.2g}")


def _figure(found: dict[Method, Found], sent: dict[Method, int]) -> Any:
    """Means over all targets; what each method sends and reaches (Fig. 2); each target (Fig. 3, 6, 7)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 12), dpi=plotting.DPI, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.35))
    top, bottom = parts
    left, right = top.subplots(1, 2, width_ratios=(1.6, 1))
    shown = {method: some for method, some in found.items() if method[1] in (0, SHOWN)}
    means = {kind: some.flat for (kind, _), some in shown.items()}
    plotting.regret(means, left, ylabel=UNIT, band="error")
    left.set_title(f"mean over all targets and runs, M = {SHOWN}")
    ends = {method: some.flat[:, -1] for method, some in found.items()}
    fts_rivals.draw_messages(right, ends, sent, {}, UNIT)
    bottom.suptitle(f"each target, M = {SHOWN}: mean and standard error over its runs")
    for target, ax in enumerate(bottom.subplots(2, 3).flat):
        some = {kind: found.errors[:, target] for (kind, _), found in shown.items()}
        plotting.regret(some, ax, ylabel=UNIT, band="error")
        ax.set_title(f"target {target}")
    return figure
