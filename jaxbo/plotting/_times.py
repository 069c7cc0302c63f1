"""Pictures over time: the evaluations of workers, and the agents heard in a federation's rounds."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int

from jaxbo._check import require, shown
from jaxbo.plotting._curves import BLUE, INK, RED, SOFT, Axes, _axes, _legend, _whole_rounds
from jaxbo.runs.desk import Desk
from jaxbo.runs.timeline import Timeline
from jaxbo.runs.trace import Trace

#: Shares beside the rows can be read up to so many rows.
_MOST_LABELS = 24


class _Work(NamedTuple):
    """Evaluations: the row of each, its start and end from the first start, and whether it failed."""

    rows: Int[np.ndarray, " evaluations"]
    started: Float[np.ndarray, " evaluations"]
    ended: Float[np.ndarray, " evaluations"]
    failed: Bool[np.ndarray, " evaluations"]


def utilization(run: Timeline | Trace | Desk, ax: Axes | None = None) -> Axes:
    """Draws a bar for each evaluation, in the row of its worker, and the share of time it was busy.

    Time counts from the first start to the last end. An evaluation that had not ended by then has no
    bar, and its time counts as idle. A `Timeline` has the times of its program, and
    a `Trace` or a `Desk` those that were measured, in seconds. A desk does not know who worked: an
    evaluation then is in the lowest row that is free.

    Args:
        run: The timeline of `simulate`, the trace of a Python objective, or a desk.
        ax: The axes to draw on. None: axes of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: `run` is something else, or has no evaluation whose times are known.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr, jaxbo
        >>> egp = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4, capacity=9), jaxbo.Thompson(), workers=2)
        >>> takes = lambda key, worker, x: jnp.where(worker == 0, 1.0, 2.0)
        >>> _, timeline = jaxbo.simulate(egp, lambda x: x[0], takes, 6, jr.key(0))
        >>> ax = jaxbo.plotting.utilization(timeline)
        >>> [text.get_text() for text in ax.texts]
        ['100 %', '100 %']
    """
    work = _work(run)
    fine = np.isfinite(work.started) & np.isfinite(work.ended)
    require(fine.any(), "run has no evaluation whose start and end are known: nothing to draw.")
    rows, started, ended, failed = (field[fine] for field in work)
    took, count = ended - started, int(rows.max()) + 1
    unit = "time" if isinstance(run, Timeline) else "seconds"
    ax = _axes(ax, unit, "worker", grid=False)
    for chosen, color, label in ((~failed, BLUE, "evaluated"), (failed, RED, "failed")):
        if chosen.any():
            bars = rows[chosen], took[chosen], 0.72, started[chosen]
            hatch = "////" if label == "failed" else None
            style = {"color": color, "edgecolor": "white", "linewidth": 0.8, "hatch": hatch}
            ax.barh(*bars, **style, label=label)
    whole = ended.max()
    busy = np.bincount(rows, took, count) / (whole or 1.0)
    _rows(ax, [f"{100 * share:.0f} %" for share in busy])
    ax.set_xlim(0, whole or 1.0)
    if failed.any():
        _legend(ax)
    return ax


def timeline(
    present: Bool[ArrayLike, "rounds agents"],
    ax: Axes | None = None,
    *,
    run: Trace | None = None,
) -> Axes:
    """Draws which agents were heard in each round of a federation, and the share of rounds of each.

    Args:
        present: Whether the message of each agent arrived in each round. A server has them as
            `Coordinator.present`, and loops take them as `present`.
        ax: The axes to draw on. None: axes of a new figure.
        run: The trace of the same rounds, whose failed evaluations get crosses. None: no crosses.

    Returns:
        The axes.

    Raises:
        ValueError: `present` is no matrix of bool, or `run` is of other rounds or agents.

    Example:
        >>> import numpy as np, jaxbo
        >>> ax = jaxbo.plotting.timeline(np.array([[True, False], [True, True]]))
        >>> [text.get_text() for text in ax.texts]
        ['100 %', '50 %']
    """
    heard = _present(present)
    failed = np.zeros(heard.shape, bool) if run is None else _failed(run, heard.shape)
    ax = _axes(ax, "round", "agent", grid=False)
    from matplotlib.patheffects import withStroke

    size = float(np.clip(200 / max(heard.shape), 2.0, 8.0))
    dots: dict[str, Any] = {"ls": "", "ms": size}
    outline = [withStroke(linewidth=3.6, foreground="white")]  # red on blue
    marks = (
        (heard, {"marker": "s", "color": BLUE, **dots}, "heard"),
        (~heard, {"marker": "s", "mfc": "none", "mec": SOFT, "mew": 0.8, **dots}, "not heard"),
        (
            failed,
            {"marker": "x", "color": RED, "mew": 1.8, "path_effects": outline, **dots},
            "failed",
        ),
    )
    for which, style, label in marks:
        if which.any():
            round, agent = np.nonzero(which)
            ax.plot(round + 1, agent, **style, label=label)
    _rows(ax, [f"{100 * share:.0f} %" for share in heard.mean(axis=0)])
    _whole_rounds(ax, len(heard))
    ax.set_xlim(0.4, len(heard) + 0.6)
    _legend(ax)
    return ax


def _rows(ax: Axes, texts: list[str]) -> None:
    """A row for each worker or agent, the first one at the top, with its text at the right."""
    from matplotlib.ticker import MaxNLocator

    count = len(texts)
    ax.set_ylim(count - 0.5, -0.5)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if count > _MOST_LABELS:
        return
    ax.set_yticks(range(count))
    for row, text in enumerate(texts):
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        ax.annotate(text, (1, row), xytext=(7, 0), **place, va="center", color=INK, fontsize=10)


def _work(run: Timeline | Trace | Desk) -> _Work:
    require(
        isinstance(run, Timeline | Trace | Desk),
        f"run must be a Timeline, a Trace or a Desk, got {shown(run)}.",
    )
    if isinstance(run, Timeline):
        require(
            np.ndim(run.ended) == 1,
            f"run must be one Timeline, got times of shape {np.shape(run.ended)}: take one.",
        )
        times = np.asarray(run.started, float), np.asarray(run.ended, float)
        return _Work(np.asarray(run.workers), *times, ~np.isfinite(run.values))
    told = list(run.table())
    started, took, values = (
        np.array([np.nan if row[name] is None else row[name] for row in told], float)
        for name in ("start", "seconds", "value")
    )
    started = started - (np.nanmin(started) if np.isfinite(started).any() else 0)
    ended, failed = started + took, ~np.isfinite(values)
    if isinstance(run, Trace):
        return _Work(np.array([row["agent"] for row in told], int), started, ended, failed)
    return _Work(_free(started, ended), started, ended, failed)


def _free(
    started: Float[np.ndarray, " evaluations"], ended: Float[np.ndarray, " evaluations"]
) -> Int[np.ndarray, " evaluations"]:
    """For each evaluation the lowest row in which no other one is at its start."""
    rows, until = np.zeros(len(started), int), []
    for i in np.argsort(started, kind="stable"):
        if not np.isfinite(started[i] + ended[i]):
            continue
        free = [row for row, end in enumerate(until) if end <= started[i]]
        rows[i] = free[0] if free else len(until)
        until[rows[i] : rows[i] + 1] = [ended[i]]
    return rows


def _present(present: ArrayLike) -> Bool[np.ndarray, "rounds agents"]:
    try:
        heard = np.asarray(present)
    except ValueError:  # rows of other lengths
        heard = np.empty(0)
    require(
        heard.dtype == bool and heard.ndim == 2 and heard.size > 0,
        f"present must be a matrix of bool [rounds agents] that is not empty, got {shown(present)}.",
    )
    return heard


def _failed(run: Trace, shape: tuple[int, ...]) -> Bool[np.ndarray, "rounds agents"]:
    require(isinstance(run, Trace), f"run must be a Trace or None, got {shown(run)}.")
    rounds = np.shape(run.values)[0] - run.initial if np.ndim(run.values) == 2 else None
    require(
        (rounds, *np.shape(run.values)[1:]) == shape,
        f"run must have the {shape[0]} rounds and {shape[1]} agents of present, got values of shape "
        f"{np.shape(run.values)} with {run.initial} rows of initial design.",
    )
    return ~np.isfinite(np.asarray(run.values[run.initial :], float))
