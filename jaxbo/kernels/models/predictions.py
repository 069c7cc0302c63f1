"""Means and variances of several beliefs about a function: at a point, at many points, near a point.

A policy is a function of their values u at a point x:

    u(x) = (mean_1, …, variance_1, …),    f(x) = h(u(x))

A search needs f at many candidates, and its value, gradient and Hessian where it climbs. Beliefs on
features that agents share know a quicker way to both (`shared_predictions`). `near` gives u as a
quadratic function q of a step p. Up to second derivatives, h(q(p)) is f(x + p). So derivatives of h go
through a few numbers, and not through features.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo.kernels.processes.features import Curvature, expansion
from jaxbo.types import Function, Point, Points, Scalar

#: Means and variances of all beliefs at a point.
MeansAndVariances: TypeAlias = tuple[Float[Array, " beliefs"], Float[Array, " beliefs"]]


class AbstractPredictions(eqx.Module):
    """Means and variances of several beliefs at a point, as a mixture has them."""

    @abc.abstractmethod
    def __call__(self, x: Point) -> MeansAndVariances:
        """Means and variances at a point."""

    @abc.abstractmethod
    def many(
        self, points: Points
    ) -> tuple[Float[Array, "points beliefs"], Float[Array, "points beliefs"]]:
        """Means and variances at many points."""

    @abc.abstractmethod
    def near(self, x: Point) -> Callable[[Point], MeansAndVariances]:
        """Means and variances at x + p, as a function of p that is right to the second order."""


class OfPredictions(eqx.Module):
    """A function of the means and variances at a point: h(u(x))."""

    predictions: AbstractPredictions
    outer: Callable[..., Scalar]

    def __call__(self, x: Point) -> Scalar:
        return self.outer(*self.predictions(x))

    def many(self, points: Points) -> Float[Array, " points"]:
        """The function at many points."""
        return jax.vmap(self.outer)(*self.predictions.many(points))

    def expansion(self, x: Point) -> tuple[Scalar, Point, Curvature]:
        """Value, gradient and Hessian at x."""
        near = self.predictions.near(x)
        return expansion(lambda p: self.outer(*near(p)), jnp.zeros_like(x))


def composed(predict: Callable[[Point], Any], outer: Callable[..., Scalar]) -> Function:
    """The function outer(*predict(x)), by the quicker way if `predict` knows it."""
    if isinstance(predict, AbstractPredictions):
        return OfPredictions(predict, outer)
    return lambda x: outer(*predict(x))
