"""The features that messages of FTS and DP-FTS-DE are drawn from, as the authors have it."""

from typing import Any

from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.features import Cosine, cosine, independent
from jaxbo.types import Key

#: Of real objectives.
LENGTH_SCALE, NOISE = 0.01, 1e-6


def random_cosines(key: Key, kernel: AbstractKernel, dim: int, size: int) -> Cosine:
    """The papers' features: cosines of frequencies that are drawn independently."""
    return cosine(key, kernel, dim, size, independent)


def model(features: int, **options: Any) -> Fixed:
    """The features for a real objective."""
    kernel = SquaredExponential(LENGTH_SCALE)
    return Fixed(kernel=kernel, size=features, noise=NOISE, basis=random_cosines, **options)
