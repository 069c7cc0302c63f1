"""The bound from statistics of runs. `tests/runs/test_auditing.py` tries it on methods."""

import numpy as np
import pytest

from jaxbo.privacy import auditing


def test_the_largest_bound_is_that_of_worlds_told_apart():
    runs, delta, confidence = 1000, 1e-3, 0.95
    apart = np.ones(runs), np.zeros(runs)
    assert auditing.bound(*apart, delta, confidence) == pytest.approx(
        auditing.largest(runs, delta, confidence)
    )
