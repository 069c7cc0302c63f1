"""Newcomers after others have finished: functions, and claims about them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.prior import growing
from bench.prior.setting import CLAIMED
from bench.tasks import tabulated

NAMES = ("alike", "unrelated", "landmine-svm")


@pytest.mark.full
def test_functions_of_a_family_are_in_deviations_and_their_optimum_is_their_largest():
    its = growing.problem("half")
    assert its.objective(its.drawn(jr.key(0))).agents == its.agents == 110

    @jax.jit
    def values_and_optima(key):
        objective, agents = its.objective(its.drawn(key)), jnp.asarray([0, 109])
        x = jr.uniform(jr.fold_in(key, 1), (200, 2))
        values = jax.vmap(lambda n: jax.vmap(lambda point: objective.noiseless(n, point))(x))
        return values(agents), jax.vmap(objective.optimum)(agents)

    values, optima = map(np.asarray, values_and_optima(jr.key(0)))
    assert 0.3 < values.std() < 2
    assert (values.max(axis=1) <= optima + 0.01).all()


def test_owners_of_a_task_come_in_another_order():
    its, table = growing.problem("landmine-svm"), tabulated.load("landmine-svm")
    drawn = np.asarray(its.drawn(jr.key(0)))
    assert len(drawn) == its.agents == table.agents
    values = 100 * np.asarray(table.values)
    assert (drawn != values).any()
    order = lambda rows: rows[np.lexsort(rows.T)]  # noqa: E731
    np.testing.assert_allclose(order(drawn), order(values), rtol=1e-6)


def made(ours, alone):
    """Regret of all methods, where only that of the claimed form and of EI matter."""
    spread = 1 + 0.01 * np.arange(30)[:, None]
    regret = {}
    for name in NAMES:
        for n in growing.problem(name).finished:
            for method in growing.METHODS:
                regret[growing.label(name, method, n)] = np.full((30, 5), 1.0) * spread
            regret[growing.label(name, CLAIMED, n)] = np.full((30, 5), ours) * spread / n
        regret[growing.label(name, growing.EI, 0)] = np.full((30, 5), alone) * spread
    return regret


@pytest.mark.parametrize(("ours", "holds"), [(0.5, True), (100.0, False)])
def test_claims_are_about_the_form_that_is_claimed(ours, holds):
    found = growing.checks(made(ours, 0.5), NAMES)
    about_ei = [check.holds for claim, check in found.items() if "EI" in claim]
    assert about_ei == [holds] * 4
    assert all(check.holds for claim, check in found.items() if "as with 1" in claim)


def test_every_curve_has_a_name_of_its_own():
    labels = [
        growing.label("alike", method, n, steps)
        for method in growing.METHODS[1:]
        for n in growing.FINISHED
        for steps in (growing.STEPS, *growing.OTHER_STEPS)
    ]
    assert len(set(labels)) == len(labels)
