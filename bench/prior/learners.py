"""The gain of a prior that agents learn together, for other learners, with six and five parameters.

`prior-tuning` on other tasks (`tasks.tabulated`): a small network of the owners of `jaxbo demo`, and
gradient boosting of clinics. Length scales are those of `prior.owners`.
"""

from bench.prior.owners import compared
from bench.runner import Experiment, Options, Result

TASKS = ("digits-network", "diabetes-boosting")


def _run(options: Options) -> Result:
    """--only names tasks."""
    return compared(options, "prior-learners", options.problems_or(TASKS, TASKS[1:2]))


EXPERIMENT = Experiment(
    source="prior-learners",
    about="the gain of a learned prior for a network and boosting, with six and five parameters",
    time="20 min",
    run=_run,
    problems=TASKS,
)
