"""Everything the README shows runs as written."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)


#: Runs files one after the other, each from its own folder, and prints as JSON what each printed and what
#: it raised. What one of them imports from jaxbo or ignores of warnings is nothing to the next.
IN_TURN = """
import contextlib, gc, io, json, os, runpy, sys, traceback, warnings
import jaxbo
gc.freeze()
gc.set_threshold(100_000, 50, 100)  # tracing makes many objects
names, ended = set(vars(jaxbo)), []
for script in sys.argv[1:]:
    os.chdir(os.path.dirname(script))
    said, raised = io.StringIO(), ""
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception:
            raised = traceback.format_exc()
    ended.append((said.getvalue(), raised))
    for name in set(vars(jaxbo)) - names:  # the next one imports what it needs itself
        sys.modules.pop("jaxbo." + name, None)
        delattr(jaxbo, name)
print(json.dumps(ended))
"""
GROUPS = 3  # processes: one imports and compiles once what its examples share


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_examples_run_as_written(group, tmp_path):
    mine = range(len(EXAMPLES))[group * len(EXAMPLES) // GROUPS :]
    mine = mine[: (group + 1) * len(EXAMPLES) // GROUPS - mine.start]
    scripts = [tmp_path / str(number) / "example.py" for number in mine]
    for number, script in zip(mine, scripts, strict=True):
        script.parent.mkdir()
        script.write_text(EXAMPLES[number])  # processes that it starts import it
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = str(README.parent)
    environment["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
    # A thousand agents are too many for what is compiled without any optimization.
    environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace("level=0", "level=1")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TURN, *map(str, scripts)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    failures = {n: raised for n, (_, raised) in zip(mine, ended, strict=True) if raised}
    assert not failures, "".join(f"example {n}: {raised}" for n, raised in failures.items())
    assert all(said.strip() for said, _ in ended)


def test_there_are_examples_of_both_loops_and_of_a_method():
    for words in ("jaxbo.run(", "jaxbo.drive(", "AbstractFederated"):
        assert any(words in example for example in EXAMPLES)


def test_every_file_it_points_to_exists():
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", TEXT) if not t.startswith("http")]
    assert targets
    for target in targets:
        assert (README.parent / target).exists(), target


def test_every_make_target_it_names_exists():
    makefile = (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make (\w+)", TEXT, flags=re.M)):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


@pytest.mark.full
def test_with_the_cache_that_it_describes_a_second_process_compiles_nothing_and_is_silent(tmp_path):
    (line,) = re.findall(r"^export (JAX_COMPILATION_CACHE_DIR=.*)$", TEXT, flags=re.M)
    described = dict(pair.split("=") for pair in line.split())
    described["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "cache")
    others = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    script = """
import jax, jax.monitoring, jax.random as jr, jaxbo
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
ts = jaxbo.TS(jaxbo.Cube(1), 2, jaxbo.Fixed(size=10), candidates=20)
_, trace = jaxbo.run(ts, lambda key, agent, x: -x[0] ** 2, 2, jr.key(0))
print(float(trace.values.sum()), events.count("cache_misses"), events.count("cache_hits") > 0)
"""
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=README.parent,
            env=others | described,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        said.append(done.stdout.split())
    (value, misses, _), (again, misses_again, hits) = said
    assert value == again
    assert int(misses) > 0
    assert (misses_again, hits) == ("0", "True")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("own", ["gossip:Gossip", "tests.examples.one_model:EpsilonGreedy"])
def test_a_method_of_ones_own_keeps_the_contract(own, tmp_path):
    method = next(example for example in EXAMPLES if "class Gossip" in example)
    (tmp_path / "gossip.py").write_text(method.split("gossip = Gossip(")[0])
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(README.parent)])}
    contract = README.parent / "tests" / "algos" / "test_contract.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(contract)]
    command += ["--compile", "bitwise", "--method", own]
    done = subprocess.run(
        command, cwd=README.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
