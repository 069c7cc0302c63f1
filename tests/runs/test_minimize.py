import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.bo import first_design
from jaxbo.domains.parameters import Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs import desk as desks
from jaxbo.runs import minimize as runs
from jaxbo.runs.desk import Desk
from jaxbo.runs.minimize import maximize, minimize
from tests.walk import Stroll

SPACE = Space(x=Real(-1.0, 1.0), n=Integer(0, 5))


@pytest.fixture(autouse=True)
def strolls(monkeypatch):
    """A method of few operations in the place of the one for users: what it has room for and how it is
    asked are tried here, not what it finds."""

    def method(domain, evaluations=200, *, workers=1, outcomes=()):
        return Stroll(domain, workers, Fixed(size=4, capacity=evaluations + workers - 1))

    monkeypatch.setattr(runs, "BO", method)
    monkeypatch.setattr(desks, "BO", method)


def value(p):
    return p["x"] ** 2 + p["n"]


@pytest.mark.slow
def test_it_makes_so_many_evaluations_in_all_and_best_is_of_the_least_value():
    desk = minimize(value, SPACE, 9, progress=False)
    assert (desk.told, desk.initial, desk.algorithm.surrogate.capacity) == (9, 6, 9)
    x, found = desk.best
    assert found == value(x) == desk.values.min()
    up = maximize(value, SPACE, 9, progress=False)
    np.testing.assert_array_equal(up.queries[:6], desk.queries[:6])
    assert up.best[1] == up.values.max()


@pytest.mark.slow
def test_known_results_and_first_points_count_for_the_design():
    known = [{"x": 0.5, "n": 1, "value": 1.25}] * 4
    guess = {"x": 0.25, "n": 2}
    desk = minimize(value, SPACE, 5, known=known, first=[guess], progress=False)
    assert (desk.answered, desk.told) == (5, 9)
    assert desk.initial == 1 + first_design(SPACE) - 4
    assert desk.algorithm.surrogate.capacity == 9
    assert SPACE.decode(desk.queries[4]) == guess


@pytest.mark.slow
def test_few_evaluations_are_all_of_the_design():
    few, more = (minimize(value, SPACE, count, progress=False) for count in (2, 7))
    assert few.told == 2
    np.testing.assert_array_equal(few.queries, more.queries[:2])


def test_a_seed_is_a_run_and_another_one_another_run():
    one, again, other = (
        np.asarray(minimize(value, SPACE, 7, seed=seed, progress=False).queries)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize("begun", [2, 7], ids=["in the design", "after it"])
def test_a_checkpoint_goes_on_with_more_evaluations(begun, tmp_path):
    path, calls = tmp_path / "run.jaxbo", []

    def counted(p):
        calls.append(p)
        return value(p)

    minimize(counted, SPACE, begun, checkpoint=path, progress=False)
    desk = minimize(counted, SPACE, 9, checkpoint=path, progress=False)
    assert (desk.told, len(calls)) == (9, 9)
    whole = minimize(value, SPACE, 9, progress=False)
    np.testing.assert_array_equal(whole.values, desk.values)


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((value, SPACE, 0), {}, "evaluations"),
        ((value, SPACE, 5), {"seed": -1}, "seed"),
        ((value, SPACE, 5), {"direction": "maximize"}, "take minimize or maximize"),
        ((value, SPACE, 3), {"initial": 4}, "more than the 3 evaluations"),
    ],
)
def test_errors_come_before_any_evaluation(arguments, options, word):
    with pytest.raises(ValueError, match=word):
        minimize(*arguments, **options)


@pytest.mark.parametrize("option", ["key", "chekpoint", "method"])
def test_an_option_that_there_is_not_is_named_with_those_that_are(option):
    words = f"maximize has no argument '{option}'.*checkpoint.*seed=0.*drive"
    with pytest.raises(TypeError, match=words):
        maximize(value, SPACE, 5, **{option: 0})


def test_a_domain_in_the_place_of_a_method_is_a_desk_for_one_black_box(key):
    desk = Desk(SPACE, key)
    assert desk.initial == first_design(SPACE)
    number, x = desk.ask()
    desk.tell(number, value(x))
    assert desk.told == 1
    assert Desk(SPACE, jr.key(0), initial=2).initial == 2
