"""The help of `drive`; what it does is tried in the other files of this folder."""

import inspect

import pytest

from jaxbo.runs import driver
from jaxbo.runs.driver import drive


def test_the_help_of_drive_fits_on_a_screen():
    assert len((inspect.getdoc(drive) or "").splitlines()) <= 24


@pytest.mark.parametrize("text", [inspect.getdoc(drive), inspect.getdoc(driver)])
def test_the_help_names_every_argument(text):
    options = inspect.signature(drive).parameters.values()
    named = [option.name for option in options if option.kind is option.KEYWORD_ONLY]
    assert [name for name in named if f"`{name}`" not in text] == []
