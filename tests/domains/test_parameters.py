"""Steps, orders and constants: what each kind of parameter means by itself."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.domains.parameters import Categorical, Integer, Ordinal, Real
from jaxbo.domains.space import Space

DTYPE = jax.dtypes.canonicalize_dtype(float)


class TestSteps:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "parameter", [Integer(32, 512, step=32), Integer(-7, 8, step=5), Integer(3, 3, step=9)]
    )
    def test_every_number_is_its_own_round_trip(self, parameter):
        space = Space(n=parameter)
        numbers = list(range(parameter.lower, parameter.upper + 1, parameter.step))
        X = np.stack([space.encode({"n": n}) for n in numbers])
        assert [space.decode(x)["n"] for x in X] == numbers
        assert np.asarray(jax.vmap(space.unpack)(jnp.asarray(X))["n"]).tolist() == numbers
        np.testing.assert_allclose(X[:, 0], (np.arange(len(numbers)) + 0.5) / len(numbers), 1e-6)

    def test_numbers_are_drawn_equally_often(self, key):
        space = Space(n=Integer(32, 512, step=32))
        drawn = jax.jit(lambda k: jax.vmap(space.unpack)(space.sample(k, 32_000))["n"])(key)
        counts = np.bincount(np.asarray(drawn) // 32, minlength=17)[1:]
        assert np.all(np.abs(counts - 2000) < 6 * 45)
        assert set(np.asarray(drawn).tolist()) == set(range(32, 513, 32))

    @pytest.mark.parametrize("value", [33, 31, 48, 544, 32.5])
    def test_a_number_between_steps_is_refused(self, value):
        with pytest.raises(ValueError, match=r"'n': .*(in \[32, 512\]|32 plus steps of 32)"):
            Space(n=Integer(32, 512, step=32)).encode({"n": value})

    @pytest.mark.parametrize(
        ("parameter", "complaint"),
        [
            (Integer(32, 500, step=32), "steps of 32 from 32 do not reach 500: end at 480 or 512"),
            (Integer(1, 9, step=0), "step must be a whole number of at least 1, got 0"),
            (Integer(1, 9, log=True, step=2), "does not go with a log scale"),
        ],
    )
    def test_impossible_steps_are_refused(self, parameter, complaint):
        with pytest.raises(ValueError, match=complaint):
            Space(n=parameter)

    @pytest.mark.usefixtures("as_users_have_it")
    @pytest.mark.parametrize("step", [2.0, "2", True, None])
    def test_a_step_that_is_no_whole_number_is_refused(self, step):
        with pytest.raises(ValueError, match="'n': step must be a whole number of at least 1"):
            Space(n=Integer(1, 9, step=step))

    def test_a_wide_range_may_have_few_numbers(self):
        space = Space(n=Integer(0, 2**31 - 2**21, step=2**20))
        assert space.decode(np.ones(1, DTYPE))["n"] == 2**31 - 2**21
        assert int(space.unpack(jnp.ones(1))["n"]) == 2**31 - 2**21


class TestOrder:
    def test_neighbors_are_near_and_all_take_one_coordinate(self):
        space = Space(size=Ordinal("s", "m", "l", None))
        X = [space.encode({"size": size}) for size in ("s", "m", "l", None)]
        assert space.dim == 1
        np.testing.assert_allclose(np.concatenate(X), [0.125, 0.375, 0.625, 0.875])
        assert [space.decode(x)["size"] for x in X] == ["s", "m", "l", None]

    def test_choices_are_found_as_those_of_a_categorical_are(self):
        ordinal, categorical = (
            Space(c=kind(16, 32, 0.1, (1, 2))) for kind in (Ordinal, Categorical)
        )
        for value in (16.0, np.int8(32), float(np.float32(0.1)), [1, 2]):
            found = ordinal.decode(ordinal.encode({"c": value}))["c"]
            assert found == categorical.decode(categorical.encode({"c": value}))["c"]
            assert type(found) is not np.int8

    @pytest.mark.parametrize(
        ("parameter", "complaint"),
        [
            (Ordinal(), r"Ordinal\(first"),
            (Ordinal("a", "a"), "differ"),
            (Ordinal([1]), "one by one"),
        ],
    )
    def test_impossible_orders_are_refused(self, parameter, complaint):
        with pytest.raises(ValueError, match=complaint):
            Space(c=parameter)

    def test_it_is_not_the_categorical_of_the_same_choices(self):
        assert Ordinal("a", "b") != Categorical("a", "b")
        assert Space(c=Ordinal("a", "b")).dim != Space(c=Categorical("a", "b")).dim


class TestConstants:
    SPACE = Space(seed=7, x=Real(0, 1), rate=0.25, name="adam", nothing=None, on=True)

    def test_they_are_at_every_point_and_take_no_coordinate(self):
        assert self.SPACE.dim == 1
        values = self.SPACE.decode(np.full(1, 0.5, DTYPE))
        expected = {"seed": 7, "x": 0.5, "rate": 0.25, "name": "adam", "nothing": None, "on": True}
        assert json.dumps(values) == json.dumps(expected)

    def test_compiled_objectives_have_those_that_are_numbers(self):
        values = jax.jit(self.SPACE.unpack)(jnp.full(1, 0.5))
        assert set(values) == {"seed", "x", "rate", "on"}
        assert values["seed"].dtype == jnp.int32
        assert values["rate"].dtype == DTYPE
        assert values["on"].dtype == bool
        assert (int(values["seed"]), float(values["rate"]), bool(values["on"])) == (7, 0.25, True)
        assert Space(x=Real(0, 1), n=2**40).unpack(jnp.zeros(1))["n"] == float(2**40)

    def test_they_may_be_left_out_and_must_not_differ(self):
        x = self.SPACE.encode({"x": 0.5})
        assert x == self.SPACE.encode(
            {"x": 0.5, "seed": 7.0, "rate": np.float32(0.25), "name": "adam"}
        )
        for name, other in (("seed", 8), ("name", "sgd"), ("nothing", 0), ("rate", 0.26)):
            with pytest.raises(ValueError, match=f"{name!r}.*as it must be"):
                self.SPACE.encode({"x": 0.5, name: other})

    def test_numpys_numbers_become_pythons(self):
        assert type(Space(x=Real(0, 1), n=np.int8(3)).decode(np.zeros(1, DTYPE))["n"]) is int

    def test_constants_of_two_types_make_two_spaces(self):
        one, other = (Space(x=Real(0, 1), n=n) for n in (1, True))
        assert one.constants != other.constants

    @pytest.mark.parametrize("part", [(0, 1), [1, 2], {}, object()])
    def test_what_is_no_plain_value_is_refused(self, part):
        with pytest.raises(
            ValueError, match=r"'p' is .*expected Real, Integer, Categorical or Ordinal"
        ):
            Space(x=Real(0, 1), p=part)

    def test_a_space_needs_more_than_constants(self):
        with pytest.raises(ValueError, match="needs a parameter"):
            Space(seed=7)
