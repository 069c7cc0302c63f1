"""What a model is told of values that float32 would cut."""

import contextlib
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array

from jaxbo.algos.base import _origin
from jaxbo.algos.base._origin import Origin
from jaxbo.algos.base.keys import run_keys
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Finite
from jaxbo.kernels.models import surrogate
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs import _soon
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import Trace
from tests import stepped

POINTS = Finite(np.random.default_rng(1).random((40, 2)))
SMALL = Fixed(size=16)
RAW = Fixed(size=16, standardize=False)
TS2 = TS(POINTS, 2, SMALL)
DTYPE = jnp.zeros(()).dtype
quiet = functools.partial(drive, progress=False)


def bowl(agent, x):
    return float(-np.sum((np.asarray(x, float) - 0.1 * agent) ** 2))


def far(agent, x):
    """The same far from 0: in float32 a handful of values."""
    return -54321 + 0.01 * bowl(agent, x)


def same(one, other):
    """Equal to the last bit."""
    return jax.tree.all(jax.tree.map(lambda a, b: _bytes(a) == _bytes(b), one, other))


def _bytes(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    return np.asarray(leaf).tobytes()


def state_with(origin, known=False):
    value = jnp.asarray(origin, float)
    return {"origin": Origin(value, jnp.full(value.shape, known)), "other": jnp.ones(3)}


# ---------------------------------------------------------------- arithmetic


def test_what_is_told_and_the_origin_are_the_value():
    rng = np.random.default_rng(0)
    values = -54321 + 0.01 * rng.random((20, 3))
    values[:4, 1] = values[0, 2] = np.nan
    state, told = _origin.told(state_with(np.zeros(3)), values)
    origin = np.asarray(state["origin"].value, np.float64)
    assert told.dtype == DTYPE
    np.testing.assert_array_equal(origin, values[[0, 4, 1], [0, 1, 2]].astype(DTYPE))
    # A rounding error of float32 at the size of the differences, not of the values.
    np.testing.assert_allclose(origin + np.asarray(told, float), values, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(np.isnan(told), np.isnan(values))


def test_an_origin_stays_what_it_is():
    state, _ = _origin.told(state_with(np.zeros(2)), np.asarray([3.0, np.nan]))
    assert state["origin"].known.tolist() == [True, False]
    state, told = _origin.told(state, np.asarray([[4.0, np.nan], [5.0, 7.0]]))
    assert state["origin"].value.tolist() == [3, 7]
    np.testing.assert_array_equal(told, [[1, np.nan], [2, 0]])
    unchanged, told = _origin.told(state, np.asarray([-1.0, -1.0]))
    assert unchanged is state
    assert told.tolist() == [-4, -8]


def test_workers_of_one_model_share_one():
    state, told = _origin.told(state_with(0.0), np.asarray([np.nan, 3.0, 5.0]))
    assert float(state["origin"].value) == 3
    np.testing.assert_array_equal(told, [np.nan, 0, 2])


def test_states_without_an_origin_are_told_values_as_they_are():
    _, told = _origin.told({"other": 1}, np.asarray([5.0, 6.0]))
    assert told.tolist() == [5, 6]
    assert told.dtype == DTYPE
    values = jnp.asarray([5.0, 6.0])
    assert _origin.told({"other": 1}, values)[1] is values


LIMITS = [0.0, -0.0, 5.0, np.nan, -np.inf, float(np.finfo(DTYPE).max), float(np.finfo(DTYPE).tiny)]


def test_values_of_jax_set_no_origin_and_are_told_less_the_one_there_is():
    values = jnp.asarray([LIMITS, LIMITS], DTYPE).T
    unset = state_with(np.zeros(2))
    state, told = _origin.told(unset, values)
    assert state is unset
    assert same(told, values)
    _, told = jax.jit(_origin.told)(state_with([3.0, -1.0], known=True), values[:4])
    np.testing.assert_array_equal(told, [[-3, 1], [-3, 1], [2, 6], [np.nan, np.nan]])
    _, told = _origin.told(state_with(3.0, known=True), values[2])
    assert told.tolist() == [2, 2]


def test_finite_values_of_jax_stay_finite():
    most = float(np.finfo(DTYPE).max)
    _, told = _origin.told(state_with([-most], known=True), jnp.asarray([[most], [-np.inf]]))
    np.testing.assert_array_equal(told, [[most], [-np.inf]])


def test_rounding_errors_of_float64_are_no_differences():
    values = np.asarray([[0.5], [0.5 + 2**-53], [0.5 - 2**-52], [0.5 + 1e-12]])
    _, told = _origin.told(state_with([0.0]), values)
    np.testing.assert_allclose(told[:, 0], [0, 0, 0, 1e-12], rtol=1e-3)
    assert told[:3].tolist() == [[0], [0], [0]]


def test_finite_values_stay_finite():
    most = float(np.finfo(DTYPE).max)
    _, told = _origin.told(state_with([0.0]), np.asarray([[most], [-most]]))
    assert told.tolist() == [[0], [-most]]


CUT, SMALL_ONES, LARGE_ONES = "subtract a constant", "multiply them", "divide them"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([-54321.0, -54321.001, -54320.998], CUT),
        ([1e9, 1e9 + 1, 1e9 - 3], CUT),
        ([0.1, 0.2, 0.3], None),
        ([-54321.0, -54000.0, -55000.0], None),
        ([-54321.1] * 3, None),
        ([0.1 + 2**-54, 0.1, 0.1 - 2**-55], None),
        ([np.nan, -54321.1, np.nan], None),
        ([np.nan] * 3, None),
        ([0, 2e16, 9e16], LARGE_ONES),
        ([0, 5e20, 7e30], LARGE_ONES),
        ([0.1, -3e38, 3e38], LARGE_ONES),
        ([0, 1e16, -1e16], None),
        ([0, 1e-25, 5e-24], SMALL_ONES),
        ([0, np.nan, 1e-40], SMALL_ONES),
        ([0, 1e-18, 2e-18], None),
        ([1e-30] * 3, None),
        ([2e16] * 3, None),
    ],
)
def test_values_that_float32_would_cut_are_noticed(values, text, x64):
    origin = np.zeros((), DTYPE)
    alone = _origin.cut(np.asarray(values)[:, None], origin)
    beside = _origin.cut(np.asarray([[0.0, 1, 2], [np.nan] * 3, values]).T, origin)
    if x64 or text is None:
        assert alone is beside is None
    else:
        assert text in alone
        assert alone == beside


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-25, 1e25])
def test_what_is_cut_is_what_the_moments_have_lost(scale, x64):
    """Without x64 these have no deviation, or that of other values."""
    values = scale * np.asarray([1.0, 4.0, 9.0, 7.0])[:, None]
    state, told = _origin.told(state_with([0.0]), values)
    moments = surrogate.no_moments(DTYPE)
    for value in told[:, 0]:
        moments = surrogate.updated(moments, surrogate.bounded(value))
    right = np.isclose(float(moments.deviation), np.std(values) or 1, rtol=1e-5)
    assert (_origin.cut(values, np.asarray(state["origin"].value)) is None) == right
    assert right == (x64 or scale in (0, 1))


# ---------------------------------------------------------------- in runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [TS2, EGP(POINTS, Fitted(16, size=16, refit_every=None), candidates=64)],
    ids=["TS", "EGP"],
)
def test_an_offset_changes_no_query(algorithm, key):
    _, plain = quiet(algorithm, bowl, 5, key, initial=2)
    state, trace = quiet(algorithm, far, 5, key, initial=2)
    np.testing.assert_array_equal(trace.queries, plain.queries)
    assert isinstance(trace.values, np.ndarray)
    assert trace.values.dtype == np.float64
    np.testing.assert_allclose((trace.values + 54321) / 0.01, plain.values, rtol=0, atol=1e-8)
    first = trace.values[0] if state.origin.value.ndim else trace.values[0, 0]
    np.testing.assert_array_equal(state.origin.value, first.astype(DTYPE))
    assert same(state, replay(algorithm, trace, key))


@pytest.mark.slow
@pytest.mark.bitwise
def test_values_in_float32_are_told_bit_for_bit_as_a_run_tells_them(key, monkeypatch):
    monkeypatch.setattr(_soon, "options", lambda algorithm: _soon.DEFAULT)
    objective = lambda key, agent, x: -jnp.round(jnp.sum(x) * 64) / 64  # noqa: E731
    inside, compiled = run(TS2, objective, 4, key, initial=2)
    outside, trace = quiet(
        TS2, lambda agent, x: float(objective(None, agent, x)), 4, key, initial=2
    )
    np.testing.assert_array_equal(trace.values, compiled.values)
    np.testing.assert_array_equal(trace.queries, compiled.queries)
    assert same(inside.clients.posterior, outside.clients.posterior)


def test_the_first_success_is_the_origin_however_late(key):
    calls = [0, 0]

    def late(agent, x):
        calls[agent] += 1
        return np.nan if agent == 1 and calls[1] <= 3 else far(agent, x)

    with pytest.warns(RuntimeWarning, match="returned nan"):
        state, trace = quiet(TS2, late, 4, key, initial=2)
    np.testing.assert_array_equal(
        state.origin.value, [trace.values[0, 0].astype(DTYPE), trace.values[3, 1].astype(DTYPE)]
    )
    assert same(state, replay(TS2, trace, key))


def test_a_run_that_goes_on_from_a_state_subtracts_what_the_state_says(key):
    one, two = jr.split(key)
    state, first = quiet(TS2, far, 2, one, initial=2)
    last, second = quiet(TS2, far, 3, two, state=state)
    np.testing.assert_array_equal(last.origin.value, state.origin.value)
    assert same(last, replay(TS2, second, two, state=state))
    both = Trace(
        jnp.concatenate([first.queries, second.queries]),
        np.concatenate([first.values, second.values]),
        (),
        2,
    )
    assert same(last, replay(TS2, both, one))


@pytest.mark.slow
def test_a_state_that_was_told_values_as_they_are_goes_on_so(key):
    one, two = jr.split(key)
    start, _ = run(TS2, lambda key, agent, x: 3 - jnp.sum(x), 2, one)
    assert start.origin.known.all()
    state, _ = quiet(TS2, lambda agent, x: 3 - float(np.sum(x)), 3, two, state=start)
    np.testing.assert_array_equal(state.origin.value, [0, 0])
    np.testing.assert_array_equal(state.clients.moments.first, start.clients.moments.first)


class Compiled(AbstractObjective):
    """`bowl` in JAX's precision, far from 0 or scaled."""

    noise: Array = eqx.field(converter=jnp.asarray, default=0.0)
    offset: float = 0.0
    scale: float = 1.0

    def noiseless(self, agent, x):
        return self.offset - self.scale * jnp.sum((x - 0.1 * agent.astype(x.dtype)) ** 2)

    def optimum(self, agent):
        raise NotImplementedError


ONE_SCALE = [TS2, EGP(POINTS, Fitted(16, size=16, refit_every=None), candidates=64)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "initial"),
    [
        (ONE_SCALE[0], 0),
        (ONE_SCALE[1], 2),
        *(
            pytest.param(*more, marks=pytest.mark.full)
            for more in zip(ONE_SCALE, (2, 0), strict=True)
        ),
    ],
    ids=["TS", "EGP, initial points", "TS, initial points", "EGP"],
)
def test_a_compiled_run_goes_on_from_a_driven_state_on_its_scale(algorithm, initial, key):
    one, two = jr.split(key)
    start, _ = quiet(algorithm, lambda agent, x: 1000 + bowl(agent, x), 0, one, initial=3)
    options = {"initial": initial, "state": start}
    state, trace = run(algorithm, Compiled(offset=1000), 3, two, **options)
    assert (trace.values > 990).all()
    assert same(state.origin.value, start.origin.value)
    assert float(jnp.max(jnp.abs(start.origin.value))) > 990
    assert float(jnp.nanmax(jnp.abs(spread(algorithm, state)))) < 10
    driven, also = quiet(algorithm, Compiled(offset=1000), 3, two, **options)
    assert same((state, trace.values), (driven, also.values))
    assert same(state, replay(algorithm, trace, two, state=start))


def spread(algorithm, state):
    """What a model knows of values: some numbers of their size."""
    if isinstance(algorithm, TS):
        return jnp.concatenate([state.clients.moments.mean, state.clients.moments.first])
    return state.belief.y


def test_a_run_from_a_driven_state_asks_what_drive_asks(key):
    one, two = jr.split(key)
    start, _ = quiet(TS2, lambda agent, x: 1000 + bowl(agent, x), 2, one, initial=2)
    _, compiled = run(TS2, Compiled(offset=1000), 3, two, state=start)
    _, trace = quiet(TS2, lambda agent, x: 1000 + bowl(agent, x), 3, two, state=start)
    np.testing.assert_array_equal(compiled.queries, trace.queries)


def test_observations_of_the_host_are_told_by_hand_less_the_origin(key):
    _, trace = quiet(TS2, far, 0, key, initial=5)
    init = stepped.init(TS2, run_keys(key).init)
    early = replay(TS2, Trace(trace.queries[:3], trace.values[:3], (), 3), key, state=init)
    late = trace.values[3:] - np.asarray(early.origin.value, np.float64)
    by_hand = TS2.warm_start(early, trace.queries[3:], jnp.asarray(late))
    at_once = replay(TS2, trace, key)
    moments = by_hand.clients.moments, at_once.clients.moments
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), *moments)


class Killed(BaseException):
    """Nothing catches it."""


def test_a_run_that_was_killed_keeps_every_digit(key, tmp_path):
    def go(stop, path=None):
        calls = []

        def objective(agent, x):
            calls.append(agent)
            if len(calls) == stop:
                raise Killed
            return far(agent, x)

        return quiet(TS2, objective, 4, key, initial=2, checkpoint=path)

    expected_state, expected = go(None)
    for stop in (6, 2, None):
        try:
            state, trace = go(stop, tmp_path / "run.npz")
        except Killed:
            continue
    np.testing.assert_array_equal(trace.values, expected.values)
    assert len(np.unique(trace.values)) > 6
    np.testing.assert_array_equal(trace.queries, expected.queries)
    assert same(state, expected_state)


# ---------------------------------------------------------------- methods that take values as they are


@pytest.mark.parametrize(
    "algorithm",
    [
        TS(POINTS, 2, RAW),
        FTS(POINTS, 2, features=RAW),
        FTS(POINTS, 2, features=RAW, own=Fitted(8, size=16, refit_every=None)),
        DPFTSDE(POINTS, 2, features=RAW),
    ],
    ids=["TS", "FTS", "FTS with a model of its own", "DP-FTS-DE"],
)
def test_a_method_that_takes_values_as_they_are_is_told_them(algorithm):
    assert not algorithm.invariant
    assert _origin.origin_of(eqx.filter_eval_shape(algorithm.init, jr.key(0))) is None


@pytest.mark.slow
def test_values_that_such_a_method_cannot_tell_apart_are_warned_of_once(key, x64):
    raw = TS(POINTS, 2, RAW)
    state, trace = quiet(raw, lambda agent, x: 3.0 + bowl(agent, x), 4, key, initial=2)
    told = Trace(trace.queries, jnp.asarray(trace.values), (), 2)
    assert same(state, replay(raw, told, key))
    if x64:
        return
    with pytest.warns(RuntimeWarning, match="less than float32 can tell apart") as warned:
        quiet(raw, far, 4, key, initial=2)
    assert len(warned) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "text"), [(1e25, LARGE_ONES), (1e-25, SMALL_ONES)])
def test_differences_that_no_model_of_float32_can_hold_are_warned_of_once(scale, text, key, x64):
    for objective in (lambda agent, x: scale * bowl(agent, x), Compiled(scale=scale)):
        expected = contextlib.nullcontext([0]) if x64 else pytest.warns(RuntimeWarning, match=text)
        with expected as warned:
            quiet(TS2, objective, 4, key, initial=2)
        assert len(warned) == 1
