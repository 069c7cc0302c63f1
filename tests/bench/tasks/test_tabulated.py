"""Tables of tuning tasks: what is in them is what the learners score."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from bench.tasks import tabulated
from bench.tasks.data import folder
from jaxbo import demo


@pytest.mark.parametrize("data", ["tumors", "patients"])
def test_every_row_has_one_owner_and_owners_differ(data):
    parts = getattr(tabulated, data)()
    X, answers = (load_breast_cancer if data == "tumors" else load_diabetes)(return_X_y=True)
    rows = np.concatenate([X for X, _ in parts])
    whole = (X - X.mean(axis=0)) / X.std(axis=0) if data == "tumors" else X
    order, expected = np.lexsort(rows.T), np.lexsort(whole.T)
    np.testing.assert_array_equal(rows[order], whole[expected])
    np.testing.assert_array_equal(np.concatenate([y for _, y in parts])[order], answers[expected])
    middle = np.median(answers) if data == "patients" else 0
    shares = [np.mean(y > middle) for _, y in parts]
    assert np.ptp(shares) > 0.5
    assert 0 < min(shares) < max(shares) < 1


def test_pairs_in_order_are_counted_as_by_hand():
    rng = np.random.default_rng(0)
    y, guess = rng.integers(0, 6, 15).astype(float), rng.integers(0, 4, 15).astype(float)
    marks = {1: 1.0, 0: 0.5, -1: 0.0}
    found = [
        marks[int(np.sign((y[i] - y[j]) * (guess[i] - guess[j])))]
        for i in range(15)
        for j in range(i)
        if y[i] != y[j]
    ]
    assert tabulated.in_order(y, guess) == pytest.approx(np.mean(found))
    assert tabulated.in_order(y, y) == 1
    assert tabulated.in_order(y, np.zeros(15)) == 0.5


@pytest.mark.parametrize("name", tabulated.TASKS)
def test_a_table_has_what_its_learner_scores(name):
    task, found = tabulated.TASKS[name], tabulated.load(name)
    data = {"landmine-svm": "landmine.npz", "har-logistic": "uci_har.npz"}.get(name)
    if data and not (folder() / data).is_file():
        pytest.skip(f"{data} is not on this machine")
    assert found.agents == task.owners
    assert found.points.shape == (tabulated.POINTS, task.space.dim)
    for owner, point in ((0, 5), (3, 700)):
        x = np.asarray(found.points[point])
        expected = task.score(owner, task.space.decode(x))
        assert float(found.noiseless(jnp.asarray(owner), found.points[point])) == pytest.approx(
            expected, abs=1e-6
        )


def test_every_task_has_a_table_of_shares():
    for name in tabulated.TASKS:
        values = np.asarray(tabulated.load(name).values)
        assert values.shape == (tabulated.TASKS[name].owners, tabulated.POINTS)
        assert 0 <= values.min() < values.max() <= 1


def test_what_is_finished_is_kept(tmp_path, monkeypatch):
    task = tabulated.TuningTask(2, demo.SPACE, lambda owner, parameters: owner + parameters["C"])
    monkeypatch.setattr(tabulated, "FOLDER", tmp_path)
    monkeypatch.setitem(tabulated.TASKS, "two", task)
    monkeypatch.setattr(tabulated, "POINTS", 4)
    monkeypatch.setattr(tabulated, "ProcessPoolExecutor", Here)
    np.savez(tmp_path / "two.part.npz", **{"0": np.full(4, 0.25)})
    tabulated.make("two", 1)
    found = tabulated.load("two")
    np.testing.assert_array_equal(found.values[0], 0.25)
    rows = [1 + task.space.decode(x)["C"] for x in tabulated.points("two")]
    np.testing.assert_allclose(found.values[1], rows, rtol=1e-6)
    assert not (tmp_path / "two.part.npz").exists()


class Here:
    """Evaluates in this process."""

    def __init__(self, *_, **__): ...

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    map = staticmethod(map)
