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

#: A probability of the own sample that never comes up here.
NEVER = 1e-9
GRID = Finite(np.linspace(0, 1, 41)[:, None])
SMALL = Fixed(SquaredExponential(0.2), size=8)
GOOD = Fixed(SquaredExponential(0.2), size=60, noise=1e-2)


def always_peers(agents, peers=None, **options):
    if peers is not None:
        peers = jnp.asarray(peers, float)
    return FTS(GRID, agents, features=SMALL, mixing=Constant(NEVER), peers=peers, **options)


@functools.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 1})
def many(algorithm, keys, rounds, present):
    def one(key):
        def step(state, key):
            queries, info = algorithm.ask(key, state, present)
            return algorithm.tell(state, queries, jnp.sin(9 * queries[:, 0])), info.source

        init_key, key = jr.split(key)
        return jax.lax.scan(step, algorithm.init(init_key), jr.split(key, rounds))[1]

    return jax.vmap(one)(keys)


def sources(algorithm, keys, rounds, present=None):
    """`source` [keys rounds targets], every run from a start of its own."""
    present = jnp.ones(algorithm.agents, bool) if present is None else jnp.asarray(present, bool)
    return np.asarray(many(algorithm, keys, rounds, present))


def agrees(counts, probabilities):
    """Chi-square: the counts may come from these probabilities."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities)
    assert counts[probabilities == 0].sum() == 0
    drawn = probabilities > 0
    expected = probabilities[drawn] / probabilities.sum() * counts.sum()
    assert expected.min() > 5
    return stats.chisquare(counts[drawn], expected).pvalue > 1e-4


# ---------------------------------------------------------------- own sample, or a peer's


def test_own_samples_are_as_frequent_as_the_schedule_says(key):
    p = [0.15, 0.5, 0.9]
    algorithm = FTS(GRID, 4, features=SMALL, mixing=Table(p))
    source = sources(algorithm, jr.split(key, 4000), 4)
    own = (source == np.arange(4)[None, None, :]).sum(axis=(0, 2))
    for count, probability in zip(own, [*p, p[-1]], strict=True):
        assert stats.binomtest(int(count), 16000, probability).pvalue > 1e-4


def test_agents_choose_between_own_and_peer_independently(key):
    algorithm = FTS(GRID, 2, features=SMALL, mixing=Constant(0.5))
    source = sources(algorithm, jr.split(key, 4000), 2)
    own = (source == np.arange(2)[None, None, :]).reshape(4000, 4)
    patterns = own @ [8, 4, 2, 1]
    assert agrees(np.bincount(patterns, minlength=16), np.full(16, 1 / 16))


@pytest.mark.parametrize("once", [False, True])
def test_with_probability_one_it_is_independent_thompson_sampling(once, key):
    fts = FTS(GRID, 3, features=GOOD, mixing=Constant(1), once=once)
    ts = TS(GRID, 3, GOOD)
    x = jnp.asarray([0.1, 0.45, 0.8, 0.95])[:, None, None] * jnp.ones((1, 3, 1))
    y = jnp.sin(7 * x[..., 0] + jnp.arange(3.0)[None, :])

    def query(algorithm, key):
        init_key, ask_key = jr.split(key)
        return algorithm.ask(ask_key, algorithm.warm_start(algorithm.init(init_key), x, y))

    own_key, other_key = jr.split(key)
    queries, info = jax.jit(jax.vmap(lambda k: query(fts, k)))(jr.split(own_key, 3000))
    others, _ = jax.jit(jax.vmap(lambda k: query(ts, k)))(jr.split(other_key, 3000))
    assert (info.source == jnp.arange(3)[None, :]).all()
    points = np.asarray(GRID.points)[:, 0]
    agents = [
        [(np.asarray(q)[:, n, 0, None] == points[None, :]).sum(0) for q in (queries, others)]
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


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(
    ("peers", "present"),
    [
        (None, [1, 1, 1, 1, 1]),
        ([1.0, 2, 3, 0, 4], [1, 1, 1, 1, 1]),
        ([1.0, 2, 3, 5, 4], [0, 1, 1, 0, 1]),
        (ROWS, [1, 1, 1, 1, 1]),
        (ROWS, [1, 1, 0, 1, 1]),
    ],
    ids=["uniform", "weights", "weights and absent", "rows", "rows and absent"],
)
def test_peers_are_drawn_by_weight_and_never_if_absent(peers, present, once, key):
    present = np.asarray(present)
    algorithm = always_peers(5, targets=3, peers=peers, once=once)
    source = sources(algorithm, jr.split(key, 4000), 1, present)
    weights = np.ones(5) if peers is None else np.asarray(peers)
    for target in range(3):
        law = (weights if weights.ndim == 1 else weights[target]) * present
        law[target] = 0
        assert agrees(np.bincount(source[:, 0, target], minlength=5), law)


@pytest.mark.parametrize("once", [False, True])
def test_with_nobody_to_draw_the_own_sample_is_used(once, key):
    keys = jr.split(key, 50)
    nobody = [True, False, False]
    source = sources(always_peers(3, targets=1, once=once), keys, 3, nobody)
    assert (source == 0).all()
    weights = [1.0, 0, 0]
    source = sources(always_peers(3, targets=1, once=once, peers=weights), keys, 3)
    assert (source == 0).all()
    source = sources(always_peers(1, once=once), keys, 3)
    assert (source == 0).all()


# ---------------------------------------------------------------- one message before the start


def test_a_used_peer_is_not_drawn_again(key):
    algorithm = FTS(GRID, 5, features=SMALL, mixing=Constant(0.4), once=True)
    source = sources(algorithm, jr.split(key, 300), 10)
    for run, target in itertools.product(range(300), range(5)):
        peers = [s for s in source[run, :, target] if s != target]
        assert len(peers) == len(set(peers))
    # Each run uses up nearly all peers, so the rule was put to the test.
    assert np.mean(source != np.arange(5)[None, None, :]) > 0.35


def test_successive_peers_are_draws_by_weight_without_replacement(key):
    weights = np.array([0.0, 1, 2, 4])
    algorithm = always_peers(4, targets=1, peers=weights, once=True)
    source = sources(algorithm, jr.split(key, 6000), 4)
    sequences = source[:, :, 0]
    assert (sequences[:, 3] == 0).all()  # all used up: its own from then on
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


def test_peers_may_know_more_than_a_target_can_hold(key):
    algorithm = FTS(GRID, 3, features=SMALL, own=Fitted(5, size=8), targets=1, once=True)
    x, y = jr.choice(key, GRID.points, (9, 3)), jnp.ones((9, 3)).at[2:, 0].set(jnp.nan)
    x = jnp.where(jnp.isnan(y)[..., None], jnp.nan, x)
    state = algorithm.warm_start(algorithm.init(key), x, y)
    np.testing.assert_array_equal(state.clients.beliefs.message.posterior.count, [2, 9, 9])
    assert state.told == 2
    with pytest.raises(ValueError, match=r"6 observations .* capacity of 5"):
        algorithm.warm_start(algorithm.init(key), x, y.at[:6, 0].set(1.0))


def test_the_one_message_follows_the_warm_start_and_then_stays(key):
    algorithm = FTS(GRID, 3, features=GOOD, once=True)
    init_key, *ask_keys = jr.split(key, 6)
    state = algorithm.init(init_key)
    before = state.clients.sent.weights
    x = jnp.full((4, 3, 1), 0.5)
    y = jnp.asarray([[1.0, jnp.nan, 1.0]] * 3 + [[2.0, jnp.nan, jnp.nan]])
    state = algorithm.warm_start(state, x, y)
    sent = state.clients.sent.weights
    assert (sent != before).any(axis=1).tolist() == [True, False, True]
    ask, tell = eqx.filter_jit(algorithm.ask), eqx.filter_jit(algorithm.tell)
    for ask_key in ask_keys:
        queries, _ = ask(ask_key, state)
        state = tell(state, queries, jnp.cos(queries[:, 0]))
        assert (state.clients.sent.weights == sent).all()
    assert (state.clients.beliefs.message.moments.count == jnp.asarray([9, 5, 8])).all()


def test_every_round_brings_a_new_message_otherwise(key):
    algorithm = FTS(GRID, 3, features=GOOD)
    state = algorithm.init(jr.fold_in(key, 0))

    def messages(key):
        send = lambda i, client: algorithm.message(jr.fold_in(key, i), state.shared, client)  # noqa: E731
        return jax.vmap(send)(jnp.arange(3), state.clients).weights

    rows = np.concatenate([messages(jr.fold_in(key, 1)), messages(jr.fold_in(key, 2))])
    assert len(np.unique(rows, axis=0)) == 6


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
    "own": Fitted(40, SquaredExponential(0.3)),
    "exact": Fitted(40, SquaredExponential(0.3), inference=Exact(), warp=True),
}


def informed(algorithm, key):
    """Agents that know their objectives well; each has its peak elsewhere."""
    agents = algorithm.agents
    x = jnp.linspace(0.0, 1.0, 30)[:, None, None] * jnp.ones((1, agents, 1))
    y = jnp.exp(-(((x[..., 0] - jnp.asarray(PEAKS[:agents], x.dtype)[None, :]) / 0.15) ** 2))
    return eqx.filter_jit(algorithm.warm_start)(algorithm.init(key), x, y)


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_a_query_from_a_peer_maximizes_the_function_that_the_peer_sent(own, key):
    algorithm = FTS(
        Cube(1), 4, features=GOOD, own=own, mixing=Constant(NEVER), once=True, candidates=200
    )
    init_key, ask_key = jr.split(key)
    state = informed(algorithm, init_key)
    queries, info = eqx.filter_jit(algorithm.ask)(ask_key, state)
    source = np.asarray(info.source)
    assert (source != np.arange(4)).all()
    grid = jnp.linspace(0, 1, 4001)[:, None]
    for x, peer in zip(queries, source, strict=True):
        sent = FourierFunction(state.shared.message, state.clients.sent.weights[peer])
        values = np.asarray(jax.vmap(sent)(grid))
        assert float(sent(x)) >= values.max() - 1e-3 * np.ptp(values)
    # The features are common to all: another agent's weights mean the same to the one who asks.
    np.testing.assert_allclose(np.asarray(queries)[:, 0], PEAKS[source], atol=0.1)


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_a_query_of_ones_own_is_near_ones_own_peak(own, key):
    algorithm = FTS(Cube(1), 4, features=GOOD, own=own, mixing=Constant(1), candidates=200)
    state = informed(algorithm, jr.fold_in(key, 0))
    queries, _ = eqx.filter_jit(algorithm.ask)(jr.fold_in(key, 1), state)
    np.testing.assert_allclose(np.asarray(queries)[:, 0], PEAKS, atol=0.1)


def test_peers_that_know_the_objective_help_in_the_first_rounds(key):
    x = jnp.broadcast_to(GRID.points[:, None], (41, 4, 1))

    def objective(x):
        return jnp.sin(9 * x) + x

    x = x.at[:, 0].set(jnp.nan)  # the target has observed nothing
    known = objective(x[..., 0])

    def best(mixing, key):
        init_key, *ask_keys = jr.split(key, 5)
        algorithm = FTS(GRID, 4, features=GOOD, mixing=mixing, targets=1, once=True)
        state = algorithm.warm_start(algorithm.init(init_key), x, known)
        values = []
        for ask_key in ask_keys:
            queries, _ = algorithm.ask(ask_key, state)
            values.append(objective(queries[:, 0]))
            state = algorithm.tell(state, queries, values[-1])
        return jnp.max(jnp.stack(values))

    keys = jr.split(key, 200)
    helped = jax.jit(jax.vmap(lambda k: best(Constant(0.5), k)))(keys)
    alone = jax.jit(jax.vmap(lambda k: best(Constant(1), k)))(keys)
    assert stats.wilcoxon(helped, alone, alternative="greater").pvalue < 1e-6


# ---------------------------------------------------------------- hyperparameters in common

AGREEING = Fitted(40, SquaredExponential(0.3), size=60, refit_every=None)


def agreement(once, key):
    """Agents that agree, after what came before the start and one round."""
    algorithm = FTS(
        Cube(1), 4, features=GOOD, own=AGREEING, pooled=Pooled(16), once=once, mixing=Constant(1)
    )
    state = informed(algorithm, key)
    # What is observed after the one message counts for the agent itself.
    state = algorithm.tell(state, jnp.full((4, 1), 0.2), jnp.arange(4.0))
    return algorithm, state


@pytest.mark.parametrize("once", [False, True])
def test_agents_agree_by_the_evidence_of_all_who_are_present(once, key):
    algorithm, state = agreement(once, key)
    pooled, present = algorithm.pooled, np.array([True, False, True, True])
    now = np.asarray(jax.vmap(lambda c: pooled.evidence(AGREEING, c.beliefs.own))(state.clients))
    sent = np.asarray(algorithm.messages(jr.key(2), state).evidence)
    assert np.allclose(sent, now) == (not once)
    # Operation by operation, as the messages above: compiled together, evidences round otherwise.
    _, info = algorithm.ask(jr.key(1), state, jnp.asarray(present))
    agreed = jax.jit(lambda belief, total: pooled.agreed(AGREEING, belief, total))
    for agent in range(4):
        belief = jax.tree.map(lambda leaf, n=agent: leaf[n], state.clients.beliefs.own)
        others = present & (np.arange(4) != agent)
        total = jnp.asarray(sent[others].sum(0) + now[agent])
        kernel, noise = agreed(belief, total)
        found = jax.tree.map(lambda leaf, n=agent: leaf[n], info.agreed)
        np.testing.assert_allclose(found.kernel.length_scale, kernel.length_scale, rtol=1e-3)
        np.testing.assert_allclose(found.kernel.variance, kernel.variance, rtol=1e-3)
        np.testing.assert_allclose(found.noise, noise, rtol=1e-3)
        assert abs(float(kernel.length_scale) - 0.3) > 0.02


def test_queries_are_those_of_the_hyperparameters_agreed_on(key):
    algorithm, state = agreement(False, key)
    queries, info = eqx.filter_jit(algorithm.ask)(jr.key(1), state)
    same = FTS(Cube(1), 4, features=GOOD, own=AGREEING, mixing=Constant(1))
    ask = eqx.filter_jit(same.ask)
    start, _ = ask(jr.key(1), state)
    for agent in range(4):
        agreed = info.agreed.kernel, info.agreed.noise
        agreed = jax.tree.map(lambda leaf, n=agent: leaf[n], agreed)
        under = jax.vmap(lambda b, a=agreed: AGREEING.under(state.shared.own, b, *a))
        plain = eqx.tree_at(
            lambda s: s.clients.beliefs.own, state, under(state.clients.beliefs.own)
        )
        expected, _ = ask(jr.key(1), plain)
        np.testing.assert_allclose(queries[agent], expected[agent], atol=1e-3)
    assert np.abs(np.asarray(queries - start)).max() > 0.01


def test_an_agent_that_sends_nonsense_does_not_decide_for_all(key):
    algorithm, state = agreement(True, key)
    broken = eqx.tree_at(
        lambda s: s.clients.sent.evidence, state, replace_fn=lambda e: e.at[1].set(jnp.nan)
    )
    ask = eqx.filter_jit(algorithm.ask)
    without = ask(jr.key(1), state, jnp.arange(4) != 1)[1].agreed
    for present in (jnp.arange(4) != 1, jnp.ones(4, bool)):
        found = ask(jr.key(1), broken, present)[1].agreed
        np.testing.assert_allclose(
            found.kernel.length_scale, without.kernel.length_scale, rtol=1e-5
        )


def test_peers_whose_evidence_is_asked_must_hold_what_they_saw(key):
    own = Fitted(5, SquaredExponential(0.3), refit_every=None)
    algorithm = FTS(Cube(1), 3, features=SMALL, own=own, pooled=Pooled(4), targets=1)
    x, y = jnp.zeros((9, 3, 1)).at[:, 0].set(jnp.nan), jnp.zeros((9, 3)).at[:, 0].set(jnp.nan)
    with pytest.raises(ValueError, match="exceed the capacity of 5"):
        algorithm.warm_start(algorithm.init(key), x, y)


def test_agreeing_takes_a_number_for_each_setting(key):
    algorithm = FTS(Cube(1), 2, features=GOOD, own=AGREEING, pooled=Pooled(16))
    state = algorithm.init(key)
    client = jax.tree.map(lambda leaf: leaf[0], state.clients)
    assert metrics.floats(algorithm.message(key, state.shared, client)) == GOOD.size + 16


@pytest.mark.parametrize(
    "own", [None, GOOD, Fitted(9), Fitted(9, refit_every=None, warp=True)], ids=repr
)
def test_what_is_agreed_on_must_be_free(own):
    with pytest.raises(
        ValueError, match=r"pooled=Pooled\(\) needs own=Fitted\(..., refit_every=None"
    ):
        FTS(Cube(1), 2, own=own, pooled=Pooled())


def test_whose_turn_it_is_does_not_depend_on_how_many_agents_there_are(key):
    few, many = (FTS(Cube(2), agents, features=Fixed(size=4)).init(key) for agents in (3, 9))
    for name in ("choices", "order"):
        mine, theirs = (jax.tree.leaves(getattr(state.clients, name))[0] for state in (few, many))
        np.testing.assert_array_equal(mine, theirs[:3])
