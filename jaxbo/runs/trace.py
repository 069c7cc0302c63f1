"""The record of a run: all of its rounds, or a summary of each that is made while it runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxbo._check import is_a, require, shown
from jaxbo._direction import Direction
from jaxbo._shown import Shown
from jaxbo.algos.base.outcomes import feasible
from jaxbo.domains.base import AbstractDomain
from jaxbo.privacy.ledger import Ledger
from jaxbo.runs import table
from jaxbo.runs.table import Trials

#: Values of a compiled objective, or of one in Python. Type checkers are told the former: both take the
#: same operations.
Values: TypeAlias = Array if TYPE_CHECKING else Array | np.ndarray
#: What of the agents' best values `Summary.quantiles` holds.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Failure(NamedTuple):
    """An evaluation in Python that failed: its row of the trace, its agent, and the error that it raised.

    An evaluation that returned no finite number has raised a `NotFiniteError`. For a `Desk`, `row` is
    the number of the query, and the only agent is 0.
    """

    row: int
    agent: int
    error: str


class Trace(Shown):
    """The queries of a run and their values. The first `initial` rows are the initial design.

    If `every` is more than 1, the trace does not have all rounds, and it cannot say which value is best
    so far.

    Args:
        queries: The points asked.
        values: Their values in the user's sign, NaN for failed evaluations. Values of a Python
            objective are NumPy's, in float64.
        info: The algorithm's notes on each round, without the initial design.
        initial: Number of rows of the initial design.
        failures: The failed evaluations of a Python objective.
        ledger: The ledger given to `drive`, with all its charges.
        every: The last of each `every` rounds is there.
        direction: Whether large or small values are good.
        times: For a Python objective, when each evaluation was handed over, in seconds since 1970, and
            its duration in seconds.
        shared: Whether the columns are workers who evaluate the same objective.
        outcomes: The outcomes of the method, by name.
        met: Whether an evaluation succeeded and all outcomes met their bounds. None without outcomes.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> trace = jaxbo.Trace(jnp.zeros((1, 2, 1)), jnp.array([[1.0, jnp.nan]]), None)
        >>> trace.feasible.tolist(), [row["status"] for row in trace.table()]
        ([[True, False]], ['observed', 'failed'])
    """

    queries: Float[Array, "*rows targets dim"]
    values: Float[Values, "*rows targets"]
    info: PyTree
    initial: int = eqx.field(static=True, default=0)
    failures: tuple[Failure, ...] = eqx.field(static=True, default=())
    ledger: Ledger | None = eqx.field(static=True, default=None)
    every: int = eqx.field(static=True, default=1)
    direction: Direction = eqx.field(static=True, default="maximize")
    times: Float[Values, "*rows targets 2"] | None = None
    shared: bool = eqx.field(static=True, default=False)
    outcomes: Mapping[str, Float[Values, "*rows targets"]] = eqx.field(default_factory=dict)
    met: Bool[Values, "*rows targets"] | None = None

    @property
    def feasible(self) -> Bool[Values, "*rows targets"]:
        """Whether an evaluation succeeded, and all outcomes met their bounds."""
        return feasible((), self.values, {}) if self.met is None else self.met

    def table(self, domain: AbstractDomain | None = None) -> Trials:
        """A dictionary for each evaluation, row by row; `known=` takes the table back.

        Args:
            domain: The domain of the run's method. With a `Space`, parameters come by name. Default: as
                x0, x1, …

        Returns:
            The table.

        Raises:
            ValueError: The trace is of several runs, or the domain has another dimension.
        """
        _check_domain(domain, np.shape(self.queries)[-1])
        require(
            np.ndim(self.values) == 2,
            f"expected the trace of one run, got values of shape {np.shape(self.values)}: take one.",
        )
        queries, values = np.asarray(self.queries), np.asarray(self.values, np.float64)
        times = (
            np.full((*values.shape, 2), np.nan) if self.times is None else np.asarray(self.times)
        )
        errors = {(row, agent): error for row, agent, error in self.failures}

        def one(row: int, agent: int) -> dict[str, Any]:
            at, round = (row, agent), (row - self.initial + 1) * self.every - 1
            value, error = float(values[at]), errors.get(at)
            observed = {name: float(column[at]) for name, column in self.outcomes.items()}
            start, seconds = times[at].tolist()
            about = value, None, error, start, seconds, observed
            return table.row(domain, queries[at], agent, max(round, -1), *about)

        return Trials(one(*at) for at in np.ndindex(*values.shape))


def _check_domain(domain: Any, dim: int) -> None:
    require(
        domain is None or (isinstance(domain, AbstractDomain) and domain.dim == dim),
        f"domain must be that of the run's method, of {dim} coordinates, or None, got {shown(domain)}.",
    )


class Round(Shown):
    """A round, as `run` gives it to `record`.

    Args:
        queries: The point of each target.
        values: Its value, NaN if the evaluation failed.
        info: The algorithm's notes on the round.
        best: Each target's best value so far, the initial design included. With `outcomes` only values
            count where all outcomes met their bounds. Before the first success it is -inf, or inf to
            minimize.
        direction: Whether large or small values are good.
        outcomes: The outcomes of the method, by name.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(1), 2)
        >>> best = lambda round: round.best.max()
        >>> _, found = jaxbo.run(method, lambda x: x[0], 3, jax.random.key(0), record=best)
        >>> found.shape
        (3,)
    """

    queries: Float[Array, "targets dim"]
    values: Float[Array, " targets"]
    info: PyTree
    best: Float[Array, " targets"]
    direction: Direction = eqx.field(static=True, default="maximize")
    outcomes: Mapping[str, Float[Array, " targets"]] = eqx.field(default_factory=dict)


class Summary(Shown):
    """How the targets do after a round: statistics of the best value that each has had so far.

    Targets whose evaluations all failed are passed over. If there are no others, the numbers are NaN.

    Args:
        mean: The mean over targets.
        best: The value of the best target.
        quantiles: The quantiles at the levels 0.05, 0.25, 0.5, 0.75 and 0.95.
        failed: The number of evaluations of this round that failed.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> values = jnp.array([1.0, 3.0])
        >>> found = jaxbo.summary(jaxbo.Round(jnp.zeros((2, 1)), values, None, values))
        >>> float(found.mean), float(found.best), int(found.failed)
        (2.0, 3.0, 0)
    """

    mean: Float[Array, "*rows"]
    best: Float[Array, "*rows"]
    quantiles: Float[Array, "*rows levels"]
    failed: Int[Array, "*rows"]


def summary(round: Round) -> Summary:
    """A few numbers of a round, however many agents there are.

    If agents are laid over devices, quantiles take the best value of every agent to each device.

    Args:
        round: The round, as `run(record=summary)` gives it.

    Returns:
        The numbers.

    Raises:
        ValueError: `round` is not a `Round`.

    Example:
        >>> import jax, jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(1), 2)
        >>> key, each = jax.random.key(0), jaxbo.summary
        >>> _, found = jaxbo.run(method, lambda x: x[0], 3, key, record=each)
        >>> found.mean.shape, found.quantiles.shape
        ((3,), (3, 5))
    """
    is_a("round", round, Round)
    known = jnp.where(jnp.isfinite(round.best), round.best, jnp.nan)
    levels = jnp.asarray(QUANTILES, known.dtype)
    failed = jnp.sum(~jnp.isfinite(round.values))
    best = (jnp.nanmin if round.direction == "minimize" else jnp.nanmax)(known)
    return Summary(jnp.nanmean(known), best, jnp.nanquantile(known, levels), failed)
