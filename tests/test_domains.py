"""Domains: every point they give is theirs, round trips are exact, covers are even."""

import doctest
import itertools
import math

import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import example, given, settings
from scipy.spatial import cKDTree
from scipy.stats import kstest

import jaxbo.space
from jaxbo.domains import Cube, Finite, Regions
from jaxbo.space import Categorical, Integer, Real, Space

DTYPE = jax.dtypes.canonicalize_dtype(float)
#: One number of points wherever it does not matter, so that compiled programs are shared.
N = 257
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
POINTS = np.random.default_rng(0).random((40, 3)).astype(DTYPE)
DOMAINS = {
    "cube": Cube(3),
    "cube of 7": Cube(7),
    "cube of 30": Cube(30),
    "finite": Finite(POINTS),
    "space": SPACE,
}

sample = eqx.filter_jit(lambda domain, key, count: domain.sample(key, count))
candidates = eqx.filter_jit(lambda domain, key, count: domain.candidates(key, count))
project = eqx.filter_jit(lambda domain, x: domain.project(x))
project_all = eqx.filter_jit(lambda domain, x: jax.vmap(domain.project)(x))
contains_all = eqx.filter_jit(lambda domain, x: jax.vmap(domain.contains)(x))
assign_all = eqx.filter_jit(lambda regions, x: jax.vmap(regions.assign)(x))
unpack_all = eqx.filter_jit(lambda space, x: jax.vmap(space.unpack)(x))
contains = eqx.filter_jit(lambda domain, x: domain.contains(x))
unpack = eqx.filter_jit(lambda space, x: space.unpack(x))

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
often = settings(max_examples=300, deadline=None)


def same(a, b):
    """Equal to the last bit, the sign of zero included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(params=DOMAINS)
def domain(request):
    return DOMAINS[request.param]


class TestEveryDomain:
    def test_draws_and_candidates_are_in_the_domain(self, domain, key):
        for points in (sample(domain, key, N), candidates(domain, key, N)):
            assert points.shape[1] == domain.dim
            assert points.dtype == DTYPE
            assert bool(jnp.all(contains_all(domain, points)))

    def test_counts_are_kept_except_by_a_finite_set(self, domain, key):
        finite = isinstance(domain, Finite)
        for count in (1, 100):
            draws, spread = jax.eval_shape(
                lambda k, n=count: (domain.sample(k, n), domain.candidates(k, n)), key
            )
            assert draws.shape == (count, domain.dim)
            assert spread.shape == (len(POINTS) if finite else count, domain.dim)

    def test_different_keys_give_different_points(self, domain, key):
        one, two = jr.split(key)
        assert not same(sample(domain, one, N), sample(domain, two, N))
        assert isinstance(domain, Finite) or not same(
            candidates(domain, one, N), candidates(domain, two, N)
        )

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -7.0])
    def test_projection_lands_in_the_domain_from_anywhere(self, domain, bad, key):
        x = sample(domain, key, N)[0]
        for spoiled in (x.at[0].set(bad), x.at[-1].set(bad), jnp.full_like(x, bad)):
            assert bool(contains(domain, project(domain, spoiled)))

    def test_projection_is_idempotent_to_the_last_bit(self, domain, key):
        x = jr.uniform(key, (N, domain.dim), float, -0.2, 1.2)
        once = project_all(domain, x)
        assert same(project_all(domain, once), once)

    def test_draws_stay_where_they_are(self, domain, key):
        x = sample(domain, key, N)
        assert same(project_all(domain, x), x)

    def test_compiled_projection_equals_the_eager_one(self, domain, key):
        x = jr.uniform(key, (N, domain.dim), float, -0.2, 1.2)
        assert same(project_all(domain, x), jax.vmap(domain.project)(x))

    def test_equal_domains_share_one_trace(self, domain, key):
        traces = []

        @eqx.filter_jit
        def draw(domain, key):
            traces.append(domain)
            return sample(domain, key, 3)

        draw(domain, key)
        draw(jax.tree.map(lambda leaf: leaf + 0, domain), key)
        if isinstance(domain, Cube):
            draw(Cube(domain.dim), key)
        if isinstance(domain, Space):
            assert hash(Space(dict(domain.parameters))) == hash(domain)
            draw(Space(dict(domain.parameters)), key)
        assert len(traces) == 1

    def test_lowers_for_every_platform(self, domain, key):
        def use(data, x):
            points = candidates(domain, jr.wrap_key_data(data), 50)
            return points + domain.project(x)[None, :], domain.contains(x)

        x = sample(domain, key, N)[0]
        exported = jax.export.export(jax.jit(use), platforms=("cpu", "cuda", "tpu"))(
            jr.key_data(key), x
        )
        assert exported.platforms == ("cpu", "cuda", "tpu")
        if BITS == 32:
            assert "f64" not in exported.mlir_module()

    def test_counts_below_one_are_refused(self, domain, key):
        with pytest.raises(ValueError, match="count must be"):
            sample(domain, key, 0)


class TestCube:
    def test_projection_is_clipping(self, key):
        x = jr.uniform(key, (100, 3), float, -2, 3)
        assert same(project_all(Cube(3), x), np.clip(x, 0, 1))

    def test_contains_its_border_and_nothing_outside(self):
        inside = [[0.0, 1.0], [1.0, 0.5]]
        outside = [[-1e-7, 0.5], [0.5, 1.0000002], [np.nan, 0.5], [0.5, np.inf]]
        flags = [bool(contains(Cube(2), jnp.asarray(x, float))) for x in inside + outside]
        assert flags == [True] * 2 + [False] * 4

    @pytest.mark.parametrize("dim", [1, 2, 3, 4, 6])
    def test_candidates_cover_better_than_uniform_draws(self, dim, key):
        targets = np.random.default_rng(1).random((1000, dim))

        def distance(points):
            return cKDTree(np.asarray(points, float)).query(targets)[0].mean()

        keys = jr.split(key, 8)
        even = np.mean([distance(candidates(Cube(dim), k, 500)) for k in keys])
        draws = np.mean([distance(sample(Cube(dim), k, 500)) for k in keys])
        gain = {1: 0.65, 2: 0.86, 3: 0.93, 4: 0.975, 6: 0.99}[dim]
        assert even < gain * draws

    @pytest.mark.parametrize("dim", [1, 3, 20])
    def test_candidates_are_even_along_every_axis_whatever_the_count(self, dim, key):
        for count in (100, 20000):
            points = np.sort(np.asarray(candidates(Cube(dim), key, count), float), axis=0)
            steps = (np.arange(count)[:, None] + 0.5) / count
            # Independent draws of 20000 deviate by 0.006 on the average axis, these by 0.001.
            assert np.abs(points - steps).max() < 1.5 * count**-0.75

    @pytest.mark.parametrize("dim", [1, 3, 20, 21])
    def test_each_candidate_is_uniform(self, dim, key):
        draw = jax.jit(jax.vmap(lambda k: candidates(Cube(dim), k, 9)[jnp.asarray([0, 8])]))
        points = np.asarray(draw(jr.split(key, 2000)))
        for row, axis in itertools.product((0, 1), (0, dim - 1)):
            assert kstest(points[:, row, axis], "uniform").pvalue > 1e-4

    def test_a_hundred_thousand_candidates_are_distinct(self, key):
        points = np.asarray(candidates(Cube(2), key, 100_000))
        assert len(np.unique(points, axis=0)) == len(points)
        assert points.min() >= 0
        assert points.max() < 1

    def test_dimensions_below_one_are_refused(self):
        with pytest.raises(ValueError, match="dim must be"):
            Cube(0)


class TestFinite:
    def test_candidates_are_the_points(self, key):
        assert same(candidates(Finite(POINTS), key, 3), POINTS)

    def test_projection_is_the_nearest_point(self, key):
        x = np.asarray(jr.uniform(key, (300, 3), float, -0.5, 1.5))
        nearest = POINTS[cKDTree(POINTS).query(x)[1]]
        assert same(project_all(Finite(POINTS), x), nearest)

    def test_all_points_are_drawn_equally_often(self, key):
        x = np.asarray(sample(Finite(POINTS), key, 40_000))
        counts = np.unique(x, axis=0, return_counts=True)[1]
        assert len(counts) == 40
        assert np.all(np.abs(counts - 1000) < 6 * np.sqrt(1000))

    @pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
    def test_points_of_any_size_are_told_apart(self, scale):
        points = jnp.asarray([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [30.0, 0.0]]) * scale
        assert same(project_all(Finite(points), points), points)
        assert same(Finite(points).project(points[2] * 0.9), points[2])

    def test_contains_only_its_points(self):
        domain = Finite(POINTS)
        assert bool(domain.contains(jnp.asarray(POINTS[7])))
        assert not bool(domain.contains(jnp.nextafter(jnp.asarray(POINTS[7]), 1)))
        assert not bool(domain.contains(jnp.full(3, jnp.nan)))

    def test_integers_become_floating_and_floats_keep_their_precision(self):
        assert Finite(np.eye(2, dtype=int)).points.dtype == DTYPE
        assert Finite(np.zeros((1, 1), np.float32)).points.dtype == np.float32

    def test_new_points_of_the_same_shape_do_not_retrace(self):
        traces = []

        @eqx.filter_jit
        def first(domain):
            traces.append(domain)
            return domain.project(domain.points[0])

        first(Finite(POINTS))
        first(Finite(POINTS + 1))
        assert len(traces) == 1

    @pytest.mark.parametrize(
        "points", [np.zeros((0, 2)), np.zeros((2, 0)), np.zeros(3), np.zeros((2, 2, 2)), 0.5]
    )
    def test_wrong_shapes_are_refused(self, points):
        with pytest.raises(ValueError, match="points has shape"):
            Finite(points)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_points_that_are_not_finite_are_refused(self, bad):
        with pytest.raises(ValueError, match="finite"):
            Finite(np.asarray([[0.0, bad]]))


class TestRegions:
    @pytest.mark.parametrize("splits", [(7,), (4, 1, 3), (49, 41), (2,) * 10])
    def test_projection_is_assigned_to_its_region_to_the_last_bit(self, splits, key):
        regions = Regions(splits)
        x = jr.uniform(key, (300, regions.dim), float, -0.3, 1.3)
        corners = jnp.concatenate([regions.lower, regions.upper])[:600]
        region = jr.randint(key, (300 + len(corners),), 0, regions.count)

        @jax.jit
        @jax.vmap
        def trip(region, x):
            inside = regions.project(region, x)
            return regions.assign(inside), regions.contains(region, inside)

        assigned, inside = trip(region, jnp.concatenate([x, corners]))
        assert same(assigned, region.astype(assigned.dtype))
        assert bool(jnp.all(inside))

    def test_every_point_of_the_cube_is_in_exactly_one_region(self, key):
        regions = Regions((3, 2, 5))
        draws = jr.uniform(key, (300, 3), float)
        x = jnp.concatenate([draws, regions.lower, regions.upper, jnp.ones((1, 3))])
        everyone = jnp.arange(regions.count)
        inside = jax.jit(jax.vmap(lambda x: jax.vmap(lambda r: regions.contains(r, x))(everyone)))(
            x
        )
        assert bool(jnp.all(jnp.sum(inside, axis=1) == 1))
        assert same(jnp.argmax(inside, axis=1), assign_all(regions, x))

    @pytest.mark.parametrize("split", [3, 49, 997])
    def test_boxes_begin_at_their_lower_corner(self, split):
        regions = Regions((split,))
        assert same(assign_all(regions, regions.lower), jnp.arange(split))
        below = jnp.nextafter(regions.lower[1:], jnp.zeros_like(regions.lower[1:]))
        assert same(assign_all(regions, below), jnp.arange(split - 1))

    def test_corners_are_the_boxes_of_the_cube(self):
        regions = Regions((2, 3))
        boxes = [(i / 2, j / 3) for i, j in itertools.product(range(2), range(3))]
        np.testing.assert_allclose(regions.lower, boxes, rtol=1e-6)
        np.testing.assert_allclose(regions.upper - regions.lower, [[1 / 2, 1 / 3]] * 6, rtol=1e-6)

    def test_draws_are_uniform_in_their_region(self, key):
        regions = Regions((4, 1, 3))
        draws = jax.jit(jax.vmap(lambda r: regions.sample(key, r, 1000)))(jnp.arange(regions.count))
        assigned = jax.vmap(jax.vmap(regions.assign))(draws)
        assert same(assigned, jnp.broadcast_to(jnp.arange(12)[:, None], (12, 1000)))
        lower, upper = np.asarray(regions.lower), np.asarray(regions.upper)
        for region, axis in itertools.product(range(12), range(3)):
            low, width = lower[region, axis], (upper - lower)[region, axis]
            test = kstest(np.asarray(draws)[region, :, axis], "uniform", (low, width))
            assert test.pvalue > 1e-4

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_projection_lands_in_the_region_from_anywhere(self, bad):
        regions = Regions((3, 3))
        for x in ([bad, 0.4], [bad, bad]):
            inside = regions.project(4, jnp.asarray(x, float))
            assert int(regions.assign(inside)) == 4

    @pytest.mark.parametrize("dim", [1, 2, 3, 5])
    def test_of_chooses_the_splits_with_the_smallest_sum(self, dim):
        for count in (1, 2, 7, 12, 30, 36, 64, 97):
            splits = Regions.of(dim, count).splits
            factors = [n for n in range(1, count + 1) if count % n == 0]
            ways = itertools.combinations_with_replacement(factors, dim)
            assert math.prod(splits) == count
            assert len(splits) == dim
            assert sum(splits) == min(sum(way) for way in ways if math.prod(way) == count)

    def test_of_handles_many_dimensions_and_large_counts(self):
        assert Regions.of(100, 6).splits == (3, 2, *(1,) * 98)
        assert Regions.of(2, 720_720).splits == (858, 840)
        assert Regions.of(50, 2**20).count == 2**20

    @pytest.mark.parametrize("splits", [(), (0, 2), (2, -1), (2**16, 2**16), (2**21,)])
    def test_impossible_splits_are_refused(self, splits):
        with pytest.raises(ValueError, match="splits"):
            Regions(splits)

    @pytest.mark.parametrize("region", [-1, 6])
    def test_regions_that_do_not_exist_are_refused(self, region, key):
        with pytest.raises(ValueError, match="region must be"):
            Regions((2, 3)).sample(key, region, 2)


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
    def test_the_example_of_its_docstring_is_true(self):
        result = doctest.testmod(jaxbo.space)
        assert result.attempted >= 5
        assert result.failed == 0

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
            if isinstance(parameter, Categorical):
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
            (Real(1, 1), "lower must be below upper"),
            (Real(2, 1), "lower must be below upper"),
            (Real(0, 1, log=True), "positive lower"),
            (Real(-1, 1, log=True), "positive lower"),
            (Real(math.nan, 1), "finite"),
            (Real(0, math.inf), "finite"),
            (Real(1e10, 1e10 + 1), "cannot resolve"),
            (Real(-1e308, 1e308), "cannot resolve"),
            (Real(1, 1 + 1e-9, log=True), "cannot resolve"),
            (Integer(2, 1), "must not exceed"),
            (Integer(0, 10, log=True), "positive lower"),
            (Integer(0, 2**20), "too many"),
            (Integer(1, 10**6, log=True), "too many"),
            (Integer(2**31, 2**31 + 1), "int32"),
            (Categorical(), "no choices"),
            (Categorical("a", "a"), "differ"),
            (Categorical(1, True), "differ"),
            (Categorical(["a", "b"]), "one by one"),
            ((0, 1), "expected Real, Integer or Categorical"),
        ],
    )
    def test_impossible_parameters_are_refused_by_name(self, parameter, complaint):
        with pytest.raises(ValueError, match=rf"parameter 'gamma'.*{complaint}"):
            Space(C=Real(0, 1), gamma=parameter)

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
            ({"n": 5}, "'n'.*no whole number in"),
            ({"n": 2.5}, "'n'.*no whole number in"),
            ({"n": math.inf}, "'n'.*no whole number in"),
            ({"c": "z"}, "'c'.*not one of"),
            ({"c": ["a"]}, "'c'.*not one of"),
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
