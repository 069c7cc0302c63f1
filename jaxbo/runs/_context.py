"""A method that is asked on a part of its domain: the part with the present context."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxbo._check import require
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space


def at(algorithm: AbstractOneModel, context: Mapping[str, Any] | None) -> AbstractOneModel:
    """The same, asked for points with this context alone; `ValueError` for another context."""
    require(
        context is None or isinstance(context, Mapping),
        f"context must be a dictionary of values by name, got {context!r:.60}.",
    )
    if isinstance(algorithm.domain, Space) and (context or algorithm.domain.context):
        return over(algorithm, algorithm.domain.at(context or {}))
    require(not context, f"context is for a Space that declares one, got {context!r}.")
    return algorithm


def check_none(domain: AbstractDomain) -> None:
    """`ValueError` for a space with a context, where nobody gives it."""
    if isinstance(domain, Space):
        domain.must_be_given()


def over(algorithm: AbstractOneModel, domain: AbstractDomain) -> AbstractOneModel:
    """The same on a part of its domain."""
    return eqx.tree_at(lambda a: a.domain, algorithm, domain)


def placed(domain: AbstractDomain, x: np.ndarray) -> np.ndarray:
    """A point in the context of the question, if the domain has one."""
    if not isinstance(domain, Space) or not domain.context:
        return x
    return np.asarray(domain.project(jnp.asarray(x, float)))
