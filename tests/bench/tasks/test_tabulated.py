"""Tables of tuning tasks: what is in them is what the learners score."""

import jax.numpy as jnp
import numpy as np
import pytest

from bench.tasks import tabulated


def test_every_row_has_one_owner_and_owners_differ():
    X, y = np.arange(600.0)[:, None], np.repeat([0, 1, 2], 200)
    parts = tabulated.divided(X, y, 8)
    np.testing.assert_array_equal(np.sort(np.concatenate([p.X[:, 0] for p in parts])), X[:, 0])
    np.testing.assert_array_equal(
        np.concatenate([y[p.X[:, 0].astype(int)] for p in parts]),
        np.concatenate([p.y for p in parts]),
    )
    shares = np.array([np.bincount(p.y, minlength=3) / len(p.y) for p in parts])
    assert np.ptp(shares, axis=0).min() > 0.2


@pytest.mark.parametrize("name", ["digits-svm", "cancer-svm"])
def test_a_table_has_what_its_learner_scores(name):
    task, found = tabulated.TASKS[name], tabulated.load(name)
    assert found.agents == task.owners
    assert found.points.shape == (tabulated.POINTS, task.space.dim)
    for owner, point in ((0, 5), (3, 700)):
        x = np.asarray(found.points[point])
        expected = task.score(owner, task.space.decode(x))
        assert float(found.noiseless(jnp.asarray(owner), found.points[point])) == pytest.approx(
            expected, abs=1e-6
        )


def test_every_table_is_of_a_task_and_holds_shares():
    assert tabulated.READY
    for name in tabulated.READY:
        values = np.asarray(tabulated.load(name).values)
        assert values.shape == (tabulated.TASKS[name].owners, tabulated.POINTS)
        assert 0 <= values.min() < values.max() <= 1


def test_what_is_finished_is_kept(tmp_path, monkeypatch):
    task = tabulated.TuningTask(
        "two owners", 2, tabulated.SVM, lambda owner, parameters: owner + parameters["C"]
    )
    monkeypatch.setattr(tabulated, "FOLDER", tmp_path)
    monkeypatch.setitem(tabulated.TASKS, "two", task)
    monkeypatch.setattr(tabulated, "POINTS", 4)
    monkeypatch.setattr(tabulated, "ProcessPoolExecutor", Here)
    np.savez(tmp_path / "two.part.npz", **{"0": np.full(4, 0.25)})
    tabulated.make("two", 1)
    found = tabulated.load("two")
    np.testing.assert_array_equal(found.values[0], 0.25)
    rows = [1 + task.space.decode(x)["C"] for x in tabulated.points(2)]
    np.testing.assert_allclose(found.values[1], rows, rtol=1e-6)
    assert not (tmp_path / "two.part.npz").exists()


class Here:
    """Evaluates in this process."""

    def __init__(self, *_, **__): ...

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    map = staticmethod(map)
