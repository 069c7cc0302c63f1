"""Everything the README shows runs as written."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs_as_written(example, tmp_path):
    script = tmp_path / "example.py"  # processes that it starts import it
    script.write_text(example)
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = str(README.parent)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


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
