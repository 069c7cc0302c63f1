"""A warning points at the line of the user's that it is about."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.runs._ahead import Ahead

KEY = jr.key(0)
RANDOM = jaxbo.RandomSearch(jaxbo.Cube(1), agents=2)
WORKER = jaxbo.EGP(jaxbo.Cube(1), jaxbo.Fixed(size=4, capacity=9), jaxbo.Thompson(), candidates=8)


def flaky(agent, x):
    if agent == 1:
        raise OSError("no disk")
    return 1.0


def desk():
    desk = jaxbo.Desk(WORKER, KEY, initial=2)
    return desk, desk.ask().number


def in_turn():
    values = iter([np.nan, 1.0])
    return lambda x: next(values)


# Each is one line, of this file.
WARNS = {
    "a failure": lambda: jaxbo.drive(RANDOM, flaky, 1, KEY, progress=False),
    "a failure elsewhere": lambda: threaded(
        lambda pool: jaxbo.drive(RANDOM, flaky, 1, KEY, progress=False, executor=pool)
    ),
    "a failure of a worker": lambda: jaxbo.drive_async(WORKER, in_turn(), 2, KEY, progress=False),
    "a query that failed": lambda: (lambda d, n: d.fail(n, "no disk"))(*desk()),
    "a value that is NaN": lambda: (lambda d, n: d.tell(n, np.nan))(*desk()),
    "rounds left out": lambda: jaxbo.run(RANDOM, lambda x: jnp.sum(x), 3, KEY, every=2),
}  # fmt: skip


def threaded(call):
    with ThreadPoolExecutor(2) as pool:
        return call(pool)


@pytest.fixture(autouse=True)
def no_other_thread(monkeypatch):
    """Filters of warnings are the process's: what compiles in another thread may set them back."""
    monkeypatch.setattr(Ahead, "start", lambda ahead, state: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", WARNS)
def test_a_warning_points_at_the_line_of_the_call(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WARNS[name]()
    caught = [w for w in caught if "jax/_src" not in w.filename]  # of JAX's cache of programs
    assert [warning.filename for warning in caught] == [__file__]
    with open(__file__, encoding="utf-8") as file:
        line = file.read().splitlines()[caught[0].lineno - 1]
    assert any(word in line for word in ("jaxbo.", "d.fail", "d.tell"))
