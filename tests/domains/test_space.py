"""Named parameters: what a point means, there and back without loss."""

import json
import math
from collections import namedtuple

import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings

from jaxbo.domains.parameters import AbstractChoice, Categorical, Integer, Real
from jaxbo.domains.space import Space

DTYPE = jax.dtypes.canonicalize_dtype(float)
BITS = 8 * np.dtype(DTYPE).itemsize

SPACE = Space(
    {"learning rate": Real(1e-6, 0.3, log=True)},
    offset=Real(-3, 7.1),
    shifted=Real(1e5, 1e5 + 1),
    depth=Integer(-2, 9),
    width=Integer(1, 3000, log=True),
    many=Integer(0, 2**20 - 1),
    kernel=Categorical("se", "matern", None),
    flag=Categorical(False, True),
    only=Integer(3, 3),
)

sample = eqx.filter_jit(lambda domain, key, count: domain.sample(key, count))
candidates = eqx.filter_jit(lambda domain, key, count: domain.candidates(key, count))
project = eqx.filter_jit(lambda domain, x: domain.project(x))
project_all = eqx.filter_jit(lambda domain, x: jax.vmap(domain.project)(x))
contains = eqx.filter_jit(lambda domain, x: domain.contains(x))
contains_all = eqx.filter_jit(lambda domain, x: jax.vmap(domain.contains)(x))
unpack = eqx.filter_jit(lambda space, x: space.unpack(x))
unpack_all = eqx.filter_jit(lambda space, x: jax.vmap(space.unpack)(x))

coordinate = st.one_of(
    st.floats(0, 1, width=BITS),
    st.integers(0, 2**24).map(lambda n: n / 2**24),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-30, 1 / 3, 2**-25, float(np.nextafter(1, 0))]),
)


def as_devices_hold(x):
    """Devices take numbers below the smallest normal one for 0."""
    x = float(DTYPE.type(x))
    return x if x == 0 or abs(x) >= np.finfo(DTYPE).tiny else 0.0


in_cube = hnp.arrays(DTYPE, SPACE.dim, elements=coordinate.map(as_devices_hold))
anywhere = st.floats(width=BITS, allow_nan=True, allow_infinity=True)
often = settings(max_examples=60, deadline=None)


def same(a, b):
    """Equal to the last bit, the sign of zero included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def expected_values(x):
    """The space's meaning spelled out in Python, for points away from the ends of cells."""
    log_width = np.log(3000.5 / 0.5)
    return {
        "learning rate": 1e-6 * (0.3 / 1e-6) ** x[0],
        "offset": -3 + 10.1 * x[1],
        "shifted": 1e5 + x[2],
        "depth": -2 + min(int(x[3] * 12), 11),
        "width": round(0.5 * np.exp(x[4] * log_width)),
        "many": min(int(x[5] * 2**20), 2**20 - 1),
        "kernel": ("se", "matern", None)[int(np.argmax(x[6:9]))],
        "flag": (False, True)[int(np.argmax(x[9:11]))],
        "only": 3,
    }


class TestSpace:
    @pytest.mark.slow
    @often
    @given(x=in_cube)
    @example(x=np.zeros(SPACE.dim, DTYPE))
    @example(x=np.ones(SPACE.dim, DTYPE))
    def test_encoding_a_decoded_point_is_its_projection_to_the_last_bit(self, x):
        there = SPACE.encode(SPACE.decode(x))
        assert same(there, project(SPACE, jnp.asarray(x)))
        assert same(there, SPACE.encode(SPACE.decode(there)))

    @often
    @given(x=in_cube)
    def test_decoded_and_unpacked_values_agree_and_keep_their_bounds(self, x):
        host, device = SPACE.decode(x), unpack(SPACE, jnp.asarray(x))
        for name, parameter in SPACE.parameters:
            if isinstance(parameter, AbstractChoice):
                assert host[name] is parameter.choices[int(device[name])]
                continue
            assert parameter.lower <= host[name] <= parameter.upper
            assert parameter.lower <= float(device[name]) <= parameter.upper
            if isinstance(parameter, Integer):
                assert type(host[name]) is int
                assert device[name].dtype == jnp.int32
                assert host[name] == int(device[name])
            else:
                assert type(host[name]) is float
                assert device[name].dtype == DTYPE
                ends = np.abs(parameter.ends()).max()
                error = 8 * np.finfo(DTYPE).eps * ends
                scale = host[name] if parameter.log else 1
                assert abs(host[name] - float(device[name])) <= error * scale

    @often
    @given(x=hnp.arrays(DTYPE, SPACE.dim, elements=anywhere))
    def test_projection_of_any_numbers_at_all_is_in_the_space(self, x):
        assert bool(contains(SPACE, project(SPACE, jnp.asarray(x))))

    def test_values_mean_what_the_formulas_say(self, key):
        for x in np.asarray(jr.uniform(key, (300, SPACE.dim), float)):
            values, expected = SPACE.decode(x), expected_values(x.astype(float))
            assert list(values) == list(expected)
            for name in ("learning rate", "offset", "shifted"):
                assert values[name] == pytest.approx(expected.pop(name), rel=2e-6, abs=2e-6)
            near = np.exp(x[4] * np.log(6001.0)) * 0.5
            if abs(near % 1 - 0.5) < 1e-2:
                expected["width"] = values["width"]
                assert abs(values["width"] - near) < 0.52
            assert {name: values[name] for name in expected} == expected

    @often
    @given(st.data())
    def test_decoding_an_encoded_configuration_is_the_identity(self, data):
        values = {
            "learning rate": data.draw(st.floats(1e-6, 0.3)),
            "offset": data.draw(st.floats(-3, 7.1)),
            "shifted": data.draw(st.floats(1e5, 1e5 + 1)),
            "depth": data.draw(st.integers(-2, 9)),
            "width": data.draw(st.integers(1, 3000)),
            "many": data.draw(st.integers(0, 2**20 - 1)),
            "kernel": data.draw(st.sampled_from(["se", "matern", None])),
            "flag": data.draw(st.booleans()),
            "only": 3,
        }
        again = SPACE.decode(SPACE.encode(values))
        assert again.pop("learning rate") == pytest.approx(values.pop("learning rate"), rel=1e-6)
        assert again.pop("offset") == pytest.approx(values.pop("offset"), abs=1e-6)
        assert again.pop("shifted") == pytest.approx(values.pop("shifted"), abs=1e-7)
        assert again == values

    @pytest.mark.parametrize(
        "parameter",
        [
            Integer(0, 0),
            Integer(-3, 996),
            Integer(1, 1000, log=True),
            Integer(5, 5, log=True),
            Integer(900, 2000, log=True),
            Integer(2**31 - 100, 2**31 - 1),
            Integer(-(2**31), -(2**31) + 48),
        ],
    )
    def test_every_integer_is_its_own_round_trip(self, parameter):
        space = Space(n=parameter)
        numbers = range(parameter.lower, parameter.upper + 1)
        x = np.stack([space.encode({"n": n}) for n in numbers])
        assert [space.decode(row)["n"] for row in x] == list(numbers)
        assert np.asarray(unpack_all(space, x)["n"]).tolist() == list(numbers)
        assert same(project_all(space, jnp.asarray(x)), x)
        assert np.all(np.diff(x[:, 0]) > 0)

    @pytest.mark.slow
    def test_integers_and_choices_are_drawn_equally_often(self, key):
        space = Space(n=Integer(3, 9), c=Categorical(*"abcdefg"), r=Real(0, 1))
        for draw in (sample, candidates):
            values = unpack_all(space, draw(space, key, 70_000))
            for drawn, first in ((values["n"], 3), (values["c"], 0)):
                counts = np.bincount(np.asarray(drawn) - first, minlength=7)
                assert len(counts) == 7
                assert np.all(np.abs(counts - 10_000) < 6 * 100)

    def test_log_integers_are_drawn_as_their_share_of_the_log_scale(self, key):
        space = Space(n=Integer(1, 20, log=True))
        drawn = np.asarray(unpack_all(space, sample(space, key, 100_000))["n"])
        share = np.diff(np.log(np.arange(1, 22) - 0.5)) / np.log(20.5 / 0.5)
        counts = np.bincount(drawn, minlength=21)[1:]
        assert np.all(np.abs(counts - 1e5 * share) < 6 * np.sqrt(1e5 * share))

    def test_candidates_cover_combinations_better_than_draws(self, key):
        space = Space(a=Integer(0, 15), b=Categorical(*range(16)))

        def missed(points):
            values = unpack_all(space, points)
            return 256 - len(set(zip(values["a"].tolist(), values["b"].tolist(), strict=True)))

        keys = jr.split(key, 10)
        even = sum(missed(candidates(space, k, 512)) for k in keys)
        assert even < 0.5 * sum(missed(sample(space, k, 512)) for k in keys)

    def test_choices_are_equally_far_apart(self):
        space = Space(c=Categorical("a", "b", "c", "d"))
        x = np.stack([space.encode({"c": c}) for c in "abcd"])
        distances = np.linalg.norm(x[:, None] - x[None], axis=-1)
        np.testing.assert_allclose(distances, math.sqrt(2) * (1 - np.eye(4)), rtol=1e-6)

    def test_the_first_of_equal_choices_is_taken(self):
        space = Space(r=Real(0, 1), c=Categorical("a", "b", "c"))
        assert space.decode(np.asarray([0, 0.2, 0.7, 0.7], DTYPE))["c"] == "b"
        assert int(unpack(space, jnp.asarray([0, 0.2, 0.7, 0.7], float))["c"]) == 1
        assert space.decode(np.zeros(4, DTYPE))["c"] == "a"

    def test_a_choice_comes_back_as_the_object_itself(self):
        choices = (len, "text", None, ("a", 1), frozenset({2}))
        space = Space(c=Categorical(*choices))
        for choice in choices:
            assert space.decode(space.encode({"c": choice}))["c"] is choice

    def test_derivatives_pass_real_coordinates_and_stop_at_rounded_ones(self):
        space = Space(
            r=Real(2, 6),
            s=Real(1, math.e, log=True),
            n=Integer(1, 4),
            c=Categorical(0, 1),
            huge=Real(0, 1e30),
        )
        x = jnp.asarray([0.3, 0.6, 0.3, 0.8, 0.1, 0.9], float)
        np.testing.assert_array_equal(
            jax.jit(jax.jacobian(space.project))(x), np.diag([1.0, 1.0, 0, 0, 0, 1.0])
        )
        slopes = jax.jit(jax.grad(lambda x: space.unpack(x)["r"] + space.unpack(x)["s"]))(x)
        np.testing.assert_allclose(slopes, [4, math.exp(0.6), 0, 0, 0, 0], rtol=1e-5)

    def test_order_and_names_are_those_given(self):
        space = Space({"b": Real(0, 1), "self": Real(0, 1)}, a=Integer(1, 2), mapping=Real(0, 1))
        assert space.names == ("b", "self", "a", "mapping")
        assert list(space.decode(np.zeros(4, DTYPE))) == ["b", "self", "a", "mapping"]

    def test_a_real_is_rounded_to_the_grid_and_no_further(self):
        space = Space(r=Real(0, 1))
        x = jnp.asarray([1e-30, 2**-24, 0.3, 1 / 3, 1 - 2**-24, 1.0], float)[:, None]
        moved = project_all(space, x) - x
        assert float(jnp.max(jnp.abs(moved))) <= 2**-25
        assert bool(jnp.all(contains_all(space, x)))

    @pytest.mark.parametrize(
        ("parameter", "complaint"),
        [
            (Real(2, 1), "must not exceed"),
            (Real(0, 1, log=True), "positive lower"),
            (Real(-1, 1, log=True), "positive lower"),
            (Real(math.nan, 1), "finite"),
            (Real(0, math.inf), "finite"),
            (Real(1e10, 1e10 + 1), "cannot resolve"),
            (Real(-1e308, 1e308), "cannot resolve"),
            (Real(0, 10**400), "cannot resolve"),
            (Real(1e300, 1e300), "cannot resolve"),
            (Real(1e-50, 1, log=True), "cannot resolve"),
            (Real(0, 1e-40), "cannot resolve"),
            (Real(-3e38, 3e38), "cannot resolve"),
            (Real(1, 1 + 1e-9, log=True), "cannot resolve"),
            (Integer(2, 1), "must not exceed"),
            (Integer(0, 10, log=True), "positive lower"),
            (Integer(0, 2**20), "too many"),
            (Integer(1, 10**6, log=True), "too many"),
            (Integer(2**31, 2**31 + 1), "int32"),
            (Categorical(), "no choices"),
            (Categorical("a", "a"), "differ"),
            (Categorical(1, True), "differ.*1 and True are the same"),
            (Categorical(1, 1.0), "differ.*1 and 1.0 are the same"),
            (Categorical("a", 0, "b", False), "differ.*0 and False are the same"),
            (Categorical((1, 2), (1.0, 2)), "differ"),
            (Categorical(np.int8(1), 1), "differ"),
            (Categorical(None, math.nan), "differ.*None and nan are the same"),
            (Categorical(["a", "b"]), "one by one"),
            ((0, 1), "expected Real, Integer, Categorical or Ordinal"),
        ],
    )
    def test_impossible_parameters_are_refused_by_name(self, parameter, complaint):
        with pytest.raises(ValueError, match=rf"parameter 'gamma'.*{complaint}"):
            Space(C=Real(0, 1), gamma=parameter)

    @pytest.mark.usefixtures("as_users_have_it")
    @pytest.mark.parametrize("bound", ["0", None, [0], np.zeros(1), 0j])
    def test_bounds_that_are_no_numbers_are_refused_by_name(self, bound):
        for parameter in (Real(bound, 1), Real(0, bound)):
            with pytest.raises(ValueError, match="'gamma': bounds must be numbers"):
                Space(gamma=parameter)
        for parameter in (Integer(bound, 1), Integer(0, bound)):
            with pytest.raises(ValueError, match="'gamma': bounds must be whole numbers"):
                Space(gamma=parameter)

    def test_a_space_needs_parameters_and_each_only_once(self):
        with pytest.raises(ValueError, match="needs a parameter"):
            Space()
        with pytest.raises(ValueError, match="twice"):
            Space({"a": Real(0, 1)}, a=Real(0, 1))

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"r": 1.5}, r"'r'.*not in \[0, 1\]"),
            ({"r": math.nan}, "'r'.*not a number"),
            ({"r": "0.5"}, "'r'.*not a number"),
            ({"r": None}, "'r'.*not a number"),
            ({"r": 10**400}, "'r'.*not a number"),
            ({"r": 1 + 1e-6}, r"'r'.*not in \[0, 1\]"),
            ({"r": -1e-40 - 1e-30}, r"'r'.*not in \[0, 1\]"),
            ({"n": 1e300}, "'n'.*no whole number in"),
            ({"n": None}, "'n'.*not a number"),
            ({"n": "2"}, "'n'.*not a number"),
            ({"n": 5}, "'n'.*no whole number in"),
            ({"n": 2.5}, "'n'.*no whole number in"),
            ({"n": math.inf}, "'n'.*no whole number in"),
            ({"c": "z"}, "'c'.*not one of"),
            ({"c": ["a"]}, "'c'.*not one of"),
            ({"c": math.nan}, "'c'.*not one of"),
            ({"c": np.zeros(2)}, "'c'.*not one of"),
            ({"extra": 1}, r"unknown parameters \['extra'\]"),
        ],
    )
    def test_values_that_do_not_fit_are_refused_by_name(self, change, complaint):
        space = Space(r=Real(0, 1), n=Integer(1, 4), c=Categorical("a", "b"))
        with pytest.raises(ValueError, match=complaint):
            space.encode({"r": 0.5, "n": 2, "c": "a"} | change)

    def test_missing_values_and_wrong_shapes_are_refused(self):
        space = Space(r=Real(0, 1), s=Real(0, 1))
        with pytest.raises(ValueError, match=r"missing parameters \['s'\]"):
            space.encode({"r": 0.5})
        with pytest.raises(ValueError, match="expected \\(2,\\)"):
            space.decode(np.zeros(3, DTYPE))


def through_floats(values, dtype):
    """As a table of one number type has them, and gives them back: whole columns are floats."""
    return {
        name: float(dtype(value)) if isinstance(value, int | float) else value
        for name, value in values.items()
    }


class NAType:
    """Pandas' sign for nothing: it is neither equal nor unequal to anything."""

    def __eq__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
        return self

    def __hash__(self):
        return 0

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class TestNumbers:
    """Numbers are Python's inside and outside, whatever they were on their way."""

    @pytest.mark.parametrize(
        "kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, jnp.int32]
    )
    def test_the_width_of_given_bounds_limits_nothing(self, kind):
        least, most = max(int(jnp.iinfo(kind).min), -30_000), min(int(jnp.iinfo(kind).max), 30_000)
        given, plain = (
            Space(k=Integer(kind(least), kind(most))),
            Space(k=Integer(least, most)),
        )
        assert given.parameters == plain.parameters
        for x in np.asarray([0, 0.25, 0.5, 0.75, 1], DTYPE)[:, None]:
            here, there = given.decode(x)["k"], plain.decode(x)["k"]
            assert here == there == int(unpack(given, jnp.asarray(x))["k"])
            assert type(here) is int
        assert given.decode(np.ones(1, DTYPE))["k"] == most

    @pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, np.int8])
    def test_real_bounds_of_any_type_are_those_numbers(self, kind):
        space = Space(r=Real(kind(1), kind(100), log=np.bool_(True)))
        assert space.parameters == Space(r=Real(1, 100, log=True)).parameters
        assert repr(space.parameters[0][1]) in (
            "Real(lower=1.0, upper=100.0, log=True)",
            "Real(lower=1, upper=100, log=True)",
        )
        assert space.decode(np.ones(1, DTYPE))["r"] == 100

    @pytest.mark.slow
    @often
    @given(x=in_cube)
    def test_what_is_decoded_is_what_json_can_write(self, x):
        space = Space(
            n=Integer(np.int8(-100), np.uint8(200)),
            r=Real(np.float32(0.1), np.float32(0.7)),
            c=Categorical(*np.asarray([0.1, 0.2, 0.3], np.float32), *np.asarray(["a"]), None),
            sizes=Categorical((np.int64(64), np.int64(32)), (np.int64(8),)),
            flag=Categorical(np.bool_(False), np.True_),
        )
        x = np.resize(x, space.dim)
        values = space.decode(x)
        again = json.loads(json.dumps(values, allow_nan=False))
        assert same(space.encode(values), space.encode(again))
        assert same(space.encode(values), project(space, jnp.asarray(x)))

    @pytest.mark.slow
    @often
    @given(x=in_cube, single=st.booleans())
    def test_points_come_back_through_a_table_of_floats(self, x, single):
        values = SPACE.decode(x)
        kind = np.float32 if single else np.float64
        there = SPACE.encode(through_floats(values, kind))
        again = SPACE.decode(there)
        for name, parameter in SPACE.parameters:
            if isinstance(parameter, Real):
                assert abs(again[name] - values[name]) <= 1e-6 * max(abs(parameter.upper), 1)
            else:
                assert again[name] == values[name]

    @pytest.mark.parametrize(
        "parameter",
        [
            Real(0.1, 0.7),
            Real(-0.7, -0.1),
            Real(1e-5, 1e-1, log=True),
            Real(3, 1e30),
            Real(0.3, 0.3),
        ],
    )
    @pytest.mark.parametrize("kind", [np.float32, float])
    def test_a_bound_within_a_rounding_of_float32_is_taken(self, parameter, kind):
        space = Space(r=parameter)
        for bound in (parameter.lower, parameter.upper):
            rounded = kind(np.float32(bound))
            assert same(space.encode({"r": rounded}), space.encode({"r": bound}))
            # Two roundings away it is another number.
            beyond = abs(rounded) * np.float32(1e-6) * (1 if bound == parameter.upper else -1)
            with pytest.raises(ValueError, match=r"'r'.*not in"):
                space.encode({"r": float(rounded) + float(beyond)})

    @pytest.mark.parametrize(
        "nothing", [None, math.nan, np.float32(np.nan), np.asarray(np.nan), NAType()]
    )
    def test_what_stands_for_nothing_in_a_table_is_none(self, nothing):
        space = Space(c=Categorical("relu", None, 0.5), r=Real(0, 1))
        x = space.encode({"c": nothing, "r": 0.5})
        assert same(x, space.encode({"c": None, "r": 0.5}))
        with pytest.raises(ValueError, match=r"'r'.*not a number"):
            space.encode({"c": None, "r": nothing})
        with pytest.raises(ValueError, match=r"'c'.*not one of"):
            Space(c=Categorical("relu", 0.5)).encode({"c": nothing})

    def test_a_choice_of_nan_is_found_and_is_the_one_given(self):
        space = Space(c=Categorical(0.5, math.nan))
        assert math.isnan(space.decode(space.encode({"c": math.nan}))["c"])

    def test_choices_are_found_by_value_and_then_by_what_float32_makes_of_them(self):
        near = 0.1 + 1e-12
        space = Space(c=Categorical(0.1, near, 0.7, 1, "1", (64, 32)))
        for value, meant in (
            (0.1, 0.1),
            (near, near),
            (float(np.float32(0.7)), 0.7),
            (np.float32(0.7), 0.7),
            (1.0, 1),
            (np.bool_(True), 1),
            (np.str_("1"), "1"),
            ([64, 32], (64, 32)),
            ((64.0, np.int8(32)), (64, 32)),
        ):
            found = space.decode(space.encode({"c": value}))["c"]
            assert found == meant
            assert type(found) is type(meant)
        # Float32 makes the same of two choices.
        with pytest.raises(ValueError, match=r"'c'.*may be 0.1 or 0.1"):
            space.encode({"c": float(np.float32(0.1))})

    def test_a_choice_that_a_floating_number_cannot_tell_from_another_is_refused(self):
        at, beyond = 2**24 + 1, 2**53 + 1
        space = Space(c=Categorical(at, at - 1, None, beyond, beyond - 1, 10**400, 0.5))
        for value in (at, at - 1, None, beyond, beyond - 1, 10**400):
            assert space.decode(space.encode({"c": value}))["c"] == value
        for value in (float(at), float(at - 1), np.float64(at)):  # float64 has them all
            assert space.decode(space.encode({"c": value}))["c"] == value
        for value in (np.float32(at), np.float32(at - 1), np.float64(beyond), float(beyond - 1)):
            with pytest.raises(ValueError, match=r"'c'.* may be \d+ or \d+, which are equal"):
                space.encode({"c": value})
        for value in (float(at + 1), 0.5 * at, math.inf):
            with pytest.raises(ValueError, match=r"'c'.*not one of"):
                space.encode({"c": value})
        alone = Space(c=Categorical(at, None))
        assert alone.decode(alone.encode({"c": np.float32(at)}))["c"] == at

    def test_whole_numbers_beside_nothing_come_back_through_pandas(self):
        choices = (2**24, 2**24 + 1, None, 3)
        space = Space(c=Categorical(*choices))
        frame = pandas.DataFrame({"c": choices})
        assert frame["c"].dtype == np.float64
        for value, meant in zip(frame["c"], choices, strict=True):
            assert space.decode(space.encode({"c": value}))["c"] == meant
        with pytest.raises(ValueError, match="may be 16777216 or 16777217"):
            space.encode({"c": frame["c"].astype("float32")[1]})

    def test_a_named_tuple_keeps_its_names_and_has_pythons_numbers(self):
        Layer = namedtuple("Layer", ["width", "rate"])
        given = Layer(np.int64(8), np.float32(0.5))
        space = Space(c=Categorical(given, Layer(4, 0.1)))
        found = space.decode(space.encode({"c": given}))["c"]
        assert (found.width, found.rate) == (8, 0.5)
        assert json.loads(json.dumps(found)) == [8, 0.5]
        assert space.decode(space.encode({"c": [8, 0.5]}))["c"] is found

    def test_points_come_back_through_pandas(self, tmp_path):
        space = Space(
            lr=Real(1e-5, 1e-1, log=True),
            depth=Integer(1, 8),
            act=Categorical("relu", "tanh", None),
            bn=Categorical(True, False),
        )
        points = [space.decode(x) for x in np.random.default_rng(0).random((20, space.dim))]
        points[0]["lr"], points[1]["lr"] = 1e-1, 1e-5
        frame = pandas.DataFrame(points)
        frame.to_csv(tmp_path / "points.csv", index=False)
        for table in (
            frame,
            pandas.read_csv(tmp_path / "points.csv"),
            frame.astype({"lr": "float32", "depth": "float32"}),
            frame.convert_dtypes(),
        ):
            for one, point in zip(table.to_dict("records"), points, strict=True):
                there, back = space.encode(point), space.encode(one)
                np.testing.assert_allclose(there, back, rtol=0, atol=1e-6)


CONSTANTS = {"a": 0.1, "b": 1e-3, "c": -7.0, "d": 0.0, "e": 3, "f": 1e30}
LOG_CONSTANTS = {"g": 0.1, "h": 3e5}
WITH_CONSTANTS = Space(
    {name: Real(value, value) for name, value in CONSTANTS.items()}
    | {name: Real(value, value, log=True) for name, value in LOG_CONSTANTS.items()},
    x=Real(0, 1),
    n=Integer(3, 3),
)
VALUES = CONSTANTS | LOG_CONSTANTS


class TestConstants:
    """A real number with equal bounds is one value, as an integer is."""

    @often
    @given(x=hnp.arrays(DTYPE, WITH_CONSTANTS.dim, elements=anywhere))
    def test_every_point_has_its_value(self, x):
        host, device = WITH_CONSTANTS.decode(x), unpack(WITH_CONSTANTS, jnp.asarray(x))
        for name, value in VALUES.items():
            assert host[name] == value
            assert type(host[name]) is float
            assert float(device[name]) == float(DTYPE.type(value))
            assert device[name].dtype == DTYPE

    @often
    @given(x=hnp.arrays(DTYPE, WITH_CONSTANTS.dim, elements=anywhere))
    def test_its_coordinate_is_the_middle_as_an_integers_is(self, x):
        there = project(WITH_CONSTANTS, jnp.asarray(x))
        assert bool(contains(WITH_CONSTANTS, there))
        assert same(np.delete(there, 8), np.full(9, 0.5, DTYPE))
        assert same(WITH_CONSTANTS.encode(WITH_CONSTANTS.decode(x)), there)
        assert not bool(contains(WITH_CONSTANTS, there.at[0].set(0.25)))

    @pytest.mark.slow
    def test_draws_and_grids_do_not_vary_it(self, key):
        fixed = np.arange(WITH_CONSTANTS.dim) != 8
        for points in (sample(WITH_CONSTANTS, key, 7), candidates(WITH_CONSTANTS, key, 7)):
            assert np.all(np.asarray(points)[:, fixed] == 0.5)
            assert len(set(np.asarray(points)[:, 8].tolist())) == 7
        points = np.asarray(WITH_CONSTANTS.axes(5).points)
        assert np.all(points[fixed] == 0.5)
        np.testing.assert_allclose(points[8], np.linspace(0, 1, 5), atol=1e-7)

    def test_no_derivative_leads_along_it(self):
        slopes = jax.jit(
            jax.grad(lambda x: sum(map(jnp.sum, (WITH_CONSTANTS.unpack(x)[n] for n in "agx"))))
        )(jnp.full(WITH_CONSTANTS.dim, 0.3, float))
        assert np.asarray(slopes).tolist() == [0.0] * 8 + [1.0, 0.0]

    @pytest.mark.slow
    def test_another_value_is_refused(self):
        values = {**VALUES, "x": 0.5, "n": 3}
        assert same(WITH_CONSTANTS.encode(values), np.full(10, 0.5, DTYPE))
        for name in VALUES:
            with pytest.raises(ValueError, match=f"{name!r}.*not in"):
                WITH_CONSTANTS.encode({**values, name: 0.2})
