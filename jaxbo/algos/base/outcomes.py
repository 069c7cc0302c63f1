"""Outcomes with bounds: numbers that an evaluation observes beside the objective's value.

    slack = at_most - outcome,   or   outcome - at_least;       the bound is met where slack ≥ 0

An evaluation returns a dictionary, `{"value": y, "latency": t}`. Models are told slacks: the host
subtracts the bound in float64, before float32 cuts the digits that decide. An evaluation has failed where
the value or any outcome is not finite.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from jaxbo._check import is_a, require
from jaxbo._shown import Shown
from jaxbo.algos.base import _origin
from jaxbo.algos.base.known import ABOUT, AGENT, VALUE
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.types import Scalar, about, on_device

#: Observed outcomes by name: arrays of the shape that the objective's values have.
Observed: TypeAlias = Mapping[str, Any]


def _bound(value: Any) -> float | Scalar | None:
    """Python's numbers stay in float64."""
    if value is None:
        return value
    if isinstance(value, jax.Array):
        require(value.ndim == 0, f"a bound must be one finite number, got shape {value.shape}.")
        require(jnp.isfinite(value), f"a bound must be one finite number, got {value}.")
        return value
    number = isinstance(value, Real | np.generic) and not isinstance(value, bool)
    require(number and math.isfinite(value), f"a bound must be one finite number, got {value!r}.")
    return float(value)


class Outcome(Shown):
    """A number that an evaluation returns by `name` beside its value, and the bound it must meet.

    A point is feasible if all its outcomes meet their bounds.

    Args:
        name: The name of the number in the dictionary that an evaluation returns.
        at_most: The upper bound, a finite number. A JAX array may differ from run to run of a
            `vmap`. None: there is a lower bound.
        at_least: The lower bound, a finite number or a JAX array. None: there is an upper bound.

    Raises:
        ValueError: There is no bound, there are two, or a bound is no finite number.

    Example:
        >>> import jaxbo
        >>> latency = jaxbo.Outcome("latency", at_most=100.0)
        >>> latency.slack(80.0), latency.slack(130.0)
        (20.0, -30.0)
        >>> method = jaxbo.BO(jaxbo.Cube(2), outcomes=[latency])
        >>> [outcome.name for outcome in method.outcomes]
        ['latency']
    """

    name: str = eqx.field(static=True)
    at_most: float | Scalar | None = eqx.field(converter=about("at_most", _bound), default=None)
    at_least: float | Scalar | None = eqx.field(converter=about("at_least", _bound), default=None)

    def __check_init__(self):
        require(
            isinstance(self.name, str) and self.name != "",
            f"name must be that of an outcome, such as 'latency', got {self.name!r}.",
        )
        require(
            (self.at_most is None) != (self.at_least is None),
            f"outcome {self.name!r} has one bound: write either at_most=… or at_least=….",
        )

    def slack(self, observed: Any) -> Any:
        """Computes how far observed numbers are on the good side of the bound.

        Args:
            observed: A number, or an array of numbers.

        Returns:
            The slacks, negative beyond the bound.
        """
        bound: Any = self.at_least if self.at_most is None else self.at_most
        if isinstance(observed, np.ndarray | np.generic) and _is_known(bound):
            bound = float(bound)  # NumPy's numbers stay NumPy's
        return observed - bound if self.at_most is None else bound - observed


def _is_known(bound: Any) -> bool:
    """Whether a bound is an array of JAX whose number is known."""
    return isinstance(bound, jax.Array) and not isinstance(bound, Tracer)


def as_outcomes(outcomes: Any) -> tuple[Outcome, ...]:
    """A tuple of them. `ValueError` for anything else, and if two have the same name."""
    several = isinstance(outcomes, Sequence) and all(isinstance(o, Outcome) for o in outcomes)
    require(
        several,
        'outcomes must be a list such as [Outcome("latency", at_most=100.0)], got '
        f"{outcomes!r:.80}.",
    )
    names = [outcome.name for outcome in outcomes]
    require(len(set(names)) == len(names), f"two outcomes have one name: {names}.")
    return tuple(outcomes)


def check_names(outcomes: Sequence[Outcome], domain: AbstractDomain) -> None:
    """`ValueError` for a name that a column of a table has already."""
    is_a("domain", domain, AbstractDomain)
    parameters = domain.names if isinstance(domain, Space) else ()
    coordinates = () if parameters else [f"x{i}" for i in range(domain.dim)]
    taken = {VALUE, AGENT, *ABOUT, *parameters, *coordinates}
    wrong = [outcome.name for outcome in outcomes if outcome.name in taken]
    require(
        not wrong,
        f"outcomes {wrong} are called as parameters or columns of the table are: rename them.",
    )


def names_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The names of an evaluation's numbers, the objective's value first."""
    return [VALUE, *(outcome.name for outcome in outcomes)]


def width(outcomes: Sequence[Outcome]) -> tuple[int, ...]:
    """The last axis of the numbers that a method is told: the value and all slacks; none without
    outcomes.
    """
    return (1 + len(outcomes),) if outcomes else ()


def slacks_of(outcomes: Sequence[Outcome]) -> str:
    """The words about slacks in an error of `tell`."""
    return f", each with {len(outcomes)} slacks" if outcomes else ""


def numbers_of(outcomes: Sequence[Outcome], result: Any) -> list[Any]:
    """The value that an evaluation returned, then each outcome. `ValueError` for another form."""
    if not outcomes:
        require(
            not isinstance(result, Mapping),
            f"the objective must return one real number, got {result!r}: a dictionary is for a method "
            "with outcomes, such as EGP(…, outcomes=…).",
        )
        return [result]
    names = names_of(outcomes)
    form = "{" + ", ".join(f"{name!r}: …" for name in names) + "}"
    require(
        isinstance(result, Mapping),
        f"the objective of a method with outcomes must return {form}, got {result!r}.",
    )
    missing = [name for name in names if name not in result]
    extra = [name for name in result if name not in names]
    require(
        not missing and not extra,
        f"the objective must return {form}: missing {missing}, unknown {extra}.",
    )
    return [result[name] for name in names]


def feasible(outcomes: Sequence[Outcome], values: Any, observed: Observed) -> Any:
    """Whether each evaluation succeeded and met all bounds; for NumPy's arrays, an array of NumPy."""
    module = jnp if isinstance(values, jax.Array) else np
    slacks = [outcome.slack(observed[outcome.name]) for outcome in outcomes]
    return functools.reduce(operator.and_, [s >= 0 for s in slacks], module.isfinite(values))


def met(outcomes: Sequence[Outcome], values: Any, observed: Observed) -> Any:
    """`feasible`, or None without outcomes."""
    return feasible(outcomes, values, observed) if outcomes else None


def columns(outcomes: Sequence[Outcome], value: Array, observed: Observed) -> Array:
    """The columns that a method is told: the value, and with outcomes the slack of each."""
    if not outcomes:
        return value
    slacks = [_origin.rounded(outcome.slack(observed[outcome.name])) for outcome in outcomes]
    known = [value, *slacks]
    if any(isinstance(column, Tracer) for column in known):
        return jnp.stack(known, axis=-1)
    return on_device(np.stack(list(map(np.asarray, known)), axis=-1))


def told(
    outcomes: Sequence[Outcome], state: PyTree, values: Any, observed: Observed
) -> tuple[PyTree, Array]:
    """The state with its origin, and the columns to tell it."""
    state, value = _origin.told(state, values)
    return state, columns(outcomes, value, observed)


def all_or_none(outcomes: Sequence[Outcome], numbers: Array) -> Array:
    """The columns that a method is told, NaN in a whole row where any number is not finite."""
    if not outcomes:
        return numbers
    return jnp.where(jnp.all(jnp.isfinite(numbers), axis=-1, keepdims=True), numbers, jnp.nan)


def copies(belief: PyTree, count: int) -> PyTree:
    """So many of a belief, on a leading axis."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * count), belief)


def split(outcomes: Sequence[Outcome], numbers: Any) -> tuple[Any, dict[str, Any]]:
    """The objective's values among observed numbers, and the values of outcomes by name."""
    if not outcomes:
        return numbers, {}
    rest = {outcome.name: numbers[..., 1 + i] for i, outcome in enumerate(outcomes)}
    return numbers[..., 0], rest


class Stacked(eqx.Module):
    """A compiled objective, its value and outcomes as an array. Equal objects have the same program."""

    objective: Callable[..., Any]
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, *arguments: Any) -> Array:
        result = self.objective(*arguments)
        return jnp.stack([jnp.asarray(result[name]) for name in self.names])


def stacked(outcomes: Sequence[Outcome], objective: Callable[..., Any]) -> Callable[..., Any]:
    """The objective as it is, or with outcomes as `Stacked`."""
    if not outcomes:
        return objective
    return Stacked(objective, tuple(names_of(outcomes)))
