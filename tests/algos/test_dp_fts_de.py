"""DP-FTS-DE: what is explored, what is broadcast, what is maximized, and what an agent can learn."""

import dataclasses
import functools
import itertools
import json
import os
import shutil
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.extend import core
from scipy import stats

from jaxbo import CheckpointError, SimulationWarning, drive, run
from jaxbo._keys import unwrap, wrap
from jaxbo.algos.dp_fts_de import BROADCAST, DPFTSDE, private_bound
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.domains.parameters import Categorical, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.privacy import accounting
from jaxbo.privacy.ledger import BudgetError, Ledger
from jaxbo.privacy.mechanism import AdaptiveClip, FixedSize, Mechanism, Poisson, Weighting
from jaxbo.runs import _archive, _simulation
from jaxbo.schedules import Constant, Table

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

NEVER = 1e-9
SMALL = Fixed(SquaredExponential(0.2), size=20)
PUBLIC = Mechanism(0.0, jnp.inf, Poisson(1.0))
FINITE = Finite(np.random.default_rng(1).random((150, 2)))
SPACE = Space(rate=Real(1e-3, 1.0, log=True), kind=Categorical("a", "b"))
AGENTS = 8
AGENT = jnp.asarray(3)


EVERYONE = np.ones(AGENTS, bool)
OWN = Fitted(12, size=20, refit_every=None)
#: What all have seen before the start.
X = np.random.default_rng(2).random((6, AGENTS, 2)).astype(FINITE.points.dtype)
Y = np.sin(3 * X + np.arange(AGENTS)[None, :, None] / 9).sum(axis=-1).astype(X.dtype)


def method(mechanism=PUBLIC, domain=FINITE, **options):
    """On points to choose from, unless a search is tried: nothing of it has to be compiled."""
    options = {"features": SMALL, "candidates": 64} | options
    return DPFTSDE(domain, AGENTS, mechanism, **options)


def hill(key, agent, x):
    return jnp.sum(jnp.sin(3 * x + agent / 9))


@eqx.filter_jit
def _told(algorithm, key):
    return algorithm.warm_start(algorithm.init(key), jnp.asarray(X), jnp.asarray(Y))


def told(own=None, seed=0):
    """The state after these values, which is the same on each domain of two dimensions."""
    return _told(method(own=own), jr.key(seed))


def parts(algorithm, state, key, present):
    """Messages and the broadcast of a round, and each agent's key."""
    fold = jax.vmap(lambda n: jr.fold_in(key, n))(jnp.arange(AGENTS))
    messages = jax.vmap(lambda k, c: algorithm.message(k, state.shared, c))(fold, state.clients)
    return (
        fold,
        messages,
        algorithm.aggregate(key, state.shared, state.round, messages, present),
    )


@eqx.filter_jit
def broadcasts(algorithm, state, keys):
    """What was sent and broadcast in a round, with each key, and how agents count in it.

    All are there, and then all but the fifth.
    """

    def one(key, present):
        _, messages, broadcast = parts(algorithm, state, key, present)
        return messages.weights, broadcast.vectors

    both = jnp.asarray([EVERYONE, np.arange(AGENTS) != 5])
    each = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
    return *each(keys, both), algorithm.weights(state.round)


@eqx.filter_jit
def asked(algorithm, state, key):
    """Queries, info, and what was sent and broadcast in a round, its parts one after the other."""
    fold, messages, broadcast = parts(algorithm, state, key, jnp.asarray(EVERYONE))

    def choose(key, client, past, message):
        return algorithm.choose(key, state.shared, client, past, message, broadcast)

    queries, info = jax.vmap(choose)(fold, state.clients, state.past, messages)
    return queries, info.source, messages.weights, broadcast.vectors


@eqx.filter_jit
def mapped(algorithm, phi, points):
    """Of each point the features, the region, and whether it is in the domain."""
    maps = phi, algorithm.regions.assign, algorithm.domain.contains
    return tuple(jax.vmap(each)(points) for each in maps)


KINDS = {
    "frequent": (0.0, jnp.inf, 1.0, jnp.inf, [0.2, 0.5, 0.9]),
    "released twice": (1.0, 5.0, 0.5, 2.0, [NEVER] * 3),
    "little noise": (0.1, 1.0, 1.0, 5.0, [0.5] * 3),
    "more noise": (1.0, 1.0, 0.5, 5.0, [0.5] * 3),
    "much noise": (4.0, 1.0, 0.2, 5.0, [0.5] * 3),
}


@functools.cache
def runs():
    """Traces of five rounds: many frequent ones, and one of each other kind. All are one program."""

    def one(key, z, S, q, releases, probabilities):
        mechanism = Mechanism(z, S, Poisson(q))
        algorithm = method(mechanism, releases=releases, mixing=Table(probabilities))
        trace = run(algorithm, hill, 5, key, initial=3)[1]
        return trace.queries, trace.values, trace.info.source

    kinds = ["frequent"] * 500 + list(KINDS)[1:]
    keys = jr.split(jr.key(1), 500)[jnp.minimum(np.arange(len(kinds)), 499)]
    columns = zip(*(KINDS[kind] for kind in kinds), strict=True)
    found = jax.jit(jax.vmap(one))(keys, *(jnp.asarray(column, float) for column in columns))
    return {
        kind: tuple(np.asarray(leaf)[[k == kind for k in kinds]] for leaf in found)
        for kind in KINDS
    }


# ---------------------------------------------------------------- distributed exploration


@eqx.filter_jit
def first_points(algorithm, keys, agents):
    """Of each agent with each key, with their regions and whether the domain has and allows them."""

    def one(key, n):
        x = algorithm.initial(jr.fold_in(key, n), n)
        return x, algorithm.regions.assign(x), algorithm.domain.contains(x)

    return jax.vmap(lambda key: jax.vmap(lambda n: one(key, n))(agents))(keys)


DOMAINS = {"cube": Cube(2), "finite": FINITE, "cube3": Cube(3)}


@pytest.mark.parametrize(
    ("domain", "count"),
    [
        pytest.param(*pair, marks=() if pair in quick else pytest.mark.full)
        for quick in [{("cube", 1), ("cube", 4), ("finite", 4), ("cube3", 3)}]
        for pair in itertools.product(DOMAINS, (1, 3, 4))
    ],
)
def test_initial_points_are_uniform_in_ones_own_region(domain, count, key):
    domain = DOMAINS[domain]
    algorithm = method(domain=domain, regions=Regions.of(domain.dim, count))
    points, region, inside = first_points(algorithm, jr.split(key, 500), np.arange(AGENTS))
    np.testing.assert_array_equal(region, np.broadcast_to(np.arange(AGENTS) % count, region.shape))
    assert inside.all()
    if not isinstance(domain, Finite):
        lower, upper = (
            np.asarray(algorithm.regions.lower[0]),
            np.asarray(algorithm.regions.upper[0]),
        )
        scaled = (np.asarray(points[:, 0]) - lower) / (upper - lower)
        for axis in range(domain.dim):
            assert stats.kstest(scaled[:, axis], "uniform").pvalue > 1e-4


def test_without_distribution_initial_points_are_those_of_other_methods(key):
    alone = method(domain=Cube(2), distributed=False)
    other = FTS(Cube(2), AGENTS)
    np.testing.assert_array_equal(alone.initial(key, AGENT), other.initial(key, AGENT))


def test_a_region_without_points_of_the_domain_is_explored_elsewhere(key):
    domain = Finite(np.asarray([[0.1, 0.1], [0.2, 0.3]]))
    algorithm = method(domain=domain, regions=Regions((2, 1)))
    _, region, inside = first_points(algorithm, key[None], np.asarray([AGENT]))
    assert inside.all()
    assert (region == 0).all()


def test_initial_points_of_a_space_are_in_it(key):
    algorithm = method(domain=SPACE, regions=Regions.of(SPACE.dim, 4))
    *_, inside = first_points(algorithm, jr.split(key, 5), np.arange(AGENTS))
    assert inside.all()


@pytest.mark.slow
def test_initial_points_of_a_region_are_those_that_are_allowed(key):
    triangle = Space(
        x=Real(0.0, 1.0), y=Real(0.0, 1.0), where=jax.jit(lambda p: p["x"] + p["y"] < 1.2)
    )
    algorithm = method(domain=triangle, regions=Regions((2, 2)))
    _, region, inside = first_points(algorithm, jr.split(key, 40), np.arange(AGENTS))
    assert inside.all()
    np.testing.assert_array_equal(region, np.broadcast_to(np.arange(AGENTS) % 4, region.shape))


@pytest.mark.slow
def test_a_run_begins_with_them():
    queries, *_ = runs()["released twice"]
    region = np.asarray(jax.vmap(method().regions.assign)(queries[0, :3].reshape(-1, 2)))
    np.testing.assert_array_equal(region, np.tile(np.arange(AGENTS) % 4, 3))


# ---------------------------------------------------------------- what is broadcast


@pytest.mark.slow
def test_without_privacy_in_one_region_the_broadcast_is_the_mean_message(key):
    algorithm = method(regions=Regions((1, 1)))
    messages, vectors, _ = broadcasts(algorithm, told(), jr.split(key, 2))
    assert vectors.shape == (2, 2, 1, 20)
    np.testing.assert_allclose(vectors[0, :, 0], np.mean(messages[0], axis=1), atol=1e-5)


@pytest.mark.parametrize("emphasis", [0.0, 1.5, 15.0])
def test_each_regions_vector_is_the_weighted_sum_of_those_present(emphasis, key):
    algorithm = method(weighting=Weighting(emphasis))
    messages, vectors, _ = broadcasts(algorithm, told(), jr.split(key, 400))
    own = np.arange(AGENTS)[None, :] % 4 == np.arange(4)[:, None]
    raw = np.exp(emphasis * own.astype(np.float64))
    weights = raw / raw.sum(axis=1, keepdims=True)  # of the roster: absence changes nobody's
    expected = (weights * (np.arange(AGENTS) != 5)) @ np.asarray(messages[1], np.float64)
    np.testing.assert_allclose(vectors[1], expected, atol=1e-5)


def test_clipping_sampling_and_noise_are_the_mechanisms(key):
    algorithm = method(Mechanism(1.3, 2.0, Poisson(0.5)))
    _, vectors, weights = broadcasts(algorithm, told(), jr.split(key, 400))
    # Of the noise alone; the sampled sum moves by less.
    deviation = 1.3 * np.max(weights) * 2.0 / 0.5
    found = np.std(vectors[0], axis=0)
    sampled = np.max(weights) * 2.0 / 0.5  # the joint sum of an agent is no longer
    assert found.mean() > 0.95 * deviation
    assert found.mean() < 1.05 * np.hypot(deviation, sampled)


@pytest.mark.slow
def test_after_the_last_release_nothing_is_broadcast_and_all_maximize_their_own(key):
    *_, source = runs()["released twice"]
    own = source[0] == np.arange(AGENTS)[None, :]
    np.testing.assert_array_equal(own.all(axis=1), [False, False, True, True, True])
    np.testing.assert_array_equal(own.any(axis=1), [False, False, True, True, True])
    algorithm = method(Mechanism(1.0, 5.0, Poisson(0.5)), releases=2)
    for round in (1, 2):
        state = dataclasses.replace(told(), round=jnp.asarray(round))
        _, vectors, _ = broadcasts(algorithm, state, jr.split(key, 400))
        assert (vectors == 0).all() == (round == 2)


# ---------------------------------------------------------------- what is maximized


@pytest.mark.slow
def test_own_samples_are_as_frequent_as_the_schedule_says():
    *_, source = runs()["frequent"]
    own = (source == np.arange(AGENTS)[None, None, :]).sum(axis=(0, 2))
    assert ((source == BROADCAST) | (source >= 0)).all()
    p = KINDS["frequent"][-1]
    for count, probability in zip(own, [*p, p[-1], p[-1]], strict=True):
        assert stats.binomtest(int(count), 500 * AGENTS, probability).pvalue > 1e-4


def elsewhere(domain):
    """Many points of a domain."""
    if isinstance(domain, Finite):
        return np.asarray(domain.points)
    return np.random.default_rng(0).random((20_000, 2)).astype(X.dtype)


@pytest.mark.parametrize(
    ("domain", "own"),
    [
        ("cube", None),
        pytest.param("cube", OWN, marks=pytest.mark.full),
        ("finite", None),
    ],
    ids=["cube", "cube, fitted", "finite"],
)
def test_a_query_from_the_broadcast_maximizes_the_vector_of_its_region(domain, own, key):
    algorithm = method(domain=DOMAINS[domain], own=own, mixing=Constant(NEVER), candidates=1000)
    state = told(own)
    queries, source, _, vectors = asked(algorithm, state, key)
    assert (source == BROADCAST).all()
    points = np.concatenate([queries, elsewhere(algorithm.domain)])
    phis, region, _ = mapped(algorithm, state.shared.message, points)
    values = np.sum(np.asarray(phis) * np.asarray(vectors)[np.asarray(region)], axis=1)
    assert (values[:AGENTS] >= values[AGENTS:].max() - 1e-3).all()


def test_a_query_of_ones_own_maximizes_the_function_that_was_sent(key):
    algorithm = method(domain=Cube(2), mixing=Constant(1.0), candidates=1000)
    state = told()
    queries, source, messages, _ = asked(algorithm, state, key)
    np.testing.assert_array_equal(source, np.arange(AGENTS))
    points = np.concatenate([queries, elsewhere(algorithm.domain)])
    phis, *_ = mapped(algorithm, state.shared.message, points)
    values = np.asarray(phis) @ np.asarray(messages).T
    for n in range(AGENTS):
        assert values[n, n] >= values[AGENTS:, n].max() - 5e-3


def test_a_curve_of_privacy_is_one_program():
    first, *others = (runs()[f"{noise} noise"][1][0] for noise in ("little", "more", "much"))
    assert first.shape == (8, AGENTS)
    for other in others:
        np.testing.assert_array_equal(first[:3], other[:3])
        assert (first[3:] != other[3:]).any()


# ---------------------------------------------------------------- what an agent can learn


def reaches(jaxpr, start, cut=None):
    """Which outputs of `jaxpr` depend on the inputs `start`; equations named `cut` pass nothing on."""
    tainted = {v for v, hot in zip(jaxpr.invars, start, strict=True) if hot}
    hot = lambda v: not isinstance(v, core.Literal) and v in tainted  # noqa: E731
    found = False
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("jit", "pjit") and equation.params["name"] == cut:
            found = found or any(map(hot, equation.invars))
            continue
        if any(map(hot, equation.invars)):
            tainted.update(equation.outvars)
    return [hot(v) for v in jaxpr.outvars], found


def rounds_of_one(algorithm, state, key):
    """One round with each agent's client and past arguments of its own, agent 0's query its result."""
    known = state.clients, state.past
    clients = [jax.tree.map(lambda leaf, n=n: leaf[n], known) for n in range(AGENTS)]
    leaves, structure = zip(*map(jax.tree.flatten, clients), strict=True)
    sizes = [len(one) for one in leaves]

    def query(*flat):
        flat, agents = list(flat), []
        for size, tree in zip(sizes, structure, strict=True):
            agents.append(jax.tree.unflatten(tree, [flat.pop(0) for _ in range(size)]))
        sent = [
            algorithm.message(jr.fold_in(key, n), state.shared, agents[n][0]) for n in range(AGENTS)
        ]
        messages = jax.tree.map(lambda *one: jnp.stack(one), *sent)
        present = jnp.ones(AGENTS, bool)
        broadcast = algorithm.aggregate(key, state.shared, state.round, messages, present)
        return algorithm.choose(key, state.shared, *agents[0], sent[0], broadcast)[0]

    flat = [leaf for one in leaves for leaf in one]
    owners = [n for n, size in enumerate(sizes) for _ in range(size)]
    return jax.make_jaxpr(query)(*flat).jaxpr, owners


@pytest.mark.parametrize("agent", [1, 5])
def test_only_the_private_sum_reaches_another_agents_query(agent, key, monkeypatch):
    released = Mechanism.release

    def release(self, *arguments):
        def private_sum(*arguments):
            return released(self, *arguments)

        return jax.jit(private_sum)(*arguments)

    monkeypatch.setattr(Mechanism, "release", release)
    algorithm, state = method(Mechanism(1.0, 5.0, Poisson(0.5))), told()
    jaxpr, owners = rounds_of_one(algorithm, state, key)
    theirs = [owner == agent for owner in owners]
    assert reaches(jaxpr, theirs)[0] == [True]
    assert reaches(jaxpr, theirs, cut="private_sum") == ([False], True)
    # One's own beliefs reach the query by oneself.
    mine = [owner == 0 for owner in owners]
    assert reaches(jaxpr, mine, cut="private_sum")[0] == [True]


@pytest.mark.parametrize(
    "own", [None, pytest.param(OWN, marks=pytest.mark.slow)], ids=["same", "fitted"]
)
def test_a_round_tells_an_agent_nothing_of_another_but_the_private_sum(own, key, monkeypatch):
    nothing = lambda self, key, messages, weights, present: jnp.ones(  # noqa: E731
        (weights.shape[0], messages.shape[1]), messages.dtype
    )
    monkeypatch.setattr(Mechanism, "release", nothing)
    algorithm = method(Mechanism(1.0, 5.0, Poisson(0.5)), own=own, mixing=Constant(0.5))
    ask = jax.jit(lambda key, state: algorithm.ask(key, state)[0])
    state, other = told(own), told(own, seed=7)
    known, others = (state.clients, state.past), (other.clients, other.past)

    def all_but_one(mine, theirs):
        theirs = np.array(theirs)
        theirs[3] = mine[3]
        return jnp.asarray(theirs)

    clients, past = wrap(jax.tree.map(all_but_one, unwrap(known), unwrap(others)), known)
    changed = dataclasses.replace(state, clients=clients, past=past)
    for k in jr.split(key, 4):
        one, two = np.asarray(ask(k, state)), np.asarray(ask(k, changed))
        np.testing.assert_array_equal(one[3], two[3])
        assert (one != two).any()


def test_the_broadcast_is_the_same_whoever_is_asked_and_holds_no_secret_key():
    algorithm, state = method(Mechanism(1.0, 5.0, FixedSize(3, AGENTS))), told()

    @jax.jit
    def found(key):
        present = jnp.asarray(EVERYONE)
        _, messages, broadcast = parts(algorithm, state, key, present)
        secret, public = jr.split(key)
        given = messages.weights, algorithm.weights(state.round), present
        return broadcast, algorithm.mechanism.release(secret, *given), jr.key_data(public)

    broadcast, again, public = found(jr.key(5))
    np.testing.assert_array_equal(jr.key_data(broadcast.key), public)
    np.testing.assert_array_equal(broadcast.vectors, again)
    assert set(vars(broadcast)) == {"round", "key", "vectors"}


# ---------------------------------------------------------------- what it costs

NOISY = Mechanism(2.0, 5.0, Poisson(0.5))
DELTA = 1e-3
PRIVATE = method(NOISY, mixing=Constant(0.5))
ROUNDS = 4
#: Who is present in each round: said each time, so that runs of nobody are no other program.
EVERYBODY = np.ones((ROUNDS, AGENTS), bool)


class Counting:
    """A Python objective that looks at the checkpoint at every evaluation, and may stop the run."""

    def __init__(self, path=None, stop_after=None):
        self.path, self.stop_after, self.charged = path, stop_after, []

    def __call__(self, agent, x):
        if len(self.charged) == self.stop_after:
            raise KeyboardInterrupt
        charged = None
        if self.path is not None:
            with np.load(self.path) as archive:
                ledger = json.loads(str(archive["manifest"]))["ledger"]
            charged = Ledger.from_json(ledger).releases
        self.charged.append(charged)
        return float(np.sin(3 * x[0] + agent / 9))


def driven(objective, path, algorithm=PRIVATE, ledger=None, rounds=ROUNDS, **options):
    ledger = Ledger(DELTA) if ledger is None else ledger
    present = jnp.asarray(EVERYBODY[:rounds, : algorithm.agents])
    given = {"initial": 2, "progress": False, "checkpoint": path, "present": present}
    options = given | options
    return drive(algorithm, objective, rounds, jr.key(0), ledger=ledger, **options)[1]


def test_every_release_is_charged_and_saved_before_its_queries_are_evaluated(path):
    objective = Counting(path)
    trace = driven(objective, path)
    # Initial points cost nothing.
    expected = np.repeat([0, 0, 1, 2, 3, 4], AGENTS)
    np.testing.assert_array_equal(objective.charged, expected)
    assert trace.ledger.releases == ROUNDS
    assert trace.ledger.epsilon() == pytest.approx(accounting.epsilon(NOISY, ROUNDS, DELTA))


class Stopped(Counting):
    """Stops the run at the first evaluation of the row after `rounds` rounds."""

    def __init__(self, rounds):
        super().__init__(stop_after=AGENTS * (2 + rounds))


def stop(objective, path, algorithm=PRIVATE):
    with pytest.raises(KeyboardInterrupt):
        driven(objective, path, algorithm)


def test_a_resumed_run_continues_its_ledger_and_releases_nothing_again(path):
    asked = []
    for stop_after in (1, 2 * AGENTS, 2, AGENTS, 3 * AGENTS - 4):
        stop(Counting(stop_after=stop_after), path)
        with np.load(path) as archive:
            asked.append(archive["queries"])
    trace = driven(Counting(), path)
    for queries in asked:
        np.testing.assert_array_equal(trace.queries[: len(queries)], queries)
    assert trace.ledger.epsilon() == Ledger(DELTA).charge(NOISY, ROUNDS).epsilon()
    again = driven(Counting(stop_after=0), path)
    assert again.ledger == trace.ledger


def test_a_resumed_run_must_begin_with_its_own_ledger(path):
    driven(Counting(), path)
    with pytest.raises(CheckpointError, match="another ledger"):
        driven(Counting(), path, ledger=Ledger(DELTA).charge(NOISY))
    options = {"initial": 2, "progress": False, "present": jnp.asarray(EVERYBODY)}
    with pytest.raises(CheckpointError, match="another ledger"):
        drive(PRIVATE, Counting(), ROUNDS, jr.key(0), checkpoint=path, **options)
    # What it allows may change.
    assert driven(Counting(stop_after=0), path, ledger=Ledger(1e-4)).ledger.delta == 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:agent .* failed:RuntimeWarning")
@pytest.mark.parametrize("initial", [0, 1])
@pytest.mark.filterwarnings("ignore:the first release is charged")
def test_of_a_run_that_never_succeeded_only_what_was_charged_is_kept(initial, path):
    def broken(agent, x):
        raise NameError("x1")

    alone = DPFTSDE(FINITE, 1, NOISY, features=SMALL)  # three rows before it is hopeless
    with pytest.raises(NameError, match="x1"):
        driven(broken, path, alone, initial=3 * initial)
    assert Ledger.from_json(released_of(path).read_text()).releases == (0 if initial else 3)
    objective = Counting()
    trace = driven(objective, path, alone, initial=3 * initial)
    failed = [] if initial else [0, 1]
    assert [failure.row for failure in trace.failures] == failed
    assert np.flatnonzero(np.isnan(trace.values)).tolist() == failed
    assert len(objective.charged) == len(trace.values) - len(failed)
    assert trace.ledger.releases == ROUNDS


def test_a_second_run_on_the_same_ledger_adds_up(path, tmp_path):
    first = driven(Counting(), path)
    second = driven(Counting(), tmp_path / "second.npz", ledger=first.ledger)
    assert second.ledger.releases == 2 * ROUNDS
    assert second.ledger.epsilon() > first.ledger.epsilon()


RELEASE, AGGREGATE, KEYS, VECTORS = Mechanism.release, DPFTSDE.aggregate, [], []


def noted_release(self, key, *arguments):
    jax.debug.callback(lambda words: KEYS.append(tuple(words.tolist())), jr.key_data(key))
    return RELEASE(self, key, *arguments)


def noted_aggregate(self, *arguments):
    broadcast = AGGREGATE(self, *arguments)
    jax.debug.callback(lambda vectors: VECTORS.append(np.asarray(vectors)), broadcast.vectors)
    return broadcast


@pytest.fixture
def noted(monkeypatch):
    """An algorithm that notes the key of each release and the vectors of each broadcast."""
    monkeypatch.setattr(Mechanism, "release", noted_release)
    monkeypatch.setattr(DPFTSDE, "aggregate", noted_aggregate)
    KEYS.clear()
    VECTORS.clear()
    # Of sizes of its own, so that its program is not one of other tests.
    return dataclasses.replace(PRIVATE, candidates=65)


@pytest.mark.slow
def test_no_two_runs_share_noise_and_no_key_that_is_known_gives_it(tmp_path, noted):
    for run_number in range(2):  # the same key, the same ledger, the same everything
        driven(Counting(), tmp_path / f"{run_number}.npz", noted)
    jax.effects_barrier()
    assert len(KEYS) == 2 * ROUNDS
    assert len(set(KEYS)) == 2 * ROUNDS


@pytest.mark.slow
def test_noise_is_drawn_anew_even_where_a_copy_of_all_files_is_put_back(path, tmp_path, noted):
    files = [path, released_of(path)]
    stop(Stopped(rounds=1), path, noted)
    copies = [shutil.copy(file, tmp_path / f"copy-{i}") for i, file in enumerate(files)]
    driven(Counting(), path, noted)
    for copied, file in zip(copies, files, strict=True):
        shutil.copy(copied, file)
    driven(Noisy(), path, noted)
    jax.effects_barrier()
    assert len(set(KEYS)) == len(KEYS) == 2 * ROUNDS - 2  # two had been asked in the copy


class Noisy(Counting):
    def __call__(self, agent, x):
        return super().__call__(agent, x) + np.random.default_rng().normal()


def released_of(path):
    return path.with_name(f"{path.name}.released")


@pytest.mark.parametrize("lost", ["copy", "removed", "damaged", "counter", "elsewhere"])
def test_a_checkpoint_that_has_forgotten_charges_is_refused(lost, path, tmp_path):
    stop(Stopped(rounds=1), path)
    before = path.read_bytes()
    driven(Counting(), path)
    text, counter = None, released_of(path)
    if lost == "copy":
        path.write_bytes(before)
        text = "older copy, with 2 of 4 releases"
    elif lost == "removed":
        path.unlink()
        text = "has been removed"
    elif lost == "damaged":
        path.write_bytes(b"rubbish")
        text = "cannot be read"
    elif lost == "counter":
        counter.unlink()
        text = "copy without run.npz.released"
    else:
        path = path.rename(tmp_path / "elsewhere.npz")
        text = "copy without elsewhere.npz.released"
    with pytest.raises(CheckpointError, match=f"{text}.*: neither an older copy nor a new beginn"):
        driven(Counting(stop_after=0), path)


def test_a_counter_that_was_changed_is_refused(path):
    stop(Stopped(rounds=1), path)
    before = path.read_bytes()
    driven(Counting(), path)
    path.write_bytes(before)
    counter = released_of(path)
    content = counter.read_text()
    without_sum = Ledger.from_json(content).charges()
    fewer = content.replace('"count": 4', '"count": 1')
    assert fewer != content
    for changed in (fewer, content[:-5], "", "rubbish", without_sum, content.replace("4", "3")):
        counter.write_text(changed)
        with pytest.raises(
            CheckpointError, match=r"run.npz.released is damaged.*charged for all"
        ) as e:
            driven(Counting(stop_after=0), path)
        assert "charged(text)" not in str(e.value)  # its own text is what is damaged
        assert counter.read_text() == changed


@pytest.mark.parametrize("change", ["key", "initial", "present", "version"])
def test_a_run_of_another_kind_is_not_told_to_forget_what_was_spent(change, path, monkeypatch):
    everybody, nobody = jnp.asarray(EVERYBODY), jnp.asarray(~EVERYBODY)
    driven(Counting(), path, present=everybody)
    options = {"present": nobody if change == "present" else everybody}
    if change == "initial":
        options["initial"] = 1
    if change == "version":
        monkeypatch.setattr("jaxbo.runs._checkpoint.FORMAT", 99)
    key = jr.key(1 if change == "key" else 0)
    text = "finish the run with the version" if change == "version" else f"another {change}; give"
    options = {
        "initial": 2,
        "progress": False,
        "checkpoint": path,
        "ledger": Ledger(DELTA),
    } | options
    with pytest.raises(
        CheckpointError, match=f"{text}.*another path with what has been spent"
    ) as e:
        drive(PRIVATE, Counting(), ROUNDS, key, **options)
    assert "anew" not in str(e.value)
    assert str(released_of(path)) in str(e.value)


def test_what_a_lost_checkpoint_has_spent_is_in_its_counter(path):
    driven(Counting(), path)
    path.unlink()
    ledger = Ledger(DELTA).charged(released_of(path).read_text())
    assert driven(Counting(), path, ledger=ledger).ledger.releases == 2 * ROUNDS


@pytest.mark.parametrize("moment", range(12))
def test_a_kill_between_checkpoint_and_counter_loses_nothing(moment, path, monkeypatch):
    replaced = []

    def replace(source, target):
        if len(replaced) == moment:
            raise KeyboardInterrupt
        replaced.append(target)
        os.replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(_archive, "os", types.SimpleNamespace(**vars(os) | {"replace": replace}))
        stop(Counting(), path)
    trace = driven(Counting(), path)
    assert trace.ledger.releases == ROUNDS
    assert Ledger.from_json(released_of(path).read_text()).covers(trace.ledger)


def test_a_round_in_which_nobody_is_present_broadcasts_noise_and_is_charged(path, noted):
    trace = driven(Counting(), path, noted, present=jnp.asarray(~EVERYBODY))
    jax.effects_barrier()
    assert len(VECTORS) == trace.ledger.releases == ROUNDS
    # z S max φ / q, the paper's; the weights φ are the same in these rounds.
    deviation = 2.0 * 5.0 * float(jnp.max(noted.weights(jnp.zeros((), int)))) / 0.5
    assert np.std(VECTORS) == pytest.approx(deviation, rel=0.2)
    assert abs(np.mean(VECTORS)) < 0.3 * deviation
    # Neither of two rounds nor of two regions.
    assert len(np.unique(VECTORS)) > 0.99 * np.size(VECTORS)


def test_a_run_beyond_the_budget_is_refused_and_says_how_far_it_reaches(path, tmp_path):
    budget = accounting.epsilon(NOISY, 3, DELTA) * 1.01
    objective = Counting()
    with pytest.raises(BudgetError, match=r"pays for 3 of the 4 releases .* releases=3"):
        driven(objective, path, ledger=Ledger(DELTA, budget))
    assert objective.charged == []
    algorithm = method(NOISY, releases=3, mixing=Constant(NEVER))
    trace = driven(Counting(), path, algorithm, Ledger(DELTA, budget))
    assert trace.ledger.releases == 3
    own = np.asarray(trace.info.source) == np.arange(AGENTS)[None, :]
    np.testing.assert_array_equal(own.all(axis=1), [False, False, False, True])
    with pytest.raises(BudgetError, match="pays for 0 of the 1"):
        driven(Counting(), tmp_path / "more.npz", ledger=trace.ledger, rounds=1)


def test_a_checkpoint_that_has_lost_its_ledger_is_refused(path):
    driven(Counting(), path, rounds=2)
    with np.load(path) as archive:
        arrays = dict(archive)
    manifest = json.loads(str(arrays["manifest"])) | {"ledger": None}
    arrays["manifest"] = np.array(json.dumps(manifest))
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(CheckpointError, match="has lost its ledger"):
        driven(Counting(stop_after=0), path)


def test_the_checkpoint_of_a_private_run_is_its_owners_alone_and_has_no_noise(path, noted):
    driven(Counting(), path, noted, rounds=1)
    jax.effects_barrier()
    with np.load(path) as archive:
        # Of a round whom each agent listened to, and who was present.
        rows = {"queries", "values", "times", "info_0", "info_1"}
        assert set(archive) == {"manifest", *rows}
    assert np.asarray(KEYS, np.uint32).tobytes() not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0


def test_a_ledger_without_a_checkpoint_is_refused():
    with pytest.raises(ValueError, match="needs a checkpoint"):
        driven(Counting(), None)


def test_a_ledger_for_what_is_not_private_is_refused(path):
    with pytest.raises(ValueError, match="leave it out"):
        driven(Counting(), path, FTS(FINITE, AGENTS, features=SMALL))
    with pytest.raises(ValueError, match="without noise nothing is private"):
        driven(Counting(), path, method(PUBLIC))


@pytest.mark.slow
@pytest.mark.filterwarnings("error::jaxbo.SimulationWarning")
@pytest.mark.parametrize("loop", ["run", "drive", "traced"])
def test_a_simulation_says_once_that_it_is_one(loop):
    objective = hill if loop != "drive" else Counting()
    # With the programs of `driven`.
    here = jnp.asarray(EVERYBODY[:1])
    options = {"progress": False, "present": here} if loop == "drive" else {}

    def simulated(z, **more):
        algorithm = method(Mechanism(z, 5.0, Poisson(0.5)), mixing=Constant(0.5), **more)
        return (drive if loop == "drive" else run)(algorithm, objective, 1, jr.key(0), **options)

    def twice():
        for _ in range(2):
            if loop == "traced":
                simulate = eqx.filter_vmap(lambda z: simulated(z, releases=z)[1].values)
                jax.eval_shape(simulate, jnp.arange(1.0, 3.0))
            else:
                simulated(1.0)

    _simulation._warn.cache_clear()
    with pytest.warns(SimulationWarning, match="nobody's privacy is protected") as caught:
        twice()
    # Of this one: JAX may warn too, such as of an entry of its cache that another process has removed.
    assert [warning.category for warning in caught].count(SimulationWarning) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("error::jaxbo.SimulationWarning")
def test_what_promises_nothing_and_what_has_a_ledger_says_nothing(path):
    _simulation._warn.cache_clear()
    run(method(PUBLIC), hill, 1, jr.key(0))
    run(method(NOISY, releases=0), hill, 1, jr.key(0))
    jax.eval_shape(lambda key: run(FTS(FINITE, AGENTS, features=SMALL), hill, 1, key), jr.key(0))
    driven(Counting(), path, rounds=1)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"regions": Regions((2, 2, 1))}, "3 dimensions, the domain 2"),
        ({"releases": -1}, "releases must be"),
        ({"candidates": 0}, "candidates"),
    ],
)
def test_bad_input_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        method(**options)


# ---------------------------------------------------------------- S without looking


CLIP = AdaptiveClip(1.0, Poisson(0.5))
BOUNDED = method(Mechanism(1.0, 5.0, Poisson(0.5)))


def test_a_private_bound_is_a_quantile_of_the_messages_norms(key):
    mechanism = Mechanism(1.0, 0.5, Poisson(0.5))
    algorithm = DPFTSDE(FINITE, 1000, mechanism, features=SMALL, regions=Regions((2, 2)))

    @jax.jit
    def found(key):
        state = algorithm.init(key)
        S = private_bound(key, algorithm, state, CLIP)
        return S, algorithm.messages(key, state).weights

    S, messages = found(key)
    norms = np.linalg.norm(messages, axis=1)
    assert np.mean(norms <= S / 2) == pytest.approx(0.9, abs=0.06)


@eqx.filter_jit
def bound(key, state, present):
    return private_bound(key, BOUNDED, state, CLIP, 5, present)


def louder(agents):
    """A state in which the messages of these agents are long."""
    state = told()
    mean = lambda s: s.clients.beliefs.message.posterior.mean  # noqa: E731
    long = np.array(mean(state))
    long[agents] += 100
    return eqx.tree_at(mean, state, jnp.asarray(long))


def test_a_private_bound_sees_the_messages_through_its_releases_alone(key, monkeypatch):
    assert bound(key, louder(EVERYONE), EVERYONE) > bound(key, told(), EVERYONE)
    nothing = lambda self, key, messages, weights, present: jnp.full((1, 1), 0.1)  # noqa: E731
    monkeypatch.setattr(Mechanism, "release", nothing)
    find = jax.jit(lambda state: private_bound(key, BOUNDED, state, CLIP, 5))
    np.testing.assert_array_equal(find(louder(EVERYONE)), find(told()))


def test_agents_that_are_absent_have_no_part_in_a_private_bound(key):
    here = np.arange(AGENTS) >= 4
    np.testing.assert_array_equal(bound(key, louder(~here), here), bound(key, told(), here))


@pytest.mark.slow
def test_a_private_bound_begins_somewhere_and_is_private(key):
    with pytest.raises(ValueError, match="begins at"):
        private_bound(key, method(), told(), CLIP)
    with pytest.raises(ValueError, match="positive z"):
        private_bound(key, BOUNDED, told(), AdaptiveClip(0.0, Poisson(0.5)))
