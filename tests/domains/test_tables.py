"""Spaces of all kinds of parameters: whoever looks at a point sees the same one."""

import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings

from jaxbo.algos.ts import TS
from jaxbo.domains import constraint
from jaxbo.domains.parameters import AbstractChoice, Categorical, Context, Integer, Ordinal, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs.driver import drive

DTYPE = jax.dtypes.canonicalize_dtype(float)
WORDS = ("a", "b", None, 3, 0.5)


@st.composite
def parameters(draw):
    """A class, what it is made of, and the values of one that has cells."""
    kind = draw(st.sampled_from([Real, Integer, Categorical, Ordinal]))
    log = draw(st.booleans())
    if kind is Real:
        lower = draw(st.sampled_from([1e-3, 0.5, 2.0]))
        upper = lower * draw(st.sampled_from([1.5, 100.0]))
        return kind, (lower, upper), {"log": log}, None
    if kind is Integer and log:
        upper = draw(st.integers(1, 40))
        return kind, (1, upper), {"log": True}, list(range(1, upper + 1))
    if kind is Integer:
        lower, step = draw(st.integers(-5, 5)), draw(st.integers(1, 7))
        upper = lower + step * draw(st.integers(0, 9))
        return kind, (lower, upper), {"step": step}, list(range(lower, upper + 1, step))
    words = WORDS[: draw(st.integers(1, 5))]
    return kind, words, {}, list(words)


@st.composite
def recipes(draw):
    """Of every parameter: what it is made of, and the values of others that it needs."""
    recipe = {}
    for number in range(draw(st.integers(1, 6))):
        kind, arguments, options, values = draw(parameters())
        parents = [name for name, part in recipe.items() if part[3] is not None]
        needs = {}
        if parents and draw(st.booleans()):
            for parent in draw(st.lists(st.sampled_from(parents), min_size=1, max_size=2)):
                some = st.lists(st.sampled_from(recipe[parent][3]), min_size=1, max_size=3)
                needs[parent] = draw(some)
        recipe[f"p{number}"] = kind, arguments, options, values, needs
    return recipe, draw(
        st.sampled_from([{}, *({"fixed": v} for v in (7, 0.25, "adam", True, None))])
    )


def made_of(recipe):
    """The space, and what each parameter needs."""
    recipe, constants = recipe
    parts = {name: kind(*args, **options) for name, (kind, args, options, *_) in recipe.items()}
    needs = {name: part[4] for name, part in recipe.items()}
    parts = {name: part.when(needs[name]) if needs[name] else part for name, part in parts.items()}
    return Space({**constants, **parts}), needs


def values_of(parameter):
    return list(range(parameter.lower, parameter.upper + 1, parameter.step))


def cube_points(space, seed):
    """Inside and on the border of the cube, as float32 has them."""
    rng = np.random.default_rng(seed)
    X = rng.random((12, space.dim))
    X[rng.random(X.shape) < 0.2] = rng.choice([0.0, 0.5, 1.0])
    return X.astype(DTYPE)


def expected_names(space, needs, values):
    """The names a point must have, told by its own values: parents stand before their children."""
    found = set()
    for name, conditions in needs.items():
        if all(p in found and values[p] in some for p, some in conditions.items()):
            found.add(name)
    return found | {name for name, _ in space.constants}


def same(a, b):
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@jax.jit
def looked(space, X, key):
    """Points, draws and candidates, and what programs make of each of them."""
    points = jnp.concatenate([X, space.sample(key, 16), space.candidates(key, 16)])

    def look(x):
        projected = space.project(x)
        seen = {"unpacked": space.unpack(x), "active": space.active(x), "projected": projected}
        again, inside = space.project(projected), space.contains(projected)
        return seen | {"again": again, "inside": inside, "a point": space.contains(x), "x": x}

    return jax.vmap(look)(points)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(recipe=recipes(), seed=st.integers(0, 2**31 - 1))
def test_whoever_looks_at_a_point_of_any_space_sees_the_same(recipe, seed):
    check_a_space(recipe, seed)


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(recipe=recipes(), seed=st.integers(0, 2**31 - 1))
def test_whoever_looks_at_a_point_of_a_thousand_spaces_sees_the_same(recipe, seed):
    check_a_space(recipe, seed)
    if looked._cache_size() > 50:  # programs that nobody runs again
        looked.clear_cache()


def check_a_space(recipe, seed):
    space, needs = made_of(recipe)
    X = cube_points(space, seed)
    values = [space.decode(x) for x in X]
    others = other_where_idle(space, X, values, np.random.default_rng(seed))
    found = looked(space, jnp.asarray(np.concatenate([X, others])), jr.key(seed))
    found = jax.tree.map(np.asarray, found)
    assert found["inside"].all()
    assert same(found["again"], found["projected"])
    check_points(space, needs, found, values)
    check_what_is_not_active(space, found["projected"], others, values)
    check_draws(space, jax.tree.map(lambda seen: seen[2 * len(X) :], found))


def other_where_idle(space, X, values, rng):
    """The points with other coordinates where no parameter is active."""
    idle = [[name not in v for name, _ in space.parameters] for v in values]
    owners = space._tables.owner
    return np.where(np.asarray(idle)[:, owners], rng.random(X.shape).astype(DTYPE), X)


def check_points(space, needs, found, all_values):
    """Decoded, encoded, unpacked and projected points are the same."""
    for i, values in enumerate(all_values):
        assert set(values) == expected_names(space, needs, values)
        assert list(values) == [name for name in space.names if name in values]
        assert same(space.encode(values), found["projected"][i])
        assert space.decode(found["projected"][i]) == values
        for name, parameter in space.parameters:
            assert bool(found["active"][name][i]) == (name in values)
            if name in values:
                check_value(parameter, values[name], found["unpacked"][name][i])
        for name, constant in space.constants:
            if isinstance(constant.value, int | float):
                assert found["unpacked"][name][i] == constant.value


def check_what_is_not_active(space, projected, others, values):
    """It changes no point."""
    assert [space.decode(x) for x in others] == values
    assert same(projected[len(values) : 2 * len(values)], projected[: len(values)])


def check_draws(space, drawn):
    """Draws and candidates are points of the space."""
    assert drawn["x"].shape == (32, space.dim)
    assert drawn["a point"].all()
    assert same(drawn["projected"], drawn["x"])


def check_value(parameter, value, unpacked):
    if isinstance(parameter, AbstractChoice):
        assert value is parameter.choices[int(unpacked)]
    elif isinstance(parameter, Integer):
        assert value == int(unpacked)
        assert value in values_of(parameter)
    else:
        assert parameter.lower <= value <= parameter.upper
        assert float(unpacked) == pytest.approx(value, rel=1e-5)


@pytest.mark.full
@settings(max_examples=10, deadline=None)
@given(recipe=recipes(), seed=st.integers(0, 2**31 - 1))
def test_a_method_asks_points_of_the_space_and_its_model_knows_them_as_they_are(recipe, seed):
    space, needs = made_of(recipe)
    method, asked = TS(space, 1, Fixed(size=8), candidates=16), []

    def objective(p):
        asked.append(p)
        return float(len(asked))

    key = jr.key(seed)
    state, trace = drive(method, objective, 2, key, initial=1, progress=False)
    points, rng = trace.queries[:, 0], np.random.default_rng(seed)
    assert jax.vmap(space.contains)(points).all()
    for p, x in zip(asked, points, strict=True):
        assert set(p) == expected_names(space, needs, p)
        assert same(space.encode(p), x)
        idle = np.asarray([name not in p for name, _ in space.parameters])[space._tables.owner]
        other = space.project(jnp.asarray(np.where(idle, rng.random(x.size).astype(DTYPE), x)))
        assert same(method.predict(state, other[None])[0], method.predict(state, x[None])[0])


def enough(p):
    """A constraint, in Python and compiled."""
    return p["share"] > 0.25


#: Every kind of parameter and every role.
EVERYTHING = {
    "site": Context(Integer(0, 3)),
    "share": Real(0, 1),
    "model": Categorical("tree", "svm", None),
    "depth": Integer(2, 12, step=2).when(model="tree"),
    "C": Real(1e-2, 1e2, log=True).when(model=["svm", None]),
    "level": Ordinal("low", "middle", "high"),
    "seed": 7,
}
NEEDS = {name: {} for name in EVERYTHING if name != "seed"}
NEEDS |= {"depth": {"model": ["tree"]}, "C": {"model": ["svm", None]}}


@pytest.fixture(
    scope="module",
    params=[pytest.param(enough, marks=pytest.mark.full), jax.jit(enough)],
    ids=["Python", "compiled"],
)
def everything(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint, "BATCH", 128)  # fewer points at a time, at every context
        yield Space(EVERYTHING, where=request.param)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_a_context_and_a_constraint_leave_points_as_they_are(everything, seed):
    space = everything.at({"site": seed % 4})
    X = cube_points(space, seed)
    X[:, 1] = 0.3 + 0.7 * X[:, 1]  # points that are not allowed have no code
    values = [space.decode(x) for x in X]
    found = looked(space, jnp.asarray(np.concatenate([X, X])), jr.key(seed))
    found = jax.tree.map(np.asarray, found)
    check_points(space, NEEDS, found, values)
    drawn = jax.tree.map(lambda seen: seen[2 * len(X) :], found)
    check_draws(space, drawn)
    values = [space.decode(x) for x in drawn["x"]]
    assert all(map(enough, values))
    assert {v["site"] for v in values} == {seed % 4}


MODEL = Space(
    model=Categorical("tree", "svm", "net"),
    depth=Integer(1, 8).when(model="tree"),
    C=Real(1e-2, 1e2, log=True).when(model=["svm", "net"]),
    kernel=Categorical("linear", "rbf").when(model="svm"),
    gamma=Real(0, 1).when(kernel="rbf"),
    seed=7,
)


class TestBranches:
    def test_the_objective_has_only_what_is_active(self):
        assert MODEL.encode({"model": "tree", "depth": 3}).shape == (MODEL.dim,)
        for values in (
            {"model": "tree", "depth": 3, "seed": 7},
            {"model": "svm", "C": 1.0, "kernel": "linear", "seed": 7},
            {"model": "svm", "C": 1.0, "kernel": "rbf", "gamma": 0.25, "seed": 7},
            {"model": "net", "C": 1.0, "seed": 7},
        ):
            assert MODEL.decode(MODEL.encode(values)) == values

    def test_rows_of_a_table_have_signs_for_nothing_where_a_parameter_is_not_active(self):
        row = {"model": "tree", "depth": 3.0, "C": math.nan, "kernel": None, "gamma": math.nan}
        assert same(MODEL.encode(row), MODEL.encode({"model": "tree", "depth": 3}))

    @pytest.mark.parametrize(
        ("values", "complaint"),
        [
            ({"model": "tree"}, r"missing parameters \['depth'\]"),
            ({"depth": 1}, r"missing parameters \['model'\]"),
            ({"model": "tree", "depth": 1, "C": 1.0}, "'C': 1.0 is of no use.*leave it out"),
            ({"model": "net", "C": 1.0, "gamma": 0.1}, "'gamma': 0.1 is of no use"),
            ({"model": "tree", "depth": 1, "seed": 8}, "'seed': 8 is not 7, as it must be"),
            ({"model": "tree", "depth": None}, "'depth': None is not a number"),
        ],
    )
    def test_values_of_another_branch_are_refused_by_name(self, values, complaint):
        with pytest.raises(ValueError, match=complaint):
            MODEL.encode(values)

    @pytest.mark.parametrize(
        ("parts", "complaint"),
        [
            (
                {"c": Real(0, 1).when(k="a")},
                r"'c' depends on 'k', which must.*before it, among \[\]",
            ),
            (
                {"c": Real(0, 1).when(k="a"), "k": Categorical("a", "b")},
                "'c' depends on 'k', which must be a parameter that stands before it",
            ),
            (
                {"k": Categorical("a", "b"), "c": Real(0, 1).when(k="z")},
                "'c' depends on 'k': 'z' is not one of",
            ),
            ({"r": Real(0, 1), "c": Real(0, 1).when(r=0.5)}, "'c' depends on 'r', a Real"),
            (
                {"n": Integer(0, 6, step=3), "c": Real(0, 1).when(n=4)},
                "'c' depends on 'n': 4 is not 0 plus steps of 3",
            ),
            ({"k": 3, "c": Real(0, 1).when(k=3)}, "'c' depends on 'k', which must be a parameter"),
            ({"k": Categorical("a"), "c": Real(2, 1).when(k="a")}, "'c': lower must not exceed"),
            ({"k": Categorical("a"), "c": Real(0, 1).when()}, "'c': when needs a condition"),
        ],
    )
    def test_impossible_conditions_are_refused_by_name(self, parts, complaint):
        with pytest.raises(ValueError, match=complaint):
            Space(parts)

    def test_every_choice_is_drawn_equally_often_whatever_hangs_on_it(self, key):
        drawn = jax.jit(lambda k: jax.vmap(MODEL.unpack)(MODEL.sample(k, 30_000))["model"])(key)
        assert np.all(np.abs(np.bincount(np.asarray(drawn)) - 10_000) < 6 * 82)

    def test_no_derivative_leads_along_what_is_not_active(self):
        slope = jax.jit(jax.grad(lambda x: MODEL.unpack(x)["gamma"]))
        x = MODEL.encode({"model": "svm", "C": 1.0, "kernel": "rbf", "gamma": 0.25})
        assert np.asarray(slope(x))[-1] == 1
        x = MODEL.encode({"model": "svm", "C": 1.0, "kernel": "linear"})
        assert not np.asarray(slope(x)).any()

    @pytest.mark.slow
    def test_grids_of_each_variable_leave_all_branches_open(self):
        axes = MODEL.axes(8)
        assert len(np.unique(np.asarray(axes.points)[3])) == 8  # depth
        assert len(np.unique(np.asarray(axes.points)[4])) == 8  # C
