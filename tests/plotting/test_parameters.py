"""Pictures of runs show what was observed, and what a model makes of it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import plotting
from jaxbo.plotting import _runs
from jaxbo.plotting._runs import modeled, observed
from tests.walk import Stroll


@pytest.fixture(autouse=True, scope="module")
def few_programs_of_pictures():
    """Pictures of as many points of as many coordinates share their programs.

    So do the projections of a space, which would be dozens of programs one operation at a time.
    """
    compiled = (_runs, "_fitted"), (_runs, "_predicted")
    compiled += (jaxbo.Space, "project"), (jaxbo.Space, "_place")
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in compiled:
            patch.setattr(owner, name, eqx.filter_jit(getattr(owner, name)))
        yield


#: Values that are not NaN, of all pictures in two coordinates.
POINTS = 17
SPACE = jaxbo.Space(
    rate=jaxbo.Real(1e-4, 1.0, log=True),
    depth=jaxbo.Integer(1, 8),
    act=jaxbo.Categorical("relu", "tanh"),
)


def value_of(p):
    return -((np.log10(p["rate"]) + 2) ** 2) - 0.05 * abs(p["depth"] - 3) + 1000


@pytest.fixture(scope="module")
def trace():
    """Of random points; two evaluations of the second agent failed."""
    rng = np.random.default_rng(0)
    points = np.array([[SPACE.encode(draw(rng)) for _ in range(2)] for _ in range(20)])
    values = np.array([[value_of(SPACE.decode(x)) for x in row] for row in points])
    values[[3, 7], 1] = np.nan
    return jaxbo.Trace(jnp.asarray(points), values, ())


def draw(rng):
    return {
        "rate": float(10 ** rng.uniform(-4, 0)),
        "depth": int(rng.integers(1, 9)),
        "act": str(rng.choice(["relu", "tanh"])),
    }


@pytest.fixture(scope="module")
def desk():
    told = jaxbo.Desk(
        jaxbo.EGP(jaxbo.Cube(2), jaxbo.Fixed(size=4, capacity=20), jaxbo.Thompson(), candidates=8),
        jr.key(0),
    )
    for x in np.random.default_rng(3).uniform(size=(POINTS, 2)):
        told.tell_new(x, float(3 * x[0] - x[1]))
    return told


def labeled(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def test_the_model_passes_through_what_was_observed(trace):
    seen = observed(trace, SPACE, 1)
    fine = np.isfinite(seen.y)
    mean, std = modeled(seen).predict(jnp.asarray(seen.x[fine]))
    assert np.abs(mean - seen.y[fine]).max() < 0.1 * seen.y[fine].std()
    assert (std >= 0).all()


def test_a_slice_is_the_model_along_one_parameter_through_the_best_point(trace):
    ax = plotting.slice_1d(trace, "rate", domain=SPACE, agent=1)
    (mean,) = labeled(ax, "mean")
    x, y = mean.get_xydata().T
    assert x[np.argmax(y)] == pytest.approx(0.5, abs=0.1)  # rate is 1e-2
    assert len(labeled(ax, "failed")[0].get_xdata()) == 2
    assert "rate" in ax.get_xlabel()
    assert "1 is 1, log" in ax.get_xlabel()


def test_a_contour_names_both_parameters_and_marks_failures(trace):
    ax = plotting.contour(trace, "depth", "rate", domain=SPACE, agent=1)
    assert ax.get_xlabel().startswith("depth")
    assert ax.get_ylabel().startswith("rate")
    assert len(labeled(ax, "failed")[0].get_xdata()) == 2
    assert len(labeled(ax, "query")[0].get_xdata()) == 18


def test_importance_puts_the_parameter_that_matters_first(trace):
    ax = plotting.importance(trace, domain=SPACE, agent=1, count=500)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names[-1] == "rate"  # the uppermost
    total = [patch.get_width() for patch in ax.containers[0]]
    assert total == sorted(total)
    assert total[-1] > 0.8


def test_parallel_coordinates_have_a_line_an_evaluation(trace):
    ax = plotting.parallel(trace, domain=SPACE, agent=1)
    assert len(labeled(ax, "failed") + labeled(ax, "_failed")) == 2
    assert len(labeled(ax, "_done")) == 18
    (best,) = labeled(ax, "best")
    values = np.asarray(trace.values)[:, 1]
    at = SPACE.decode(np.asarray(trace.queries)[np.nanargmax(values), 1])
    rate, depth, act = best.get_ydata()
    assert rate == pytest.approx((np.log10(at["rate"]) + 4) / 4, abs=1e-5)
    assert depth == pytest.approx((at["depth"] - 0.5) / 8)
    assert act == ["relu", "tanh"].index(at["act"])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["rate", "depth", "act"]


@pytest.mark.slow
def test_pictures_mark_the_smallest_value_where_small_values_are_good(trace):
    down = dataclasses.replace(trace, direction="minimize")
    x, values = np.asarray(trace.queries)[:, 1], np.asarray(trace.values)[:, 1]
    lowest = x[np.nanargmin(values)]
    (best,) = labeled(plotting.parallel(down, domain=SPACE, agent=1), "best")
    assert best.get_ydata()[0] == pytest.approx(lowest[0])
    (star,) = labeled(plotting.contour(down, "rate", "depth", domain=SPACE, agent=1), "best")
    np.testing.assert_allclose(star.get_xydata(), lowest[None, :2])


BRANCHES = jaxbo.Space(
    load=jaxbo.Context(jaxbo.Real(0.0, 1.0)),
    model=jaxbo.Categorical("forest", "net"),
    trees=jaxbo.Integer(1, 4).when(model="forest"),
    width=jaxbo.Real(0.0, 1.0).when(model="net"),
    seed=jaxbo.Real(0.0, 1.0),
    last=jaxbo.Real(0.0, 1.0).when(model="net"),
)


@pytest.fixture(scope="module")
def branched():
    """A desk that was told of either branch, at its own loads."""
    rng = np.random.default_rng(1)
    egp = jaxbo.EGP(BRANCHES, jaxbo.Fixed(size=4, capacity=20), jaxbo.Thompson(), candidates=8)
    desk = jaxbo.Desk(egp, jr.key(0))
    for i in range(12):
        load, seed = rng.uniform(size=2)
        own = {"width": rng.uniform(), "last": 0.5} if i % 2 else {"trees": 1 + i % 4}
        model = "net" if i % 2 else "forest"
        desk.tell_new({"load": load, "model": model, "seed": seed, **own}, 3 * load + i % 2)
    return desk


@pytest.mark.slow
def test_parallel_lines_have_gaps_where_a_parameter_is_not_active(branched):
    lines = labeled(plotting.parallel(branched), "_done")
    gaps = np.isnan([line.get_ydata() for line in lines]).sum(0)
    assert gaps.tolist() == [0, 0, 6, 6, 0, 6]
    for line in lines:
        height = line.get_ydata()
        assert np.isnan(height[2]) == ~np.isnan(height[3]) == ~np.isnan(height[5])
        # In a forest the seed stands between two gaps: a dot shows it.
        assert list(line.get_markevery() or []) == ([4] if np.isnan(height[3]) else [])


@pytest.mark.slow
def test_importance_of_a_space_with_a_context_has_it_as_a_parameter(branched):
    ax = plotting.importance(branched, count=500)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert sorted(names) == sorted(name for name, _ in BRANCHES.parameters)
    assert names[-1] == "load"


@pytest.mark.slow
def test_a_slice_is_through_the_best_point_where_the_parameter_is_active(branched):
    """Nets are better by 1, and trees are of forests."""
    seen = observed(branched, None)
    forests = seen.x[:, 1] == 1
    ax = plotting.slice_1d(branched, "trees")
    (seen_line,) = labeled(ax, "observed")
    np.testing.assert_allclose(seen_line.get_xdata(), seen.x[forests, 3], rtol=1e-6)
    np.testing.assert_allclose(seen_line.get_ydata(), seen.y[forests])
    best = modeled(seen).ranked
    base = np.tile(best[best[:, 1] == 1][0], (200, 1))
    base[:, 3] = np.linspace(0, 1, 200)
    mean, _ = modeled(seen).predict(jax.vmap(BRANCHES.project)(jnp.asarray(base)))
    np.testing.assert_allclose(labeled(ax, "mean")[0].get_ydata(), mean, rtol=1e-4)
    assert modeled(seen).ranked[0][2] == 1  # the best of all is a net


@pytest.mark.slow
def test_a_contour_is_of_one_branch(branched):
    ax = plotting.contour(branched, "width", "load")
    assert len(labeled(ax, "query")[0].get_xdata()) == 6
    with pytest.raises(ValueError, match="'width' and 'trees' are active at no point observed"):
        plotting.contour(branched, "width", "trees")


STEPS = jaxbo.Space(layers=jaxbo.Integer(1, 2), width=jaxbo.Real(0.0, 1.0).when(layers=2))


@pytest.mark.slow
def test_a_contour_is_blank_where_a_parameter_is_not_active():
    rng = np.random.default_rng(0)
    rows = [
        {"layers": 1 + i % 2, **({"width": rng.uniform()} if i % 2 else {})} for i in range(POINTS)
    ]
    points = np.array([[STEPS.encode(row)] for row in rows])
    trace = jaxbo.Trace(jnp.asarray(points), rng.uniform(size=(POINTS, 1)), ())
    ax = plotting.contour(trace, "layers", "width", domain=STEPS)
    filled = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
    assert filled[:, 0].min() >= 0.5 - 1e-6
    assert len(labeled(ax, "query")[0].get_xdata()) == POINTS // 2
    at = STEPS.encode({"layers": 1})
    with pytest.raises(ValueError, match="'width' is active not at the point given as at"):
        plotting.slice_1d(trace, "width", domain=STEPS, at=at)
    with pytest.raises(ValueError, match="at must be a point of 2 finite coordinates"):
        plotting.slice_1d(trace, "width", domain=STEPS, at=[0.5])


@pytest.fixture(scope="module")
def of_workers():
    """Three workers, of whom the last has found the best."""
    rng = np.random.default_rng(2)
    x = rng.uniform(size=(6, 3, 2))
    y = 3 * x[..., 0] - x[..., 1]
    x[4, 2], y[4, 2] = (0.9, 0.1), 5.0
    y[2, 1] = np.nan
    return jaxbo.Trace(jnp.asarray(x), y, (), shared=True)


@pytest.mark.slow
def test_a_picture_of_workers_who_share_an_objective_is_of_all_their_evaluations(of_workers):
    cube = jaxbo.Cube(2)
    x, y = np.asarray(of_workers.queries).reshape(-1, 2), of_workers.values.reshape(-1)
    fine = np.isfinite(y)
    lines = labeled(plotting.parallel(of_workers, domain=cube), "_done")
    assert len(lines) == fine.sum() == POINTS
    (best,) = labeled(plotting.parallel(of_workers, domain=cube), "best")
    np.testing.assert_allclose(best.get_ydata(), [0.9, 0.1])
    ax = plotting.slice_1d(of_workers, 0, domain=cube)
    np.testing.assert_allclose(labeled(ax, "observed")[0].get_xdata(), x[fine, 0])
    (star,) = labeled(plotting.contour(of_workers, 0, 1, domain=cube), "best")
    np.testing.assert_allclose(star.get_xydata(), [[0.9, 0.1]])
    steps = plotting.progress(of_workers)
    np.testing.assert_allclose(
        labeled(steps, "median")[0].get_ydata(), np.fmax.accumulate(y), rtol=1e-6
    )
    assert steps.get_xlabel() == "evaluation"
    alone = labeled(plotting.parallel(of_workers, domain=cube, agent=0), "_done")
    assert len(alone) == 6
    # The same evaluations on a desk make the same bars.
    told = jaxbo.Trace(jnp.asarray(x[:, None]), y[:, None], ())
    bars = [
        [bar.get_width() for bar in plotting.importance(t, domain=cube, count=500).containers[0]]
        for t in (of_workers, told)
    ]
    np.testing.assert_allclose(*bars, rtol=1e-5)


@pytest.mark.slow
def test_a_trace_knows_whether_its_workers_share_an_objective():
    stroll = Stroll(jaxbo.Cube(1), 3)
    bowl = lambda x: -((x[0] - 0.3) ** 2)  # noqa: E731
    _, driven = jaxbo.drive(stroll, bowl, 0, jr.key(0), initial=2, progress=False)
    assert driven.shared
    (best,) = labeled(plotting.progress(driven), "median")
    assert len(best.get_xdata()) == 6  # of the one objective, not of three
    random = jaxbo.RandomSearch(jaxbo.Cube(1), agents=2)
    for method, shared in ((stroll, True), (random, False)):
        traced = jax.eval_shape(lambda key, m=method: jaxbo.run(m, bowl, 1, key)[1], jr.key(0))
        assert traced.shared == shared


@pytest.mark.slow
def test_pictures_of_a_desk_need_no_domain(desk):
    shares = [patch.get_width() for patch in plotting.importance(desk, count=500).containers[0]]
    np.testing.assert_allclose(shares, [0.1, 0.9], atol=0.1)
    assert len(labeled(plotting.parallel(desk), "_done")) == POINTS
    assert plotting.slice_1d(desk, 0).get_xlabel() == "x₁"
    assert plotting.contour(desk, 0, 1).get_ylabel() == "x₂"
    best = plotting.progress(desk).lines[0].get_ydata()
    np.testing.assert_array_equal(best, np.maximum.accumulate(desk.values))


def test_progress_takes_a_trace(trace):
    ax = plotting.progress(trace)
    assert len(labeled(ax, "failed")[0].get_xdata()) == 2


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda t, d: plotting.parallel(t), ["domain="]),
        (lambda t, d: plotting.parallel(3), ["run must be a Trace or a Desk", "got 3"]),
        (lambda t, d: plotting.parallel(t, domain=jaxbo.Cube(2)), ["domain", "2 coord", "4"]),
        (lambda t, d: plotting.importance(t, domain=SPACE, agent=2), ["agent", "0 to 1", "2"]),
        (lambda t, d: plotting.slice_1d(t, "width", domain=SPACE), ["'width'", "'rate'"]),
        (lambda t, d: plotting.slice_1d(t, "act", domain=SPACE), ["'act'", "choice"]),
        (lambda t, d: plotting.contour(t, "rate", "rate", domain=SPACE), ["must differ"]),
        (lambda t, d: plotting.regret([np.ones((2, 3))]), ["by name", "list"]),
        (lambda t, d: plotting.slice_1d(d, 2), ["no parameter 2"]),
        (lambda t, d: plotting.parallel(d, agent=1), ["agent", "Desk", "got 1"]),
        (lambda t, d: plotting.parallel(d, agent="a"), ["agent", "'a'"]),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, words, trace, desk):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        draw(trace, desk)
    for word in words:
        assert word in str(caught.value)
