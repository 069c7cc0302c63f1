import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo import schedules
from jaxbo.schedules import (
    Constant,
    Inverse,
    InverseSqrt,
    InverseSquare,
    OfRound,
    Power,
    Table,
    as_schedule,
)

ROUNDS = np.arange(1, 3001)


def values(schedule):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.asarray(ROUNDS)), np.float64)


def excess(shift, exponent, points, first):
    """Largest (1 - p_t) c_t - (1 - p_1) c_1 over rounds t >= first, for a constant beta of 1."""
    c = 1 + np.sqrt(2 * np.log(points * ROUNDS.astype(np.float64) ** 2))
    weighted = (1 - values(Power(exponent, shift))) * c
    return np.max(weighted[first - 1 :] - weighted[0])


PAPERS = [(InverseSqrt(), 0.5), (Inverse(), 1.0), (InverseSquare(), 2.0)]


@pytest.mark.parametrize(("named", "exponent"), PAPERS)
def test_the_named_powers_are_those_powers(named, exponent):
    np.testing.assert_allclose(values(named), values(Power(exponent)), rtol=1e-6)


@pytest.mark.parametrize(("schedule", "exponent"), [*PAPERS, (Power(0.5), 0.5), (Power(3), 3.0)])
def test_a_power_is_the_papers_formula_with_the_first_two_rounds_alike(schedule, exponent):
    p = values(schedule)
    np.testing.assert_allclose(p[1:], 1 - ROUNDS[1:] ** -exponent, rtol=1e-6)
    assert p[0] == p[1]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_shift_of_one_is_the_same_schedule_one_round_ahead(exponent):
    plain, ahead = values(Power(exponent)), values(Power(exponent, shift=1))
    np.testing.assert_array_equal(ahead[:-1], plain[1:])


@pytest.mark.parametrize("schedule", [Power(0.1), Power(0.5), Power(2), Power(9), Power(1, 5)])
def test_power_never_falls_and_stays_a_probability(schedule):
    p = values(schedule)
    assert np.all(np.diff(p) >= 0)
    assert np.all((p > 0) & (p <= 1))


@pytest.mark.parametrize(("exponent", "points"), [(0.5, 6), (1.0, 2), (2.0, 2)])
def test_the_theorem_covers_a_shift_of_one_from_just_the_stated_domain_size_on(exponent, points):
    assert excess(1, exponent, points, first=2) <= 0
    assert excess(1, exponent, 1000, first=2) <= 0
    assert excess(1, exponent, points - 1, first=2) > 0


@pytest.mark.parametrize(("exponent", "points"), [(0.5, 21), (1.0, 3), (2.0, 2)])
def test_without_a_shift_the_theorems_condition_fails_in_round_two_alone(exponent, points):
    assert excess(0, exponent, points, first=2) > 0
    assert excess(0, exponent, 10**9, first=2) > 0
    assert excess(0, exponent, points, first=3) <= 0
    assert excess(0, exponent, points - 1, first=3) > 0


def test_constant_is_constant():
    np.testing.assert_array_equal(values(Constant(0.25)), 0.25)
    np.testing.assert_array_equal(values(Constant(1)), 1)


def test_a_table_is_read_from_round_one_and_its_last_value_goes_on():
    np.testing.assert_allclose(values(Table([0.1, 0.5, 0.75]))[:5], [0.1, 0.5, 0.75, 0.75, 0.75])


def test_a_sweep_over_exponents_is_one_vmapped_program():
    swept = eqx.filter_vmap(lambda exponent: Power(exponent)(jnp.asarray(4)))
    np.testing.assert_allclose(swept(jnp.asarray([0.5, 1.0])), [0.5, 0.75])


@pytest.mark.parametrize("schedule", [Constant(0.5), Power(0.5), Table([0.5]), Inverse()])
def test_the_value_is_one_number_of_the_default_precision(schedule, x64):
    value = schedule(jnp.asarray(3))
    assert value.shape == ()
    assert value.dtype == (jnp.float64 if x64 else jnp.float32)
    assert not value.weak_type


def test_dp_fts_de_s_schedule_begins_with_zero():
    printed = OfRound(lambda t: 1 - t.astype(float) ** -0.5)
    np.testing.assert_allclose(values(printed), 1 - ROUNDS**-0.5, atol=1e-6)
    np.testing.assert_array_equal(values(Table([0.0, 0.5]))[:2], [0, 0.5])


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), [0.5, 0.5]])
def test_a_constant_that_is_no_probability_is_refused(probability):
    with pytest.raises(ValueError, match="probabilit"):
        Constant(probability)


@pytest.mark.parametrize(
    "probabilities", [[], [0.5, -0.1], [1.5], [0.5, float("nan")], 0.5, np.full((1, 1), 0.5)]
)
def test_a_table_that_is_empty_or_holds_no_probabilities_is_refused(probabilities):
    with pytest.raises(ValueError, match="probabilit"):
        Table(probabilities)


@pytest.mark.parametrize("exponent", [0.0, -1.0, float("nan"), float("inf")])
def test_an_exponent_that_is_not_positive_is_refused(exponent):
    with pytest.raises(ValueError, match="exponent"):
        Power(exponent)


@pytest.mark.parametrize("shift", [-1.0, float("nan"), float("inf")])
def test_a_negative_shift_is_refused(shift):
    with pytest.raises(ValueError, match="shift"):
        Power(1.0, shift)


# ---------------------------------------------------------------- epochs of exploration


def test_the_papers_example_explores_in_the_rounds_it_names():
    explores = schedules.explores(schedules.growing(6))
    assert explores.tolist() == [True, True, True, False, False, True]


@pytest.mark.parametrize("numbers", [schedules.growing(500), schedules.optimal(500, 0.2, 0.1, 0.5)])
def test_exploration_is_never_behind_nor_more_than_one_ahead(numbers):
    explored = np.cumsum(schedules.explores(numbers))
    assert (explored < numbers + 1).all()
    caught_up = explored >= numbers
    assert caught_up[20:].all()


def test_the_first_rounds_explore_and_no_others():
    assert schedules.explores(schedules.first(7)).all()
    assert schedules.explores(np.full(20, 7.0)).tolist() == [True] * 7 + [False] * 13


def test_the_theorems_numbers_are_its_formula():
    t = np.arange(1, 51)
    expected = 2 * t ** (2 / 2.5) * np.log(t / 0.05) ** (1 / 3)
    np.testing.assert_allclose(schedules.optimal(50, 0.5, 0.05, 2.0), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([2.0, 1.0], "decrease"),
        ([0.0, -0.0], "no round of exploration"),
        ([1.0, np.inf], "finite"),
        ([], "every round"),
        ([[1.0]], "every round"),
    ],
)
def test_numbers_that_cannot_be_explored_by_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        schedules.explores(np.asarray(numbers))


@pytest.mark.parametrize(("kappa", "delta"), [(-0.1, 0.1), (1.1, 0.1), (0.5, 0.0), (0.5, 1.0)])
def test_the_theorems_constants_are_checked(kappa, delta):
    with pytest.raises(ValueError, match=r"kappa|delta"):
        schedules.optimal(10, kappa, delta)


def test_bounds_on_a_continuous_domain_are_the_theorems():
    factors, dim, a, b, r, delta = 5, 8, 2.0, 1.5, 0.7, 0.05
    beta = schedules.Continuous(factors, dim, a, b, r, delta)
    for t in (1, 2, 50):
        first = 2 * np.log(4 * factors * np.pi**2 * t**2 / 6 / delta)
        slope = b * r * np.sqrt(np.log(4 * factors * a / delta))
        expected = first + 2 * dim * np.log(dim * t**2 * slope)
        np.testing.assert_allclose(beta(jnp.asarray(t)), expected, rtol=1e-5)


def test_a_function_that_hardly_varies_needs_one_point_an_axis():
    beta, one = schedules.Continuous(2, 3, a=1.0, b=1e-6), schedules.Confidence(8)
    np.testing.assert_allclose(beta(jnp.asarray(3)), one(jnp.asarray(3)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": 0}, "factors must be a whole number"),
        ({"dim": 0}, "dim must be a whole number"),
        ({"b": 0.0}, "b must be positive"),
        ({"delta": 1.0}, "delta must lie in"),
        ({"a": 1e-3}, "too small for the theorem"),
    ],
)
def test_impossible_bounds_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        schedules.Continuous(**{"factors": 2, "dim": 3, "a": 1.0, "b": 1.0, **options})


def test_a_number_is_a_schedule():
    assert isinstance(as_schedule(0.5), Constant)
    np.testing.assert_array_equal(values(as_schedule(0.5)), 0.5)
    with pytest.raises(ValueError, match="must lie in"):
        as_schedule(-1)


@pytest.mark.parametrize(
    "function", [lambda t: 1 - 1 / (t + 1), functools.partial(lambda a, t: 1 - 1 / (t + a), 1)]
)
def test_a_function_of_the_round_is_a_schedule(function):
    schedule = as_schedule(function)
    assert isinstance(schedule, OfRound)
    np.testing.assert_allclose(values(schedule), 1 - 1 / (ROUNDS + 1), rtol=1e-6)
    again = jax.jit(lambda schedule, t: schedule(t))(schedule, jnp.asarray(3))
    assert float(again) == pytest.approx(0.75)
    whole = as_schedule(lambda t: 1)(jnp.asarray(3))
    assert whole.dtype == jnp.zeros(()).dtype


@pytest.mark.slow
def test_a_schedule_stays_itself_and_other_things_are_none(as_users_have_it):
    schedule = Power(2)
    assert as_schedule(schedule) is schedule
    for bad in ([0.5, 1.0], None, "0.5", Power):
        with pytest.raises(ValueError, match="expected a number, a function of the round"):
            as_schedule(bad)
