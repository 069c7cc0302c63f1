"""The method to take for a single black box, and the size of its first design.

    model     four exact Gaussian processes of warped values, weighed by evidence      Ensemble.warped
              where all parameters are real:    length scales as `Priors.scaled` has them
              choices or integers among them:   log length scales ~ N(log 0.45 √dim, 0.7²)
    fits      every fifth evaluation; from 35 observations on, and 5 more than 10 a coordinate, every
              second fit sees the better half of the values alone
    query     expected improvement; every third is the top of a quadratic that is fitted to the best
              points, if it explains them, in up to twenty dimensions; with a context, Thompson sampling
    design    2 variables + 2 points, at most 20

With a context or outcomes neither fits nor queries come in turn, since that was not measured. Nor do
queries on a finite domain, or where parameters are choices or integers. Each part can be replaced.
"""

import dataclasses
import math
from collections.abc import Iterable

from jaxbo._check import is_a, whole
from jaxbo.algos.base.outcomes import Outcome, as_outcomes
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.policy import EI, AbstractPolicy, Thompson
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fit import LogNormal, Priors

#: Where parameters are choices or integers: the median of a length scale for each unit of the root of
#: the dimension, and the spread of its logarithm. With the longer and wider prior of `Priors.scaled`,
#: early models took a parameter that had mattered little for one that never does. In 20 runs of an
#: objective with a choice, an integer and a real number the mean regret after 20 evaluations was 0.16,
#: and with this prior 0.002. On 22 BBOB problems, whose parameters are real, this prior had 1.2 times the
#: regret after 20 evaluations and 1.03 times after 50, which is undecided.
LENGTH_SCALE, SPREAD = 0.45, 0.7
#: Evaluations between two fits.
REFIT = 5
#: Observations, and observations a coordinate, after which the next fit is the first to see the better
#: half alone. With 30 in all dimensions, regret was worse on a sphere of ten coordinates: there the model
#: needs all values.
FOCUS, FOCUS_A_COORDINATE = 30, 10
#: Every so many queries one is the top of a quadratic.
QUADRATIC_EVERY = 3
#: A first design has no more points: from there on a model says more than chance.
LARGEST_DESIGN = 20


def BO(  # noqa: N802  the field's name
    domain: AbstractDomain,
    evaluations: int = 200,
    *,
    workers: int = 1,
    outcomes: Iterable[Outcome] = (),
) -> EGP:
    """Makes the method for a single black box: an `EGP` whose parts were measured best.

    The model is `Ensemble.warped`, for any scale of values and any smoothness. It takes
    O(evaluations²) a point and O(evaluations³) a fit. Above some 500 evaluations give an `EGP` on
    features. From 35 evaluations on, and 5 more than 10 a coordinate, every second fit sees the
    better half of the values alone (`EGP(focus=)`). The policy is `EI`. Every third query is the
    top of a quadratic, if it explains the best values (`EGP(quadratic_every=)`). That is so if the
    domain is not finite and all parameters are real numbers, twenty at most. A space with a
    `Context` has Thompson sampling, because expected improvement is over the best of all contexts.
    With a `Context` or outcomes all fits see all values, and the policy has all queries.

    Args:
        domain: The space to search.
        evaluations: The room of the model, at least 1. It counts known results and the first design
            too. A checkpoint goes on with more room. Default: 200.
        workers: Number of evaluations at the same time, at least 1. Default: 1.
        outcomes: Numbers beside the value that must meet bounds. Default: none.

    Returns:
        The method, for `run`, `drive` and `Desk`.

    Raises:
        ValueError: The domain is no domain, or a number is below 1.

    Example:
        >>> import jaxbo
        >>> method = jaxbo.BO(jaxbo.Cube(2), evaluations=50, workers=3)
        >>> method.targets, method.surrogate.capacity
        (3, 52)
        >>> method.policy
        EI()
    """
    is_a("domain", domain, AbstractDomain)
    whole("evaluations", evaluations, least=1)
    whole("workers", workers, least=1)
    # Each worker has a query, and busy ones take rows of their own while another one is sought.
    room = max(evaluations, workers) + workers - 1
    model = Ensemble.warped(domain.dim, room, priors=_priors(domain), refit_every=REFIT)
    context, outcomes = isinstance(domain, Space) and domain.context, as_outcomes(outcomes)
    policy: AbstractPolicy = Thompson() if context else EI()
    focus = quadratic_every = None
    if not (context or outcomes):
        focus = max(FOCUS, FOCUS_A_COORDINATE * domain.dim) + REFIT
        quadratic_every = QUADRATIC_EVERY if _all_real(domain) else None
    return EGP(
        domain,
        model,
        policy,
        workers,
        outcomes=outcomes,
        focus=focus,
        quadratic_every=quadratic_every,
    )


def _all_real(domain: AbstractDomain) -> bool:
    """Whether all coordinates are real numbers. A domain of one's own is taken to have only these."""
    if isinstance(domain, Space):
        return all(isinstance(parameter, Real) for _, parameter in domain.parameters)
    return not isinstance(domain, Finite)


def _priors(domain: AbstractDomain) -> Priors:
    """The priors of hyperparameters. Length scales are shorter where parameters have steps."""
    wide = Priors.scaled(domain.dim)
    if not isinstance(domain, Space) or _all_real(domain):
        return wide
    scales = LogNormal(LENGTH_SCALE * math.sqrt(domain.dim), SPREAD)
    return dataclasses.replace(wide, length_scale=scales)


def first_design(domain: AbstractDomain) -> int:
    """The number of random points before the model is asked: 2 a variable and 2 more, at most 20."""
    is_a("domain", domain, AbstractDomain)
    variables = len(domain.parameters) if isinstance(domain, Space) else domain.dim
    return min(2 * variables + 2, LARGEST_DESIGN)
