"""The gain of a prior that agents learn together, for the movements of 30 people.

`prior-tuning` on another task: logistic regression of each person's data, in the ranges of DP-FTS-DE
(`tasks.har`). A value is the share of the other half that is right, the mean over shuffles.
"""

from bench.prior.owners import compared
from bench.runner import Experiment, Options, Result

TASK = "har-logistic"


def _run(options: Options) -> Result:
    return compared(options, "prior-har", (TASK,))


EXPERIMENT = Experiment(
    source="prior-har",
    about="the gain of a learned prior for 30 people's movements, tabulated",
    time="30 min",
    run=_run,
)
