"""The gain of a prior that agents learn together, on real tuning tasks (`prior.owners`)."""

from bench.prior.owners import compared
from bench.runner import Experiment, Options, Result

TASKS = ("digits-svm", "landmine-svm", "cancer-svm")


def _run(options: Options) -> Result:
    """--only names tasks."""
    return compared(options, "prior-tuning", options.problems_or(TASKS, TASKS[:1]))


EXPERIMENT = Experiment(
    source="prior-tuning",
    about="the gain of a learned prior on real tuning tasks, beside lone and federated methods",
    time="20 min",
    run=_run,
    problems=TASKS,
)
