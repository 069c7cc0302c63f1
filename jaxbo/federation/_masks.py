"""Masks that hide the numbers of each owner, and cancel in the sum of all (extra `secure`).

    seeds         three random words of an owner's: of two key pairs, and of a mask of its own
    y_n = x_n + M(own_n) + Σ_{m > n} M(s_nm) - Σ_{m < n} M(s_nm)    mod 2^32,  s_nm = s_mn a common key
    boxes         a share of `own_n` and a share of the masking key's seed for each owner, encrypted
    tags          for each owner, that shows that both were told the same lists
    opened        own masks of owners who are in the sum, masking keys of owners who are missing

This is the protocol of Bonawitz et al. (2017, "Practical secure aggregation for privacy-preserving
machine learning"), with all owners for neighbors. The server adds up all y_n. Masks of two owners cancel.
Shares of any `threshold` owners give the masks that are left: the own masks of owners in the sum, and the
common masks of owners who are missing. Nobody gives both kinds of shares of an owner. Tags
tell owners if others had other lists of keys, of members or of senders. Then they give no shares. The
server passes on the keys. If it puts its own keys in the place of others' keys, it reads messages, unless
owners have a directory (`_identities`).

No cryptography is written here. Key agreement (X25519), key derivation (HKDF), masks (the stream of
ChaCha20), boxes (ChaCha20-Poly1305) and tags (HMAC) are those of `cryptography`. Shares are
PyCryptodome's (Shamir).

Flower's own protocol, SecAgg+, takes its masks from a Mersenne twister with a seed of 32 bits, which is
no generator for secrets, and aggregates the parameters of FedAvg alone.
"""

import secrets
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.constant_time import bytes_eq
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Bool, UInt8, UInt32

from jaxbo.federation.wire import RefusedError

#: Bytes of a seed, which Shamir's shares have too; of a public key; of an owner's tag for another.
SEED, PUBLIC, TAG = 16, 32, 16
#: Bytes of a box: a random nonce, two shares, and a tag.
_NONCE = 12
BOX = _NONCE + 2 * SEED + 16
#: The nonce of a mask, whose key makes a single one.
_STREAM = bytes(16)


class Ring(NamedTuple):
    """The common knowledge of all who take part in a sum.

    Args:
        name: Of the federation, and of the round.
        threshold: As in `SecureSum`.
        keys: The public keys of each agent, for boxes and for masks.
        joined: The agents who began.
    """

    name: bytes
    threshold: int
    keys: UInt8[np.ndarray, "agents 2 bytes"]
    joined: Bool[np.ndarray, " agents"]


def public(seeds: UInt8[np.ndarray, "3 seed"]) -> UInt8[np.ndarray, "2 bytes"]:
    """The public keys of an owner, for boxes and for masks."""
    keys = (_private(seed).public_key().public_bytes_raw() for seed in seeds[:2])
    return np.stack([_array(key) for key in keys])


def boxes(
    ring: Ring, agent: int, seeds: UInt8[np.ndarray, "3 seed"]
) -> UInt8[np.ndarray, "agents box"]:
    """Shares of an owner's last two seeds, a box for each agent who began, itself too."""
    agents = len(ring.joined)
    split = [Shamir.split(ring.threshold, agents, s.tobytes(), ssss=False) for s in seeds[1:]]
    found = np.zeros((agents, BOX), np.uint8)
    for other in _which(ring.joined):
        both = b"".join(shares[other][1] for shares in split)
        key = _between(ring, seeds, other, b"box", agent, other)
        nonce = secrets.token_bytes(_NONCE)  # not fixed: a file that was restored splits anew
        found[other] = _array(nonce + ChaCha20Poly1305(key).encrypt(nonce, both, None))
    return found


def shares(
    ring: Ring,
    agent: int,
    seeds: UInt8[np.ndarray, "3 seed"],
    received: UInt8[np.ndarray, "agents box"],
    sent: Bool[np.ndarray, " agents"],
) -> UInt8[np.ndarray, "agents 2 seed"]:
    """The shares in the boxes that an owner received from those who sent some."""
    found = np.zeros((len(sent), 2, SEED), np.uint8)
    for other in _which(sent):
        key = _between(ring, seeds, other, b"box", other, agent)
        try:
            nonce, box = np.split(received[other], [_NONCE])
            both = ChaCha20Poly1305(key).decrypt(nonce.tobytes(), box.tobytes(), None)
        except InvalidTag:
            raise RefusedError(f"the share of agent {other} is damaged.") from None
        found[other] = _array(both).reshape(2, SEED)
    return found


def tags(
    ring: Ring,
    agent: int,
    seeds: UInt8[np.ndarray, "3 seed"],
    sent: Bool[np.ndarray, " agents"],
) -> UInt8[np.ndarray, "agents tag"]:
    """A tag for each agent who sent boxes, of the lists that this owner was told."""
    found = np.zeros((len(sent), TAG), np.uint8)
    for other in _which(sent):
        key = _between(ring, seeds, other, b"lists", agent, other)
        found[other] = _array(_tag(key, ring, sent))
    return found


def check_tags(
    ring: Ring,
    agent: int,
    seeds: UInt8[np.ndarray, "3 seed"],
    sent: Bool[np.ndarray, " agents"],
    heard: Bool[np.ndarray, " agents"],
    received: UInt8[np.ndarray, "agents tag"],
) -> None:
    """`RefusedError` unless all who were heard had been told this owner's lists."""
    for other in _which(heard):
        key = _between(ring, seeds, other, b"lists", other, agent)
        if not bytes_eq(_tag(key, ring, sent), received[other].tobytes()):
            raise RefusedError(f"agent {other} was told other lists than this owner.")


def _tag(key: bytes, ring: Ring, sent: Bool[np.ndarray, " agents"]) -> bytes:
    found = HMAC(key, SHA256())
    for array in (ring.keys, ring.joined, sent):  # all of fixed lengths
        found.update(array.tobytes())
    return found.finalize()[:TAG]


def check_public(
    keys: UInt8[np.ndarray, "2 bytes"], others: list[UInt8[np.ndarray, "2 bytes"]]
) -> None:
    """`RefusedError` for keys with which all owners would refuse to go on."""
    given = np.concatenate([keys, *others])
    if (np.unique(given, axis=0, return_counts=True)[1] > 1).any():
        raise RefusedError("two owners have the same key.")
    seed = _array(secrets.token_bytes(SEED))
    for key in keys:
        _agreed(seed, key, b"any")


def masked(
    ring: Ring,
    agent: int,
    seeds: UInt8[np.ndarray, "3 seed"],
    sent: Bool[np.ndarray, " agents"],
    numbers: UInt32[np.ndarray, " size"],
) -> UInt32[np.ndarray, " size"]:
    """An owner's numbers behind all its masks."""
    hidden = numbers + _mask(_own(ring, agent, seeds[2].tobytes()), numbers.size)
    for other in _which(sent):
        hidden = hidden + _common(ring, agent, seeds[1], other, numbers.size)
    return hidden


def unmasked(
    ring: Ring,
    sent: Bool[np.ndarray, " agents"],
    heard: Bool[np.ndarray, " agents"],
    total: UInt32[np.ndarray, " size"],
    opened: UInt8[np.ndarray, "agents agents seed"],
    helped: Bool[np.ndarray, " agents"],
) -> UInt32[np.ndarray, " size"]:
    """The sum of the numbers of all who were heard.

    `total` is the sum of their masked numbers. `opened[m, n]` is agent m's share of a mask of agent n, if
    agent m `helped`. `RefusedError` if these shares are not of the masking keys.
    """
    givers = _which(helped)[: ring.threshold]
    for agent in _which(sent):
        given = [(m + 1, opened[m, agent].tobytes()) for m in givers]
        seed = Shamir.combine(given, ssss=False)
        if heard[agent]:
            total = total - _mask(_own(ring, agent, seed), total.size)
            continue
        if _private(_array(seed)).public_key().public_bytes_raw() != ring.keys[agent, 1].tobytes():
            raise RefusedError(f"the shares of agent {agent} do not fit together.")
        for other in _which(heard):
            total = total + _common(ring, agent, _array(seed), other, total.size)
    return total


def _which(agents: Bool[np.ndarray, " agents"]) -> list[int]:
    return np.flatnonzero(agents).tolist()


# ---------------------------------------------------------------- keys


def _private(seed: UInt8[np.ndarray, " seed"]) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derived(seed.tobytes(), b"jaxbo key"))


def _agreed(
    seed: UInt8[np.ndarray, " seed"], theirs: UInt8[np.ndarray, " bytes"], *purpose: bytes | int
) -> bytes:
    """The key that the owner of a seed and the owner of a public key have in common."""
    try:
        known = _private(seed).exchange(X25519PublicKey.from_public_bytes(theirs.tobytes()))
    except ValueError:  # of small order
        raise RefusedError("a public key has the same secret with everybody.") from None
    return _derived(known, *purpose)


def _between(
    ring: Ring, seeds: UInt8[np.ndarray, "3 seed"], other: int, *purpose: bytes | int
) -> bytes:
    """The key for boxes, or for tags, that an owner and another agent have in common in a ring."""
    return _agreed(seeds[0], ring.keys[other, 0], ring.name, *purpose)


def _common(
    ring: Ring, agent: int, seed: UInt8[np.ndarray, " seed"], other: int, size: int
) -> UInt32[np.ndarray, " size"]:
    """The mask that an agent adds for another, who subtracts it; none for itself."""
    if other == agent:
        return np.zeros(size, np.uint32)
    low, high = sorted((agent, other))
    key = _agreed(seed, ring.keys[other, 1], ring.name, b"mask", low, high)
    mask = _mask(key, size)
    return mask if agent == low else np.zeros(size, np.uint32) - mask


def _own(ring: Ring, agent: int, seed: bytes) -> bytes:
    return _derived(seed, ring.name, b"own", agent)


def _derived(secret: bytes, *purpose: bytes | int) -> bytes:
    info = b"|".join(p if isinstance(p, bytes) else str(p).encode() for p in purpose)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def _mask(key: bytes, size: int) -> UInt32[np.ndarray, " size"]:
    """Numbers that nobody without the key can tell from uniform ones."""
    stream = Cipher(algorithms.ChaCha20(key, _STREAM), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), "<u4").astype(np.uint32)


def _array(data: bytes) -> UInt8[np.ndarray, " bytes"]:
    return np.frombuffer(data, np.uint8)
