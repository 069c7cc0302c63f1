"""DP-FTS-DE, Fig. 3b, e, 8, 9, 10 and 12b: logistic regression for 30 people's movements (`tasks.har`).

Three hyperparameters. See `privacy_curve` for the comparison and `tasks.logistic` for the tuned model.
"""

from bench.dp import privacy_curve
from bench.dp.privacy_curve import PrivateProblem, measure
from bench.runner import Experiment, Options, Result
from bench.tasks import har
from bench.tasks.har import SUBJECTS, movements
from jaxbo.domains.base import Cube


def _run(options: Options) -> Result:
    figures = {
        "Fig. 8: one region": privacy_curve.WITHOUT_REGIONS,
        "Fig. 9: weights": privacy_curve.WEIGHTS,
        "Fig. 10: regions": privacy_curve.PARTITIONS,
        "Fig. 12b: weights that do not adapt": privacy_curve.NOT_ADAPTIVE,
    }
    objective, unit = movements(har.DP_FTS_DE), "validation error"
    problem = PrivateProblem(
        Cube(3), SUBJECTS, objective, unit, batch=5, trains=True, figures=figures
    )
    runs, rounds = options.runs_or(10, 2), options.rounds_or(60, 5)
    return measure(problem, options, "dp-har", runs, rounds)


EXPERIMENT = Experiment(
    source="DP-FTS-DE, Fig. 3b, e, 8, 9, 10, 12b",
    about="logistic regression for 30 people's movements: what privacy costs",
    time="1 h",
    run=_run,
)
