"""One black box, several workers: what they observe is one model's, and it chooses its kernel."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Context, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.maximize import maximize
from jaxbo.kernels.choosing.policy import EI, UCB, Drawn, Largest, Thompson
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern32, SquaredExponential
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs.compiled import run

DOMAIN = Cube(2)
KERNELS = SquaredExponential(0.3), Matern32(0.3)
LOADED = Space(load=Context(Real(0.0, 1.0)), x=Real(0.0, 1.0))
OBJECTIVE = Same(branin_rescaled(), 0.1)


def expert(capacity=24, refit_every=None, **options):
    return Fitted(capacity, KERNELS[0], size=40, noise=1e-2, refit_every=refit_every, **options)


def egp(policy=None, workers=1, **options):
    policy = Thompson() if policy is None else policy
    return EGP(DOMAIN, Ensemble(KERNELS, expert(**options)), policy, workers, candidates=64)


#: How far two programs may be apart: near a maximum the square root of rounding changes nothing.
PLACE = 1e-3


# Compiled, as users have them: a loop inside would otherwise be compiled anew at every call.
init = eqx.filter_jit(EGP.init)
ask, ask_one = eqx.filter_jit(EGP.ask), eqx.filter_jit(EGP.ask_one)
tell, tell_one = eqx.filter_jit(EGP.tell), eqx.filter_jit(EGP.tell_one)
warm_start = eqx.filter_jit(EGP.warm_start)


def one_kernel(policy=None, workers=1, **options):
    """The same with one expert, which compiles in less time."""
    return EGP(DOMAIN, expert(**options), policy or Thompson(), workers, candidates=64)


def evaluations(count=6):
    rng = np.random.default_rng(count)
    return jnp.asarray(rng.random((count, 2)), float), jnp.asarray(rng.normal(size=count), float)


def told(algorithm, key, count=6):
    """A state after `count` evaluations, and these."""
    x, y = evaluations(count)
    state = init(algorithm, key)
    for i in range(count):
        state = tell_one(algorithm, state, x[i], y[i])
    return state, x, y


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jr.key_data(x), jr.key_data(y)
        np.testing.assert_array_equal(x, y)


def close(a, b, tolerance=2e-3):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@eqx.filter_jit
def predictions(algorithm, state):
    x = DOMAIN.candidates(jr.key(9), 30)
    return jax.vmap(lambda x: algorithm.surrogate.predict(state.shared, state.belief, x))(x)


@eqx.filter_jit
def drawn(algorithm, key, state, points):
    """Where the sample that a first query maximizes is largest; its values there and at points."""
    candidate_key, policy_key = jr.split(key)
    sampled = algorithm.surrogate.sample(jr.fold_in(policy_key, 0), state.shared, state.belief)
    best, _ = maximize(sampled, DOMAIN, DOMAIN.candidates(candidate_key, 64))
    return best, sampled(best), jax.vmap(sampled)(points)


# ---------------------------------------------------------------- what is asked


@pytest.mark.slow
def test_a_query_maximizes_a_sample_of_the_surrogate(key):
    algorithm = egp()
    state, _, _ = told(algorithm, jr.fold_in(key, 1))
    queries, _ = ask(algorithm, jr.fold_in(key, 2), state)
    expected, most, values = drawn(algorithm, jr.fold_in(key, 2), state, queries)
    close(values[0], most, 1e-5)
    close(queries[0], expected, PLACE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [Thompson(), *(pytest.param(p, marks=pytest.mark.full) for p in (Drawn(UCB(2.0)), Largest()))],
)
def test_one_worker_asks_the_same_alone_and_in_a_round(policy, key):
    algorithm = egp(policy)
    state, _, _ = told(algorithm, jr.fold_in(key, 1))
    nobody = jnp.zeros((1, 2)), jnp.zeros((1,), bool)
    alone = ask_one(algorithm, jr.fold_in(key, 2), state, *nobody)
    close(alone, ask(algorithm, jr.fold_in(key, 2), state)[0][0], 1e-5)


@pytest.mark.slow
def test_workers_with_thompson_sampling_ask_independently(key):
    # The first worker's query is the one that it would ask alone. The model is that of one worker.
    state, _, _ = told(egp(), jr.fold_in(key, 1))
    three, _ = ask(egp(workers=3), jr.fold_in(key, 2), state)
    one, _ = ask(egp(), jr.fold_in(key, 2), state)
    both = jnp.asarray(np.stack([three[0], one[0]]))
    _, _, values = drawn(egp(), jr.fold_in(key, 2), state, both)
    close(values[0], values[1], 1e-5)
    close(three[0], one[0], PLACE)
    assert len(np.unique(np.asarray(three), axis=0)) == 3


@pytest.mark.slow
def test_workers_with_expected_improvement_keep_away_from_each_other(key):
    algorithm = one_kernel(EI(), workers=3, inference=Exact())
    state, _, _ = told(algorithm, jr.fold_in(key, 1))
    queries = np.asarray(ask(algorithm, jr.fold_in(key, 2), state)[0])
    distances = np.linalg.norm(queries[:, None] - queries[None], axis=2) + np.eye(3)
    assert distances.min() > 0.02
    # Pending queries count: without them, the second one from the same belief would be the first.
    pending = jnp.asarray([queries[0], [0, 0], [0, 0]], float)
    one, nobody = (jnp.asarray(np.arange(3) < count) for count in (1, 0))
    after = ask_one(algorithm, jr.fold_in(key, 2), state, pending, one)
    free = ask_one(algorithm, jr.fold_in(key, 2), state, pending, nobody)
    close(after, queries[1], 1e-3)
    close(free, queries[0], 1e-4)
    assert np.max(np.abs(np.asarray(after) - free)) > 0.02


def test_queries_are_among_a_finite_set(key):
    domain = Finite(np.random.default_rng(0).random((31, 2)))
    algorithm = EGP(domain, Ensemble(KERNELS, expert()), workers=4)
    queries, _ = ask(algorithm, key, init(algorithm, jr.fold_in(key, 1)))
    assert all(domain.contains(query) for query in queries)


# ---------------------------------------------------------------- what is learned


@pytest.mark.slow
@pytest.mark.parametrize("inference", [None, Exact()])
def test_the_order_of_results_does_not_matter(inference, key):
    algorithm = egp() if inference is None else egp(inference=inference)
    x, y = evaluations()
    start = init(algorithm, jr.fold_in(key, 1))
    forth, back = start, start
    for i in range(6):
        forth = tell_one(algorithm, forth, x[i], y[i])
        back = tell_one(algorithm, back, x[5 - i], y[5 - i])
    close(predictions(algorithm, forth), predictions(algorithm, back))


def test_a_round_is_its_results_one_by_one(key):
    # The model is that of one worker.
    x, y = evaluations()
    single = start = init(egp(), jr.fold_in(key, 1))
    together = tell(egp(workers=3), start, x[:3], y[:3])
    for i in range(3):
        single = tell_one(egp(), single, x[i], y[i])
    close(predictions(egp(), together), predictions(egp(), single), 1e-4)
    assert together.told == single.told == 3
    assert (together.round, single.round) == (1, 3)


@pytest.mark.slow
def test_a_failed_worker_leaves_no_mark_on_the_model(key):
    algorithm = one_kernel(workers=3, refit_every=4)
    state, (x, y) = init(algorithm, key), evaluations()
    for rows in (slice(3), slice(3, 6)):
        state = tell(algorithm, state, x[rows], y[rows])
    failed = tell(algorithm, state, x[:3] + 0.01, jnp.full((3,), jnp.nan))
    same_bits(failed.belief, state.belief)
    some = tell(algorithm, state, x[:3] + 0.01, y[:3].at[1].set(jnp.nan))
    fewer = tell(algorithm, state, x[:3] + 0.01, jnp.asarray([y[0], jnp.nan, y[2]]))
    assert algorithm.surrogate.count(some.belief) == 8
    same_bits(some.belief, fewer.belief)


def test_hyperparameters_are_fitted_before_the_first_round_and_every_so_many_evaluations(key):
    algorithm = one_kernel(workers=3, refit_every=4)
    x, y = evaluations()
    start = init(algorithm, jr.fold_in(key, 1))
    state = warm_start(algorithm, start, x.reshape(2, 3, 2), y.reshape(2, 3))
    noises = [start.belief.noise, state.belief.noise]
    for _ in range(4):  # 9, 12, 15 and 18 evaluations
        state = tell(algorithm, state, x[:3] / 2, y[:3])
        noises.append(state.belief.noise)
    changed = [bool((a != b).any()) for a, b in itertools.pairwise(noises)]
    assert changed == [True, True, True, False, True]


@pytest.mark.slow
def test_a_fit_is_not_lost_because_evaluations_fail_when_it_is_due(key):
    algorithm = one_kernel(refit_every=6)
    x, values = map(np.array, evaluations(12))
    values[[5, 6, 11]] = np.nan
    state = init(algorithm, key)
    noises = [state.belief.noise]
    for i, value in enumerate(values):
        state = tell(algorithm, state, jnp.asarray(x[i : i + 1]), jnp.asarray([value]))
        noises.append(state.belief.noise)
    changed = [bool((a != b).any()) for a, b in itertools.pairwise(noises)]
    assert changed == [False] * 5 + [True] + [False] * 5 + [True]


def test_without_an_observation_nothing_is_fitted(key):
    algorithm = one_kernel(refit_every=6)
    state = start = init(algorithm, key)
    failed = jnp.asarray(np.full((1, 2), 0.5), float), jnp.asarray([np.nan], float)
    for _ in range(6):
        state = tell(algorithm, state, *failed)
    np.testing.assert_array_equal(state.belief.noise, start.belief.noise)


@pytest.mark.full
def test_runs_that_are_mapped_over_fit_no_more_often_than_one(key):
    """A branch that differs from run to run would be taken by all of them every time."""
    fits = []

    class Counting(Fitted):
        def refit(self, shared, belief):
            jax.debug.callback(lambda _: fits.append(1), belief.noise)
            return super().refit(shared, belief)

    algorithm = EGP(DOMAIN, Counting(20, size=20, refit_every=4), candidates=16)

    def values(key):  # some of which fail
        return jnp.where(key[:, 0] > 0.8, jnp.nan, key[:, 1])

    def one(key):
        state = algorithm.init(key)
        for i in range(12):
            x = DOMAIN.sample(jr.fold_in(key, i), 1)
            state = algorithm.tell(state, x, values(x))
        return state.belief.noise

    jax.block_until_ready(jax.jit(jax.vmap(one))(jr.split(key, 3)))
    jax.effects_barrier()
    assert len(fits) == 3 * (12 // 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "inference",
    [pytest.param(OnFeatures(), marks=pytest.mark.full), Exact()],
    ids=["features", "exact"],
)
def test_with_a_huge_penalty_in_the_place_of_a_value_all_numbers_stay_finite(inference):
    surrogate = Fitted(30, SquaredExponential(0.3), refit_every=5, inference=inference)
    algorithm = EGP(DOMAIN, surrogate, candidates=64)

    def objective(key, agent, x):
        value = OBJECTIVE(key, agent, x)
        return jnp.where(x[0] > 0.7, -1e30, value)

    state, trace = run(algorithm, objective, 15, jr.key(0), initial=8)
    assert (trace.values < -1e29).any()  # it was met
    mean, variance = surrogate.predict(state.shared, state.belief, jnp.full(2, 0.5))
    assert jnp.isfinite(mean)
    assert jnp.isfinite(variance)
    asked = trace.queries[8:, 0]
    assert np.unique(np.asarray(asked), axis=0).shape == asked.shape


def test_a_kernel_that_explains_better_gains_weight():
    # Three hundred times too short and about right.
    kernels = SquaredExponential(1e-3), SquaredExponential(0.3)
    surrogate = Ensemble(kernels, Fitted(40, size=100, noise=5e-2, refit_every=None))
    algorithm = EGP(DOMAIN, surrogate, candidates=64)

    def weight(key):
        state, _ = run(algorithm, OBJECTIVE, 20, key, initial=5)
        return jnp.exp(surrogate.log_weights(state.shared, state.belief))[1]

    assert (np.asarray(jax.jit(jax.vmap(weight))(jr.split(jr.key(0), 8))) > 0.99).all()


@pytest.mark.slow
def test_other_surrogates_serve(key):
    algorithm = EGP(DOMAIN, Fixed(SquaredExponential(0.3), 40), candidates=64)
    state, _, _ = told(algorithm, key)
    assert DOMAIN.contains(ask(algorithm, key, state)[0][0])


def turns(finite, period, focus):
    """The values that a model is raised to after each evaluation, in turns that begin at `focus`."""
    least, lowest, fitted = [], float(jnp.finfo(jnp.zeros(()).dtype).min), 0
    for told in range(1, len(finite) + 1):
        seen = finite[:told][np.isfinite(finite[:told])]
        now = least[-1] if least else lowest
        if told % period == 0 and len(seen) > fitted:
            fitted = len(seen)
            turn = now == lowest and fitted >= focus
            now = np.sort(seen)[fitted // 2] if turn else lowest
        least.append(now)
    return least


@pytest.mark.slow
def test_every_second_fit_sees_the_better_half_of_the_values_alone():
    model = Ensemble(KERNELS, expert(refit_every=2, inference=Exact(), warp=True))
    method = EGP(
        DOMAIN, model, EI(), candidates=16, outcomes=[Outcome("latency", at_most=1.0)], focus=9
    )
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 20, 2)), rng.normal(size=(2, 20, 2))
    y[1, [2, 5, 6, 7, 12, 13, 16]] = np.nan  # the second run has failures, and its own turns

    @jax.jit
    @jax.vmap
    def both(x, y):
        def told(state, row):
            state = method.tell_one(state, *row)
            return state, (state.belief.least, state.slacks.least)

        return jax.lax.scan(told, method.init(jr.key(0)), (x, y))[1]

    found, of_outcomes = both(jnp.asarray(x, float), jnp.asarray(y, float))
    expected = [turns(one, 2, 9) for one in y[:, :, 0]]
    assert np.unique(expected[0]).size > 2
    assert expected[0] != expected[1]
    for number in range(len(KERNELS)):
        np.testing.assert_allclose(found[:, :, number], expected, rtol=1e-6)
    # Whether bounds of outcomes are met does not depend on the half.
    assert np.all(np.asarray(of_outcomes) < -1e30)


@pytest.mark.slow
def test_every_third_query_is_the_top_of_a_quadratic_and_one_worker_has_it(key):
    x = np.random.default_rng(0).random((12, 2))
    y = -((x - [0.3, 0.6]) ** 2) @ [1.0, 4.0]
    alone, two = (
        EGP(DOMAIN, expert(inference=Exact()), EI(), workers, candidates=64, quadratic_every=3)
        for workers in (1, 2)
    )

    @jax.jit
    def queries(x, y):
        """A lone worker's after 10, 11 and 12 evaluations, and those of two workers after 10 and 11.

        And a free worker's after 11, while nobody or somebody is busy.
        """

        def told(state, row):
            state = alone.tell_one(state, *row)
            return state, state

        _, states = jax.lax.scan(told, alone.init(key), (x, y))
        later = jax.tree.map(lambda leaf: leaf[9:], states)
        first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], later) for i in (0, 1))
        ones = jax.vmap(lambda state: alone.ask(key, state)[0][0])(later)
        pairs = [two.ask(key, state)[0] for state in (first, second)]
        busy = jnp.asarray([[False], [True]])
        free = jax.vmap(lambda busy: two.ask_one(key, second, jnp.full((1, 2), 0.9), busy))(busy)
        return ones, *pairs, free

    found = map(np.asarray, queries(jnp.asarray(x, float), jnp.asarray(y, float)))
    tops = [(np.abs(some - [0.3, 0.6]).max(axis=1) < 2e-3).tolist() for some in found]
    # Queries are counted from 0. The top is the query with number 12.
    assert tops == [[False, False, True], [False, False], [False, True], [False, True]]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EGP(DOMAIN, expert(refit_every=1), focus=0), "focus must be"),
        (lambda: EGP(DOMAIN, Fixed(), focus=8), "focus is for"),
        (lambda: EGP(DOMAIN, expert(refit_every=None), focus=8), "refit_every"),
        (lambda: EGP(DOMAIN, expert(), EI(), quadratic_every=0), "quadratic_every must be"),
        (lambda: EGP(DOMAIN, expert(), quadratic_every=3), "does not sample functions"),
        (lambda: EGP(LOADED, expert(), EI(), quadratic_every=3), "or a Context"),
        (lambda: EGP(DOMAIN, Ensemble((), expert())), "at least one"),
        (lambda: EGP(DOMAIN, expert(), workers=0), "workers"),
        (lambda: EGP(DOMAIN, expert(), EI(), candidates=0), "candidates"),
        (lambda: EGP(DOMAIN, Fixed(), EI()), "keeps its observations"),
        (lambda: EGP(DOMAIN, expert(), Drawn()), "Ensemble"),
        (lambda: EGP(DOMAIN, expert(3), workers=4), "too small"),
    ],
)
def test_bad_configuration_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.slow
def test_what_does_not_fit_is_refused(key):
    algorithm = egp(workers=2)
    state = init(algorithm, key)
    with pytest.raises(ValueError, match="expected queries"):
        algorithm.tell(state, jnp.zeros((3, 2)), jnp.zeros(3))
    with pytest.raises(ValueError, match="capacity"):
        algorithm.warm_start(state, jnp.zeros((13, 2, 2)), jnp.zeros((13, 2)))
    with pytest.raises(ValueError, match="workers send none"):
        algorithm.ask(key, state, jnp.ones((2,), bool))
    with pytest.raises(ValueError, match="capacity"):
        run(algorithm, OBJECTIVE, 13, key)
