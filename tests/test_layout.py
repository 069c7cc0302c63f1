"""Agents in chunks and over devices, of which conftest simulates eight: the same results."""

import os
import re
import socket
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxbo import metrics
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.layout import layout, total
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs.compiled import run
from jaxbo.runs.trace import summary
from tests import stepped
from tests.walk import PrivateWalk, SumWalk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

DOMAIN = Finite(np.random.default_rng(2).random((60, 2)))
SMALL = Fixed(size=16)
OWN = Fitted(80, size=16, refit_every=None)
NOISE = Mechanism(0.1, 5.0, Poisson(0.9))
METHODS = {
    "FTS": lambda n: FTS(DOMAIN, n, features=SMALL),
    "DP-FTS-DE": lambda n: DPFTSDE(DOMAIN, n, NOISE, features=SMALL),
    "CEPE": lambda n: CEPE(DOMAIN, n, [1.0, 2.0, 2.0, 3.0]),
    "FTS, once": lambda n: FTS(DOMAIN, n, features=SMALL, once=True),
    "FTS, ranked": lambda n: FTS(DOMAIN, n, features=SMALL, own=OWN, peers=Ranked()),
    "FTS, pooled": lambda n: FTS(DOMAIN, n, features=SMALL, own=OWN, pooled=Pooled(8)),
    "two targets, once": lambda n: FTS(DOMAIN, n, features=SMALL, targets=2, once=True),
    "two targets": lambda n: FTS(DOMAIN, n, features=SMALL, targets=2),
    "random search": lambda n: RandomSearch(DOMAIN, n),
    "EGP-TS": lambda n: EGP(DOMAIN, OWN, workers=n),
    # Sums with noise, compiled in no time: of messages, and as private methods make them.
    "private walk": lambda n: PrivateWalk(DOMAIN, n, mechanism=NOISE),
    "sum walk": lambda n: SumWalk(DOMAIN, n, mechanism=NOISE),
}


def devices(*shape):
    return Mesh(np.asarray(jax.devices()).reshape(shape), ("a", "b", "c")[: len(shape)])


def bowl(key, agent, x):
    return -jnp.sum((x - 0.05 * agent.astype(x.dtype)) ** 2) + 0.01 * jr.normal(key, dtype=x.dtype)


# ---------------------------------------------------------------- one map


def summed(shared, key, x):
    return jr.normal(jr.fold_in(key, 1)) + shared["weight"] * jnp.sum(x), {"x": x}


@pytest.mark.parametrize(
    ("shape", "agents", "chunk"),
    [
        (None, 12, 5),
        pytest.param(None, 12, 100, marks=pytest.mark.full),
        (None, 1, 1),
        pytest.param((8,), 16, None, marks=pytest.mark.full),
        ((2, 4), 16, 2),
        ((8,), 13, None),
        ((8,), 3, 1),
        ((2, 2, 2), 29, 3),
    ],
)
def test_a_function_of_one_agent_is_mapped_over_all(shape, agents, chunk, key):
    each = layout(None if shape is None else devices(*shape), chunk)
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(agents))
    x = jr.normal(key, (agents, 3))
    shared = {"weight": jnp.asarray(2.0), "nothing": None}
    axes = (None, 0, 0)
    mapped = jax.jit(lambda *a: each(summed, in_axes=axes)(*a))(shared, keys, x)
    expected = jax.vmap(summed, in_axes=axes)(shared, keys, x)
    assert jax.tree.structure(mapped) == jax.tree.structure(expected)
    np.testing.assert_allclose(mapped[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mapped[1]["x"], x)


@pytest.mark.parametrize(
    ("shape", "agents", "chunk"),
    [(None, 12, None), (None, 12, 5), ((2, 4), 16, None), ((8,), 13, 1), ((2, 2, 2), 29, 3)],
)
def test_a_sum_over_agents_counts_each_once(shape, agents, chunk, key):
    each = layout(None if shape is None else devices(*shape), chunk)
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(agents))
    x = jr.normal(key, (agents, 3))
    shared = {"weight": jnp.asarray(2.0), "nothing": None}
    # Of rows of zeros that are added this is not finite.
    one = lambda shared, key, x: (summed(shared, key, x), 1 / x)  # noqa: E731
    found = jax.jit(total(each, one, (None, 0, 0)))(shared, keys, x)
    rows = jax.vmap(one, in_axes=(None, 0, 0))(shared, keys, x)
    expected = jax.tree.map(lambda leaf: np.asarray(leaf, float).sum(axis=0), rows)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "agents", "chunk"), [(None, 12, None), (None, 12, 5), ((8,), 13, 1)]
)
def test_a_sum_may_be_made_from_all_results_at_once(shape, agents, chunk, key):
    each = layout(None if shape is None else devices(*shape), chunk)
    x, weight = jr.normal(key, (agents, 3)), jnp.asarray(2.0)
    products = lambda weight, rows: weight * rows.T @ rows  # noqa: E731
    found = jax.jit(total(each, lambda weight, x: x + weight, (None, 0), products))(weight, x)
    rows = np.asarray(x, float) + 2
    np.testing.assert_allclose(found, 2 * rows.T @ rows, rtol=1e-4)


def test_a_chunk_is_what_is_computed_at_the_same_time():
    def f(x):
        return jnp.sort(jnp.sin(x * jnp.arange(10_000.0)))[5000]

    def bytes_of(chunk):
        each = layout(None, chunk)
        compiled = jax.jit(lambda x: each(lambda one: jax.lax.optimization_barrier(f(one)))(x))
        return compiled.lower(jnp.zeros(256)).compile().memory_analysis().temp_size_in_bytes

    # Sixteen times less, and some bytes of the loop.
    assert bytes_of(16) < bytes_of(None) / 8


@pytest.mark.parametrize("agents", [256, 251])
def test_what_agents_learned_is_written_over_what_they_knew(agents):
    def bytes_of(chunk):
        each = layout(None, chunk)

        def rounds(x):
            learn = lambda x: jnp.cumsum(jnp.sin(x))  # noqa: E731
            return jax.lax.fori_loop(0, 10, lambda _, x: each(learn)(x), x)

        compiled = jax.jit(rounds, donate_argnums=0).lower(jnp.zeros((agents, 1000))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    held = agents * 1000 * jnp.zeros(()).nbytes
    assert bytes_of(None) > held / 2
    assert bytes_of(16) < held / 4


@pytest.mark.parametrize("chunk", [1, 4, 5, 7])
def test_each_agent_learns_once(chunk, key):
    # The last chunk begins among agents that are done already.
    x = jr.normal(key, (12, 5))
    keys = jr.split(key, 12)
    each = layout(None, chunk)
    back, same = each(lambda x, key: (2 * x[::-1], key))(x, keys)
    np.testing.assert_array_equal(back, 2 * x[:, ::-1])
    np.testing.assert_array_equal(jr.key_data(same), jr.key_data(keys))
    np.testing.assert_array_equal(each(lambda x: 2 * x[::-1])(x), 2 * x[:, ::-1])
    drawn = each(lambda key, x: jr.normal(key) + x[0], (None, 0))(key, x)
    np.testing.assert_allclose(drawn, jr.normal(key) + x[:, 0], rtol=1e-6)


@pytest.mark.slow
def test_no_key_is_used_twice_in_chunks(key):
    with jax.debug_key_reuse(True):  # which is seen without compiling
        jax.jit(lambda key: run(METHODS["FTS"](7), bowl, 2, key, initial=1, chunk=2)[1]).trace(key)


def test_a_layout_that_cannot_be_is_refused():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="chunk must be a whole number of at least 1"):
            layout(None, wrong)
    with pytest.raises(ValueError, match="mesh has no devices"):
        layout(Mesh(np.empty((0,), object), ("agents",)))
    mesh = jax.make_mesh((8,), ("agents",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="outside of jax"):
        layout(mesh)


# ---------------------------------------------------------------- a run


def four_rounds(name, shape, agents, chunk, key):
    """A run over devices of this shape. Tests that ask for the same one share its program."""
    algorithm = METHODS[name](agents)
    present = jr.bernoulli(key, 0.8, (4, agents))
    if not isinstance(algorithm, AbstractFederated):
        present = None
    elif "once" in name:  # whose message arrived before the start
        present = jnp.tile(present[0], (4, 1))
    mesh, initial = None if shape is None else devices(*shape), 2 * (name != "CEPE")
    return run(algorithm, bowl, 4, key, initial=initial, present=present, mesh=mesh, chunk=chunk)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "agents", "chunk"),
    [
        pytest.param("FTS", None, 13, 4, marks=pytest.mark.full),
        # The contract has every method over devices which its agents divide evenly.
        pytest.param("FTS", (8,), 13, None, marks=pytest.mark.full),
        pytest.param("FTS", (4, 2), 32, 2, marks=pytest.mark.full),
        # Whose sum is made as DP-FTS-DE makes it.
        ("sum walk", (8,), 13, 1),
        pytest.param("DP-FTS-DE", (8,), 13, 1, marks=pytest.mark.full),
        pytest.param("CEPE", (8,), 13, 1, marks=pytest.mark.full),
        ("sum walk", None, 13, 4),
        # `test_contract` has CEPE over devices.
        pytest.param("CEPE", None, 13, 4, marks=pytest.mark.full),
        # Numbers that the devices do not divide, but share factors with.
        pytest.param("FTS", (8,), 12, None, marks=pytest.mark.full),
        pytest.param("FTS, once", (4, 2), 20, 2, marks=pytest.mark.full),
        pytest.param("FTS, ranked", (8,), 16, 1, marks=pytest.mark.full),
        pytest.param("FTS, pooled", (8,), 10, 1, marks=pytest.mark.full),
        ("two targets, once", (4, 2), 16, 1),
        pytest.param("two targets", (4, 2), 16, None, marks=pytest.mark.full),
        pytest.param("random search", (8,), 6, None, marks=pytest.mark.full),
        pytest.param("EGP-TS", (8,), 2, None, marks=pytest.mark.full),
    ],
)
def test_a_run_is_that_of_one_device(name, shape, agents, chunk, key):
    _, one = four_rounds(name, None, agents, None, key)
    _, other = four_rounds(name, shape, agents, chunk, key)
    # Points of a finite set: rounding rarely decides between two.
    same = np.all(np.asarray(one.queries) == np.asarray(other.queries), axis=2)
    assert same.mean() > 0.97
    np.testing.assert_allclose(one.values[same], other.values[same], atol=1e-5)


@pytest.mark.slow
def test_a_run_in_chunks_takes_the_memory_of_a_chunk(key):
    algorithm = FTS(DOMAIN, 256, features=SMALL)

    def bytes_of(chunk):
        def last(key):
            return run(algorithm, bowl, 2, key, chunk=chunk, record=summary)[1]

        return jax.jit(last).lower(key).compile().memory_analysis().temp_size_in_bytes

    state = metrics.bytes_of(jax.eval_shape(algorithm.init, key))
    assert bytes_of(None) - state > 3 * (bytes_of(16) - state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FTS", pytest.param("DP-FTS-DE", marks=pytest.mark.full)])
def test_agents_who_do_not_divide_evenly_take_no_more_memory_in_a_run(name, key):
    def bytes_of(agents):
        def recorded(key):
            return run(METHODS[name](agents), bowl, 2, key, mesh=devices(8), record=summary)[1]

        return jax.jit(recorded).lower(key).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(2047) < 1.05 * bytes_of(2048)


def goes_on(shape, key):
    """A run that begins from a state: those without devices are one program, wherever they begin."""
    start, key = jr.split(key)
    algorithm = METHODS["FTS"](16)
    begun = stepped.init(algorithm, start)
    mesh = None if shape is None else devices(*shape)
    return run(algorithm, bowl, 2, key, state=begun, mesh=mesh)


@pytest.mark.slow
def test_agents_come_back_on_their_devices(key):
    state, trace = goes_on((4, 2), key)
    over_all = devices(4, 2).axis_names
    assert trace.values.sharding.spec == PartitionSpec(None, over_all)
    specs = {leaf.sharding.spec[0] for leaf in jax.tree.leaves(state.clients)}
    assert specs == {over_all}
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.shared))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "agents"),
    [
        ("sum walk", 13),
        *(pytest.param("FTS", n, marks=pytest.mark.full) for n in (12, 13, 20)),
    ],
)
def test_agents_who_do_not_divide_evenly_are_all_on_each_device(name, agents, key):
    state, trace = four_rounds(name, (8,), agents, 1, key)
    leaves = jax.tree.leaves((state.clients, trace))
    assert all(leaf.sharding.is_fully_replicated for leaf in leaves)


@pytest.mark.slow
def test_few_targets_do_not_bring_all_agents_together(key):
    state, trace = four_rounds("two targets, once", (4, 2), 16, 1, key)
    assert trace.queries.sharding.is_fully_replicated
    specs = {leaf.sharding.spec[0] for leaf in jax.tree.leaves(state.clients)}
    assert specs == {devices(4, 2).axis_names}


@pytest.mark.slow
def test_a_run_goes_on_over_devices(key):
    first, second = jr.split(key)
    algorithm, mesh = METHODS["FTS"](16), devices(4, 2)
    state, _ = goes_on((4, 2), first)
    last, trace = run(algorithm, bowl, 2, second, state=state, mesh=mesh)
    state, _ = goes_on(None, first)
    _, one = run(algorithm, bowl, 2, second, state=state)
    assert int(last.round) == 4
    assert np.mean(np.asarray(trace.queries) == np.asarray(one.queries)) > 0.95


@pytest.mark.slow
def test_any_mesh_will_do(key):
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Explicit,))
    # From a state, too: without devices it is the program of the test before.
    algorithm = METHODS["FTS"](16)
    begun = stepped.init(algorithm, key)
    _, trace = run(algorithm, bowl, 2, key, state=begun, mesh=mesh)
    _, one = run(algorithm, bowl, 2, key, state=begun)
    np.testing.assert_array_equal(trace.queries, one.queries)


@pytest.mark.slow
def test_seeds_are_vmapped_over_what_is_laid_out(key):
    algorithm, keys = METHODS["FTS"](16), jr.split(key, 3)
    begun = stepped.init(algorithm, key)  # as in the test before
    options = {"state": begun, "mesh": devices(8), "chunk": 1, "record": summary}
    together = jax.vmap(lambda key: run(algorithm, bowl, 2, key, **options)[1])(keys)
    assert together.mean.shape == (3, 2)
    for mean, key in zip(together.mean, keys, strict=True):
        alone = run(algorithm, bowl, 2, key, state=begun)[1]
        best = np.maximum.accumulate(alone.values).mean(axis=1)
        np.testing.assert_allclose(mean, best, rtol=1e-3, atol=1e-4)


@pytest.mark.full  # the contract counts what 24 of them send
def test_an_agent_more_sends_its_messages_and_no_more(key):
    def gathered(agents):
        def queries(key):
            return run(METHODS["FTS"](agents), bowl, 3, key, mesh=devices(8))[1].queries

        text = jax.jit(queries).lower(key).compile().as_text()
        kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
        return re.findall(rf"= (.*) ({kinds})", text)

    for agents in (16, 64):
        ((shape, kind),) = gathered(agents)
        assert kind == "all-gather"
        assert shape.startswith(f"f32[{agents},16]")


PROCESS = """
    import sys

    import jax

    jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[1]))
    import jax.random as jr
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh

    from tests.test_layout import METHODS, bowl
    from jaxbo.runs.compiled import run

    assert jax.process_count() == 2 and jax.device_count() == 4
    mesh = Mesh(np.asarray(jax.devices()), ("agents",))
    for name, agents in ("FTS", 16), ("private walk", 13):
        _, trace = run(METHODS[name](agents), bowl, 4, jr.key(0), initial=2, mesh=mesh)
        queries = multihost_utils.process_allgather(trace.queries, tiled=True)
        if jax.process_index() == 0:
            np.save(sys.argv[3] + name, queries)
    print("done")
"""


@pytest.mark.slow
def test_two_processes_run_it_together(pytestconfig, monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=2")
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # as here
    folder = f"{tmp_path}{os.sep}"
    command = [sys.executable, "-c", textwrap.dedent(PROCESS)]
    both = [
        subprocess.Popen(
            [*command, rank, port, folder],
            cwd=pytestconfig.rootpath,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        for process in both:
            out, error = process.communicate(timeout=240)
            assert process.returncode == 0, error
            assert out.endswith("done\n")
    finally:
        for process in both:
            process.kill()
    for name, agents in ("FTS", 16), ("private walk", 13):
        _, one = run(METHODS[name](agents), bowl, 4, jr.key(0), initial=2)
        queries = np.load(f"{folder}{name}.npy")
        assert queries.shape == one.queries.shape
        assert np.mean(queries == np.asarray(one.queries)) > 0.95
