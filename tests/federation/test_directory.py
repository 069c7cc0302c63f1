"""Owners who know each other's identities: a server cannot put its own keys in the place of theirs."""

import logging
import os
import stat

import jax
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from jaxbo import CheckpointError
from jaxbo.federation import Owner, RefusedError, _identities, _sides, public_key
from jaxbo.federation import _masks as masks
from jaxbo.federation._directory import Directory
from jaxbo.federation._stages import KEYS, MASKED, SHARES
from jaxbo.privacy import distributed
from tests.federation.test_secure import AGENTS, SECURE, WALK, Ring, _agents, _lists, objective
from tests.walk import SIZE

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

NOT_SIGNED = "the keys of agent {} are not signed as this owner's directory asks for"


def written(path, keys):
    """A file with a line for each key."""
    path.write_text("".join(f"{n} {key}\n" for n, key in enumerate(keys)))
    return path


class Known(Ring):
    """A server and owners with a directory."""

    def __init__(self, path, **options):
        super().__init__(path, **options)
        keys = [public_key(path / str(n)) for n in range(self.algorithm.agents)]
        self.directory = written(path / "directory.txt", keys)

    def owner(self, n, **options):
        return super().owner(n, **{"directory": self.directory, **options})

    def signed(self, request, whose, *, by=None, **other):
        """A signature of an agent's keys in a request, by itself or another. `other` facts are wrong."""
        known = {
            "federation": request.federation,
            "round": request.round,
            "agent": whose,
            "directory": Directory.read(self.directory, AGENTS),
            "keys": request.lists["['keys']"][whose],
        }
        return _identities.signed(self.path / str(whose if by is None else by), **known | other)


def _keys(request, row, keys=None, signature=None):
    """A request with another agent's keys, or with another signature of them."""
    found = {name: request.lists[f"['{name}']"].copy() for name in ("keys", "signatures")}
    if keys is not None:
        found["keys"][row] = keys
    if signature is not None:
        found["signatures"][row] = signature
    return _lists(request, **found)


def seeds(number):
    return np.random.default_rng(number).integers(0, 256, (3, masks.SEED), np.uint8)


# ------------------------------------------------------------------------------------- a sum


def test_a_sum_with_a_directory_has_the_same_bits(tmp_path, monkeypatch):
    parts = np.random.default_rng(0).integers(-300, 300, (AGENTS, SIZE), np.int32)
    monkeypatch.setattr(_sides, "part", lambda *known: parts[int(known[3])])
    monkeypatch.setattr(distributed, "noise", lambda deviation, size: np.zeros(size, np.uint32))
    sums = []
    for kind in (Ring, Known):
        (tmp_path / kind.__name__).mkdir()
        ring = kind(tmp_path / kind.__name__)
        server = ring.server()
        ring.until(server, 0, KEYS)
        assert server.present.all()
        sums.append(server.request().broadcast[".weights"])
    np.testing.assert_array_equal(*sums)
    assert sums[0].any()


def test_a_server_with_keys_of_its_own_reads_the_message_of_an_owner_without_a_directory(
    tmp_path, monkeypatch
):
    part = np.random.default_rng(0).integers(-300, 300, SIZE, np.int32)
    monkeypatch.setattr(_sides, "part", lambda *known: part)
    monkeypatch.setattr(distributed, "noise", lambda deviation, size: np.zeros(size, np.uint32))
    ring = Known(tmp_path)
    owner, wary = (ring.owner(0, directory=d) for d in (None, ring.directory))
    asked = ring.server().request(0)
    keys, signature = wary.answer(asked).message.values()
    false = [seeds(n) for n in range(1, AGENTS)]
    all_, nobody = np.ones(AGENTS, bool), np.zeros((AGENTS - 1, len(signature)), np.uint8)
    told = {"keys": np.stack([keys, *map(masks.public, false)]), "joined": all_}
    shares = asked._replace(stage=SHARES, lists={})
    shares = _lists(shares, **told, signatures=np.concatenate([signature[None], nobody]))
    with pytest.raises(RefusedError, match=NOT_SIGNED.format(1)):
        wary.answer(shares)
    got = owner.answer(shares).message["['shares']"]

    name = f"jaxbo {_identities.FORMAT} {asked.federation} -1".encode()
    sums = masks.Ring(name, SECURE.threshold, told["keys"], all_)
    mine = [masks.boxes(sums, n, s) for n, s in enumerate(false, 1)]
    boxes = np.stack([got[0], *(sent[0] for sent in mine)])
    masked = _lists(asked._replace(stage=MASKED, lists={}), boxes=boxes, sent=all_)
    hidden = owner.answer(masked).message["['masked']"]
    # The server is all other owners, who say that they are missing.
    opened = np.zeros((AGENTS, AGENTS, masks.SEED), np.uint8)
    for n, own in enumerate(false, 1):
        received = np.stack([got[n], *(sent[n] for sent in mine)])
        both = masks.shares(sums, n, own, received, all_)
        opened[n] = np.where(_agents(0)[:, None], both[:, 1], both[:, 0])
    read = masks.unmasked(sums, all_, _agents(0), hidden, opened, _agents(1, 2, 3))
    np.testing.assert_array_equal(read.astype(np.int32), part)


# ---------------------------------------------------------------------- what owners refuse


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Owners of two rounds, and the requests in which they are told others' keys."""
    ring = Known(tmp_path_factory.mktemp("known"))
    server = ring.server()
    return ring, *(ring.until(server, round, SHARES) for round in (-1, 0))


def false(ring, now, before):
    return {"keys": masks.public(seeds(0))}


def false_with_a_signature(ring, now, before):
    keys = masks.public(seeds(0))
    return {"keys": keys, "signature": ring.signed(now, 2, by=3, keys=keys)}


def false_for_boxes(ring, now, before):
    return {"keys": np.stack([masks.public(seeds(0))[0], now.lists["['keys']"][2, 1]])}


def false_for_masks(ring, now, before):
    return {"keys": np.stack([now.lists["['keys']"][2, 0], masks.public(seeds(0))[1]])}


def swapped(ring, now, before):
    return {"keys": now.lists["['keys']"][2, ::-1]}


def missing(ring, now, before):
    return {"signature": np.zeros(_identities.SIGNATURE, np.uint8)}


def garbage(ring, now, before):
    return {"signature": np.random.default_rng(0).integers(0, 256, 64, np.uint8)}


def with_another_end(ring, now, before):
    whole = now.lists["['signatures']"][2]
    return {"signature": np.append(whole[:-1], whole[-1] ^ np.uint8(1))}  # one in 16 ends with a 0


def of_another_agents_keys(ring, now, before):
    return {"signature": now.lists["['signatures']"][1]}


def of_the_round_before(ring, now, before):
    kept = {"keys": before.lists["['keys']"][2], "signature": before.lists["['signatures']"][2]}
    return {name: array.copy() for name, array in kept.items()}


def signed_as(**other):
    return lambda ring, now, before: {"signature": ring.signed(now, 2, **other)}


def signed_with_another_directory(ring, now, before):
    known = Directory.read(ring.directory, AGENTS).keys
    return {"signature": ring.signed(now, 2, directory=Directory((*known[:-1], bytes(32))))}


FORGED = {
    "another key": false,
    "another key, signed by another agent": false_with_a_signature,
    "another key for boxes": false_for_boxes,
    "another key for masks": false_for_masks,
    "its keys in another order": swapped,
    "no signature": missing,
    "a signature of random bytes": garbage,
    "a signature with another last byte": with_another_end,
    "a signature of another agent": of_another_agents_keys,
    "keys of the round before": of_the_round_before,
    "a signature for another round": signed_as(round=1),
    "a signature for another federation": signed_as(federation="0123456789abcdef"),
    "a signature for another number of an agent": signed_as(agent=1),
    "a signature without a directory": signed_as(directory=None),
    "a signature with another directory": signed_with_another_directory,
}


@pytest.mark.parametrize("name", FORGED)
def test_an_owner_gives_no_share_for_keys_that_another_has_not_signed(name, asked):
    ring, before, now = asked
    request = _keys(now, 2, **FORGED[name](ring, now, before))
    for n in (0, 1, 3):
        with pytest.raises(RefusedError, match=NOT_SIGNED.format(2)):
            ring.owner(n).answer(request)
        with np.load(ring.path / str(n) / f"{now.federation}.sum") as saved:
            assert set(saved.files) == {"manifest", "seeds"}


def test_a_signature_is_of_its_format(asked, monkeypatch):
    ring, _, now = asked
    monkeypatch.setattr(_identities, "FORMAT", 99)
    signature = ring.signed(now, 2)
    monkeypatch.undo()
    with pytest.raises(RefusedError, match=NOT_SIGNED.format(2)):
        ring.owner(0).answer(_keys(now, 2, signature=signature))


def test_two_agents_whose_numbers_are_swapped_are_refused(asked):
    ring, _, now = asked
    order = [0, 2, 1, 3]
    lists = {name: now.lists[f"['{name}']"][order] for name in ("keys", "signatures")}
    with pytest.raises(RefusedError, match=NOT_SIGNED.format(1)):
        ring.owner(0).answer(_lists(now, **lists))


def test_signatures_of_another_size_are_refused(asked):
    ring, _, now = asked
    signatures = now.lists["['signatures']"]
    for spoiled in (signatures[:, :-1], signatures[:-1], signatures.astype(np.uint16)):
        with pytest.raises(RefusedError, match=r"signatures.* must be uint8 of shape \(4, 64\)"):
            ring.owner(0).answer(_lists(now, signatures=spoiled))
    short = {name: a for name, a in now.lists.items() if name != "['signatures']"}
    with pytest.raises(RefusedError, match="expected the arrays"):
        ring.owner(0).answer(now._replace(lists=short))


def test_a_server_refuses_a_signature_of_another_size(tmp_path):
    ring = Known(tmp_path)
    server = ring.server()
    reply = ring.owner(0).answer(server.request())
    for signature in (np.zeros(63, np.uint8), np.zeros(64, np.int8), np.zeros((2, 32), np.uint8)):
        spoiled = reply._replace(message=reply.message | {"['signature']": signature})
        with pytest.raises(RefusedError, match=r"agent 0.*signature.* must be uint8 of shape"):
            server.hear(spoiled)
    server.hear(reply)


def test_an_owner_who_is_absent_needs_no_signature(tmp_path):
    ring = Known(tmp_path)
    server = ring.server()
    while server.round < 0:
        ring.stage(server, absent=[1])
    assert server.present[0].tolist() == [True, False, True, True]


def test_owners_with_a_directory_go_on_only_with_owners_who_have_it(tmp_path):
    ring = Known(tmp_path)
    server = ring.server()
    for n in range(AGENTS):
        owner = ring.owner(n, directory=None) if n == 3 else ring.owner(n)
        server.hear(owner.answer(server.request()))
    server.close()
    with pytest.raises(RefusedError, match=NOT_SIGNED.format(3)):
        ring.owner(0).answer(server.request(0))
    ring.owner(3, directory=None).answer(server.request(3))


@pytest.mark.slow
def test_a_server_with_the_directory_goes_on_without_an_owner_who_has_not_signed(tmp_path):
    ring = Known(tmp_path)
    ring.server()
    ring.options["directory"] = ring.directory  # for the same federation
    server = ring.server()
    replies = [ring.owner(n).answer(server.request()) for n in range(AGENTS)]
    without = ring.owner(1, directory=None).answer(server.request())
    taken = replies[2]._replace(agent=1)  # by an owner who says that it is another
    unsigned = r"agent 1.*: its keys are not signed as the server's directory asks for"
    for reply in (without, taken):
        with pytest.raises(RefusedError, match=unsigned):
            server.hear(reply)
    for reply in (replies[0], *replies[2:]):
        server.hear(reply)
    server.close()
    while server.round < 0:
        ring.stage(server, absent=[1])
    ring.until(server, 1, KEYS)
    assert server.present.tolist() == [[True, False, True, True], [True] * AGENTS]


@pytest.mark.slow
def test_an_owner_gives_one_pair_of_keys_in_a_round(tmp_path):
    ring = Known(tmp_path)
    server = ring.server()
    request = server.request()
    ring.owner(1).answer(request)
    path = tmp_path / "1" / f"{request.federation}.sum"
    path.unlink()
    with pytest.raises(RefusedError, match="file of the sum was removed: it misses this sum"):
        ring.owner(1).answer(request)
    while server.round < 0:
        ring.stage(server, absent=[1])
    ring.until(server, 1, KEYS)
    assert server.present.tolist() == [[True, False, True, True], [True] * AGENTS]


@pytest.mark.slow
def test_keys_of_two_attempts_at_a_round_cannot_be_mixed(tmp_path):
    ring = Known(tmp_path)
    server = ring.server()
    request = server.request()
    replies = [ring.owner(n).answer(request) for n in range(AGENTS)]
    for suffix in (".sum", ".npz"):  # the owner begins anew
        (tmp_path / "1" / f"{request.federation}{suffix}").unlink()
    again = ring.owner(1).answer(request).message
    for reply in replies:
        server.hear(reply)
    server.close()
    first = server.request(1)
    with pytest.raises(RefusedError, match="other keys of this owner than it gave"):
        ring.owner(1).answer(first)
    second = _keys(first, 1, again["['keys']"], again["['signature']"])
    # Both pairs are signed, and owners are told one or the other.
    for n, told in enumerate((first, second, first, first)):
        server.hear(ring.owner(n).answer(told))
    server.close()
    for n, other in enumerate((1, 0, 1, 1)):
        with pytest.raises(RefusedError, match=f"the share of agent {other} is damaged"):
            ring.owner(n).answer(server.request(n))


# ------------------------------------------------------------------------------ an identity


def test_an_identity_is_made_once_and_for_its_owner_alone(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "jaxbo"):
        key = public_key(tmp_path)
    path = tmp_path / "identity.pem"
    assert f"{path} is this owner's new identity, with public key {key}" in caplog.text
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert public_key(str(tmp_path)) == key
    assert path.read_bytes() == before
    (tmp_path / "other").mkdir()
    assert public_key(tmp_path / "other") != key


def test_an_identity_outlives_federations_and_starts(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    request = server.request()
    one, again = (ring.owner(0).answer(request).message for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    kept = (tmp_path / "0" / "identity.pem").read_bytes()
    server.stop()
    (tmp_path / "server.npz").rename(tmp_path / "done.npz")
    (tmp_path / "server.npz.released").rename(tmp_path / "done.npz.released")
    assert ring.owner(0).answer(ring.server().request()).federation != request.federation
    assert (tmp_path / "0" / "identity.pem").read_bytes() == kept


def exchanging():
    plain = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    return X25519PrivateKey.generate().private_bytes(*plain)


@pytest.mark.parametrize("content", [b"", b"not a key", exchanging()])
def test_a_damaged_identity_is_refused_and_kept(content, tmp_path):
    ring = Known(tmp_path)
    path = tmp_path / "0" / "identity.pem"
    path.write_bytes(content)
    for use in (
        lambda: public_key(tmp_path / "0"),
        lambda: ring.owner(0),
        lambda: ring.owner(0, directory=None).answer(ring.server().request()),
    ):
        with pytest.raises(CheckpointError, match="is no identity of an owner"):
            use()
    assert path.read_bytes() == content


# ------------------------------------------------------------------------------ a directory


def test_an_owner_with_a_directory_needs_the_identity_in_it(tmp_path):
    ring = Known(tmp_path)
    with pytest.raises(ValueError, match="has another key of agent 1 than"):
        Owner(WALK, objective, 1, tmp_path / "0", secure=SECURE, directory=ring.directory)
    path = tmp_path / "0" / "identity.pem"
    owner = ring.owner(0)
    path.unlink()
    with pytest.raises(ValueError, match="there is a directory and no identity"):
        ring.owner(0)
    with pytest.raises(CheckpointError, match="is no identity of an owner"):
        owner.answer(ring.server().request())
    assert not path.exists()


def test_a_directory_is_for_secure_sums(tmp_path):
    for party in (
        lambda: Owner(WALK, objective, 0, tmp_path, directory="directory.txt"),
        lambda: Ring(tmp_path, secure=None, directory="directory.txt").server(),
    ):
        with pytest.raises(ValueError, match="directory is for secure sums"):
            party()


ONE, TWO = "1" * 64, "aB" * 32


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"no key of the agents \[0, 1\]"),
        (f"0 {ONE}", r"no key of the agents \[1\]"),
        (f"0 {ONE}\n1 {ONE}", "two agents of the directory .* have the same key"),
        (f"0 {ONE}\n0 {TWO}", "line 2 of the directory .* is a second line of agent 0"),
        (f"0 {ONE}\n2 {TWO}", "is of agent 2; there are 2 agents"),
        (f"0 {ONE}\n1 {TWO}0", "line 2 .* must be an agent's number and a key of 64"),
        (f"0 {ONE}\n1 {TWO[:-1]}", "must be an agent's number"),
        (f"0 {ONE}\n-1 {TWO}", "must be an agent's number"),
        (f"0 {ONE} 1 {TWO}", "must be an agent's number"),
        (f"0 {ONE}\n1 {'g' * 64}", "must be an agent's number"),
        ("ä".encode("latin-1"), "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_directory_of_other_lines_is_refused(text, reason, tmp_path):
    path = tmp_path / "directory.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=reason):
        Directory.read(path, 2)


@pytest.mark.slow
def test_the_order_of_lines_and_empty_lines_say_nothing(tmp_path):
    path = tmp_path / "directory.txt"
    path.write_text(f"\n 1\t{TWO}\n\n0 {ONE}\n")
    found = Directory.read(path, 2)
    assert found.keys == (bytes.fromhex(ONE), bytes.fromhex(TWO))
    assert found.digest() == Directory(found.keys).digest() != Directory(found.keys[::-1]).digest()
