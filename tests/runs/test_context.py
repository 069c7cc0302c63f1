"""A context is given with every question: to a Desk, and to nobody else."""

import numpy as np
import pytest

from jaxbo import (
    EGP,
    TS,
    Desk,
    Fitted,
    Fixed,
    RandomSearch,
    Thompson,
    drive,
    drive_async,
    run,
    simulate,
)
from jaxbo.domains import constraint
from jaxbo.domains.base import Cube
from jaxbo.domains.parameters import Categorical, Context, Real
from jaxbo.domains.space import Space
from jaxbo.runs import desk as desk_module
from tests.walk import Stroll

SPACE = Space(load=Context(Real(0, 10)), x=Real(0, 10), k=Categorical("a", "b"))


def stroll(domain=SPACE, workers=2):
    return Stroll(domain, workers)


def test_a_desk_learns_what_to_do_at_each_context(key):
    method = EGP(SPACE, Fitted(20, size=40, refit_every=None), Thompson(), candidates=64)
    desk = Desk(method, key, initial=6)
    found = []
    for i in range(20):
        number, p = desk.ask(context={"load": (2.0, 8.0)[i % 2]})
        desk.tell(number, -((p["x"] - p["load"]) ** 2) / 10)
        found.append(abs(p["x"] - p["load"]))
    assert np.median(found[-8:]) < 0.5 * np.median(found[:6])


@pytest.mark.slow
def test_queries_that_were_out_come_back_at_their_own_context(key, tmp_path):
    path = tmp_path / "desk.npz"
    with Desk(stroll(), key, initial=2, checkpoint=path) as desk:
        first, second = desk.ask(context={"load": 1.0}), desk.ask(context={"load": 9.0})
    with Desk(stroll(), key, initial=2, checkpoint=path) as desk:
        assert desk.ask(context={"load": 9.0}) == second
        desk.tell(second.number, 0.0)
        other = desk.ask(context={"load": 5.0})
        assert other.number not in (first.number, second.number)
        assert other.x["load"] == pytest.approx(5)
        desk.tell(other.number, 0.0)
        assert desk.ask(context={"load": 1.0}) == first


def test_a_query_that_comes_back_is_one_of_a_workers_and_not_one_more(key, tmp_path):
    path, one = tmp_path / "desk.npz", stroll(workers=1)
    with Desk(one, key, initial=2, checkpoint=path) as desk:
        was_out = desk.ask(context={"load": 1.0})
    with Desk(one, key, initial=2, checkpoint=path) as desk:
        other = desk.ask(context={"load": 9.0})
        with pytest.raises(ValueError, match=r"all 1 workers are busy.*\(1,\)"):
            desk.ask(context={"load": 1.0})
        desk.tell(other.number, 0.0)
        assert desk.ask(context={"load": 1.0}) == was_out


@pytest.mark.slow
def test_a_first_point_that_is_not_allowed_in_a_context_gives_way_to_another(key, monkeypatch):
    monkeypatch.setattr(constraint, "BATCH", 128)  # fewer points at a time, at every context
    space = Space(load=Context(Real(0, 10)), x=Real(0, 10), where=lambda p: p["x"] <= p["load"])
    guess = [{"load": 9.0, "x": 8.0}, {"load": 9.0, "x": 1.0}]
    desk = Desk(stroll(space), key, initial=1, first=guess)
    with pytest.warns(RuntimeWarning, match="row 0 of first is not allowed"):
        number, p = desk.ask(context={"load": 2.0})
    assert p["x"] <= 2.0
    desk.tell(number, 0.0)
    assert desk.ask(context={"load": 2.0}).x["x"] == pytest.approx(1.0)


def test_what_was_out_before_a_stop_is_pending_in_other_contexts(key, tmp_path, monkeypatch):
    path = tmp_path / "desk.npz"
    with Desk(stroll(), key, checkpoint=path) as desk:
        desk.ask(context={"load": 1.0})
    seen, compiled = [], desk_module._soon.compiled

    def recorded(step, *options):
        def called(*arguments):
            if step is desk_module._steps.ask_one:
                seen.append(np.asarray(arguments[-1]).tolist())
            return compiled(step, *options)(*arguments)

        return called

    monkeypatch.setattr(desk_module._soon, "compiled", recorded)
    with Desk(stroll(), key, checkpoint=path) as desk:
        desk.ask(context={"load": 9.0})
    assert seen == [[True, False]]


def test_loops_without_a_context_say_where_it_goes(key, tmp_path):
    text = r"\['load'\] are context.*take a Desk, and ask\(context=\{...\}\)"
    asked = []
    with pytest.raises(ValueError, match=text):
        run(RandomSearch(SPACE), lambda key, agent, x: x[0], 2, key)
    with pytest.raises(ValueError, match=text):
        drive(TS(SPACE, 1, Fixed(size=40)), lambda a, p: asked.append(p), 2, key, progress=False)
    with pytest.raises(ValueError, match=text):
        simulate(stroll(), lambda x: x[0], lambda key, worker, x: x[0], 2, key)
    path = tmp_path / "desk.npz"
    with pytest.raises(ValueError, match=text):
        drive_async(stroll(), lambda p: asked.append(p), 2, key, checkpoint=path, progress=False)
    assert asked == []
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_context_that_nobody_declared_is_refused(key):
    for domain in (Cube(2), Space(x=Real(0, 1))):
        with pytest.raises(ValueError, match="context"):
            Desk(stroll(domain), key).ask(context={"load": 1.0})
