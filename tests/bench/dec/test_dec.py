"""What DEC-HBO's experiments run: every method builds, and claims are about the ends of runs."""

import numpy as np
import pytest

from bench.dec import learned, synthetic

METHODS = synthetic.METHODS | learned.METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_room_for_its_evaluations(name):
    algorithm = METHODS[name](4, 150)
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


def test_claims_compare_learned_structures_with_the_paper_and_with_all_pairs():
    level = {learned.LEARNED: 9.0, learned.PAIRS: 0.01}
    curves = {
        f"{function}, {method}": np.full((4, 3), at) * (1 + np.arange(4)[:, None] / 100)
        for function in synthetic.FUNCTIONS
        for method, at in level.items()
    }
    found = learned.checks(curves)
    assert len(found) == 2 * len(synthetic.FUNCTIONS)
    assert all(check.refuted for check in found.values())
    low = {
        name: curve / 9000 if learned.LEARNED in name else curve for name, curve in curves.items()
    }
    assert all(check.holds for check in learned.checks(low).values())
