"""The help of `drive`; what it does is tried in the other files of this folder."""

import inspect

import pytest

from jaxbo.runs import driver
from jaxbo.runs.driver import drive


def test_the_arguments_of_drive_fit_on_a_screen_and_its_help_on_two():
    text = inspect.getdoc(drive) or ""
    assert len(text.splitlines()) <= 48
    assert len(text.partition("Args:")[2].partition("Returns:")[0].strip().splitlines()) <= 24


@pytest.mark.parametrize("text", [inspect.getdoc(drive), inspect.getdoc(driver)])
def test_the_help_names_every_argument(text):
    options = inspect.signature(drive).parameters.values()
    named = [option.name for option in options if option.kind is option.KEYWORD_ONLY]
    assert [n for n in named if f"`{n}`" not in text and f"\n    {n}: " not in text] == []
