"""Processes explored where their variance is largest, beside dense algebra in float64."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing import exploration
from jaxbo.kernels.choosing.exploration import Anywhere, OnPoints
from jaxbo.kernels.processes.covariance import SquaredExponential

pytestmark = pytest.mark.float64

CAPACITY, NOISE, SCALE = 8, 1e-2, 0.3
POINTS = np.random.default_rng(3).random((60, 2))
KERNEL = SquaredExponential(SCALE)
WAYS = {
    "points": OnPoints(capacity=CAPACITY, domain=Finite(POINTS)),
    "anywhere": Anywhere(capacity=CAPACITY, domain=Cube(2), candidates=200),
}


def dense(x, y, points=POINTS):
    """Mean and variance at some points."""

    def gram(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2 / SCALE**2)

    x, y = np.asarray(x, float), np.asarray(y, float)
    K, k = gram(x, x) + NOISE * np.eye(len(x)), gram(x, points)
    return k.T @ np.linalg.solve(K, y), 1 - np.einsum("np,np->p", k, np.linalg.solve(K, k))


def read(way, design, mean):
    """Its values at `POINTS`."""
    return mean if way == "points" else expanded(design, mean, jnp.asarray(POINTS))


@jax.jit
def expanded(design, mean, points):
    return jax.vmap(exploration._expanded(design, mean))(points)


@functools.cache
def compiled(way, name):
    """A method of one of the ways. Modules with arrays cannot be hashed, as `jit` would."""
    return jax.jit(lambda *args: getattr(WAYS[way], name)(*args))


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def grown(way, points):
    """A design of some points, whatever the variance says."""
    step = compiled(way, "designed")
    design = WAYS[way].no_design(KERNEL, jnp.asarray(NOISE))
    for x in points:
        design = step(design, jnp.asarray(x), jnp.ones((), bool))
    return design


@pytest.mark.parametrize("count", [1, 5])
def test_a_belief_of_its_own_is_the_dense_posterior(way, count, x64):
    ways = WAYS[way]
    y = np.random.default_rng(0).normal(size=count)
    belief = ways.start(KERNEL, jnp.asarray(NOISE))
    observe = compiled(way, "observe")
    for x, value in zip(POINTS[:count], y, strict=True):
        belief = observe(belief, jnp.asarray(x), jnp.asarray(value))
    mean, variance = dense(POINTS[:count], y)
    tolerance = 1e-9 if x64 else 2e-4
    np.testing.assert_allclose(read(way, None, ways.mean(belief)), mean, atol=tolerance)
    if way == "points":
        np.testing.assert_allclose(belief.variance, variance, atol=tolerance)


def test_the_answers_to_a_design_are_the_dense_posterior_however_many_there_are(way, x64):
    design = grown(way, POINTS[:6])
    assert design.count == 6
    y = np.random.default_rng(0).normal(size=6)
    answers = exploration.no_answers(design)
    answered = jax.jit(exploration.answered)
    for n in range(6):
        answers = answered(design, answers, jnp.asarray(POINTS[n]), jnp.asarray(y[n]))
        assert answers.count == n + 1
        mean, _ = dense(POINTS[: n + 1], y[: n + 1])
        found = read(way, design, answers.mean)
        np.testing.assert_allclose(found, mean, atol=1e-9 if x64 else 2e-4)


@pytest.mark.slow
def test_the_next_point_of_a_design_has_the_largest_variance(way, x64):
    design = grown(way, POINTS[:5])
    x = np.asarray(compiled(way, "explore")(jr.key(1), design))
    places = POINTS if way == "points" else np.random.default_rng(1).random((4000, 2))
    _, variance = dense(POINTS[:5], np.zeros(5), places)
    _, here = dense(POINTS[:5], np.zeros(5), x[None])
    assert here[0] > variance.max() - (1e-9 if x64 and way == "points" else 1e-4)


@pytest.mark.parametrize(
    ("n", "x", "y"),
    [
        (2, np.full(2, np.nan), np.nan),
        (2, POINTS[3], 1.0),  # not yet
        (2, POINTS[1], 1.0),  # once more
        (5, POINTS[5], 1.0),  # nobody was sent there
    ],
    ids=["absent", "ahead", "behind", "beyond"],
)
def test_what_is_not_the_answer_leaves_no_mark(way, n, x, y):
    design = grown(way, POINTS[:5])
    answers = exploration.no_answers(design)
    answered = jax.jit(exploration.answered)
    for i in range(n):
        answers = answered(design, answers, jnp.asarray(POINTS[i]), jnp.ones(()))
    after = answered(design, answers, jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_array_equal(after.mean, answers.mean)
    assert after.count == n


def test_a_failed_answer_is_taken_for_the_mean(way, x64):
    design, y = grown(way, POINTS[:4]), np.array([1.0, np.nan, -1.0, np.nan])
    answers = exploration.no_answers(design)
    answered = jax.jit(exploration.answered)
    for n in range(4):
        answers = answered(design, answers, jnp.asarray(POINTS[n]), jnp.asarray(y[n]))
        assert answers.count == n + 1
        if np.isnan(y[n]):
            y[n] = dense(POINTS[:n], y[:n], POINTS[n : n + 1])[0][0]
    found = read(way, design, answers.mean)
    np.testing.assert_allclose(found, dense(POINTS[:4], y)[0], atol=1e-9 if x64 else 2e-4)


def test_a_full_buffer_takes_no_more(way):
    ways, design = WAYS[way], grown(way, POINTS[:CAPACITY])
    full = compiled(way, "designed")(design, jnp.asarray(POINTS[CAPACITY]), jnp.ones((), bool))
    belief = ways.start(KERNEL, jnp.asarray(NOISE))
    observe = compiled(way, "observe")
    for x in POINTS[:CAPACITY]:
        belief = observe(belief, jnp.asarray(x), jnp.ones(()))
    after = observe(belief, jnp.asarray(POINTS[CAPACITY]), jnp.ones(()))
    for old, new in ((design, full), (belief, after)):
        pairs = zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_a_point_that_is_not_wanted_leaves_a_design_as_it_was(way):
    design = grown(way, POINTS[:3])
    same = compiled(way, "designed")(design, jnp.asarray(POINTS[3]), jnp.zeros((), bool))
    pairs = zip(jax.tree.leaves(design), jax.tree.leaves(same), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


def test_no_more_is_known_at_a_point_than_its_observations_tell():
    # Eight of one point: rounding must not make it surer than the mean of eight.
    ways = WAYS["points"]
    belief = ways.start(KERNEL, jnp.asarray(NOISE))
    observe = compiled("points", "observe")
    for n in range(CAPACITY):
        belief = observe(belief, jnp.asarray(POINTS[0]), jnp.ones(()))
        least = NOISE / (NOISE + n + 1)
        np.testing.assert_allclose(belief.variance[0], least, rtol=1e-3)
        assert (belief.variance >= least * (1 - 1e-6)).all()


def test_means_are_added_up(way):
    design = grown(way, POINTS[:3])
    both = []
    for y in ((1.0, 2.0, 3.0), (0.0, -1.0, 1.0)):
        answers = exploration.no_answers(design)
        for n in range(3):
            x = jnp.asarray(POINTS[n])
            answers = jax.jit(exploration.answered)(design, answers, x, jnp.asarray(y[n]))
        both.append(answers.mean)
    summed = exploration.total(jnp.stack(both), jnp.asarray([0.25, 0.75]))
    expected, _ = dense(POINTS[:3], [0.25, -0.25, 1.5])
    np.testing.assert_allclose(read(way, design, summed), expected, atol=2e-4)
