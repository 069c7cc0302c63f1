"""What tests of the comparisons share."""

import pytest

from bench.best import ours, search
from jaxbo.algos.random_search import RandomSearch


@pytest.fixture(scope="module")
def light():
    """Ours is random search, which compiles in a fraction of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "method", lambda domain, evaluations, k: RandomSearch(domain, k))
        search._program.cache_clear()
        yield
    search._program.cache_clear()
