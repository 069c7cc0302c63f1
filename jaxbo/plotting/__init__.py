"""Pictures of runs: curves over rounds, posteriors, and the effects of parameters.

Every function draws on the axes given and returns them; without axes it makes a figure of its own,
outside of pyplot's global state, so it works without a display and in threads. `save` writes the
figure. matplotlib comes with the extra `plot` and is imported at the first call.
"""

from jaxbo.plotting._agents import agent_map
from jaxbo.plotting._curves import (
    BLUE,
    DASHES,
    DPI,
    GRID,
    INK,
    LABEL_GAP,
    PALETTE,
    RED,
    SIZE,
    SKY,
    SOFT,
    Band,
    Observations,
    posterior_1d,
    posterior_2d,
    progress,
    regret,
    save,
)
from jaxbo.plotting._factors import factor_graph
from jaxbo.plotting._parameters import contour, importance, parallel, slice_1d
from jaxbo.plotting._privacy import privacy_curve
from jaxbo.plotting._times import timeline, utilization

__all__ = [
    "BLUE",
    "DASHES",
    "DPI",
    "GRID",
    "INK",
    "LABEL_GAP",
    "PALETTE",
    "RED",
    "SIZE",
    "SKY",
    "SOFT",
    "Band",
    "Observations",
    "agent_map",
    "contour",
    "factor_graph",
    "importance",
    "parallel",
    "posterior_1d",
    "posterior_2d",
    "privacy_curve",
    "progress",
    "regret",
    "save",
    "slice_1d",
    "timeline",
    "utilization",
]
