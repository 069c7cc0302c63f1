"""What is compiled while evaluations run is not compiled again. Its errors are left to the caller."""

import threading

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import Cube, Desk, drive
from jaxbo.runs._ahead import Ahead
from tests.walk import Stroll, Walk

_COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _COMPILED.append(event) if "backend_compile" in event else None
)


def test_a_step_compiled_ahead_is_found():
    step = eqx.filter_jit(lambda factor, state: factor * jnp.cumsum(state))
    state, factor = jnp.arange(5.0), jnp.ones(())
    since = len(_COMPILED)
    ahead = Ahead((step, lambda state: (factor, state)))
    ahead.wait()  # does nothing yet
    ahead.start(state)
    ahead.start(state)
    ahead.wait()
    assert len(_COMPILED) == since + 1
    np.testing.assert_allclose(step(factor, state), np.cumsum(np.arange(5.0)))
    assert len(_COMPILED) == since + 1


def test_an_error_ahead_is_that_of_the_call():
    def wrong(state):
        raise RuntimeError("this step is wrong")

    later = []
    step = eqx.filter_jit(wrong)
    ahead = Ahead((step, lambda state: (state,)), (step, later.append))
    ahead.start(jnp.zeros(()))
    ahead.wait()
    assert later == []  # what follows would not be reached
    with pytest.raises(RuntimeError, match="this step is wrong"):
        step(jnp.zeros(()))


@pytest.fixture
def traced(monkeypatch):
    """The steps that are traced, and whether by the main thread."""
    steps = []

    def count(where, name):
        step = getattr(where, name)

        def counted(*args, **kwargs):
            steps.append((name, threading.current_thread() is threading.main_thread()))
            return step(*args, **kwargs)

        monkeypatch.setattr(where, name, counted)

    for where, name in ((Walk, "ask"), (Walk, "tell"), (Stroll, "ask_one"), (Stroll, "tell_one")):
        count(where, name)
    return steps


def negative_bowl(agent, x):
    return -float(np.sum((x - 0.3) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        (1, [("ask", True), ("tell", False)]),
        pytest.param(0, [("ask", True), ("tell", False)], marks=pytest.mark.full),
    ],
)
def test_a_driver_compiles_what_comes_next_while_it_evaluates(traced, initial, expected):
    # Sizes that nothing else here has: no step of them has been traced yet.
    walk = Walk(Cube(2), 41 + initial)
    _, trace = drive(walk, negative_bowl, 3, jr.key(0), initial=initial, progress=False)
    assert trace.values.shape == (3 + initial, 41 + initial)
    assert traced == expected
    since = len(_COMPILED)
    drive(walk, negative_bowl, 3, jr.key(1), initial=initial, progress=False)
    assert traced == expected
    assert len(_COMPILED) == since


def test_an_error_in_ask_comes_before_any_evaluation(monkeypatch):
    def wrong(*_, **__):
        raise RuntimeError("this ask is wrong")

    monkeypatch.setattr(Walk, "ask", wrong)
    seen = []
    walk = Walk(Cube(2), 47)
    with pytest.raises(RuntimeError, match="this ask is wrong"):
        drive(walk, lambda agent, x: seen.append(x) or 0.0, 2, jr.key(0), initial=2, progress=False)
    assert seen == []


@pytest.mark.slow
def test_where_no_thread_can_be_started_all_is_compiled_when_it_is_called(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    desk = Desk(Stroll(Cube(2), 44), jr.key(0), initial=1)
    desk.tell(desk.ask().number, 0.2)
    assert desk.ask().number == 1


@pytest.mark.slow
def test_a_desk_compiles_while_its_first_query_is_out(traced):
    desk = Desk(Stroll(Cube(2), 43), jr.key(0), initial=1)
    desk.tell(desk.ask().number, 0.2)
    desk.ask()
    assert traced == [("tell_one", False), ("ask_one", False)]
