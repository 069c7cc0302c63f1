"""What is run, and the claims about it."""

import numpy as np

from bench.cepe import first


def test_all_that_claims_are_about_is_run():
    names = first.methods(100)
    assert {name for pair in first.PAIRS for name in pair} <= set(names)
    sent = {name: method.agents for name, method in names.items()}
    assert set(sent.values()) == {first.AGENTS}
    assert names[first.TAUGHT].lessons == first.LESSONS
    assert names[first.FEWER].lessons == 0
    assert names[first.STAYS].steps == first.MOST


def test_claims_are_about_the_ends_of_runs():
    rng = np.random.default_rng(0)
    functions = ("Branin",)
    even = {f"Branin, {name}": 10 + rng.random((5, 3)) for name in first.methods(100)}
    better = even | {f"Branin, {first.BOTH}": 1 + rng.random((5, 3)) / 10}
    found = first.checks(better, functions)
    assert len(found) == len(first.PAIRS)
    ours = [check for claim, check in found.items() if claim.startswith(f"Branin: {first.BOTH};")]
    assert len(ours) == 2 + len(first.RIVALS)
    assert all(check.holds for check in ours)
    worse = even | {f"Branin, {first.BOTH}": 100 + rng.random((5, 3))}
    lost = first.checks(worse, functions)
    assert sum(check.outcome == "refuted" for check in lost.values()) >= len(ours)
