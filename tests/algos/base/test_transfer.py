"""RGPE and TAF beside dense algebra in float64, and FTS that learns whom to listen to."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array
from scipy import stats

from jaxbo import metrics
from jaxbo.algos.fts import FTS
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs.compiled import run
from jaxbo.schedules import Constant
from tests import stepped

AGENTS, POINTS, NOISE, M = 4, 8, 1e-2, 40
KERNEL = SquaredExponential(0.3)
FEATURES = Fixed(KERNEL, size=M, noise=NOISE)


#: Of what both methods do by the same code, RGPE is the quicker test.
LISTENING = pytest.mark.parametrize("kind", [RGPE, pytest.param(TAF, marks=pytest.mark.full)])


def own(capacity=20, **options):
    return Fitted(capacity, KERNEL, noise=NOISE, refit_every=None, inference=Exact(), **options)


def make(kind, agents=AGENTS, domain=Cube(2), **options):
    return kind(domain, agents, own(), features=FEATURES, **options)


@pytest.fixture
def data():
    """Values of other scales; agent 3 observed less."""
    rng = np.random.default_rng(0)
    x = rng.random((POINTS, AGENTS, 2))
    y = 5 * np.sin(4 * x[..., 0] + 0.3 * np.arange(AGENTS)) + x[..., 1] * np.arange(1, AGENTS + 1)
    x[5:, 3] = y[5:, 3] = np.nan
    return x, y


def told(algorithm, data, key):
    x, y = data
    return started(algorithm, jnp.asarray(x, float), jnp.asarray(y, float), key)


@eqx.filter_jit
def started(algorithm, x, y, key):
    return algorithm.warm_start(algorithm.init(key), x, y)


@eqx.filter_jit
def sent(algorithm, state, key):
    return algorithm.messages(key, state)


def standardized(y):
    return (y - y.mean()) / (y.std() or 1)


def dense_messages(state, data):
    """Posterior mean and covariance of every agent's weights, and its best value, standardized."""
    for x, y in zip(np.moveaxis(data[0], 1, 0), data[1].T, strict=True):
        fine = np.isfinite(y)
        features = phi(state, x[fine])
        values = standardized(y[fine])
        cov = np.linalg.inv(features.T @ features / NOISE + np.eye(M))
        yield cov @ features.T @ values / NOISE, cov, values.max()


def dense_own(data, agent, points):
    """Mean and deviation of the agent's exact process, and its best mean at its observations."""
    x, y = data[0][:, agent], data[1][:, agent]
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    y = standardized(y)

    def k(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2 / 0.3**2)

    A = k(x, x) + NOISE * np.eye(len(y))
    mean = k(points, x) @ np.linalg.solve(A, y)
    variance = 1 - np.einsum("pn,np->p", k(points, x), np.linalg.solve(A, k(x, points)))
    return mean, np.sqrt(variance), k(x, x) @ np.linalg.solve(A, y), x


def improvement(mean, std, best):
    z = (mean - best) / std
    return std * (z * stats.norm.cdf(z) + stats.norm.pdf(z))


@eqx.filter_jit
def acquired(algorithm, state, agent, key, points):
    """The function that an agent maximizes at points, and the weights in it."""
    messages = sent(algorithm, state, key)
    client = jax.tree.map(lambda leaf: leaf[agent], state.clients)
    others = jnp.arange(AGENTS) != agent
    given = key, state.shared, client.beliefs.own, messages, others
    function, weights = algorithm.acquisition(*given)
    return jax.vmap(function)(points), weights


def acquisition(algorithm, state, agent, key, points):
    given = jnp.asarray(agent), key, jnp.asarray(points, float)
    return [np.asarray(found, float) for found in acquired(algorithm, state, *given)]


@eqx.filter_jit
def features(shared, points):
    return jax.vmap(shared.message)(points)


def phi(state, points):
    """The features of the messages, at up to 200 points: always as many, so that there is one program."""
    padded = np.zeros((200, 2))
    padded[: len(points)] = points
    return np.asarray(features(state.shared, jnp.asarray(padded, float)), float)[: len(points)]


@pytest.mark.parametrize("agent", [0, 3])
def test_rgpe_maximizes_the_improvement_of_the_mixture(agent, data, key):
    algorithm = make(RGPE)
    state = told(algorithm, data, jr.key(1))
    points = np.random.default_rng(1).random((30, 2))
    found, w = acquisition(algorithm, state, agent, key, points)
    assert w[agent] == 0
    assert 0 < w.sum() <= 1 + 1e-6
    alone = 1 - w.sum()
    features = phi(state, points)
    mean, std, at_data, x = dense_own(data, agent, points)
    features_at_data = phi(state, x)
    mean, variance, at_data = alone * mean, (alone * std) ** 2, alone * at_data
    for weight, (nu, cov, _) in zip(w, dense_messages(state, data), strict=True):
        mean = mean + weight * features @ nu
        variance = variance + weight**2 * np.einsum("pm,mn,pn->p", features, cov, features)
        at_data = at_data + weight * features_at_data @ nu
    expected = improvement(mean, np.sqrt(variance), at_data.max())
    np.testing.assert_allclose(np.exp(found), expected, rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("equal", [False, True], ids=["", "own values equal"])
def test_taf_adds_the_gains_over_what_others_found(agent, equal, data, key):
    if equal:
        data[1][:, agent] = 0.25
        data[1][np.isnan(data[0][..., 0])] = np.nan
    algorithm = make(TAF, bandwidth=0.8)
    state = told(algorithm, data, jr.key(1))
    # Where the features err between observations, means exceed incumbents: try where they do.
    points = np.random.default_rng(1).random((200, 2))
    found, shares = acquisition(algorithm, state, agent, key, points)
    mean, std, at_data, x = dense_own(data, agent, points)
    y = data[1][np.isfinite(data[1][:, agent]), agent]
    expected, weights = 0.75 * improvement(mean, std, at_data.max()), np.zeros(AGENTS)
    gained = 0
    for n, (nu, _, best) in enumerate(dense_messages(state, data)):
        if n == agent:
            continue
        there = phi(state, x) @ nu
        tau = 1 if equal else stats.kendalltau(there, y).statistic
        best = min(best, there.max()) if equal else best
        weights[n] = 0.75 * max(1 - ((1 - tau) / 2 / 0.8) ** 2, 0)
        gain = np.maximum(phi(state, points) @ nu - best, 0)
        gained += (gain > 0).sum()
        expected += weights[n] * gain
    assert gained > 5
    np.testing.assert_allclose(shares, weights / (0.75 + weights.sum()), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.exp(found), expected, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [RGPE, TAF])
def test_a_message_is_the_posterior_and_no_more(kind, data, key):
    algorithm = make(kind)
    state = told(algorithm, data, jr.key(1))
    messages = sent(algorithm, state, key)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), messages)
    assert metrics.floats(one) == M + M**2 + (kind is TAF)
    for n, (nu, cov, best) in enumerate(dense_messages(state, data)):
        factor = np.asarray(messages.factor[n], float)
        np.testing.assert_allclose(messages.mean[n], nu, atol=2e-3)
        np.testing.assert_allclose(factor.T @ factor, cov, atol=2e-3)
        # Of all factors the one that Cholesky finds: nothing of the order of what was observed.
        np.testing.assert_allclose(factor, np.linalg.cholesky(cov).T, atol=5e-3)
        if kind is TAF:
            assert float(messages.incumbent[n]) == pytest.approx(best, abs=1e-4)


@pytest.mark.slow
@LISTENING
def test_a_capacity_changes_no_message(kind, data, key):
    dense = told(make(kind), data, jr.key(1))
    few = Fixed(KERNEL, size=M, noise=NOISE, capacity=POINTS)
    algorithm = kind(Cube(2), AGENTS, own(), features=few)
    messages = sent(algorithm, told(algorithm, data, jr.key(1)), key)
    for ours, theirs in zip(
        jax.tree.leaves(messages), jax.tree.leaves(sent(make(kind), dense, key)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.slow
@LISTENING
def test_a_broken_message_is_not_listened_to(kind, data, key):
    @jax.jit
    def asked(number, present):
        """Where agent 2 sends nothing but this number, unless it is 0."""

        class Spoiled(kind):
            def messages(self, key, state, **options):
                return jax.tree.map(
                    lambda leaf: leaf.at[2].set(jnp.where(number == 0, leaf[2], number)),
                    super().messages(key, state, **options),
                )

        return Spoiled(Cube(2), AGENTS, own(), features=FEATURES).ask(key, state, present)

    state = told(make(kind), data, jr.key(1))
    all_, without = jnp.ones(AGENTS, bool), jnp.arange(AGENTS) != 2
    _, listening = asked(jnp.array(0.0), all_)
    assert (np.asarray(listening)[:, 2] > 0).any()
    expected = asked(jnp.array(0.0), without)
    for bad in (np.nan, np.inf):
        for present in (all_, without):
            for ours, theirs in zip(asked(jnp.array(bad), present), expected, strict=True):
                keep = np.arange(AGENTS) != 2
                np.testing.assert_array_equal(np.asarray(ours)[keep], np.asarray(theirs)[keep])


@LISTENING
def test_one_message_is_of_what_came_before_the_start(kind, data, key):
    algorithm = make(kind, once=True)
    state = told(algorithm, data, jr.key(1))
    before = sent(algorithm, state, key)
    fresh = sent(make(kind), told(make(kind), data, jr.key(1)), key)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, before, fresh)
    later = stepped.tell(
        algorithm, state, jnp.full((AGENTS, 2), 0.5), jnp.arange(AGENTS, dtype=float)
    )
    jax.tree.map(np.testing.assert_array_equal, before, sent(algorithm, later, key))


@pytest.mark.slow
@LISTENING
def test_alone_it_is_expected_improvement(kind, data, key):
    algorithm = make(kind)
    state = told(algorithm, data, jr.key(1))
    absent = stepped.ask(algorithm, key, state, jnp.zeros(AGENTS, bool))
    np.testing.assert_array_equal(absent[1], 0)
    points = np.random.default_rng(2).random((2000, 2))
    for agent, query in enumerate(np.asarray(absent[0], float)):
        mean, std, at_data, _ = dense_own(data, agent, np.vstack([points, query]))
        found = improvement(mean, std, at_data.max())
        assert found[-1] >= found.max() * 0.999


def test_an_agent_whose_values_are_equal_goes_where_others_say_or_else_anywhere(data):
    x, y = data
    y = y.copy()
    y[:, 0] = 1.0
    algorithm = make(TAF)
    state = told(algorithm, (x, y), jr.key(1))

    def apart(present):
        """How far its queries are from the first, under several keys."""
        asked = [stepped.ask(algorithm, jr.key(k), state, present)[0][0] for k in range(5)]
        return np.linalg.norm(np.asarray(asked[1:]) - np.asarray(asked[0]), axis=1)

    assert apart(jnp.ones(AGENTS, bool)).max() < 1e-2
    assert apart(jnp.arange(AGENTS) == 0).min() > 1e-2


@pytest.mark.parametrize("kind", [RGPE, TAF])
def test_an_agent_may_have_observed_nothing(kind, data, key):
    x, y = data
    y = y.copy()
    y[:, 2] = np.nan
    algorithm = make(kind)
    state = told(algorithm, (x, y), jr.key(1))
    ask = functools.partial(stepped.ask, algorithm)
    queries, weights = ask(key, state, jnp.ones(AGENTS, bool))
    assert np.isfinite(queries).all()
    assert np.isfinite(weights).all()
    without, _ = ask(key, state, jnp.arange(AGENTS) != 2)
    if kind is TAF:  # in RGPE the prior's draws rank by chance, and may be drawn
        np.testing.assert_allclose(queries[:2], without[:2], atol=1e-5)


@pytest.mark.full
def test_agents_alike_help_each_other():
    def objective(key, agent, x):
        return jnp.sin(9 * x[0]) * jnp.cos(7 * x[1]) - ((x - 0.2) ** 2).sum()

    domain = Finite(np.random.default_rng(0).random((300, 2)))
    algorithm = make(RGPE, 10, domain, peers=np.ones(10, bool))

    @jax.jit
    @jax.vmap
    def best(key, listening):
        some = eqx.tree_at(lambda a: a.peers, algorithm, replace_fn=lambda all_: all_ & listening)
        return run(some, objective, 4, key, initial=3)[1].values.max(0).mean()

    keys, listening = jr.split(jr.key(0), 200), jnp.repeat(jnp.array([True, False]), 200)
    heard, deaf = np.split(np.asarray(best(jnp.tile(keys, 2), listening)), 2)
    low, _ = metrics.confidence_interval(heard - deaf)
    assert low > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", [RGPE, TAF])
def test_of_twenty_agents_on_a_plateau_as_many_find_the_hill_as_at_random(kind):
    share, rounds, initial = 0.02, 31, 4
    options = {"features": FEATURES, "candidates": 64} | ({"draws": 20} if kind is RGPE else {})
    algorithm = kind(Cube(2), 20, own(rounds + initial), **options)

    @jax.jit
    @jax.vmap
    def found(key):
        """The share of the agents that have by the end."""
        side = share**0.5
        center = side / 2 + (1 - side) * jr.uniform(jr.fold_in(key, 1), (2,))

        def objective(key, agent, x):
            return jnp.where(jnp.max(jnp.abs(x - center)) <= side / 2, 1.0, 0.2)

        values = run(algorithm, objective, rounds, key, initial=initial)[1].values
        return jnp.mean(jnp.any(values > 0.9, axis=0), dtype=float)

    shares = np.asarray(found(jr.split(jr.key(7), 24)))
    at_random = 1 - (1 - share) ** (rounds + initial)
    assert shares.mean() > 0.9 * at_random - 2 * shares.std(ddof=1) / 24**0.5


@pytest.mark.parametrize("kind", [RGPE, TAF])
@pytest.mark.parametrize("surrogate", [Fitted(10), Fitted(10, inference=OnFeatures())])
def test_the_own_model_keeps_observations(kind, surrogate):
    with pytest.raises(ValueError, match=r"own must be Fitted\(\.\.\., inference=Exact\(\)\)"):
        kind(Cube(2), 3, surrogate)


FEW_POINTS = Finite(np.random.default_rng(0).random((10, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "of_a_pair"), [(RGPE, 190), pytest.param(TAF, 60, marks=pytest.mark.full)]
)
def test_a_pair_of_agents_takes_little_memory(kind, of_a_pair):
    # For each pair RGPE has the losses of its draws, and TAF predictions at the own observations.
    def bytes_of(agents):
        few = Fixed(KERNEL, size=16, noise=NOISE)
        algorithm = kind(FEW_POINTS, agents, own(capacity=10), features=few)
        state = jax.eval_shape(algorithm.init, jr.key(0))
        ask = jax.jit(lambda key, state: algorithm.ask(key, state)[0])
        compiled = ask.lower(jr.key(0), state).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = 64, 256
    number = jnp.zeros(()).nbytes
    assert bytes_of(many) - bytes_of(few) * many / few < of_a_pair * number * many**2


@pytest.mark.slow
@LISTENING
def test_only_those_named_are_listened_to(kind, data, key):
    state = told(make(kind), data, jr.key(1))
    rows = ~np.eye(AGENTS, dtype=bool)
    rows[0], rows[1, 3] = False, False

    def weights_of(peers):
        everybody = jnp.ones(AGENTS, bool)
        return stepped.ask(make(kind, peers=peers), key, state, everybody)[1]

    weights = weights_of(rows)
    np.testing.assert_array_equal(weights[0], 0)
    assert float(weights[1, 3]) == 0
    assert float(weights[1].sum()) > 0
    # Named, that it is the same program. Without names all are: other tests have none.
    everybody = weights_of(np.ones((AGENTS, AGENTS), bool))
    np.testing.assert_allclose(weights[2], everybody[2], atol=1e-6)
    some = weights_of(np.array([True, False, False, True]))
    np.testing.assert_array_equal(some[:, 1:3], 0)


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match=r"peers must have shape \(4,\) or \(4, 4\)"):
        make(TAF, peers=np.array([True, False]))
    with pytest.raises(ValueError, match="peers must say yes or no"):
        make(RGPE, peers=np.ones(AGENTS))
    with pytest.raises(ValueError, match="features must standardize"):
        RGPE(Cube(2), 3, own(), features=Fixed(standardize=False))
    with pytest.raises(ValueError, match="bandwidth"):
        make(TAF, bandwidth=0.0)
    with pytest.raises(ValueError, match="draws"):
        make(RGPE, draws=0)
    with pytest.raises(ValueError, match="targets"):
        make(TAF, targets=9)


# ------------------------------------------------------------------------- peers of FTS, ranked


class Signed(AbstractObjective):
    """Agent 0's function, its like where the sign is 1, its negative where it is -1."""

    signs: Array = eqx.field(converter=lambda signs: jnp.asarray(signs, float))
    noise: Array = eqx.field(converter=lambda noise: jnp.asarray(noise, float), default=0.05)

    def noiseless(self, agent, x):
        return self.signs[agent] * (jnp.sin(6 * x[0]) + x[1])

    def optimum(self, agent):
        raise NotImplementedError


def listening(signs, once=False, runs=20, start=None, since=14):
    """Whom agent 0 listens to after 14 rounds, if it is up to p_t = 1/2; all keep observing."""
    agents = len(signs)
    model = Fitted(24, KERNEL, size=M, noise=NOISE, refit_every=None)
    peers = FTS(
        MANY_POINTS, agents, features=FEATURES, own=model, mixing=Constant(0.5),
        peers=Ranked(start=start), once=once,
    )  # fmt: skip
    source = sources(peers, Signed(signs), jr.split(jr.key(3), runs))
    return np.asarray(source)[:, since:, 0]


MANY_POINTS = Finite(np.random.default_rng(4).random((300, 2)))


@eqx.filter_jit
def sources(peers, objective, keys):
    return jax.vmap(lambda k: run(peers, objective, 20, k, initial=4)[1].info.source)(keys)


@pytest.mark.slow
def test_peers_that_rank_well_are_listened_to():
    source = listening([1, 1, 1, -1, -1])
    asked = source[source != 0]
    assert asked.size > 30
    assert np.isin(asked, [1, 2]).mean() > 0.85  # uniformly drawn it would be half
    assert {1, 2} <= set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, pytest.param(True, marks=pytest.mark.full)])
def test_nobody_is_listened_to_where_all_rank_badly(once):
    source = listening([1, -1, -1, -1, -1], once=once)
    assert (source == 0).mean() > 0.85  # by p_t alone it would be half


@pytest.mark.slow
@pytest.mark.parametrize("once", [pytest.param(False, marks=pytest.mark.full), True])
def test_whom_not_to_listen_to_can_be_known_before(once):
    start = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    start = np.tile(start, (5, 1)) if once else start
    source = listening([1, 1, 1, -1, -1], once=once, start=start, since=0)
    assert 1 not in source
    assert 2 in source


@pytest.mark.full
def test_of_two_alike_the_one_that_weighed_more_before_is_listened_to_more():
    source = listening([1, 1, 1], start=np.array([0.0, 9.0, 1.0]))
    asked = source[source != 0]
    assert asked.size > 30
    assert (asked == 1).mean() > 0.75  # uniformly drawn it would be half


def test_weights_of_ranked_peers_are_checked_like_others():
    own = Fitted(24, KERNEL)
    for start in (np.ones(2), np.ones((2, 3)), np.array([1, -1, 1]), np.array([1, np.nan, 1])):
        with pytest.raises(ValueError, match=r"(peers|start) must"):
            FTS(Cube(2), 3, own=own, peers=Ranked(start=start))


def test_ranking_needs_what_was_observed():
    with pytest.raises(ValueError, match=r"peers=Ranked\(\) needs own=Fitted"):
        FTS(Cube(2), 3, peers=Ranked())
