"""Agents that learn a prior together; what is summed up is tried in `kernels.models.shared_prior`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import metrics
from jaxbo.algos.base.keys import ask_keys
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing.policy import EI, UCB, Drawn, Thompson
from jaxbo.kernels.models import shared_prior
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.layout import layout
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive
from jaxbo.schedules import Table
from tests import stepped

pytestmark = pytest.mark.float64
#: What has nothing to do with the precision, and takes long.
once = pytest.mark.skipif(jax.config.jax_enable_x64, reason="tried in float32")

AGENTS, INITIAL, ROUNDS, SEEDS = 6, 3, 3, 48
MODEL = Fixed(SquaredExponential(0.25), size=30, noise=1e-3)
#: Points to choose from: no search has to be compiled. The contract is tried on a square, too.
GRID = Finite(np.stack(np.meshgrid(*2 * [np.linspace(0, 1, 15)]), axis=-1).reshape(-1, 2))
EVERYONE = np.ones(AGENTS, bool)
#: All values speak against the first, and some against the last.
SEVERAL = [Fixed(SquaredExponential(length), size=30, noise=1e-3) for length in (5.0, 0.25, 0.01)]


def make(**options):
    given = {"features": MODEL} | options
    agents = given.pop("agents", AGENTS)
    return LearnedPrior(GRID, agents, INITIAL + ROUNDS, **given)


def hill(module, agent, x):
    """A hill for each agent, near that of the others."""
    center = module.asarray([0.7, 0.3]) + 0.02 * module.cos(module.arange(2) + agent)
    return module.exp(-module.sum((x - center) ** 2, axis=-1) / 0.08)


def objective(key, agent, x):
    del key
    return hill(jnp, agent, x)


#: What all have seen before the start.
X = np.random.default_rng(4).choice(np.asarray(GRID.points), (INITIAL, AGENTS))
Y = hill(np, np.arange(AGENTS)[:, None], X).astype(X.dtype)
#: An evaluation that may have failed.
FAILED = np.zeros(Y.shape, bool)
FAILED[0, 1] = True


@eqx.filter_jit
def told(algorithm, y):
    """The state after these values."""
    return algorithm.warm_start(algorithm.init(jr.key(5)), jnp.asarray(X), y)


def ask(algorithm, state, present=EVERYONE):
    return stepped.ask(algorithm, jr.key(6), state, present)


learned = eqx.filter_jit(LearnedPrior.learned)


@functools.cache
def ran():
    """States and traces of runs, [trust seeds], trust being none and as it is by default."""

    def one(trust, key):
        return run(make(trust=trust), objective, ROUNDS, key, initial=INITIAL)

    # Pairs side by side: of two nested maps each would be traced.
    trusts, keys = jnp.repeat(jnp.asarray([0.0, 0.5]), SEEDS), jr.split(jr.key(0), SEEDS)
    found = jax.jit(jax.vmap(one))(trusts, jnp.tile(keys, 2))
    return jax.tree.map(lambda leaf: leaf.reshape(2, SEEDS, *leaf.shape[1:]), found)


def finished():
    """State and trace of agents that have finished."""
    return jax.tree.map(lambda leaf: leaf[1, 0], ran())


@pytest.mark.slow
def test_agents_with_much_in_common_find_the_hill_sooner_than_alone():
    values = np.asarray(ran()[1].values)
    alone, together = (metrics.best_so_far(each)[:, -1].mean(axis=1) for each in values)
    low, _ = metrics.confidence_interval(together - alone)
    assert low > 0.02


def test_the_first_query_after_the_design_uses_what_all_have_seen():
    others = hill(np, np.arange(AGENTS)[:, None], (X + 0.5) % 1.0).astype(Y.dtype)
    others[:, 0] = Y[:, 0]  # the values of the first agent are the same
    one, two = (ask(make(), told(make(), y))[0][0] for y in (Y, others))
    assert np.abs(one - two).max() > 1e-3


def test_without_trust_nothing_of_others_is_used_but_the_scale():
    # Peers' values change places: mean and deviation of all are the same, and not their functions.
    others = Y[:, [0, 2, 3, 4, 5, 1]]

    def moved(trust):
        algorithm = make(trust=trust)
        one, two = (ask(algorithm, told(algorithm, y))[0][0] for y in (Y, others))
        return np.abs(one - two).max()

    assert moved(0.0) < 1e-3
    assert moved(0.5) > 1e-3


@eqx.filter_jit
def queries_of(algorithm, state, keys):
    """Queries [keys agents dim]."""
    return jax.vmap(lambda key: algorithm.ask(key, state)[0])(keys)


@pytest.mark.slow
@pytest.mark.parametrize("own_units", [False, pytest.param(True, marks=pytest.mark.full)])
def test_with_probability_p_an_agent_asks_as_if_it_were_alone(own_units):
    of = functools.partial(make, own_units=own_units)
    state, before = (told(of(), in_units()), 0) if own_units else (finished()[0], ROUNDS)
    keys = jr.split(jr.key(11), 40)
    # Of as many probabilities as below, that it is one program. Without any they work together, too:
    # `test_newcomers_of_groups_work_alone_if_they_are_told_to`.
    never = Table([0.0] * (before + 1))
    alone, together = (
        queries_of(of(trust=trust, mixing=never), state, keys) for trust in (0.0, 0.5)
    )
    differ = np.any(alone != together, axis=-1)
    assert differ.mean() > 0.5

    def share(mixing):
        found = queries_of(of(mixing=mixing), state, keys)
        own, common = (np.all(found == other, axis=-1) for other in (alone, together))
        assert (own | common).all()
        return own[differ].mean()

    # The state is that of round `before` + 1.
    assert share(Table([0.0] * before + [1.0])) == 1
    assert share(Table([1.0] * before + [0.0])) == 0
    assert 0.35 < share(Table([0.0] * before + [0.5])) < 0.65


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.full)])
def test_an_agent_that_is_absent_is_in_no_sum(groups):
    present, algorithm = np.arange(AGENTS) != 2, make(groups=groups)
    changed = np.where(present, Y, -3 * Y)
    one, two = (ask(algorithm, told(algorithm, y), present)[1].broadcast for y in (Y, changed))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert np.all(one.learned)


#: What the agents' values are in units of their own.
SIZES, ZEROS = np.array([1.0, 1e-4, 1e4, 7.0, 0.3, 40.0]), np.array([0, 3e-4, -2e4, 50, -1, 9.0])


def in_units():
    return (ZEROS + SIZES * Y).astype(Y.dtype)


@eqx.filter_jit
def expected(algorithm, state, x):
    return algorithm.predict(state, x)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"groups": 2, "features": SEVERAL}, marks=pytest.mark.full),
        pytest.param({"features": SEVERAL[::-1]}, marks=pytest.mark.full),
    ],
)
def test_with_own_units_agents_learn_the_same_in_whatever_units_their_values_are(options):
    algorithm, x = make(own_units=True, **options), jnp.asarray(GRID.points[:AGENTS])
    found = []
    for size, zero in ((np.ones(AGENTS), np.zeros(AGENTS)), (SIZES, ZEROS)):
        state = learned_state(algorithm, told(algorithm, (zero + size * Y).astype(Y.dtype)))
        mean, variance = np.asarray(expected(algorithm, state, x), np.float64)
        moments = (mean - zero) / size, variance / size**2
        found.append((ask(algorithm, state)[1].broadcast, moments))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-3, rtol=2e-2), *found)


def learned_state(algorithm, state):
    """The state in which all have learned twice."""
    return eqx.tree_at(lambda s: s.shared, state, learned(algorithm, state, 2))


@pytest.mark.parametrize("values", ["one", "equal"])
def test_an_agent_that_knows_no_unit_is_in_no_sum(values):
    algorithm, y = make(own_units=True), Y.copy()
    y[:, 2] = np.where(np.arange(INITIAL) == 0, 0.3, np.nan) if values == "one" else 0.3
    state = told(algorithm, y)
    heard, absent = (
        ask(algorithm, state, present)[1].broadcast
        for present in (EVERYONE, np.arange(AGENTS) != 2)
    )
    jax.tree.map(np.testing.assert_array_equal, heard, absent)
    assert heard.learned.all()


@functools.cache
def of_own_units():
    """A prior that agents of different units have learned."""
    algorithm = make(own_units=True)
    return learned(algorithm, told(algorithm, in_units()), 2)


@once
def test_a_prior_says_whether_it_is_of_own_units():
    with pytest.raises(ValueError, match="prior was learned with own_units=True: say so here, too"):
        make(prior=of_own_units())
    with pytest.raises(
        ValueError, match="prior was learned with own_units=False: say so here, too"
    ):
        make(own_units=True, prior=of_two_kinds())


@once
def test_newcomers_of_any_unit_look_where_others_have_found_the_hill():
    """Before the first value, after it and after two that differ."""
    newcomers = make(own_units=True, prior=of_own_units())
    state = eqx.filter_jit(newcomers.init)(jr.key(1))
    sizes, top = SIZES.astype(X.dtype), np.array([0.7, 0.3])
    asked = []
    for _ in range(3):
        queries = ask(newcomers, state)[0]
        values = sizes * hill(np, np.arange(AGENTS)[:, None], np.asarray(queries))
        state = eqx.filter_jit(newcomers.tell)(state, queries, jnp.asarray(values, X.dtype))
        asked.append(np.asarray(queries))
    np.testing.assert_allclose(asked[0], np.broadcast_to(top, (AGENTS, 2)), atol=0.15)
    # A unit changes no query, of agents whose hills are nearly the same.
    assert np.isfinite(asked).all()
    best = np.max([hill(np, np.arange(AGENTS)[:, None], each) for each in asked], axis=0)
    assert best.min() > 0.8


def test_an_agent_of_a_single_value_is_told_nothing_by_it():
    newcomers = make(own_units=True, prior=of_own_units())
    state = eqx.filter_jit(newcomers.init)(jr.key(1))
    x = jnp.asarray(GRID.points[:AGENTS])
    values = jnp.asarray(7.0 * SIZES, X.dtype)
    told_one = eqx.filter_jit(newcomers.tell)(state, x, values)
    before, after = (np.asarray(expected(newcomers, s, x)) for s in (state, told_one))
    np.testing.assert_allclose(after[0] - before[0], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


@pytest.mark.skipif(
    jax.config.jax_enable_x64, reason="values are bounded so that squares are numbers"
)
@pytest.mark.parametrize("rank", [0, pytest.param(None, marks=pytest.mark.slow)])
def test_an_agent_whose_squares_are_beyond_all_numbers_is_as_if_it_were_absent(rank):
    exact = Fixed(SquaredExponential(0.25), size=30, noise=1e-6)
    algorithm = make(rank=rank, features=exact)
    state = told(algorithm, 3e-3 * Y)
    shared = learned(algorithm, state, 3)
    # A penalty beside another point: its square is a number, that of the weights may be none.
    root = float(jnp.finfo(MODEL.noise.dtype).max) ** 0.5
    clients = shared_prior.observe(
        jax.tree.map(lambda leaf: leaf[2], state.clients),
        jnp.asarray(X[0, 2] + 1e-3),
        root / 2 * shared.prior.scale[0],
    )
    clients = jax.tree.map(lambda each, one: each.at[2].set(one), state.clients, clients)
    parts = lambda state: (state.shared, state.clients)  # noqa: E731
    state = eqx.tree_at(parts, state, (shared, clients))
    one, two = (
        ask(algorithm, state, present)[1].broadcast
        for present in (EVERYONE, np.arange(AGENTS) != 2)
    )
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one))


@pytest.mark.slow
def test_nobody_present_leaves_the_prior_as_it_was():
    state, _ = finished()
    info = ask(make(), state, ~EVERYONE)[1]
    jax.tree.map(np.testing.assert_array_equal, info.broadcast, state.shared.prior)


@once
def test_the_state_remembers_the_last_broadcast():
    state, trace = finished()
    last = jax.tree.map(lambda leaf: leaf[-1], trace.info.broadcast)
    jax.tree.map(np.testing.assert_array_equal, state.shared.prior, last)


@pytest.mark.full
def test_a_driven_run_that_was_stopped_goes_on_with_the_same_prior(tmp_path):
    algorithm = make()

    def python(agent, x):
        return float(hill(np, agent, x))

    def run_for(rounds, checkpoint):
        options = {"initial": INITIAL, "progress": False, "checkpoint": checkpoint}
        return drive(algorithm, python, rounds, jr.key(13), **options)

    run_for(1, tmp_path / "run")
    _, resumed = run_for(ROUNDS, tmp_path / "run")
    _, whole = run_for(ROUNDS, tmp_path / "other")
    np.testing.assert_array_equal(resumed.queries, whole.queries)
    jax.tree.map(np.testing.assert_array_equal, resumed.info, whole.info)


@pytest.mark.parametrize(
    ("rank", "groups", "settings"),
    [(0, 1, 1), (4, 1, 1), (31, 1, 1), (None, 1, 1), (4, 3, 1), (None, 2, 1), (4, 3, 3)],
)
def test_a_message_has_as_many_numbers_as_is_said(rank, groups, settings):
    algorithm = make(rank=rank, groups=groups, features=SEVERAL[:settings])
    state = jax.eval_shape(algorithm.init, jr.key(0))
    message = jax.eval_shape(algorithm.messages, jr.key(0), state)
    D = MODEL.size + 1
    of_spread = {0: 2, 4: D * 5}.get(rank, D * (D + 1) // 2)
    evidence = 2 * settings if settings > 1 else 0
    assert metrics.floats(message) == AGENTS * (groups * (1 + 3 + D + 2 * of_spread) + evidence)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.full), {"groups": 2, "features": SEVERAL}],
    ids=["one group", "groups"],
)
@pytest.mark.parametrize(
    "each",
    [
        pytest.param(layout(None, 4), marks=pytest.mark.full),
        layout(jax.make_mesh((8,), ("agents",)), None),
    ],
)
def test_sums_made_in_chunks_and_over_devices_are_those_of_all_messages(each, options):
    algorithm = make(**options)
    state = told(algorithm, np.where(FAILED, np.nan, Y))
    keys, present = ask_keys(jr.key(6)), jnp.arange(AGENTS) != 2

    def both(state):
        messages = algorithm.messages(keys.message, state)
        known = state.shared, state.round, messages, present
        whole = algorithm.aggregate(keys.server, *known)
        _, one = algorithm.exchange(keys, state, present, each=each)
        return algorithm.remembered(whole), algorithm.remembered(one), one.prior.learned

    whole, one, learned = eqx.filter_jit(both)(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), whole, one)
    assert np.all(learned)


@pytest.mark.slow
def test_in_chunks_a_round_holds_the_messages_of_a_chunk():
    many = 256
    algorithm = make(agents=many)
    start = jax.eval_shape(algorithm.init, jr.key(0))
    keys, present = ask_keys(jr.key(6)), jnp.ones(many, bool)

    def bytes_of(chunk):
        def heard(state):
            return algorithm.exchange(keys, state, present, each=layout(None, chunk))[1].prior

        return jax.jit(heard).lower(start).compile().memory_analysis().temp_size_in_bytes

    messages = metrics.bytes_of(jax.eval_shape(algorithm.messages, jr.key(0), start))
    assert bytes_of(8) < messages / 4


@pytest.mark.slow
# Draws of newcomers: `test_a_policy_of_draws_asks_elsewhere_by_another_key`.
@pytest.mark.parametrize("policy", [UCB(), pytest.param(Thompson(), marks=pytest.mark.full)])
def test_other_policies_serve(policy):
    algorithm = make(policy=policy)
    queries, _ = ask(algorithm, finished()[0])
    distances = np.abs(queries[:, None] - np.asarray(GRID.points)[None]).max(axis=-1)
    np.testing.assert_array_equal(distances.min(axis=1), 0)


@functools.cache
def newcomers():
    """Agents that begin when others have finished, and their run."""
    algorithm = make(agents=2, prior=learned(make(), finished()[0], 2))
    return algorithm, *run(algorithm, objective, 2, jr.key(16))


@pytest.mark.slow
def test_a_newcomer_s_first_query_is_where_those_who_have_finished_expect_most():
    _, _, trace = newcomers()
    assert np.abs(np.asarray(trace.queries[0]) - np.array([0.7, 0.3])).max() < 0.1
    assert (trace.values[0] > 0.9).all()


@pytest.mark.slow
def test_newcomers_keep_what_they_were_told_and_send_nothing():
    algorithm, state, _ = newcomers()
    for mine, theirs in zip(
        jax.tree.leaves(state.shared), jax.tree.leaves(algorithm.prior), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    message = jax.eval_shape(algorithm.messages, jr.key(0), state)
    assert metrics.floats(message) == 0


@pytest.mark.parametrize("present", [None, np.arange(AGENTS) != 1])
def test_steps_of_learning_are_those_of_rounds(present):
    algorithm, (start, _) = make(), finished()
    state, present_in_rounds = start, EVERYONE if present is None else present
    for _ in range(2):
        info = ask(algorithm, state, present_in_rounds)[1]
        state = eqx.tree_at(
            lambda s: s.shared, state, algorithm.revised(state.shared, info.broadcast)
        )
    found = learned(algorithm, start, 2, present)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, state.shared)
    moved = np.abs(np.asarray(found.prior.mean - start.shared.prior.mean))
    assert moved.max() > 1e-3


# ---------------------------------------------------------------- features by evidence


@pytest.mark.slow
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.full), 2])
def test_agents_that_change_their_features_learn_as_if_they_had_begun_with_them(groups):
    several, right = (make(groups=groups, features=f) for f in (SEVERAL, SEVERAL[1]))
    found, alone = (learned(a, told(a, Y), steps) for a, steps in ((several, 2), (right, 3)))
    assert found.settings.chosen == 1
    for mine, theirs in ((found.prior, alone.prior), (found.features, alone.features)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), mine, theirs)
    assert np.all(found.prior.learned)


@pytest.mark.slow
def test_a_round_searches_by_its_own_features_and_the_next_by_those_that_are_chosen():
    several = make(features=SEVERAL)
    state = told(several, Y)
    queries, info = ask(several, state)
    assert (info.broadcast.chosen, info.broadcast.next) == (0, 1)
    first = make(features=SEVERAL[0])
    np.testing.assert_array_equal(queries, ask(first, told(first, Y))[0])
    following = several.revised(state.shared, info.broadcast)
    state = eqx.tree_at(lambda s: s.shared, state, following)
    right = make(features=SEVERAL[1])
    np.testing.assert_array_equal(ask(several, state)[0], ask(right, told(right, Y))[0])
    # An agent that has missed the change hears by which features the prior is.
    late = eqx.tree_at(lambda s: s.shared, state, told(several, Y).shared)
    _, heard = exchanged(several, state)
    np.testing.assert_array_equal(*(answers(several, s, heard) for s in (state, late)))


@pytest.mark.slow
def test_a_change_of_features_costs_no_round_more_where_values_are_far_from_0():
    several = make(features=SEVERAL)
    state = told(several, 1e3 + Y)
    for _ in range(3):  # the location, then the scale and the features, then the prior of these
        _, info = ask(several, state)
        shared = several.revised(state.shared, info.broadcast)
        state = eqx.tree_at(lambda s: s.shared, state, shared)
    assert (info.broadcast.chosen, info.broadcast.next) == (1, 1)
    assert np.all(info.broadcast.prior.learned)


@eqx.filter_jit
def exchanged(algorithm, state):
    return algorithm.exchange(ask_keys(jr.key(6)), state, jnp.asarray(EVERYONE))


@eqx.filter_jit
def answers(algorithm, state, heard):
    return algorithm.respond(ask_keys(jr.key(6)).choice, state, None, heard)[0]


@pytest.mark.slow
def test_equal_values_and_nobody_present_choose_nothing():
    algorithm = make(features=SEVERAL)
    flat = told(algorithm, np.full_like(Y, 0.7))
    absent = ~EVERYONE
    for state, present in ((flat, EVERYONE), (told(algorithm, Y), absent)):
        info = ask(algorithm, state, present)[1]
        assert info.broadcast.next == 0


@pytest.mark.slow
def test_newcomers_search_by_the_features_and_the_noise_that_were_chosen():
    # As many as SEVERAL, which is the same program.
    noisy = [Fixed(SquaredExponential(0.25), size=30, noise=noise) for noise in (3.0, 1e-3, 9.0)]
    before = make(features=noisy)
    prior = learned(before, told(before, Y), 2)
    assert prior.settings.chosen == 1
    alone = make(features=noisy[1])
    known = learned(alone, told(alone, Y), 3)

    def first(prior, **options):
        newcomers = make(agents=2, prior=prior, **options)
        state = eqx.filter_jit(newcomers.init)(jr.key(5))
        return stepped.ask(newcomers, jr.key(6), state, np.ones(2, bool))

    queries, info = first(prior, features=noisy[0])
    assert (info.broadcast.chosen, info.broadcast.next) == (1, 1)
    np.testing.assert_array_equal(queries, first(known, features=noisy[1])[0])


# ---------------------------------------------------------------- groups with the rest


@functools.cache
def of_two_kinds():
    """The prior of two groups: half of the agents are upside down."""
    x = np.random.default_rng(5).choice(np.asarray(GRID.points), (INITIAL + ROUNDS, AGENTS))
    y = (-1.0) ** np.arange(AGENTS) * hill(np, np.arange(AGENTS)[:, None], x)
    before = make(groups=2)
    state = eqx.filter_jit(before.init)(jr.key(5))
    state = eqx.filter_jit(before.warm_start)(state, jnp.asarray(x), jnp.asarray(y, X.dtype))
    return learned(before, state, 10)


def of_either_kind(policy):
    return make(agents=2, prior=of_two_kinds(), trust=1.0, policy=policy)


@functools.cache
def with_a_value_each():
    """The state of newcomers of either kind after a value each, on the slope of the hill."""
    newcomers = of_either_kind(EI())
    state = eqx.filter_jit(newcomers.init)(jr.key(5))
    slope = jnp.asarray([[0.5, 0.4]] * 2, X.dtype)
    height = float(hill(np, 0, np.array([0.5, 0.4])))
    values = jnp.asarray([height, -height], X.dtype)
    return eqx.filter_jit(newcomers.tell)(state, slope, values)


@functools.cache
def predicted():
    """Mean and variance of these newcomers at all points of the grid."""
    newcomers, state = of_either_kind(EI()), with_a_value_each()
    points = jnp.broadcast_to(GRID.points[:, None], (len(GRID.points), 2, 2))
    return eqx.filter_jit(jax.vmap(lambda x: newcomers.predict(state, x)))(points)


def test_by_its_first_value_a_newcomer_knows_its_group():
    mean, _ = predicted()
    top = np.abs(np.asarray(GRID.points) - np.array([0.7, 0.3])).max(axis=1).argmin()
    assert mean[top, 0] > 0.45  # alone, 0.3 at most
    assert mean[top, 1] < -0.45


@once
def test_a_policy_of_bounds_asks_where_the_upper_bound_is_largest():
    given = jr.key(6), with_a_value_each(), np.ones(2, bool)
    queries, _ = stepped.ask(of_either_kind(UCB(9.0)), *given)
    mean, variance = map(np.asarray, predicted())
    bounds = mean + 3 * np.sqrt(variance)
    at = np.abs(np.asarray(queries) - np.asarray(GRID.points)[:, None]).max(axis=2).argmin(axis=0)
    assert (bounds.max(axis=0) - bounds[at, [0, 1]]).max() < 1e-3
    assert (mean.max(axis=0) - mean[at, [0, 1]]).max() > 0.02


@once
def test_a_policy_of_draws_asks_elsewhere_by_another_key():
    given = with_a_value_each(), np.ones(2, bool)
    ask = lambda key: stepped.ask(of_either_kind(Thompson()), key, *given)[0]  # noqa: E731
    queries = np.array([ask(key) for key in jr.split(jr.key(6), 8)])
    assert all(len(np.unique(queries[:, n], axis=0)) > 2 for n in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({"mixing": Table([1.0, 0.0])}, True),
        ({"mixing": Table([0.0, 1.0])}, False),
        ({"trust": 0.0}, True),
    ],
    ids=["with probability 1", "with probability 0", "without trust"],
)
def test_newcomers_of_groups_work_alone_if_they_are_told_to(options, alone):
    newcomers = make(agents=2, prior=of_two_kinds(), **options)
    state = eqx.filter_jit(newcomers.init)(jr.key(5))
    queries, _ = stepped.ask(newcomers, jr.key(6), state, np.ones(2, bool))
    together = make(agents=2, prior=of_two_kinds())
    others, _ = stepped.ask(together, jr.key(6), state, np.ones(2, bool))
    assert np.any(queries != others) == alone


@functools.cache
def shape(agents=AGENTS):
    """The shapes of a state at the start, which tell its algorithm."""
    return eqx.filter_eval_shape(make(agents=agents).init, jr.key(0))


@once
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"present": [True] * AGENTS}, "present must be an array of bool for each of the 6"),
        ({"present": np.ones(1, bool)}, r"got ndarray of bool and shape \(1,\)"),
        ({"present": np.ones(AGENTS)}, "got ndarray of float64"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"agents": 2}, "another algorithm, capacity or number of agents"),
        ({"state": ()}, "state is of another algorithm"),
    ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_what_nothing_can_be_learned_of_is_refused(given, words):
    given = {"state": shape(given.pop("agents", AGENTS))} | given
    with pytest.raises(ValueError, match=words):
        make().learned(**given)


@once
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": -1}, "rank"),
        ({"groups": 0}, "groups"),
        ({"features": []}, r"features must be Fixed\(...\), or a list"),
        ({"features": [MODEL, Fixed(size=40)]}, "must be alike: give all the same size"),
        ({"features": [MODEL, Fixed(SquaredExponential([0.2, 0.2]), 30)]}, "must be alike"),
        ({"groups": 4, "rank": 2}, "differ in 3 directions: .* rank too or None"),
        ({"groups": 5, "features": Fixed(size=3)}, "features.size must be at least that"),
        ({"trust": 1.5}, "trust must be in"),
        ({"mixing": 1.5}, "^mixing: probabilities must lie in"),
        ({"degrees": 0.0}, "degrees"),
        ({"shrink": -1.0}, "shrink"),
        ({"policy": Drawn(EI())}, "experts"),
    ],
)
def test_what_it_cannot_work_with_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


@pytest.mark.usefixtures("as_users_have_it")
def test_a_list_of_features_with_something_else_in_it_is_refused():
    with pytest.raises(ValueError, match=r"features must be Fixed\(...\), or a list"):
        make(features=[MODEL, 0.2])


@once
def test_a_prior_that_cannot_serve_is_refused():
    of_space = eqx.filter_eval_shape(LearnedPrior(Cube(3), 1, 4).setup, jr.key(0))
    with pytest.raises(ValueError, match="prior was learned on 3"):
        make(prior=of_space)
    several = eqx.filter_eval_shape(jax.vmap(make().setup), jr.split(jr.key(0)))
    with pytest.raises(ValueError, match=r"prior must be one, .* \(2, 1\)"):
        make(prior=several)
    without_groups = DPLearnedPrior(Cube(2), 1, location=0.0, scale=1.0).setup
    assert make(prior=eqx.filter_jit(without_groups)(jr.key(0))).prior is not None
    of_own_units = eqx.filter_eval_shape(DPLearnedPrior(Cube(2), 1).setup, jr.key(0))
    with pytest.raises(ValueError, match="prior was learned with own_units=True"):
        make(prior=of_own_units)
    several = eqx.filter_eval_shape(jax.vmap(without_groups), jr.split(jr.key(0)))
    with pytest.raises(ValueError, match=r"prior must be one, .* \(2,\)"):
        make(prior=several)
    with pytest.raises(ValueError, match="agents choose no others: leave the list"):
        make(prior=of_two_kinds(), features=SEVERAL)
    with pytest.raises(ValueError, match="prior has learned nothing"):
        make(prior=eqx.filter_jit(make().setup)(jr.key(0)))
