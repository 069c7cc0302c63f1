"""Programs with kernels: interpreted on a CPU, or lowered for a GPU that need not be there."""

import contextlib
import warnings

import jax
import pytest

from jaxbo.kernels.accelerated import choice


def a_gpu():
    """Stands for a GPU while a program is lowered: from release 0.10 on Pallas asks for its kind."""
    if jax.__version_info__ < (0, 10):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    return jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((1,), ("devices",), abstract_device=device)
    )


@pytest.fixture
def programs_for(monkeypatch):
    """Names the platforms whose programs hold kernels from now on."""

    def names(*platforms):
        monkeypatch.setattr(choice, "PLATFORMS", platforms)
        monkeypatch.setattr(choice, "is_here", lambda platform: True)
        jax.clear_caches()  # what was traced before holds others

    yield names
    jax.clear_caches()


@pytest.fixture
def for_cuda():
    """The text of a function's program for a GPU."""

    def text(function, *arguments):
        with a_gpu(), warnings.catch_warnings():
            # From release 0.12 on.
            warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
            return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()

    return text
