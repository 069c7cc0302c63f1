"""Models that are sums: factors, structures by their evidence, grids and boxes."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Regions
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.additive import decomposed, structure
from jaxbo.kernels.additive.chain import sample
from jaxbo.kernels.additive.chain import shared as shared_by
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential

DIM, GRID = 4, 5
SCOPES = ((0, 1), (2,), (1, 2, 3))
SPACE = Space(a=Real(0, 1), act=Categorical("x", "y", "z"), b=Real(0, 1), depth=Integer(1, 3))


@eqx.filter_jit
def believed(surrogate, X, y, fits=False):
    shared = surrogate.setup(jr.key(0), X.shape[1])

    def step(belief, observation):
        return surrogate.condition(shared, belief, *observation), None

    belief = jax.lax.scan(step, surrogate.start(shared), (X, y))[0]
    return surrogate.refit(shared, belief) if fits else belief


def waves(X):
    return jnp.asarray(np.sin(4 * np.asarray(X).sum(axis=1)), float)


@pytest.mark.slow
def test_the_factors_of_a_belief_add_up_to_its_mean(key):
    X = jr.uniform(key, (10, DIM))
    y = 100 + 7 * waves(X)
    surrogate, at = Decomposed(SCOPES, 12, grid=GRID), np.array([2, 0, 4, 1])
    grids = eqx.filter_jit(lambda surrogate, belief: surrogate.grids(belief))

    @eqx.filter_jit
    def at_a_point(surrogate, belief, x):
        standardized = surrogate.standardized(surrogate.setup(jr.key(0), DIM), belief, x)
        return standardized, surrogate.parts(belief, x)

    for fits in (False, True):
        belief = believed(surrogate, X, y, fits)
        x = jnp.linspace(0, 1, GRID)[at]
        _, mean, variance = grids(surrogate, belief)
        of_one, of_two, of_three = (0, 0, 0, 4), (0, 0, 0, 2, 0), (0, 0, 0, 0, 4, 1)
        places = list(zip(mean, variance, (of_one, of_two, of_three), strict=True))
        places = [(np.asarray(m), np.asarray(v), place) for m, v, place in places]
        total = sum(table[place] for table, _, place in places)
        (expected, joint), (means, variances) = at_a_point(surrogate, belief, x)
        np.testing.assert_allclose(total, expected[0], atol=2e-3)
        assert all((np.asarray(table) >= 0).all() for table in variance)
        # Point by point they are what the grids say, the factors in the order of their groups.
        np.testing.assert_allclose(means[0], [m[place] for m, _, place in places], atol=2e-3)
        np.testing.assert_allclose(variances[0], [v[place] for _, v, place in places], atol=1e-3)
        most = sum(np.sqrt(table[place]) for _, table, place in places)
        assert np.sqrt(joint[0]) <= most + 1e-3  # the sum of deviations bounds that of the sum


def test_a_failed_evaluation_leaves_no_mark_on_tables(key):
    surrogate = Decomposed(SCOPES, 12, grid=GRID)
    X = jr.uniform(key, (6, DIM))
    y = jnp.arange(6.0)
    before = believed(surrogate, X[:5], y[:5])
    shared = surrogate.setup(jr.key(0), DIM)
    after = eqx.filter_jit(surrogate.condition)(shared, before, X[5], jnp.asarray(jnp.nan))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_samples_have_the_mean_and_the_variance_of_the_belief(key):
    surrogate = Decomposed(SCOPES, 12, grid=GRID)
    X = jr.uniform(jr.key(1), (10, DIM))
    belief = believed(surrogate, X, waves(X))
    x = jnp.asarray(np.array([0.3, 0.8, 0.1, 0.6]), float)

    @jax.jit
    def drawn(keys, belief):
        shared = surrogate.setup(key, DIM)
        draw = lambda k: surrogate.sample(k, shared, belief)(x)  # noqa: E731
        values = jax.lax.map(draw, keys, batch_size=100)
        return values, surrogate.standardized(shared, belief, x)

    values, (mean, variance) = jax.tree.map(np.asarray, drawn(jr.split(key, 2000), belief))
    np.testing.assert_allclose(
        values.mean(), mean[0], atol=5 * float(variance[0] / 2000) ** 0.5 + 1e-3
    )
    np.testing.assert_allclose(values.var(), variance[0], rtol=0.2)


def test_one_factor_of_all_variables_is_a_plain_process(key):
    form = SquaredExponential(0.4)
    surrogate = Decomposed([range(2)], 12, form=form, grid=4, refit_every=None)
    plain = Fitted(12, form, noise=surrogate.noise, refit_every=None, inference=Exact())
    X, y = jr.uniform(key, (10, 2)), jr.normal(key, (10,))

    @eqx.filter_jit
    def predicted(model, x):
        shared = model.setup(jr.key(0), 2)

        def step(belief, observation):
            return model.condition(shared, belief, *observation), None

        belief = jax.lax.scan(step, model.start(shared), (X, y))[0]
        return model.predict(shared, belief, x)

    for x in jr.uniform(jr.key(1), (3, 2)):
        (mean, variance), (theirs, other) = predicted(surrogate, x), predicted(plain, x)
        # The matrix has a condition of 1e4, and float32 a rounding error of 6e-8.
        np.testing.assert_allclose(mean, theirs, atol=3e-4)
        # A variance is what is left of 1, so it has the rounding errors of 1.
        np.testing.assert_allclose(variance, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "per_factor"),
    [
        (SPACE, False),
        (Cube(DIM), True),
        pytest.param(SPACE, True, marks=pytest.mark.full),
        pytest.param(Cube(DIM), False, marks=pytest.mark.full),
    ],
)
def test_the_evidence_of_a_structure_is_that_of_its_kernel(domain, per_factor, key):
    surrogate = Decomposed(structure.Sampled(arity=3), 30, grid=4, per_factor=per_factor)
    axes, count = domain.axes(4), 25
    y = np.where(np.arange(30) < count, np.random.default_rng(1).normal(size=30), np.nan)
    logs = np.array([0.3, -0.5, 0.7])

    @jax.jit
    def both(scopes, logs):
        """The evidence by its parts, and by all of the kernel."""
        kernel = surrogate._kernel(axes, surrogate.structure.start(key, 4))
        problem = fit.of_data(
            kernel, jnp.asarray(0.01), domain.sample(key, 30), jnp.asarray(y, float)
        )
        evidence = decomposed._evidence(problem, axes, 4)
        scaled, noise = decomposed._scaled(kernel, jnp.asarray(0.01), logs, 4)
        other = eqx.tree_at(lambda k: k.scopes, scaled, decomposed._coordinates(axes, scopes))
        whole = eqx.tree_at(lambda p: p.kernel, problem, other)
        parts = sum(evidence.part(jnp.asarray(i), scopes[i]) for i in range(4, len(scopes)))
        theta = problem.pack(other, noise)
        return evidence.total(scopes, parts, logs), whole.log_evidence(theta), evidence.prior(logs)

    single = np.asarray(surrogate.structure.start(key, 4))
    joined = single.copy()
    joined[4:6] = [[0, 1, 3], [2, 1, -1]]
    asked = [(single, 0 * logs), (joined, 0 * logs), (joined, logs)]
    found = np.array([both(*one)[:2] for one in asked])
    np.testing.assert_allclose(*np.diff(found, axis=0).T, rtol=1e-3)
    assert (np.abs(np.diff(found[:, 0])) > 0.1).all()
    assert np.isfinite(both(joined, logs)[2])
    assert np.asarray(both(joined, logs + 20)[2]) == -np.inf  # outside of the bounds


@pytest.mark.slow
def test_a_chain_that_adds_up_parts_is_the_one_that_does_not(key):
    X = jr.uniform(key, (40, 5))
    y = jnp.sin(9 * X[:, 0] * X[:, 3]) + X[:, 2]
    surrogate = Decomposed(structure.Sampled(arity=3), 40, grid=4)
    axes, start = Cube(5).axes(4), surrogate.structure.start(key, 5)
    problem = fit.of_data(surrogate._kernel(axes, start), jnp.asarray(0.05), X, y)
    parts = decomposed._evidence(problem, axes, 5)
    kernel, noise = problem.unpack(problem.theta)

    def of_all(scopes, parts, logs):
        scaled, z = decomposed._scaled(kernel, noise, logs, 5)
        other = eqx.tree_at(lambda k: k.scopes, scaled, scopes)
        return eqx.tree_at(lambda p: p.kernel, problem, other).log_evidence(problem.pack(other, z))

    whole = parts._replace(part=lambda number, scope: (), total=of_all, scores=None)
    chains = [
        jax.jit(lambda key, d=d: sample(key, start, d, 5, fixed=5, steps=300))(jr.key(3))
        for d in (parts._replace(scores=None), whole)
    ]
    assert 0.02 < chains[0].accepted < 0.98
    for a, b in zip(chains[0][:4], chains[1][:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert jnp.max(jnp.sum(chains[0].scopes >= 0, axis=1)) == 3


@pytest.mark.slow
def test_pairs_that_matter_are_found():
    key = jr.key(7)
    X = jr.uniform(key, (80, 6))
    y = jnp.sin(9 * X[:, 0] * X[:, 3]) + jnp.sin(9 * (X[:, 2] - X[:, 5]) ** 2)
    surrogate = Decomposed(structure.Sampled(steps=200, count=4), 80, grid=3)
    belief = believed(surrogate, X, y, True)
    scopes = surrogate.scopes(surrogate.setup(key, 6), belief)
    pairs = jnp.mean(jax.vmap(lambda s: shared_by(s, 6))(scopes), axis=0)
    true = np.array([pairs[0, 3], pairs[2, 5]])
    others = np.array([pairs[i, j] for i, j in itertools.combinations(range(6), 2)])
    assert true.mean() > 0.4 + (others.sum() - true.sum()) / 13
    assert (belief.accepted > 0).all()
    # On the way they shared a factor about as often as in the end.
    often = np.asarray(belief.pairs.mean(axis=0))
    np.testing.assert_array_equal(often, often.T)
    true = np.array([often[0, 3], often[2, 5]])
    others = np.array([often[i, j] for i, j in itertools.combinations(range(6), 2)])
    assert true.mean() > 0.4 + (others.sum() - true.sum()) / 13
    assert ((often >= 0) & (often <= 1)).all()


@pytest.mark.slow
def test_every_factor_can_have_a_variance_and_length_scales_of_its_own(key):
    scales = jnp.array([0.1, 0.2, 0.3, 0.4])
    form = SquaredExponential(scales, 2.0)
    scopes = [(0, 1, 2), (3, 1), (2,)]
    own, tied = (
        Decomposed(scopes, 60, form=form, per_factor=each, grid=4, noise=1e-3)
        for each in (True, False)
    )
    x, z = jr.uniform(key, (2, DIM))

    @eqx.filter_jit
    def started(model):
        kernel = model.start(model.setup(key, DIM)).whole.kernel
        first = jax.tree.map(lambda leaf: leaf[0], kernel)
        return first, first(x, z)

    kernels, values = zip(*map(started, (own, tied)), strict=True)
    np.testing.assert_allclose(kernels[0].variance, 2 / 3, rtol=1e-6)
    used = np.asarray(kernels[0].scopes) >= 0
    for kernel in kernels:  # by variable, not by place
        expected = np.where(used, np.asarray(scales)[np.asarray(kernel.scopes)], 0)
        np.testing.assert_allclose(np.where(used, kernel.length_scales, 0), expected)
    np.testing.assert_allclose(*values, rtol=1e-6)
    # Two functions of one variable each, of which one is ten times as large and varies slowly.
    X = jr.uniform(key, (60, DIM))
    y = jnp.sin(20 * X[:, 0]) + 10 * jnp.sin(2 * X[:, 1])
    scopes = [(0,), (1,)]
    fitted = believed(Decomposed(scopes, 60, per_factor=True, grid=4, noise=1e-3), X, y, True)
    kernel = jax.tree.map(lambda leaf: leaf[0], fitted.whole.kernel)
    assert kernel.variance[1] > 10 * kernel.variance[0]
    assert kernel.length_scale[1, 0] > 3 * kernel.length_scale[0, 0]


@pytest.mark.parametrize(
    ("model", "cells"),
    [
        (Decomposed([tuple(range(6))], 10, grid=64), 64**6),
        (Decomposed(structure.Sampled(arity=6, count=2), 10, grid=64), 2 * 12 * 64**6),
        (Decomposed([(0, 1)], 10, regions=Regions((16,) * 6), zoom=0.1), (16**6 + 1) * 32**2),
    ],
    ids=["given", "learned", "boxes"],
)
def test_tables_that_would_not_fit_are_refused_before_any_is_made(model, cells, key):
    # Of each factor a mean of two outputs, and a variance.
    needed = 3 * cells * jnp.zeros(()).nbytes
    with pytest.raises(ValueError, match=rf"would take .* GiB \({needed} bytes\)"):
        model.start(model.setup(key, 6))


def test_every_table_is_as_large_as_its_factor(key):
    scopes = [(0, 1, 2, 3), *((v,) for v in range(400)), (8, 9)]
    surrogate = Decomposed(scopes, 10, grid=32)
    start = lambda key: surrogate.start(surrogate.setup(key, 400)).tables  # noqa: E731
    made = jax.eval_shape(start, key)  # none is
    assert [t.shape for t in made.variance] == [
        (1, 1, 400, 32),
        (1, 1, 1, 32, 32),
        (1, 1, 1, 32, 32, 32, 32),
    ]
    assert [t.size for t in made.mean] == [2 * t.size for t in made.variance]


@pytest.mark.slow
def test_every_value_of_a_parameter_is_on_the_grid():
    space = Space(
        rate=Real(0, 1), depth=Integer(1, 3), act=Categorical("a", "b", "c"), other=Real(0, 1)
    )
    axes = space.axes(5)
    np.testing.assert_array_equal(axes.columns, [[0, -1, -1], [1, -1, -1], [2, 3, 4], [5, -1, -1]])
    np.testing.assert_array_equal(axes.owners, [0, 1, 2, 2, 2, 3])
    points = [space.decode(p) for p in np.asarray(axes.points).T]
    assert {p["depth"] for p in points} == {1, 2, 3}
    assert {p["act"] for p in points} == {"a", "b", "c"}
    assert [p["rate"] for p in points] == [0, 0.25, 0.5, 0.75, 1]
    assert all(space.contains(p) for p in axes.points.T)
    with pytest.raises(ValueError, match="'act': 3 choices are more than a grid of 2"):
        space.axes(2)


@pytest.mark.slow
def test_regions_have_grids_of_their_own_and_a_zoom_follows_the_best_point(key):
    regions = Regions((2, 1, 2, 1))
    surrogate = Decomposed(SCOPES, 12, grid=GRID, regions=regions, zoom=0.2)
    X = jr.uniform(key, (10, DIM))
    belief = believed(surrogate, X, waves(X), True)
    corners = regions.lower, regions.upper
    *regions, near = belief.points[0]
    for box, lower, upper in zip(regions, *corners, strict=True):
        np.testing.assert_allclose(box, np.linspace(lower, upper, 5).T)
    np.testing.assert_allclose(near[:, -1] - near[:, 0], 0.2, rtol=1e-5)
    middle = jnp.clip(surrogate.incumbent(belief), 0.1, 0.9)
    np.testing.assert_allclose(near[:, 2], middle, atol=1e-6)


def test_repetitions_on_a_grid_are_known(key):
    surrogate = Decomposed([(0, 1), (2,), (3, 2)], 5, grid=4, regions=Regions((1, 1, 1, 1, 2, 1)))

    @jax.jit
    def distinct(key):
        return surrogate.distinct(surrogate.start(surrogate.over(SPACE, key)))

    of_one, of_two = map(np.asarray, distinct(key))
    assert of_one.shape == (1, 2, 1, 4)
    assert of_two.shape == (1, 2, 2, 4, 4)
    # Reals are the four points of an axis, there are three choices and three numbers.
    # Boxes are halves of the second real, which the first factor does not have.
    np.testing.assert_array_equal(of_two[0, 0, 0], [[True, True, True, False]] * 4)
    assert not of_two[0, 1, 0].any()
    for one, two in zip(of_one[0], of_two[0], strict=True):
        np.testing.assert_array_equal(one, [[True] * 4])
        np.testing.assert_array_equal(two[1], [[True, True, True, False]] * 4)


def test_what_cannot_be_meant_is_refused(as_users_have_it):
    form = SquaredExponential(np.array([0.1, 0.5]))
    with pytest.raises(ValueError, match=r"one for each of 3 coordinates, got shape \(2,\)"):
        Decomposed([(0, 1), (1, 2)], 10, form=form).setup(jr.key(0), 3)


def test_what_happens_at_fits_needs_fits():
    with pytest.raises(ValueError, match="zoom is placed anew at every fit"):
        Decomposed([(0, 1)], 10, zoom=0.1, refit_every=None)
    with pytest.raises(ValueError, match="the structure is learned at every fit"):
        Decomposed(structure.Sampled(), 10, refit_every=None)


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ([], "at least one factor"),
        ([[]], "factor 0 has no variables"),
        ([[0, 0]], "names a variable twice"),
        ([[0, 9]], r"name variables \[9\], but there are 4"),
    ],
)
def test_structures_that_make_no_sense_are_refused(scopes, message):
    with pytest.raises(ValueError, match=message):
        believed(Decomposed(scopes, 5), jnp.zeros((1, DIM)), jnp.zeros(1))
