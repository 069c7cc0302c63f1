"""Which programs hold kernels, and what `vmap` and derivatives make of one."""

import functools
import importlib.util
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube
from jaxbo.kernels.accelerated import choice
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs.compiled import run

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

TRITON = "@__gpu$xla.gpu.triton"


# ---------------------------------------------------------------- a kernel of one line


def plain(common, own, other):
    return jnp.sum(common * own) + other**2, own


def kernel(common, own, other, *, interpret):
    """Batched by hand; it takes note of the shapes it is called with."""
    assert interpret
    SEEN.append(own.shape)
    return jnp.sum(common[None, :] * own, axis=1) + other**2, own


SEEN: list = []
COMMON, OWN, OTHER = jnp.arange(3.0), jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0)


@pytest.fixture
def mapped():
    SEEN.clear()
    return choice.mapped(plain, kernel, interpret=True)


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), a, b)


@pytest.mark.parametrize("axes", [(None, 0, 0), (None, 0, None)])
@pytest.mark.parametrize("compiled", [False, True])
def test_agents_that_share_what_is_common_are_one_call(axes, compiled, mapped):
    arguments = COMMON, OWN, OTHER if axes[2] == 0 else OTHER[2]
    f = jax.vmap(mapped, axes)
    found = (jax.jit(f) if compiled else f)(*arguments)
    assert SEEN == [(4, 3)]
    same(found, jax.vmap(plain, axes)(*arguments))


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, None, 0)])
def test_other_agents_are_mapped_plainly(axes, mapped):
    arguments = jnp.stack([COMMON] * 4) if axes[0] == 0 else COMMON, OWN, OTHER
    arguments = (arguments[0], OWN if axes[1] == 0 else OWN[1], OTHER)
    found = jax.jit(jax.vmap(mapped, axes))(*arguments)
    assert SEEN == []
    same(found, jax.vmap(plain, axes)(*arguments))


def test_one_agent_is_plain(mapped):
    same(mapped(COMMON, OWN[0], OTHER[0]), plain(COMMON, OWN[0], OTHER[0]))
    assert SEEN == []


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ((None, 0, 0), (8, 3)),  # all seeds and agents at once
        ((None, 0, None), (8, 3)),
        ((0, 0, 0), (4, 3)),  # one seed after the other
        ((0, None, 0), None),  # agents that are the same for all seeds
    ],
)
def test_seeds_of_agents(axes, shape, mapped):
    arrays = COMMON, OWN, OTHER
    arguments = [
        a if axis is None else jnp.stack([a, a + 1]) for a, axis in zip(arrays, axes, strict=True)
    ]
    inner = (None, 0, 0)
    found = jax.jit(jax.vmap(jax.vmap(mapped, inner), axes))(*arguments)
    assert [shape] * (shape is not None) == SEEN
    same(found, jax.vmap(jax.vmap(plain, inner), axes)(*arguments))


def test_derivatives_are_those_of_the_plain_function(mapped):
    def loss(function):
        return lambda own: jnp.sum(jax.vmap(function, (None, 0, 0))(COMMON, own, OTHER)[0] ** 2)

    same(jax.grad(loss(mapped))(OWN), jax.grad(loss(plain))(OWN))
    same(jax.hessian(loss(mapped))(OWN), jax.hessian(loss(plain))(OWN))
    one = lambda f: jax.vmap(jax.grad(lambda w: f(COMMON, w, 1.0)[0]))(OWN)  # noqa: E731
    same(one(mapped), one(plain))


# ---------------------------------------------------------------- whole runs

ROUNDS, AGENTS = 2, 3
METHODS = {
    "FTS": lambda: FTS(Cube(2), AGENTS, features=Fixed(size=10), candidates=40),
    "DP-FTS-DE": lambda: DPFTSDE(
        Cube(2), AGENTS, features=Fixed(size=10, capacity=ROUNDS), candidates=40
    ),
}


def values(name, **options):
    def objective(key, agent, x):
        return -jnp.sum((x - 0.5) ** 2) + 0.01 * jr.normal(key)

    return lambda key: run(METHODS[name](), objective, ROUNDS, key, **options)[1].values


@functools.cache
def without_kernels(name):
    """The program of a run as it is without kernels, if there is no GPU: traced, and compiled."""
    traced = jax.jit(values(name)).trace(jr.key(0))
    return traced, traced.lower().compile()


def with_kernels(name):
    """The same of a run that has kernels."""
    traced = jax.jit(values(name)).trace(jr.key(0))
    assert "jaxbo_kernel" in str(traced.jaxpr)
    return traced.lower().compile()


def test_kernels_need_a_gpu_and_triton(monkeypatch):
    def devices(*capabilities):
        found = [SimpleNamespace(compute_capability=its) for its in capabilities]
        monkeypatch.setattr(jax, "devices", lambda platform: {"cuda": found}[platform])

    assert choice.PLATFORMS == ("cuda",)
    devices("9.0", "8.0")
    assert choice.platforms() == ("cuda",)
    devices("10.3")
    assert choice.platforms() == ("cuda",)
    devices("9.0", "7.5")
    assert choice.platforms() == ()
    devices("9.0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choice.platforms() == ()


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of a machine without a GPU")
def test_without_a_gpu_nothing_of_kernels_is_traced():
    assert choice.platforms() == ()
    traced, _ = without_kernels("FTS")
    assert "jaxbo_kernel" not in str(traced.jaxpr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "FTS" else pytest.mark.full) for n in METHODS]
)
def test_a_run_is_the_same_with_kernels(name, programs_for, key):
    expected = without_kernels(name)[1](key)
    programs_for("cpu")
    np.testing.assert_allclose(with_kernels(name)(key), expected, atol=1e-3)


@pytest.mark.full
def test_devices_have_kernels_of_their_own(programs_for, key):
    expected = without_kernels("DP-FTS-DE")[1](key)
    programs_for("cpu")
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("agents",))
    found = jax.jit(values("DP-FTS-DE", mesh=mesh, chunk=1))(key)
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "chunk"),
    [
        ("FTS", 2, None),
        ("DP-FTS-DE", 3, 2),
        pytest.param("FTS", 2, 2, marks=pytest.mark.full),
        pytest.param("DP-FTS-DE", 3, None, marks=pytest.mark.full),
    ],
)
def test_a_program_for_a_gpu_holds_the_kernels(name, count, chunk, programs_for, for_cuda, key):
    programs_for("cuda")
    assert for_cuda(values(name, chunk=chunk), key).count(TRITON) == count


@pytest.mark.slow
def test_a_program_for_a_cpu_has_the_same_instructions_with_and_without_kernels(programs_for):
    def instructions(program):
        text = program.as_text()
        return sorted(re.findall(r"(?m)^ +(?:ROOT )?%?\S+ = .*? ([a-z][a-z0-9-]*)\(", text))

    without = instructions(without_kernels("FTS")[1])
    assert len(without) > 1000
    programs_for("cuda")
    assert instructions(with_kernels("FTS")) == without


@pytest.mark.slow
def test_an_exported_program_is_plain(programs_for, key):
    expected = without_kernels("FTS")[1](key)
    programs_for("cuda")
    exported = jax.export.export(jax.jit(values("FTS")), platforms=("cpu", "cuda", "tpu"))(key)
    assert TRITON not in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(key), expected)
