"""The owners' identities, and a directory of them that each owner has (extra `secure`).

    identity      a long-lived Ed25519 key of an owner, in a file of its folder, made once
    directory     a text file with a line `agent key` for each agent: the public part of its identity
    signature     by an owner's identity, of
                      format, federation, round, agent, digest of its directory, its two public keys

The server passes on the owners' keys of a round, and could put its own keys in their place. So each owner
signs its keys, and an owner with a directory goes on only if all signatures are right. Owners exchange
the public parts in a way that does not pass the server.

The signature names federation, round and agent. So the server has no use for keys of another round,
federation or agent. It also names the directory. The server could give false keys to an owner without it,
and would know the noise of this owner. This noise would hide nobody else any more. So owners with a
directory go on only if all have the same.

A server with the directory goes on without an owner whose keys are not signed. Nobody need trust it for
that: it could leave out any owner.

An owner gives one pair of keys in a round, and no other if its file of the sum was removed. If all files
of a federation were removed, it begins anew and may sign a second pair. The two cannot be mixed: an owner
refuses other keys of its own than it gave last, and boxes for the other pair cannot be read.
"""

import logging
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jaxtyping import UInt8

from jaxbo._check import require
from jaxbo.federation._directory import Directory
from jaxbo.federation.wire import FORMAT
from jaxbo.runs import _archive
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._lock import Hold

log = logging.getLogger("jaxbo.federation.owner")

#: The file of an identity in an owner's folder.
NAME = "identity.pem"
#: Bytes of a signature.
SIGNATURE = 64
#: In the place of a directory's digest, where there is none.
_NONE = bytes(32)


def check_own(directory: Directory, agent: int, folder: Path) -> None:
    """`ValueError` unless a directory has the identity in an agent's folder."""
    path = folder / NAME
    require(
        path.exists(),
        f"there is a directory and no identity, {path}: put back its file, or make one with "
        "jaxbo.federation.public_key(folder) and give all owners the new key.",
    )
    require(
        directory.keys[agent] == _public(_read(path)),
        f"the directory has another key of agent {agent} than {path}: correct the agent's number, the "
        "directories of all owners, or the file.",
    )


def is_signed(
    directory: Directory,
    federation: str,
    round: int,
    agent: int,
    keys: UInt8[np.ndarray, "2 bytes"],
    signature: UInt8[np.ndarray, " signature"],
) -> bool:
    """Whether an agent with this directory has signed its keys of a round."""
    statement = _statement(federation, round, agent, directory, keys)
    public = Ed25519PublicKey.from_public_bytes(directory.keys[agent])
    try:
        public.verify(signature.tobytes(), statement)
    except InvalidSignature:
        return False
    return True


def signed(
    folder: Path,
    federation: str,
    round: int,
    agent: int,
    directory: Directory | None,
    keys: UInt8[np.ndarray, "2 bytes"],
) -> UInt8[np.ndarray, " signature"]:
    """An owner's signature of its keys of a round."""
    path = folder / NAME
    # A new identity would be in no directory.
    private = _made(path) if directory is None else _read(path)
    return np.frombuffer(
        private.sign(_statement(federation, round, agent, directory, keys)), np.uint8
    )


def public(folder: Path) -> str:
    """The public part of the identity in a folder. A missing identity is made."""
    return _public(_made(folder / NAME)).hex()


# ---------------------------------------------------------------- their parts


def _statement(
    federation: str,
    round: int,
    agent: int,
    directory: Directory | None,
    keys: UInt8[np.ndarray, "2 bytes"],
) -> bytes:
    """The bytes that are signed. All after the first line have a fixed length."""
    line = f"jaxbo {FORMAT} keys {federation} {round} {agent}\n".encode()
    digest = _NONE if directory is None else directory.digest()
    return line + digest + keys.tobytes()


def _made(path: Path) -> Ed25519PrivateKey:
    """The identity in a file. A missing identity is made."""
    if not path.exists():
        with Hold(path).waited_for():
            if not path.exists():  # else another process has just made it
                _make(path)
    return _read(path)


def _make(path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _archive.replace(path, lambda file: file.write(text))
    log.info("%s is this owner's new identity, with public key %s", path, _public(private).hex())


def _read(path: Path) -> Ed25519PrivateKey:
    """The identity in a file. `CheckpointError` for any other file, and the file stays as it is."""
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _unusable(path)
    return private


def _unusable(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is no identity of an owner: put back a copy. Where there is none, remove the file, and "
        "give all owners the public key of the identity that is made then."
    )


def _public(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()
