"""What a first call costs: the parts of its time, and how long a driver makes its user wait."""

from bench.speed import methods


def test_the_parts_of_a_first_call_are_found():
    found = methods.where("RandomSearch")
    assert min(found) > 0
    assert found.kernels < found.instructions
    # Each of these is a few dozen milliseconds at least, and nothing is counted in another unit.
    assert 0.01 < found.passes + found.writing + found.llvm < 60


def test_a_driver_waits_for_evaluations_which_do_not_count(monkeypatch):
    monkeypatch.setattr(methods, "SLOW", 0.0)
    at_once = methods.driven("RandomSearch")
    monkeypatch.setattr(methods, "SLOW", 1.0)
    # All is compiled by now, and five evaluations of a second each are left out.
    assert methods.driven("RandomSearch") < min(at_once, 2.0)


def test_only_workers_of_one_model_have_a_desk():
    assert methods.asked("RandomSearch") is None
