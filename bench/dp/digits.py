"""DP-FTS-DE, Fig. 3c, f: a network for 50 people's handwritten digits, three hyperparameters.

See `privacy_curve` for the comparison and `tasks.digits` for the tuned network: a stand-in for the
paper's.
"""

from bench.dp.privacy_curve import PrivateProblem, measure
from bench.runner import Experiment, Options, Result
from bench.tasks.digits import WRITERS, writers
from jaxbo.domains.base import Cube


def _run(options: Options) -> Result:
    problem = PrivateProblem(Cube(3), WRITERS, writers(), "validation error", batch=1, trains=True)
    runs, rounds = options.runs_or(30, 2), options.rounds_or(60, 3)
    return measure(problem, options, "dp-digits", runs, rounds)


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3c, f, on a stand-in",
    about="a network for 50 people's handwritten digits: what privacy costs",
    time="7 h",
    run=_run,
)
