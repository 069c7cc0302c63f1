"""Debug flags and transformations of JAX that a researcher turns on: each works, or says why not."""

import contextlib
import copy
import functools
import io
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import export

import jaxbo
from jaxbo.runs import _steps
from tests import stepped
from tests.algos.test_contract import METHODS
from tests.algos.test_contract import cepe as cepe_of
from tests.walk import Stroll

KEY = jr.key(0)
SQUARE = jaxbo.Cube(2)
SMALL = jaxbo.Fixed(size=8, capacity=8)
RANDOM = jaxbo.RandomSearch(SQUARE, agents=2)
FEW = {
    "random search": RANDOM,
    "TS": jaxbo.TS(SQUARE, 2, SMALL, candidates=8),
    "EGP": jaxbo.EGP(SQUARE, jaxbo.Fitted(9, size=8), jaxbo.EI(), candidates=8, quadratic_every=1),
}
ALL = {name: make(SQUARE, 3, 6) for name, make in METHODS.items()}
ALL["S-CEPE"] = cepe_of(SQUARE, 3, 6, sketch=jaxbo.Sketch(2.0))


def bowl(key, agent, x):
    return -jnp.sum((x - 0.3) ** 2)


def flaky(agent, x):
    """Fails for one agent."""
    return np.nan if agent == 1 else -float(((x - 0.3) ** 2).sum())


def values(algorithm, key=KEY):
    return jaxbo.run(algorithm, bowl, 2, key, initial=1)[1].values


@contextlib.contextmanager
def numbers():
    """Stops for a NaN and for an infinity."""
    with jax.debug_nans(True), jax.debug_infs(True):
        yield


FLAGS = {
    "nans, infs": numbers,
    "nans": lambda: jax.debug_nans(True),
    "infs": lambda: jax.debug_infs(True),
    "leaks": jax.checking_leaks,
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "types": lambda: jax.numpy_dtype_promotion("strict"),
    "reused keys": lambda: jax.debug_key_reuse(True),
    "checks": lambda: jax.enable_checks(True),
    "no jit": jax.disable_jit,
    "default device": lambda: jax.default_device(jax.devices()[0]),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "bits": lambda: jax.threefry_partitionable(True),
}


#: Every door holds numbers that these two flags stop for. They are tried together, and in full tests
#: one by one.
QUICK = "nans, infs"


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag not in ("nans", "infs")])
def test_a_run_is_the_same_under_a_flag(flag):
    with FLAGS[flag]():
        found = jaxbo.run(RANDOM, lambda k, a, x: bowl(k, a, x), 2, jr.key(0), initial=1)[1].values
    np.testing.assert_allclose(found, values(RANDOM), rtol=1e-5)


def some(names, *quick):
    """The others are tried by `make test-full` alone."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.full) for name in names]


#: In a run in rounds, or with a desk, each of these is tried by `make test`.
OF_MODELS = (QUICK, "leaks", "reused keys")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:agent 1 failed:RuntimeWarning")
@pytest.mark.parametrize("name", some(["TS", "EGP"], "EGP"))
@pytest.mark.parametrize("flag", some(OF_MODELS, QUICK))
def test_a_model_of_its_own_works_under_a_flag(name, flag):
    with FLAGS[flag]():
        _, trace = jaxbo.drive(FEW[name], flaky, 2, jr.key(1), initial=1, progress=False)
    assert trace.values.shape[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("flag", OF_MODELS)
def test_a_desk_works_under_a_flag(flag):
    with FLAGS[flag]():
        desk = jaxbo.Desk(FEW["EGP"], jr.key(2), initial=1)
        for value in (1.0, 2.0):
            desk.tell(desk.ask().number, value)
    assert desk.told == 2


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:agent 1 failed:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")
@pytest.mark.parametrize("name", ALL)
def test_every_method_works_under_flags_that_stop_for_a_number(name):
    with numbers():
        _, trace = jaxbo.drive(ALL[name], flaky, 2, jr.key(1), initial=1, progress=False)
    assert trace.values.shape[0] == 3


ONE = Stroll(SQUARE, 1, SMALL)
EARLIER = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), np.array([1.0, np.nan, 2.0])
OF_TWO = [
    {"agent": 0, "x0": 0.1, "x1": 0.2, "value": 1.0},
    {"agent": 1, "x0": 0.3, "x1": 0.4, "value": None},
    {"agent": 1, "x0": 0.5, "x1": 0.6, "value": 2.0},
]


def a_desk(path):
    with jaxbo.Desk(ONE, jr.key(3), initial=1, known=EARLIER, checkpoint=path) as desk:
        desk.tell_new([0.2, 0.9], np.nan)
        for value in (1.0, np.nan):
            desk.tell(desk.ask().number, value)
        desk.ask()
        return [*desk.values, *jaxbo.best(ONE, desk.state, desk).mean]


def segments(path, direction="maximize"):
    """Of a run that goes on."""
    for rounds in (1, 3):
        trace = jaxbo.run(
            RANDOM, bowl, rounds, jr.key(3), initial=1, checkpoint=path, direction=direction
        )[1]
    return trace.values


def known(path):
    """Of a run with failures before it and in it, and one agent that never succeeds."""
    state, trace = jaxbo.drive(
        FEW["TS"], flaky, 1, jr.key(3), known=OF_TWO, checkpoint=path, progress=False
    )
    again = jaxbo.replay(FEW["TS"], trace, jr.key(3), known=OF_TWO)
    best = [jaxbo.best(FEW["TS"], s, trace).mean for s in (state, again)]
    return [
        *trace.values,
        *best,
        *jaxbo.drive(RANDOM, flaky, 1, jr.key(3), progress=False)[1].values,
    ]


def summed_up(path):
    del path
    rows = jaxbo.run(RANDOM, bowl, 2, jr.key(3), progress=True, record=jaxbo.summary)[1]
    return [rows.mean, rows.best]


DOORS = {
    "run": lambda path: jaxbo.run(RANDOM, bowl, 2, jr.key(3), initial=1)[1].values,
    "segments": segments,
    "segments that minimize": lambda path: segments(path, "minimize"),
    "record": summed_up,
    "drive": known,
    "warm start": lambda path: [
        FEW["TS"].told(FEW["TS"].warm_start(stepped.init(FEW["TS"], jr.key(3)), form))
        for form in (OF_TWO, tuple(np.repeat(part[:, None], 2, 1) for part in EARLIER))
    ],
    "drive_async": lambda path: jaxbo.drive_async(
        ONE, lambda x: np.nan if x[0] > 0.5 else 1.0, 3, jr.key(3), initial=1, known=EARLIER,
        progress=False,
    ).values,
    "desk": a_desk,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* failed:RuntimeWarning")
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("flag", some(FLAGS, QUICK))
def test_every_door_gives_the_same_under_a_flag(flag, door, tmp_path):
    with FLAGS[flag]():
        found = DOORS[door](tmp_path / "flag")
    np.testing.assert_allclose(found, plain(door, tmp_path), rtol=1e-4)


@functools.cache
def plain(door, path):
    """Without a flag."""
    return DOORS[door](path / "plain")


@pytest.mark.usefixtures("as_users_have_it")
def test_an_objective_in_jax_that_fails_stops_where_nan_is_to_be_found():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jaxbo.run(RANDOM, lambda x: jnp.log(x[0] - 2), 2, KEY)


@pytest.mark.parametrize("name", ALL)
def test_a_state_holds_no_number_that_a_flag_stops_for_and_is_saved_and_copied(name):
    method = ALL[name]
    state = _steps.init(method, KEY, jax.vmap)
    for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_inexact_array)):
        assert np.isfinite(np.asarray(leaf)).all()
    for again in (pickle.loads(pickle.dumps((method, state))), copy.deepcopy((method, state))):
        assert same(again, (method, state))
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, state)
    file.seek(0)
    assert same(eqx.tree_deserialise_leaves(file, state), state)


def same(one, other):
    """With keys by their data."""
    data = lambda leaf: (  # noqa: E731
        np.asarray(jr.key_data(leaf))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else np.asarray(leaf)
    )
    one, other = (jax.tree.map(data, eqx.filter(t, eqx.is_array)) for t in (one, other))
    return eqx.tree_equal(one, other)


@pytest.mark.slow
def test_runs_pass_through_transformations():
    seeds = jax.vmap(lambda key: values(RANDOM, key))(jr.split(KEY, 2))
    np.testing.assert_allclose(seeds[1], values(RANDOM, jr.split(KEY, 2)[1]), rtol=1e-5)
    _, scanned = jax.lax.scan(lambda c, key: (c, values(RANDOM, key)), 0, jr.split(KEY, 2))
    np.testing.assert_allclose(scanned, seeds, rtol=1e-5)
    checked = jax.jit(jax.checkpoint(lambda key: values(RANDOM, key)))(KEY)
    np.testing.assert_allclose(checked, values(RANDOM), rtol=1e-5)


@pytest.mark.usefixtures("as_users_have_it")
def test_a_run_under_jit_moves_no_array_from_the_host_and_another_is_stopped_by_the_guard():
    program = jax.jit(lambda key: values(RANDOM, key))
    with jax.transfer_guard("disallow"):
        found = program(KEY)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            values(RANDOM)
    np.testing.assert_allclose(found, values(RANDOM), rtol=1e-5)


@pytest.mark.slow
def test_forward_mode_goes_through_a_run_and_reverse_mode_says_what_to_do():
    def worst(shift):
        moved = lambda key, agent, x: -jnp.sum((x - shift) ** 2)  # noqa: E731
        return jnp.min(jaxbo.run(RANDOM, moved, 2, KEY)[1].values)

    here, step = jnp.asarray(0.3), 1e-2
    expected = (worst(here + step) - worst(here - step)) / (2 * step)
    np.testing.assert_allclose(jax.jvp(worst, (here,), (jnp.ones(()),))[1], expected, rtol=1e-2)
    with pytest.raises(ValueError, match=r"Reverse-mode differentiation does not work"):
        jax.grad(worst)(here)


def test_an_algorithm_of_another_precision_is_refused():
    made = jaxbo.TS(SQUARE, 2, SMALL, candidates=8)
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"JAX computes in float64 now"):
        jaxbo.run(made, bowl, 2, jr.key(0))


@pytest.mark.slow
def test_a_trace_and_its_parts_are_saved():
    _, trace = jaxbo.run(RANDOM, bowl, 2, KEY)
    again = pickle.loads(pickle.dumps(trace))
    np.testing.assert_array_equal(again.values, trace.values)
    program = export.export(jax.jit(lambda key: jaxbo.run(RANDOM, bowl, 2, key)[1].values))(KEY)
    loaded = export.deserialize(program.serialize())
    np.testing.assert_allclose(loaded.call(KEY), trace.values, rtol=1e-5)
