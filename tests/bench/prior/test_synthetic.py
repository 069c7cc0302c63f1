"""Families of functions, and claims about a prior that agents learn together."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.prior import families, multitask, setting, synthetic
from jaxbo.domains.base import Cube
from jaxbo.kernels.processes import features

weights = jax.jit(families.weights, static_argnums=2)


@pytest.mark.parametrize(
    ("family", "alike"), [("alike", 0.99), ("half", 0.5), ("opposed", -0.94), ("unrelated", 0.0)]
)
def test_neighbors_have_as_much_in_common_as_their_family_says(family, alike):
    family = jnp.asarray(families.FAMILIES[family], float)
    w = np.asarray(weights(jr.key(0), family, synthetic.AGENTS))
    found = [np.corrcoef(w[i], w[i + 1])[0, 1] for i in range(synthetic.AGENTS - 1)]
    assert np.mean(found) == pytest.approx(alike, abs=0.05)


def test_shifted_functions_are_a_common_function_at_other_places():
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.standard_normal(families.DRAWN), float)
    by, x = (jnp.asarray(rng.random(2), float) for _ in range(2))
    phi = families.drawn_on()
    f = lambda w, x: float(phi(x) @ w)  # noqa: E731
    assert f(families.moved(w, by), x) == pytest.approx(f(w, x - by), abs=1e-4)
    both = np.asarray(weights(jr.key(1), jnp.asarray(families.SHIFTED), 400), float)
    # Of functions that are moved by δ and δ', E[corr] = E exp(-|δ - δ'|² / 2 scale²), in two dimensions.
    length, shift = float(setting.KERNEL.length_scale), families.SHIFTED[3]
    expected = 1 / (1 + 2 * shift**2 / length**2)
    assert np.corrcoef(both)[::2, 1::2].mean() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_bound_knows_the_covariance_of_the_functions(family):
    family = jnp.asarray(families.FAMILIES[family], float)
    draws = np.concatenate([weights(key, family, 4) for key in jr.split(jr.key(0), 20)], axis=1)
    found = draws @ draws.T / draws.shape[1]
    np.testing.assert_allclose(multitask.covariance(family, 4), found, atol=0.04)


@pytest.mark.full
def test_the_bound_predicts_as_the_dense_process_of_all_agents():
    phi = features.sine_cosine(jr.key(0), setting.KERNEL, 2, 60)
    C = multitask.covariance(jnp.asarray([0.8, 0.2, 1.0]), 4)
    algorithm = multitask.MultiTask(Cube(2), 4, phi, C, capacity=2)
    rng = np.random.default_rng(0)
    x, y, at = rng.random((4, 2, 2)), rng.standard_normal((4, 2)), rng.random(2)
    y[1, 1] = np.nan  # a failed evaluation

    @jax.jit
    def both(x, y, at):
        clients = jax.vmap(lambda index: algorithm.join(jr.key(1), (), index))(jnp.arange(4))
        for i in range(2):
            clients = jax.vmap(lambda c, x, y: algorithm.learn((), 0, c, x, y))(
                clients, x[:, i], y[:, i]
            )
        here = jnp.asarray([True, True, True, False])
        process = algorithm.aggregate(jr.key(2), (), 0, clients, here).process
        points = jnp.concatenate([x.reshape(-1, 2), at[None]])
        return jax.vmap(process.predict, (0, None))(jnp.arange(4), at), jax.vmap(phi)(points)

    (mean, variance), table = both(*(jnp.asarray(a, float) for a in (x, y, at)))
    agent, table = np.repeat(np.arange(4), 2), np.asarray(table, float)
    told = np.isfinite(y.ravel()) & (agent < 3)
    C = np.asarray(C, float)
    k = (table @ table[-1])[:-1]
    K = C[np.ix_(agent, agent)] * (table @ table.T)[:-1, :-1] + multitask.NOISE * np.eye(8)
    cross = (C[:, agent] * k)[:, told]
    solved = np.linalg.solve(K[np.ix_(told, told)], cross.T).T
    np.testing.assert_allclose(mean, solved @ y.ravel()[told], atol=2e-3)
    expected = np.diag(C) * (table[-1] @ table[-1]) - (solved * cross).sum(axis=1)
    np.testing.assert_allclose(variance, expected, atol=1e-3)


def test_claims_are_about_the_best_rival():
    ahead = {
        (family, method): np.full((30, 20), 1.0) + 0.01 * np.arange(30)[:, None]
        for family in families.FAMILIES
        for method in synthetic.METHODS
    }
    for family in families.FAMILIES:
        ahead[family, setting.CLAIMED] = 0.3 * ahead[family, "EI"]
    assert all(check.holds for check in synthetic.checks(ahead).values())
    for family in families.FAMILIES:
        for rival in ("EI", setting.BOUND):
            ahead[family, rival] = 0.1 * ahead[family, rival]
    assert not any(check.holds for check in synthetic.checks(ahead).values())


@pytest.mark.full
def test_regret_falls_and_is_in_deviations():
    # With what the program is made of in it.
    program = jax.jit(lambda keys, family: synthetic.program("TS")(keys, family))
    regret = program(jr.split(jr.key(1), 2), jnp.asarray([0.5, 0.5, 1.0]))
    assert regret.shape == (2, setting.INITIAL + setting.ROUNDS)
    assert (np.diff(regret, axis=1) <= 1e-6).all()
    assert (regret[:, 0] < 5).all()
    assert (regret[:, -1] < regret[:, 0]).all()


def test_a_shorter_run_has_the_rows_of_its_own_evaluations():
    rows = {("half", "method"): np.ones((2, 10))}
    found = families.result(rows, {}, 5)
    assert found.settings["rounds"] == 10 - setting.INITIAL
    assert found.headers[2:] == ("after 4", "after 5", "after 7", "after 10")
    assert len(found.rows[0]) == len(found.headers)
