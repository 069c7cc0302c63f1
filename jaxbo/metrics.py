"""The results of a run, and the size of its messages.

    best_so_far          bₜ = max over τ ≤ t of the finite values_τ
    simple_regret        optimum - bₜ,  or to minimize bₜ - optimum; so too below
    cumulative_regret    Σ over τ ≤ t of (optimum - values_τ)
    mean_and_error       x̄,  s / √n                   over n independent runs
    confidence_interval  x̄ ± t_{(1 + level) / 2, n - 1} s / √n

Host side: NumPy, in float64 whatever came. Rounds are the second axis from the end, agents the
last; any axes before them, such as seeds, are kept.
"""

import math
from numbers import Real
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxbo._check import is_a, reals_or_none, require, rows_of
from jaxbo._direction import Direction, check_direction, upward
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.keys import init_keys
from jaxbo.types import Key

#: Values of every agent in every round, of one run or of many.
Values: TypeAlias = Float[Array, "*runs rounds agents"] | Float[np.ndarray, "*runs rounds agents"]
#: Any floating array, of either library, or a number.
Numbers: TypeAlias = Float[Array, "..."] | Float[np.ndarray, "..."] | float | int | np.floating


def best_so_far(
    values: Values, direction: Direction = "maximize"
) -> Float[np.ndarray, "*runs rounds agents"]:
    """The best value that each agent has had by each round.

    Failed evaluations, whose values are not finite, are passed over. Before an agent's first success
    its best value is -inf, or inf to minimize.

    Args:
        values: Values of agents in rounds. None is NaN.
        direction: "maximize" takes the largest value, "minimize" the smallest.

    Returns:
        The best values, in float64.

    Raises:
        ValueError: `values` has fewer than two axes, or `direction` is another word.

    Example:
        >>> import jaxbo, numpy as np
        >>> values = np.array([[1.0], [np.nan], [3.0], [2.0]])
        >>> jaxbo.metrics.best_so_far(values).ravel().tolist()
        [1.0, 1.0, 3.0, 3.0]
    """
    check_direction(direction)
    rows = rows_of("values", values)
    if direction == "minimize":
        return np.minimum.accumulate(np.where(np.isfinite(rows), rows, np.inf), axis=-2)
    return np.maximum.accumulate(np.where(np.isfinite(rows), rows, -np.inf), axis=-2)


def simple_regret(
    values: Values, optimum: Numbers, direction: Direction = "maximize"
) -> Float[np.ndarray, "*runs rounds agents"]:
    """How much worse than the optimum the best value so far is.

    It is infinite before an agent's first success.

    Args:
        values: Values without noise at the queried points, of agents in rounds.
        optimum: The largest value of the objective, or to minimize the smallest. One number, one for
            each agent, or any shape that broadcasts to the values.
        direction: "maximize" or "minimize".

    Returns:
        The regret of each agent by each round, in float64.

    Raises:
        ValueError: Shapes do not fit, or `direction` is another word.

    Example:
        >>> import jaxbo, numpy as np
        >>> values = np.array([[1.0], [3.0], [2.0]])
        >>> jaxbo.metrics.simple_regret(values, 5.0).ravel().tolist()
        [4.0, 2.0, 2.0]
    """
    return _shortfall(best_so_far(values, direction), optimum, direction)


def cumulative_regret(
    values: Values, optimum: Numbers, direction: Direction = "maximize"
) -> Float[np.ndarray, "*runs rounds agents"]:
    """The sum over rounds of how much worse than the optimum each value is.

    A failed evaluation has no regret to add. The sum is not finite from its round on.

    Args:
        values: Values without noise at the queried points, of agents in rounds.
        optimum: The largest value of the objective, or to minimize the smallest. One number, one for
            each agent, or any shape that broadcasts to the values.
        direction: "maximize" or "minimize".

    Returns:
        The sum for each agent by each round, in float64.

    Raises:
        ValueError: Shapes do not fit, or `direction` is another word.

    Example:
        >>> import jaxbo, numpy as np
        >>> values = np.array([[1.0], [3.0], [2.0]])
        >>> jaxbo.metrics.cumulative_regret(values, 5.0).ravel().tolist()
        [4.0, 6.0, 9.0]
    """
    check_direction(direction)
    return np.cumsum(_shortfall(rows_of("values", values), optimum, direction), axis=-2)


def _shortfall(values: np.ndarray, optimum: Numbers, direction: Direction) -> np.ndarray:
    best = reals_or_none("optimum", optimum)
    try:
        return upward(direction, best) - upward(direction, values)
    except ValueError as error:
        raise ValueError(
            "optimum must be one number, one for each agent or one for each value, got shape "
            f"{best.shape} for values of shape {values.shape}."
        ) from error


def mean_and_error(
    x: Numbers, axis: int = 0
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The mean over independent runs, and its standard error.

    Args:
        x: Numbers of several runs.
        axis: The axis of runs.

    Returns:
        The mean and the standard error, in float64.

    Raises:
        ValueError: There are fewer than two runs, which have no spread, or `x` has no such axis.

    Example:
        >>> import jaxbo, numpy as np
        >>> mean, error = jaxbo.metrics.mean_and_error(np.array([1.0, 2.0, 3.0]))
        >>> float(mean), round(float(error), 4)
        (2.0, 0.5774)
    """
    x = reals_or_none("x", x)
    fine = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
    fine = fine and -x.ndim <= axis < max(x.ndim, 1)
    require(fine, f"axis must be one of the {x.ndim} that x has, a whole number, got {axis!r:.60}.")
    runs = x.shape[axis] if x.ndim else 0
    require(runs >= 2, f"x: a standard error needs at least two runs, got {runs} on axis {axis}.")
    with np.errstate(invalid="ignore"):  # infinite values have no spread: NaN says so
        error = np.std(x, axis=axis, ddof=1) / math.sqrt(runs)
    return np.asarray(np.mean(x, axis=axis)), np.asarray(error)


def confidence_interval(
    x: Numbers, axis: int = 0, level: float = 0.95
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Student's interval for the mean over independent runs.

    It is exact for normal runs, and close for a few dozen runs of any distribution.

    Args:
        x: Numbers of several runs.
        axis: The axis of runs.
        level: Probability that the interval holds the mean, in (0, 1).

    Returns:
        The lower and the upper end, in float64.

    Raises:
        ValueError: There are fewer than two runs, or `level` lies outside (0, 1).

    Example:
        >>> import jaxbo, numpy as np
        >>> low, high = jaxbo.metrics.confidence_interval(np.array([1.0, 2.0, 3.0]))
        >>> round(float(low), 3), round(float(high), 3)
        (-0.484, 4.484)
    """
    from scipy import stats  # takes longer to import than this package

    fine = isinstance(level, Real) and 0 < level < 1
    require(fine, f"level must lie between 0 and 1, got {level!r:.60}.")
    x = reals_or_none("x", x)
    mean, error = mean_and_error(x, axis)
    width = stats.t.ppf((1 + level) / 2, x.shape[axis] - 1) * error
    return np.asarray(mean - width), np.asarray(mean + width)


def floats(message: PyTree[Any]) -> int:
    """How many numbers a message holds.

    Args:
        message: A tree of arrays, or of their `jax.ShapeDtypeStruct`.

    Returns:
        The number of entries of all arrays.

    Raises:
        ValueError: `message` is not a tree of arrays.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> jaxbo.metrics.floats((jnp.zeros(3), jnp.zeros((2, 2))))
        7
    """
    return sum(math.prod(leaf.shape) for leaf in _leaves(message))


def bytes_of(message: PyTree[Any]) -> int:
    """How many bytes the numbers of a message take, in the precision in which JAX holds them.

    Args:
        message: A tree of arrays, or of their `jax.ShapeDtypeStruct`.

    Returns:
        The number of bytes of all arrays.

    Raises:
        ValueError: `message` is not a tree of arrays.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> jaxbo.metrics.bytes_of(jnp.zeros(3, jnp.float32))
        12
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in _leaves(message))


def message_of(algorithm: AbstractAlgorithm) -> PyTree[jax.ShapeDtypeStruct]:
    """The shapes of the message that an agent of a federated method sends in a round.

    Nothing is computed. `floats` and `bytes_of` take the shapes. In a federation files and Flower
    add names of arrays and traffic of their own.

    Args:
        algorithm: The method.

    Returns:
        A tree of `jax.ShapeDtypeStruct`. It is empty if agents send nothing.

    Raises:
        ValueError: The algorithm is no federated method.

    Example:
        >>> import jaxbo
        >>> message = jaxbo.metrics.message_of(jaxbo.LearnedPrior(jaxbo.Cube(2), agents=20))
        >>> jaxbo.metrics.floats(message), jaxbo.metrics.bytes_of(message)
        (10407, 41628)
    """
    is_a("algorithm", algorithm, AbstractFederated)
    assert isinstance(algorithm, AbstractFederated)

    def one(key: Key) -> PyTree:
        keys = init_keys(key)
        shared = algorithm.setup(keys.setup)
        client = algorithm.join(keys.join, shared, jnp.zeros((), int))
        return algorithm.message(key, shared, client)

    return eqx.filter_eval_shape(one, jax.random.key(0))


def _leaves(message: PyTree[Any]) -> list[jax.ShapeDtypeStruct]:
    try:
        return jax.tree.leaves(jax.eval_shape(lambda tree: tree, message))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"message must be a tree of arrays: {error}") from error
