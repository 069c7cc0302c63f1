"""Policies: improvement and bounds under a mixture in float64, draws of experts, the climb."""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

from jaxbo.domains.base import Cube
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.structure import RandomTree
from jaxbo.kernels.choosing.maximize import maximize
from jaxbo.kernels.choosing.policy import EI, UCB, Drawn, Largest, Model, Thompson
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern32, Matern52, SquaredExponential

DIM, NOISE, CAPACITY = 2, 1e-2, 10
KERNELS = (
    SquaredExponential(0.3, 1.5),
    Matern52(jnp.array([0.2, 0.6])),
    Matern32(0.5, 0.7),
)
CORRELATIONS = {
    SquaredExponential: lambda s: np.exp(-s / 2),
    Matern32: lambda s: (1 + np.sqrt(3 * s)) * np.exp(-np.sqrt(3 * s)),
    Matern52: lambda s: (1 + np.sqrt(5 * s) + 5 * s / 3) * np.exp(-np.sqrt(5 * s)),
}


def expert(inference, noise=NOISE):
    return Fitted(CAPACITY, size=30, noise=noise, refit_every=None, inference=inference)


def ensemble(inference, kernels=KERNELS, **options):
    return Ensemble(kernels, expert(inference), **options)


def single(inference, noise=NOISE):
    return eqx.tree_at(lambda e: e.kernel, expert(inference, noise), KERNELS[0])


@eqx.filter_jit
def situation(model, key, X, ys):
    """The model, its features, and the belief after observations: what a policy is given."""
    shared = model.setup(key, X.shape[1])
    step = lambda belief, row: (model.condition(shared, belief, *row), None)  # noqa: E731
    return model, shared, jax.lax.scan(step, model.start(shared), (X, ys))[0]


@eqx.filter_jit
def values(policy, key, given, others):
    return jax.vmap(policy(key, *given))(others)


@eqx.filter_jit
def values_of_draws(policy, keys, given, others):
    return jax.vmap(lambda k: jax.vmap(policy(k, *given))(others))(keys)


@eqx.filter_jit
def picked(given, number):
    """One expert, as a policy is given it."""
    _, shared, belief = given
    return shared.pick(number, belief)


@eqx.filter_jit
def standards(model, belief, ys):
    return jax.vmap(lambda y: model.standard(belief, y))(ys)


def doubles(*arrays):
    return tuple(np.asarray(array, np.float64) for array in arrays)


@jax.jit
def objective(X):
    """Largest at the corner 0, where unused rows are, and the points below are not."""
    return 3 + 5 * jnp.exp(-3 * jnp.sum(X**2, axis=1)) + jnp.sin(9 * X[:, 1])


@pytest.fixture
def points():
    """So few that no expert has all of the weight."""
    return jnp.array([[0.3, 0.2], [0.5, 0.9], [0.9, 0.4], [0.6, 0.6], [0.8, 0.1]])


@pytest.fixture
def others(key):
    return jr.uniform(jr.fold_in(key, 3), (20, DIM))


def gram(kernel, X, Z):
    scale, variance, X, Z = doubles(kernel.length_scale, kernel.variance, X, Z)
    s = np.sum(((X[:, None] - Z[None]) / scale) ** 2, axis=2)
    return variance * CORRELATIONS[type(kernel)](s)


def dense(kernel, X, ys, others):
    """Mean and deviation of the exact process of standardized values, and its log evidence."""
    (y,) = doubles(ys)
    y = (y - y.mean()) / y.std()
    K, across = gram(kernel, X, X) + NOISE * np.eye(len(X)), gram(kernel, others, X)
    mean = across @ np.linalg.solve(K, y)
    variance = np.diag(gram(kernel, others, others) - across @ np.linalg.solve(K, across.T))
    return mean, np.sqrt(variance), stats.multivariate_normal.logpdf(y, cov=K)


def dense_mixture(kernels, X, ys, others):
    """Weights, means and deviations (experts by points), and the largest mean at a point observed."""
    means, deviations, evidences = zip(*(dense(k, X, ys, others) for k in kernels), strict=True)
    weights = special.softmax(evidences)
    at_data = np.array([dense(k, X, ys, X)[0] for k in kernels])
    return weights, np.array(means), np.array(deviations), np.max(weights @ at_data)


def mean_gain(weights, means, deviations, best):
    """E max(f - best, 0) of a mixture, by the trapezoidal rule."""
    f = best + np.linspace(0, 10, 20_001) * deviations.max()
    density = sum(
        w * stats.norm.pdf(f, m, s) for w, m, s in zip(weights, means, deviations, strict=True)
    )
    return np.trapezoid((f - best) * density, f)


# ---------------------------------------------------------------- improvement and bounds


@pytest.mark.slow
def test_expected_improvement_is_the_mean_gain_over_the_best_mean_observed(
    key, points, others, x64
):
    ys = objective(points)
    given = situation(ensemble(Exact()), key, points, ys)
    weights, means, deviations, best = dense_mixture(KERNELS, points, ys, others)
    expected = [mean_gain(weights, means[:, i], deviations[:, i], best) for i in range(20)]
    assert 0.05 < weights.min() < weights.max() < 0.8
    found = np.exp(doubles(values(EI(), key, given, others))[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5 if x64 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 4.0, 9.0])
def test_the_upper_confidence_bound_is_that_of_the_mixture(beta, key, points, others, x64):
    ys = objective(points)
    given = situation(ensemble(Exact()), key, points, ys)
    weights, means, deviations, _ = dense_mixture(KERNELS, points, ys, others)
    mean = weights @ means
    variance = weights @ (deviations**2 + (means - mean) ** 2)
    found = values(UCB(beta), key, given, others)
    expected = mean + np.sqrt(beta * variance)
    np.testing.assert_allclose(found, expected, atol=1e-8 if x64 else 2e-3)


@pytest.mark.parametrize("policy", [EI(), UCB()], ids=["EI", "UCB"])
@pytest.mark.parametrize("inference", [OnFeatures(), Exact()])
def test_for_one_kernel_it_is_that_of_the_model(policy, inference, key, points, others, x64):
    ys, own_key = objective(points), jr.split(key, 1)[0]
    one = situation(ensemble(inference, KERNELS[:1]), key, points, ys)
    alone = situation(single(inference), own_key, points, ys)
    found, expected = (values(policy, key, given, others) for given in (one, alone))
    close = 1e-9 if x64 else 1e-3
    np.testing.assert_allclose(found, expected, rtol=close, atol=close)


def test_for_one_model_they_are_the_closed_forms(key, points, others, x64):
    ys = objective(points)
    given = situation(single(Exact()), key, points, ys)
    _, (mean,), (std,), best = dense_mixture(KERNELS[:1], points, ys, others)
    z = (mean - best) / std
    gain = std * (stats.norm.pdf(z) + z * stats.norm.cdf(z))
    found = np.exp(doubles(values(EI(), key, given, others))[0])
    np.testing.assert_allclose(found, gain, rtol=1e-6 if x64 else 1e-2, atol=1e-6)
    bound = values(UCB(4.0), key, given, others)
    np.testing.assert_allclose(bound, mean + 2 * std, atol=1e-8 if x64 else 2e-3)


@pytest.mark.parametrize("model", [single(Exact()), ensemble(Exact())], ids=["single", "mixture"])
def test_without_observations_any_improvement_on_one_deviation_below_the_mean_counts(
    model, key, points, others
):
    given = situation(model, key, points, jnp.nan * objective(points))
    found = values(EI(), key, given, others)
    kernels = KERNELS if isinstance(model, Ensemble) else KERNELS[:1]
    deviations = np.sqrt([float(kernel.variance) for kernel in kernels])
    expected = mean_gain(np.full(len(kernels), 1 / len(kernels)), 0 * deviations, deviations, -1)
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4)


def derivatives(policy, key, given, others):
    f = policy(key, *given)
    return jax.vmap(lambda x: (f(x), jax.grad(f)(x), jax.hessian(f)(x)))(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [EI(), UCB(), Drawn(), pytest.param(Largest(), marks=pytest.mark.full)],
    ids=lambda p: type(p).__name__,
)
def test_values_gradients_and_hessians_are_finite_far_in_the_tail(policy, key, x64):
    # Near to many observations of little noise, a hundred deviations below the best; one expert is
    # all but impossible.
    noise = 1e-8 if x64 else 1e-4
    model = Ensemble((*KERNELS[:2], Matern32(1e6, 1e-6)), expert(Exact(), noise))
    X = jnp.concatenate([0.3 + 0.1 * jr.uniform(key, (9, DIM)), jnp.ones((1, DIM))])
    given = situation(model, key, X, jnp.append(0.01 * objective(X[:9]), 10.0))
    others = jnp.concatenate([X, X + 1e-4, jr.uniform(key, (20, DIM))])
    for array in jax.jit(lambda x: derivatives(policy, key, given, x))(others):
        assert np.all(np.isfinite(array))
    if isinstance(policy, EI):
        tail = values(policy, key, given, X[:9])
        assert np.all(tail < -300)
        assert len(np.unique(tail)) == 9  # a slope, not a plain


# ---------------------------------------------------------------- draws


@eqx.filter_jit
def sampled(key, given, others):
    model, *rest = given
    return jax.vmap(model.sample(key, *rest))(others)


def test_thompson_is_a_sample_of_the_surrogate(key, points, others):
    for model in (ensemble(OnFeatures()), ensemble(Exact()), single(Exact())):
        given = situation(model, key, points, objective(points))
        found = values(Thompson(), key, given, others)
        np.testing.assert_allclose(found, sampled(key, given, others), rtol=1e-4, atol=1e-4)


def test_of_an_expert_drawn_by_weight_it_is_the_improvement(key, points, others, x64):
    given = situation(ensemble(Exact(), floor=0.2), key, points, objective(points))
    weights = eqx.filter_jit(lambda model, *rest: model.log_weights(*rest))(*given)
    weights = np.exp(doubles(weights)[0])
    found = values_of_draws(Drawn(EI()), jr.split(key, 3_000), given, others[:4])
    alone = [picked(given, jnp.asarray(m)) for m in range(3)]
    each = np.stack([values(EI(), key, one, others[:4]) for one in alone])
    distances = np.max(np.abs(np.asarray(found)[:, None] - each[None]), axis=2)
    assert np.max(np.min(distances, axis=1)) < (1e-9 if x64 else 1e-3)
    # Which of them, by a chi-square test of level 1e-4.
    counts = np.bincount(np.argmin(distances, axis=1), minlength=3)
    expected = np.maximum(weights, 0.2)
    assert stats.chisquare(counts, 3_000 * expected / expected.sum()).pvalue > 1e-4


@pytest.mark.slow
def test_the_largest_is_that_of_a_sample_of_every_expert(key, points, others, x64):
    given = situation(ensemble(Exact()), key, points, objective(points))
    found = values(Largest(), key, given, others)
    each = [
        values(Thompson(), k, picked(given, jnp.asarray(m)), others)
        for m, k in enumerate(jr.split(key, 3))
    ]
    close = 1e-9 if x64 else 1e-3
    np.testing.assert_allclose(found, np.max(each, axis=0), rtol=close, atol=close)
    assert len(set(np.argmax(each, axis=0).tolist())) > 1


def test_the_largest_has_the_law_of_the_maximum_of_independent_experts(key, points, others):
    model, shared, belief = given = situation(
        ensemble(OnFeatures()), key, points, objective(points)
    )
    predicted = eqx.filter_jit(lambda model, x, *rest: model.mixture(*rest)[1](x))
    means, variances = doubles(*predicted(model, others[0], shared, belief))
    draws = values_of_draws(Largest(), jr.split(key, 5_000), given, others[:1])[:, 0]
    law = lambda f: np.prod(  # noqa: E731
        stats.norm.cdf(np.asarray(f)[:, None], means, np.sqrt(variances)), axis=1
    )
    # A Kolmogorov-Smirnov test of level 1e-4.
    assert stats.kstest(np.asarray(draws, np.float64), law).pvalue > 1e-4


def test_queries_from_one_belief_differ_where_the_policy_is_random(key, points, others):
    given = situation(ensemble(Exact()), key, points, objective(points))
    for policy in (Thompson(), EI(), UCB(), Largest()):
        first, second = (values(policy, jr.fold_in(key, i), given, others) for i in range(2))
        assert np.array_equal(first, second) != policy.random()
    assert Drawn(Thompson()).random()
    assert not Drawn(EI()).random()


# ---------------------------------------------------------------- the climb


def grid(points, dim):
    axis = np.linspace(0, 1, points)
    return jnp.asarray(np.stack(np.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim), float)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "count", "size"),
    [pytest.param(1, 5, 2001, marks=pytest.mark.full), (2, 8, 61)],
)
def test_the_best_improvement_is_found_for_nine_of_ten_beliefs(dim, count, size, key):
    domain, model = Cube(dim), ensemble(Exact(), (KERNELS[0], Matern52(0.3)))
    candidates = domain.candidates(key, 500)

    def one(key):
        X = jr.uniform(key, (count, dim))
        ys = jnp.sin(8 * X[:, 0]) + jnp.cos(5 * X[:, -1])
        function = EI()(key, *situation(model, key, X, ys))
        x, value = maximize(function, domain, candidates)
        return value, function(x), jnp.max(jax.vmap(function)(grid(size, dim)))

    value, again, best = jax.jit(jax.vmap(one))(jr.split(key, 10))
    np.testing.assert_allclose(value, again, rtol=1e-4, atol=1e-4)
    assert np.sum(np.asarray(value) >= np.asarray(best) - 1e-3) >= 9


# ---------------------------------------------------------------- what each asks of a surrogate


FIXED, FITTED, ENSEMBLE = Fixed(), single(Exact()), ensemble(Exact())


@pytest.mark.parametrize("policy", [Thompson(), EI(), UCB(), Drawn(), Largest()])
def test_every_policy_takes_an_ensemble(policy):
    policy.check(ENSEMBLE)


@pytest.mark.parametrize("policy", [Thompson(), EI(), UCB()])
def test_those_of_one_model_take_one(policy):
    policy.check(FITTED)


@pytest.mark.parametrize(
    ("policy", "surrogate", "message"),
    [
        (EI(), FIXED, "Fitted, Ensemble or Marginal, got Fixed"),
        (UCB(), FIXED, "Fitted, Ensemble or Marginal, got Fixed"),
        (Drawn(), FITTED, "Ensemble or Marginal, got Fitted"),
        (Largest(), FITTED, "Ensemble or Marginal, got Fitted"),
        (Drawn(), FIXED, "Ensemble or Marginal, got Fixed"),
        (Largest(), FIXED, "Ensemble or Marginal, got Fixed"),
        (Drawn(Largest()), ENSEMBLE, "Ensemble or Marginal, got Fitted"),
        (Drawn(Drawn()), ENSEMBLE, "Ensemble or Marginal, got Fitted"),
    ],
)
def test_a_surrogate_without_what_a_policy_takes_is_refused(policy, surrogate, message):
    with pytest.raises(ValueError, match=message):
        policy.check(surrogate)


def test_thompson_takes_fixed_hyperparameters():
    Thompson().check(FIXED)


@pytest.mark.parametrize("beta", [-1.0, float("nan")])
def test_a_negative_beta_is_refused(beta):
    with pytest.raises(ValueError, match="beta must be at least 0"):
        UCB(beta)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Thompson(), EI(), UCB(), Drawn(), Largest()])
def test_policies_are_exported_for_every_platform(policy):
    model = ensemble(Exact())

    def program(key, X, ys):
        given = situation(model, key, X, ys)
        return jax.value_and_grad(policy(key, *given))(X[0])

    arguments = (
        jax.eval_shape(lambda: jr.key(0)),
        jax.ShapeDtypeStruct((5, DIM), jnp.result_type(float)),
        jax.ShapeDtypeStruct((5,), jnp.result_type(float)),
    )
    exported = jax.export.export(jax.jit(program), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


# ---------------------------------------------------------------- outcomes with bounds


@jax.jit
def slacks(X):
    """Two outcomes: the first forbids the best of `points`, and each a part of the square."""
    return jnp.stack([X[:, 0] - 0.4, 1.5 - X[:, 1] - X[:, 0]])


@eqx.filter_jit
def constrained(policy, key, model, slacks, others):
    return jax.vmap(policy.constrained(key, model, slacks))(others)


def situations(model, key, X, columns):
    """A model for each column of values, on the same features."""
    found = [situation(model, key, X, ys) for ys in columns]
    return [Model(*given) for given in found]


def dense_chance(kernels, X, ys, others):
    """P(slack ≥ 0) of a mixture."""
    weights, means, deviations, _ = dense_mixture(kernels, X, ys, others)
    (y,) = doubles(ys)
    return weights @ stats.norm.cdf((means + y.mean() / y.std()) / deviations)


@pytest.mark.parametrize("none", [False, True])
def test_improvement_is_over_the_best_expected_to_be_feasible_times_the_chance_of_all_bounds(
    none, key, points, others, x64
):
    """Where no point is expected to be feasible it is the chance alone."""
    columns = slacks(points) - jnp.array([[1.0 if none else 0.0], [0.0]])
    model, *rest = situations(ensemble(Exact()), key, points, [objective(points), *columns])
    weights, means, deviations, best = dense_mixture(KERNELS, points, objective(points), others)
    at_data = sum(
        w * dense(k, points, objective(points), points)[0]
        for w, k in zip(weights, KERNELS, strict=True)
    )
    fine = np.all([dense_chance(KERNELS, points, c, points) > 0.5 for c in columns], axis=0)
    chance = np.prod([dense_chance(KERNELS, points, c, others) for c in columns], axis=0)
    expected = np.log(chance)
    if none:
        assert not fine.any()
    else:
        assert 0 < fine.sum() < 5
        over = at_data[fine].max()
        assert over < best - 0.1
        gains = [mean_gain(weights, means[:, i], deviations[:, i], over) for i in range(20)]
        expected = expected + np.log(gains)
    found = constrained(EI(), key, model, rest, others)
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if x64 else {"rtol": 1e-2, "atol": 2e-2}
    np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("policy", [Thompson(), UCB(0.04)], ids=["sample", "bound"])
def test_any_point_where_all_bounds_are_met_is_better_than_the_least_violation(policy, points):
    key = jr.key(2)
    others, columns = jr.uniform(key, (20, DIM)), slacks(points)
    model, *rest = situations(single(OnFeatures()), key, points, [objective(points), *columns])
    keys = jr.split(key, 3)
    function, *outcomes = [
        values(policy, k, given, others) for k, given in zip(keys, (model, *rest), strict=True)
    ]
    raw = [np.mean(c) + np.std(c) * np.asarray(o) for c, o in zip(columns, outcomes, strict=True)]
    missing = sum(np.maximum(-r / np.std(c), 0) for r, c in zip(raw, columns, strict=True))
    assert 0 < np.sum(missing > 0) < 20
    found = np.asarray(constrained(policy, key, model, rest, others))
    fine = missing == 0
    np.testing.assert_allclose(found[fine], np.asarray(function)[fine], atol=1e-4)
    np.testing.assert_allclose(
        found[~fine] - found[~fine].max(), (missing[~fine].min() - missing[~fine]), atol=1e-3
    )
    assert found[~fine].max() < found[fine].min() - 100


@pytest.mark.slow
@pytest.mark.parametrize("warp", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_value_observed_has_the_units_of_samples(warp, key):
    X = jr.uniform(key, (8, DIM))
    ys = 100 + 30 * jnp.exp(3 * X[:, 0])
    member = Fitted(CAPACITY, size=30, inference=Exact(), warp=warp)
    several, shared, belief = situation(Ensemble(KERNELS[:2], member), key, X, ys)
    belief = eqx.filter_jit(Ensemble.refit)(several, shared, belief)
    for number in range(2):
        one = jax.tree.map(lambda leaf, i=number: leaf[i], belief)
        for model, known in ((several, belief), (member, one)):
            found = standards(model, known, ys)
            np.testing.assert_allclose(found, one.standardized[:8], atol=1e-5)
    fixed, _, belief = situation(Fixed(size=4), key, X, ys)
    found, ys = standards(fixed, belief, ys), np.asarray(ys)
    np.testing.assert_allclose(found, (ys - ys.mean()) / ys.std(), atol=1e-4)


@pytest.mark.slow
def test_a_drawn_expert_of_one_has_the_improvement_of_the_mixture(key, points, others):
    columns = objective(points), *slacks(points)
    alone = situations(ensemble(Exact(), KERNELS[:1]), key, points, columns)
    drawn = constrained(Drawn(EI()), key, alone[0], alone[1:], others)
    mixed = constrained(EI(), key, alone[0], alone[1:], others)
    np.testing.assert_allclose(drawn, mixed, atol=1e-4)


def test_a_policy_or_a_surrogate_without_a_rule_for_outcomes_is_refused():
    with pytest.raises(ValueError, match="Largest has no rule for outcomes: give EI"):
        Largest().check_constrained(ensemble(Exact()))
    with pytest.raises(ValueError, match=r"need a surrogate such as Fixed.*got Decomposed"):
        Thompson().check_constrained(Decomposed(RandomTree(), 12))
