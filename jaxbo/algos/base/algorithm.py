"""The interface of every method.

    init(key) → state
    ask(key, state) → (queries, info)        draws, changes nothing
    tell(state, queries, values) → state     changes, draws nothing

Observations that are made before the first round are told in the same way, at another `Stage`.

A federated method is written from the two sides that exist in the world (`AbstractFederated`). A
method whose workers share a model is written as their queries to it (`AbstractOneModel`).
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxbo._check import require
from jaxbo._extensible import Extensible
from jaxbo.algos.base._state import check_state
from jaxbo.algos.base.known import (
    KnownRows,
    columns_of,
    inside,
    is_numeric,
    numbers_of,
    of_one,
    read,
)
from jaxbo.algos.base.outcomes import Outcome, columns, names_of
from jaxbo.domains.base import AbstractDomain
from jaxbo.layout import Each
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.types import Count, Flag, Key, Point, on_device


class Stage(NamedTuple):
    """When a row of observations is told.

    `before` says whether it was made before the first round, and `last` whether it is the last such
    row.
    """

    before: Flag | bool
    last: Flag | bool


#: In a round.
IN_ROUND = Stage(False, False)


class AbstractAlgorithm(Extensible):
    """A method of optimization: `init` makes a state, `ask` draws queries, and `tell` takes values.

    Values are maximized, and a value that is not finite is a failed evaluation. A failure changes
    where the agent looks, and nothing that is believed of the objective.

    An algorithm holds the configuration and never changes. Its numbers are array leaves, so a sweep
    over them is a single vmapped program. A subclass has a field `domain`, the space to search, and
    the abstract methods.

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> method = jaxbo.RandomSearch(jaxbo.Cube(2), agents=3)
        >>> state = method.init(jr.key(0))
        >>> queries, info = method.ask(jr.key(1), state)
        >>> state = method.tell(state, queries, -queries.sum(axis=1))
        >>> queries.shape, int(method.round(state))
        ((3, 2), 1)
    """

    domain: eqx.AbstractVar[AbstractDomain]

    # ------------------------------------------------------------ what is true of a method

    @property
    @abc.abstractmethod
    def targets(self) -> int:
        """Returns how many query in each round: the first so many agents, or all workers."""

    @property
    def clients(self) -> int:
        """Returns how many have a state of their own, which a layout divides: 1 if workers share a
        model.
        """
        return 1

    @property
    def one_objective(self) -> bool:
        """Says whether several targets are workers who evaluate the same objective."""
        return self.clients < self.targets

    @property
    def capacity(self) -> int | None:
        """Returns the most observations that an agent can hold, None if there is no limit."""
        return None

    def room_for(self, observations: int | Count) -> int | Count:
        """Converts a number of observations of an agent to the capacity of a surrogate.

        Args:
            observations: Number of observations of an agent.

        Returns:
            The capacity that holds so many.
        """
        return observations

    @property
    def invariant(self) -> bool:
        """Says whether a constant added to all values of an agent changes no query.

        If so, `drive` tells values less the first value. Methods that standardize values should say
        so.
        """
        return False

    @property
    def initial_capacity(self) -> int | None:
        """Returns the most observations before the first round, None if they have no limit of their
        own.
        """
        return None

    @property
    def least_initial(self) -> int:
        """Returns the fewest observations of an agent before the first round.

        With fewer, a first release is charged, and is noise alone. So a run with a ledger warns. It is
        for private methods: `DPFTSDE` and `DPLearnedPrior`.
        """
        return 0

    def initial(self, key: Key, agent: Count) -> Point:
        """Draws a point of an agent's initial design.

        It is uniform in the domain, unless a method says otherwise.

        Args:
            key: Random key.
            agent: The number of the agent, from 0 on.

        Returns:
            The point.
        """
        del agent
        return self.domain.sample(key, 1)[0]

    def released(self, round: int) -> Mechanism | None:
        """Says which private release `ask` makes in a round, for which a ledger charges.

        Args:
            round: The number of the round, from 0 on.

        Returns:
            The mechanism of the release; None without a release.
        """
        del round
        return None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns the numbers with bounds that an evaluation observes beside the value: a field of few
        methods.
        """
        return ()

    @property
    def learns(self) -> bool:
        """Says whether observations change later queries."""
        return True

    @property
    def remembers(self) -> bool:
        """Says whether `tell` needs the `info` that `ask` returned in the same round."""
        return False

    @property
    def random(self) -> bool:
        """Says whether two queries from the same state differ from key to key, ties apart."""
        return True

    # ------------------------------------------------------------ the protocol

    @abc.abstractmethod
    def init(self, key: Key, *, each: Each = jax.vmap) -> PyTree:
        """Makes the state before any observation.

        Args:
            key: Random key.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The state.
        """

    @abc.abstractmethod
    def round(self, state: PyTree) -> Count:
        """Counts the rounds that a state was told.

        Args:
            state: The state of this method.

        Returns:
            The number of rounds.
        """

    @abc.abstractmethod
    def told(self, state: PyTree) -> Count:
        """Counts the observations of an agent that a state may hold.

        Args:
            state: The state of this method.

        Returns:
            The number of observations.
        """

    @abc.abstractmethod
    def ask(
        self,
        key: Key,
        state: PyTree,
        present: Bool[Array, " agents"] | None = None,
        *,
        each: Each = jax.vmap,
    ) -> tuple[Float[Array, "targets dim"], PyTree]:
        """Draws the next query of each target, and changes nothing.

        Args:
            key: Random key.
            state: The state of this method.
            present: Whether each agent's message arrives. None: all do.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The queries, and information about them.

        Raises:
            ValueError: The method's workers send no messages, or `present` has another shape.
        """

    @abc.abstractmethod
    def tell(
        self,
        state: PyTree,
        queries: Float[Array, "targets dim"],
        values: Float[Array, "targets ..."],
        stage: Stage = IN_ROUND,
        info: PyTree = None,
        *,
        each: Each = jax.vmap,
    ) -> PyTree:
        """Updates the state by a row of observations, by default the observations of a round; it draws
        nothing.

        Args:
            state: The state of this method.
            queries: The points that were evaluated.
            values: The values there, in JAX's precision. If the state has an `origin`, `run` and
                `drive` subtract it from the objective's values, in float64, before float32 cuts
                them. A caller who tells by hand must do so too. With `outcomes` there is a column
                more for each: `Outcome.slack` of the observed number.
            stage: Whether the row was made before the first round. Default: in a round.
            info: The information that `ask` returned with the queries, for methods that `remember`.
                None: nothing is remembered.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The new state.

        Raises:
            ValueError: The arrays have another shape.
        """

    def predict(
        self, state: PyTree, x: Float[Array, "targets dim"]
    ) -> tuple[Float[Array, " targets"], Float[Array, " targets"]]:
        """Predicts each target's objective at a point of its own, by its model, without noise.

        Args:
            state: The state of this method.
            x: A point for each target.

        Returns:
            Means and variances, in units of the values, less the state's `origin` if it has any.

        Raises:
            ValueError: The method has no such model.
        """
        raise ValueError(
            f"{type(self).__name__} has no model of an agent's objective by itself: take TS, EGP, "
            "DECHBO, EXP3BO, FTS, DPFTSDE, LearnedPrior, DPLearnedPrior, RGPE or TAF."
        )

    def feasible(self, state: PyTree, x: Float[Array, "targets dim"]) -> Bool[Array, " targets"]:
        """Says whether each target's outcomes are all expected to meet their bounds.

        Args:
            state: The state of this method.
            x: A point for each target.

        Returns:
            A truth value for each target.
        """
        del state
        return jnp.ones(x.shape[:1], bool)

    def known(self, given: Any) -> KnownRows:
        """Reads results from outside, in whatever form they come (`algos.base.known`).

        Args:
            given: The results: points and values, dictionaries, or a table.

        Returns:
            The results in rows, checked.

        Raises:
            ValueError: The method learns nothing from results, or a result has no such form.
        """
        require(
            self.learns,
            f"{type(self).__name__} learns nothing from what is known: give another method, or none.",
        )
        return self._read(given)

    def warm_start(
        self,
        state: PyTree,
        queries: Float[Array, "points agents dim"] | Any,
        values: Float[Array, "points agents"] | Any = None,
        *,
        each: Each = jax.vmap,
    ) -> PyTree:
        """Tells observations that were made before the first round, row by row.

        For float64 values of the host, `jaxbo.replay` subtracts the origin: give it a `Trace` that
        is all `initial`.

        Args:
            state: The state of this method, before the first round.
            queries: The points, of the targets alone or of all agents, as an array or lists. An
                agent with fewer points than others has NaN in their place. All that `drive` takes
                as `known` will do too, in the place of both arguments.
            values: The values there, as in `tell`. NaN at a point that is not NaN is a failed
                evaluation. With `outcomes` they are a dictionary, {"value": ..., "latency": ...}.
                None: `queries` has them.
            each: The map of an agent's function to a function of all agents. Default: `jax.vmap`.

        Returns:
            The state after the observations.

        Raises:
            ValueError: A point is outside of the domain, or there are more observations than there
                is room for.
        """
        check_state(self, state)
        try:
            queries, values, observed = self._as_arrays(queries, values)
        except jax.errors.JAXTypeError:  # of what is traced
            raise
        except ValueError as error:
            raise ValueError(f"queries and values: {error}") from error
        require(
            values.ndim == 2 and queries.shape == (*values.shape, self.domain.dim),
            f"expected queries of shape (points, agents, {self.domain.dim}) and values of (points, "
            f"agents), got {queries.shape} and {values.shape}.",
        )
        require(
            self.round(state) == 0,
            "warm_start is for observations made before the first round is told.",
        )
        self.check_start(state, values)
        queries = self._inside(queries)

        values = columns(self.outcomes, values, observed)

        def step(state: PyTree, row: tuple[Array, Array, Flag]) -> tuple[PyTree, None]:
            queries, values, last = row
            return self.tell(state, queries, values, Stage(True, last), each=each), None

        last = jnp.arange(len(values)) == len(values) - 1
        return jax.lax.scan(step, state, (queries, values, last))[0]

    def _as_arrays(self, queries: Any, values: Any) -> tuple[Array, Array, dict[str, Any]]:
        """All as arrays with an axis of agents; outcomes by name, on the host if they are there."""
        names = names_of(self.outcomes)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((queries, values))):
            queries = jnp.asarray(queries, float)
            numbers = [jnp.asarray(column, float) for column in columns_of(values, names)]
        elif values is None or not is_numeric(queries):
            found = self._read(queries if values is None else (queries, values))
            queries, numbers = found.queries, [found.values, *found.outcomes.values()]
        else:
            numbers = numbers_of(columns_of(values, names), names)
        shape = of_one(queries, numbers[0], self.domain.dim) if self.clients == 1 else None
        if queries.ndim == 2 and shape is not None:
            queries, numbers = queries.reshape(shape), [n.reshape(shape[:-1]) for n in numbers]
        values, *rest = numbers
        return on_device(queries), on_device(values), dict(zip(names[1:], rest, strict=True))

    def _read(self, given: Any) -> KnownRows:
        targets, names = min(self.targets, self.clients), [o.name for o in self.outcomes]
        return read(given, self.domain, self.clients, targets, names)

    def _inside(self, queries: Float[Array, "points agents dim"]) -> Array:
        """`ValueError` for a point outside of the domain; a point that is NaN is no point."""
        if isinstance(queries, jax.core.Tracer):
            return queries
        x = np.asarray(queries).reshape(-1, self.domain.dim)
        found = inside(x, np.asarray(~np.isnan(x).all(axis=1)), self.domain)
        return (
            queries
            if np.array_equal(found, x, equal_nan=True)
            else on_device(found.reshape(queries.shape))
        )

    def check_start(self, state: PyTree, values: Float[Array, "points agents"]) -> None:
        """Checks that there is room for observations before the first round.

        Args:
            state: The state of this method.
            values: The values of the observations.

        Raises:
            ValueError: There is no room for so many.
        """
        del state, values
