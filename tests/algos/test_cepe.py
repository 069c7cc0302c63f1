"""CEPE and S-CEPE beside Algorithm 1 in NumPy, and their limits."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.cepe.collaborative import IGPUCB, Collaborative
from jaxbo import schedules
from jaxbo.algos.cepe import CEPE
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing.stays import Stays
from jaxbo.kernels.processes import nystrom
from jaxbo.kernels.processes.covariance import Matern32, Matern52, SquaredExponential, stack
from jaxbo.kernels.processes.sketch import Pivoted, Sketch
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import Trace
from jaxbo.types import floating
from tests import stepped
from tests.algos.pasts import fine

AGENTS, ROUNDS, NOISE = 4, 40, 1e-2
POINTS = Finite(np.random.default_rng(3).random((150, 2)))  # no two alike by symmetry
NUMBERS = schedules.growing(ROUNDS)
ALPHA = jnp.asarray([0.0, 0.3, 0.7, 1.0])


class Waves(AbstractObjective):
    """Every agent has a wave of its own. Agents listed in `silent` fail, others every so many values.

    On a `slope` all have the first coordinate, which is best where agent 1 fails. All numbers are arrays,
    so that the tests share their programs.
    """

    failing: jax.Array = eqx.field(converter=floating, default=0.0)
    silent: jax.Array = eqx.field(converter=jnp.asarray, default=-1)
    noise: jax.Array = eqx.field(converter=floating, default=0.1)
    slope: jax.Array = eqx.field(converter=jnp.asarray, default=False)

    def noiseless(self, agent, x):
        phase = agent.astype(x.dtype)
        wave = jnp.sin(5 * x[0] + phase) * jnp.cos(4 * x[1] - phase)
        return jnp.where(self.slope, x[0] - 0.5, wave)

    def optimum(self, agent):
        return jnp.ones(())

    def __call__(self, key, agent, x):
        noise_key, failure_key = jr.split(key)
        value = self.noiseless(agent, x) + self.noise * jr.normal(noise_key, dtype=x.dtype)
        failed = (jr.uniform(failure_key) < self.failing) | (agent == self.silent)
        failed |= self.slope & (agent == 1) & (x[0] > 0.7)
        return jnp.where(failed, jnp.nan, value)


def cepe(domain=POINTS, numbers=NUMBERS, alpha=ALPHA, **options):
    options = {"kernel": SquaredExponential(0.25), "candidates": 300} | options
    return CEPE(domain, AGENTS, numbers, alpha=alpha, noise=NOISE, **options)


messages = eqx.filter_jit(lambda algorithm, state: algorithm.messages(jr.key(0), state).mean)

#: Own kernels, without anything observed before.
KERNELS = stack([SquaredExponential(s) for s in (0.2, 0.25, 0.3, 0.35)], 2)


# ---------------------------------------------------------------- Algorithm 1


def covariance(kernel, X, Z):
    """In float64, of one of the kernels above."""
    squares = ((np.asarray(X, float)[:, None] - np.asarray(Z, float)[None]) ** 2).sum(-1)
    squares = squares / float(kernel.length_scale) ** 2
    if isinstance(kernel, Matern52):
        a = np.sqrt(5 * squares)
        return float(kernel.variance) * (1 + a + a**2 / 3) * np.exp(-a)
    assert isinstance(kernel, SquaredExponential)
    return float(kernel.variance) * np.exp(-squares / 2)


def posterior(kernel, x, y, points):
    """Mean and variance, eq. 4 and 5."""
    prior = np.full(len(points), float(kernel.variance))
    if len(x) == 0:
        return np.zeros(len(points)), prior
    K = covariance(kernel, x, x) + NOISE * np.eye(len(x))
    k = covariance(kernel, x, points)
    return k.T @ np.linalg.solve(K, y), prior - np.einsum("np,np->p", k, np.linalg.solve(K, k))


def algorithm1(trace, kernels, alpha, weights, explores, points, present=None, own=False):
    """The function that each agent of a trace was to maximize in each round, given the trace up to then.

    An agent with a design of its `own` looks nowhere where its evaluations fail. With a common design it
    takes the value that it expected for a value that failed.
    """
    agents = len(kernels)
    allowed = np.asarray(fine(trace.queries, trace.values, jnp.asarray(points)))
    present = np.ones((len(explores), agents), bool) if present is None else np.asarray(present)
    queries, values = np.asarray(trace.queries, float), np.asarray(trace.values, float)
    start = trace.initial
    data = [
        [(queries[r, j], values[r, j]) for r in range(start) if np.isfinite(values[r, j])]
        for j in range(agents)
    ]
    scores = []
    for t, explore in enumerate(explores):
        sets = [
            (np.array([x for x, _ in d]).reshape(-1, 2), np.array([y for _, y in d])) for d in data
        ]
        both = [posterior(kernels[j], *sets[j], points) for j in range(agents)]
        if explore:
            scores.append([variance for _, variance in both])
        else:
            rows = []
            for i in range(agents):
                known = present[t].copy()
                known[i] = True
                mean = sum(
                    w * m for w, (m, _), here in zip(weights, both, known, strict=True) if here
                )
                rows.append(alpha[i] * both[i][0] + (1 - alpha[i]) * mean)
            scores.append(rows)
        for j in range(agents):
            if own or not explore:
                scores[-1][j] = np.where(allowed[j, start + t], scores[-1][j], -np.inf)
            x, y = queries[start + t, j], values[start + t, j]
            if explore and not own and np.isnan(y):
                y = posterior(kernels[j], *sets[j], x[None])[0][0]
            if explore and np.isfinite(y):
                data[j].append((x, y))
    return np.array(scores)


def assert_maximized(trace, scores, tolerance):
    """On `POINTS`: every query has the largest score, to within a tolerance."""
    queries = np.asarray(trace.queries[trace.initial :])
    points = np.asarray(POINTS.points)
    places = ((queries[:, :, None] - points) ** 2).sum(-1).argmin(-1)
    got = np.take_along_axis(scores, places[:, :, None], 2)[:, :, 0]
    assert (scores.max(2) - got).max() < tolerance
    return places


def settings():
    every = np.full(AGENTS, 1 / AGENTS)
    return {
        "one covariance": ({}, every),
        "weights": ({"weights": [0.1, 0.2, 0.3, 0.4]}, np.array([0.1, 0.2, 0.3, 0.4])),
        "covariances of their own": ({"initial_capacity": 3}, every),
        "kernels of their own": ({"kernel": KERNELS}, every),
        "another kernel": ({"kernel": Matern52(0.3, 2.0)}, every),
    }


@functools.cache
def ran(name, failing):
    options, _ = settings()[name]
    initial = options.get("initial_capacity", 0)
    present = jr.uniform(jr.key(9), (ROUNDS, AGENTS)) < 0.8
    return run(
        cepe(**options),
        Waves(failing),
        ROUNDS,
        jr.key(1),
        initial=initial,
        present=present,
    ), present


@pytest.mark.float64
@pytest.mark.parametrize("failing", [0.0, 0.3])
@pytest.mark.parametrize("name", settings())
def test_every_query_is_that_of_algorithm_1(name, failing, x64):
    options, weights = settings()[name]
    (_, trace), present = ran(name, failing)
    kernel = options.get("kernel", SquaredExponential(0.25))
    kernels = [
        jax.tree.map(lambda leaf, j=j: leaf[j] if leaf.ndim else leaf, kernel)
        for j in range(AGENTS)
    ]
    explores = schedules.explores(NUMBERS)
    np.testing.assert_array_equal(trace.info.exploring, explores[:, None] * np.ones(AGENTS, bool))
    args = trace, kernels, np.asarray(ALPHA), weights, explores, np.asarray(POINTS.points)
    own = "own" in name
    scores = algorithm1(*args, present, own=own)
    places = assert_maximized(trace, scores, 1e-9 if x64 else 3e-4)
    if x64:  # but for the first point, where all variances are equal
        first = 1 if trace.initial == 0 else 0
        np.testing.assert_array_equal(places[first:], scores.argmax(2)[first:])
    if failing:
        assert np.isnan(trace.values[trace.initial :][explores]).any()
        everyone = algorithm1(*args, own=own)
        known = np.isfinite(scores)
        assert np.abs(everyone[known] - scores[known]).max() > 0.1  # absence made a difference


class Known(Cube):
    """A cube with the same candidates in every search."""

    def candidates(self, key, count):
        return Cube(self.dim).candidates(jr.key(5), count)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("options", [{}, {"initial_capacity": 1}])
def test_on_a_cube_every_query_is_that_of_algorithm_1(options, x64):
    side = np.linspace(0, 1, 80)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    candidates = np.asarray(Known(2).candidates(None, 300), float)
    explores = schedules.explores(NUMBERS[:12])
    algorithm = cepe(Known(2), NUMBERS[:12], **options)
    _, trace = run(algorithm, Waves(0.2), 12, jr.key(1))
    points = np.concatenate([grid, candidates, np.asarray(trace.queries, float).reshape(-1, 2)])
    kernels = [SquaredExponential(0.25)] * AGENTS
    weights = np.full(AGENTS, 1 / AGENTS)
    args = trace, kernels, np.asarray(ALPHA), weights, explores, points
    scores = algorithm1(*args, own=bool(options))
    own = len(points) - 12 * AGENTS + np.arange(12 * AGENTS).reshape(12, AGENTS)
    got = np.take_along_axis(scores, own[:, :, None], 2)[:, :, 0]
    # The best of a grid is less than 1e-3 below the maximum.
    free = np.isfinite(scores).all(2)
    assert (scores.max(2) - got)[free].max() < 1e-3
    # Climbs may end where failures begin, but above where they started.
    assert np.isfinite(got).all()
    started = scores[:, :, len(grid) : len(grid) + len(candidates)].max(2)
    assert (started - got).max() < (1e-9 if x64 else 1e-4)
    assert 0.2 < free.mean() < 0.95


# ---------------------------------------------------------------- beyond the paper
#
# Exploration first, of eight rounds, from a fixed point. Agents learn from six values more.

FIRST, LESSONS, START = 8, 6, np.array([0.5, 0.5])
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])


def after(trace, lessons, weights, stop=FIRST):
    """The functions that agents maximize after `stop` rounds of exploration, by all that they learned."""
    queries, values = np.asarray(trace.queries, float), np.asarray(trace.values, float)
    points, kernel = np.asarray(POINTS.points), SquaredExponential(0.25)

    def mean(agent, rounds):
        held = [r for r in rounds if np.isfinite(values[r, agent])]
        return posterior(kernel, queries[held, agent], values[held, agent], points)[0]

    scores = []
    shared = [mean(j, range(stop)) for j in range(AGENTS)]
    for t in range(stop, len(queries)):
        row = []
        for i, alpha in enumerate(np.asarray(ALPHA)):
            exploited = [r for r in range(stop, t) if np.isfinite(values[r, i])][:lessons]
            own = mean(i, [*range(stop), *exploited])
            others = sum(w * (own if j == i else shared[j]) for j, w in enumerate(weights))
            row.append(alpha * own + (1 - alpha) * others)
        scores.append(row)
    return np.array(scores)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("own", [False, True], ids=["common", "kernels of their own"])
def test_lessons_are_what_an_agent_saw_while_exploiting(own, x64):
    options = {"kernel": stack([SquaredExponential(0.25)] * AGENTS, 2)} if own else {}
    numbers = schedules.first(FIRST)
    make = functools.partial(cepe, numbers=numbers, weights=WEIGHTS, start=START, **options)
    _, trace = run(make(lessons=LESSONS), Waves(), FIRST + 12, jr.key(1))
    scores = after(trace, LESSONS, WEIGHTS)
    points, queries = np.asarray(POINTS.points), np.asarray(trace.queries[FIRST:])
    places = ((queries[:, :, None] - points) ** 2).sum(-1).argmin(-1)
    got = np.take_along_axis(scores, places[:, :, None], 2)[:, :, 0]
    assert (scores.max(2) - got).max() < (1e-9 if x64 else 3e-4)
    # The design begins at the nearest point, and nothing more is sent than without lessons.
    nearest = points[((points - START) ** 2).sum(1).argmin()]
    np.testing.assert_allclose(trace.queries[0], np.tile(nearest, (AGENTS, 1)), rtol=1e-6)
    _, plain = run(make(), Waves(), FIRST + 12, jr.key(1))
    np.testing.assert_array_equal(trace.info.scalars, plain.info.scalars)
    np.testing.assert_array_equal(trace.queries[: FIRST + 1], plain.queries[: FIRST + 1])
    assert (trace.queries[FIRST:] != plain.queries[FIRST:]).any()
    beyond = after(trace, 12, WEIGHTS)
    assert np.abs(beyond - scores).max() > 0.01  # it is the first that count


def test_lessons_of_s_cepe_are_of_its_own_mean():
    count, first = 3, schedules.first(FIRST)
    method = cepe(numbers=first, sketch=Pivoted(count), lessons=LESSONS, start=START)
    _, trace = run(method, Waves(), FIRST + 4, jr.key(1))
    # As many points as it says, one a round.
    expected = np.repeat([0, 3, 0], [FIRST, count, 4 - count])
    np.testing.assert_array_equal(trace.info.scalars, expected[:, None] * np.ones(AGENTS, int))
    # While sketches are sent each follows its own mean, as if alone.
    alone = eqx.tree_at(lambda a: a.alpha, method, jnp.ones(AGENTS))
    _, same = run(alone, Waves(), FIRST + 4, jr.key(1))
    np.testing.assert_array_equal(trace.queries[: FIRST + 2], same.queries[: FIRST + 2])


EVERY, NEAR, MOST = 4, 0.1, 40


def watching(distance):
    """A method whose exploration may stop early."""
    rule = Stays(every=EVERY, distance=distance, share=0.75)
    return cepe(numbers=schedules.first(MOST), start=START, stays=rule)


def watched(distance, present=True):
    here = jnp.full((MOST + 4, AGENTS), present)
    return run(watching(distance), Waves(), MOST + 4, jr.key(1), present=here)


def test_exploration_ends_when_enough_maximizers_stay():
    """As Algorithm 1 would have it, whose maximizers are looked at every few rounds."""
    state, trace = watched(NEAR)
    points = np.asarray(POINTS.points)
    before, stop = None, MOST
    for looked in range(EVERY, MOST, EVERY):
        scores = after(trace, 0, np.full(AGENTS, 1 / AGENTS), stop=looked)[0]
        at = points[scores.argmax(1)]
        if before is not None and (np.abs(at - before).max(1) <= NEAR).mean() >= 0.75:
            stop = looked + 1  # it is in the broadcast of that round, in which all explore still
            break
        before = at
    assert 2 * EVERY + 1 < stop < MOST
    exploring = np.asarray(trace.info.agents.exploring)
    assert (exploring == (np.arange(len(exploring)) < stop)[:, None]).all()
    assert int(state.shared.design.count) == stop
    assert (np.asarray(state.clients.observations) == stop).all()
    assert trace.info.agents.scalars[stop + 1 :].sum() == 0


def test_absent_agents_are_not_looked_at():
    # All is near: the second look ends it, unless nobody is there.
    for present, stop in ((True, 2 * EVERY + 1), (False, MOST)):
        _, trace = watched(1.0, present)
        exploring = trace.info.agents.exploring[:, 0].tolist()
        assert exploring == [True] * stop + [False] * (MOST + 4 - stop)


# ---------------------------------------------------------------- what agents learn of


def changed(trace, rows, agents, value):
    values = trace.values.at[rows, agents].set(value)
    return Trace(trace.queries, values, trace.info, trace.initial)


def next_queries(algorithm, trace):
    state = replay(algorithm, trace, jr.key(1))
    return stepped.ask(algorithm, jr.key(5), state)[0]


@pytest.mark.slow
def test_one_covariance_is_the_same_as_one_for_each():
    common, own = cepe(), cepe(kernel=stack([SquaredExponential(0.25)] * AGENTS, 2))
    assert common.common
    assert not own.common
    _, trace = run(common, Waves(), ROUNDS, jr.key(1))
    states = [replay(algorithm, trace, jr.key(1)) for algorithm in (common, own)]
    means = map(messages, (common, own), states)
    np.testing.assert_allclose(*means, atol=2e-4)
    np.testing.assert_array_equal(states[0].clients.belief.count, states[1].clients.belief.count)


@pytest.mark.slow
def test_values_count_wherever_their_points_were_computed():
    # Another compiler or device would have explored other points, by rounding; all agents the same.
    algorithm = cepe(Known(2), NUMBERS[:12])
    _, trace = run(algorithm, Waves(), 12, jr.key(1))
    moved = Trace(trace.queries * (1 - 3e-5), trace.values, trace.info, trace.initial)
    state, other = (replay(algorithm, each, jr.key(1)) for each in (trace, moved))
    explores = schedules.explores(NUMBERS[:12])
    for each in (state, other):
        np.testing.assert_array_equal(each.clients.belief.count, explores.sum())
    assert (state.shared.design.x != other.shared.design.x).any()
    means = [messages(algorithm, each) for each in (state, other)]
    readings = [
        each.shared.design.readings @ mean.T
        for each, mean in zip((state, other), means, strict=True)
    ]
    known = int(explores.sum())
    np.testing.assert_allclose(readings[0][:known], readings[1][:known], atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("x", [0.0, np.nan, 0.5], ids=["zeros", "nan", "elsewhere"])
@pytest.mark.parametrize("agent", [0, 3])
def test_what_a_failed_agent_was_at_is_nothing_to_the_others(agent, x):
    algorithm = cepe(numbers=schedules.first(6))
    states = [stepped.init(algorithm, jr.key(1)) for _ in range(2)]
    for t in range(6):
        queries = [np.array(stepped.ask(algorithm, jr.key(t), state)[0]) for state in states]
        values = np.ones(AGENTS)
        if 0 < t < 3:
            values[agent], queries[1][agent] = np.nan, x
        told = jnp.asarray(values, float)
        states = [
            stepped.tell(algorithm, s, jnp.asarray(q), told)
            for s, q in zip(states, queries, strict=True)
        ]
    expected = np.full(AGENTS, 6)
    np.testing.assert_array_equal(states[0].clients.belief.count, expected)
    expected[agent] = 4  # was never at the points that it was sent to
    np.testing.assert_array_equal(states[1].clients.belief.count, expected)
    np.testing.assert_array_equal(states[0].shared.design.x, states[1].shared.design.x)


@pytest.mark.slow
def test_what_was_observed_elsewhere_is_neither_learned_nor_sent():
    algorithm = cepe(numbers=schedules.first(4), sketch=Sketch(1e6))
    state = stepped.init(algorithm, jr.key(1))
    for t in range(4):
        queries = np.array(stepped.ask(algorithm, jr.key(t), state)[0])
        if t == 1:
            queries[2] = POINTS.points[7]
        state = stepped.tell(algorithm, state, jnp.asarray(queries), jnp.ones(AGENTS))
    np.testing.assert_array_equal(state.clients.belief.count, [4, 4, 3, 4])
    np.testing.assert_array_equal(state.clients.observations, [4, 4, 3, 4])
    np.testing.assert_array_equal(state.clients.sketched.count, [4, 4, 3, 4])


@pytest.mark.slow
def test_what_is_observed_while_exploiting_is_not_learned():
    algorithm = cepe()
    _, trace = run(algorithm, Waves(), ROUNDS, jr.key(1))
    state = replay(algorithm, trace, jr.key(1))
    exploiting = np.flatnonzero(~schedules.explores(NUMBERS))
    assert exploiting.size > 20
    other = replay(algorithm, changed(trace, exploiting, slice(None), 7.0), jr.key(1))
    same = [
        np.array_equal(a, b)
        for a, b in zip(
            jax.tree.leaves(state.clients.belief),
            jax.tree.leaves(other.clients.belief),
            strict=True,
        )
    ]
    assert all(same)


@pytest.mark.slow
def test_with_alpha_one_others_do_not_matter_and_with_alpha_zero_all_do_the_same():
    algorithm = cepe()
    _, trace = run(algorithm, Waves(), ROUNDS, jr.key(1))
    assert not schedules.explores(NUMBERS)[-1]
    base = next_queries(algorithm, trace)
    other = next_queries(algorithm, changed(trace, slice(None), jnp.asarray([0, 1, 2]), 3.0))
    np.testing.assert_array_equal(base[3], other[3])
    assert (base[:3] != other[:3]).any(axis=1).all()
    together = cepe(alpha=0.0)
    _, trace = run(together, Waves(), ROUNDS, jr.key(1))
    assert (trace.queries == trace.queries[:, :1]).all()


def test_with_all_weight_on_one_agent_the_others_maximize_its_function():
    algorithm = cepe(alpha=[0.0, 0.0, 0.0, 1.0], weights=[0.0, 0.0, 0.0, 1.0])
    _, trace = run(algorithm, Waves(), ROUNDS, jr.key(1))
    exploit = ~schedules.explores(NUMBERS)
    queries = np.asarray(trace.queries)[exploit]
    np.testing.assert_array_equal(queries, queries[:, 3:] * np.ones((1, AGENTS, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1])
def test_a_failed_point_is_not_explored_again_and_nobody_else_notices(room):
    algorithm = cepe(initial_capacity=room)
    _, trace = run(algorithm, Waves(), 3, jr.key(1))
    assert schedules.explores(NUMBERS)[:3].all()
    failed = changed(trace, 2, 1, jnp.nan)
    state, other = replay(algorithm, trace, jr.key(1)), replay(algorithm, failed, jr.key(1))
    state, other = (eqx.tree_at(lambda s: s.round, s, jnp.asarray(0)) for s in (state, other))
    before, after = (stepped.ask(algorithm, jr.key(5), s)[0] for s in (state, other))
    assert (after[1] != trace.queries[2, 1]).any()
    others = slice(None) if room == 0 else jnp.asarray([0, 2, 3])  # the design is common, or not
    np.testing.assert_array_equal(before[others], after[others])


@pytest.mark.parametrize("room", [0, 1])
def test_a_place_where_evaluations_fail_is_not_exploited(room):
    # The best of the agent's own function is where x0 > 0.7, and there it fails.
    slope = Waves(noise=0.0, slope=True)
    _, trace = run(cepe(alpha=1.0, initial_capacity=room), slope, ROUNDS, jr.key(1))
    exploits = ~schedules.explores(NUMBERS)
    failed = np.isnan(trace.values[exploits, 1])
    assert failed.mean() < 0.2
    assert trace.queries[exploits, 1, 0].max() > 0.6
    assert (trace.queries[exploits, 0, 0] > 0.9).mean() > 0.5  # where nothing failed


def test_an_agent_that_never_answers_is_unknown_to_the_others():
    for room in (0, 1):
        algorithm = cepe(initial_capacity=room)
        state, trace = run(algorithm, Waves(silent=2), ROUNDS, jr.key(1))
        explores = schedules.explores(NUMBERS)
        # It goes where it is sent, and each place once.
        assert len(np.unique(trace.queries[explores, 2], axis=0)) == explores.sum()
        assert state.clients.belief.count[2] == (0 if room else explores.sum())
        np.testing.assert_array_equal(messages(algorithm, state)[2], 0)
        kernels = [SquaredExponential(0.25)] * AGENTS
        weights = np.full(AGENTS, 1 / AGENTS)
        points = np.asarray(POINTS.points)
        args = trace, kernels, np.asarray(ALPHA), weights, explores, points
        assert_maximized(trace, algorithm1(*args, own=bool(room)), 3e-4)


@pytest.mark.slow
def test_seeds_and_settings_are_mapped_over():
    some, objective = cepe(), Waves()

    def queries(alpha, key):
        algorithm = eqx.tree_at(lambda a: a.alpha, some, jnp.full(AGENTS, alpha))
        return run(algorithm, objective, ROUNDS, key)[1].queries

    keys = jr.split(jr.key(2), 3)
    alphas = jnp.asarray([0.0, 0.5, 1.0])
    together = jax.jit(jax.vmap(queries))(alphas, keys)
    for i in range(3):
        alone = queries(alphas[i], keys[i])
        assert (together[i] == alone).mean() > 0.9  # rounding may decide between two points


# ---------------------------------------------------------------- what is sent


def test_what_is_sent_is_counted():
    _, trace = run(cepe(), Waves(), ROUNDS, jr.key(1))
    explores = schedules.explores(NUMBERS)
    sent = np.concatenate([[False], explores[:-1]])  # before the query that follows
    np.testing.assert_array_equal(trace.info.scalars, 3 * sent[:, None] * np.ones(AGENTS, int))
    np.testing.assert_array_equal(
        trace.info.bytes, trace.info.scalars * trace.queries.dtype.itemsize
    )


@pytest.mark.slow
def test_fewer_observations_than_rows_need_no_room():
    algorithm = cepe(initial_capacity=2)
    queries = jnp.asarray(np.tile(np.asarray(POINTS.points)[:5, None], (1, AGENTS, 1)))
    values = np.full((5, AGENTS), np.nan)
    values[1:3] = values[0, 0] = 1.0
    values[1, 0] = np.nan
    start = stepped.init(algorithm, jr.key(1))
    state = stepped.warm_start(algorithm, start, queries, jnp.asarray(values, float))
    np.testing.assert_array_equal(state.clients.belief.count, 2)
    values[4, 1] = 0.0
    with pytest.raises(ValueError, match="room for 2"):
        algorithm.warm_start(start, queries, jnp.asarray(values, float))


def test_failures_are_not_sent_and_what_was_known_before_is():
    everybody = jnp.asarray(np.ones((ROUNDS, AGENTS), bool))
    options = {"initial": 3, "present": everybody}
    _, trace = run(cepe(initial_capacity=3), Waves(0.3), ROUNDS, jr.key(1), **options)
    fine = np.isfinite(trace.values)
    explores = schedules.explores(NUMBERS)
    expected = fine[:3].sum(0) + (fine[3:-1] & explores[:-1, None]).sum(0)
    np.testing.assert_array_equal(trace.info.scalars.sum(0), 3 * expected)


# ---------------------------------------------------------------- S-CEPE

EXPLORED = 12
#: Some rounds more than any agent takes to send its inducing points.
LONG = 2 * EXPLORED + 3


def sketching(q0, domain=POINTS, exact=False, **options):
    return cepe(domain, schedules.first(EXPLORED), sketch=Sketch(q0, exact), **options)


@pytest.mark.slow
@pytest.mark.float64
def test_with_every_point_inducing_s_cepe_is_cepe(x64):
    # With kernels of their own, agents know nothing of points that failed.
    kernels = stack([SquaredExponential(0.25)] * AGENTS, 2)
    whole, algorithm = cepe(numbers=schedules.first(EXPLORED), kernel=kernels), sketching(1e6)
    state, trace = run(algorithm, Waves(0.1), LONG, jr.key(1))
    count = np.isfinite(trace.values[:EXPLORED]).sum(0)
    np.testing.assert_array_equal(state.clients.sketched.count, count)
    np.testing.assert_array_equal(trace.info.scalars.sum(0), 3 * count)
    means = map(messages, (algorithm, whole), (state, replay(whole, trace, jr.key(1))))
    np.testing.assert_allclose(*means, atol=1e-9 if x64 else 1e-3)


@pytest.mark.slow
def test_inducing_points_are_sent_one_a_round_while_agents_follow_their_own_mean():
    algorithm = sketching(60.0)
    state, trace = run(algorithm, Waves(), LONG, jr.key(1))
    count = np.asarray(state.clients.sketched.count)
    assert (count > 0).all()
    assert len(set(count.tolist())) > 1
    assert count.max() < EXPLORED
    since = np.arange(LONG)[:, None] - EXPLORED
    np.testing.assert_array_equal(trace.info.scalars, 3 * ((since >= 0) & (since < count)))
    alone = cepe(numbers=schedules.first(EXPLORED), alpha=1.0)
    own = stepped.ask(alone, jr.key(5), replay(alone, trace, jr.key(1)))[0]
    sending = np.asarray(trace.queries[EXPLORED : EXPLORED + count.max()])
    np.testing.assert_array_equal(sending, np.asarray(own)[None] * np.ones((count.max(), 1, 1)))
    assert (trace.queries[-1] != own).any()


at_points = jax.jit(lambda mean: jax.vmap(mean)(POINTS.points))


@pytest.mark.float64
def test_the_sketch_is_the_dense_formula_of_its_inducing_points(x64):
    # The design is what all were at, wherever that is.
    rng = np.random.default_rng(1)
    queries = np.tile(rng.random((EXPLORED, 1, 2)), (1, AGENTS, 1))
    values = rng.normal(size=(EXPLORED, AGENTS))
    trace = Trace(jnp.asarray(queries, float), jnp.asarray(values, float), (), 0)
    state = replay(sketching(60.0, Cube(2)), trace, jr.key(1))
    points = np.asarray(POINTS.points, float)
    kernel = SquaredExponential(0.25)
    for j in range(AGENTS):
        mean = jax.tree.map(lambda leaf, j=j: leaf[j], state.clients.sketched.mean)
        used = np.asarray(mean.weights) != 0
        z, x = np.asarray(mean.x)[used], np.asarray(trace.queries)[:, j]
        assert 0 < used.sum() == state.clients.sketched.count[j]
        Kzx, kz = covariance(kernel, z, x), covariance(kernel, z, points)
        y = np.asarray(trace.values, float)[:, j]
        inner = NOISE * covariance(kernel, z, z) + Kzx @ Kzx.T
        expected = kz.T @ np.linalg.solve(inner, Kzx @ y)
        got = at_points(mean)
        np.testing.assert_allclose(got, expected, atol=1e-9 if x64 else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "select", [nystrom.greedy, pytest.param(nystrom.random, marks=pytest.mark.full)]
)
def test_a_pivoted_sketch_has_its_number_of_points_and_more_are_better(select):
    kernel, points, explored = SquaredExponential(0.25), np.asarray(POINTS.points), EXPLORED
    whole = cepe(numbers=schedules.first(explored))
    few, many = (
        cepe(numbers=schedules.first(explored), sketch=Pivoted(count, select)) for count in (4, 9)
    )
    errors = []
    for seed in range(20):
        _, trace = run(whole, Waves(), explored, jr.key(seed))
        x, y = np.asarray(trace.queries, float), np.asarray(trace.values, float)
        exact = [posterior(kernel, x[:, j], y[:, j], points)[0] for j in range(AGENTS)]
        states = [replay(algorithm, trace, jr.key(seed)) for algorithm in (few, many)]
        np.testing.assert_array_equal(states[0].clients.sketched.count, 4)
        np.testing.assert_array_equal(states[1].clients.sketched.count, 9)
        means = [messages(*each) for each in zip((few, many), states, strict=True)]
        errors.append([np.mean((np.asarray(mean) - exact) ** 2) for mean in means])
    of_few, of_many = np.mean(errors, axis=0)
    assert of_many < 0.4 * of_few


@pytest.mark.slow
def test_a_pivoted_sketch_of_everything_leaves_out_what_failed():
    _, trace = run(cepe(numbers=schedules.first(EXPLORED)), Waves(0.3), EXPLORED, jr.key(1))
    algorithm = cepe(numbers=schedules.first(EXPLORED), sketch=Pivoted(EXPLORED))
    state = replay(algorithm, trace, jr.key(1))
    fine = np.isfinite(trace.values).sum(0)
    assert fine.min() < EXPLORED
    np.testing.assert_array_equal(state.clients.sketched.count, fine)


@pytest.mark.slow
def test_inducing_points_are_drawn_in_proportion_to_the_posterior_variance():
    q0, keys = 60.0, jr.split(jr.key(4), 100)
    algorithm = sketching(q0)

    def one(key):
        state, trace = run(algorithm, Waves(), LONG, key)
        return state.clients.sketched.count, trace.queries[:EXPLORED, 0]

    counts, queries = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    kernel = SquaredExponential(0.25)
    expected = []
    for x in np.asarray(queries):
        _, variance = posterior(kernel, x, np.zeros(len(x)), x)
        expected.append(np.minimum(q0 * variance, 1).sum())
    deviation = np.asarray(counts).std() / np.sqrt(counts.size)
    assert abs(np.mean(counts) - np.mean(expected)) < 4 * deviation


@pytest.mark.slow
def test_an_empty_inducing_set_is_an_unknown_function():
    algorithm = sketching(1e-9, exact=True)
    state, trace = run(algorithm, Waves(), LONG, jr.key(1))
    np.testing.assert_array_equal(state.clients.sketched.count, 0)
    assert trace.info.scalars.sum() == 0
    # Nothing is sent, so each follows what it knows itself: but with alpha 0, who knows nothing.
    alone = cepe(numbers=schedules.first(EXPLORED), alpha=1.0)
    own = stepped.ask(alone, jr.key(5), replay(alone, trace, jr.key(1)))[0]
    np.testing.assert_array_equal(trace.queries[-1, 1:], own[1:])
    assert jax.vmap(POINTS.contains)(trace.queries[-1]).all()
    papers = sketching(1e-9)
    _, trace = run(papers, Waves(), LONG, jr.key(1))
    assert jax.vmap(POINTS.contains)(trace.queries[-1]).all()


# ---------------------------------------------------------------- as any other method


def rival():
    return Collaborative(POINTS, AGENTS, IGPUCB(), alpha=ALPHA, size=40)


@pytest.mark.slow
@pytest.mark.bitwise
@pytest.mark.parametrize(
    ("make", "initial"),
    [
        pytest.param(cepe, 0, marks=pytest.mark.full),
        pytest.param(lambda: sketching(60.0), 0, marks=pytest.mark.full),
        pytest.param(lambda: sketching(60.0, initial_capacity=2), 2, marks=pytest.mark.full),
        pytest.param(lambda: cepe(Cube(2), candidates=100), 0, marks=pytest.mark.full),
        pytest.param(rival, 2, marks=pytest.mark.full),
        pytest.param(
            lambda: cepe(start=START, lessons=5, stays=Stays(every=2, distance=0.3)),
            0,
            marks=pytest.mark.slow,
        ),
        (lambda: sketching(60.0, initial_capacity=2, start=START, lessons=5), 2),
    ],
    ids=[
        "CEPE",
        "S-CEPE",
        "S-CEPE with room",
        "CEPE on a cube",
        "IGP-UCB",
        "beyond the paper",
        "S-CEPE with room and lessons",
    ],
)
def test_run_drive_and_replay_agree_bit_for_bit(make, initial, tmp_path):
    algorithm, rounds = make(), EXPLORED + 6
    with jax.debug_key_reuse(True):
        state, trace = run(algorithm, Rounded(0.2), rounds, jr.key(1), initial=initial)
    file = tmp_path / "run.npz"
    options = {"key": jr.key(1), "initial": initial, "progress": False}
    go = functools.partial(drive, algorithm, Rounded(0.2), **options)
    go(rounds=9, checkpoint=file)
    driven, same = go(rounds=rounds, checkpoint=file)  # goes on
    again = replay(algorithm, trace, jr.key(1))
    np.testing.assert_array_equal(trace.queries, same.queries)
    np.testing.assert_array_equal(trace.values, same.values)
    for other in (driven, again):
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True)
        assert all(data(a) == data(b) for a, b in pairs)


class Rounded(Waves):
    """Compilers may round the objective itself otherwise in `run` than in `drive`."""

    def __call__(self, key, agent, x):
        return jnp.round(super().__call__(key, agent, x) * 1024) / 1024


def data(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    return np.asarray(leaf).tobytes()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.1}, "alpha"),
        ({"alpha": [0.5, 0.5, 0.5, -0.1]}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": [0.5, 0.5]}, "alpha"),
        ({"numbers": [3.0, 2.0, 1.0]}, "decrease"),
        ({"numbers": [0.0, 0.0]}, "no round of exploration"),
        ({"numbers": [1.0, float("nan")]}, "finite"),
        ({"numbers": []}, "N_t for every round"),
        ({"weights": [0.5, 0.5, 0.5, -0.5]}, "weights"),
        ({"weights": [1.0]}, "weights"),
        ({"sketch": Sketch(1.0)}, "exploration comes first"),
        ({"initial_capacity": -1}, "initial_capacity"),
        ({"lessons": -1}, "lessons"),
        ({"start": [0.5]}, "start must be a point of 2 coordinates"),
        ({"stays": Stays(), "numbers": [1.0, 2.0], "sketch": Sketch(1.0)}, "cannot stop early"),
        ({"kernel": stack([Matern32(0.1), Matern32(0.2)], 2)}, "4 agents"),
    ],
)
def test_bad_input_is_one_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        cepe(**options)


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"distance": -1.0}, {"share": 0.0}, {"share": 1.1}]
)
def test_a_rule_of_impossible_numbers_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Stays(**wrong)


def test_a_sketch_needs_a_positive_q0():
    with pytest.raises(ValueError, match="q0"):
        Sketch(0.0)


@pytest.mark.slow
def test_observations_before_the_start_need_room():
    with pytest.raises(ValueError, match="room"):
        run(cepe(), Waves(), 3, jr.key(0), initial=1)
    algorithm = cepe()
    state = stepped.init(algorithm, jr.key(0))
    with pytest.raises(ValueError, match="room"):
        algorithm.warm_start(state, jnp.zeros((1, AGENTS, 2)), jnp.zeros((1, AGENTS)))
