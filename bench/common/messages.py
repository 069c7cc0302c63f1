"""The features that messages of FTS and DP-FTS-DE are drawn from, as the authors have it."""

from typing import Any

from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.features import Cosine, cosine, independent
from jaxbo.types import Key

#: The authors' for real objectives.
LENGTH_SCALE, NOISE = 0.01, 1e-6
#: Those with which a message says where an objective is high, and not only near the points it knows.
LONGER, NOISIER = 0.3, 1e-2


def random_cosines(key: Key, kernel: AbstractKernel, dim: int, size: int) -> Cosine:
    """The papers' features: cosines of frequencies that are drawn independently."""
    return cosine(key, kernel, dim, size, independent)


def model(features: int, **options: Any) -> Fixed:
    """The features for a real objective."""
    return _model(features, LENGTH_SCALE, NOISE, **options)


def longer(features: int, **options: Any) -> Fixed:
    """The same with the longer length scale and more noise."""
    return _model(features, LONGER, NOISIER, **options)


def _model(features: int, length_scale: float, noise: float, **options: Any) -> Fixed:
    kernel = SquaredExponential(length_scale)
    return Fixed(kernel=kernel, size=features, noise=noise, basis=random_cosines, **options)
