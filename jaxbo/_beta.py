"""How far from its mean a model is looked at: a number, or a number for each t = 1, 2, …"""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import ArrayLike

from jaxbo._check import require
from jaxbo.types import Count, Scalar, named

#: A number, or a function of t such as `schedules.Confidence`.
Beta: TypeAlias = Scalar | Callable[[Count], Scalar]


def as_beta(value: ArrayLike | Callable[[Count], Scalar]) -> Beta:
    """A function as it is, a number as an array."""
    return value if callable(value) else named("beta")(value)


def check_beta(beta: Beta) -> None:
    """`ValueError` for a number below 0."""
    require(callable(beta) or beta >= 0, f"beta must be at least 0, got {beta}.")


def beta_at(beta: Beta, t: Count) -> Scalar:
    """Its value at t."""
    return beta(t) if callable(beta) else beta
