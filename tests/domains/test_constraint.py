"""Known constraints: what `where` does not allow is never looked at, drawn or asked."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import (
    DECHBO,
    EGP,
    TS,
    Decomposed,
    Desk,
    Fixed,
    SquaredExponential,
    Thompson,
    drive,
)
from jaxbo.domains import constraint
from jaxbo.domains.parameters import Categorical, Context, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.maximize import maximize


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch):
    """A space looks at points until it has its examples. The points are the same, and fewer at a time."""
    monkeypatch.setattr(constraint, "BATCH", 128)


def below(p):
    return p["a"] + p["b"] <= 1


# A space asks its function of many points when it is made, so each is made when it is used.
@cache
def triangle():
    return Space(a=Real(0, 1), b=Real(0, 1), where=below)


@cache
def compiled():
    return Space(a=Real(0, 1), b=Real(0, 1), where=jax.jit(below))


def budget(p):
    """One that JAX cannot trace, on parameters of all kinds."""
    if p["model"] == "net" and p["width"] * p["layers"] > 200:
        return False
    return "depth" not in p or p["depth"] % 2 == 0


@cache
def mixed():
    return Space(
        model=Categorical("tree", "net"),
        depth=Integer(1, 8).when(model="tree"),
        width=Integer(16, 128, step=16).when(model="net"),
        layers=Integer(1, 6).when(model="net"),
        rate=Real(1e-3, 1, log=True),
        seed=3,
        where=budget,
    )


@partial(jax.jit, static_argnums=(2, 3))
def drawn(space, key, draws=200, candidates=200):
    """So many of each; of all of them, whether the space holds them."""
    points = space.sample(key, draws), space.candidates(key, candidates)
    return points, [jax.vmap(space.contains)(X) for X in points]


@cache
def of_one_key(made):
    return drawn(made(), jr.key(0))


def rows(space, points):
    return [space.decode(x) for x in np.asarray(points)]


class TestPoints:
    @pytest.mark.parametrize(("made", "where"), [(triangle, below), (mixed, budget)])
    def test_draws_and_candidates_are_allowed(self, made, where):
        space = made()
        for points, contained in zip(*of_one_key(made), strict=True):
            assert points.shape == (200, space.dim)
            assert all(map(where, rows(space, points)))
            assert np.asarray(contained).all()

    @pytest.mark.slow
    def test_what_is_not_allowed_is_not_in_the_space_and_cannot_be_encoded(self):
        inside, outside = jnp.asarray([0.25, 0.5]), jnp.asarray([0.75, 0.5])
        for space in (triangle(), compiled()):
            assert bool(space.contains(inside))
            assert not bool(space.contains(outside))
            assert space.encode({"a": 0.25, "b": 0.5}).tolist() == [0.25, 0.5]
            with pytest.raises(ValueError, match=r"where does not allow \{'a': 0.75, 'b': 0.5\}"):
                space.encode({"a": 0.75, "b": 0.5})

    def test_draws_are_uniform_over_what_is_allowed(self, key):
        space = compiled()
        points = np.asarray(jax.jit(lambda k: space.sample(k, 20_000))(key))
        # Of a uniform point of the triangle: mean 1/3, variance 1/18, covariance -1/36.
        error = 6 / np.sqrt(len(points))
        np.testing.assert_allclose(points.mean(axis=0), 1 / 3, atol=error * np.sqrt(1 / 18))
        covariance = [[1 / 18, -1 / 36], [-1 / 36, 1 / 18]]
        np.testing.assert_allclose(np.cov(points.T), covariance, atol=error / 12)

    @pytest.mark.slow
    def test_candidates_cover_what_is_allowed_better_than_draws(self, key):
        def gap(points):
            """The mean distance from a point of the triangle to the nearest of these."""
            grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 41)] * 2), -1).reshape(-1, 2)
            grid = grid[grid.sum(axis=1) <= 1]
            return np.linalg.norm(grid[:, None] - np.asarray(points)[None], axis=-1).min(1).mean()

        keys = jr.split(key, 8)
        draw, cover = (
            jax.jit(lambda k, f=f: f(k, 100)) for f in (compiled().sample, compiled().candidates)
        )
        assert sum(gap(cover(k)) for k in keys) < 0.9 * sum(gap(draw(k)) for k in keys)

    @pytest.mark.slow
    def test_a_compiled_and_a_python_function_give_the_same_points(self):
        points = [of_one_key(made)[0] for made in (triangle, compiled)]
        for one, other in zip(*points, strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()

    @pytest.mark.slow
    def test_one_point_in_a_thousand_is_enough(self, key):
        where = jax.jit(lambda p: jnp.abs(p["a"] - p["b"]) < 5e-4)
        space = Space(a=Real(0, 1), b=Real(0, 1), where=where)
        for points, contained in zip(*drawn(space, key, 8, 300), strict=True):
            assert np.asarray(contained).all()
            assert len(np.unique(np.asarray(points), axis=0)) >= 4

    @pytest.mark.slow
    def test_spaces_of_one_function_are_one_program(self, key):
        traced = []

        @jax.jit
        def draw(space, key):
            traced.append(space)
            return space.sample(key, 2)

        for _ in range(2):
            draw(Space(a=Real(0, 1), b=Real(0, 1), where=below), key)
        assert len(traced) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("where", "complaint"),
        [
            (lambda p: False, "where allows none of 2048 points drawn of the whole space"),
            (lambda p: p["c"] > 1, r"where raised KeyError\('c'\) at \{'a': 0"),
            (lambda p: p["a"], r"where must return True or False, got 0\.\d+ at"),
            (lambda p: None, "where must return True or False, got None"),
            (jax.jit(lambda p: p["a"]), r"where must return one truth value, got .*float"),
            (
                jax.jit(lambda p: bool(p["a"] > 0)),
                "where cannot be compiled, TracerBool.* out jax.jit",
            ),
            (jax.jit(lambda p: p["c"] > 0), "where cannot be compiled, KeyError: 'c'"),
            (jax.jit(lambda p: p["a"] > 2), "where allows none of 2048"),
            ("a < 1", r"where must be a function.*'a < 1'.*mapping: Space\(\{'where': ...\}\)"),
            (Real(0, 1), "A parameter of this name goes into a mapping"),
        ],
    )
    @pytest.mark.usefixtures("as_users_have_it")
    def test_a_function_that_cannot_say_is_refused_at_once(self, where, complaint, monkeypatch):
        monkeypatch.setattr(constraint, "MOST", 2048)
        with pytest.raises(ValueError, match=complaint):
            Space(a=Real(0, 1), where=where)

    def test_a_parameter_may_have_the_name(self):
        assert Space({"where": Real(0, 1)}).names == ("where",)


@pytest.mark.parametrize("made", [triangle, compiled])
def test_the_maximizer_ends_where_the_constraint_ends(made, key):
    space = made()
    found, value = jax.jit(
        lambda k: maximize(lambda x: 2 * x[0] + x[1], space, space.candidates(k, 64), steps=30)
    )(key)
    assert float(jnp.sum(found)) <= 1
    assert made is compiled or below(space.decode(np.asarray(found)))
    assert float(value) > 1.98  # of 2, at (1, 0)


class TestLoops:
    @pytest.mark.full  # the search is that of a desk
    def test_no_method_evaluates_what_is_not_allowed(self, key):
        def objective(agent, p):
            assert budget(p)
            assert set(p) <= set(mixed().names)
            return np.log(p["rate"]) - (p.get("depth", 4) - 4) ** 2 / 9 + p.get("layers", 0) / 6

        algorithm = TS(mixed(), 2, Fixed(size=40), candidates=16)
        _, trace = drive(algorithm, objective, 3, key, initial=2, progress=False)
        assert np.isfinite(trace.values).all()
        _, again = drive(algorithm, objective, 3, key, initial=2, progress=False)
        np.testing.assert_array_equal(trace.queries, again.queries)

    @pytest.mark.slow
    def test_tables_of_factors_keep_to_what_is_allowed(self, key):
        def budget(p):
            return p["a"] + p["b"] <= 1 and ("depth" not in p or p["depth"] % 2 == 0)

        space = Space(
            a=Real(0, 1),
            b=Real(0, 1),
            model=Categorical("tree", "net"),
            depth=Integer(1, 8).when(model="tree"),
            where=budget,
        )
        pairs = [(0, 1), (2, 3), (0, 3)]
        model = Decomposed(pairs, 16, form=SquaredExponential(0.5), grid=8, refit_every=None)
        dec = DECHBO(space, model, workers=1, candidates=16, iterations=10, steps=3)
        desk = Desk(dec, key, initial=3)
        for _ in range(6):
            number, p = desk.ask()
            assert budget(p)
            desk.tell(number, p["a"] + p["b"] - abs(p.get("depth", 5) - 5) / 8)

    @pytest.mark.slow
    def test_a_desk_asks_what_is_allowed_at_its_context(self, key):
        def where(p):
            return p["x"] <= p["load"] + 1 and ("depth" not in p or p["depth"] % 2 == 0)

        space = Space(
            load=Context(Real(0, 10)),
            x=Real(0, 10),
            k=Categorical("a", "b"),
            depth=Integer(1, 8).when(k="a"),
            where=where,
        )
        egp = EGP(space, Fixed(size=40, capacity=20), Thompson(), 2, candidates=16)
        desk = Desk(egp, key, initial=3)
        for load in (0.0, 10.0, 2.5, 0.0, 5.0):
            number, p = desk.ask(context={"load": load})
            assert p["load"] == pytest.approx(load, abs=1e-5)
            assert where(p)
            assert ("depth" in p) == (p["k"] == "a")
            desk.tell(number, p["x"] - p["load"] + (p["k"] == "a"))
        with pytest.raises(
            ValueError, match=r"context of this space is \['load'\], got values of \[\]"
        ):
            desk.ask()
        with pytest.raises(ValueError, match=r"got values of \['load', 'x'\]"):
            desk.ask(context={"load": 1.0, "x": 1.0})
        with pytest.raises(ValueError, match=r"parameter 'load': 11\.0 is not in"):
            desk.ask(context={"load": 11.0})
