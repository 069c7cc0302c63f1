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
from jaxbo.runs.asynchronous import evaluated
from jaxbo.runs.desk import Desk

#: What `drive_async` takes, too.
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
    """A desk with the results of so many evaluations. Its `best` is the point of the least value.

        desk = minimize(f, Space(rate=Real(1e-5, 1e-1, log=True), depth=Integer(1, 8)), 50)
        x, value = desk.best

    `objective(x)` takes a dictionary of parameters on a `Space`, else an array. The method is `BO`. The
    first evaluations are `initial` random points, by default as many as `first_design` says.
    `executor=4` evaluates in four processes. For an executor that is no number, `workers` is the number
    of evaluations at the same time. `BO` takes `outcomes`. All that is drawn comes from `seed`.
    `drive_async` takes the other `options`: `known`, `first`, `checkpoint`, `catch`, `timeout`,
    `deadline`, `stop` and `progress`. A checkpoint goes on, with more evaluations too.

    `ValueError` for what `BO` or `drive_async` refuse.
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
    """The same as `minimize`, with the same options, where large values are good."""
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
    for name in sorted(set(options) - set(OPTIONS)):
        raise TypeError(
            f"{direction} has no argument {name!r}: the options are {', '.join(OPTIONS)}, and seed=0 "
            "stands for a key."
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
    return evaluated(
        BO(domain, room, workers=workers, outcomes=method.outcomes),
        objective,
        evaluations,
        jr.key(seed),
        in_all=True,
        executor=executor,
        initial=initial,
        direction=direction,
        **options,
    )
