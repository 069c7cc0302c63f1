"""A private prior: what one agent can change, what is charged, and what is learned all the same."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import BudgetError, drive, metrics, run
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.policy import EI, Drawn
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.privacy import accounting
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson
from tests import stepped

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, INITIAL, ROUNDS, DELTA = 6, 3, 4, 1e-5
MODEL = Fixed(SquaredExponential(0.25), size=30, noise=1e-3)
OPEN = Mechanism(0.0, jnp.inf, Poisson(1.0))
NOISY = Mechanism(1.5, 2.0, Poisson(0.5))
#: With little noise.
QUIET = Mechanism(0.1, 2.0, Poisson(1.0))


#: Points to choose from: no search has to be compiled. The contract is tried on a square, too.
GRID = Finite(np.stack(np.meshgrid(*2 * [np.linspace(0, 1, 15)]), axis=-1).reshape(-1, 2))
EVERYONE = np.ones(AGENTS, bool)


GUESS = {"location": 0.0, "scale": 1.0}
OWN = {"location": None, "scale": None}


def make(mechanism=OPEN, agents=AGENTS, **options):
    given: dict[str, Any] = {"features": MODEL} | GUESS | options
    given = {"capacity": INITIAL + ROUNDS} | given
    return DPLearnedPrior(GRID, agents, mechanism=mechanism, **given)


def hill(module, agent, x):
    """A hill for each agent, near that of the others."""
    center = module.asarray([0.7, 0.3]) + 0.02 * module.cos(module.arange(2) + agent)
    return 3 * module.exp(-module.sum((x - center) ** 2, axis=-1) / 0.08) - 1


def objective(key, agent, x):
    del key
    return hill(jnp, agent, x)


#: What all have seen before the start.
X = np.random.default_rng(0).choice(np.asarray(GRID.points), (INITIAL, AGENTS))
Y = hill(np, np.arange(AGENTS)[:, None], X).astype(X.dtype)


@eqx.filter_jit
def begun(algorithm, key, values):
    """The state after the first points."""
    return algorithm.warm_start(algorithm.init(key), jnp.asarray(X), values)


@eqx.filter_jit
def sent(algorithm, state):
    """What all agents send."""
    return algorithm.messages(jr.key(1), state)


@eqx.filter_jit
def learned(algorithm, key, state, messages, present):
    """The prior that is broadcast, when these were sent: scale, mean and variances."""
    prior = algorithm.aggregate(key, state.shared, state.round, messages, present).prior
    return jnp.concatenate([prior.scale[None], prior.mean, prior.covariance.variances])


def spoiled(messages, n, number):
    """The same, but for one number of agent n that is none."""
    leaves, structure = jax.tree.flatten(messages)
    leaves = [np.array(leaf) for leaf in leaves]
    leaves[number][n, -1] = np.nan
    return jax.tree.unflatten(structure, leaves)


# ---------------------------------------------------------------- what one agent can change


def released(monkeypatch):
    """What `Mechanism.release` returns, to a list, as it happens."""
    found, release = [], Mechanism.release

    def kept(self, *arguments):
        total = release(self, *arguments)
        jax.debug.callback(lambda total: found.append(np.array(total)), total)
        return total

    monkeypatch.setattr(Mechanism, "release", kept)
    return found


VALUES = {
    "as expected": 1.0,
    "large": 1e4,
    "as large as can be": 3e38,
    "none but 0": 0.0,
}


@eqx.filter_jit
def moved(algorithm, key, values):
    """What agent 2 sends, and by how much it moves sums and means, with 40 keys."""
    state = algorithm.warm_start(algorithm.init(key), jnp.asarray(X), values)
    messages = algorithm.messages(key, state)
    here, ones = jnp.asarray(EVERYONE), jnp.ones((1, AGENTS))
    vectors = jax.vmap(lambda message: message.vector)(messages)

    def one(key):
        sums, means = [], []
        for present in (here, here.at[2].set(False)):
            sums.append(algorithm.mechanism.release(key, vectors, ones, present))
            prior = algorithm.aggregate(key, state.shared, state.round, messages, present).prior
            means.append(prior.scale * prior.mean)
        return jnp.linalg.norm(sums[0] - sums[1]), jnp.linalg.norm(means[0] - means[1])

    return vectors[2], *jax.vmap(one)(jr.split(key, 40))


@pytest.mark.parametrize("size", VALUES)
@pytest.mark.parametrize(("units", "S"), [(GUESS, 0.3), (GUESS, 2.0), (OWN, 0.3)])
def test_an_agents_whole_contribution_is_never_longer_than_the_bound(size, units, S, key):
    """The sum with the agent and the sum without it, each agent drawn with probability 0.5."""
    q, algorithm = 0.5, make(Mechanism(0.0, S, Poisson(0.5)), **units)
    values = np.random.default_rng(1).standard_normal((INITIAL, AGENTS)).astype(X.dtype)
    with np.errstate(over="ignore"):  # what is beyond all numbers is a failure
        values[:, 2] *= VALUES[size]
    vector, sums, means = map(np.asarray, moved(algorithm, key, values))
    assert (sums <= S / q * (1 + 1e-5)).all()
    assert (sums == 0).any()  # not drawn
    assert (means < 1e-4).any()
    if VALUES[size] > 1:  # and reached, if the message is clipped
        assert np.isfinite(vector).all()
        assert sums.max() > 0.99 * S / q


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_who_is_absent_or_sends_no_number_is_as_if_it_did_not_exist(number, key):
    algorithm = make(NOISY)
    state = begun(algorithm, key, Y)
    messages = sent(algorithm, state)
    absent = learned(algorithm, key, state, messages, np.arange(AGENTS) != 2)
    found = learned(algorithm, key, state, spoiled(messages, 2, number), EVERYONE)
    np.testing.assert_array_equal(found, absent)
    assert np.isfinite(absent).all()


def test_failed_evaluations_leave_a_message_as_it_was(key):
    algorithm = make()
    state = begun(algorithm, key, Y)
    failed = np.full((AGENTS,), np.nan, Y.dtype)
    after = stepped.tell(algorithm, state, X[0], failed)
    one, two = sent(algorithm, state), sent(algorithm, after)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.slow
@pytest.mark.parametrize(("units", "most"), [(GUESS, INITIAL), (OWN, INITIAL - 1)])
def test_under_the_prior_a_message_is_as_long_as_the_root_of_the_number_of_values(units, most, key):
    """Which is how the docstring says to choose the bound."""
    algorithm = make(agents=1000, **units)

    @jax.jit
    def shifts(key):
        start = algorithm.init(key)
        phi = start.shared.features
        w_key, x_key, noise_key = jr.split(key, 3)
        x = jr.uniform(x_key, (INITIAL, 1000, 2))
        w = jr.normal(w_key, (1000, MODEL.size + 1))
        values = jax.vmap(jax.vmap(lambda x, w: jnp.dot(phi(x), w[:-1]) + w[-1]), (0, None))(x, w)
        values = values + MODEL.noise**0.5 * jr.normal(noise_key, values.shape)
        return algorithm.messages(key, algorithm.warm_start(start, x, values)).shift

    squares = np.sum(np.asarray(shifts(key)) ** 2, axis=1)
    assert squares.mean() <= most + 3 * squares.std() / 1000**0.5
    assert squares.mean() > 0.8 * most


@pytest.mark.slow
def test_a_round_tells_an_agent_nothing_of_others_but_the_private_sum(key, monkeypatch):
    nothing = lambda self, key, messages, weights, present: jnp.ones(  # noqa: E731
        (weights.shape[0], messages.shape[1]), messages.dtype
    )
    monkeypatch.setattr(Mechanism, "release", nothing)
    algorithm = make(NOISY)
    others = np.where(np.arange(AGENTS) == 3, Y, -Y)
    state, changed = (begun(algorithm, key, values) for values in (Y, others))
    ask = jax.jit(lambda state, present: algorithm.ask(key, state, present))
    (one, told), (two, _) = ask(state, EVERYONE), ask(changed, EVERYONE)
    np.testing.assert_array_equal(one[3], two[3])
    assert (one != two).any()
    # Nor who is present.
    _, nobody = ask(state, ~EVERYONE)
    jax.tree.map(np.testing.assert_array_equal, told.broadcast, nobody.broadcast)


# ---------------------------------------------------------------- what is released, and charged


def test_without_noise_the_broadcast_is_the_m_step_of_the_plain_sum(key):
    algorithm = make(shrink=2.0)
    state = begun(algorithm, key, Y)
    present = np.arange(AGENTS) != 4
    messages = sent(algorithm, state)
    scale, *mean = learned(algorithm, key, state, messages, present)
    total = np.asarray(messages.shift, float)[present].sum(axis=0)
    known, turn, kept = map(np.asarray, jax.tree.leaves(state.shared.information))
    assert kept == 1
    whole = AGENTS * turn * known @ turn.T
    step = np.linalg.solve(whole + 2.0 * np.eye(total.size), total)
    # The mean of the excesses, beside one agent more that has none.
    squares = 1 + np.asarray(messages.excess)[present].sum(axis=0) / (AGENTS + 1)
    step *= min(1, (squares[1] * np.trace(whole) / (step @ whole @ step)) ** 0.5)
    np.testing.assert_allclose(np.asarray(mean[:-2]) * scale, step, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose([scale**2, mean[-2] * scale**2], squares, rtol=1e-4)


def python(agent, x):
    return float(3 * np.exp(-np.sum((x - 0.5 - 0.01 * agent) ** 2) / 0.08) - 1)


def driven(algorithm, path, ledger, rounds=ROUNDS, **options):
    """The trace, and its ledger."""
    given = {"initial": INITIAL, "checkpoint": path, "progress": False} | options
    trace = drive(algorithm, python, rounds, jr.key(5), ledger=ledger, **given)[1]
    assert trace.ledger is not None
    return trace, trace.ledger


@pytest.mark.full
def test_after_the_last_release_the_mean_stays(tmp_path):
    algorithm = make(QUIET, releases=2)
    assert [algorithm.released(t) is not None for t in range(4)] == [True, True, False, False]
    trace, _ = driven(algorithm, tmp_path / "run.npz", Ledger(DELTA))
    means = np.asarray(trace.info.broadcast.mean)
    np.testing.assert_array_equal(means[1], means[2])
    np.testing.assert_array_equal(means[1], means[3])
    assert np.abs(means[0] - means[1]).max() > 0


SAMPLINGS = {"all": Poisson(1.0), "half": Poisson(0.5)}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_run_costs_what_the_accountant_says_of_so_many_releases(name, tmp_path):
    mechanism = Mechanism(1.5, 2.0, SAMPLINGS[name])
    _, ledger = driven(make(mechanism, releases=3), tmp_path / "run.npz", Ledger(DELTA))
    assert ledger.releases == 3
    assert ledger.epsilon() == pytest.approx(accounting.epsilon(mechanism, 3, DELTA))


def test_a_budget_that_pays_for_too_few_releases_is_refused_beforehand(tmp_path):
    budget = accounting.epsilon(NOISY, 2, DELTA) * 1.001
    with pytest.raises(BudgetError, match=r"pays for 2 of the 3 releases .* releases=2"):
        driven(make(NOISY), tmp_path / "run.npz", Ledger(DELTA, budget))
    _, ledger = driven(make(NOISY, releases=2), tmp_path / "run.npz", Ledger(DELTA, budget))
    assert ledger.epsilon() <= budget


# Whose release it is makes no difference: `test_dp_fts_de` has a round in which nobody is present, and
# `test_mechanism` a sampling of a fixed size.
@pytest.mark.full
def test_a_round_without_anybody_releases_noise_and_is_charged(tmp_path, monkeypatch):
    """Where two agents are drawn, whoever is present."""
    found = released(monkeypatch)
    mechanism = Mechanism(1.5, 2.0, FixedSize(2, AGENTS))
    nobody = jnp.zeros((ROUNDS, AGENTS), bool)
    _, ledger = driven(make(mechanism), tmp_path / "run.npz", Ledger(DELTA), present=nobody)
    jax.effects_barrier()
    assert ledger.releases == 3
    assert ledger.epsilon() == pytest.approx(accounting.epsilon(mechanism, 3, DELTA))
    assert np.std(found[:3]) == pytest.approx(1.5 * 2.0 / (2 / AGENTS), rel=0.25)


def test_noise_that_is_charged_for_does_not_follow_from_the_key(tmp_path):
    means = [
        np.asarray(driven(make(QUIET), tmp_path / name, Ledger(DELTA))[0].info.broadcast.mean)
        for name in ("one.npz", "two.npz")
    ]
    assert np.abs(means[0] - means[1]).max() > 0


def test_a_stopped_run_goes_on_without_a_second_charge(tmp_path):
    algorithm, path = make(NOISY), tmp_path / "run.npz"
    first, charged = driven(algorithm, path, Ledger(DELTA), rounds=2)
    whole, all_charged = driven(algorithm, path, Ledger(DELTA))
    assert (charged.releases, all_charged.releases) == (2, 3)
    means = np.asarray(whole.info.broadcast.mean)
    np.testing.assert_array_equal(means[:2], first.info.broadcast.mean)
    np.testing.assert_array_equal(means[2], means[3])


# ---------------------------------------------------------------- what is learned


SEEDS = 12
#: Trust, z, S and releases of each.
SETTINGS = {
    "together": (0.5, 1.5, 2.0, 3.0),
    "alone": (0.0, 1.5, 2.0, 3.0),
    "deaf": (0.5, 300.0, 2.0, 3.0),
    "once": (0.5, 0.1, 1.0, 1.0),
    "twice": (0.5, 1.0, 1.0, 2.0),
    "twice, more noise": (0.5, 4.0, 1.0, 2.0),
}


@functools.cache
def values():
    """The values of runs with each setting. Settings differ in numbers only, so they are one program."""

    def one(setting, key):
        trust, z, S, releases = setting
        mechanism = Mechanism(z, S, Poisson(1.0))
        algorithm = make(mechanism, agents=40, trust=trust, releases=releases, **OWN)
        return run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1].values

    # Pairs side by side: of two nested maps each would be traced.
    table = jnp.repeat(jnp.asarray(list(SETTINGS.values()), float), SEEDS, axis=0)
    keys = jnp.tile(jr.split(jr.key(0), SEEDS), len(SETTINGS))
    found = jax.jit(jax.vmap(one))(tuple(table.T), keys)
    found = np.asarray(found).reshape(len(SETTINGS), SEEDS, *found.shape[1:])
    return dict(zip(SETTINGS, found, strict=True))


def best(name):
    return metrics.best_so_far(values()[name])[:, -1].mean(axis=1)


@pytest.mark.slow
def test_agents_with_much_in_common_gain_under_privacy():
    low, _ = metrics.confidence_interval(best("together") - best("alone"))
    assert low > 0.05


@pytest.mark.slow
def test_so_much_noise_that_nothing_is_heard_costs_little():
    _, high = metrics.confidence_interval(best("alone") - best("deaf"))
    assert high < 0.25


@pytest.mark.slow
def test_a_curve_of_privacy_is_one_program():
    first, *others = (values()[name] for name in ("once", "twice", "twice, more noise"))
    for other in others:
        assert first.shape == other.shape
        np.testing.assert_array_equal(first[:, :INITIAL], other[:, :INITIAL])
        assert (first[:, -1] != other[:, -1]).any()


@eqx.filter_jit
def predicted(algorithm, state):
    return algorithm.predict(state, jnp.asarray(X[0]))


def test_location_and_scale_are_units_of_values(key):
    plain, moved = make(NOISY), make(NOISY, location=-40.0, scale=8.0)
    asked, expected = [], []
    for algorithm, told in ((plain, Y), (moved, 8.0 * Y - 40.0)):
        state = begun(algorithm, key, told)
        asked.append(learned(algorithm, key, state, sent(algorithm, state), EVERYONE))
        expected.append(predicted(algorithm, state))
    plain, moved = asked
    np.testing.assert_allclose(8 * plain[0], moved[0], rtol=1e-3)
    np.testing.assert_allclose(plain[1:], moved[1:], atol=2e-3)
    (middle, variance), (other, larger) = map(np.asarray, expected[0]), map(np.asarray, expected[1])
    np.testing.assert_allclose(8.0 * middle - 40.0, other, atol=0.05)
    np.testing.assert_allclose(64.0 * variance, larger, rtol=0.02, atol=1e-3)


#: The units of agents, and where their values begin.
SIZES, ZEROS = np.array([1.0, 1e-4, 1e4, 7.0, 0.3, 40.0]), np.array([0, 3e-4, -2e4, 50, -1, 9.0])


def test_without_a_guess_agents_learn_and_ask_the_same_in_whatever_units_their_values_are(key):
    algorithm = make(NOISY, trust=0.7, **OWN)
    heard, expected, asked = [], [], []
    for size, zero in ((np.ones(AGENTS), np.zeros(AGENTS)), (SIZES, ZEROS)):
        state = begun(algorithm, key, (zero + size * Y).astype(Y.dtype))
        heard.append(learned(algorithm, key, state, sent(algorithm, state), EVERYONE))
        mean, variance = map(np.asarray, predicted(algorithm, state))
        expected.append(((mean - zero) / size, variance / size**2))
        asked.append(np.asarray(stepped.ask(algorithm, jr.key(2), state, EVERYONE)[0]))
    np.testing.assert_allclose(heard[0], heard[1], atol=2e-3)
    np.testing.assert_allclose(expected[0], expected[1], rtol=0.02, atol=5e-3)
    np.testing.assert_array_equal(asked[0], asked[1])
    assert len(np.unique(asked[0], axis=0)) > 1
    assert heard[0][0] == 1  # so the noise of a release is none of the scale


def test_without_a_guess_agents_know_nothing_of_the_constant():
    guessed, own = (
        eqx.filter_jit(make(**units).setup)(jr.key(4)).information for units in (GUESS, OWN)
    )
    known = [float(one.turn[-1] @ (one.known * one.turn[-1])) for one in (guessed, own)]
    assert known[0] > 0.3
    assert abs(known[1]) < 1e-3


def test_without_a_guess_values_keep_the_digits_that_differ(key):
    """Costs of some ten thousands differ by less than one."""
    algorithm = make(Mechanism(0.1, 2.0, Poisson(1.0)), **OWN)

    def asked(zero):
        def cost(agent, x):
            return zero + hill(np, agent, x)

        return drive(algorithm, cost, 3, key, initial=INITIAL, progress=False)[1].queries

    np.testing.assert_array_equal(asked(-54321.0), asked(0.0))


@pytest.mark.parametrize("values", ["one", "equal"])
def test_without_a_guess_an_agent_that_knows_no_unit_sends_zeros(values, key):
    algorithm, y = make(**OWN), Y.copy()
    y[:, 2] = np.where(np.arange(INITIAL) == 0, 0.3, np.nan) if values == "one" else 0.3
    vectors = np.asarray(jax.vmap(algorithm.vector)(sent(algorithm, begun(algorithm, key, y))))
    assert (vectors[2] == 0).all()
    assert (np.abs(np.delete(vectors, 2, 0)).max(axis=1) > 0.1).all()


def test_a_message_is_a_number_for_each_feature_and_the_constant_and_two_variances():
    algorithm = make()
    state = jax.eval_shape(algorithm.init, jr.key(0))
    messages = jax.eval_shape(algorithm.messages, jr.key(0), state)
    assert metrics.floats(messages) == AGENTS * (MODEL.size + 3)
    told = jax.eval_shape(algorithm.ask, jr.key(0), state)[1].broadcast
    assert metrics.floats(told) == MODEL.size + 1 + 5


@pytest.mark.slow
def test_a_guess_of_the_scale_that_is_far_off_is_right_after_three_releases(key):
    """Without noise, for values that were made at random points by functions of the process."""
    phi = MODEL.setup(jr.key(3), 2)
    rng = np.random.default_rng(4)
    points = rng.choice(np.asarray(GRID.points), (8, 200))
    weights = rng.standard_normal((200, MODEL.size))
    features = np.asarray(jax.vmap(jax.vmap(phi))(jnp.asarray(points)))
    told = np.einsum("tam,am->ta", features, weights).astype(X.dtype)

    @jax.jit
    def scales(guess):
        algorithm = make(Mechanism(0.0, 100.0, Poisson(1.0)), agents=200, scale=guess)
        state = algorithm.init(key)
        state = algorithm.warm_start(state, jnp.asarray(points), jnp.asarray(told))
        found = []
        for _ in range(3):
            messages = algorithm.messages(key, state)
            heard = algorithm.aggregate(
                key, state.shared, state.round, messages, jnp.ones(200, bool)
            )
            shared = algorithm.revised(state.shared, algorithm.remembered(heard))
            state = eqx.tree_at(lambda state: state.shared, state, shared)
            found.append(heard.prior.scale)
        return jnp.stack(found)

    for guess in (1 / 4, 8.0):
        one, two, three = np.asarray(scales(jnp.asarray(guess)))
        assert 1 / 2 * (1 - 1e-5) <= one / guess <= 2 * (1 + 1e-5)
        assert 1 / 2 * (1 - 1e-5) <= two / one <= 2 * (1 + 1e-5)
        assert three == pytest.approx(told.std(), rel=0.15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "scale must be positive"),
        ({"location": np.nan}, "location must be finite"),
        ({"location": None}, "give location and scale, or neither of them"),
        ({"scale": None}, "give location and scale, or neither of them"),
        (OWN | {"first": 1}, "first must be at least 2, since a single value has no unit"),
        (OWN | {"capacity": 1}, "capacity must be at least 2, since a single value has no unit"),
        ({"releases": -1}, "releases must be a number of rounds"),
        ({"trust": 1.5}, "trust must be in"),
        ({"shrink": -1.0}, "shrink"),
        ({"first": 0}, "first"),
        ({"policy": Drawn(EI())}, "experts"),
    ],
)
def test_what_it_cannot_work_with_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**{"mechanism": OPEN} | options)


@pytest.mark.usefixtures("as_users_have_it")
def test_a_list_of_features_is_refused():
    with pytest.raises(ValueError, match="features must be of type Fixed, got list"):
        make(mechanism=OPEN, features=[MODEL, MODEL])
