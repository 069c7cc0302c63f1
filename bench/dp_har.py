"""DP-FTS-DE, Fig. 3b, e: logistic regression for 30 people's movements (`har`), three hyperparameters.

See `privacy_curve` for what is compared, `har` for what is tuned.
"""

from bench.har import SUBJECTS, movements
from bench.privacy_curve import Problem, measure
from bench.runner import Experiment, Options, Result
from jaxbo.domains import Cube


def _run(options: Options) -> Result:
    problem = Problem(Cube(3), SUBJECTS, movements(), "validation error", batch=5, trains=True)
    runs, rounds = options.runs_or(20, 2), options.rounds_or(60, 5)
    return measure(problem, options, "dp-har", runs, rounds)


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3b, e",
    about="logistic regression for 30 people's movements: what privacy costs",
    time="20 min",
    run=_run,
)
