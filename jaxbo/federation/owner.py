"""An owner: its objective and its data, and its answers. Its file is in `_owner_memory`."""

import re
import secrets
from os import PathLike
from pathlib import Path

import jax.random as jr
import numpy as np

from jaxbo._check import require, shown
from jaxbo._version import __version__
from jaxbo.algos.base._room import larger
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND, AbstractFederated
from jaxbo.algos.base.keys import init_keys, run_keys
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.federation import _sides
from jaxbo.federation._directory import Directory
from jaxbo.federation._extra import identities
from jaxbo.federation._owner_memory import Observations, OwnerMemory
from jaxbo.federation._spending import Spending, check_spending
from jaxbo.federation._stages import KEYS, OPEN, OwnPart, check_secure, said
from jaxbo.federation._visit import Visit
from jaxbo.federation.wire import (
    Packed,
    RefusedError,
    Reply,
    Request,
    check,
    check_agent,
    check_fields,
    check_key,
    digest,
    pack,
)
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs import _archive
from jaxbo.runs._evaluate import BlackBox, check_catch
from jaxbo.runs._identity import check_same, identity
from jaxbo.runs._lock import Hold
from jaxbo.runs._objective import check_python
from jaxbo.types import Key


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
        directory: The path of a text file with all owners' public keys, for secure sums. It has a line
            `agent key` for each agent, with the key of `public_key`. The owner then gives no share
            unless all owners have signed their keys of the round and have the same directory. Default:
            the server is trusted to pass on the owners' keys.

    Raises:
        ValueError: The algorithm does not have that agent, its messages cannot be summed up behind
            masks, there is no such folder, there is a ledger for a method without private releases, or
            there is none for a folder with charges. The directory has no key of an agent, or another
            key of this agent than its folder.

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
        directory: str | PathLike | None = None,
    ):
        check_owners(algorithm, objective, key, catch, secure)
        check_spending(algorithm, ledger)
        check_agent(agent, algorithm)
        found = _located(folder)
        self.algorithm, self.objective, self.agent = algorithm, objective, int(agent)
        self.folder, self.key, self.catch, self.secure = found, key, catch, secure
        self.spending = Spending(found, ledger)
        self.common = _sides.Common(algorithm)
        self.directory = Directory.given(directory, algorithm.agents, secure)
        if self.directory is not None:
            identities().check_own(self.directory, self.agent, found)

    def answer(self, request: Request) -> Reply:
        """Does the request unless it has been done, and returns the message that follows.

        Args:
            request: The server's request.

        Returns:
            The reply.

        Raises:
            RefusedError: The request is of another version of jaxbo, of another algorithm, of other
                settings of secure sums, for a round before the owner's own, for a message that would
                exceed the budget of the owner's ledger, or with keys that are not signed as the owner's
                directory asks for. Nothing is done.
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
            visit = Visit(self, request, memory)
            if request.stage == KEYS:
                self._afford(request)
                visit.begin(request.initial)
                visit.observe(request)
            message = self._message(visit, request)
        named = request.federation, request.algorithm, request.round, self.agent
        return Reply(*named, message, request.stage)

    def _message(self, visit: Visit, request: Request) -> Packed:
        """The message of the next round; with secure sums what hides it."""
        if self.secure is None:
            return pack(visit.message(request.round + 1))
        assert isinstance(self.algorithm, AbstractPrivate)
        path = self.folder / f"{request.federation}.sum"
        own = OwnPart(path, self.secure, self.algorithm, self.agent, self.directory)
        if request.stage == KEYS:
            message = own.keys(request, again=visit.memory.keyed == request.round)
            if message:
                visit.keyed(request.round)
            return message
        return own.answer(request, lambda: self._part(visit, request))

    def _afford(self, request: Request) -> None:
        """Charges for the message before anything is evaluated. In a secure sum it is charged later."""
        pay = self.spending.charge if self.secure is None else self.spending.check
        pay(*self._cost(request))

    def _part(self, visit: Visit, request: Request) -> np.ndarray:
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

    def _memory(self, path: Path, request: Request) -> OwnerMemory:
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
            return OwnerMemory(path, mine, secret, Observations.none(self.algorithm.domain.dim))
        memory = OwnerMemory.load(path)
        if self.key is not None:
            mine |= identity(key=_data(self.key))
        check_same(path, mine, memory.identity | identity(key=memory.secret))
        if memory.round > request.round:
            raise RefusedError(
                f"this owner has done round {memory.round}, the server asks for {request.round}: its "
                "checkpoint is an old one."
            )
        return memory


def public_key(folder: str | PathLike) -> str:
    """The public part of an owner's identity, for the directories of all owners.

    An owner's identity is the file `identity.pem` in its folder, readable by the owner alone. It signs
    the owner's keys in secure sums. It is made if there is none, and never replaced. Give the public key
    to the other owners in a way that does not pass the server. This needs the extra `secure`.

    Args:
        folder: The folder for the owner's files, as in `Owner`.

    Returns:
        The public key, 64 hexadecimal digits.

    Raises:
        ValueError: There is no such folder. For a damaged identity it is a `CheckpointError`.

    Example:
        >>> import tempfile, jaxbo.federation
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     key = jaxbo.federation.public_key(folder)
        ...     jaxbo.federation.public_key(folder) == key, len(key)
        (True, 64)
    """
    return identities().public(_located(folder))


def _located(folder: str | PathLike) -> Path:
    """The absolute path of an owner's folder: an objective may change the current folder."""
    require(
        isinstance(folder, str | PathLike),
        f"folder must be the path of a folder, got {shown(folder)}.",
    )
    found = Path(folder).resolve()
    require(found.is_dir(), f"the owner's folder {found} does not exist.")
    return found


def _data(key: Key) -> np.ndarray:
    return np.asarray(jr.key_data(key))
