"""An objective is called as its signature says, and a wrong one is told which signatures are right."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.domains.parameters import Real
from jaxbo.domains.space import Space
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.runs._objective import arguments_of
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive
from jaxbo.runs.timeline import simulate
from tests.runs.driven import MODEL, RANDOM, bowl, quiet
from tests.walk import Stroll

#: One worker asks what a run asks.
ALONE = Stroll(Cube(1))


def of_x(x):
    return 0.0


class OfAgent:
    def __call__(self, agent, x):
        return 0.0

    def method(self, x, shift=0.0):
        return 0.0


@pytest.mark.parametrize(
    ("objective", "count"),
    [
        (of_x, 1),
        (bowl, 2),
        (lambda x, scale=2.0: 0.0, 1),
        (lambda agent, x, /, scale=2.0, **more: 0.0, 2),
        (lambda key, agent, x, *, scale=2.0: 0.0, 3),
        (functools.partial(lambda data, agent, x: 0.0, None), 2),
        (functools.partial(lambda agent, x, data: 0.0, data=1), 2),
        (OfAgent(), 2),
        (OfAgent().method, 1),
        (jax.jit(lambda key, agent, x: 0.0), 3),
        (Same(branin_rescaled(), 0.1), 3),
        (lambda *arguments: 0.0, 2),
        (lambda agent=0, x=None: 0.0, 2),
        (lambda x=None: 0.0, 1),
        (max, 2),
    ],
)
def test_parameters_without_a_default_say_how_an_objective_is_called(objective, count):
    assert arguments_of(objective, otherwise=2) == count


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: 0.0,
        lambda data, key, agent, x: 0.0,
        lambda agent, x, *, epochs: 0.0,
        None,
        0.5,
        "train",
    ],
)
@pytest.mark.parametrize(
    "loop",
    [
        lambda wrong: run(RANDOM, wrong, 1, jr.key(0)),
        lambda wrong: drive(RANDOM, wrong, 1, jr.key(0)),
        lambda wrong: drive_async(MODEL, wrong, 1, jr.key(0)),
        lambda wrong: simulate(MODEL, wrong, lambda key, worker, x: 1.0, 1, jr.key(0)),
    ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_another_signature_is_told_the_three_that_are_right(wrong, loop):
    with pytest.raises(
        ValueError, match=r"f\(x\), f\(agent, x\), or a compiled f\(key, agent, x\)"
    ):
        loop(wrong)


@pytest.mark.slow
def test_drive_calls_all_three_and_the_values_are_the_same(key):
    two = quiet(RANDOM, lambda agent, x: float(x.sum()), 3, key, initial=1)[1]
    one = quiet(RANDOM, lambda x: float(x.sum()), 3, key, initial=1)[1]
    three = quiet(RANDOM, lambda key, agent, x: x.sum(), 3, key, initial=1)[1]
    np.testing.assert_array_equal(one.queries, two.queries)
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(three.queries, two.queries)
    np.testing.assert_allclose(three.values, two.values, rtol=1e-6)
    with ThreadPoolExecutor(2) as pool:
        threads = quiet(RANDOM, lambda x: float(x.sum()), 3, key, initial=1, executor=pool)[1]
    np.testing.assert_array_equal(threads.values, two.values)


@pytest.mark.slow
def test_run_takes_a_function_of_x_or_of_agent_and_x(key):
    three = run(RANDOM, lambda key, agent, x: x.sum() + jnp.sin(agent.astype(x.dtype)), 2, key)[1]
    two = run(RANDOM, lambda agent, x: x.sum() + jnp.sin(agent.astype(x.dtype)), 2, key)[1]
    one = run(RANDOM, lambda x: x.sum(), 2, key)[1]
    np.testing.assert_array_equal(two.values, three.values)
    np.testing.assert_allclose(
        one.values + jnp.sin(jnp.arange(3, dtype=float))[None], three.values, rtol=1e-6
    )


def test_the_same_function_of_x_compiles_no_second_program(key):
    traced = []

    def objective(x):
        traced.append(x)
        return x.sum()

    for seed in range(3):
        run(RANDOM, objective, 2, jr.key(seed))
        if seed == 0:
            once = len(traced)
    assert len(traced) == once + 2  # each call looks at the shapes


@pytest.mark.slow
def test_drive_async_calls_all_three_and_a_compiled_one_with_the_noise_of_a_simulation(key):
    python = drive_async(MODEL, lambda x: float(x[0]), 3, key, progress=False)
    both = drive_async(MODEL, lambda worker, x: float(x[0]), 3, key, progress=False)
    np.testing.assert_array_equal(python.values, both.values)

    def noisy(key, worker, x):
        return x[0] + jr.normal(key)

    one = drive_async(ALONE, noisy, 2, key, initial=1, progress=False)
    _, trace = run(ALONE, noisy, 2, key, initial=1)
    np.testing.assert_allclose(one.values[:2], trace.values[:2, 0], rtol=1e-5)


def test_a_compiled_objective_needs_no_executor_and_no_timeout(key):
    for more in ({"executor": 2}, {"timeout": 1.0}):
        with pytest.raises(ValueError, match="compiled"):
            quiet(RANDOM, lambda key, agent, x: x.sum(), 1, key, **more)
        with pytest.raises(ValueError, match="compiled"):
            drive_async(MODEL, lambda key, worker, x: x.sum(), 1, key, **more)


@pytest.mark.slow
def test_a_function_of_parameters_by_name_needs_no_agent(key):
    space = Space(rate=Real(1e-3, 1.0, log=True))
    _, trace = quiet(RandomSearch(space, 2), lambda p: p["rate"], 2, key)
    assert ((trace.values >= 1e-3) & (trace.values <= 1.0)).all()
