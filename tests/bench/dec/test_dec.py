"""What DEC-HBO's experiments run: every method builds, and claims are about the ends of runs."""

import numpy as np
import pytest

from bench.dec import synthetic


@pytest.mark.parametrize("name", synthetic.METHODS)
def test_every_method_has_room_for_its_evaluations(name):
    algorithm = synthetic.METHODS[name](4, 150)
    assert algorithm.domain.dim == 4
    assert algorithm.capacity == 160


def test_claims_compare_the_ends_of_runs_with_the_paper_and_with_botorch():
    names = [
        f"{function}, {method}"
        for function in synthetic.FUNCTIONS
        for method in (*synthetic.METHODS, synthetic.BOTORCH)
    ]
    good, bad = np.full((4, 3), 0.01), np.full((4, 3), 9.0) + np.arange(4)[:, None]
    alike = synthetic.checks(dict.fromkeys(names, good))
    assert len(alike) == 3 * (2 * len(synthetic.OURS) + 1)
    assert all(check.holds for check in alike.values())
    worse = {name: bad if "DEC-HBO" in name else good for name in names}
    found = synthetic.checks(worse)
    assert [claim for claim, check in found.items() if check.holds] == [
        claim
        for claim in found
        if "sum of the deviations" in claim  # both are bad
    ]
    for function in synthetic.FUNCTIONS:
        worse[f"{function}, {synthetic.SUMMED}"] = good
    found = synthetic.checks(worse)
    assert not any(found[claim].holds for claim in found if "sum of the deviations" in claim)
