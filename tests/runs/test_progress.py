"""A bar of tqdm or rich, whichever is there; without them lines in the log."""

import logging
import sys

import numpy as np
import pytest

from jaxbo.runs import _progress
from jaxbo.runs._progress import Progress
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.driver import drive
from tests.runs.driven import MODEL, RANDOM

MODULES = {"tqdm": ["tqdm"], "rich": ["rich.progress", "rich.console"]}


def without(monkeypatch, *names):
    for name in names:
        for module in MODULES[name]:
            monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.slow
@pytest.mark.parametrize("there", ["tqdm", "rich", "neither"])
def test_a_run_shows_how_far_it_is_and_its_best_value(there, monkeypatch, capsys, caplog, key):
    if there == "rich":
        pytest.importorskip("rich")
    without(monkeypatch, *(name for name in MODULES if name != there))
    monkeypatch.setattr(_progress, "EVERY", 0.0)
    caplog.set_level(logging.INFO, "jaxbo")
    drive(RANDOM, lambda agent, x: float(agent), 2, key, initial=1)
    shown = capsys.readouterr().err + caplog.text
    assert "3 of 3 rounds" in shown if there == "neither" else "3/3" in shown
    assert "best=2" in shown
    drive_async(MODEL, lambda x: -0.25, 3, key, direction="minimize")
    shown = capsys.readouterr().err + caplog.text
    assert "3 of 3 evaluations" in shown if there == "neither" else "3/3" in shown
    assert "best=-0.25" in shown


@pytest.mark.parametrize("there", ["tqdm", "neither"])
def test_nothing_is_shown_unless_it_is_asked_for(there, monkeypatch, capsys, caplog, key):
    without(monkeypatch, *(name for name in MODULES if name != there))
    caplog.set_level(logging.INFO, "jaxbo")
    drive(RANDOM, lambda x: 0.0, 1, key, progress=False)
    drive_async(MODEL, lambda x: 0.0, 1, key, progress=False)
    assert capsys.readouterr().err + caplog.text == ""


def test_the_log_has_a_line_every_few_seconds_and_the_last(monkeypatch, caplog):
    without(monkeypatch, *MODULES)
    now = iter([0.0, 1.0, 4.9, 5.1, 6.0, 11.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(now))
    caplog.set_level(logging.INFO, "jaxbo")
    with Progress(5, "round", True) as progress:
        for value in range(5):
            progress.advance_to(np.asarray([[float(value)]]), "maximize")
    assert [record.message for record in caplog.records] == [
        "3 of 5 rounds: best=2",
        "5 of 5 rounds: best=4",
    ]


def test_where_no_log_has_been_set_up_lines_go_to_the_standard_error(monkeypatch, capsys, key):
    without(monkeypatch, *MODULES)
    monkeypatch.setattr(_progress, "EVERY", 0.0)
    monkeypatch.setattr(_progress.log, "propagate", False)  # pytest has set one up
    drive(RANDOM, lambda agent, x: float(agent), 2, key, initial=1)
    assert capsys.readouterr().err.splitlines()[-1] == "3 of 3 rounds: best=2"


def test_a_run_that_goes_on_begins_where_it_was(capsys, key, path):
    pytest.importorskip("tqdm")
    stop = lambda desk: desk.told >= 2  # noqa: E731
    drive_async(MODEL, lambda x: 0.5, 4, key, checkpoint=path, stop=stop, progress=False)
    drive_async(MODEL, lambda x: 0.5, 4, key, checkpoint=path)
    assert "4/4" in capsys.readouterr().err
