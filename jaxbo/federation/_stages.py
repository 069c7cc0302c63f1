"""A round with a secure sum has four exchanges in the place of one.

    stage      the request has                       an owner replies with
    KEYS       the broadcast, or an invitation       its public keys, signed, after its query
    SHARES     the signed keys of all who replied    a box of shares for each of them
    MASKED     its boxes, and who sent boxes         its numbers, with noise, behind masks; tags
    OPEN       its tags, and who sent such numbers   a share of a mask of each who sent boxes

Boxes and tags are for a single owner each, and nobody else gets them.
An owner answers a single request in each stage. It answers the same request again with the same bytes,
which it keeps in a file, and refuses any other. So nobody gets two sums whose difference tells a message,
nor both kinds of shares of an owner. Each owner counts for itself who takes part, and says no more if
there are fewer than `threshold`. After the last stage it forgets its seeds.

An owner's tag tells each other owner which keys and lists it was told, up to who sent boxes. An owner
gives shares only for owners with its own lists. So a server that lies in these lists opens nothing. It
can still name different owners to different owners in the last stage. Then it opens a sum of
`SecureSum.fewest` owners, or of more. A server that lies about keys reads the messages of owners without
a directory (`_identities`), because such an owner does not check whose keys they are. An honest server
with the directory refuses keys that are not signed, and the others go on.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool, PyTree, UInt32

from jaxbo.algos.base import _secure
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.federation._directory import Directory
from jaxbo.federation._extra import identities as _identities
from jaxbo.federation._extra import masks as _masks
from jaxbo.federation.wire import FORMAT, PLAIN, Packed, RefusedError, Request, pack, unpack
from jaxbo.privacy.distributed import SecureSum
from jaxbo.runs import _archive

KEYS, SHARES, MASKED, OPEN = range(4)
#: The kind of an owner's file of a sum.
KIND = "an owner's part of a secure sum"


def check_secure(algorithm: AbstractFederated, secure: SecureSum | None) -> None:
    """`ValueError` for a method whose messages cannot be summed up behind masks, or without the extra."""
    if secure is None:
        return
    _masks()
    _secure.check(algorithm, secure)


def said(secure: SecureSum | None) -> str:
    """The settings that both sides must have, as requests name them."""
    if secure is None:
        return PLAIN
    return f"threshold {secure.threshold}, colluding {secure.colluding}"


def _asked_like(stage: int, algorithm: AbstractPrivate) -> PyTree:
    """The shapes of the lists in a request."""
    masks, agents = _masks(), algorithm.agents
    shapes = {
        "keys": ((agents, 2, masks.PUBLIC), np.uint8),
        "signatures": ((agents, _identities().SIGNATURE), np.uint8),
        "boxes": ((agents, masks.BOX), np.uint8),
        "tags": ((agents, masks.TAG), np.uint8),
    }
    known = {name: shapes.get(name, ((agents,), np.bool_)) for name in _ASKED[stage]}
    return {name: jax.ShapeDtypeStruct(*like) for name, like in known.items()}


#: The arrays of a request of each stage, and those of a reply.
_ASKED = ((), ("keys", "joined", "signatures"), ("boxes", "sent"), ("heard", "tags"))
_REPLIED = (("keys", "signature"), ("shares",), ("masked", "tags"), ("opened",))
#: Those that the server has from all owners for all owners. An owner is told its own alone.
_OWN = ("boxes", "tags")
#: Those of a request that an owner does not keep.
_PASSING = ("boxes", "signatures")


def reply_like(stage: int, algorithm: AbstractPrivate, following: bool) -> PyTree:
    """The shapes of an owner's message in a stage; `following` says whether a sum follows the round."""
    if not following:
        return {}
    masks, agents = _masks(), algorithm.agents
    shapes = {
        "keys": ((2, masks.PUBLIC), np.uint8),
        "signature": ((_identities().SIGNATURE,), np.uint8),
        "shares": ((agents, masks.BOX), np.uint8),
        "masked": ((_secure.size(algorithm),), np.uint32),
        "tags": ((agents, masks.TAG), np.uint8),
        "opened": ((agents, masks.SEED), np.uint8),
    }
    return {name: jax.ShapeDtypeStruct(*shapes[name]) for name in _REPLIED[stage]}


def _unpacked(arrays: Packed | None, like: PyTree) -> Packed:
    """The arrays of a request or a file, by their plain names."""
    return {name: np.asarray(a) for name, a in unpack(arrays or {}, like).items()}


# ---------------------------------------------------------------- an owner


class OwnPart:
    """An owner's part of the sum of a round, and the file that has it."""

    def __init__(
        self,
        path: Path,
        secure: SecureSum,
        algorithm: AbstractPrivate,
        agent: int,
        directory: Directory | None,
    ):
        self.path, self.secure, self.algorithm, self.agent = path, secure, algorithm, agent
        self.directory = directory

    def keys(self, request: Request, again: bool) -> Packed:
        """The public keys of the round, new in each, and their signature.

        `again` says that the owner has given keys for this round before.
        """
        if self.algorithm.released(request.round + 1) is None:
            self.path.unlink(missing_ok=True)  # the seeds of the last sum are of no use any more
            return {}
        known = self._known(request)
        if known is None:
            if again:
                raise RefusedError("this owner's file of the sum was removed: it misses this sum.")
            words = secrets.token_bytes(3 * _masks().SEED)
            known = {"seeds": np.frombuffer(words, np.uint8).reshape(3, -1)}
            self._save(request, known)
        self._before_the_end(known)
        keys = _masks().public(known["seeds"])
        named = request.federation, request.round, self.agent
        signature = _identities().signed(self.path.parent, *named, self.directory, keys)
        return pack({"keys": keys, "signature": signature})

    def answer(self, request: Request, part: Callable[[], np.ndarray]) -> Packed:
        """The message of a later stage. `part` computes the owner's numbers, without noise."""
        known = self._known(request)
        if known is None:
            raise RefusedError("this owner has given no keys for this sum.")
        names = _REPLIED[request.stage]
        if request.stage != OPEN:
            self._before_the_end(known)
        lists = _unpacked(request.lists, _asked_like(request.stage, self.algorithm))
        asked = np.array(_digest(lists))
        if names[0] in known:
            if known[f"{names[0]} for"] != asked:
                raise RefusedError("the server asks a second time, for something else.")
            return pack({name: known[name] for name in names})
        new = (self._shares, self._masked, self._opened)[request.stage - 1](
            request, known, lists, part
        )
        # Secrets of a sum that is over could only do harm.
        kept = {} if request.stage == OPEN else known | lists
        self._save(request, kept | new | {f"{names[0]} for": asked})
        return pack({name: new[name] for name in names})

    def _shares(self, request: Request, known: Packed, lists: Packed, part: object) -> Packed:
        keys, joined = lists["keys"], lists["joined"]
        self._in(joined)
        self._enough(joined)
        if (keys[self.agent] != _masks().public(known["seeds"])).any():
            raise RefusedError("the server has other keys of this owner than it gave.")
        given = keys[joined].reshape(-1, keys.shape[-1])
        if len(np.unique(given, axis=0)) < len(given):
            raise RefusedError("two owners have the same key.")
        if self.directory is not None:
            for n in np.flatnonzero(joined).tolist():
                one = request.federation, request.round, n, keys[n], lists["signatures"][n]
                if not _identities().is_signed(self.directory, *one):
                    raise RefusedError(
                        f"the keys of agent {n} are not signed as this owner's directory asks for: the "
                        f"server gave other keys, or agent {n} has another identity, another directory "
                        "or none."
                    )
        ring = self._ring(request, lists)
        return {"shares": _masks().boxes(ring, self.agent, known["seeds"])}

    def _masked(
        self, request: Request, known: Packed, lists: Packed, part: Callable[[], np.ndarray]
    ) -> Packed:
        self._after("shares", known)
        sent = lists["sent"]
        self._enough(sent, of=known["joined"])
        self._in(sent)
        ring, seeds = self._ring(request, known), known["seeds"]
        received = _masks().shares(ring, self.agent, seeds, lists["boxes"], sent)
        (noise,) = _secure.noise(self.algorithm, self.secure)
        numbers = part().astype(np.uint32) + noise
        masked = _masks().masked(ring, self.agent, seeds, sent, numbers)
        tags = _masks().tags(ring, self.agent, seeds, sent)
        return {"masked": masked, "received": received, "tags": tags}

    def _opened(self, request: Request, known: Packed, lists: Packed, part: object) -> Packed:
        self._after("masked", known)
        heard, received = lists["heard"], known["received"]
        self._enough(heard, of=known["sent"])
        told = self._ring(request, known), self.agent, known["seeds"], known["sent"]
        _masks().check_tags(*told, heard, lists["tags"])
        return {"opened": np.where(heard[:, None], received[:, 1], received[:, 0])}

    def _enough(self, agents: np.ndarray, of: np.ndarray | None = None) -> None:
        if of is not None and (agents & ~of).any():
            raise RefusedError("the server names owners who were not in the stage before.")
        if agents.sum() < self.secure.threshold:
            raise RefusedError(
                f"the sum has {agents.sum()} owners, below the threshold of {self.secure.threshold}."
            )

    def _in(self, agents: np.ndarray) -> None:
        if not agents[self.agent]:
            raise RefusedError("this owner is not in the sum.")

    def _before_the_end(self, known: Packed) -> None:
        if "opened" in known:
            raise RefusedError("this owner has helped to open this sum already.")

    def _after(self, name: str, known: Packed) -> None:
        if name not in known:
            raise RefusedError("this owner has not taken part in the stage before.")

    def _ring(self, request: Request, known: Packed):
        return _ring(request.federation, request.round, self.secure, known)

    def _known(self, request: Request) -> Packed | None:
        """Reads this round's part of the file."""
        if not self.path.exists():
            return None
        manifest, arrays = _archive.read(self.path)
        _archive.check_format(self.path, manifest, KIND, FORMAT)
        return arrays if manifest.get("round") == request.round else None

    def _save(self, request: Request, known: Packed) -> None:
        manifest = {"kind": KIND, "format": FORMAT, "round": request.round}
        kept = {name: array for name, array in known.items() if name not in _PASSING}
        _archive.write(self.path, manifest, kept)


def _digest(lists: Packed) -> str:
    found = hashlib.sha256()
    for name in sorted(lists):
        found.update(name.encode() + lists[name].tobytes())
    return found.hexdigest()


def _ring(federation: str, round: int, secure: SecureSum, known: Packed):
    name = f"jaxbo {FORMAT} {federation} {round}".encode()
    return _masks().Ring(name, secure.threshold, known["keys"], known["joined"])


# ---------------------------------------------------------------- the server


@dataclasses.dataclass(frozen=True)
class ServersPart:
    """The server's part of the sums."""

    secure: SecureSum
    algorithm: AbstractPrivate
    directory: Directory | None = None

    @property
    def size(self) -> int:
        """Numbers in the sum of all regions together."""
        return _secure.size(self.algorithm)

    def personal(self, stage: int) -> bool:
        """Whether each owner has a request of its own."""
        return any(name in _OWN for name in _ASKED[stage])

    def lists(self, stage: int, known: Packed, agent: int | None) -> Packed | None:
        """Picks the arrays of a stage's request to an agent."""
        if not stage:
            return None
        own = {name: known[name][:, agent] for name in _ASKED[stage] if name in _OWN}
        return pack({name: known[name] for name in _ASKED[stage]} | own)

    def members(self, stage: int, known: Packed) -> Bool[np.ndarray, " agents"] | None:
        """The agents that may reply in a stage; None for all."""
        return None if stage == KEYS else known[("joined", "sent", "sent")[stage - 1]]

    def check(
        self, named: tuple[str, int, int], stage: int, reply: PyTree, others: Iterable[PyTree]
    ) -> None:
        """`RefusedError` for a reply with which no owner would go on.

        It is `named` by its federation, its round and its agent.
        """
        if stage != KEYS or not reply:
            return
        keys, signature = (np.asarray(reply[name]) for name in ("keys", "signature"))
        known = self.directory
        if known is not None and not _identities().is_signed(known, *named, keys, signature):
            raise RefusedError(
                "its keys are not signed as the server's directory asks for: it has another identity, "
                "another directory or none."
            )
        _masks().check_public(keys, [np.asarray(other["keys"]) for other in others])

    def gathered(
        self, stage: int, known: Packed, replies: dict[int, PyTree], senders: dict[int, str]
    ) -> Packed:
        """Adds the replies of a stage, and who sent them, to the arrays of the earlier stages."""
        likes = reply_like(stage, self.algorithm, True)
        whole = {name: self._together(name, like, replies) for name, like in likes.items()}
        agents = range(self.algorithm.agents)
        here = np.isin(agents, list(replies))
        if stage == KEYS:
            return {
                "keys": whole["keys"],
                "signatures": whole["signature"],
                "joined": here,
                "senders": np.array([senders.get(n, "") for n in agents]),
            }
        if stage == SHARES:
            return known | {"boxes": whole["shares"], "sent": here}
        if stage == MASKED:  # no server keeps the numbers of single owners
            kept = {name: known[name] for name in ("keys", "joined", "senders", "sent")}
            total = whole.pop("masked").sum(0, dtype=np.uint32)
            return kept | whole | {"total": total, "heard": here}
        return known | whole | {"helped": here}

    def _together(
        self, name: str, like: jax.ShapeDtypeStruct, replies: dict[int, PyTree]
    ) -> np.ndarray:
        whole = np.zeros((self.algorithm.agents, *like.shape), like.dtype)
        for agent, reply in replies.items():
            whole[agent] = np.asarray(reply[name])
        return whole

    def total(self, federation: str, round: int, known: Packed) -> UInt32[np.ndarray, " size"]:
        """The sum without masks. `RefusedError` if shares do not fit together."""
        ring = _ring(federation, round, self.secure, known)
        names = ("sent", "heard", "total", "opened", "helped")
        return _masks().unmasked(ring, *(known[name] for name in names))
