"""Pictures of the effects of parameters: slices of a model, its contours, importance, parallel
coordinates.

A picture is of a `Trace`, with `domain=`, or of a `Desk`. It shows an `agent`, by default the first, or
all workers where they share an objective. A model that it shows is an exact Gaussian process, fitted to
the observations by maximum evidence. So it serves every method.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from jaxbo._check import reals, require, shown
from jaxbo._direction import upward
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.parameters import AbstractChoice, Categorical, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.sensitivity import check_sobol, sobol
from jaxbo.plotting._curves import (
    BLUE,
    INK,
    RED,
    SKY,
    SOFT,
    Axes,
    _axes,
    _check_axes,
    _colorbar,
    _legend,
    posterior_1d,
    posterior_2d,
)
from jaxbo.plotting._runs import Modeled, Observed, active, modeled, names_of, observed
from jaxbo.runs.desk import Desk
from jaxbo.runs.trace import Trace
from jaxbo.types import about

#: Of JAX or of NumPy.
Values: TypeAlias = Array | np.ndarray
#: Points along an axis of a slice and of a contour.
FINE, COARSE = 200, 60


def slice_1d(
    run: Trace | Desk,
    parameter: str | int,
    ax: Axes | None = None,
    *,
    domain: AbstractDomain | None = None,
    agent: int | None = None,
    at: Float[Values, " dim"] | Sequence[float] | None = None,
) -> Axes:
    """Draws the posterior along a parameter, its mean and central 95 %, through a point.

    The axis is that of the unit cube. Observations are drawn at their own values of the parameter,
    wherever they are otherwise, if it is active there.

    Args:
        run: A trace or a desk.
        parameter: Its name, or its number if there are no names.
        ax: Where to draw. Default: a new figure.
        domain: The domain of a trace. A desk has its own.
        agent: Number of the agent of a trace. Default: the first, or all workers who share an
            objective.
        at: The point. Default: the observed point with the best posterior mean, among points where the
            parameter is active.

    Returns:
        The axes.

    Raises:
        ValueError: The parameter is not active at the point, or there are fewer than three values.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> x = jnp.eye(4)[:, None, :2]
        >>> trace = jaxbo.Trace(x, x.sum(-1), None)
        >>> jaxbo.plotting.slice_1d(trace, 0, domain=jaxbo.Cube(2)).get_xlabel()
        'x₁'
    """
    seen = observed(run, domain, agent)
    (variable,), (column,) = _variables(seen.domain, parameter=parameter)
    _check_axes(ax)
    at = _point(seen.domain, at)
    model = modeled(seen)
    grid = np.linspace(0, 1, FINE)
    points = np.tile(_through(seen, model, at, variable), (FINE, 1))
    points[:, column] = grid
    mean, std = model.predict(jnp.asarray(_on_domain(seen.domain, points)))
    shown = active(seen.domain, seen.x)[:, variable]
    ax = posterior_1d(grid, mean, std, (seen.x[shown, column], seen.y[shown]), ax=ax)
    ax.set(xlabel=f"{_name(seen.domain, parameter)}{_scale(seen.domain, column)}", ylabel="value")
    return ax


def contour(
    run: Trace | Desk,
    first: str | int,
    second: str | int,
    ax: Axes | None = None,
    *,
    domain: AbstractDomain | None = None,
    agent: int | None = None,
    at: Float[Values, " dim"] | Sequence[float] | None = None,
) -> Axes:
    """Draws the posterior mean over two parameters, through a point, as in `slice_1d`.

    It is blank where a parameter is not active because of the other.

    Args:
        run: A trace or a desk.
        first: Name or number of the first parameter.
        second: Name or number of the second parameter.
        ax: Where to draw. Default: a new figure.
        domain: The domain of a trace. A desk has its own.
        agent: Number of the agent of a trace. Default: the first, or all workers who share an
            objective.
        at: The point. Default: the observed point with the best posterior mean, among points where both
            parameters are active.

    Returns:
        The axes.

    Raises:
        ValueError: The two parameters are the same or not active at the point, or there are fewer than
            three values.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> x = jnp.eye(4)[:, None, :2]
        >>> trace = jaxbo.Trace(x, x.sum(-1), None)
        >>> jaxbo.plotting.contour(trace, 0, 1, domain=jaxbo.Cube(2)).get_ylabel()
        'x₂'
    """
    seen = observed(run, domain, agent)
    variables, columns = _variables(seen.domain, first=first, second=second)
    require(columns[0] != columns[1], f"first and second must differ, got {first!r} twice.")
    _check_axes(ax)
    at = _point(seen.domain, at)
    model = modeled(seen)
    grid = np.linspace(0, 1, COARSE)
    points = np.tile(_through(seen, model, at, *variables), (COARSE * COARSE, 1))
    points[:, columns[0]], points[:, columns[1]] = np.tile(grid, COARSE), np.repeat(grid, COARSE)
    points = _on_domain(seen.domain, points)
    mean, _ = model.predict(jnp.asarray(points))
    mean = np.where(active(seen.domain, points)[:, variables].all(axis=1), mean, np.nan)
    shown = active(seen.domain, seen.x)[:, variables].all(axis=1)
    surface = mean.reshape(COARSE, COARSE)
    observations = seen.x[shown][:, columns], seen.good[shown]
    ax = posterior_2d(grid, grid, surface, observations, ax, direction=seen.direction)
    names = [
        f"{_name(seen.domain, p)}{_scale(seen.domain, c)}"
        for p, c in zip((first, second), columns, strict=True)
    ]
    ax.set(xlabel=names[0], ylabel=names[1])
    return ax


def _variables(domain: AbstractDomain, **parameters: str | int) -> tuple[list[int], list[int]]:
    """The numbers of parameters, and their coordinates; errors have the names of the arguments."""
    given = [about(name, _one_of(domain))(p) for name, p in parameters.items()]
    return [_variable(domain, p) for p in given], [_column(domain, p) for p in given]


def _one_of(domain: AbstractDomain) -> Callable[[str | int], str | int]:
    def checked(parameter: str | int) -> str | int:
        _column(domain, parameter)
        return parameter

    return checked


def _point(domain: AbstractDomain, at: Any) -> Float[np.ndarray, " dim"] | None:
    """The point of a slice, if it is given; `ValueError` for none of the domain's dimension."""
    if at is None:
        return None
    point = reals("at", at)
    require(
        point.shape == (domain.dim,) and np.isfinite(point).all(),
        f"at must be a point of {domain.dim} finite coordinates, such as space.encode makes of "
        f"parameters, got {shown(at)}.",
    )
    return point


def _on_domain(domain: AbstractDomain, x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(domain.project)(jnp.asarray(x, float)))


def _through(seen: Observed, model: Modeled, at: Any, *variables: int) -> np.ndarray:
    """The point of a slice along the variables: `at`, or else the best where all are active."""
    points = model.ranked if at is None else at[None]
    fits = active(seen.domain, _on_domain(seen.domain, points))[:, variables].all(axis=1)
    if not fits.any():
        names = [names_of(seen.domain)[variable] for variable in variables]
        place = "at no point observed" if at is None else "not at the point given as at"
        raise ValueError(
            f"{' and '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} active {place}: give "
            "at= a point of their branch, such as space.encode({...})."
        )
    return points[int(np.argmax(fits))]


def importance(
    run: Trace | Desk,
    ax: Axes | None = None,
    *,
    domain: AbstractDomain | None = None,
    agent: int | None = None,
    count: int = 4096,
) -> Axes:
    """Draws the Sobol indices of the posterior mean: each parameter's share of its variance.

    A bar is the share of a parameter alone and with others, and a bar within it the share of the
    parameter alone. A context is a parameter too.

    Args:
        run: A trace or a desk.
        ax: Where to draw. Default: a new figure.
        domain: The domain of a trace. A desk has its own.
        agent: Number of the agent of a trace. Default: the first, or all workers who share an
            objective.
        count: Number of points for each parameter (`kernels.models.sensitivity`).

    Returns:
        The axes.

    Raises:
        ValueError: There are fewer than three values, or an argument is of another kind.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> x = jnp.eye(4)[:, None, :2]
        >>> trace = jaxbo.Trace(x, x.sum(-1), None)
        >>> len(jaxbo.plotting.importance(trace, domain=jaxbo.Cube(2), count=8).patches)
        4
    """
    seen = observed(run, domain, agent)
    _check_axes(ax)
    check_sobol(seen.domain, count)
    model, names = modeled(seen), names_of(seen.domain)
    found = jax.jit(lambda key: sobol(key, model.mean, seen.domain, count))(jr.key(0))
    order = np.argsort(np.asarray(found.total))
    places = np.arange(len(names))
    ax = _axes(ax, "share of the variance", "", grid=False)
    ax.barh(places, np.asarray(found.total)[order], color=SKY, height=0.62, label="with others")
    ax.barh(places, np.clip(found.first, 0, None)[order], color=BLUE, height=0.3, label="alone")
    ax.set_yticks(places, [names[i] for i in order])
    ax.set_xlim(left=0)
    _legend(ax)
    return ax


def parallel(
    run: Trace | Desk,
    ax: Axes | None = None,
    *,
    domain: AbstractDomain | None = None,
    agent: int | None = None,
) -> Axes:
    """Draws every evaluation as a line through its parameters, colored by its value. The best is thick.

    Evaluations that failed or missed a bound are dashed lines. An axis goes from the lower to the upper
    end of its parameter. A line has a gap at a parameter that is not active.

    Args:
        run: A trace or a desk.
        ax: Where to draw. Default: a new figure.
        domain: The domain of a trace. A desk has its own.
        agent: Number of the agent of a trace. Default: the first, or all workers who share an
            objective.

    Returns:
        The axes.

    Raises:
        ValueError: There are no evaluations, or fewer than two parameters.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> x = jnp.eye(4)[:, None, :2]
        >>> trace = jaxbo.Trace(x, x.sum(-1), None)
        >>> ax = jaxbo.plotting.parallel(trace, domain=jaxbo.Cube(2))
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['x₁', 'x₂']
    """
    seen = observed(run, domain, agent)
    names, heights = names_of(seen.domain), _heights(seen.domain, seen.x)
    require(len(seen.x) > 0, "run has no evaluations yet: there is nothing to draw.")
    require(len(names) >= 2, "domain: parallel coordinates need at least two parameters.")
    places, done = np.arange(len(names)), np.isfinite(seen.good)
    ax = _axes(ax, "", "", grid=False)
    colors, mapped = _colors(seen.y[done])
    for height in heights[~done]:
        _line(ax, height, color=RED, lw=0.9, ls=(0, (3, 2)), alpha=0.8, label="_failed")
    good = upward(seen.direction, seen.y[done])
    for i in np.argsort(good, kind="stable"):
        _line(ax, heights[done][i], color=colors[i], lw=1.1, alpha=0.75, label="_done")
    if done.any():
        best = heights[done][int(np.argmax(good))]
        _line(ax, best, color=INK, lw=2.6, label="best")
        _colorbar(ax, mapped, "value")
    if not done.all():
        ax.lines[0].set_label("failed")
    for place, name in enumerate(names):
        ax.axvline(place, color=SOFT, lw=0.8, zorder=0)
        for height, text in _ends(seen.domain, name):
            ax.annotate(
                text,
                (place, height),
                xytext=(3, 3 if height > 0.5 else -9),
                textcoords="offset points",
                fontsize=8,
                color=SOFT,
            )
    ax.set_xticks(places, names)
    ax.set_yticks([])
    ax.set(xlim=(-0.1, len(names) - 0.7), ylim=(-0.08, 1.08))
    ax.spines["left"].set_visible(False)
    _legend(ax)
    return ax


def _line(ax: Axes, height: Float[np.ndarray, " variables"], **style: Any) -> None:
    """A line with gaps; a value between two gaps is a dot, as no line reaches it."""
    shown = np.pad(np.isfinite(height), 1)
    alone = np.flatnonzero(shown[1:-1] & ~shown[:-2] & ~shown[2:])
    dots: dict[str, Any] = {"marker": "o", "ms": 4, "markevery": alone} if alone.size else {}
    ax.plot(np.arange(len(height)), height, **dots, **style)


def _name(domain: AbstractDomain, parameter: str | int) -> str:
    return names_of(domain)[_variable(domain, parameter)]


def _variable(domain: AbstractDomain, parameter: str | int) -> int:
    names = names_of(domain)
    if isinstance(parameter, str) and parameter in names:
        return names.index(parameter)
    whole_number = isinstance(parameter, int) and not isinstance(parameter, bool)
    require(
        whole_number and 0 <= int(parameter) < len(names),
        f"there is no parameter {shown(parameter)}: give one of {names}, or its number.",
    )
    return int(parameter)


def _column(domain: AbstractDomain, parameter: str | int) -> int:
    """The coordinate of a parameter, unless it has several."""
    variable = _variable(domain, parameter)
    if not isinstance(domain, Space):
        return variable
    name, kind = domain.parameters[variable]
    require(
        not isinstance(kind, Categorical), f"parameter {name!r} is a choice, which has no slice."
    )
    return int(np.flatnonzero(domain.axes(256).owners == variable)[0])


def _scale(domain: AbstractDomain, column: int) -> str:
    """The ends of a parameter, which are 0 and 1 on the axis."""
    if not isinstance(domain, Space):
        return ""
    name, kind = domain.parameters[int(domain.axes(256).owners[column])]
    del name
    log = isinstance(kind, Real) and kind.log
    if isinstance(kind, AbstractChoice):
        return f"  (from {kind.choices[0]} to {kind.choices[-1]})"
    return f"  (0 is {kind.lower:g}, 1 is {kind.upper:g}{', log' if log else ''})"


def _heights(domain: AbstractDomain, x: np.ndarray) -> Float[np.ndarray, "points variables"]:
    """The place of a point on the axis of each variable, NaN where it is not active.

    Choices are spread evenly.
    """
    if not isinstance(domain, Space):
        return np.asarray(x, float)
    owners = domain.axes(256).owners
    columns = []
    for variable, (_, kind) in enumerate(domain.parameters):
        own = x[:, owners == variable]
        if isinstance(kind, Categorical):
            columns.append(np.argmax(own, axis=1) / max(len(kind.choices) - 1, 1))
        else:
            columns.append(own[:, 0])
    return np.where(active(domain, x), np.stack(columns, axis=1), np.nan)


def _ends(domain: AbstractDomain, name: str) -> list[tuple[float, str]]:
    """The texts beside an axis, and their places."""
    if not isinstance(domain, Space):
        return [(0.0, "0"), (1.0, "1")]
    kind = dict(domain.parameters)[name]
    if isinstance(kind, Categorical):
        last = max(len(kind.choices) - 1, 1)
        return [(i / last, str(choice)) for i, choice in enumerate(kind.choices)]
    if isinstance(kind, AbstractChoice):
        return [((i + 0.5) / kind.size, str(choice)) for i, choice in enumerate(kind.choices)]
    return [(0.0, f"{kind.lower:g}"), (1.0, f"{kind.upper:g}")]


def _colors(values: np.ndarray) -> tuple[np.ndarray, object]:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    mapped = ScalarMappable(Normalize(low, high if high > low else low + 1), colormaps["viridis"])
    return mapped.to_rgba(values), mapped
