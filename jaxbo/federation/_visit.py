"""The work of an owner on a request."""

import logging
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from jaxbo._keys import fresh
from jaxbo.algos.base import _origin, _secure
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND, AbstractFederated
from jaxbo.algos.base.keys import (
    AskKeys,
    agent_key,
    ask_keys,
    design_keys,
    init_keys,
    round_keys,
    run_keys,
)
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.domains.space import Space
from jaxbo.federation import _sides
from jaxbo.federation._owner_memory import OwnerMemory
from jaxbo.federation.wire import RefusedError, Request, pack, unpack
from jaxbo.runs._begun import Begun
from jaxbo.runs._evaluate import BadValueError, BlackBox, NotFiniteError, finite_number, survives
from jaxbo.runs._objective import called
from jaxbo.runs.compiled import check_queries
from jaxbo.types import Key

log = logging.getLogger("jaxbo.federation.owner")


class OwnerError(RuntimeError):
    """An owner's own trouble. Its text may travel. Its cause is for the owner's log alone.

    Example:
        >>> import jaxbo.federation
        >>> issubclass(jaxbo.federation.OwnerError, RuntimeError)
        True
    """


@runtime_checkable
class _Asked(Protocol):
    """The parts of an owner that a visit needs."""

    algorithm: AbstractFederated
    objective: BlackBox
    agent: int
    catch: type[Exception] | tuple[type[Exception], ...]
    common: _sides.Common


class Visit:
    """The work of an owner on a request. Every evaluation is saved with its consequences."""

    def __init__(self, owner: _Asked, request: Request, memory: OwnerMemory):
        self.owner, self.algorithm, self.memory = owner, owner.algorithm, memory
        self.keys = run_keys(_key(memory.secret))
        self.shared = owner.common.of(request.setup)
        self.broadcast, self.begun = None, Begun(memory.path)
        like, remembered = _sides.broadcast_shapes(self.algorithm, self.shared)
        known = _sides.known_shapes(self.algorithm, self.shared)
        if request.broadcast is not None:  # refused before anything is evaluated
            self.broadcast = unpack(request.broadcast, like)
        if memory.remembered:
            self._revise(unpack(memory.remembered, remembered))
        try:
            self.client, self.past = unpack(memory.client or {}, known)
        except RefusedError:  # a model with room for more has other arrays
            key, agent = self._own(init_keys(self.keys.init).join), jnp.asarray(owner.agent)
            self.client, self.past = _sides.join(self.algorithm, key, self.shared, agent)
            self._remember()

    def _remember(self) -> None:
        """Tells the client all that was evaluated."""
        known = self.memory.known
        early = known.rounds == BEFORE_FIRST_ROUND
        for row in np.flatnonzero(early):
            self._observe_row(row)
        if self.memory.settled:
            self._settle()
        for row in np.flatnonzero(~early):
            self._observe_row(row)

    def _observe_row(self, row: int | np.integer) -> None:
        known = self.memory.known
        self._observe(int(known.rounds[row]), known.queries[row], float(known.values[row]))

    def begin(self, initial: int) -> None:
        """The initial design, as far as it has not been evaluated."""
        agent = jnp.asarray(self.owner.agent)
        while (done := self.memory.known.values.size) < initial:
            key = self._own(design_keys(self.keys, jnp.asarray(done)).points)
            x = _sides.initial(self.algorithm, key, agent)
            self._evaluate(BEFORE_FIRST_ROUND, x)
        if not self.memory.settled:
            self._settle()
            self.memory.settled = True
            self.memory.save((self.client, self.past))

    def _settle(self) -> None:
        self.client = _sides.settle(self.algorithm, self.shared, self.client)

    def observe(self, request: Request) -> None:
        """The query of the request's round, unless it has been evaluated."""
        if self.broadcast is None or self.memory.round == request.round:
            return
        key = self._own(self._ask_keys(request.round).choice)
        known, message = (self.client, self.past), self.message(request.round)
        x, _ = _sides.choose(self.algorithm, key, self.shared, known, message, self.broadcast)
        remembered = self.algorithm.remembered(self.broadcast)
        self.memory.remembered = pack(remembered)
        self._evaluate(request.round, x)
        self._revise(remembered)

    def _revise(self, remembered: PyTree) -> None:
        if self.algorithm.remembers:
            self.shared = _sides.revised(self.algorithm, self.shared, remembered)

    def message(self, round: int) -> PyTree:
        """The message of a round."""
        key = self._own(self._ask_keys(round).message)
        return _sides.message(self.algorithm, key, self.shared, self.client)

    def keyed(self, round: int) -> None:
        """Remembers that keys of a secure sum have been made for a round."""
        if self.memory.keyed != round:
            self.memory.keyed = round
            self.memory.save((self.client, self.past))

    def part(self, round: int) -> np.ndarray:
        """What the owner adds to a secure sum. It draws itself, and tells nobody."""
        algorithm = self.algorithm
        assert isinstance(algorithm, AbstractPrivate)
        known = jnp.asarray(round), jnp.asarray(self.owner.agent), self.message(round)
        part = np.asarray(_sides.part(algorithm, fresh(jr.key(0)), *known))
        return part if _secure.drawn(algorithm, fresh(jr.key(0))) else np.zeros_like(part)

    def _evaluate(self, round: int, x: Array) -> None:
        check_queries(self.algorithm, x[None])
        value = self._value(np.asarray(x))
        self.memory.known = self.memory.known.and_also(round, np.asarray(x), value)
        self._warn_if_cut()
        self._observe(round, x, value)
        self.memory.round = round
        self.memory.save((self.client, self.past))

    def _observe(self, round: int, x: Array | np.ndarray, value: float) -> None:
        """Tells the client of a value as `drive` would."""
        told = _origin.difference(np.float64(value), self._offset())
        known = self.client, self.past
        row = jnp.asarray(round), known, jnp.asarray(x, float), told
        self.client, self.past = _sides.observe(self.algorithm, self.shared, *row)

    def _offset(self) -> np.ndarray:
        """The number that is subtracted from all values."""
        if not self.algorithm.invariant:
            return np.zeros(())
        return _origin.first(self.memory.known.values)

    def _warn_if_cut(self) -> None:
        """The log says once if the model misses something of the values."""
        known, origin = self.memory.known.values, self._offset()
        before, now = (_origin.cut(v[:, None], origin) for v in (known[:-1], known))
        if now is not None and before is None:
            log.warning("%s", now)

    def _value(self, x: np.ndarray) -> float:
        domain = self.algorithm.domain
        argument = domain.decode(x) if isinstance(domain, Space) else x
        try:
            return finite_number(self.begun(self._called, self.owner.agent, argument))
        except NotFiniteError as error:
            log.warning("the evaluation of %s failed: %s", argument, error)
            return np.nan
        except BadValueError as error:
            raise OwnerError(
                "the objective returned no number; its owner's log says what."
            ) from error
        except (Exception, SystemExit) as error:  # of `sys.exit`, as in `drive`
            if survives(error, self.owner.catch):
                log.exception("the evaluation of %s failed", argument)
                return np.nan
            raise OwnerError(
                "the objective raised an error; its owner's log says which."
            ) from error

    def _called(self, agent: int, argument: Any) -> Any:
        return called(self.owner.objective, agent, argument)

    def _own(self, key: Key) -> Key:
        """This agent's of a key that stands for all."""
        return agent_key(key, self.owner.agent)

    def _ask_keys(self, round: int) -> AskKeys:
        return ask_keys(round_keys(self.keys, jnp.asarray(round)).ask)


def _key(data: np.ndarray) -> Key:
    return jr.wrap_key_data(jnp.asarray(data))
