"""Arguments of what is measured, scheduled and accounted for, given values of a wrong kind."""

from functools import partial

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import accounting, functions, metrics, objectives, schedules, stopping
from tests.arguments.wrong import all_work_or_say_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

KEY, VALUES, POINTS = jr.key(0), np.zeros((3, 2)), np.eye(2)
KERNEL, BRANIN = jaxbo.SquaredExponential(0.3), functions.branin()
MECHANISM = jaxbo.Mechanism(1.0, 1.0, jaxbo.Poisson(0.5))
PRIVATE = jaxbo.DPFTSDE(
    jaxbo.Finite(POINTS), 2, MECHANISM, features=jaxbo.Fixed(size=4), candidates=4
)
EVENTS = (accounting.event(MECHANISM, 2),)
SPENT = jaxbo.Ledger(1e-5, events=EVENTS)
TRACE = jaxbo.Trace(jnp.zeros((3, 2, 2)), VALUES, ())
ROUND = jaxbo.Round(jnp.zeros((2, 2)), jnp.zeros(2), (), jnp.zeros(2))


def bowl(x):
    return -jnp.sum((x - 0.3) ** 2)


def of(function, /, **arguments):
    """A call that takes its arguments by name."""
    return function, arguments


METRICS = {
    "best_so_far": of(metrics.best_so_far, values=VALUES, direction="maximize"),
    "simple_regret": of(metrics.simple_regret, values=VALUES, optimum=1.0, direction="maximize"),
    "cumulative_regret": of(
        metrics.cumulative_regret, values=VALUES, optimum=1.0, direction="maximize"
    ),
    "mean_and_error": of(metrics.mean_and_error, x=VALUES, axis=0),
    "confidence_interval": of(metrics.confidence_interval, x=VALUES, axis=0, level=0.9),
    "floats": of(metrics.floats, message=VALUES),
    "bytes_of": of(metrics.bytes_of, message=VALUES),
    "message_of": of(metrics.message_of, algorithm=jaxbo.TS(jaxbo.Cube(2), 2)),
    "summary": of(jaxbo.summary, round=ROUND),
}
OBJECTIVES = {
    "TestFunction": of(
        functions.TestFunction, name="bowl", formula=bowl, lower=[0.0, 0.0], upper=[1.0, 1.0],
        maximum=0.0, maximizers=[[0.3, 0.3]],
    ),
    "zakharov": of(functions.zakharov, dim=2),
    "rosenbrock": of(functions.rosenbrock, dim=2),
    "sphere": of(functions.sphere, dim=2),
    "levy": of(functions.levy, dim=2),
    "Same": of(objectives.Same, function=BRANIN, noise=0.1),
    "Shifted": of(objectives.Shifted, function=BRANIN, shifts=np.zeros((3, 2)), noise=0.1),
    "OnGrid": of(objectives.OnGrid, values=np.zeros((3, 2)), points=POINTS, noise=0.1),
    "gp_draws": of(objectives.gp_draws, key=KEY, kernel=KERNEL, points=POINTS, count=2),
    "unit_range": of(objectives.unit_range, values=VALUES),
    "perturbed": of(objectives.perturbed, key=KEY, values=np.zeros(2), distance=0.1, agents=3),
    "mixtures": of(objectives.mixtures, base=np.zeros(2), own=np.zeros((3, 2)), alpha=0.5),
}  # fmt: skip
SCHEDULES = {
    "Confidence": of(schedules.Confidence, points=100, delta=0.1),
    "Continuous": of(schedules.Continuous, factors=3, dim=2, a=1.0, b=1.0, r=1.0, delta=0.1),
    "Constant": of(schedules.Constant, probability=0.5),
    "Power": of(schedules.Power, exponent=0.5, shift=0.0),
    "Table": of(schedules.Table, probabilities=[0.5, 0.3]),
    "OfRound": of(schedules.OfRound, function=jnp.sqrt),
    "as_schedule": of(schedules.as_schedule, value=0.5),
    "explores": of(schedules.explores, numbers=[1, 1, 2]),
    "growing": of(schedules.growing, rounds=5, exponent=0.5, scale=1.0),
    "first": of(schedules.first, rounds=5),
    "optimal": of(schedules.optimal, rounds=5, kappa=1.0, delta=0.1, scale=1.0),
}
STOPPING = {
    "NoProgress": of(stopping.NoProgress, count=3, least=0.0),
    "Target": of(stopping.Target, value=1.0),
    "NoProgress of": of(stopping.NoProgress(3), known=TRACE),
    "Target of": of(stopping.Target(1.0), known=TRACE),
}
PRIVACY = {
    "Event": of(accounting.Event, relation=EVENTS[0].relation, q=0.5, z=1.0, count=2),
    "event": of(accounting.event, mechanism=MECHANISM, rounds=2),
    "moments": of(accounting.moments, events=EVENTS, delta=1e-5),
    "renyi": of(accounting.renyi, events=EVENTS, delta=1e-5),
    "pld": of(accounting.pld, events=EVENTS, delta=1e-5),
    "tightest": of(accounting.tightest, events=EVENTS),
    "epsilon": of(
        accounting.epsilon, mechanism=MECHANISM, rounds=2, delta=1e-5, accountant=accounting.moments
    ),
    "noise_for": of(
        accounting.noise_for, epsilon=1.0, delta=1e-5, q=0.5, rounds=2, accountant=accounting.moments
    ),
    "noise_for, tightest": of(partial(accounting.noise_for, 1.0, 1e-5, 0.5), rounds=2),
    "rounds_for": of(
        accounting.rounds_for, mechanism=MECHANISM, epsilon=1.0, delta=1e-5,
        accountant=accounting.moments,
    ),
    "delta_for": of(accounting.delta_for, owners=20),
    "plan": of(
        accounting.plan, owners=20, rounds=2, epsilon=1.0, delta=1e-5, q=0.5, size=10, regions=2,
        exact=False, accountant=accounting.moments,
    ),
    "audit": of(
        jaxbo.audit, algorithm=PRIVATE, objective=bowl, rounds=1, key=KEY, runs=100,
        delta=1e-5, initial=0, dropout=0.1, confidence=0.95, accountant=accounting.moments, secure=None,
    ),
    "Ledger": of(jaxbo.Ledger, delta=1e-5, budget=3.0, accountant=None, events=()),
    "Ledger.epsilon": of(SPENT.epsilon, delta=1e-5),
    "Ledger.charge": of(SPENT.charge, mechanism=MECHANISM, rounds=2),
    "Ledger.affords": of(SPENT.affords, mechanism=MECHANISM, rounds=2),
    "Ledger.covers": of(SPENT.covers, other=SPENT),
    "Ledger.charged": of(SPENT.charged, charges=SPENT.charges()),
    "Ledger.from_json": of(jaxbo.Ledger.from_json, text=SPENT.to_json()),
}  # fmt: skip
TABLE = METRICS | OBJECTIVES | SCHEDULES | STOPPING | PRIVACY


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_of_a_function_works_or_is_named(name):
    make, good = TABLE[name]
    make(**good)
    all_work_or_say_why(TABLE, name)
