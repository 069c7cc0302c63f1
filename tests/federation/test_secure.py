"""Owners whose messages nobody sees: the server gets sums, and noise that owners have added."""

import dataclasses
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import jaxbo
import jaxbo.federation
from jaxbo.federation import (
    Coordinator,
    Owner,
    RefusedError,
    SecureSum,
    _server_memory,
    _sides,
    coordinator,
    observations,
)
from jaxbo.federation import _masks as masks
from jaxbo.federation._stages import KEYS, MASKED, OPEN, SHARES, OwnPart
from jaxbo.privacy import distributed
from jaxbo.privacy.distributed import UNIT
from tests.walk import LEDGER, SIZE, SumWalk, Walk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, ROUNDS, INITIAL = 4, 2, 1
KEY = jr.key(7)
SQUARE = jaxbo.Cube(2)
#: So little noise that queries are those without.
QUIET = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
WALK = SumWalk(SQUARE, AGENTS, mechanism=QUIET)
SECURE = SecureSum(threshold=3)


def stages(quick):
    """All stages of a sum, one of them in the quick tests."""
    all_ = (KEYS, SHARES, MASKED, OPEN)
    marks = {s: () if s == quick else pytest.mark.full for s in all_}
    return pytest.mark.parametrize("stage", [pytest.param(s, marks=marks[s]) for s in all_])


def objective(agent, x):
    return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))


class Ring:
    """A server and owners of secure sums, each with a folder."""

    def __init__(self, path, algorithm=WALK, secure=SECURE, **options):
        self.path, self.algorithm, self.secure = path, algorithm, secure
        self.options = {"initial": INITIAL, "ledger": LEDGER, "secure": secure, **options}
        self.running = None
        for n in range(algorithm.agents):
            (path / str(n)).mkdir(exist_ok=True)

    def server(self, rounds=ROUNDS):
        if self.running is not None:
            self.running.stop()
        path = self.path / "server.npz"
        self.running = Coordinator(self.algorithm, rounds, KEY, path, **self.options)
        return self.running

    def owner(self, n, **options):
        options = {"key": KEY, "secure": self.secure, **options}
        return Owner(self.algorithm, objective, n, self.path / str(n), **options)

    def stage(self, server, absent=()):
        """An exchange with all but the absent owners."""
        for n in range(self.algorithm.agents):
            if n in absent:
                continue
            try:
                reply = self.owner(n).answer(server.request(n))
            except RefusedError:
                continue  # it was absent in an earlier stage
            server.hear(reply)
        server.close()

    def until(self, server, round, stage):
        """Owner 0's request in a stage."""
        while (server.round, server.stage) != (round, stage):
            self.stage(server)
        return server.request(0)

    def whole(self, server):
        while not server.done:
            self.stage(server)

    def queries(self, server):
        name = f"{server.request().federation}.npz"
        agents = range(self.algorithm.agents)
        return np.stack([observations(self.path / str(n) / name).queries for n in agents], 1)


@pytest.mark.slow
def test_owners_of_secure_sums_query_what_drive_does(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    ring.whole(server)
    options = {"initial": INITIAL, "progress": False}
    _, trace = jaxbo.drive(WALK, objective, ROUNDS, KEY, **options)
    np.testing.assert_allclose(ring.queries(server), trace.queries, atol=0.01)
    assert server.present.all()
    assert server.ledger == LEDGER.charge(QUIET, ROUNDS)


GRID = jaxbo.Finite(jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 9)] * 2), -1).reshape(-1, 2))
#: The prior's weights are small, and so is this noise.
QUIETER = jaxbo.Mechanism(5e-4, 1.0, jaxbo.Poisson(1.0))
METHODS = {
    "DP-FTS-DE": jaxbo.DPFTSDE(GRID, 4, QUIET),
    "private learned prior": jaxbo.DPLearnedPrior(GRID, 4, 16, mechanism=QUIETER),
}


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_methods_with_secure_sums_query_what_drive_does(name, tmp_path):
    # An agent has units of its own from two values on. Before, a release of the prior is noise alone.
    ring = Ring(tmp_path, METHODS[name], SecureSum(threshold=3), initial=2)
    server = ring.server(rounds=4)
    ring.whole(server)
    _, trace = jaxbo.drive(METHODS[name], objective, 4, KEY, initial=2, progress=False)
    assert np.mean(np.any(ring.queries(server) != trace.queries, -1)) < 0.1  # the best two may tie


# ------------------------------------------------------------------------------- drop-outs


@stages(quick=MASKED)
def test_the_sum_is_that_of_all_who_sent_masked_numbers(stage, tmp_path, monkeypatch):
    ring = Ring(tmp_path)
    server = ring.server()
    while server.round < 0:
        ring.stage(server, absent=[1] if server.stage == stage else [])
    heard = [n for n in range(AGENTS) if n != 1 or stage == OPEN]
    np.testing.assert_array_equal(server.present[0], np.isin(range(AGENTS), heard))

    # The same owners and a server that sees messages.
    monkeypatch.setattr(coordinator, "fresh", lambda key: key)
    (tmp_path / "open").mkdir()
    plain = Ring(tmp_path / "open", secure=None)
    other = plain.server()
    request = other.request()
    for n in range(AGENTS):
        reply = plain.owner(n).answer(request)
        if n in heard:
            other.hear(reply)
    other.close()
    mine, theirs = (s.request().broadcast for s in (server, other))
    noise = theirs[".noise"] * SECURE.excess(len(heard))
    np.testing.assert_allclose(mine[".noise"], noise, rtol=1e-5)
    # A difference of 7 deviations is one of 4e11.
    apart = mine[".weights"] - theirs[".weights"]
    assert np.abs(apart).max() < 7 * np.hypot(noise, theirs[".noise"])


@pytest.mark.slow
@stages(quick=OPEN)
def test_below_the_threshold_a_round_ends_without_a_sum(stage, tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    ring.until(server, -1, stage)
    before = server.ledger.releases
    ring.stage(server, absent=[1, 3])
    assert (server.round, server.stage) == (0, KEYS)
    assert not server.present[0].any()
    assert not server.request().broadcast[".weights"].any()
    # Owners have begun to open a sum only in the last stage, and it was charged before.
    assert before == server.ledger.releases == (1 if stage == OPEN else 0)
    ring.whole(server)
    assert server.present[1].all()


@pytest.mark.slow
@stages(quick=SHARES)
def test_a_server_that_is_started_again_goes_on_in_the_middle_of_a_sum(stage, tmp_path):
    ring = Ring(tmp_path)
    ring.until(ring.server(), -1, stage)
    asked = [ring.running.request(n) for n in range(2)]
    for n, request in enumerate(asked):
        ring.running.hear(ring.owner(n).answer(request))  # which is lost
    server = ring.server()
    assert (server.round, server.stage) == (-1, stage)
    for n, request in enumerate(asked):
        jax.tree.map(np.testing.assert_array_equal, server.request(n)[-1], request[-1])
    ring.whole(server)
    assert server.present.all()
    assert server.ledger.releases == ROUNDS


@pytest.mark.full
def test_rounds_without_a_release_have_no_sum(tmp_path):
    ring = Ring(tmp_path, dataclasses.replace(WALK, releases=1.0))
    server = ring.server()
    stages = []
    while not server.done:
        stages.append((server.round, server.stage))
        ring.stage(server)
    assert not list(tmp_path.glob("*/*.sum"))  # with seeds that are of no use any more
    assert stages == [(-1, 0), (-1, 1), (-1, 2), (-1, 3), (0, 0), (1, 0)]
    assert server.ledger.releases == 1


# ---------------------------------------------------------------------- what owners refuse


def test_an_owner_answers_a_stage_again_with_the_same_bytes(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    for stage in (KEYS, SHARES, MASKED, OPEN):
        request = ring.until(server, -1, stage)
        one, again = (ring.owner(0).answer(request).message for _ in range(2))
        jax.tree.map(np.testing.assert_array_equal, one, again)


def _agents(*numbers, of=AGENTS):
    return np.isin(np.arange(of), numbers)


def _lists(request, **lists):
    named = {f"['{name}']": array for name, array in lists.items()}
    return request._replace(lists=request.lists | named)


def test_a_server_that_asks_for_both_kinds_of_shares_is_refused(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    request = ring.until(server, -1, OPEN)
    assert request.lists["['heard']"].all()
    ring.owner(0).answer(request)
    missing = _lists(request, heard=_agents(0, 1, 2))
    with pytest.raises(RefusedError, match="asks a second time, for something else"):
        ring.owner(0).answer(missing)
    # Nor can it ask some for one kind, and others for the other.
    with pytest.raises(
        ValueError, match=r"threshold must be above \(4 owners \+ 1 colluding\) / 2"
    ):
        Ring(tmp_path, secure=SecureSum(threshold=2)).server()


def test_an_owner_counts_for_itself_who_takes_part(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    few = "has 2 owners, below the threshold of 3"
    for stage, name in ((SHARES, "joined"), (MASKED, "sent"), (OPEN, "heard")):
        request = ring.until(server, -1, stage)
        with pytest.raises(RefusedError, match=few):
            ring.owner(0).answer(_lists(request, **{name: _agents(0, 1)}))
        ring.owner(0).answer(request)


def test_an_owner_refuses_lists_that_no_server_makes(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    request = ring.until(server, -1, SHARES)
    keys = request.lists["['keys']"]
    other, same = keys.copy(), keys.copy()
    other[0] += 1
    same[1] = same[2]
    for spoiled, reason in (
        (_lists(request, keys=other), "other keys of this owner"),
        (_lists(request, keys=same), "two owners have the same key"),
        (_lists(request, joined=_agents(1, 2, 3)), "this owner is not in the sum"),
        (request._replace(lists=None), "expected the arrays"),
        (_lists(request, keys=keys[:2]), "must be uint8 of shape"),
        (request._replace(stage=MASKED), "expected the arrays"),
        (request._replace(stage=7), "no stage 7"),
        (request._replace(round=0), "has not done round 0"),
    ):
        with pytest.raises(RefusedError, match=reason):
            ring.owner(0).answer(spoiled)
    ring.until(server, 0, KEYS)
    ring.stage(server, absent=[1])
    ring.stage(server)
    with pytest.raises(RefusedError, match="who were not in the stage before"):
        ring.owner(0).answer(_lists(server.request(0), sent=np.ones(AGENTS, bool)))
    ring.stage(server)
    with pytest.raises(RefusedError, match="who were not in the stage before"):
        ring.owner(0).answer(_lists(server.request(0), heard=np.ones(AGENTS, bool)))


def tell(ring, name, lists):
    """A stage in which owners are told lists of their own. An owner without one is not asked."""
    for n, row in enumerate(lists):
        if row is not None:
            told = _lists(
                ring.running.request(n), **{name: _agents(*row, of=ring.algorithm.agents)}
            )
            ring.running.hear(ring.owner(n).answer(told))
    ring.running.close()


OTHERS = "agent {} was told other lists than this owner"


def test_a_server_that_tells_owners_other_senders_gets_no_shares(tmp_path):
    three = dataclasses.replace(WALK, agents=3)
    ring = Ring(tmp_path, three, SecureSum(threshold=2, colluding=0))
    ring.until(ring.server(), -1, MASKED)
    # Owner 0 has a common mask with owner 1 alone.
    tell(ring, "sent", [(0, 1), (0, 1, 2), (0, 1, 2)])
    # Shares of owners 1 and 2 would give the own mask of 0 and the masking key of 1, thus 0's message.
    for n, heard, other in ((1, (0, 2), 0), (2, (0, 2), 0), (0, (0, 1), 1)):
        opening = _lists(ring.running.request(n), heard=_agents(*heard, of=3))
        with pytest.raises(RefusedError, match=OTHERS.format(other)):
            ring.owner(n).answer(opening)


def test_a_server_that_tells_owners_other_members_gets_no_shares(tmp_path):
    ring = Ring(tmp_path)
    ring.until(ring.server(), -1, SHARES)
    tell(ring, "joined", [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)])
    tell(ring, "sent", [(0, 1, 2), (0, 1, 2), (0, 1, 2), None])
    for n, other in ((0, 1), (1, 0), (2, 0)):
        opening = _lists(ring.running.request(n), heard=_agents(0, 1, 2))
        with pytest.raises(RefusedError, match=OTHERS.format(other)):
            ring.owner(n).answer(opening)


def test_an_owner_gives_no_shares_for_tags_that_are_not_for_it(tmp_path):
    ring = Ring(tmp_path)
    request = ring.until(ring.server(), -1, OPEN)
    tags, others = (ring.running.request(n).lists["['tags']"] for n in (0, 1))
    with np.load(tmp_path / "server.npz") as saved:
        mine = saved[f"{_server_memory.LISTS}tags"][0]  # for others, by this owner
    for spoiled in (tags ^ 1, others, mine, np.zeros_like(tags)):
        with pytest.raises(RefusedError, match="was told other lists than this owner"):
            ring.owner(0).answer(_lists(request, tags=spoiled))
    ring.owner(0).answer(request)


def test_an_owner_is_told_what_is_for_it_alone(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    for stage, name, size in ((MASKED, "boxes", masks.BOX), (OPEN, "tags", masks.TAG)):
        ring.until(server, -1, stage)
        told = [server.request(n).lists[f"['{name}']"] for n in range(AGENTS)]
        with np.load(tmp_path / "server.npz") as saved:
            all_ = saved[f"{_server_memory.LISTS}{name}"]
        assert all_.shape == (AGENTS, AGENTS, size)
        np.testing.assert_array_equal(np.stack(told, 1), all_)
        assert server.senders == {f"agent {n}": n for n in range(AGENTS)}
        with pytest.raises(ValueError, match="the number of the agent"):
            server.request()


def test_an_owner_takes_part_in_every_stage_or_not_at_all(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    shares = ring.until(server, -1, SHARES)
    skipped = shares._replace(stage=MASKED, lists=None)
    empty = np.zeros((AGENTS, masks.BOX), np.uint8)
    boxes = {"['boxes']": empty, "['sent']": np.ones(AGENTS, bool)}
    with pytest.raises(RefusedError, match="has not taken part in the stage before"):
        ring.owner(0).answer(skipped._replace(lists=boxes))
    masked = ring.until(server, -1, MASKED)
    tags = np.zeros((AGENTS, masks.TAG), np.uint8)
    lists = {"['heard']": np.ones(AGENTS, bool), "['tags']": tags}
    with pytest.raises(RefusedError, match="has not taken part in the stage before"):
        ring.owner(0).answer(masked._replace(stage=OPEN, lists=lists))
    with pytest.raises(RefusedError, match="this owner is not in the sum"):
        ring.owner(0).answer(_lists(masked, sent=_agents(1, 2, 3)))


def test_after_a_sum_an_owner_keeps_no_secret_of_it(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    asked = [ring.until(server, -1, stage) for stage in (KEYS, SHARES, MASKED, OPEN)]
    ring.owner(0).answer(asked[OPEN])
    (path,) = (tmp_path / "0").glob("*.sum")
    with np.load(path) as saved:
        assert set(saved.files) == {"manifest", "opened", "opened for"}
    for stage in (KEYS, SHARES, MASKED):
        with pytest.raises(RefusedError, match="has helped to open this sum already"):
            ring.owner(0).answer(asked[stage])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda mine, theirs: np.zeros_like(mine), "two owners have the same key"),
        (lambda mine, theirs: np.stack([mine[0], theirs[1]]), "two owners have the same key"),
        (lambda mine, theirs: np.stack([mine[0], 0 * mine[1]]), "same secret with everybody"),
    ],
)
def test_a_public_key_of_no_use_ends_no_round(spoil, reason, tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    request = server.request()
    replies = [ring.owner(n).answer(request) for n in range(AGENTS)]
    (mine, theirs) = (replies[n].message["['keys']"] for n in (3, 0))
    for reply in replies[:3]:
        server.hear(reply)
    spoiled = replies[3].message | {"['keys']": spoil(mine, theirs)}
    with pytest.raises(RefusedError, match=f"agent 3: .*{reason}"):
        server.hear(replies[3]._replace(message=spoiled))
    server.close()
    while server.round < 0:
        ring.stage(server)
    np.testing.assert_array_equal(server.present[0], [True, True, True, False])


def test_a_share_that_was_changed_on_its_way_is_refused(tmp_path):
    ring = Ring(tmp_path)
    request = ring.until(ring.server(), -1, MASKED)
    boxes = request.lists["['boxes']"].copy()
    boxes[2, 5] ^= 1
    theirs = ring.running.request(1).lists["['boxes']"]
    for spoiled, other in ((boxes, 2), (theirs, 0)):
        with pytest.raises(RefusedError, match=f"the share of agent {other} is damaged"):
            ring.owner(0).answer(_lists(request, boxes=spoiled))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(SECURE, None), (None, SECURE), (SECURE, SecureSum(4)), (SECURE, SecureSum(3, colluding=0))],
)
def test_an_owner_refuses_other_settings_than_its_own(mine, theirs, tmp_path):
    ring = Ring(tmp_path, secure=theirs)
    request = ring.server().request()
    with pytest.raises(RefusedError, match=r"settings of secure sums are .* this owner's"):
        ring.owner(0, secure=mine).answer(request)
    assert not list((tmp_path / "0").iterdir())


def test_an_owner_refuses_another_clip_or_noise(tmp_path):
    louder = dataclasses.replace(WALK, mechanism=jaxbo.Mechanism(5e-4, 40.0, jaxbo.Poisson(1.0)))
    request = Ring(tmp_path, louder).server().request()
    with pytest.raises(RefusedError, match="another algorithm"):
        Owner(WALK, objective, 0, tmp_path / "0", key=KEY, secure=SECURE).answer(request)


def test_a_server_refuses_who_was_not_in_the_stage_before(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    ring.until(server, -1, KEYS)
    early = ring.owner(0).answer(server.request())
    ring.stage(server, absent=[0])
    with pytest.raises(RefusedError, match="its message is of stage 0, this is 1"):
        server.hear(early)
    other = ring.owner(1).answer(server.request())
    with pytest.raises(RefusedError, match="it was not in the stage before"):
        server.hear(other._replace(agent=0))
    with pytest.raises(RefusedError, match="this owner is not in the sum"):
        ring.owner(0).answer(server.request())


def test_an_owner_with_two_nodes_gives_the_same_keys_by_both(tmp_path):
    """One of them has its number, and the other is new: the keys of two owners would not be the same."""
    ring = Ring(tmp_path)
    server = ring.server()
    for n in range(AGENTS):
        server.hear(ring.owner(n).answer(server.request()), f"node {n}")
    server.close()
    while server.stage != KEYS:
        ring.stage(server)
    reply = ring.owner(1).answer(server.request())
    for sender in ("a new node", "node 1"):
        server.hear(reply, sender)
    with pytest.raises(RefusedError, match="a new node: agent 1: it has been heard already"):
        server.hear(reply, "a new node")
    assert server.round == 0


def test_methods_whose_messages_are_not_summed_up_say_so(tmp_path):
    walk = Walk(SQUARE, AGENTS)
    for make in (
        lambda: Coordinator(walk, 1, KEY, tmp_path / "s.npz", secure=SECURE),
        lambda: Owner(walk, objective, 0, tmp_path, secure=SECURE),
    ):
        with pytest.raises(ValueError, match=r"Walk cannot have secure=.* needs a private method"):
            make()
    fixed = jaxbo.Mechanism(1.0, 1.0, jaxbo.FixedSize(2, agents=AGENTS))
    drawn = dataclasses.replace(WALK, mechanism=fixed)
    with pytest.raises(ValueError, match="owners of a secure sum draw themselves"):
        Coordinator(drawn, 1, KEY, tmp_path / "s.npz", ledger=LEDGER, secure=SECURE)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    said = r'pip install "jaxbo-agents\[secure\]"'
    with monkeypatch.context() as without:
        without.delattr(jaxbo.federation, "_masks")
        without.setitem(sys.modules, "jaxbo.federation._masks", None)
        with pytest.raises(ImportError, match=said):
            Owner(WALK, objective, 0, ".", secure=SECURE)
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)
    for need_noise in (
        lambda: Owner(WALK, objective, 0, ".", secure=SECURE),
        lambda: jaxbo.audit(WALK, lambda x: -x[0], 1, KEY, runs=100, secure=SECURE),
    ):
        with pytest.raises(ImportError, match=f"secure sums need opendp.*{said}"):
            need_noise()


# ------------------------------------------------------------------- what owners add


class Wide(SumWalk):
    """The same with many numbers in a sum."""

    def vector(self, message):
        return jnp.tile(message.weights, 80)


def units(server, algorithm):
    """The sum that was opened last, in units of the grid."""
    sensitivity = algorithm.mechanism.sensitivity(algorithm.weights(0))
    return server.request().broadcast[".weights"] * (UNIT / float(sensitivity))


@pytest.mark.slow
def test_a_sum_has_the_noise_of_all_owners_in_it(tmp_path, monkeypatch):
    size, z = 8000, 1.0
    parts = np.random.default_rng(0).integers(-300, 300, (AGENTS, size), np.int32)
    monkeypatch.setattr(_sides, "part", lambda *known: parts[int(known[3])])
    loud = Wide(SQUARE, AGENTS, mechanism=jaxbo.Mechanism(z, 20.0, jaxbo.Poisson(1.0)))
    ring = Ring(tmp_path, loud)
    server = ring.server()
    while server.round < 0:
        ring.stage(server)
    noise = units(server, loud) - parts.sum(0)
    expected = SECURE.share(z, size) * math.sqrt(AGENTS)
    # The deviation of 8000 numbers is itself known to 0.8 %.
    assert abs(noise.std() / expected - 1) < 0.04
    assert abs(noise.mean()) < 5 * expected / math.sqrt(size)
    assert stats.kstest(noise / expected, "norm").pvalue > 1e-7


@pytest.mark.slow
def test_owners_draw_themselves(tmp_path, monkeypatch):
    times, q = 15, 0.5
    one_hot = UNIT * np.eye(AGENTS, SIZE, dtype=np.int32)
    monkeypatch.setattr(_sides, "part", lambda *known: one_hot[int(known[3])])
    monkeypatch.setattr(distributed, "noise", lambda deviation, size: np.zeros(size, np.uint32))
    half = dataclasses.replace(WALK, mechanism=jaxbo.Mechanism(1.0, 20.0, jaxbo.Poisson(q)))
    ring = Ring(tmp_path, half)
    server = ring.server()
    parts, real = {}, OwnPart.answer

    def answer(self, request, part):
        if request.stage == MASKED:
            parts[self.agent] = np.array([part()[self.agent] for _ in range(times)]) / UNIT
        return real(self, request, part)

    monkeypatch.setattr(OwnPart, "answer", answer)
    while server.round < 0:
        ring.stage(server)
    drawn = np.array([parts[n] for n in range(AGENTS)])
    assert set(drawn.ravel().tolist()) <= {0, 1}
    low, high = stats.binom.interval(1 - 1e-7, drawn.size, q)
    assert low <= drawn.sum() <= high
    # The chance of owners who are all drawn together is 8^-15, that of the same sample always 16^-14.
    assert (drawn != drawn[:1]).any()
    assert (drawn != drawn[:, :1]).any()
    # The sum shows who was drawn for it.
    found = units(server, half) / UNIT
    np.testing.assert_allclose(found, (found > 0.5), atol=1e-5)
    assert not found[AGENTS:].any()


# ------------------------------------------------------------------------------------ masks


class Masked:
    """Owners and their masks, of fixed seeds."""

    def __init__(self, size=1000, agents=6, threshold=4):
        draw = np.random.default_rng(3)
        self.seeds = draw.integers(0, 256, (agents, 3, masks.SEED), np.uint8)
        keys = np.stack([masks.public(seeds) for seeds in self.seeds])
        self.ring = masks.Ring(b"federation 0", threshold, keys, np.ones(agents, bool))
        self.numbers = draw.integers(-(2**20), 2**20, (agents, size)).astype(np.uint32)
        self.boxes = np.stack([masks.boxes(self.ring, n, s) for n, s in enumerate(self.seeds)])

    def sent(self, agent, sent):
        return masks.masked(self.ring, agent, self.seeds[agent], sent, self.numbers[agent])

    def opened(self, sent, heard):
        found = np.zeros((len(sent), len(sent), masks.SEED), np.uint8)
        for n in np.flatnonzero(sent).tolist():
            received = masks.shares(self.ring, n, self.seeds[n], self.boxes[:, n], sent)
            found[n] = np.where(heard[:, None], received[:, 1], received[:, 0])
        return found


@pytest.mark.parametrize(
    ("sent", "heard", "helped"),
    [
        ("111111", "111111", "111111"),
        ("111101", "111101", "101101"),
        ("111111", "011101", "111011"),
    ],
)
def test_what_is_left_without_masks_is_the_sum(sent, heard, helped):
    some = Masked()
    sent, heard, helped = (np.array([c == "1" for c in text]) for text in (sent, heard, helped))
    total = sum(some.sent(n, sent) for n in np.flatnonzero(heard).tolist())
    opened = np.where(helped[:, None, None], some.opened(sent, heard), 0)
    found = masks.unmasked(some.ring, sent, heard, total, opened, helped)
    np.testing.assert_array_equal(found, some.numbers[heard].sum(0, dtype=np.uint32))


def test_shares_of_others_or_of_fewer_do_not_open_a_sum():
    some, all_ = Masked(), np.ones(6, bool)
    total = sum(some.sent(n, all_) for n in range(6))
    opened, expected = some.opened(all_, all_), some.numbers.sum(0, dtype=np.uint32)
    few = some.ring._replace(threshold=3)  # of four that are needed
    assert (masks.unmasked(few, all_, all_, total, opened, all_) != expected).mean() > 0.99
    heard = np.arange(6) != 2
    spoiled = some.opened(all_, heard)
    spoiled[1, 2] ^= 1
    with pytest.raises(RefusedError, match="the shares of agent 2 do not fit together"):
        masks.unmasked(some.ring, all_, heard, total, spoiled, all_)


def test_a_masked_message_alone_is_uniform():
    size = 2**16
    some, all_ = Masked(size), np.ones(6, bool)
    some.numbers[0] = 0  # the least uniform that there is
    hidden = {n: some.sent(n, all_) for n in (0, 1)}
    hidden["the difference of two"] = hidden[0] - hidden[1]
    hidden["all but one, of whom the last is hidden"] = sum(some.sent(n, all_) for n in range(1, 6))
    for name, numbers in hidden.items():
        for byte in range(4):
            counts = np.bincount((numbers >> (8 * byte)) & 255, minlength=256)
            # The seeds are fixed: of 16 such values, one is below 0.0001 for one choice of 600.
            assert stats.chisquare(counts).pvalue > 1e-4, (name, byte)


def test_masks_are_of_their_round_and_their_owners():
    some, all_ = Masked(8), np.ones(6, bool)
    other = some.ring._replace(name=b"federation 1")
    rings = [some.ring, other]
    found = [
        masks.masked(ring, n, some.seeds[n], all_, np.zeros(8, np.uint32))
        for ring, n in itertools.product(rings, range(6))
    ]
    assert len({one.tobytes() for one in found}) == 12


def test_the_servers_file_has_no_message_and_no_secret(tmp_path):
    ring = Ring(tmp_path)
    server = ring.server()
    ring.until(server, -1, OPEN)
    with np.load(tmp_path / "server.npz") as saved:
        names = {name.removeprefix(_server_memory.LISTS) for name in saved.files}
    assert names - {"manifest", "present", "names", ".weights", ".noise"} == {
        "keys", "joined", "senders", "sent", "tags", "total", "heard",
    }  # fmt: skip
