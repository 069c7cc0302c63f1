"""Owners and a server that exchange nothing but requests and replies, and may die at any time."""

import functools
import itertools
import os
import shutil
import stat
import threading
from concurrent.futures import BrokenExecutor

import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxbo
from bench.cepe.collaborative import IGPUCB, Collaborative
from jaxbo import CheckpointError
from jaxbo.algos.fts import FTS
from jaxbo.federation import (
    Coordinator,
    Owner,
    OwnerError,
    RefusedError,
    _sides,
    coordinator,
    observations,
)
from jaxbo.federation.wire import Request
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs import _archive, _released
from tests.walk import LEDGER, SIZE, PrivateWalk, Walk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, ROUNDS, INITIAL = 3, 4, 2
KEY = jr.key(7)
SQUARE = jaxbo.Cube(2)
PRIVATE = Mechanism(1.0, 5.0, Poisson(0.5))


def bowl(key, agent, x):
    """A compiled objective, other for each agent."""
    del key
    return -jnp.sum((x - 0.2 * (1 + agent).astype(x.dtype)) ** 2)


_bowl = jax.jit(bowl)


def measured(agent, x):
    """The same in Python."""
    return float(_bowl(jr.key(0), agent, x))


class World:
    """A server and its owners in one process, each with a folder."""

    def __init__(self, path, algorithm, objective=measured, key=KEY, owners_key=KEY, **options):
        self.path, self.algorithm, self.objective, self.owners_key = (
            path,
            algorithm,
            objective,
            owners_key,
        )
        self.options = {"initial": INITIAL, **options}
        self.key, self.running, self.replied = key, None, None
        for n in range(algorithm.agents):
            (path / str(n)).mkdir(exist_ok=True)

    def server(self, rounds=ROUNDS, **options):
        """One that begins or goes on; the one before is dead."""
        if self.running is not None:
            self.running.stop()
        self.running = Coordinator(
            self.algorithm, rounds, self.key, self.path / "server.npz", **self.options | options
        )
        return self.running

    def owner(self, n, **options):
        return Owner(
            self.algorithm,
            self.objective,
            n,
            self.path / str(n),
            **{"key": self.owners_key} | options,
        )

    def exchange(self, server, absent=()):
        """One round with all but the absent owners."""
        request = server.request()
        for n in range(self.algorithm.agents):
            if n not in absent:
                self.replied = self.owner(n).answer(request)
                server.hear(self.replied)
        server.close()

    def whole(self, server=None):
        server = server or self.server()
        while not server.done:
            self.exchange(server)
        return server

    def seen(self, server, n):
        return observations(self.path / str(n) / f"{server.request().federation}.npz")

    def queries(self, server):
        return np.stack([self.seen(server, n).queries for n in range(self.algorithm.agents)], 1)


GRID = jaxbo.Finite(jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 9)] * 2), -1).reshape(-1, 2))
FITTED = jaxbo.Fitted(capacity=16, refit_every=None, warp=False)
FITTED_EXACTLY = jaxbo.Fitted(capacity=16, refit_every=None, inference=jaxbo.Exact())
#: Few, since each owner makes the common part, which takes a quarter of a second of a hundred.
FEW = jaxbo.Fixed(size=16, noise=1e-3)
METHODS = {
    "FTS": FTS(GRID, AGENTS),
    "FTS once, pooled": FTS(SQUARE, AGENTS, once=True, own=FITTED, pooled=jaxbo.Pooled()),
    "DP-FTS-DE": jaxbo.DPFTSDE(GRID, AGENTS, PRIVATE),
    "CEPE": jaxbo.CEPE(GRID, AGENTS, jaxbo.schedules.growing(ROUNDS), initial_capacity=INITIAL),
    "Collaborative": Collaborative(GRID, AGENTS, IGPUCB(), size=32),
    "CEPE, which stops early": jaxbo.CEPE(
        GRID,
        AGENTS,
        jaxbo.schedules.first(ROUNDS),
        initial_capacity=INITIAL,
        stays=jaxbo.Stays(every=1, distance=1.0),
    ),
    "TS": jaxbo.TS(SQUARE, AGENTS),
    "learned prior": jaxbo.LearnedPrior(GRID, AGENTS, 16, rank=3, groups=2),
    "learned prior, features by evidence": jaxbo.LearnedPrior(
        GRID,
        AGENTS,
        16,
        rank=3,
        groups=2,
        features=[jaxbo.Fixed(jaxbo.SquaredExponential(5.0)), jaxbo.Fixed()],
    ),
    "learned prior in own units": jaxbo.LearnedPrior(GRID, AGENTS, 16, own_units=True),
    "private learned prior": jaxbo.DPLearnedPrior(
        GRID, AGENTS, 16, features=FEW, mechanism=PRIVATE
    ),
    "TAF": jaxbo.TAF(GRID, AGENTS, FITTED_EXACTLY),
    "RGPE": jaxbo.RGPE(GRID, AGENTS, FITTED_EXACTLY),
}


#: Most tests are of files and messages, not of methods.
WALK = Walk(SQUARE, AGENTS)
PRIVATE_WALK = PrivateWalk(SQUARE, AGENTS, mechanism=PRIVATE)


@functools.cache
def of_run():
    """The queries of a run of all agents."""
    return jaxbo.run(WALK, bowl, ROUNDS, KEY, initial=INITIAL)[1].queries


#: What JAX has traced, made a program of, or compiled in this process.
TRACED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: TRACED.append(event) if event.startswith("/jax/core/compile") else None
)

#: The others are made of the same parts. Flower carries DP-FTS-DE (`test_flower`).
SOME = ("FTS", "CEPE", "private learned prior")
#: Those that need a ledger.
CHARGED = ("DP-FTS-DE", "private learned prior")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.full) for n in METHODS]
)
def test_owners_query_what_run_does_and_trace_nothing_after_the_first_round(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr(coordinator, "fresh", lambda key: key)  # noise that can be told
    world = World(tmp_path, METHODS[name], ledger=LEDGER if name in CHARGED else None)
    server = world.server(rounds=3)
    traced = []  # in the invitation and in each round
    said = jaxbo.metrics.bytes_of(jaxbo.metrics.message_of(METHODS[name]))
    while not server.done:
        since = len(TRACED)
        world.exchange(server)
        sent = sum(array.nbytes for array in world.replied.message.values())
        assert sent == said
        traced.append(TRACED[since:])
    assert TRACED
    assert not any(traced[2:])
    _, trace = jaxbo.run(METHODS[name], bowl, 3, KEY, initial=INITIAL)
    # Rounding differs between one agent's program and that of all.
    np.testing.assert_allclose(world.queries(server), trace.queries, atol=2e-3)
    assert server.present.all()
    assert server.present.shape == (3, AGENTS)


@pytest.mark.parametrize("invariant", [False, True])
def test_owners_tell_their_models_what_drive_tells_them(invariant, tmp_path):
    # A method that takes values as they are gets them as they are.
    offset = -54321.0 if invariant else 0.0

    def objective(agent, x):
        return offset + 0.01 * measured(agent, x)

    algorithm = Walk(SQUARE, AGENTS, invariant)
    world = World(tmp_path, algorithm, objective)
    server = world.whole()
    options = {"initial": INITIAL, "progress": False}
    _, trace = jaxbo.drive(algorithm, objective, ROUNDS, KEY, **options)
    np.testing.assert_allclose(world.queries(server), trace.queries, atol=2e-3)
    for n in range(AGENTS):
        values = world.seen(server, n).values
        np.testing.assert_allclose(values, trace.values[:, n], rtol=0, atol=1e-4)
        assert len(set(values.tolist())) == len(set(trace.values[:, n].tolist())) > ROUNDS // 2


def test_who_is_away_is_absent_and_goes_on(tmp_path):
    away = {1: [2], 2: [0, 2]}  # round: who
    world = World(tmp_path, WALK)
    server = world.server()
    while not server.done:
        world.exchange(server, absent=away.get(server.round, ()))
    # A round that an owner misses it does not query in, and its message for the next is missing.
    present = np.ones((ROUNDS, AGENTS), bool)
    for round, who in away.items():
        present[round + 1, who] = False
    np.testing.assert_array_equal(server.present, present)

    calls = dict.fromkeys(range(AGENTS), -INITIAL)

    def sometimes(agent, x):
        round = calls[agent]
        calls[agent] += 1
        return np.nan if agent in away.get(round, ()) else measured(agent, x)

    # Who is away observes nothing, and `drive` knows no other way to say so than a failure. This method
    # does not remember where it was.
    options = {"initial": INITIAL, "present": jnp.asarray(present), "progress": False}
    with pytest.warns(RuntimeWarning, match="returned nan"):
        _, trace = jaxbo.drive(WALK, sometimes, ROUNDS, KEY, **options)
    for n in range(AGENTS):
        seen = world.seen(server, n)
        here = np.isfinite(np.asarray(trace.values)[:, n])
        expected = np.arange(-INITIAL, ROUNDS).clip(-1)[here]
        np.testing.assert_array_equal(seen.rounds, expected)
        np.testing.assert_allclose(seen.queries, trace.queries[here, n], atol=2e-3)


@pytest.mark.slow
def test_who_comes_late_joins(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    world.exchange(server, absent=[1])
    world.exchange(server, absent=[1])
    world.exchange(server)
    np.testing.assert_array_equal(server.present, [[1, 0, 1], [1, 0, 1], [1, 1, 1]])
    np.testing.assert_array_equal(world.seen(server, 1).rounds, [-1, -1, 1])


def test_who_knows_nothing_yet_is_heard(tmp_path):
    world = World(tmp_path, METHODS["TAF"], initial=0)  # an incumbent of -inf
    server = world.server()
    world.exchange(server)
    np.testing.assert_array_equal(server.present, [[True] * AGENTS])


@pytest.mark.slow
def test_two_servers_do_not_share_a_checkpoint(tmp_path):
    world = World(tmp_path, PRIVATE_WALK, ledger=LEDGER)
    server = world.server()
    with pytest.raises(CheckpointError, match=r"is in use by process .* this one: close"):
        Coordinator(PRIVATE_WALK, ROUNDS, KEY, tmp_path / "server.npz", ledger=LEDGER)
    server.stop()
    world.running = None
    world.exchange(world.server())


def test_what_no_server_asks_is_refused(tmp_path):
    world = World(tmp_path, METHODS["TAF"])  # of a capacity of 16
    server = world.server()
    world.exchange(server)
    request = server.request()
    for spoiled, reason in (
        (request._replace(round=-1), "an invitation has no broadcast"),
        (request._replace(broadcast=None), "a round has one"),
        (request._replace(round=2**40), "more evaluations"),
        (request._replace(round=-9), "more evaluations"),
        (request._replace(initial=17), "more evaluations"),
        (request._replace(setup=np.zeros(3, np.uint32)), "setup is no key"),
    ):
        with pytest.raises(RefusedError, match=reason):
            world.owner(0).answer(spoiled)
    assert len(world.seen(server, 0).values) == INITIAL


class Killed(BaseException):
    """Not an exception that anything catches."""


def test_an_owner_killed_at_any_moment_loses_the_evaluation_in_flight(tmp_path, monkeypatch):
    evaluated, calls = [], [0]

    def objective(agent, x):
        evaluated.append(x)
        return measured(agent, x)

    def fatal(function):
        def wrapped(*args, **kwargs):
            calls[0] += 1
            if calls[0] == moment:
                raise Killed
            result = function(*args, **kwargs)
            calls[0] += 1
            if calls[0] == moment:
                raise Killed
            return result

        return wrapped

    world = World(tmp_path, WALK, objective)
    server = world.server()
    requests = [server.request()]
    world.exchange(server)
    requests.append(server.request())
    expected = world.owner(0).answer(requests[1]).message[".weights"]
    whole = world.seen(server, 0)
    moment, finished = 0, False
    while not finished:
        moment, finished, calls[0] = moment + 1, True, 0
        folder = tmp_path / f"killed{moment}"
        folder.mkdir()
        evaluated.clear()
        with monkeypatch.context() as patch:
            patch.setattr(_archive.os, "replace", fatal(os.replace))
            try:
                for request in requests:
                    Owner(WALK, fatal(objective), 0, folder, key=KEY).answer(request)
            except Killed:
                finished = False
        found = Owner(WALK, objective, 0, folder, key=KEY).answer(requests[1]).message[".weights"]
        np.testing.assert_array_equal(found, expected, err_msg=str(moment))
        seen = observations(folder / f"{requests[0].federation}.npz")
        np.testing.assert_array_equal(seen.queries, whole.queries)
        np.testing.assert_array_equal(seen.values, whole.values)
        assert len(evaluated) <= INITIAL + 2
    assert moment > 4 * INITIAL + 4


def test_a_request_may_be_sent_again(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    world.exchange(server)
    request = server.request()
    one, again = (world.owner(0).answer(request) for _ in range(2))
    assert one._replace(message=None) == again._replace(message=None)
    for name, array in one.message.items():
        np.testing.assert_array_equal(again.message[name], array)
    np.testing.assert_array_equal(world.seen(server, 0).rounds, [-1, -1, 0])


def test_an_owner_makes_the_common_part_of_a_federation_once(tmp_path, monkeypatch):
    made, setup = [], _sides.setup
    monkeypatch.setattr(_sides, "setup", lambda walk, key: made.append(key) or setup(walk, key))
    worlds = [World(tmp_path, WALK, key=jr.key(seed), owners_key=None) for seed in range(2)]
    requests = [
        Coordinator(WALK, ROUNDS, world.key, tmp_path / f"{n}.npz", initial=INITIAL).request()
        for n, world in enumerate(worlds)
    ]
    made.clear()
    owner = worlds[0].owner(0)
    replies = [owner.answer(request) for request in (*requests, requests[1], requests[0])]
    assert [jr.key_data(key).tolist() for key in made] == [
        requests[n].setup.tolist() for n in (0, 1, 0)
    ]
    for first, again in (replies[::3], replies[1:3]):
        np.testing.assert_array_equal(first.message[".weights"], again.message[".weights"])
    for request in (*requests, requests[0]):
        expected = WALK.setup(jr.wrap_key_data(request.setup))
        jax.tree.map(np.testing.assert_array_equal, owner.common.of(request.setup), expected)


@pytest.mark.bitwise
def test_an_owner_answers_the_same_bits_whatever_has_been_compiled_before(tmp_path):
    world = World(tmp_path, WALK, initial=1)
    server = world.server(rounds=2)
    requests, replies = [], []
    while not server.done:
        requests.append(server.request())
        replies.append(world.owner(0).answer(requests[-1]))
        server.hear(replies[-1])
        server.close()
    jax.clear_caches()
    (tmp_path / "anew").mkdir()
    owner = Owner(WALK, measured, 0, tmp_path / "anew", key=KEY)
    for request, reply in zip(requests, replies, strict=True):
        again = owner.answer(request)
        for name, array in reply.message.items():
            np.testing.assert_array_equal(again.message[name], array, strict=True)


def test_two_requests_at_once_are_done_one_after_the_other(tmp_path):
    inside, most = [], []

    def objective(agent, x):
        inside.append(agent)
        most.append(len(inside))
        value = measured(agent, x)
        inside.remove(agent)
        return value

    world = World(tmp_path, WALK, objective)
    request = world.server().request()
    calls = [threading.Thread(target=world.owner(0).answer, args=(request,)) for _ in range(4)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert most == [1] * INITIAL


# ---------------------------------------------------------------- the server


def test_the_server_killed_between_any_two_steps_goes_on(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    while not server.done:
        request = server.request()
        server.hear(world.owner(0).answer(request))
        server = world.server()  # what it heard is lost, the round is not
        assert server.round == request.round
        again = server.request()
        assert again.federation == request.federation
        world.exchange(server)
        server = world.server()
    np.testing.assert_allclose(world.queries(server), of_run(), atol=2e-3)


@pytest.mark.slow
def test_a_run_that_is_over_can_be_made_longer(tmp_path):
    world = World(tmp_path, WALK)
    assert world.whole(world.server(rounds=2)).done
    server = world.server()
    assert not server.done
    world.whole(server)
    np.testing.assert_allclose(world.queries(server), of_run(), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"inference": jaxbo.Exact(), "refit_every": None}, pytest.param({}, marks=pytest.mark.full)],
)
def test_a_federation_is_given_more_room(more, tmp_path):
    def world(capacity, folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        surrogate = jaxbo.Fitted(capacity, size=8, **{"refit_every": 2} | more)
        return World(tmp_path / folder, jaxbo.TS(GRID, 2, surrogate))

    rounds = 3
    small = world(INITIAL + 1, "grown")
    small.whole(small.server(1))
    small.running.stop()
    with pytest.raises(ValueError, match=rf"write surrogate=Fitted\(capacity={INITIAL + rounds}\)"):
        small.server(rounds)
    grown, large = world(INITIAL + rounds, "grown"), world(INITIAL + rounds, "large")
    server, other = (one.whole(one.server(rounds)) for one in (grown, large))
    # Rounding differs with the size of a matrix.
    np.testing.assert_allclose(grown.queries(server), large.queries(other), atol=1e-6)


def test_an_owner_without_room_says_what_to_write(tmp_path):
    of = lambda capacity: jaxbo.TS(GRID, AGENTS, jaxbo.Fixed(capacity=capacity))  # noqa: E731
    world = World(tmp_path, of(INITIAL + ROUNDS))
    request = world.server().request()
    owner = Owner(of(1), measured, 0, tmp_path / "0", key=KEY)
    with pytest.raises(RefusedError, match=rf"write surrogate=Fixed\(…, capacity={INITIAL}\)"):
        owner.answer(request)


@pytest.mark.slow
def test_fewer_rounds_than_before_are_refused(tmp_path):
    world = World(tmp_path, WALK)
    world.whole(world.server(rounds=2))
    with pytest.raises(ValueError, match="has 2 rounds already, the run asks for 1"):
        world.server(rounds=1)


@pytest.mark.slow
def test_what_could_not_be_saved_is_not_sent(tmp_path, monkeypatch):
    world = World(tmp_path, PRIVATE_WALK, ledger=LEDGER)
    server = world.server()
    world.exchange(server)
    before = server.request()
    for n in range(AGENTS):
        server.hear(world.owner(n).answer(before))

    def full(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(_archive.os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            server.close()
    assert server.request().round == before.round
    assert server.ledger.releases == 1
    server.close()
    assert server.ledger.releases == 2


def test_a_round_without_an_answer_stays_open(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    with pytest.raises(RuntimeError, match="nobody answered"):
        server.close()
    assert server.round == -1
    world.exchange(server)
    assert server.round == 0


@pytest.mark.slow
def test_every_release_is_charged_and_none_is_made_twice(tmp_path):
    world = World(tmp_path, PRIVATE_WALK, ledger=LEDGER)
    server = world.server()
    released = {}
    while not server.done:
        server = world.server()
        request = server.request()
        if request.broadcast is not None:
            released.setdefault(request.round, request.broadcast)
            for name, array in released[request.round].items():
                np.testing.assert_array_equal(request.broadcast[name], array)
        assert server.ledger.releases == request.round + 1
        world.exchange(server)
    assert server.ledger.epsilon() == LEDGER.charge(PRIVATE, ROUNDS).epsilon()


@pytest.mark.slow
def test_rounds_after_the_last_release_cost_nothing_and_broadcast_the_same_prior(tmp_path):
    # Of so little noise that no release is taken for noise alone: the estimate of those is 0.
    quiet = Mechanism(0.1, 1.0, Poisson(0.5))
    private = jaxbo.DPLearnedPrior(GRID, AGENTS, 16, features=FEW, mechanism=quiet)
    world = World(tmp_path, private, ledger=LEDGER)
    server, means = world.server(), []
    while not server.done:
        if server.round >= 0:
            means.append(server.request().broadcast[".prior.mean"])
        world.exchange(server)
    assert server.ledger.epsilon() == LEDGER.charge(quiet, 3).epsilon()
    moved = [bool(np.any(one != other)) for one, other in itertools.pairwise(means)]
    assert moved == [True, True, *[False] * (ROUNDS - 3)]


@pytest.fixture(scope="module")
def two_releases(tmp_path_factory):
    """The folder of a server that has made two releases, and its file after the first."""
    folder = tmp_path_factory.mktemp("released")
    server = World(folder, PRIVATE_WALK, initial=0, ledger=LEDGER).server()
    server.close()
    before = (folder / "server.npz").read_bytes()
    server.close()
    server.stop()
    return folder, before


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["copy", "removed", "damaged", "counter", "elsewhere"])
def test_a_server_that_has_forgotten_releases_is_refused(lost, two_releases, tmp_path):
    whole, before = two_releases
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    world = World(tmp_path, PRIVATE_WALK, initial=0, ledger=LEDGER)
    path = tmp_path / "server.npz"
    text = {
        "copy": "older copy, with 1 of 2 releases",
        "removed": "has been removed",
        "damaged": "cannot be read",
        "counter": "copy without server.npz.released",
        "elsewhere": "copy without server.npz.released",
    }
    if lost == "copy":
        path.write_bytes(before)
    elif lost == "removed":
        path.unlink()
    elif lost == "damaged":
        path.write_bytes(path.read_bytes()[:-50])
    elif lost == "counter":
        _released.Released(path).counter.unlink()
    else:
        world.path = tmp_path / "elsewhere"
        world.path.mkdir()
        path.rename(world.path / "server.npz")
    with pytest.raises(CheckpointError, match=f"{text[lost]}.*: neither an older copy nor a new b"):
        world.server()


@pytest.mark.parametrize("another", ["key", "version"])
def test_a_server_of_another_run_is_not_told_to_forget_what_was_spent(
    another, tmp_path, monkeypatch
):
    algorithm, path = PRIVATE_WALK, tmp_path / "server.npz"
    Coordinator(algorithm, ROUNDS, KEY, path, ledger=LEDGER).stop()
    if another == "version":
        monkeypatch.setattr("jaxbo.federation._server_memory.FORMAT", 99)
    key = jr.key(99) if another == "key" else KEY
    text = f"{path.name} .*(another key|this version reads 99); .*another path with what has been spent"
    with pytest.raises(CheckpointError, match=text) as caught:
        Coordinator(algorithm, ROUNDS, key, path, ledger=LEDGER)
    assert "anew" not in str(caught.value)


def test_a_server_never_adds_the_same_noise_twice_whatever_is_put_back(tmp_path):
    world = World(tmp_path, PRIVATE_WALK, initial=0, ledger=LEDGER)
    server, files = world.server(), (tmp_path / "server.npz", tmp_path / "server.npz.released")
    before = [file.read_bytes() for file in files]
    sums = []
    for _ in range(2):
        server.close()
        sums.append(server.request().broadcast[".weights"])
        for file, content in zip(files, before, strict=True):
            file.write_bytes(content)
        server = world.server()
    assert np.abs(sums[0] - sums[1]).min() > 0


@pytest.mark.slow
def test_a_server_killed_before_its_release_was_counted_goes_on(tmp_path, monkeypatch):
    world = World(tmp_path, PRIVATE_WALK, initial=0, ledger=LEDGER)
    server = world.server()

    def killed(self, ledger):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(_released.Released, "grow", killed)
        with pytest.raises(Killed):
            server.close()
    assert server.request().round == -1  # nobody has heard of the release
    server = world.server()
    assert (server.round, server.ledger.releases) == (0, 1)
    world.exchange(server)
    assert server.ledger.releases == 2


def seen_by_all(server, answers):
    """All that owners see of a federation in which `answers` come, but the numbers of the noise."""
    seen = []
    while not server.done:
        request = server.request()
        seen.append((request.round, request.initial, request.algorithm))
        if request.broadcast is not None:
            seen.append([(n, a.shape, a.dtype) for n, a in sorted(request.broadcast.items())])
        answers(server, request)
        server.close()
    return seen, server.ledger


FEW_RELEASES = PrivateWalk(SQUARE, AGENTS, mechanism=PRIVATE, releases=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "releases"),
    [
        (FEW_RELEASES, 3),
        pytest.param(METHODS[CHARGED[0]], ROUNDS, marks=pytest.mark.full),
        pytest.param(METHODS[CHARGED[1]], 3, marks=pytest.mark.full),
    ],
)
@pytest.mark.filterwarnings("ignore:the first release is charged")  # it has no initial points
def test_whether_the_only_owner_is_there_changes_nothing_but_the_sum(algorithm, releases, tmp_path):
    outcomes = []
    for name, answering in (("away", False), ("there", True)):
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, algorithm, initial=0, ledger=LEDGER)

        def answers(server, request, world=world, answering=answering):
            if answering:
                server.hear(world.owner(0).answer(request))

        outcomes.append(seen_by_all(world.server(), answers))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1].releases == releases


@pytest.mark.slow
def test_a_round_of_nobodys_releases_noise(tmp_path):
    world = World(tmp_path, METHODS["DP-FTS-DE"], ledger=LEDGER)
    server = world.server()
    vectors = []
    while not server.close().any() and not server.done:
        vectors.append(server.request().broadcast[".vectors"])
    algorithm = METHODS["DP-FTS-DE"]
    for round, noise in enumerate(vectors):
        deviation = float(PRIVATE.deviation(algorithm.weights(jnp.asarray(round))))
        assert np.std(noise) == pytest.approx(deviation, rel=0.25)
    assert len(vectors) == server.ledger.releases == ROUNDS
    np.testing.assert_array_equal(server.present, np.zeros((ROUNDS, AGENTS), bool))


def test_private_releases_without_a_ledger_are_refused(tmp_path):
    for algorithm in (METHODS["DP-FTS-DE"], jaxbo.DPFTSDE(GRID, AGENTS, PRIVATE, releases=1)):
        with pytest.raises(ValueError, match="private only with a ledger"):
            World(tmp_path, algorithm).server()
    assert not (tmp_path / "server.npz").exists()
    public = jaxbo.DPFTSDE(GRID, AGENTS, Mechanism(0.0, np.inf, Poisson(1.0)))
    for algorithm in (public, jaxbo.DPFTSDE(GRID, AGENTS, PRIVATE, releases=0)):
        World(tmp_path, algorithm).server().stop()
        (tmp_path / "server.npz").unlink()


def test_noise_with_a_ledger_is_nobodys_to_guess(tmp_path):
    vectors = []
    for name in "ab":
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, PRIVATE_WALK, ledger=LEDGER)
        server = world.server()
        world.exchange(server)
        vectors.append(server.request().broadcast[".weights"])
    assert not np.array_equal(*vectors)


def test_a_budget_that_does_not_pay_is_refused_before_anything_is_sent(tmp_path):
    world = World(tmp_path, PRIVATE_WALK)
    with pytest.raises(jaxbo.BudgetError, match="pays for"):
        world.server(ledger=jaxbo.Ledger(delta=1e-5, budget=1e-3))
    assert not (tmp_path / "server.npz").exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    World(tmp_path, WALK).server().stop()
    for other, what in (
        (World(tmp_path, METHODS["FTS"]), "algorithm"),
        (World(tmp_path, WALK, key=jr.key(8)), "key"),
        (World(tmp_path, WALK, initial=1), "initial"),
    ):
        with pytest.raises(CheckpointError, match=f"another .*{what}"):
            other.server()
    other.running = None
    (tmp_path / "server.npz").write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="neither an older copy nor a new beginning"):
        World(tmp_path, PRIVATE_WALK).server(ledger=LEDGER)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        World(tmp_path, WALK).server()


# ---------------------------------------------------------------- what is refused


def _with(reply, **arrays):
    return reply._replace(message=reply.message | arrays)


REFUSED = {
    "shape": (lambda r: _with(r, **{".weights": np.zeros(3, np.float32)}), "must be float32 of"),
    "precision": (
        lambda r: _with(r, **{".weights": r.message[".weights"].astype(np.float64)}),
        "got float64",
    ),
    "not finite": (
        lambda r: _with(r, **{".weights": np.full_like(r.message[".weights"], np.nan)}),
        "not finite",
    ),
    "names": (lambda r: _with(r, extra=np.zeros(1)), "expected the arrays"),
    "old": (lambda r: r._replace(round=r.round - 1), "follows round"),
    "algorithm": (lambda r: r._replace(algorithm="other"), "another federation or algorithm"),
    "federation": (lambda r: r._replace(federation="00"), "another federation or algorithm"),
    "nobody": (lambda r: r._replace(agent=AGENTS), "there are 3 agents"),
    "less": (lambda r: r._replace(agent=-1), "there are 3 agents"),
    "twice": (lambda r: r._replace(agent=1), "has been heard"),
}


def _message(message):
    return lambda reply: reply._replace(message=message)


def _weights(weights):
    return _message({".weights": weights})


NOT_EVEN = {
    "nothing": lambda r: None,
    "a list": lambda r: list(r),
    "text": lambda r: "reply",
    "a number": lambda r: 3,
    "a request": lambda r: server_request(),
    "no message": _message(None),
    "a list of arrays": _message([np.zeros(SIZE, np.float32)]),
    "text for a message": _message("weights"),
    "names that are none": _message({0: None, None: 0, (): ""}),
    "many names": lambda r: _with(r, **{f"n{i}": None for i in range(10_000)}),
    "a list for an array": _weights([0.0] * SIZE),
    "None for an array": _weights(None),
    "an archive": _weights({"arr_0": np.zeros(SIZE, np.float32)}),
    "objects": _weights(np.full(SIZE, None)),
    "a masked array": _weights(np.ma.zeros(SIZE, np.float32)),
    "the other end first": _weights(np.zeros(SIZE, ">f4")),
    "four hundred gigabytes": _weights(np.broadcast_to(np.float32(0), (10**11,))),
    "agent 0.0": lambda r: r._replace(agent=0.0),
    "agent True": lambda r: r._replace(agent=True),
    "agent None": lambda r: r._replace(agent=None),
    "agent of NumPy": lambda r: r._replace(agent=np.int64(0)),
    "agents": lambda r: r._replace(agent=[0]),
    "an array of agents": lambda r: r._replace(agent=np.arange(3)),
    "agent 10^100": lambda r: r._replace(agent=10**100),
    "round 0.0": lambda r: r._replace(round=float(r.round)),
    "no round": lambda r: r._replace(round=None),
    "federation of bytes": lambda r: r._replace(federation=r.federation.encode()),
}


def server_request():
    return Request("00", jaxbo.__version__, "", -1, 0, np.zeros(2, np.uint32), None)


@pytest.fixture(scope="module")
def open_round(tmp_path_factory):
    """A server whose round is open, and the reply of agent 0, which it has not heard."""
    path = tmp_path_factory.mktemp("open")
    world = World(path, WALK)
    server = world.server()
    yield server, world.owner(0).answer(server.request())
    server.stop()


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("name", NOT_EVEN)
def test_whatever_comes_in_the_place_of_a_reply_is_refused(name, open_round):
    server, reply = open_round
    with pytest.raises(RefusedError):
        server.hear(NOT_EVEN[name](reply))


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_refusals_are_counted_by_name(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    reply = world.owner(1).answer(server.request())
    for times, text in ((1, r"agent 1: .*finite\.$"), (2, r"agent 1 \(2 refused\): .*finite")):
        with pytest.raises(RefusedError, match=text):
            server.hear(_with(reply, **{".weights": np.full(SIZE, np.nan, np.float32)}))
        assert server.refused == {"agent 1": times}
    for nobody in (None, reply._replace(agent=1.0), reply._replace(agent=10**9)):
        with pytest.raises(RefusedError):
            server.hear(nobody)
    assert server.refused == {"agent 1": 2, "a reply that names no agent": 3}
    for unusable in (reply._replace(round=7), RefusedError("it cannot be read.")):
        with pytest.raises(RefusedError, match=r"owner 5.*: (agent 1: its message|.*cannot be)"):
            server.hear(unusable, "owner 5")
    assert server.refused == {"agent 1": 2, "a reply that names no agent": 3, "owner 5": 2}
    server.hear(reply)
    server.close()
    np.testing.assert_array_equal(server.present, [[False, True, False]])


@pytest.mark.usefixtures("as_users_have_it")
def test_a_sender_who_has_a_number_is_heard_whoever_answered_with_it_before(tmp_path, caplog):
    world = World(tmp_path, WALK)
    server = world.server()
    for n in range(2):
        server.hear(world.owner(n).answer(server.request()), f"node {n}")
    server.close()
    server = world.server()  # names are in its file
    replies = [world.owner(n).answer(server.request()) for n in range(AGENTS)]
    other = _with(replies[1], **{".weights": np.full(SIZE, 7.0, np.float32)})
    with pytest.raises(RefusedError, match=r"node 0: agent 1: node 0 is agent 0, and node 1 is"):
        server.hear(other, "node 0")
    server.hear(other, "a new node")
    with pytest.raises(RefusedError, match=r"a new node: agent 2: .* answered as agent 1"):
        server.hear(replies[2], "a new node")
    server.hear(replies[1], "node 1")
    assert "node 1 is agent 1: a new node is not heard" in caplog.text
    for sender, by in (("node 1", ""), ("a new node", ", from node 1")):
        with pytest.raises(
            RefusedError, match=rf"{sender}.*: agent 1: it has been heard already{by}\.$"
        ):
            server.hear(other, sender)
    server.close()
    np.testing.assert_array_equal(server.present[1], [False, True, False])
    told = server.request().broadcast[".weights"]  # the sum of all who were heard
    np.testing.assert_array_equal(told, replies[1].message[".weights"])


@pytest.mark.usefixtures("as_users_have_it")
def test_a_number_that_was_used_without_a_name_is_that_of_the_first_sender_with_one(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    for name in (lambda n: None, lambda n: f"node {n}"):
        for n in range(2):
            server.hear(world.owner(n).answer(server.request()), name(n))
        server.close()
    np.testing.assert_array_equal(server.present[:, :2], True)
    reply = world.owner(1).answer(server.request())
    with pytest.raises(RefusedError, match=r"node 0: agent 1: node 0 is agent 0, and node 1 is"):
        server.hear(reply, "node 0")


# What JSON, a config record or a careless program could make of a field.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
DTYPES = (
    np.float32,
    np.float64,
    np.int32,
    np.uint8,
    bool,
    np.complex64,
    ">f4",
    "S3",
    "M8[s]",
    object,
)


def filled(dtype, shape, fill):
    with np.errstate(all="ignore"):  # NaN is no whole number
        return np.full(shape, fill).astype(dtype)


ARRAYS = st.builds(
    filled,
    st.sampled_from(DTYPES[:7]),
    st.sampled_from([(), (0,), (SIZE,), (SIZE, 1), (1, SIZE), (SIZE + 1,)]),
    st.sampled_from([0.0, 1.0, -1e38, np.inf, np.nan]),
) | st.sampled_from([np.zeros(SIZE, dtype) for dtype in DTYPES[7:]])  # fmt: skip
WEIGHTS = st.just(".weights")
MESSAGES = st.dictionaries(WEIGHTS | st.text(max_size=9), ARRAYS | ANYTHING, max_size=3)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "federation": ANYTHING,
        "algorithm": ANYTHING,
        "round": ANYTHING | st.integers(-2, 1),
        "agent": ANYTHING | st.integers(-1, AGENTS),
        "message": MESSAGES | st.dictionaries(WEIGHTS, ARRAYS, min_size=1) | ANYTHING,
    },
)


def usable(reply, honest):
    """Whether it is as good as an honest one: written apart from what is tested."""
    if reply[:3] != honest[:3] or list(map(type, reply[:3])) != [str, str, int]:
        return False
    if type(reply.agent) is not int or not 0 <= reply.agent < AGENTS:
        return False
    if type(reply.message) is not dict or list(reply.message) != [".weights"]:
        return False
    weights = reply.message[".weights"]
    if type(weights) is not np.ndarray or weights.dtype != np.float32:
        return False
    return weights.shape == (SIZE,) and bool(np.isfinite(weights).all())


def hears_what_is_usable_alone(open_round, fields):
    server, honest = open_round
    reply = honest._replace(**fields)
    try:
        server.hear(reply)
    except RefusedError:
        assert not usable(reply, honest)
    else:
        assert usable(reply, honest)
    server._messages.clear()


ONE_MESSAGE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.usefixtures("as_users_have_it")
@settings(max_examples=100, derandomize=True, **ONE_MESSAGE)
@given(fields=FIELDS)
def test_a_server_hears_what_is_usable_alone(open_round, fields):
    hears_what_is_usable_alone(open_round, fields)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("as_users_have_it")
@settings(max_examples=10_000, **ONE_MESSAGE)
@given(fields=FIELDS)
def test_a_server_hears_what_is_usable_alone_in_ten_thousand_messages(open_round, fields):
    hears_what_is_usable_alone(open_round, fields)


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "federation": ANYTHING,
        "algorithm": ANYTHING,
        "round": ANYTHING.filter(lambda round: type(round) is not int or round != -1),
        "initial": ANYTHING.filter(lambda initial: type(initial) is not int or initial < 0),
        "setup": ANYTHING | ARRAYS,
        "broadcast": (MESSAGES | ANYTHING).filter(lambda arrays: arrays is not None),
    },
).filter(bool)


@pytest.mark.usefixtures("as_users_have_it")
@settings(max_examples=50, derandomize=True, **ONE_MESSAGE)
@given(fields=REQUESTS)
def test_an_owner_refuses_what_no_server_asks(open_round, tmp_path_factory, fields):
    server, _ = open_round
    owner = Owner(WALK, never, 0, tmp_path_factory.getbasetemp(), key=KEY)
    request = server.request()._replace(**fields)
    with pytest.raises(RefusedError):
        owner.answer(request)
    with pytest.raises(RefusedError, match="expected a request"):
        owner.answer(list(request))


def never(agent, x):
    pytest.fail("it has been evaluated")


def test_a_reply_of_no_use_is_refused_by_name_and_its_agent_absent(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    request = server.request()
    replies = [world.owner(n).answer(request) for n in range(AGENTS)]
    for reply in replies[1:]:
        server.hear(reply)
    for spoil, reason in REFUSED.values():
        bad = spoil(replies[0])
        server.refused.clear()
        with pytest.raises(RefusedError, match=f"agent {bad.agent}: .*{reason}"):
            server.hear(bad)
    server.close()
    np.testing.assert_array_equal(server.present, [[False, True, True]])


INVARIANT = Walk(SQUARE, AGENTS, invariant=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "scale", "offset", "text"),
    [
        (WALK, 1e-3, -54321.0, "subtract a constant"),
        (INVARIANT, 1e-3, -54321.0, None),
        (INVARIANT, 1e-25, 0.0, "multiply them"),
        (INVARIANT, 1e25, 0.0, "divide them"),
    ],
    ids=["offset, as it is", "offset, less the first", "small", "large"],
)
def test_an_owner_says_once_that_float32_cuts_its_values(
    algorithm, scale, offset, text, tmp_path, caplog, x64
):
    world = World(tmp_path, algorithm, lambda agent, x: offset + scale * measured(agent, x))
    server = world.server(initial=4)
    for _ in range(2):
        world.exchange(server, absent=(1, 2))
    said = [one.getMessage() for one in caplog.records if one.name == "jaxbo.federation.owner"]
    assert len(said) == (text is not None and not x64)
    assert all(text in one for one in said)


def test_an_owner_refuses_another_algorithm_and_the_past(tmp_path):
    world = World(tmp_path, WALK)
    server = world.server()
    invitation = server.request()
    world.exchange(server)
    world.exchange(server)
    with pytest.raises(RefusedError, match="has done round 0, the server asks for -1"):
        world.owner(0).answer(invitation)
    with pytest.raises(RefusedError, match="another algorithm"):
        Owner(METHODS["FTS"], measured, 0, tmp_path / "0").answer(server.request())
    with pytest.raises(RefusedError, match="another key"):
        world.owner(0, key=jr.key(1)).answer(server.request())
    with pytest.raises(
        RefusedError, match=rf"jaxbo 0.0.1, this owner {jaxbo.__version__}: both need"
    ):
        world.owner(0).answer(server.request()._replace(version="0.0.1"))
    with pytest.raises(RefusedError, match="name of the federation"):
        world.owner(0).answer(server.request()._replace(federation="../0"))
    with pytest.raises(RefusedError, match="expected the arrays"):
        world.owner(0).answer(server.request()._replace(broadcast={}))
    with pytest.raises(CheckpointError, match="another agent"):
        Owner(WALK, measured, 1, tmp_path / "0").answer(server.request())
    assert len(world.seen(server, 0).values) == INITIAL + 1


def test_what_cannot_be_taken_apart_is_refused():
    common = jaxbo.CEPE(SQUARE, AGENTS, jaxbo.schedules.growing(ROUNDS))
    with pytest.raises(ValueError, match="initial_capacity=1"):
        Coordinator(common, ROUNDS, KEY, "server.npz")
    with pytest.raises(ValueError, match="all agents of a federation query"):
        Coordinator(FTS(SQUARE, AGENTS, targets=1), ROUNDS, KEY, "server.npz")
    with pytest.raises(ValueError, match="agent must be one of 3"):
        Owner(WALK, measured, 3, ".")
    with pytest.raises(ValueError, match="does not exist"):
        Owner(WALK, measured, 0, "/nowhere")
    small = FTS(SQUARE, AGENTS, features=jaxbo.Fixed(capacity=3))
    with pytest.raises(ValueError, match="capacity of 3"):
        Coordinator(small, ROUNDS, KEY, "server.npz")


# ---------------------------------------------------------------- what stays at home


def test_an_owners_draws_are_its_own(tmp_path):
    world = World(tmp_path, WALK, owners_key=None)
    server = world.whole()
    queries = world.queries(server)
    # Even the initial design: nobody can tell what it was.
    assert np.abs(queries - of_run()).max(axis=(1, 2)).min() > 1e-2
    assert len({tuple(x) for x in queries[0]}) == AGENTS
    for n in range(AGENTS):
        file = tmp_path / str(n) / f"{server.request().federation}.npz"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit])
def test_a_failed_evaluation_is_survived_and_logged_at_home(error, tmp_path, caplog):
    def objective(agent, x):
        if agent == 1:
            raise error("secret 42")
        return measured(agent, x)

    world = World(tmp_path, WALK, objective)
    server = world.whole()
    assert np.isnan(world.seen(server, 1).values).all()
    assert np.isfinite(world.seen(server, 0).values).all()
    assert "secret 42" in caplog.text
    assert server.present.all()


@pytest.mark.parametrize("objective", [lambda a, x: "secret 42", lambda a, x: [1.0, 42.0]])
def test_what_is_no_number_is_the_owners_mistake(objective, tmp_path):
    world = World(tmp_path, WALK, objective)
    with pytest.raises(OwnerError) as caught:
        world.owner(0).answer(world.server().request())
    assert "42" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "catch"),
    [(ArithmeticError, KeyError), (SystemExit, KeyError), (BrokenExecutor, Exception)],
)
def test_an_exception_that_is_not_caught_does_not_travel(error, catch, tmp_path):
    def objective(agent, x):
        raise error("secret 42")

    world = World(tmp_path, WALK, objective)
    with pytest.raises(OwnerError) as caught:
        world.owner(0, catch=catch).answer(world.server().request())
    assert "42" not in str(caught.value)
