"""The privacy loss of releases, over rounds."""

from collections.abc import Mapping
from numbers import Real

import numpy as np

from jaxbo._check import require, shown, whole
from jaxbo.plotting._curves import (
    DASHES,
    PALETTE,
    SOFT,
    Axes,
    _axes,
    _check_axes,
    _label_ends,
    _whole_rounds,
)
from jaxbo.privacy.accounting import Accountant, epsilon
from jaxbo.privacy.mechanism import Mechanism

#: Rounds at which the loss is computed; lines join them.
_POINTS = 33


def privacy_curve(
    mechanisms: Mapping[str, Mechanism],
    rounds: int,
    delta: float,
    ax: Axes | None = None,
    *,
    budget: float | None = None,
    accountant: Accountant | None = None,
) -> Axes:
    """Draws the privacy loss ε at `delta` after each number of releases, labeled at the line's end.

    Args:
        mechanisms: The mechanism of each line, by name.
        rounds: The most releases, at least 1.
        delta: The δ of the loss, in (0, 1).
        ax: The axes to draw on. None: axes of a new figure.
        budget: An ε to draw a line at, above 0. None: no line.
        accountant: The accountant of all lines. None: `tightest` of each.

    Returns:
        The axes.

    Raises:
        ValueError: An argument is of a wrong kind or out of its range, or a mechanism has no noise.

    Example:
        >>> import jaxbo
        >>> noise = {f"z = {z:g}": jaxbo.Mechanism(z, 1.0, jaxbo.Poisson(0.1)) for z in (1, 2)}
        >>> moments = jaxbo.accounting.moments
        >>> ax = jaxbo.plotting.privacy_curve(noise, 20, 1e-3, budget=2.0, accountant=moments)
        >>> [text.get_text() for text in ax.texts]
        ['z = 1', 'z = 2', 'budget']
    """
    fine = isinstance(mechanisms, Mapping) and len(mechanisms) > 0
    fine = fine and all(isinstance(m, Mechanism) for m in mechanisms.values())
    require(
        fine,
        "mechanisms must be at least one Mechanism by name, such as {'z = 1': Mechanism(...)}, got "
        f"{shown(mechanisms)}.",
    )
    whole("rounds", rounds, least=1)
    allowed = budget is None or (isinstance(budget, Real) and 0 < budget < np.inf)
    require(allowed, f"budget must be a positive epsilon or None, got {shown(budget)}.")
    _check_axes(ax)
    at = np.unique(np.linspace(1, rounds, min(rounds, _POINTS)).astype(int))
    curves = [
        [epsilon(mechanism, int(n), delta, accountant) for n in at]
        for mechanism in mechanisms.values()
    ]
    ax = _axes(ax, "releases", f"ε at δ = {delta:g}")
    for i, curve in enumerate(curves):
        ax.plot(at, curve, color=PALETTE[i % len(PALETTE)], ls=DASHES[i % len(DASHES)], lw=2.2)
    names = list(mechanisms)
    if budget is not None:
        ax.plot([1, rounds], [budget, budget], color=SOFT, lw=1.2, ls=(0, (2, 2)))
        names.append("budget")
    ax.set_ylim(bottom=0)
    _whole_rounds(ax, rounds)
    _label_ends(ax, names)
    return ax
