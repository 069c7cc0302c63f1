"""Federated Thompson sampling: whose sample is maximized, and what is sent."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from jaxbo import metrics
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import FourierFunction
from jaxbo.schedules import Constant, Table
from tests import stepped

#: A probability of the own sample that never comes up here.
NEVER = 1e-9
GRID = Finite(np.linspace(0, 1, 41)[:, None])
SMALL = Fixed(SquaredExponential(0.2), size=8)
GOOD = Fixed(SquaredExponential(0.2), size=60, noise=1e-2)


def method(probabilities=(NEVER,) * 3, agents=5, targets=3, **options):
    """A method whose runs are one program for each kind of `peers`, and for `once`."""
    given = {"features": SMALL, "mixing": Table(probabilities), "targets": targets} | options
    return FTS(GRID, agents, **given)


def fixed(*weights):
    return jnp.asarray(weights, float)


@functools.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 1})
def many(algorithm, keys, rounds, present):
    def one(key):
        def step(state, key):
            queries, info = algorithm.ask(key, state, present)
            return algorithm.tell(state, queries, jnp.sin(9 * queries[:, 0])), info.source

        init_key, key = jr.split(key)
        return jax.lax.scan(step, algorithm.init(init_key), jr.split(key, rounds))[1]

    return jax.vmap(one)(keys)


def sources(algorithm, key, present=None):
    """`source` [runs rounds targets], every run from a start of its own."""
    runs, rounds = (6000, 10) if algorithm.once else (4000, 4)
    present = np.ones(algorithm.agents, bool) if present is None else np.asarray(present, bool)
    return np.asarray(many(algorithm, jr.split(key, runs), rounds, present))


def agrees(counts, probabilities):
    """Chi-square: the counts may come from these probabilities."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities)
    assert counts[probabilities == 0].sum() == 0
    drawn = probabilities > 0
    expected = probabilities[drawn] / probabilities.sum() * counts.sum()
    assert expected.min() > 5
    return stats.chisquare(counts[drawn], expected).pvalue > 1e-4


# ---------------------------------------------------------------- own sample, or a peer's


@pytest.mark.slow
def test_own_samples_are_as_frequent_as_the_schedule_says(key):
    p = [0.15, 0.5, 0.9]
    source = sources(method(p), key)
    own = (source == np.arange(3)[None, None, :]).sum(axis=(0, 2))
    for count, probability in zip(own, [*p, p[-1]], strict=True):
        assert stats.binomtest(int(count), 12_000, probability).pvalue > 1e-4


def test_agents_choose_between_own_and_peer_independently(key):
    source = sources(method([0.5] * 3), key)[:, :2, :2]
    own = (source == np.arange(2)[None, None, :]).reshape(4000, 4)
    patterns = own @ [8, 4, 2, 1]
    assert agrees(np.bincount(patterns, minlength=16), np.full(16, 1 / 16))


@eqx.filter_jit
def first_queries(algorithm, keys):
    """Those of three agents that know something, and whose functions are maximized."""
    x = jnp.asarray([0.1, 0.45, 0.8, 0.95])[:, None, None] * jnp.ones((1, 3, 1))
    y = jnp.sin(7 * x[..., 0] + jnp.arange(3.0)[None, :])

    def query(key):
        init_key, ask_key = jr.split(key)
        queries, info = algorithm.ask(ask_key, algorithm.warm_start(algorithm.init(init_key), x, y))
        return queries[..., 0], getattr(info, "source", ())

    return jax.vmap(query)(keys)


@functools.cache
def of_thompson_sampling():
    return np.asarray(first_queries(TS(GRID, 3, GOOD), jr.split(jr.key(0), 3000))[0])


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, pytest.param(True, marks=pytest.mark.full)])
def test_with_probability_one_it_is_independent_thompson_sampling(once, key):
    fts = FTS(GRID, 3, features=GOOD, mixing=Constant(1), once=once)
    queries, source = first_queries(fts, jr.split(key, 3000))
    assert (source == np.arange(3)[None, :]).all()
    points = np.asarray(GRID.points)[:, 0]
    agents = [
        [
            (np.asarray(q)[:, n, None] == points[None, :]).sum(0)
            for q in (queries, of_thompson_sampling())
        ]
        for n in range(3)
    ]
    for counts in map(np.asarray, agents):
        rare = counts.sum(0) < 20
        table = np.column_stack([counts[:, ~rare], counts[:, rare].sum(1) + 1])
        assert stats.chi2_contingency(table).pvalue > 1e-4
    # The check has power: two agents' queries do not have one law.
    mixed = np.asarray([agents[0][0], agents[1][0]])
    assert stats.chi2_contingency(mixed[:, mixed.sum(0) > 20]).pvalue < 1e-6


# ---------------------------------------------------------------- which peer


ROWS = np.array([[9.0, 1, 2, 0, 3], [1, 9, 1, 1, 1], [5, 0, 9, 0, 1]])
LAWS = {
    "uniform": (None, [1, 1, 1, 1, 1]),
    "weights": ([1.0, 2, 3, 0, 4], [1, 1, 1, 1, 1]),
    "weights and absent": ([1.0, 2, 3, 5, 4], [0, 1, 1, 0, 1]),
    "rows": (ROWS, [1, 1, 1, 1, 1]),
    "rows and absent": (ROWS, [1, 1, 0, 1, 1]),
}
#: With rows drawn anew each round, with weights once: the others are compiled in `make test-full` only.
QUICK = {("uniform", False), ("rows", False), ("rows and absent", False)}
QUICK |= {("weights", True), ("weights and absent", True)}


@pytest.mark.parametrize(
    ("name", "once"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.full)
        for pair in itertools.product(LAWS, [False, True])
    ],
)
def test_peers_are_drawn_by_weight_and_never_if_absent(name, once, key):
    peers, present = LAWS[name]
    present = np.asarray(present)
    given = {} if peers is None else {"peers": jnp.asarray(peers, float)}
    source = sources(method(once=once, **given), key, present)
    weights = np.ones(5) if peers is None else np.asarray(peers)
    for target in range(3):
        law = (weights if weights.ndim == 1 else weights[target]) * present
        law[target] = 0
        assert agrees(np.bincount(source[:, 0, target], minlength=5), law)


@pytest.mark.parametrize("once", [False, True])
def test_with_nobody_to_draw_the_own_sample_is_used(once, key):
    ones, first = np.ones(5), np.eye(5)[0]
    shape = (lambda row: row) if once else (lambda row: np.tile(row, (3, 1)))
    source = sources(method(once=once, peers=fixed(*shape(ones))), key, first)
    assert (source[..., 0] == 0).all()
    assert (source[:, 0, 1:] == 0).all()  # the others have the first to draw
    source = sources(method(once=once, peers=fixed(*shape(first))), key)
    assert (source[..., 0] == 0).all()


@pytest.mark.parametrize("once", [False, True])
def test_an_agent_alone_uses_its_own_sample(once, key):
    algorithm = method(agents=1, targets=1, once=once)
    _, info = stepped.ask(algorithm, key, stepped.init(algorithm, key))
    assert (info.source == 0).all()


# ---------------------------------------------------------------- one message before the start


def test_a_used_peer_is_not_drawn_again(key):
    algorithm = method([0.4] * 3, once=True, peers=fixed(*np.ones(5)))
    source = sources(algorithm, key)[:300]
    for run, target in itertools.product(range(300), range(3)):
        peers = [s for s in source[run, :, target] if s != target]
        assert len(peers) == len(set(peers))
    # Each run uses up nearly all peers, so the rule was put to the test.
    assert np.mean(source != np.arange(3)[None, None, :]) > 0.35


def test_successive_peers_are_draws_by_weight_without_replacement(key):
    weights = np.array([0.0, 1, 2, 4, 0])
    source = sources(method(once=True, peers=fixed(*weights)), key)
    sequences = source[:, :, 0]
    assert (sequences[:, 3:] == 0).all()  # all used up: its own from then on
    orders = list(itertools.permutations([1, 2, 3]))
    law = []
    for order in orders:
        left, p = weights.sum(), 1.0
        for peer in order:
            p, left = p * weights[peer] / left, left - weights[peer]
        law.append(p)
    counts = [(sequences[:, :3] == np.array(order)[None, :]).all(1).sum() for order in orders]
    assert sum(counts) == 6000
    assert agrees(counts, law)


@pytest.mark.slow
def test_peers_may_know_more_than_a_target_can_hold(key):
    algorithm = method(agents=3, targets=1, own=Fitted(5, size=8, refit_every=None), once=True)
    y = np.ones((9, 3))
    y[2:, 0] = np.nan
    x = np.where(np.isnan(y)[..., None], np.nan, np.random.default_rng(0).random((9, 3, 1)))
    start = stepped.init(algorithm, key)
    told = jnp.asarray(x, float), jnp.asarray(y, float)
    state = stepped.warm_start(algorithm, start, *told)
    np.testing.assert_array_equal(state.clients.beliefs.message.posterior.count, [2, 9, 9])
    assert state.told == 2
    y[:6, 0] = 1
    with pytest.raises(ValueError, match=r"6 observations .* capacity of 5"):
        algorithm.warm_start(start, told[0], jnp.asarray(y, float))


@pytest.mark.slow
def test_the_one_message_follows_the_warm_start_and_then_stays(key):
    algorithm = FTS(GRID, 3, features=GOOD, once=True)
    init_key, *ask_keys = jr.split(key, 6)
    state = stepped.init(algorithm, init_key)
    before = np.asarray(state.clients.sent.weights)
    y = np.array([[1.0, np.nan, 1.0]] * 3 + [[2.0, np.nan, np.nan]])
    state = stepped.warm_start(algorithm, state, jnp.full((4, 3, 1), 0.5), jnp.asarray(y, float))
    sent = np.asarray(state.clients.sent.weights)
    assert (sent != before).any(axis=1).tolist() == [True, False, True]
    for ask_key in ask_keys:
        queries, _ = stepped.ask(algorithm, ask_key, state)
        state = stepped.tell(algorithm, state, queries, np.cos(queries[:, 0]))
        np.testing.assert_array_equal(state.clients.sent.weights, sent)
    assert state.clients.beliefs.message.moments.count.tolist() == [9, 5, 8]


def test_every_round_brings_a_new_message_otherwise(key):
    algorithm = FTS(GRID, 3, features=GOOD)

    @jax.jit
    def messages(key):
        state = algorithm.init(key)
        return [algorithm.messages(jr.fold_in(key, i), state).weights for i in (1, 2)]

    assert len(np.unique(np.concatenate(messages(key)), axis=0)) == 6


# ---------------------------------------------------------------- what is sent


@pytest.mark.parametrize("own", [None, Fitted(10, size=200), Fixed(size=90)], ids=repr)
@pytest.mark.parametrize("once", [False, True])
def test_a_message_is_as_many_floats_as_features(own, once):
    algorithm = FTS(Cube(3), 2, features=Fixed(size=64), own=own, once=once)
    state = eqx.filter_eval_shape(algorithm.init, jr.key(0))
    client = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
    message = eqx.filter_eval_shape(algorithm.message, jr.key(0), state.shared, client.clients)
    assert metrics.floats(message) == 64


PEAKS = np.array([0.1, 0.35, 0.6, 0.85])
OWN = {
    "same": None,
    "own": Fitted(40, SquaredExponential(0.3), refit_every=None),
    "exact": Fitted(40, SquaredExponential(0.3), inference=Exact(), warp=True),
}


def informed(algorithm, key):
    """Agents that know their objectives well; each has its peak elsewhere."""
    x = np.broadcast_to(np.linspace(0.0, 1.0, 30)[:, None, None], (30, 4, 1))
    y = np.exp(-(((x[..., 0] - PEAKS[None]) / 0.15) ** 2))
    start = stepped.init(algorithm, key)
    return stepped.warm_start(algorithm, start, jnp.asarray(x, float), jnp.asarray(y, float))


@pytest.mark.parametrize(
    "own",
    [
        "same",
        pytest.param("own", marks=pytest.mark.slow),
        pytest.param("exact", marks=pytest.mark.full),
    ],
)
def test_a_query_maximizes_the_function_that_a_peer_sent_or_is_near_ones_own_peak(own, key):
    from_peers, alone = (
        FTS(
            Cube(1),
            4,
            features=GOOD,
            own=OWN[own],
            mixing=Constant(probability),
            once=True,
            candidates=200,
        )
        for probability in (NEVER, 1)
    )
    init_key, ask_key = jr.split(key)
    state = informed(from_peers, init_key)
    queries, info = stepped.ask(from_peers, ask_key, state)
    source = np.asarray(info.source)
    assert (source != np.arange(4)).all()
    grid = jnp.linspace(0, 1, 4001)[:, None]
    reached, values = sent_functions(
        state.shared.message, state.clients.sent.weights, grid, queries
    )
    for n, peer in enumerate(source):
        best = values[peer].max()
        assert reached[peer, n] >= best - 1e-3 * np.ptp(values[peer])
    # The features are common to all: another agent's weights mean the same to the one who asks.
    np.testing.assert_allclose(np.asarray(queries)[:, 0], PEAKS[source], atol=0.1)
    queries, _ = stepped.ask(alone, ask_key, state)
    np.testing.assert_allclose(np.asarray(queries)[:, 0], PEAKS, atol=0.1)


@jax.jit
def sent_functions(phi, weights, grid, queries):
    """The functions that all sent, at queries and on a grid."""
    at = lambda points: jax.vmap(  # noqa: E731
        lambda w: jax.vmap(FourierFunction(phi, w))(points)
    )(weights)
    return at(queries), at(grid)


@pytest.mark.slow
def test_peers_that_know_the_objective_help_in_the_first_rounds(key):
    points = np.asarray(GRID.points)

    def objective(x):
        return jnp.sin(9 * x) + x

    x = np.broadcast_to(points[:, None], (41, 4, 1)).copy()
    x[:, 0] = np.nan  # the target has observed nothing
    known = (np.sin(9 * x) + x)[..., 0]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def best(probability, key):
        algorithm = FTS(GRID, 4, features=GOOD, mixing=Constant(probability), targets=1, once=True)

        def step(state, key):
            queries, _ = algorithm.ask(key, state)
            values = objective(queries[:, 0])
            return algorithm.tell(state, queries, values), values

        init_key, *keys = jr.split(key, 5)
        state = algorithm.warm_start(algorithm.init(init_key), jnp.asarray(x), jnp.asarray(known))
        return jnp.max(jax.lax.scan(step, state, jnp.stack(keys))[1])

    helped, alone = best(jnp.asarray([0.5, 1.0]), jr.split(key, 200))
    assert stats.wilcoxon(helped, alone, alternative="greater").pvalue < 1e-6


# ---------------------------------------------------------------- hyperparameters in common

AGREEING = Fitted(40, SquaredExponential(0.3), size=60, refit_every=None)
POOLED = Pooled(16)


@functools.cache
def agreement(once):
    """Agents that agree, after what came before the start and one round."""
    algorithm = FTS(
        GRID, 4, features=GOOD, own=AGREEING, pooled=POOLED, once=once, mixing=Constant(1)
    )
    state = informed(algorithm, jr.key(0))
    # What is observed after the one message counts for the agent itself.
    values = jnp.asarray(np.arange(4.0), float)
    return algorithm, stepped.tell(algorithm, state, jnp.full((4, 1), 0.2), values)


@eqx.filter_jit
def asked(algorithm, state, present):
    """Queries and what is agreed on, evidences that are sent and those of now.

    All in one program, that evidences are rounded alike.
    """
    queries, info = algorithm.ask(jr.key(1), state, present)
    now = jax.vmap(lambda c: POOLED.evidence(AGREEING, c.beliefs.own))(state.clients)
    return queries, info.agreed, algorithm.messages(jr.key(2), state).evidence, now


@jax.jit
@jax.vmap
def expected(belief, total):
    return POOLED.agreed(AGREEING, belief, total)


def test_the_one_message_is_of_what_came_before_the_start():
    algorithm, state = agreement(True)
    begun, start = stepped.init(algorithm, jr.key(0)), informed(algorithm, jr.key(0))
    before, sent = (np.asarray(s.clients.sent.weights) for s in (begun, start))
    assert (before != sent).any(axis=1).all()
    np.testing.assert_array_equal(state.clients.sent.weights, sent)


@pytest.mark.parametrize("once", [pytest.param(False, marks=pytest.mark.slow), True])
def test_agents_agree_by_the_evidence_of_all_who_are_present(once):
    algorithm, state = agreement(once)
    present = np.array([True, False, True, True])
    _, found, sent, now = asked(algorithm, state, present)
    assert np.allclose(sent, now) == (not once)
    others = present[None] & ~np.eye(4, dtype=bool)
    total = others.astype(sent.dtype) @ np.asarray(sent) + np.asarray(now)
    kernel, noise = expected(state.clients.beliefs.own, total)
    np.testing.assert_allclose(found.kernel.length_scale, kernel.length_scale, rtol=1e-3)
    np.testing.assert_allclose(found.kernel.variance, kernel.variance, rtol=1e-3)
    np.testing.assert_allclose(found.noise, noise, rtol=1e-3)
    assert (np.abs(np.asarray(kernel.length_scale) - 0.3) > 0.02).all()


@pytest.mark.slow
def test_queries_are_those_of_the_hyperparameters_agreed_on():
    algorithm, state = agreement(False)
    queries, agreed, *_ = asked(algorithm, state, np.ones(4, bool))
    same = FTS(GRID, 4, features=GOOD, own=AGREEING, mixing=Constant(1))
    start, _ = stepped.ask(same, jr.key(1), state)
    under = jax.jit(jax.vmap(AGREEING.under, (None, 0, 0, 0)))
    own = under(state.shared.own, state.clients.beliefs.own, agreed.kernel, agreed.noise)
    plain = eqx.tree_at(lambda s: s.clients.beliefs.own, state, own)
    expected, _ = stepped.ask(same, jr.key(1), plain)
    np.testing.assert_allclose(queries, expected, atol=1e-3)
    assert np.abs(np.asarray(queries - start)).max() > 0.01


def test_an_agent_that_sends_nonsense_does_not_decide_for_all():
    algorithm, state = agreement(True)
    broken = eqx.tree_at(
        lambda s: s.clients.sent.evidence, state, replace_fn=lambda e: e.at[1].set(jnp.nan)
    )
    here = np.arange(4) != 1
    without = asked(algorithm, state, here)[1]
    for present in (here, np.ones(4, bool)):
        found = asked(algorithm, broken, present)[1]
        np.testing.assert_allclose(
            found.kernel.length_scale, without.kernel.length_scale, rtol=1e-5
        )


def test_peers_whose_evidence_is_asked_must_hold_what_they_saw(key):
    own = Fitted(5, SquaredExponential(0.3), refit_every=None)
    algorithm = FTS(GRID, 3, features=SMALL, own=own, pooled=Pooled(4), targets=1)
    x, y = np.zeros((9, 3, 1)), np.zeros((9, 3))
    x[:, 0], y[:, 0] = np.nan, np.nan
    told = jnp.asarray(x, float), jnp.asarray(y, float)
    with pytest.raises(ValueError, match="exceed the capacity of 5"):
        algorithm.warm_start(stepped.init(algorithm, key), *told)


def test_agreeing_takes_a_number_for_each_setting():
    algorithm = FTS(GRID, 2, features=GOOD, own=AGREEING, pooled=POOLED)
    state = eqx.filter_eval_shape(algorithm.init, jr.key(0))
    messages = eqx.filter_eval_shape(algorithm.messages, jr.key(0), state)
    assert metrics.floats(messages) == 2 * (GOOD.size + POOLED.settings)


@pytest.mark.parametrize(
    "own", [None, GOOD, Fitted(9), Fitted(9, refit_every=None, warp=True)], ids=repr
)
def test_what_is_agreed_on_must_be_free(own):
    with pytest.raises(
        ValueError, match=r"pooled=Pooled\(\) needs own=Fitted\(..., refit_every=None"
    ):
        FTS(Cube(1), 2, own=own, pooled=Pooled())


@pytest.mark.slow
def test_whose_turn_it_is_does_not_depend_on_how_many_agents_there_are(key):
    few, many = (stepped.init(method(agents=agents, targets=1), key) for agents in (3, 9))
    for name in ("choices", "order"):
        mine, theirs = (jax.tree.leaves(getattr(state.clients, name))[0] for state in (few, many))
        np.testing.assert_array_equal(mine, theirs[:3])
