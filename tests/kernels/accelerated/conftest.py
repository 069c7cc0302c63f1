"""Programs with kernels: interpreted on a CPU, or lowered for a GPU that need not be there."""

import jax
import pytest

from jaxbo.kernels.accelerated import choice


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
