"""A black box in a single line: a Python function, a domain and a number of evaluations."""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

from collections.abc import Iterable
from typing import Any

import jax.random as jr

from jaxbo._check import require, shown, whole
from jaxbo._direction import Direction
from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.bo import BO, first_design
from jaxbo.domains.base import AbstractDomain
from jaxbo.runs._evaluate import BlackBox
from jaxbo.runs._executors import Where
from jaxbo.runs._start import beginning
from jaxbo.runs.asynchronous import InAll, drive_async
from jaxbo.runs.desk import Desk

#: The arguments of `drive_async` that are passed on.
OPTIONS = "known", "first", "checkpoint", "catch", "timeout", "deadline", "stop", "progress"


def minimize(
    objective: BlackBox,
    domain: AbstractDomain,
    evaluations: int,
    *,
    executor: Where = None,
    workers: int | None = None,
    initial: int | None = None,
    outcomes: Iterable[Outcome] = (),
    seed: int = 0,
    **options: Any,
) -> Desk:
    """Minimizes a Python function in a single line.

    The method is `BO`. The first evaluations are random points. `maximize` is the same where large
    values are good.

    Args:
        objective: `f(x)`. On a `Space`, `x` is a dictionary of parameters by name, else an array.
        domain: The points that may be asked.
        evaluations: Number of evaluations in all, at least 1.
        executor: A number of processes, or a pool. Default: evaluations run here, in turn.
        workers: Number of evaluations at the same time. Default: that of `executor` if it is a number,
            else 1.
        initial: Number of random points at the beginning. Default: `first_design` of the domain.
        outcomes: Other numbers with bounds that the objective returns, which `BO` takes.
        seed: All that is drawn comes from this number.
        options: Further arguments of `drive_async`: `known`, `first`, `checkpoint`, `catch`, `timeout`,
            `deadline`, `stop` and `progress`. A checkpoint goes on, with more evaluations too.

    Returns:
        A desk with all results. Its `best` is the point with the least value, and the value.

    Raises:
        ValueError: `BO` or `drive_async` refuse an argument.

    Example:
        >>> import jaxbo
        >>> space = jaxbo.Space(rate=jaxbo.Real(1e-5, 1e-1, log=True))
        >>> desk = jaxbo.minimize(lambda p: p["rate"], space, 3, progress=False)
        >>> point, value = desk.best
        >>> point["rate"] == value == float(min(desk.values))
        True
    """
    return _optimize(
        "minimize",
        objective,
        domain,
        evaluations,
        executor=executor,
        workers=workers,
        initial=initial,
        outcomes=outcomes,
        seed=seed,
        **options,
    )


def maximize(objective: BlackBox, domain: AbstractDomain, evaluations: int, **options: Any) -> Desk:
    """Maximizes a Python function in a single line. Otherwise it is the same as `minimize`.

    Args:
        objective: `f(x)`. On a `Space`, `x` is a dictionary of parameters by name, else an array.
        domain: The points that may be asked.
        evaluations: Number of evaluations in all, at least 1.
        options: The other arguments of `minimize`.

    Returns:
        A desk with all results. Its `best` is the point with the largest value, and the value.

    Raises:
        ValueError: `BO` or `drive_async` refuse an argument.

    Example:
        >>> import jaxbo
        >>> space = jaxbo.Space(rate=jaxbo.Real(1e-5, 1e-1, log=True))
        >>> desk = jaxbo.maximize(lambda p: -p["rate"], space, 3, progress=False)
        >>> desk.told, desk.best[1] == float(max(desk.values))
        (3, True)
    """
    return _optimize("maximize", objective, domain, evaluations, **options)


def _optimize(
    direction: Direction,
    objective: BlackBox,
    domain: AbstractDomain,
    evaluations: int,
    /,
    *,
    executor: Where = None,
    workers: int | None = None,
    initial: int | None = None,
    outcomes: Iterable[Outcome] = (),
    seed: int = 0,
    **options: Any,
) -> Desk:
    require(
        isinstance(domain, AbstractDomain),
        f"domain must be one, such as jaxbo.Space(x=jaxbo.Real(0, 1)), got {shown(domain)}: the "
        "objective comes first, then the domain.",
    )
    whole("evaluations", evaluations, least=1)
    whole("seed", seed)
    if initial is not None:
        whole("initial", initial)
    require("direction" not in options, "direction: take minimize or maximize instead.")
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise TypeError(
            f"{direction} has no argument {unknown[0]!r}: the options are {', '.join(OPTIONS)}, and "
            "seed=0 stands for a key. Another method than BO is run by drive or drive_async."
        )
    if workers is None:
        workers = executor if isinstance(executor, int) else 1
    method = BO(domain, 1, workers=workers, outcomes=outcomes)
    begin = beginning(method, options.get("known"), options.get("first"), initial or 0)
    asked = len(begin.first) + (initial or 0)
    require(
        asked <= evaluations,
        f"first and initial are {asked} points, more than the {evaluations} evaluations.",
    )
    if initial is None:  # whatever `evaluations` is, so that a checkpoint goes on with more
        initial = max(0, first_design(domain) - begin.told)
    room = begin.told + max(evaluations, len(begin.first) + initial)
    return drive_async(
        BO(domain, room, workers=workers, outcomes=method.outcomes),
        objective,
        InAll(evaluations),
        jr.key(seed),
        executor=executor,
        initial=initial,
        direction=direction,
        **options,
    )
