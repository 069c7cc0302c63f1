"""All arguments of what runs a method, given values of a wrong kind."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.runs import minimize
from tests.arguments.wrong import cases, works_or_says_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

CUBE, KEY = jaxbo.Cube(2), jr.key(0)
SMALL = jaxbo.Fixed(size=8, capacity=8)
RANDOM = jaxbo.RandomSearch(CUBE, agents=2)


def bowl(x):
    return -jnp.sum((x - 0.3) ** 2)


def hill(agent, x):
    return -float(((x - 0.3) ** 2).sum())


def lasts(key, worker, x):
    return jnp.ones(())


WORKER = jaxbo.EGP(CUBE, SMALL, jaxbo.Thompson(), candidates=8)
TRACE = jaxbo.Trace(jnp.zeros((3, 2, 2)), np.zeros((3, 2)), (), initial=1)
RUN = {"algorithm": RANDOM, "objective": bowl, "rounds": 1, "key": KEY, "initial": 0}
DRIVEN = {
    "executor": None, "checkpoint": None, "catch": Exception, "timeout": None, "deadline": None,
    "stop": None, "direction": "maximize", "progress": False,
}  # fmt: skip
LOOPS = {
    "run": (
        jaxbo.run,
        {
            **RUN, "present": None, "state": None, "every": 1, "record": None, "mesh": None,
            "chunk": None, "direction": "maximize", "progress": False, "checkpoint": None,
        },
    ),
    "drive": (
        jaxbo.drive,
        {
            **RUN, **DRIVEN, "objective": hill, "known": None, "first": None, "present": None,
            "state": None, "ledger": None,
        },
    ),
    "drive_async": (
        jaxbo.drive_async,
        {
            **DRIVEN, "algorithm": WORKER, "objective": hill, "evaluations": 1, "key": KEY,
            "initial": 1, "known": None, "first": None,
        },
    ),
    "Desk": (
        jaxbo.Desk,
        {
            "algorithm": WORKER, "key": KEY, "initial": 1, "known": None, "first": None,
            "checkpoint": None, "direction": "maximize",
        },
    ),
    "minimize": (
        jaxbo.minimize,
        {
            "objective": hill, "domain": CUBE, "evaluations": 1, "executor": None, "workers": 1,
            "initial": 1, "outcomes": (), "seed": 0, "progress": False,
        },
    ),
    "maximize": (jaxbo.maximize, {"objective": hill, "domain": CUBE, "evaluations": 1}),
    "ask": (lambda context: jaxbo.Desk(WORKER, KEY, initial=1).ask(context=context), {"context": None}),
    "simulate": (
        jaxbo.simulate,
        {
            "algorithm": WORKER, "objective": bowl, "duration": lasts, "evaluations": 1, "key": KEY,
            "initial": 1,
        },
    ),
    "replay": (
        jaxbo.replay,
        {"algorithm": RANDOM, "trace": TRACE, "key": KEY, "state": None, "known": None},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_wrong_argument_of_a_loop_works_or_is_named(name, tmp_path, monkeypatch):
    # Those for one black box check their arguments before any method does.
    monkeypatch.setattr(minimize, "BO", lambda *_, **__: WORKER)
    for number, case in enumerate(cases({name: LOOPS[name]})):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))  # a checkpoint may be written
        works_or_says_why(LOOPS, case)
