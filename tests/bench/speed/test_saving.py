"""What is measured of a population's checkpoint."""

import pytest

from bench.speed import saving


@pytest.mark.full
def test_a_run_with_a_file_is_the_run_without_and_its_file_holds_all_observations(monkeypatch):
    monkeypatch.setattr(saving, "FEATURES", 20)
    found = saving.measured(24, rounds=3)
    assert found.same
    assert found.size > 4 * 24 * 3 * 20  # a number for each feature of each observation
    assert min(found.bare, found.kept, found.again) > 0


def test_what_was_not_the_same_is_refuted():
    slow, other = (
        saving.Saved(1.0, 2.0, 0.1, 100, same=True),
        saving.Saved(1.0, 1.1, 0.1, 100, same=False),
    )
    found = saving.checks({10: slow, 20: other})
    assert [check.outcome.value for check in found.values()] == [
        "refuted",
        "holds",
        "holds",
        "refuted",
    ]
