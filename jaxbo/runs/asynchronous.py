"""A desk before an executor, all of whose workers are kept busy: each is given a query as it ends."""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

from collections.abc import Callable
from os import PathLike
from typing import Any

from jaxbo._check import whole
from jaxbo._direction import Direction
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.runs._arguments import check_arguments, check_room
from jaxbo.runs._context import check_none
from jaxbo.runs._crew import Crew
from jaxbo.runs._ending import Ending
from jaxbo.runs._evaluate import BlackBox, check_catch, check_way
from jaxbo.runs._executors import Where, opened
from jaxbo.runs._flight import Flight
from jaxbo.runs._progress import Progress
from jaxbo.runs._start import beginning
from jaxbo.runs.desk import Desk
from jaxbo.types import Key


def drive_async(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int,
    key: Key,
    *,
    executor: Where = None,
    initial: int = 0,
    known: Any = None,
    first: Any = None,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    timeout: float | None = None,
    deadline: float | None = None,
    stop: Callable[[Desk], Any] | None = None,
    direction: Direction = "maximize",
    progress: bool = True,
) -> Desk:
    """`evaluations` of a Python objective, and the `initial` ones before, by workers kept busy.

    `objective(worker, x)`, or `objective(x)`, runs in `executor`, `algorithm.targets` at the same
    time. As soon as one ends, its result is learned and the next query asked. Without an `executor`,
    and where it is a compiled `objective(key, worker, x)`, it is evaluated here, one at a time.
    Returns the `Desk` with all results. `known` and `first` are those of a `Desk`. `stop` is a function
    of the Desk, asked after each result. All others are those of `drive` (`help(jaxbo.runs.driver)`):
    a run that is stopped, started again with the same arguments, loses the evaluations in flight and
    nothing else. The Desk is closed: another call goes on. Raises `ValueError` where sizes do not
    fit. An objective that has not succeeded once in its first evaluations, as many as `initial`, as
    results known (20 at most), as workers and at least three, ends the run as it does `drive`: these
    are not kept. Any other error
    is raised after all evaluations under way have ended, and their results are kept.
    """
    return evaluated(
        algorithm,
        objective,
        evaluations,
        key,
        executor=executor,
        initial=initial,
        known=known,
        first=first,
        checkpoint=checkpoint,
        catch=catch,
        timeout=timeout,
        deadline=deadline,
        stop=stop,
        direction=direction,
        progress=progress,
    )


def evaluated(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int,
    key: Key,
    *,
    in_all: bool = False,
    executor: Where = None,
    initial: int = 0,
    known: Any = None,
    first: Any = None,
    checkpoint: str | PathLike | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    timeout: float | None = None,
    deadline: float | None = None,
    stop: Callable[[Desk], Any] | None = None,
    direction: Direction = "maximize",
    progress: bool = True,
) -> Desk:
    """The desk of `drive_async`. With `in_all`, `evaluations` count those before the model is asked.

    There may then be fewer of them than `initial`, and a checkpoint still goes on with more.
    """
    check_arguments(algorithm, key, objective, AbstractOneModel)
    check_none(algorithm.domain)
    whole("evaluations", evaluations)
    check_way(algorithm, objective, executor, timeout)
    check_catch(catch)
    ending = Ending(deadline, stop)
    given = {"initial": initial, "known": known, "first": first, "direction": direction}
    begin = beginning(algorithm, known, first, initial)
    total = evaluations if in_all else len(begin.first) + begin.initial + evaluations
    check_room(algorithm, begin.told + total)
    with Desk(algorithm, key, checkpoint=checkpoint, **given) as desk:
        check_room(algorithm, desk.told - desk.answered + total)  # the file may have results more
        with (
            ending,
            opened(executor, timeout) as pool,
            Progress(total, "evaluation", progress) as bar,
        ):
            Crew(desk, objective, Flight(pool, timeout), catch, ending, bar).work(total)
    return desk
