"""Programs with kernels: interpreted on a CPU, or lowered for a GPU that need not be there."""

from pathlib import Path

import jax
import pytest

from jaxbo.kernels.accelerated import choice

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Other releases of Pallas take other kernels (`choice.PLATFORMS`)."""
    if jax.__version_info__ < (0, 12):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="Pallas of jax 0.12 refuses these kernels"))


@pytest.fixture
def programs_for(monkeypatch):
    """Names the platforms whose programs hold kernels from now on."""

    def names(*platforms):
        monkeypatch.setattr(choice, "PLATFORMS", platforms)
        jax.clear_caches()  # what was traced before holds others

    yield names
    jax.clear_caches()


@pytest.fixture
def for_cuda():
    """The text of a function's program for a GPU."""

    def text(function, *arguments):
        traced = jax.jit(function).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    return text
