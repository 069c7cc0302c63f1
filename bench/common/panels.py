"""A table and a picture of several methods on several problems, whose curves are "problem, method"."""

from typing import Any

import numpy as np

from bench.common.text import number
from jaxbo import metrics, plotting


def rows(
    curves: dict[str, np.ndarray], methods: tuple[str, ...], names: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """The end of each method that ran, mean and standard error."""

    def cell(curve: np.ndarray | None) -> str:
        if curve is None:
            return "-"
        mean, error = metrics.mean_and_error(curve[:, -1])
        return f"{number(float(mean))} {number(float(error))}"

    return [
        (method, *(cell(curves.get(f"{name}, {method}")) for name in names)) for method in methods
    ]


def figure(
    curves: dict[str, np.ndarray],
    methods: tuple[str, ...],
    names: tuple[str, ...],
    **options: Any,
) -> Any:
    """A panel for each name, with the methods that ran; options are `plotting.regret`'s."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.5 * len(names), 5), dpi=plotting.DPI, layout="constrained")
    axes: Any = picture.subplots(1, len(names), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=True):
        found = {method: curves.get(f"{name}, {method}") for method in methods}
        shown = {method: curve for method, curve in found.items() if curve is not None}
        plotting.regret(shown, ax, band="error", **options)
        ax.set_title(name)
    return picture
