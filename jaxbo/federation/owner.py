"""An owner: its objective and its data, its state in a file, and its answers."""

import dataclasses
import logging
import re
import secrets
from os import PathLike
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxbo._check import require, shown, whole
from jaxbo._version import __version__
from jaxbo.algos.base import _origin
from jaxbo.algos.base._room import larger
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
from jaxbo.domains.space import Space
from jaxbo.federation import _sides
from jaxbo.federation.wire import (
    FORMAT,
    Packed,
    RefusedError,
    Reply,
    Request,
    check,
    check_fields,
    check_key,
    digest,
    pack,
    unpack,
)
from jaxbo.runs import _archive
from jaxbo.runs._evaluate import BadValueError, BlackBox, NotFiniteError, check_catch, finite_number
from jaxbo.runs._identity import Identity, check_same, identity
from jaxbo.runs._lock import Hold
from jaxbo.runs._objective import called, check_python
from jaxbo.runs.compiled import check_queries
from jaxbo.types import Key

log = logging.getLogger(__name__)


class OwnerError(RuntimeError):
    """An owner's own trouble. Its text may travel: what it comes from is for the owner's log alone."""


class Observations(eqx.Module):
    """The evaluations of an owner, in order. Evaluations of the initial design have the round -1.

    Values are NaN where an evaluation failed.
    """

    rounds: Int[np.ndarray, " evaluations"]
    queries: Float[np.ndarray, "evaluations dim"]
    values: Float[np.ndarray, " evaluations"]

    @classmethod
    def none(cls, dim: int) -> "Observations":
        return cls(np.zeros(0, int), np.zeros((0, dim)), np.zeros(0))

    def and_also(self, round: int, x: Float[np.ndarray, " dim"], value: float) -> "Observations":
        """These and one more."""
        return Observations(
            np.append(self.rounds, round),
            np.concatenate([self.queries, x[None]]),
            np.append(self.values, value),
        )


#: What a file is of.
KIND = "an owner"
#: The names of its arrays in the file.
KNOWN = tuple(Observations.__annotations__)
#: What names of arrays begin with that the owner remembers of the last broadcast.
KEPT = "remembered"


def observations(path: str | PathLike) -> Observations:
    """Those in an owner's file. `CheckpointError` for another file."""
    require(isinstance(path, str | PathLike), f"path must be that of a file, got {shown(path)}.")
    return _OwnerMemory.load(Path(path)).known


def check_owners(
    algorithm: AbstractFederated,
    objective: BlackBox,
    key: Key | None,
    catch: type[Exception] | tuple[type[Exception], ...],
) -> None:
    """`ValueError` for what no owner can be made of."""
    check(algorithm)
    check_key(jr.key(0) if key is None else key)
    check_python(objective)
    check_catch(catch)


class Owner:
    """Agent number `agent` of a federation.

    `objective(agent, x)`, or `objective(x)`, is that of `drive`. An exception of the types `catch` is
    a failed evaluation, logged and survived. The log also says once if float32 cuts the values. For
    each federation there will be a file in `folder`, readable by the owner alone (`observations` reads
    it). What the owner draws comes from random numbers of its machine's that nobody else knows; with
    `key`, the
    `Coordinator`'s, from that: its queries are those of `run`, if there is no ledger.

    If it is asked for two rounds at the same time, by whatever processes, it does one after the other.
    `ValueError` for an agent that the algorithm does not have, or no such folder.
    """

    def __init__(
        self,
        algorithm: AbstractFederated,
        objective: BlackBox,
        agent: int,
        folder: str | PathLike,
        *,
        key: Key | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    ):
        check_owners(algorithm, objective, key, catch)
        whole("agent", agent)
        require(
            agent < algorithm.agents,
            f"agent must be one of {algorithm.agents}, counted from 0; got {agent}.",
        )
        require(
            isinstance(folder, str | PathLike),
            f"folder must be the path of a folder, got {shown(folder)}.",
        )
        found = Path(folder).resolve()  # an objective may change the current folder
        require(found.is_dir(), f"the owner's folder {found} does not exist.")
        self.algorithm, self.objective, self.agent = algorithm, objective, int(agent)
        self.folder, self.key, self.catch = found, key, catch

    def answer(self, request: Request) -> Reply:
        """Does what is asked unless it has been done, and returns the message that follows.

        `RefusedError`, and nothing done, for a request of another version of jaxbo, of another algorithm,
        or for a round before the owner's own; `CheckpointError` for a file that is damaged or was made
        with other arguments; `OwnerError` where the objective raises something else than `catch` or
        returns no number.
        """
        if not isinstance(request, Request):
            raise RefusedError(f"expected a request, got {type(request).__name__}.")
        self._check(request)
        if request.algorithm != digest(self.algorithm):
            raise RefusedError("the server runs another algorithm than this owner.")
        path = _archive.located(self.folder / f"{request.federation}.npz")
        with Hold(path).waited_for():
            visit = _Visit(self, request, self._memory(path, request))
            visit.begin(request.initial)
            visit.observe(request)
            message = pack(visit.message(request.round + 1))
        return Reply(request.federation, request.algorithm, request.round, self.agent, message)

    def _check(self, request: Request) -> None:
        """`RefusedError` for what no server of this algorithm asks."""
        check_fields(request)
        if request.version != __version__:
            raise RefusedError(
                f"the server runs jaxbo {request.version[:40]}, this owner {__version__}: both need the "
                "same version."
            )
        if type(request.setup) is not np.ndarray:
            raise RefusedError("the server's setup is no key.")
        if not re.fullmatch(r"[0-9a-f]{8,64}", request.federation):
            raise RefusedError("the server's name of the federation is none.")
        like = _data(jr.key(0))
        if (request.setup.shape, request.setup.dtype) != (like.shape, like.dtype):
            raise RefusedError("the server's setup is no key.")
        mine = None if self.key is None else init_keys(run_keys(self.key).init).setup
        if mine is not None and (_data(mine) != request.setup).any():
            raise RefusedError("the server has another key than this owner.")
        if (request.broadcast is None) != (request.round == BEFORE_FIRST_ROUND):
            raise RefusedError("an invitation has no broadcast, and a round has one.")
        rows, most = request.initial + request.round + 1, self.algorithm.capacity
        room = self.algorithm.initial_capacity
        if not (
            BEFORE_FIRST_ROUND <= request.round < 2**31 - 1
            and request.initial >= 0
            and rows <= (2**31 - 1 if most is None else most)
            and (room is None or request.initial <= room)
        ):
            raise RefusedError(
                "the server asks for more evaluations than the algorithm has room for: "
                f"{larger(self.algorithm, rows)}."
            )

    def _memory(self, path: Path, request: Request) -> "_OwnerMemory":
        """What this owner has of the federation. Raises for what does not fit the request."""
        mine = identity(
            agent=self.agent,
            algorithm=request.algorithm,
            setup=request.setup,
            initial=request.initial,
        )
        if not path.exists():
            secret = np.frombuffer(secrets.token_bytes(request.setup.nbytes), np.uint32)
            if self.key is not None:
                secret = _data(self.key)
            return _OwnerMemory(path, mine, secret, Observations.none(self.algorithm.domain.dim))
        memory = _OwnerMemory.load(path)
        if self.key is not None:
            mine |= identity(key=_data(self.key))
        check_same(path, mine, memory.identity | identity(key=memory.secret))
        if memory.round > request.round:
            raise RefusedError(
                f"this owner has done round {memory.round}, the server asks for {request.round}: its "
                "checkpoint is an old one."
            )
        return memory


@dataclasses.dataclass
class _OwnerMemory:
    """An owner's file: its random words, the last round it did, its client, what it has evaluated."""

    path: Path
    identity: Identity
    secret: np.ndarray
    known: Observations
    round: int = BEFORE_FIRST_ROUND
    settled: bool = False
    client: Packed | None = None
    remembered: Packed = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "_OwnerMemory":
        manifest, arrays = _archive.read(path)
        _archive.check_format(path, manifest, KIND, FORMAT)
        try:
            secret, *known = (arrays.pop(name) for name in ("secret", *KNOWN))
            round, settled = int(manifest["round"]), bool(manifest["settled"])
            identity = dict(manifest["identity"])
            kept = {name for name in arrays if name.startswith(KEPT)}
            remembered = {name.removeprefix(KEPT): arrays.pop(name) for name in kept}
            rest = round, settled, arrays, remembered
            return cls(path, identity, secret, Observations(*known), *rest)
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(path, error) from error

    def save(self, client: PyTree) -> None:
        """With the client and its past."""
        self.client = pack(client)
        manifest = {"kind": KIND, "format": FORMAT, "identity": self.identity}
        manifest |= {"round": self.round, "settled": self.settled}
        known = {name: getattr(self.known, name) for name in KNOWN}
        kept = {KEPT + name: array for name, array in self.remembered.items()}
        _archive.write(self.path, manifest, {**self.client, **kept, **known, "secret": self.secret})


class _Visit:
    """What an owner does with one request. Every evaluation is saved with what follows from it."""

    def __init__(self, owner: Owner, request: Request, memory: _OwnerMemory):
        self.owner, self.algorithm, self.memory = owner, owner.algorithm, memory
        self.keys = run_keys(_key(memory.secret))
        self.shared = _sides.setup(self.algorithm, _key(request.setup))
        self.broadcast = None
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
        """What is sent for a round."""
        key = self._own(self._ask_keys(round).message)
        return _sides.message(self.algorithm, key, self.shared, self.client)

    def _evaluate(self, round: int, x: Array) -> None:
        check_queries(self.algorithm, x[None])
        value = self._value(np.asarray(x))
        self.memory.known = self.memory.known.and_also(round, np.asarray(x), value)
        self._warn_if_cut()
        self._observe(round, x, value)
        self.memory.round = round
        self.memory.save((self.client, self.past))

    def _observe(self, round: int, x: Array | np.ndarray, value: float) -> None:
        """Tells the client what `drive` would tell it of a value."""
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
            return finite_number(called(self.owner.objective, self.owner.agent, argument))
        except NotFiniteError as error:
            log.warning("the evaluation of %s failed: %s", argument, error)
            return np.nan
        except BadValueError as error:
            raise OwnerError(
                "the objective returned no number; its owner's log says what."
            ) from error
        except self.owner.catch:
            log.exception("the evaluation of %s failed", argument)
            return np.nan
        except Exception as error:
            raise OwnerError(
                "the objective raised an error; its owner's log says which."
            ) from error

    def _own(self, key: Key) -> Key:
        """This agent's of a key that stands for all."""
        return agent_key(key, self.owner.agent)

    def _ask_keys(self, round: int) -> AskKeys:
        return ask_keys(round_keys(self.keys, jnp.asarray(round)).ask)


def _data(key: Key) -> np.ndarray:
    return np.asarray(jr.key_data(key))


def _key(data: np.ndarray) -> Key:
    return jr.wrap_key_data(jnp.asarray(data))
