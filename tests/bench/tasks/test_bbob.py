"""BBOB's functions have the values that their authors' own program computes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.tasks.bbob import draws
from bench.tasks.bbob.functions import BBOB, FUNCTIONS, excess
from bench.tasks.bbob.instances import instance

#: Values of all functions at one point, instance 2, by the authors' program (coco-experiment 2.8.2).
POINT = (1.5, -2.5, 3.25)
PRINTED = {
    1: 473.51148048000005,
    2: 9490266.293965995,
    3: 832.8059063465962,
    4: 3917.0812118942827,
    5: 749.8956941504209,
    6: 255.50006827999115,
    7: 625.0814864290857,
    8: 98845.03442447128,
    9: 12979.796072946523,
    10: 1097802.7077067168,
    11: 4475567.739503158,
    12: 1011958241.9504751,
    13: 1363.6562197627636,
    14: -133.1888683762001,
    15: 313.31266265268636,
    16: -257.33068667477796,
    17: 41.83830687385357,
    18: 129.99058022864273,
    19: 114.03523701672762,
    20: 113762.11360681453,
    21: 16.954248085425693,
    22: 1052.9864916511178,
    23: 25.3485111865788,
    24: 173.70536743244787,
}
#: Their waves are so fast that rounded coordinates are seen (Weierstrass, Griewank, Katsuura).
FAST = (16, 19, 23)


def test_values_are_those_that_the_authors_program_printed():
    for number, printed in PRINTED.items():
        known = instance(number, 3, 2)
        assert excess(known, np.array(POINT)) + float(known.value) == pytest.approx(
            printed, rel=1e-8
        ), FUNCTIONS[number].name


@pytest.mark.parametrize("dim", [2, 5, 10, 20, pytest.param(40, marks=pytest.mark.full)])
def test_values_are_those_of_the_authors_program(dim):
    cocoex = pytest.importorskip("cocoex")
    rng = np.random.default_rng(dim)
    for index in (1, 2, 3):
        suite = cocoex.Suite("bbob", f"instances: {index}", f"dimensions: {dim}")
        for number, theirs in zip(FUNCTIONS, suite, strict=True):
            known = instance(number, dim, index)
            near = known.optimum + 1e-3 * rng.normal(size=(2, dim))
            points = np.concatenate([rng.uniform(-5, 5, (5, dim)), np.clip(near, -5, 5)])
            ours = [excess(known, x) for x in points]
            expected = np.array([theirs(x) for x in points]) - float(known.value)
            np.testing.assert_allclose(
                ours, expected, rtol=1e-8, atol=1e-10, err_msg=f"{number}, instance {index}"
            )


def test_the_optimum_is_where_an_instance_says():
    rng = np.random.default_rng(0)
    for number in FUNCTIONS:
        known = instance(number, 5, 1)
        assert np.all(np.abs(known.optimum) <= 5)
        # Schwefel's and Lunacek's optima are published with so many digits.
        assert 0 <= excess(known, known.optimum) + 1e-12 < 1e-9, number
        near = np.clip(known.optimum + 0.1 * rng.normal(size=(20, 5)), -5, 5)
        assert min(excess(known, x) for x in near) > 0, number


@pytest.mark.full
@pytest.mark.float64
def test_one_compiled_program_has_all_functions_on_the_cube():
    functions = [BBOB(number, 3) for number in FUNCTIONS]
    points = jr.uniform(jr.key(0), (50, 3), float)

    @jax.jit
    def values(stacked):
        return jax.lax.map(lambda function: jax.vmap(function)(points), stacked)

    found = values(jax.tree.map(lambda *leaves: np.stack(leaves), *functions))
    assert found.dtype == points.dtype
    exact = found.dtype == jnp.float64
    for function, ours in zip(functions, found, strict=True):
        number = int(function.known.number)
        regrets = [function.regret(u) for u in np.asarray(points)]
        rounding = 1e-8 if exact else 1e-2 if number in FAST else 2e-4
        np.testing.assert_allclose(-ours, regrets, rtol=rounding, err_msg=str(number))
        usual = np.median(np.abs(-ours / np.array(regrets) - 1))
        assert usual < (1e-12 if exact else 1e-3 if number in FAST else 1e-5), number


def test_rotations_are_orthogonal_and_draws_follow_the_published_generator():
    turn = draws.rotation(7, 3)
    np.testing.assert_allclose(turn.T @ turn, np.eye(7), atol=1e-12)
    # By hand: 40 steps of x <- 16807 x mod (2^31 - 1) from 1, whose last 32 fill a table from behind.
    state, table = 1, []
    for _ in range(40):
        state = 16807 * state % (2**31 - 1)
        table.append(state)
    table = table[-32:][::-1]
    row = table[0] // 67108865
    assert draws.uniform(1, 1)[0] == table[row] / (2**31 - 1)


def test_what_is_no_instance_is_refused():
    for number, dim, index in ((0, 2, 1), (25, 2, 1), (1, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="expected a function of 1 to 24"):
            instance(number, dim, index)


def test_groups_are_the_papers():
    sizes = {}
    for function in FUNCTIONS.values():
        sizes[function.group] = sizes.get(function.group, 0) + 1
    assert list(sizes.values()) == [5, 4, 5, 5, 5]
