"""The objectives that agents maximize: families of objectives, and the field's test functions."""

from jaxbo.objectives.families import (
    AbstractObjective,
    OnGrid,
    Same,
    Shifted,
    gp_draws,
    mixtures,
    perturbed,
    unit_range,
)

__all__ = [
    "AbstractObjective",
    "OnGrid",
    "Same",
    "Shifted",
    "gp_draws",
    "mixtures",
    "perturbed",
    "unit_range",
]
