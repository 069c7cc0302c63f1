"""Whatever reads a desk reads one moment of it, also while another thread tells it results."""

import threading

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo import plotting
from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs import asynchronous
from jaxbo.runs.best import best
from jaxbo.runs.desk import Desk
from jaxbo.stopping import NoProgress, Target
from tests.walk import Stroll

METHOD = EGP(Cube(2), Fixed(size=4), workers=2, candidates=4)
READ = {"queries", "values", "outcomes", "feasible", "failures", "results"}
READERS = {
    "progress": lambda desk: np.size(plotting.progress(desk).lines[0].get_ydata()),
    "parallel": lambda desk: sum(
        line.get_label() in ("_done", "_failed") for line in plotting.parallel(desk).lines
    ),
    "slice": lambda desk: np.size(plotting.slice_1d(desk, 0).lines[-1].get_ydata()),
    "best": lambda desk: best(METHOD, desk.state, desk).mean.size,
    "target": lambda desk: Target(1e3)(desk),
    "no progress": lambda desk: NoProgress(2)(desk),
}


class Hurried(Desk):
    """Between two reads of what it was told, another thread tells it one result more."""

    hurried = False

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in READ and super().__getattribute__("hurried"):
            self.hurried = False
            thread = threading.Thread(target=self.tell_new, args=([0.5, 0.5], 99.0))
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            self.hurried = True
        return found


def told(desk):
    for i in range(4):
        desk.tell_new([0.2 * i, 0.1 + 0.2 * i], float(i % 3))
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_pictures_rules_and_the_best_point_are_of_one_moment(reader):
    desk = told(Hurried(METHOD, jr.key(0)))
    desk.hurried = True
    found = READERS[reader](desk)
    desk.hurried = False
    assert desk.told > 4
    assert found == READERS[reader](told(Desk(METHOD, jr.key(0))))


@pytest.mark.slow
def test_a_run_looks_at_one_moment_of_its_desk(monkeypatch):
    class Started(Hurried):
        hurried = True

    monkeypatch.setattr(asynchronous, "Desk", Started)
    desk = asynchronous.drive_async(
        METHOD, lambda x: float(x[0]), 3, jr.key(0), stop=Target(1e3), progress=False
    )
    assert isinstance(desk, Started)
    desk.hurried = False
    assert desk.answered == 3
    assert desk.told > 3


def test_results_are_all_of_a_desk_in_the_order_in_which_they_came():
    limits = [Outcome("latency", at_most=1.0)]
    method = Stroll(Cube(2), 3, outcomes=limits)
    desk = Desk(method, jr.key(0), initial=2, direction="minimize")
    tickets = [desk.ask() for _ in range(3)]
    desk.tell(2, {"value": 5.0, "latency": 0.5})
    with pytest.warns(RuntimeWarning, match="no luck"):
        desk.fail(0, "no luck")
    before = desk.results
    desk.tell(1, {"value": 7.0, "latency": 2.0})
    assert before.tickets.tolist() == [2, 0]
    np.testing.assert_array_equal(before.values, [5.0, np.nan])
    np.testing.assert_array_equal(before.outcomes["latency"], [0.5, np.nan])
    assert before.feasible.tolist() == [True, False]
    assert [tuple(failure) for failure in before.failures] == [(0, 0, "no luck")]
    assert before.direction == "minimize"
    assert before.queries.dtype == jnp.zeros(()).dtype
    np.testing.assert_array_equal(before.queries, [tickets[2].x, tickets[0].x])
    after = desk.results
    assert after.tickets.tolist() == [2, 0, 1]
    assert after.feasible.tolist() == [True, False, False]
    assert "values=" in repr(after)
    for name in ("queries", "values", "feasible"):
        np.testing.assert_array_equal(getattr(after, name), getattr(desk, name))
