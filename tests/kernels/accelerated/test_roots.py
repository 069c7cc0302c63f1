"""The kernels of a posterior's root against NumPy in float64, and in `condition` the plain one."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.accelerated import roots
from jaxbo.kernels.processes import posterior

AGENTS = 3
MORE_VECTORS = [
    *((1, 5, up, not up) for up in (True, False)),
    *((6, 16, True, down) for down in (True, False)),
    *((7, 100, up, True) for up in (True, False)),
]


@pytest.mark.parametrize("size", [1, 16, 37, pytest.param(100, marks=pytest.mark.full)])
def test_a_root_is_updated_as_in_dense_algebra(size, key):
    keys = jr.split(key, 2)
    matrix = jnp.eye(size)[None] + 0.1 * jr.normal(keys[0], (AGENTS, size, size))
    phi, noise = jr.normal(keys[1], (AGENTS, size)), jnp.asarray([1e-4, 1e-2, 1.0])
    found, u, s = roots.told(matrix, phi, noise, interpret=True)
    for i in range(AGENTS):
        R, f, e = (np.asarray(a[i], np.float64) for a in (matrix, phi, noise))
        v = R.T @ f
        expected = R - np.outer(R @ v, v) / (v @ v + e + np.sqrt(e * (v @ v + e)))
        np.testing.assert_allclose(found[i], expected, atol=1e-5)
        np.testing.assert_allclose(u[i], R @ v, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(s[i], v @ v + e, rtol=1e-5)


def test_features_of_zero_change_no_bit_of_a_root(key):
    matrix = jr.normal(key, (2, 20, 20))
    found, u, s = roots.told(matrix, jnp.zeros((2, 20)), jnp.full(2, 0.1), interpret=True)
    np.testing.assert_array_equal(found, matrix)
    np.testing.assert_array_equal(u, 0)
    np.testing.assert_allclose(s, 0.1, rtol=1e-6)


@pytest.mark.parametrize(
    ("capacity", "size", "ascending", "descending"),
    [
        (1, 5, True, True),
        (6, 16, False, True),
        (7, 100, True, False),
        *(pytest.param(*case, marks=pytest.mark.full) for case in MORE_VECTORS),
    ],
)
def test_vectors_go_through_the_factors_that_are_in_use(capacity, size, ascending, descending, key):
    keys = jr.split(key, 3)
    rows = jr.normal(keys[0], (AGENTS, capacity, size))
    shares = jr.uniform(keys[1], (AGENTS, capacity)) / size
    count = jnp.asarray([0, capacity // 2, capacity])
    z = jr.normal(keys[2], (AGENTS, size))
    found = roots.through(
        rows, shares, count, z, ascending=ascending, descending=descending, interpret=True
    )
    for i in range(AGENTS):
        R = np.eye(size)
        for v, share in list(zip(np.asarray(rows[i]), np.asarray(shares[i]), strict=True))[
            : count[i]
        ]:
            R = R @ (np.eye(size) - np.outer(v, v) * share)
        expected, now = [], np.asarray(z[i], np.float64)
        for matrix, wanted in ((R.T, ascending), (R, descending)):
            if wanted:
                now = matrix @ now
                expected.append(now)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- in a posterior

SIZE, POINTS = 12, 4


def told(key, capacity, failed=()):
    """Agents after some observations, and a draw of each."""
    rng = np.random.default_rng(0)
    phis, ys = rng.normal(size=(POINTS, AGENTS, SIZE)), rng.normal(size=(POINTS, AGENTS))
    for point, agent in failed:
        ys[point, agent] = np.nan
    phis, ys = jnp.asarray(phis, float), jnp.asarray(ys, float)
    start = posterior.prior(SIZE, 1e-2, capacity=capacity)

    def of_all(phis, ys):
        every = jax.tree.map(lambda a: jnp.broadcast_to(a, (AGENTS, *a.shape)), start)
        step = lambda p, item: (jax.vmap(posterior.condition)(p, *item), None)  # noqa: E731
        last = jax.lax.scan(step, every, (phis, ys))[0]
        return last, jax.vmap(posterior.sample)(jr.split(key, AGENTS), last)

    return of_all, (phis, ys)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.full), POINTS])
def test_a_posterior_is_the_same_with_the_kernels(capacity, programs_for, key):
    of_all, data = told(key, capacity, failed=[(1, 0), (3, 2)])
    plain = jax.jit(of_all)(*data)
    programs_for("cpu")
    of_all, _ = told(key, capacity)
    traced = jax.jit(of_all).trace(*data)
    assert "jaxbo_kernel" in str(traced.jaxpr)
    found = traced.lower().compile()(*data)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, found, plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacity", "count"), [pytest.param(None, 1, marks=pytest.mark.full), (POINTS, 2)]
)
def test_a_gpu_is_given_one_kernel_to_condition_and_one_to_sample_of_a_product(
    capacity, count, programs_for, for_cuda, key
):
    programs_for("cuda")
    of_all, data = told(key, capacity)
    assert for_cuda(of_all, *data).count("@__gpu$xla.gpu.triton") == count


def test_a_root_that_many_share_takes_no_kernel(programs_for, key):
    programs_for("cuda")
    known = posterior.prior(SIZE, 1e-2, capacity=POINTS)
    known = posterior.condition(known, jr.normal(key, (SIZE,)), jnp.ones(()))
    points = jr.normal(key, (AGENTS, SIZE))
    at_all = jax.vmap(lambda p, phi: posterior.predict(p, phi), (None, 0))
    assert "jaxbo_kernel" not in str(jax.make_jaxpr(at_all)(known, points))


@pytest.mark.parametrize("size", [roots.LARGEST + 1])
def test_a_matrix_that_is_too_large_takes_no_kernel(size, programs_for):
    programs_for("cuda")
    known = jax.tree.map(lambda a: a[None], posterior.prior(size, 1e-2))
    data = jnp.ones((1, size)), jnp.ones((1,))
    assert "jaxbo_kernel" not in str(jax.make_jaxpr(jax.vmap(posterior.condition))(known, *data))
