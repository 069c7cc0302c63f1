"""Additive processes: kernels and fits against dense NumPy, and what structures are drawn."""

import functools
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
from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.kernel import AdditiveKernel
from jaxbo.kernels.models import fit
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential, gram

DIM, GRID = 4, 5
SCOPES = ((0, 1), (2,), (1, 2, 3))
FORMS = {"SE": SquaredExponential(0.3), "Matern 5/2": Matern52(0.4)}


def kernel_of(form, tied):
    scopes = structure.padded(SCOPES)
    if tied:
        return AdditiveKernel(scopes, form, jnp.array([0.3, 0.4, 0.2, 0.5]))
    scales = 0.3 + jnp.arange(9.0).reshape(3, 3) / 20
    return AdditiveKernel(scopes, form, scales, jnp.array([1.0, 0.5, 2.0]))


def part(kernel, number, x, z):
    """k_I by its definition, of plain kernels."""
    scope = jnp.array(SCOPES[number])
    one = kernel.form.with_hyperparameters(
        kernel.length_scales[number, : len(scope)], kernel.variances[number]
    )
    return one(x[scope], z[scope])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "per factor"])
@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_is_the_sum_of_its_factors(form, tied, key):
    kernel = kernel_of(FORMS[form], tied)
    X = jr.uniform(key, (6, DIM))
    pairs = lambda f: jax.jit(jax.vmap(lambda x: jax.vmap(lambda z: f(x, z))(X)))(X)  # noqa: E731
    parts = pairs(kernel.parts)
    for number in range(len(SCOPES)):
        expected = pairs(functools.partial(part, kernel, number))
        np.testing.assert_allclose(parts[..., number], expected, rtol=1e-5)
    np.testing.assert_allclose(kernel(X[0], X[0]), jnp.sum(kernel.variances), rtol=1e-6)
    np.testing.assert_allclose(kernel.of_squares(kernel.squares(X)), gram(kernel, X, X), rtol=1e-5)


def test_variance_is_split_among_factors_that_have_variables():
    kernel = AdditiveKernel(np.array([[0, 1], [-1, -1], [2, -1]]), SquaredExponential(0.3, 3.0))
    np.testing.assert_allclose(kernel.variances, [1.5, 0, 1.5])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("many", [False, True], ids=["few variables", "many"])
def test_the_evidence_has_the_gradient_that_differences_say(form, many, key, x64, monkeypatch):
    if not x64:
        pytest.skip("differences need float64")
    if many:
        monkeypatch.setattr(additive, "DENSE", 1)
    kernel = kernel_of(FORMS[form], False)
    X = jr.uniform(key, (8, DIM))
    problem = fit.of_data(kernel, 1e-2, X, jnp.sin(5 * jnp.sum(X, axis=1)))
    gradient = jax.grad(problem.log_evidence)(problem.theta)
    step = 1e-6
    for i in range(problem.theta.size):
        move = jnp.zeros_like(problem.theta).at[i].set(step)
        up, down = (problem.log_evidence(problem.theta + s * move) for s in (1, -1))
        np.testing.assert_allclose(gradient[i], (up - down) / (2 * step), rtol=1e-4, atol=1e-6)


def test_a_fit_has_a_variance_and_length_scales_for_every_factor(key):
    kernel = kernel_of(FORMS["SE"], False)
    X = jr.uniform(key, (40, DIM))
    y = jnp.sin(6 * X[:, 2])  # of the second factor alone
    bounds = fit.Bounds(noise=(1e-2, 1.0))  # above what float32 rounds
    found = jax.jit(lambda y: fit.fit(kernel, 1e-2, X, y, bounds=bounds))(y)
    dense = gram(found.kernel, X, X) + found.noise * jnp.eye(40)
    sign, log_det = np.linalg.slogdet(np.asarray(dense, np.float64))
    assert sign == 1
    quadratic = np.asarray(y) @ np.linalg.solve(np.asarray(dense, np.float64), np.asarray(y))
    expected = -0.5 * (quadratic + log_det + 40 * np.log(2 * np.pi))
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-3)
    assert found.kernel.variances[1] > 10 * found.kernel.variances[0]


# ---------------------------------------------------------------- the surrogate


@eqx.filter_jit
def believed(surrogate, X, y, fits=False):
    shared = surrogate.setup(jr.key(0), X.shape[1])

    def step(belief, observation):
        return surrogate.condition(shared, belief, *observation), None

    belief = jax.lax.scan(step, surrogate.start(shared), (X, y))[0]
    return surrogate.refit(shared, belief) if fits else belief


def test_the_factors_of_a_belief_add_up_to_its_mean(key):
    X = jr.uniform(key, (10, DIM))
    y = 100 + 7 * jnp.sin(4 * jnp.sum(X, axis=1))
    surrogate = Decomposed(SCOPES, 12, grid=GRID)
    for fits in (False, True):
        belief = believed(surrogate, X, y, fits)
        mean, variance = surrogate.factors(belief)
        at = jnp.array([2, 0, 4, 1])
        x = jnp.linspace(0, 1, GRID)[at]
        of_one, of_two, of_three = (0, 0, 0, 4), (0, 0, 0, 2, 0), (0, 0, 0, 0, 4, 1)
        places = list(zip(mean, variance, (of_one, of_two, of_three), strict=True))
        total = sum(table[place] for table, _, place in places)
        expected, joint = surrogate.standardized(surrogate.setup(key, DIM), belief, x)
        np.testing.assert_allclose(total, expected[0], atol=2e-3)
        assert all((table >= 0).all() for table in variance)
        most = sum(jnp.sqrt(table[place]) for _, table, place in places)
        assert jnp.sqrt(joint[0]) <= most + 1e-3  # the sum of deviations bounds that of the sum


def test_a_failed_evaluation_leaves_no_mark_on_tables(key):
    surrogate = Decomposed(SCOPES, 12, grid=GRID)
    X = jr.uniform(key, (6, DIM))
    y = jnp.arange(6.0)
    before = believed(surrogate, X[:5], y[:5])
    shared = surrogate.setup(jr.key(0), DIM)
    after = eqx.filter_jit(surrogate.condition)(shared, before, X[5], jnp.asarray(jnp.nan))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- structures


def test_a_random_tree_joins_all_variables():
    draw = jax.jit(structure.RandomTree().start, static_argnums=1)
    seen = set()
    for seed in range(20):
        scopes = np.asarray(draw(jr.key(seed), 6))
        assert scopes.shape == (5, 2)
        parts = [{v} for v in range(6)]
        for a, b in scopes:
            assert a != b
            joined = [p for p in parts if a in p or b in p]
            assert len(joined) == 2  # no cycle
            parts = [p for p in parts if p not in joined] + [set.union(*joined)]
        assert len(parts) == 1
        seen.add(tuple(sorted(map(tuple, np.sort(scopes, axis=1).tolist()))))
    assert len(seen) > 10


def of_scopes(log_density):
    """A density that is no sum over factors."""
    return structure.Evidence(lambda number, scope: (), lambda scopes, parts: log_density(scopes))


SPACE = Space(a=Real(0, 1), act=Categorical("x", "y", "z"), b=Real(0, 1), depth=Integer(1, 3))


@pytest.mark.parametrize("per_factor", [False, True])
@pytest.mark.parametrize("domain", [Cube(DIM), SPACE], ids=["cube", "space"])
def test_the_evidence_of_a_structure_is_that_of_its_kernel(domain, per_factor, key):
    surrogate = Decomposed(structure.Sampled(arity=3), 30, grid=4, per_factor=per_factor)
    axes, count = domain.axes(4), 25
    X = domain.sample(key, 30)
    y = jnp.where(jnp.arange(30) < count, jr.normal(jr.key(1), (30,)), jnp.nan)
    kernel = surrogate._kernel(axes, surrogate.structure.start(key, 4))
    problem = fit.of_data(kernel, jnp.asarray(0.01), X, y)
    evidence = decomposed._evidence(problem, axes)

    @jax.jit
    def both(scopes):
        places = decomposed._coordinates(axes, scopes)
        other = eqx.tree_at(lambda p: p.kernel.scopes, problem, places)
        parts = sum(evidence.part(jnp.asarray(i), scope) for i, scope in enumerate(scopes))
        return evidence.total(scopes, parts), other.log_evidence(problem.theta)

    single = surrogate.structure.start(key, 4)
    joined = single.at[4:6].set(jnp.array([[0, 1, 3], [2, 1, -1]]))
    found = np.array([both(scopes) for scopes in (single, joined)])
    np.testing.assert_allclose(*np.diff(found, axis=0)[0], rtol=1e-3)
    assert abs(np.diff(found[:, 0])[0]) > 0.1


def test_a_chain_that_adds_up_parts_is_the_one_that_does_not(key):
    X = jr.uniform(key, (40, 5))
    y = jnp.sin(9 * X[:, 0] * X[:, 3]) + X[:, 2]
    surrogate = Decomposed(structure.Sampled(arity=3), 40, grid=4)
    axes, start = Cube(5).axes(4), surrogate.structure.start(key, 5)
    problem = fit.of_data(surrogate._kernel(axes, start), jnp.asarray(0.05), X, y)
    parts = decomposed._evidence(problem, axes)
    whole = of_scopes(
        lambda s: eqx.tree_at(lambda p: p.kernel.scopes, problem, s).log_evidence(problem.theta)
    )
    chains = [
        jax.jit(lambda key, d=d: structure.sample(key, start, d, 5, fixed=5, steps=300))(jr.key(3))
        for d in (parts, whole)
    ]
    assert 0.02 < chains[0].accepted < 0.98
    for a, b in zip(*chains, strict=True):
        np.testing.assert_array_equal(a, b)
    assert jnp.max(jnp.sum(chains[0].scopes >= 0, axis=1)) == 3


def test_a_chain_draws_structures_in_proportion_to_their_density():
    # Three variables, one place of pairs beside them: 16 states, of which three name one twice.
    weights = jr.uniform(jr.key(5), (4, 4)) + 0.2
    log_density = of_scopes(lambda scopes: jnp.log(weights[scopes[3, 0] + 1, scopes[3, 1] + 1]))
    start = jnp.array([[0, -1], [1, -1], [2, -1], [-1, -1]])
    count, steps = 4000, 40

    @jax.jit
    def ends(keys):
        one = lambda k: structure.sample(k, start, log_density, 3, fixed=3, steps=steps)  # noqa: E731
        return jax.vmap(one)(keys)

    chains = ends(jr.split(jr.key(6), count))
    assert (chains.scopes[:, :3] == start[None, :3]).all()
    found = np.zeros((4, 4))
    np.add.at(found, tuple(np.asarray(chains.scopes[:, 3] + 1).T), 1)
    expected = np.array(weights, np.float64)
    expected[[1, 2, 3], [1, 2, 3]] = 0
    expected /= expected.sum()
    error = 5 * np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(found / count - expected) <= error).all()
    assert 0.2 < chains.accepted.mean() < 1


def test_what_observations_do_not_say_is_the_prior_of_places():
    """By default a place is as likely taken, by any of the variables, as it is empty."""
    dim, count = 3, 4000
    learned = structure.Sampled(factors=1, steps=40)
    start = learned.start(jr.key(0), dim)
    assert start.shape == (dim + 1, 2)
    nothing = of_scopes(lambda scopes: jnp.zeros(()))
    last = jax.vmap(lambda key: learned.update(key, start, dim, nothing).scopes[dim])
    drawn = np.asarray(jax.jit(last)(jr.split(jr.key(8), count)))
    found = np.bincount(np.sum(drawn >= 0, axis=1), minlength=3) / count
    # One structure is empty, six have one variable, six two: none has one twice.
    expected = np.array([1, 6 / dim, 6 / dim**2])
    expected /= expected.sum()
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_pairs_that_matter_are_found():
    key = jr.key(7)
    X = jr.uniform(key, (80, 6))
    y = jnp.sin(9 * X[:, 0] * X[:, 3]) + jnp.sin(9 * (X[:, 2] - X[:, 5]) ** 2)
    surrogate = Decomposed(structure.Sampled(steps=200, count=4), 80, grid=3)
    belief = believed(surrogate, X, y, True)
    scopes = surrogate.scopes(surrogate.setup(key, 6), belief)
    pairs = jnp.mean(jax.vmap(lambda s: structure.shared(s, 6))(scopes), axis=0)
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


def test_how_often_pairs_shared_a_factor_is_counted_after_every_move():
    start = jnp.array([[0, -1], [1, -1], [2, -1], [0, 1]])
    density = of_scopes(lambda s: -1e9 * jnp.any(s != start).astype(float))
    still = structure.sample(jr.key(0), start, density, 3, fixed=3, steps=9)
    np.testing.assert_array_equal(still.pairs, structure.shared(start, 3))
    assert still.pairs[0, 1] == 1
    assert still.accepted < 1


def test_every_factor_can_have_a_variance_and_length_scales_of_its_own(key):
    scales = jnp.array([0.1, 0.2, 0.3, 0.4])
    form = SquaredExponential(scales, 2.0)
    scopes = [(0, 1, 2), (3, 1), (2,)]
    own, tied = (
        Decomposed(scopes, 60, form=form, per_factor=each, grid=4, noise=1e-3)
        for each in (True, False)
    )
    start = [d.start(d.setup(key, DIM)).whole.kernel for d in (own, tied)]
    kernels = [jax.tree.map(lambda leaf: leaf[0], kernel) for kernel in start]
    np.testing.assert_allclose(kernels[0].variance, 2 / 3, rtol=1e-6)
    used = np.asarray(kernels[0].scopes) >= 0
    for kernel in kernels:  # by variable, not by place
        expected = np.where(used, np.asarray(scales)[np.asarray(kernel.scopes)], 0)
        np.testing.assert_allclose(np.where(used, kernel.length_scales, 0), expected)
    x, z = jr.uniform(key, (2, DIM))
    np.testing.assert_allclose(kernels[0](x, z), kernels[1](x, z), rtol=1e-6)
    # Two functions of one variable each, of which one is ten times as large and varies slowly.
    X = jr.uniform(key, (60, DIM))
    y = jnp.sin(20 * X[:, 0]) + 10 * jnp.sin(2 * X[:, 1])
    scopes = [(0,), (1,)]
    fitted = believed(Decomposed(scopes, 60, per_factor=True, grid=4, noise=1e-3), X, y, True)
    kernel = jax.tree.map(lambda leaf: leaf[0], fitted.whole.kernel)
    assert kernel.variance[1] > 10 * kernel.variance[0]
    assert kernel.length_scale[1, 0] > 3 * kernel.length_scale[0, 0]


@pytest.mark.parametrize(
    "model",
    [
        Decomposed([tuple(range(6))], 10, grid=64),
        Decomposed(structure.Sampled(arity=6, count=1), 10, grid=64),
        Decomposed([(0, 1)], 10, regions=Regions((16,) * 6)),
    ],
    ids=["given", "learned", "boxes"],
)
def test_tables_that_would_not_fit_are_refused_before_any_is_made(model, key):
    with pytest.raises(ValueError, match=r"would take .* GiB \(\d+ bytes\)"):
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


def test_what_cannot_be_meant_is_refused(as_users_have_it):
    form = SquaredExponential(np.array([0.1, 0.5]))
    with pytest.raises(ValueError, match=r"one for each of 3 coordinates, got shape \(2,\)"):
        Decomposed([(0, 1), (1, 2)], 10, form=form).setup(jr.key(0), 3)
    for groups in ((1, 1), (1, 3)), ((2, 1), (0, 2)), ():
        with pytest.raises(ValueError, match=r"groups \(.*\) are none of 2 factors in 2 places"):
            AdditiveKernel(np.array([[0, -1], [0, 1]]), form, groups=groups)
    with pytest.raises(
        ValueError, match=r"a factor in a group of 1 variables has more: \[\[0 1\]\]"
    ):
        AdditiveKernel(np.array([[0, 1], [0, -1]]), form, groups=((1, 1), (1, 2)))
    with pytest.raises(ValueError, match="penalty must be finite, got nan"):
        structure.Sampled(penalty=np.nan)
    with pytest.raises(ValueError, match="scopes must have the variables of each factor"):
        structure.Given([0, 1])


def test_what_happens_at_fits_needs_fits():
    with pytest.raises(ValueError, match="zoom is placed anew at every fit"):
        Decomposed([(0, 1)], 10, zoom=0.1, every=None)
    with pytest.raises(ValueError, match="the structure is learned at every fit"):
        Decomposed(structure.Sampled(), 10, every=None)


def test_repetitions_on_a_grid_are_known(key):
    surrogate = Decomposed([(0, 1), (2,), (3, 2)], 5, grid=4, regions=Regions((1, 1, 1, 1, 2, 1)))
    shared = surrogate.over(SPACE, key)
    of_one, of_two = surrogate.distinct(surrogate.start(shared))
    assert of_one.shape == (2, 1, 1, 4)
    assert of_two.shape == (2, 1, 2, 4, 4)
    # Reals are the four points of an axis, there are three choices and three numbers.
    # Boxes are halves of the second real, which the first factor does not have.
    np.testing.assert_array_equal(of_two[0, 0, 0], [[True, True, True, False]] * 4)
    assert not of_two[1, 0, 0].any()
    for one, two in zip(of_one[:, 0], of_two[:, 0], strict=True):
        np.testing.assert_array_equal(one, [[True] * 4])
        np.testing.assert_array_equal(two[1], [[True, True, True, False]] * 4)


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
