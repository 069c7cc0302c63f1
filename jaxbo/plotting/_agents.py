"""A map of agents, at the best points that they have found, with lines to the agents they follow."""

import numpy as np
from jaxtyping import ArrayLike, Float

from jaxbo._check import require, shown
from jaxbo._direction import upward
from jaxbo.domains.base import AbstractDomain
from jaxbo.plotting._curves import INK, SOFT, Axes, _axes, _check_axes, _colorbar
from jaxbo.plotting._parameters import _colors, _name, _scale, _variables
from jaxbo.plotting._runs import observed
from jaxbo.runs.trace import Trace

#: Numbers beside the dots can be read up to so many agents.
_MOST_NUMBERS = 30
#: Points of a line from an agent to another that counts most.
_WIDEST = 4.0


def agent_map(
    run: Trace,
    ax: Axes | None = None,
    *,
    domain: AbstractDomain,
    first: str | int = 0,
    second: str | int = 1,
    weights: Float[ArrayLike, "agents agents"] | None = None,
) -> Axes:
    """Draws the best point of every agent in two parameters, colored by its value.

    An agent whose evaluations all failed, or missed a bound, is not on the map. Agents have numbers
    if there are at most 30.

    Args:
        run: The trace of agents who have objectives of their own.
        ax: The axes to draw on. None: axes of a new figure.
        domain: The domain of the run's method.
        first: The parameter of the horizontal axis: a name, or a number where there are none.
        second: The parameter of the vertical axis.
        weights: How much each agent (row) listens to each other one (column), at least 0. A line
            between the two is wider the more it is. None: no lines.

    Returns:
        The axes.

    Raises:
        ValueError: An argument is of a wrong kind, no agent has a value, or workers share an
            objective.

    Example:
        >>> import jax.random as jr, jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(2), agents=3)
        >>> _, trace = jaxbo.run(method, lambda x: -x[0], 4, jr.key(0))
        >>> ax = jaxbo.plotting.agent_map(trace, domain=method.domain)
        >>> [text.get_text() for text in ax.texts]
        ['0', '1', '2']
    """
    seen = observed(run, domain)
    require(isinstance(run, Trace), f"run must be a Trace, got {shown(run)}.")
    require(
        not run.shared,
        "run is of workers who share an objective: they have no points of their own.",
    )
    _, columns = _variables(domain, first=first, second=second)
    values = np.where(run.feasible, np.asarray(run.values, float), np.nan)
    good = np.where(np.isfinite(values), upward(seen.direction, values), -np.inf)
    require(np.isfinite(good).any(), "run has no agent with a value: there is nothing to draw.")
    rows, agents = np.argmax(good, axis=0), np.arange(values.shape[1])
    listens = _weights(weights, len(agents))
    _check_axes(ax)
    from matplotlib.patheffects import withStroke

    found = np.isfinite(good[rows, agents])
    places = np.asarray(run.queries)[rows, agents][:, list(columns)]
    labels = [
        f"{_name(domain, p)}{_scale(domain, c)}"
        for p, c in zip((first, second), columns, strict=True)
    ]
    ax = _axes(ax, *labels, grid=False)
    for i, j in np.argwhere((listens > 0) & found[:, None] & found[None, :]):
        style = {"lw": _WIDEST * listens[i, j] / listens.max(), "alpha": 0.45, "zorder": 1}
        ax.plot(*places[[i, j]].T, color=SOFT, **style, label=f"_{i} {j}")
    colors, mapped = _colors(values[rows, agents][found])
    few = len(agents) <= _MOST_NUMBERS
    dots = {"s": 190, "edgecolors": INK, "linewidths": 0.8} if few else {"s": 14, "linewidths": 0}
    ax.scatter(*places[found].T, c=colors, zorder=2, **dots)
    style = {"ha": "center", "va": "center", "fontsize": 9, "color": "white"}
    outline = [withStroke(linewidth=2.2, foreground=INK)]
    for agent in agents[found] if few else ():
        ax.annotate(str(agent), tuple(places[agent]), **style, path_effects=outline)
    ax.margins(0.08 if few else 0.03)
    _colorbar(ax, mapped, "best value")
    return ax


def _weights(weights: ArrayLike | None, agents: int) -> Float[np.ndarray, "agents agents"]:
    """None are zeros. An agent's own weight does not count."""
    if weights is None:
        return np.zeros((agents, agents))
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError):
        array = np.empty(0)
    require(
        array.shape == (agents, agents) and bool((np.isfinite(array) & (array >= 0)).all()),
        f"weights must be finite numbers of at least 0 [{agents} {agents}], got {shown(weights)}.",
    )
    return np.where(np.eye(agents, dtype=bool), 0, array)
