import builtins
import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from jaxbo import plotting


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def band_edges(collection):
    """Lower and upper edge of a filled band, one value for each distinct x."""
    (path,) = collection.get_paths()
    x, y = path.vertices.T
    places = np.unique(x)
    edges = np.array([[y[x == place].min(), y[x == place].max()] for place in places])
    return places, edges[:, 0], edges[:, 1]


def labeled(ax, label):
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return line


@pytest.mark.parametrize(
    ("band", "quantile"), [("confidence", stats.t.ppf(0.975, 7)), ("error", 1.0)]
)
def test_regret_draws_the_mean_and_its_interval(rng, band, quantile):
    curves = {"FTS": rng.normal(size=(8, 12)), "TS": rng.normal(size=(8, 5)) + 4}
    ax = plotting.regret(curves, band=band)
    for (name, values), collection in zip(curves.items(), ax.collections, strict=True):
        mean = values.mean(0)
        half = quantile * values.std(0, ddof=1) / np.sqrt(8)
        np.testing.assert_array_equal(labeled(ax, name).get_xdata(), np.arange(1, len(mean) + 1))
        np.testing.assert_allclose(labeled(ax, name).get_ydata(), mean)
        rounds, low, high = band_edges(collection)
        np.testing.assert_array_equal(rounds, np.arange(1, len(mean) + 1))
        np.testing.assert_allclose(low, mean - half)
        np.testing.assert_allclose(high, mean + half)


def test_regret_names_each_curve_in_its_color_at_its_end(rng):
    curves = {name: rng.random((3, 6)) + level for name, level in [("a", 0), ("b", 5), ("c", 9)]}
    ax = plotting.regret(curves)
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    for text in ax.texts:
        line = labeled(ax, text.get_text())
        assert text.get_color() == line.get_color()
        assert text.xy == (1, pytest.approx(line.get_ydata()[-1]))


def test_names_of_curves_that_end_together_do_not_overlap(rng):
    same = rng.random((3, 6))
    ax = plotting.regret(dict.fromkeys("abcd", same))
    ax.figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(boxes))
    assert boxes[0].y0 >= ax.get_window_extent().y0


def test_neighboring_curves_differ_in_color_and_dash(rng):
    ax = plotting.regret({str(index): rng.random((2, 4)) for index in range(7)})
    assert len({line.get_color() for line in ax.lines}) == 7
    styles = [line._unscaled_dash_pattern for line in ax.lines]
    assert all(one != other for one, other in itertools.pairwise(styles))


def test_a_round_where_a_run_failed_is_a_gap_and_a_single_run_has_no_band(rng):
    values = rng.random((1, 6))
    values[0, 2] = np.inf
    ax = plotting.regret({"one": values})
    assert not ax.collections
    expected = np.where(np.arange(6) == 2, np.nan, values[0])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), expected)


def test_a_logarithmic_axis_survives_bands_below_zero(rng):
    values = 10.0 ** -rng.uniform(0, 4, size=(3, 10))
    ax = plotting.regret({"a": values}, log=True)
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert 0 < low < values.mean(0).min() < values.mean(0).max() < high
    assert low > values.mean(0).min() / 10
    ax.figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curves": {}}, "curves is empty"),
        ({"curves": {"a": np.zeros(3)}}, r"curve 'a' must be a matrix .* \(3,\)"),
        ({"curves": {"a": np.zeros((0, 3))}}, r"curve 'a' must be a matrix .* \(0, 3\)"),
    ],
)
def test_regret_refuses_what_is_not_runs_by_rounds(arguments, message):
    with pytest.raises(ValueError, match=message):
        plotting.regret(**arguments)


def test_posterior_1d_draws_what_it_is_given(rng):
    xs, mean, std = np.linspace(0, 1, 30), rng.normal(size=30), rng.random(30)
    truth, samples = rng.normal(size=30), rng.normal(size=(3, 30))
    points, values = np.array([0.2, 0.5, 0.8]), np.array([1.0, np.nan, -1.0])
    ax = plotting.posterior_1d(xs, mean, std, (points, values), truth, samples)
    np.testing.assert_array_equal(labeled(ax, "mean").get_ydata(), mean)
    np.testing.assert_array_equal(labeled(ax, "truth").get_ydata(), truth)
    _, low, high = band_edges(ax.collections[0])
    np.testing.assert_allclose(low, mean - 1.96 * std)
    np.testing.assert_allclose(high, mean + 1.96 * std)
    drawn = [
        line.get_ydata() for line in ax.lines if line.get_label().endswith(("samples", "_sample"))
    ]
    np.testing.assert_array_equal(drawn, samples)
    np.testing.assert_array_equal(labeled(ax, "observed").get_xydata(), [[0.2, 1], [0.8, -1]])
    np.testing.assert_array_equal(labeled(ax, "failed").get_xdata(), [0.5])


def test_posterior_1d_takes_points_as_columns():
    xs = np.linspace(0, 1, 5)
    observations = (np.array([[0.25], [0.5]]), np.array([1.0, 2.0]))
    ax = plotting.posterior_1d(xs, xs, xs, observations)
    np.testing.assert_array_equal(labeled(ax, "observed").get_xydata(), [[0.25, 1], [0.5, 2]])


def test_posterior_2d_marks_queries_failures_and_the_best(rng):
    xs, ys = np.linspace(0, 1, 9), np.linspace(-1, 1, 7)
    mean = xs[None, :] + 10 * ys[:, None]
    points, values = rng.random((5, 2)), np.array([0.0, 3.0, np.nan, np.inf, 1.0])
    ax = plotting.posterior_2d(xs, ys, mean, (points, values), label="variance")
    np.testing.assert_array_equal(labeled(ax, "query").get_xydata(), points[[0, 1, 4]])
    np.testing.assert_array_equal(labeled(ax, "failed").get_xydata(), points[[2, 3]])
    np.testing.assert_array_equal(labeled(ax, "best").get_xydata(), points[[1]])
    assert ax.get_xlim() == (0, 1)
    assert ax.get_ylim() == (-1, 1)
    assert ax.figure.axes[1].get_ylabel() == "variance"
    filled = ax.collections[0]
    assert filled.levels[0] <= mean.min() < mean.max() <= filled.levels[-1]


@pytest.mark.usefixtures("as_users_have_it")
def test_the_star_is_the_smallest_value_where_small_values_are_good(rng):
    axis, points, values = np.arange(3), rng.random((4, 2)), np.array([1.0, -2.0, np.nan, 0.0])
    shown = np.zeros((3, 3)), (points, values)
    ax = plotting.posterior_2d(axis, axis, *shown, direction="minimize")
    np.testing.assert_array_equal(labeled(ax, "best").get_xydata(), points[[1]])
    with pytest.raises(ValueError, match="direction must be"):
        plotting.posterior_2d(axis, axis, *shown, direction="down")


def test_a_flat_prior_in_two_dimensions_draws_without_a_warning():
    ax = plotting.posterior_2d(np.arange(3), np.arange(4), np.zeros((4, 3)))
    ax.figure.draw_without_rendering()
    assert ax.collections[0].levels[0] == -0.5


def test_progress_draws_every_agents_running_best_and_their_median():
    values = np.array([[1.0, np.nan, 0.0], [0.5, 2.0, np.nan], [3.0, 1.0, -1.0]])
    best = np.array([[1.0, np.nan, 0.0], [1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    ax = plotting.progress(values)
    np.testing.assert_array_equal([line.get_ydata() for line in ax.lines[:3]], best.T)
    np.testing.assert_array_equal(labeled(ax, "median").get_ydata(), [np.nan, 1, 2])
    # The first failure has no best yet and lies at the bottom, the second on its agent's line.
    np.testing.assert_array_equal(labeled(ax, "failed").get_xydata(), [[1, 0], [2, 0]])


def test_progress_survives_a_run_without_a_success():
    ax = plotting.progress(np.full((4, 2), np.nan))
    ax.figure.draw_without_rendering()
    assert len(labeled(ax, "failed").get_xdata()) == 8


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plotting.posterior_1d(np.zeros(3), np.zeros(4), np.zeros(3)), "of one length"),
        (
            lambda: plotting.posterior_1d(
                np.zeros(3), np.zeros(3), np.zeros(3), (np.zeros((2, 2)), np.zeros(2))
            ),
            r"points of 1 coordinates and as many values, got shapes \(2, 2\) and \(2,\)",
        ),
        (
            lambda: plotting.posterior_2d(np.zeros(3), np.zeros(4), np.zeros((3, 4))),
            "one row per y",
        ),
        (lambda: plotting.progress(np.zeros((1, 2, 3))), r"values must be a matrix .* \(1, 2, 3\)"),
    ],
)
def test_wrong_shapes_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.slow
def test_drawing_uses_the_axes_given_and_leaves_pyplot_alone(rng):
    given = Figure().add_subplot()
    assert plotting.progress(rng.random((3, 2)), given) is given
    script = (
        "import sys, numpy as np; from jaxbo import plotting;"
        "assert 'matplotlib' not in sys.modules;"
        "plotting.regret({'a': np.ones((2, 3))});"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments, **keywords):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r'pip install "jaxbo-agents\[plot\]"'):
        plotting.progress(np.zeros((2, 2)))


def test_saving_writes_the_whole_file_under_its_name_alone(tmp_path, rng):
    ax = plotting.progress(rng.random((3, 2)))
    for name, magic in [("a.png", b"\x89PNG"), ("b.pdf", b"%PDF")]:
        path = plotting.save(ax, tmp_path / name)
        assert path.read_bytes().startswith(magic)
    plotting.save(ax.figure, str(tmp_path / "a.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.pdf"]


def test_a_failure_while_saving_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch, rng):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    ax = plotting.progress(rng.random((3, 2)))

    def torn(name, **keywords):
        with open(name, "wb") as file:
            file.write(b"half a pict")
        raise OSError("disk full")

    monkeypatch.setattr(ax.figure, "savefig", torn)
    with pytest.raises(OSError, match="disk full"):
        plotting.save(ax, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_saving_needs_a_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"add \.png, \.pdf or \.svg"):
        plotting.save(Figure(), tmp_path / "picture")
