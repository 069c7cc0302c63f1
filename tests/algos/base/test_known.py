"""Results from outside: one meaning in every form, and one clear error for what is wrong."""

import csv
import io
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxbo.algos.base.known import columns_of, inside, points, read
from jaxbo.algos.egp import EGP
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Integer, Ordinal, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.surrogate import Fixed
from tests import stepped

SPACE = Space(lr=Real(1e-3, 1.0, log=True), depth=Integer(1, 8), act=Categorical("relu", None))
ROWS = [
    {"lr": 1e-3, "depth": 1, "act": None, "value": 3.0},
    {"lr": 0.1, "depth": 8, "act": "relu", "value": None},
    {"lr": 1.0, "depth": 3, "act": "relu", "value": -1},
]
PARAMETERS = [{name: row[name] for name in SPACE.names} for row in ROWS]
VALUES = [row["value"] for row in ROWS]


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def frame(rows):
    return pytest.importorskip("pandas").DataFrame(rows).astype({"act": object})


FORMS = {
    "dictionaries": lambda: ROWS,
    "columns": lambda: columns(ROWS),
    "a DataFrame": lambda: frame(ROWS),
    "parameters and values": lambda: (PARAMETERS, VALUES),
    "columns and values": lambda: (columns(PARAMETERS), np.array([3, np.nan, -1])),
    "a DataFrame and values": lambda: (frame(PARAMETERS), VALUES),
    "points and values": lambda: (np.stack([SPACE.encode(p) for p in PARAMETERS]), VALUES),
    "lists": lambda: ([SPACE.encode(p).tolist() for p in PARAMETERS], VALUES),
    "one round of three workers": lambda: (
        jnp.asarray([[SPACE.encode(p) for p in PARAMETERS]]),
        jnp.asarray([[3.0, np.nan, -1.0]]),
    ),
    "a table": lambda: [{"agent": 0, "round": 1, "status": "known", **row} for row in ROWS],
    "a table that was made without its space": lambda: [
        {"round": 0, **{f"x{i}": float(u) for i, u in enumerate(SPACE.encode(p))}, "value": value}
        for p, value in zip(PARAMETERS, VALUES, strict=True)
    ],
    "a table with a query that is out": lambda: [*ROWS, {**ROWS[0], "status": "running"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form):
    known = read(FORMS[form](), SPACE, 1, 1)
    np.testing.assert_array_equal(known.queries[:, 0], [SPACE.encode(p) for p in PARAMETERS])
    np.testing.assert_array_equal(known.values[:, 0], [3.0, np.nan, -1.0])


def test_results_of_several_agents_are_in_rows_of_all():
    rows = [{"agent": n, "x0": n / 4, "value": 10.0 * n} for n in (2, 0, 2)]
    asked = read(rows[1:2], Cube(1), 3, 2)
    assert asked.queries.shape == (1, 2, 1)
    np.testing.assert_array_equal(asked.queries[0, :, 0], [0, np.nan])
    everyone = read(rows, Cube(1), 3, 2)
    np.testing.assert_array_equal(
        everyone.queries[..., 0], [[0, np.nan, 0.5], [np.nan, np.nan, 0.5]]
    )
    np.testing.assert_array_equal(everyone.values, [[0, np.nan, 20], [np.nan, np.nan, 20]])


# ---------------------------------------------------------------- text

WRITTEN = Space(
    rate=Real(1e-3, 1.0, log=True),
    depth=Integer(1, 8),
    act=Categorical("relu", None),
    size=Ordinal(16, 32.5, (1, 2)),
    bias=Categorical(True, False),
    width=Integer(1, 4).when(act="relu"),
    epochs=7,
)


def written(rows):
    """The rows as a CSV file gives them back."""
    file = io.StringIO()
    out = csv.DictWriter(file, list(rows[0]))
    out.writeheader()
    out.writerows(rows)
    file.seek(0)
    return csv.DictReader(file)


ROW = st.builds(
    lambda rate, depth, act, width, size, bias, value: {
        "rate": rate,
        "depth": depth,
        "act": act,
        "size": size,
        "bias": bias,
        "width": width if act else None,
        "epochs": 7,
        "value": value,
    },
    st.floats(1e-3, 1.0),
    st.integers(1, 8),
    st.sampled_from(["relu", None]),
    st.integers(1, 4),
    st.sampled_from([16, 32.5, (1, 2)]),
    st.booleans(),
    st.none() | st.floats(-1e3, 1e3),
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    # For each number of rows there are programs.
    st.lists(ROW, min_size=1, max_size=1) | st.lists(ROW, min_size=4, max_size=4)
)
def test_a_file_of_text_says_what_was_written(rows):
    expected, found = (read(given, WRITTEN, 1, 1) for given in (rows, written(rows)))
    np.testing.assert_array_equal(found.queries, expected.queries)
    np.testing.assert_array_equal(found.values, expected.values)


def test_a_table_of_several_agents_comes_back_from_a_file():
    rows = [
        {"agent": n, "round": 1, "x0": n / 4, "value": 0.5, "status": "observed"} for n in (1, 0)
    ]
    found = read(written(rows), Cube(1), 2, 2)
    np.testing.assert_array_equal(found.queries[0, :, 0], [0, 0.25])


def test_text_beside_numbers_is_no_number():
    with pytest.raises(ValueError, match="result 0: the value must be a real number"):
        read([{"x0": 0.5, "value": "1"}], Cube(1), 1, 1)
    with pytest.raises(ValueError, match=r"result 0: parameter 'lr': '0\.1' is not a number"):
        read([{**ROWS[0], "lr": "0.1"}], SPACE, 1, 1)


def test_text_that_stands_for_no_value_is_named():
    row = {"lr": "0,1", "depth": "3", "act": "relu", "value": "1.5"}
    with pytest.raises(ValueError, match="result 0: parameter 'lr': '0,1' is not a number"):
        read([row], SPACE, 1, 1)
    with pytest.raises(ValueError, match=r"result 0: the value must be a real number.*'good'"):
        read([{**row, "lr": "0.1", "value": "good"}], SPACE, 1, 1)
    space = Space(x=Categorical("1", 1, 2))
    with pytest.raises(ValueError, match=r"result 0: parameter 'x': the text '1' may be '1' or 1"):
        read([{"x": "1", "value": "2"}], space, 1, 1)
    assert read([{"x": "1", "value": 2.0}], space, 1, 1).queries[0, 0].tolist() == [1, 0, 0]


# ---------------------------------------------------------------- shapes and rounding


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_values_of_one_agent_may_be_a_column(shape):
    x, y = np.array([[0.1], [0.2], [0.3]]), np.arange(3.0)
    known = read((x, y.reshape(shape)), Cube(1), 1, 1)
    np.testing.assert_array_equal(known.values[:, 0], y)
    with pytest.raises(ValueError, match="expected points of shape"):
        read((x, np.zeros((3, 2))), Cube(1), 1, 1)


@pytest.mark.slow
def test_a_point_that_rounding_moved_is_moved_back():
    rows = np.random.default_rng(0).uniform(size=(50, 3)) * [1, 100, 1e-3]
    domain = Finite(rows)
    held = np.asarray(domain.points)
    for x in (rows.astype(np.float64), np.nextafter(held, 1), np.nextafter(held, -1)):
        np.testing.assert_array_equal(read((x, np.zeros(50)), domain, 1, 1).queries[:, 0], held)
        np.testing.assert_array_equal(points(x, domain), held)
        with pytest.raises(ValueError, match="outside of the domain"):
            read((x + np.array([0, 1e-3, 0]), np.zeros(50)), domain, 1, 1)
    again = read(([[1 + 1e-7, -1e-7]], [1.0]), Cube(2), 1, 1)
    np.testing.assert_array_equal(again.queries[0, 0], [1, 0])
    with pytest.raises(ValueError, match="outside of the domain"):
        read(([[1 + 1e-5, 0]], [1.0]), Cube(2), 1, 1)
    depth = Space(depth=Integer(1, 7))
    (x,) = depth.encode({"depth": 3})
    assert read(([[x + 1e-7]], [1.0]), depth, 1, 1).queries[0, 0, 0] == x


WRONG = {
    "nothing of the kind": (3, "a list of dictionaries"),
    "a file": (Path("results.csv"), "read it before, such as with"),
    "text": ("results.csv", "read it before, such as with"),
    "a list of numbers": ([1.0, 2.0], "a list of dictionaries"),
    "no value": (PARAMETERS, r"result 0 has no 'value', only \['lr', .*rename the column"),
    "text for a value": ([{**ROWS[0], "value": "3"}], "result 0: the value must be a real number"),
    "a complex value": ([{**ROWS[0], "value": 1j}], "result 0: the value must be a real number"),
    "an infinite value": ([ROWS[0], {**ROWS[1], "value": -math.inf}], "value 1 is -inf"),
    "a value beyond floats": ([{**ROWS[0], "value": 1e300 * 1e300}], "value 0 is inf"),
    "outside": ([ROWS[0], {**ROWS[0], "lr": 2.0}], "result 1: parameter 'lr'"),
    "NaN": ([{**ROWS[0], "lr": math.nan}], "result 0: parameter 'lr'"),
    "an unknown column": ([{**ROWS[0], "date": 1}], r"result 0: .* unknown parameters \['date'\]"),
    "a missing column": ([{"lr": 0.1, "value": 1.0}], r"missing parameters \['depth', 'act'\]"),
    "columns of other lengths": ({**columns(ROWS), "value": [1.0]}, "columns of other lengths"),
    "a column that is a number": ({**columns(ROWS), "value": 1.0}, "column 'value' must be a list"),
    "too few values": ((PARAMETERS, VALUES[1:]), "3 points and 2 values"),
    "too few values of arrays": ((np.zeros((3, 4)), [1.0]), r"points of shape \(points, 4\)"),
    "points that are no points of the space": ((np.full((1, 4), 0.3), [1.0]), "parameters by name"),
    "points that are NaN": ((np.full((1, 4), np.nan), [1.0]), "numbers that are not finite"),
    "points of text": ((np.array([["a", "b"]]), [1.0]), "points must be real numbers"),
    "rows of other lengths": (([[0.1, 0.2], [0.1]], [1.0, 2.0]), "one row as long as the other"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_gets_one_clear_error(name):
    wrong, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        read(wrong, SPACE, 1, 1)


@pytest.mark.parametrize("agent", [None, 3, -1, True, 0.5, "a"])
def test_a_result_of_nobody_is_refused(agent):
    with pytest.raises(ValueError, match="result 0: expected 'agent', the number of one of 3"):
        read([{"x0": 0.1, "value": 1.0, "agent": agent}], Cube(1), 3, 3)


def test_a_point_outside_of_a_finite_domain_is_refused():
    with pytest.raises(ValueError, match=r"point 1, \[0.5 0.5\], is outside of the domain"):
        read(([[0.0, 1.0], [0.5, 0.5]], [1.0, 2.0]), Finite(np.eye(2)), 1, 1)


def test_a_parameter_called_value_takes_points_and_values():
    space = Space(value=Real(0, 1))
    with pytest.raises(ValueError, match=r"a parameter is called 'value': .* \(points, values\)"):
        read([{"value": 0.5}], space, 1, 1)
    assert read(([{"value": 0.5}], [3.0]), space, 1, 1).values[0, 0] == 3


def test_points_come_in_the_same_forms():
    expected = np.stack([SPACE.encode(p) for p in PARAMETERS])
    for form in (PARAMETERS, columns(PARAMETERS), frame(PARAMETERS), expected, expected.tolist()):
        np.testing.assert_array_equal(points(form, SPACE), expected)
    assert points([], SPACE).shape == (0, 4)
    with pytest.raises(ValueError, match="point 1: parameter 'depth'"):
        points([PARAMETERS[0], {**PARAMETERS[0], "depth": 9}], SPACE)
    with pytest.raises(ValueError, match=r"expected points of shape \(points, 4\), got \(4,\)"):
        points(expected[0], SPACE)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x0", "value", "agent", "status"]), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(lambda rows: np.array(rows, object), st.lists(st.floats(), max_size=3))
    ),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@example([{"x0": -8.66e-41, "value": None}])
@example([{"x0": 3.4028235677973366e38, "value": None}])
@given(anything)
def test_whatever_comes_is_read_or_gets_a_clear_error(given):
    try:
        known = read(given, Cube(1), 1, 1)
    except ValueError:
        return
    assert known.queries.shape == (*known.values.shape, 1)
    assert np.all((known.queries >= 0) & (known.queries <= 1))


# ---------------------------------------------------------------- warm_start


@pytest.mark.slow
def test_a_warm_start_takes_lists_and_dictionaries_as_arrays():
    method = TS(Cube(1), 2, Fixed(size=4))
    x, y = [[[0.1], [0.2]], [[0.3], [0.4]]], [[1.0, 2.0], [3.0, None]]
    rows = [
        {"agent": agent, "x0": x[row][agent][0], "value": y[row][agent]}
        for row in range(2)
        for agent in range(2)
    ]
    start = stepped.init(method, jr.key(0))
    values = jnp.asarray([[1.0, 2.0], [3.0, jnp.nan]])
    expected = method.warm_start(start, jnp.asarray(x), values)
    for results in ((x, y), (rows,), ((x, y),)):
        state = method.warm_start(start, *results)
        np.testing.assert_array_equal(state.clients.posterior.mean, expected.clients.posterior.mean)
        np.testing.assert_array_equal(state.told, [2, 1])


@pytest.mark.slow
def test_a_warm_start_takes_arrays_beside_lists():
    method = TS(Cube(1), 1, Fixed(size=4))
    start = stepped.init(method, jr.key(0))
    x, y = np.array([[[0.1]], [[0.3]]]), [[1.0], [None]]
    values = jnp.asarray([[1.0], [jnp.nan]])
    expected = method.warm_start(start, jnp.asarray(x), values)
    of_one = [(x[:, 0], [1.0, None]), (x[:, 0], values), (jnp.asarray(x[:, 0]), values[:, 0])]
    for results in ((x, y), (x.tolist(), np.asarray(values)), (jnp.asarray(x), y), *of_one):
        state = method.warm_start(start, *results)
        np.testing.assert_array_equal(state.clients.posterior.mean, expected.clients.posterior.mean)
    traced = jax.jit(lambda y: method.warm_start(start, x, y))(values)
    np.testing.assert_array_equal(traced.told, expected.told)


@pytest.mark.parametrize(
    "domain", [Finite(np.eye(2) / 3), Finite(1e4 + np.eye(2) / 3), Cube(2)], ids=str
)
def test_points_that_rounding_moved_out_are_moved_back_and_others_are_not(domain):
    corners = np.asarray(domain.points if isinstance(domain, Finite) else np.eye(2))
    wanted = np.ones(2, bool)
    np.testing.assert_array_equal(inside(np.nextafter(corners, 2e4), wanted, domain), corners)
    with pytest.raises(ValueError, match=r"point 0, .* is outside of the domain"):
        inside(corners * 1.01, wanted, domain)


def test_values_that_are_no_dictionaries_are_told_so():
    for values in ([1.0, 2.0], 3.0):
        with pytest.raises(ValueError, match=r"values must be dictionaries of \['value', 'cost'\]"):
            columns_of(values, ["value", "cost"])


@pytest.mark.slow
def test_a_warm_start_moves_back_what_rounding_moved():
    domain = Finite(np.eye(2) / 3)
    method = TS(domain, 1, Fixed(size=4))
    start = stepped.init(method, jr.key(0))
    near = np.nextafter(np.asarray(domain.points), 1)[:, None]
    found, expected = (
        method.warm_start(start, x, np.ones((2, 1))) for x in (near, domain.points[:, None])
    )
    np.testing.assert_array_equal(found.clients.posterior.mean, expected.clients.posterior.mean)


@pytest.mark.slow
def test_a_warm_start_is_checked():
    method = EGP(Cube(1), Fixed(size=4), candidates=4)
    start = stepped.init(method, jr.key(0))
    with pytest.raises(ValueError, match=r"point 1, .* is outside of the domain"):
        method.warm_start(start, jnp.asarray([[[0.5]], [[1.5]]]), jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match="RandomSearch learns nothing"):
        RandomSearch(Cube(1)).known(([[0.5]], [1.0]))
