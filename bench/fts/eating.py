"""FTS, Fig. 2b, 3b and 6, on a stand-in: whether 30 people are eating (`tasks.eating`).

See `activity` for the comparison, `tasks.logistic` for the tuned model.
"""

from bench.fts.activity import measure
from bench.fts.rivals import FederatedProblem
from bench.runner import Experiment, Options, Result
from bench.tasks.eating import PEOPLE, meals


def _run(options: Options) -> Result:
    return measure(FederatedProblem(PEOPLE, dim=3), meals(), options, "fts-eating")


EXPERIMENT = Experiment(
    source="FTS, Fig. 2b, 3b and 6; a stand-in for its data",
    about="logistic regression for whether 30 people are eating by TS, FTS, RGPE and TAF",
    time="25 min",
    run=_run,
)
