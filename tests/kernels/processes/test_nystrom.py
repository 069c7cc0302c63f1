"""Inducing points and the sketched posterior, against dense algebra in float64."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.kernels.choosing import maximize
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import nystrom, posterior
from jaxbo.kernels.processes.covariance import Matern52, SquaredExponential, gram
from jaxbo.kernels.processes.features import FourierFunction, sine_cosine
from jaxbo.metrics import best_so_far
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs.compiled import run

pytestmark = pytest.mark.float64

NOISE = 1e-2
KERNEL = SquaredExponential(0.15, 1.3)


def k(X, Z, kernel=KERNEL):
    """The squared exponential kernel in float64."""
    X, Z = np.asarray(X, float), np.asarray(Z, float)
    squares = ((X[:, None] - Z[None]) ** 2).sum(-1)
    return float(kernel.variance) * np.exp(-squares / 2 / float(kernel.length_scale) ** 2)


#: Points of the square that are apart from each other, the first few too.
SPREAD = np.random.default_rng(1).permutation(np.outer(np.arange(80), [0.75487767, 0.56984029]) % 1)


def data(seed=0):
    """Noisy values of a smooth function, and other points."""
    rng = np.random.default_rng(seed)
    y = np.sin(6 * SPREAD[:, 0]) * np.cos(5 * SPREAD[:, 1]) + NOISE**0.5 * rng.standard_normal(80)
    return tuple(jnp.asarray(a, float) for a in (SPREAD, y, rng.random((80, 2))))


def sketched(z, x, y, points):
    """Eq. 6, and eq. 7 times the noise, as they are printed."""
    y = np.asarray(y, float)
    Kzx, Kzz, kz = k(z, x), k(z, z), k(z, points)
    mean = kz.T @ np.linalg.solve(NOISE * Kzz + Kzx @ Kzx.T, Kzx @ y)
    lost = np.diagonal(kz.T @ np.linalg.solve(Kzz, kz))
    kept = np.diagonal(kz.T @ np.linalg.solve(Kzz + Kzx @ Kzx.T / NOISE, kz))
    return mean, float(KERNEL.variance) - lost + kept


@eqx.filter_jit
def _fitted(kernel, noise, z, used, x, y, points):
    phi = nystrom.feature_map(kernel, z, used)
    belief = nystrom.condition(phi, noise, x, y)
    at = jax.vmap(lambda p: nystrom.predict(phi, belief, p))(points)
    weights = nystrom.weights(phi, belief)
    return phi.count, weights, dot(gram(kernel, points, phi.z), weights), *at


def fitted(kernel, noise, *rows):
    """How many features some points have, their weights, the function that these stand for, and mean and
    variance, both at others."""
    return _fitted(kernel, jnp.asarray(noise, float), *rows)


def first(count, of=80):
    """Which points are used."""
    return np.arange(of) < count


SELECTORS = {"greedy": nystrom.greedy, "random": nystrom.random}


@functools.cache
def chosen(name, size):
    """Chooses so many points: a function of a key, a kernel and all points."""
    select = SELECTORS[name]
    return eqx.filter_jit(lambda key, kernel, points: select(key, kernel, points, size))


def uniform(seed, count, dim=2):
    return jnp.asarray(np.random.default_rng(seed).random((count, dim)), float)


def tolerance(x64, single, double=1e-9):
    return double if x64 else single


# ---------------------------------------------------------------- the posterior


def test_the_posterior_and_what_is_sent_are_the_papers(x64):
    x, y, points = data()
    count, _, sent, mean, variance = fitted(KERNEL, NOISE, x, first(40), x, y, points)
    assert count == 40
    expected, spread = sketched(x[:40], x, y, points)
    np.testing.assert_allclose(mean, expected, atol=tolerance(x64, 2e-4))
    np.testing.assert_allclose(variance, spread, rtol=tolerance(x64, 5e-3), atol=1e-6)
    np.testing.assert_allclose(sent, expected, atol=tolerance(x64, 2e-4))


def test_with_every_observation_inducing_it_is_the_exact_process(x64):
    x, y, points = data()
    *_, mean, variance = fitted(KERNEL, NOISE, x, first(80), x, y, points)
    gain = np.linalg.solve(k(x, x) + NOISE * np.eye(80), k(x, points)).T
    exact = float(KERNEL.variance) - np.sum(gain * k(points, x), axis=1)
    np.testing.assert_allclose(mean, gain @ np.asarray(y, float), atol=tolerance(x64, 1e-3))
    np.testing.assert_allclose(variance, exact, rtol=tolerance(x64, 2e-2), atol=1e-6)


def test_repeated_points_get_no_feature_and_change_nothing(x64):
    x, y, _ = data()
    once, *_, mean, _ = fitted(KERNEL, NOISE, x, first(20), x, y, x)
    z = np.concatenate([x[:20], x[:20], x[:5], x[45:]])
    twice, *_, other, _ = fitted(KERNEL, NOISE, z, first(45), x, y, x)
    assert once == twice == 20
    np.testing.assert_allclose(mean, other, atol=tolerance(x64, 1e-4))


def test_crowded_points_leave_everything_finite_and_variance_between_its_bounds():
    # Length scale as long as the cube: a few dozen directions in 80 points.
    x = uniform(3, 80)
    kernel = SquaredExponential(1.0, 1.3)
    count, *_, mean, variance = fitted(kernel, 1e-4, x, first(80), x, x[:, 0], x)
    assert 5 < count < 60
    np.testing.assert_allclose(mean, x[:, 0], atol=2e-2)
    assert (variance >= 0).all()
    assert (variance < 1e-3).all()


def test_values_that_are_not_finite_are_none():
    x, y, _ = data()
    failed = np.where(first(20), y, np.nan)
    mean = fitted(KERNEL, NOISE, x, first(10), x, failed, x)[3]
    expected, _ = sketched(x[:10], x[:20], y[:20], x)
    np.testing.assert_allclose(mean, expected, atol=2e-4)


def test_without_inducing_points_it_is_the_prior():
    x, y, _ = data()
    count, weights, _, mean, variance = fitted(KERNEL, NOISE, x, first(0), x, y, x)
    assert count == 0
    np.testing.assert_array_equal(weights, 0)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_array_equal(variance, KERNEL.variance)


def test_clients_in_a_batch_are_the_clients():
    scales = [0.1, 0.15, 0.2]
    ys = [data(seed)[1] for seed in range(3)]
    x, *_ = data()

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def together(scale, y, x):
        kernel = SquaredExponential(scale, 1.3)
        return jnp.stack(_fitted(kernel, jnp.asarray(NOISE), x, first(15), x, y, x)[3:])

    found = together(jnp.asarray(scales), jnp.stack(ys), x)
    for i, scale in enumerate(scales):
        kernel = SquaredExponential(scale, 1.3)
        alone = fitted(kernel, NOISE, x, first(15), x, ys[i], x)[3:]
        np.testing.assert_allclose(found[i], alone, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan")])
def test_noise_must_be_positive(noise):
    x = uniform(0, 80)
    phi = eqx.filter_eval_shape(nystrom.feature_map, KERNEL, x)
    with pytest.raises(ValueError, match="noise"):
        nystrom.condition(phi, noise, x, x[:, 0])


# ---------------------------------------------------------------- which points


@pytest.mark.parametrize("selector", SELECTORS)
def test_what_is_left_is_the_conditional_variance(selector, key, x64):
    points = uniform(0, 150)
    found = chosen(selector, 30)(key, KERNEL, points)
    z = np.asarray(points)[np.asarray(found.indices)]
    kz = k(z, points)
    left = float(KERNEL.variance) - np.einsum("mp,mp->p", kz, np.linalg.solve(k(z, z), kz))
    assert found.count == 30
    assert len(set(found.indices.tolist())) == 30
    np.testing.assert_allclose(found.residual, left, atol=tolerance(x64, 2e-5))


def test_greedy_takes_the_largest_variance_left(key):
    points = uniform(0, 150)
    order = chosen("greedy", 30)(key, KERNEL, points).indices.tolist()
    for n in range(1, 12):
        z = np.asarray(points)[order[:n]]
        kz = k(z, points)
        left = float(KERNEL.variance) - np.einsum("mp,mp->p", kz, np.linalg.solve(k(z, z), kz))
        assert left[order[n]] > left.max() - 1e-4


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selection_ends_where_nothing_is_left(selector, key):
    points = jnp.asarray(
        np.tile([[0.1, 0.1], [0.9, 0.2], [0.5, 0.5], [0.1, 0.9], [0.9, 0.9]], (30, 1))
    )
    found = chosen(selector, 30)(key, SquaredExponential(0.01, 1.3), points.astype(float))
    assert found.count == 5
    assert (np.asarray(found.indices)[5:] == found.indices[0]).all()
    np.testing.assert_array_equal(found.rows[5:], 0)


def test_random_pivots_are_drawn_in_proportion_to_what_is_left():
    points = jnp.asarray([[0.0], [0.1], [0.25], [0.9]])
    kernel = SquaredExponential(0.2)
    keys = jr.split(jr.key(5), 20_000)
    pairs = np.asarray(
        jax.jit(jax.vmap(lambda q: nystrom.random(q, kernel, points, 2).indices))(keys)
    )
    counts, expected = np.zeros((4, 4)), np.zeros((4, 4))
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    K = k(points, points, kernel)
    for first in range(4):
        left = 1 - K[first] ** 2
        left[first] = 0
        expected[first] = left / left.sum() / 4
    off = ~np.eye(4, dtype=bool)
    assert counts[~off].sum() == 0
    assert stats.chisquare(counts[off], expected[off] * len(keys)).pvalue > 1e-3


@pytest.mark.slow
def test_pivoting_needs_fewer_points_than_uniform_draws(key):
    points, kernel = uniform(0, 300), Matern52(0.2)

    @jax.jit
    @jax.vmap
    def left(key):
        """Of the variance at all points, by each way of choosing."""
        selections = [select(key, kernel, points, 40) for select in SELECTORS.values()]
        phi = nystrom.feature_map(kernel, jr.choice(key, points, (40,), replace=False))
        uniform = jnp.sum(1 - jnp.sum(jax.vmap(phi)(points) ** 2, axis=1))
        return *(jnp.sum(selection.residual) for selection in selections), uniform

    greedy, random, uniform_draws = (np.mean(total) for total in left(jr.split(key, 8)))
    assert greedy < 0.8 * uniform_draws
    assert random < 0.9 * uniform_draws


# ---------------------------------------------------------------- a random set


def test_points_are_drawn_independently_with_their_probabilities():
    probabilities = jnp.asarray([0.0, 0.2, 0.5, 0.9, 1.0, 3.0, -1.0, jnp.nan])
    keys = jr.split(jr.key(1), 20_000)
    drawn = jax.jit(jax.vmap(lambda q: nystrom.draw(q, probabilities)))(keys)
    held = np.arange(8)[None] < np.asarray(drawn.count)[:, None]
    member = np.zeros((len(keys), 8), bool)
    rows = np.nonzero(held)[0]
    member[rows, np.asarray(drawn.indices)[held]] = True
    assert (member.sum(1) == drawn.count).all()
    np.testing.assert_array_equal(member[:, [0, 6, 7]], False)
    np.testing.assert_array_equal(member[:, [4, 5]], True)
    deviation = 0.5 / np.sqrt(len(keys))
    np.testing.assert_allclose(member[:, 1:4].mean(0), probabilities[1:4], atol=4 * deviation)
    joint = (member[:, 1] & member[:, 2]).mean()
    assert abs(joint - 0.1) < 4 * deviation


def test_a_full_buffer_is_an_error_and_not_a_smaller_set():
    draw, probabilities = eqx.filter_jit(nystrom.draw), jnp.ones(6)
    with pytest.raises(Exception, match="buffer of 5"):
        jax.block_until_ready(draw(jr.key(0), probabilities, 5))
    assert draw(jr.key(0), probabilities, 6).count == 6
    roomy = draw(jr.key(0), probabilities, 9)
    assert roomy.count == 6
    assert roomy.indices.shape == (9,)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_whole_numbers(size):
    points = uniform(0, 5, 1)
    with pytest.raises(ValueError, match="size"):
        nystrom.greedy(jr.key(0), KERNEL, points, size)
    with pytest.raises(ValueError, match="capacity"):
        nystrom.draw(jr.key(0), points[:, 0], size)


# ---------------------------------------------------------------- in the place of Fourier features


@pytest.mark.slow
def test_a_smooth_kernel_needs_few_features(key):
    kernel = SquaredExponential(0.3)
    points = uniform(0, 40)
    exact = k(points, points, kernel)

    def error(basis):
        features = jax.jit(lambda key: jax.vmap(basis(key, kernel, 2, 60))(points))
        values = np.asarray(features(key))
        return np.abs(values @ values.T - exact).max()

    assert error(nystrom.basis()) < 1e-3
    assert error(sine_cosine) > 1e-2


@pytest.mark.slow
def test_a_sampled_function_on_them_is_climbed(key):
    grid = np.stack(np.meshgrid(*2 * [np.linspace(0, 1, 60)]), -1).reshape(-1, 2)

    @jax.jit
    def climb(key, grid):
        phi = nystrom.basis(candidates=300)(key, SquaredExponential(0.3), 2, 40)
        belief = posterior.prior(40, 1e-2)
        function = FourierFunction(phi, posterior.sample(key, belief))
        x, value = maximize.maximize(function, Cube(2), Cube(2).candidates(key, 1000))
        return value, function(x), jax.vmap(function)(grid)

    value, there, elsewhere = climb(key, jnp.asarray(grid, float))
    assert value >= elsewhere.max() - 1e-3
    np.testing.assert_allclose(there, value, rtol=1e-4)


def test_features_of_any_function_of_two_points_are_those_of_the_kernel_that_it_is(key):
    kernel, x = SquaredExponential(0.3), jnp.array([0.3, 0.8])

    @jax.jit
    def both(key):
        make = nystrom.basis(candidates=60)
        return [make(key, k, 2, 20)(x) for k in (kernel, lambda x, z: kernel(x, z))]

    mine, own = both(key)
    np.testing.assert_allclose(own, mine, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_fts_runs_on_them_and_optimizes():
    features = Fixed(SquaredExponential(0.2), size=40, noise=1e-3, basis=nystrom.basis())
    side = np.linspace(0, 1, 30)
    domain = Finite(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2))
    fts = FTS(domain, 3, features=features)
    _, trace = run(fts, Same(branin_rescaled()), 40, jr.key(2), initial=4)
    assert best_so_far(trace.values)[-1].min() > 1.0


# ---------------------------------------------------------------- over sub-regions


SIX = Regions((3, 2))
split_in_six = jax.jit(lambda x, y, margin: nystrom.split(SIX, x, y, 40, margin))


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_every_region_has_the_observations_in_it_and_around(margin):
    regions = SIX
    x = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    y = np.arange(50.0)
    y[7] = np.nan
    xs, ys = split_in_six(x, jnp.asarray(y), margin)
    for region in range(6):
        lower, upper = np.asarray(regions.lower[region]), np.asarray(regions.upper[region])
        inside = ((x >= lower - margin) & (x <= upper + margin)).all(1) & np.isfinite(y)
        found = np.asarray(ys[region])
        assert sorted(found[np.isfinite(found)]) == sorted(y[inside])
        held = np.isfinite(found)
        np.testing.assert_array_equal(xs[region][held], x[found[held].astype(int)])


def test_a_region_with_too_many_observations_stops_the_run():
    x, y = jnp.full((9, 2), 0.1), jnp.ones(9)
    with pytest.raises(Exception, match="more than 8"):
        jax.block_until_ready(jax.jit(lambda: nystrom.split(Regions((2, 1)), x, y, 8))())


def test_sketches_of_sub_regions_are_the_exact_process_where_they_are_asked():
    # Of a domain twenty length scales wide.
    kernel, noise, regions = SquaredExponential(0.05), 1e-2, Regions((3, 3))
    rng = np.random.default_rng(0)
    x, tested = rng.random((400, 2)), rng.random((200, 2))
    y = np.sin(20 * x[:, 0]) + np.cos(15 * x[:, 1]) + 0.1 * rng.normal(size=400)

    def gram(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2 / 0.05**2)

    K, k = gram(x, x) + noise * np.eye(400), gram(x, tested)
    mean, variance = k.T @ np.linalg.solve(K, y), 1 - (k * np.linalg.solve(K, k)).sum(0)

    @jax.jit
    def predicted(x, y, tested):
        xs, ys = nystrom.split(regions, x, y, 320, 0.25)

        def sketch(x, y):
            phi = nystrom.feature_map(kernel, x, jnp.isfinite(y))
            return phi, nystrom.condition(phi, noise, x, y)

        sketches = jax.vmap(sketch)(xs, ys)

        def predict(p):
            own = jax.tree.map(lambda leaf: leaf[regions.assign(p)], sketches)
            return nystrom.predict(*own, p)

        return jax.vmap(predict)(tested)

    found = predicted(*(jnp.asarray(a) for a in (x, y, tested)))
    np.testing.assert_allclose(found[0], mean, atol=2e-2)
    np.testing.assert_allclose(found[1], variance, rtol=5e-2, atol=1e-3)
