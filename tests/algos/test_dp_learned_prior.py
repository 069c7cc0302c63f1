"""A private prior: what one agent can change, what is charged, and what is learned all the same."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import BudgetError, drive, metrics, run
from jaxbo._keys import unwrap, wrap
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, Drawn
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.privacy import accounting
from jaxbo.privacy.ledger import Ledger
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, INITIAL, ROUNDS, DELTA = 6, 3, 4, 1e-5
MODEL = Fixed(SquaredExponential(0.25), size=30, noise=1e-3)
OPEN = Mechanism(0.0, jnp.inf, Poisson(1.0))
NOISY = Mechanism(1.5, 2.0, Poisson(0.5))
#: Of so little noise that no release is taken for noise alone: the estimate of those is 0.
QUIET = Mechanism(0.1, 2.0, Poisson(1.0))


def make(mechanism=OPEN, agents=AGENTS, **options):
    given = {"features": MODEL, "candidates": 100} | options
    return DPLearnedPrior(Cube(2), agents, INITIAL + ROUNDS, mechanism=mechanism, **given)


def objective(key, agent, x):
    """A hill for each agent, near that of the others."""
    del key
    center = jnp.asarray([0.7, 0.3]) + 0.02 * jnp.cos(jnp.arange(2) + agent)
    return 3 * jnp.exp(-jnp.sum((x - center) ** 2) / 0.08) - 1


@eqx.filter_jit
def begun(algorithm, key, values=None):
    """The state after the first points."""
    x = algorithm.domain.sample(key, INITIAL * AGENTS).reshape(INITIAL, AGENTS, -1)
    if values is None:
        each = jax.vmap(lambda n, x: objective(None, n, x))
        values = jax.vmap(lambda row: each(jnp.arange(AGENTS), row))(x)
    return algorithm.warm_start(algorithm.init(key), x, values)


@eqx.filter_jit
def aggregated(algorithm, state, key, present=None):
    present = jnp.ones((AGENTS,), bool) if present is None else present
    messages = algorithm.messages(key, state)
    return algorithm.aggregate(key, state.shared, state.round, messages, present)


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


@pytest.mark.parametrize("size", VALUES)
@pytest.mark.parametrize("S", [0.3, 2.0])
def test_an_agents_whole_contribution_is_never_longer_than_the_bound(size, S, key):
    """The sum with the agent and the sum without it, each agent drawn with probability 0.5."""
    q = 0.5
    algorithm = make(Mechanism(0.0, S, Poisson(q)))
    values = jr.normal(key, (INITIAL, AGENTS)).at[:, 2].multiply(VALUES[size])
    state = begun(algorithm, key, values)
    messages = algorithm.messages(key, state)
    here = jnp.ones((AGENTS,), bool)
    ones = jnp.ones((1, AGENTS))

    def moved(key):
        one, two = (
            algorithm.mechanism.release(key, messages.shift, ones, present)
            for present in (here, here.at[2].set(False))
        )
        means = [
            algorithm.aggregate(key, state.shared, state.round, messages, present).prior.mean
            for present in (here, here.at[2].set(False))
        ]
        return jnp.linalg.norm(one - two), jnp.linalg.norm(means[0] - means[1])

    sums, means = map(np.asarray, jax.jit(jax.vmap(moved))(jr.split(key, 40)))
    assert (sums <= S / q * (1 + 1e-5)).all()
    assert (means <= S / q / (AGENTS + 1) * (1 + 1e-4)).all()
    assert (sums == 0).any()  # not drawn
    if VALUES[size] > 1:  # and reached, if the message is clipped
        assert np.isfinite(messages.shift[2]).all()
        assert sums.max() > 0.99 * S / q


def test_who_is_absent_or_sends_no_number_is_as_if_it_did_not_exist(key):
    algorithm = make(NOISY)
    state = begun(algorithm, key)
    messages = algorithm.messages(key, state)
    spoiled = eqx.tree_at(lambda m: m.shift, messages, messages.shift.at[2, 5].set(jnp.nan))
    here = jnp.ones((AGENTS,), bool)

    def mean(messages, present):
        return algorithm.aggregate(key, state.shared, state.round, messages, present).prior.mean

    absent = mean(messages, here.at[2].set(False))
    np.testing.assert_array_equal(mean(spoiled, here), absent)
    assert np.isfinite(absent).all()


def test_failed_evaluations_leave_a_message_as_it_was(key):
    algorithm = make()
    state = begun(algorithm, key)
    x, failed = jnp.full((AGENTS, 2), 0.5), jnp.full((AGENTS,), jnp.nan)
    after = algorithm.tell(state, x, failed)
    one, two = (algorithm.messages(key, s).shift for s in (state, after))
    np.testing.assert_array_equal(one, two)


def test_under_the_prior_a_message_is_as_long_as_the_root_of_the_number_of_values(key):
    """Which is how the docstring says to choose the bound."""
    algorithm = make(agents=1000)
    start = algorithm.init(key)
    phi = start.shared.features
    w_key, x_key, noise_key = jr.split(key, 3)
    x = algorithm.domain.sample(x_key, INITIAL * 1000).reshape(INITIAL, 1000, 2)
    w = jr.normal(w_key, (1000, MODEL.size + 1))
    values = jax.vmap(jax.vmap(lambda x, w: jnp.dot(phi(x), w[:-1]) + w[-1]), (0, None))(x, w)
    values = values + MODEL.noise**0.5 * jr.normal(noise_key, values.shape)
    state = algorithm.warm_start(start, x, values)
    squares = np.sum(np.asarray(algorithm.messages(key, state).shift) ** 2, axis=1)
    assert squares.mean() <= INITIAL + 3 * squares.std() / 1000**0.5
    assert squares.mean() > 0.8 * INITIAL


def test_a_round_tells_an_agent_nothing_of_others_but_the_private_sum(key, monkeypatch):
    nothing = lambda self, key, messages, weights, present: jnp.ones(  # noqa: E731
        (weights.shape[0], messages.shape[1]), messages.dtype
    )
    monkeypatch.setattr(Mechanism, "release", nothing)
    algorithm = make(NOISY)
    state, other = begun(algorithm, key), begun(algorithm, jr.key(7))
    changed = jax.tree.map(
        lambda mine, theirs: theirs.at[3].set(mine[3]),
        unwrap((state.clients, state.past)),
        unwrap((other.clients, other.past)),
    )
    clients, past = wrap(changed, (state.clients, state.past))
    changed = dataclasses.replace(state, clients=clients, past=past)
    ask = jax.jit(lambda state, present: algorithm.ask(key, state, present))
    here = jnp.ones((AGENTS,), bool)
    (one, told), (two, _) = ask(state, here), ask(changed, here)
    np.testing.assert_array_equal(one[3], two[3])
    assert (one != two).any()
    # Nor who is present.
    _, nobody = ask(state, jnp.zeros((AGENTS,), bool))
    jax.tree.map(np.testing.assert_array_equal, told.broadcast, nobody.broadcast)


# ---------------------------------------------------------------- what is released, and charged


def test_without_noise_the_broadcast_is_the_m_step_of_the_plain_sum(key):
    algorithm = make(shrink=2.0)
    state = begun(algorithm, key)
    present = jnp.arange(AGENTS) != 4
    total = np.asarray(algorithm.messages(key, state).shift)[np.asarray(present)].sum(axis=0)
    found = aggregated(algorithm, state, key, present).prior.mean
    np.testing.assert_allclose(found, total / (AGENTS + 2.0), rtol=2e-4, atol=1e-6)


def test_after_the_last_release_the_mean_stays(key):
    algorithm = make(QUIET, releases=2)
    assert [algorithm.released(t) is not None for t in range(4)] == [True, True, False, False]
    trace = ran(algorithm, key)
    means = np.asarray(trace.info.broadcast.mean)
    np.testing.assert_array_equal(means[1], means[2])
    np.testing.assert_array_equal(means[1], means[3])
    assert np.abs(means[0] - means[1]).max() > 0


@eqx.filter_jit
def ran(algorithm, key):
    return run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1]


def python(agent, x):
    return float(3 * np.exp(-np.sum((x - 0.5 - 0.01 * agent) ** 2) / 0.08) - 1)


def driven(algorithm, path, ledger, rounds=ROUNDS, **options):
    """The trace, and its ledger."""
    given = {"initial": INITIAL, "checkpoint": path, "progress": False} | options
    trace = drive(algorithm, python, rounds, jr.key(5), ledger=ledger, **given)[1]
    assert trace.ledger is not None
    return trace, trace.ledger


SAMPLINGS = {"all": Poisson(1.0), "half": Poisson(0.5), "two": FixedSize(2, AGENTS)}


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


def test_a_round_without_anybody_releases_noise_and_is_charged(tmp_path, monkeypatch):
    found = released(monkeypatch)
    nobody = jnp.zeros((ROUNDS, AGENTS), bool)
    _, ledger = driven(make(NOISY), tmp_path / "run.npz", Ledger(DELTA), present=nobody)
    jax.effects_barrier()
    assert ledger.releases == 3
    assert np.std(found[:3]) == pytest.approx(1.5 * 2.0 / 0.5, rel=0.25)


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


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0))
def values(trust, z, key):
    algorithm = make(Mechanism(z, 2.0, Poisson(1.0)), agents=40, trust=trust)
    return run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1].values


@functools.cache
def best(trust, z):
    found = values(jnp.asarray(trust), jnp.asarray(z), jr.split(jr.key(0), 12))
    return metrics.best_so_far(np.asarray(found))[:, -1].mean(axis=1)


def test_agents_with_much_in_common_gain_under_privacy():
    low, _ = metrics.confidence_interval(best(0.5, 1.5) - best(0.0, 1.5))
    assert low > 0.05


def test_so_much_noise_that_nothing_is_heard_costs_little():
    _, high = metrics.confidence_interval(best(0.0, 1.5) - best(0.5, 300.0))
    assert high < 0.25


def test_location_and_scale_are_units_of_values(key):
    plain, moved = make(NOISY), make(NOISY, location=-40.0, scale=8.0)
    x = Cube(2).sample(key, INITIAL * AGENTS).reshape(INITIAL, AGENTS, 2)
    values = jax.vmap(jax.vmap(lambda x: objective(None, 0, x)))(x)
    asked, expected = [], []
    for algorithm, told in ((plain, values), (moved, 8.0 * values - 40.0)):
        state = begun(algorithm, key, told)
        asked.append(algorithm.ask(key, state)[1].broadcast.mean)
        expected.append(algorithm.predict(state, x[0]))
    np.testing.assert_allclose(*asked, atol=2e-3)
    (mean, variance), (other, larger) = expected
    np.testing.assert_allclose(8.0 * mean - 40.0, other, atol=0.05)
    np.testing.assert_allclose(64.0 * variance, larger, rtol=0.02, atol=1e-3)


def test_a_message_is_a_number_for_each_feature_and_one_for_the_constant():
    algorithm = make()
    state = jax.eval_shape(algorithm.init, jr.key(0))
    message = jax.eval_shape(algorithm.messages, jr.key(0), state)
    assert metrics.floats(message) == AGENTS * (MODEL.size + 1)


def test_a_curve_of_privacy_is_one_program(key):
    def last(z, S, releases):
        algorithm = make(Mechanism(z, S, Poisson(1.0)), releases=releases)
        return run(algorithm, objective, 2, key, initial=1)[1].values[-1]

    settings = jnp.asarray([0.1, 1.0, 4.0]), jnp.ones(3), jnp.asarray([1.0, 2.0, 2.0])
    values = np.asarray(jax.jit(jax.vmap(last))(*settings))
    assert values.shape == (3, AGENTS)
    assert len(np.unique(values[:, 0])) > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "scale must be positive"),
        ({"location": np.nan}, "location must be finite"),
        ({"releases": -1}, "releases must be a number of rounds"),
        ({"trust": 1.5}, "trust must be in"),
        ({"shrink": -1.0}, "shrink"),
        ({"policy": Drawn(EI())}, "experts"),
    ],
)
def test_what_it_cannot_work_with_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**{"mechanism": OPEN} | options)
