"""EGP-TS, Fig. 3 and 7: a robot's hand pushes an object towards a goal.

    value = -(distance of the object from the goal, at rest),    no noise
    3-D: where the hand starts, how long it pushes; 4-D: and the angle.    10 random points, then 100

Ten goals with three runs each; the paper has a single run. The least distance is as good as 0
everywhere, so the distance is the regret. The world is without noise, and the data's values are of it.
Methods are as in `egp.methods`.
"""

import functools

import jax.random as jr
import numpy as np

from bench.claims import Check, below, worst
from bench.common.panels import figure, rows
from bench.common.search import INITIAL, Method
from bench.egp.methods import METHODS, QUICK, SINGLE, claims
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.robot import GOALS, Pushing
from jaxbo.runs.driver import drive

PROBLEMS = {"3-D": 3, "4-D": 4}
OURS = "EGP-TS"
#: What the paper draws.
COMPARED = (OURS, *SINGLE, "BanditBO", "EXP3BO", "GP-EI")
#: "No worse" allows so much more distance: half a percent of the table's side.
NEAR = 0.05
#: Of all goals, in turn.
RUNS = 3 * GOALS


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(RUNS, 2), options.rounds_or(100, 10)
    names = QUICK if options.quick else tuple(METHODS)
    problems = options.problems_or(PROBLEMS, quick=["3-D"])

    def measure(method: Method, dim: int) -> np.ndarray:
        return np.stack([regret(method, dim, run, rounds, options.seed) for run in range(runs)])

    measures = {
        f"{problem}, {name}": functools.partial(measure, METHODS[name], PROBLEMS[problem])
        for name in names
        for problem in problems
    }
    curves, folder = parts(options, "egp-robot", (runs, rounds), measures)
    return Result(
        settings={
            "runs": runs,
            "goals": min(runs, GOALS),
            "evaluations": rounds,
            "initial points": INITIAL,
        },
        curves=curves,
        checks=checks(curves),
        unit="distance from the goal",
        headers=("method", *(f"{problem}, s.e." for problem in problems)),
        rows=rows(curves, names, problems),
        figure=figure(
            curves,
            tuple(name for name in names if name not in SINGLE[1:]),
            problems,
            ylabel="distance from the goal",
            log=True,
        ),
        scratch=folder,
    )


def regret(method: Method, dim: int, run: int, rounds: int, seed: int) -> np.ndarray:
    """The least distance so far in a run, after the initial points."""
    push = Pushing(dim, clean=True, seed=seed)
    key = jr.fold_in(jr.key(seed), run)

    def objective(agent: int, x: np.ndarray) -> float:
        del agent  # there is one
        return push(run % GOALS, x)

    algorithm = method(dim, rounds)
    _, trace = drive(algorithm, objective, rounds, key, initial=INITIAL, progress=False)
    return -np.fmax.accumulate(np.asarray(trace.values)[:, 0])[INITIAL:]


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """The claims of `egp.methods`, about the end of the runs, and that EGP-TS has the best mean."""
    found: dict[str, Check] = {}
    for problem in PROBLEMS:
        ends = {m: curves[f"{problem}, {m}"][:, -1] for m in METHODS if f"{problem}, {m}" in curves}
        found |= claims(problem, ends, NEAR)
        rivals = [ends[m] for m in COMPARED if m in ends and m != OURS]
        if rivals and OURS in ends:
            claim = f"{problem}: {OURS} nearer than all that the paper compares, worst difference"
            found[claim] = worst(below(ends[OURS], rival) for rival in rivals)
    return found


EXPERIMENT = Experiment(
    source="EGP-TS, Fig. 3, 7",
    about="robot pushing to ten goals: an ensemble of kernels, each kernel alone, a bandit, and EI",
    time="30 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
