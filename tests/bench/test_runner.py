import json
import sys

import numpy as np
import pytest

import bench
from bench import runner
from bench.runner import Experiment, Options, Result

TOY = """
import numpy as np
from bench.runner import Check, Experiment, Result

def run(options):
    runs, rounds = options.runs_or(6, 3), options.rounds_or(5, 4)
    curve = 1 / np.arange(1, rounds + 1) + 0.01 * np.arange(runs)[:, None]
    checks = {"it falls": Check(True, 0.5), "it is zero": Check(False, float("nan"))}
    curves = dict.fromkeys(options.problems_or(["toy"], ["toy"]), curve)
    return Result({"power": 1, "sizes": (1, 2)}, curves, checks=checks)

EXPERIMENT = Experiment("nowhere, Fig. 0", "a toy", "1 s", run, ("toy", "Top", "ball"))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """One file in the package's folder is an experiment."""
    (tmp_path / "toy_curve.py").write_text(TOY)
    monkeypatch.setattr(bench, "__path__", [*bench.__path__, str(tmp_path)])
    yield "toy-curve"
    sys.modules.pop("bench.toy_curve", None)


def test_one_file_is_an_experiment_and_gives_a_table_a_json_and_a_picture(toy, tmp_path, capsys):
    assert runner.main([toy, "--out", str(tmp_path / "new" / "out")]) == 0
    printed = capsys.readouterr().out
    assert "nowhere, Fig. 0" in printed
    assert "holds  it falls: 0.5" in printed
    assert "FAILS  it is zero: -" in printed
    assert (tmp_path / "new/out/toy-curve.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "new/out/toy-curve.json").read_text())
    assert list(content) == [
        "experiment",
        "source",
        "settings",
        "methods",
        "checks",
        "seconds",
        "device",
        "versions",
    ]
    assert content["experiment"] == "toy-curve"
    assert content["settings"] == {"power": 1, "sizes": [1, 2]}
    assert content["checks"]["it is zero"] == {"holds": False, "figure": None}
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
    from bench.landmine import fields

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
    content = runner.report("x", experiment, result, seconds=1.0)
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
