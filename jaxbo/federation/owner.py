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
from jaxbo._keys import fresh
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
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.domains.space import Space
from jaxbo.federation import _sides
from jaxbo.federation._spending import Spending, check_spending
from jaxbo.federation._stages import KEYS, OPEN, OwnPart, check_secure, said
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
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs import _archive
from jaxbo.runs._evaluate import (
    BadValueError,
    BlackBox,
    NotFiniteError,
    check_catch,
    finite_number,
    survives,
)
from jaxbo.runs._identity import Identity, check_same, identity
from jaxbo.runs._lock import Hold
from jaxbo.runs._objective import called, check_python
from jaxbo.runs.compiled import check_queries
from jaxbo.types import Key

log = logging.getLogger(__name__)


class OwnerError(RuntimeError):
    """An owner's own trouble. Its text may travel. Its cause is for the owner's log alone.

    Example:
        >>> import jaxbo.federation
        >>> issubclass(jaxbo.federation.OwnerError, RuntimeError)
        True
    """


class Observations(eqx.Module):
    """The evaluations of an owner, in order.

    Args:
        rounds: The round of each evaluation, -1 for the initial design.
        queries: The points.
        values: The values, NaN for failed evaluations.

    Example:
        >>> import jaxbo.federation, numpy as np
        >>> known = jaxbo.federation.Observations.none(dim=2)
        >>> known.and_also(0, np.zeros(2), 1.5).values.tolist()
        [1.5]
    """

    rounds: Int[np.ndarray, " evaluations"]
    queries: Float[np.ndarray, "evaluations dim"]
    values: Float[np.ndarray, " evaluations"]

    @classmethod
    def none(cls, dim: int) -> "Observations":
        """No observations.

        Args:
            dim: Number of coordinates of a point.

        Returns:
            The empty record.
        """
        return cls(np.zeros(0, int), np.zeros((0, dim)), np.zeros(0))

    def and_also(self, round: int, x: Float[np.ndarray, " dim"], value: float) -> "Observations":
        """The observations and one more.

        Args:
            round: The round of the evaluation.
            x: The point.
            value: The value.

        Returns:
            The longer record.
        """
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
    """Reads the observations in an owner's file.

    Args:
        path: The file, in the owner's folder.

    Returns:
        The observations.

    Raises:
        ValueError: `path` is no path. For a file of another kind it is a `CheckpointError`.

    Example:
        >>> import glob, tempfile, jax, jaxbo.federation
        >>> method, key = jaxbo.RandomSearch(jaxbo.Cube(1), 1), jax.random.key(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     server = jaxbo.federation.Coordinator(method, 1, key, f"{folder}/s.npz", initial=2)
        ...     owner = jaxbo.federation.Owner(method, lambda x: 1.0, 0, folder)
        ...     name = owner.answer(server.request()).federation
        ...     jaxbo.federation.observations(f"{folder}/{name}.npz").values.tolist()
        [1.0, 1.0]
    """
    require(isinstance(path, str | PathLike), f"path must be that of a file, got {shown(path)}.")
    return _OwnerMemory.load(Path(path)).known


def check_owners(
    algorithm: AbstractFederated,
    objective: BlackBox,
    key: Key | None,
    catch: type[Exception] | tuple[type[Exception], ...],
    secure: SecureSum | None = None,
) -> None:
    """`ValueError` for a method that no owner can be made of."""
    check(algorithm)
    check_secure(algorithm, secure)
    check_key(jr.key(0) if key is None else key)
    check_python(objective)
    check_catch(catch)


class Owner:
    """An agent of a federation.

    For each federation there will be a file in `folder`, readable by the owner alone (`observations`
    reads it). The log says of each failed evaluation, and says once if float32 cuts the values. If the
    owner is asked for two rounds at the same time, by whatever processes, it does one after the other.

    Args:
        algorithm: The method, the same as the server's.
        objective: `f(x)` or `f(agent, x)`, as for `drive`.
        agent: Number of the agent, from 0.
        folder: The folder for the owner's files.
        key: The key of the `Coordinator`, for simulations. The owner's queries are then the queries of
            `run`, if there is no ledger. Default: draws come from random numbers of its machine that
            nobody else knows.
        catch: Types of exceptions that are failed evaluations, logged and survived.
        secure: The settings of secure sums, the same as the server's. The owner then sends no message
            but through them. Default: the server sees each message.
        ledger: The privacy loss that the owner's data may have in all federations together, and what it
            had before, for a private method. The file `data.released` in `folder` has the charges: each
            release that a message may be part of is charged before the message leaves. So give all
            federations with the same data this folder. Default: nobody counts, and nothing is refused.

    Raises:
        ValueError: The algorithm does not have that agent, its messages cannot be summed up behind
            masks, there is no such folder, there is a ledger for a method without private releases, or
            there is none for a folder with charges.

    Example:
        >>> import tempfile, jax, jaxbo.federation
        >>> method, key = jaxbo.RandomSearch(jaxbo.Cube(1), 1), jax.random.key(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     server = jaxbo.federation.Coordinator(method, 1, key, f"{folder}/server.npz")
        ...     owner = jaxbo.federation.Owner(method, lambda x: float(x[0]), 0, folder)
        ...     server.hear(owner.answer(server.request()))
        ...     server.close().tolist()
        [True]
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
        secure: SecureSum | None = None,
        ledger: Ledger | None = None,
    ):
        check_owners(algorithm, objective, key, catch, secure)
        check_spending(algorithm, ledger)
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
        self.folder, self.key, self.catch, self.secure = found, key, catch, secure
        self.spending = Spending(found, ledger)

    def answer(self, request: Request) -> Reply:
        """Does the request unless it has been done, and returns the message that follows.

        Args:
            request: The server's request.

        Returns:
            The reply.

        Raises:
            RefusedError: The request is of another version of jaxbo, of another algorithm, of other
                settings of secure sums, for a round before the owner's own, or for a message that would
                exceed the budget of the owner's ledger. Nothing is done.
            CheckpointError: The owner's file is damaged, or was made with other arguments.
            OwnerError: The objective raises something else than `catch`, or returns no number.
        """
        if not isinstance(request, Request):
            raise RefusedError(f"expected a request, got {type(request).__name__}.")
        self._check(request)
        if request.algorithm != digest(self.algorithm):
            raise RefusedError("the server runs another algorithm than this owner.")
        path = _archive.located(self.folder / f"{request.federation}.npz")
        with Hold(path).waited_for():
            memory = self._memory(path, request)
            if request.stage != KEYS and memory.round != request.round:
                raise RefusedError(f"this owner has not done round {request.round}.")
            visit = _Visit(self, request, memory)
            if request.stage == KEYS:
                self._afford(request)
                visit.begin(request.initial)
                visit.observe(request)
            message = self._message(visit, request)
        named = request.federation, request.algorithm, request.round, self.agent
        return Reply(*named, message, request.stage)

    def _message(self, visit: "_Visit", request: Request) -> Packed:
        """The message of the next round; with secure sums what hides it."""
        if self.secure is None:
            return pack(visit.message(request.round + 1))
        assert isinstance(self.algorithm, AbstractPrivate)
        path = self.folder / f"{request.federation}.sum"
        own = OwnPart(path, self.secure, self.algorithm, self.agent)
        if request.stage == KEYS:
            return own.keys(request)
        return own.answer(request, lambda: self._part(visit, request))

    def _afford(self, request: Request) -> None:
        """Charges for the message before anything is evaluated. In a secure sum it is charged later."""
        pay = self.spending.charge if self.secure is None else self.spending.check
        pay(*self._cost(request))

    def _part(self, visit: "_Visit", request: Request) -> np.ndarray:
        """The owner's part of a sum. It is charged here, when it is certain that it will be sent."""
        self.spending.charge(*self._cost(request))
        return visit.part(request.round + 1)

    def _cost(self, request: Request) -> tuple[str, int, Mechanism | None]:
        """The release that the message of a request may be part of, in a round of a federation."""
        round = request.round + 1
        return request.federation, round, self.algorithm.released(round)

    def _check(self, request: Request) -> None:
        """`RefusedError` for a request that no server of this algorithm makes."""
        check_fields(request)
        if request.version != __version__:
            raise RefusedError(
                f"the server runs jaxbo {request.version[:40]}, this owner {__version__}: both need the "
                "same version."
            )
        if request.secure != (mine := said(self.secure)):
            raise RefusedError(
                f"the server's settings of secure sums are {request.secure[:60]}, this owner's {mine}: "
                "both need the same."
            )
        if request.stage not in range(KEYS, (KEYS if self.secure is None else OPEN) + 1):
            raise RefusedError(f"there is no stage {request.stage} in a round.")
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
        invites = request.round == BEFORE_FIRST_ROUND or request.stage != KEYS
        if (request.broadcast is None) != invites:
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
        """This owner's part of the federation. Raises for a part that does not fit the request."""
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
    """An owner's file: its random words, its last round, its client, its evaluations."""

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
    """The work of an owner on a request. Every evaluation is saved with its consequences."""

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
        """The message of a round."""
        key = self._own(self._ask_keys(round).message)
        return _sides.message(self.algorithm, key, self.shared, self.client)

    def part(self, round: int) -> np.ndarray:
        """What the owner adds to a secure sum. It draws itself, and tells nobody."""
        algorithm = self.algorithm
        assert isinstance(algorithm, AbstractPrivate)
        known = jnp.asarray(round), jnp.asarray(self.owner.agent), self.message(round)
        part = np.asarray(_sides.part(algorithm, fresh(jr.key(0)), *known))
        (drawn,) = np.asarray(algorithm.mechanism.sampling.draw(fresh(jr.key(0)), agents=1))
        return part if drawn else np.zeros_like(part)

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
            return finite_number(called(self.owner.objective, self.owner.agent, argument))
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

    def _own(self, key: Key) -> Key:
        """This agent's of a key that stands for all."""
        return agent_key(key, self.owner.agent)

    def _ask_keys(self, round: int) -> AskKeys:
        return ask_keys(round_keys(self.keys, jnp.asarray(round)).ask)


def _data(key: Key) -> np.ndarray:
    return np.asarray(jr.key_data(key))


def _key(data: np.ndarray) -> Key:
    return jr.wrap_key_data(jnp.asarray(data))
