"""What CEPE's experiments measure, and Algorithm 1 in NumPy beside ours."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.cepe import communication, rate, regret, setting
from bench.speed import cepe
from jaxbo import schedules
from jaxbo.algos.cepe import CEPE
from jaxbo.domains.base import Finite
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run

ROUNDS = 30
federation = eqx.filter_jit(setting.federation)


@pytest.mark.parametrize("name", setting.FUNCTIONS)
def test_regret_is_against_what_each_agent_wants_on_the_grid(name):
    drawn = federation(jr.key(3), name, 4)
    points = np.asarray(setting.grid())
    values = jax.jit(jax.vmap(drawn.function))
    own = np.stack([values(jnp.asarray(points ** np.asarray(p))) for p in drawn.powers])
    own = (own - np.asarray(drawn.offset)) / np.asarray(drawn.scale)
    alpha = np.asarray(drawn.alpha)[:, None]
    assert ((alpha > 0.1) & (alpha < 0.9)).all()
    assert set(np.asarray(drawn.powers).ravel()) <= {1, 2, 3}
    wanted = alpha * own + (1 - alpha) * own.mean(0)
    at = np.random.default_rng(0).integers(0, 900, (5, 4))
    at[0] = wanted.argmax(1)
    regret_of = eqx.filter_jit(lambda drawn, queries: drawn.regret(queries))
    found = np.asarray(regret_of(drawn, jnp.asarray(points[at])))
    expected = wanted.max(1) - wanted[np.arange(4), at]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found[0], 0)


@pytest.mark.full
def test_the_plain_implementation_explores_and_exploits_as_ours(x64):
    # Of the same design: variances of a grid are equal by symmetry, and rounding picks one of them.
    numbers = schedules.growing(ROUNDS)
    drawn = federation(jr.key(3), "Branin", 6)
    explores = schedules.explores(numbers)
    plain = cepe.algorithm1(drawn, explores)
    assert plain.shape == (ROUNDS, 6)
    assert (plain[explores] == plain[explores][:, :1]).all()
    method = CEPE(
        Finite(setting.grid()),
        6,
        numbers,
        alpha=drawn.alpha,
        kernel=SquaredExponential(setting.LENGTH_SCALE),
        noise=setting.NOISE,
    )
    _, trace = run(method, drawn, ROUNDS, jr.key(0))
    ours = np.asarray(drawn.regret(trace.queries)).sum(1)
    theirs = np.asarray(drawn.regret(setting.grid()[plain])).sum(1)
    # Both have the same regret in the long run, and less than while they explore.
    assert ours[~explores][-5:].mean() < 0.7 * ours[explores].mean()
    assert theirs[~explores][-5:].mean() < 0.7 * theirs[explores].mean()


def test_claims_are_about_the_ends_of_runs():
    names = (regret.OURS, regret.SHORTER, *regret.RIVALS, regret.ALONE, regret.TOGETHER)
    noise = np.random.default_rng(0).normal(0, 0.01, (8, 1))
    curves = {f"Branin, {name}": np.full((8, 3), 2.0) + noise for name in names}
    assert not any(check.holds for check in regret.checks(curves, ["Branin"]).values())
    for name in (regret.OURS, regret.SHORTER):
        curves[f"Branin, {name}"] = np.full((8, 3), 1.0) - noise
    found = regret.checks(curves, ["Branin"])
    assert len(found) == len(regret.RIVALS) * 2 + 2
    assert all(check.holds and abs(check.figure - 0.5) < 0.01 for check in found.values())


@pytest.mark.parametrize(
    ("times", "cost", "holds"), [(15, 1.5, True), (15, 2.5, False), (9, 1.1, False)]
)
def test_a_reduction_counts_if_it_is_large_enough_and_cheap_enough(times, cost, holds):
    noise = np.random.default_rng(0).normal(0, 0.01, 8)
    ratios = {"CEPE": np.ones(8), "S-CEPE, q0 = 4": times + noise}
    relative = {"CEPE": np.ones(8), "S-CEPE, q0 = 4": cost + noise}
    (check,) = communication.checks(ratios, relative).values()
    assert check.holds == holds


@pytest.mark.parametrize("order", [0.5, 0.9])
def test_the_slope_of_a_power_is_its_exponent(order):
    curves = 3 * np.arange(1, 801) ** order * np.array([[1.0], [1.1], [1.2]])
    np.testing.assert_allclose(rate.slope(curves), order, atol=1e-6)
    found = rate.checks({"50 agents": rate.slope(curves)}, {"50 agents": 2 / 3})
    (check,) = found.values()
    assert check.holds == (order < 2 / 3)
