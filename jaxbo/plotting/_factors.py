"""Factor graphs: the variables of each factor, and the messages between factors and variables."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxbo._check import require, shown
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import FactorGraph
from jaxbo.plotting._curves import BLUE, INK, RED, SKY, SOFT, Axes, _axes, _check_axes
from jaxbo.plotting._runs import below

#: Heights of the row of factors, that of variables, and of the beliefs below them.
_FACTORS, _VARIABLES, _BELIEFS = 1.0, 0.0, -0.55
#: A belief is drawn so wide and high; neighbors are a unit apart.
_WIDE, _HIGH = 0.36, 0.32
#: Points of the line of a message that tells most, and of one that tells nothing.
_WIDEST, _NARROWEST = 5.0, 0.7


def factor_graph(
    graph: FactorGraph,
    ax: Axes | None = None,
    *,
    messages: maxsum.Messages | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Draws variables as circles, factors as squares above, and lines between the two.

    With messages, a line is wider the more its message tells: by the difference of its largest and
    smallest number. Below a variable is the sum of its messages over its grid, with a dot at the
    largest. On a tree of settled messages the dots are the maximum of all factors' sum.

    Args:
        graph: The factor graph.
        ax: The axes to draw on. None: axes of a new figure.
        messages: The messages of its factors, as `maxsum.settle` returns them. None: no messages.
        names: The names of the variables. None: x₁, x₂, …

    Returns:
        The axes.

    Raises:
        ValueError: An argument is of a wrong kind, or names or messages are of another graph.

    Example:
        >>> import jaxbo
        >>> from jaxbo.kernels.factors.graph import FactorGraph
        >>> ax = jaxbo.plotting.factor_graph(FactorGraph([3, 3, 3], [(0, 1), (1, 2)]))
        >>> [text.get_text() for text in ax.texts]
        ['x₁', 'x₂', 'x₃', 'φ₁', 'φ₂']
    """
    require(isinstance(graph, FactorGraph), f"graph must be a FactorGraph, got {shown(graph)}.")
    count = len(graph.sizes)
    names = _names(names, count)
    told = None if messages is None else _told(graph, messages)
    _check_axes(ax)
    ax = _axes(ax, "", "", grid=False)
    places = _spread(graph, count)
    edges = [(f, v) for f, scope in enumerate(graph.scopes) for v in scope]
    for f, v in edges:
        width = 1.2 if told is None else _NARROWEST + (_WIDEST - _NARROWEST) * told[f, v]
        ax.plot(
            [places[f], v],
            [_FACTORS, _VARIABLES],
            color=SOFT,
            lw=width,
            zorder=1,
            label=f"_{f} {v}",
        )
    node: dict[str, Any] = {"ls": "", "mec": INK, "mew": 1.0, "zorder": 2}
    ax.plot(range(count), [_VARIABLES] * count, "o", ms=21, mfc="white", **node, label="variable")
    ax.plot(places, [_FACTORS] * len(places), "s", ms=19, mfc=SKY, **node, label="factor")
    text: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "color": INK,
        "fontsize": 10,
        "zorder": 3,
    }
    for v, name in enumerate(names):
        ax.annotate(name, (v, _VARIABLES), **text)
    for f, place in enumerate(places):
        ax.annotate(f"φ{below(f + 1)}", (place, _FACTORS), **text)
    if messages is not None:
        arrays = tuple(jnp.asarray(message, float) for message in messages)
        for v, belief in enumerate(np.asarray(maxsum.beliefs(graph, arrays), float)):
            _belief(ax, v, belief[: graph.sizes[v]])
    ax.set(xticks=[], yticks=[], xlim=(-0.6, count - 0.4))
    ax.set_ylim(_VARIABLES - 0.25 if messages is None else _BELIEFS - 0.12, _FACTORS + 0.25)
    ax.spines[:].set_visible(False)
    return ax


def _belief(ax: Axes, v: int, belief: Float[np.ndarray, " points"]) -> None:
    """The curve of a belief, and a dot at its maximum."""
    finite = np.isfinite(belief)
    low, high = (belief[finite].min(), belief[finite].max()) if finite.any() else (0.0, 0.0)
    heights = _BELIEFS + _HIGH * (belief - low) / (high - low if high > low else 1.0)
    at = v + np.linspace(-_WIDE, _WIDE, len(belief)) if len(belief) > 1 else np.array([float(v)])
    heights = np.where(finite, heights, np.nan)
    best = int(np.argmax(np.where(finite, belief, -np.inf)))
    ax.plot(at, heights, color=BLUE, lw=1.6, label=f"_belief {v}")
    ax.plot(at[best : best + 1], heights[best : best + 1], "o", ms=5, color=RED, label=f"_best {v}")


def _spread(graph: FactorGraph, count: int) -> Float[np.ndarray, " factors"]:
    """The places of factors, in the order of their variables' middle and evenly over the width."""
    middles = [float(np.mean(scope)) for scope in graph.scopes]
    order = np.argsort(middles, kind="stable")
    factors = len(middles)
    places = np.empty(factors)
    places[order] = (np.arange(factors) + 0.5) * count / factors - 0.5
    return places


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        return [f"x{below(v + 1)}" for v in range(count)]
    fine = isinstance(names, Sequence) and not isinstance(names, str) and len(names) == count
    require(
        fine and all(isinstance(name, str) for name in names),
        f"names must be a text for each of the {count} variables, got {shown(names)}.",
    )
    return list(names)


def _told(graph: FactorGraph, messages: Any) -> dict[tuple[int, int], float]:
    """How much each message tells, as a share of the one that tells most."""
    shapes = [(*np.shape(group.variables), graph.points) for group in graph.groups]
    fine = isinstance(messages, Sequence) and [np.shape(m) for m in messages] == shapes
    require(
        fine,
        f"messages must be the arrays of shapes {shapes} that maxsum.settle returns for this graph, got "
        f"{shown(messages)}.",
    )
    inside = graph.inside
    spread = {}
    for members, message in zip(graph.members, messages, strict=True):
        for number, scope, rows in zip(
            members.numbers, members.scopes, np.asarray(message, float), strict=True
        ):
            for v, row in zip(scope, rows, strict=True):
                known = row[inside[v] & np.isfinite(row)]
                spread[number, v] = float(np.ptp(known)) if known.size else 0.0
    most = max(spread.values()) or 1.0
    return {edge: told / most for edge, told in spread.items()}
