"""Curves over rounds with bands, posteriors in one and two dimensions, and the common parts of all
pictures.

best so far   bₜ = max over τ ≤ t of values_τ
band          x̄ ± q s / √runs,    q = 1 (standard error) or Student's t (95 % confidence)
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from jaxtyping import ArrayLike

from jaxbo import metrics
from jaxbo._check import flag, reals, reals_or_none, require, shown
from jaxbo._direction import Direction, check_direction, upward
from jaxbo.plotting._runs import direction_of, shared, values_of
from jaxbo.runs.desk import Desk
from jaxbo.runs.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # annotations are checked at run time, where matplotlib may be absent
    Axes = Figure = Any

#: Points [points dim] and what was observed there [points]; a value that is not finite failed.
Observations: TypeAlias = tuple[ArrayLike, ArrayLike]
Band: TypeAlias = Literal["confidence", "error"]

# Okabe and Ito's colors, told apart with every common color blindness, in the order of their
# contrast with white; the line styles tell them apart in print.
BLUE, RED, SKY = "#0072B2", "#D55E00", "#56B4E9"
PALETTE = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", SKY, "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (3, 1.2, 1, 1.2)), (0, (1, 1)))
INK, SOFT, GRID = "#222222", "#6b6b6b", "#e6e6e6"
SIZE, DPI = (6.4, 4.0), 150  # inches; 960 x 600 pixels, the width of a README's column
LABEL_GAP = 14.0  # points between the labels of two curves: one line of their type


def regret(
    curves: Mapping[str, ArrayLike],
    ax: Axes | None = None,
    *,
    xlabel: str = "round",
    ylabel: str = "simple regret",
    band: Band = "confidence",
    log: bool = False,
) -> Axes:
    """Draws the mean over runs of each curve with its band, labeled at the line's end.

    It works for any value a round, regret or best so far. Rounds count from 1. The line has a gap at
    values that are not finite in some run.

    Args:
        curves: The values [runs rounds] of each curve by name.
        ax: Where to draw. Default: a new figure.
        xlabel: Label of the axis of rounds.
        ylabel: Label of the axis of values.
        band: "confidence" is the 95 % t-interval of the mean, "error" one standard error. A single run
            has no band.
        log: Whether the axis of values is logarithmic.

    Returns:
        The axes.

    Raises:
        ValueError: There are no curves, or an argument is of another kind.

    Example:
        >>> import jaxbo, numpy as np
        >>> ax = jaxbo.plotting.regret({"TS": np.array([[3.0, 1.0], [2.0, 1.0]])})
        >>> len(ax.lines), ax.get_ylabel()
        (1, 'simple regret')
    """
    if not isinstance(curves, Mapping):
        raise ValueError(
            "curves must be arrays by name, such as {'FTS': values [runs rounds]}, got "
            f"{type(curves).__name__}."
        )
    arrays = {name: _matrix(f"curve {name!r}", values) for name, values in curves.items()}
    if not arrays:
        raise ValueError("curves is empty: give at least one array of runs by rounds.")
    fine = isinstance(band, str) and band in ("confidence", "error")
    require(fine, f'band must be "confidence" or "error", got {shown(band)}.')
    flag("log", log)
    ax = _axes(ax, xlabel, ylabel)
    for index, values in enumerate(arrays.values()):
        _curve(ax, values, band, PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)])
    if log:
        _logarithmic(ax)
    _whole_rounds(ax, max(values.shape[1] for values in arrays.values()))
    _label_ends(ax, list(arrays))
    return ax


def posterior_1d(
    xs: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    observations: Observations | None = None,
    truth: ArrayLike | None = None,
    samples: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws a posterior mean and its central 95 % (mean ± 1.96 std).

    Args:
        xs: Points [points].
        mean: The mean at each point.
        std: The standard deviation at each point.
        observations: Points, [points] or [points 1], and their values. Failed evaluations are crosses
            at the bottom. Default: none.
        truth: The function itself at each point. Default: not drawn.
        samples: Draws of the posterior [samples points]. Default: none.
        ax: Where to draw. Default: a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: Shapes do not fit, or a point is not finite.

    Example:
        >>> import jaxbo, numpy as np
        >>> x = np.array([0.0, 1.0])
        >>> ax = jaxbo.plotting.posterior_1d(x, mean=2 * x, std=1 + x)
        >>> ax.lines[-1].get_ydata().tolist()
        [0.0, 2.0]
    """
    xs, mean, std = reals("xs", xs), reals_or_none("mean", mean), reals_or_none("std", std)
    if xs.ndim != 1 or not xs.size or mean.shape != xs.shape or std.shape != xs.shape:
        raise ValueError(
            f"xs, mean and std must be vectors of one length, got {xs.shape}, {mean.shape} and "
            f"{std.shape}: pass one coordinate for each point."
        )
    _finite("xs", xs)
    observed = None if observations is None else _observed(observations, dim=1)
    lines = np.empty((0, xs.size)) if samples is None else _matrix("samples", samples)
    known = xs if truth is None else reals_or_none("truth", truth)
    for name, array in (("samples", lines), ("truth", known)):
        require(
            array.shape[-1:] == xs.shape and (name == "samples" or array.ndim == 1),
            f"{name} must have a value for each of the {xs.size} xs, got shape {array.shape}.",
        )
    ax = _axes(ax, "x", "f(x)")
    ax.fill_between(
        xs, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.16, lw=0, label="95 %"
    )
    for index, sample in enumerate(lines):
        label = "samples" if index == 0 else "_sample"
        ax.plot(xs, sample, color=SKY, lw=0.9, alpha=0.75, label=label)
    if truth is not None:
        ax.plot(xs, known, color=INK, lw=1.3, ls=(0, (4, 2)), label="truth")
    ax.plot(xs, mean, color=BLUE, lw=2.2, label="mean")
    ax.set_xlim(xs.min(), xs.max())
    if observed is not None:
        _observed_1d(ax, *observed)
    _legend(ax)
    return ax


def posterior_2d(
    xs: ArrayLike,
    ys: ArrayLike,
    mean: ArrayLike,
    observations: Observations | None = None,
    ax: Axes | None = None,
    *,
    label: str = "posterior mean",
    direction: Direction = "maximize",
) -> Axes:
    """Draws a surface over two coordinates, with the queries on top.

    Args:
        xs: First coordinates [columns].
        ys: Second coordinates [rows].
        mean: The surface [rows columns].
        observations: Points [points 2] and their values. Evaluated points are dots, failed evaluations
            are crosses, and the best point is a star. Default: none.
        ax: Where to draw. Default: a new figure.
        label: Label of the color bar, for other surfaces such as a variance or an acquisition function.
        direction: Whether the best value is the largest or the smallest.

    Returns:
        The axes.

    Raises:
        ValueError: Shapes do not fit, or there is nothing finite to draw.

    Example:
        >>> import jaxbo, numpy as np
        >>> x = np.array([0.0, 1.0])
        >>> ax = jaxbo.plotting.posterior_2d(x, x, mean=np.array([[0.0, 1.0], [1.0, 2.0]]))
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('x₁', 'x₂')
    """
    check_direction(direction)
    require(isinstance(label, str), f"label must be text, got {shown(label)}.")
    xs, ys, mean = reals("xs", xs), reals("ys", ys), _matrix("mean", mean)
    if mean.shape != (*ys.shape, *xs.shape):
        raise ValueError(
            f"mean must have one row per y and one column per x, got {mean.shape} for "
            f"{ys.shape} ys and {xs.shape} xs: transpose or reshape it."
        )
    require(min(mean.shape) >= 2, f"mean must have two rows and columns, got shape {mean.shape}.")
    _finite("xs", xs)
    _finite("ys", ys)
    require(np.isfinite(mean).any(), "mean must have a finite number: there is nothing to draw.")
    observed = None if observations is None else _observed(observations, dim=2)
    ax = _axes(ax, "x₁", "x₂", grid=False)
    low, high = np.nanmin(mean), np.nanmax(mean)
    flat = low == high  # as a prior is: it has no contours
    levels = np.linspace(low - 0.5, high + 0.5, 25) if flat else 24
    filled = ax.contourf(xs, ys, mean, levels=levels, cmap="viridis")
    if not flat:
        ax.contour(xs, ys, mean, levels=8, colors="white", linewidths=0.5, alpha=0.35)
    ax.set(xlim=(xs.min(), xs.max()), ylim=(ys.min(), ys.max()))
    _colorbar(ax, filled, label)
    if observed is not None:
        _observed_2d(ax, *observed, direction)
    return ax


def progress(
    values: Trace | Desk | ArrayLike,
    ax: Axes | None = None,
    *,
    xlabel: str | None = None,
    ylabel: str = "best value so far",
) -> Axes:
    """Draws the best value so far of every agent, and their median.

    Workers who share an objective are a single agent, and each evaluation counts by itself. A failed
    evaluation, whose value is not finite, leaves the agent's line where it was. It has a cross on the
    line, or at the bottom while the agent has no value.

    Args:
        values: A trace or a desk, or observed values [rounds agents]. A vector is of a single agent.
        ax: Where to draw. Default: a new figure.
        xlabel: Label of the axis of rounds. Default: "round", or "evaluation" if workers share an
            objective.
        ylabel: Label of the axis of values.

    Returns:
        The axes.

    Raises:
        ValueError: There are no values, or an argument is of another kind.

    Example:
        >>> import jaxbo, numpy as np
        >>> ax = jaxbo.plotting.progress(np.array([1.0, 3.0, 2.0]))
        >>> ax.lines[0].get_ydata().tolist()
        [1.0, 3.0, 3.0]
    """
    direction = direction_of(values)
    require(
        xlabel is None or isinstance(xlabel, str),
        f"xlabel must be text or None, got {shown(xlabel)}.",
    )
    xlabel = xlabel or ("evaluation" if shared(values) else "round")
    values = _matrix("values", values_of(values))
    best = metrics.best_so_far(values, direction)
    best = np.where(np.isfinite(best), best, np.nan)  # no line before the first success
    rounds = np.arange(1, len(values) + 1)
    ax = _axes(ax, xlabel, ylabel)
    agents = ax.plot(rounds, best, color=SKY, lw=0.9, alpha=0.55, drawstyle="steps-post")
    agents[0].set_label("one agent")
    for line in agents[1:]:
        line.set_label("_agent")
    median = np.where(np.isfinite(best).all(1), np.median(best, axis=1), np.nan)
    ax.plot(rounds, median, color=BLUE, lw=2.8, drawstyle="steps-post", label="median")
    _mark_failures(ax, rounds, values, best)
    _whole_rounds(ax, len(values))
    _legend(ax)
    return ax


def save(figure: Axes | Figure, path: str | os.PathLike) -> Path:
    """Writes a figure to a file, in the format of its suffix.

    The file appears whole or not at all: it is written under another name and then renamed.

    Args:
        figure: The figure, or its axes.
        path: The path of the file.

    Returns:
        The path.

    Raises:
        ValueError: The path has no suffix, or `figure` is no figure.

    Example:
        >>> import tempfile, jaxbo, numpy as np
        >>> ax = jaxbo.plotting.progress(np.array([1.0, 3.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jaxbo.plotting.save(ax, f"{folder}/progress.svg").name
        'progress.svg'
    """
    _matplotlib()
    from matplotlib.figure import Figure as Root

    require(hasattr(figure, "figure"), f"figure must be axes or a figure, got {shown(figure)}.")
    require(isinstance(path, str | os.PathLike), f"path must be a path, got {shown(path)}.")
    path = Path(path)
    if not path.suffix:
        raise ValueError(f"path: {path} has no suffix to tell the format: add .png, .pdf or .svg.")
    root: Any = figure
    while not isinstance(root, Root):  # axes may sit in a figure within a figure
        root = root.figure
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        root.savefig(part, format=path.suffix[1:], dpi=DPI, facecolor="white")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "jaxbo.plotting needs matplotlib, which is not installed: "
            'pip install "jaxbo-agents[plot]"'
        ) from error


def _matrix(name: str, values: ArrayLike) -> np.ndarray:
    array = reals_or_none(name, values)
    require(
        array.ndim == 2 and array.size > 0,
        f"{name} must be a matrix that is not empty, got shape {array.shape}.",
    )
    return array


def _finite(name: str, array: np.ndarray) -> None:
    require(np.isfinite(array), f"{name} must be finite; some are not.")


def _observed(observations: Observations, dim: int) -> tuple[np.ndarray, np.ndarray]:
    require(
        isinstance(observations, Sequence) and len(observations) == 2,
        f"observations must be (points, values), got {shown(observations)}.",
    )
    points = reals("points of observations", observations[0])
    values = reals_or_none("values of observations", observations[1])
    points = points[:, None] if points.ndim == dim == 1 else points
    if points.shape != (values.size, dim) or values.ndim != 1:
        raise ValueError(
            f"observations must be points of {dim} coordinates and as many values, got shapes "
            f"{points.shape} and {values.shape}."
        )
    return points, values


def _axes(ax: Axes | None, xlabel: str, ylabel: str, grid: bool = True) -> Axes:
    _check_axes(ax)
    for name, text in (("xlabel", xlabel), ("ylabel", ylabel)):
        require(isinstance(text, str), f"{name} must be text, got {shown(text)}.")
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=SIZE, dpi=DPI, layout="constrained").add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SOFT)
    ax.tick_params(which="both", colors=SOFT, labelcolor=INK, labelsize=10)
    ax.set_xlabel(xlabel, color=INK, fontsize=11)
    ax.set_ylabel(ylabel, color=INK, fontsize=11)
    if grid:
        ax.grid(axis="y", color=GRID, lw=0.8)
        ax.set_axisbelow(True)
    return ax


def _check_axes(ax: Any) -> None:
    _matplotlib()
    from matplotlib.axes import Axes as Root

    require(
        ax is None or isinstance(ax, Root),
        f"ax must be axes of matplotlib, such as plt.subplots()[1], or None, got {shown(ax)}.",
    )


def _curve(ax: Axes, values: np.ndarray, band: Band, color: str, dash: Any) -> None:
    rounds = np.arange(1, values.shape[1] + 1)
    complete = np.isfinite(values).all(0)
    shown = np.where(complete, values, 0)
    if len(values) > 1:
        low, high = (np.where(complete, end, np.nan) for end in _ends(shown, band))
        ax.fill_between(rounds, low, high, color=color, alpha=0.18, lw=0)
    ax.plot(rounds, np.where(complete, shown.mean(0), np.nan), color=color, ls=dash, lw=2.2)


def _ends(values: np.ndarray, band: Band) -> tuple[np.ndarray, np.ndarray]:
    if band == "confidence":
        return metrics.confidence_interval(values)
    mean, error = metrics.mean_and_error(values)
    return mean - error, mean + error


def _logarithmic(ax: Axes) -> None:
    """Bands may reach below zero, which has no place here: the means decide the lower limit."""
    ax.set_yscale("log", nonpositive="clip")
    means = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    positive = means[means > 0]
    if positive.size:
        ax.set_ylim(bottom=0.8 * max(ax.dataLim.minposy, positive.min() / 2))


def _whole_rounds(ax: Axes, rounds: int) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    ax.set_xlim(1, max(rounds, 2))


def _label_ends(ax: Axes, names: Sequence[str]) -> None:
    """Names beside the ends of the latest lines, moved apart where lines end close together."""
    ends = [_end(ax, line) for line in ax.lines[-len(names) :]]
    heights = np.array([_points_above(ax, end) for end in ends])
    shifts = _apart(heights) - heights
    for line, name, end, shift in zip(ax.lines[-len(names) :], names, ends, shifts, strict=True):
        line.set_label(name)
        ax.annotate(
            name,
            (1, end),
            xycoords=("axes fraction", "data"),
            xytext=(7, shift),
            textcoords="offset points",
            va="center",
            color=str(line.get_color()),
            fontsize=10.5,
            fontweight="bold",
            annotation_clip=False,
        )


def _end(ax: Axes, line: Any) -> float:
    """The last value that the line shows; the bottom of the axes if it shows none."""
    low, high = ax.get_ylim()
    values = np.asarray(line.get_ydata(), float)
    values = values[np.isfinite(values)]
    return float(np.clip(values[-1], low, high)) if values.size else low


def _points_above(ax: Axes, value: float) -> float:
    """How far above the bottom of the axes `value` is drawn, in points."""
    _, pixels = ax.transData.transform((1.0, value)) - ax.transAxes.transform((0.0, 0.0))
    return pixels * 72 / ax.figure.dpi


def _apart(heights: np.ndarray) -> np.ndarray:
    """`heights` with LABEL_GAP between neighbors, above zero and otherwise little moved."""
    order = np.argsort(heights, kind="stable")
    offsets = LABEL_GAP * np.arange(len(heights))
    raised = np.maximum.accumulate(heights[order] - offsets) + offsets
    centered = raised - (raised - heights[order]).mean()
    centered += max(0.0, LABEL_GAP / 2 - centered[0])
    return centered[np.argsort(order)]


def _observed_1d(ax: Axes, points: np.ndarray, values: np.ndarray) -> None:
    done, dot = np.isfinite(values), {"ms": 6, "color": INK, "mec": "white", "mew": 0.9}
    ax.plot(points[done, 0], values[done], "o", **dot, zorder=5, label="observed")
    if not done.all():
        _crosses(ax, points[~done, 0], np.full((~done).sum(), 0.03), ax.get_xaxis_transform())


def _observed_2d(ax: Axes, points: np.ndarray, values: np.ndarray, direction: Direction) -> None:
    from matplotlib.patheffects import withStroke

    done, (x, y) = np.isfinite(values), points.T
    ax.plot(x[done], y[done], "o", ms=5.5, color="white", mec=INK, mew=0.8, label="query")
    if not done.all():
        outline = [withStroke(linewidth=3.4, foreground=INK)]
        cross = {"ms": 6, "color": "white", "mew": 1.7, "path_effects": outline}
        ax.plot(x[~done], y[~done], "x", **cross, label="failed")
    if done.any():
        best = int(np.argmax(np.where(done, upward(direction, values), -np.inf)))
        star = {"ms": 17, "color": RED, "mec": "white", "mew": 1.1, "ls": ""}
        ax.plot(x[best], y[best], "*", **star, label="best")
    _legend(ax)


def _colorbar(ax: Axes, filled: Any, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = ax.figure.colorbar(filled, ax=ax, pad=0.02, aspect=28, ticks=MaxNLocator(6))
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(colors=SOFT, labelcolor=INK, labelsize=9)
    bar.set_label(label, color=INK, fontsize=10.5)


def _mark_failures(ax: Axes, rounds: np.ndarray, values: np.ndarray, best: np.ndarray) -> None:
    round_index, agent = np.nonzero(~np.isfinite(values))
    if not round_index.size:
        return
    floor = np.nanmin(best) if np.isfinite(best).any() else 0.0
    _crosses(ax, rounds[round_index], np.nan_to_num(best[round_index, agent], nan=floor))


def _crosses(ax: Axes, x: np.ndarray, y: np.ndarray, transform: Any = None) -> None:
    transform = ax.transData if transform is None else transform
    cross = {"ms": 5.5, "mew": 1.4, "color": RED, "zorder": 5}
    ax.plot(x, y, "x", **cross, label="failed", transform=transform)


def _legend(ax: Axes) -> None:
    """A row above the axes, where it hides nothing."""
    where: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 6}
    spacing: dict[str, Any] = {"handlelength": 1.5, "handletextpad": 0.5, "columnspacing": 1.4}
    ax.legend(**where, **spacing, frameon=False, fontsize=10, labelcolor=INK)
