"""The rooms of tests are those of the package: a module's tests are in the file of its name."""

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "jaxbo"

#: Modules whose tests are in another file, by the reason.
ELSEWHERE = {
    "it is what all methods keep to, or what they are compared with": {
        "algos/base/algorithm": "algos/test_contract",
        "algos/base/federated": "algos/test_contract",
        "algos/random_search": "algos/test_contract",
    },
    "each is tried beside the other, and they share their data": {
        "algos/rgpe": "algos/base/test_transfer",
        "algos/taf": "algos/base/test_transfer",
        "federation/coordinator": "federation/test_federation",
        "federation/owner": "federation/test_federation",
        "kernels/models/shared_covariance": "kernels/models/test_shared_prior",
    },
    "it is the limit of another method, which is tried there": {
        "algos/ts": "algos/test_fts",
    },
    "it is seen only in what its users do": {
        "algos/base/private": "runs/test_auditing",
        "algos/base/two_models": "algos/test_fts",
        "kernels/additive/chain": "kernels/additive/test_structure",
        "kernels/choosing/blocks": "kernels/choosing/test_maximize",
        "kernels/choosing/slabs": "kernels/accelerated/test_slabs",
        "kernels/moments": "kernels/choosing/test_history",
        "kernels/processes/sketch": "algos/test_cepe",
        "runs/renewing": "runs/test_executors",
        "runs/trace": "runs/test_compiled",
    },
}
FILES = {module: file for files in ELSEWHERE.values() for module, file in files.items()}


def public():
    """Paths of modules. A private module is a part of those that import it."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    return [path for path in paths if not path.name.startswith("_")]


def test_every_public_module_has_the_file_of_its_name_or_a_reason():
    without = {
        path.as_posix()
        for path in public()
        if not (TESTS / path.parent / f"test_{path.name}.py").exists()
    }
    assert without == set(FILES)


def test_the_files_elsewhere_are_there():
    assert [file for file in FILES.values() if not (TESTS / f"{file}.py").exists()] == []
