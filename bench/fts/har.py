"""FTS, Fig. 2c, 3c and 7: logistic regression for 30 people's movements (`tasks.har`).

See `activity` for the comparison, `tasks.logistic` for the tuned model.
"""

from bench.fts.activity import measure
from bench.fts.rivals import FederatedProblem
from bench.runner import Experiment, Options, Result
from bench.tasks import har
from bench.tasks.har import SUBJECTS, movements


def _run(options: Options) -> Result:
    return measure(FederatedProblem(SUBJECTS, dim=3), movements(har.FTS), options, "fts-har")


EXPERIMENT = Experiment(
    source="FTS, Fig. 2c, 3c and 7",
    about="logistic regression for 30 people's movements by TS, FTS, RGPE and TAF",
    time="25 min",
    run=_run,
)
