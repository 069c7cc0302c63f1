"""The gain of a prior that agents learn together, for other learners, with five and six parameters.

`prior-tuning` on other tasks (`tasks.tabulated`): gradient boosting of clinics and of hospitals, and a
small network of the owners of `jaxbo demo`. Length scales are those of `prior.owners`.
"""

from bench.prior.owners import compared
from bench.runner import Experiment, Options, Result

TASKS = ("digits-network", "diabetes-boosting", "cancer-boosting")


def _run(options: Options) -> Result:
    """--only names tasks."""
    return compared(options, "prior-learners", options.problems_or(TASKS, TASKS[1:2]))


EXPERIMENT = Experiment(
    source="prior-learners",
    about="the gain of a learned prior for boosting and a network, with five and six parameters",
    time="30 min",
    run=_run,
    problems=TASKS,
)
