"""All that the server of a federation must not lose, in its file."""

import dataclasses
import secrets
from pathlib import Path

import numpy as np

from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND
from jaxbo.federation._stages import KEYS
from jaxbo.federation.wire import FORMAT, Packed
from jaxbo.privacy.ledger import Ledger
from jaxbo.runs import _archive
from jaxbo.runs._archive import DamagedError, OtherRunError
from jaxbo.runs._identity import Identity, check_same
from jaxbo.runs._released import Released

#: The kind of a checkpoint.
KIND = "a server"
#: The beginning of the names of arrays from the stages of a secure sum.
LISTS = "lists "


@dataclasses.dataclass(frozen=True)
class ServerMemory:
    """The server's file: the broadcast that is out, the agents heard before it, the costs of releases.

    `names` has the first sender that was heard as each agent, or an empty text.
    """

    path: Path
    identity: Identity
    federation: str
    ledger: Ledger | None
    round: int = BEFORE_FIRST_ROUND
    over: bool = False
    present: list[np.ndarray] = dataclasses.field(default_factory=list)
    broadcast: Packed = dataclasses.field(default_factory=dict)
    stage: int = KEYS
    lists: Packed = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)

    def after(
        self, round: int, broadcast: Packed, heard: np.ndarray, ledger: Ledger | None
    ) -> "ServerMemory":
        """With the next broadcast, of those who were heard."""
        fixed = self.path, self.identity, self.federation
        present, names = [*self.present, heard], self.names
        return ServerMemory(*fixed, ledger, round, False, present, broadcast, names=names)

    @classmethod
    def open(cls, path: Path, identity: Identity, ledger: Ledger | None) -> "ServerMemory":
        """The saved server, or a new federation; `ledger` is the ledger that the run began with."""
        released = None if ledger is None else Released(path)
        try:
            saved = cls.load(path, identity, ledger) if path.exists() else None
        except (DamagedError, OtherRunError) as error:
            if released is None:
                raise
            raise released.unusable(error) from error
        if released is not None and ledger is not None:
            released.open(ledger, None if saved is None else saved.ledger)
        if saved is not None:
            return saved
        memory = cls(path, identity, secrets.token_hex(8), ledger)
        memory.save()
        return memory

    @classmethod
    def load(cls, path: Path, identity: Identity, ledger: Ledger | None) -> "ServerMemory":
        manifest, arrays = _archive.read(path)
        _archive.check_format(path, manifest, KIND, FORMAT)
        try:
            theirs, charged = dict(manifest["identity"]), manifest["ledger"]
            present = list(arrays.pop("present"))
            names = [str(name) for name in arrays.pop("names")]
            round, over = int(manifest["round"]), bool(manifest["over"])
            federation, stage = str(manifest["federation"]), int(manifest["stage"])
            kept = {name for name in arrays if name.startswith(LISTS)}
            lists = {name.removeprefix(LISTS): arrays.pop(name) for name in kept}
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(path, error) from error
        check_same(path, identity, theirs)
        if ledger is not None:
            try:
                ledger = ledger.charged(charged)
            except ValueError as error:
                raise _archive.damaged(path, error) from error
        known = round, over, present, arrays, stage, lists, names
        return cls(path, identity, federation, ledger, *known)

    def count(self) -> None:
        """Counts the charges that have been saved."""
        if self.ledger is not None:
            Released(self.path).grow(self.ledger)

    def save(self) -> None:
        ledger = None if self.ledger is None else self.ledger.charges()
        manifest = {
            "kind": KIND,
            "format": FORMAT,
            "identity": self.identity,
            "federation": self.federation,
            "round": self.round,
            "over": self.over,
            "stage": self.stage,
            "ledger": ledger,
        }
        lists = {LISTS + name: array for name, array in self.lists.items()}
        who = {"present": np.asarray(self.present, bool), "names": np.asarray(self.names, np.str_)}
        arrays = {**self.broadcast, **lists, **who}
        _archive.write(self.path, manifest, arrays)
