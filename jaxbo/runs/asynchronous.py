"""A desk before an executor, all of whose workers are kept busy: each is given a query as it ends."""

from __future__ import annotations  # `help` shows the names of types, not what they stand for

from collections.abc import Callable
from os import PathLike
from typing import Any, NamedTuple

from jaxbo._check import whole
from jaxbo._direction import Direction
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.runs._archive import located
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


class InAll(NamedTuple):
    """A number of evaluations that counts the initial ones too.

    It may be smaller than `initial`. The checkpoint of such a start still goes on with more.
    """

    number: int


def drive_async(
    algorithm: AbstractOneModel,
    objective: BlackBox,
    evaluations: int | InAll,
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
    """Runs a Python objective by workers who are kept busy.

    As soon as an evaluation ends, its result is learned and the next query is asked.
    `algorithm.targets` evaluations run at the same time. Without an `executor` they run here, in turn.
    An objective in JAX, `f(key, worker, x)`, runs here too.

    A stopped run that is started again with the same arguments loses the evaluations in flight and
    nothing else. An objective may fail in all of its first evaluations: as many as `initial`, as known
    results (20 at most), as workers, and at least three. It then ends the run as it does in `drive`, and
    none of them are kept. Any other error is raised after all evaluations under way have ended, and
    their results are kept. `help(jaxbo.runs.driver)` says more of most arguments.

    Args:
        algorithm: The method, whose workers share the objective.
        objective: `f(x)` or `f(worker, x)`. `x` is an array of NumPy, or on a `Space` a dictionary.
        evaluations: Number of evaluations after the initial ones, at least 0.
        key: Random key.
        executor: A number of processes, or a pool. Default: evaluations run here, in turn.
        initial: Number of points of the method's initial design.
        known: Results from before, which are among the results of the desk.
        first: Points that are asked before all others.
        checkpoint: A file from which the same call goes on, with more evaluations too.
        catch: Types of exceptions that are failed evaluations, which the run survives.
        timeout: Seconds that an evaluation may take. Then it has failed. Default: any time.
        deadline: Seconds after which nothing more begins. Default: none.
        stop: A function of the `Desk`, asked after each result, that says whether to end. Default:
            never.
        direction: "minimize" if small values are good.
        progress: Whether a bar is shown.

    Returns:
        The desk with all results. It is closed: another call goes on.

    Raises:
        ValueError: Sizes do not fit.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4), candidates=5)
        >>> settings = {"initial": 2, "progress": False}
        >>> desk = jaxbo.drive_async(method, lambda x: -x[0], 1, jax.random.key(0), **settings)
        >>> desk.told, desk.best[1] == float(max(desk.values))
        (3, True)
    """
    check_arguments(algorithm, key, objective, AbstractOneModel)
    check_none(algorithm.domain)
    in_all = isinstance(evaluations, InAll)
    whole("evaluations", evaluations.number if in_all else evaluations)
    compiled = check_way(algorithm, objective, executor, timeout)
    check_catch(catch)
    ending = Ending(deadline, stop)
    given = {"initial": initial, "known": known, "first": first, "direction": direction}
    begin = beginning(algorithm, known, first, initial)
    total = evaluations.number if in_all else len(begin.first) + begin.initial + evaluations
    check_room(algorithm, begin.told + total)
    # The arguments of a compiled objective have no name that another process would know.
    path = None if checkpoint is None or compiled else located(checkpoint)
    with Desk(algorithm, key, checkpoint=checkpoint, **given) as desk:
        check_room(algorithm, desk.told - desk.answered + total)  # the file may have results more
        with (
            ending,
            opened(executor, timeout, path) as pool,
            Progress(total, "evaluation", progress) as bar,
        ):
            Crew(desk, objective, Flight(pool, timeout), catch, ending, bar).work(total)
    return desk
