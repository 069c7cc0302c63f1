"""What a run tells of its rounds: all of it, or what is made of each round while it runs."""

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
    """An evaluation in Python that failed: its row of the trace, its agent, and what it raised.

    One that returned no finite number has raised a `NotFiniteError`. Of a `Desk`, `row` is the number of
    the query, and there is one agent, 0.
    """

    row: int
    agent: int
    error: str


class Trace(Shown):
    """What was asked and observed. The first `initial` rows are the initial design.

    `values` is NaN where an evaluation failed. Those of a Python objective are NumPy's, in float64.
    `info` is what the algorithm tells about each of its rounds, without the initial design. Of the rounds
    every `every`-th is there: where that is not every one, what is best or summed up so far is not to be
    had from them. `ledger` is the one given to `drive`, with all its charges. `direction` says whether
    large values are good or small ones; they are the user's own either way. `times` are, of a Python
    objective, when each evaluation was handed over, in seconds since 1970, and for how many seconds.
    `shared` says that the columns are workers who evaluate one objective. `outcomes` are those of the
    method, by name, and `met` says where all of them met their bounds.
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
        """Where an evaluation succeeded, and all outcomes met their bounds."""
        return feasible((), self.values, {}) if self.met is None else self.met

    def table(self, domain: AbstractDomain | None = None) -> Trials:
        """A dictionary for each evaluation, row by row; with the `domain`, parameters by name.

        `known=` takes it back. `ValueError` for the traces of several runs at once.
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
    """One round, as `run` gives it to `record`.

    `best` is each target's best value so far in this run, its initial design included: -inf before the
    first that did not fail, or inf where values are minimized (`direction`). With `outcomes`, by name, it
    is the best where all met their bounds.
    """

    queries: Float[Array, "targets dim"]
    values: Float[Array, " targets"]
    info: PyTree
    best: Float[Array, " targets"]
    direction: Direction = eqx.field(static=True, default="maximize")
    outcomes: Mapping[str, Float[Array, " targets"]] = eqx.field(default_factory=dict)


class Summary(Shown):
    """How the targets do after a round: of the best value each has had so far.

    Targets whose evaluations all failed are passed over: NaN if there is no other. `best` is that of the
    best target, and `failed` is how many evaluations of this round failed.
    """

    mean: Float[Array, "*rows"]
    best: Float[Array, "*rows"]
    quantiles: Float[Array, "*rows levels"]
    failed: Int[Array, "*rows"]


def summary(round: Round) -> Summary:
    """A few numbers of a round, however many agents there are; the levels are `QUANTILES`.

    Over devices, quantiles take the best value of every agent to each of them.
    """
    is_a("round", round, Round)
    known = jnp.where(jnp.isfinite(round.best), round.best, jnp.nan)
    levels = jnp.asarray(QUANTILES, known.dtype)
    failed = jnp.sum(~jnp.isfinite(round.values))
    best = (jnp.nanmin if round.direction == "minimize" else jnp.nanmax)(known)
    return Summary(jnp.nanmean(known), best, jnp.nanquantile(known, levels), failed)
