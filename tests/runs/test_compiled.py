"""One loop: compiled, around a Python objective, and from observations."""

import contextlib
import functools
import multiprocessing
import textwrap
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from decimal import Decimal
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import export

from jaxbo import metrics
from jaxbo.algos.base.federated import AbstractFederated, AbstractIndependent
from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin
from jaxbo.runs._evaluate import NotFiniteError
from jaxbo.runs.compiled import check_sizes, run
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import QUANTILES, Failure, Trace, summary
from jaxbo.schedules import Constant
from tests import stepped
from tests.walk import Stroll, Walk

POINTS = Finite(np.random.default_rng(1).random((40, 2)))
SMALL = Fixed(size=16)
WALK = Walk(POINTS, 4)
RANDOM = RandomSearch(Cube(2), 4)
quiet = functools.partial(drive, progress=False)


def bowl(agent, x):
    return float(-np.sum((np.asarray(x, float) - 0.1 * agent) ** 2))


def compiled_bowl(key, agent, x):
    return -jnp.sum((x - 0.1 * agent.astype(x.dtype)) ** 2)


def flaky_bowl(key, agent, x):
    """Fails in half of the domain, and for agent 1 always."""
    return jnp.where((x[0] > 0.5) | (agent == 1), jnp.nan, compiled_bowl(key, agent, x))


def equal(one, other):
    return eqx.tree_equal(_plain(one), _plain(other))


def _plain(tree):
    """Keys by their data, and one number for NaN."""

    def plain(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.key_data(leaf)
        return np.nan_to_num(np.asarray(leaf), nan=-7.0)

    return jax.tree.map(plain, tree)


def rows_of(trace):
    return trace.queries, trace.values, trace.info


# ---------------------------------------------------------------- run


@pytest.mark.bitwise
def test_a_run_is_init_then_ask_evaluate_tell_bit_for_bit(key):
    ts = TS(POINTS, 4, SMALL)
    state, trace = run(ts, compiled_bowl, 3, key)
    assert trace.queries.shape == (3, 4, 2)
    for row in range(3):
        expected = [bowl(n, trace.queries[row, n]) for n in range(4)]
        np.testing.assert_allclose(trace.values[row], expected, rtol=1e-5, atol=1e-6)
    assert equal(state, replay(ts, trace, key))
    assert int(state.round) == 3


@pytest.mark.slow
@pytest.mark.parametrize("targets", [2, pytest.param(1, marks=pytest.mark.full)])
def test_the_initial_design_is_the_same_for_all_methods(targets, key):
    methods = [
        RandomSearch(Cube(2), targets),
        Walk(Cube(2), targets),
        Roll(Cube(2), 3, targets),
    ]
    designs = [run(method, compiled_bowl, 0, key, initial=4)[1] for method in methods]
    designs += [quiet(method, bowl, 0, key, initial=4)[1] for method in methods]
    for design in designs:
        assert design.initial == 4
        assert design.queries.shape == (4, targets, 2)
        np.testing.assert_array_equal(design.queries, designs[0].queries)
    assert len(np.unique(designs[0].queries.reshape(-1, 2), axis=0)) == 4 * targets


@pytest.mark.filterwarnings("ignore:the last:RuntimeWarning")
@pytest.mark.parametrize(
    "every", [3, 8, *(pytest.param(every, marks=pytest.mark.full) for every in (1, 5))]
)
def test_of_every_few_rounds_the_last_is_recorded(every, key):
    state, whole = run(WALK, compiled_bowl, 7, key, initial=2)
    last, trace = run(WALK, compiled_bowl, 7, key, initial=2, every=every)
    kept = [0, 1, *range(1 + every, 9, every)]
    assert equal(state, last)
    np.testing.assert_array_equal(trace.queries, whole.queries[jnp.asarray(kept)])
    np.testing.assert_array_equal(trace.values, whole.values[jnp.asarray(kept)])
    assert trace.every == every
    if every > 1:
        with pytest.raises(ValueError, match="does not have all rounds"):
            replay(WALK, trace, key)


@pytest.mark.bitwise
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 2])
def test_rounds_that_are_summed_up_are_bit_for_bit_the_same(every, key):
    state, trace = run(WALK, flaky_bowl, 6, key, initial=3)
    last, rows = run(WALK, flaky_bowl, 6, key, initial=3, every=every, record=summary)
    assert equal(state, last)
    best = metrics.best_so_far(trace.values)[3 + every - 1 :: every]
    best = np.where(np.isfinite(best), best, np.nan)
    np.testing.assert_allclose(rows.mean, np.nanmean(best, axis=1), rtol=1e-5)
    np.testing.assert_allclose(rows.best, np.nanmax(best, axis=1), rtol=1e-6)
    quantiles = np.nanquantile(best, QUANTILES, axis=1).T
    np.testing.assert_allclose(rows.quantiles, quantiles, rtol=1e-4, atol=1e-6)
    failed = np.isnan(trace.values[3:]).sum(axis=1)[every - 1 :: every]
    assert failed.sum() > 0
    np.testing.assert_array_equal(rows.failed, failed)


@pytest.mark.slow
def test_what_is_recorded_is_up_to_the_user(key):
    _, trace = run(WALK, compiled_bowl, 4, key)
    _, first = run(WALK, compiled_bowl, 4, key, record=lambda round: round.queries[0])
    np.testing.assert_array_equal(first, trace.queries[:, 0])
    with pytest.raises(ValueError, match="every must be a whole number of at least 1"):
        run(WALK, compiled_bowl, 4, key, every=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("surrogate", "more"),
    [
        (Fixed(size=18), []),
        pytest.param(Fitted(31, size=18), ["refit"], marks=pytest.mark.full),
    ],
)
def test_the_steps_of_a_method_are_traced_once_in_a_process(surrogate, more, key, monkeypatch):
    """Tracing is half of what a first call takes."""
    traced = []

    def count(where, name):
        step = getattr(where, name)

        def counted(*args, **kwargs):
            traced.append(name)
            return step(*args, **kwargs)

        monkeypatch.setattr(where, name, counted)

    # Sizes that nothing else here has: no program of them has been traced yet.
    algorithm = Stroll(POINTS, 1, surrogate)
    for name in ("init", "ask", "tell", "initial"):
        count(Stroll, name)
    count(Fitted, "refit")
    for rounds in (3, 4):  # another objective, which is a lambda, and another number of rounds
        seen = []
        objective = lambda key, agent, x, s=seen: s.append(x) or jnp.sum(x)  # noqa: E731
        _, trace = run(algorithm, objective, rounds, key, initial=2)
        assert trace.queries.shape == (rounds + 2, 1, 2)
        assert len(seen) == 2  # its shape, and once for the initial design and the rounds
    quiet(algorithm, Same(branin()), 4, key, initial=2)
    assert sorted(traced) == sorted(["ask", "init", "initial", "tell", *more])


@pytest.mark.slow
def test_a_program_that_was_saved_is_the_run(key):
    # Of a whole model: all of its operations must be such as can be saved.
    fts = FTS(Cube(2), 3, features=SMALL, candidates=16)
    # Leaves, since JAX saves no types that are not registered.
    program = jax.jit(lambda key: jax.tree.leaves(run(fts, compiled_bowl, 3, key)[1]))
    saved = export.export(program, platforms=("cpu", "cuda", "tpu"))(jr.key(0)).serialize()
    loaded = export.deserialize(saved).call(key)
    for one, other in zip(loaded, program(key), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_state_that_is_given_up_is_written_over(donated, key):
    algorithm = Walk(Cube(2), 50)
    state = stepped.init(algorithm, key)
    goes_on = jax.jit(
        lambda s, key: run(algorithm, compiled_bowl, 2, key, state=s), donate_argnums=donated
    )
    sizes = goes_on.lower(state, key).compile().memory_analysis()
    held = metrics.bytes_of(state.clients)
    assert (sizes.alias_size_in_bytes >= held) == bool(donated)


def test_another_key_is_another_run(key):
    one_key, other_key = jr.split(key)
    _, one = run(RANDOM, compiled_bowl, 2, one_key, initial=2)
    _, other = run(RANDOM, compiled_bowl, 2, other_key, initial=2)
    assert not np.isin(one.queries, other.queries).any()
    assert len(np.unique(one.queries)) == one.queries.size


def test_agents_have_noise_of_their_own(key):
    _, trace = run(RANDOM, Same(branin(), noise=1.0), 2, key, initial=2)
    noiseless = jax.vmap(jax.vmap(branin()))(trace.queries)
    assert len(np.unique(np.round(trace.values - noiseless, 3))) == 16


@pytest.mark.parametrize("loop", ["run", "drive"])
def test_a_state_is_continued(loop, key):
    first_key, second_key = jr.split(key)

    def go(rounds, key, **options):
        if loop == "run":
            return run(WALK, compiled_bowl, rounds, key, **options)
        return quiet(WALK, bowl, rounds, key, **options)

    state, _ = go(3, first_key, initial=2)
    last, trace = go(2, second_key, state=state)
    assert int(last.round) == 5
    assert (last.clients.count == 7).all()
    assert equal(last, replay(WALK, trace, second_key, state=state))
    assert not equal(last, replay(WALK, trace, second_key))


class Roll(AbstractFederated):
    """Tells in its info whose messages the server had, and queries the center."""

    domain: Cube
    agents: int = eqx.field(static=True)
    querying: int = eqx.field(static=True)
    capacity = None

    @property
    def targets(self):
        return self.querying

    def setup(self, key):
        return ()

    def join(self, key, shared, index):
        return index

    def message(self, key, shared, client):
        return client

    def aggregate(self, key, shared, round, messages, present):
        return jnp.where(present, messages, -1)

    def choose(self, key, shared, client, past, message, broadcast):
        return jnp.full((self.domain.dim,), 0.5), broadcast

    def learn(self, shared, round, client, x, value):
        return client


def test_the_server_has_the_messages_of_those_present(key):
    algorithm = Roll(Cube(1), 3, 2)
    present = jnp.asarray([[True, False, True], [False, False, False], [True, True, True]])
    expected = [[[0, -1, 2]] * 2, [[-1, -1, -1]] * 2, [[0, 1, 2]] * 2]
    _, trace = run(algorithm, compiled_bowl, 3, key, present=present, initial=1)
    np.testing.assert_array_equal(trace.info, expected)
    _, trace = quiet(algorithm, bowl, 3, key, present=present, initial=1)
    np.testing.assert_array_equal(trace.info, expected)
    _, trace = run(algorithm, compiled_bowl, 1, key)
    np.testing.assert_array_equal(trace.info, expected[-1:])


class Whole(Same):
    """In whole numbers, which do not depend on the program that the function is compiled into."""

    def noiseless(self, agent, x):
        return jnp.round(super().noiseless(agent, x))


@pytest.mark.full
def test_absent_peers_are_not_heard_in_a_run(key):
    algorithm = FTS(POINTS, 3, features=Fixed(size=4), mixing=Constant(1e-9))
    present = jnp.asarray([[True, True, False], [False, True, True]] * 3)
    objective = Whole(branin())
    _, trace = run(algorithm, objective, 6, key, present=present)
    for row, source in zip(present, trace.info.source, strict=True):
        assert row[source[source != jnp.arange(3)]].all()
    _, driven = quiet(algorithm, objective, 6, key, present=present)
    assert equal(rows_of(trace), rows_of(driven))


# ---------------------------------------------------------------- around a Python objective


def test_an_objective_in_python_gets_agents_and_points_of_its_own(key):
    seen = []

    def objective(agent, x):
        assert isinstance(x, np.ndarray)
        seen.append((agent, x.copy()))
        x[:] = np.nan  # it may do with its point what it likes
        return np.float32(agent)

    _, trace = quiet(RANDOM, objective, 2, key, initial=1)
    assert [agent for agent, _ in seen] == [0, 1, 2, 3] * 3
    np.testing.assert_array_equal([x for _, x in seen], trace.queries.reshape(12, 2))
    np.testing.assert_array_equal(trace.values, [[0, 1, 2, 3]] * 3)
    assert trace.failures == ()


def test_an_objective_on_a_space_gets_values_by_name(key):
    space = Space(c=Real(1e-3, 1e3, log=True), depth=Integer(1, 3), kind=Categorical("u", "v"))
    seen = []

    def objective(agent, x):
        seen.append(x)
        return x["depth"] + (x["kind"] == "u")

    _, trace = quiet(RandomSearch(space, 2), objective, 8, key)
    assert all(set(x) == {"c", "depth", "kind"} for x in seen)
    assert {x["depth"] for x in seen} == {1, 2, 3}
    assert {x["kind"] for x in seen} == {"u", "v"}
    assert [x["c"] for x in seen] == [
        space.decode(x)["c"] for x in np.asarray(trace.queries).reshape(-1, space.dim)
    ]


@pytest.mark.parametrize(
    "value",
    [
        1, True, np.True_, np.float64(1), np.asarray(1.0), jnp.asarray(1), Fraction(2, 2), Decimal("1.0"),
        jnp.bfloat16(1), jnp.float8_e5m2(1), np.asarray(jnp.bfloat16(1)), np.ma.array(1.0, mask=False),
    ],
)  # fmt: skip
def test_any_one_real_number_is_a_value(value, key):
    _, trace = quiet(RANDOM, lambda agent, x: value, 1, key)
    np.testing.assert_array_equal(trace.values, np.ones((1, 4)))


@pytest.mark.parametrize(
    "value",
    [None, "0.5", 1j, np.ones(1), [1, [2]], {}, np.timedelta64(1, "s"), np.ma.masked_all(2)],
    ids=repr,
)
def test_anything_else_is_refused_even_if_failures_are_survived(value, key):
    calls = []

    def objective(agent, x):
        calls.append(agent)
        return value if agent == 1 else 0.5

    with pytest.raises(ValueError, match="must return one real number") as caught:
        quiet(RANDOM, objective, 3, key, catch=Exception)
    assert calls == [0, 1]
    assert "agent 1" in " ".join(caught.value.__notes__)


def test_a_bar_shows_rounds_and_the_best_value(key, capsys):
    pytest.importorskip("tqdm")
    drive(RANDOM, lambda agent, x: float(agent), 2, key, initial=1, progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "best=3" in shown
    quiet(RANDOM, bowl, 1, key)
    assert capsys.readouterr().err == ""


def late(agent, x):
    time.sleep(0.01 * (4 - agent))
    return bowl(agent, x)


def test_threads_give_the_trace_of_one_after_the_other(key):
    state, trace = quiet(WALK, bowl, 3, key, initial=2)
    with ThreadPoolExecutor(4) as pool:
        parallel_state, parallel = quiet(WALK, late, 3, key, initial=2, executor=pool)
    assert equal(rows_of(trace), rows_of(parallel))
    assert equal(state, parallel_state)


def test_threads_evaluate_a_round_at_the_same_time(key):
    everybody = threading.Barrier(4, timeout=20)

    def objective(agent, x):
        everybody.wait()  # raises unless all four are under way
        return bowl(agent, x)

    with ThreadPoolExecutor(4) as pool:
        _, trace = quiet(RANDOM, objective, 2, key, executor=pool, catch=())
    assert np.isfinite(trace.values).all()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Objectives in a module that worker processes can import."""
    (tmp_path / "objectives_elsewhere.py").write_text(
        textwrap.dedent("""
        import os

        def bowl(agent, x):
            return float(-sum((float(u) - 0.1 * agent) ** 2 for u in x))

        def dies(agent, x):
            os._exit(1)

        def raises(agent, x):
            if agent == 2:
                raise LookupError("out of stock")
            return bowl(agent, x)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import objectives_elsewhere

    return objectives_elsewhere


def test_processes_give_the_trace_of_one_after_the_other(key, elsewhere):
    state, trace = quiet(WALK, elsewhere.bowl, 3, key, initial=2)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        parallel_state, parallel = quiet(WALK, elsewhere.bowl, 3, key, initial=2, executor=pool)
        with pytest.raises(LookupError, match="out of stock") as caught:
            quiet(WALK, elsewhere.raises, 3, key, executor=pool, catch=())
    assert "agent 2" in " ".join(caught.value.__notes__)
    assert equal(rows_of(trace), rows_of(parallel))
    assert equal(state, parallel_state)


def test_a_broken_pool_surfaces(key, elsewhere):
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        pytest.raises(BrokenProcessPool),
    ):
        quiet(RANDOM, elsewhere.dies, 3, key, executor=pool, catch=Exception)


# ---------------------------------------------------------------- failed evaluations


def test_failed_evaluations_are_recorded_and_survived(key):
    calls = []

    def objective(agent, x):
        calls.append(agent)
        if len(calls) in (2, 7):
            raise OSError(f"attempt {len(calls)}")
        return bowl(agent, x)

    with pytest.warns(RuntimeWarning) as warned:
        state, trace = quiet(WALK, objective, 2, key, initial=1)
    assert len(calls) == 12
    assert trace.failures == (
        Failure(0, 1, "OSError('attempt 2')"),
        Failure(1, 2, "OSError('attempt 7')"),
    )
    assert ["agent 1" in str(warned[0].message), "agent 2" in str(warned[1].message)] == [True] * 2
    failed = np.zeros((3, 4), bool)
    failed[0, 1] = failed[1, 2] = True
    np.testing.assert_array_equal(np.isnan(trace.values), failed)
    np.testing.assert_array_equal(state.clients.count, [3, 2, 2, 3])
    assert equal(state, replay(WALK, trace, key))


#: More than the precision holds.
HUGE = 10.0 * float(jnp.finfo(jnp.zeros(())).max)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, HUGE, -HUGE, 10**400])
def test_a_value_that_is_no_finite_number_is_a_failed_evaluation(value, key):
    with pytest.warns(RuntimeWarning, match=r"agent 1 failed .*the objective returned") as warned:
        state, trace = quiet(WALK, lambda agent, x: value if agent == 1 else 0.5, 2, key)
    np.testing.assert_array_equal(np.isnan(trace.values), [[False, True, False, False]] * 2)
    np.testing.assert_array_equal(state.clients.count, [2, 0, 2, 2])
    assert [failure[:2] for failure in trace.failures] == [(0, 1), (1, 1)]
    assert all("expected a finite number" in failure.error for failure in trace.failures)
    assert len(warned) == 2
    if abs(value) >= HUGE and value not in (np.inf, -np.inf):
        return  # compiled, it is infinite

    def compiled(key, agent, x):
        return jnp.where(agent == 1, jnp.asarray(value, x.dtype), 0.5)

    _, trace = run(WALK, compiled, 2, key)
    np.testing.assert_array_equal(np.isnan(trace.values), [[False, True, False, False]] * 2)


@pytest.mark.parametrize(
    "value",
    [np.ma.masked, np.ma.array(7, mask=True), Decimal("nan")],
    ids=["masked mean", "masked array", "decimal"],
)
def test_what_stands_for_no_number_is_a_failed_evaluation(value, key):
    with pytest.warns(RuntimeWarning, match="agent 1 failed .*the objective returned nan"):
        _, trace = quiet(RANDOM, lambda agent, x: value if agent == 1 else 0.5, 1, key)
    assert np.isnan(trace.values).tolist() == [[False, True, False, False]]


def test_an_objective_that_never_returns_a_finite_number_ends_the_run(key, tmp_path):
    calls, path = [], tmp_path / "run.npz"

    def broken(agent, x):
        calls.append(agent)
        return np.nan

    with (
        pytest.warns(RuntimeWarning, match="returned nan"),
        pytest.raises(NotFiniteError, match="returned nan, expected a finite number") as caught,
    ):
        quiet(RANDOM, broken, 5, key, checkpoint=path, catch=())
    assert calls == [0, 1, 2, 3]
    assert "evaluating agent 0 at x = " in caught.value.__notes__[0]
    _, trace = quiet(RANDOM, bowl, 5, key, checkpoint=path)
    assert np.isfinite(trace.values).all()


ALONE = RandomSearch(Cube(2), 1)


@pytest.mark.parametrize(("initial", "rounds", "most"), [(0, 9, 3), (5, 9, 5), (0, 2, 2)])
@pytest.mark.parametrize("raises", [False, True])
def test_a_success_in_the_first_few_evaluations_is_waited_for(initial, rounds, most, raises, key):
    calls = []

    def objective(agent, x, failing):
        calls.append(agent)
        if len(calls) > failing:
            return 1.0
        if raises:
            raise OSError("full")
        return np.nan

    go = lambda failing: quiet(  # noqa: E731
        ALONE, functools.partial(objective, failing=failing), rounds, key, initial=initial
    )
    with pytest.warns(RuntimeWarning):
        _, trace = go(most - 1)
    assert np.isnan(trace.values).sum() == len(trace.failures) == most - 1
    calls.clear()
    with pytest.warns(RuntimeWarning), pytest.raises((OSError, NotFiniteError)):
        go(most)
    assert len(calls) == most


@pytest.mark.parametrize("failing", [11, 12])
def test_all_of_a_design_by_many_agents_may_fail_but_one(failing, key):
    calls = []

    def objective(agent, x):
        calls.append(agent)
        return np.nan if len(calls) <= failing else 1.0

    ends = pytest.raises(NotFiniteError) if failing == 12 else contextlib.nullcontext()
    with pytest.warns(RuntimeWarning), ends:
        quiet(RANDOM, objective, 1, key, initial=3)
    assert len(calls) == (12 if failing == 12 else 16)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_that_goes_on_from_values_survives_failures_from_its_start(rounds, key):
    state, _ = quiet(WALK, bowl, rounds, key)
    ends = contextlib.nullcontext() if rounds else pytest.raises(NotFiniteError)
    calls = []

    def objective(agent, x):
        calls.append(agent)
        return np.nan

    with pytest.warns(RuntimeWarning), ends:
        quiet(WALK, objective, 2, jr.fold_in(key, 1), state=state)
    assert len(calls) == (8 if rounds else 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_objective_that_fails_from_the_start_raises_what_it_raised(workers, key, tmp_path):
    calls = []

    def broken(agent, x):
        calls.append(agent)
        raise ModuleNotFoundError("no module named datta")

    path = tmp_path / "run.npz"
    pool = ThreadPoolExecutor(workers) if workers else None
    with (
        pytest.warns(RuntimeWarning, match="datta"),
        pytest.raises(ModuleNotFoundError, match="datta") as caught,
    ):
        quiet(RANDOM, broken, 5, key, executor=pool, checkpoint=path)
    assert sorted(calls) == [0, 1, 2, 3]
    x = run(RANDOM, compiled_bowl, 1, key)[1].queries[0]
    (note,) = caught.value.__notes__
    agent = int(note.split("agent ")[1].split()[0])
    assert str(np.asarray(x[agent])) in note
    # Mended and started again, everything is evaluated.
    _, trace = quiet(RANDOM, bowl, 5, key, checkpoint=path)
    assert np.isfinite(trace.values).all()
    assert trace.failures == ()


def test_a_row_of_failures_after_a_success_is_survived(key):
    calls = []

    def objective(agent, x):
        calls.append(agent)
        if 4 < len(calls) <= 8:
            raise OSError
        return bowl(agent, x)

    with pytest.warns(RuntimeWarning):
        _, trace = quiet(RANDOM, objective, 3, key)
    assert [f.row for f in trace.failures] == [1] * 4


def test_a_failure_on_a_space_says_the_parameters(key):
    space = Space(rate=Real(1e-3, 1.0, log=True), kind=Categorical("relu", "tanh"))
    seen = []

    def broken(agent, parameters):
        seen.append(parameters)
        raise OSError("full")

    with (
        pytest.warns(RuntimeWarning, match=r"'kind': '(relu|tanh)'"),
        pytest.raises(OSError, match="full") as caught,
    ):
        quiet(RandomSearch(space, 1), broken, 1, key)
    assert str(seen[0]) in caught.value.__notes__[0]


def test_only_what_is_caught_is_survived(key):
    def objective(agent, x):
        raise (LookupError if agent == 2 else OSError)(f"agent {agent}")

    with pytest.warns(RuntimeWarning), pytest.raises(LookupError, match="agent 2") as caught:
        quiet(RANDOM, objective, 2, key, catch=OSError)
    assert "evaluating agent 2 at x = " in caught.value.__notes__[0]
    with pytest.raises(OSError, match="agent 0"):
        quiet(RANDOM, objective, 2, key, catch=())


class Instantly(Executor):
    """Has evaluated everything before anybody asks."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize(
    "pool", [None, Instantly(), ThreadPoolExecutor(3)], ids=["serial", "instant", "threads"]
)
def test_nothing_that_was_observed_is_lost_on_a_raise(pool, key, tmp_path):
    path = tmp_path / "run.npz"
    ended, broken = [], True

    def objective(agent, x):
        time.sleep(0.002 * agent)
        if broken and agent == 2 and len(ended) >= 4:
            raise LookupError
        ended.append((agent, *x.tolist()))
        return bowl(agent, x)

    with pytest.raises(LookupError):
        quiet(RANDOM, objective, 4, key, executor=pool, checkpoint=path, catch=())
    before = len(ended)
    assert before >= 6
    broken = False
    _, trace = quiet(RANDOM, objective, 4, key, executor=pool, checkpoint=path, catch=())
    assert len(ended) == 16 == len(set(ended))
    assert equal(rows_of(trace), rows_of(quiet(RANDOM, bowl, 4, key)[1]))


def test_what_has_not_begun_is_cancelled_on_a_raise(key):
    began, gate = [], threading.Event()

    def objective(agent, x):
        began.append(agent)
        if agent == 0:
            raise LookupError
        gate.wait(0.2)
        return 0.0

    with ThreadPoolExecutor(1) as pool, pytest.raises(LookupError):
        quiet(RandomSearch(Cube(1), 8), objective, 1, key, executor=pool, catch=())
    assert len(began) <= 3


def test_an_interrupt_stops_at_once_and_keeps_what_ended(key, tmp_path):
    path = tmp_path / "run.npz"
    calls, stop = [], True

    def objective(agent, x):
        calls.append(agent)
        if stop and len(calls) == 7:
            raise KeyboardInterrupt
        return bowl(agent, x)

    with pytest.raises(KeyboardInterrupt):
        quiet(RANDOM, objective, 3, key, checkpoint=path)
    assert len(calls) == 7
    stop = False
    quiet(RANDOM, objective, 3, key, checkpoint=path)
    assert len(calls) == 13  # the interrupted one twice


# ---------------------------------------------------------------- replay


@pytest.mark.slow
def test_replay_is_for_any_trace_of_the_same_shape(key):
    _, trace = run(WALK, compiled_bowl, 2, key, initial=1)
    other = Trace(trace.queries, trace.values + 1, trace.info, trace.initial)
    state, changed = replay(WALK, trace, key), replay(WALK, other, key)
    assert (changed.clients.weights > state.clients.weights).all()


# ---------------------------------------------------------------- bad input


unchecked = pytest.mark.usefixtures("as_users_have_it")

CAPACITY_5 = TS(POINTS, 2, Fixed(size=4, capacity=5))
FITTED_5 = TS(POINTS, 2, Fitted(5, size=16))
PEERS = FTS(POINTS, 3, features=SMALL)

SIZES = {
    "rounds below 0": (RANDOM, -1, {}, "rounds .* got -1"),
    "rounds that are no whole number": (RANDOM, 2.5, {}, "rounds .* got 2.5"),
    "initial below 0": (RANDOM, 1, {"initial": -2}, "initial .* got -2"),
    "initial that is no whole number": (RANDOM, 1, {"initial": 0.5}, "initial .* got 0.5"),
    "capacity": (CAPACITY_5, 6, {}, "capacity of 5"),
    "capacity with initial points": (CAPACITY_5, 4, {"initial": 2}, "capacity of 5"),
    "capacity of fitted": (FITTED_5, 6, {}, "capacity of 5"),
    "capacity of the own surrogate": (
        FTS(POINTS, 2, features=SMALL, own=Fitted(5, size=16)),
        6,
        {},
        "capacity of 5",
    ),
    "present for too few rounds": (PEERS, 3, {"present": np.ones((2, 3), bool)}, "3 rounds"),
    "present for one round": (PEERS, 3, {"present": np.ones(3, bool)}, "3 rounds"),
    "present in numbers": (PEERS, 3, {"present": np.ones((3, 3), np.int32)}, "array of bool"),
    "present for too many agents": (PEERS, 3, {"present": np.ones((3, 4), bool)}, "3 agents"),
}


@unchecked
@pytest.mark.parametrize("loop", ["run", "drive"])
@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_do_not_fit_are_refused_before_work_starts(case, loop, key, tmp_path):
    algorithm, rounds, options, message = SIZES[case]
    if "present" in options:
        options = {"present": jnp.asarray(options["present"])}
    go, work = run, compiled_bowl
    evaluated = []
    if loop == "drive":
        go = functools.partial(quiet, checkpoint=tmp_path / "run.npz")
        work = lambda agent, x: evaluated.append(agent)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        go(algorithm, work, rounds, key, **options)
    assert evaluated == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@unchecked
@pytest.mark.parametrize("loop", ["run", "drive"])
def test_a_state_that_does_not_fit_is_refused(loop, key):
    def go(algorithm, rounds, **options):
        if loop == "run":
            return run(algorithm, compiled_bowl, rounds, key, **options)
        return quiet(algorithm, bowl, rounds, key, **options)

    one, larger = (Stroll(Cube(2), 1, Fixed(size=size, capacity=5)) for size in (4, 8))
    state, _ = go(one, 2, initial=1)
    with pytest.raises(ValueError, match="capacity of 5"):
        go(one, 3, state=state)
    with pytest.raises(ValueError, match="initial=0"):
        go(one, 1, state=state, initial=1)
    go(one, 2, state=state)
    for other in [larger, CAPACITY_5, PEERS, RANDOM]:
        with pytest.raises(ValueError, match="another algorithm"):
            go(other, 1, state=state)


BAD_OBJECTIVES = {
    "a point": lambda key, agent, x: x,
    "a column": lambda key, agent, x: x[:1],
    "two numbers": lambda key, agent, x: (x[0], x[1]),
    "nothing": lambda key, agent, x: None,
    "a whole number": lambda key, agent, x: agent,
    "a truth value": lambda key, agent, x: x[0] > 0,
}


@unchecked
@pytest.mark.parametrize("objective", BAD_OBJECTIVES.values(), ids=BAD_OBJECTIVES)
def test_a_compiled_objective_returns_one_floating_number(objective, key):
    with pytest.raises(ValueError, match="must return one floating number"):
        run(RANDOM, objective, 1, key)


class Wrong(Same):
    """Returns a point."""

    def __call__(self, key, agent, x):
        return x


@unchecked
def test_how_a_run_is_driven_is_checked_before_anything_is_evaluated(key, tmp_path):
    path = tmp_path / "run.npz"
    with pytest.raises(ValueError, match="must return one floating number"):
        quiet(RANDOM, Wrong(branin()), 1, key, checkpoint=path)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="are for a Python objective"),
    ):
        quiet(RANDOM, Same(branin()), 1, key, executor=pool)
    for catch in (3, KeyboardInterrupt, (OSError, "all")):
        with pytest.raises(ValueError, match="catch must be types of exceptions"):
            quiet(RANDOM, never_called, 1, key, catch=catch)
    with pytest.raises(ValueError, match=r"folder .* does not exist"):
        quiet(RANDOM, never_called, 1, key, checkpoint=tmp_path / "no" / "run.npz")
    assert not path.exists()


def never_called(agent, x):
    raise AssertionError("nothing is evaluated")


@unchecked
def test_observations_of_the_wrong_shape_are_refused(key):
    state = stepped.init(RANDOM, key)
    x, y = jnp.zeros((4, 2)), jnp.zeros(4)
    stepped.tell(RANDOM, state, x, y)
    for queries, values in [(x[:3], y[:3]), (x[:, :1], y), (x, y[:3])]:
        with pytest.raises(ValueError, match=r"shape \(4, 2\)"):
            RANDOM.tell(state, queries, values)
    with pytest.raises(ValueError, match=r"shape \(4, 2\)"):
        RANDOM.warm_start(state, x[None, :3], y[None, :3])
    for queries, values in [(x[None], jnp.zeros((2, 4))), (x, y)]:
        with pytest.raises(ValueError, match=r"shape \(points, agents, 2\)"):
            RANDOM.warm_start(state, queries, values)
    with pytest.raises(ValueError, match="before the first round"):
        RANDOM.warm_start(stepped.tell(RANDOM, state, x, y), x[None], y[None])
    with pytest.raises(ValueError, match="capacity of 5"):
        CAPACITY_5.warm_start(
            stepped.init(CAPACITY_5, key), jnp.zeros((6, 2, 2)), jnp.zeros((6, 2))
        )


BAD_PARTS = {
    "no agents": (lambda: RandomSearch(Cube(2), 0), "agents .* got 0"),
    "half an agent": (lambda: TS(Cube(2), 1.5), "agents .* got 1.5"),
    "no agents of FTS": (lambda: FTS(Cube(2), 0), "got 0"),
    "no candidates": (lambda: TS(Cube(2), 1, candidates=0), "candidates .* got 0"),
    "no candidates of FTS": (lambda: FTS(Cube(2), 1, candidates=0), "candidates .* got 0"),
    "no targets": (lambda: FTS(Cube(2), 3, targets=0), "targets .* got 0"),
    "more targets than agents": (lambda: FTS(Cube(2), 3, targets=4), "targets .* got 4"),
    "a domain that is none": (lambda: RandomSearch(2, 1), "domain"),
    "a surrogate that is none": (lambda: TS(Cube(2), 1, 0.1), "surrogate"),
    "features that are not fixed": (lambda: FTS(Cube(2), 2, features=Fitted(3)), "features"),
    "an own surrogate that is none": (lambda: FTS(Cube(2), 2, own=0.1), "own"),
    "a list as schedule": (lambda: FTS(Cube(2), 2, mixing=[0.5]), "or a schedule such as"),
    "-1 as schedule": (lambda: FTS(Cube(2), 2, mixing=-1), r"\[0, 1\], got -1"),
    "a probability below 0": (lambda: Constant(-0.1), r"\[0, 1\], got -0.1"),
    "a probability above 1": (lambda: Constant(1.5), r"\[0, 1\], got 1.5"),
    "too few weights": (lambda: FTS(Cube(2), 3, peers=[1.0, 1.0]), r"shape .*got \(2,\)"),
    "a weight below 0": (lambda: FTS(Cube(2), 3, peers=[1.0, -1.0, 1.0]), "at least 0, got"),
    "a weight that is no number": (lambda: FTS(Cube(2), 2, peers=[1.0, np.nan]), "at least 0"),
    "no noise": (lambda: Fixed(noise=0.0), "noise must be positive .* got 0"),
    "noise of two numbers": (lambda: Fixed(noise=[0.1, 0.1]), "noise must be one number"),
    "a basis by name": (lambda: Fixed(basis="cosine"), "basis must be"),
    "a truth value for agents": (lambda: FTS(Cube(2), True), "agents .* got True"),
    "noise below 0": (lambda: Fitted(3, noise=-1.0), "noise must be positive .* got -1"),
    "no features": (lambda: Fixed(size=0), "size .* got 0"),
    "no capacity": (lambda: Fixed(capacity=0), "capacity .* got 0"),
    "no capacity to fit": (lambda: Fitted(0), "capacity .* got 0"),
    "a fit every 0 rounds": (lambda: Fitted(3, refit_every=0), "every .* got 0"),
}


@unchecked
@pytest.mark.parametrize("case", BAD_PARTS)
def test_a_configuration_that_cannot_work_is_refused_when_it_is_made(case):
    make, message = BAD_PARTS[case]
    with pytest.raises(ValueError, match=message):
        make()


class Wild(AbstractIndependent):
    """Asks for points outside of the domain, but for the first agent."""

    domain: Cube
    agents: int = eqx.field(static=True, default=2)

    def join(self, key, shared, index):
        return index

    def choose(self, key, shared, client, past, message, broadcast):
        return jnp.where(client == 0, 0.5, 10.5) * jnp.ones(self.domain.dim), ()

    def learn(self, shared, round, client, x, value):
        return client


def test_a_query_outside_of_the_domain_is_not_evaluated():
    wild = Wild(Cube(2))
    _, trace = run(wild, compiled_bowl, 2, jr.key(0))
    assert np.isfinite(trace.values[:, 0]).all()
    assert np.isnan(trace.values[:, 1]).all()
    calls = []
    with pytest.raises(ValueError, match=r"Wild asks for \[10.5 10.5\], which is outside"):
        quiet(wild, lambda agent, x: calls.append(x), 2, jr.key(0))
    assert calls == []


@pytest.mark.slow
def test_observations_are_counted_for_each_target(key):
    fts = FTS(Cube(2), 2, features=Fixed(size=4), own=Fixed(size=8, capacity=6))
    nan = jnp.nan
    values = jnp.array([[1.0, nan], [nan, 0.5], [2.0, nan], [nan, 1.5]])
    state = stepped.warm_start(fts, stepped.init(fts, key), jr.uniform(key, (4, 2, 2)), values)
    np.testing.assert_array_equal(state.told, [2, 2])
    assert fts.told(state) == 2
    check_sizes(fts, 4, 0, None, state)  # there is room for six
    with pytest.raises(ValueError, match="capacity of 6"):
        check_sizes(fts, 5, 0, None, state)


def test_the_initial_design_of_one_worker_of_several_is_replayed(key):
    egp = EGP(Cube(2), Fixed(size=8), workers=2)
    queries, values = jr.uniform(key, (3, 1, 2)), jnp.array([[0.1], [0.4], [0.2]])
    state = replay(egp, Trace(queries, values, (), initial=3), key)
    start = stepped.init(egp, jr.split(key, 3)[0])
    expected = stepped.warm_start(egp, start, queries, values)
    assert int(state.told) == 3
    leaves = (jax.tree.leaves(one.belief) for one in (state, expected))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_method_that_has_a_settle_of_its_own_settles():
    class Settling(RandomSearch):
        def settle(self, shared, client):
            return client

    assert not FTS(Cube(2), 2).settles
    assert not RandomSearch(Cube(2), 2).settles
    assert Settling(Cube(2), 2).settles


def test_an_objective_on_a_space_that_takes_a_dictionary_is_told_of_unpack_and_other_errors_stay():
    space = Space(rate=Real(0.0, 1.0))

    def by_name(key, agent, x):
        return x["rate"]

    def wrong(key, agent, x):
        return x[0] + None

    with pytest.raises(ValueError, match=r"p = space\.unpack\(x\)"):
        run(RandomSearch(space, 2), by_name, 1, jr.key(0))
    with pytest.raises(TypeError, match="NoneType"):
        run(RandomSearch(space, 2), wrong, 1, jr.key(0))
    with pytest.raises(TypeError, match="string indexing"):
        run(RandomSearch(Cube(2), 2), by_name, 1, jr.key(0))
