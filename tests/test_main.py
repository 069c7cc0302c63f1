import importlib.util
import os
import platform
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import jaxbo
from jaxbo import __main__ as command_line

ROOT = Path(jaxbo.__file__).parent.parent


def run(*arguments, **environment):
    """`python -m jaxbo ARGUMENTS` as a user would call it."""
    return subprocess.run(
        [sys.executable, "-m", "jaxbo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_version_is_the_packages(capsys):
    assert command_line.main(["version"]) == 0
    assert capsys.readouterr().out == f"jaxbo {jaxbo.__version__}\n"


def check_environment(text, state):
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line)
    for name in ("jax", "jaxlib", "equinox", "optax"):
        assert lines[name] == version(name)
    assert lines["jaxbo"].startswith(f"{jaxbo.__version__} ")
    assert lines["Python"].startswith(f"{platform.python_version()} ")
    assert "cpu" in lines["devices"] or "gpu" in lines["devices"]
    assert lines["float64"].split()[0] == state
    assert lines["[plot]"] == f"matplotlib {version('matplotlib')}"


def test_environment_reports_what_is_installed(capsys, x64):
    assert command_line.main(["environment"]) == 0
    check_environment(capsys.readouterr().out, "on" if x64 else "off")


@pytest.mark.slow
def test_the_module_is_a_command_and_says_what_its_variables_switch_on(x64):
    other = {"0": "off"} if x64 else {"1": "on"}
    ((flag, state),) = other.items()
    result = run("environment", JAX_ENABLE_X64=flag)
    assert result.returncode == 0
    check_environment(result.stdout, state)


def test_environment_names_what_is_missing_and_the_unrelated_package(monkeypatch, capsys):
    def installed(name):
        return {"matplotlib": None, "jaxbo": "0.1.2"}.get(name, "9.9")

    monkeypatch.setattr(command_line, "_installed", installed)
    assert command_line.main(["environment"]) == 0
    out = capsys.readouterr().out
    assert "matplotlib missing" in out
    assert "pip uninstall jaxbo jaxbo-agents" in out


def test_environment_is_silent_where_there_is_no_conflict(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "_installed", {"jaxbo": None}.get)
    assert command_line.main(["environment"]) == 0
    assert "unrelated" not in capsys.readouterr().out


def test_the_reported_extras_are_those_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(command_line.EXTRAS) == set(extras) - {"test", "dev"}
    for extra, names in command_line.EXTRAS.items():
        required = {r.split(">=")[0] for r in extras[extra] if not r.startswith("jaxbo-agents")}
        assert set(names) == required
    assert set(command_line.CORE) == {r.split(">=")[0] for r in project["dependencies"]}
    assert project["name"] == command_line.DISTRIBUTION


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        command_line.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("demo", "environment", "version"))


@pytest.mark.parametrize("arguments", [(), ("dance",), ("demo", "--seeds", "many")])
def test_a_mistyped_command_exits_with_2_and_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        command_line.main(list(arguments))
    assert caught.value.code == 2
    assert "usage: python -m jaxbo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "1"), "a standard error needs at least 2 seeds, got 1."),
        (("--rounds", "0"), "rounds must be at least 1, got 0."),
        (("--owners", "41"), "owners must be 2 to 40, got 41."),
        (("--owners", "1", "--quick"), "owners must be 2 to 40, got 1."),
        (("--out", "pyproject.toml"), "File exists"),
    ],
)
def test_an_impossible_demo_is_refused_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command_line.main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert not out


def test_the_demo_without_its_extra_says_what_to_install(monkeypatch, capsys):
    find = importlib.util.find_spec
    hidden = {"sklearn", "tqdm"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    assert command_line.main(["demo"]) == 2
    err = capsys.readouterr().err
    assert "tqdm and scikit-learn" in err
    assert 'pip install "jaxbo-agents[demo]"' in err


def test_an_interrupt_is_reported_as_shells_do(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    from jaxbo import demo

    monkeypatch.setattr(demo, "run", interrupted)
    assert command_line.main(["demo", "--out", "."]) == 130
    assert capsys.readouterr().err == "interrupted\n"
