"""Domains: every point they give is theirs, round trips are exact, covers are even."""

import itertools
import math

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.stats import kstest

from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space

DTYPE = jax.dtypes.canonicalize_dtype(float)
#: One number of points wherever it does not matter, so that compiled programs are shared.
N = 257
BITS = 8 * np.dtype(DTYPE).itemsize

SPACE = Space(
    {"learning rate": Real(1e-6, 0.3, log=True)},
    depth=Integer(-2, 9),
    kernel=Categorical("se", "matern", None),
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
contains = eqx.filter_jit(lambda domain, x: domain.contains(x))


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
            # The most uneven of 400 keys gives 2.01, at 100 points and three axes.
            assert np.abs(points - steps).max() < 2.2 * count**-0.75

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

    def test_different_points_that_the_precision_makes_equal_are_refused(self, x64):
        least = 1e-17 if x64 else 1e-9
        for ends in ([[0.5], [0.2], [0.5]], [[0.5, 0.0], [0.5, least]], [[0.0], [-0.0]]):
            assert same(Finite(np.asarray(ends)).points, np.asarray(ends, DTYPE))
        if x64:
            return
        for close in ([[0.2], [0.5], [0.5 + 1e-9]], [[1], [2**24], [2**24 + 1]]):
            with pytest.raises(ValueError, match="points 1 and 2 differ, but float32 makes them"):
                Finite(np.asarray(close))

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

    @pytest.mark.slow
    @pytest.mark.parametrize("region", [-1, 6])
    def test_regions_that_do_not_exist_are_refused(self, region, key):
        with pytest.raises(ValueError, match="region must be"):
            Regions((2, 3)).sample(key, region, 2)
