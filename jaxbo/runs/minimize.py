"""One black box in one line: a Python function, a domain and a number of evaluations."""

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
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.desk import Desk


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
    """A desk with the results of so many evaluations; its `best` is the point of least value, and that.

        desk = minimize(f, Space(rate=Real(1e-5, 1e-1, log=True), depth=Integer(1, 8)), 50)
        x, value = desk.best

    `objective(x)` takes a dictionary of parameters on a `Space`, else an array. The method is `BO`. The
    first evaluations are `initial` points that cover the domain, `first_design` unless given.
    `executor=4` evaluates in four processes. For an executor that is no number, `workers` says how many
    evaluations there are at the same time. `outcomes` are those of `BO`. All that is drawn comes from
    `seed`. The other `options` are those of `drive_async`: `known`, `first`, `checkpoint`, `catch`,
    `timeout`, `deadline`, `stop` and `progress`. A checkpoint goes on, with more evaluations too.

    `ValueError` for what `BO` or `drive_async` refuse.
    """
    rest = executor, workers, initial, outcomes, seed, options
    return _optimize("minimize", objective, domain, evaluations, *rest)


def maximize(
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
    """The same as `minimize`, where large values are good."""
    rest = executor, workers, initial, outcomes, seed, options
    return _optimize("maximize", objective, domain, evaluations, *rest)


def _optimize(
    direction: Direction,
    objective: BlackBox,
    domain: AbstractDomain,
    evaluations: int,
    executor: Where,
    workers: int | None,
    initial: int | None,
    outcomes: Iterable[Outcome],
    seed: int,
    options: dict[str, Any],
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
    if workers is None:
        workers = executor if isinstance(executor, int) else 1
    method = BO(domain, 1, workers=workers, outcomes=outcomes)
    begin = beginning(method, options.get("known"), options.get("first"), initial or 0)
    if initial is None:
        most = evaluations - len(begin.first)
        initial = max(0, min(first_design(domain) - begin.told, most))
    asked = len(begin.first) + initial
    require(
        asked <= evaluations,
        f"first and initial are {asked} points, more than the {evaluations} evaluations.",
    )
    return drive_async(
        BO(domain, begin.told + evaluations, workers=workers, outcomes=method.outcomes),
        objective,
        evaluations - asked,
        jr.key(seed),
        executor=executor,
        initial=initial,
        direction=direction,
        **options,
    )
