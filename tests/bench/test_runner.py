import ast
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from filelock import FileLock

import bench
from bench import runner
from bench.cepe.setting import Totals
from bench.claims import met
from bench.runner import Experiment, Options, Result

TOY = """
import numpy as np
from bench.claims import below, met
from bench.runner import Experiment, Result

def run(options):
    runs, rounds = options.runs_or(6, 3), options.rounds_or(5, 4)
    curve = 1 / np.arange(1, rounds + 1) + 0.01 * np.arange(runs)[:, None]
    checks = {"it falls": met(0.5, most=1), "it is zero": met(float("nan"), most=0)}
    checks["it rises"] = below(curve[:, 0], np.arange(runs) - 1.0)
    curves = dict.fromkeys(options.problems_or(["toy"], ["toy"]), curve)
    return Result({"power": 1, "sizes": (1, 2)}, curves, checks=checks)

EXPERIMENT = Experiment("nowhere, Fig. 0", "a toy", "1 s", run, ("toy", "Top", "ball"))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """One file that has a name is an experiment."""
    (tmp_path / "toy_curve.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(bench.EXPERIMENTS, "toy-curve", "toy_curve")
    yield "toy-curve"
    sys.modules.pop("toy_curve", None)


def test_every_experiment_has_a_name_and_its_files_place():
    root = Path(bench.__file__).parent
    files = [path for path in root.rglob("*.py") if "\nEXPERIMENT = " in path.read_text()]
    places = {".".join(path.relative_to(root.parent).with_suffix("").parts) for path in files}
    assert len(places) > 30
    assert set(bench.EXPERIMENTS.values()) == places


def _imported(path):
    """The modules that a file imports; for `from a import b` both a and a.b, of which one may be none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_experiments_do_not_import_each_other():
    root = Path(bench.__file__).parents[1]
    for place in bench.EXPERIMENTS.values():
        imported = set(_imported(root / f"{place.replace('.', '/')}.py"))
        assert not imported & set(bench.EXPERIMENTS.values()), place


def test_one_file_is_an_experiment_and_gives_a_table_a_json_and_a_picture(toy, tmp_path, capsys):
    assert runner.main([toy, "--out", str(tmp_path / "new" / "out")]) == 0
    printed = capsys.readouterr().out
    assert "nowhere, Fig. 0" in printed
    assert "✓  it falls: 0.5 (at most 1)" in printed
    assert "✗  it is zero: - (at most 0)" in printed
    assert "?  it rises: -0.475 (-2.419 to 1.469, at most 0, 101 runs)" in printed
    assert "✓ holds   ✗ refuted   ? undecided" in printed
    assert (tmp_path / "new/out/toy-curve.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "new/out/toy-curve.json").read_text())
    assert list(content) == [
        "experiment",
        "source",
        "seed",
        "settings",
        "methods",
        "checks",
        "seconds",
        "date",
        "device",
        "versions",
    ]
    assert content["experiment"] == "toy-curve"
    assert content["settings"] == {"power": 1, "sizes": [1, 2]}
    assert content["checks"]["it is zero"] == {
        "outcome": "refuted",
        "figure": None,
        "margin": [None, 0.0],
        "interval": None,
        "runs": None,
        "needed": None,
        "how": "not random",
    }
    assert content["versions"]["jax"]
    final = content["methods"]["toy"]["final"]
    last = 1 / 5 + 0.01 * np.arange(6)
    np.testing.assert_allclose(final["mean"], last.mean())
    np.testing.assert_allclose(final["se"], last.std(ddof=1) / np.sqrt(6))
    assert final["n"] == 6
    assert len(content["methods"]["toy"]["curve"]["mean"]) == 5


@pytest.mark.parametrize(
    ("arguments", "runs", "rounds"),
    [
        ([], 6, 5),
        (["--quick"], 3, 4),
        (["--quick", "--runs", "9"], 9, 4),
        (["--rounds", "7"], 6, 7),
    ],
)
def test_runs_and_rounds_are_the_experiments_own_unless_the_command_line_says_so(
    toy, tmp_path, arguments, runs, rounds
):
    assert runner.main([toy, "--out", str(tmp_path), *arguments]) == 0
    method = json.loads((tmp_path / "toy-curve.json").read_text())["methods"]["toy"]
    assert (method["final"]["n"], len(method["curve"]["se"])) == (runs, rounds)


def test_some_problems_of_several_have_files_of_their_own(toy, tmp_path, capsys):
    arguments = [toy, "--out", str(tmp_path), "--only", "ball", "--only", "Top"]
    assert runner.main(arguments) == 0
    content = json.loads((tmp_path / "toy-curve-ball-top.json").read_text())
    assert list(content["methods"]) == ["ball", "Top"]
    assert (tmp_path / "toy-curve-ball-top.png").exists()
    one, other = (runner.scratch(Options(tmp_path, only=o), "toy", ()) for o in ((), ("ball",)))
    assert one != other  # what an experiment of all has finished is not removed
    with pytest.raises(SystemExit, match="2"):
        runner.main([toy, "--only", "kite"])
    assert "no problem 'kite'; it has toy, Top, ball" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        runner.main(["fts-synthetic", "--only", "toy"])
    assert "none to choose from" in capsys.readouterr().err


def test_the_list_names_every_experiment_with_its_time(toy, capsys):
    assert runner.main(["--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"fts-synthetic", "fts-landmine", toy} <= set(lines)
    assert "1 s" in lines[toy]
    assert "runner" not in lines


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such"], "fts-synthetic"),
        ([], "--list"),
        (["runner"], "no experiment"),
        (["fts-synthetic", "--runs", "1"], "at least 2"),
        (["fts-synthetic", "--rounds", "0"], "at least 1"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(arguments, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        runner.main(arguments)
    assert complaint in capsys.readouterr().err


def test_missing_data_is_named_with_its_source_and_exits_2(tmp_path, monkeypatch, capsys):
    from bench.tasks.landmine import fields

    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    fields.cache_clear()
    assert runner.main(["fts-landmine", "--out", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert "landmine.npz" in complaint
    assert str(tmp_path) in complaint
    assert "JAXBO_DATA" in complaint
    assert "github.com" in complaint
    assert not (tmp_path / "fts-landmine.json").exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path):
    path = tmp_path / "a.json"
    runner.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        runner.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_finals_stand_without_curves_and_one_run_has_no_error():
    result = Result({}, finals={"a": np.array([2.0]), "b": np.array([1.0, 3.0])}, earlier=5.0)
    experiment = Experiment("s", "a", "t", lambda options: result)
    content = runner.report("x", experiment, result, seconds=1.0, seed=3)
    assert content["seed"] == 3
    assert content["methods"]["a"] == {"final": {"mean": 2.0, "se": None, "n": 1}}
    assert content["methods"]["b"]["final"] == {"mean": 2.0, "se": 1.0, "n": 2}
    assert content["seconds"] == 6.0
    assert runner.picture(result) is None


def test_a_table_of_its_own_replaces_the_one_of_final_figures():
    result = Result({}, headers=("what", "ratio"), rows=[("cosine", "22"), ("x", "1.5")])
    content = runner.report("x", Experiment("s", "a", "t", lambda _: result), result, 0.0)
    lines = runner.text(content, result).splitlines()
    assert lines[2:6] == ["what    ratio", "------  -----", "cosine     22", "x         1.5"]


def test_an_interrupted_experiment_says_how_to_go_on(toy, tmp_path, monkeypatch, capsys):
    def stopped(options: Options) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "load", lambda name: Experiment("s", "a", "t", stopped))
    assert runner.main([toy, "--out", str(tmp_path)]) == 130
    assert "same command" in capsys.readouterr().err


def test_an_interrupted_experiment_goes_on_and_counts_the_seconds_of_before(tmp_path):
    options, asked = Options(tmp_path), []

    def measure(name):
        def one():
            asked.append(name)
            if name == "last" and asked.count("last") == 1:
                raise KeyboardInterrupt
            time.sleep(0.05)
            return np.arange(3.0)

        return one

    measures = {name: measure(name) for name in ("first", "of/two", "last")}
    with pytest.raises(KeyboardInterrupt):
        runner.parts(options, "x", (2,), measures)
    found, folder = runner.parts(options, "x", (2,), measures)
    assert asked == ["first", "of/two", "last", "last"]
    assert list(found) == list(measures)
    np.testing.assert_array_equal(found["of/two"], np.arange(3.0))
    result = Result({}, scratch=folder)
    content = runner.report("x", Experiment("s", "a", "t", lambda _: result), result, 0.06)
    assert content["seconds"] >= 0.15  # of three, each rounded to milliseconds
    assert list(content["seconds of parts"]) == ["first", "last", "of-two"]
    assert min(content["seconds of parts"].values()) >= 0.05


def test_a_measure_of_several_arrays_is_kept_as_a_tuple(tmp_path):
    several = Totals(jax.numpy.arange(3), np.ones((2, 2)))
    for _ in range(2):
        found, _ = runner.parts(
            Options(tmp_path), "x", (), {"a": lambda: several, "b": lambda: 1.0}
        )
        assert isinstance(found["a"], tuple)
        for ours, given in zip(found["a"], several, strict=True):
            np.testing.assert_array_equal(ours, given)
        np.testing.assert_array_equal(found["b"], 1.0)


def test_processes_that_are_started_alike_share_the_work_and_the_last_reports(tmp_path):
    asked, gate = [], threading.Barrier(2, timeout=60)

    def measure(number):
        def one():
            asked.append(number)
            if number < 2:
                gate.wait()  # passes when both are at work at once
            return np.full(2, number)

        return one

    measures = {str(number): measure(number) for number in range(6)}

    def process():
        try:
            return runner.parts(Options(tmp_path), "x", (), measures)[0]
        except runner.ElsewhereError:
            return None

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(process) for _ in range(2)]
    reports = [one.result() for one in found if one.result() is not None]
    assert sorted(asked) == list(range(6))
    assert reports
    assert all([one[str(n)][0] == n for n in range(6)] == [True] * 6 for one in reports)


def test_who_finds_only_parts_that_another_is_at_says_so(tmp_path, monkeypatch, capsys):
    options = Options(tmp_path)

    def experiment(options: Options) -> Result:
        runner.parts(options, "x", (), {"a": lambda: [1.0]})
        return Result({})

    monkeypatch.setattr(runner, "load", lambda name: Experiment("s", "a", "t", experiment))
    with FileLock(f"{runner.scratch(options, 'x', ()) / 'a.npz'}.lock"):
        assert runner.main(["x", "--out", str(tmp_path)]) == 0
    assert "another process is at the last part and will report: a" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
    assert runner.main(["x", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "x.json").exists()


def test_a_picture_counts_the_outcomes():
    axes = {"a": np.ones((3, 4))}
    checks = {"one": met(1.0, most=2), "two": met(3.0, most=2), "three": met(1.5, most=2)}
    figure = runner.picture(Result({}, curves=axes, checks=checks))
    assert figure is not None
    assert [text.get_text() for text in figure.texts] == ["claims: ✓ 2   ✗ 1   ? 0"]
    plain = runner.picture(Result({}, curves=axes))
    assert plain is not None
    assert not plain.texts
