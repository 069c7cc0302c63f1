"""FTS, Fig. 2b, c, 3b, c, 6 and 7: the loss of 30 people's classifiers by tuning alone (`rivals`).

    figure of a target: 1 - max over the initial points and rounds up to t of the share that is right

The objective is a JAX function: a run with all its training is a single program. A run is an
initialization of all people. All methods share its initial points, and the peers of a run are that
run's own TS runs of the others, their first 50 observations. The best value is an observed value, noise
included, as in the paper. There is a fifth method beside the paper's four: FTS that learns which agents
to listen to. Fig. 3 has seconds where ours has rounds; `fts-agents` has the time of a query.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import BY, Check, below, within
from bench.common.text import number
from bench.fts import rivals
from bench.fts.rivals import (
    ALONE,
    FEATURES,
    FEDERATED,
    INITIAL,
    QUICK_FEATURES,
    RANKED,
    SHOWN,
    TARGETS,
    FederatedProblem,
)
from bench.runner import Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.runs.compiled import Compiled, run
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


#: The error of each method by run, target and round.
Found = dict[Method, Float[np.ndarray, "runs targets rounds"]]


def measure(problem: FederatedProblem, objective: Compiled, options: Options, name: str) -> Result:
    """All methods and messages, the claims and the picture."""
    runs, rounds = options.runs_or(10, 2), options.rounds_or(50, 5)
    sizes = QUICK_FEATURES if options.quick else FEATURES
    methods: list[Method] = [(ALONE, 0), *((kind, M) for M in sizes for kind in FEDERATED)]
    if not options.quick:
        methods.append((RANKED, SHOWN))
    keys = jr.split(jr.key(options.seed), runs)
    past = functools.cache(lambda: past_of(problem, objective, rounds, keys))
    measures = {
        label(method): functools.partial(reached, problem, objective, method, rounds, keys, past)
        for method in methods
    }
    tables, folder = parts(options, name, (runs, rounds), measures)
    found = {method: tables[label(method)] for method in methods}
    sent = {method: rivals.sent(problem, *method) for method in methods if method[1]}
    return Result(
        settings={"people": problem.owners, **rivals.described(runs, rounds, sizes)},
        curves={label(method): flat(errors) for method, errors in found.items()},
        checks=checks(found),
        unit=UNIT,
        headers=("method", UNIT, "s.e.", "runs x targets", "floats sent"),
        rows=[_row(method, errors, sent.get(method, 0)) for method, errors in found.items()],
        figure=_figure(found, sent),
        scratch=folder,
    )


def flat(errors: Float[np.ndarray, "runs targets rounds"]) -> Float[np.ndarray, "pairs rounds"]:
    return errors.reshape(-1, errors.shape[-1])


def by_run(errors: Float[np.ndarray, "runs targets rounds"]) -> Float[np.ndarray, " runs"]:
    """At the end, the mean over targets."""
    return errors[:, :, -1].mean(axis=1)


def label(method: Method) -> str:
    kind, M = method
    return f"{kind}, M = {M}" if M else kind


# ---------------------------------------------------------------- compiled


Past = tuple[Float[Array, "runs rows owners dim"], Float[Array, "runs rows owners"]]


@eqx.filter_jit
def past_of(problem: FederatedProblem, objective: Compiled, rounds: int, keys: Array) -> Past:
    """The queries and values of every person by TS alone."""
    algorithm = rivals.alone(problem, rounds)

    def one(key: Key) -> tuple[Array, Array]:
        _, run_key = jr.split(key)
        trace = run(algorithm, objective, rounds, run_key, initial=INITIAL)[1]
        return trace.queries, trace.values

    return jax.lax.map(one, keys, batch_size=BATCH)


@eqx.filter_jit
def values_of(
    problem: FederatedProblem,
    objective: Compiled,
    method: Method,
    rounds: int,
    keys: Array,
    past: Past,
) -> Float[Array, "runs rows targets"]:
    """The observations of the targets, in a federation with everybody's past."""
    algorithm = rivals.federated(problem, *method, rounds)

    def one(given: tuple[Key, Past]) -> Array:
        key, past = given
        init_key, run_key = jr.split(key)
        state = rivals.informed(algorithm, init_key, *past)
        known = rivals.given_points(algorithm)
        initial = INITIAL - known
        trace = run(algorithm, Owned(objective), rounds, run_key, initial=initial, state=state)[1]
        return jnp.concatenate([past[1][:known, :TARGETS], trace.values[:, :TARGETS]])

    return jax.lax.map(one, (keys, past), batch_size=BATCH)


def errors_of(values: Array | np.ndarray) -> Float[np.ndarray, "runs targets rounds"]:
    """The least error up to each round."""
    best = np.fmax.accumulate(np.asarray(values), axis=1)[:, INITIAL:]
    return 1 - np.moveaxis(best, 1, 2)


def reached(
    problem: FederatedProblem,
    objective: Compiled,
    method: Method,
    rounds: int,
    keys: Array,
    past: Callable[[], Past],
) -> Float[np.ndarray, "runs targets rounds"]:
    """By a single method; the past is only asked for if the result is not there yet."""
    if not method[1]:
        return errors_of(past()[1][:, :, :TARGETS])
    return errors_of(values_of(problem, objective, method, rounds, keys, past()))


# ---------------------------------------------------------------- what came out


def checks(found: Found) -> dict[str, Check]:
    """The paper's claims about the end. A run has one figure: its targets share its draws."""
    ends = {method: by_run(errors) for method, errors in found.items()}
    claims = {}
    for method, end in ends.items():
        kind, M = method
        if kind not in ("FTS", RANKED):
            continue
        claim = f"{label(method)}: no worse than {ALONE} {BY}, ratio"
        claims[claim] = within(end, ends[ALONE, 0])
        if kind == RANKED:
            claim = f"{label(method)}: no worse than uniform {BY}, ratio"
            claims[claim] = within(end, ends["FTS", M])
            continue
        for rival in ("RGPE", "TAF"):
            claim = f"{label(method)}: below {rival}, which sends more, difference"
            claims[claim] = below(end, ends[rival, M])
    return claims


def _row(method: Method, errors: np.ndarray, sent: int) -> tuple[str, ...]:
    ends = flat(errors)[:, -1]
    mean, error = metrics.mean_and_error(ends)
    return (label(method), number(float(mean)), number(float(error)), str(len(ends)), str(sent))


def _figure(found: Found, sent: dict[Method, int]) -> Any:
    """Means over all targets; the messages and the result of each method (Fig. 2); each target (Fig. 3,
    6, 7).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 12), dpi=plotting.DPI, layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.35))
    top, bottom = halves
    left, right = top.subplots(1, 2, width_ratios=(1.6, 1))
    shown = {kind: errors for (kind, M), errors in found.items() if M in (0, SHOWN)}
    means = {kind: flat(errors) for kind, errors in shown.items()}
    plotting.regret(means, left, ylabel=UNIT, band="error")
    left.set_title(f"mean over all targets and runs, M = {SHOWN}")
    ends = {method: flat(errors)[:, -1] for method, errors in found.items()}
    rivals.draw_messages(right, ends, sent, {}, UNIT)
    bottom.suptitle(f"each target, M = {SHOWN}: mean and standard error over its runs")
    for target, ax in enumerate(bottom.subplots(2, 3).flat):
        of_target = {kind: errors[:, target] for kind, errors in shown.items()}
        plotting.regret(of_target, ax, ylabel=UNIT, band="error")
        ax.set_title(f"target {target}")
    return figure
