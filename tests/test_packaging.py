import ast
import collections
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import jaxbo

ROOT = Path(jaxbo.__file__).parent.parent
#: Brought by extras only. SciPy is not among them: JAX itself needs it.
OPTIONAL = (
    *("matplotlib", "sklearn", "tqdm", "torch", "botorch", "dp_accounting"),
    *("flwr", "distributed", "cryptography", "Crypto", "opendp"),
    *("beartype", "pytest", "tinygp"),
)


def python(code, *arguments, **environment):
    """What `code` prints in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("wheel"))
    (path,) = WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_the_package_its_types_and_nothing_else(wheel):
    sources = {
        str(path.relative_to(ROOT)) for path in ROOT.glob("jaxbo/**/*") if path.suffix == ".py"
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == sources | {"jaxbo/py.typed"}
    assert len(sources) > 10


def test_the_distribution_has_a_name_of_its_own_and_the_packages_version(metadata):
    assert metadata["Name"] == "jaxbo-agents"
    assert metadata["Version"] == jaxbo.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"


def test_only_the_core_is_required_without_extras(metadata):
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    names = {re.match(r"[\w-]+", r)[0] for r in required}
    assert names == {"jax", "jaxlib", "equinox", "optax", "jaxtyping", "numpy", "filelock"}


def test_importing_brings_in_no_optional_package():
    code = (
        "import sys, jax, equinox, optax; before = set(sys.modules);"
        "import jaxbo; print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    added = python(code).split()
    assert "jaxbo" in added
    assert not set(added) & set(OPTIONAL)


def test_importing_does_not_wait_for_what_takes_longest():
    added = python("import sys, jaxbo; print(*sys.modules)").split()
    assert "jaxbo.kernels.models.fit" in added
    assert not {"scipy.special", "scipy.stats", "optax", "matplotlib"} & set(added)


IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it raises ImportError
import jaxbo
names = [m.name for m in pkgutil.walk_packages(jaxbo.__path__, "jaxbo.")]
for name in names:
    if name in ("jaxbo.demo", "jaxbo.federation._masks", "jaxbo.federation._identities"):
        continue
    if name.startswith("jaxbo.federation.flower"):
        continue
    importlib.import_module(name)
print(len(names))
import jax
try:
    jax.devices()
except RuntimeError:
    print("no backend")
"""


def test_no_module_but_four_needs_an_extra_or_a_device_to_be_imported():
    # A platform that does not exist: whatever asks for a device fails.
    count, backend = python(IMPORT_EVERYTHING, *OPTIONAL, JAX_PLATFORMS="none").splitlines()
    assert int(count) > 10
    assert backend == "no backend"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_names_the_python_it_needs_where_there_is_an_older_one(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1\nexit 1\n')
    old.chmod(0o755)
    command = ["make", "--no-print-directory", "demo", f"PYTHON={old}", f"VENV={tmp_path}/venv"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "needs Python 3.11 or newer, this is Python 3.8.1" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_no_class_name_occurs_twice():
    names = [
        node.name
        for path in [*ROOT.glob("jaxbo/**/*.py"), *ROOT.glob("bench/**/*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(names) > 150
    assert [name for name, count in collections.Counter(names).items() if count > 1] == []


#: Packages from below. A module imports those of its own floor and of floors below, wherever in its text.
FLOORS = (
    "types",
    "domains layout schedules",
    "kernels",
    "privacy",
    "objectives algos",
    "runs metrics",
    "federation plotting stopping",
    "demo",
    "__init__ __main__",
)


def imported(path, package):
    """The modules and names of a package that a file imports, wherever in its text."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
    return {full for full in found if full.startswith(f"{package}.")}


@pytest.mark.slow
def test_no_module_imports_upward():
    floor = {name: n for n, names in enumerate(FLOORS) for name in names.split()}
    # Helpers are below all: `_check`, `_keys` and their like.
    floor |= {path.stem: 0 for path in ROOT.glob("jaxbo/_[a-z]*.py")}
    upward = []
    for path in ROOT.glob("jaxbo/**/*.py"):
        name = path.relative_to(ROOT / "jaxbo")
        mine = floor[name.parts[0].removesuffix(".py")]
        rooms = {full.split(".")[1] for full in imported(path, "jaxbo")} & floor.keys()
        upward += [(name.as_posix(), room) for room in rooms if floor[room] > mine]
    assert upward == []


def test_no_experiment_imports_another():
    """What they share is in `common` and `tasks`, or in a module of their room that is no experiment."""
    experiments = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in ROOT.glob("bench/*/*.py")
        if "\nEXPERIMENT = " in path.read_text()
    }
    assert len(experiments) > 50
    crossed = {
        name: sorted(imported(path, "bench") & experiments.keys())
        for name, path in experiments.items()
    }
    assert {name: others for name, others in crossed.items() if others} == {}
