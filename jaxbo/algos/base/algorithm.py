"""What every method offers.

    init(key) → state
    ask(key, state) → (queries, info)        draws, changes nothing
    tell(state, queries, values) → state     changes, draws nothing

Observations that are made before the first round are told in the same way, at another `Stage`.

A federated method is written from the two sides that exist in the world (`AbstractFederated`). One of
workers who share a model is written as what they ask of it (`AbstractOneModel`).
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from jaxbo._check import require
from jaxbo._extensible import Extensible
from jaxbo.domains.base import AbstractDomain
from jaxbo.layout import Each
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.types import Count, Flag, Key, Point


class Stage(NamedTuple):
    """When a row of observations is told.

    `before` says whether it was made before the first round, and `last` whether it is the last such row.
    """

    before: Flag | bool
    last: Flag | bool


#: In a round.
IN_ROUND = Stage(False, False)


class AbstractAlgorithm(Extensible):
    """A method of optimization. Values are maximized; a non-finite value is a failed evaluation.

    A failure changes where the agent looks, and nothing that is believed of the objective.

    Configuration lives here and never changes; numbers are array leaves, so a sweep over them is one
    vmapped program.
    """

    domain: eqx.AbstractVar[AbstractDomain]

    # ------------------------------------------------------------ what is true of a method

    @property
    @abc.abstractmethod
    def targets(self) -> int:
        """How many query each round: the first so many agents, or all workers."""

    @property
    def clients(self) -> int:
        """How many have a state of their own, which a layout divides: one where workers share a model."""
        return 1

    @property
    def capacity(self) -> int | None:
        """The most observations an agent can hold, if there is a limit."""
        return None

    @property
    def invariant(self) -> bool:
        """Whether a constant added to all values of an agent changes no query.

        `drive` then tells values less the first one. To be given by methods that standardize values.
        """
        return False

    @property
    def initial_capacity(self) -> int | None:
        """The most observations made before the first round, if these have a limit of their own."""
        return None

    def initial(self, key: Key, agent: Count) -> Point:
        """A point of an agent's initial design: uniform in the domain, unless a method says otherwise."""
        del agent
        return self.domain.sample(key, 1)[0]

    def released(self, round: int) -> Mechanism | None:
        """The private release that `ask` makes in a round, the first being 0: what a ledger charges."""
        del round
        return None

    @property
    def learns(self) -> bool:
        """Whether observations change later queries."""
        return True

    @property
    def random(self) -> bool:
        """Whether two queries from any one state differ by what is drawn, ties apart."""
        return True

    # ------------------------------------------------------------ the protocol

    @abc.abstractmethod
    def init(self, key: Key, *, each: Each = jax.vmap) -> PyTree:
        """The state before any observation. `each` makes of a function of one agent that of all."""

    @abc.abstractmethod
    def round(self, state: PyTree) -> Count:
        """How many rounds a state was told."""

    @abc.abstractmethod
    def told(self, state: PyTree) -> Count:
        """How many observations of one agent a state may hold."""

    @abc.abstractmethod
    def ask(
        self,
        key: Key,
        state: PyTree,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        """The next query of each target, and what a person may want to know about them."""

    @abc.abstractmethod
    def tell(
        self,
        state: PyTree,
        queries: Float[Array, "targets dim"],
        values: Float[Array, " targets"],
        stage: Stage = IN_ROUND,
        *,
        each: Each = jax.vmap,
    ) -> PyTree:
        """The state after one row of observations, by default those of a round.

        `values` are in JAX's precision. If the state has an `origin`, `run` and `drive` subtract it from
        the objective's values, and whoever tells by hand must do so too: in float64, before float32 cuts
        them.
        """

    def warm_start(
        self,
        state: PyTree,
        queries: Float[ArrayLike, "points agents dim"] | Sequence,
        values: Float[ArrayLike, "points agents"] | Sequence,
        *,
        each: Each = jax.vmap,
    ) -> PyTree:
        """The state after observations that were made before the first round: `tell`, row by row.

        For the targets alone, or for all agents. An agent with fewer of them has NaN values at points
        that are NaN; a NaN value elsewhere is a failed evaluation. `values` are as in `tell`. For float64
        values of the host `jaxbo.replay` subtracts the origin: give it a `Trace` that is all `initial`.
        """
        queries, values = _rows("queries", queries), _rows("values", values)
        require(
            values.ndim == 2 and queries.shape == (*values.shape, self.domain.dim),
            f"expected queries of shape (points, agents, {self.domain.dim}) and a value of each, got "
            f"{queries.shape} and {values.shape}.",
        )
        require(
            self.round(state) == 0,
            "warm_start is for observations made before the first round is told.",
        )
        self.check_start(state, values)

        def step(state: PyTree, row: tuple[Array, Array, Flag]) -> tuple[PyTree, None]:
            queries, values, last = row
            return self.tell(state, queries, values, Stage(True, last), each=each), None

        last = jnp.arange(len(values)) == len(values) - 1
        return jax.lax.scan(step, state, (queries, values, last))[0]

    def check_start(self, state: PyTree, values: Float[Array, "points agents"]) -> None:
        """`ValueError` for more observations before the first round than there is room for."""
        del state, values


def _rows(name: str, given: ArrayLike | Sequence) -> Array:
    """An array as it is, and what else holds numbers, such as lists, in JAX's precision."""
    if isinstance(given, jax.Array):
        return given
    try:
        return jnp.asarray(np.asarray(given, float), float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold numbers alone, as many in each row: got {given!r:.80}."
        ) from error
