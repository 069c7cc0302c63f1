"""To minimize f is to maximize -f, and every number a person sees is f's own."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.metrics import best_so_far
from jaxbo.runs._checkpoint import CheckpointError
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.compiled import run
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import summary
from tests.runs.driven import MODEL, RANDOM, bowl, quiet
from tests.walk import Walk

WALK = Walk(Cube(1), 2, invariant=True)
TS2 = TS(Finite(np.linspace(0, 1, 32)[:, None]), 2, Fixed(size=8))


def cost(agent, x):
    return float(((x - 0.3) ** 2).sum()) + 5.0


def compiled_cost(key, agent, x):
    return ((x - 0.3) ** 2).sum() + 0.1 * jr.normal(key) + 5.0


def equal(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in leaves)


@pytest.mark.slow
def test_drive_asks_what_it_asks_of_the_negative_and_keeps_values_as_they_are(key):
    state, trace = quiet(WALK, cost, 3, key, initial=2, direction="minimize")
    negative_state, negative = quiet(WALK, lambda a, x: -cost(a, x), 3, key, initial=2)
    np.testing.assert_array_equal(trace.queries, negative.queries)
    np.testing.assert_array_equal(trace.values, -negative.values)
    assert equal(state, negative_state)
    assert trace.direction == "minimize"
    assert equal(replay(WALK, trace, key), state)


@pytest.mark.slow
@pytest.mark.bitwise
@pytest.mark.parametrize(
    "model", [WALK, pytest.param(TS2, marks=pytest.mark.full)], ids=["a walk", "TS"]
)
def test_run_and_drive_minimize_alike_bit_for_bit(model, key):
    state, trace = run(model, compiled_cost, 3, key, initial=2, direction="minimize")
    driven_state, driven = quiet(model, compiled_cost, 3, key, initial=2, direction="minimize")
    np.testing.assert_array_equal(trace.queries, driven.queries)
    np.testing.assert_array_equal(trace.values, driven.values)
    assert equal(state, driven_state)
    assert trace.direction == driven.direction == "minimize"


@pytest.mark.slow
def test_run_sums_up_in_the_users_own_sign(key):
    def objective(x):
        return ((x - 0.3) ** 2).sum() + 5.0

    _, trace = run(RANDOM, objective, 4, key, initial=1, direction="minimize")
    _, rows = run(RANDOM, objective, 4, key, initial=1, direction="minimize", record=summary)
    best = np.minimum.accumulate(trace.values, axis=0)[1:]
    np.testing.assert_allclose(rows.best, best.min(axis=1), rtol=1e-6)
    np.testing.assert_allclose(rows.mean, best.mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(best_so_far(trace.values, "minimize")[1:], best)


def test_a_failure_is_no_small_value(key):
    def objective(x):
        return jnp.where(x[0] > 0.5, jnp.nan, x[0])

    _, rows = run(RANDOM, objective, 1, key, direction="minimize", record=lambda round: round)
    failed = np.isnan(rows.values)
    assert failed.any()
    np.testing.assert_array_equal(np.isinf(rows.best), failed)


def test_best_so_far_of_failures_alone_is_infinitely_bad():
    values = np.asarray([[np.nan, 2.0], [3.0, 1.0], [np.nan, 5.0]])
    np.testing.assert_array_equal(
        best_so_far(values, "minimize"), [[np.inf, 2.0], [3.0, 1.0], [3.0, 1.0]]
    )


@pytest.mark.slow
def test_workers_minimize_and_the_desk_has_the_users_own_values(key):
    desk = drive_async(MODEL, cost, 4, key, initial=2, direction="minimize", progress=False)
    negative = drive_async(MODEL, lambda w, x: -cost(w, x), 4, key, initial=2, progress=False)
    np.testing.assert_array_equal(desk.queries, negative.queries)
    np.testing.assert_array_equal(desk.values, -negative.values)
    assert equal(desk.state, negative.state)
    x, value = desk.best
    assert value == desk.values.min() == -negative.best[1]
    np.testing.assert_array_equal(x, negative.best[0])


@pytest.mark.parametrize("rows", [3, pytest.param(1, marks=pytest.mark.full)])
def test_a_run_that_goes_on_minimizes_as_one_that_was_not_stopped(rows, key, path):
    stop = lambda trace: len(trace.values) >= rows  # noqa: E731
    whole_state, whole = quiet(WALK, cost, 3, key, initial=2, direction="minimize")
    quiet(WALK, cost, 3, key, initial=2, direction="minimize", checkpoint=path, stop=stop)
    state, trace = quiet(WALK, cost, 3, key, initial=2, direction="minimize", checkpoint=path)
    np.testing.assert_array_equal(trace.values, whole.values)
    np.testing.assert_array_equal(trace.queries, whole.queries)
    assert equal(state, whole_state)


def test_a_desk_that_goes_on_has_the_same_values(key, path):
    with Desk(MODEL, key, checkpoint=path, direction="minimize") as desk:
        desk.tell(desk.ask().number, 3.0)
        desk.tell(desk.ask().number, 2.0)
    with Desk(MODEL, key, checkpoint=path, direction="minimize") as again:
        assert again.values.tolist() == [3.0, 2.0]
        assert again.best[1] == 2.0
        assert equal(again.state, desk.state)


def test_a_checkpoint_of_the_other_direction_is_one_of_another_run(key, tmp_path):
    quiet(RANDOM, bowl, 1, key, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="another direction"):
        quiet(RANDOM, bowl, 1, key, checkpoint=tmp_path / "run", direction="minimize")
    Desk(MODEL, key, checkpoint=tmp_path / "desk", direction="minimize").ask()
    with pytest.raises(CheckpointError, match="another direction"):
        Desk(MODEL, key, checkpoint=tmp_path / "desk")


@pytest.mark.parametrize("wrong", ["min", "MINIMIZE", None, -1, ["minimize"]])
@pytest.mark.parametrize(
    "loop",
    [
        lambda d: run(RANDOM, lambda x: x.sum(), 1, jr.key(0), direction=d),
        lambda d: drive(RANDOM, bowl, 1, jr.key(0), direction=d),
        lambda d: drive_async(MODEL, bowl, 1, jr.key(0), direction=d),
        lambda d: Desk(MODEL, jr.key(0), direction=d),
        lambda d: best_so_far(np.ones((2, 2)), d),
    ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_another_direction_is_refused(wrong, loop):
    with pytest.raises(ValueError, match='direction must be "maximize" or "minimize"'):
        loop(wrong)
