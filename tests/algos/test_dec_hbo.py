"""DEC-HBO: that its queries maximize what they should, on any structure, for one worker and for many."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos import dec_hbo
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.domains.base import Cube, Regions
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.policy import FactorSample, MaxValueEntropy, UpperBound, gumbel
from jaxbo.kernels.additive.structure import RandomTree, Sampled
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.schedules import Confidence

DIM = 4
PAIRS = tuple(itertools.combinations(range(DIM), 2))
SPACE = Space(
    rate=Real(0, 1), depth=Integer(1, 3), act=Categorical("a", "b", "c"), other=Real(0, 1)
)
DOMAINS = {"cube": Cube(DIM), "space": SPACE}
MIXED = ((0,), (1, 2), (3, 0, 1))
UNSORTED = ((3, 0, 1), (2,), (3, 2), (1,), (0, 2))
LATE = Regions((2, 2, 1, 1))
MODELS = {
    "mixed": (Cube(DIM), Decomposed(MIXED, 31, grid=5)),
    "regions": (Cube(DIM), Decomposed(PAIRS, 31, grid=4, regions=LATE)),
    "two trees": (Cube(DIM), Decomposed(Sampled(steps=50, count=2), 31, grid=8)),
    "plain": (Cube(DIM), Decomposed(PAIRS, 31, grid=5)),
    "wide": (Cube(DIM), Decomposed(PAIRS, 31, grid=18)),  # too wide for elimination
    "boxes": (Cube(DIM), Decomposed(PAIRS, 31, grid=5, regions=Regions((2, 1, 2, 1)), zoom=0.2)),
    "space": (SPACE, Decomposed(PAIRS, 31, grid=5, zoom=0.3)),
    "mixed space": (SPACE, Decomposed(UNSORTED, 31, grid=5, zoom=0.3)),
    "fine": (Cube(DIM), Decomposed(PAIRS, 31, grid=12)),
    "fine space": (SPACE, Decomposed(PAIRS, 31, grid=12)),
    "random tree": (Cube(DIM), Decomposed(RandomTree(), 31, grid=12)),
    "random tree 5": (Cube(DIM), Decomposed(RandomTree(), 31, grid=5)),
    "learned": (SPACE, Decomposed(Sampled(steps=20, count=2), 31, grid=12)),
}
SCOPES = {"plain": PAIRS, "boxes": PAIRS, "mixed space": UNSORTED}
POLICIES = {
    "upper bound": UpperBound(),
    "upper bound of the paper": UpperBound(joint=False),
    "sample": FactorSample(),
    "entropy": MaxValueEntropy(),
    "entropy, paths": MaxValueEntropy(paths=True, samples=3),
}


@functools.cache
def observed(model):
    """Domain, model and a state after 30 observations of a sum of two functions of two variables."""
    domain, surrogate = MODELS[model]
    X = domain.sample(jr.key(1), 30)[:, None, :]
    y = jnp.sin(5 * X[..., 0] * X[..., 2]) + jnp.cos(4 * (X[..., 1] - X[..., -1]))
    return domain, surrogate, told(DECHBO(domain, surrogate), X, y)


@eqx.filter_jit
def told(algorithm, X, y):
    """The state of a run that begins with these observations."""
    return algorithm.warm_start(algorithm.init(jr.key(0)), X, y)


def objective(algorithm, state, key):
    """What `ask` maximizes for the first worker."""
    prepare_key, query_key = jr.split(key)
    candidates = algorithm.prepare(prepare_key)
    arguments = algorithm.surrogate, state.shared, state.belief, candidates
    return algorithm.policy(jr.fold_in(query_key, 0), *arguments)


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        ("fine", "upper bound"),
        ("fine", "entropy"),
        ("fine space", "upper bound"),
        ("random tree", "upper bound of the paper"),
        ("learned", "sample"),
    ],
)
def test_a_query_maximizes_what_the_policy_says(model, policy, key):
    domain, surrogate, state = observed(model)
    algorithm = DECHBO(domain, surrogate, POLICIES[policy])

    @jax.jit
    def asked(key):
        queries, _ = algorithm.ask(key, state)
        points = jnp.concatenate([queries, domain.sample(key, 1000)])
        values = jax.vmap(objective(algorithm, state, key).function)(points)
        return queries[0], values[0], jnp.max(values[1:])

    query, value, others = asked(key)
    assert domain.contains(query)
    assert value >= others - 1e-2


def packed(objective):
    """Its tables, the mean over chains, by group and for every kind and box."""
    return [t.reshape(*t.shape[:2], -1, *t.shape[4:]) / t.shape[2] for t in objective.tables]


def everywhere(grid, scopes, tables):
    """The sum of tables at every point of the grid of the domain's variables."""
    variables = tuple(range(DIM))
    total = jnp.zeros((grid,) * DIM)
    for group, stacked in zip(scopes, tables, strict=True):
        for scope, table in zip(group, stacked, strict=True):
            for axis in reversed(np.flatnonzero(scope >= DIM)):  # on which nothing depends
                table, scope = table.take(0, axis), np.delete(scope, axis)
            shape = [grid if v in scope else 1 for v in variables]
            total = total + jnp.transpose(table, np.argsort(scope)).reshape(shape)
    return total


@pytest.mark.parametrize("policy", ["upper bound", "upper bound of the paper", "sample"])
@pytest.mark.parametrize(
    "model", ["mixed", "space", "regions", "wide", "two trees", "random tree 5"]
)
def test_the_search_finds_the_best_point_of_all_grids(model, policy, key):
    """Without steps from there, and with one point beside: what the search says is what is asked."""
    domain, surrogate, state = observed(model)
    alone = {"candidates": 1, "steps": 0}
    algorithm = DECHBO(domain, surrogate, POLICIES[policy], **alone)
    owners = domain.axes(surrogate.grid).owners
    graph = algorithm._graph(state, state.belief)
    scopes = [np.asarray(group.variables) for group in graph.groups]

    @jax.jit
    def asked(key):
        """The values of the query, of the best point of each grid, and of where else it could begin."""
        query = algorithm.ask(key, state)[0][0]
        found = objective(algorithm, state, key)
        best = []
        for tables in zip(*packed(found), strict=True):  # of each kind
            for *box, points in zip(*tables, state.belief.points[0], strict=True):
                total = everywhere(surrogate.grid, scopes, box)
                at = jnp.stack(jnp.unravel_index(jnp.argmax(total), total.shape))
                best.append(domain.project(points[np.arange(len(owners)), at[owners]]))
        one = algorithm.prepare(jr.split(key)[0])
        others = [*one, domain.project(state.belief.incumbent())]
        values = jax.vmap(found.function)(jnp.stack([query, *best, *others]))
        return values[0], jnp.max(values[1 : 1 + len(best)]), jnp.max(values[1 + len(best) :])

    gained = []
    for k in jr.split(key, 3):
        value, best, others = asked(k)
        assert value >= best - 1e-4 * (1 + abs(best))
        gained.append(best > others + 1e-3)
    assert np.any(gained)  # or any search would do


def test_points_one_after_another_are_as_good_as_side_by_side(key, monkeypatch):
    domain, surrogate, state = observed("fine")
    algorithm = DECHBO(domain, surrogate)
    queries = []
    for most in (dec_hbo.ALONE, 0):
        monkeypatch.setattr(dec_hbo, "ALONE", most)
        query = lambda k: algorithm.ask(k, state)[0][0]  # noqa: E731
        queries.append(jax.jit(query)(key))
    value = lambda queries: jax.vmap(objective(algorithm, state, key).function)(queries)  # noqa: E731
    values = jax.jit(value)(jnp.stack(queries))
    np.testing.assert_allclose(values[0], values[1], atol=1e-3)


def test_the_best_point_can_be_in_the_last_region():
    domain, surrogate = MODELS["regions"]
    algorithm = DECHBO(domain, surrogate, UpperBound(0.0), candidates=1, steps=0)
    X = domain.sample(jr.key(2), 30)[:, None, :]
    y = -jnp.sum((X - 0.9) ** 2, axis=2)  # of which the last region has the most
    query = eqx.filter_jit(algorithm.ask)(jr.key(1), told(algorithm, X, y))[0][0]
    assert LATE.assign(query) == LATE.count - 1
    assert jnp.sum((query - 0.9) ** 2) < jnp.min(jnp.sum((X - 0.9) ** 2, axis=2))


def test_finer_grids_are_around_the_best_point_so_far():
    """Found without steps, where one grid leaves a fourth of an axis between points."""
    domain, surrogate, state = observed("plain")
    policy, values = POLICIES["upper bound of the paper"], []
    climbed = DECHBO(domain, surrogate, policy, candidates=50)
    function = jax.jit(lambda x: objective(climbed, state, jr.key(1)).function(x))
    for finer in ((), (0.3,), (0.3, 0.1, 0.02)):
        algorithm = DECHBO(domain, surrogate, policy, candidates=50, steps=0, finer=finer)
        query, info = eqx.filter_jit(algorithm.ask)(jr.key(1), state)
        assert domain.contains(query[0])
        assert info.gap.shape == info.exact.shape == (1, 1, 1 + len(finer))
        values.append(function(query[0]))
    most = function(eqx.filter_jit(climbed.ask)(jr.key(1), state)[0][0])
    assert values[0] < values[1] < values[2]
    np.testing.assert_allclose(values[2], most, atol=0.1 * float(most - values[0]))


@pytest.mark.parametrize("policy", POLICIES)
def test_queries_are_points_of_the_domain_before_anything_is_known(policy):
    space = Space(act=Categorical("a", "b", "c"), other=Categorical("x", "y"))
    algorithm = DECHBO(space, Decomposed([(0, 1)], 5, grid=4), POLICIES[policy])
    keys = jr.split(jr.key(1), 64)

    @jax.jit
    def asked(keys):
        state = algorithm.init(jr.key(0))
        return jax.vmap(lambda k: algorithm.ask(k, state)[0][0])(keys)

    queries = asked(keys)
    assert jax.vmap(space.contains)(queries).all()


def test_a_variable_of_no_factor_does_not_matter(key):
    algorithm = DECHBO(Cube(3), Decomposed([(0, 2)], 20, grid=6))
    X = jr.uniform(key, (15, 1, 3))
    state = told(algorithm, X, -((X[..., 0] - X[..., 2]) ** 2))
    query = eqx.filter_jit(algorithm.ask)(key, state)[0][0]
    assert Cube(3).contains(query)
    predict = jax.jit(lambda x: algorithm.surrogate.predict(state.shared, state.belief, x))
    a, b = (predict(query.at[1].set(value)) for value in (0.1, 0.8))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["plain", "boxes", "mixed space"])
def test_on_its_grids_the_objective_is_the_sum_of_its_tables(model, policy, key):
    domain, surrogate, state = observed(model)
    algorithm = DECHBO(domain, surrogate, POLICIES[policy])
    owners = domain.axes(5).owners
    at = np.array([3, 0, 4, 1])
    points = state.belief.points[0][:, jnp.arange(len(owners)), at[owners]]

    @jax.jit
    def both(key):
        found = objective(algorithm, state, key)
        joint = policy == "upper bound"  # whose tables add up to two other bounds
        values = bounds(algorithm, state, key) if joint else found.function
        values = jax.vmap(values)(points)
        return packed(found), values.T if joint else values[None]

    def bounds(algorithm, state, key):
        surrogate, policy = algorithm.surrogate, algorithm.policy
        candidates = algorithm.prepare(jr.split(key)[0])
        upper = objective(algorithm, state, key).function
        best = candidates[jnp.argmax(jax.vmap(upper)(candidates))]
        _, variance = surrogate.standardized(state.shared, state.belief, best)
        root, s = jnp.sqrt(policy.beta), jnp.sqrt(variance[0])

        def both(x):
            mean, variance = (part[0] for part in surrogate.parts(state.belief, x))
            widths = jnp.stack([jnp.sqrt(variance), variance / (2 * s)])
            return jnp.sum(mean[None] + root * widths, axis=1)

        return both

    tables, values = both(key)
    # By the number of their variables, and of each those that were given.
    scopes = sorted(map(sorted, SCOPES[model]), key=len)
    groups = [np.array(list(same)) for _, same in itertools.groupby(scopes, len)]
    total = np.zeros(values.shape)
    for group, table in zip(groups, tables, strict=True):
        assert table.shape[:3] == (*values.shape, len(group))
        for i, scope in enumerate(group):
            total += table[(slice(None), slice(None), i, *at[scope])]
    np.testing.assert_allclose(total, values, rtol=5e-3, atol=5e-3)


def test_every_value_of_a_parameter_is_on_the_grid():
    axes = SPACE.axes(5)
    np.testing.assert_array_equal(axes.columns, [[0, -1, -1], [1, -1, -1], [2, 3, 4], [5, -1, -1]])
    np.testing.assert_array_equal(axes.owners, [0, 1, 2, 2, 2, 3])
    points = [SPACE.decode(p) for p in np.asarray(axes.points).T]
    assert {p["depth"] for p in points} == {1, 2, 3}
    assert {p["act"] for p in points} == {"a", "b", "c"}
    assert [p["rate"] for p in points] == [0, 0.25, 0.5, 0.75, 1]
    assert all(SPACE.contains(p) for p in axes.points.T)
    with pytest.raises(ValueError, match="'act': 3 choices are more than a grid of 2"):
        SPACE.axes(2)


def test_variables_of_a_space_are_its_parameters():
    with pytest.raises(ValueError, match=r"variables \[4\], but there are 4"):
        DECHBO(SPACE, Decomposed([(0, 4)], 31)).init(jr.key(0))


def test_regions_have_grids_of_their_own_and_a_zoom_follows_the_best_point():
    _, surrogate, state = observed("boxes")
    corners = surrogate.regions.lower, surrogate.regions.upper
    *regions, near = state.belief.points[0]
    for box, lower, upper in zip(regions, *corners, strict=True):
        np.testing.assert_allclose(box, np.linspace(lower, upper, 5).T)
    np.testing.assert_allclose(near[:, -1] - near[:, 0], 0.2, rtol=1e-5)
    middle = jnp.clip(state.belief.incumbent(), 0.1, 0.9)
    np.testing.assert_allclose(near[:, 2], middle, atol=1e-6)


def test_bounds_may_grow_as_the_theorem_says(key):
    schedule = Confidence(6 * 12**2, 0.1)
    fixed = float(schedule(jnp.asarray(31)))
    np.testing.assert_allclose(fixed, 2 * np.log(6 * 144 * np.pi**2 * 31**2 / 6 / 0.1), rtol=1e-6)
    domain, surrogate, state = observed("fine")  # of 30 points
    asked = [
        eqx.filter_jit(DECHBO(domain, surrogate, UpperBound(beta)).ask)(key, state)[0]
        for beta in (schedule, fixed)
    ]
    np.testing.assert_allclose(*asked, atol=1e-3)


def test_samples_have_the_mean_and_the_variance_of_the_belief(key):
    _, surrogate, state = observed("plain")
    x = jnp.array([0.3, 0.8, 0.1, 0.6])
    keys = jr.split(key, 2000)
    draw = lambda k: surrogate.sample(k, state.shared, state.belief)(x)  # noqa: E731
    values = np.asarray(jax.jit(lambda keys: jax.lax.map(draw, keys, batch_size=100))(keys))
    mean, variance = surrogate.standardized(state.shared, state.belief, x)
    np.testing.assert_allclose(
        values.mean(), mean[0], atol=5 * float(variance[0] / 2000) ** 0.5 + 1e-3
    )
    np.testing.assert_allclose(values.var(), variance[0], rtol=0.2)


def test_the_largest_of_independent_normals_has_the_quartiles_of_its_gumbel(key):
    mean = jr.normal(key, (50,))
    variance = jnp.full((50,), 0.25)
    drawn = np.asarray(jax.jit(lambda k: gumbel(k, mean, variance, 4000))(jr.key(1)))
    normals = np.asarray(mean[None] + 0.5 * jr.normal(jr.key(2), (20_000, 50))).max(axis=1)
    quartiles = [0.25, 0.5, 0.75]
    np.testing.assert_allclose(
        np.quantile(drawn, quartiles), np.quantile(normals, quartiles), atol=0.05
    )


def test_one_factor_of_all_variables_is_a_plain_process(key):
    form = SquaredExponential(0.4)
    surrogate = Decomposed([range(2)], 12, form=form, grid=4, every=None)
    plain = Fitted(12, form, noise=surrogate.noise, every=None, inference=Exact())
    X, y = jr.uniform(key, (10, 2)), jr.normal(key, (10,))

    @eqx.filter_jit
    def predicted(model, x):
        shared = model.setup(jr.key(0), 2)

        def step(belief, observation):
            return model.condition(shared, belief, *observation), None

        belief = jax.lax.scan(step, model.start(shared), (X, y))[0]
        return model.predict(shared, belief, x)

    for x in jr.uniform(jr.key(1), (3, 2)):
        both = predicted(surrogate, x), predicted(plain, x)
        # A variance is what is left of 1, so it has the rounding errors of 1.
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-6)


def test_points_that_repeat_others_are_one():
    mean, variance = jnp.array([0.3, 0.1, 0.1, 0.1]), jnp.full((4,), 0.25)
    distinct = jnp.array([True, True, False, False])
    few = gumbel(jr.key(1), mean[:2], variance[:2], 100)
    np.testing.assert_allclose(gumbel(jr.key(1), mean, variance, 100, distinct), few, rtol=1e-5)
    assert jnp.mean(gumbel(jr.key(1), mean, variance, 100)) > jnp.mean(few) + 0.1


def test_one_finer_grid_is_a_number():
    surrogate = Decomposed([[0], [1]], 12)
    assert DECHBO(Cube(2), surrogate, finer=0.3).finer == (0.3,)
    with pytest.raises(ValueError, match="finer grids have a share of every axis"):
        DECHBO(Cube(2), surrogate, finer=1.0)


def test_a_negative_beta_is_refused():
    with pytest.raises(ValueError, match="beta must be at least 0"):
        UpperBound(-1.0)


def test_workers_ask_different_queries(key):
    algorithm = DECHBO(Cube(DIM), Decomposed(PAIRS, 40, grid=8), workers=3)
    X = jr.uniform(key, (8, 3, DIM))
    y = jnp.sin(5 * X[..., 0] * X[..., 2])
    state = told(algorithm, X, y)
    queries, _ = eqx.filter_jit(algorithm.ask)(key, state)
    distances = jnp.linalg.norm(queries[:, None] - queries[None, :], axis=2)
    assert (distances[np.triu_indices(3, 1)] > 1e-3).all()


@pytest.mark.parametrize(
    ("model", "kinds", "boxes"),
    [("plain", 2, 1), ("boxes", 2, 5), ("random tree", 2, 1), ("wide", 2, 1), ("two trees", 2, 1)],
)
def test_a_query_says_how_far_the_search_can_have_missed(model, kinds, boxes, key):
    domain, surrogate, state = observed(model)
    algorithm = DECHBO(domain, surrogate, workers=2)
    _, info = eqx.filter_jit(algorithm.ask)(key, state)
    assert info.gap.shape == info.exact.shape == (2, kinds, boxes)
    assert (info.gap >= 0).all()
    # Four variables are narrow on few points, which is not known where the graph is data, but for trees.
    messages = model in ("two trees", "wide")
    assert (info.exact != messages).all()
    assert (info.gap[info.exact] == 0).all()
    # Of one worker, whose gap is between how far each sum goes and nothing.
    (tables,) = jax.jit(lambda key: packed(objective(algorithm, state, key)))(key)
    widest = jnp.sum(jnp.ptp(tables, axis=(3, 4)), axis=2)
    assert (info.gap[0] < widest).all()


def test_agents_with_objectives_of_their_own_are_one_program(key):
    algorithm = DECHBO(Cube(2), Decomposed([[0], [1]], 12, grid=16, every=5))

    def best(shift, key):
        function = lambda x: -jnp.sum((x - shift) ** 2)  # noqa: E731
        state = algorithm.init(key)

        def round(carry, key):
            state, best = carry
            query, _ = algorithm.ask(key, state)
            value = jax.vmap(function)(query)
            return (algorithm.tell(state, query, value), jnp.maximum(best, value[0])), None

        start = (state, jnp.asarray(-jnp.inf))
        return jax.lax.scan(round, start, jr.split(key, 12))[0][1]

    shifts = jnp.array([0.2, 0.5, 0.9])
    values = jax.jit(jax.vmap(best))(shifts, jr.split(key, 3))
    assert (values > -3e-3).all()  # twelve random points come to -0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates"),
        ({"iterations": 0}, "iterations"),
        ({"finer": (0.5, 1.0)}, "finer grids have a share of every axis"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DECHBO(**{"domain": Cube(2), "surrogate": Decomposed([[0, 1]], 5), **options})
