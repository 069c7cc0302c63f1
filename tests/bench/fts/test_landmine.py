from concurrent.futures import ThreadPoolExecutor

import jax
import jax.random as jr
import numpy as np
import pytest

from bench.fts import driven, rivals
from bench.fts import landmine as experiment
from bench.tasks import landmine
from bench.tasks.landmine import Tuning
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube


@pytest.fixture
def small_fields(tmp_path, monkeypatch):
    """A file in the format of landmine.npz with 29 small made-up fields."""
    rng = np.random.default_rng(0)
    size = 60
    X = rng.standard_normal((29 * size, 9))
    y = (X[:, 0] + X[:, 1] + rng.standard_normal(len(X)) > 1.5).astype(np.uint8)
    train = np.arange(29 * size).reshape(29, 2, size // 2)
    offsets = np.arange(30) * (size // 2)
    arrays = {"X": X, "y": y, "train_offsets": offsets, "test_offsets": offsets}
    indices = {"train_idx": train[:, 0].ravel(), "test_idx": train[:, 1].ravel()}
    np.savez(tmp_path / "landmine.npz", **arrays, **indices)
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    landmine.fields.cache_clear()
    yield X, y, train
    landmine.fields.cache_clear()


def test_a_field_is_its_own_rows_in_two_halves(small_fields):
    X, y, train = small_fields
    field = landmine.fields()[7]
    np.testing.assert_array_equal(field.X, X[train[7, 0]])
    np.testing.assert_array_equal(field.y_test, y[train[7, 1]])


def test_an_evaluation_is_the_same_in_any_order_and_only_the_authors_depends_on_the_seed(
    small_fields,
):
    x = np.array([0.3, 0.02], np.float32)

    def all_of(clean: bool, order: range) -> list[list[float]]:
        tunings = [Tuning(clean, seed) for seed in range(4)]
        values = {field: [tuning(field, x) for tuning in tunings] for field in order}
        return [values[field] for field in sorted(values)]

    clean, noisy = all_of(True, range(10)), all_of(False, range(10))
    assert all(len(set(values)) == 1 for values in clean)
    assert any(len(set(values)) > 1 for values in noisy)
    assert noisy == all_of(False, range(9, -1, -1))
    # Platt scaling keeps the ranking or, in one of these fits at least, turns it upside down.
    kept, turned = np.abs(np.subtract(noisy, clean)), np.abs(np.add(noisy, clean) - 1)
    assert (np.minimum(kept, turned) < 0.03).all()
    assert (turned < 0.03).any()


def test_targets_come_first_with_the_noise_of_their_fields(small_fields):
    x = np.array([0.3, 0.02], np.float32)
    alone, together = Tuning(False, 3), Tuning(False, 3, targets=6)
    for agent in (0, 5, 6, 11, 12, 34):
        assert together(agent, x) == alone(agent if agent < 6 else agent - 6, x)


def test_the_corners_of_the_square_are_the_ends_of_the_authors_ranges():
    low, high = landmine._svm(np.zeros(2)), landmine._svm(np.ones(2))
    np.testing.assert_allclose([low.C, low.gamma], [1e-4, 0.01])
    np.testing.assert_allclose([high.C, high.gamma], [10, 10])


def test_a_target_hears_all_fields_but_its_own():
    weights = rivals.others(driven.PROBLEM)
    assert weights.shape == (6, 35)
    assert (weights[:, :6] == 0).all()
    assert (weights.sum(1) == 28).all()
    assert (weights[np.arange(6), 6 + np.arange(6)] == 0).all()


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.full) if k == "TAF" else k for k in experiment.FEDERATED],
)
def test_before_the_start_peers_know_fifty_points_and_targets_none(kind, key):
    rng = np.random.default_rng(0)
    dtype = jax.numpy.zeros(()).dtype
    past = driven.DrivenRun(
        rng.random((53, 29, 2)).astype(dtype), rng.random((53, 29)).astype(dtype), 0.0
    )
    algorithm = rivals.federated(driven.PROBLEM, kind, 20, rounds=50)
    state = driven.informed(algorithm, key, past)
    counts = np.asarray(state.clients.beliefs.message.posterior.count)
    np.testing.assert_array_equal(counts, [0] * 6 + [50] * 29)
    sent = state.clients.sent.weights if kind == "FTS" else state.clients.sent.mean
    assert np.asarray(sent).shape == (35, 20)
    sent = {"FTS": 20, "RGPE": 20 + 400, "TAF": 20 + 400 + 1}[kind]
    assert experiment._floats(experiment.Method("", kind, 20)) == (sent, sent)


@pytest.mark.full
def test_a_part_goes_on_where_it_was_stopped_and_is_not_evaluated_again(
    small_fields, tmp_path, monkeypatch
):
    evaluated, limit = [], 10

    def counted(tuning: Tuning, agent: int, x: np.ndarray) -> float:
        if len(evaluated) == limit:
            raise RuntimeError("stopped")
        evaluated.append(agent)
        return float(x[0] - x[1] ** 2)

    monkeypatch.setattr(Tuning, "__call__", counted)
    algorithm, key = RandomSearch(Cube(2), 3), jr.key(0)

    def part(path) -> driven.DrivenRun:
        tuning = Tuning(clean=True, seed=0)
        with ThreadPoolExecutor(1) as executor:
            return driven.driven(tmp_path / path, algorithm, tuning, 4, key, executor, None)

    with pytest.raises(RuntimeError, match="stopped"):
        part("a.npz")
    assert len(evaluated) == 10
    limit = None
    first = part("a.npz")
    assert len(evaluated) == (experiment.INITIAL + 4) * 3
    again = part("a.npz")
    assert len(evaluated) == (experiment.INITIAL + 4) * 3
    undisturbed = part("b.npz")
    assert (first.earlier, again.earlier) == (False, True)
    assert np.isnan(first.seconds)
    assert undisturbed.seconds > 0
    for other in (again, undisturbed):
        np.testing.assert_array_equal(first.queries, other.queries)
        np.testing.assert_array_equal(first.values, other.values)


def _found(levels):
    noise = 0.002 * np.random.default_rng(0).standard_normal((len(levels), 5, 6, 50))
    methods = [experiment.Method(experiment.AUTHORS, *method) for method in levels]
    pairs = zip(methods, levels.values(), noise, strict=True)
    return {method: (level + e, 0.1) for method, level, e in pairs}


@pytest.mark.full
def test_claims_are_held_against_the_authors_figures():
    lower = {method: level - 0.02 for method, level in experiment.PUBLISHED.items()}
    same = experiment.checks(_found(experiment.PUBLISHED), rounds=50)
    below = experiment.checks(_found(lower), rounds=50)
    assert sum("s.e." in claim for claim in same) == 13
    assert all(check.holds for claim, check in same.items() if "authors'" in claim)
    assert not any(check.holds for claim, check in below.items() if "s.e." in claim)
    shorter = experiment.checks(_found(experiment.PUBLISHED), rounds=10)
    assert not any("s.e." in claim for claim in shorter)


@pytest.mark.full
def test_fts_clearly_below_another_is_reported_as_worse():
    levels = {("TS", 0): 0.82, ("FTS", 50): 0.7, ("FTS", 150): 0.9, ("TAF", 150): 0.95}
    checks = experiment.checks(_found(levels), rounds=50)
    worse = {claim: check.holds for claim, check in checks.items() if "no worse" in claim}
    assert list(worse.values()) == [False, True, False]
