"""Agents that learn a prior together; what is summed up is tried in `kernels.models.shared_prior`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import metrics
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, UCB, Drawn, Thompson
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive, replay
from tests import stepped

pytestmark = pytest.mark.float64

AGENTS, INITIAL, ROUNDS, SEEDS = 6, 3, 3, 48
MODEL = Fixed(SquaredExponential(0.25), size=30, noise=1e-3)


def make(**options):
    given = {"features": MODEL, "rank": 4, "candidates": 200} | options
    agents = given.pop("agents", AGENTS)
    return LearnedPrior(Cube(2), agents, INITIAL + ROUNDS, **given)


def objective(key, agent, x):
    """A hill for each agent, near that of the others."""
    del key
    center = jnp.asarray([0.7, 0.3]) + 0.02 * jnp.cos(jnp.arange(2) + agent)
    return jnp.exp(-jnp.sum((x - center) ** 2) / 0.08)


@functools.cache
def ran(trust):
    algorithm = make(trust=trust)
    one = lambda key: run(algorithm, objective, ROUNDS, key, initial=INITIAL)[1].values  # noqa: E731
    return np.asarray(jax.jit(jax.vmap(one))(jr.split(jr.key(0), SEEDS)))


def test_agents_with_much_in_common_find_the_hill_sooner_than_alone():
    best = {trust: metrics.best_so_far(ran(trust))[:, -1].mean(axis=1) for trust in (0.0, 0.5)}
    low, _ = metrics.confidence_interval(best[0.5] - best[0.0])
    assert low > 0.02


def test_the_first_query_after_the_design_uses_what_all_have_seen():
    algorithm = make()
    key = jr.key(3)

    def queries(shift):
        """Of the first agent, whose own values are the same."""
        peers = lambda key, agent, x: jnp.where(  # noqa: E731
            agent == 0, objective(key, agent, x), objective(key, agent, (x + shift) % 1.0)
        )
        return run(algorithm, peers, 1, key, initial=INITIAL)[1].queries[-1, 0]

    assert np.abs(queries(0.0) - queries(0.5)).max() > 1e-3


def test_without_trust_nothing_of_others_is_used_but_the_scale():
    algorithm = make(trust=0.0)
    _, trace = run(algorithm, objective, 1, jr.key(4), initial=INITIAL)
    # Peers' values change places: mean and deviation of all are the same.
    others = jnp.asarray([0, 2, 3, 4, 5, 1])
    queries, values = trace.queries[:INITIAL], trace.values[:INITIAL]
    asked = []
    for order in (jnp.arange(AGENTS), others):
        start = stepped.init(algorithm, jr.key(5))
        told = stepped.warm_start(algorithm, start, queries[:, order], values[:, order])
        asked.append(stepped.ask(algorithm, jr.key(6), told)[0][0])
    np.testing.assert_allclose(*asked, atol=1e-3)


def test_an_agent_that_is_absent_is_in_no_sum():
    algorithm = make()
    _, trace = run(algorithm, objective, 1, jr.key(7), initial=INITIAL)
    queries, values = trace.queries[:INITIAL], trace.values[:INITIAL]
    present = jnp.arange(AGENTS) != 2
    priors = []
    for other in (values, values.at[:, 2].multiply(-3.0)):
        start = stepped.init(algorithm, jr.key(8))
        told = stepped.warm_start(algorithm, start, queries, other)
        priors.append(stepped.ask(algorithm, jr.key(9), told, present)[1].broadcast)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), *priors)
    assert bool(priors[0].learned)


def test_nobody_present_leaves_the_prior_as_it_was():
    algorithm = make()
    state, _ = run(algorithm, objective, 2, jr.key(10), initial=INITIAL)
    info = stepped.ask(algorithm, jr.key(11), state, jnp.zeros((AGENTS,), bool))[1]
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b), info.broadcast, state.shared.prior
    )


def test_the_state_remembers_the_last_broadcast_and_a_trace_rebuilds_it():
    algorithm = make()
    state, trace = run(algorithm, objective, ROUNDS, jr.key(12), initial=INITIAL)
    last = jax.tree.map(lambda leaf: leaf[-1], trace.info.broadcast)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), state.shared.prior, last)
    again = replay(algorithm, trace, jr.key(12))
    for mine, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_driven_run_that_was_stopped_goes_on_with_the_same_prior(tmp_path):
    algorithm = make()

    def python(agent, x):
        return float(objective(None, agent, jnp.asarray(x)))

    def run_for(rounds, checkpoint):
        options = {"initial": INITIAL, "progress": False, "checkpoint": checkpoint}
        return drive(algorithm, python, rounds, jr.key(13), **options)

    run_for(1, tmp_path / "run")
    _, resumed = run_for(ROUNDS, tmp_path / "run")
    _, whole = run_for(ROUNDS, tmp_path / "other")
    np.testing.assert_array_equal(resumed.queries, whole.queries)
    jax.tree.map(np.testing.assert_array_equal, resumed.info, whole.info)


@pytest.mark.parametrize("rank", [0, 4, 31])
def test_a_message_has_as_many_numbers_as_is_said(rank):
    algorithm = make(rank=rank)
    state = jax.eval_shape(algorithm.init, jr.key(0))
    message = jax.eval_shape(algorithm.messages, jr.key(0), state)
    D = MODEL.size + 1
    of_spread = {0: 2, 4: D * 5, 31: D * D}[rank]
    assert metrics.floats(message) == AGENTS * (1 + 3 + D + 2 * of_spread)


@pytest.mark.parametrize("policy", [UCB(), Thompson()])
def test_other_policies_serve(policy):
    algorithm = make(policy=policy)
    _, trace = run(algorithm, objective, 1, jr.key(14), initial=INITIAL)
    assert np.isfinite(trace.values).all()


@functools.cache
def finished():
    """The state of agents that have finished."""
    return run(make(), objective, ROUNDS, jr.key(15), initial=INITIAL)[0]


def test_a_newcomer_s_first_query_is_where_those_who_have_finished_expect_most():
    prior = make().learned(finished())
    newcomers = make(agents=2, prior=prior)
    trace = run(newcomers, objective, 2, jr.key(16))[1]
    assert np.abs(np.asarray(trace.queries[0]) - np.array([0.7, 0.3])).max() < 0.1
    assert (trace.values[0] > 0.9).all()


def test_newcomers_keep_what_they_were_told_and_send_nothing():
    newcomers = make(agents=2, prior=make().learned(finished()))
    state, _ = run(newcomers, objective, 2, jr.key(17))
    for mine, told in zip(
        jax.tree.leaves(state.shared), jax.tree.leaves(newcomers.prior), strict=True
    ):
        np.testing.assert_array_equal(mine, told)
    message = jax.eval_shape(newcomers.messages, jr.key(0), state)
    assert metrics.floats(message) == 0


@pytest.mark.parametrize("present", [None, jnp.arange(AGENTS) != 1])
def test_a_step_of_learning_is_that_of_a_round(present):
    algorithm, state = make(), finished()
    for steps in (1, 2):
        info = stepped.ask(algorithm, jr.key(18), state, present)[1]
        state = eqx.tree_at(
            lambda s: s.shared, state, algorithm.revised(state.shared, info.broadcast)
        )
        found = eqx.filter_jit(algorithm.learned)(finished(), steps, present)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, state.shared)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"present": [True] * AGENTS}, "present must be an array of bool for each of the 6"),
        ({"present": np.ones(1, bool)}, r"got ndarray of bool and shape \(1,\)"),
        ({"present": np.ones(AGENTS)}, "got ndarray of float64"),
        ({"steps": 1.5}, "steps must be a whole number"),
        (
            {"state": make(agents=2).init(jr.key(0))},
            "another algorithm, capacity or number of agents",
        ),
        ({"state": make().setup(jr.key(0))}, "state is of another algorithm"),
    ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_what_nothing_can_be_learned_of_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        make().learned(**{"state": make().init(jr.key(0))} | given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": -1}, "rank"),
        ({"trust": 1.5}, "trust must be in"),
        ({"degrees": 0.0}, "degrees"),
        ({"shrink": -1.0}, "shrink"),
        ({"policy": Drawn(EI())}, "experts"),
        ({"prior": LearnedPrior(Cube(3), 1, 4).setup(jr.key(0))}, "prior was learned on 3"),
        ({"prior": make().setup(jr.key(0))}, "prior has learned nothing"),
        ({"prior": jax.vmap(make().setup)(jr.split(jr.key(0)))}, r"prior must be one, .* \(2,\)"),
    ],
)
def test_what_it_cannot_work_with_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)
