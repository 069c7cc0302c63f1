import contextlib
import io
import itertools
import json
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from jaxbo import __main__ as command_line
from jaxbo import demo

COUNT, SEEDS, ROUNDS = 3, 2, 3  # seeds of `--quick`; a column of the table beside the last


class Counting(Executor):
    """Passes evaluations on to the processes of the demo: how many."""

    def __init__(self, executor):
        self.executor, self.evaluations = executor, 0

    def submit(self, fn, /, *args, **options):
        self.evaluations += 1
        return self.executor.submit(fn, *args, **options)


class Made(NamedTuple):
    """The one run of the demo that these tests look at: what it compared, said and wrote."""

    executor: Counting
    outcomes: dict
    reports: list
    said: str
    warned: str
    out: Path


FIRST, LAST = "learned prior (federated)", "TS (alone)"
EVERY = FIRST, "FTS (federated)", "EI (alone)", LAST


@pytest.fixture(
    scope="module",
    params=[(FIRST, LAST), pytest.param(EVERY, marks=pytest.mark.full)],
    ids=["two methods", "all methods"],
)
def made(request, tmp_path_factory):
    """A quick demo of these methods: each is compiled, and the demo does the same with every one."""
    out = tmp_path_factory.mktemp("demo") / "made" / "here"
    compare, methods, noted = demo.compare, demo.methods, []

    def some(count, rounds):
        every = methods(count, rounds)
        return {name: every[name] for name in request.param}

    def noting(seeds, rounds, count, executor, report):
        executor, reports = Counting(executor), []

        def both(line):
            reports.append(line)
            report(line)

        noted.append((executor, compare(seeds, rounds, count, executor, both), reports))
        return noted[-1][1]

    said, warned = io.StringIO(), io.StringIO()
    arguments = ["demo", "--quick", "--owners", str(COUNT), "--rounds", str(ROUNDS)]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(warned),
    ):
        patch.setattr(demo, "compare", noting)
        patch.setattr(demo, "methods", some)
        assert command_line.main([*arguments, "--out", str(out)]) == 0
    return Made(*noted[0], said.getvalue(), warned.getvalue(), out)


@pytest.fixture(scope="module")
def compared(made):
    return made.outcomes


def outcome(best, floats=0, seconds=1.5):
    """An outcome whose every value is `best` [seeds owners], in five evaluations."""
    return demo.Comparison(np.repeat(np.asarray(best)[:, None, :], 5, axis=1), seconds, floats)


# ---------------------------------------------------------------- owners


def test_every_sample_has_exactly_one_owner():
    images, _ = load_digits(return_X_y=True)
    shared_out = np.concatenate([owner.images for owner in demo.owners(20)])
    assert shared_out.shape == images.shape
    np.testing.assert_array_equal(np.unique(16 * shared_out, axis=0), np.unique(images, axis=0))


def test_samples_keep_their_digits():
    images, digits = load_digits(return_X_y=True)
    known = {image.tobytes(): digit for image, digit in zip(images / 16, digits, strict=True)}
    for owner in demo.owners(20):
        assert [known[image.tobytes()] for image in owner.images] == owner.digits.tolist()


def test_owners_differ_in_size_and_in_what_they_write():
    owners = demo.owners(20)
    sizes = np.array([len(owner.digits) for owner in owners])
    assert sizes.max() > 3 * sizes.min()
    shares = np.array([np.bincount(o.digits, minlength=10) / len(o.digits) for o in owners])
    assert (shares.max(axis=1) > 4 * shares.min(axis=1)).all()
    commonest = shares.argmax(axis=1)
    assert len(set(commonest.tolist())) >= 5


def test_owners_are_the_same_in_every_process():
    first = demo.owners(4)
    demo.owners.cache_clear()
    for mine, theirs in zip(first, demo.owners(4), strict=True):
        np.testing.assert_array_equal(mine.images, theirs.images)
        np.testing.assert_array_equal(mine.digits, theirs.digits)


@pytest.mark.slow
def test_every_owner_has_enough_samples_to_train_and_validate(monkeypatch):
    classes, validated = [], []

    class Counter:
        def fit(self, images, digits):
            classes.append(len(set(digits.tolist())))
            return self

        def predict(self, images):
            validated.append(len(images))
            return np.zeros(len(images))

    monkeypatch.setattr(demo, "SVC", Counter)
    counts = range(2, demo.MOST_OWNERS + 1)
    for count in counts:
        for owner in range(count):
            demo.accuracy(count, owner, {})
    assert len(classes) == len(validated) == demo.HALVES * sum(counts)
    assert min(classes) >= 2
    assert min(validated) >= 4


# ---------------------------------------------------------------- the objective


@pytest.mark.parametrize("owner", [0, 6, 19])
def test_accuracy_is_that_of_cross_validation_on_the_owners_halves(owner):
    images, digits = demo.owners(20)[owner]
    rng = np.random.default_rng(owner)
    halves = [np.array_split(rng.permutation(len(digits)), 2) for _ in range(demo.HALVES)]
    expected = cross_val_score(SVC(C=3.0, gamma=0.02), images, digits, cv=halves).mean()
    assert demo.accuracy(20, owner, {"C": 3.0, "gamma": 0.02}) == pytest.approx(expected, abs=1e-12)


def test_hyperparameters_matter_to_every_owner():
    for owner in range(20):
        good = demo.accuracy(20, owner, {"C": 10.0, "gamma": 0.03})
        bad = demo.accuracy(20, owner, {"C": 1e-3, "gamma": 100.0})
        assert good > bad + 0.1


# ---------------------------------------------------------------- the methods


def test_alone_and_federated_have_the_same_surrogate():
    methods = demo.methods(4, 7)
    fts, ts = methods["FTS (federated)"], methods["TS (alone)"]
    assert jax.tree.structure(fts.features) == jax.tree.structure(ts.surrogate)
    for a, b in zip(jax.tree.leaves(fts.features), jax.tree.leaves(ts.surrogate), strict=True):
        assert a == b
    assert fts.own is None
    for name in ("learned prior (federated)", "EI (alone)"):
        assert jax.tree.all(jax.tree.map(lambda a, b: a == b, methods[name].features, fts.features))
        assert methods[name].capacity == demo.INITIAL + 7
    assert fts.candidates == ts.candidates
    assert fts.targets == fts.agents == 4
    assert not fts.once


def test_only_the_federated_owners_send_anything():
    sent = {name: demo.floats_sent(method, 7) for name, method in demo.methods(4, 7).items()}
    # Of a mean of 101 numbers, and of their covariance (`LearnedPrior`).
    learned = 7 * (101 + 4 + 101 * 102)
    assert sent == {
        "learned prior (federated)": learned,
        "FTS (federated)": 7 * 100,
        "EI (alone)": 0,
        "TS (alone)": 0,
    }


@pytest.mark.slow
def test_methods_share_their_initial_points_and_seeds_do_not(compared):
    outcomes = compared
    first = {name: outcome.values[:, : demo.INITIAL] for name, outcome in outcomes.items()}
    for values in first.values():
        np.testing.assert_array_equal(values, first["TS (alone)"])
        assert (values[0] != values[1]).any()


@pytest.mark.slow
def test_methods_differ_after_the_initial_points(compared):
    outcomes = compared
    later = [outcome.values[:, demo.INITIAL :] for outcome in outcomes.values()]
    for one, other in itertools.combinations(later, 2):
        assert (one != other).any()


@pytest.mark.slow
def test_every_evaluation_goes_through_the_executor(made):
    outcomes = made.outcomes
    shape = (SEEDS, demo.INITIAL + ROUNDS, COUNT)
    assert all(outcome.values.shape == shape for outcome in outcomes.values())
    assert made.executor.evaluations == len(outcomes) * np.prod(shape)
    assert made.reports[:2] == [f"learned prior (federated), seed {n} of 2" for n in (1, 2)]


@pytest.mark.slow
def test_values_are_accuracies(compared):
    outcomes = compared
    for result in outcomes.values():
        assert ((result.values >= 0) & (result.values <= 1)).all()
        assert (np.diff(result.curves, axis=1) >= 0).all()
        assert result.seconds > 0


# ---------------------------------------------------------------- what is shown


@pytest.mark.slow
def test_the_quick_demo_prints_a_table_and_writes_its_files(made):
    assert "Warning" not in made.warned
    lines = made.said.splitlines()
    assert set(made.reports) < set(lines)
    content = json.loads((made.out / "demo.json").read_text())
    evaluations = demo.INITIAL + ROUNDS
    assert content["settings"] == {
        "owners": COUNT,
        "seeds": SEEDS,
        "evaluations": evaluations,
        "initial": 3,
    }
    assert set(content["methods"]) == set(made.outcomes)
    for name in made.outcomes:
        (row,) = [line for line in lines if line.startswith(name) and "±" in line]
        accuracy = content["methods"][name]["accuracy"]
        assert len(accuracy["mean"]) == evaluations
        for column in (5, evaluations):
            mean, error = accuracy["mean"][column - 1], accuracy["se"][column - 1]
            assert f"{100 * mean:.2f} ± {100 * error:.2f}" in row
    assert {p.name for p in made.out.iterdir()} == {"demo.png", "demo.json"}
    assert (made.out / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_the_mean_over_owners_and_the_error_over_seeds():
    text = demo.table({"a": outcome([[0.5, 0.7], [0.6, 0.8]], floats=1234, seconds=5.25)})
    head, row = text.splitlines()[1:]
    assert head.split() == ["5", "floats", "sent", "seconds"]
    # Seeds reach 60 and 70 %: their mean is 65, its error 10 / √2 / √2.
    assert row.split() == ["a", "65.00", "±", "5.00", "1,234", "5.2"]


@pytest.mark.slow
def test_the_table_ends_with_the_last_evaluation(compared):
    values = np.full((2, 12, 3), 0.5)
    head = demo.table({"a": demo.Comparison(values, 1.0, 0)}).splitlines()[1]
    assert head.split()[:3] == ["5", "10", "12"]


def test_gaps_are_to_the_best_that_any_method_found_for_the_owner():
    outcomes = {"a": outcome([[0.5, 0.9], [0.6, 0.8]]), "b": outcome([[0.75, 0.7], [0.1, 0.2]])}
    gaps = demo._gaps(outcomes)
    np.testing.assert_allclose(gaps["a"][:, -1], [[0.25, 0.0], [0.15, 0.1]], atol=1e-12)
    np.testing.assert_allclose(gaps["b"][:, -1], [[0.0, 0.2], [0.65, 0.7]], atol=1e-12)


@pytest.mark.slow
def test_the_record_is_json_with_the_tables_figures(compared):
    outcomes = compared
    content = json.loads(json.dumps(demo.record(outcomes)))
    for name, result in outcomes.items():
        method = content["methods"][name]
        np.testing.assert_allclose(method["accuracy"]["mean"], result.curves.mean(axis=0))
        assert method["floats"] == result.floats


@pytest.mark.slow
def test_the_picture_shows_every_method_in_both_panels(compared):
    outcomes = compared
    figure = demo.picture(outcomes)
    left, right = figure.axes
    for axes in (left, right):
        assert [line.get_label() for line in axes.lines] == list(outcomes)
    for line, result in zip(left.lines, outcomes.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), 100 * result.curves.mean(axis=0))
    assert left.get_xlim() == (demo.INITIAL, demo.INITIAL + ROUNDS)
    assert right.get_yscale() == "log"
