"""CEPE that explores first: its length, its start, its end, and the lessons of agents afterwards.

    the setting of `cepe`;   regret(T) = Σ over agents and rounds of max f - f(x)

"N = 64" is a single phase of 64 rounds of exploration; CEPE's own example is N_t = t^(2/3), interleaved.
"center" and the like say where it begins; otherwise anywhere, since all variances are equal then. Agents
with "lessons" learn their own function from 128 values that they observe while they exploit, and do not
send. "stays" ends exploration, of 64 rounds at most, when nine maximizers in ten stay within 0.05
for four rounds. S-CEPE has N = 64 and greedy sketches of 8 points.

Its rules were chosen on other runs, in NumPy, and claims are about runs of this experiment alone. EI, PI
and IGP-UCB are told every value of everybody, in every round. They have the paper's deviation of a sum
of functions, as in `cepe`, or that of "independent" processes.
"""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.cepe.collaborative import IGPUCB, Collaborative, Improvement, Probability
from bench.cepe.setting import (
    AGENTS,
    LENGTH_SCALE,
    NOISE,
    cepe,
    cumulative,
    grid,
    outcomes,
    settings,
)
from bench.claims import Check, at_most
from bench.common.text import number
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting, schedules
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.stays import Stays
from jaxbo.kernels.processes import nystrom
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.sketch import Pivoted

#: Functions by the names of problems, which are part of a file's name.
PROBLEMS = {"Branin": "Branin", "Sobester-standardized": "Sobester, standardized"}
LESSONS, MOST, POINTS = 128, 64, 8
CENTER, CORNER = (0.5, 0.5), (1.0, 1.0)
PRINTED, ANYWHERE, AT_CENTER, AT_CORNER = "t^(2/3)", "N = 64", "N = 64, center", "N = 64, corner"
FEWER, FEWER_ANYWHERE = "N = 36, center", "N = 36"
TAUGHT, STAYS = "N = 36, center, lessons", "stays, center"
BOTH, SKETCHED, SKETCHED_TAUGHT = (
    "stays, center, lessons",
    "S-CEPE, center",
    "S-CEPE, center, lessons",
)
EI, PI, UCB, UCB_INDEPENDENT = "EI", "PI", "IGP-UCB", "IGP-UCB, independent"
#: Each index, and whether its deviation is that of independent processes.
RIVALS = {
    EI: (Improvement(), False),
    PI: (Probability(), False),
    UCB: (IGPUCB(), False),
    UCB_INDEPENDENT: (IGPUCB(), True),
}


def methods(rounds: int) -> dict[str, AbstractFederated]:
    """The methods by name."""
    phase = schedules.first
    sketch = Pivoted(count=POINTS, select=nystrom.greedy)
    found: dict[str, AbstractFederated] = {
        PRINTED: cepe(schedules.growing(rounds)),
        ANYWHERE: cepe(phase(MOST)),
        AT_CENTER: cepe(phase(MOST), start=CENTER),
        AT_CORNER: cepe(phase(MOST), start=CORNER),
        FEWER_ANYWHERE: cepe(phase(36)),
        FEWER: cepe(phase(36), start=CENTER),
        TAUGHT: cepe(phase(36), start=CENTER, lessons=LESSONS),
        STAYS: cepe(phase(MOST), start=CENTER, stays=Stays()),
        BOTH: cepe(phase(MOST), start=CENTER, stays=Stays(), lessons=LESSONS),
        SKETCHED: cepe(phase(MOST), start=CENTER, sketch=sketch),
        SKETCHED_TAUGHT: cepe(phase(MOST), start=CENTER, sketch=sketch, lessons=LESSONS),
    }
    for name, (index, joint) in RIVALS.items():
        found[name] = Collaborative(
            Finite(grid()),
            AGENTS,
            index,
            kernel=SquaredExponential(LENGTH_SCALE),
            noise=NOISE,
            joint=joint,
        )
    return found


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(10, 3), options.rounds_or(2000, 100)
    keys = jr.split(jr.key(options.seed), runs)
    functions = tuple(PROBLEMS[name] for name in options.problems_or(PROBLEMS, quick=["Branin"]))
    names = (ANYWHERE, BOTH) if options.quick else tuple(methods(rounds))
    wants = jnp.asarray(jnp.nan)
    measures = {
        f"{function}, {name}": functools.partial(
            outcomes, methods(rounds)[name], wants, function, rounds, keys
        )
        for function in functions
        for name in names
    }
    found, folder = parts(options, "cepe-first", (runs, rounds), measures)
    curves = {name: cumulative(regret) for name, (regret, _) in found.items()}
    sent = {name: np.asarray(scalars).sum(axis=1) for name, (_, scalars) in found.items()}
    return Result(
        settings=settings(runs, rounds)
        | {
            "lessons": LESSONS,
            "numbers sent": {name: float(values.mean()) for name, values in sent.items()},
        },
        curves=curves,
        checks=checks(curves, functions),
        unit="cumulative regret of all agents",
        headers=("method", *(f"{function}: regret, s.e., numbers sent" for function in functions)),
        rows=[
            (name, *(_cell(curves, sent, f"{function}, {name}") for function in functions))
            for name in names
        ],
        figure=_figure(curves, functions, names),
        scratch=folder,
    )


def _cell(curves: dict[str, np.ndarray], sent: dict[str, np.ndarray], name: str) -> str:
    mean, error = metrics.mean_and_error(curves[name][:, -1])
    return " ".join(number(float(value)) for value in (mean, error, sent[name].mean()))


#: Each with its rival: the regret of the first is at most that of the second, run by run.
PAIRS = (
    (ANYWHERE, PRINTED),
    (AT_CENTER, ANYWHERE),
    (AT_CORNER, ANYWHERE),
    (FEWER, FEWER_ANYWHERE),
    (TAUGHT, FEWER),
    (STAYS, AT_CENTER),
    (BOTH, STAYS),
    (BOTH, AT_CENTER),
    (SKETCHED_TAUGHT, SKETCHED),
    *((BOTH, rival) for rival in RIVALS),
)


def checks(curves: dict[str, np.ndarray], functions: tuple[str, ...]) -> dict[str, Check]:
    """Regret at the end over that of a rival, at most 1."""
    claims: dict[str, Check] = {}
    for function in functions:
        for ours, rival in PAIRS:
            pair = [curves.get(f"{function}, {name}") for name in (ours, rival)]
            if pair[0] is not None and pair[1] is not None:
                claim = f"{function}: {ours}; below {rival}, share of its regret"
                claims[claim] = at_most(pair[0][:, -1], pair[1][:, -1], 1.0)
    return claims


def _figure(
    curves: dict[str, np.ndarray], functions: tuple[str, ...], names: tuple[str, ...]
) -> Any:
    from matplotlib.figure import Figure

    shown = (
        PRINTED,
        ANYWHERE,
        FEWER_ANYWHERE,
        FEWER,
        TAUGHT,
        STAYS,
        BOTH,
        SKETCHED_TAUGHT,
        *RIVALS,
    )
    figure = Figure(figsize=(6.5 * len(functions), 4.6), dpi=plotting.DPI, layout="constrained")
    axes = figure.subplots(1, len(functions), squeeze=False)[0]
    for ax, function in zip(axes, functions, strict=True):
        some = {name: curves[f"{function}, {name}"] for name in shown if name in names}
        plotting.regret(some, ax, ylabel="cumulative regret of 50 agents", log=True)
        ax.set_title(function)
    return figure


EXPERIMENT = Experiment(
    source="CEPE, section 6",
    about="CEPE that explores first, learns on, and stops by itself: regret and numbers sent",
    time="15 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
